"""How late a timer of 1 ms is on the producer's loop while its memory is registered, connected and sent.

Over the double of the verbs: a guest in which verbs are emulated stands still for longer than the limit by itself. The
broker has to be in this process then, where it takes Python's lock and a processor away from the loop, which a broker
elsewhere does not: so its thread gives way to all others (``SCHED_IDLE``) on the one processor that both have, and
threads give up the lock sooner than after the interpreter's 5 ms. The same work over TCP stands beside it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench.job import Measurement
from bench.ticker import INTERVAL, Ticker

if TYPE_CHECKING:
    from aioproducer.transport.rdma import RdmaConnector
    from aioproducer.transport.stream import StreamConnector

VALUE = bytes(1000)
# Sent between two calls of drain.
CHUNK = 20


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
