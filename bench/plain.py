"""Programs without a producer: the cost of the loop, a codec or the machine alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from time import perf_counter_ns
from typing import cast

from bench import events as json_events
from bench import raw_socket
from bench.job import Job, Measurement, Stopwatch, latencies
from bench.ticker import Callbacks, Ticker


async def crowd(job: Job) -> Measurement:
    """Run many coroutines that await futures, all completed by one callback: the cost of resuming alone."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def wake() -> None:
        woken = waiting[:]
        waiting.clear()
        for future in woken:
            future.set_result(None)

    async def one(count: int) -> None:
        for _ in range(count):
            future = loop.create_future()
            waiting.append(future)
            if len(waiting) == job.coroutines:
                loop.call_soon(wake)
            await future

    async def all_of(count: int) -> None:
        await asyncio.gather(*(one(count // job.coroutines) for _ in range(job.coroutines)))

    await all_of(job.warm_up)
    watch = Stopwatch()
    await all_of(job.records)
    return watch.stop(job.records // job.coroutines * job.coroutines)


def events(job: Job) -> Measurement:
    """Make the events with their keys and headers, and encode them, without sending."""
    import orjson

    encode = orjson.dumps

    def make(count: int) -> None:
        for messages in json_events.chunks(job.event_size, count):
            for event, _, _ in messages:
                encode(event)

    make(job.warm_up)
    watch = Stopwatch()
    make(job.records)
    return watch.stop(job.records)


class _Replay(asyncio.Protocol):
    """Sends prepared requests by the loop's own transport, and completes a future with each response."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = b""
        self._waiting: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not an instance of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, frame: bytes) -> asyncio.Future[bytes]:
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return self._waiting

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data
        if self._waiting is not None and len(received) >= 4 and len(received) - 4 >= int.from_bytes(received[:4]):
            self._received = b""
            self._waiting.set_result(received[4:])

    def connection_lost(self, exception: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exception or ConnectionError("the broker ended the connection"))


async def alone(job: Job) -> Measurement:
    """Await requests of one record each: the raw socket's requests, by a protocol on the loop."""
    batch = raw_socket.batch_of(1)
    frames = [raw_socket.frame_of(job.topic, partition, batch) for partition in range(job.partitions)]
    host, _, port = job.bootstrap.rpartition(":")
    transport, replay = await asyncio.get_running_loop().create_connection(_Replay, host, int(port))

    async def send(count: int) -> tuple[list[int], list[bytes]]:
        taken, found = [], []
        for _ in repeat(None, count):
            frame = frames[len(taken) % len(frames)]
            began = perf_counter_ns()
            response = await replay.ask(frame)
            taken.append(perf_counter_ns() - began)
            found.append(response)
        return taken, found

    try:
        await send(job.warm_up)
        watch = Stopwatch()
        taken, found = await send(job.records)
        measured = watch.stop(job.records, sent=job.warm_up + job.records)
    finally:
        transport.close()
    raw_socket.check_responses(found)
    return measured | latencies(taken)


def codec(job: Job) -> Measurement:
    """Run the codec alone, on batches of the same records, with the producer's average number in each."""
    from aioproducer.compression import codec as codec_of
    from aioproducer.wire.record_batch import SimpleRecord, encode_batch

    values = job.values() * 2
    count = max(job.records_a_batch, 1)
    now = int(time.time() * 1000)
    bodies = []
    for start in range(0, max(len(values) - count, 1), count):
        records = [SimpleRecord(timestamp=now, key=None, value=value) for value in values[start : start + count]]
        bodies.append(b"".join(encode_batch(records))[61:])
    compress = codec_of(job.compression).compress
    size = 0

    def work(batches: int) -> int:
        size = 0
        for number in range(batches):
            size += len(compress([bodies[number % len(bodies)]]))
        return size

    work(max(job.warm_up // count, 1))
    batches = max(job.records // count, 1)
    watch = Stopwatch()
    size = work(batches)
    measured = watch.stop(batches * count)
    raw = sum(len(bodies[number % len(bodies)]) for number in range(batches))
    return measured | {"ratio": raw / size, "records_a_batch": count}


async def tick(job: Job) -> Measurement:
    """Run a ticker alone in its process."""
    ticker = Ticker(asyncio.get_running_loop())
    await asyncio.sleep(job.seconds)
    return ticker.stop()


async def _beside(command: Sequence[str], measure: Callable[[Job], Awaitable[Measurement]], job: Job) -> Measurement:
    other = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        # The other process has started by then.
        await asyncio.sleep(1)
        measured = await measure(job)
        if other.returncode is not None:
            raise RuntimeError("the process beside the ticker has ended")
        return measured
    finally:
        if other.returncode is None:
            other.kill()
        await other.wait()


async def _beside_broker(measure: Callable[[Job], Awaitable[Measurement]], job: Job) -> Measurement:
    from bench.child import command_for

    load = Job("load", job.bootstrap, job.topic, seconds=job.seconds + 5)
    return await _beside(command_for("bench.raw_socket", load), measure, job) | {"sent": None}


async def tick_beside_work(job: Job) -> Measurement:
    """Run a ticker beside a process that computes."""
    return await _beside([sys.executable, "-c", "while True: pass"], tick, job)


async def tick_beside_broker(job: Job) -> Measurement:
    """Run a ticker beside a broker that a raw socket keeps busy."""
    return await _beside_broker(tick, job)


async def busy_tick_beside_broker(job: Job) -> Measurement:
    """Run a ticker on a loop that computes continuously, in callbacks of 0.1 ms, beside a busy broker."""
    return await _beside_broker(_busy_tick, job)


async def _busy_tick(job: Job) -> Measurement:
    loop = asyncio.get_running_loop()
    ends = time.monotonic() + job.seconds
    ticker = Ticker(loop)
    while time.monotonic() < ends:
        _sum()
        await asyncio.sleep(0)
    return ticker.stop()


async def callbacks_beside_broker(job: Job) -> Measurement:
    """Run callbacks that do the same sum each time, beside a busy broker: on asyncio's loop only."""
    return await _beside_broker(_sums, job)


async def _sums(job: Job) -> Measurement:
    loop = asyncio.get_running_loop()
    ends = loop.time() + job.seconds
    with Callbacks() as timed:
        while loop.time() < ends:
            loop.call_soon(_sum)
            await asyncio.sleep(0)
    return timed.summary(f"{__name__}.{_sum.__qualname__}")


def _sum() -> None:
    # About 0.1 ms, as a callback that sends or receives much data.
    sum(range(5000))


async def idle(job: Job) -> Measurement:
    """Run a loop that only sleeps."""
    import resource

    await asyncio.sleep(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    began = time.process_time()
    await asyncio.sleep(job.seconds)
    used = time.process_time() - began
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before - 1
    return {"wakeups_a_second": switches / job.seconds, "cpu_us_a_second": used / job.seconds * 1e6}


def import_package(job: Job) -> Measurement:
    """Measure by how many milliseconds `import aioproducer` exceeds `import asyncio`: median of fresh processes."""
    return _import_time(job, "import aioproducer")


def import_producer(job: Job) -> Measurement:
    """Measure `from aioproducer import Producer`, which also loads the class's module."""
    return _import_time(job, "from aioproducer import Producer")


def _import_time(job: Job, statement: str) -> Measurement:
    import statistics

    program = (
        "import asyncio, sys, time\n"
        "wall, cpu = time.perf_counter(), time.process_time()\n"
        f"{statement}\n"
        "print(time.perf_counter() - wall, time.process_time() - cpu, len(sys.modules))"
    )
    found = []
    # The first run writes the bytecode.
    for number in range(job.records + 1):
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        if number:
            found.append([float(cell) for cell in run.stdout.split()])
    wall, cpu, modules = (statistics.median(column) for column in zip(*found, strict=True))
    return {"import_ms": wall * 1000, "import_cpu_ms": cpu * 1000, "modules": modules}
