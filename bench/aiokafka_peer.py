"""aiokafka.

Its documentation recommends ``linger_ms`` and ``max_batch_size`` for batching, ``send`` with futures awaited later, and
``send_and_wait`` only if each outcome is needed at once. It runs on uvloop and on asyncio's loop. Its C extensions and
crc32c are installed with its wheel. ``enable_idempotence`` is off by default, and on here as for all clients.
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
    """Keep the future of each record, and read its offset."""
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
    """Counts failed futures without a reference, as the loop's exception handler, which asyncio calls for them."""

    def __init__(self) -> None:
        self.count = 0
        asyncio.get_running_loop().set_exception_handler(self)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.count += 1


async def unkept(job: Job) -> Measurement:
    """Keep no future; count those that fail."""
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
    """Send messages through a serializer, keeping no future. ``chunks`` returns a number of them, in lists."""
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
    """Send text through a serializer, with a key and a header, keeping no future."""
    return await _serialized(job, job.messages, str.encode)


async def events(job: Job) -> Measurement:
    """Send JSON events, serialized by ``orjson.dumps``, with a key and two headers, keeping no future."""
    import orjson

    return await _serialized(job, partial(json_events.chunks, job.event_size), orjson.dumps)


async def event_crowd(job: Job) -> Measurement:
    """Run many coroutines that each make JSON events and await their sends one after the other."""
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
    """Run many coroutines that each await their sends one after the other."""
    async with _producer(job) as producer:
        topic = job.topic

        async def one(count: int) -> None:
            for _ in repeat(None, count):
                await producer.send_and_wait(topic, VALUE)

        return await measure_crowd(job, one, build=_build())


async def alone(job: Job) -> Measurement:
    """Await each send in one coroutine."""
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
    """Send records at scheduled times, each awaited in its own task; latency counts from the scheduled time."""
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
    """Send at full rate for ``seconds``, beside a ticker of 1 ms."""
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
