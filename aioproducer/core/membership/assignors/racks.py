"""The racks of members and partitions, as Kafka's sticky assignors use them (KIP-881)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aioproducer.core.membership.assignors.base import needs_rack_awareness
from aioproducer.core.membership.subscription import Subscription, TopicRacks
from aioproducer.record import TopicPartition


class Racks:
    """Who is near to what (``AbstractStickyAssignor.RackInfo``). Without use for racks, everything matches."""

    def __init__(self, topics: TopicRacks, members: Mapping[str, Subscription]) -> None:
        of_members = {member_id: member.rack for member_id, member in members.items() if member.rack}
        of_partitions: dict[TopicPartition, frozenset[str]] = {}
        if of_members:
            for topic, partitions in topics.items():
                for partition, racks in enumerate(partitions):
                    of_partitions[TopicPartition(topic, partition)] = racks
        members_of_rack: dict[str, int] = {}
        for rack in of_members.values():
            members_of_rack[rack] = members_of_rack.get(rack, 0) + 1
        # Kafka counts these even where racks are of no use otherwise.
        self._near = {
            where: sum(members_of_rack.get(rack, 0) for rack in racks) for where, racks in of_partitions.items()
        }
        matter = bool(of_members) and needs_rack_awareness(of_members.values(), of_partitions.values())
        self.of_members: Mapping[str, str] = of_members if matter else {}
        self.of_partitions: Mapping[TopicPartition, frozenset[str]] = of_partitions if matter else {}

    def mismatch(self, member_id: str, where: TopicPartition) -> bool:
        """Return whether the member has a rack that has no replica of the partition."""
        rack = self.of_members.get(member_id)
        return rack is not None and rack not in self.of_partitions.get(where, ())

    def by_near_members(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions, those with the fewest members in their racks first."""
        return sorted(partitions, key=lambda where: self._near.get(where, 0))

    def next_near(self, where: TopicPartition, member_ids: Sequence[str], first: int) -> int:
        """Return the index of the next member in a rack of the partition, from ``first`` on and around; -1 if none."""
        racks = self.of_partitions.get(where)
        if not racks:
            return -1
        for step in range(len(member_ids)):
            index = (first + step) % len(member_ids)
            if self.of_members.get(member_ids[index]) in racks:
                return index
        return -1
