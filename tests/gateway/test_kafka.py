"""Clients of other projects on Apache Kafka, with a gateway that listens on TCP beside each broker.

TCP takes the place of RDMA here, which other clients do not support; the gateway is the same.
"""

from __future__ import annotations

import asyncio
import queue
import ssl
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from aioproducer import Producer
from aioproducer.gateway import AddressMap, Gateway
from aioproducer.protocol.messages import ApiVersionsRequest, SaslHandshakeRequest
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.stream import StreamConnector
from tests.broker.wire import WireClient
from tests.kafka import jars
from tests.kafka.cluster import KafkaCluster

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas by a function of importlib.resources that CPython 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.interop

COUNT = 300
PARTITIONS = 6
VALUES = [b"%06d" % number for number in range(COUNT)]


class Gateways:
    """A gateway for each broker of a cluster, all in one thread."""

    def __init__(self, brokers: dict[int, tuple[str, int]], context: ssl.SSLContext | None = None) -> None:
        self._brokers = brokers
        self._context = context
        self.address_map = AddressMap({})
        self.gateways: dict[int, Gateway] = {}
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
            self._stopping = asyncio.Event()
            for number, broker in self._brokers.items():
                gateway = Gateway(StreamListener(), StreamConnector(self._context), broker, self.address_map)
                await gateway.start("127.0.0.1", 0)
                self.gateways[number] = gateway
                self.address_map.add(broker, ("127.0.0.1", gateway.port))
        except BaseException as error:
            self._started.put(error)
            raise
        self._started.put(None)
        await self._stopping.wait()
        for gateway in self.gateways.values():
            await gateway.stop(2)

    def __enter__(self) -> Self:
        self._thread.start()
        failure = self._started.get(timeout=30)
        if failure is not None:
            raise failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self.gateways[number].port}"

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(map(self.address, self.gateways))

    def total(self, name: str) -> int:
        return sum(gateway.metrics()[name] for gateway in self.gateways.values())


