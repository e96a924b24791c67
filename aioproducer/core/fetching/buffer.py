"""Prefetched batches in the order in which they are returned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from aioproducer.compression import codec
from aioproducer.core.fetching.memory import RECORD_OVERHEAD, FetchedResponse
from aioproducer.core.fetching.partition import FetchPosition
from aioproducer.core.fetching.records import BatchReader, ConsumerRecord
from aioproducer.core.metadata.cluster import NO_EPOCH
from aioproducer.errors import ProtocolError
from aioproducer.wire.aborted_filter import AbortedFilter
from aioproducer.wire.record_batch import (
    BATCH_HEADER_SIZE,
    LEAST_BATCH_LENGTH_OF_ANY_MAGIC,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    RecordBatch,
    iter_batches,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioproducer.core.fetching.columns import RecordColumns
    from aioproducer.core.fetching.partition import AssignedPartition
    from aioproducer.wire.record_batch import Buffer

_INT32 = Struct(">i")

LARGEST_BATCH = 256 * 1024 * 1024
"""Bytes that a batch may have when it is decompressed."""


class FetchedBatches:
    """The batches of one partition in one response, and how far they were decoded.

    A batch takes four steps: ``open_batch``, ``set_body`` with its decompressed records, ``read``, and ``pass_record``
    for each decoded record. Between them the driver may wait, and may be cancelled.

    Args:
        first: records before this offset are skipped.
        aborted: first offset and producer id of each aborted transaction, for ``read_committed`` only.
    """

    __slots__ = (
        "_aborted",
        "_batches",
        "_body_size",
        "_buffer",
        "_check_crcs",
        "_last_opened",
        "_response",
        "batch",
        "first",
        "is_dropped",
        "left",
        "partition",
        "raw",
        "reader",
    )

    def __init__(
        self,
        partition: AssignedPartition,
        response: FetchedResponse,
        records: Buffer,
        first: int,
        aborted: Sequence[tuple[int, int]],
        *,
        check_crcs: bool,
    ) -> None:
        self.partition: Final = partition
        self.left = len(records)
        """Bytes behind the batches that were opened so far."""
        self.first = first
        self.is_dropped = False
        self.batch: RecordBatch | None = None
        self.reader: BatchReader | None = None
        self.raw: deque[ConsumerRecord] = deque()
        """Decoded records that are not deserialized yet."""
        self._check_crcs = check_crcs
        self._batches: Iterator[RecordBatch] = iter_batches(records)
        self._aborted = AbortedFilter(aborted) if aborted else None
        self._response: FetchedResponse | None = response
        self._buffer: Final = response.buffer
        # The batch that was opened last, readable or not.
        self._last_opened: RecordBatch | None = None
        # Bytes of the open batch's body that count as decoded.
        self._body_size = 0
        response.hold()

    def drop(self) -> None:
        """Release the memory."""
        if not self.is_dropped:
            self.is_dropped = True
            self._batches = iter(())
            self._close_batch()
            self._last_opened = None
            self.raw.clear()
            assert self._response is not None
            self._response.drop()
            self._response = None

    def _close_batch(self) -> None:
        self.batch = self.reader = None
        self._buffer.release_decoded(self._body_size)
        self._body_size = 0

    def open_batch(self) -> RecordBatch | None:
        """Return the batch to read, checked; None at the end. Batches without records for the caller are passed over.

        Raises:
            ProtocolError: the batch is corrupt.
        """
        if self.batch is not None:
            if not self.is_batch_read:
                return self.batch
            self._close_batch()
        for batch in self._batches:
            self.left -= batch.size_in_bytes
            self._last_opened = batch
            if batch.last_offset < self.first:
                continue
            stop = self.partition.stop
            if stop is not None and batch.base_offset >= stop:
                break
            if self._check_crcs:
                batch.validate()
            is_dropped = self._aborted is not None and self._aborted.drops(batch)
            if not (is_dropped or batch.is_control):
                self.batch = batch
                return batch
            self.partition.passed(position_behind(batch))
        return None

    def offset_behind_unreadable(self) -> int | None:
        """Return the offset behind the batch that cannot be read, None if it cannot be told."""
        batch = self._last_opened
        if batch is None:
            return None
        try:
            following = next(self._batches, None)
        except ProtocolError:
            following = None
        # The header itself may be corrupt: the next batch is the better witness.
        behind = batch.next_offset if following is None else following.base_offset
        if 0 <= self.partition.high_watermark < behind:
            behind = self.partition.high_watermark
        return behind if behind > self.first else None

    def set_body(self, body: bytes | memoryview) -> None:
        """Set the decompressed body of the open batch."""
        assert self.batch is not None
        assert self.reader is None
        self.reader = BatchReader(self.batch, body, self.first, self.partition.stop)
        self._body_size = len(body)
        self._buffer.decoded += self._body_size

    def read(self, limit: int, most_bytes: int = LARGEST_BATCH) -> None:
        """Decode at most ``limit`` further records of the open batch into ``raw``, and none behind ``most_bytes``.

        Raises:
            ProtocolError: a record is malformed.
        """
        assert self.reader is not None
        assert self.batch is not None
        place = self.reader.place
        records = self.reader.read(*self.partition.name, limit, most_bytes)
        self.raw.extend(records)
        self.partition.hold_decoded(self.reader.place - place + len(records) * RECORD_OVERHEAD)
        if self.is_batch_read:
            # Compaction has removed every record that the caller has not read.
            self.partition.passed(position_behind(self.batch))

    def read_columns(self, columns: RecordColumns, limit: int, most_bytes: int) -> None:
        """As ``read``, into the rows of ``columns``; the position moves behind them.

        Raises:
            ProtocolError: the next record is malformed.
        """
        assert self.reader is not None
        assert self.batch is not None
        assert not self.raw
        partition = self.partition
        assert not partition.ready
        rows = columns.read(partition.name, self.reader, limit, most_bytes)
        if rows:
            epoch = NO_EPOCH if self.reader.epoch is None else self.reader.epoch
            partition.returned(FetchPosition(columns.last_offset + 1, epoch))
        if self.is_batch_read:
            partition.passed(position_behind(self.batch))

    @property
    def is_batch_read(self) -> bool:
        """Whether every record of the open batch has passed."""
        return not self.raw and self.reader is not None and self.reader.is_at_end

    def pass_all(self) -> None:
        """As ``pass_record`` for all of ``raw``; the caller appends them to the partition's ``ready`` before."""
        last = self.raw.pop()
        self.raw.clear()
        self._pass(last)

    def pass_record(self) -> ConsumerRecord:
        """Remove the first record of ``raw``; the position behind it, or behind the batch, becomes that of ``ready``.

        The caller appends the record to the partition's ``ready`` before, unless it is skipped.
        """
        record = self.raw.popleft()
        self._pass(record)
        return record

    def _pass(self, record: ConsumerRecord) -> None:
        batch = self.batch
        if batch is not None and self.is_batch_read:
            # Compaction may have removed the last records of the batch.
            self.partition.passed(position_behind(batch))
        else:
            epoch = NO_EPOCH if record.leader_epoch is None else record.leader_epoch
            self.partition.passed(FetchPosition(record.offset + 1, epoch))


