"""Groups as clients see them: requests to nodes of a cluster in memory."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.commits import CommittedOffset, Committer
from aioproducer.broker.groups.states import GroupState
from aioproducer.broker.handlers import describe_groups, list_groups
from aioproducer.broker.handlers.context import RequestContext
from aioproducer.errors import CoordinatorNotAvailableError, PolicyViolationError
from aioproducer.protocol import APIS, ApiKey, Request, RequestHeader, Response
from aioproducer.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from aioproducer.protocol.messages.groups import MemberIdentity

from .world import World, join, member_of, until, world


async def test_the_offsets_topic_is_created_when_it_is_first_needed() -> None:
    async with world() as made:
        assert "__consumer_offsets" not in made.cluster.image.topics
        first = await made.ask(FindCoordinatorRequest(key="group"), 3)
        assert (first.error_code, first.error_message) == (15, "The coordinator is not available.")
        topic = made.cluster.image.topics["__consumer_offsets"]
        assert topic.configs["cleanup.policy"] == "compact"
        # Kafka's default of three replicas exceeds the number of nodes.
        assert topic.partitions[0].replicas == [1]
        assert await made.coordinator() == 1


async def test_an_offsets_topic_that_cannot_be_created_leaves_no_coordinator(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(2) as made:

        def refuse(spec: TopicSpec) -> None:
            raise PolicyViolationError("no more topics")

        monkeypatch.setattr(made.cluster.controller, "create_topic", refuse)
        with pytest.raises(CoordinatorNotAvailableError):
            made.cluster.brokers[1].groups.shards.find("group")
        assert "__consumer_offsets could not be created: no more topics" in caplog.text


async def test_a_partition_without_a_leader_has_no_coordinator() -> None:
    async with world(2, **{"offsets.topic.replication.factor": 1}) as made:
        coordinator = await made.coordinator()
        await made.cluster.kill(coordinator)
        with pytest.raises(CoordinatorNotAvailableError):
            made.cluster.brokers[3 - coordinator].groups.shards.find("group")


async def test_an_invalid_key_has_no_coordinator() -> None:
    async with world() as made:
        await made.coordinator()
        shared = await made.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=["a"]), 6)
        assert (shared.coordinators[0].error_code, shared.coordinators[0].error_message) == (42, "")
        unknown = await made.ask(FindCoordinatorRequest(key_type=9, key="a"), 2)
        assert (unknown.error_code, unknown.node_id) == (Code.INVALID_REQUEST, -1)


async def test_a_group_survives_the_death_of_its_only_node() -> None:
    async with world() as made:
        await made.coordinator()
        member = await member_of(made)
        assert await made.commit(7, generation_id_or_member_epoch=1, member_id=member.member_id) == Code.NONE
        await made.cluster.kill(1)
        await made.cluster.restart(1)
        assert await made.coordinator() == 1
        assert await made.committed() == 7
        beat = HeartbeatRequest(group_id="group", generation_id=1, member_id=member.member_id)
        assert (await made.ask(beat, 4)).error_code == Code.NONE


async def test_a_group_moves_with_the_leadership() -> None:
    async with world(2) as made:
        first = await made.coordinator()
        second = 3 - first
        member = await member_of(made, first)
        assert await made.commit(7, 8, first, generation_id_or_member_epoch=1, member_id=member.member_id) == 0
        waiting = asyncio.create_task(made.ask(join(group_instance_id="one"), 9, first))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        made.cluster.controller.elect_leader("__consumer_offsets", 0, second)
        assert (await waiting).error_code == Code.NOT_COORDINATOR
        assert await made.coordinator() == second
        assert await made.committed(second) == 7
        beat = HeartbeatRequest(group_id="group", generation_id=1, member_id=member.member_id)
        assert (await made.ask(beat, 4, first)).error_code == Code.NOT_COORDINATOR
        assert (await made.ask(beat, 4, second)).error_code == Code.NONE
        assert (await made.ask(join(), 9, first)).error_code == Code.NOT_COORDINATOR
        for version, request in (
            (5, SyncGroupRequest(group_id="group", protocol_type="consumer", protocol_name="range")),
            (5, LeaveGroupRequest(group_id="group")),
            (7, OffsetFetchRequest(group_id="group")),
        ):
            response = await made.ask(request, version, first)  # type: ignore[type-var]  # requests of several kinds
            assert response.error_code == Code.NOT_COORDINATOR  # type: ignore[attr-defined]  # all of them have one


async def test_a_commit_that_cannot_be_replicated_is_refused() -> None:
    properties = {"min.insync.replicas": 2, "offsets.topic.replication.factor": 2}
    async with world(2, **properties) as made:
        coordinator = await made.coordinator()
        assert await made.commit(1, 8, coordinator) == Code.NONE
        await made.cluster.kill(3 - coordinator)
        assert await made.commit(2, 8, await made.coordinator()) == Code.COORDINATOR_NOT_AVAILABLE
        assert await made.committed(await made.coordinator()) == 1


async def test_waiting_requests_are_answered_when_the_broker_stops() -> None:
    async with world(**{"group.initial.rebalance.delay.ms": 30_000}) as made:
        await made.coordinator()
        required = await made.ask(join(), 9)
        waiting = asyncio.create_task(made.ask(join(required.member_id), 9))
        await asyncio.sleep(0.05)
        groups = made.cluster.brokers[1].groups
        await groups.close()
        assert (await waiting).error_code == Code.COORDINATOR_NOT_AVAILABLE
        assert (await made.ask(join(), 9)).error_code == Code.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(CoordinatorNotAvailableError):
            groups.list_groups()
        groups.shards.leadership(0, True)
        assert groups.group("group") is None


async def test_a_client_that_disconnects_while_it_waits_stays_a_member() -> None:
    async with world(**{"group.initial.rebalance.delay.ms": 200}) as made:
        await made.coordinator()
        required = await made.ask(join(), 9)
        waiting = asyncio.create_task(made.ask(join(required.member_id), 9))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        group = made.cluster.brokers[1].groups.group("group")
        assert group is not None
        await until(lambda: group.state is GroupState.COMPLETING_REBALANCE)
        assert list(group.members) == [required.member_id]


async def test_requests_are_refused_while_groups_are_loaded() -> None:
    async with world() as made:
        await made.coordinator()
        member = await member_of(made)
        groups = made.cluster.brokers[1].groups
        groups.shards.leadership(0, False)
        groups.shards.leadership(0, True)
        # The loading task has not run yet.
        beat = HeartbeatRequest(group_id="group", generation_id=9, member_id=member.member_id)
        assert groups.heartbeat(beat) == Code.NONE
        assert (await groups.join(join(), version=9)).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        assert groups.describe("group", version=6).error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
        groups.shards.leadership(0, False)
        groups.shards.leadership(0, True)
        await made.coordinator()
        assert groups.heartbeat(beat) == Code.ILLEGAL_GENERATION


async def test_a_log_that_cannot_be_loaded_is_not_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as made:
        await made.coordinator()
        broker = made.cluster.brokers[1]
        assert await made.commit(1) == Code.NONE

        def broken(*args: object, **options: object) -> None:
            raise OSError("the disk is gone")

        monkeypatch.setattr(broker.replicas.partition("__consumer_offsets", 0).log, "read", broken)
        broker.groups.shards.leadership(0, False)
        broker.groups.shards.leadership(0, True)
        await until(lambda: "loading failed" in caplog.text)
        assert await made.commit(2) == Code.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (join(group_id=""), Code.INVALID_GROUP_ID),
        (join(group_id=" "), Code.INVALID_GROUP_ID),
        (join(session_timeout_ms=5999), Code.INVALID_SESSION_TIMEOUT),
        (join(session_timeout_ms=1_800_001), Code.INVALID_SESSION_TIMEOUT),
        (join("nobody"), Code.UNKNOWN_MEMBER_ID),
        (join(protocols=[]), Code.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
async def test_invalid_joins_are_refused(request_: JoinGroupRequest, code: int) -> None:
    async with world() as made:
        await made.coordinator()
        assert (await made.ask(request_, 9)).error_code == code


async def test_offsets_by_topic_id() -> None:
    async with world() as made:
        await made.coordinator()
        topic_id = made.cluster.image.topics["orders"].topic_id
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=5, committed_metadata=None)
            for index in (0, 7)
        ]
        commit = OffsetCommitRequest(
            group_id="group",
            topics=[
                OffsetCommitRequestTopic(topic_id=topic_id, partitions=partitions),
                OffsetCommitRequestTopic(topic_id=b"\x01" * 16, partitions=partitions[:1]),
            ],
        )
        answered = await made.ask(commit, 10)
        codes = {topic.topic_id: [p.error_code for p in topic.partitions] for topic in answered.topics}
        assert codes == {topic_id: [3, 0], b"\x01" * 16: [100]}

        async def fetched(known: bytes) -> list[tuple[bytes, list[tuple[int, int]]]]:
            wanted = [
                OffsetFetchRequestTopics(topic_id=topic, partition_indexes=[0]) for topic in (b"\x01" * 16, known)
            ]
            groups = [
                OffsetFetchRequestGroup(group_id="group", topics=wanted),
                OffsetFetchRequestGroup(group_id="group", topics=None),
            ]
            response = await made.ask(OffsetFetchRequest(groups=groups, require_stable=True), 10)
            return [
                (topic.topic_id, [(p.committed_offset, p.error_code) for p in topic.partitions])
                for group in response.groups
                for topic in group.topics
            ]

        known = (topic_id, [(5, 0)])
        assert await fetched(topic_id) == [known, (b"\x01" * 16, [(-1, 100)]), known]
        made.cluster.controller.delete_topic("orders")
        again = made.cluster.create_topic("orders", 1, 1).topic_id
        # An offset for the previous topic, by its id, does not apply to this one.
        assert (await fetched(again))[0] == (again, [(-1, 0)])


async def test_offsets_of_deleted_partitions_are_deleted() -> None:
    async with world() as made:
        await made.coordinator()
        assert await made.commit(7) == Code.NONE
        made.cluster.brokers[1].groups.partitions_deleted([("orders", 0)])
        assert await made.committed(require_stable=True) == -1


async def test_old_offsets_are_cleaned_up() -> None:
    async with world(**{"offsets.retention.check.interval.ms": 10, "offsets.retention.minutes": 1}) as made:
        await made.coordinator()
        assert await made.commit(7, 4, retention_time_ms=1) == Code.NONE
        await until(lambda: made.cluster.brokers[1].groups.group("group") is None)
        assert await made.committed() == -1


async def test_invalid_commits_are_refused() -> None:
    async with world() as made:
        await made.coordinator()
        assert await made.commit(1, 8, generation_id_or_member_epoch=1) == Code.ILLEGAL_GENERATION
        assert await made.commit(1, 9, generation_id_or_member_epoch=1) == Code.GROUP_ID_NOT_FOUND
        member = await member_of(made)
        assert await made.commit(1) == Code.UNKNOWN_MEMBER_ID
        assert await made.commit(1, generation_id_or_member_epoch=2, member_id=member.member_id) == 22
        assert await made.commit(1, group_id="") == Code.NONE
        long = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata="\U0001f600" * 2049
        )
        topic = OffsetCommitRequestTopic(name="orders", partitions=[long])
        assert await made.commit(1, group_id="other", topics=[topic]) == Code.OFFSET_METADATA_TOO_LARGE
        nowhere = OffsetCommitRequestTopic(name="nowhere", partitions=[OffsetCommitRequestPartition()])
        assert await made.commit(1, topics=[nowhere]) == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_groups_are_described_and_listed() -> None:
    async with world() as made:
        await made.coordinator()
        member = await member_of(made)
        assert await made.commit(1, group_id="simple") == Code.NONE
        broker = made.cluster.brokers[1]

        async def describe(version: int, *group_ids: str) -> list[tuple[str, int, int]]:
            context = RequestContext(broker, None, RequestHeader(), version)  # type: ignore[arg-type]  # not read
            request = DescribeGroupsRequest(groups=list(group_ids), include_authorized_operations=version >= 3)
            response = await describe_groups.handle(context, request)
            return [(group.group_state, group.error_code, group.authorized_operations) for group in response.groups]

        none = -(2**31)
        assert await describe(6, "group", "simple", "none") == [
            ("Stable", 0, 3400),
            ("Empty", 0, 3400),
            ("Dead", 69, none),
        ]
        assert await describe(2, "group", "none") == [("Stable", 0, none), ("Dead", 0, none)]
        (described,) = [broker.groups.describe("group", version=6).members[0]]
        assert (described.member_id, described.client_id) == (member.member_id, "client")
        assert described.member_assignment == b"all"

        async def listed(**filters: list[str]) -> dict[str, str]:
            context = RequestContext(broker, None, RequestHeader(), 5)  # type: ignore[arg-type]  # not read
            response = await list_groups.handle(context, ListGroupsRequest(**filters))
            assert {group.group_type for group in response.groups} <= {"classic"}
            return {group.group_id: group.group_state for group in response.groups}

        both = {"group": "Stable", "simple": "Empty"}
        assert await listed() == await listed(types_filter=["Classic"]) == both
        assert await listed(states_filter=["stable "]) == {"group": "Stable"}
        assert await listed(types_filter=["consumer"]) == {}


async def deleted(made: World, *group_ids: str, node_id: int = 1) -> list[int]:
    response = await made.ask(DeleteGroupsRequest(groups_names=list(group_ids)), 3, node_id)
    assert [result.group_id for result in response.results] == list(group_ids)
    return [result.error_code for result in response.results]


async def offset_deleted(made: World, group_id: str, *, topic: str = "orders", node_id: int = 1) -> tuple[int, int]:
    """Return the code of the response, and that of the topic's first partition, -1 if there is none."""
    partition = OffsetDeleteRequestPartition(partition_index=0)
    topics = [OffsetDeleteRequestTopic(name=topic, partitions=[partition])]
    response = await made.ask(OffsetDeleteRequest(group_id=group_id, topics=topics), 0, node_id)
    return response.error_code, response.topics[0].partitions[0].error_code if response.topics else -1


