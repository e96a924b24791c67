"""A cluster in memory with groups, and the member of a group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from aioproducer.broker import BrokerCluster
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.server.peer import PeerClient
from aioproducer.protocol import Request, Response
from aioproducer.protocol.messages import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestTopic,
)
from aioproducer.protocol.messages.groups import JoinGroupRequestProtocol, SyncGroupRequestAssignment
from aioproducer.transport.memory import MemoryNetwork

from .driving import subscription

TIMEOUT = 20.0
PROPERTIES: dict[str, object] = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}

ResponseT = TypeVar("ResponseT", bound=Response)


class World:
    """A cluster in memory, and clients of it."""

    def __init__(self, cluster: BrokerCluster, network: MemoryNetwork) -> None:
        self.cluster = cluster
        self._network = network
        self._clients: list[PeerClient] = []

    def client(self, node_id: int = 1) -> PeerClient:
        node = self.cluster.image.nodes[node_id]
        self._clients.append(PeerClient(self._network, node.host, node.port, client_id="client"))
        return self._clients[-1]

    async def ask(self, request: Request[ResponseT], version: int, node_id: int = 1) -> ResponseT:
        return await self.client(node_id).request(request, version, TIMEOUT)

    async def coordinator(self, group_id: str = "group") -> int:
        """Return the node that coordinates a group, after it has loaded the group's partition."""
        nodes = sorted(node.node_id for node in self.cluster.image.alive_nodes())
        async with asyncio.timeout(TIMEOUT):
            while True:
                found = await self.ask(FindCoordinatorRequest(key=group_id), 3, nodes[0])
                if found.error_code == Code.NONE:
                    fetch = OffsetFetchRequest(group_id=group_id, topics=None)
                    if not (await self.ask(fetch, 7, found.node_id)).error_code:
                        return found.node_id
                await asyncio.sleep(0.01)

    async def commit(self, offset: int, version: int = 8, node_id: int = 1, **changes: object) -> int:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
        topic = OffsetCommitRequestTopic(name="orders", partitions=[partition])
        fields: dict[str, object] = {"group_id": "group", "topics": [topic], **changes}
        response: OffsetCommitResponse = await self.ask(
            OffsetCommitRequest(**fields),  # type: ignore[arg-type]  # the fields by name
            version,
            node_id,
        )
        return response.topics[0].partitions[0].error_code

    async def committed(self, node_id: int = 1, **changes: object) -> int:
        topic = OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
        fields: dict[str, object] = {"group_id": "group", "topics": [topic], **changes}
        response = await self.ask(OffsetFetchRequest(**fields), 7, node_id)  # type: ignore[arg-type]  # as above
        assert response.error_code == Code.NONE
        return response.topics[0].partitions[0].committed_offset

    def close(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def world(nodes: int = 1, **properties: object) -> AsyncIterator[World]:
    network = MemoryNetwork()
    before = asyncio.all_tasks()
    async with BrokerCluster(nodes, network=network, properties={**PROPERTIES, **properties}) as cluster:
        cluster.create_topic("orders", 2, nodes)
        made = World(cluster, network)
        try:
            yield made
        finally:
            made.close()
    await until(lambda: asyncio.all_tasks() == before)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an action of the broker."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, asyncio.all_tasks()
        await asyncio.sleep(0.01)


def join(member_id: str = "", group_id: str = "group", **changes: object) -> JoinGroupRequest:
    fields: dict[str, object] = {
        "group_id": group_id,
        "member_id": member_id,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))],
    }
    return JoinGroupRequest(**{**fields, **changes})  # type: ignore[arg-type]  # the fields by name


async def member_of(made: World, node_id: int = 1) -> JoinGroupResponse:
    """The only member of a stable group."""
    required = await made.ask(join(), 9, node_id)
    assert required.error_code == Code.MEMBER_ID_REQUIRED
    joined = await made.ask(join(required.member_id), 9, node_id)
    assert joined.error_code == Code.NONE
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    synced: SyncGroupResponse = await made.ask(
        SyncGroupRequest(
            group_id="group",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[assignment],
        ),
        5,
        node_id,
    )
    assert synced.assignment == b"all"
    return joined
