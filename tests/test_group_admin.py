"""Admin calls about consumer groups: messages, retries, partial failures, errors; scripted and embedded brokers."""

from __future__ import annotations

import pytest

from aioproducer.admin import Admin, GroupListing, NoSuchTopicError
from aioproducer.core.membership.subscription import Assignment, encode_assignment
from aioproducer.core.transactions.requests import CoordinatorType
from aioproducer.errors import (
    BrokerError,
    FencedInstanceIdError,
    GroupAuthorizationError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    NetworkError,
    NotCoordinatorError,
    PartialFailureError,
    ProtocolError,
    TopicAuthorizationError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
    UnsupportedVersionError,
)
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    group_offsets,
    groups,
)
from aioproducer.record import TopicPartition
from aioproducer.testing import EmbeddedCluster
from tests.joining import join_group
from tests.scripted_brokers import ScriptedBrokers, admin_of, in_turn

LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
UNKNOWN_MEMBER, UNAUTHORIZED_TOPIC, UNAUTHORIZED_GROUP = 25, 29, 30
NON_EMPTY, NOT_FOUND, FENCED, SUBSCRIBED, UNSTABLE = 68, 69, 82, 86, 88
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def client():
    return ScriptedBrokers(CoordinatorType.GROUP)


@pytest.fixture
def admin(client):
    return admin_of(client)


# Listing


def listed(group_id, state="Stable", group_type="classic"):
    return groups.ListedGroup(group_id=group_id, protocol_type="consumer", group_state=state, group_type=group_type)


async def test_every_broker_lists_its_groups_and_the_filters_go_to_each(admin, client):
    client.handlers[ListGroupsRequest] = lambda request, node_id: ListGroupsResponse(
        groups=[listed(f"g-{3 - node_id}", group_type="Classic")]
    )
    found = await admin.list_groups(states=["Stable"], types=["classic"])
    assert found == [
        GroupListing("g-1", "classic", "consumer", "Stable", 2),
        GroupListing("g-2", "classic", "consumer", "Stable", 1),
    ]
    assert sorted(node_id for _, node_id, _ in client.requests) == [1, 2]
    assert {(*request.states_filter, *request.types_filter) for request, _, _ in client.requests} == {
        ("Stable", "classic")
    }


async def test_old_brokers_list_neither_states_nor_types_and_take_no_filters(admin, client):
    client.highest[ListGroupsRequest] = 3
    client.handlers[ListGroupsRequest] = in_turn(ListGroupsResponse(groups=[listed("g-1", "", "")]))
    (found,) = await admin.list_groups()
    assert (found.state, found.group_type) == (None, None)
    for filters in ({"states": ["Empty"]}, {"types": ["consumer"]}):
        with pytest.raises(UnsupportedVersionError):
            await admin.list_groups(**filters)


async def test_a_loading_coordinator_lists_again_and_the_others_do_not(admin, client):
    loading = [ListGroupsResponse(error_code=LOADING)]
    client.handlers[ListGroupsRequest] = lambda request, node_id: (
        loading.pop() if node_id == 1 and loading else ListGroupsResponse(groups=[listed(f"g-{node_id}")])
    )
    assert [each.group_id for each in await admin.list_groups()] == ["g-1", "g-2"]
    assert sorted(node_id for _, node_id, _ in client.requests) == [1, 1, 2]


async def test_an_unknown_filter_is_a_value_error_without_any_request(admin, client):
    with pytest.raises(ValueError, match="groups have no state 'stable': use PreparingRebalance, "):
        await admin.list_groups(states=["stable"])
    with pytest.raises(ValueError, match="groups have no type 'Classic': use classic, consumer"):
        await admin.list_groups(types=["Classic"])
    with pytest.raises(TypeError, match=r"states must be an iterable of strings, not str: pass \['Stable'\]"):
        await admin.list_groups(states="Stable")
    assert client.requests == []


