"""The segments of a partition's log: reading them, and replacing them by cleaned ones."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from aioproducer.broker.log.config import LogConfig
from aioproducer.broker.log.leader_epochs import LeaderEpochCache
from aioproducer.broker.log.producer_state import ProducerStateManager
from aioproducer.broker.log.reading import (
    TimestampOffset,
    find_aborted,
    find_max_timestamp,
    find_timestamp,
    read_batches,
)
from aioproducer.broker.log.recovery import rebuild_producer_state
from aioproducer.broker.log.segment import CLEANED_SUFFIX, Segment
from aioproducer.broker.log.storage import Storage
from aioproducer.broker.log.swaps import Swap
from aioproducer.broker.log.transaction_index import AbortedTransaction
from aioproducer.compression.base import Buffer
from aioproducer.errors import KafkaStorageError, OffsetOutOfRangeError


class StoredLog:
    """The content of a log. ``Log`` appends to it and truncates it."""

    def __init__(
        self, storage: Storage, config: LogConfig, topic: str, partition: int, wall_ms: Callable[[], int]
    ) -> None:
        self.config = config
        self.topic = topic
        self.partition = partition
        self.topic_partition = f"{topic}-{partition}"
        self.before_truncation: Callable[[int], None] | None = None
        """Called with the new end before the log is cut below its recovery point, to lower its checkpoint first."""
        self._storage = storage
        self._wall_ms = wall_ms
        self.leader_epochs = LeaderEpochCache(storage)
        self.producer_state = ProducerStateManager(storage, self.topic_partition)
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._size = 0
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.cleaned_to: int | None = None
        """The offset up to which the log was compacted; ``None`` if it never was."""
        self.removals = 0
        """How often segments were cut or deleted, or the log closed. A cleaner that sees it change must not go on."""
        self._swap: Swap | None = None
        self._lock = threading.Lock()
        self._truncations = 0
        self._unusable = ""

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._size

    @property
    def segment_base_offsets(self) -> list[int]:
        """The base offsets of the segments."""
        return list(self._bases)

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment for the next batches."""
        return self._bases[-1]

    # Reading

    def read(self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool) -> list[Buffer]:
        """Return whole batches as they are stored, from the one that contains ``offset`` on.

        All are from one segment, so the result may be smaller than the log allows. In memory they are views of the log.

        Args:
            max_bytes: the most bytes; at most 8 MiB (``MAX_READ_BYTES``), except for a single batch.
            up_to: only batches that end before this offset, such as the high watermark.
            min_one_batch: return the first batch even if it is larger than ``max_bytes``.

        Raises:
            OffsetOutOfRangeError: ``offset`` is before the log's start or behind its end.
            KafkaStorageError: the disk failed.
        """
        return self._read(offset, max_bytes, up_to, min_one_batch)[0]

    def read_committed(
        self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool
    ) -> tuple[list[Buffer], list[AbortedTransaction]]:
        """Do as ``read``, and return also the aborted transactions that may have records in these batches.

        ``up_to`` is the last stable offset. Raises as ``read``.
        """
        found, end = self._read(offset, max_bytes, up_to, min_one_batch)
        return found, find_aborted(self._segments, self._bases, offset, end) if found else []

    def _read(self, offset: int, max_bytes: int, up_to: int, min_one_batch: bool) -> tuple[list[Buffer], int]:
        self._ensure_usable()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"Received request for offset {offset} for partition {self.topic_partition}, but we only have log "
                f"segments from offset {self.log_start_offset} up to {self.log_end_offset}."
            )
        up_to = min(up_to, self.log_end_offset)
        if offset >= up_to:
            return [], offset
        with self._disk("read"):
            return read_batches(
                self._segments,
                self._bases,
                offset,
                max_bytes,
                up_to=up_to,
                log_end_offset=self.log_end_offset,
                min_one_batch=min_one_batch,
            )

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record that is not older than ``timestamp`` in milliseconds, ``None`` without one.

        Raises:
            KafkaStorageError: the disk failed.
            ProtocolError: the records of a batch cannot be read.
        """
        with self._disk("read"):
            return find_timestamp(self._segments, timestamp, self.log_start_offset)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """Return the first record with the greatest timestamp; ``None`` if no record has a timestamp.

        Raises:
            KafkaStorageError: the disk failed.
            ProtocolError: the records of the batch cannot be read.
        """
        with self._disk("read"):
            return find_max_timestamp(self._segments)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the greatest epoch up to ``epoch``, and its end; see :meth:`LeaderEpochCache.end_offset_for`."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset before which all transactions have ended, with markers below ``high_watermark``."""
        unstable = self.producer_state.first_unstable_offset(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    # Compaction

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments, the oldest first; the last one is the active one."""
        return self._segments

    def segments_between(self, start: int, end: int) -> list[Segment]:
        """Return the segments below ``end``, from the one that holds ``start`` on; none unless start < end."""
        if start >= end:
            return []
        first = max(0, bisect_right(self._bases, start) - 1)
        return [segment for segment in self._segments[first:] if segment.base_offset < end]

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records or their marker from ``start`` on and below ``end``."""
        return find_aborted(self._segments, self._bases, start, end)

    def begin_cleaning(self) -> None:
        """Prepare for a round of cleaning: complete the swap of an earlier one, and delete its unfinished files.

        A log that must be opened again is not cleaned. A ``.cleaned`` file beside its ``.swap`` files would make the
        next start drop these, and they may be the only copy of their records.

        Raises:
            KafkaStorageError: the log must be opened again, or the disk failed.
        """
        self._ensure_usable()
        self._finish_swap()
        with self._disk("clean"):
            for name in self._storage.files():
                if name.endswith(CLEANED_SUFFIX):
                    self._storage.remove(name)

    def new_cleaned_segment(self, base_offset: int) -> Segment:
        """Create the segment that is to replace others from ``base_offset`` on. Call ``begin_cleaning`` first.

        Raises:
            OSError: it could not be written.
        """
        return Segment(self._storage, base_offset, self.config, self._wall_ms(), 0, file_suffix=CLEANED_SUFFIX)

    def sync_segment(self, segment: Segment) -> None:
        """Make a segment and its name survive a power loss. May run in another thread.

        Raises:
            OSError: the disk did not do it.
        """
        segment.sync()
        self._storage.sync()

    def sync_folder(self) -> None:
        """Make the names of files survive a power loss. May run in another thread.

        Raises:
            OSError: the disk did not do it.
        """
        self._storage.sync()

    def begin_swap(self, cleaned: Segment, replaced: Sequence[Segment]) -> None:
        """Let ``cleaned`` take the place of ``replaced`` for readers; ``continue_swap`` does the rest.

        Raises:
            KafkaStorageError: the disk did not do it, and the log must be opened again.
        """
        self._ensure_usable()
        self._finish_swap()
        first = self._segments.index(replaced[0])
        with self._swapping():
            self._swap = Swap(cleaned, replaced, self.producer_state.remove_snapshot)
        self._segments[first : first + len(replaced)] = [cleaned]
        self._segments_changed()

    def continue_swap(self) -> bool:
        """Do the next step of a swap. Return whether more is to be done; also ``False`` without a swap.

        Raises:
            KafkaStorageError: the disk did not do it, and the log must be opened again.
        """
        if self._swap is None:
            return False
        with self._swapping():
            if self._swap.step():
                return True
        self._swap = None
        return False

    def _finish_swap(self) -> None:
        """Complete a swap before anything else changes segments.

        Raises:
            KafkaStorageError: as ``continue_swap``.
        """
        while self.continue_swap():
            pass

    @contextmanager
    def _swapping(self) -> Iterator[None]:
        """A swap that failed half-way is completed by the next start only."""
        try:
            with self._disk("swap a cleaned segment into"):
                yield
        except KafkaStorageError:
            self._unusable = "has a cleaned segment that could not be swapped in, and must be opened again"
            self._swap = None
            self.removals += 1
            raise

    # For appends and truncation

    def _rebuild_producer_state(self, recovered_from: int | None = None) -> None:
        rebuild_producer_state(
            self.producer_state,
            self._segments,
            self.log_end_offset,
            self._wall_ms(),
            self.config.producer_id_expiration_ms,
            recovered_from=recovered_from,
        )

    def _segments_changed(self) -> None:
        self._bases = [segment.base_offset for segment in self._segments]
        self._size = sum(segment.size for segment in self._segments)

    @contextmanager
    def _disk(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._storage_error(what, error) from error

    def _storage_error(self, what: str, error: OSError) -> KafkaStorageError:
        return KafkaStorageError(
            f"cannot {what} the log of {self.topic_partition} in {self._storage.description}: {error}"
        )

    def _ensure_usable(self) -> None:
        if self._unusable:
            raise KafkaStorageError(
                f"the log of {self.topic_partition} in {self._storage.description} {self._unusable}"
            )
