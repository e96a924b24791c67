"""This project's producer with its defaults, except for linger and batch size, which are the same for every client.

The socket's send buffer is the system's, as for clients that do not have Kafka's default of 128 KiB.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from time import monotonic, monotonic_ns, perf_counter_ns, process_time
from typing import Any

from bench import events as json_events
from bench.job import (
    VALUE,
    Job,
    Measurement,
    Stopwatch,
    check,
    in_transactions,
    latencies,
    measure,
    measure_crowd,
)
from bench.memory import Memory
from bench.pacing import at_rate
from bench.ticker import Callbacks, Ticker


def settings(job: Job) -> dict[str, Any]:
    """Return the arguments of a producer, or a pool, for a job."""
    return {
        "bootstrap_servers": job.bootstrap,
        "acks": "all",
        "linger_ms": job.linger_ms,
        "batch_size": job.batch_size,
        "buffer_memory": job.buffer_memory,
        "compression_type": job.compression,
        "send_buffer_bytes": -1,
    }


def new_producer(job: Job, **more: Any) -> Any:
    """Return a producer with a job's settings, not started yet; ``more`` are further arguments."""
    from aioproducer import Producer

    return Producer(**settings(job), **more)


def build() -> str:
    """Return the measured build: "compiled" or "pure"."""
    from aioproducer import Producer

    return "compiled" if getattr(Producer, "compiled", False) else "pure"


async def kept(job: Job) -> Measurement:
    """Keep every Delivery, await it after ``flush``, and read its offset."""
    async with new_producer(job) as producer:

        async def send(count: int) -> int:
            deliveries = []
            for values in job.chunks(count):
                for value in values:
                    deliveries.append(producer.send(job.topic, value))
                await producer.drain()
            await producer.flush()
            offsets = 0
            for delivery in deliveries:
                offsets += (await delivery).offset
            return offsets

        await send(job.warm_up)
        watch = Stopwatch()
        offsets = await send(job.records)
        return watch.stop(job.records, sent=job.warm_up + job.records, offsets=offsets, build=build())


class _Failures:
    """The callback ``on_error``: counts failed records, and keeps the first error."""

    def __init__(self) -> None:
        self.count = 0
        self.first: BaseException | None = None

    def __call__(self, topic_partition: Any, count: int, error: BaseException) -> None:
        self.count += count
        self.first = self.first or error

    def check(self) -> None:
        """Raise an error if records failed: the measurement is invalid then."""
        if self.count:
            raise RuntimeError(f"{self.count} records failed, the first for {self.first!r}")


class _Batches:
    """A hook that counts batches."""

    def __init__(self) -> None:
        self.count = 0
        self.records = 0

    def on_batch_acked(
        self, topic_partition: Any, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        self.count += 1
        self.records += record_count


async def unkept(job: Job) -> Measurement:
    """Keep no Delivery; ``on_error`` counts failures."""
    failures = _Failures()
    batches = _Batches()
    # Called once for each batch, if the codec is measured alone on the same batches.
    hooks = [batches] if job.compression != "none" else []
    async with new_producer(job, on_error=failures, hooks=hooks) as producer:

        async def send(count: int) -> None:
            for values in job.chunks(count):
                for value in values:
                    producer.send(job.topic, value)
                await producer.drain()
            await producer.flush()

        await send(job.warm_up)
        batches.count = batches.records = 0
        watch = Stopwatch()
        await send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=build())
        failures.check()
        if batches.count:
            measured["records_a_batch"] = batches.records / batches.count
        return measured


async def _serialized(job: Job, chunks: Callable[[int], Iterable[Sequence[Any]]], **more: Any) -> Measurement:
    """Send messages through a serializer, keeping no Delivery. ``chunks`` returns a number of them, in lists."""
    failures = _Failures()
    async with new_producer(job, on_error=failures, **more) as producer:

        async def send(count: int) -> None:
            for messages in chunks(count):
                for value, key, headers in messages:
                    producer.send(job.topic, value, key, headers=headers)
                await producer.drain()
            await producer.flush()

        result = await measure(job, send, build=build())
        failures.check()
        return result


async def dressed(job: Job) -> Measurement:
    """Send text through a serializer, with a key and a header, keeping no Delivery."""
    return await _serialized(job, job.messages, value_serializer=str.encode)


# The interceptors that `bench.instructions` measures.
PLUGINS = {
    "on_send returns": "Returning",
    "on_send replaces": "Appending",
    "on_headers appends": "HeaderAppending",
    "on_acknowledgement counts": "Acknowledged",
}


def interceptors(job: Job) -> list[object]:
    """Return the job's interceptor, if any."""
    if not job.plugin:
        return []
    from bench import instructions

    return [getattr(instructions, PLUGINS[job.plugin])()]


