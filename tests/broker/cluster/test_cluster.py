"""Whole brokers: they start, stop, die and restart, and acknowledged records are kept."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trustme

from aioproducer.broker import Broker, BrokerCluster, BrokerConfig
from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.controller.journal import FILE_NAME, Journal
from aioproducer.broker.image import GROUP_METADATA_TOPIC, NO_LEADER
from aioproducer.broker.server.peer import PeerClient
from aioproducer.errors import (
    ConfigurationError,
    InconsistentClusterIdError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from aioproducer.protocol import Request, Response
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
)
from aioproducer.protocol.messages.configs import DescribeConfigsResource
from aioproducer.protocol.messages.fetch import FetchPartition, FetchTopic
from aioproducer.protocol.messages.metadata import MetadataRequestTopic
from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData
from aioproducer.testing.simulation import Simulation
from aioproducer.transport.base import Connector
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.stream import StreamConnector
from aioproducer.wire.record_batch import SimpleRecord, encode_batch, iter_batches
from tests import waiting

ResponseT = TypeVar("ResponseT", bound=Response)

THREE = {"default.replication.factor": 3, "offsets.topic.num.partitions": 4, "replica.lag.time.max.ms": 1000}


class Client:
    """Raw requests to the nodes of a cluster, one connection a node."""

    def __init__(self, cluster: BrokerCluster, connector: Connector | None = None) -> None:
        self.cluster = cluster
        self._connector = connector or StreamConnector()
        self._peers: dict[tuple[str, int], PeerClient] = {}

    async def ask(self, node_id: int, message: Request[ResponseT], version: int, timeout: float = 10) -> ResponseT:
        node = self.cluster.brokers[node_id]
        address = node.host, node.port
        if address not in self._peers:
            self._peers[address] = PeerClient(self._connector, *address)
        return await self._peers[address].request(message, version, timeout)

    async def produce(
        self, topic: str, *values: bytes, partition: int = 0, acks: int = -1, node_id: int | None = None
    ) -> int:
        """Return the offset of the first value; raises ``KafkaError`` if the broker refuses them."""
        batch = b"".join(encode_batch([SimpleRecord(timestamp=1, key=None, value=value) for value in values]))
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[data])
        leader = self.cluster.image.partition(topic, partition).leader if node_id is None else node_id
        response = await self.ask(leader, request, 9)
        (answer,) = response.responses[0].partition_responses
        if answer.error_code:
            raise broker_error(answer.error_code, answer.error_message)
        return answer.base_offset

    async def fetch(self, topic: str, *, partition: int = 0, offset: int = 0) -> list[bytes | None]:
        asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=topic, partitions=[asked])])
        response = await self.ask(self.cluster.image.partition(topic, partition).leader, request, 12)
        (answer,) = response.responses[0].partitions
        if answer.error_code:
            raise broker_error(answer.error_code)
        records = answer.records
        if records is None:
            return []
        data = b"".join(records) if isinstance(records, list | tuple) else bytes(records)
        return [
            None if record.value is None else bytes(record.value)
            for batch in iter_batches(data)
            for record in batch.records()
            if record.offset >= offset
        ]

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


@asynccontextmanager
async def client_of(cluster: BrokerCluster, connector: Connector | None = None) -> AsyncIterator[Client]:
    client = Client(cluster, connector)
    try:
        yield client
    finally:
        client.close()


until = functools.partial(waiting.until, pause=0.002)


async def until_done(action: Callable[[], Awaitable[object]], *errors: type[Exception], timeout: float = 10) -> None:
    """Repeat ``action``, as a client retries."""
    async with asyncio.timeout(timeout):
        while True:
            try:
                await action()
            except errors:
                await asyncio.sleep(0.002)
            else:
                return


def in_sync(cluster: BrokerCluster, topic: str, count: int) -> bool:
    return all(len(partition.isr) == count for partition in cluster.image.topic(topic).partitions)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=["memory", "disk"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "cluster"


# Start and stop


async def test_the_public_names_are_importable() -> None:
    import aioproducer.broker

    assert isinstance(BrokerConfig(), BrokerConfig)
    assert Broker.__name__ == "Broker"
    with pytest.raises(AttributeError, match="has no attribute 'Kafka'"):
        _ = aioproducer.broker.Kafka


async def test_a_node_serves_from_start_to_stop(data_dir: Path | None) -> None:
    cluster = BrokerCluster(data_dir=data_dir)
    with pytest.raises(RuntimeError, match="was not started"):
        _ = cluster.bootstrap_servers
    await cluster.start()
    await cluster.start()
    async with client_of(cluster) as client:
        assert (await client.ask(1, ApiVersionsRequest(), 0)).error_code == 0
        cluster.create_topic("t")
        assert await client.produce("t", b"a", b"b") == 0
        assert await client.produce("t", b"c", acks=1) == 2
        assert await client.fetch("t", offset=1) == [b"b", b"c"]
        await cluster.stop()
        await cluster.stop()
        with pytest.raises(ConnectionRefusedError):
            await client.ask(1, ApiVersionsRequest(), 0)
    with pytest.raises(RuntimeError, match="is not running"):
        await cluster.kill(1)


async def test_records_survive_a_stop_and_start(data_dir: Path | None) -> None:
    cluster = BrokerCluster(3, data_dir=data_dir, properties=THREE)
    async with cluster, client_of(cluster) as client:
        first = cluster.image.cluster_id
        addresses = cluster.bootstrap_servers
        topic = cluster.create_topic("t", 2, configs={"retention.ms": "-1"})
        cluster.controller.elect_leader("t", 0, 3)
        for partition in (0, 1):
            await client.produce("t", b"a%d" % partition, partition=partition)
    async with cluster, client_of(cluster) as client:
        assert cluster.bootstrap_servers == addresses
        assert cluster.image.cluster_id == first
        again = cluster.image.topic("t")
        assert (again.topic_id, again.configs) == (topic.topic_id, topic.configs)
        assert again.partitions[0].leader == 3
        assert all(sorted(state.isr) == [1, 2, 3] for state in again.partitions)
        for partition in (0, 1):
            assert await client.fetch("t", partition=partition) == [b"a%d" % partition]
            assert await client.produce("t", b"b", partition=partition) == 1


async def test_another_cluster_continues_with_the_folder(tmp_path: Path) -> None:
    async with BrokerCluster(data_dir=tmp_path) as cluster, client_of(cluster) as client:
        first = cluster.image.cluster_id
        port = cluster.brokers[1].port
        cluster.create_topic("t")
        await client.produce("t", b"a")
        producer_id = (
            await client.ask(1, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
        ).producer_id
    async with BrokerCluster(2, data_dir=tmp_path) as cluster, client_of(cluster) as client:
        assert cluster.image.cluster_id == first
        assert cluster.brokers[1].port == port, "it is free, so it is kept"
        assert await client.fetch("t") == [b"a"]
        assert (
            await client.ask(1, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
        ).producer_id > producer_id
        cluster.create_topic("two", 2, 2)
    with pytest.raises(ConfigurationError, match=re.escape("partitions on nodes [2] (such as two-")):
        await BrokerCluster(1, data_dir=tmp_path).start()
    async with BrokerCluster(2, data_dir=tmp_path) as cluster:
        assert len(cluster.image.topics) == 2


async def test_in_memory_a_port_may_be_fixed_and_the_network_shared() -> None:
    network = MemoryNetwork()
    async with BrokerCluster(2, network=network) as one, BrokerCluster(2, network=network) as two:
        assert one.bootstrap_servers != two.bootstrap_servers
        assert re.fullmatch(r"10\.\d+\.\d+\.\d+:9092,10\.\d+\.\d+\.\d+:9092", one.bootstrap_servers)
        one.create_topic("t")
        async with client_of(one, network) as client:
            assert await client.produce("t", b"a") == 0
        async with client_of(two, network) as client:
            answer = await client.ask(2, MetadataRequest(topics=None), 9)
            assert answer.topics == []
            assert {broker.node_id for broker in answer.brokers} == {1, 2}
    assert not network.listeners
    async with BrokerCluster(network=network, host="example") as cluster:
        assert cluster.bootstrap_servers == "broker-1.example:9092"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"nodes": 0}, "nodes must be at least 1, not 0"),
        ({"nodes": 2, "ports": [0]}, "ports must have one item for each of the 2 node(s), not 1"),
        ({"nodes": 1, "racks": ["a", "b"]}, "racks must have one item for each of the 1 node(s), not 2"),
        (
            {"racks": ["a"], "properties": {"broker.rack": "b"}},
            "racks sets broker.rack of each node: give one of the two",
        ),
        ({"racks": [None], "node_properties": {1: {"broker_rack": "b"}}}, "racks sets broker.rack of each node"),
        ({"node_properties": {2: {}}}, "node_properties for unknown nodes [2]: node ids are 1 to 1"),
        ({"properties": {"num.partitionz": 1}}, "num.partitions"),
        ({"host": "0.0.0.0"}, "clients cannot connect to '0.0.0.0': set advertised_host"),
        ({"network": MemoryNetwork(), "advertised_host": "a"}, "are reached where they listen"),
    ],
)
def test_wrong_arguments_are_rejected(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        BrokerCluster(**arguments)  # type: ignore[arg-type]  # what a user may get wrong


async def test_metadata_may_have_another_host() -> None:
    async with BrokerCluster(host="0.0.0.0", advertised_host="localhost") as cluster, client_of(cluster) as client:
        assert cluster.bootstrap_servers == f"localhost:{cluster.brokers[1].port}"
        answer = await client.ask(1, MetadataRequest(topics=[]), 9)
        assert answer.brokers[0].host == "localhost"


async def told_racks(client: Client, node_id: int) -> tuple[dict[int, str | None], dict[int, str | None], object]:
    """Return the racks in Metadata and in DescribeCluster, and the entry for the node's own in DescribeConfigs."""
    metadata = await client.ask(node_id, MetadataRequest(topics=[]), 12)
    cluster = await client.ask(node_id, DescribeClusterRequest(), 1)
    asked = DescribeConfigsResource(resource_type=4, resource_name=str(node_id), configuration_keys=["broker.rack"])
    (result,) = (await client.ask(node_id, DescribeConfigsRequest(resources=[asked], include_synonyms=True), 4)).results
    (config,) = result.configs
    return (
        {node.node_id: node.rack for node in metadata.brokers},
        {node.broker_id: node.rack for node in cluster.brokers},
        (
            config.value,
            config.config_source,
            config.read_only,
            [(origin.name, origin.value, origin.source) for origin in config.synonyms],
        ),
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"racks": ["a", None, "b"]},
        {"node_properties": {1: {"broker.rack": "a"}, 3: {"broker_rack": "b"}}},
        {"racks": ["a", None, "b"], "node_properties": {1: {"num.partitions": 2}}},
    ],
)
async def test_every_request_returns_the_same_rack(arguments: dict[str, Any]) -> None:
    cluster = BrokerCluster(3, network=(network := MemoryNetwork()), **arguments)
    async with cluster, client_of(cluster, network) as client:
        racks = {1: "a", 2: None, 3: "b"}
        for node_id, rack in racks.items():
            # STATIC_BROKER if it was given, else DEFAULT_CONFIG; it cannot be changed while the broker runs.
            config = (None, 5, True, []) if rack is None else (rack, 4, True, [("broker.rack", rack, 4)])
            assert await told_racks(client, node_id) == (racks, racks, config)


