"""The embedded broker's groups compared with Apache Kafka's: the same requests, response by response."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import TypeVar

import pytest

from aioproducer.broker import BrokerCluster
from aioproducer.broker.server.peer import PeerClient
from aioproducer.errors import KafkaError
from aioproducer.protocol import Request, Response
from aioproducer.protocol.messages import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from aioproducer.protocol.messages.groups import JoinGroupRequestProtocol, MemberIdentity, SyncGroupRequestAssignment
from aioproducer.protocol.messages.metadata import MetadataRequestTopic
from aioproducer.transport.stream import StreamConnector
from tests.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.interop

TIMEOUT = 30.0
UNKNOWN_TOPIC_ID = b"\1" * 16

ResponseT = TypeVar("ResponseT", bound=Response)


def comparable(response: object) -> str:
    """Return the response without varying parts: ids of members and topics, ports, and the order of members."""
    if isinstance(response, JoinGroupResponse):
        response.members.sort(key=lambda member: member.member_id)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", repr(response))
    return re.sub(r"\b[0-9a-f]{32}\b", "TOPIC", re.sub(r"port=\d{3,}", "port=PORT", text))


def protocol(name: str) -> JoinGroupRequestProtocol:
    return JoinGroupRequestProtocol(name=name, metadata=b"x")


def join(
    g: str = "ga",
    mid: str = "",
    st: int = 60_000,
    rt: int = 10_000,
    inst: str | None = None,
    pt: str = "consumer",
    ps: list[JoinGroupRequestProtocol] | None = None,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=g,
        member_id=mid,
        session_timeout_ms=st,
        rebalance_timeout_ms=rt,
        group_instance_id=inst,
        protocol_type=pt,
        protocols=[protocol("range")] if ps is None else ps,
    )


def commit(
    g: str = "ga",
    gen: int = -1,
    mid: str = "",
    inst: str | None = None,
    t: str = "t",
    ps: Iterable[tuple[int, int, str | None]] = ((0, 5, "meta"),),
    tid: bytes = bytes(16),
) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=2, committed_metadata=metadata
        )
        for index, offset, metadata in ps
    ]
    return OffsetCommitRequest(
        group_id=g,
        generation_id_or_member_epoch=gen,
        member_id=mid,
        group_instance_id=inst,
        topics=[OffsetCommitRequestTopic(name=t, topic_id=tid, partitions=partitions)],
    )


def fetch(g: str = "gs", t: str = "t", ps: Iterable[int] = (0, 1, 9), all: bool = False) -> OffsetFetchRequest:
    topics = None if all else [OffsetFetchRequestTopic(name=t, partition_indexes=list(ps))]
    return OffsetFetchRequest(group_id=g, topics=topics)


class Judged:
    """A cluster, and its responses."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.host, port = bootstrap_servers.split(":")
        self.port = int(port)
        self.answers: list[str] = []
        self._clients: list[PeerClient] = []

    def client(self, name: str) -> PeerClient:
        self._clients.append(PeerClient(StreamConnector(), self.host, self.port, client_id=name))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    async def coordinator(self, client: PeerClient) -> None:
        """Wait until there is a coordinator that has loaded its groups."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                found = await client.request(FindCoordinatorRequest(key="group"), 3, TIMEOUT)
                fetched = await client.request(fetch("group", all=True), 7, TIMEOUT)
                if found.error_code == fetched.error_code == 0:
                    return
                await asyncio.sleep(0.05)

    async def state(self, client: PeerClient, group: str, state: str) -> None:
        """Wait until a group is in a state, which requests on another connection cause."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                described = await client.request(DescribeGroupsRequest(groups=[group]), 6, TIMEOUT)
                if described.groups[0].group_state == state:
                    return
                await asyncio.sleep(0.01)

    async def topic_id(self, client: PeerClient) -> bytes:
        response = await client.request(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12, TIMEOUT)
        return response.topics[0].topic_id


