"""Compiled. The choice of a record's partition.

The first rule that applies decides:

1. The record's own partition.
2. The configured partitioner.
3. The key's hash, ``murmur2(key) % partition_count``, unless ``partitioner_ignore_keys`` is set
   (``aioproducer.wire.murmur2.partition_for_key``). It counts *all* partitions, with or without a leader, so that a key
   keeps its partition when brokers fail.
4. `StickyPartitioner`, for records without a key.
"""

from __future__ import annotations

import inspect
import operator
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol, SupportsIndex, TypeAlias, runtime_checkable

from aioproducer.errors import InvalidPartitionError
from aioproducer.record import Node, PartitionInfo

if TYPE_CHECKING:
    from random import Random


class PartitionLoad:
    """The state of a topic on which the sticky choice is based. It keeps the arguments: do not change them afterwards.

    partition_count
        The number of partitions of the topic, at least 1.
    available
        The partitions that have a leader.
    queue_sizes
        For each of ``available``, in its order, the number of batches that wait to be sent. None if unknown, or without
        adaptive partitioning (``partitioner_adaptive_partitioning_enable=False``): the choice is then uniform.
    leader_racks
        For each of ``available`` the rack of its leader. None without ``partitioner_rack_aware``.
    slow
        Those of ``available`` on a broker that has accepted none of its ready batches for longer than
        ``partitioner_availability_timeout_ms``. Always empty without adaptive partitioning, as in Kafka.
    """

    __slots__ = ("available", "leader_racks", "partition_count", "queue_sizes", "slow")

    def __init__(
        self,
        partition_count: int,
        available: Sequence[int],
        queue_sizes: Sequence[int] | None = None,
        leader_racks: Sequence[str | None] | None = None,
        slow: Collection[int] = (),
    ) -> None:
        if partition_count < 1:
            raise ValueError(f"partition_count must be at least 1, not {partition_count}")
        for name, column in (("queue_sizes", queue_sizes), ("leader_racks", leader_racks)):
            if column is not None and len(column) != len(available):
                raise ValueError(f"{name} has {len(column)} entries for {len(available)} available partitions")
        self.partition_count: Final = partition_count
        self.available: Final = available
        self.queue_sizes: Final = queue_sizes
        self.leader_racks: Final = leader_racks
        self.slow: Final = slow


class StickyPartitioner:
    """The current partition of one topic's records without a key (KIP-480, KIP-794, KIP-1123).

    As Kafka's ``BuiltInPartitioner``, it keeps ``partition`` until about ``sticky_size`` bytes (the producer's
    ``batch_size``) were appended, and then draws the next one. It counts bytes, not batches, so that every partition
    receives the same number of bytes over time. If it counted batches, a slow broker's partition would collect larger
    batches and so ever more load. With queue sizes the draw is weighted: a longer queue makes a partition less likely.

    ``partition`` and ``produced_bytes`` are plain attributes that the accumulator reads; ``rack`` is the client's.
    """

    __slots__ = ("_candidates", "_frequencies", "_random", "partition", "produced_bytes", "rack", "sticky_size")

    def __init__(self, sticky_size: int, load: PartitionLoad, random: Random, rack: str | None = None) -> None:
        if sticky_size < 1:
            raise ValueError(f"sticky_size must be at least 1, not {sticky_size}")
        self.sticky_size: int = sticky_size
        self.rack: str | None = rack
        self.produced_bytes: int = 0
        self._random: Random = random
        self._candidates: Sequence[int] = ()
        self._frequencies: Sequence[int] | None = None
        self._tabulate(load)
        self.partition: int = self.next_partition()

    def update(self, appended_bytes: int, enable_switch: bool = True) -> bool:
        """Count bytes appended to ``partition``; return True if they are enough and a new partition was drawn.

        ``enable_switch`` is True if the partition's last batch is complete, so that no record can be appended to it. A
        switch away from a half-filled batch would send it small when its linger ends; with a long linger this would
        happen to every second batch. Without ``enable_switch`` the partition is therefore kept, up to twice
        ``sticky_size``.
        """
        self.produced_bytes += appended_bytes
        if self.produced_bytes < self.sticky_size:
            return False
        if not enable_switch and self.produced_bytes < 2 * self.sticky_size:
            return False
        self.switch()
        return True

    def switch(self) -> None:
        """Draw a partition now, possibly the same one, and count its bytes from 0."""
        self.partition = self.next_partition()
        self.produced_bytes = 0

    def next_partition(self) -> int:
        """Draw a partition by the latest load, without switching to it."""
        # A fraction below 1 times a count is below the count. ``random()`` is one C call; ``randrange`` takes three
        # calls in Python.
        drawn = self._random.random()
        if self._frequencies is None:
            return self._candidates[int(drawn * len(self._candidates))]
        return self._candidates[bisect_right(self._frequencies, int(drawn * self._frequencies[-1]))]

    def refresh(self, load: PartitionLoad) -> None:
        """Apply new queue sizes, leaders or partitions. It takes O(partitions), so it must not run for each record.

        The current partition is kept, even if it has become slow, unless the topic no longer has it (deleted and
        created with fewer). If it has lost its leader, the caller switches.
        """
        self._tabulate(load)
        if self.partition >= load.partition_count:
            self.switch()

    def _tabulate(self, load: PartitionLoad) -> None:
        if not load.available:
            self._candidates = range(load.partition_count)
            self._frequencies = None
            return
        candidates, queue_sizes = load.available, load.queue_sizes
        positions = self._eligible(load)
        if len(positions) < len(candidates):
            candidates = [candidates[i] for i in positions]
            if queue_sizes is not None:
                queue_sizes = [queue_sizes[i] for i in positions]
        self._candidates = candidates
        self._frequencies = None if queue_sizes is None else _cumulative_frequencies(queue_sizes)

    def _eligible(self, load: PartitionLoad) -> Sequence[int]:
        """Return the indices in ``load.available`` to draw from: in the client's rack, and not on a slow broker."""
        positions: Sequence[int] = range(len(load.available))
        if load.slow:
            positions = [i for i in positions if load.available[i] not in load.slow] or positions
        if self.rack is not None and load.leader_racks is not None:
            positions = [i for i in positions if load.leader_racks[i] == self.rack] or positions
        return positions