async def test_nodes_have_their_racks_and_properties() -> None:
    cluster = BrokerCluster(
        2,
        racks=["a", None],
        properties={"num.partitions": 3},
        node_properties={2: {"message.max.bytes": 500}},
        network=MemoryNetwork(),
    )
    async with cluster:
        assert [cluster.image.nodes[node_id].rack for node_id in (1, 2)] == ["a", None]
        assert len(cluster.create_topic("t").partitions) == 3
        assert cluster.brokers[1].log_config("t").max_message_bytes == 1048588
        assert cluster.brokers[2].log_config("t").max_message_bytes == 500
        assert cluster.brokers[2].log_config("not there").max_message_bytes == 500


# A start that fails


async def test_a_port_in_use_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        before = open_files(), asyncio.all_tasks()
        cluster = BrokerCluster(2, ports=[0, port], data_dir=tmp_path)
        with pytest.raises(OSError, match=f"broker 2 cannot start: .*127.0.0.1:{port}.*in use") as raised:
            await cluster.start()
        assert raised.value.errno == errno.EADDRINUSE
        assert (open_files(), asyncio.all_tasks()) == before
    await cluster.start()
    assert cluster.brokers[2].port == port
    await cluster.stop()


async def test_a_node_whose_former_port_is_in_use_takes_another(caplog: pytest.LogCaptureFixture) -> None:
    async with BrokerCluster() as cluster:
        port = cluster.brokers[1].port
        await cluster.kill(1)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            taken.listen()
            await cluster.restart(1)
            assert cluster.brokers[1].port != port
        assert f"port 127.0.0.1:{port} is in use, taking another one" in caplog.text
        async with client_of(cluster) as client:
            answer = await client.ask(1, MetadataRequest(topics=[]), 9)
            assert answer.brokers[0].port == cluster.brokers[1].port


