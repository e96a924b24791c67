"""TxnOffsetCommit, the markers of its transactions, and OffsetFetch during them, as clients see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioproducer.broker.broker import Broker
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.handlers.error_responses import error_response
from aioproducer.errors import InvalidTxnStateError
from aioproducer.protocol.messages import (
    DeleteGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from aioproducer.protocol.messages.group_offsets import (
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from aioproducer.protocol.messages.groups import SyncGroupRequestAssignment
from aioproducer.protocol.messages.transactions import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic
from tests.broker.verifier import Verifier

from .world import World, join, member_of, until, world

NEWEST = 6
OFFSETS_PARTITION = ("__consumer_offsets", 0)


@pytest.fixture(autouse=True)
def verifier(monkeypatch: pytest.MonkeyPatch) -> Verifier:
    made = Verifier()
    monkeypatch.setattr(Broker, "transactions", made, raising=False)
    return made


def request(
    made: World, offset: int = 7, index: int = 0, version: int = NEWEST, **changes: object
) -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=index, committed_offset=offset, committed_leader_epoch=3, committed_metadata="m"
    )
    topic_id = made.cluster.image.topics["orders"].topic_id
    fields: dict[str, object] = {
        "transactional_id": "id",
        "group_id": "group",
        "producer_id": 70,
        "producer_epoch": 0,
        "topics": [TxnOffsetCommitRequestTopic(name="orders", topic_id=topic_id, partitions=[partition])],
    }
    return TxnOffsetCommitRequest(**{**fields, **changes})  # type: ignore[arg-type]  # the fields by name


async def commit(made: World, offset: int = 7, version: int = NEWEST, node_id: int = 1, **changes: object) -> int:
    response = await made.ask(request(made, offset, version=version, **changes), version, node_id)  # type: ignore[arg-type]
    [topic] = response.topics
    [partition] = topic.partitions
    return partition.error_code


async def end(
    made: World,
    node_id: int = 1,
    *,
    committed: bool,
    producer_id: int = 70,
    epoch: int = 0,
    transaction_version: int = 1,
) -> int:
    groups = made.cluster.brokers[node_id].groups
    return await groups.complete_transaction(
        0, producer_id, epoch, committed=committed, coordinator_epoch=1, transaction_version=transaction_version
    )


async def fetched(made: World, node_id: int = 1, *, require_stable: bool = True) -> dict[int, tuple[int, int]]:
    """Code and offset of each partition, by id."""
    topic_id = made.cluster.image.topics["orders"].topic_id
    wanted = [OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1])]
    asked = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id="group", topics=wanted)], require_stable=require_stable
    )
    response = await made.ask(asked, 10, node_id)
    [topic] = response.groups[0].topics
    return {part.partition_index: (part.error_code, part.committed_offset) for part in topic.partitions}


@pytest.mark.parametrize("version", range(7))
async def test_offsets_are_committed_in_every_version(version: int, verifier: Verifier) -> None:
    async with world() as made:
        await made.coordinator()
        assert await commit(made, 7, version) == Code.NONE
        assert verifier.asked == [("id", 70, 0, (OFFSETS_PARTITION,), version < 5)]
        assert await made.committed() == -1
        assert await end(made, committed=True) == Code.NONE
        assert await made.committed() == 7
        groups = made.cluster.brokers[1].groups
        [kept] = (await groups.offsets("group")).kept["orders"].values()
        assert (kept.value.metadata, kept.value.leader_epoch) == ("m", 3 if version >= 2 else -1)
        # As in Kafka, even if the request identifies the topic by name.
        assert kept.value.topic_id == made.cluster.image.topics["orders"].topic_id


async def test_markers_of_the_second_transaction_version_have_the_next_epoch() -> None:
    async with world() as made:
        await made.coordinator()
        for epoch, committed in enumerate((True, False, True)):
            assert await commit(made, epoch + 1, producer_epoch=epoch) == Code.NONE
            assert await end(made, committed=committed, epoch=epoch + 1, transaction_version=2) == Code.NONE
            assert (await fetched(made))[0] == (0, epoch + committed)
        assert await commit(made, producer_epoch=2) == Code.INVALID_PRODUCER_EPOCH


async def test_a_pending_offset_is_unstable_if_stable_ones_are_required() -> None:
    async with world() as made:
        await made.coordinator()
        assert await made.commit(1) == Code.NONE
        assert await fetched(made) == {0: (0, 1), 1: (0, -1)}
        assert await commit(made, 7) == Code.NONE
        assert await commit(made, 8, index=1) == Code.NONE
        unstable = (Code.UNSTABLE_OFFSET_COMMIT, -1)
        assert await fetched(made) == {0: unstable, 1: unstable}
        assert await fetched(made, require_stable=False) == {0: (0, 1), 1: (0, -1)}
        everything = await made.ask(OffsetFetchRequest(group_id="group", topics=None, require_stable=True), 7)
        # As in Kafka: a partition with only a pending offset is not listed.
        [topic] = everything.topics
        assert [(part.partition_index, part.error_code) for part in topic.partitions] == [(0, 88)]
        assert await end(made, committed=False) == Code.NONE
        assert await fetched(made) == {0: (0, 1), 1: (0, -1)}


async def test_pending_offsets_survive_the_death_of_the_only_node() -> None:
    async with world() as made:
        await made.coordinator()
        assert await commit(made, 7) == Code.NONE
        await made.cluster.kill(1)
        await made.cluster.restart(1)
        await made.coordinator()
        assert (await fetched(made))[0] == (Code.UNSTABLE_OFFSET_COMMIT, -1)
        assert await end(made, committed=True) == Code.NONE
        assert (await fetched(made))[0] == (0, 7)


async def test_pending_offsets_move_with_the_leadership() -> None:
    async with world(2) as made:
        first = await made.coordinator()
        second = 3 - first
        assert await commit(made, 7, node_id=first) == Code.NONE
        made.cluster.controller.elect_leader("__consumer_offsets", 0, second)
        await until(lambda: made.cluster.brokers[second].groups.group("group") is not None)
        assert await commit(made, 8, node_id=first) == Code.NOT_COORDINATOR
        assert await end(made, first, committed=True) == Code.NOT_LEADER_OR_FOLLOWER
        assert (await fetched(made, second))[0] == (Code.UNSTABLE_OFFSET_COMMIT, -1)
        assert await end(made, second, committed=True) == Code.NONE
        assert (await fetched(made, second))[0] == (0, 7)


async def test_a_member_of_another_generation_is_fenced() -> None:
    async with world() as made:
        await made.coordinator()
        assert await commit(made, version=5, generation_id_or_member_epoch=1) == Code.ILLEGAL_GENERATION
        assert await commit(made, version=6, generation_id_or_member_epoch=1) == Code.GROUP_ID_NOT_FOUND
        member = await member_of(made)
        current: Any = {"generation_id_or_member_epoch": member.generation_id, "member_id": member.member_id}
        assert await commit(made, **current) == Code.NONE
        assert await commit(made, **{**current, "generation_id_or_member_epoch": 9}) == Code.ILLEGAL_GENERATION
        assert await commit(made, **{**current, "member_id": "nobody"}) == Code.UNKNOWN_MEMBER_ID
        assert await commit(made, **current, group_instance_id="one") == Code.UNKNOWN_MEMBER_ID
        # Before KIP-447 a request had no member, and other members do not matter then.
        for version in (2, 5):
            assert await commit(made, version=version) == Code.NONE


async def test_a_static_member_that_was_replaced_is_fenced() -> None:
    async with world() as made:
        await made.coordinator()
        first = await made.ask(join(group_instance_id="one"), 9)
        assignment = SyncGroupRequestAssignment(member_id=first.member_id, assignment=b"")
        await made.ask(
            SyncGroupRequest(
                group_id="group",
                generation_id=first.generation_id,
                member_id=first.member_id,
                group_instance_id="one",
                protocol_type="consumer",
                protocol_name="range",
                assignments=[assignment],
            ),
            5,
        )
        second = await made.ask(join(group_instance_id="one"), 9)
        assert second.member_id != first.member_id
        fields: Any = {"generation_id_or_member_epoch": second.generation_id, "group_instance_id": "one"}
        assert await commit(made, **fields, member_id=first.member_id) == Code.FENCED_INSTANCE_ID
        assert await commit(made, **fields, member_id=second.member_id) == Code.NONE


async def test_a_group_that_completes_a_rebalance_accepts_commits_of_its_members() -> None:
    async with world() as made:
        await made.coordinator()
        required = await made.ask(join(), 9)
        joined = await made.ask(join(required.member_id), 9)
        assert joined.error_code == Code.NONE
        assert (
            await commit(made, generation_id_or_member_epoch=joined.generation_id, member_id=joined.member_id)
            == Code.NONE
        )


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [(90, 5, 47), (120, 3, 48), (120, 4, 120), (13, 2, 14), (13, 1, 15), (49, 6, 49), (51, 6, 51)],
)
async def test_an_offset_of_an_unverified_transaction_is_not_written(
    code: int, version: int, expected: int, verifier: Verifier
) -> None:
    async with world() as made:
        await made.coordinator()
        verifier.code = code
        assert await commit(made, version=version) == expected
        verifier.code = 0
        assert (await fetched(made))[0] == (0, -1)


async def test_leadership_that_moves_during_the_verification_refuses_the_commit(verifier: Verifier) -> None:
    async with world(2) as made:
        first = await made.coordinator()
        verifier.meanwhile = lambda: made.cluster.controller.elect_leader("__consumer_offsets", 0, 3 - first)
        assert await commit(made, node_id=first) == Code.NOT_COORDINATOR


async def test_commits_are_refused_while_groups_are_loaded() -> None:
    async with world() as made:
        await made.coordinator()
        groups = made.cluster.brokers[1].groups
        for version, code in ((1, Code.COORDINATOR_NOT_AVAILABLE), (2, Code.COORDINATOR_LOAD_IN_PROGRESS)):
            answer = asyncio.ensure_future(commit(made, version=version))
            while not answer.done():
                groups.shards.leadership(0, False)
                groups.shards.leadership(0, True)
                assert await end(made, committed=True) == Code.NOT_LEADER_OR_FOLLOWER
                await asyncio.sleep(0)
            assert await answer == code
        await made.coordinator()


async def test_invalid_commits_are_refused(verifier: Verifier) -> None:
    async with world() as made:
        await made.coordinator()
        assert await commit(made, group_id="") == Code.INVALID_GROUP_ID
        assert await commit(made, index=9) == Code.UNKNOWN_TOPIC_OR_PARTITION
        partition = TxnOffsetCommitRequestPartition(committed_metadata=None)
        nowhere = TxnOffsetCommitRequestTopic(name="nowhere", topic_id=b"\1" * 16, partitions=[partition])
        assert await commit(made, version=5, topics=[nowhere]) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(made, version=6, topics=[nowhere]) == Code.UNKNOWN_TOPIC_ID
        assert verifier.asked == []
        long = TxnOffsetCommitRequestPartition(committed_metadata="x" * 4097)
        orders = TxnOffsetCommitRequestTopic(name="orders", partitions=[long])
        assert await commit(made, version=5, topics=[orders]) == Code.OFFSET_METADATA_TOO_LARGE
        assert (await fetched(made))[0] == (0, -1)
        groups = made.cluster.brokers[1].groups
        await groups.close()
        assert await commit(made) == Code.COORDINATOR_NOT_AVAILABLE
        assert await end(made, committed=True) == Code.NOT_LEADER_OR_FOLLOWER


async def test_pending_offsets_are_deleted_with_their_group() -> None:
    async with world() as made:
        await made.coordinator()
        assert await commit(made) == Code.NONE
        deleted = await made.ask(DeleteGroupsRequest(groups_names=["group"]), 3)
        assert deleted.results[0].error_code == Code.NONE
        assert made.cluster.brokers[1].groups.group("group") is None
        assert await end(made, committed=True) == Code.NONE
        assert (await fetched(made))[0] == (0, -1)


async def test_pending_offsets_are_deleted_by_offset_delete() -> None:
    async with world() as made:
        await made.coordinator()
        assert await commit(made) == await commit(made, index=1) == Code.NONE
        topic = OffsetDeleteRequestTopic(name="orders", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        deleted = await made.ask(OffsetDeleteRequest(group_id="group", topics=[topic]), 0)
        assert deleted.error_code == Code.NONE
        assert await fetched(made) == {0: (0, -1), 1: (Code.UNSTABLE_OFFSET_COMMIT, -1)}
        assert await end(made, committed=True) == Code.NONE
        assert await fetched(made) == {0: (0, -1), 1: (0, 7)}


async def test_a_marker_that_is_not_replicated_in_time_can_be_sent_again() -> None:
    properties = {"offsets.topic.replication.factor": 2, "offsets.commit.timeout.ms": 50}
    async with world(2, **properties) as made:
        node = await made.coordinator()
        assert await commit(made, node_id=node) == Code.NONE
        partition = made.cluster.brokers[node].replicas.partitions[OFFSETS_PARTITION]
        assert partition.is_leader
        replicated, partition.replicated = partition.replicated, lambda end_offset: False  # type: ignore[method-assign]
        assert await end(made, node, committed=True) == Code.REQUEST_TIMED_OUT
        partition.replicated = replicated  # type: ignore[method-assign]
        assert await end(made, node, committed=True) == Code.NONE
        assert (await fetched(made, node))[0] == (0, 7)


async def test_an_error_of_the_whole_request_is_at_each_partition() -> None:
    async with world() as made:
        response = error_response(request(made), NEWEST, InvalidTxnStateError())
        assert isinstance(response, TxnOffsetCommitResponse)
        assert [part.error_code for topic in response.topics for part in topic.partitions] == [48]
        made.cluster.faults.fail("TxnOffsetCommit", InvalidTxnStateError, topic="orders", partition=0)
        assert await commit(made) == Code.INVALID_TXN_STATE
