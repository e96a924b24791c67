"""The rules that every assignment follows; ``tests/interop/test_assignors_as_kafka.py`` compares them with Kafka's."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.membership.assignors import (
    ASSIGNORS,
    Assignments,
    CooperativeStickyAssignor,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
)
from aioproducer.core.membership.assignors.java_order import (
    HashSet,
    in_hash_order,
    partition_hash,
    string_hash,
    string_key,
    table_size,
)
from aioproducer.core.membership.assignors.user_data import decode_user_data, encode_user_data
from aioproducer.core.membership.subscription import Assignment, Subscription, TopicRacks
from aioproducer.errors import ProtocolError
from aioproducer.record import TopicPartition

from .cases import RandomGroup


def topics(**counts: int) -> TopicRacks:
    return {name: tuple(frozenset[str]() for _ in range(count)) for name, count in counts.items()}


def partitions(text: str) -> list[TopicPartition]:
    return [TopicPartition(part[0], int(part[1:])) for part in text.split()]


def subscribed(*names: str, **changes: object) -> Subscription:
    return Subscription(topics=names, **changes)  # type: ignore[arg-type]  # the fields by name


def check_complete(offered: TopicRacks, members: dict[str, Subscription], assignments: Assignments) -> None:
    """Each partition with a subscribed member has one owner, which is subscribed to its topic."""
    assert assignments.keys() == members.keys()
    given_out = [where for of_member in assignments.values() for where in of_member]
    wanted = {topic for member in members.values() for topic in member.topics} & offered.keys()
    assert sorted(given_out) == sorted(TopicPartition(topic, i) for topic in wanted for i in range(len(offered[topic])))
    for member_id, of_member in assignments.items():
        assert {where.topic for where in of_member} <= set(members[member_id].topics)


@given(st.integers(0, 2**32), st.sampled_from(["range", "roundrobin", "sticky"]))
def test_each_partition_has_one_subscribed_owner(seed: int, name: str) -> None:
    group = RandomGroup(Random(seed), name)
    for offered, _ in group.rounds(4):
        members = group.subscriptions()
        assignments = group.leader.assign(offered, members)
        check_complete(offered, members, assignments)
        group.assigned(assignments)


@given(st.integers(0, 2**32))
def test_cooperative_members_never_receive_what_another_one_owns(seed: int) -> None:
    group = RandomGroup(Random(seed), "cooperative-sticky", is_regular=True)
    for offered, _ in group.rounds(4):
        members = group.subscriptions()
        assignments = group.leader.assign(offered, members)
        owners = {where: member_id for member_id, member in members.items() for where in member.owned_partitions}
        for member_id, of_member in assignments.items():
            assert {owners.get(where, member_id) for where in of_member} <= {member_id}
        group.assigned(assignments)


@pytest.mark.parametrize("seed", range(100))
def test_cooperative_assignment_is_complete_when_no_member_has_to_revoke(seed: int) -> None:
    """After two rebalances mostly, seven at most in 1,500 seeds: each may move partitions again.

    Another rebalance follows as long as a member has to revoke partitions. About one random group of 1,000 never ends,
    for example that of seed 45097: its members swap a partition each time. Therefore the seeds are fixed.
    """
    group = RandomGroup(Random(seed), "cooperative-sticky", is_regular=True)
    for offered, _ in group.rounds(3):
        for _ in range(50):
            members = group.subscriptions()
            assignments = group.leader.assign(offered, members)
            group.assigned(assignments)
            if all(set(member.owned_partitions) <= set(assignments[name]) for name, member in members.items()):
                break
        check_complete(offered, members, assignments)


def test_range_gives_runs_of_each_topic() -> None:
    """The example in the documentation of Kafka's class."""
    members = {"C0": subscribed("a", "b"), "C1": subscribed("a", "b")}
    assert RangeAssignor().assign(topics(a=3, b=3), members) == {
        "C0": partitions("a0 a1 b0 b1"),
        "C1": partitions("a2 b2"),
    }


def test_range_orders_static_members_by_their_instance_ids() -> None:
    members = {
        "a": subscribed("a"),
        "z": subscribed("a", group_instance_id="2"),
        "y": subscribed("a", group_instance_id="1"),
    }
    assert RangeAssignor().assign(topics(a=3), members) == {
        "a": partitions("a2"),
        "z": partitions("a1"),
        "y": partitions("a0"),
    }


def test_range_matches_racks_within_the_balance() -> None:
    racks = [frozenset({"east"}), frozenset({"west"}), frozenset({"west"}), frozenset({"east"})]
    members = {"a": subscribed("a", rack="west"), "b": subscribed("a", rack="east")}
    assert RangeAssignor().assign({"a": racks}, members) == {"a": partitions("a1 a2"), "b": partitions("a0 a3")}


def test_round_robin_goes_over_all_topics() -> None:
    """The example in the documentation of Kafka's class."""
    members = {"C0": subscribed("a"), "C1": subscribed("a", "b"), "C2": subscribed("a", "b", "c")}
    assert RoundRobinAssignor().assign(topics(a=1, b=2, c=3), members) == {
        "C0": partitions("a0"),
        "C1": partitions("b0"),
        "C2": partitions("b1 c0 c1 c2"),
    }


