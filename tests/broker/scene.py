"""A cluster in memory, for tests of its responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from aioproducer.broker.broker import Broker
from aioproducer.broker.cluster import BrokerCluster
from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.server.connection import Reply, ServerConnection
from aioproducer.protocol import Request, decode_response, encode_request
from aioproducer.transport.memory import MemoryNetwork
from tests.broker.wire import ResponseT, WireClient, batch, produce_request


class Scene:
    """A cluster with the topic ``t`` of three partitions, and connections to it."""

    def __init__(self, cluster: BrokerCluster, network: MemoryNetwork) -> None:
        self.cluster = cluster
        self.network = network
        self.faults = cluster.faults
        self.topic_id = cluster.create_topic("t", 3, len(cluster.brokers)).topic_id

    async def connect(self, node_id: int = 1, client_id: str | None = "wire") -> WireClient:
        node = self.cluster.image.nodes[node_id]
        return await WireClient.connect(f"{node.host}:{node.port}", network=self.network, client_id=client_id)

    async def ask(self, request: Request[ResponseT], version: int, node_id: int = 1) -> ResponseT:
        """Send a request over a new connection, and return the node's response."""
        async with await self.connect(node_id) as client:
            return await client.call(request, version)

    def answering(self, request: Request[ResponseT], version: int, node_id: int = 1) -> asyncio.Task[Reply]:
        """Return the pending call of a node for a request without a connection."""
        frame = memoryview(bytearray(b"".join(encode_request(request, version, 7, "c"))[4:]))
        return asyncio.ensure_future(self.broker(node_id).requests.answer(no_peer(), frame))

    async def answered(self, request: Request[ResponseT], version: int, node_id: int = 1) -> ResponseT:
        """Return a node's response to a request without a connection."""
        reply = await self.answering(request, version, node_id)
        return decode_response(type(request).response_class(), version, b"".join(reply.buffers)[4:])[1]

    def leader(self, index: int, topic: str = "t") -> int:
        """Return the node that leads a partition."""
        return self.cluster.image.partition(topic, index).leader

    def broker(self, node_id: int = 1) -> Broker:
        return self.cluster.brokers[node_id]

    def partition(self, index: int, node_id: int | None = None, topic: str = "t") -> Partition:
        """Return a node's replica, by default the leader's."""
        node = self.leader(index, topic) if node_id is None else node_id
        return self.broker(node).replicas.partitions[topic, index]

    async def write(self, index: int, *values: bytes, topic: str = "t", timestamp: int = 1_700_000_000_000) -> int:
        """Append a batch at the leader; return its first offset when all in-sync replicas have it."""
        request = produce_request(topic, {index: batch(*values, timestamp=timestamp)})
        response = await self.ask(request, 9, self.leader(index, topic))
        [answer] = response.responses[0].partition_responses
        assert answer.error_code == 0
        return answer.base_offset


def no_peer() -> ServerConnection:
    """A connection for tests in which the peer does not matter."""
    return cast("ServerConnection", SimpleNamespace(peer="no peer"))


@asynccontextmanager
async def a_scene(nodes: int = 1, **properties: object) -> AsyncIterator[Scene]:
    """A scene with ``nodes`` nodes; in ``properties`` a double underscore stands for a dot."""
    network = MemoryNetwork()
    dotted = {name.replace("__", "."): value for name, value in properties.items()}
    async with BrokerCluster(nodes, network=network, properties=dotted) as cluster:
        yield Scene(cluster, network)


async def loop_passes(count: int = 20) -> None:
    """Let all ready callbacks run."""
    for _ in range(count):
        await asyncio.sleep(0)
