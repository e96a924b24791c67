"""confluent-kafka's synchronous producer, on librdkafka.

Its documentation advises a delivery callback a message and ``poll`` at intervals; librdkafka's, for throughput, a
linger (5 ms is its default) and large batches: ``batch.num.messages`` stays at 10,000, so that ``batch.size`` decides.
Where nothing is kept, ``delivery.report.only.error`` is what librdkafka has for it. ``poll`` is called as often as ours
awaits ``drain`` instead of after each message, and waits where the queue is full. The queue has its default size:
others, from 20,000 to a million, were not told apart from it on a busy machine.
"""

from __future__ import annotations

from itertools import repeat
from time import perf_counter_ns
from typing import Any

from bench.job import VALUE, Job, Measurement, Stopwatch, check, latencies


def configuration(job: Job) -> dict[str, str | int | bool]:
    """librdkafka's settings for a job."""
    return {
        "bootstrap.servers": job.bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": job.linger_ms,
        "batch.size": job.batch_size,
        "compression.type": job.compression,
    }


def _send(job: Job, producer: Any, count: int, delivered: Any) -> None:
    topic, produce, poll = job.topic, producer.produce, producer.poll
    for values in job.chunks(count):
        for value in values:
            while True:
                try:
                    produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    poll(0.1)
        poll(0)
    producer.flush()


def kept(job: Job) -> Measurement:
    """The outcome of every record is known at the end: its callback reads the offset."""
    from confluent_kafka import Producer

    failed = acked = offsets = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal failed, acked, offsets
        if error is not None:
            failed += 1
        else:
            acked += 1
            offsets += message.offset()

    producer = Producer(configuration(job))
    _send(job, producer, job.warm_up, delivered)
    watch = Stopwatch()
    offsets = 0
    _send(job, producer, job.records, delivered)
    measured = watch.stop(job.records, sent=job.warm_up + job.records, offsets=offsets)
    check(failed + job.warm_up + job.records - acked)
    return measured


def unkept(job: Job) -> Measurement:
    """Only failures are reported."""
    from confluent_kafka import Producer

    failed = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal failed
        failed += 1

    producer = Producer(configuration(job) | {"delivery.report.only.error": True})
    _send(job, producer, job.warm_up, delivered)
    watch = Stopwatch()
    _send(job, producer, job.records, delivered)
    measured = watch.stop(job.records, sent=job.warm_up + job.records)
    check(failed)
    return measured


def dressed(job: Job) -> Measurement:
    """Text that the caller encodes, with a key and a header; only failures are reported."""
    from confluent_kafka import Producer

    failed = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal failed
        failed += 1

    producer = Producer(configuration(job) | {"delivery.report.only.error": True})

    def send(count: int) -> None:
        topic, produce, poll = job.topic, producer.produce, producer.poll
        for messages in job.messages(count):
            for value, key, headers in messages:
                while True:
                    try:
                        produce(topic, value.encode(), key, headers=headers, on_delivery=delivered)
                        break
                    except BufferError:
                        poll(0.1)
            poll(0)
        producer.flush()

    send(job.warm_up)
    watch = Stopwatch()
    send(job.records)
    measured = watch.stop(job.records, sent=job.warm_up + job.records)
    check(failed)
    return measured


def many(job: Job) -> Measurement:
    """``produce_batch`` of a list of bytes, which it wants as dictionaries; only failures are reported."""
    from confluent_kafka import Producer

    failed = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal failed
        failed += 1

    producer = Producer(configuration(job) | {"delivery.report.only.error": True})

    def send(values: list[bytes]) -> None:
        for start in range(0, len(values), 10_000):
            messages = [{"value": value} for value in values[start : start + 10_000]]
            while messages:
                producer.produce_batch(job.topic, messages, on_delivery=delivered)
                # Those that found no room are marked, and are to be given again.
                messages = [message for message in messages if message.pop("_error", None) is not None]
                producer.poll(0.01 if messages else 0)
        producer.flush()

    values = [VALUE] * max(job.warm_up, job.records)
    send(values[: job.warm_up])
    values = values[: job.records]
    watch = Stopwatch()
    send(values)
    measured = watch.stop(job.records, sent=job.warm_up + job.records)
    check(failed)
    return measured


def alone(job: Job) -> Measurement:
    """One send at a time: produce, then poll until it is delivered."""
    from confluent_kafka import Producer

    failed = acked = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal failed, acked
        failed += error is not None
        acked += 1

    producer = Producer(configuration(job))
    produced = 0

    def send(count: int) -> list[int]:
        nonlocal produced
        taken = []
        for _ in repeat(None, count):
            began = perf_counter_ns()
            producer.produce(job.topic, VALUE, on_delivery=delivered)
            produced += 1
            while acked < produced:
                producer.poll(1)
            taken.append(perf_counter_ns() - began)
        return taken

    send(job.warm_up)
    watch = Stopwatch()
    taken = send(job.records)
    measured = watch.stop(job.records, sent=job.warm_up + job.records)
    check(failed)
    return measured | latencies(taken)
