"""aiokafka.

Its documentation advises to batch by ``linger_ms`` and ``max_batch_size``, to send with ``send`` and await the futures
later, and ``send_and_wait`` only where each outcome is needed at once; uvloop beside the plain loop. Its C extensions
and crc32c are installed with its wheel. ``enable_idempotence`` is off by default and on here, as for everybody.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from time import monotonic, monotonic_ns, perf_counter_ns
from typing import Any

from bench import events as json_events
from bench.job import VALUE, Job, Measurement, Stopwatch, check, latencies, measure, measure_crowd
from bench.pacing import at_rate
from bench.ticker import Ticker


@asynccontextmanager
async def _producer(job: Job, **more: Any) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=job.linger_ms,
        max_batch_size=job.batch_size,
        compression_type=None if job.compression == "none" else job.compression,
        **more,
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def _build() -> str:
    from aiokafka.record import default_records

    return (
        "compiled"
        if default_records.DefaultRecordBatchBuilder.__module__.endswith("_crecords.default_records")
        else "pure"
    )


async def kept(job: Job) -> Measurement:
    """A future a record, kept, and its offset read."""
    async with _producer(job) as producer:

        async def send(count: int) -> int:
            futures = []
            for values in job.chunks(count):
                for value in values:
                    futures.append(await producer.send(job.topic, value))
            await producer.flush()
            offsets = 0
            for future in futures:
                offsets += (await future).offset
            return offsets

        await send(job.warm_up)
        watch = Stopwatch()
        offsets = await send(job.records)
        return watch.stop(job.records, sent=job.warm_up + job.records, offsets=offsets, build=_build())


class _Unretrieved:
    """Counts futures that fail and that nobody keeps, as the loop's exception handler: asyncio calls it for them."""

    def __init__(self) -> None:
        self.count = 0
        asyncio.get_running_loop().set_exception_handler(self)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.count += 1


async def unkept(job: Job) -> Measurement:
    """No future is kept; those that fail are counted."""
    failed = _Unretrieved()
    async with _producer(job) as producer:

        async def send(count: int) -> None:
            for values in job.chunks(count):
                for value in values:
                    await producer.send(job.topic, value)
            await producer.flush()

        result = await measure(job, send, build=_build())
        check(failed.count)
        return result


async def _serialized(
    job: Job, chunks: Callable[[int], Iterable[Sequence[Any]]], serializer: Callable[[Any], bytes]
) -> Measurement:
    """Messages through a serializer; no future is kept. ``chunks`` makes a number of them, in lists."""
    failed = _Unretrieved()
    async with _producer(job, value_serializer=serializer) as producer:

        async def send(count: int) -> None:
            for messages in chunks(count):
                for value, key, headers in messages:
                    await producer.send(job.topic, value, key, headers=headers)
            await producer.flush()

        result = await measure(job, send, build=_build())
        check(failed.count)
        return result


async def dressed(job: Job) -> Measurement:
    """Text through a serializer, with a key and a header; no future is kept."""
    return await _serialized(job, job.messages, str.encode)


async def events(job: Job) -> Measurement:
    """JSON events through ``orjson.dumps`` as the serializer, with a key and two headers; no future is kept."""
    import orjson

    return await _serialized(job, partial(json_events.chunks, job.event_size), orjson.dumps)


async def event_crowd(job: Job) -> Measurement:
    """Many coroutines, each making a JSON event and awaiting its send, in turn."""
    import orjson

    messages = json_events.stream(job.event_size)
    async with _producer(job, value_serializer=orjson.dumps) as producer:
        topic = job.topic

        async def one(count: int) -> None:
            for _ in repeat(None, count):
                event, key, headers = next(messages)
                await producer.send_and_wait(topic, event, key, headers=headers)

        return await measure_crowd(job, one, build=_build())


async def crowd(job: Job) -> Measurement:
    """Many coroutines, each awaiting each of its sends in turn."""
    async with _producer(job) as producer:
        topic = job.topic

        async def one(count: int) -> None:
            for _ in repeat(None, count):
                await producer.send_and_wait(topic, VALUE)

        return await measure_crowd(job, one, build=_build())


async def alone(job: Job) -> Measurement:
    """One coroutine, awaiting each send in turn."""
    async with _producer(job) as producer:

        async def send(count: int) -> list[int]:
            taken = []
            for _ in repeat(None, count):
                began = perf_counter_ns()
                await producer.send_and_wait(job.topic, VALUE)
                taken.append(perf_counter_ns() - began)
            return taken

        await send(job.warm_up)
        watch = Stopwatch()
        taken = await send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=_build())
        return measured | latencies(taken)


async def paced(job: Job) -> Measurement:
    """Records at scheduled times, each awaited in a task of its own; latency counts from the scheduled time."""
    async with _producer(job) as producer:
        taken: list[int] = []

        async def one(scheduled: int) -> None:
            await producer.send_and_wait(job.topic, VALUE)
            taken.append(monotonic_ns() - scheduled)

        async def send(count: int) -> None:
            async with asyncio.TaskGroup() as group:
                await at_rate(job.rate, count, lambda scheduled: group.create_task(one(scheduled)))

        await send(job.warm_up)
        taken.clear()
        watch = Stopwatch()
        await send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=_build())
        return measured | latencies(taken)


async def ticking(job: Job) -> Measurement:
    """Full rate for ``seconds``, beside a ticker of 1 ms."""
    async with _producer(job) as producer:

        async def send(seconds: float) -> int:
            ends = monotonic() + seconds
            sent = 0
            for values in job.chunks(sys.maxsize):
                for value in values:
                    await producer.send(job.topic, value)
                sent += len(values)
                if monotonic() >= ends:
                    break
            return sent

        warmed = await send(1)
        await producer.flush()
        ticker = Ticker(asyncio.get_running_loop())
        watch = Stopwatch()
        sent = await send(job.seconds)
        late = ticker.stop()
        measured = watch.stop(sent, sent=warmed + sent, build=_build())
        await producer.flush()
        return measured | late