async def events(job: Job) -> Measurement:
    """Send JSON events, serialized by ``orjson.dumps``, with a key and two headers, keeping no Delivery."""
    import orjson

    chunks = partial(json_events.chunks, job.event_size)
    return await _serialized(job, chunks, value_serializer=orjson.dumps, interceptor_classes=interceptors(job))


async def encoded_events(job: Job) -> Measurement:
    """Send the same events, encoded by the caller."""
    import orjson

    encode = orjson.dumps
    failures = _Failures()
    async with new_producer(job, on_error=failures) as producer:

        async def send(count: int) -> None:
            for messages in json_events.chunks(job.event_size, count):
                for event, key, headers in messages:
                    producer.send(job.topic, encode(event), key, headers=headers)
                await producer.drain()
            await producer.flush()

        result = await measure(job, send, build=build())
        failures.check()
        return result


async def event_crowd(job: Job) -> Measurement:
    """Run many coroutines that each make JSON events and await their sends one after the other."""
    import orjson

    messages = json_events.stream(job.event_size)
    async with new_producer(job, value_serializer=orjson.dumps) as producer:
        topic = job.topic

        async def one(count: int) -> None:
            for _ in repeat(None, count):
                event, key, headers = next(messages)
                await producer.send(topic, event, key, headers=headers)

        return await measure_crowd(job, one, build=build())


async def many(job: Job) -> Measurement:
    """Send lists of bytes by ``send_many``."""
    if job.distinct:
        values = [b"%0100d" % number for number in range(max(job.warm_up, job.records))]
    else:
        values = [VALUE] * max(job.warm_up, job.records)
    async with new_producer(job) as producer:
        await producer.send_many(job.topic, values[: job.warm_up])
        values = values[: job.records]
        # The garbage collector visits a new list twice more. That is a cost of making it, so it happens before.
        gc.collect()
        watch = Stopwatch()
        result = await producer.send_many(job.topic, values)
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=build())
        check(result.count - result.acked)
        return measured


async def crowd(job: Job) -> Measurement:
    """Run many coroutines that each await their sends one after the other."""
    async with new_producer(job) as producer:
        topic = job.topic

        async def one(count: int) -> None:
            for _ in repeat(None, count):
                await producer.send(topic, VALUE)

        return await measure_crowd(job, one, build=build())


async def alone(job: Job) -> Measurement:
    """Await each send in one coroutine."""
    async with new_producer(job) as producer:

        async def send(count: int) -> list[int]:
            taken = []
            for _ in repeat(None, count):
                began = perf_counter_ns()
                await producer.send(job.topic, VALUE)
                taken.append(perf_counter_ns() - began)
            return taken

        await send(job.warm_up)
        watch = Stopwatch()
        taken = await send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=build())
        return measured | latencies(taken)


async def paced(job: Job) -> Measurement:
    """Send records at scheduled times, each awaited in its own task; latency counts from the scheduled time."""
    async with new_producer(job) as producer:
        taken: list[int] = []

        async def one(scheduled: int) -> None:
            await producer.send(job.topic, VALUE)
            taken.append(monotonic_ns() - scheduled)

        async def send(count: int) -> None:
            async with asyncio.TaskGroup() as group:
                await at_rate(job.rate, count, lambda scheduled: group.create_task(one(scheduled)))

        await send(job.warm_up)
        taken.clear()
        watch = Stopwatch()
        await send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=build())
        return measured | latencies(taken)


async def transactions(job: Job) -> Measurement:
    """Run transactions of one producer, one after the other."""
    async with new_producer(job, transactional_id=job.topic) as producer:

        async def send(count: int) -> None:
            for number in range(count):
                async with producer.transaction() as transaction:
                    for _ in repeat(None, job.records_a_transaction):
                        transaction.send(job.topic, VALUE, partition=number % job.partitions)

        await send(job.shares(job.warm_up))
        watch = Stopwatch()
        await send(job.shares(job.records))
        return in_transactions(job, watch, build=build())


async def pooled_transactions(job: Job) -> Measurement:
    """Run transactions of a pool, with as many producers as coroutines."""
    from aioproducer import TransactionPool

    async with TransactionPool(
        transactional_id_prefix=job.topic,
        max_producers=job.coroutines,
        acquire_timeout_ms=60_000,
        **settings(job),
    ) as pool:

        async def one(count: int) -> None:
            for number in range(count):
                async with pool.transaction() as transaction:
                    for _ in repeat(None, job.records_a_transaction):
                        transaction.send(job.topic, VALUE, partition=number % job.partitions)

        async def send(count: int) -> None:
            await asyncio.gather(*(one(count) for _ in range(job.coroutines)))

        await send(job.shares(job.warm_up))
        watch = Stopwatch()
        await send(job.shares(job.records))
        return in_transactions(job, watch, build=build())


