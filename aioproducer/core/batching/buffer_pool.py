"""Compiled. The memory of waiting records: one arena, cut into slabs that batches take as they grow.

Kafka's ``BufferPool`` allocates buffers of ``batch.size``; 20,000 partitions with one record each would then need
20,000 of them. Here a batch is a chain of slabs that double in size as it fills, so that memory follows the appended
bytes.

The arena is an anonymous mapping divided by the binary buddy method: blocks of a power of two, each merged with its
neighbour when both are free. If enough bytes are free but not in one piece, the slab is allocated on the heap instead.
Fragmentation therefore never blocks a request for bytes that are free.

No Python form: ``_address_of`` returns the address of a buffer.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

SMALLEST_SLAB = 1024
# A C integer in the compiled module.
_UNIT = SMALLEST_SLAB

# Spare slabs merged into free blocks at a time, when a slab of another size is requested. This takes some tenths of a
# millisecond.
_MAX_MERGED = 256


class Slab:
    """A piece of writable memory: the bytes ``memory[start:start + size]``. Compiled modules write at its address."""

    __slots__ = ("address", "memory", "size", "start")

    address: Any

    def __init__(self, memory: memoryview, start: int, size: int) -> None:
        self.memory = memory
        self.start = start
        self.size = size
        if cython.compiled:
            self.address = _address_of(memory)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Slab):
            return NotImplemented
        return self.memory is other.memory and self.start == other.start and self.size == other.size

    def __hash__(self) -> int:
        return hash((id(self.memory), self.start, self.size))

    def __repr__(self) -> str:
        return f"<Slab {self.size} bytes at {self.start} of {type(self.memory.obj).__name__}>"


class BufferPool:
    """Allocates slabs within ``buffer_memory``.

    The pool itself never waits: ``take`` returns ``None`` if there is no room. The record then waits among the
    ``BlockedRecords``, first come, first served.

    Args:
        total_memory: the limit of all allocated bytes together (Kafka's ``buffer.memory``).
    """

    def __init__(self, total_memory: int) -> None:
        if total_memory < 1:
            raise ValueError(f"Buffer memory too small: {total_memory} bytes (minimum 1).")
        self.total_memory = total_memory
        self.available_memory = total_memory
        units = total_memory // SMALLEST_SLAB
        self._arena: mmap.mmap | None = None
        # One view for all slabs: the data of a batch is a slice of it, and not a view of a view.
        self._view: memoryview | None = None
        if units:
            self._arena = mmap.mmap(-1, units * SMALLEST_SLAB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                # Where the system uses huge pages unasked, a producer's first record would take one of 2 MiB. Kernels
                # built without huge pages reject the call.
                with suppress(OSError):
                    self._arena.madvise(mmap.MADV_NOHUGEPAGE)
            self._view = memoryview(self._arena)
        # Free blocks by order: _free[k] holds the first units of free blocks of 2**k units. In a dict the last freed
        # block is last: warm memory is used again first. And a dict finds a neighbour at once.
        self._free: list[dict[int, None]] = [{} for _ in range(units.bit_length())]
        # Released slabs by size, the last one at the end: the next request of that size takes it, and nothing has to be
        # merged and cut again. If another size has no free block, spare slabs are merged into free blocks.
        self._spares: dict[int, list[Slab]] = {}
        self._free_units(0, units)

    @property
    def arena(self) -> mmap.mmap | None:
        """The memory that slabs are cut from; ``None`` if the pool has less than a slab."""
        return self._arena

    def take(self, minimum: int, preferred: int) -> Slab | None:
        """Return a slab of at least ``minimum`` bytes, up to ``preferred`` if one piece is that large, or ``None``.

        Sizes are rounded up to whole kibibytes if enough memory is left.
        """
        available = self.available_memory
        if minimum > available:
            return None
        min_units = -(-minimum // _UNIT)
        units = max(min_units, -(-preferred // _UNIT))
        while units >= min_units:
            if units * _UNIT <= available:
                slab = self._take_units(units)
                if slab is not None:
                    return slab
            # Half as much, and at last the minimum.
            units = max(min_units, units // 2) if units > min_units else 0
        self.available_memory = available - minimum
        return Slab(memoryview(bytearray(minimum)), 0, minimum)

    def release(self, slab: Slab) -> None:
        """Return a slab to the pool; it must not be read or written any more."""
        self.available_memory += slab.size
        if slab.memory is self._view:
            spares = self._spares.get(slab.size)
            if spares is None:
                spares = self._spares[slab.size] = []
            spares.append(slab)

    def charge(self, size: int) -> None:
        """Count ``size`` bytes that are allocated elsewhere (compressed output, the parts of a split batch).

        This never fails, as the bytes exist already. The available memory may therefore be negative while they exist:
        by the bytes that compression has added, or by one decompressed batch.
        """
        self.available_memory -= size

    def refund(self, size: int) -> None:
        """Undo ``charge`` for ``size`` bytes."""
        self.available_memory += size

    def merge_spares(self, limit: int) -> bool:
        """Merge at most ``limit`` spare slabs into the free blocks; return False if there are none."""
        left = limit
        for spares in self._spares.values():
            while spares and left:
                spare = spares.pop()
                self._free_units(spare.start // _UNIT, spare.size // _UNIT)
                left -= 1
        return left < limit

    def _take_units(self, units: int) -> Slab | None:
        spares = self._spares.get(units * _UNIT)
        if spares:
            spare = spares.pop()
            self.available_memory -= spare.size
            return spare
        free = self._free
        larger = self._order_with_free((units - 1).bit_length())
        if larger < 0:
            if not self.merge_spares(_MAX_MERGED):
                return None
            larger = self._order_with_free((units - 1).bit_length())
            if larger < 0:
                return None
        first, _ = free[larger].popitem()
        rest = (1 << larger) - units
        if rest:
            self._free_units(first + units, rest)
        assert self._view is not None
        size = units * _UNIT
        self.available_memory -= size
        return Slab(self._view, first * _UNIT, size)

    def _order_with_free(self, order: int) -> int:
        """Return the lowest order, from this on, that has a free block; -1 if there is none."""
        free = self._free
        for larger in range(order, len(free)):
            if free[larger]:
                return larger
        return -1

    def _free_units(self, first: int, units: int) -> None:
        """Free the units from ``first`` as the fewest aligned blocks."""
        end = first + units
        while first < end:
            order = (end - first).bit_length() - 1
            if first:
                order = min(order, (first & -first).bit_length() - 1)
            self._merge(first, order)
            first += 1 << order

    def _merge(self, first: int, order: int) -> None:
        free = self._free
        last = len(free) - 1
        while order < last and (first ^ (1 << order)) in free[order]:
            neighbour = first ^ (1 << order)
            del free[order][neighbour]
            first = min(first, neighbour)
            order += 1
        free[order][first] = None


# Compiled only


def _address_of(memory: memoryview) -> Any:
    """Return the address of the first byte. It is valid while ``memory`` exists, as its size never changes."""
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(memory, cython.address(view), PyBUF_SIMPLE)
    address = cython.cast(cython.p_uchar, view.buf)
    PyBuffer_Release(cython.address(view))
    return address
