"""Which partition a record goes to.

A record's own partition wins. Else a partitioner the user configured is asked. Else a record with a key goes to
``murmur2(key) % partition_count`` over *all* partitions, with or without a leader, so that a key keeps its partition
whatever the brokers do (``aioproducer.wire.murmur2.partition_for_key``), unless ``partitioner_ignore_keys`` is set.
What is left, records without a key, goes where `StickyPartitioner` says.
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
    """What the sticky choice knows of a topic at one moment. The columns are kept: do not change them afterwards.

    partition_count
        The number of partitions of the topic, at least 1.
    available
        The partitions that have a leader.
    queue_sizes
        For each of ``available``, in its order, how many batches wait to be sent. None without adaptive partitioning
        (``partitioner_adaptive_partitioning_enable=False``) or while nothing is known: the choice is uniform then.
    leader_racks
        For each of ``available`` the rack of its leader. None without ``partitioner_rack_aware``.
    slow
        Those of ``available`` whose broker has had batches ready but took none for longer than
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
            raise ValueError(f"partition_count must be at least 1, but is {partition_count}")
        for name, column in (("queue_sizes", queue_sizes), ("leader_racks", leader_racks)):
            if column is not None and len(column) != len(available):
                raise ValueError(f"{name} has {len(column)} entries for {len(available)} available partitions")
        self.partition_count: Final = partition_count
        self.available: Final = available
        self.queue_sizes: Final = queue_sizes
        self.leader_racks: Final = leader_racks
        self.slow: Final = slow


class StickyPartitioner:
    """The partition that one topic's keyless records go to for the time being (KIP-480, KIP-794, KIP-1123).

    Kafka's ``BuiltInPartitioner``: it stays on ``partition`` until about ``sticky_size`` bytes (the producer's
    ``batch_size``) were appended to it and then draws the next one. Counting bytes rather than batches gives every
    partition the same bytes over time, where a slow broker's partition would otherwise collect larger batches and so
    ever more load. With queue sizes the draw is weighted: the longer a partition's queue, the less likely it is.

    ``partition`` and ``produced_bytes`` are plain attributes for the accumulator to read; ``rack`` is the client's.
    """

    __slots__ = ("_candidates", "_frequencies", "_random", "partition", "produced_bytes", "rack", "sticky_size")

    def __init__(self, sticky_size: int, load: PartitionLoad, random: Random, rack: str | None = None) -> None:
        if sticky_size < 1:
            raise ValueError(f"sticky_size must be at least 1, but is {sticky_size}")
        self.sticky_size: int = sticky_size
        self.rack: str | None = rack
        self.produced_bytes: int = 0
        self._random: Random = random
        self._candidates: Sequence[int] = ()
        self._frequencies: Sequence[int] | None = None
        self._tabulate(load)
        self.partition: int = self.next_partition()

    def update(self, appended_bytes: int, enable_switch: bool = True) -> bool:
        """Count bytes appended to ``partition`` and move on when they are enough: True when a new turn began.

        ``enable_switch`` says that the partition's last batch is complete (nobody appends to it any more). Moving on
        from a batch half filled would leave it to go out small when its linger ends: with a long linger every second
        batch would. So without it the turn lasts on, but for no more than twice ``sticky_size``.
        """
        self.produced_bytes += appended_bytes
        if self.produced_bytes < self.sticky_size:
            return False
        if not enable_switch and self.produced_bytes < 2 * self.sticky_size:
            return False
        self.switch()
        return True

    def switch(self) -> None:
        """Begin a new turn now: draw a partition (maybe the same again) and count its bytes from 0."""
        self.partition = self.next_partition()
        self.produced_bytes = 0

    def next_partition(self) -> int:
        """Draw a partition by the latest load, without moving to it."""
        # A fraction times a number is below the number, and asked of C: ``randrange`` takes three calls in Python.
        drawn = self._random.random()
        if self._frequencies is None:
            return self._candidates[int(drawn * len(self._candidates))]
        return self._candidates[bisect_right(self._frequencies, int(drawn * self._frequencies[-1]))]

    def refresh(self, load: PartitionLoad) -> None:
        """Take in new queue sizes, leaders or partitions. O(partitions): meant for now and then, not for each record.

        The current turn goes on, also where its partition has become slow, unless the topic no longer has that
        partition (deleted and created with fewer). Where it has lost its leader the caller ends it.
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
        """Which of ``load.available`` may be drawn, by position: no slow broker's, and those of the rack."""
        positions: Sequence[int] = range(len(load.available))
        if load.slow:
            positions = [i for i in positions if load.available[i] not in load.slow] or positions
        if self.rack is not None and load.leader_racks is not None:
            positions = [i for i in positions if load.leader_racks[i] == self.rack] or positions
        return positions


