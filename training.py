"""What a profile-guided build learns from: producer and consumer at their usual work, about a second of each kind.

`setup.py` runs this on modules that count how often each branch is taken, and compiles them again with the counts. The
broker is the embedded one, in a process of its own and from the sources, so that only the producer's work counts; RDMA
alone has both in one process, as its double demands. What is not installed is left out: uvloop, pyarrow.

    python training.py
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aioproducer import Producer

TOPIC = "training"
PARTITIONS = 4
VALUE = b"x" * 100
# Records that are awaited one by one, and those that are not, of each kind of work. An awaited one runs through some
# hundred times as much code: with these numbers neither looks as if it did not matter.
AWAITED = 2000
PIPELINED = 100_000
CROWD = 500
# Seconds that one loop's work may take on a slow machine.
LONGEST = 120.0


async def _serve() -> None:
    """A broker until stdin ends; says where it listens."""
    from aioproducer.testing import EmbeddedCluster

    async with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        print(cluster.bootstrap_servers, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _awaited(producer: Producer, records: int) -> None:
    for _ in range(records):
        (await producer.send(TOPIC, VALUE)).offset  # noqa: B018  # reading it is a part of the work


async def _crowd(producer: Producer, records: int) -> None:
    await asyncio.gather(*[_awaited(producer, max(records // CROWD, 1)) for _ in range(CROWD)])


async def _pipelined(producer: Producer, records: int) -> None:
    for number in range(records):
        producer.send(TOPIC, VALUE)
        if number % 100 == 0:
            await producer.drain()
    await producer.flush()


async def _kept(producer: Producer, records: int) -> None:
    deliveries = []
    for number in range(records):
        deliveries.append(producer.send(TOPIC, VALUE))
        if number % 100 == 0:
            await producer.drain()
    await producer.flush()
    for delivery in deliveries:
        (await delivery).offset  # noqa: B018


async def _dressed(producer: Producer, records: int) -> None:
    for number in range(records):
        producer.send(TOPIC, "x" * (50 + number % 500), b"key-%d" % number, headers=[("name", b"value")])
        if number % 100 == 0:
            await producer.drain()
    await producer.flush()


async def _columns(producer: Producer, records: int) -> None:
    values = [VALUE] * records
    keys = [b"%016d" % number for number in range(records)]
    await producer.send_many(TOPIC, values)
    await producer.send_many(TOPIC, values, keys=keys)
    try:
        import pyarrow
    except ImportError:
        return
    arrow = pyarrow.array(values, "binary")
    await producer.send_many(TOPIC, arrow, keys=pyarrow.array(keys, "binary"))
    times = pyarrow.array(range(records), pyarrow.timestamp("ms"))
    await producer.send_many(TOPIC, arrow, timestamps_ms=times)


_Work = Callable[["Producer", int], Coroutine[Any, Any, None]]
# What is done, with how many records, of a producer with which settings.
_WORKS: tuple[tuple[_Work, int, dict[str, object]], ...] = (
    (_awaited, AWAITED, {"linger_ms": 0}),
    (_crowd, 20 * CROWD, {"linger_ms": 0}),
    (_pipelined, PIPELINED, {"batch_size": 128 * 1024}),
    (_pipelined, PIPELINED, {}),
    (_kept, PIPELINED, {"batch_size": 128 * 1024}),
    (_dressed, PIPELINED // 4, {"value_serializer": str.encode}),
    (_columns, PIPELINED, {}),
    (_pipelined, PIPELINED, {"compression_type": "gzip"}),
)


async def _work(bootstrap_servers: str, share: float) -> None:
    from aioproducer import Producer

    for work, records, settings in _WORKS:
        async with Producer(bootstrap_servers=bootstrap_servers, **settings) as producer:
            await work(producer, int(records * share))
    await _consumed(bootstrap_servers, int(PIPELINED * share))


async def _consumed(bootstrap_servers: str, records: int) -> None:
    from aioproducer import Consumer

    async with Consumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
        left = records // 2
        async for _ in consumer:
            left -= 1
            if left <= 0:
                break
        left = records
        while left > 0:
            polled = await consumer.poll(timeout=1.0, max_records=500)
            left -= sum(map(len, polled.values()))


async def _work_over_rdma(share: float) -> None:
    from aioproducer.testing import EmbeddedCluster
    from aioproducer.testing.verbs import SimulatedFabric

    async with EmbeddedCluster(transport="rdma", verbs=SimulatedFabric()) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        async with cluster.producer(linger_ms=0) as producer:
            await _awaited(producer, int(AWAITED * share))
            await producer.send_many(TOPIC, [VALUE] * int(PIPELINED * share))


def _loop_factories() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    try:
        import uvloop
    except ImportError:
        return [asyncio.new_event_loop]
    return [asyncio.new_event_loop, uvloop.new_event_loop]


def main(share: float = 1.0) -> None:
    """Work on each loop, with so much of the records.

    Raises:
        RuntimeError: the broker did not start; it has said why.
        TimeoutError: the work did not end.
    """
    environment = {**os.environ, "AIOPRODUCER_PURE": "1"}
    command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), __file__, "--broker"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        try:
            bootstrap_servers = broker.stdout.readline().strip()
            if not bootstrap_servers:
                raise RuntimeError("the broker did not start")
            for factory in _loop_factories():
                with asyncio.Runner(loop_factory=factory) as runner:
                    runner.run(asyncio.wait_for(_work(bootstrap_servers, share), LONGEST))
        finally:
            broker.stdin.close()
    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(_work_over_rdma(share), LONGEST))


if __name__ == "__main__":
    if "--broker" in sys.argv:
        asyncio.run(_serve())
    else:
        main()
