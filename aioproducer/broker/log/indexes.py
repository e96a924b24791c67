"""A segment's indexes, in the formats of Kafka's ``.index`` and ``.timeindex`` files.

Entries are kept in memory and written to their files when the segment is flushed, rolled or closed. After an unclean
end the indexes of every segment that was not flushed are rebuilt from the log, so a delayed write loses nothing.
"""

from __future__ import annotations

import threading
from struct import Struct
from typing import NamedTuple

from aioproducer.broker.log.storage import Storage
from aioproducer.wire.varint import INT32_MAX

OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"


class OffsetPosition(NamedTuple):
    """An entry of the offset index: the file position of the batch that ends with ``offset``."""

    offset: int
    position: int


class TimestampEntry(NamedTuple):
    """An entry of the time index: the greatest timestamp of the segment up to ``offset``, in milliseconds."""

    timestamp: int
    offset: int


class Index:
    """Entries of a fixed size, in ascending order of their first field."""

    __slots__ = ("_data", "_entry", "_is_retired", "_lock", "_name", "_storage", "_written", "base_offset")

    def __init__(self, storage: Storage, name: str, base_offset: int, entry: Struct, data: bytes) -> None:
        self._storage = storage
        self._name = name
        self._entry = entry
        self._data = bytearray(data)
        self._written = len(data)
        # flush() may save in another thread while the loop's thread truncates.
        self._lock = threading.Lock()
        self._is_retired = False
        self.base_offset = base_offset

    def __len__(self) -> int:
        return len(self._data) // self._entry.size

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return len(self._data)

    def _slot(self, key: int, field: int = 0) -> int:
        """Return the number of the last entry with a field of at most ``key``, -1 if there is none."""
        low, high = 0, len(self)
        unpack, size, data = self._entry.unpack_from, self._entry.size, self._data
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * size)[field] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _keep(self, count: int) -> None:
        with self._lock:
            del self._data[count * self._entry.size :]
            self._written = min(self._written, len(self._data))

    def _relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= INT32_MAX:
            raise ValueError(f"offset {offset} is too far from the segment's base offset {self.base_offset}")
        return relative

    def clear(self) -> None:
        """Remove all entries; the next :meth:`save` updates the file."""
        self._keep(0)

    def retire(self) -> None:
        """Stop writing: the file may belong to another index by now."""
        with self._lock:
            self._is_retired = True

    def rename(self, name: str) -> None:
        """Give the file another name.

        Raises:
            OSError: the disk did not rename it, or there is no file yet.
        """
        with self._lock:
            self._storage.rename(self._name, name)
            self._name = name

    def save(self, *, sync: bool = False) -> None:
        """Write new entries to the file.

        Raises:
            OSError: it could not be written.
        """
        with self._lock:
            if self._is_retired:
                return
            data = bytes(self._data[self._written :])
            self._storage.patch(self._name, self._written, data, sync=sync)
            self._written += len(data)


class OffsetIndex(Index):
    """Offsets to file positions: 8 bytes an entry, relative offset and position (``OffsetIndex``)."""

    __slots__ = ()
    ENTRY = Struct(">ii")

    def __init__(self, storage: Storage, name: str, base_offset: int, data: bytes = b"") -> None:
        super().__init__(storage, name, base_offset, self.ENTRY, data)

    def is_full(self, max_bytes: int) -> bool:
        """Return whether another entry would exceed ``segment.index.bytes``."""
        return len(self) >= max_bytes // self.ENTRY.size

    def append(self, offset: int, position: int) -> None:
        """Add an entry; ``offset`` must be greater than all offsets in the index.

        Raises:
            ValueError: it is not.
        """
        relative = self._relative(offset)
        if self._data and relative <= self.ENTRY.unpack_from(self._data, len(self._data) - 8)[0]:
            raise ValueError(f"offset {offset} does not come after the last one in the index")
        self._data += self.ENTRY.pack(relative, position)

    def entry(self, slot: int) -> OffsetPosition:
        """Return the entry number ``slot``."""
        relative, position = self.ENTRY.unpack_from(self._data, slot * 8)
        return OffsetPosition(self.base_offset + relative, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the last entry of at most ``offset``; the segment's start if there is none."""
        slot = self._slot(offset - self.base_offset)
        return OffsetPosition(self.base_offset, 0) if slot < 0 else self.entry(slot)

    def lookup_position(self, position: int) -> int:
        """Return the greatest indexed file position of at most ``position``, 0 if there is none."""
        slot = self._slot(position, 1)
        return 0 if slot < 0 else self.entry(slot).position

    @property
    def last(self) -> OffsetPosition:
        """The last entry; the segment's start if there is none."""
        return self.entry(len(self) - 1) if self._data else OffsetPosition(self.base_offset, 0)

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below ``offset``."""
        self._keep(self._slot(offset - self.base_offset - 1) + 1)

    def is_sane(self, log_size: int) -> bool:
        """Return whether the file's content can be an index of a log of ``log_size`` bytes."""
        if len(self._data) % self.ENTRY.size:
            return False
        if not self._data:
            return True
        relative, position = self.ENTRY.unpack_from(self._data, len(self._data) - 8)
        first, first_position = self.ENTRY.unpack_from(self._data, 0)
        return bool(0 <= first <= relative and 0 <= first_position <= position < log_size)


class TimeIndex(Index):
    """Timestamps to offsets: 12 bytes an entry, timestamp and relative offset (``TimeIndex``)."""

    __slots__ = ()
    ENTRY = Struct(">qi")

    def __init__(self, storage: Storage, name: str, base_offset: int, data: bytes = b"") -> None:
        super().__init__(storage, name, base_offset, self.ENTRY, data)

    def is_full(self, max_bytes: int) -> bool:
        """Return whether another entry would exceed ``segment.index.bytes``; the roll needs one entry."""
        return len(self) >= max_bytes // self.ENTRY.size - 1

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if ``timestamp`` is greater than the last one."""
        if timestamp > self.last.timestamp:
            self._data += self.ENTRY.pack(timestamp, self._relative(offset))

    def entry(self, slot: int) -> TimestampEntry:
        """Return the entry number ``slot``."""
        timestamp, relative = self.ENTRY.unpack_from(self._data, slot * 12)
        return TimestampEntry(timestamp, self.base_offset + relative)

    def lookup(self, timestamp: int) -> TimestampEntry:
        """Return the last entry of at most ``timestamp``; timestamp -1 at the segment's start if there is none."""
        slot = self._slot(timestamp)
        return TimestampEntry(-1, self.base_offset) if slot < 0 else self.entry(slot)

    @property
    def last(self) -> TimestampEntry:
        """The last entry; timestamp -1 at the segment's start if there is none."""
        return self.entry(len(self) - 1) if self._data else TimestampEntry(-1, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Keep the entries with offsets below ``offset``."""
        self._keep(self._slot(offset - self.base_offset - 1, 1) + 1)

    def is_sane(self) -> bool:
        """Return whether the file's content can be a time index."""
        if len(self._data) % self.ENTRY.size:
            return False
        return not self._data or (
            self.last.timestamp >= self.entry(0).timestamp and self.last.offset >= self.base_offset
        )
