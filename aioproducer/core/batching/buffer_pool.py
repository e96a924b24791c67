"""The memory in which records wait: one arena, cut into slabs that batches take as they grow.

Kafka's ``BufferPool`` hands out buffers of ``batch.size``; 20,000 partitions with a record each would then need 20,000
times that. Here a batch is a chain of slabs that double in size as it fills, so that memory follows what was appended.

The arena is an anonymous mapping divided by the binary buddy method: blocks of a power of two, each merged with its
neighbour when both are free. A run that the arena cannot place in one piece, although that many bytes are free, is
taken from the heap instead: fragmentation never blocks a request for bytes that are free.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

SMALLEST_SLAB = 1024
# The same in C.
_UNIT = SMALLEST_SLAB

# So many of the slabs that were kept as they are become free blocks at a time, when one of another size is wanted:
# some tenths of a millisecond.
_MOST_MERGED = 256


class Slab:
    """A run of writable memory, the bytes ``memory[start:start + size]``; compiled modules write at its address."""

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


def _address_of(memory: memoryview) -> Any:
    """Where the first byte of ``memory`` lies for as long as there is ``memory``, whose size never changes."""
    view = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(memory, cython.address(view), PyBUF_SIMPLE)
    address = cython.cast(cython.p_uchar, view.buf)
    PyBuffer_Release(cython.address(view))
    return address


class BufferPool:
    """Hands out slabs and keeps ``buffer_memory``.

    The pool itself never waits: ``take`` returns ``None`` when there is no room, and the accumulator then puts the
    record in its line, first come, first served.

    Args:
        total_memory: bound of all bytes handed out (Kafka's ``buffer.memory``), in bytes.
    """

    def __init__(self, total_memory: int) -> None:
        if total_memory < 1:
            raise ValueError(f"buffer memory must be at least one byte, not {total_memory}")
        self.total_memory = total_memory
        self.available_memory = total_memory
        units = total_memory // SMALLEST_SLAB
        self._arena: mmap.mmap | None = None
        # One view for all slabs: what a batch has written is a part of it, and no view of a view.
        self._view: memoryview | None = None
        if units:
            self._arena = mmap.mmap(-1, units * SMALLEST_SLAB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._view = memoryview(self._arena)
        # Free blocks by order: _free[k] holds the first units of free blocks of 2**k units. A dict keeps the last freed
        # last, so that warm memory is used again first, and finds a neighbour at once.
        self._free: list[dict[int, None]] = [{} for _ in range(units.bit_length())]
        # What was released, by size, the last of it at the end: the next request of that size gets it, and nothing is
        # merged and cut again. Where there are no free blocks for another size, these are merged to become some.
        self._spares: dict[int, list[Slab]] = {}
        self._give_back_units(0, units)

    @property
    def arena(self) -> mmap.mmap | None:
        """The memory that slabs are cut from; ``None`` where there is none, being less than a slab."""
        return self._arena

    def take(self, minimum: int, preferred: int) -> Slab | None:
        """A slab of at least ``minimum`` bytes, as large up to ``preferred`` as one piece can be, or ``None``.

        Sizes are rounded up to whole kibibytes where the budget allows.
        """
        available = self.available_memory
        if minimum > available:
            return None
        least = -(-minimum // _UNIT)
        units = max(least, -(-preferred // _UNIT))
        while units >= least:
            if units * _UNIT <= available:
                slab = self._take_units(units)
                if slab is not None:
                    return slab
            # Half as much, but nothing is left untried that would do.
            units = max(least, units // 2) if units > least else 0
        self.available_memory = available - minimum
        return Slab(memoryview(bytearray(minimum)), 0, minimum)

    def release(self, slab: Slab) -> None:
        """Take ``slab`` back; it must not be read or written any more."""
        self.available_memory += slab.size
        if slab.memory is self._view:
            spares = self._spares.get(slab.size)
            if spares is None:
                spares = self._spares[slab.size] = []
            spares.append(slab)

    def charge(self, size: int) -> None:
        """Count ``size`` bytes that live elsewhere (compressed output, the parts of a split batch).

        It never fails: the bytes are there already. What is available may thus fall below zero for as long as they
        live, by what compression made longer or by one decompressed batch.
        """
        self.available_memory -= size

    def refund(self, size: int) -> None:
        """Count ``size`` charged bytes no more."""
        self.available_memory += size

    def merge_spares(self, most: int) -> bool:
        """Put at most so many of the slabs that are kept among the free blocks; False where there are none."""
        left = most
        for spares in self._spares.values():
            while spares and left:
                spare = spares.pop()
                self._give_back_units(spare.start // _UNIT, spare.size // _UNIT)
                left -= 1
        return left < most

    def _take_units(self, units: int) -> Slab | None:
        spares = self._spares.get(units * _UNIT)
        if spares:
            spare = spares.pop()
            self.available_memory -= spare.size
            return spare
        free = self._free
        larger = self._order_with_free((units - 1).bit_length())
        if larger < 0:
            if not self.merge_spares(_MOST_MERGED):
                return None
            larger = self._order_with_free((units - 1).bit_length())
            if larger < 0:
                return None
        first, _ = free[larger].popitem()
        rest = (1 << larger) - units
        if rest:
            self._give_back_units(first + units, rest)
        assert self._view is not None
        size = units * _UNIT
        self.available_memory -= size
        return Slab(self._view, first * _UNIT, size)

    def _order_with_free(self, order: int) -> int:
        """The first order from this on that has a free block, or -1."""
        free = self._free
        for larger in range(order, len(free)):
            if free[larger]:
                return larger
        return -1

    def _give_back_units(self, first: int, units: int) -> None:
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
