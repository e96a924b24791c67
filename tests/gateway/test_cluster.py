"""This project's clients on an embedded cluster of three brokers, each behind its gateway, over simulated RDMA."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aioproducer import Producer
from aioproducer.consumer.reader import Reader
from aioproducer.gateway import AddressMap, Gateway
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from aioproducer.protocol.messages.metadata import MetadataRequestTopic
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.base import Connector, Listener
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.rdma import RdmaConnector, RdmaListener
from aioproducer.transport.stream import StreamConnector
from tests.broker.wire import WireClient, batch, fetch_request, produce_request
from tests.waiting import until

TOPIC = "topic"
PARTITIONS = 6


class Gated:
    """A cluster and its gateways, over one kind of transport."""

    def __init__(self, kind: str) -> None:
        self.cluster = EmbeddedCluster(3, transport="memory" if kind == "memory" else "tcp")
        self.kind = kind
        self.gateways: dict[int, Gateway] = {}
        self.fabric = SimulatedFabric()
        self.rdma = RdmaConnector(self.fabric)
        self.transport: Connector = self.rdma if kind == "rdma" else StreamConnector()
        """The network of the clients."""

    async def start(self) -> None:
        await self.cluster.start()
        network = self.cluster.transport
        if isinstance(network, MemoryNetwork):
            self.transport = network
        address_map = AddressMap({})
        for number, address in enumerate(self.cluster.bootstrap_servers.split(","), 1):
            host, _, port = address.rpartition(":")
            connector = network if isinstance(network, MemoryNetwork) else StreamConnector()
            gateway = Gateway(self._listener(), connector, (host, int(port)), address_map)
            await gateway.start(f"gateway-{number}" if self.kind == "memory" else "127.0.0.1", 0)
            self.gateways[number] = gateway
            address_map.add((host, int(port)), self.address(number))

    def _listener(self) -> Listener:
        if isinstance(self.transport, MemoryNetwork):
            return self.transport
        return RdmaListener(self.fabric) if self.kind == "rdma" else StreamListener()

    def address(self, number: int) -> tuple[str, int]:
        return f"gateway-{number}" if self.kind == "memory" else "127.0.0.1", self.gateways[number].port

    @property
    def bootstrap_servers(self) -> str:
        return ",".join("{}:{}".format(*self.address(number)) for number in self.gateways)

    def producer(self, **configuration: object) -> Producer:
        return Producer(bootstrap_servers=self.bootstrap_servers, transport=self.transport, **configuration)

    async def wire(self, number: int) -> WireClient:
        host, port = self.address(number)
        network = None if self.kind == "tcp" else self.transport
        return await WireClient.connect(f"{host}:{port}", network=network)

    def total(self, name: str) -> int:
        return sum(gateway.metrics()[name] for gateway in self.gateways.values())

    async def stop(self) -> None:
        for gateway in self.gateways.values():
            await gateway.stop(1)
        await self.cluster.stop()
        await until(lambda: not any(self.fabric.live))


@pytest.fixture(params=["memory", "tcp", "rdma"])
async def gated(request: pytest.FixtureRequest) -> AsyncIterator[Gated]:
    made = Gated(request.param)
    await made.start()
    try:
        made.cluster.create_topic(TOPIC, PARTITIONS)
        yield made
    finally:
        await made.stop()


def values(gated):
    return sorted(record.value for record in gated.cluster.records(TOPIC))


async def test_all_connections_go_through_the_gateways(gated):
    sent = [b"%06d" % number for number in range(10_000)]
    async with gated.producer(linger_ms=0, compression_type="lz4") as producer:
        result = await producer.send_many(TOPIC, sent, keys=sent)
    assert result.acked == len(sent)
    assert values(gated) == sent
    # The producer has written to every broker.
    assert all(gateway.metrics()["requests"] >= 3 for gateway in gated.gateways.values())
    assert gated.total("addresses_unmapped") == 0
    read = []
    async with Reader(
        TOPIC, bootstrap_servers=gated.bootstrap_servers, transport=gated.transport, stop="end"
    ) as reader:
        async for record in reader:
            read.append(record.value)
    assert sorted(read) == sent


async def test_a_leader_that_moves_is_found_by_its_gateway(gated):
    """KIP-951: the response to Produce contains the leader; also if only one gateway is known."""
    async with gated.producer(linger_ms=0) as producer:
        await producer.send(TOPIC, b"0", partition=0)
        for number in range(1, 7):
            gated.cluster.move_leader(TOPIC, 0, number % 3 + 1)
            await producer.send(TOPIC, b"%d" % number, partition=0)
    assert values(gated) == [b"%d" % number for number in range(7)]
    assert gated.total("responses_rewritten") > 3
    assert gated.total("addresses_unmapped") == 0


async def test_clients_continue_after_a_broker_restarts(gated):
    sent = [b"%06d" % number for number in range(2_000)]
    async with gated.producer(linger_ms=1, batch_size=1000) as producer:
        sending = asyncio.ensure_future(producer.send_many(TOPIC, sent))
        await until(lambda: gated.total("requests") >= 20)
        await gated.cluster.kill(1)
        await asyncio.sleep(0.05)
        await gated.cluster.restart(1)
        assert (await sending).acked == len(sent)
    assert values(gated) == sent


async def test_clients_continue_after_a_gateway_restarts(gated):
    """Requests in flight are sent again, and no record is duplicated."""
    sent = [b"%06d" % number for number in range(2_000)]
    gateway = gated.gateways[1]
    host, port = gated.address(1)
    async with gated.producer(linger_ms=1, batch_size=1000) as producer:
        sending = asyncio.ensure_future(producer.send_many(TOPIC, sent))
        await until(lambda: gated.total("requests") >= 20)
        await gateway.stop(0)
        await gateway.start(host, port)
        assert (await sending).acked == len(sent)
    assert values(gated) == sent


async def test_records_without_acks_pass(gated):
    sent = [b"%06d" % number for number in range(3_000)]
    async with gated.producer(acks=0, enable_idempotence=False, batch_size=500) as producer:
        await producer.send_many(TOPIC, sent)
        await producer.flush()
    await until(lambda: len(values(gated)) == len(sent))
    assert values(gated) == sent


async def test_records_of_a_megabyte_pass(gated):
    sent = [bytes([65 + number]) * 1_000_000 for number in range(10)]
    async with gated.producer(max_request_size=2_000_000) as producer:
        assert (await producer.send_many(TOPIC, sent)).acked == len(sent)
    assert values(gated) == sent


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_every_address_in_responses_is_translated(gated, number):
    expected = {node: gated.address(node) for node in gated.gateways}
    async with await gated.wire(number) as client:
        metadata = await client.call(MetadataRequest(topics=[]), 13)
        assert {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers} == expected
        described = await client.call(DescribeClusterRequest(), 2)
        assert {broker.broker_id: (broker.host, broker.port) for broker in described.brokers} == expected
        for version in (3, 6):
            asked = {"key": "group"} if version == 3 else {"coordinator_keys": ["group"]}
            while True:
                found = await client.call(FindCoordinatorRequest(**asked), version)
                answer = found if version == 3 else found.coordinators[0]
                if answer.error_code == 0:
                    break
                await asyncio.sleep(0.01)
            assert (answer.host, answer.port) == expected[answer.node_id]


async def test_the_address_of_the_current_leader_is_translated(gated):
    """Produce from version 10 and Fetch from 16 return it if the request went to another broker (KIP-951)."""
    gated.cluster.create_topic("single", 1, replication_factor=1)
    async with await gated.wire(1) as client:
        metadata = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="single")]), 12)
    (topic,) = metadata.topics
    leader = topic.partitions[0].leader_id
    async with await gated.wire(leader % 3 + 1) as client:
        response = await client.call(produce_request("single", {0: batch(b"x")}), 12)
        expected = [(leader, *gated.address(leader))]
        assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == expected
        fetched = await client.call(fetch_request(topic.topic_id, {0: 0}, version=17), 17)
        assert [(node.node_id, node.host, node.port) for node in fetched.node_endpoints] == expected


async def test_an_unknown_api_versions_request_is_answered_in_version_0(gated):
    """KIP-511: the broker returns its versions, and the client repeats the request."""
    async with await gated.wire(1) as client:
        direct = await client.call(ApiVersionsRequest(client_software_name="n", client_software_version="1"), 4)
        frame = bytearray(b"\x00\x00\x00\x00\x00\x12\x00\x09\x00\x00\x00\x63\xff\xff\x00\x00")
        frame[3] = len(frame) - 4
        await client.send_bytes(bytes(frame))
        correlation_id, refused = await client.receive(ApiVersionsRequest, 0)
    assert (correlation_id, refused.error_code) == (99, 35)
    (own,) = (api for api in direct.api_keys if api.api_key == 18)
    assert any((api.api_key, api.max_version) == (18, own.max_version) for api in refused.api_keys)
