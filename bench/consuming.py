"""CPU time and rate of consumers: ``python -m bench.consuming``.

Each client reads a whole partition in a process of its own, against the embedded broker in another process, which has
the records in memory. CPU time is that of the client's process, all threads, from the creation of the client, after its
import, to the last record. Rows are clients, with the ratios to confluent-kafka's ``consume(1000)`` and aiokafka's
``getmany``. Then the latency from ``send`` in another process to the consumer's caller, of one record after the other.
Use compiled modules, and a machine without other load: uncompiled modules take several times as long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib import import_module
from time import monotonic_ns, perf_counter, process_time

from bench.child import loop_factory
from bench.embedded import ROOT, embedded_broker

SIZES = (100, 1000)
CODECS = ("none", "lz4")
CLIENTS = ("ours async for", "ours poll", "ours poll_arrow", "confluent-kafka consume", "aiokafka getmany")
REFERENCE = "confluent-kafka consume"
OTHER = "aiokafka getmany"
LATENCY_TOPIC = "consuming-latency"
SEND_EVERY = 0.005
"""Seconds between the records of the latency's measurement."""
ARROW_RECORDS = 10_000
"""The most rows of a record batch: columns are for many at a time."""


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
                yield (await consumer.poll_arrow(5.0, max_records=ARROW_RECORDS)).num_rows


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


# Latency


async def _send_steadily(bootstrap_servers: str, stopped: asyncio.Event) -> None:
    """Send the monotonic time, a record at a time, until ``stopped``."""
    from aioproducer import Producer

    async with Producer(bootstrap_servers=bootstrap_servers, linger_ms=0) as producer:
        while not stopped.is_set():
            producer.send(LATENCY_TOPIC, b"%d" % monotonic_ns())
            await asyncio.sleep(SEND_EVERY)


async def _received(client: str, bootstrap_servers: str) -> AsyncIterator[bytes]:
    """Yield the values as one client returns them, one record after the other."""
    name, _, form = client.partition(" ")
    if name == "aiokafka":
        from aiokafka import AIOKafkaConsumer, TopicPartition

        other = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="latest")
        await other.start()
        try:
            other.assign([TopicPartition(LATENCY_TOPIC, 0)])
            while True:
                yield (await other.getone()).value
        finally:
            await other.stop()
    from aioproducer import Consumer

    async with Consumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="latest") as consumer:
        consumer.assign([(LATENCY_TOPIC, 0)])
        if form == "async for":
            async for record in consumer:
                yield record.value
        while True:
            if form == "poll":
                for records in (await consumer.poll(5.0)).values():
                    for record in records:
                        yield record.value
            else:
                for value in (await consumer.poll_arrow(5.0)).column("value"):
                    yield value.as_py()


def _received_by_confluent(bootstrap_servers: str) -> Iterator[bytes]:
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "bench", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(LATENCY_TOPIC, 0, OFFSET_END)])
        while True:
            for message in consumer.consume(1, 5.0):
                value = message.value()
                assert value is not None
                yield value
    finally:
        consumer.close()


async def _time_async(values: AsyncIterator[bytes], times: list[int], count: int) -> None:
    async for value in values:
        times.append(monotonic_ns() - int(value))
        if len(times) == count:
            break
    await values.aclose()  # type: ignore[attr-defined]  # a generator


