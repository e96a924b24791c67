"""One segment: a log file and its indexes (``LogSegment``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from aioproducer.broker.log.config import LogConfig
from aioproducer.broker.log.indexes import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, OffsetIndex, TimeIndex
from aioproducer.broker.log.storage import Storage
from aioproducer.broker.log.transaction_index import TRANSACTION_INDEX_SUFFIX, TransactionIndex
from aioproducer.broker.log.validation import BatchHeader, read_header, read_marker
from aioproducer.compression.base import Buffer
from aioproducer.errors import CorruptRecordError, KafkaStorageError
from aioproducer.wire.control_batch import ControlRecord
from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    BATCH_HEADER_SIZE,
    CONTROL_FLAG,
    MAGIC_VALUE,
    NO_TIMESTAMP,
    BatchRecord,
    RecordBatch,
)
from aioproducer.wire.varint import INT32_MAX

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
"""The suffixes of all files of a segment."""

_HEADER_WINDOW = 4096
_RECOVERY_WINDOW = 1024 * 1024


class StoredBatch(NamedTuple):
    """A batch to append: its bytes as they are stored, and the values for the indexes."""

    view: Buffer
    last_offset: int
    max_timestamp: int


class Located(NamedTuple):
    """A batch in the file."""

    position: int
    header: BatchHeader


CLEANED_SUFFIX = ".cleaned"
"""Behind the names of a segment's files while a cleaner writes them."""
SWAP_SUFFIX = ".swap"
"""Behind the names of a segment's files that are complete, until the segments are gone that they replace."""


def segment_name(base_offset: int, suffix: str) -> str:
    """Return Kafka's name of a segment's file."""
    return f"{base_offset:020d}{suffix}"


def remove_files(storage: Storage, base_offset: int, file_suffix: str = "") -> None:
    """Delete the files of the segment at ``base_offset``, those that exist."""
    for suffix in SUFFIXES:
        storage.remove(segment_name(base_offset, suffix) + file_suffix)


