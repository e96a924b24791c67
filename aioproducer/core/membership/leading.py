"""What the leader of a group does: it assigns the partitions, and watches the topics of all members."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aioproducer.core.membership.assignors.base import Assignments, Assignor, RebalanceProtocol
from aioproducer.core.membership.assignors.sticky import CooperativeStickyAssignor
from aioproducer.core.membership.subscription import (
    Assignment,
    Subscription,
    TopicRacks,
    decode_subscription,
    encode_assignment,
)
from aioproducer.errors import KafkaError
from aioproducer.protocol.messages.groups import JoinGroupResponse
from aioproducer.record import TopicPartition

_Snapshot = dict[str, object]


class GroupLeader:
    """The leader's part of a member; it leads nothing until it is elected.

    Args:
        watches_racks: whether a change of the replicas' racks is a reason to rebalance, as the member has a rack.
    """

    def __init__(self, *, watches_racks: bool) -> None:
        self._watches_racks = watches_racks
        self._members: dict[str, Subscription] | None = None
        self._skips = False
        self._snapshot: _Snapshot | None = None
        self.topics: frozenset[str] = frozenset()
        """The topics of all members; empty if another member leads."""

    def elected(self, response: JoinGroupResponse) -> None:
        """Read the members' subscriptions.

        A static leader that returns keeps the assignment of the group. As in Kafka (KIP-814), it does not notice
        partitions that were added while it was away.

        Raises:
            ProtocolError: a member's bytes are no subscription.
        """
        self._members = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id)
            for member in response.members
        }
        self._skips = response.skip_assignment
        self._snapshot = None
        self.topics = frozenset(topic for member in self._members.values() for topic in member.topics)

    def resign(self) -> None:
        """Another generation begins: another member may lead it."""
        self._members = None
        self._snapshot = None
        self.topics = frozenset()

    @property
    def has_to_assign(self) -> bool:
        """Whether the members wait for their assignments."""
        return self._members is not None

    def is_ready(self, covered: Collection[str]) -> bool:
        """Return whether metadata covers the topics of all members."""
        return self.topics.issubset(covered)

    def assign(self, assignor: Assignor, protocol: RebalanceProtocol, topics: TopicRacks) -> dict[str, bytes]:
        """Return the bytes of each member's assignment; none if a static leader returned, and nothing is to change.

        Raises:
            KafkaError: the assignor breaks the rules of cooperative rebalances.
        """
        members, self._members = self._members, None
        assert members is not None
        self._snapshot = self._take_snapshot(topics)
        if self._skips:
            return {}
        assignments = assignor.assign(topics, members)
        # That assignor heeds generations: it may take a partition from a member with an old one.
        if protocol is RebalanceProtocol.COOPERATIVE and not isinstance(assignor, CooperativeStickyAssignor):
            _validate(assignor.name, members, assignments)
        return {
            member_id: encode_assignment(Assignment(tuple(partitions))) for member_id, partitions in assignments.items()
        }

    def has_changed(self, topics: TopicRacks) -> bool:
        """Return whether the topics differ from those that were assigned."""
        return self._snapshot is not None and self._take_snapshot(topics) != self._snapshot

    def _take_snapshot(self, topics: TopicRacks) -> _Snapshot:
        return {
            topic: tuple(topics[topic]) if self._watches_racks else len(topics[topic])
            for topic in self.topics
            if topics.get(topic)
        }


def _validate(name: str, members: Mapping[str, Subscription], assignments: Assignments) -> None:
    added: set[TopicPartition] = set()
    revoked: set[TopicPartition] = set()
    for member_id, partitions in assignments.items():
        owned = set(members[member_id].owned_partitions)
        added |= set(partitions) - owned
        revoked |= owned - set(partitions)
    if added & revoked:
        where = min(added & revoked)
        raise KafkaError(
            f"The assignor {name!r} gives {where} to a member while another one owns it. A cooperative assignor must "
            "leave such a partition out until its owner has revoked it (KIP-429)"
        )
