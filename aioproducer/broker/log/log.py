"""A partition's log (``UnifiedLog``).

**What acks mean on disk.** ``append_as_leader`` and ``append_as_follower`` return when the operating system has the
batch (``write``): it survives the end of this process, also by SIGKILL. It survives a power loss or a crash of the
machine only after :meth:`Log.flush` has returned. ``flush.messages`` and ``flush.ms`` determine when that is due. By
default, as in Kafka, only the operating system and replicas on other machines provide durability. In memory the log
survives the death of its node, but not the end of the process.

Everything but :meth:`Log.flush` belongs to one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Literal, NamedTuple

from aioproducer.broker.log.append_info import AppendInfo
from aioproducer.broker.log.config import LogConfig
from aioproducer.broker.log.open_transactions import VerificationGuard
from aioproducer.broker.log.recovery import load_segments
from aioproducer.broker.log.retention import count_old_segments
from aioproducer.broker.log.segment import Segment, StoredBatch
from aioproducer.broker.log.storage import Storage
from aioproducer.broker.log.stored_log import StoredLog
from aioproducer.broker.log.validation import (
    BatchHeader,
    read_marker,
    validate_for_follower,
    validate_for_leader,
)
from aioproducer.compression.base import Buffer
from aioproducer.errors import KafkaStorageError, OffsetOutOfRangeError, RecordBatchTooLargeError
from aioproducer.wire.control_batch import ControlRecord, ControlRecordType, encode_control_batch
from aioproducer.wire.record_batch import CONTROL_FLAG, NO_TIMESTAMP

_INT32 = Struct(">i")
_INT64 = Struct(">q")
_LEADER_EPOCH_OFFSET = 12


class _Incoming(NamedTuple):
    """A batch to append."""

    header: BatchHeader
    stored: StoredBatch
    marker: ControlRecord | None
    """The marker that ends a transaction, if the batch is one."""


class Log(StoredLog):
    """The batches of one partition, made by :meth:`open`."""

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: LogConfig,
        *,
        topic: str,
        partition: int,
        wall_ms: Callable[[], int],
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
    ) -> Log:
        """Open the log in ``storage``; create an empty one if there is none.

        Args:
            wall_ms: milliseconds since 1970.
            clean: the log was closed cleanly, so it is not checked.
            recovery_point: records before this offset were flushed; without ``clean`` the others are read and checked.
            log_start_offset: records before it were deleted.

        Raises:
            KafkaStorageError: the disk failed.
        """
        log = cls(storage, config, topic, partition, wall_ms)
        now_ms = wall_ms()
        with log._disk("open"):
            storage.make()
            (
                log._segments,
                log.log_start_offset,
                log.log_end_offset,
                log.recovery_point,
                recovered_from,
            ) = load_segments(
                storage,
                config,
                log.leader_epochs,
                now_ms,
                clean=clean,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
            )
            log._segments_changed()
            log.producer_state.load_names()
            log.producer_state.remove_snapshots_after(log.log_end_offset)
            log.producer_state.remove_strays(set(log._bases))
            log._rebuild_producer_state(recovered_from)
        return log

    @contextmanager
    def _truncating(self) -> Iterator[None]:
        """Make a log unusable if its truncation fails half-way, as Kafka takes the disk offline."""
        self._ensure_usable()
        self._finish_swap()
        self.removals += 1
        try:
            with self._disk("truncate"):
                yield
        except KafkaStorageError:
            self._unusable = "could not be truncated, and must be opened again"
            raise

    # Appending

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: Literal["client", "coordinator"] = "client",
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Check one batch, give it the next offsets and ``leader_epoch``, and write it.

        ``records`` belongs to the log afterwards: writable memory is stamped in place and may be kept without a copy.
        Sequence numbers in batches of a coordinator are not checked, and these may be control batches.

        Args:
            guard: the result of ``begin_verification``, for a batch that begins a transaction.
            transaction_version: the version of the rules for the epoch of a control batch.

        Raises:
            CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError,
            UnsupportedCompressionTypeError: see :func:`validate_for_leader`.
            InvalidProducerEpochError, InvalidTxnStateError, OutOfOrderSequenceError, TransactionCoordinatorFencedError:
                the producer's state forbids it, see :class:`ProducerStateManager`.
            RecordBatchTooLargeError: the batch is larger than a segment.
            KafkaStorageError: it could not be written; the log is as it was.
        """
        now_ms = self._wall_ms()
        is_client = origin == "client"
        header, view, log_append_time_ms = validate_for_leader(
            records, self.config, now_ms, is_client=is_client, topic_partition=self.topic_partition
        )
        size = len(view)
        if size > self.config.segment_bytes:
            raise RecordBatchTooLargeError(
                f"Message batch size is {size} bytes in append to partition {self.topic_partition}, "
                f"which exceeds the maximum configured segment size of {self.config.segment_bytes}."
            )
        first_offset = self.log_end_offset
        last_offset = first_offset + header.last_offset_delta
        marker = read_marker(header, view, f"in {self.topic_partition}")
        if marker is not None:
            self.producer_state.check_marker(header, marker, first_offset, transaction_version=transaction_version)
        elif header.producer_id >= 0 and not header.attributes & CONTROL_FLAG:
            duplicate = self.producer_state.check(
                header,
                first_offset,
                is_client=is_client,
                guard=guard,
                is_verified=self.config.transaction_partition_verification_enable,
            )
            if duplicate is not None:
                return AppendInfo(
                    duplicate.first_offset,
                    duplicate.last_offset,
                    duplicate.timestamp,
                    duplicate.timestamp,
                    self.log_start_offset,
                    True,
                    0,
                )
        _INT64.pack_into(view, 0, first_offset)
        _INT32.pack_into(view, _LEADER_EPOCH_OFFSET, leader_epoch)
        stored = StoredBatch(view, last_offset, header.max_timestamp)
        self._write([_Incoming(header, stored, marker)], [(leader_epoch, first_offset)], first_offset, size, now_ms)
        return AppendInfo(
            first_offset, last_offset, header.max_timestamp, log_append_time_ms, self.log_start_offset, False, size
        )

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        leader_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> AppendInfo:
        """Write the marker that ends a producer's transaction.

        Raises:
            InvalidProducerEpochError, TransactionCoordinatorFencedError: see ``ProducerStateManager.check_marker``.
            KafkaStorageError: it could not be written; the log is as it was.
        """
        batch = encode_control_batch(
            ControlRecordType.COMMIT if committed else ControlRecordType.ABORT,
            coordinator_epoch=coordinator_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp=self._wall_ms(),
        )
        return self.append_as_leader(
            bytearray(batch), leader_epoch, origin="coordinator", transaction_version=transaction_version
        )

    def begin_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        """See ``ProducerStateManager.begin_verification``."""
        return self.producer_state.begin_verification(
            producer_id, sequence, epoch, self._wall_ms(), supports_epoch_bump=supports_epoch_bump
        )

    def assign_leader_epoch(self, epoch: int) -> None:
        """Record that the leader of ``epoch`` begins at the log's end, before its first batch.

        Raises:
            KafkaStorageError: it could not be written; the epochs are as they were.
            ValueError: ``epoch`` is negative.
        """
        self._ensure_usable()
        with self._disk("write the leader epochs of"):
            self.leader_epochs.assign(epoch, self.log_end_offset)

    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Write batches as the leader stored them; an incomplete batch at the end is ignored.

        ``records`` belongs to the log afterwards. If they do not fit one segment, they are written in several steps,
        each completely or not at all.

        Raises:
            CorruptRecordError: a checksum or a length is wrong; nothing was written.
            OffsetsOutOfOrderError: the batches' offsets do not rise; nothing was written.
            UnexpectedAppendOffsetError: the first batch begins below this log's end; nothing was written.
            KafkaStorageError: they could not be written.
        """
        batches = [
            _Incoming(
                header,
                StoredBatch(view, header.last_offset, header.max_timestamp),
                read_marker(header, view, f"in {self.topic_partition}"),
            )
            for header, view in validate_for_follower(
                records, self.log_end_offset, self.log_start_offset, self.topic_partition
            )
        ]
        if not batches:
            return AppendInfo(
                self.log_end_offset, self.log_end_offset - 1, NO_TIMESTAMP, -1, self.log_start_offset, False, 0
            )
        first_offset, last_offset = batches[0].header.base_offset, batches[-1].header.last_offset
        now_ms = self._wall_ms()
        for part in self._parts(batches):
            epochs = [
                (batch.header.partition_leader_epoch, batch.header.base_offset)
                for batch in part
                if batch.header.partition_leader_epoch >= 0
            ]
            self._write(part, epochs, part[0].header.base_offset, sum(batch.header.size for batch in part), now_ms)
        max_timestamp = max(batch.stored.max_timestamp for batch in batches)
        size = sum(batch.header.size for batch in batches)
        return AppendInfo(first_offset, last_offset, max_timestamp, -1, self.log_start_offset, False, size)

    def _parts(self, batches: list[_Incoming]) -> Iterator[list[_Incoming]]:
        """Divide ``batches`` into runs that fit a segment; a batch larger than a segment is one run."""
        start, size = 0, 0
        for index, (header, _, _) in enumerate(batches):
            if size and size + header.size > self.config.segment_bytes:
                yield batches[start:index]
                start, size = index, 0
            size += header.size
        yield batches[start:]

    def _write(
        self,
        batches: list[_Incoming],
        epochs: list[tuple[int, int]],
        first_offset: int,
        size: int,
        now_ms: int,
    ) -> None:
        """Write epochs, roll and append. Only if all succeed, update the end offset and the producer state."""
        self._ensure_usable()
        stored = [batch.stored for batch in batches]
        max_timestamp = max([batch.max_timestamp for batch in stored])
        epochs = [entry for entry in epochs if entry[0] >= 0 and self.leader_epochs.needs(*entry)]
        before = self.leader_epochs.entries if epochs else None
        try:
            for epoch, start_offset in epochs:
                self.leader_epochs.assign(epoch, start_offset)
            segment = self._segments[-1]
            if first_offset < segment.base_offset:
                segment = self._take_back_roll()
            if segment.should_roll(self.config, size, stored[-1].last_offset, max_timestamp, now_ms):
                segment = self._roll(first_offset, now_ms)
            segment.append(stored)
        except OSError as error:
            if before is not None:
                self.leader_epochs.restore(before)
            raise self._storage_error("append to", error) from error
        self._size += size
        self.log_end_offset = stored[-1].last_offset + 1
        for header, batch, marker in batches:
            if header.producer_id >= 0:
                aborted = self.producer_state.update(header, batch.last_offset, marker)
                if aborted is not None:
                    segment.transaction_index.append(aborted)
        self.producer_state.map_end_offset = self.log_end_offset

    def _take_back_roll(self) -> Segment:
        """Remove the active segment, which is empty: it was created for batches behind a gap, and their append failed.

        Raises:
            OSError: the disk failed, and the log must be opened again.
        """
        try:
            self._segments[-1].remove()
            self.producer_state.remove_snapshots_after(self.log_end_offset)
        except OSError:
            self._unusable = "has a segment that could not be removed, and must be opened again"
            raise
        self._segments.pop()
        self._bases.pop()
        return self._segments[-1]

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Create a new segment, unless the active one is empty and begins at ``base_offset``.

        Raises:
            OSError: it could not be written; the active segment stays, or is the new one and empty.
        """
        active = self._segments[-1]
        if active.base_offset == base_offset:
            return active
        active.save_indexes(final=True)
        self.producer_state.map_end_offset = base_offset
        self.producer_state.take_snapshot()
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        segment = Segment(
            self._storage, base_offset, self.config, now_ms, random.randrange(jitter) if jitter > 0 else 0
        )
        # Its file exists now, so it is the active one even if its indexes cannot be written yet. If the old segment
        # grew past it, the next start would find two segments with the same offsets.
        self._segments.append(segment)
        self._bases.append(base_offset)
        segment.save_indexes()
        return segment

    # Truncation and retention

    def truncate_to(self, offset: int) -> None:
        """Drop the records from ``offset`` on, with the whole batch that contains it; the log then ends at ``offset``.

        Nothing happens if the log ends before ``offset``.

        Raises:
            KafkaStorageError: the disk failed.
            ValueError: ``offset`` is negative.
        """
        if offset < 0:
            raise ValueError(f"cannot truncate {self.topic_partition} to offset {offset}")
        if offset >= self.log_end_offset:
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            return
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        with self._truncating():
            self._lower_recovery_point(offset)
            self.producer_state.remove_snapshots_after(offset)
            # From the end, so that a crash in between leaves no hole.
            while self._bases[-1] > offset or (self._bases[-1] == offset and len(self._bases) > 1):
                self._segments[-1].remove()
                self._segments.pop()
                self._bases.pop()
            self._segments[-1].truncate_to(offset)
            self.log_end_offset = offset
            self.log_start_offset = min(self.log_start_offset, offset)
            self._segments_changed()
            self._lower_cleaned_to()
            self.leader_epochs.truncate_from_end(offset)
            self.leader_epochs.save()
            self._rebuild_producer_state()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all records: the log is empty and continues at ``offset``.

        Raises:
            KafkaStorageError: the disk failed.
        """
        with self._truncating():
            self._lower_recovery_point(min(offset, self.log_start_offset))
            self.producer_state.reset(offset)
            self.leader_epochs.clear()
            self.leader_epochs.save()
            while self._segments:
                self._segments[-1].remove()
                self._segments.pop()
                self._bases.pop()
            segment = Segment(self._storage, offset, self.config, self._wall_ms(), 0)
            segment.save_indexes()
            self._segments = [segment]
        self._segments_changed()
        self._lower_cleaned_to()
        self.log_start_offset = self.log_end_offset = offset
        self.recovery_point = offset

    def _lower_cleaned_to(self) -> None:
        """Lower ``cleaned_to``, as the records that replace truncated ones are dirty."""
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, self._bases[-1])

    def _lower_recovery_point(self, offset: int) -> None:
        with self._lock:
            self._truncations += 1
            lowered = offset < self.recovery_point
            self.recovery_point = min(self.recovery_point, offset)
        if lowered and self.before_truncation is not None:
            self.before_truncation(offset)

    def advance_log_start_offset(self, offset: int) -> None:
        """Hide the records before ``offset``; :meth:`delete_old_segments` deletes segments of such records.

        Raises:
            OffsetOutOfRangeError: ``offset`` is behind the log's end.
        """
        if offset > self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"Cannot increment the log start offset to {offset} of partition {self.topic_partition} "
                f"since it is larger than the log end offset {self.log_end_offset}"
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)

    def delete_old_segments(self, high_watermark: int, *, at_most: int | None = None) -> int:
        """Delete segments that are below the log's start, too large or too old, and remove expired producers.

        Only whole segments are deleted, at most ``at_most``, the oldest first, and none that reaches above
        ``high_watermark``. If the active one must be deleted, an empty one replaces it. Returns the number of deleted
        segments.

        Raises:
            KafkaStorageError: the disk failed.
        """
        self._ensure_usable()
        now_ms = self._wall_ms()
        self.producer_state.remove_expired(now_ms, self.config.producer_id_expiration_ms)
        count = count_old_segments(
            self._segments,
            self.config,
            now_ms,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
        )
        if at_most is not None:
            count = min(count, at_most)
        if not count:
            return 0
        self._finish_swap()
        self.removals += 1
        with self._disk("delete segments of"):
            if count == len(self._segments):
                self._roll(self.log_end_offset, now_ms)
            going, self._segments = self._segments[:count], self._segments[count:]
            self._segments_changed()
            self.advance_log_start_offset(max(self.log_start_offset, self._bases[0]))
            for segment in going:
                segment.remove()
                self.producer_state.remove_snapshot(segment.base_offset)
        return count

    # Flushing

    @property
    def rolled_segments_unflushed(self) -> bool:
        """Whether a closed segment waits for a flush, which Kafka starts in the background.

        After ``flush(active_base_offset)`` the next start does not check these segments, even after an unclean end.
        """
        # The active segment may begin behind a gap, for batches that could not be written.
        return self.recovery_point < min(self._bases[-1], self.log_end_offset)

    @property
    def flush_due(self) -> bool:
        """Whether ``flush.messages`` records wait for a flush."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def flush(self, up_to: int | None = None) -> None:
        """Make the records below ``up_to`` (by default all) survive a power loss, then raise ``recovery_point``.

        May run in another thread during appends, reads and truncations.

        Raises:
            KafkaStorageError: the flush failed; the recovery point is unchanged.
        """
        with self._lock:
            end = self.log_end_offset if up_to is None else min(up_to, self.log_end_offset)
            truncations = self._truncations
            segments = list(self._segments)
            recovery_point = self.recovery_point
        if end <= recovery_point:
            return
        try:
            for index, segment in enumerate(segments):
                is_below = index + 1 < len(segments) and segments[index + 1].base_offset <= recovery_point
                if not is_below and segment.base_offset < end:
                    segment.sync()
            self.leader_epochs.sync()
            self._storage.sync()
        except OSError as error:
            if self._unusable:
                # The log was closed, perhaps because the partition was deleted: nothing is left to flush.
                return
            raise self._storage_error("flush", error) from error
        with self._lock:
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, end)

    def close(self, clean: bool) -> None:
        """Close the files. With ``clean``, flush and take a snapshot first, so that the next start reads nothing.

        Raises:
            KafkaStorageError: the flush failed; the log must be opened with ``clean=False``.
        """
        with self._disk("close"):
            try:
                if clean:
                    self._ensure_usable()
                    self._finish_swap()
                    self._segments[-1].file.truncate(self._segments[-1].size)
                    self._segments[-1].save_indexes(final=True, sync=True)
                    self.producer_state.take_snapshot(sync=True)
                    self.leader_epochs.sync()
                    self.flush()
            finally:
                self._unusable = "is closed"
                self.removals += 1
                self.leader_epochs.retire()
                for segment in self._segments:
                    segment.close()