async def test_an_error_of_a_broker_is_named(admin, client):
    client.handlers[ListGroupsRequest] = in_turn(ListGroupsResponse(error_code=31))
    with pytest.raises(BrokerError, match=r"broker 1: .*CLUSTER_AUTHORIZATION_FAILED"):
        await admin.list_groups()


# Describing


def described(group_id, *members, code=0, state="Stable", protocol_type="consumer"):
    return groups.DescribedGroup(
        group_id=group_id,
        error_code=code,
        group_state=state,
        protocol_type=protocol_type,
        protocol_data="range",
        members=list(members),
    )


def member(member_id, data=b"", instance_id=None):
    return groups.DescribedGroupMember(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="c",
        client_host="/127.0.0.1",
        member_assignment=data,
    )


def describing(**by_id):
    """A handler that describes each group; ``g_1`` stands for the group ``g-1``."""
    known = {name.replace("_", "-"): group for name, group in by_id.items()}
    return lambda request, node_id: DescribeGroupsResponse(
        groups=[known.get(each, described(each)) for each in request.groups]
    )


async def test_groups_are_described_by_their_coordinators_in_the_order_asked_for(admin, client):
    data = encode_assignment(Assignment((A0, A1)))
    client.handlers[DescribeGroupsRequest] = describing(g_1=described("g-1", member("m2"), member("m1", data, "i")))
    found = await admin.describe_groups(["g-3", "g-2", "g-1"])
    assert [(each.group_id, each.coordinator) for each in found] == [("g-3", 2), ("g-2", 1), ("g-1", 2)]
    first, second = found[2].members
    assert (found[2].state, found[2].assignor) == ("Stable", "range")
    assert (first.member_id, first.group_instance_id, first.assignment) == ("m1", "i", {A0, A1})
    assert (second.member_id, second.assignment) == ("m2", frozenset())
    assert len(client.sent(FindCoordinatorRequest)) == 1
    assert sorted(request.groups for request, _, _ in client.sent(DescribeGroupsRequest)) == [["g-2"], ["g-3", "g-1"]]
    assert await admin.describe_groups([]) == []


async def test_assignments_of_other_protocol_types_are_not_decoded(admin, client):
    client.handlers[DescribeGroupsRequest] = describing(
        g_1=described("g-1", member("m", b"\xff"), protocol_type="connect")
    )
    (found,) = await admin.describe_groups(["g-1"])
    assert found.members[0].assignment is None


async def test_bytes_that_are_no_assignment_are_a_protocol_error(admin, client):
    client.handlers[DescribeGroupsRequest] = describing(g_1=described("g-1", member("m", b"\x00\x01\x00")))
    with pytest.raises(ProtocolError):
        await admin.describe_groups(["g-1"])


@pytest.mark.parametrize("code", [LOADING, NOT_AVAILABLE, NOT_COORDINATOR])
async def test_a_coordinator_that_moved_or_loads_is_found_again(admin, client, code):
    def describe(request, node_id):
        client.coordinators["g-1"] = 1
        return DescribeGroupsResponse(groups=[described("g-1", code=code if node_id == 2 else 0)])

    client.handlers[DescribeGroupsRequest] = describe
    (found,) = await admin.describe_groups(["g-1"])
    assert found.coordinator == 1
    assert len(client.sent(FindCoordinatorRequest)) == 2


async def test_a_lost_connection_renews_metadata_and_the_other_coordinator_is_not_asked_again(admin, client):
    lost = [NetworkError("lost")]
    answer = describing()
    client.handlers[DescribeGroupsRequest] = lambda request, node_id: (
        lost.pop() if node_id == 2 and lost else answer(request, node_id)
    )
    assert [each.group_id for each in await admin.describe_groups(["g-1", "g-2"])] == ["g-1", "g-2"]
    assert sorted(node_id for _, node_id, _ in client.sent(DescribeGroupsRequest)) == [1, 2, 2]
    assert client.renewals == 1


