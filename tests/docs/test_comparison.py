"""The comparison of this producer with two others in README.md: each cell is tested here."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer
from confluent_kafka import Producer as ConfluentProducer

import aioproducer
from aioproducer import Producer
from aioproducer.broker import BrokerCluster
from aioproducer.errors import ConfigurationError
from aioproducer.testing import EmbeddedClusterThread
from aioproducer.wire.murmur2 import murmur2
from tests.docs.blocks import ROOT
from tests.docs.performance import compared

CLIENTS = ("aioproducer", "aiokafka", "confluent-kafka")


def _rows() -> dict[str, list[str]]:
    """Return the rows of the table by their first cell, without explanations in parentheses."""
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if " | ".join(CLIENTS) in line)
    rows = {}
    for line in itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :]):
        label, *cells = (re.sub(r" \(.*?\)", "", cell).strip() for cell in line.strip("|").split("|"))
        rows[label] = cells
    return rows


TABLE = {label: tuple(cells[:3]) for label, cells in _rows().items()}


def test_each_row_names_what_shows_it() -> None:
    for label, cells in _rows().items():
        selected = re.search(r"`-k (\w+)`", cells[3])
        if selected is None:
            assert cells[3] == "`make bench`", label
        else:
            assert any(name.startswith("test_") and selected[1] in name for name in globals()), label


def test_bench() -> None:
    """The figures are those of the last recorded `make bench`."""
    figures = compared()
    assert len(figures) == 4
    assert {label: TABLE[label] for label in figures} == figures


_THREADS = """
import asyncio, os, sys, psutil
from time import monotonic, sleep
# As many processors as the benches have: on more of them more threads compress.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
before = psutil.Process().num_threads()
client, address, compression, count, expected = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
value = bytes(1000)

def threads_that_stay():
    # librdkafka's thread for the bootstrap address ends only after the first record is delivered. On a busy machine
    # threads may start and end late: another number than the expected one must stay for longer.
    number, since = psutil.Process().num_threads(), monotonic()
    while monotonic() - since < (1 if number - before == expected else 20):
        sleep(0.02)
        if (now := psutil.Process().num_threads()) != number:
            number, since = now, monotonic()
    return number

async def aioproducer():
    from aioproducer import Producer
    async with Producer(bootstrap_servers=address, compression_type=compression) as producer:
        await asyncio.gather(*(producer.send("threads", value) for _ in range(count)))
        return threads_that_stay()

async def aiokafka():
    from aiokafka import AIOKafkaProducer
    codec = None if compression == "none" else compression
    producer = AIOKafkaProducer(bootstrap_servers=address, compression_type=codec)
    await producer.start()
    try:
        await asyncio.gather(*[await producer.send("threads", value) for _ in range(count)])
        return threads_that_stay()
    finally:
        await producer.stop()

async def confluent():
    from confluent_kafka import Producer
    producer = Producer({"bootstrap.servers": address, "compression.type": compression})
    for _ in range(count):
        producer.produce("threads", value)
    assert producer.flush(30) == 0
    return threads_that_stay()

clients = {"aioproducer": aioproducer, "aiokafka": aiokafka, "confluent-kafka": confluent}
print(asyncio.run(clients[client]()) - before)
"""


def _threads(address: str, compression: str, count: int, expected: tuple[str, ...]) -> tuple[str, ...]:
    """Return the threads of each client, without the caller's, after ``count`` records of 1,000 bytes."""
    return tuple(
        subprocess.run(
            [sys.executable, "-c", _THREADS, client, address, compression, str(count), number],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.strip()
        for client, number in zip(CLIENTS, expected, strict=True)
    )


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be held to two processors")
def test_threads() -> None:
    expected = TABLE["threads beside the caller's, one broker by address"], TABLE["the same by host name, with lz4"]
    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("threads")
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        assert host == "127.0.0.1"
        by_address = _threads(cluster.bootstrap_servers, "none", 200, expected[0])
        by_name = _threads(f"localhost:{port}", "lz4", 200, expected[1])
    assert expected == (by_address, by_name)


class _Proxy:
    """A proxy between clients and a broker that counts unanswered Produce requests."""

    def __init__(self) -> None:
        self.most = 0

    async def serve(self, host: str, port: int, broker: tuple[str, int]) -> asyncio.Server:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            waiting: set[int] = set()
            there, back = await asyncio.open_connection(*broker)
            await asyncio.gather(self._requests(reader, back, waiting), self._responses(there, writer, waiting))

        return await asyncio.start_server(connected, host, port)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: set[int]) -> None:
        async for frame in _frames(reader):
            api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            if api_key == 0:
                waiting.add(correlation_id)
                self.most = max(self.most, len(waiting))
            writer.write(frame)
        writer.close()

    async def _responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: set[int]) -> None:
        async for frame in _frames(reader):
            waiting.discard(struct.unpack_from(">i", frame, 4)[0])
            writer.write(frame)
        writer.close()