def latency_child(client: str, bootstrap_servers: str, count: int, loop: str) -> None:
    """Measure the end-to-end latency of one client in this process, and print the result in microseconds."""
    times: list[int] = []
    if client == REFERENCE:
        values = _received_by_confluent(bootstrap_servers)
        for value in values:
            times.append(monotonic_ns() - int(value))
            if len(times) == count:
                break
        values.close()  # type: ignore[attr-defined]  # a generator
    else:
        with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
            runner.run(_time_async(_received(client, bootstrap_servers), times, count))
    # The first records find a cold client.
    ordered = sorted(times[count // 10 :])
    print(json.dumps({"p50": ordered[len(ordered) // 2] / 1000, "p99": ordered[len(ordered) * 99 // 100] / 1000}))


async def measure_latency(client: str, bootstrap_servers: str, count: int, loop: str) -> dict[str, float]:
    """Measure one client in a new process, while this one sends."""
    command = ["-m", "bench.consuming", "--latency-child", client, bootstrap_servers, str(count), loop]
    stopped = asyncio.Event()
    sending = asyncio.ensure_future(_send_steadily(bootstrap_servers, stopped))
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), 300)
    finally:
        stopped.set()
        await sending
    if process.returncode:
        raise RuntimeError(f"the latency of {client} was not measured: its process ended with {process.returncode}")
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def measure(client: str, bootstrap_servers: str, topic: str, count: int, loop: str) -> dict[str, float]:
    """Measure one client in a new process."""
    command = [sys.executable, "-m", "bench.consuming", "--child", client, bootstrap_servers, topic, str(count), loop]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def print_rates(size: int, codec: str, best: dict[str, dict[str, float]]) -> None:
    """Print a table of CPU time: rows are clients, with the ratios to both peers."""
    print(f"{size} bytes, {codec}")
    print(f"  {'':26} {'CPU µs a record':>16} {'to confluent':>13} {'to aiokafka':>12} {'records/s':>12}")
    for client, got in best.items():
        ratios = [got["cpu_us"] / best[peer]["cpu_us"] if peer in best else float("nan") for peer in (REFERENCE, OTHER)]
        print(f"  {client:26} {got['cpu_us']:16.3f} {ratios[0]:13.2f} {ratios[1]:12.2f} {got['rate']:12,.0f}")


async def print_latencies(bootstrap_servers: str, clients: Sequence[str], records: int, rounds: int, loop: str) -> None:
    """Print the latency from ``send`` to the record in the consumer's hands; the best of the rounds."""
    from aioproducer.admin import Admin

    async with Admin(bootstrap_servers=bootstrap_servers) as admin:
        await admin.create_topic(LATENCY_TOPIC, 1)
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for client in clients:
            got = await measure_latency(client, bootstrap_servers, records, loop)
            if client not in best or got["p50"] < best[client]["p50"]:
                best[client] = got
    print(f"end-to-end latency, a record every {SEND_EVERY * 1000:.0f} ms")
    print(f"  {'':26} {'p50 µs':>10} {'to confluent':>13} {'p99 µs':>10} {'to confluent':>13}")
    for client, got in best.items():
        to = {each: got[each] / best.get(REFERENCE, got)[each] for each in got}
        print(f"  {client:26} {got['p50']:10.0f} {to['p50']:13.2f} {got['p99']:10.0f} {to['p99']:13.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--latency-records", type=int, default=500, help="0 leaves the latency out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="only these")
    options = parser.parse_args()
    clients = options.client or CLIENTS
    with embedded_broker() as bootstrap_servers:
        asyncio.run(fill(bootstrap_servers, options.records))
        for size in SIZES:
            for codec in CODECS:
                best: dict[str, dict[str, float]] = {}
                for _ in range(options.rounds):
                    for client in clients:
                        got = measure(client, bootstrap_servers, topic_of(size, codec), options.records, options.loop)
                        if client not in best or got["cpu_us"] < best[client]["cpu_us"]:
                            best[client] = got
                print_rates(size, codec, best)
        if options.latency_records:
            asyncio.run(
                print_latencies(bootstrap_servers, clients, options.latency_records, options.rounds, options.loop)
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _client, _address, _topic, _count, _loop = sys.argv[2:]
        child(_client, _address, _topic, int(_count), _loop)
    elif sys.argv[1:2] == ["--latency-child"]:
        _client, _address, _count, _loop = sys.argv[2:]
        latency_child(_client, _address, int(_count), _loop)
    else:
        main()
