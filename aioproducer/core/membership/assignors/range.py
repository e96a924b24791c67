"""The range assignor: for each topic, each member receives a run of partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aioproducer.core.membership.assignors.base import Assignments, Assignor, needs_rack_awareness, sorted_members
from aioproducer.core.membership.subscription import Subscription, TopicRacks
from aioproducer.record import TopicPartition


class _Topic:
    """The partitions of one topic that are left, and what its members may still receive."""

    def __init__(self, name: str, racks: Sequence[frozenset[str]], members: Mapping[str, str | None]) -> None:
        self.name = name
        self.racks = racks
        self.members = members
        """The subscribed members in their order, with their racks."""
        member_racks = {rack for rack in members.values() if rack is not None}
        self.knows_racks = bool(member_racks)
        self.needs_racks = needs_rack_awareness(member_racks, racks)
        self.left = dict.fromkeys(range(len(racks)))
        self._received = dict.fromkeys(members, 0)
        self._quota, self._members_with_one_more = divmod(len(racks), len(members)) if members else (0, 0)

    def room(self, member_id: str) -> int:
        """Return how many more partitions a member may receive."""
        more = 1 if self._members_with_one_more > 0 else 0
        return max(0, self._quota + more - self._received[member_id])

    def rack_matches(self, member_id: str, partition: int) -> bool:
        rack = self.members[member_id]
        return rack is None or (self.knows_racks and rack in self.racks[partition])

    def assign(self, member_id: str, partitions: Sequence[int], assignments: Assignments) -> None:
        assignments[member_id] += [TopicPartition(self.name, partition) for partition in partitions]
        self._received[member_id] += len(partitions)
        if self._received[member_id] > self._quota:
            self._members_with_one_more -= 1
        for partition in partitions:
            self.left.pop(partition, None)


class RangeAssignor(Assignor):
    """Per topic, runs of consecutive partitions in the order of the members (Kafka's ``RangeAssignor``).

    Topics with equal members and equal numbers of partitions are assigned alike, so that one member receives the
    partitions of one number. Racks are matched as far as that, and the balance, allow (KIP-881).
    """

    name = "range"

    def _assign(self, topics: TopicRacks, members: Mapping[str, Subscription]) -> Assignments:
        order = sorted_members(members)
        states = [
            _Topic(
                topic,
                racks,
                {member_id: members[member_id].rack for member_id in order if topic in members[member_id].topics},
            )
            for topic, racks in topics.items()
        ]
        assignments: Assignments = {member_id: [] for member_id in members}
        if any(state.needs_racks for state in states):
            _match_racks(states, assignments)
        for state in states:
            _assign_ranges(state, lambda member_id, partition: True, assignments)
        return {member_id: sorted(partitions) for member_id, partitions in assignments.items()}


def _assign_ranges(state: _Topic, accepts: Callable[[str, int], bool], assignments: Assignments) -> None:
    for member_id in state.members:
        if not state.left:
            return
        room = state.room(member_id)
        run = [partition for partition in state.left if accepts(member_id, partition)][:room]
        if run:
            state.assign(member_id, run, assignments)


def _match_racks(states: Sequence[_Topic], assignments: Assignments) -> None:
    alike: dict[tuple[frozenset[str], int], list[_Topic]] = {}
    for state in states:
        # Kafka groups by the racks that it knows: none where no member has one.
        size = len(state.racks) if state.knows_racks else 0
        alike.setdefault((frozenset(state.members), size), []).append(state)
    for (_, size), group in alike.items():
        if len(group) > 1:
            _match_racks_of_all(group, size, assignments)
        elif group[0].needs_racks:
            _assign_ranges(group[0], group[0].rack_matches, assignments)


def _match_racks_of_all(states: Sequence[_Topic], size: int, assignments: Assignments) -> None:
    """Assign each partition of all topics to the first member whose rack has a replica of each of them."""
    candidates = list(states[0].members)
    for partition in range(size):
        found = next(
            (
                member_id
                for member_id in candidates
                if all(state.rack_matches(member_id, partition) and state.room(member_id) > 0 for state in states)
            ),
            None,
        )
        if found is None:
            continue
        for state in states:
            state.assign(found, [partition], assignments)
        if not any(state.room(found) > 0 for state in states):
            candidates.remove(found)
