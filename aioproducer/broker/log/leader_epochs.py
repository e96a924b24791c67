"""The start of each leader's records (KIP-101, ``LeaderEpochFileCache``), and its file ``leader-epoch-checkpoint``."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from aioproducer.broker.log.checkpoints import CorruptFileError, read_checkpoint, write_checkpoint
from aioproducer.broker.log.storage import Storage

EPOCH_CHECKPOINT_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """Entries in ascending order of epoch and offset, in memory and in the checkpoint file.

    An append writes its changes to the file. :meth:`sync` makes them survive a power loss, before the log's recovery
    point rises.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._entries: list[EpochEntry] = []
        self._unsaved = False
        self._unsynced = False
        # sync() may run in another thread: the file must not be written by two at once, nor the older one last.
        self._lock = threading.Lock()
        self._is_retired = False

    def load(self) -> None:
        """Read the file.

        Raises:
            CorruptFileError: it cannot be read; the log rebuilds the entries from its batches.
        """
        entries: list[EpochEntry] = []
        for line in read_checkpoint(self._storage, EPOCH_CHECKPOINT_NAME):
            try:
                epoch, start_offset = map(int, line)
            except ValueError:
                epoch, start_offset = -1, -1
            last = entries[-1] if entries else EpochEntry(-1, -1)
            if epoch <= last.epoch or start_offset <= last.start_offset:
                raise CorruptFileError(
                    f"{self._storage.description}/{EPOCH_CHECKPOINT_NAME} has a line {' '.join(line)!r}, "
                    f"which is no epoch and offset that follow {last.epoch} and {last.start_offset}"
                )
            entries.append(EpochEntry(epoch, start_offset))
        self._entries = entries

    @property
    def entries(self) -> list[EpochEntry]:
        """All entries, oldest first."""
        return list(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        """The newest epoch."""
        return self._entries[-1].epoch if self._entries else None

    @property
    def earliest(self) -> EpochEntry | None:
        """The oldest entry."""
        return self._entries[0] if self._entries else None

    def needs(self, epoch: int, start_offset: int) -> bool:
        """Return whether :meth:`assign` would change anything."""
        if self._unsaved:
            return True
        if not self._entries:
            return True
        last = self._entries[-1]
        return epoch != last.epoch or start_offset < last.start_offset

    def note(self, epoch: int, start_offset: int) -> None:
        """Do the same as :meth:`assign`, without writing the file."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"there is no leader epoch {epoch} from offset {start_offset} on")
        last = self._entries[-1] if self._entries else None
        if last is not None and epoch == last.epoch and start_offset >= last.start_offset:
            return
        kept = [entry for entry in self._entries if entry.epoch < epoch and entry.start_offset < start_offset]
        self._entries = [*kept, EpochEntry(epoch, start_offset)]
        self._unsaved = True

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that the records from ``start_offset`` on are of ``epoch``; contradicting entries are removed.

        Raises:
            OSError: the file could not be written; the entries are unchanged.
            ValueError: epoch or offset is negative.
        """
        before = self._entries
        self.note(epoch, start_offset)
        try:
            self.save()
        except OSError:
            self.restore(before)
            raise

    def restore(self, entries: list[EpochEntry]) -> None:
        """Restore the ``entries`` before an append that failed; the next change writes the file."""
        self._entries = list(entries)
        self._unsaved = True

    def save(self, *, sync: bool = False) -> None:
        """Write the file if entries changed."""
        with self._lock:
            if self._is_retired:
                return
            if self._unsaved or (sync and self._unsynced):
                self._unsaved = False
                try:
                    write_checkpoint(self._storage, EPOCH_CHECKPOINT_NAME, self._entries, sync=sync)
                except OSError:
                    self._unsaved = True
                    raise
                self._unsynced = not sync

    def retire(self) -> None:
        """Stop writing: the file may belong to another log by now."""
        with self._lock:
            self._is_retired = True

    def sync(self) -> None:
        """Make the file survive a power loss. May run in another thread."""
        self.save(sync=True)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the greatest known epoch up to ``epoch`` and its end, as in an OffsetForLeaderEpoch response.

        (-1, -1) if ``epoch`` is undefined, or newer than all entries.
        """
        if epoch == UNDEFINED_EPOCH or not self._entries:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if epoch == self._entries[-1].epoch:
            return epoch, log_end_offset
        higher = bisect_right(self._entries, epoch, key=_epoch)
        if higher == len(self._entries):
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        floor = self._entries[higher - 1].epoch if higher else epoch
        return floor, self._entries[higher].start_offset

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch of the record at ``offset``; ``None`` if it is older than all entries."""
        slot = bisect_right(self._entries, offset, key=_start_offset) - 1
        return self._entries[slot].epoch if slot >= 0 else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove entries that begin at ``end_offset`` or later. :meth:`save` updates the file."""
        kept = self._entries[: bisect_left(self._entries, end_offset, key=_start_offset)]
        if len(kept) < len(self._entries):
            self._entries = kept
            self._unsaved = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove entries that end at ``start_offset`` or before; the entry that contains it then begins there."""
        count = bisect_right(self._entries, start_offset, key=_start_offset)
        if count > 1 or (count and self._entries[0].start_offset != start_offset):
            first = EpochEntry(self._entries[count - 1].epoch, start_offset)
            self._entries = [first, *self._entries[count:]]
            self._unsaved = True

    def clear(self) -> None:
        """Remove all entries. :meth:`save` updates the file."""
        if self._entries:
            self._entries = []
            self._unsaved = True


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset
