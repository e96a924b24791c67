"""This project's producer: defaults throughout, apart from what every client is given, linger and batch size.

The socket's send buffer is the system's, as it is for the clients that do not have Kafka's default of 128 KiB.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from itertools import repeat
from time import monotonic, perf_counter_ns, process_time
from typing import Any

from bench.job import VALUE, Job, Measurement, Stopwatch, check, latencies
from bench.memory import Memory
from bench.ticker import Callbacks, Ticker


def _producer(job: Job, **more: Any) -> Any:
    from aioproducer import Producer

    return Producer(
        bootstrap_servers=job.bootstrap,
        acks="all",
        linger_ms=job.linger_ms,
        batch_size=job.batch_size,
        buffer_memory=job.buffer_memory,
        compression_type=job.compression,
        send_buffer_bytes=-1,
        **more,
    )


def _build() -> str:
    from aioproducer import Producer

    return "compiled" if getattr(Producer, "compiled", False) else "pure"


async def kept(job: Job) -> Measurement:
    """Every Delivery is kept, awaited after ``flush``, and its offset read."""
    async with _producer(job) as producer:

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
        return watch.stop(job.records, sent=job.warm_up + job.records, offsets=offsets, build=_build())


class _Failures:
    """For ``on_error``: how many, and why the first."""

    def __init__(self) -> None:
        self.count = 0
        self.first: BaseException | None = None

    def __call__(self, topic_partition: Any, count: int, error: BaseException) -> None:
        self.count += count
        self.first = self.first or error

    def check(self) -> None:
        """A producer that lost records has measured nothing."""
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
    """Nothing is kept; ``on_error`` counts what fails."""
    failures = _Failures()
    batches = _Batches()
    # One call a batch, where the batches are to be compressed again alone.
    hooks = [batches] if job.compression != "none" else []
    async with _producer(job, on_error=failures, hooks=hooks) as producer:

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
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=_build())
        failures.check()
        if batches.count:
            measured["records_a_batch"] = batches.records / batches.count
        return measured


async def dressed(job: Job) -> Measurement:
    """Text through a serializer, with a key and a header; nothing is kept."""
    failures = _Failures()
    async with _producer(job, on_error=failures, value_serializer=str.encode) as producer:

        async def send(count: int) -> None:
            for messages in job.messages(count):
                for value, key, headers in messages:
                    producer.send(job.topic, value, key, headers=headers)
                await producer.drain()
            await producer.flush()

        await send(job.warm_up)
        watch = Stopwatch()
        await send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=_build())
        failures.check()
        return measured


async def many(job: Job) -> Measurement:
    """``send_many`` of a list of bytes."""
    if job.distinct:
        values = [b"%0100d" % number for number in range(max(job.warm_up, job.records))]
    else:
        values = [VALUE] * max(job.warm_up, job.records)
    async with _producer(job) as producer:
        await producer.send_many(job.topic, values[: job.warm_up])
        values = values[: job.records]
        # The collector walks a list that is new twice more: that is of making it, which nobody's run has to pay.
        gc.collect()
        watch = Stopwatch()
        result = await producer.send_many(job.topic, values)
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=_build())
        check(result.count - result.acked)
        return measured


async def crowd(job: Job) -> Measurement:
    """Many coroutines, each awaiting each of its sends in turn."""
    async with _producer(job) as producer:
        topic = job.topic

        async def one(count: int) -> None:
            for _ in repeat(None, count):
                await producer.send(topic, VALUE)

        async def all_of(count: int) -> None:
            await asyncio.gather(*(one(count // job.coroutines) for _ in range(job.coroutines)))

        await all_of(job.warm_up)
        watch = Stopwatch()
        await all_of(job.records)
        records = job.records // job.coroutines * job.coroutines
        sent = records + job.warm_up // job.coroutines * job.coroutines
        return watch.stop(records, sent=sent, build=_build())


async def alone(job: Job) -> Measurement:
    """One coroutine, awaiting each send in turn."""
    async with _producer(job) as producer:

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
        measured = watch.stop(job.records, sent=job.warm_up + job.records, build=_build())
        return measured | latencies(taken)


async def memory(job: Job) -> Measurement:
    """Resident memory above the started producer's, while records are sent that nobody keeps.

    The peak is that of the whole run. Growth is looked for once the buffer has been full: it is resident from then on,
    and a broker that keeps up would put that off to any later time.
    """
    failures = _Failures()
    async with _producer(job, on_error=failures) as producer:
        await producer.wait_ready(30)
        watched = Memory()
        await producer.send(job.topic, VALUE)
        # A record takes less than this: none has to wait in line, outside of the buffer.
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
        measured = watch.stop(job.records, sent=sent, build=_build())
        failures.check()
        delivery = producer.send(job.topic, VALUE)
        await delivery
        return measured | watched.summary() | {"sent": sent + 1, "delivery_bytes": sys.getsizeof(delivery)}


async def spread(job: Job) -> Measurement:
    """Records spread evenly over the partitions of many topics, as many in each batch as ``batch_size`` allows."""
    failures = _Failures()
    topics = [f"{job.topic}-{number}" for number in range(job.topics)] if job.topics > 1 else [job.topic]
    idle, busy = topics[: job.idle_topics], topics[job.idle_topics :]
    batches = _Batches()
    async with _producer(job, on_error=failures, hooks=[batches]) as producer:
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

        # Also where every topic is asked for.
        warmed = await send(max(job.warm_up, len(places)))
        batches.count = batches.records = 0
        watch = Stopwatch()
        records = await send(job.records)
        measured = watch.stop(records, sent=len(idle) * job.partitions + warmed + records, build=_build())
        failures.check()
        return measured | {"records_a_batch": batches.records / batches.count}


async def idle(job: Job) -> Measurement:
    """How often a started producer with nothing to do wakes the CPU: voluntary context switches of all its threads."""
    import resource

    async with _producer(job) as producer:
        await producer.send(job.topic, VALUE)
        await asyncio.sleep(1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        began = process_time()
        await asyncio.sleep(job.seconds)
        used = process_time() - began
        # One is the end of this sleep.
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before - 1
        return {
            "sent": 1,
            "wakeups_a_second": switches / job.seconds,
            "cpu_us_a_second": used / job.seconds * 1e6,
            "build": _build(),
        }


async def ticking(job: Job) -> Measurement:
    """Full rate for ``seconds``, beside a ticker of 1 ms."""
    failures = _Failures()
    async with _producer(job, on_error=failures) as producer:

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
        measured = watch.stop(sent, sent=warmed + sent, build=_build())
        await producer.flush()
        failures.check()
        return measured | late


async def callbacks(job: Job) -> Measurement:
    """As ``ticking``, with the CPU time of each callback taken: on the plain loop only."""
    with Callbacks() as timed:

        async def clear() -> None:
            await asyncio.sleep(1)
            timed.taken.clear()

        clearing = asyncio.create_task(clear())
        measured = await asyncio.create_task(ticking(job))
        await clearing
    return measured | timed.summary("aioproducer", f"{__name__}.{ticking.__qualname__}")
