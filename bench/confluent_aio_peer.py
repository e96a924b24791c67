"""confluent-kafka's ``AIOProducer``.

Pipelined runs use its defaults for what it adds to librdkafka: batches of 1,000 messages, handed to 4 threads. If
coroutines await each send, a batch that is not full would wait for ``buffer_timeout``, 1 s by default. For these runs
it is 1 ms, and a batch is a tenth of the coroutines: the fastest of seven pairs, each tried once.

It does not limit unacknowledged messages, but fails futures with ``BufferError`` when librdkafka's queue of 100,000 is
full. Therefore the caller limits them, by ``flush`` every 20,000 messages.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from bench import events as json_events
from bench.confluent_peer import configuration
from bench.job import CHUNK, VALUE, Job, Measurement, Stopwatch, measure_crowd
from bench.ticker import Ticker

WINDOW = 20_000


@asynccontextmanager
async def _producer(job: Job, **more: Any) -> AsyncIterator[Any]:
    from confluent_kafka.aio import AIOProducer

    producer = AIOProducer(configuration(job), **more)
    try:
        yield producer
    finally:
        await producer.close()


async def kept(job: Job) -> Measurement:
    """Keep the future of each record, and read its offset."""
    async with _producer(job) as producer:

        async def send(count: int) -> int:
            futures = []
            for number, values in enumerate(job.chunks(count), 1):
                for value in values:
                    futures.append(await producer.produce(job.topic, value))
                if number % (WINDOW // CHUNK) == 0:
                    await producer.flush()
            await producer.flush()
            offsets = 0
            for future in futures:
                offsets += (await future).offset()
            return offsets

        await send(job.warm_up)
        watch = Stopwatch()
        offsets = await send(job.records)
        return watch.stop(job.records, sent=job.warm_up + job.records, offsets=offsets)


async def crowd(job: Job) -> Measurement:
    """Run many coroutines that each await their sends one after the other."""
    async with _producer(job, batch_size=max(job.coroutines // 10, 1), buffer_timeout=0.001) as producer:

        async def one(count: int) -> None:
            for _ in range(count):
                await (await producer.produce(job.topic, VALUE))

        return await measure_crowd(job, one)


async def event_crowd(job: Job) -> Measurement:
    """Run many coroutines that each make and encode JSON events and await their sends one after the other.

    Without the headers: ``AIOProducer.produce`` rejects them.
    """
    import orjson

    encode = orjson.dumps
    messages = json_events.stream(job.event_size)
    async with _producer(job, batch_size=max(job.coroutines // 10, 1), buffer_timeout=0.001) as producer:

        async def one(count: int) -> None:
            for _ in range(count):
                event, key, _ = next(messages)
                await (await producer.produce(job.topic, encode(event), key))

        return await measure_crowd(job, one)


async def ticking(job: Job) -> Measurement:
    """Send at full rate for ``seconds``, beside a ticker of 1 ms."""
    async with _producer(job) as producer:

        async def send(seconds: float) -> int:
            ends = monotonic() + seconds
            sent = 0
            for values in job.chunks(sys.maxsize):
                for value in values:
                    await producer.produce(job.topic, value)
                sent += len(values)
                if sent % WINDOW < len(values):
                    await producer.flush()
                if monotonic() >= ends:
                    break
            return sent

        warmed = await send(1)
        await producer.flush()
        ticker = Ticker(asyncio.get_running_loop())
        watch = Stopwatch()
        sent = await send(job.seconds)
        late = ticker.stop()
        measured = watch.stop(sent, sent=warmed + sent)
        await producer.flush()
        return measured | late