def decompressed(batch: RecordBatch) -> bytes | memoryview:
    """Return the body of a batch, decompressed; it may run in a thread. Without a codec it is a view of the batch.

    Raises:
        ProtocolError: the data are malformed or larger than ``LARGEST_BATCH``.
        ConfigurationError: the codec's library is not installed.
    """
    body = batch.buffer[BATCH_HEADER_SIZE:]
    return codec(batch.compression_id).decompress(body, LARGEST_BATCH) if batch.compression_id else body


def position_behind(batch: RecordBatch) -> FetchPosition:
    """Return the position behind a batch."""
    return FetchPosition(batch.next_offset, batch.partition_leader_epoch)


def last_position(records: Buffer, first: int) -> FetchPosition | None:
    """Return the position behind the last whole batch, None if there is no whole batch that reaches ``first``.

    Only lengths are read up to the last batch: a response may have thousands of them.

    Raises:
        ProtocolError: a batch states an impossible length, or the last one is not of format version 2.
    """
    end = len(records)
    place, last = 0, -1
    while end - place > MAGIC_OFFSET:
        (length,) = _INT32.unpack_from(records, place + LENGTH_OFFSET)
        if length < LEAST_BATCH_LENGTH_OF_ANY_MAGIC:
            raise ProtocolError(f"a record batch states a length of {length} bytes, less than its header")
        if LOG_OVERHEAD + length > end - place:
            break
        last = place
        place += LOG_OVERHEAD + length
    if last < 0:
        return None
    position = position_behind(RecordBatch(memoryview(records)[last:]))
    return position if position.offset > first else None