async def test_a_folder_has_one_cluster_at_a_time(tmp_path: Path) -> None:
    async with BrokerCluster(data_dir=tmp_path) as cluster:
        before = open_files()
        with pytest.raises(KafkaStorageError, match=f"{re.escape(str(tmp_path))} is in use: another broker"):
            await BrokerCluster(data_dir=tmp_path).start()
        assert open_files() == before
        cluster.create_topic("t")
    async with BrokerCluster(data_dir=tmp_path) as cluster:
        assert "t" in cluster.image.topics


async def test_a_corrupt_journal_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    async with BrokerCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("t")
    journal = tmp_path / FILE_NAME
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    before = open_files()
    journal.write_bytes(b"".join([lines[0], b"x\n", *lines[1:]]))
    with pytest.raises(KafkaStorageError, match="line 2 is corrupt"):
        await BrokerCluster(data_dir=tmp_path).start()
    journal.unlink()
    # A new journal creates a new cluster, with another id than the node's folder.
    with pytest.raises(InconsistentClusterIdError):
        await BrokerCluster(data_dir=tmp_path).start()
    journal.write_bytes(whole)
    assert open_files() == before
    async with BrokerCluster(data_dir=tmp_path) as cluster:
        assert "t" in cluster.image.topics


async def test_a_cancelled_start_leaves_nothing() -> None:
    class Slow(MemoryNetwork):
        """Listen after many passes of the loop."""

        def listen(self, host: str, port: int, accept: object) -> Awaitable[object]:  # type: ignore[override]
            async def listen() -> object:
                for _ in range(5):
                    await asyncio.sleep(0)
                return MemoryNetwork.listen(self, host, port, accept)  # type: ignore[arg-type]

            return listen()

    cancelled = 0
    for turns in range(14):
        network = Slow()
        tasks = asyncio.all_tasks()
        cluster = BrokerCluster(2, network=network)
        starting = asyncio.ensure_future(cluster.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            cancelled += 1
            assert not network.listeners
            assert asyncio.all_tasks() == tasks
        await cluster.start()
        assert len(network.listeners) == 2
        await cluster.stop()
    assert cancelled > 5


async def test_a_failure_after_binding_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with BrokerCluster(2) as cluster:
        await cluster.kill(2)
        before = open_files(), asyncio.all_tasks()

        def full(self: Journal, changes: object) -> None:
            raise KafkaStorageError("no room")

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "append", full)
            with pytest.raises(KafkaStorageError, match="no room"):
                await cluster.restart(2)
        assert (open_files(), asyncio.all_tasks()) == before
        assert repr(cluster.brokers[2]).endswith("down>")
        await cluster.restart(2)
        assert repr(cluster.brokers[2]).endswith("serving>")
        assert len(cluster.image.alive_nodes()) == 2