async def _frames(reader: asyncio.StreamReader):  # type: ignore[no-untyped-def]  # an async iterator of bytes
    while True:
        try:
            size = await reader.readexactly(4)
            yield size + await reader.readexactly(int.from_bytes(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return


@contextmanager
def _watched_broker() -> Iterator[tuple[str, _Proxy]]:
    """Run a broker in a thread, with slow responses to Produce requests, that is reached only through a proxy."""
    started: Future[str] = Future()
    proxy = _Proxy()
    end = threading.Event()

    async def run() -> None:
        # Another address of the loopback interface with the same port: the broker advertises the proxy.
        async with BrokerCluster(1, host="127.0.0.1", advertised_host="127.0.0.2") as cluster:
            cluster.create_topic("watched", num_partitions=1)
            cluster.faults.delay("Produce", 60, times=None)
            port = int(cluster.bootstrap_servers.rpartition(":")[2])
            server = await proxy.serve("127.0.0.2", port, ("127.0.0.1", port))
            started.set_result(f"127.0.0.2:{port}")
            await asyncio.to_thread(end.wait)
            server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield started.result(30), proxy
    finally:
        end.set()
        thread.join()


async def _aioproducer_batches(address: str) -> None:
    async with Producer(bootstrap_servers=address, batch_size=100, linger_ms=0) as producer:
        await asyncio.gather(*(producer.send("watched", b"x" * 90) for _ in range(20)))


async def _aiokafka_batches(address: str) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=address, acks="all", enable_idempotence=True, max_batch_size=200, linger_ms=0
    )
    await producer.start()
    try:
        await asyncio.gather(*[await producer.send("watched", b"x" * 90) for _ in range(20)])
    finally:
        await producer.stop()


async def _confluent_batches(address: str) -> None:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "linger.ms": 0,
        }
    )
    for _ in range(20):
        producer.produce("watched", b"x" * 90)
    assert producer.flush(60) == 0


def test_requests_in_flight() -> None:
    measured = []
    for batches in (_aioproducer_batches, _aiokafka_batches, _confluent_batches):
        with _watched_broker() as (address, proxy):
            asyncio.run(batches(address))
            measured.append(str(proxy.most))
    assert TABLE["requests in flight to a broker, idempotent"] == tuple(measured)


def test_partition_of_a_key() -> None:
    keys = [b"key-%d" % number for number in range(50)]
    partitions = 7
    javas = [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]

    async def ours(address: str) -> list[int]:
        async with Producer(bootstrap_servers=address) as producer:
            stored = await asyncio.gather(*(producer.send("keyed", b"", key=key) for key in keys))
            return [metadata.partition for metadata in stored]

    async def aiokafkas(address: str) -> list[int]:
        producer = AIOKafkaProducer(bootstrap_servers=address)
        await producer.start()
        try:
            stored = await asyncio.gather(*[await producer.send("keyed", b"", key=key) for key in keys])
            return [metadata.partition for metadata in stored]
        finally:
            await producer.stop()

    def confluents(address: str) -> list[int]:
        chosen: dict[bytes, int] = {}
        producer = ConfluentProducer({"bootstrap.servers": address})
        for key in keys:
            producer.produce("keyed", b"", key=key, on_delivery=lambda _, m: chosen.update({m.key(): m.partition()}))
        assert producer.flush(60) == 0
        return [chosen[key] for key in keys]

    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("keyed", partitions=partitions)
        address = cluster.bootstrap_servers
        found = (asyncio.run(ours(address)), asyncio.run(aiokafkas(address)), confluents(address))
    assert TABLE["a key's partition by default"] == tuple(
        "the Java client's" if one == javas else "another" for one in found
    )


