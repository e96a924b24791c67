"""Lateness of a timer of 1 ms on the producer's loop while its memory is registered, connected and sent.

It uses the double of the verbs, because a guest with emulated verbs pauses for longer than the limit. The double needs
the broker in this process, where it takes the GIL and a processor from the loop, unlike a broker in another process.
Therefore its thread gives way to all others (``SCHED_IDLE``) on the one processor that both have, and threads release
the GIL sooner than after the interpreter's 5 ms. The same work over TCP is measured too.
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
# Records sent between two calls of drain.
CHUNK = 20


async def late_while_sending(
    address: str, connector: RdmaConnector | StreamConnector, buffer_memory: int
) -> Measurement:
    """Measure from before a producer is made until it is closed; send as many bytes as its registered memory has."""
    from aioproducer import Producer

    ticker = Ticker(asyncio.get_running_loop())
    async with Producer(
        bootstrap_servers=address, transport=connector, buffer_memory=buffer_memory, batch_size=128 * 1024
    ) as producer:
        # Connects, which registers the memory, and waits for the topic's partitions.
        await producer.send("bench", VALUE)
        records = -(-buffer_memory // len(VALUE))
        for start in range(0, records, CHUNK):
            for _ in range(min(CHUNK, records - start)):
                last = producer.send("bench", VALUE)
            await producer.drain()
        await producer.flush()
        await last
    # All of it may have taken less than a tick.
    await asyncio.sleep(2 * INTERVAL)
    return ticker.stop()


def table(found: dict[str, list[Measurement]]) -> str:
    """Return a table of the longest lateness of all rounds, and of each."""
    lines = ["| transport | at most late, ms | of each round |", "|---|---|---|"]
    for name, rounds in found.items():
        longest = [f"{one['late_max_ms']:.1f}" for one in rounds]
        lines.append(f"| {name.upper()} | {max(one['late_max_ms'] for one in rounds):.1f} | {', '.join(longest)} |")
    return "\n".join(lines)