async def test_a_cluster_stops_also_if_its_storage_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, tasks = open_files(), asyncio.all_tasks()
    cluster = BrokerCluster(2, data_dir=tmp_path)
    await cluster.start()
    cluster.create_topic("t", 2, 2)

    def full(self: Journal, changes: object) -> None:
        raise KafkaStorageError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", full)
        with pytest.raises(KafkaStorageError, match="no room"):
            await cluster.kill(1)
        with pytest.raises(KafkaStorageError, match="no room"):
            await cluster.stop()
    assert asyncio.all_tasks() == tasks
    assert open_files() <= files
    async with cluster, client_of(cluster) as client:
        assert await client.produce("t", b"a") == 0


# Death


async def test_a_killed_node_restarts_with_its_records(data_dir: Path | None) -> None:
    async with BrokerCluster(data_dir=data_dir) as cluster, client_of(cluster) as client:
        cluster.create_topic("t")
        for number in range(20):
            await client.produce("t", b"%d" % number)
        asking = asyncio.ensure_future(
            client.ask(
                1,
                FetchRequest(
                    max_wait_ms=60_000,
                    min_bytes=1,
                    topics=[
                        FetchTopic(
                            topic="t",
                            partitions=[FetchPartition(partition=0, fetch_offset=20, partition_max_bytes=1000)],
                        )
                    ],
                ),
                12,
            )
        )
        await asyncio.sleep(0.05)
        await cluster.kill(1)
        await cluster.kill(1)
        with pytest.raises(ConnectionResetError):
            await asking
        assert cluster.image.partition("t", 0).leader == NO_LEADER
        assert not cluster.image.alive_nodes()
        await cluster.restart(1)
        assert cluster.image.partition("t", 0).leader == 1
        assert await client.fetch("t") == [b"%d" % number for number in range(20)]
        assert await client.produce("t", b"more") == 20