async def _outrun_ours(cluster: EmbeddedClusterThread) -> str:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, buffer_memory=100_000) as producer:
        try:
            for _ in range(200):
                producer.send("outrun", b"x" * 1000)
                try:
                    async with asyncio.timeout(1):
                        await producer.drain()
                except TimeoutError:
                    return "waits in `drain`"
        finally:
            cluster.clear_faults()
    return "nothing"


async def _outrun_aiokafka(cluster: EmbeddedClusterThread) -> str:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    await producer.start()
    try:
        for _ in range(200):
            try:
                async with asyncio.timeout(1):
                    await producer.send("outrun", b"x" * 1000)
            except TimeoutError:
                return "waits in `send`"
    finally:
        cluster.clear_faults()
        await producer.stop()
    return "nothing"


async def _outrun_confluent(cluster: EmbeddedClusterThread) -> str:
    producer = ConfluentProducer({"bootstrap.servers": cluster.bootstrap_servers, "queue.buffering.max.messages": 100})
    try:
        for _ in range(200):
            producer.produce("outrun", b"x" * 1000)
    except BufferError:
        return "`BufferError`"
    finally:
        cluster.clear_faults()
        producer.purge()
        producer.flush(5)
    return "nothing"


@pytest.mark.parametrize("number", range(3), ids=CLIENTS)
def test_who_sends_faster_than_the_broker_takes(number: int) -> None:
    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("outrun")
        # Each client is observed while the response is held, and releases it to end.
        cluster.delay("Produce", 60_000)
        outrun = (_outrun_ours, _outrun_aiokafka, _outrun_confluent)[number]
        assert asyncio.run(outrun(cluster)) == TABLE["the caller is faster than the broker"][number]


def _yes(there: bool) -> str:
    return "yes" if there else "no"


def test_what_others_have() -> None:
    def has(*objects: object, name: str) -> tuple[str, ...]:
        return tuple(_yes(hasattr(one, name)) for one in objects)

    ours = "transaction" if hasattr(Producer, "transaction") else "begin_transaction"
    assert TABLE["transactions"] == (
        *has(Producer, name=ours),
        *has(AIOKafkaProducer, ConfluentProducer, name="begin_transaction"),
    )
    assert TABLE["group consumer"] == (
        _yes(hasattr(aioproducer.Consumer, "subscribe")),
        _yes(inspect.isclass(AIOKafkaConsumer)),
        _yes(inspect.isclass(Consumer)),
    )


def test_sasl() -> None:
    sasl = {"mechanism": "PLAIN", "user": "user", "password": "secret"}

    def ours() -> object:
        return Producer(
            bootstrap_servers="localhost:1",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=sasl["mechanism"],
            sasl_username=sasl["user"],
            sasl_password=sasl["password"],
        )

    async def aiokafkas() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers="localhost:1",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=sasl["mechanism"],
            sasl_plain_username=sasl["user"],
            sasl_plain_password=sasl["password"],
        )
        await producer.stop()

    def confluents() -> object:
        return ConfluentProducer(
            {
                "bootstrap.servers": "localhost:1",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": sasl["mechanism"],
                "sasl.username": sasl["user"],
                "sasl.password": sasl["password"],
                "log_level": 0,
            }
        )

    def works(make: Callable[[], object]) -> str:
        try:
            make()
        except ConfigurationError:
            return "no"
        return "yes"

    assert TABLE["SASL"] == (works(ours), works(lambda: asyncio.run(aiokafkas())), works(confluents))
