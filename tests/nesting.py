"""A program that sends from a loop that runs inside its own callbacks, as in notebooks, and from other tasks."""

from __future__ import annotations

import asyncio

import nest_asyncio2

from aioproducer import Producer
from aioproducer.testing import EmbeddedCluster

SENDERS = 5
SENDS = 40


async def alternate(producer: Producer, topic: str, number: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(SENDS):
        await producer.send(topic, b"awaited by %d" % number)
        loop.run_until_complete(producer.send(topic, b"awaited inside by %d" % number))


async def main() -> int:
    async with EmbeddedCluster() as cluster, cluster.producer(linger_ms=0) as producer:
        await producer.send("nested", b"before the loop is patched")
        nest_asyncio2.apply()
        await alternate(producer, "nested", 0)
        # One of the tasks that wait for a batch runs the loop before the others have resumed.
        await asyncio.gather(*[alternate(producer, "nested", number) for number in range(1, SENDERS)])
        return len(cluster.records("nested"))


if __name__ == "__main__":
    assert asyncio.run(asyncio.wait_for(main(), 60)) == 1 + 2 * SENDERS * SENDS
