"""CPU time and rate of consumers: ``python -m bench.consuming``.

Each client reads a whole partition in a process of its own, against the embedded broker in another process, which has
the records in memory. CPU time is that of the client's process, all threads, from the creation of the client, after its
import, to the last record. Rows are clients, with the ratio to confluent-kafka's ``consume(1000)``. Use compiled
modules: uncompiled ones take several times as long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from time import perf_counter, process_time

from bench.child import loop_factory
from bench.embedded import ROOT, embedded_broker

SIZES = (100, 1000)
CODECS = ("none", "lz4")
CLIENTS = ("ours async for", "ours poll", "ours poll_arrow", "confluent-kafka consume", "aiokafka getmany")
REFERENCE = "confluent-kafka consume"


def topic_of(size: int, codec: str) -> str:
    return f"consuming-{size}-{codec}"


async def fill(bootstrap_servers: str, count: int) -> None:
    """Write ``count`` records of each size and codec: text that a codec halves, in batches of 16 KiB as by default."""
    from aioproducer import Producer
    from aioproducer.admin import Admin

    async with Admin(bootstrap_servers=bootstrap_servers) as admin:
        for size in SIZES:
            for codec in CODECS:
                await admin.create_topic(topic_of(size, codec), 1)
                async with Producer(
                    bootstrap_servers=bootstrap_servers, compression_type=codec, compression_lz4_level=1, linger_ms=20
                ) as producer:
                    for number in range(count):
                        text = b"%d event of the service for orders and carts; " % number
                        producer.send(topic_of(size, codec), (text * (size // len(text) + 1))[:size])
                        await producer.drain()
                    await producer.flush()


# The clients: each yields the number of records that one call has returned.


async def _ours(bootstrap_servers: str, topic: str, form: str) -> AsyncIterator[int]:
    from aioproducer import Consumer

    async with Consumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        if form == "async for":
            count = 0
            async for record in consumer:
                assert record.value is not None
                count += 1
                if count == 1000:
                    yield count
                    count = 0
        while True:
            if form == "poll":
                yield sum([len(records) for records in (await consumer.poll(5.0, max_records=1000)).values()])
            else:
                yield (await consumer.poll_arrow(5.0, max_records=1000)).num_rows


async def _aiokafka(bootstrap_servers: str, topic: str) -> AsyncIterator[int]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        while True:
            got = await consumer.getmany(timeout_ms=5000, max_records=1000)
            yield sum([len(records) for records in got.values()])
    finally:
        await consumer.stop()


def _confluent(bootstrap_servers: str, topic: str) -> Iterator[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "bench", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            messages = consumer.consume(1000, 5.0)
            yield len([message.value() for message in messages])
    finally:
        consumer.close()


class Stopwatch:
    """Measures from its creation until ``count`` records have been read.

    There is no warm-up: a client fetches in the background, and work that it does meanwhile would not count.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._seen = 0
        self._cpu, self._wall = process_time(), perf_counter()
        self.result: dict[str, float] | None = None

    def add(self, records: int) -> bool:
        """Count ``records``; return whether all have been read."""
        self._seen += records
        if self._seen < self._count:
            return False
        self.result = {
            "cpu_us": (process_time() - self._cpu) / self._seen * 1e6,
            "rate": self._seen / (perf_counter() - self._wall),
        }
        return True


async def _run_async(records: AsyncIterator[int], watch: Stopwatch) -> None:
    async for count in records:
        if watch.add(count):
            break
    await records.aclose()  # type: ignore[attr-defined]  # a generator


def child(client: str, bootstrap_servers: str, topic: str, count: int, loop: str) -> None:
    """Measure one client in this process, and print the result."""
    name, _, form = client.partition(" ")
    import_module({"ours": "aioproducer.consumer", "aiokafka": "aiokafka"}.get(name, "confluent_kafka"))
    if form == "poll_arrow":
        # The first array imports it.
        import_module("pyarrow.compute")
    watch = Stopwatch(count)
    if name == "confluent-kafka":
        for records in _confluent(bootstrap_servers, topic):
            if watch.add(records):
                break
    else:
        make: Callable[[], AsyncIterator[int]] = (
            (lambda: _ours(bootstrap_servers, topic, form))
            if name == "ours"
            else (lambda: _aiokafka(bootstrap_servers, topic))
        )
        with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
            runner.run(_run_async(make(), watch))
    print(json.dumps(watch.result))


def measure(client: str, bootstrap_servers: str, topic: str, count: int, loop: str) -> dict[str, float]:
    """Measure one client in a new process."""
    command = [sys.executable, "-m", "bench.consuming", "--child", client, bootstrap_servers, topic, str(count), loop]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="only these")
    options = parser.parse_args()
    with embedded_broker() as bootstrap_servers:
        asyncio.run(fill(bootstrap_servers, options.records))
        for size in SIZES:
            for codec in CODECS:
                best: dict[str, dict[str, float]] = {}
                for _ in range(options.rounds):
                    for client in options.client or CLIENTS:
                        got = measure(client, bootstrap_servers, topic_of(size, codec), options.records, options.loop)
                        if client not in best or got["cpu_us"] < best[client]["cpu_us"]:
                            best[client] = got
                print(f"{size} bytes, {codec}")
                for client, got in best.items():
                    ratio = got["cpu_us"] / best.get(REFERENCE, got)["cpu_us"]
                    cpu, rate = got["cpu_us"], got["rate"]
                    print(f"  {client:26} {cpu:8.3f} µs CPU a record  {ratio:6.2f}  {rate:12,.0f} records/s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _client, _address, _topic, _count, _loop = sys.argv[2:]
        child(_client, _address, _topic, int(_count), _loop)
    else:
        main()