async def test_each_of_three_nodes_may_die_without_losing_acknowledged_records(data_dir: Path | None) -> None:
    async with BrokerCluster(3, data_dir=data_dir, properties=THREE) as cluster, client_of(cluster) as client:
        cluster.create_topic("t", configs={"min.insync.replicas": "2"})
        acknowledged = []
        for node_id in (1, 2, 3, 1):
            await until(lambda: in_sync(cluster, "t", 3))
            for number in range(5):
                value = b"%d-%d" % (node_id, number)
                await client.produce("t", value)
                acknowledged.append(value)
            leader = cluster.image.partition("t", 0).leader
            await cluster.kill(leader)
            moved = cluster.image.partition("t", 0)
            assert moved.leader not in (leader, NO_LEADER)
            assert leader not in moved.isr
            await until_done(lambda: client.produce("t", b"after"), NotLeaderOrFollowerError)
            acknowledged.append(b"after")
            await cluster.restart(leader)
        await until(lambda: in_sync(cluster, "t", 3))
        assert await client.fetch("t") == acknowledged
        for broker in cluster.brokers.values():
            assert broker.replicas.partition("t", 0).log_end_offset == len(acknowledged)


async def test_three_nodes_have_the_same_bytes() -> None:
    async with BrokerCluster(3, properties=THREE) as cluster, client_of(cluster) as client:
        cluster.create_topic("t", 6)
        for number in range(60):
            await client.produce("t", b"%d" % number, partition=number % 6)
        for index in range(6):
            replicas = [broker.replicas.partition("t", index) for broker in cluster.brokers.values()]
            await until(lambda replicas=replicas: {replica.high_watermark for replica in replicas} == {10})
            held = {
                b"".join(bytes(part) for part in replica.log.read(0, 1 << 20, up_to=10, min_one_batch=True))
                for replica in replicas
            }
            assert len(held) == 1
            assert sum(1 for _ in iter_batches(held.pop())) == 10


@pytest.mark.simulated(seeds=[1], properties={"replica.lag.time.max.ms": 600, "replica.fetch.wait.max.ms": 100})
async def test_acks_all_waits_for_exactly_the_isr(simulation: Simulation) -> None:
    cluster = simulation.cluster
    async with client_of(cluster, simulation.transport) as client:
        cluster.create_topic("t", assignments={0: [1, 2, 3]})
        await client.produce("t", b"a")
        for broker in cluster.brokers.values():
            assert broker.replicas.partition("t", 0).log_end_offset == 1, "acknowledged is on the whole ISR"
        # A follower that hangs: alive, in the ISR, and silent.
        for fetcher in cluster.brokers[3].replicas.fetchers.values():
            await fetcher.close()
        started = asyncio.get_running_loop().time()
        assert await client.produce("t", b"b", acks=1) == 1
        assert cluster.image.partition("t", 0).isr == [1, 2, 3]
        assert await client.produce("t", b"c") == 2
        assert cluster.image.partition("t", 0).isr == [1, 2]
        assert asyncio.get_running_loop().time() - started > 0.2