def _cumulative_frequencies(queue_sizes: Sequence[int]) -> Sequence[int] | None:
    """Return KIP-794's table: the running sum of the weights ``longest queue + 1 - own queue``.

    Queues of 0, 3 and 1 batches weigh 4, 1 and 3; the table is 4, 5, 8. A number drawn below 8 selects the first entry
    above it. The result is None if all weights are equal.
    """
    longest = max(queue_sizes)
    if longest == min(queue_sizes):
        return None
    return list(accumulate(map((longest + 1).__sub__, queue_sizes)))


class ClusterView(Protocol):
    """A read-only view of the producer's metadata for partitioners, cheap enough for a call per record."""

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Return all partitions of the topic, ordered by number; empty if the topic is unknown."""
        ...

    def available_partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Return the topic's partitions that have a leader, ordered by number."""
        ...

    def partition_count(self, topic: str) -> int:
        """Return the number of the topic's partitions, with or without a leader; 0 if the topic is unknown."""
        ...

    def node(self, node_id: int) -> Node | None:
        """Return the broker of that id, or None if metadata does not list it."""
        ...

    def nodes(self) -> Sequence[Node]:
        """Return the brokers that metadata lists."""
        ...


PartitionFunction: TypeAlias = Callable[[str, bytes | None, bytes | None, ClusterView], int]
"""``(topic, key, value, cluster) -> partition``; key and value are the serializers' results."""


@runtime_checkable
class Partitioner(Protocol):
    """A user-defined partitioner: an object with this method, or a plain function of the same arguments."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView) -> int:
        """Return the partition for a record without one; key and value are the serializers' results.

        It is called inside ``send``, or when the topic becomes known, and must not block. ``cluster`` always knows the
        topic. An exception fails the record: ``send`` raises it, or the Delivery of a waiting record does.
        """
        ...


class RoundRobinPartitioner:
    """Sends each record to the next partition in turn, ignoring its key (Kafka's ``RoundRobinPartitioner``, KIP-369).

    Each topic has its own counter. Partitions without a leader are skipped if another partition has one.
    """

    __slots__ = ("_counters",)

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView) -> int:
        counter = self._counters.get(topic, 0)
        self._counters[topic] = counter + 1
        available = cluster.available_partitions_for(topic)
        if available:
            return available[counter % len(available)].partition
        return counter % cluster.partition_count(topic)


def resolve_partitioner(partitioner: object) -> PartitionFunction:
    """Return the function of a configured partitioner: an object or a class with ``partition``, or a callable.

    A class is instantiated without arguments.

    Raises:
        TypeError: it is none of these, or a coroutine function: ``send`` chooses the partition before it returns.
    """
    if inspect.isclass(partitioner):
        partitioner = partitioner()
    function = partitioner.partition if isinstance(partitioner, Partitioner) else partitioner
    if not callable(function):
        raise TypeError(
            f"a partitioner must be an object with partition(topic, key, value, cluster) or a function of these, "
            f"not {partitioner!r}"
        )
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"the partitioner {_name(partitioner)} must not be a coroutine function: send() needs its result at once"
        )
    return function


def check_partition(answer: object, topic: str, partition_count: int, partitioner: object) -> int:
    """Return the result of a user's partitioner as an int; integers of other libraries (``numpy.int64``) are accepted.

    Raises:
        InvalidPartitionError: it is no integer, or the topic does not have that partition.
    """
    # The type is checked first: an isinstance check against SupportsIndex takes longer than all else for a record.
    if type(answer) is not int and (isinstance(answer, bool) or not isinstance(answer, SupportsIndex)):
        raise InvalidPartitionError(
            f"the partitioner {_name(partitioner)} must return an int, but returned {answer!r} "
            f"({type(answer).__name__}) for topic {topic!r}"
        )
    partition = operator.index(answer)
    if not 0 <= partition < partition_count:
        raise InvalidPartitionError(
            f"the partitioner {_name(partitioner)} returned partition {partition} for topic {topic!r}, which has "
            f"partitions 0 to {partition_count - 1}"
        )
    return partition


def _name(partitioner: object) -> str:
    """Return the partitioner's name for an error: that of the function, or of the object's class."""
    owner = getattr(partitioner, "__self__", None)
    if owner is not None:
        return type(owner).__qualname__
    return getattr(partitioner, "__qualname__", None) or type(partitioner).__qualname__
