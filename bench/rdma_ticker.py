"""How late a timer of 1 ms is on the producer's loop while its memory is registered, connected and sent.

Over the double of the verbs: a guest in which verbs are emulated stands still for longer than the limit by itself. The
broker has to be in this process then, where it takes Python's lock and a processor away from the loop, which a broker
elsewhere does not: so its thread gives way to all others (``SCHED_IDLE``) on the one processor that both have, and
threads give up the lock sooner than after the interpreter's 5 ms. The same work over TCP stands beside it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.job import Measurement
from bench.ticker import INTERVAL, Ticker

if TYPE_CHECKING:
    from aioproducer.transport.rdma import RdmaConnector
    from aioproducer.transport.stream import StreamConnector

VALUE = bytes(1000)
# Sent between two calls of drain.
CHUNK = 20
SWITCH_INTERVAL = 0.0005
"""How long a thread keeps the interpreter when another wants it, in seconds."""


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads have the interpreter for ``SWITCH_INTERVAL`` at most."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one processor; on Linux only.

    A thread that has Python's lock but no processor holds up all others. On one processor it is the others' turn that
    it gets while they wait for the lock.
    """
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def give_way() -> None:
    """Let this thread, and those that it starts, have the processor while no other thread wants it; on Linux only."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


async def late_while_sending(
    address: str, connector: RdmaConnector | StreamConnector, buffer_memory: int
) -> Measurement:
    """From before a producer is made until it is closed: as many bytes as it has memory, all of which is registered."""
    from aioproducer import Producer

    ticker = Ticker(asyncio.get_running_loop())
    async with Producer(
        bootstrap_servers=address, transport=connector, buffer_memory=buffer_memory, batch_size=128 * 1024
    ) as producer:
        # Connected, which is when memory is registered, and the topic's partitions known.
        await producer.send("bench", VALUE)
        records = -(-buffer_memory // len(VALUE))
        for start in range(0, records, CHUNK):
            for _ in range(min(CHUNK, records - start)):
                last = producer.send("bench", VALUE)
            await producer.drain()
        await producer.flush()
        await last
    # It may all have taken less than a tick.
    await asyncio.sleep(2 * INTERVAL)
    return ticker.stop()


def table(found: dict[str, list[Measurement]]) -> str:
    """The longest of all rounds, and of each."""
    lines = ["| transport | at most late, ms | of each round |", "|---|---|---|"]
    for name, rounds in found.items():
        longest = [f"{one['late_max_ms']:.1f}" for one in rounds]
        lines.append(f"| {name.upper()} | {max(one['late_max_ms'] for one in rounds):.1f} | {', '.join(longest)} |")
    return "\n".join(lines)