async def test_groups_are_deleted_with_their_offsets_and_stay_so() -> None:
    async with world() as made:
        await made.coordinator()
        member = await member_of(made)
        assert await made.commit(1, member_id=member.member_id, generation_id_or_member_epoch=member.generation_id) == 0
        assert await made.commit(2, group_id="simple") == await made.commit(3, group_id="kept") == Code.NONE
        assert await deleted(made, "group", "none", "") == [
            Code.NON_EMPTY_GROUP,
            Code.GROUP_ID_NOT_FOUND,
            Code.GROUP_ID_NOT_FOUND,
        ]
        assert await made.committed() == 1
        await made.ask(LeaveGroupRequest(group_id="group", members=[MemberIdentity(member_id=member.member_id)]), 5)
        assert await deleted(made, "group", "simple", "simple") == [Code.NONE, Code.NONE, Code.GROUP_ID_NOT_FOUND]
        for restarted in (False, True):
            if restarted:
                await made.cluster.kill(1)
                await made.cluster.restart(1)
                await made.coordinator()
            groups = made.cluster.brokers[1].groups
            assert [group.group_id for group in groups.list_groups()] == ["kept"]
            assert [await made.committed(group_id=name) for name in ("group", "simple", "kept")] == [-1, -1, 3]
        await member_of(made)


