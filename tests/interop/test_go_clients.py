"""Clients written in Go on the embedded broker, and the producer on franz-go's fake of a cluster.

They use the protocol differently: kafka-go writes unusual batches, Sarama uses old versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from aioproducer import Producer
from aioproducer.errors import UnsupportedCompressionTypeError
from tests.kafka import go
from tests.kafka.embedded import EmbeddedProcess

pytestmark = pytest.mark.soak

TOPIC: Final = "written-in-go"
PARTITIONS: Final = 6
COUNT: Final = 600
CLIENTS: Final = ("franz-go", "kafka-go", "sarama")
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

Records = list[tuple[int, str]]
"""Partition and value of each record."""


@pytest.fixture(scope="module")
def program() -> Path:
    return go.program(Path(__file__).parent / "go", "go-clients")


def _run(program: Path, *arguments: str, text: str = "") -> str:
    run = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=90, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def _records(writer: str) -> Records:
    return [(number % PARTITIONS, f"{writer}:{number:04}") for number in range(COUNT)]


def _write(program: Path, client: str, bootstrap_servers: str, codec: str) -> Records:
    records = _records(f"{client}-{codec}")
    lines = "".join(f"{partition}\t{value}\n" for partition, value in records)
    _run(program, "write", client, bootstrap_servers, TOPIC, codec, text=lines)
    return records


def _read(program: Path, client: str, bootstrap_servers: str, count: int) -> Records:
    """Read as a member of a group with the client's name."""
    found: Records = []
    for line in _run(program, "read", client, bootstrap_servers, TOPIC, client, str(count)).splitlines():
        partition, value = line.split("\t")
        found.append((int(partition), value))
    return found


def _by_partition(records: Records) -> list[Records]:
    """Return the values of each partition in order."""
    return [[record for record in records if record[0] == partition] for partition in range(PARTITIONS)]


def _committed(bootstrap_servers: str, group: str) -> list[int]:
    """Number of records for each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
    try:
        places = consumer.committed([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)], timeout=30)
        return [place.offset for place in places]
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedProcess]:
    properties = {"min.insync.replicas": "2", "group.initial.rebalance.delay.ms": "0"}
    with EmbeddedProcess(3, properties=properties) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        yield cluster


@pytest.fixture(scope="module")
def written(program: Path, cluster: EmbeddedProcess) -> Records:
    """The records that each client has written with each codec, one after the other."""
    return [
        record
        for client in CLIENTS
        for codec in CODECS
        for record in _write(program, client, cluster.bootstrap_servers, codec)
    ]


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_reads_the_records_of_all(
    program: Path, cluster: EmbeddedProcess, written: Records, client: str
) -> None:
    found = _read(program, client, cluster.bootstrap_servers, len(written))
    assert _by_partition(found) == _by_partition(written)
    assert _committed(cluster.bootstrap_servers, client) == [len(written) // PARTITIONS] * PARTITIONS
    # Warnings and errors would be there.
    assert not [line for line in cluster.output.splitlines() if not line.startswith(("process ", "ready "))]


@contextlib.asynccontextmanager
async def _serving(program: Path, version: str = "") -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """franz-go's fake cluster: its address, and its process."""
    serving = await asyncio.create_subprocess_exec(
        *(program, "serve", TOPIC, str(PARTITIONS), version),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert serving.stdout is not None
    try:
        async with asyncio.timeout(120):
            yield (await serving.stdout.readline()).decode().strip(), serving
    finally:
        if serving.returncode is None:
            serving.kill()
        await serving.wait()


async def test_moved_leaders_and_refused_requests_lose_nothing(program: Path) -> None:
    """Each record is stored once, and those of a partition in the order of sending."""
    expected: Records = []
    async with _serving(program) as (bootstrap_servers, serving):
        async with Producer(bootstrap_servers=bootstrap_servers, linger_ms=2) as producer:
            sent = []
            for burst in range(200):
                for partition, value in _records(f"burst-{burst}"):
                    sent.append(producer.send(TOPIC, value.encode(), partition=partition))
                    expected.append((partition, value))
                # For many requests.
                await asyncio.sleep(0.01)
            await asyncio.gather(*sent)
        assert serving.stdin is not None
        assert serving.stdout is not None
        serving.stdin.write(b"settle\n")
        assert await serving.stdout.readline() == b"settled\n"
        found = await asyncio.to_thread(_read, program, "franz-go", bootstrap_servers, len(expected))
    assert _by_partition(found) == _by_partition(expected)


@pytest.mark.parametrize("version", ["v0.11.0", "v1.0", "v2.0", "v2.1", "v2.4", "v2.8", "v3.0", "v3.5", "v3.9", "v4.0"])
async def test_a_producer_works_with_an_old_version_of_the_protocol(program: Path, version: str) -> None:
    expected: Records = []
    has_zstd = version not in ("v0.11.0", "v1.0", "v2.0")
    async with _serving(program, version) as (bootstrap_servers, _):
        for codec in CODECS:
            async with Producer(bootstrap_servers=bootstrap_servers, compression_type=codec) as producer:
                records = _records(codec)
                if codec == "zstd" and not has_zstd:
                    with pytest.raises(UnsupportedCompressionTypeError, match=r"is older than Kafka 2\.1"):
                        await producer.send(TOPIC, b"zstd")
                    continue
                await asyncio.gather(*(producer.send(TOPIC, value.encode(), partition=at) for at, value in records))
                expected += records
        found = await asyncio.to_thread(_read, program, "franz-go", bootstrap_servers, len(expected))
    assert _by_partition(found) == _by_partition(expected)
