"""Compiled. The queues between ``append`` and ``drain``: one for each partition, grouped by topic and by leader."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aioproducer._common.texts import counted
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.batching.producer_state import PartitionSequences
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.partitioner import PartitionLoad, StickyPartitioner
from aioproducer.record import TopicPartition
from aioproducer.wire.record_batch import Buffer

# (topic, key, value) -> partition, or None for the sticky partition.
PartitionChoice = Callable[[str, Buffer | None, Buffer | None], int | None]

# The batches of all partitions that have none: a deque is most of the memory that a partition takes.
NO_BATCHES: deque[ProducerBatch] = deque(maxlen=0)
# Shared by topics, read only: no waiting records.
NO_WAITERS: Final[OrderedDict[PendingRecord, None]] = OrderedDict()


# The states of a partition.
IDLE, READY, LEADERLESS, HELD, BACKING_OFF, MUTED = range(6)

STATE_NAMES = ("idle", "ready", "leaderless", "held", "backing off", "muted")

NEXT_STATES: Mapping[int, tuple[int, ...]] = {
    IDLE: (IDLE, READY, LEADERLESS, HELD, BACKING_OFF, MUTED),
    READY: (IDLE, BACKING_OFF),
    LEADERLESS: (IDLE, BACKING_OFF),
    HELD: (IDLE, LEADERLESS, BACKING_OFF),
    BACKING_OFF: (IDLE,),
    MUTED: (IDLE,),
}
"""The states that may follow each state of a partition. ``drain`` makes a ready partition idle while it drains it."""

# The same as one number, for ``set_state``: eight bits for each state. A C integer in the compiled module.
_TRANSITIONS = sum([1 << 8 * old + new for old, states in NEXT_STATES.items() for new in states])


class NodeQueue:
    """The partitions led by one broker that have a batch to send, in the order in which they became ready.

    A partition with more to send than one batch goes to the back; if its batch did not fit into the request, it stays
    in front. Therefore every ready partition is served, and partitions with nothing to send cost nothing.
    """

    __slots__ = ("node_id", "ready", "waiting_since")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.ready: OrderedDict[PartitionQueue, None] = OrderedDict()
        # Loop time since which a batch is ready without being drained, or None (partitioner.availability.timeout.ms).
        self.waiting_since: float | None = None


class PartitionQueue:
    """The batches of one partition, oldest first: retried ones in sequence order, closed ones, then the open one.

    ``state`` is the reason why the oldest batch is not sent; ``ReadyPartitions`` sets it:

    IDLE
        There is no batch, or the oldest batch lingers or is being compressed.
    READY
        The batch may be sent: the partition is in the queue of its leader.
    LEADERLESS
        The batch could be sent, but the partition has no leader.
    HELD
        ``ProducerState`` does not allow the batch: earlier batches have to end first, or there is no producer id.
    BACKING_OFF
        An attempt failed: the partition waits until ``backoff_until``.
    MUTED
        A batch of the partition is on the wire, where only one is allowed (order without idempotence).
    """

    __slots__ = (
        "backoff_until",
        "batches",
        "last_batch_size",
        "node",
        "on_wire",
        "open_batch",
        "partition",
        "sequences",
        "state",
        "topic",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, sequences: PartitionSequences) -> None:
        self.topic_partition = topic_partition
        # Its two fields, which are read for every batch.
        self.topic, self.partition = topic_partition
        self.sequences = sequences
        # NO_BATCHES while there is none; ``own_batches`` creates a deque.
        self.batches = NO_BATCHES
        self.open_batch: ProducerBatch | None = None
        self.node: NodeQueue | None = None
        self.state = IDLE
        # Number of the partition's batches on the wire.
        self.on_wire = 0
        self.backoff_until = 0.0
        # Bytes of records in the last closed batch: the next one will have about as many.
        self.last_batch_size = 0

    def set_state(self, state: int) -> None:
        """Change the state.

        Raises:
            AssertionError: ``state`` may not follow the partition's state.
        """
        if not _TRANSITIONS >> 8 * self.state + state & 1:
            raise AssertionError(f"{self!r} cannot become {STATE_NAMES[state]}")
        self.state = state

    def own_batches(self) -> deque[ProducerBatch]:
        """Return the batches as a deque that one can be added to."""
        if self.batches is NO_BATCHES:
            self.batches = deque()
        return self.batches

    def take(self) -> None:
        """Remove the oldest batch."""
        self.batches.popleft()
        if not self.batches:
            self.batches = NO_BATCHES

    def insert(self, batches: list[ProducerBatch]) -> None:
        """Put batches back in front, in the order of their sequences; those without one in the order of creation."""
        in_flight = self.sequences.in_flight
        positions = {id(each): position for position, each in enumerate(in_flight)}

        def order(each: ProducerBatch) -> tuple[int, tuple[int, ...]]:
            return positions.get(id(each), len(in_flight)), each.order

        waiting = self.own_batches()
        for batch in sorted(batches, key=order, reverse=True):
            # Few waiting batches precede this one: only those that were sent before.
            before = []
            while waiting and order(waiting[0]) < order(batch):
                before.append(waiting.popleft())
            waiting.appendleft(batch)
            waiting.extendleft(reversed(before))

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a batch if the queue contains it."""
        if batch in self.batches:
            self.batches.remove(batch)
            if not self.batches:
                self.batches = NO_BATCHES

    def __repr__(self) -> str:
        return (
            f"<PartitionQueue {self.topic_partition}: {counted(len(self.batches), 'batch')}, {STATE_NAMES[self.state]}>"
        )


