"""Faults of consumer groups: rebalances, ended sessions, fenced members, refused requests."""

from __future__ import annotations

import pytest

from aioproducer.admin import Admin
from aioproducer.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aioproducer.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
)
from aioproducer.record import TopicPartition
from aioproducer.testing import EmbeddedCluster, EmbeddedClusterThread
from tests.joining import TIMEOUT, join_group

ORDERS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


def administer(cluster: EmbeddedCluster) -> Admin:
    return Admin(bootstrap_servers=cluster.bootstrap_servers, transport=cluster.transport, retry_backoff_ms=5)


async def begin(cluster: EmbeddedCluster, admin: Admin, *, group_instance_id: str | None = None) -> str:
    """A group ``billing`` with one member, whose id is returned, and an offset."""
    cluster.create_topic("orders", 2)
    await admin.alter_group_offsets("billing", {("orders", 0): 3})
    return await join_group(admin, "billing", ORDERS, group_instance_id=group_instance_id)


async def heartbeat(
    cluster: EmbeddedCluster, admin: Admin, member_id: str, *, generation_id: int = 1, instance_id: str | None = None
) -> int:
    """Return the error code of a member's heartbeat."""
    request = HeartbeatRequest(
        group_id="billing", generation_id=generation_id, member_id=member_id, group_instance_id=instance_id
    )
    node = cluster.coordinator("billing")
    return (await admin.client.request(request, node_id=node, timeout=TIMEOUT)).error_code


async def test_members_and_committed_offsets_are_shown() -> None:
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        with pytest.raises(CoordinatorNotAvailableError, match="no client has used a group yet"):
            cluster.members("billing")
        member_id = await begin(cluster, admin, group_instance_id="first")
        assert cluster.members("billing") == {member_id: "first"}
        assert cluster.committed("billing") == {("orders", 0): 3}
        assert cluster.committed("none") == {}
        with pytest.raises(GroupIdNotFoundError):
            cluster.members("none")


async def test_a_rebalance_begins_at_once() -> None:
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        member_id = await begin(cluster, admin)
        assert await heartbeat(cluster, admin, member_id) == 0
        cluster.rebalance("billing")
        cluster.rebalance("billing")
        assert await heartbeat(cluster, admin, member_id) == RebalanceInProgressError.code
        (described,) = await admin.describe_groups(["billing"])
        assert described.state == "PreparingRebalance"
        with pytest.raises(GroupIdNotFoundError):
            cluster.rebalance("none")


async def test_a_group_without_members_does_not_rebalance() -> None:
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("orders", 2)
        await admin.alter_group_offsets("billing", {("orders", 0): 3})
        cluster.rebalance("billing")
        assert [each.state for each in await admin.list_groups()] == ["Empty"]


@pytest.mark.parametrize("by_name", [True, False])
async def test_a_member_whose_session_ends_is_unknown(by_name: bool) -> None:
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        member_id = await begin(cluster, admin)
        cluster.expire_session("billing", *([member_id] if by_name else []))
        assert await heartbeat(cluster, admin, member_id) == UnknownMemberIdError.code
        assert cluster.members("billing") == {}
        with pytest.raises(UnknownMemberIdError, match=f"group 'billing' has no member '{member_id}'"):
            cluster.expire_session("billing", member_id)
        assert await join_group(admin, "billing", ORDERS) != member_id


async def test_a_fenced_member_is_replaced_until_the_session_ends() -> None:
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        member_id = await begin(cluster, admin, group_instance_id="first")
        cluster.fence_member("billing", "first")
        fenced = FencedInstanceIdError.code
        assert await heartbeat(cluster, admin, member_id, instance_id="first") == fenced
        assert await heartbeat(cluster, admin, member_id) == UnknownMemberIdError.code
        ((other_id, instance_id),) = cluster.members("billing").items()
        assert (other_id != member_id, instance_id) == (True, "first")
        # The new owner is in the log, so that another coordinator knows it.
        (described,) = await admin.describe_groups(["billing"])
        assert [(each.member_id, each.assignment) for each in described.members] == [(other_id, set(ORDERS))]
        cluster.drop_coordinator("billing")
        await admin.describe_groups(["billing"])
        assert await heartbeat(cluster, admin, member_id, instance_id="first") == fenced
        assert await heartbeat(cluster, admin, other_id, instance_id="first") == 0
        with pytest.raises(UnknownMemberIdError):
            cluster.fence_member("billing", "second")
        cluster.expire_session("billing")
        assert cluster.members("billing") == {}


def commit_of(group_id: str, member_id: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_metadata="")
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=1,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name="orders", partitions=[partition])],
    )


async def test_a_commit_is_refused_with_the_chosen_error_for_one_group_only() -> None:
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        member_id = await begin(cluster, admin)
        cluster.fail("OffsetCommit", "ILLEGAL_GENERATION", group="billing")
        assert cluster.pending_faults() == [
            "OffsetCommit of group billing: ILLEGAL_GENERATION, 1 more times, met 0 times"
        ]
        await admin.alter_group_offsets("audit", {("orders", 0): 1})
        assert len(cluster.pending_faults()) == 1
        codes = []
        for _ in range(2):
            response = await admin.client.request(
                commit_of("billing", member_id), node_id=cluster.coordinator("billing"), highest=9, timeout=TIMEOUT
            )
            codes.append(response.topics[0].partitions[0].error_code)
            if len(codes) == 1:
                assert cluster.committed("billing") == {("orders", 0): 3}
        assert codes == [IllegalGenerationError.code, 0]
        assert cluster.committed("billing") == {("orders", 0): 9}
        assert cluster.committed("audit") == {("orders", 0): 1}


@pytest.mark.parametrize(
    ("api", "request_of"),
    [
        ("DescribeGroups", lambda group: DescribeGroupsRequest(groups=["x", group])),
        ("DeleteGroups", lambda group: DeleteGroupsRequest(groups_names=["x", group])),
        (
            "OffsetFetch",
            lambda group: OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]),
        ),
        ("FindCoordinator", lambda group: FindCoordinatorRequest(key_type=0, coordinator_keys=["x", group])),
        ("Heartbeat", lambda group: HeartbeatRequest(group_id=group)),
    ],
)
async def test_each_request_that_names_a_group_can_fail_for_it(api, request_of) -> None:
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        await admin.list_groups()
        cluster.fail(api, "NOT_COORDINATOR", group="billing")
        await admin.client.request(request_of("other"), node_id=1, highest=9, timeout=TIMEOUT)
        assert len(cluster.pending_faults()) == 1
        await admin.client.request(request_of("billing"), node_id=1, highest=9, timeout=TIMEOUT)
        assert cluster.pending_faults() == []


def test_a_cluster_in_a_thread_has_the_same_calls() -> None:
    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("orders")
        assert cluster.coordinator("billing") == -1
        with pytest.raises(CoordinatorNotAvailableError):
            cluster.rebalance("billing")
        with pytest.raises(ValueError, match="Produce names no group: leave group out"):
            cluster.fail("Produce", "NOT_COORDINATOR", group="billing")
