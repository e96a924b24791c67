"""The last offset of each key, in a bounded amount of memory (``SkimpyOffsetMap``)."""

from __future__ import annotations

import hashlib
import mmap
from struct import Struct

_OFFSET = Struct(">q")
_HASH_SIZE = 16
SLOT_SIZE = _HASH_SIZE + _OFFSET.size
"""Bytes for each key: its MD5 hash and an offset."""

_EMPTY = bytes(_HASH_SIZE)
_LEAST_SLOTS = 16


class OffsetMap:
    """A hash table with open addressing. It stores the hashes of keys; two keys with one hash count as equal.

    The table is memory of the operating system, which is occupied only as slots are used.
    """

    def __init__(self, memory_bytes: int, load_factor: float, expected: int) -> None:
        """Make an empty map.

        Args:
            memory_bytes: the largest size of the table; each key takes 24 bytes.
            load_factor: the part of the slots that may be used, above 0 and at most 1.
            expected: the most keys that can come, so that a short log does not get a large table.

        Raises:
            ValueError: the memory is too small for one key.
        """
        slots = memory_bytes // SLOT_SIZE
        self.capacity = int(slots * load_factor)
        """The most keys that the map takes."""
        if self.capacity < 1:
            raise ValueError(
                f"{memory_bytes} bytes with a load factor of {load_factor} have no room for a key, which takes "
                f"{SLOT_SIZE} bytes"
            )
        # One slot stays empty, where a search ends.
        self.capacity = min(self.capacity, slots - 1) or 1
        self._slots = max(min(slots, 2 * expected), _LEAST_SLOTS)
        self._table = mmap.mmap(-1, self._slots * SLOT_SIZE)
        self._count = 0
        self.latest_offset = -1
        """The last offset of the part of the log that the map covers; -1 before the first."""

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether ``put`` may not be called."""
        return self._count >= self.capacity

    def put(self, key: bytes, offset: int) -> None:
        """Note that ``offset`` is the last one of ``key`` so far. The map must not be full."""
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        position = self._find(digest)
        table = self._table
        if table[position : position + _HASH_SIZE] == _EMPTY:
            table[position : position + _HASH_SIZE] = digest
            self._count += 1
        _OFFSET.pack_into(table, position + _HASH_SIZE, offset)

    def get(self, key: bytes) -> int:
        """Return the last offset of ``key``, -1 for an unknown key."""
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        position = self._find(digest)
        if self._table[position : position + _HASH_SIZE] == _EMPTY:
            return -1
        offset: int = _OFFSET.unpack_from(self._table, position + _HASH_SIZE)[0]
        return offset

    def _find(self, digest: bytes) -> int:
        """Return where the slot of ``digest`` begins: its own, or the empty one that it would take."""
        table, slots = self._table, self._slots
        slot = int.from_bytes(digest[:8], "big") % slots
        while True:
            position = slot * SLOT_SIZE
            found = table[position : position + _HASH_SIZE]
            if found in (digest, _EMPTY):
                return position
            slot = slot + 1 if slot + 1 < slots else 0

    def cover(self, offset: int) -> None:
        """Note that the log was read up to ``offset``, inclusive."""
        self.latest_offset = max(self.latest_offset, offset)

    def close(self) -> None:
        """Give the memory back. The map must not be used afterwards."""
        self._table.close()