async def memory(job: Job) -> Measurement:
    """Measure the resident memory above the started producer's, while sending records without keeping a Delivery.

    The peak is that of the whole run. Growth is measured once the buffer has been full, because it is resident from
    then on. With a fast broker that could otherwise happen at any later time.
    """
    failures = _Failures()
    async with new_producer(job, on_error=failures) as producer:
        await producer.wait_ready(30)
        watched = Memory()
        await producer.send(job.topic, VALUE)
        # A record takes less than this, so that none has to wait outside the buffer.
        filling = job.buffer_memory // (len(VALUE) + 20)
        for _ in repeat(None, filling):
            producer.send(job.topic, VALUE)
        await producer.flush()
        watch = Stopwatch()
        every = max(job.records // 200, 1)
        number = 0
        for values in job.chunks(job.records):
            for value in values:
                producer.send(job.topic, value)
            number += len(values)
            await producer.drain()
            if number % every < len(values):
                watched.sample()
        await producer.flush()
        sent = 1 + filling + job.records
        measured = watch.stop(job.records, sent=sent, build=build())
        failures.check()
        delivery = producer.send(job.topic, VALUE)
        await delivery
        return measured | watched.summary() | {"sent": sent + 1, "delivery_bytes": sys.getsizeof(delivery)}


async def spread(job: Job) -> Measurement:
    """Send records evenly to the partitions of many topics, as many in each batch as ``batch_size`` allows."""
    failures = _Failures()
    topics = [f"{job.topic}-{number}" for number in range(job.topics)] if job.topics > 1 else [job.topic]
    idle, busy = topics[: job.idle_topics], topics[job.idle_topics :]
    batches = _Batches()
    async with new_producer(job, on_error=failures, hooks=[batches]) as producer:
        for topic in idle:
            for partition in range(job.partitions):
                producer.send(topic, VALUE, partition=partition)
            await producer.drain()
        await producer.flush()
        places = [(topic, partition) for partition in range(job.partitions) for topic in busy]

        async def send(count: int) -> int:
            rounds = max(count // len(places), 1)
            until_drain = 100
            for _ in repeat(None, rounds):
                for topic, partition in places:
                    producer.send(topic, VALUE, partition=partition)
                    until_drain -= 1
                    if not until_drain:
                        until_drain = 100
                        await producer.drain()
            await producer.flush()
            return rounds * len(places)

        # Also valid if metadata of every topic is requested.
        warmed = await send(max(job.warm_up, len(places)))
        batches.count = batches.records = 0
        watch = Stopwatch()
        records = await send(job.records)
        measured = watch.stop(records, sent=len(idle) * job.partitions + warmed + records, build=build())
        failures.check()
        return measured | {"records_a_batch": batches.records / batches.count}


async def idle(job: Job) -> Measurement:
    """Count an idle producer's wake-ups of the CPU: voluntary context switches of all its threads."""
    import resource

    async with new_producer(job) as producer:
        await producer.send(job.topic, VALUE)
        await asyncio.sleep(1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        began = process_time()
        await asyncio.sleep(job.seconds)
        used = process_time() - began
        # One of them is the end of this sleep.
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before - 1
        return {
            "sent": 1,
            "wakeups_a_second": switches / job.seconds,
            "cpu_us_a_second": used / job.seconds * 1e6,
            "build": build(),
        }


async def ticking(job: Job) -> Measurement:
    """Send at full rate for ``seconds``, beside a ticker of 1 ms."""
    failures = _Failures()
    async with new_producer(job, on_error=failures) as producer:

        async def send(seconds: float) -> int:
            ends = monotonic() + seconds
            sent = 0
            for values in job.chunks(sys.maxsize):
                for value in values:
                    producer.send(job.topic, value)
                sent += len(values)
                await producer.drain()
                if monotonic() >= ends:
                    break
            return sent

        warmed = await send(1)
        await producer.flush()
        ticker = Ticker(asyncio.get_running_loop())
        watch = Stopwatch()
        sent = await send(job.seconds)
        late = ticker.stop()
        measured = watch.stop(sent, sent=warmed + sent, build=build())
        await producer.flush()
        failures.check()
        return measured | late


async def callbacks(job: Job) -> Measurement:
    """As ``ticking``, and measure the CPU time of each callback: on asyncio's loop only."""
    with Callbacks() as timed:

        async def clear() -> None:
            await asyncio.sleep(1)
            timed.taken.clear()

        clearing = asyncio.create_task(clear())
        measured = await asyncio.create_task(ticking(job))
        await clearing
    return measured | timed.summary("aioproducer", f"{__name__}.{ticking.__qualname__}")