async def test_offsets_are_deleted_of_topics_that_no_member_reads() -> None:
    async with world() as made:
        await made.coordinator()
        made.cluster.create_topic("others", 1, 1)
        member = await member_of(made)
        assert await made.commit(1, member_id=member.member_id, generation_id_or_member_epoch=member.generation_id) == 0
        assert await offset_deleted(made, "group") == (Code.NONE, Code.GROUP_SUBSCRIBED_TO_TOPIC)
        assert await offset_deleted(made, "group", topic="others") == (Code.NONE, Code.NONE)
        assert await offset_deleted(made, "group", topic="nowhere") == (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION)
        assert await made.committed() == 1
        assert await made.commit(2, group_id="simple") == Code.NONE
        assert await offset_deleted(made, "simple") == (Code.NONE, Code.NONE)
        assert await made.committed(group_id="simple") == -1
        assert await offset_deleted(made, "none") == (Code.GROUP_ID_NOT_FOUND, -1)
        assert await offset_deleted(made, "") == (Code.INVALID_GROUP_ID, -1)


async def test_offsets_of_commits_in_progress_are_deleted_too() -> None:
    """Only replicated records count as a group's state, so writes in progress have to end first."""
    async with world() as made:
        await made.coordinator()
        groups = made.cluster.brokers[1].groups
        offset = CommittedOffset("orders", bytes(16), 0, 7, -1, None)
        committing = asyncio.ensure_future(groups.commit(Committer("simple"), [offset], version=9))
        deleting = asyncio.ensure_future(groups.delete("simple"))
        assert await deleting == Code.NONE
        assert await committing == {("orders", 0): Code.NONE}
        assert await made.committed(group_id="simple") == -1