def test_sticky_members_keep_their_partitions_when_another_one_leaves() -> None:
    """The example in the documentation of Kafka's class: C1 leaves, and the others keep what they had."""
    first = {name: subscribed("a", "b", "c", "d") for name in ("C0", "C1", "C2")}
    leader = StickyAssignor()
    before = leader.assign(topics(a=2, b=2, c=2, d=2), first)
    second = {
        name: subscribed("a", "b", "c", "d", user_data=encode_user_data(before[name], 1)) for name in ("C0", "C2")
    }
    after = leader.assign(topics(a=2, b=2, c=2, d=2), second)
    assert set(before["C0"]) < set(after["C0"])
    assert set(before["C2"]) < set(after["C2"])
    assert [len(of_member) for of_member in after.values()] == [4, 4]


def test_sticky_ignores_a_claim_of_an_older_generation() -> None:
    claims = partitions("a0 a1")
    members = {
        "old": subscribed("a", owned_partitions=tuple(claims), generation_id=1),
        "new": subscribed("a", owned_partitions=tuple(claims[:1]), generation_id=2),
    }
    assert CooperativeStickyAssignor().assign(topics(a=2), members) == {"old": partitions("a1"), "new": claims[:1]}


def test_partition_that_two_members_claim_in_one_generation_is_revoked_from_both() -> None:
    members = {
        name: subscribed("a", owned_partitions=tuple(partitions("a0")), generation_id=1) for name in ("one", "two")
    }
    assignments = CooperativeStickyAssignor().assign(topics(a=2), members)
    assert TopicPartition("a", 0) not in assignments["one"] + assignments["two"]


def test_partition_that_no_longer_exists_is_not_assigned() -> None:
    owned = tuple(partitions("a0 a7"))
    members = {"one": subscribed("a", owned_partitions=owned, generation_id=1)}
    assert CooperativeStickyAssignor().assign(topics(a=2), members) == {"one": partitions("a0 a1")}


def test_only_cooperative_sticky_knows_the_cooperative_protocol() -> None:
    for name, make in ASSIGNORS.items():
        assert make().name == name
        assert (RebalanceProtocol.COOPERATIVE in make().protocols) == (name == "cooperative-sticky")
        assert RebalanceProtocol.EAGER in make().protocols


class TestUserData:
    def test_sticky_user_data_is_read_in_both_versions(self) -> None:
        data = encode_user_data(partitions("a0 b1 a2"), 7)
        assert decode_user_data(data) == (tuple(partitions("a0 a2 b1")), 7)
        assert decode_user_data(data[:-4]) == (tuple(partitions("a0 a2 b1")), None)

    @pytest.mark.parametrize("data", [b"\0", b"\0\0\0\1\0\5abc", b"\xff" * 9])
    def test_other_bytes_are_rejected_and_count_as_no_assignment(self, data: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode_user_data(data)
        assert StickyAssignor().assign(topics(a=1), {"one": subscribed("a", user_data=data)}) == {
            "one": partitions("a0")
        }

    def test_sticky_has_none_before_its_first_assignment(self) -> None:
        sticky = StickyAssignor()
        assert sticky.user_data(["a"]) is None
        sticky.on_assignment(Assignment(tuple(partitions("a1"))), 3)
        assert decode_user_data(sticky.user_data(["a"]) or b"") == (tuple(partitions("a1")), 3)

    def test_cooperative_sticky_has_its_generation(self) -> None:
        assignor = CooperativeStickyAssignor()
        assert assignor.user_data(["a"]) == b"\xff\xff\xff\xff"
        assignor.on_assignment(Assignment(()), 258)
        assert assignor.user_data(["a"]) == b"\0\0\1\2"


class TestJavaOrder:
    def test_hash_codes_are_javas(self) -> None:
        assert string_hash("") == 0
        assert string_hash("hello") == 99162322
        assert string_hash("\U0001f600") == 1772899
        assert partition_hash(TopicPartition("hello", 2)) == 31 * 33 + 99162322

    def test_strings_sort_by_utf_16_units(self) -> None:
        assert string_key("\U0001f600") < string_key("\uff5e")

    def test_table_doubles_beyond_three_quarters(self) -> None:
        assert [table_size(count) for count in (0, 12, 13, 24, 25, 49)] == [16, 16, 32, 32, 64, 128]

    def test_order_is_that_of_the_buckets_then_of_insertion(self) -> None:
        identity = int.__int__
        assert in_hash_order([17, 1, 0, 16], identity) == [0, 16, 17, 1]
        assert in_hash_order([17, 1, 0, 16], identity, most=13) == [0, 1, 16, 17]

    def test_set_does_not_shrink(self) -> None:
        made: HashSet[int] = HashSet(int.__int__)
        for number in (17, 1, *range(2, 14)):
            made.add(number)
        for number in range(2, 14):
            made.remove(number)
        assert len(made) == 2
        assert made.first() == 1