@pytest.mark.parametrize("group", [described("g-1", code=NOT_FOUND), described("g-1", state="Dead")])
async def test_a_group_that_does_not_exist_is_not_found_by_old_and_new_brokers(admin, client, group):
    client.handlers[DescribeGroupsRequest] = describing(g_1=group)
    with pytest.raises(
        GroupIdNotFoundError, match=r"group 'g-1': there is no classic group .*\[GROUP_ID_NOT_FOUND, 69"
    ):
        await admin.describe_groups(["g-1"])


async def test_a_call_that_succeeds_for_some_groups_reports_results_and_failures(admin, client):
    client.lookup_errors["g-3"] = UNAUTHORIZED_GROUP
    client.handlers[DescribeGroupsRequest] = describing(g_1=described("g-1", code=NOT_FOUND))
    with pytest.raises(PartialFailureError, match=r"^2 of 3 groups failed, the first with: group 'g-3'") as raised:
        await admin.describe_groups(["g-1", "g-2", "g-3"])
    assert raised.value.results["g-2"].group_id == "g-2"
    assert {key: type(error) for key, error in raised.value.failures.items()} == {
        "g-3": GroupAuthorizationError,
        "g-1": GroupIdNotFoundError,
    }


async def test_a_call_that_succeeds_for_no_group_raises_its_error(admin, client):
    client.lookup_errors["g-1"] = NOT_AVAILABLE
    client.handlers[DescribeGroupsRequest] = describing(g_2=described("g-2", code=UNAUTHORIZED_GROUP))
    admin._timeout = 0.05
    with pytest.raises(GroupAuthorizationError, match="group 'g-2'"):
        await admin.describe_groups(["g-1", "g-2"])


async def test_an_error_that_is_retried_until_the_timeout_is_that_of_its_group(admin, client):
    admin._timeout = 0.05
    client.handlers[DescribeGroupsRequest] = describing(g_1=described("g-1", code=NOT_COORDINATOR))
    with pytest.raises(PartialFailureError) as raised:
        await admin.describe_groups(["g-1", "g-2"])
    assert isinstance(raised.value.failures["g-1"], NotCoordinatorError)
    assert list(raised.value.results) == ["g-2"]


async def test_a_response_without_the_group_is_a_protocol_error(admin, client):
    client.handlers[DescribeGroupsRequest] = in_turn(DescribeGroupsResponse())
    with pytest.raises(ProtocolError, match="lacks 'g-1'"):
        await admin.describe_groups(["g-1"])


# Offsets


def fetched(group_id, *partitions, code=0):
    topics = [
        group_offsets.OffsetFetchResponseTopics(
            name=where.topic,
            partitions=[
                group_offsets.OffsetFetchResponsePartitions(
                    partition_index=where.partition,
                    committed_offset=offset,
                    committed_leader_epoch=epoch,
                    metadata=metadata,
                    error_code=error,
                )
            ],
        )
        for where, offset, epoch, metadata, error in partitions
    ]
    return group_offsets.OffsetFetchResponseGroup(group_id=group_id, topics=topics, error_code=code)


async def test_offsets_of_several_groups_come_with_one_request_a_coordinator(admin, client):
    def fetch(request, node_id):
        known = {
            "g-1": fetched("g-1", (A0, 7, 3, "m", 0), (A1, -1, -1, "", 0)),
            "g-2": fetched("g-2"),
            "g-3": fetched("g-3", (B0, 0, -1, None, 0)),
        }
        return OffsetFetchResponse(groups=[known[each.group_id] for each in request.groups])

    client.handlers[OffsetFetchRequest] = fetch
    found = await admin.list_group_offsets({"g-1": [A0, ("a", 1)], "g-2": None, "g-3": None}, require_stable=True)
    assert found == {
        "g-1": {A0: OffsetAndMetadata(7, "m", 3)},
        "g-2": {},
        "g-3": {B0: OffsetAndMetadata(0)},
    }
    by_node = {node_id: request for request, node_id, _ in client.sent(OffsetFetchRequest)}
    assert [each.group_id for each in by_node[2].groups] == ["g-1", "g-3"]
    assert [(each.name, each.partition_indexes) for each in by_node[2].groups[0].topics] == [("a", [0, 1])]
    assert by_node[2].groups[1].topics is None
    assert all(request.require_stable for request in by_node.values())
    assert {version for _, _, version in client.sent(OffsetFetchRequest)} == {9}