def _cumulative_frequencies(queue_sizes: Sequence[int]) -> Sequence[int] | None:
    """KIP-794's table: the weight of a partition is ``longest queue + 1 - its queue``, summed up from the left.

    Queues of 0, 3 and 1 batches weigh 4, 1 and 3; the table is 4, 5, 8. A number drawn below 8 belongs to the first
    entry above it. None when all weigh the same.
    """
    longest = max(queue_sizes)
    if longest == min(queue_sizes):
        return None
    return list(accumulate(map((longest + 1).__sub__, queue_sizes)))


class ClusterView(Protocol):
    """The cluster as a partitioner may see it: a read-only view of the producer's metadata, cheap to ask per record."""

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """All partitions of the topic, ordered by number; empty when the topic is not known."""
        ...

    def available_partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Those of the topic's partitions that have a leader, ordered by number."""
        ...

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has, with or without a leader; 0 when it is not known."""
        ...

    def node(self, node_id: int) -> Node | None:
        """The broker of that id, or None when metadata does not list it."""
        ...

    def nodes(self) -> Sequence[Node]:
        """The brokers that metadata lists."""
        ...


PartitionFunction: TypeAlias = Callable[[str, bytes | None, bytes | None, ClusterView], int]
"""``(topic, key, value, cluster) -> partition``; key and value as the serializers gave them."""


@runtime_checkable
class Partitioner(Protocol):
    """A user's partitioner: an object with this method, or a plain function of the same arguments."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView) -> int:
        """The partition for a record that names none itself; key and value are bytes from the serializers.

        Asked only for topics that ``cluster`` knows. Called as the record is placed: it must not block. What it
        raises, the caller of ``send`` gets.
        """
        ...


class RoundRobinPartitioner:
    """Every record to the next partition in turn, whatever its key (Kafka's ``RoundRobinPartitioner``, KIP-369).

    Each topic has a counter of its own. Partitions without a leader are passed over while any other has one.
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
    """The function to call for a configured partitioner: an object or a class with ``partition``, or a callable.

    A class is instantiated without arguments. Raises TypeError for anything else, and for a coroutine function: a
    record's place is decided before ``send`` returns.
    """
    if inspect.isclass(partitioner):
        partitioner = partitioner()
    function = partitioner.partition if isinstance(partitioner, Partitioner) else partitioner
    if not callable(function):
        raise TypeError(
            f"a partitioner is an object with partition(topic, key, value, cluster) or a function of these, "
            f"not {partitioner!r}"
        )
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{_name(partitioner)} is a coroutine function; a partitioner must answer at once")
    return function


def check_partition(answer: object, topic: str, partition_count: int, partitioner: object) -> int:
    """The answer of a user's partitioner as an int, if it is one and the topic has that partition.

    Whole numbers of other libraries (``numpy.int64``) will do. Raises InvalidPartitionError, saying what came.
    """
    # To ask whether it is a SupportsIndex takes longer than all else that is done for a record.
    if type(answer) is not int and (isinstance(answer, bool) or not isinstance(answer, SupportsIndex)):
        raise InvalidPartitionError(
            f"{_name(partitioner)} answered {answer!r} ({type(answer).__name__}) for topic {topic!r}; "
            f"a partition is an int"
        )
    partition = operator.index(answer)
    if not 0 <= partition < partition_count:
        raise InvalidPartitionError(
            f"{_name(partitioner)} answered partition {partition} for topic {topic!r}, which has partitions 0 to "
            f"{partition_count - 1}"
        )
    return partition


def _name(partitioner: object) -> str:
    """How the partitioner is called in an error: the function's name, or its object's class."""
    owner = getattr(partitioner, "__self__", None)
    if owner is not None:
        return type(owner).__qualname__
    return getattr(partitioner, "__qualname__", None) or type(partitioner).__qualname__
