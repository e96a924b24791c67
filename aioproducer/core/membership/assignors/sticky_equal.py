"""The sticky assignment of members with equal subscriptions.

The rules are those of Kafka's ``AbstractStickyAssignor.ConstrainedAssignmentBuilder``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aioproducer.core.membership.assignors.base import Assignments
from aioproducer.core.membership.assignors.java_order import string_key
from aioproducer.core.membership.assignors.racks import Racks
from aioproducer.core.membership.subscription import TopicRacks
from aioproducer.record import TopicPartition


class EqualSubscriptions:
    """Each member keeps what it owned up to its share; the rest goes round.

    A share is the number of partitions divided by that of members, rounded down (``_least``) or up (``_most``).

    Args:
        owned: each member's previous partitions that still exist, in the order in which members are served.
        claimed_twice: partitions that several members claimed in one generation.
    """

    def __init__(
        self,
        topics: TopicRacks,
        racks: Racks,
        owned: Mapping[str, Sequence[TopicPartition]],
        claimed_twice: set[TopicPartition],
    ) -> None:
        self._topics = topics
        self._racks = racks
        self._owned = owned
        self._claimed_twice = claimed_twice
        count = sum(map(len, topics.values()))
        self._least, self._members_with_most = divmod(count, len(owned))
        self._most = self._least + (1 if self._members_with_most else 0)
        self._having_most = 0
        self._given_up: dict[TopicPartition, str] = {}
        # Members that may receive more: they have less than the least share, or exactly it.
        self._below: list[str] = []
        self._at_least: list[str] = []
        self._assignments: Assignments = {member_id: [] for member_id in owned}
        self.moving: dict[TopicPartition, str] = {}
        """Partitions that change their owner, with the new one."""

    def build(self) -> Assignments:
        """Return the partitions of each member."""
        self._keep_owned()
        kept = {where for partitions in self._assignments.values() for where in partitions}
        left = [
            where
            for topic in sorted(self._topics)
            for where in (TopicPartition(topic, partition) for partition in range(len(self._topics[topic])))
            if where not in kept
        ]
        self._below.sort(key=string_key)
        self._at_least.sort(key=string_key)
        left = self._racks.by_near_members(left)
        if self._racks.of_members:
            left = self._assign_near(left)
        self._assign_round(left)
        return self._assignments

    def _keep_owned(self) -> None:
        for member_id, partitions in self._owned.items():
            near = []
            for where in partitions:
                if self._racks.mismatch(member_id, where):
                    self._given_up[where] = member_id
                elif where not in self._claimed_twice:
                    near.append(where)
            near.sort(key=lambda where: (where.partition, where.topic))
            if len(near) < self._least:
                self._assignments[member_id] += near
                self._below.append(member_id)
                continue
            if len(near) >= self._most and self._having_most < self._members_with_most:
                self._count_most()
                share = self._most
            else:
                share = self._least
                if self._having_most < self._members_with_most:
                    self._at_least.append(member_id)
            self._assignments[member_id] += near[:share]
            self._given_up.update(dict.fromkeys(near[share:], member_id))

    def _count_most(self) -> None:
        self._having_most += 1
        if self._having_most == self._members_with_most:
            self._at_least.clear()

    def _assign_near(self, left: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions to members in their racks; return those that none could receive."""
        others = []
        turn = 0
        for where in left:
            index = self._racks.next_near(where, self._below, turn)
            if index >= 0:
                member_id = self._below[index]
                size = len(self._assignments[member_id]) + 1
                if size >= self._least:
                    del self._below[index]
                    if size < self._most and self._having_most < self._members_with_most:
                        self._at_least.append(member_id)
                else:
                    index += 1
                turn = index % len(self._below) if self._below else 0
            else:
                index = self._racks.next_near(where, self._at_least, 0)
                if index < 0:
                    others.append(where)
                    continue
                member_id = self._at_least[index]
                if len(self._assignments[member_id]) + 1 == self._most:
                    del self._at_least[index]
                    self._count_most()
            self._assign_one(where, member_id)
        return others

    def _assign_round(self, left: Sequence[TopicPartition]) -> None:
        turn = 0
        for where in left:
            if self._below:
                turn = turn if turn < len(self._below) else 0
                member_id = self._below[turn]
                if len(self._assignments[member_id]) + 1 == self._least:
                    del self._below[turn]
                    self._at_least.append(member_id)
                else:
                    turn += 1
            else:
                member_id = self._at_least.pop(0)
            self._assign_one(where, member_id)

    def _assign_one(self, where: TopicPartition, member_id: str) -> None:
        self._assignments[member_id].append(where)
        if self._given_up.get(where, member_id) != member_id or where in self._claimed_twice:
            self.moving[where] = member_id
