"""One round of compaction over one log: reads its segments, writes the cleaned ones and swaps them in (``Cleaner``).

A round pauses often (``cleaner.steps``), and others read, append to and cut the log meanwhile. Appends do not concern
it, as the active segment stays. If a segment is deleted, or the log cut or closed, the round ends with
``CleaningAbortedError`` before it touches a file again. Groups that were swapped in by then stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aioproducer.broker.log.cleaner.batch_filter import BatchFilter, Kept, read_records
from aioproducer.broker.log.cleaner.offset_map import OffsetMap
from aioproducer.broker.log.cleaner.selection import Cleanable, SegmentFacts, cleanable_part, group_segments
from aioproducer.broker.log.cleaner.steps import RECORDS_PER_STEP, Steps, done_by
from aioproducer.broker.log.cleaner.transactions import CleanedTransactions
from aioproducer.broker.log.segment import Segment, StoredBatch
from aioproducer.broker.log.stored_log import StoredLog
from aioproducer.broker.log.validation import BatchHeader, read_header, read_marker
from aioproducer.errors import CorruptRecordError, KafkaError
from aioproducer.wire.control_batch import ControlRecordType
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, CONTROL_FLAG

_READ_BYTES = 64 * 1024
_WRITE_BYTES = 64 * 1024


class CleaningAbortedError(Exception):
    """The log was cut, closed or lost segments during a round of cleaning; the next round begins again."""


class OffsetMapTooSmallError(KafkaError):
    """The offset map has no room for the keys of a single batch, so cleaning cannot advance."""


def facts(segment: Segment) -> SegmentFacts:
    """Return what the selection needs to know of a segment."""
    return SegmentFacts(
        segment.base_offset,
        segment.size,
        segment.offset_index.size,
        segment.time_index.size,
        segment.max_timestamp,
        segment.first_timestamp,
    )


def cleanable(log: StoredLog, now_ms: int, high_watermark: int) -> Cleanable:
    """Return the part of ``log`` that can be cleaned, and whether that is due.

    Raises:
        OSError: the disk does not return the first batch of a segment.
    """
    return cleanable_part(
        [facts(segment) for segment in log.segments],
        log.config,
        now_ms,
        checkpoint=log.cleaned_to,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        last_stable_offset=log.last_stable_offset(high_watermark),
    )


class Cleaning:
    """One round."""

    def __init__(self, log: StoredLog, part: Cleanable, offsets: OffsetMap, now_ms: int) -> None:
        """Prepare a round over ``part`` of ``log``; ``offsets`` is empty."""
        self._log = log
        self._part = part
        self._offsets = offsets
        self._removals = log.removals
        self._filter = BatchFilter(
            offsets,
            log.producer_state.last_batch,
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
            end_offset=part.end_offset,
            topic_partition=log.topic_partition,
        )

    def steps(self) -> Steps[int]:
        """Clean. Returns the offset up to which the log is clean: the end of the part, unless the offset map was full.

        Raises:
            CleaningAbortedError: the log was cut, closed or lost segments meanwhile.
            CorruptRecordError: a batch is damaged.
            OffsetMapTooSmallError: the map has no room for the keys of the first dirty batch.
            KafkaStorageError: the log must be opened again, or the disk failed.
            OSError: the disk failed.
        """
        self._check()
        self._log.begin_cleaning()
        yield from self._map_keys()
        end_offset = self._offsets.latest_offset + 1
        if end_offset <= self._part.first_dirty_offset:
            raise OffsetMapTooSmallError(
                f"The batch at offset {self._part.first_dirty_offset} of {self._log.topic_partition} has more keys "
                f"than the {self._offsets.capacity} that fit the offset map. Increase log.cleaner.dedupe.buffer.size"
            )
        segments = self._log.segments_between(0, end_offset)
        groups = group_segments([facts(segment) for segment in segments], self._log.config, self._part.end_offset)
        for start, stop in groups:
            yield from self._clean_group(segments[start:stop])
        return end_offset

    def _check(self) -> None:
        """Call before each access to a file that follows a pause."""
        if self._removals != self._log.removals:
            raise CleaningAbortedError(f"{self._log.topic_partition} was cut or closed, or lost a segment")

    # The first pass

    def _map_keys(self) -> Steps[None]:
        """Fill the offset map from the dirty part, aborted transactions excepted."""
        start, end = self._part.first_dirty_offset, self._part.end_offset
        transactions = CleanedTransactions()
        transactions.add(self._log.aborted_between(start, end))
        dirty = self._log.segments_between(start, end)
        for index, segment in enumerate(dirty):
            self._check()
            position = segment.offset_index.lookup(start).position
            for header, view in self._batches(segment, position):
                yield None
                if header.attributes & CONTROL_FLAG:
                    transactions.control_read(header, self._control_type(header, view))
                elif not transactions.data_read(header):
                    is_full = yield from self._map_batch(header, view, start)
                    if is_full:
                        return
                if header.last_offset >= start:
                    self._offsets.cover(header.last_offset)
            is_last = index + 1 == len(dirty)
            # Also the gap at the segment's end is covered.
            self._offsets.cover((end if is_last else dirty[index + 1].base_offset) - 1)

    def _map_batch(self, header: BatchHeader, view: memoryview, start: int) -> Steps[bool]:
        """Note the keys of a batch. Returns whether the map is full, and the batch not noted as a whole."""
        records = yield from read_records(header, view, self._log.topic_partition)
        offsets = self._offsets
        for index, record in enumerate(records):
            if index % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
                yield None
            offset = header.base_offset + record.offset_delta
            if record.key is not None and offset >= start:
                if offsets.is_full:
                    return True
                offsets.put(record.key, offset)
        return False

    # The second pass

    def _clean_group(self, group: Sequence[Segment]) -> Steps[None]:
        """Write what is kept of some segments into a new one, and swap that in."""
        self._check()
        log = self._log
        cleaned = log.new_cleaned_segment(group[0].base_offset)
        output = _Output(cleaned)
        try:
            for index, segment in enumerate(group):
                self._check()
                end = group[index + 1].base_offset if index + 1 < len(group) else segment.next_offset()
                self._filter.transactions.add(log.aborted_between(segment.base_offset, end))
                for header, view in self._batches(segment, 0):
                    yield None
                    control_type = self._control_type(header, view)
                    kept, aborted = yield from self._filter.filter(header, view, control_type)
                    if aborted is not None:
                        cleaned.transaction_index.append(aborted)
                    if kept is not None:
                        self._check()
                        output.write(header.last_offset, kept)
            self._check()
            output.flush()
            cleaned.created_ms = group[-1].created_ms
            cleaned.save_indexes(final=True)
            yield from done_by(cleaned.size, lambda: log.sync_segment(cleaned), is_slow=True)
            self._check()
        except (Exception, GeneratorExit):
            # Also if the round is closed. A sync that is still running in a thread writes no file afterwards: a stray
            # file would make the next start drop a later swap.
            cleaned.remove()
            raise
        log.begin_swap(cleaned, group)
        yield None
        while log.continue_swap():
            yield None
        yield from done_by(0, log.sync_folder, is_slow=True)

    def _batches(self, segment: Segment, position: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Read the batches of a segment, from ``position`` on. Between two of them others may run."""
        while position < segment.size:
            self._check()
            window = memoryview(segment.file.peek(position, _READ_BYTES))
            start = 0
            while len(window) - start >= BATCH_HEADER_SIZE:
                header = read_header(window, start)
                if header.size < BATCH_HEADER_SIZE or position + start + header.size > segment.size:
                    break
                if start + header.size > len(window):
                    if start:
                        break
                    window = memoryview(segment.file.peek(position, header.size))
                yield header, window[start : start + header.size]
                start += header.size
            if not start:
                raise CorruptRecordError(
                    f"Segment {segment.base_offset} of {self._log.topic_partition} is damaged at byte {position}: no "
                    f"whole batch begins there"
                )
            position += start

    def _control_type(self, header: BatchHeader, view: memoryview) -> ControlRecordType | None:
        """Return the type of a control batch's record; ``None`` for data, and for an empty control batch."""
        if not header.attributes & CONTROL_FLAG or not header.record_count:
            return None
        marker = read_marker(header, view, f"in {self._log.topic_partition}")
        return ControlRecordType.UNKNOWN if marker is None else marker.type


class _Output:
    """Gathers batches, and appends them to a segment in larger pieces."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._batches: list[tuple[int, Kept]] = []
        self._size = 0

    def write(self, last_offset: int, kept: Kept) -> None:
        """Add a batch that ends with ``last_offset``."""
        self._batches.append((last_offset, kept))
        self._size += len(kept.batch)
        if self._size >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Append what was gathered."""
        if not self._batches:
            return
        # One piece of memory for all: views of what was read would keep what was dropped as well.
        joined = memoryview(b"".join([kept.batch for _, kept in self._batches]))
        stored = []
        position = 0
        for last_offset, kept in self._batches:
            end = position + len(kept.batch)
            stored.append(StoredBatch(joined[position:end], last_offset, kept.max_timestamp))
            position = end
        self._segment.append(stored)
        self._batches, self._size = [], 0