async def test_a_node_that_is_not_the_coordinator_deletes_nothing() -> None:
    async with world(2) as made:
        node = await made.coordinator()
        other = 3 - node
        assert await made.commit(1, node_id=node) == Code.NONE
        assert await deleted(made, "group", node_id=other) == [Code.NOT_COORDINATOR]
        assert await offset_deleted(made, "group", node_id=other) == (Code.NOT_COORDINATOR, -1)
        assert await made.committed(node) == 1


SERVED: list[tuple[ApiKey, Request[Response]]] = [
    (ApiKey.FIND_COORDINATOR, FindCoordinatorRequest()),
    (ApiKey.JOIN_GROUP, join("nobody")),
    (ApiKey.SYNC_GROUP, SyncGroupRequest(group_id="group", member_id="nobody")),
    (ApiKey.HEARTBEAT, HeartbeatRequest(group_id="group", member_id="nobody")),
    (ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id="group")),
    (ApiKey.OFFSET_COMMIT, OffsetCommitRequest(group_id="group")),
    (ApiKey.OFFSET_FETCH, OffsetFetchRequest()),
    (ApiKey.TXN_OFFSET_COMMIT, TxnOffsetCommitRequest(transactional_id="id", group_id="group")),
    (ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["group"])),
    (ApiKey.OFFSET_DELETE, OffsetDeleteRequest(group_id="group")),
]