async def test_old_brokers_are_asked_for_one_group_at_a_time(admin, client):
    client.highest[OffsetFetchRequest] = 6

    def fetch(request, node_id):
        partition = group_offsets.OffsetFetchResponsePartition(partition_index=0, committed_offset=4, metadata="")
        return OffsetFetchResponse(topics=[group_offsets.OffsetFetchResponseTopic(name="a", partitions=[partition])])

    client.handlers[OffsetFetchRequest] = fetch
    assert await admin.list_group_offsets(["g-1", "g-3"]) == {
        "g-1": {A0: OffsetAndMetadata(4)},
        "g-3": {A0: OffsetAndMetadata(4)},
    }
    assert [(request.group_id, highest) for request, _, highest in client.sent(OffsetFetchRequest)] == [
        ("g-1", 6),
        ("g-3", 6),
    ]
    with pytest.raises(UnsupportedVersionError):
        await admin.list_group_offsets(["g-1"], require_stable=True)


async def test_offsets_of_open_transactions_are_asked_for_again(admin, client):
    client.handlers[OffsetFetchRequest] = in_turn(
        OffsetFetchResponse(groups=[fetched("g-1", (A0, -1, -1, "", UNSTABLE))]),
        OffsetFetchResponse(groups=[fetched("g-1", (A0, 9, -1, "", 0))]),
    )
    assert await admin.list_group_offsets(["g-1"], require_stable=True) == {"g-1": {A0: OffsetAndMetadata(9)}}


async def test_errors_of_a_group_or_a_partition_name_it(admin, client):
    client.handlers[OffsetFetchRequest] = in_turn(OffsetFetchResponse(groups=[fetched("g-1", code=UNAUTHORIZED_GROUP)]))
    with pytest.raises(GroupAuthorizationError, match="group 'g-1': "):
        await admin.list_group_offsets(["g-1"])
    refused = fetched("g-1", (A0, 1, -1, "", 0), (A1, -1, -1, "", UNAUTHORIZED_TOPIC))
    client.handlers[OffsetFetchRequest] = in_turn(OffsetFetchResponse(groups=[refused]))
    with pytest.raises(TopicAuthorizationError, match="group 'g-1', a-1"):
        await admin.list_group_offsets(["g-1"])
    with pytest.raises(TypeError, match=r"pass \['g-1'\]"):
        await admin.list_group_offsets("g-1")
    admin._timeout = 0.05
    unstable = fetched("g-1", (A0, -1, -1, "", UNSTABLE))
    client.handlers[OffsetFetchRequest] = in_turn(OffsetFetchResponse(groups=[unstable]))
    with pytest.raises(UnstableOffsetCommitError):
        await admin.list_group_offsets(["g-1"], require_stable=True)