async def test_a_stopping_node_moves_its_leaderships_first() -> None:
    async with BrokerCluster(3, properties=THREE) as cluster, client_of(cluster) as client:
        cluster.create_topic("t", assignments={0: [1, 2, 3]})
        await client.produce("t", b"a")
        stopping = asyncio.ensure_future(cluster.brokers[1].stop())
        await asyncio.sleep(0)
        assert cluster.image.partition("t", 0).leader == 2
        await until_done(lambda: client.produce("t", b"b"), NotLeaderOrFollowerError)
        await stopping
        assert not cluster.brokers[1].is_running
        assert [node.node_id for node in cluster.image.alive_nodes()] == [2, 3]
        await cluster.restart(1)
        await cluster.restart(2)
        await until(lambda: in_sync(cluster, "t", 3))
        assert await client.fetch("t") == [b"a", b"b"]
        with pytest.raises(ValueError, match="there is no node 4: node ids are 1 to 3"):
            await cluster.restart(4)


async def test_a_stopping_node_can_be_killed() -> None:
    async with BrokerCluster(2) as cluster, client_of(cluster) as client:
        cluster.faults.delay("ApiVersions", 60_000)
        asking = asyncio.ensure_future(client.ask(1, ApiVersionsRequest(), 0))
        await until(lambda: any(connection.is_busy for connection in cluster.brokers[1].server.connections))
        stopping = asyncio.ensure_future(cluster.brokers[1].stop())
        await asyncio.sleep(0.01)
        assert not stopping.done()
        await asyncio.gather(cluster.brokers[1].kill(), cluster.brokers[1].stop(), cluster.brokers[1].stop())
        await stopping
        with pytest.raises(ConnectionResetError):
            await asking
        await asyncio.gather(cluster.brokers[1].start(), cluster.brokers[1].start())
        assert (await client.ask(1, ApiVersionsRequest(), 0)).error_code == 0