class TopicQueues:
    """The state of a topic that ``append`` reads."""

    __slots__ = (
        "_available",
        "blocked_count",
        "leaders",
        "load_at",
        "metadata_waiters",
        "name",
        "partitions",
        "sized_at",
        "spare",
        "sticky",
        "unknown_partition_waiters",
        "use_recorded_at",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        # By partition, empty until metadata arrives. A partition has no queue before its first record: most of very
        # many partitions never have one. ``Topics.queue`` creates it.
        self.partitions: list[PartitionQueue | None] = []
        # By partition: the queue of its leader, None without one.
        self.leaders: list[NodeQueue | None] = []
        # Queues by number of partitions that the topic no longer has: it was re-created with fewer.
        self.spare: dict[int, PartitionQueue] = {}
        self.sticky: StickyPartitioner | None = None
        self.load_at = 0.0
        # Loop time when metadata last contained the number of partitions.
        self.sized_at = 0.0
        # Loop time when the topic's use was last recorded in the metadata.
        self.use_recorded_at = float("-inf")
        # The numbers of the partitions that have a leader; None if they have to be determined again.
        self._available: Sequence[int] | None = None
        # Records that wait for metadata or an async serializer; blocked_count also counts those that wait for memory.
        # While there is one, later records of the topic wait behind it.
        self.metadata_waiters = NO_WAITERS
        self.blocked_count = 0
        # Records for partitions that the topic does not have, or not yet: they block no other record.
        self.unknown_partition_waiters = NO_WAITERS

    def own_metadata_waiters(self) -> OrderedDict[PendingRecord, None]:
        """Return the waiters for metadata as a collection that a record can be added to."""
        if self.metadata_waiters is NO_WAITERS:
            self.metadata_waiters = OrderedDict()
        return self.metadata_waiters

    def own_unknown_partition_waiters(self) -> OrderedDict[PendingRecord, None]:
        """Return the waiters for an unknown partition as a collection that a record can be added to."""
        if self.unknown_partition_waiters is NO_WAITERS:
            self.unknown_partition_waiters = OrderedDict()
        return self.unknown_partition_waiters

    def clear_waiters(self) -> None:
        """Drop the empty collections: no record waits any more."""
        self.metadata_waiters = self.unknown_partition_waiters = NO_WAITERS

    def has_partition(self, partition: int | None) -> bool:
        """Return whether metadata contains the topic with this partition, or with any for ``None``."""
        return bool(self.partitions) and (partition is None or partition < len(self.partitions))

    def resize(self, partition_count: int) -> None:
        """Set the number of partitions; the queues of those that disappear are kept in case they return."""
        self.leaders_changed()
        partitions = self.partitions
        for queue in partitions[partition_count:]:
            if queue is not None:
                self.spare[queue.partition] = queue
        del partitions[partition_count:]
        del self.leaders[partition_count:]
        missing = partition_count - len(partitions)
        partitions += [None] * missing
        self.leaders += [None] * missing
        for number in [number for number in self.spare if number < partition_count]:
            queue = self.spare.pop(number)
            partitions[number] = queue
            self.leaders[number] = queue.node

    def queues(self) -> list[PartitionQueue]:
        """Return the queues that exist, those of partitions that the topic no longer has included."""
        return [queue for queue in (*self.partitions, *self.spare.values()) if queue is not None]

    def is_idle(self) -> bool:
        """Return whether no record or batch of the topic waits, in this producer or at a broker."""
        return not (self.blocked_count or self.unknown_partition_waiters) and not any(
            queue.batches or queue.on_wire or queue.sequences.in_flight for queue in self.queues()
        )

    def leaders_changed(self) -> None:
        """Determine the partitions with a leader again: a leader was elected, has changed or is gone."""
        self._available = None
        self.load_at = 0.0

    def load(
        self, now: float, *, adaptive: bool, availability_timeout: float, rack_of: Callable[[int], str | None] | None
    ) -> PartitionLoad:
        """Return the input of the partitioner (KIP-794, KIP-1123)."""
        partitions, leaders = self.partitions, self.leaders
        available = self._available
        if available is None:
            # Nearly always all partitions have a leader.
            available = range(len(leaders))
            if None in leaders:
                available = tuple([number for number in available if leaders[number] is not None])
            self._available = available
        queue_sizes: list[int] | None = None
        slow: set[int] = set()
        if adaptive and available:
            queues = [partitions[number] for number in available]
            queue_sizes = [0 if queue is None else len(queue.batches) for queue in queues]
            if min(queue_sizes) == max(queue_sizes):
                queue_sizes = None
            if availability_timeout > 0:
                slow = {
                    number
                    for number in available
                    if (node := leaders[number]) is not None
                    and node.waiting_since is not None
                    and now - node.waiting_since > availability_timeout
                }
        racks: list[str | None] | None = None
        if rack_of is not None:
            racks = [None if (node := leaders[number]) is None else rack_of(node.node_id) for number in available]
        return PartitionLoad(len(partitions), available, queue_sizes, racks, slow)