def committing(codes):
    """A handler of OffsetCommit: ``codes`` has the codes of each partition, one for each attempt."""

    def commit(request, node_id):
        return OffsetCommitResponse(
            topics=[
                group_offsets.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        group_offsets.OffsetCommitResponsePartition(
                            partition_index=each.partition_index,
                            error_code=codes[topic.name, each.partition_index].pop(0),
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return commit


def committed_by(request):
    return {
        TopicPartition(topic.name, each.partition_index): each.committed_offset
        for topic in request.topics
        for each in topic.partitions
    }


async def test_altered_offsets_are_committed_without_a_member_and_only_the_retriable_again(admin, client):
    client.handlers[OffsetCommitRequest] = committing({A0: [0], A1: [LOADING, 0], B0: [NOT_COORDINATOR, 0]})
    await admin.alter_group_offsets("g-1", {A0: 5, ("a", 1): OffsetAndMetadata(6, "m", 2), B0: 7})
    (first, node_id, version), (second, _, _) = client.sent(OffsetCommitRequest)
    assert (node_id, version) == (2, 9)
    assert (first.group_id, first.generation_id_or_member_epoch, first.member_id) == ("g-1", -1, "")
    assert committed_by(first) == {A0: 5, A1: 6, B0: 7}
    assert committed_by(second) == {A1: 6, B0: 7}
    assert len(client.sent(FindCoordinatorRequest)) == 2
    partition = first.topics[0].partitions[1]
    assert (partition.committed_metadata, partition.committed_leader_epoch) == ("m", 2)


async def test_only_members_can_change_the_offsets_of_their_group(admin, client):
    client.handlers[OffsetCommitRequest] = committing({A0: [UNKNOWN_MEMBER], A1: [UNKNOWN_MEMBER]})
    with pytest.raises(UnknownMemberIdError, match="group 'g-1', a-0: the group has members, and only they can commit"):
        await admin.alter_group_offsets("g-1", {A0: 1, A1: 1})


async def test_wrong_offsets_are_rejected_before_any_request(admin, client):
    with pytest.raises(ValueError, match="offset must be between 0"):
        await admin.alter_group_offsets("g-1", {A0: -1})
    with pytest.raises(TypeError, match="offset must be an int, not str"):
        await admin.alter_group_offsets("g-1", {A0: "1"})
    with pytest.raises(NoSuchTopicError, match="has no partition 2"):
        await admin.alter_group_offsets("g-1", {A0: 1, ("a", 2): 1})
    assert client.requests == []


async def test_partitions_that_fail_are_reported_beside_those_that_were_changed(admin, client):
    client.handlers[OffsetCommitRequest] = committing({A0: [0], B0: [UNAUTHORIZED_TOPIC]})
    with pytest.raises(PartialFailureError, match=r"1 of 2 partitions failed, .*b-0") as raised:
        await admin.alter_group_offsets("g-1", {A0: 1, B0: 1})
    assert list(raised.value.results) == [A0]
    assert isinstance(raised.value.failures[B0], TopicAuthorizationError)


def offset_deletion(codes, code=0):
    topics: dict[str, list] = {}
    for (topic, partition), error in codes.items():
        topics.setdefault(topic, []).append(
            group_offsets.OffsetDeleteResponsePartition(partition_index=partition, error_code=error)
        )
    return OffsetDeleteResponse(
        error_code=code,
        topics=[group_offsets.OffsetDeleteResponseTopic(name=name, partitions=of) for name, of in topics.items()],
    )


async def test_deleted_offsets_are_retried_and_refused_for_read_topics(admin, client):
    client.handlers[OffsetDeleteRequest] = in_turn(
        offset_deletion({}, LOADING), offset_deletion({A0: 0, A1: 0, B0: SUBSCRIBED})
    )
    with pytest.raises(PartialFailureError, match="b-0: members of the group read the topic") as raised:
        await admin.delete_group_offsets("g-1", [A0, A1, B0, A0])
    assert list(raised.value.results) == [A0, A1]
    request = client.sent(OffsetDeleteRequest)[0][0]
    assert [(topic.name, [each.partition_index for each in topic.partitions]) for topic in request.topics] == [
        ("a", [0, 1]),
        ("b", [0]),
    ]


@pytest.mark.parametrize(("code", "error"), [(NOT_FOUND, GroupIdNotFoundError), (NON_EMPTY, GroupNotEmptyError)])
async def test_an_error_of_the_group_fails_the_deletion_of_its_offsets(admin, client, code, error):
    client.handlers[OffsetDeleteRequest] = in_turn(offset_deletion({}, code))
    with pytest.raises(error, match="group 'g-1': "):
        await admin.delete_group_offsets("g-1", [A0, A1])


# Deleting groups and members


async def test_deleted_groups_are_reported_one_by_one(admin, client):
    codes = {"g-1": [NOT_COORDINATOR, 0], "g-2": [NON_EMPTY], "g-3": [0]}
    client.handlers[DeleteGroupsRequest] = lambda request, node_id: DeleteGroupsResponse(
        results=[
            groups.DeletableGroupResult(group_id=each, error_code=codes[each].pop(0)) for each in request.groups_names
        ]
    )
    with pytest.raises(PartialFailureError, match=r"1 of 3 groups failed.* the group has members: close") as raised:
        await admin.delete_groups(["g-1", "g-2", "g-3"])
    assert list(raised.value.failures) == ["g-2"]
    assert set(raised.value.results) == {"g-1", "g-3"}
    codes["g-4"] = [NOT_FOUND]
    with pytest.raises(GroupIdNotFoundError, match=r"group 'g-4': .* check the spelling"):
        await admin.delete_groups(["g-4"])


def leaving(codes):
    """A handler of LeaveGroup: ``codes`` has the code of each member or group instance id, 0 by default."""
    return lambda request, node_id: LeaveGroupResponse(
        members=[
            groups.MemberResponse(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=codes.get(each.group_instance_id or each.member_id, 0),
            )
            for each in request.members
        ]
    )


def left_by(client):
    return [
        (each.member_id, each.group_instance_id, each.reason)
        for request, _, _ in client.sent(LeaveGroupRequest)
        for each in request.members
    ]


async def test_all_members_are_removed_by_default_static_ones_by_their_instance_ids(admin, client):
    client.handlers[DescribeGroupsRequest] = describing(
        g_1=described("g-1", member("m1"), member("m2", instance_id="i"))
    )
    client.handlers[LeaveGroupRequest] = leaving({})
    await admin.remove_members("g-1", reason="maintenance")
    reason = "member was removed by admin: maintenance"
    assert left_by(client) == [("m1", None, reason), ("", "i", reason)]


async def test_a_group_without_members_has_none_to_remove(admin, client):
    client.handlers[DescribeGroupsRequest] = describing(g_1=described("g-1", state="Empty"))
    await admin.remove_members("g-1")
    assert left_by(client) == []


async def test_named_members_are_removed_and_unknown_ones_reported(admin, client):
    client.handlers[LeaveGroupRequest] = leaving({"m2": UNKNOWN_MEMBER, "i2": FENCED})
    with pytest.raises(
        PartialFailureError, match=r"2 of 4 members failed, .*'m2' of group 'g-1': the group has no"
    ) as e:
        await admin.remove_members("g-1", member_ids=["m1", "m2"], group_instance_ids=["i1", "i2"])
    assert [str(each) for each in e.value.results] == ["member 'm1'", "group instance id 'i1'"]
    assert {type(error) for error in e.value.failures.values()} == {UnknownMemberIdError, FencedInstanceIdError}
    client.highest[LeaveGroupRequest] = 2
    with pytest.raises(UnsupportedVersionError):
        await admin.remove_members("g-1", member_ids=["m1"])


# With the embedded broker


def administer(cluster, timeout=20.0):
    return Admin(
        bootstrap_servers=cluster.bootstrap_servers, transport=cluster.transport, timeout=timeout, retry_backoff_ms=5
    )


async def test_groups_of_the_embedded_broker_are_changed_listed_and_deleted():
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("orders", 2)
        offsets = {
            TopicPartition("orders", 0): OffsetAndMetadata(3, "m", 0),
            TopicPartition("orders", 1): OffsetAndMetadata(4),
        }
        await admin.alter_group_offsets("billing", offsets)
        await admin.alter_group_offsets("audit", {("orders", 0): 1})
        assert await admin.list_group_offsets(["audit", "billing", "none"]) == {
            "audit": {("orders", 0): OffsetAndMetadata(1)},
            "billing": offsets,
            "none": {},
        }
        assert [(each.group_id, each.state, each.protocol_type) for each in await admin.list_groups()] == [
            ("audit", "Empty", ""),
            ("billing", "Empty", ""),
        ]
        await admin.delete_group_offsets("billing", [("orders", 1)])
        assert list((await admin.list_group_offsets(["billing"]))["billing"]) == [("orders", 0)]
        await admin.delete_groups(["billing", "audit"])
        assert await admin.list_groups() == []
        with pytest.raises(GroupIdNotFoundError):
            await admin.delete_group_offsets("billing", [("orders", 0)])
        with pytest.raises(GroupIdNotFoundError):
            await admin.describe_groups(["billing"])
        with pytest.raises(NoSuchTopicError, match="no topic 'nope'"):
            await admin.alter_group_offsets("billing", {("nope", 0): 1})


async def test_members_of_the_embedded_broker_protect_their_group_until_they_are_removed():
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("orders", 2)
        cluster.create_topic("others")
        await admin.alter_group_offsets("billing", {("orders", 0): 3, ("others", 0): 1})
        member_id = await join_group(admin, "billing", [TopicPartition("orders", 0), TopicPartition("orders", 1)])
        (found,) = await admin.describe_groups(["billing"])
        assert (found.state, found.protocol_type, found.assignor) == ("Stable", "consumer", "range")
        (only,) = found.members
        assert (only.member_id, only.assignment) == (member_id, {("orders", 0), ("orders", 1)})
        assert [each.group_id for each in await admin.list_groups(states=["Stable"], types=["classic"])] == ["billing"]
        assert await admin.list_groups(states=["Empty"]) == []
        assert await admin.list_groups(types=["consumer", "share"]) == []
        with pytest.raises(UnknownMemberIdError, match="only they can commit"):
            await admin.alter_group_offsets("billing", {("orders", 0): 1})
        with pytest.raises(GroupNotEmptyError):
            await admin.delete_groups(["billing"])
        with pytest.raises(PartialFailureError) as raised:
            await admin.delete_group_offsets("billing", [("orders", 0), ("others", 0)])
        assert isinstance(raised.value.failures["orders", 0], GroupSubscribedToTopicError)
        with pytest.raises(UnknownMemberIdError):
            await admin.remove_members("billing", member_ids=["nobody"])
        await admin.remove_members("billing")
        (found,) = await admin.describe_groups(["billing"])
        assert (found.state, found.members) == ("Empty", ())
        await admin.alter_group_offsets("billing", {("orders", 0): 0})
        assert await admin.list_group_offsets(["billing"]) == {"billing": {("orders", 0): OffsetAndMetadata(0)}}


async def test_a_static_member_is_removed_by_its_instance_id():
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("orders", 2)
        await admin.alter_group_offsets("billing", {("orders", 0): 3})
        await join_group(admin, "billing", [TopicPartition("orders", 0)], group_instance_id="first")
        (found,) = await admin.describe_groups(["billing"])
        assert [each.group_instance_id for each in found.members] == ["first"]
        with pytest.raises(UnknownMemberIdError, match="group instance id 'second' of group 'billing'"):
            await admin.remove_members("billing", group_instance_ids=["second"])
        await admin.remove_members("billing", group_instance_ids=["first"])
        (found,) = await admin.describe_groups(["billing"])
        assert found.members == ()


async def test_calls_follow_a_coordinator_that_moves():
    async with EmbeddedCluster(2, transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("orders", 1)
        await admin.alter_group_offsets("billing", {("orders", 0): 3})
        await cluster.wait_in_sync()
        before = cluster.coordinator("billing")
        cluster.drop_coordinator("billing")
        assert cluster.coordinator("billing") != before
        for api in ("OffsetFetch", "DescribeGroups", "DeleteGroups", "OffsetCommit", "OffsetDelete"):
            cluster.fail(api, "NOT_COORDINATOR", times=1)
        assert await admin.list_group_offsets(["billing"]) == {"billing": {("orders", 0): OffsetAndMetadata(3)}}
        (found,) = await admin.describe_groups(["billing"])
        assert found.coordinator != before
        await admin.alter_group_offsets("billing", {("orders", 0): 4})
        await admin.delete_group_offsets("billing", [("orders", 0)])
        await admin.delete_groups(["billing"])
        assert cluster.pending_faults() == []
