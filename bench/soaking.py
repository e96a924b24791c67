"""The producer's process of `python -m bench.soak`: two phases, and a sample of each second."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable
from itertools import repeat
from time import monotonic, monotonic_ns, process_time
from typing import Any

from bench.job import VALUE, Job, Measurement, latencies
from bench.ours import build, new_producer
from bench.pacing import at_rate

FULL_RATE, SHARED_RATE = "full rate", "20 % of it, with bursts"
SHARE = 0.2
# Each second begins with a burst: this multiple of the rate, for this part of a second.
BURST_FACTOR, BURST_SECONDS = 10, 0.02
# Awaited sends a second, in addition to the others.
PROBES = 100
# Seconds between two checks for due records.
_TICK = 0.001


def planned(elapsed: float, rate: float) -> int:
    """Return how many records are due ``elapsed`` seconds after the start, at ``rate`` records/s plus bursts."""
    whole = math.floor(elapsed)
    within = elapsed - whole
    a_second = rate * (1 + (BURST_FACTOR - 1) * BURST_SECONDS)
    return int(whole * a_second + rate * (within + (BURST_FACTOR - 1) * min(within, BURST_SECONDS)))


class Samples:
    """The samples of a phase. Times are in seconds; ``began`` is the start of the run, ``now`` that of the phase."""

    def __init__(self, phase: str, began: float, now: float, cpu: float, acknowledged: int) -> None:
        self.rows: list[Measurement] = []
        self._phase = phase
        self._began = began
        self._last = (now, cpu, acknowledged)

    def add(self, now: float, cpu: float, acknowledged: int, taken: list[int], more: Measurement) -> None:
        """Add the sample of the time since the last one.

        ``cpu`` is the process's CPU time so far and ``acknowledged`` its records so far. ``taken`` are nanoseconds of
        each probe that has ended since the last sample; if none has, the sample has no latencies.
        """
        before, cpu_before, acknowledged_before = self._last
        elapsed = now - before
        self.rows.append(
            {
                "phase": self._phase,
                "second": now - self._began,
                "rate": (acknowledged - acknowledged_before) / elapsed,
                "cpu_share": (cpu - cpu_before) / elapsed,
                **more,
                **(latencies(taken) if taken else {}),
            }
        )
        self._last = (now, cpu, acknowledged)


class _Outcomes:
    """Counts records by their outcomes: a hook, and ``on_error``."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failed = 0
        self.first_failure = ""

    def on_batch_acked(
        self, topic_partition: Any, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        self.acknowledged += record_count

    def fail(self, topic_partition: Any, count: int, error: BaseException) -> None:
        self.failed += count
        self.first_failure = self.first_failure or repr(error)


class _Run:
    """The state that both phases share."""

    def __init__(self, job: Job, producer: Any, outcomes: _Outcomes) -> None:
        import psutil

        self._job = job
        self._producer = producer
        self._outcomes = outcomes
        self._process = psutil.Process()
        self._began = monotonic()
        # Latencies of the probes since the last sample, in nanoseconds.
        self._taken: list[int] = []
        self.sent = 0

    async def fill_buffer(self) -> None:
        """Use all of the buffer's memory once, so that its pages are resident."""
        await self._producer.send(self._job.topic, VALUE)
        # A record takes less than this, so that none has to wait outside the buffer.
        count = self._job.buffer_memory // (len(VALUE) + 20)
        for _ in repeat(None, count):
            self._producer.send(self._job.topic, VALUE)
        self.sent += 1 + count
        await self._producer.flush()

    async def phase(self, name: str, flow: Callable[[], Awaitable[None]]) -> list[Measurement]:
        """Run ``flow`` beside the probes, and return a sample of each second."""
        samples = Samples(name, self._began, monotonic(), process_time(), self._outcomes.acknowledged)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._probe())
            group.create_task(self._sample(samples))
            await flow()
        await self._producer.flush()
        return samples.rows

    async def full_rate(self) -> None:
        """Send without a pause."""
        ends = monotonic() + self._job.seconds
        while monotonic() < ends:
            await self._send(10_000)

    async def at_rate(self, rate: float) -> None:
        """Send at ``rate`` records/s, with bursts."""
        began = monotonic()
        sent = 0
        while (elapsed := monotonic() - began) < self._job.seconds:
            due = planned(elapsed, rate) - sent
            if due > 0:
                await self._send(due)
                sent += due
            else:
                await asyncio.sleep(_TICK)

    async def _send(self, count: int) -> None:
        for values in self._job.chunks(count):
            for value in values:
                self._producer.send(self._job.topic, value)
            await self._producer.drain()
        self.sent += count

    async def _probe(self) -> None:
        """Await a send every 10 ms, each in its own task; latency counts from the scheduled time."""
        from aioproducer.errors import KafkaError

        async def one(scheduled: int) -> None:
            try:
                await self._producer.send(self._job.topic, VALUE)
            except KafkaError:
                # on_error counts it.
                return
            self._taken.append(monotonic_ns() - scheduled)

        count = round(self._job.seconds * PROBES)
        async with asyncio.TaskGroup() as group:
            await at_rate(PROBES, count, lambda scheduled: group.create_task(one(scheduled)))
        self.sent += count

    async def _sample(self, samples: Samples) -> None:
        loop = asyncio.get_running_loop()
        began = monotonic()
        for second in range(1, round(self._job.seconds) + 1):
            await asyncio.sleep(max(began + second - monotonic(), 0))
            # The kernel visits each page. In a thread this delays no callback of the loop.
            memory = await loop.run_in_executor(None, self._process.memory_full_info)
            taken, self._taken = self._taken, []
            more = {
                "rss_mib": memory.rss / 2**20,
                "uss_mib": memory.uss / 2**20,
                "buffer_available_bytes": self._producer.metrics()["buffer-available-bytes"],
            }
            samples.add(monotonic(), process_time(), self._outcomes.acknowledged, taken, more)


async def soak(job: Job) -> Measurement:
    """Send for ``seconds`` at full rate, then for the same time at a share of that rate, with bursts."""
    outcomes = _Outcomes()
    async with new_producer(job, on_error=outcomes.fail, hooks=[outcomes]) as producer:
        run = _Run(job, producer, outcomes)
        await run.fill_buffer()
        samples = await run.phase(FULL_RATE, run.full_rate)
        rate = statistics.median(one["rate"] for one in samples)
        samples += await run.phase(SHARED_RATE, lambda: run.at_rate(rate * SHARE))
        return {
            "samples": samples,
            "sent": run.sent,
            "acknowledged": outcomes.acknowledged,
            "failed": outcomes.failed,
            "first_failure": outcomes.first_failure,
            "build": build(),
        }
