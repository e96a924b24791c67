"""A partition's log (``UnifiedLog``).

**What acks mean on disk.** ``append_as_leader`` and ``append_as_follower`` return when the batch was handed to the
operating system by ``write``: it survives the death of this process, SIGKILL included. It survives a power loss, or a
crash of the machine, only once :meth:`Log.flush` has returned. When that is due is said by ``flush.messages`` and
``flush.ms``, whose defaults leave it, as Kafka's do, to the operating system and to replicas on other machines. In
memory nothing survives the process, and only a node that dies within it comes back.

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
    """A batch that is to be written."""

    header: BatchHeader
    stored: StoredBatch
    marker: ControlRecord | None
    """What the batch says of a transaction's end."""


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
        """The log in ``storage``, empty if there is none.

        Args:
            wall_ms: milliseconds since 1970.
            clean: the log was closed cleanly, so nothing need be checked.
            recovery_point: what lies before this offset was flushed; without ``clean``, the rest is read and checked.
            log_start_offset: records before it were deleted.

        Raises:
            KafkaStorageError: the disk does not do as told.
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
        """A log that was cut half-way is in no state to go on with: as Kafka takes its disk for failed."""
        self._ensure_usable()
        self._finish_swap()
        self.removals += 1
        try:
            with self._disk("truncate"):
                yield
        except KafkaStorageError:
            self._unusable = "could not be truncated, and must be opened anew"
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

        ``records`` belongs to the log from now on: writable memory is stamped in place and may be kept without a copy.
        Batches of the coordinator are spared the checks of sequence numbers, and may be control batches.

        Args:
            guard: what ``begin_verification`` returned, for a batch that begins a transaction.
            transaction_version: by whose rules the epoch of a control batch is checked.

        Raises:
            CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError,
            UnsupportedCompressionTypeError: see :func:`validate_for_leader`.
            InvalidProducerEpochError, InvalidTxnStateError, OutOfOrderSequenceError, TransactionCoordinatorFencedError:
                the producer's state forbids it, see :class:`ProducerStateManager`.
            RecordBatchTooLargeError: the batch is larger than a segment.
            KafkaStorageError: the disk did not take it; the log is as it was.
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
            KafkaStorageError: the disk did not take it; the log is as it was.
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
        """Note that the leader of ``epoch`` begins at the log's end, before it has written anything.

        Raises:
            KafkaStorageError: the disk did not take it; the epochs are as they were.
            ValueError: ``epoch`` is negative.
        """
        self._ensure_usable()
        with self._disk("write the leader epochs of"):
            self.leader_epochs.assign(epoch, self.log_end_offset)

    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Write batches as the leader stored them; the part of a batch at the end is left out.

        ``records`` belongs to the log from now on. More than fits a segment is written in several steps, each of which
        happens whole or not at all.

        Raises:
            CorruptRecordError: a checksum or a length is wrong; nothing was written.
            OffsetsOutOfOrderError: the batches' offsets do not rise; nothing was written.
            UnexpectedAppendOffsetError: the first batch begins below this log's end; nothing was written.
            KafkaStorageError: the disk did not take them.
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
        """``batches`` in runs that fit a segment each; one that is larger than a segment is a run of its own."""
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
        """Epochs, roll, log, and only when all that went well what others see: end offset and producer state."""
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
        """Remove the active segment, which is empty: it was begun for batches behind a gap, which then failed.

        Raises:
            OSError: the disk did not do it, and the log must be opened anew.
        """
        try:
            self._segments[-1].remove()
            self.producer_state.remove_snapshots_after(self.log_end_offset)
        except OSError:
            self._unusable = "has a segment that could not be removed, and must be opened anew"
            raise
        self._segments.pop()
        self._bases.pop()
        return self._segments[-1]

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Begin a new segment, unless the active one is empty and begins there.

        Raises:
            OSError: the disk did not take it; the active segment stays, or is the new one and empty.
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
        # From here on its file is there, so it is the active one, whether its indexes can be written yet or not: were
        # the old one to grow past it, the next start would find two segments with the same offsets.
        self._segments.append(segment)
        self._bases.append(base_offset)
        segment.save_indexes()
        return segment

    # Cutting

    def truncate_to(self, offset: int) -> None:
        """Drop the records from ``offset`` on, with the whole batch it lies in; the log then ends at ``offset``.

        Nothing happens where the log ends before it.

        Raises:
            KafkaStorageError: the disk does not do as told.
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
            # From the end, so that what is left after a crash on the way has no hole.
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
        """Drop everything: the log is empty and goes on at ``offset``.

        Raises:
            KafkaStorageError: the disk does not do as told.
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
        """What replaces records that were cut is dirty."""
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
        """Hide the records before ``offset``; segments that hold only such go with :meth:`delete_old_segments`.

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
        """Delete segments that are below the log's start, or too many or too old; forget expired producers, too.

        Only whole segments go, oldest first, ``at_most`` so many, and none that reaches above ``high_watermark``. Where
        the active one must go, an empty one takes its place. Returns how many went.

        Raises:
            KafkaStorageError: the disk does not do as told.
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
        """Whether a segment that takes no more batches waits for a flush, which Kafka begins in the background then.

        ``flush(active_base_offset)`` brings them to disk and spares the next start, if this end is unclean, to
        check them.
        """
        # The active segment may begin behind a gap, for batches that then could not be written.
        return self.recovery_point < min(self._bases[-1], self.log_end_offset)

    @property
    def flush_due(self) -> bool:
        """Whether ``flush.messages`` records wait for a flush."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def flush(self, up_to: int | None = None) -> None:
        """Make what is below ``up_to`` (everything, if not given) survive a power loss; then moves ``recovery_point``.

        May run in another thread while this one appends, reads or truncates.

        Raises:
            KafkaStorageError: the disk did not do it; the recovery point stays.
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
                # Closed meanwhile, perhaps because the partition was deleted: there is nothing left to flush.
                return
            raise self._storage_error("flush", error) from error
        with self._lock:
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, end)

    def close(self, clean: bool) -> None:
        """Let go of the files. With ``clean``, after a flush and a snapshot, so that nothing need be read next time.

        Raises:
            KafkaStorageError: the disk did not take what was left to write; it must be opened with ``clean=False``.
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