async def scenario(judged: Judged) -> None:
    """Send valid and invalid requests of all kinds about groups."""
    c = judged.client("me")
    others = [judged.client("o1"), judged.client("o2")]
    out = judged.answers

    async def ask(label: str, message: Request[ResponseT], v: int, who: PeerClient | None = None) -> ResponseT:
        try:
            response = await (who or c).request(message, v, TIMEOUT)
        except (OSError, KafkaError) as error:
            raise AssertionError(f"{label}, version {v}") from error
        out.append(f"{label}, version {v}: {comparable(response)}")
        return response

    await judged.coordinator(c)
    tid = await judged.topic_id(c)
    for v in range(4):
        await ask("find", FindCoordinatorRequest(key="g1"), v)
    for v in range(4, 7):
        await ask("find several", FindCoordinatorRequest(coordinator_keys=["g1", "g2", ""]), v)
    await ask("find bad type", FindCoordinatorRequest(key="g1", key_type=7), 2)
    await ask("find bad type", FindCoordinatorRequest(coordinator_keys=["g1"], key_type=7), 4)
    await ask("find share group", FindCoordinatorRequest(coordinator_keys=["g1"], key_type=2), 5)
    for v in (0, 3, 7):
        await ask("join empty id", join(g=""), v)
    for v in (5, 7):
        await ask("join bad session", join(st=1), v)
    for v in (5, 7):
        await ask("join unknown member", join(mid="nobody"), v)
    await ask("join no protocols", join(g="gb", ps=[]), 7)
    await ask("join no type", join(g="gb", pt=""), 7)
    await ask("describe gb", DescribeGroupsRequest(groups=["gb", "never"]), 5)
    await ask("describe gb", DescribeGroupsRequest(groups=["gb", "never", ""], include_authorized_operations=True), 6)
    r = await ask("join new", join(), 9)
    m = r.member_id
    r = await ask("join new", join(mid=m), 9)
    gen = r.generation_id
    await ask("join again same", join(mid=m), 9)
    await ask("hb completing", HeartbeatRequest(group_id="ga", generation_id=gen, member_id=m), 4)
    await ask(
        "commit completing",
        OffsetCommitRequest(
            group_id="ga",
            generation_id_or_member_epoch=gen,
            member_id=m,
            topics=[
                OffsetCommitRequestTopic(
                    name="t", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
                )
            ],
        ),
        8,
    )
    await ask("describe completing", DescribeGroupsRequest(groups=["ga"]), 6)
    await ask("sync no proto", SyncGroupRequest(group_id="ga", generation_id=gen, member_id=m), 5)
    await ask(
        "sync wrong proto",
        SyncGroupRequest(
            group_id="ga", generation_id=gen, member_id=m, protocol_type="consumer", protocol_name="other"
        ),
        5,
    )
    await ask(
        "sync wrong gen",
        SyncGroupRequest(
            group_id="ga", generation_id=gen + 1, member_id=m, protocol_type="consumer", protocol_name="range"
        ),
        5,
    )
    await ask(
        "sync unknown",
        SyncGroupRequest(
            group_id="ga", generation_id=gen, member_id="zz", protocol_type="consumer", protocol_name="range"
        ),
        5,
    )
    await ask(
        "sync unknown group",
        SyncGroupRequest(
            group_id="gzz", generation_id=gen, member_id="zz", protocol_type="consumer", protocol_name="range"
        ),
        5,
    )
    await ask(
        "sync",
        SyncGroupRequest(
            group_id="ga",
            generation_id=gen,
            member_id=m,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=m, assignment=b"mine")],
        ),
        5,
    )
    await ask("sync again", SyncGroupRequest(group_id="ga", generation_id=gen, member_id=m), 3)
    await ask("describe stable", DescribeGroupsRequest(groups=["ga"], include_authorized_operations=True), 6)
    await ask("list", ListGroupsRequest(states_filter=["stable"]), 5)
    await ask("list", ListGroupsRequest(states_filter=["Stable"], types_filter=["consumer"]), 5)
    await ask("list", ListGroupsRequest(states_filter=["Stable"], types_filter=["CLASSIC"]), 5)
    for args in ((gen, m, None), (gen + 1, m, None), (gen, "zz", None), (gen, m, "inst")):
        await ask(
            f"hb {args[0] - gen}",
            HeartbeatRequest(group_id="ga", generation_id=args[0], member_id=args[1], group_instance_id=args[2]),
            4,
        )
    await ask("hb unknown group", HeartbeatRequest(group_id="gzz", generation_id=1, member_id="a"), 4)
    await ask("hb empty group id", HeartbeatRequest(group_id="", generation_id=1, member_id="a"), 4)
    for v in (2, 6, 9):
        await ask("commit member", commit(gen=gen, mid=m), v)
    await ask("commit wrong gen", commit(gen=gen + 3, mid=m), 8)
    await ask("commit wrong member", commit(gen=gen, mid="zz"), 8)
    await ask("commit simple to active", commit(), 8)
    await ask("commit unknown group gen", commit(g="gnone", gen=3, mid="a"), 8)
    await ask("commit unknown group gen", commit(g="gnone", gen=3, mid="a"), 9)
    await ask("commit simple", commit(g="gs", ps=((0, 7, None), (1, 8, "x" * 4097), (9, 1, ""))), 8)
    await ask("commit empty group id", commit(g=""), 8)
    await ask("commit unknown topic", commit(g="gs", t="nope"), 8)
    await ask("commit by id", commit(g="gs", t="", tid=tid, ps=((0, 17, "m"), (9, 1, ""))), 10)
    await ask("commit v10 unknown", commit(g="gs", t="", tid=UNKNOWN_TOPIC_ID), 10)
    await ask("commit v10 zero", commit(g="gs", t=""), 10)
    await ask("commit negative", commit(g="gs", ps=((0, -5, None),)), 8)
    for v in (1, 2, 5, 7):
        await ask("fetch", fetch(), v)
    for v in (2, 7):
        await ask("fetch all", fetch(all=True), v)
    await ask("fetch unknown topic", fetch(t="nope"), 5)
    await ask("fetch unknown group", fetch(g="gzz"), 5)
    await ask("fetch all unknown group", fetch(g="gzz", all=True), 5)
    await ask("fetch empty group", fetch(g=""), 5)
    for v in (8, 9):
        await ask(
            "fetch groups",
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id="gs",
                        topics=[
                            OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1]),
                            OffsetFetchRequestTopics(name="nope", partition_indexes=[0]),
                        ],
                    ),
                    OffsetFetchRequestGroup(group_id="ga", topics=None),
                    OffsetFetchRequestGroup(group_id="gzz", topics=None),
                ],
                require_stable=v == 9,
            ),
            v,
        )
    await ask(
        "fetch ids",
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id="gs",
                    topics=[
                        OffsetFetchRequestTopics(topic_id=UNKNOWN_TOPIC_ID, partition_indexes=[0, 1]),
                        OffsetFetchRequestTopics(topic_id=tid, partition_indexes=[0, 1, 9]),
                    ],
                ),
                OffsetFetchRequestGroup(group_id="gs", topics=None),
            ]
        ),
        10,
    )
    # two members
    r1 = await others[0].request(join(mid=""), 7, 10)
    t1 = asyncio.create_task(others[0].request(join(mid=r1.member_id), 7, 20))
    await judged.state(c, "ga", "PreparingRebalance")
    await ask("hb preparing", HeartbeatRequest(group_id="ga", generation_id=gen, member_id=m), 4)
    await ask("sync preparing", SyncGroupRequest(group_id="ga", generation_id=gen, member_id=m), 3)
    await ask("commit preparing", commit(gen=gen, mid=m), 8)
    await ask("inconsistent", join(ps=[protocol("other")]), 7, others[1])
    await ask("inconsistent", join(ps=[protocol("other")]), 5, others[1])
    r = await ask("rejoin leader", join(mid=m), 9)
    gen = r.generation_id
    out.append("joined other: " + comparable(await t1))
    m2 = r1.member_id
    t2 = asyncio.create_task(others[0].request(SyncGroupRequest(group_id="ga", generation_id=gen, member_id=m2), 3, 20))
    await asyncio.sleep(0.2)
    await ask(
        "leave follower by admin",
        LeaveGroupRequest(
            group_id="ga",
            members=[MemberIdentity(member_id="zz"), MemberIdentity(member_id="", group_instance_id="nope")],
        ),
        4,
    )
    await ask(
        "sync leader",
        SyncGroupRequest(
            group_id="ga",
            generation_id=gen,
            member_id=m,
            assignments=[SyncGroupRequestAssignment(member_id=m2, assignment=b"two")],
        ),
        3,
    )
    out.append("synced other: " + comparable(await t2))
    await ask("leave", LeaveGroupRequest(group_id="ga", member_id=m2), 2)
    await ask("hb after leave", HeartbeatRequest(group_id="ga", generation_id=gen, member_id=m), 4)
    await ask("leave twice", LeaveGroupRequest(group_id="ga", member_id=m2), 1)
    await ask("leave last", LeaveGroupRequest(group_id="ga", members=[MemberIdentity(member_id=m)]), 5)
    await ask("leave unknown group", LeaveGroupRequest(group_id="gzz", members=[MemberIdentity(member_id=m)]), 5)
    await ask("leave unknown group", LeaveGroupRequest(group_id="gzz", member_id=m), 2)
    await ask("describe empty", DescribeGroupsRequest(groups=["ga", "gs"]), 6)
    await ask("hb empty", HeartbeatRequest(group_id="ga", generation_id=gen + 1, member_id=m), 4)
    await ask("sync empty", SyncGroupRequest(group_id="ga", generation_id=gen + 1, member_id=m), 3)
    # static
    r = await ask("static join", join(g="gst", inst="i1"), 9)
    s1 = r.member_id
    g = r.generation_id
    await ask(
        "static sync",
        SyncGroupRequest(
            group_id="gst",
            generation_id=g,
            member_id=s1,
            group_instance_id="i1",
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=s1, assignment=b"st")],
        ),
        5,
    )
    for v in (9, 8):
        r = await ask("static rejoin", join(g="gst", inst="i1"), v)
        s2 = r.member_id
        await ask(
            "static fenced hb",
            HeartbeatRequest(group_id="gst", generation_id=g, member_id=s1, group_instance_id="i1"),
            4,
        )
        await ask("static fenced join", join(g="gst", mid=s1, inst="i1"), 9)
        await ask("static fenced commit", commit(g="gst", gen=g, mid=s1, inst="i1"), 8)
        await ask(
            "static sync",
            SyncGroupRequest(
                group_id="gst",
                generation_id=g,
                member_id=s2,
                group_instance_id="i1",
                protocol_type="consumer",
                protocol_name="range",
            ),
            5,
        )
        s1 = s2
    await ask(
        "static leave fenced",
        LeaveGroupRequest(group_id="gst", members=[MemberIdentity(member_id="other", group_instance_id="i1")]),
        4,
    )
    await ask(
        "static leave by instance",
        LeaveGroupRequest(group_id="gst", members=[MemberIdentity(member_id="", group_instance_id="i1")]),
        4,
    )
    await ask("pending static", join(g="gp"), 9)
    r = await c.request(join(g="gp"), 9, 10)
    await ask("pending leaves", LeaveGroupRequest(group_id="gp", members=[MemberIdentity(member_id=r.member_id)]), 4)
    await ask("v3 join", join(g="gv3"), 3)
    await ask("v0 join", join(g="gv0"), 0)


async def answers_of(bootstrap_servers: str) -> list[str]:
    judged = Judged(bootstrap_servers)
    try:
        await scenario(judged)
    finally:
        judged.close()
    return judged.answers


@pytest.fixture(scope="module")
def kafka_s_answers() -> list[str]:
    """Apache Kafka's responses."""
    with KafkaCluster(1) as kafka:
        kafka.create_topic("t", 2)
        return asyncio.run(answers_of(kafka.bootstrap_servers))


async def test_groups_answer_as_those_of_apache_kafka(kafka_s_answers: list[str]) -> None:
    properties = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
    async with BrokerCluster(1, properties=properties) as cluster:
        cluster.create_topic("t", 2)
        answers = await answers_of(cluster.bootstrap_servers)
    assert len(kafka_s_answers) > 90
    for answer, wanted in zip(answers, kafka_s_answers, strict=True):
        assert answer == wanted
