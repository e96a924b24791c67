"""confluent-kafka's synchronous producer, on librdkafka.

Its documentation recommends a delivery callback for each message and ``poll`` at intervals. For throughput,
librdkafka's recommends a linger (5 ms is its default) and large batches: ``batch.num.messages`` stays at 10,000, so
that ``batch.size`` decides. Works that keep no outcome set ``delivery.report.only.error``. ``poll`` is called as often
as ours awaits ``drain`` instead of after each message, and waits if the queue is full. The queue has its default size;
other sizes, from 20,000 to a million, showed no difference on a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from threading import Event, Thread
from time import monotonic_ns, perf_counter_ns
from typing import Any

from bench import events as json_events
from bench.job import VALUE, Job, Measurement, Stopwatch, check, in_transactions, latencies, measure_blocking
from bench.pacing import at_rate_blocking


def configuration(job: Job) -> dict[str, str | int | bool]:
    """Return librdkafka's settings for a job."""
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
    """Observe the outcome of every record: a callback reads its offset."""
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


class _Failures:
    """Counts delivery reports; only failures are reported."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: Any, message: Any) -> None:
        self.count += 1


def unkept(job: Job) -> Measurement:
    """Send values; only failures are reported."""
    from confluent_kafka import Producer

    failures = _Failures()
    producer = Producer(configuration(job) | {"delivery.report.only.error": True})
    result = measure_blocking(job, lambda count: _send(job, producer, count, failures))
    check(failures.count)
    return result


def _encoded(job: Job, chunks: Callable[[int], Iterable[Sequence[Any]]], encode: Callable[[Any], bytes]) -> Measurement:
    """Send messages that the caller encodes; only failures are reported. ``chunks`` returns them in lists."""
    from confluent_kafka import Producer

    failures = _Failures()
    producer = Producer(configuration(job) | {"delivery.report.only.error": True})

    def send(count: int) -> None:
        topic, produce, poll = job.topic, producer.produce, producer.poll
        for messages in chunks(count):
            for given, key, headers in messages:
                value = encode(given)
                while True:
                    try:
                        produce(topic, value, key, headers=headers, on_delivery=failures)
                        break
                    except BufferError:
                        poll(0.1)
            poll(0)
        producer.flush()

    result = measure_blocking(job, send)
    check(failures.count)
    return result


def dressed(job: Job) -> Measurement:
    """Send text that the caller encodes, with a key and a header; only failures are reported."""
    return _encoded(job, job.messages, str.encode)


def events(job: Job) -> Measurement:
    """Send JSON events that the caller encodes, with a key and two headers; only failures are reported."""
    import orjson

    return _encoded(job, partial(json_events.chunks, job.event_size), orjson.dumps)


def many(job: Job) -> Measurement:
    """Send lists of bytes by ``produce_batch``, converted to its dictionaries; only failures are reported."""
    from confluent_kafka import Producer

    failures = _Failures()
    producer = Producer(configuration(job) | {"delivery.report.only.error": True})

    def send(values: list[bytes]) -> None:
        for start in range(0, len(values), 10_000):
            messages = [{"value": value} for value in values[start : start + 10_000]]
            while messages:
                producer.produce_batch(job.topic, messages, on_delivery=failures)
                # Messages without room are marked, and must be passed again.
                messages = [message for message in messages if message.pop("_error", None) is not None]
                producer.poll(0.01 if messages else 0)
        producer.flush()

    values = [VALUE] * max(job.warm_up, job.records)
    send(values[: job.warm_up])
    values = values[: job.records]
    watch = Stopwatch()
    send(values)
    measured = watch.stop(job.records, sent=job.warm_up + job.records)
    check(failures.count)
    return measured


def alone(job: Job) -> Measurement:
    """Send one record at a time: produce, then poll until it is delivered."""
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


def paced(job: Job) -> Measurement:
    """Send records at scheduled times; latency counts from the scheduled time to the delivery callback.

    One thread produces, another one polls, as in confluent-kafka's examples for web frameworks.
    """
    from confluent_kafka import Producer

    failures: list[Any] = []
    taken: list[int] = []
    producer = Producer(configuration(job))
    ended = Event()

    def poll() -> None:
        while not ended.is_set():
            producer.poll(0.1)

    def produce(scheduled: int) -> None:
        def delivered(error: Any, message: Any) -> None:
            taken.append(monotonic_ns() - scheduled)
            if error is not None:
                failures.append(error)

        producer.produce(job.topic, VALUE, on_delivery=delivered)

    def send(count: int) -> None:
        at_rate_blocking(job.rate, count, produce)
        producer.flush()

    polling = Thread(target=poll)
    polling.start()
    try:
        send(job.warm_up)
        taken.clear()
        watch = Stopwatch()
        send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records)
    finally:
        ended.set()
        polling.join()
    check(len(failures))
    return measured | latencies(taken)


def transactions(job: Job) -> Measurement:
    """Run transactions of one producer one after the other, or of several producers, each in its own thread.

    ``commit_transaction`` waits for the records, and raises if one has failed.
    """
    from confluent_kafka import Producer

    def started(number: int) -> Any:
        producer = Producer(configuration(job) | {"transactional.id": f"{job.topic}-{number}"})
        producer.init_transactions()
        return producer

    def send(producer: Any, count: int) -> None:
        for number in range(count):
            producer.begin_transaction()
            for _ in repeat(None, job.records_a_transaction):
                producer.produce(job.topic, VALUE, partition=number % job.partitions)
            producer.commit_transaction()

    with ThreadPoolExecutor(job.coroutines) as threads:
        producers = list(threads.map(started, range(job.coroutines)))
        list(threads.map(send, producers, repeat(job.shares(job.warm_up))))
        watch = Stopwatch()
        list(threads.map(send, producers, repeat(job.shares(job.records))))
        return in_transactions(job, watch)
