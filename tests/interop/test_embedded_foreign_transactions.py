"""Transactional producers of other projects, at the same time on the embedded broker.

Each commits, aborts, sends offsets to its transactions, and is fenced by a second one with its transactional id.
"""

from __future__ import annotations

import asyncio
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from aioproducer.admin import Admin
from aioproducer.consumer import Reader
from tests.kafka import consuming, jars
from tests.kafka.embedded import EmbeddedProcess

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas by a function of importlib.resources that CPython 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors
    import kafka.structs

pytestmark = pytest.mark.timeout(120)

TOPIC = "foreign"
PARTITIONS = 3
TRANSACTIONS = 20
ABORTED = 3
"""One transaction of this many is aborted."""
RECORDS = 2 * PARTITIONS
"""Records of each transaction, in all partitions."""
TIMEOUT = 30.0

Values = dict[int, list[bytes]]
"""Values in order, by partition."""


def _values(client: str, transaction: object) -> list[tuple[int, bytes]]:
    """Return the partition and the value of each record of a transaction."""
    return [(record % PARTITIONS, f"{client}:{transaction}:{record}".encode()) for record in range(RECORDS)]


def _is_aborted(number: int) -> bool:
    return number % ABORTED == ABORTED - 1


def _committed(client: str, partition: int) -> list[bytes]:
    kept = [*(number for number in range(TRANSACTIONS) if not _is_aborted(number)), "last"]
    return [value for each in kept for where, value in _values(client, each) if where == partition]


# Clients: ``client`` is the transactional id and the group's name.


def _confluent(servers: str, client: str) -> None:
    def begin() -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "transactional.id": client, "linger.ms": 0, "log_level": 0}
        )
        producer.init_transactions(TIMEOUT)
        return producer

    def send(producer: confluent_kafka.Producer, transaction: object) -> None:
        producer.begin_transaction()
        for partition, value in _values(client, transaction):
            producer.produce(TOPIC, value, partition=partition)
        assert producer.flush(TIMEOUT) == 0

    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": client})
    try:
        old = begin()
        for number in range(TRANSACTIONS):
            send(old, number)
            offsets = [confluent_kafka.TopicPartition(TOPIC, 0, number)]
            old.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT)
            if _is_aborted(number):
                old.abort_transaction(TIMEOUT)
            else:
                old.commit_transaction(TIMEOUT)
    finally:
        consumer.close()
    send(old, "fenced")
    new = begin()
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(TIMEOUT)
    assert raised.value.args[0].code() == KafkaError._FENCED
    send(new, "last")
    new.commit_transaction(TIMEOUT)


def _aiokafka(servers: str, client: str) -> None:
    async def begin() -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=client)
        await producer.start()
        return producer

    async def send(producer: aiokafka.AIOKafkaProducer, transaction: object) -> None:
        await producer.begin_transaction()
        sent = [
            await producer.send(TOPIC, value, partition=partition) for partition, value in _values(client, transaction)
        ]
        await asyncio.gather(*sent)

    async def run() -> None:
        old = await begin()
        try:
            for number in range(TRANSACTIONS):
                await send(old, number)
                await old.send_offsets_to_transaction({aiokafka.TopicPartition(TOPIC, 0): number}, client)
                if _is_aborted(number):
                    await old.abort_transaction()
                else:
                    await old.commit_transaction()
            await send(old, "fenced")
            new = await begin()
            try:
                with pytest.raises(aiokafka.errors.ProducerFenced):
                    await old.commit_transaction()
                await send(new, "last")
                await new.commit_transaction()
            finally:
                await new.stop()
        finally:
            await old.stop()

    asyncio.run(run())


def _kafka_python(servers: str, client: str) -> None:
    def begin() -> kafka.KafkaProducer:
        producer = kafka.KafkaProducer(bootstrap_servers=servers.split(","), transactional_id=client)
        producer.init_transactions()
        return producer

    def send(producer: kafka.KafkaProducer, transaction: object) -> None:
        producer.begin_transaction()
        sent = [producer.send(TOPIC, value, partition=partition) for partition, value in _values(client, transaction)]
        for each in sent:
            each.get(TIMEOUT)

    old = begin()
    try:
        for number in range(TRANSACTIONS):
            send(old, number)
            offsets = {kafka.TopicPartition(TOPIC, 0): kafka.structs.OffsetAndMetadata(number, "", -1)}
            old.send_offsets_to_transaction(offsets, client)
            if _is_aborted(number):
                old.abort_transaction()
            else:
                old.commit_transaction()
        send(old, "fenced")
        new = begin()
        try:
            with pytest.raises(kafka.errors.ProducerFencedError):
                old.commit_transaction()
            send(new, "last")
            new.commit_transaction()
        finally:
            new.close(TIMEOUT)
    finally:
        old.close(0)


