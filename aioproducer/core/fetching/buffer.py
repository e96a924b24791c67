"""Compiled. Prefetched batches in the order in which they are returned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from aioproducer._common.views import part_of
from aioproducer.compression import codec
from aioproducer.core.fetching.memory import RECORD_OVERHEAD, FetchedResponse
from aioproducer.core.fetching.partition import FetchPosition, position_at, position_behind_record
from aioproducer.core.fetching.records import BatchReader, ConsumerRecord
from aioproducer.core.metadata.cluster import NO_EPOCH
from aioproducer.errors import ProtocolError
from aioproducer.wire.aborted_filter import AbortedFilter
from aioproducer.wire.record_batch import (
    BATCH_HEADER_SIZE,
    CONTROL_FLAG,
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
THREAD_BYTES = 64 * 1024
"""Compressed bytes from which a batch is decompressed in a thread: below, waking a thread takes longer."""


class FetchedBatches:
    """The batches of one partition in one response, and how far they were decoded.

    A batch takes three steps: ``open_batch``, ``open_body`` or ``set_body`` with the decompressed records, and then
    ``read_ready`` or ``read_columns``; or, for deserializers, ``read`` and ``pass_record`` for each decoded record.
    Between them the driver may wait, and may be cancelled.

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
            if not self.is_batch_read():
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
            if not (is_dropped or batch.attributes & CONTROL_FLAG):
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

    def open_body(self) -> bool:
        """Decompress the open batch, unless that was done or takes long: return False if a thread must do it first.

        Raises:
            ProtocolError, ConfigurationError: as ``decompressed``.
        """
        batch = self.batch
        if self.reader is None and batch is not None:
            if batch.size_in_bytes >= THREAD_BYTES and batch.compression_id:
                return False
            self.set_body(decompressed(batch))
        return True

    def set_body(self, body: bytes | memoryview) -> None:
        """Set the decompressed body of the open batch."""
        assert self.batch is not None
        assert self.reader is None
        self.reader = BatchReader(self.batch, body, self.first, self.partition.stop)
        self._body_size = len(body)
        self._buffer.decoded += self._body_size

    def _decode(self, limit: int, most_bytes: int) -> list[ConsumerRecord]:
        reader = self.reader
        assert reader is not None
        place = reader.place
        topic, index = self.partition.name
        records = reader.read(topic, index, limit, most_bytes)
        self.partition.hold_decoded(reader.place - place + len(records) * RECORD_OVERHEAD)
        return records

    def read(self, limit: int, most_bytes: int = LARGEST_BATCH) -> None:
        """Decode at most ``limit`` further records of the open batch into ``raw``, and none behind ``most_bytes``.

        Raises:
            ProtocolError: a record is malformed.
        """
        self.raw.extend(self._decode(limit, most_bytes))
        if self.is_batch_read():
            # Compaction has removed every record that the caller has not read.
            assert self.batch is not None
            self.partition.passed(position_behind(self.batch))

    def read_ready(self, limit: int, most_bytes: int = LARGEST_BATCH) -> int:
        """As ``read``, but the records become ready for the caller as they are; return how many.

        Raises:
            ProtocolError: a record is malformed.
        """
        assert not self.raw
        records = self._decode(limit, most_bytes)
        self.partition.ready.extend(records)
        if records:
            self._pass(records[-1])
        elif self.is_batch_read():
            assert self.batch is not None
            self.partition.passed(position_behind(self.batch))
        return len(records)

    def read_columns(self, columns: RecordColumns, limit: int, most_bytes: int) -> int:
        """As ``read``, into the rows of ``columns``; the position moves behind them. Return the number of rows.

        Raises:
            ProtocolError: the next record is malformed.
        """
        reader, partition = self.reader, self.partition
        assert reader is not None
        assert self.batch is not None
        assert not self.raw
        assert not partition.ready
        rows = columns.read(partition.name, reader, limit, most_bytes)
        if reader.is_at_end:
            behind = position_behind(self.batch)
            if rows:
                partition.returned(behind)
            partition.passed(behind)
        elif rows:
            partition.returned(position_at(columns.last_offset + 1, NO_EPOCH if reader.epoch is None else reader.epoch))
        return rows

    def is_batch_read(self) -> bool:
        """Whether every record of the open batch has passed."""
        return not self.raw and self.reader is not None and self.reader.is_at_end

    def pass_record(self) -> ConsumerRecord:
        """Remove the first record of ``raw``; the position behind it, or behind the batch, becomes that of ``ready``.

        The caller appends the record to the partition's ``ready`` before, unless it is skipped.
        """
        record = self.raw.popleft()
        self._pass(record)
        return record

    def _pass(self, record: ConsumerRecord) -> None:
        batch = self.batch
        if batch is not None and self.is_batch_read():
            # Compaction may have removed the last records of the batch.
            self.partition.passed(position_behind(batch))
        else:
            self.partition.passed(position_behind_record(record))


def decompressed(batch: RecordBatch) -> bytes | memoryview:
    """Return the body of a batch, decompressed; it may run in a thread. Without a codec it is a view of the batch.

    Raises:
        ProtocolError: the data are malformed or larger than ``LARGEST_BATCH``.
        ConfigurationError: the codec's library is not installed.
    """
    body = part_of(batch.buffer, BATCH_HEADER_SIZE, batch.size_in_bytes - BATCH_HEADER_SIZE)
    return codec(batch.compression_id).decompress(body, LARGEST_BATCH) if batch.compression_id else body


def position_behind(batch: RecordBatch) -> FetchPosition:
    """Return the position behind a batch."""
    return position_at(batch.last_offset + 1, batch.partition_leader_epoch)


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
