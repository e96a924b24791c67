"""The sticky assignment of members with different subscriptions.

The rules are those of Kafka's ``AbstractStickyAssignor.GeneralAssignmentBuilder``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence

from aioproducer.core.membership.assignors.base import Assignments
from aioproducer.core.membership.assignors.java_order import HashSet, partition_hash, string_key
from aioproducer.core.membership.assignors.racks import Racks
from aioproducer.core.membership.subscription import Subscription, TopicRacks
from aioproducer.record import TopicPartition

_Held = dict[TopicPartition, None]
_Place = tuple[int, bytes, str]


class _Movements:
    """Which partitions moved between which members (``AbstractStickyAssignor.PartitionMovements``).

    A partition that would move from A to B, while another one of its topic has moved from B to A, is replaced by that
    one: otherwise both members would lose a partition for nothing.
    """

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, tuple[str, str]] = {}
        self._partitions: dict[tuple[str, str, str], HashSet[TopicPartition]] = {}

    def record(self, where: TopicPartition, source: str, target: str) -> None:
        previous = self._pairs.pop(where, None)
        if previous is not None:
            key = (where.topic, *previous)
            moved = self._partitions[key]
            moved.remove(where)
            if not moved:
                del self._partitions[key]
            source = previous[0]
        if source != target:
            self._pairs[where] = source, target
            key = (where.topic, source, target)
            if key not in self._partitions:
                self._partitions[key] = HashSet(partition_hash)
            self._partitions[key].add(where)

    def instead_of(self, where: TopicPartition, source: str, target: str) -> TopicPartition:
        """Return the partition to move from ``source`` to ``target``."""
        previous = self._pairs.get(where)
        back = self._partitions.get((where.topic, target, source if previous is None else previous[0]))
        return where if back is None else back.first()


class DifferentSubscriptions:
    """Keeps what each member owned, spreads the rest, then moves partitions until nothing improves the balance.

    Args:
        members: the subscriptions, in the order in which members are served.
        owned: each member's previous partitions that still exist.
        previous: the members of older generations that owned partitions, by partition.
    """

    def __init__(
        self,
        topics: TopicRacks,
        racks: Racks,
        members: Mapping[str, Subscription],
        owned: Mapping[str, Iterable[TopicPartition]],
        previous: Mapping[TopicPartition, str],
    ) -> None:
        self._topics = topics
        self._racks = racks
        self._previous = previous
        self._count = sum(map(len, topics.values()))
        self._wanted = {
            member_id: [topic for topic in member.topics if topic in topics] for member_id, member in members.items()
        }
        self._wanted_set = {member_id: frozenset(wanted) for member_id, wanted in self._wanted.items()}
        self._readers: dict[str, list[str]] = {topic: [] for topic in topics}
        for member_id, wanted in self._wanted.items():
            for topic in wanted:
                self._readers[topic].append(member_id)
        self._held: dict[str, _Held] = {member_id: dict.fromkeys(owned[member_id]) for member_id in members}
        self._owner: dict[TopicPartition, str] = {}
        self._order: list[_Place] = []
        self._movements = _Movements()
        self._must_revoke = False
        self._known_balance: bool | None = None

    def build(self) -> Assignments:
        """Return the partitions of each member."""
        kept = self._keep_owned()
        everything = [
            TopicPartition(topic, partition)
            for topic in sorted(self._topics, key=lambda topic: (len(self._readers[topic]), topic))
            for partition in range(len(self._topics[topic]))
        ]
        left = [where for where in everything if where not in kept]
        self._order = sorted(map(self._place, self._held))
        self._balance(everything, left)
        return {member_id: list(held) for member_id, held in self._held.items()}

    def _keep_owned(self) -> set[TopicPartition]:
        kept = set()
        for member_id, held in self._held.items():
            for where in list(held):
                if where.topic not in self._wanted_set[member_id] or self._racks.mismatch(member_id, where):
                    del held[where]
                    self._must_revoke = True
                else:
                    kept.add(where)
                self._owner[where] = member_id
        return kept

    def _balance(self, everything: Sequence[TopicPartition], left: Sequence[TopicPartition]) -> None:
        is_new = not self._held[self._order[-1][2]]
        if self._racks.of_members:
            left_by_racks = [where for where in left if not self._assign(where, match_racks=True)]
        else:
            left_by_racks = list(left)
        for where in left_by_racks:
            self._assign(where, match_racks=False)
        movable = {topic for topic, readers in self._readers.items() if len(readers) >= 2}
        everything = [where for where in everything if where.topic in movable]
        left = [where for where in left if where.topic in movable]
        fixed = {member_id: held for member_id, held in self._held.items() if not self._can_change(member_id, movable)}
        for member_id in fixed:
            self._remove_from_order(member_id)
        before = {member_id: dict(held) for member_id, held in self._held.items()}
        if not self._must_revoke:
            self._move(left)
        if self._move(everything) and not is_new:
            moving = [member_id for member_id in before if member_id not in fixed]
            if _spread(self._held, moving) >= _spread(before, moving):
                self._held = before

    # Order of the members: those with the fewest partitions first

    def _place(self, member_id: str) -> _Place:
        return len(self._held[member_id]), string_key(member_id), member_id

    def _remove_from_order(self, member_id: str) -> None:
        del self._order[bisect_left(self._order, self._place(member_id))]

    def _add_to_order(self, member_id: str) -> None:
        insort(self._order, self._place(member_id))

    # Steps

    def _assign(self, where: TopicPartition, *, match_racks: bool) -> bool:
        """Assign a partition to the first member that may have it; return whether there is one."""
        for _, _, member_id in self._order:
            if where.topic in self._wanted_set[member_id] and not (
                match_racks and self._racks.mismatch(member_id, where)
            ):
                self._remove_from_order(member_id)
                self._held[member_id][where] = None
                self._owner[where] = member_id
                self._add_to_order(member_id)
                return True
        return False

    def _largest(self, member_id: str) -> int:
        """Return how many partitions a member could have."""
        wanted = self._wanted[member_id]
        if len(wanted) == len(self._topics):
            return self._count
        return sum(len(self._topics[topic]) for topic in wanted)

    def _can_change(self, member_id: str, movable: set[str]) -> bool:
        held = self._held[member_id]
        return len(held) < self._largest(member_id) or any(where.topic in movable for where in held)

    def _move(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions as long as that improves the balance; return whether any was moved."""
        has_moved = False
        modified = True
        while modified:
            modified = False
            for where in partitions:
                if self._is_balanced():
                    break
                target = self._better_owner(where)
                if target is not None:
                    source = self._owner[where]
                    self._transfer(self._movements.instead_of(where, source, target), target)
                    modified = has_moved = True
        return has_moved

    def _better_owner(self, where: TopicPartition) -> str | None:
        owner = self._owner[where]
        size = len(self._held[owner])
        previous = self._previous.get(where)
        # Kafka does not ask whether that member still reads the topic: no member would accept the partition.
        if (
            previous is not None
            and where.topic in self._wanted_set.get(previous, ())
            and size > len(self._held[previous]) + 1
        ):
            return previous
        # Kafka looks for members in the partition's racks first. Its choice is that of the next lines all the same.
        if any(size > len(self._held[other]) + 1 for other in self._readers[where.topic]):
            return next(member_id for _, _, member_id in self._order if where.topic in self._wanted_set[member_id])
        return None

    def _transfer(self, where: TopicPartition, target: str) -> None:
        source = self._owner[where]
        self._remove_from_order(source)
        if target != source:
            self._remove_from_order(target)
        self._movements.record(where, source, target)
        del self._held[source][where]
        self._held[target][where] = None
        self._owner[where] = target
        self._add_to_order(target)
        if target != source:
            self._add_to_order(source)
        self._known_balance = None

    def _is_balanced(self) -> bool:
        """Return whether no member could receive a partition of one that has two more; known until the next move."""
        if self._known_balance is None:
            self._known_balance = self._find_balance()
        return self._known_balance

    def _find_balance(self) -> bool:
        if self._order[0][0] >= self._order[-1][0] - 1:
            return True
        for size, _, member_id in self._order:
            if size == self._largest(member_id):
                continue
            held = self._held[member_id]
            for topic in self._wanted[member_id]:
                for partition in range(len(self._topics[topic])):
                    where = TopicPartition(topic, partition)
                    if where not in held and size + 1 < len(self._held[self._owner[where]]):
                        return False
        return True


def _spread(held: Mapping[str, _Held], member_ids: Iterable[str]) -> int:
    """Return the sum of the differences of all pairs of members; 0 is a perfect balance."""
    sizes = sorted(len(held[member_id]) for member_id in member_ids)
    return sum(size * (2 * index - len(sizes) + 1) for index, size in enumerate(sizes))