def _java(servers: str, client: str) -> None:
    classpath = f"{jars.resolve(jars.BROKER[jars.NEWEST])}/*"
    command = [jars.java(), "-Xmx256m", *jars.SHORT_LIVED, "-cp", classpath]
    command += [str(Path(__file__).with_name("Transactions.java")), servers, TOPIC, client]
    command += map(str, (PARTITIONS, RECORDS, TRANSACTIONS, ABORTED))
    run = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]


CLIENTS: dict[str, Callable[[str, str], None]] = {
    "confluent-kafka": _confluent,
    "aiokafka": _aiokafka,
    "kafka-python": _kafka_python,
    "java": _java,
}


class Written:
    """A cluster, and the clients that write to it, each in a thread."""

    def __init__(self, servers: str, futures: Mapping[str, Future[None]]) -> None:
        self.servers = servers
        self.futures = futures

    def wait(self) -> None:
        """Wait until all clients have ended; raise the first failure."""
        wait(self.futures.values())
        for future in self.futures.values():
            future.result()


@pytest.fixture(scope="module", params=[2, 1])
def written(request: pytest.FixtureRequest) -> Iterator[Written]:
    """Three nodes in a separate process, of both generations of the protocol."""
    with (
        EmbeddedProcess(
            3, properties={"min.insync.replicas": "2"}, features={"transaction.version": request.param}
        ) as cluster,
        ThreadPoolExecutor(len(CLIENTS)) as executor,
    ):
        cluster.create_topic(TOPIC, PARTITIONS)
        servers = cluster.bootstrap_servers
        yield Written(servers, {name: executor.submit(client, servers, name) for name, client in CLIENTS.items()})


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_commits_aborts_and_is_fenced(written: Written, client: str) -> None:
    """The client's thread raises an error if a step failed, or if its older producer was not fenced."""
    written.futures[client].result()


def _of_confluent(servers: str) -> Values:
    stored = consuming.read_back(servers, TOPIC, committed=True)
    return {partition: [record.value or b"" for record in records] for partition, records in stored.items()}


def _of_reader(servers: str) -> Values:
    async def read() -> Values:
        found: Values = {}
        async with Admin(bootstrap_servers=servers) as admin:
            # The high watermarks: the markers of the last transaction may not be replicated yet.
            ends = await admin.list_offsets(TOPIC, dict.fromkeys(range(PARTITIONS), "latest"))
        reader = Reader(TOPIC, stop=ends, isolation_level="read_committed", bootstrap_servers=servers)
        async with reader, asyncio.timeout(TIMEOUT):
            async for record in reader:
                found.setdefault(record.partition, []).append(record.value or b"")
        return found

    return asyncio.run(read())


@pytest.mark.parametrize("reader", [_of_confluent, _of_reader])
def test_readers_see_all_or_nothing_of_each_transaction_in_order_and_once(
    written: Written, reader: Callable[[str], Values]
) -> None:
    written.wait()
    found = reader(written.servers)
    assert sorted(found) == list(range(PARTITIONS))
    for partition, values in found.items():
        by_client = {name: [each for each in values if each.startswith(name.encode() + b":")] for name in CLIENTS}
        assert by_client == {name: _committed(name, partition) for name in CLIENTS}
        assert len(values) == sum(map(len, by_client.values()))


def test_aborted_records_are_in_the_log(written: Written) -> None:
    written.wait()
    stored = consuming.read_back(written.servers, TOPIC)
    values = [record.value for records in stored.values() for record in records]
    named = [*range(TRANSACTIONS), "fenced", "last"]
    expected = [value for name in CLIENTS for each in named for _, value in _values(name, each)]
    assert sorted(values, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_offset_of_the_last_committed_transaction_remains(written: Written, client: str) -> None:
    written.futures[client].result()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": written.servers, "group.id": client})
    try:
        [found] = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], timeout=TIMEOUT)
    finally:
        consumer.close()
    assert found.offset == max(number for number in range(TRANSACTIONS) if not _is_aborted(number))
