"""Compiled. ``RecordTurns``: which partition's records are decoded and returned next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aioproducer.core.fetching.buffer import FetchedBatches
    from aioproducer.core.fetching.columns import RecordColumns
    from aioproducer.core.fetching.memory import FetchBuffer
    from aioproducer.core.fetching.partition import AssignedPartition
    from aioproducer.core.fetching.records import ConsumerRecord
    from aioproducer.record import TopicPartition


class RecordTurns:
    """The prefetched records of all partitions that are not paused: batches in turn, then records for the caller.

    Args:
        buffer: counts the bytes in memory.
    """

    __slots__ = ("_buffer", "_only", "_outstanding", "_turns", "ready", "returned")

    def __init__(self, buffer: FetchBuffer) -> None:
        self._buffer: Final = buffer
        # Partitions with prefetched batches, in the order of their turns.
        self._turns: dict[TopicPartition, AssignedPartition] = {}
        self.ready: Final[dict[TopicPartition, AssignedPartition]] = {}
        """Partitions with ready records, in the order in which they are returned."""
        self.returned = 0
        """Number of records that were returned to the caller."""
        # Partitions with returned records that do not count as processed yet.
        self._outstanding: dict[TopicPartition, AssignedPartition] = {}
        # The partition of the only outstanding record, if it has the next turn.
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
        self._only = None

    def forget(self, partition: AssignedPartition) -> None:
        """Forget a partition that is no longer assigned, or the records of its deleted topic."""
        self.hold_back(partition)
        self._outstanding.pop(partition.name, None)

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

    def decode(self, limit: int, most_bytes: int) -> bool:
        """Make at most ``limit`` further records ready for the caller as they are, of several batches if necessary.

        It ends early with the last prefetched batch, behind ``most_bytes``, or when records occupy their part of the
        memory. Return False if ``next_batches`` must be decompressed in a thread first.

        Raises:
            ProtocolError: ``next_batches`` cannot be read.
            ConfigurationError: the codec's library is not installed.
        """
        buffer = self._buffer
        while limit > 0 and most_bytes > 0 and (not self.ready or buffer.may_decode):
            batches = self.next_batches()
            if batches is None:
                break
            if not self._open(batches):
                return False
            reader = batches.reader
            if reader is not None:
                place = reader.place
                count = batches.read_ready(limit, most_bytes)
                most_bytes -= reader.place - place
                if count:
                    limit -= count
                    partition = batches.partition
                    if not partition.is_paused:
                        self.ready[partition.name] = partition
                if batches.is_batch_read():
                    self.end_turn(batches)
        return True

    def decode_raw(self, limit: int, most_bytes: int) -> bool:
        """Decode at most ``limit`` further records of ``next_batches`` into ``raw``, if it is empty. As ``decode``."""
        batches = self.next_batches()
        if batches is None:
            return True
        if not self._open(batches):
            return False
        if batches.reader is not None and not batches.raw:
            batches.read(limit, most_bytes)
        return True

    def decode_columns(self, columns: RecordColumns, limit: int, most_bytes: int) -> bool:
        """Return further records as rows, until ``columns`` has ``limit`` of them or ``most_bytes``. As ``decode``.

        It also ends after each batch without rows: there may be many.
        """
        while columns.count < limit and columns.size < most_bytes:
            batches = self.next_batches()
            if batches is None:
                break
            if not self._open(batches):
                return False
            if batches.reader is not None:
                partition = batches.partition
                self._outstanding[partition.name] = partition
                self._only = None
                before = columns.count
                batches.read_columns(columns, limit - before, most_bytes - columns.size)
                self.returned += columns.count - before
                if batches.is_batch_read():
                    self.end_turn(batches)
            if not columns.count:
                break
        return True

    def _open(self, batches: FetchedBatches) -> bool:
        """Open the next batch, with its body, if the batch before was read; finish ``batches`` at their end.

        Return False if the open batch must be decompressed in a thread first.
        """
        if batches.batch is None or batches.is_batch_read():
            partition = batches.partition
            was_full = partition.is_full()
            if batches.open_batch() is None:
                self.finish(batches)
                self._buffer.has_room_again = True
                return True
            if was_full and not partition.is_full():
                self._buffer.has_room_again = True
        return batches.open_body()

    def end_turn(self, batches: FetchedBatches) -> None:
        """Let the next partition have its turn, after a batch."""
        if len(self._turns) > 1:
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
            self.returned += len(records)
            self._outstanding[name] = partition
            self._only = None
            if not partition.ready:
                del self.ready[name]
        return taken

    def take_run(self, limit: int) -> list[ConsumerRecord]:
        """Return at most ``limit`` ready records of one partition; the position moves behind them."""
        for name, partition in self.ready.items():
            records = partition.take(limit)
            self.returned += len(records)
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
            self.returned += 1
            self._only = None if self._outstanding else partition
            self._outstanding[name] = partition
            if not partition.ready:
                del self.ready[name]
                self._only = None
            return record
        return None

    def next_one(self) -> ConsumerRecord | None:
        """Let the returned records count as processed, and return the next ready record."""
        only = self._only
        if only is not None and len(only.ready) > 1:
            # One record after the other of one partition: all that mark_processed and take_one would do.
            self.returned += 1
            return only.take_next()
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
