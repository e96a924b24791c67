"""What an assignor is: it decides, on the leader, which member reads which partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum

from aioproducer.core.membership.assignors.java_order import in_hash_order, string_hash, string_key
from aioproducer.core.membership.subscription import Assignment, Subscription, TopicRacks
from aioproducer.record import TopicPartition


class RebalanceProtocol(IntEnum):
    """How members rebalance (``ConsumerPartitionAssignor.RebalanceProtocol``); the highest common one is used."""

    EAGER = 0
    """Each member gives up all its partitions before it joins."""
    COOPERATIVE = 1
    """A member gives up only partitions that its next assignment lacks (KIP-429)."""


Assignments = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id."""


class Assignor:
    """A rule by which partitions are assigned; one instance for each member of a group, as it may keep state."""

    name: str = ""
    """The name in JoinGroup, by which a group finds a common assignor."""
    protocols: frozenset[RebalanceProtocol] = frozenset({RebalanceProtocol.EAGER})

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """Return the assignor's part of this member's subscription."""
        return None

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Notice this member's new assignment."""

    def assign(self, topics: TopicRacks, members: Mapping[str, Subscription]) -> Assignments:
        """Return the partitions of each member.

        Args:
            topics: topics with metadata; those that no member is subscribed to are ignored.
            members: the subscriptions by member id, in the order of the JoinGroup response.
        """
        subscribed = {topic for member in members.values() for topic in member.topics}
        known = {topic: racks for topic, racks in topics.items() if topic in subscribed and racks}
        # Kafka collects the members into a HashMap.
        ordered = {member_id: members[member_id] for member_id in in_hash_order(members, string_hash)}
        return self._assign(known, ordered)

    def _assign(self, topics: TopicRacks, members: Mapping[str, Subscription]) -> Assignments:
        raise NotImplementedError


def sorted_members(members: Mapping[str, Subscription]) -> list[str]:
    """Return the ids of the static members by ``group.instance.id``, then those of the others.

    The order is that of ``AbstractPartitionAssignor.MemberInfo``: static members keep their place when they restart.
    """

    def key(member_id: str) -> tuple[bool, bytes]:
        instance_id = members[member_id].group_instance_id
        return instance_id is None, string_key(member_id if instance_id is None else instance_id)

    return sorted(members, key=key)


def needs_rack_awareness(consumer_racks: Iterable[str], partition_racks: Collection[frozenset[str]]) -> bool:
    """Return whether racks matter: members' and replicas' racks meet, and not every partition is in every rack.

    The rule is ``AbstractPartitionAssignor.useRackAwareAssignment`` (KIP-881).
    """
    all_racks = frozenset[str]().union(*partition_racks)
    return not all_racks.isdisjoint(consumer_racks) and any(racks != all_racks for racks in partition_racks)
