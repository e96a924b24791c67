"""``RecordTurns``: which partition's records are decoded and returned next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.core.fetching.partition import FetchPosition
from aioproducer.core.metadata.cluster import NO_EPOCH

if TYPE_CHECKING:
    from aioproducer.core.fetching.buffer import FetchedBatches
    from aioproducer.core.fetching.columns import RecordColumns
    from aioproducer.core.fetching.partition import AssignedPartition
    from aioproducer.core.fetching.records import ConsumerRecord
    from aioproducer.record import TopicPartition

# FetchPosition's own __new__ is a Python function.
_new = tuple.__new__


class RecordTurns:
    """The prefetched records of all partitions that are not paused: batches in turn, then records for the caller."""

    __slots__ = ("_only", "_outstanding", "_turns", "ready")

    def __init__(self) -> None:
        # Partitions with prefetched batches, in the order of their turns.
        self._turns: dict[TopicPartition, AssignedPartition] = {}
        self.ready: Final[dict[TopicPartition, AssignedPartition]] = {}
        """Partitions with ready records, in the order in which they are returned."""
        # Partitions with returned records that do not count as processed yet.
        self._outstanding: dict[TopicPartition, AssignedPartition] = {}
        # The partition of the only outstanding record, where there is one.
        self._only: AssignedPartition | None = None

    def offer(self, partition: AssignedPartition) -> None:
        """Give a partition its turns, at the end, if it has records and is not paused."""
        if partition.is_paused:
            return
        if partition.buffered:
            self._turns.setdefault(partition.name, partition)
        if partition.ready:
            self.ready.setdefault(partition.name, partition)

    def hold_back(self, partition: AssignedPartition) -> None:
        """Give a partition no turns: it is paused, or its records are dropped."""
        self._turns.pop(partition.name, None)
        self.ready.pop(partition.name, None)

    def forget(self, partition: AssignedPartition) -> None:
        """Forget a partition that is no longer assigned, or the records of its deleted topic."""
        self.hold_back(partition)
        self._outstanding.pop(partition.name, None)
        self._only = None

    def next_batches(self) -> FetchedBatches | None:
        """Return the data whose turn it is, None if no batch is prefetched."""
        for partition in self._turns.values():
            return partition.buffered[0]
        return None

    def record_ready(self, batches: FetchedBatches, record: ConsumerRecord) -> None:
        """Make ``record``, the first of ``raw`` in its final form, ready for the caller."""
        partition = batches.partition
        partition.ready.append(record)
        batches.pass_record()
        if not partition.is_paused:
            self.ready[partition.name] = partition

    def all_ready(self, batches: FetchedBatches) -> int:
        """Make all of ``raw`` ready for the caller, as they are; return how many."""
        count = len(batches.raw)
        if count:
            partition = batches.partition
            partition.ready.extend(batches.raw)
            batches.pass_all()
            if not partition.is_paused:
                self.ready[partition.name] = partition
        return count

    def read_columns(self, batches: FetchedBatches, columns: RecordColumns, limit: int, most_bytes: int) -> None:
        """Return at most ``limit`` further records of the open batch as rows of ``columns``.

        Raises:
            ProtocolError: the next record is malformed.
        """
        self._outstanding[batches.partition.name] = batches.partition
        self._only = None
        batches.read_columns(columns, limit, most_bytes)

    def end_turn(self, batches: FetchedBatches) -> None:
        """Let the next partition have its turn, after a batch."""
        partition = self._turns.pop(batches.partition.name, None)
        if partition is not None:
            self._turns[partition.name] = partition

    def finish(self, batches: FetchedBatches) -> None:
        """Drop data that were read to the end."""
        if batches.is_dropped:
            return
        partition = batches.partition
        assert partition.buffered[0] is batches
        partition.buffered.popleft()
        batches.drop()
        self._turns.pop(partition.name, None)
        self.offer(partition)

    def ready_count(self) -> int:
        """Return how many records are ready for the caller."""
        return sum([len(each.ready) for each in self.ready.values()])

    def take(self, limit: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return at most ``limit`` ready records; the positions move behind them."""
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        for name, partition in list(self.ready.items()):
            if limit <= 0:
                break
            records = taken[name] = partition.take(limit)
            limit -= len(records)
            self._outstanding[name] = partition
            self._only = None
            if not partition.ready:
                del self.ready[name]
        return taken

    def take_run(self, limit: int) -> list[ConsumerRecord]:
        """Return at most ``limit`` ready records of one partition; the position moves behind them."""
        for name, partition in self.ready.items():
            records = partition.take(limit)
            self._outstanding[name] = partition
            self._only = None
            if not partition.ready:
                del self.ready[name]
            return records
        return []

    def take_one(self) -> ConsumerRecord | None:
        """Return the next ready record; the position moves behind it."""
        for name, partition in self.ready.items():
            record = partition.take_one()
            self._only = None if self._outstanding else partition
            self._outstanding[name] = partition
            if not partition.ready:
                del self.ready[name]
            return record
        return None

    def next_one(self) -> ConsumerRecord | None:
        """Let the returned records count as processed, and return the next ready record."""
        for partition in self.ready.values():
            if partition is self._only and len(partition.ready) > 1:
                # One record after the other of one partition: all that mark_processed and take_one would do.
                partition.processed = partition.position
                record = partition.ready.popleft()
                epoch = record.leader_epoch
                partition.position = _new(FetchPosition, (record.offset + 1, NO_EPOCH if epoch is None else epoch))
                return record
            break
        self.mark_processed()
        return self.take_one()

    def in_progress(self, partition: AssignedPartition) -> bool:
        """Return whether returned records of a partition do not count as processed yet."""
        return partition.name in self._outstanding

    def mark_processed(self) -> None:
        """Let the returned records count as processed: the next ones are requested."""
        for partition in self._outstanding.values():
            partition.processed = partition.position
        self._outstanding.clear()
        self._only = None