@pytest.mark.parametrize(("api_key", "request_"), SERVED, ids=[key.name for key, _ in SERVED])
async def test_every_version_is_answered(api_key: ApiKey, request_: Request[Response]) -> None:
    async with world() as made:
        await made.coordinator()
        for version in made.cluster.brokers[1].requests.handlers[api_key].versions:
            assert version in APIS[api_key].versions
            response = await made.ask(request_, version)
            assert isinstance(response, request_.response_class())


async def test_errors_of_one_group_are_in_the_field_of_the_version() -> None:
    async with world(2) as made:
        other = 3 - await made.coordinator()
        topics = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])]
        first = await made.ask(OffsetFetchRequest(group_id="group", topics=topics), 1, other)
        assert [p.error_code for p in first.topics[0].partitions] == [Code.NOT_COORDINATOR] * 2
        second = await made.ask(OffsetFetchRequest(group_id="group", topics=topics), 2, other)
        assert (second.error_code, second.topics) == (Code.NOT_COORDINATOR, [])
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="group", topics=None)])
        later = await made.ask(asked, 8, other)
        assert (later.groups[0].error_code, later.groups[0].topics) == (Code.NOT_COORDINATOR, [])


async def test_members_leave_in_every_version() -> None:
    async with world() as made:
        await made.coordinator()
        unknown = LeaveGroupRequest(group_id="none", members=[MemberIdentity(member_id="a")])
        assert [m.error_code for m in (await made.ask(unknown, 3)).members] == [Code.UNKNOWN_MEMBER_ID]
        member = await member_of(made)
        one = LeaveGroupRequest(group_id="group", member_id=member.member_id)
        assert (await made.ask(one, 2)).error_code == Code.NONE
        assert (await made.ask(one, 2)).error_code == Code.UNKNOWN_MEMBER_ID
        group = made.cluster.brokers[1].groups.group("group")
        assert group is not None
        assert group.state is GroupState.EMPTY


async def test_a_sync_must_state_its_protocol() -> None:
    async with world() as made:
        await made.coordinator()
        request = SyncGroupRequest(group_id="none", protocol_type="consumer", protocol_name=None)
        assert (await made.ask(request, 5)).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert (await made.ask(request, 4)).error_code == Code.UNKNOWN_MEMBER_ID