async def test_the_controller_moves_leadership() -> None:
    async with BrokerCluster(3, properties=THREE) as cluster, client_of(cluster) as client:
        cluster.create_topic("t", assignments={0: [1, 2, 3]})
        await client.produce("t", b"a")
        cluster.controller.elect_leader("t", 0, 3)
        with pytest.raises(NotLeaderOrFollowerError):
            await client.produce("t", b"b", node_id=1)
        assert await client.produce("t", b"b") == 1
        assert await client.fetch("t") == [b"a", b"b"]
        answer = await client.ask(2, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        (partition,) = answer.topics[0].partitions
        assert (partition.leader_id, partition.leader_epoch) == (3, 1)


# Requests to the controller


async def test_topics_can_be_created_deleted_and_configured_while_it_runs() -> None:
    async with BrokerCluster(properties={"num.partitions": 2}) as cluster, client_of(cluster) as client:
        await client.ask(1, MetadataRequest(topics=[MetadataRequestTopic(name="auto")]), 9)
        assert len(cluster.image.topic("auto").partitions) == 2
        with pytest.raises(TopicExistsError):
            cluster.create_topic("auto")
        log = cluster.brokers[1].replicas.partition("auto", 0).log
        cluster.controller.alter_topic_configs("auto", {"max.message.bytes": "1000"})
        assert log.config.max_message_bytes == 1000
        cluster.controller.alter_node_configs(None, {"min.insync.replicas": "2"})
        assert log.config.min_insync_replicas == 2
        assert cluster.brokers[1].config.min_insync_replicas == 2
        await client.produce("auto", b"a", acks=1)
        cluster.controller.delete_topic("auto")
        with pytest.raises(UnknownTopicOrPartitionError):
            await client.produce("auto", b"a", node_id=1)
        cluster.controller.create_topic(TopicSpec("auto"))
        assert await client.fetch("auto") == []


async def test_altered_configurations_survive_a_restart(data_dir: Path | None) -> None:
    cluster = BrokerCluster(data_dir=data_dir)
    async with cluster:
        cluster.controller.alter_node_configs(1, {"message.max.bytes": "5000"})
    async with cluster:
        assert cluster.brokers[1].config.message_max_bytes == 5000
        assert cluster.brokers[1].log_config("t").max_message_bytes == 5000


async def test_the_offsets_topic_is_created_at_its_first_use() -> None:
    async with BrokerCluster(3, properties=THREE) as cluster, client_of(cluster) as client:
        assert GROUP_METADATA_TOPIC not in cluster.image.topics

        async def coordinator() -> int:
            answer = await client.ask(1, FindCoordinatorRequest(key="group"), 3)
            if answer.error_code:
                raise broker_error(answer.error_code)
            return answer.node_id

        await until_done(coordinator, KafkaError)
        topic = cluster.image.topic(GROUP_METADATA_TOPIC)
        assert topic.is_internal
        assert topic.configs["cleanup.policy"] == "compact"
        index = cluster.brokers[1].groups.shards.partition_for("group")
        assert await coordinator() == topic.partitions[index].leader
        await cluster.kill(await coordinator())
        survivor = cluster.image.alive_nodes()[0].node_id
        answer = await client.ask(survivor, FindCoordinatorRequest(key="group"), 3)
        assert answer.node_id == topic.partitions[index].leader


async def test_producer_ids_stay_unique_over_kills(data_dir: Path | None) -> None:
    given = []
    async with BrokerCluster(data_dir=data_dir) as cluster, client_of(cluster) as client:
        for _ in range(3):
            for _ in range(3):
                answer = await client.ask(1, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
                given.append(answer.producer_id)
            await cluster.kill(1)
            await cluster.restart(1)
    assert len(set(given)) == 9


# TLS


async def test_tls_is_only_between_clients_and_nodes(tmp_path: Path) -> None:
    """Nodes replicate without TLS: they are in one process."""
    authority = trustme.CA()
    server_side, client_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    server_side.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server_side)
    authority.configure_trust(client_side)
    authority.issue_cert("somebody").configure_cert(client_side)
    with pytest.raises(ConfigurationError, match="give ssl_context or network, not both"):
        BrokerCluster(network=MemoryNetwork(), ssl_context=server_side)
    async with BrokerCluster(2, ssl_context=server_side, properties={"default.replication.factor": 2}) as cluster:
        cluster.create_topic("t")
        async with client_of(cluster, StreamConnector(client_side)) as client:
            assert await client.produce("t", b"a") == 0
            await until(lambda: in_sync(cluster, "t", 2))
            await cluster.kill(cluster.image.partition("t", 0).leader)
            assert await client.fetch("t") == [b"a"]


# Leaks and start-up time


async def test_a_stopped_cluster_leaves_nothing(data_dir: Path | None) -> None:
    properties = {**THREE, "offsets.topic.num.partitions": 2}
    cluster = BrokerCluster(3, data_dir=data_dir, properties=properties)
    async with cluster:
        pass
    gc.collect()
    files, tasks = open_files(), asyncio.all_tasks()
    for _ in range(3):
        async with cluster, client_of(cluster) as client:
            if "t" not in cluster.image.topics:
                cluster.create_topic("t", 3)
            await client.produce("t", b"a")
            await client.ask(1, FindCoordinatorRequest(key="group"), 3)
            await cluster.kill(2)
            await until_done(lambda: client.produce("t", b"b"), NotLeaderOrFollowerError)
            await cluster.restart(2)
        await until(lambda: asyncio.all_tasks() == tasks, 5)
        gc.collect()
        assert open_files() <= files


async def test_hundreds_of_clusters_can_run_in_one_process() -> None:
    network = MemoryNetwork()
    clusters = [BrokerCluster(network=network) for _ in range(300)]
    for number, cluster in enumerate(clusters):
        await cluster.start()
        cluster.create_topic(f"t{number}")
    for number in (0, 150, 299):
        async with client_of(clusters[number], network) as client:
            assert await client.produce(f"t{number}", b"a") == 0
            assert await client.fetch(f"t{number}") == [b"a"]
    for cluster in clusters:
        await cluster.stop()
    assert not network.listeners


@pytest.mark.parametrize("nodes", [1, 3])
async def test_a_cluster_starts_within_50_ms_of_processor_time(nodes: int) -> None:
    """Measured in processor time, so that a busy machine does not make the broker slow."""
    taken = []
    # Collecting the garbage of earlier tests would count for this one.
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            started = time.process_time()
            async with BrokerCluster(nodes) as cluster:
                cluster.create_topic("t", 1, nodes)
                taken.append(time.process_time() - started)
    finally:
        gc.enable()
    assert min(taken) < 0.05
