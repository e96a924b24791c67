"""The sticky assignors: as balanced as possible, and then with as few moved partitions as possible.

Racks are matched as far as the balance allows (KIP-881). The rules are those of Kafka's ``AbstractStickyAssignor``.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from aioproducer.core.membership.assignors.base import Assignments, Assignor, RebalanceProtocol
from aioproducer.core.membership.assignors.racks import Racks
from aioproducer.core.membership.assignors.sticky_equal import EqualSubscriptions
from aioproducer.core.membership.assignors.sticky_general import DifferentSubscriptions
from aioproducer.core.membership.assignors.user_data import decode_user_data, encode_user_data
from aioproducer.core.membership.subscription import NO_GENERATION, Assignment, Subscription, TopicRacks
from aioproducer.errors import ProtocolError
from aioproducer.record import TopicPartition

_GENERATION = struct.Struct(">i")


class _Owned(NamedTuple):
    """What a member owned, and in which generation; None if it does not tell."""

    partitions: Sequence[TopicPartition]
    generation_id: int | None


class _Previous(NamedTuple):
    """What all members owned."""

    owned: dict[str, list[TopicPartition]]
    """By member; each partition has one owner."""
    claimed_twice: set[TopicPartition]
    """Partitions that several members claimed in one generation; they count as owned by none."""


class AbstractStickyAssignor(Assignor):
    """Both sticky assignors; they differ in how the leader learns what members owned."""

    def __init__(self) -> None:
        self._newest_generation = NO_GENERATION
        self._moving: Mapping[TopicPartition, str] | None = None

    def _owned(self, member: Subscription) -> _Owned:
        raise NotImplementedError

    def _assign(self, topics: TopicRacks, members: Mapping[str, Subscription]) -> Assignments:
        data = {member_id: self._owned(member) for member_id, member in members.items()}
        previous = self._previous(topics, members, data)
        racks = Racks(topics, members)
        if _are_equal(members):
            equal = EqualSubscriptions(topics, racks, previous.owned, previous.claimed_twice)
            assignments = equal.build()
            self._moving = equal.moving
            return assignments
        self._moving = None
        return DifferentSubscriptions(topics, racks, members, previous.owned, self._older_owners(data)).build()

    def _previous(
        self, topics: TopicRacks, members: Mapping[str, Subscription], data: Mapping[str, _Owned]
    ) -> _Previous:
        """Give each partition to the member that claims it in the newest generation."""
        # Partitions as keys: they are removed again if another member has the better claim.
        owned: dict[str, dict[TopicPartition, None]] = {}
        claimed_twice: set[TopicPartition] = set()
        owners: dict[TopicPartition, str] = {}
        for member_id, (partitions, generation) in data.items():
            generation_id = NO_GENERATION if generation is None else generation
            self._newest_generation = max(self._newest_generation, generation_id)
            mine = owned[member_id] = {}
            for where in partitions:
                if where.partition >= len(topics.get(where.topic, ())):
                    continue
                other = owners.get(where)
                if other is not None:
                    # Of the field of the subscription, whatever the assignor's own bytes say: so Kafka does.
                    others_generation = members[other].generation_id
                    if generation_id < others_generation:
                        continue
                    owned[other].pop(where, None)
                    if generation_id == others_generation:
                        claimed_twice.add(where)
                        owners[where] = member_id
                        continue
                mine[where] = None
                owners[where] = member_id
        return _Previous({member_id: list(partitions) for member_id, partitions in owned.items()}, claimed_twice)

    def _older_owners(self, data: Mapping[str, _Owned]) -> dict[TopicPartition, str]:
        """Return the owners of older generations than the newest one, of each partition the newest of them."""
        found: dict[TopicPartition, tuple[int, str]] = {}
        for member_id, (partitions, generation) in data.items():
            generation_id = NO_GENERATION if generation is None else generation
            if generation_id >= self._newest_generation:
                continue
            for where in partitions:
                if where not in found or generation_id > found[where][0]:
                    found[where] = generation_id, member_id
        return {where: member_id for where, (_, member_id) in found.items()}


class StickyAssignor(AbstractStickyAssignor):
    """Members give up all partitions before they join, and report what they had (Kafka's ``StickyAssignor``)."""

    name = "sticky"

    def __init__(self) -> None:
        super().__init__()
        self._assignment: tuple[TopicPartition, ...] | None = None
        self._generation_id = NO_GENERATION

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self._assignment = assignment.partitions
        self._generation_id = generation_id

    def user_data(self, topics: Collection[str]) -> bytes | None:
        if self._assignment is None:
            return None
        return encode_user_data(self._assignment, self._generation_id)

    def _owned(self, member: Subscription) -> _Owned:
        if not member.user_data:
            return _Owned((), None)
        try:
            return _Owned(*decode_user_data(member.user_data))
        except ProtocolError:
            # Bytes of another assignor: the member starts afresh.
            return _Owned((), NO_GENERATION)


class CooperativeStickyAssignor(AbstractStickyAssignor):
    """Members keep what they own while they join (Kafka's ``CooperativeStickyAssignor``, KIP-429).

    A partition that changes its owner is assigned to none at first. Its owner revokes it and joins again, and then it
    goes to the new one.
    """

    name = "cooperative-sticky"
    protocols = frozenset({RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE})

    def __init__(self) -> None:
        super().__init__()
        self._generation_id = NO_GENERATION

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self._generation_id = generation_id

    def user_data(self, topics: Collection[str]) -> bytes | None:
        return _GENERATION.pack(self._generation_id)

    def _owned(self, member: Subscription) -> _Owned:
        if member.generation_id != NO_GENERATION:
            return _Owned(member.owned_partitions, member.generation_id)
        # Versions 0 and 1 of the subscription have no field for the generation.
        data = member.user_data
        if data is None:
            return _Owned(member.owned_partitions, None)
        generation_id = _GENERATION.unpack_from(data)[0] if len(data) >= _GENERATION.size else NO_GENERATION
        return _Owned(member.owned_partitions, generation_id)

    def _assign(self, topics: TopicRacks, members: Mapping[str, Subscription]) -> Assignments:
        assignments = super()._assign(topics, members)
        moving = self._moving
        if moving is None:
            moving = _moving(members, assignments)
        for where, member_id in moving.items():
            assignments[member_id].remove(where)
        return assignments


def _are_equal(members: Mapping[str, Subscription]) -> bool:
    """Return whether all members are subscribed to the same topics."""
    first: frozenset[str] = frozenset()
    for member in members.values():
        if not first:
            first = frozenset(member.topics)
        elif len(member.topics) != len(first) or not first.issuperset(member.topics):
            return False
    return True


def _moving(members: Mapping[str, Subscription], assignments: Assignments) -> dict[TopicPartition, str]:
    """Return the partitions that one member receives while another one owns them, with the new owner."""
    received: dict[TopicPartition, str] = {}
    revoked: set[TopicPartition] = set()
    for member_id, partitions in assignments.items():
        owned = set(members[member_id].owned_partitions)
        received.update(dict.fromkeys((where for where in partitions if where not in owned), member_id))
        revoked |= owned.difference(partitions)
    return {where: member_id for where, member_id in received.items() if where in revoked}