class Segment:
    """Batches from ``base_offset`` on, in ascending order of their offsets, perhaps with gaps."""

    def __init__(
        self,
        storage: Storage,
        base_offset: int,
        config: LogConfig,
        created_ms: int,
        roll_jitter_ms: int,
        *,
        file_suffix: str = "",
    ) -> None:
        """Open the log file, or create it.

        Args:
            roll_jitter_ms: by how much ``segment.ms`` is shorter for this segment.
            file_suffix: behind the names of all files; see ``CLEANED_SUFFIX`` and ``SWAP_SUFFIX``.
        """
        self._storage = storage
        self._config = config
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self._file_suffix = file_suffix
        self.file = storage.open(self._name(LOG_SUFFIX))
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self._first_timestamp: int | None = None
        self._bytes_since_index = 0
        self.offset_index = OffsetIndex(storage, self._name(OFFSET_INDEX_SUFFIX), base_offset)
        self.time_index = TimeIndex(storage, self._name(TIME_INDEX_SUFFIX), base_offset)
        self.transaction_index = TransactionIndex(storage, self._name(TRANSACTION_INDEX_SUFFIX), base_offset)

    def _name(self, suffix: str) -> str:
        return segment_name(self.base_offset, suffix) + self._file_suffix

    @property
    def size(self) -> int:
        """Bytes of the log file."""
        return self.file.size

    # Writing

    def should_roll(self, config: LogConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Return whether ``size`` more bytes, up to ``last_offset``, need a new segment."""
        self._config = config
        here = self.file.size
        return (
            here > config.segment_bytes - size
            or self.offset_index.is_full(config.segment_index_bytes)
            or self.time_index.is_full(config.segment_index_bytes)
            or last_offset - self.base_offset > INT32_MAX
            or (here > 0 and self._waited(now_ms, max_timestamp) > config.max_segment_ms - self.roll_jitter_ms)
        )

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch, in milliseconds; -1 for an empty segment or without timestamps."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = read_header(self.file.peek(0, BATCH_HEADER_SIZE)).max_timestamp
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    def _waited(self, now_ms: int, timestamp: int) -> int:
        first = self.first_timestamp
        return timestamp - first if first >= 0 else now_ms - self.created_ms

    def append(self, batches: Sequence[StoredBatch]) -> None:
        """Append all of ``batches``, or none.

        Raises:
            OSError: they could not be written.
        """
        position = self.file.size
        self.file.append([batch.view for batch in batches])
        if not position:
            self._first_timestamp = batches[0].max_timestamp
        for batch in batches:
            self._index(batch.last_offset, batch.max_timestamp, position)
            size = len(batch.view)
            self._bytes_since_index += size
            position += size

    def _index(self, last_offset: int, max_timestamp: int, position: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self._bytes_since_index > self._config.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)
            self._bytes_since_index = 0

    def save_indexes(self, *, final: bool = False, sync: bool = False) -> None:
        """Write the index files.

        Args:
            final: no batch follows for now, so the time index must end with the greatest timestamp.
            sync: make the files survive a power loss.
        """
        if final and self.max_timestamp >= 0:
            self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)
        self.offset_index.save(sync=sync)
        self.time_index.save(sync=sync)
        self.transaction_index.save(sync=sync)

    def sync(self) -> None:
        """Make log and indexes survive a power loss. May run in another thread during appends."""
        self.file.sync()
        self.save_indexes(sync=True)

    def close(self) -> None:
        """Close the files."""
        self.offset_index.retire()
        self.time_index.retire()
        self.transaction_index.retire()
        self.file.close()

    def remove(self) -> None:
        """Delete the files."""
        self.close()
        remove_files(self._storage, self.base_offset, self._file_suffix)

    def rename(self, file_suffix: str) -> None:
        """Give all files another suffix, the log file first. The indexes must have been saved.

        Raises:
            OSError: the disk did not rename a file; some may have their new names.
        """
        old, self._file_suffix = self._name(LOG_SUFFIX), file_suffix
        self.file.close()
        self._storage.rename(old, self._name(LOG_SUFFIX))
        self.file = self._storage.open(self._name(LOG_SUFFIX))
        self.offset_index.rename(self._name(OFFSET_INDEX_SUFFIX))
        self.time_index.rename(self._name(TIME_INDEX_SUFFIX))
        self.transaction_index.rename(self._name(TRANSACTION_INDEX_SUFFIX))

    def truncate_to(self, offset: int) -> None:
        """Drop the batch that contains ``offset``, and all batches behind it."""
        located = self.locate(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        if located is not None:
            self.file.truncate(located.position)
        if not self.size:
            self._first_timestamp = None
        self._bytes_since_index = 0
        self.max_timestamp, self.offset_of_max_timestamp = self._find_max_timestamp()

    def _find_max_timestamp(self) -> tuple[int, int]:
        best, best_offset = self.time_index.last
        for located in self.batches(self.offset_index.lookup(best_offset).position):
            if located.header.max_timestamp > best:
                best, best_offset = located.header.max_timestamp, located.header.last_offset
        return best, best_offset

    # Reading

    def batches(self, position: int = 0) -> Iterator[Located]:
        """Yield the positions and headers of batches from ``position`` on. Their checksums are not verified.

        Raises:
            KafkaStorageError: there is no batch, so the file is damaged.
        """
        window: Buffer = b""
        start = position
        while position + BATCH_HEADER_SIZE <= self.file.size:
            if not start <= position <= start + len(window) - BATCH_HEADER_SIZE:
                window, start = self.file.peek(position, _HEADER_WINDOW), position
            header = read_header(window, position - start)
            end = position + header.size
            if header.size < BATCH_HEADER_SIZE or end > self.file.size:
                raise KafkaStorageError(
                    f"the file {self._name(LOG_SUFFIX)} in {self._storage.description} is damaged "
                    f"at byte {position}: the batch there has a length of {header.size} bytes"
                )
            yield Located(position, header)
            position = end

    def marker(self, located: Located) -> ControlRecord | None:
        """Return the marker in a batch that ends a transaction; ``None`` for other batches.

        Raises:
            KafkaStorageError: the batch is a control batch, and its record cannot be read.
        """
        header = located.header
        if not header.attributes & CONTROL_FLAG:
            return None
        try:
            view = self.file.peek(located.position, header.size)
            return read_marker(header, view, f"in {self._storage.description}")
        except CorruptRecordError as corrupt:
            raise KafkaStorageError(str(corrupt)) from None

    def locate(self, offset: int) -> Located | None:
        """Return the first batch that ends at ``offset`` or later."""
        for located in self.batches(self.offset_index.lookup(offset).position):
            if located.header.last_offset >= offset:
                return located
        return None

    def next_offset(self) -> int:
        """Return the offset behind the last batch."""
        last = self.base_offset
        for located in self.batches(self.offset_index.last.position):
            last = located.header.last_offset + 1
        return last

    def read(
        self, offset: int, max_bytes: int, up_to: int, end_offset: int, min_one_batch: bool
    ) -> tuple[list[Buffer], int] | None:
        """Return whole batches from the one that contains ``offset`` on, and the offset behind them.

        ``None`` if the segment ends before ``offset``.

        Args:
            up_to: only batches that end before this offset.
            end_offset: the end of the segment, so that reading all of it needs no search.
        """
        start = self.locate(offset)
        if start is None:
            return None
        if start.header.last_offset >= up_to:
            return [], offset
        stop, end = self.file.size, end_offset
        if up_to < end_offset:
            last = self.locate(up_to)
            stop, end = stop if last is None else last.position, up_to
        position = start.position
        if stop - position > max_bytes:
            stop, end = self._boundary(position, max_bytes)
            if stop == position:
                if not min_one_batch:
                    return [], offset
                stop, end = position + start.header.size, start.header.last_offset + 1
        return self.file.read(position, stop - position), end

    def _boundary(self, position: int, max_bytes: int) -> tuple[int, int]:
        """Return the last end of a batch at most ``max_bytes`` behind ``position``, and the next batch's offset."""
        limit = position + max_bytes
        boundary = max(position, self.offset_index.lookup_position(limit))
        next_offset = self.base_offset
        for located in self.batches(boundary):
            boundary, next_offset = located.position, located.header.base_offset
            if boundary + located.header.size > limit:
                break
        return boundary, next_offset

    def find_timestamp(self, timestamp: int, from_offset: int, max_size: int) -> tuple[BatchRecord, int] | None:
        """Return the first record from ``from_offset`` on that is not older than ``timestamp``, and its leader epoch.

        Raises:
            ProtocolError: a batch's records cannot be read, or are more than ``max_size`` bytes.
        """
        indexed = self.time_index.lookup(timestamp)
        position = self.offset_index.lookup(max(indexed.offset, from_offset)).position
        for located in self.batches(position):
            if located.header.max_timestamp < timestamp or located.header.last_offset < from_offset:
                continue
            found = self._record_at(located, timestamp, from_offset, max_size)
            if found is not None:
                return found, located.header.partition_leader_epoch
        return None

    def find_max_timestamp(self, max_size: int) -> tuple[BatchRecord, int] | None:
        """Return the first record with the greatest timestamp, and its leader epoch; ``None`` without timestamps.

        Raises:
            ProtocolError: a batch's records cannot be read, or are more than ``max_size`` bytes.
        """
        for located in self.batches(self.offset_index.lookup(self.offset_of_max_timestamp).position):
            if located.header.max_timestamp == self.max_timestamp:
                found = self._record_at(located, self.max_timestamp, 0, max_size)
                return None if found is None else (found, located.header.partition_leader_epoch)
        return None

    def _record_at(self, located: Located, timestamp: int, from_offset: int, max_size: int) -> BatchRecord | None:
        batch = RecordBatch(self.file.peek(located.position, located.header.size))
        for record in batch.records(max_size):
            if record.timestamp >= timestamp and record.offset >= from_offset:
                return record
        return None

    # Opening

    def load(self) -> bool:
        """Read the indexes from their files; return False if they, or the log's end, are not valid."""
        index = self._storage.read(self._name(OFFSET_INDEX_SUFFIX))
        time_index = self._storage.read(self._name(TIME_INDEX_SUFFIX))
        if index is None or time_index is None:
            return False
        self.offset_index = OffsetIndex(self._storage, self._name(OFFSET_INDEX_SUFFIX), self.base_offset, index)
        self.time_index = TimeIndex(self._storage, self._name(TIME_INDEX_SUFFIX), self.base_offset, time_index)
        self.transaction_index = self._stored_transaction_index()
        if not (
            self.offset_index.is_sane(self.size) and self.time_index.is_sane() and self.transaction_index.is_sane()
        ):
            return False
        try:
            self.max_timestamp, self.offset_of_max_timestamp = self._find_max_timestamp()
            self.next_offset()
        except KafkaStorageError as damaged:
            logger.warning("%s", damaged)
            return False
        return True

    def _stored_transaction_index(self) -> TransactionIndex:
        name = self._name(TRANSACTION_INDEX_SUFFIX)
        return TransactionIndex(self._storage, name, self.base_offset, self._storage.read(name))

    def recover(self, next_offset: int, see: Callable[[BatchHeader], None]) -> int:
        """Read the whole file, cut it at the first incomplete or invalid batch, and rebuild the indexes.

        The index of aborted transactions is empty afterwards, and its file unchanged. ``rebuild_producer_state``
        rebuilds it, as its entries depend on transactions that began before this segment.

        Args:
            next_offset: the end of the previous segment; a batch with a smaller offset is invalid.
            see: called with the header of each valid batch.

        Returns:
            The number of bytes that were cut off.
        """
        self.offset_index = OffsetIndex(self._storage, self._name(OFFSET_INDEX_SUFFIX), self.base_offset)
        self.time_index = TimeIndex(self._storage, self._name(TIME_INDEX_SUFFIX), self.base_offset)
        self.transaction_index = self._stored_transaction_index()
        self.transaction_index.clear()
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self._bytes_since_index = 0
        next_offset = max(next_offset, self.base_offset)
        valid = 0
        for position, header in self._valid_batches():
            if header.base_offset < next_offset or header.last_offset - self.base_offset > INT32_MAX:
                break
            see(header)
            self._index(header.last_offset, header.max_timestamp, position)
            self._bytes_since_index += header.size
            next_offset = header.last_offset + 1
            valid = position + header.size
        cut = self.size - valid
        self.file.truncate(valid)
        if self.max_timestamp >= 0:
            self.time_index.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)
        self.offset_index.save()
        self.time_index.save()
        return cut

    def _valid_batches(self) -> Iterator[Located]:
        """Yield batches from the start up to the first one that is incomplete or has a wrong checksum."""
        position, start = 0, 0
        window = memoryview(b"")
        while self.file.size - position >= BATCH_HEADER_SIZE:
            if position + BATCH_HEADER_SIZE > start + len(window):
                window, start = memoryview(self.file.peek(position, _RECOVERY_WINDOW)), position
            header = read_header(window, position - start)
            size = header.size
            if header.magic != MAGIC_VALUE or not BATCH_HEADER_SIZE <= size <= self.file.size - position:
                return
            if position + size > start + len(window):
                window, start = memoryview(self.file.peek(position, max(size, _RECOVERY_WINDOW))), position
            body = window[position - start + ATTRIBUTES_OFFSET : position - start + size]
            if crc32c((body,)) != header.checksum or header.last_offset_delta < 0:
                return
            yield Located(position, header)
            position += size