def plain_brokers(cluster: KafkaCluster) -> dict[int, tuple[str, int]]:
    return {number: ("127.0.0.1", node.port["PLAINTEXT"]) for number, node in cluster.nodes.items()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    properties = {"min.insync.replicas": "2", "auto.create.topics.enable": "false"}
    try:
        with KafkaCluster(3, tls=True, properties=properties) as started:
            yield started
    except jars.HarnessUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def gateways(cluster: KafkaCluster) -> Iterator[Gateways]:
    with Gateways(plain_brokers(cluster)) as started:
        yield started


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    return cluster.create_topic(f"topic-{uuid.uuid4().hex[:8]}", PARTITIONS)


def confluent_write(servers: str, topic: str, **config: Any) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True, **config})
    for number, value in enumerate(VALUES):
        producer.produce(
            topic,
            value,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not failures


def confluent_read(servers: str, topic: str) -> list[bytes]:
    """Read as a member of a group, so that its coordinator is used too."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        found: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(found) < COUNT and time.monotonic() < deadline:
            for message in consumer.consume(COUNT, 1):
                assert message.error() is None
                found.append(message.value())
        return found
    finally:
        consumer.close()


def aiokafka_write(servers: str, topic: str) -> None:
    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
            sent = [await producer.send(topic, value, partition=n % PARTITIONS) for n, value in enumerate(VALUES)]
            await asyncio.gather(*sent)

    asyncio.run(send())


def aiokafka_read(servers: str, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        async with aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=servers, group_id=uuid.uuid4().hex, auto_offset_reset="earliest"
        ) as consumer:
            async with asyncio.timeout(60):
                return [(await consumer.getone()).value for _ in range(COUNT)]

    return asyncio.run(read())


def kafka_python_write(servers: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, enable_idempotence=True, acks="all")
    try:
        for future in [producer.send(topic, value, partition=n % PARTITIONS) for n, value in enumerate(VALUES)]:
            future.get(60)
    finally:
        producer.close(5)


def kafka_python_read(servers: str, topic: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=uuid.uuid4().hex,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    try:
        return [message.value for _, message in zip(range(COUNT), consumer, strict=False)]
    finally:
        consumer.close()


def own_write(servers: str, topic: str) -> None:
    async def send() -> None:
        async with Producer(bootstrap_servers=servers) as producer:
            await asyncio.gather(
                *(producer.send(topic, value, partition=n % PARTITIONS) for n, value in enumerate(VALUES))
            )

    asyncio.run(send())


WRITERS: dict[str, Callable[[str, str], None]] = {
    "confluent-kafka": confluent_write,
    "aiokafka": aiokafka_write,
    "kafka-python": kafka_python_write,
    "aioproducer": own_write,
}
READERS: dict[str, Callable[[str, str], list[bytes]]] = {
    "confluent-kafka": confluent_read,
    "aiokafka": aiokafka_read,
    "kafka-python": kafka_python_read,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_other_clients_can_write_through_gateways(cluster, gateways, topic, writer):
    """The clients know one gateway at first; the others are in the brokers' metadata."""
    before = {number: gateway.metrics()["bytes_from_clients"] for number, gateway in gateways.gateways.items()}
    WRITERS[writer](gateways.address(1), topic)
    assert sorted(confluent_read(cluster.bootstrap_servers, topic)) == VALUES
    for number, gateway in gateways.gateways.items():
        assert gateway.metrics()["bytes_from_clients"] > before[number], number
    assert gateways.total("addresses_unmapped") == 0


@pytest.mark.parametrize("reader", READERS)
def test_other_clients_can_read_through_gateways(cluster, gateways, topic, reader):
    confluent_write(cluster.bootstrap_servers, topic)
    assert sorted(READERS[reader](gateways.address(2), topic)) == VALUES
    assert gateways.total("addresses_unmapped") == 0
    assert gateways.total("responses_shortened") == 0


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_transactions_from_topic_to_topic_pass(cluster, gateways, topic, group_protocol):
    """Offsets and records in one transaction, with both coordinators; ``consumer`` is the group protocol of KIP-848."""
    confluent_write(cluster.bootstrap_servers, topic)
    results = cluster.create_topic(f"{topic}-results", PARTITIONS)
    servers = gateways.address(1)
    group = uuid.uuid4().hex
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": group})
    producer.init_transactions(60)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": group_protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        done, deadline = 0, time.monotonic() + 60
        while done < COUNT and time.monotonic() < deadline:
            messages = consumer.consume(COUNT // 4, 1)
            if messages:
                producer.begin_transaction()
                for message in messages:
                    assert message.error() is None
                    producer.produce(results, message.value(), partition=message.partition())
                positions = consumer.position(consumer.assignment())
                producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
                producer.commit_transaction(60)
                done += len(messages)
        committed = consumer.committed([confluent_kafka.TopicPartition(topic, n) for n in range(PARTITIONS)], 60)
    finally:
        consumer.close()
    producer.begin_transaction()
    producer.produce(results, b"aborted", partition=0)
    assert producer.flush(60) == 0
    producer.abort_transaction(60)
    assert [partition.offset for partition in committed] == [COUNT // PARTITIONS] * PARTITIONS
    # Read without gateways to the end: there are neither aborted nor duplicated records.
    assert sorted(read_all(cluster.bootstrap_servers, results)) == VALUES
    assert gateways.total("addresses_unmapped") == 0


def test_admin_clients_see_gateways(gateways):
    admin = AdminClient({"bootstrap.servers": gateways.address(3)})
    described = admin.describe_cluster(request_timeout=30).result(30)
    expected = {number: gateway.port for number, gateway in gateways.gateways.items()}
    assert {node.id: node.port for node in described.nodes} == expected


def test_all_versions_of_the_newest_kafka_are_offered(cluster, gateways):
    """Clients are offered exactly the versions of Apache Kafka 4.4."""

    async def offered(address: str) -> dict[int, tuple[int, int]]:
        async with await WireClient.connect(address) as client:
            request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            response = await client.call(request, 4)
            return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    async def both() -> None:
        direct = await offered(cluster.bootstrap_servers.split(",")[0])
        assert await offered(gateways.address(1)) == direct

    asyncio.run(both())


def test_a_killed_broker_loses_no_acknowledged_record(cluster, topic):
    """Acknowledged records are stored once, whatever happens to the connections."""
    producer_config = {"linger.ms": 1, "batch.num.messages": 5, "message.timeout.ms": 120_000}
    with Gateways(plain_brokers(cluster)) as gateways:
        writing = threading.Thread(
            target=confluent_write, args=(gateways.bootstrap_servers, topic), kwargs=producer_config
        )
        writing.start()
        deadline = time.monotonic() + 30
        while gateways.total("requests") < 10 and time.monotonic() < deadline:
            time.sleep(0.001)
        cluster.kill(1)
        try:
            own_write(f"{gateways.address(2)},{gateways.address(3)}", topic)
        finally:
            cluster.restart(1)
        writing.join(120)
        assert not writing.is_alive()
        assert gateways.total("addresses_unmapped") == 0
    found = sorted(read_all(cluster.bootstrap_servers, topic))
    assert found == sorted(VALUES * 2)


def read_all(servers: str, topic: str) -> list[bytes]:
    """Return all committed records of the topic."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "reading", "enable.partition.eof": True}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found: list[bytes] = []
        ends = 0
        while ends < PARTITIONS:
            message = consumer.poll(60)
            assert message is not None
            if message.error() is None:
                found.append(message.value())
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                ends += 1
        return found
    finally:
        consumer.close()


def test_the_connection_to_the_broker_may_use_tls(cluster, topic):
    """The gateway's connection is encrypted and verified; that of its clients depends on their transport."""
    context = ssl.create_default_context(cafile=str(cluster.certificates.authority))
    brokers = {number: ("localhost", node.port["SSL"]) for number, node in cluster.nodes.items()}
    with Gateways(brokers, context) as gateways:
        confluent_write(gateways.address(1), topic)
        assert sorted(confluent_read(gateways.address(2), topic)) == VALUES
        assert gateways.total("addresses_unmapped") == 0


def test_a_missing_tls_configuration_is_named(cluster, caplog):
    brokers = {1: ("localhost", cluster.nodes[1].port["SSL"])}
    with Gateways(brokers) as gateways:

        async def ask() -> bytes:
            async with await WireClient.connect(gateways.address(1)) as client:
                await client.send(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
                return await client.receive_end()

        assert asyncio.run(ask()) == b""
    assert "it expects TLS, so set security.protocol=SSL" in caplog.text


JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'


@pytest.fixture(scope="module")
def sasl_cluster() -> Iterator[KafkaCluster]:
    properties = {
        # The ports of the two TLS listeners are there anyway.
        "listener.security.protocol.map": ",".join(
            ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", "SSL:SASL_PLAINTEXT", "MUTUAL:SASL_PLAINTEXT"]
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.ssl.plain.sasl.jaas.config": JAAS,
        "listener.name.mutual.plain.sasl.jaas.config": JAAS,
    }
    try:
        with KafkaCluster(1, tls=True, properties=properties) as started:
            yield started
    except jars.HarnessUnavailableError as missing:
        pytest.skip(str(missing))


def run_with_sasl(cluster: KafkaCluster, body: Callable[[Gateways], Coroutine[Any, Any, None]]) -> None:
    with Gateways({1: ("localhost", cluster.nodes[1].port["SSL"])}) as gateways:
        asyncio.run(body(gateways))


def test_a_client_authenticates_to_the_broker(sasl_cluster):
    """SASL is between the client and the broker; the gateway only passes it on."""
    with Gateways({1: ("localhost", sasl_cluster.nodes[1].port["SSL"])}) as gateways:
        topic = sasl_cluster.create_topic(f"topic-{uuid.uuid4().hex[:8]}", PARTITIONS)
        sasl = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "secret",
        }
        confluent_write(gateways.bootstrap_servers, topic, **sasl)
    assert sorted(confluent_read(sasl_cluster.bootstrap_servers, topic)) == VALUES


@pytest.mark.parametrize(("password", "accepted"), [(b"secret", True), (b"wrong", False)])
def test_raw_tokens_pass_after_the_first_handshake_version(sasl_cluster, password, accepted):
    """Clients before KIP-152 send tokens without a request header."""

    async def body(gateways: Gateways) -> None:
        async with await WireClient.connect(gateways.address(1)) as client:
            handshake = await client.call(SaslHandshakeRequest(mechanism="PLAIN"), 0)
            assert handshake.error_code == 0
            token = b"\x00alice\x00" + password
            await client.send_bytes(len(token).to_bytes(4, "big") + token)
            if not accepted:
                assert await client.receive_end() == b""
                return
            assert await client.receive_frame() == b""
            request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            assert (await client.call(request, 4)).error_code == 0

    run_with_sasl(sasl_cluster, body)
