"""Compiled. Data that is written but not posted yet, and where the card reads it from.

Buffers in registered memory are gathered from where they lie, if they are worth a piece of their own. All other data
is copied into the send ring.

No Python form: ``_address_of``, ``_registered_memory`` and ``_copy`` use a buffer's address and ``memcpy``.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from aioproducer._common.views import is_of_bytes, view_of
from aioproducer.transport.base import Buffer
from aioproducer.transport.rdma.registration import RegisteredMemory
from aioproducer.transport.rdma.ring import SendQueue
from aioproducer.transport.rdma.work_requests import Write

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.cpython.memoryview import PyMemoryView_GET_BUFFER
    from cython.cimports.libc.string import memcpy

_MMAP: Final = mmap.mmap
_SMALL: Final = 4096
"""Bytes objects up to this size are split by copying: creating a view costs more."""
_MAX_COPIED: Final = 64 * 1024
"""Most bytes that ``Unsent.take`` copies: if it finds late that it cannot take all buffers, they are copied again."""
_MIN_LENT: Final = 512
"""Least bytes worth a piece of their own: copying fewer is faster than lending their memory and getting it back."""


def _address_of(view: memoryview) -> int:
    if cython.compiled:
        address: int = cython.cast(cython.size_t, PyMemoryView_GET_BUFFER(view).buf)
        return address
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class Unsent:
    """Data that was written but not posted yet, in order.

    ``ring`` is the send ring, registered with ``local_key`` at ``address``; ``queue`` accounts for it. ``memories`` is
    the caller's registered memory, by its ``id``. ``write`` receives the pieces.
    """

    def __init__(
        self,
        queue: SendQueue,
        ring: mmap.mmap,
        address: int,
        local_key: int,
        memories: Mapping[int, RegisteredMemory],
        write: Write,
    ) -> None:
        self._queue = queue
        self._write = write
        self._ring = memoryview(ring)
        self._ring_size = len(ring)
        self._address = address
        self._local_key = local_key
        self._memories = memories
        self._contents: list[memoryview | bytes] = []
        self._first = 0
        """The contents before this index are gathered."""
        self.waiting = False
        """Whether there is unsent data."""
        self.lent: Sequence[Buffer] | None = None
        """The lent buffers of the last ``gather`` or ``take``; they must not change until the card has read them."""
        self.copied = 0
        """Bytes that the last ``gather`` or ``take`` copied into the send ring."""

    def add(self, buffers: Sequence[Buffer]) -> int:
        """Append ``buffers`` and return their size in bytes.

        Raises:
            TypeError: something in ``buffers`` has no contiguous bytes; nothing of this call is added.
        """
        added: list[memoryview | bytes] = []
        size = 0
        for buffer in buffers:
            if type(buffer) is bytes and len(buffer) <= _SMALL:
                if buffer:
                    added.append(buffer)
                    size += len(buffer)
            else:
                view = view_of(buffer)
                if len(view):
                    added.append(view)
                    size += len(view)
        if added:
            self._contents += added
            self.waiting = True
        return size

    def clear(self) -> None:
        """Drop all data."""
        self._contents = []
        self._first = 0
        self.waiting = False

    def close(self) -> None:
        """Drop all data, and release the send ring."""
        self.clear()
        self._ring.release()

    def take(self, buffers: Sequence[Buffer], limit: int, max_pieces: int) -> int:
        """Take all ``buffers`` for one write if nothing is waiting: ``limit`` bytes in ``max_pieces`` pieces at most.

        Return their size in bytes. Return 0 if this simple way is not possible; then they have to be added.

        Raises:
            TypeError, ValueError: something in ``buffers`` has no bytes; nothing is taken.
        """
        queue = self._queue
        write = self._write
        write.clear()
        room = min(queue.run(), _MAX_COPIED)
        start = queue.position
        size = copied = run = 0
        lends = False
        for buffer in buffers:
            registered = None
            if type(buffer) is bytes:
                length = len(buffer)
            elif type(buffer) is memoryview:
                # Raises for a released view, which must not be read.
                length = len(buffer)
                if not is_of_bytes(buffer):
                    return 0
                if length >= _MIN_LENT:
                    registered = self._registered_memory(buffer)
            else:
                return 0
            size += length
            if size > limit:
                return 0
            if registered is None:
                if copied + length > room:
                    return 0
                self._copy(buffer, 0, start + copied, length)
                copied += length
                run += length
                continue
            assert isinstance(buffer, memoryview)
            address = _address_of(buffer)
            end, local_key = registered.part_of(address)
            if address + length > end or write.count + 3 > max_pieces:
                return 0
            if run:
                write.add(self._address + start + copied - run, run, self._local_key)
                run = 0
            write.add(address, length, local_key)
            lends = True
        if run:
            write.add(self._address + start + copied - run, run, self._local_key)
        if copied:
            queue.take(copied)
        self.lent = buffers if lends else None
        self.copied = copied
        return size

    def gather(self, limit: int, max_pieces: int) -> int:
        """Take the data of one write from the front: ``limit`` bytes in ``max_pieces`` pieces at most.

        Return its size in bytes, 0 if the send ring has no room for the next buffer.
        """
        contents = self._contents
        queue = self._queue
        write = self._write
        write.clear()
        lent: list[memoryview] | None = None
        size = copied = 0
        # Bytes that were copied but are not a piece yet: their offset in the ring, and their length.
        start = run = 0
        while self._first < len(contents) and size < limit and write.count + (run > 0) < max_pieces:
            content = contents[self._first]
            length = min(len(content), limit - size)
            registered = None if len(content) < _MIN_LENT else self._registered_memory(content)
            if registered is not None:
                assert isinstance(content, memoryview)
                address = _address_of(content)
                end, local_key = registered.part_of(address)
                length = min(length, end - address)
                if run:
                    write.add(self._address + start, run, self._local_key)
                    run = 0
                write.add(address, length, local_key)
                if lent is None:
                    lent = []
                lent.append(content)
            else:
                length = min(length, queue.room)
                if not length:
                    break
                offset, first = queue.take(length)
                if run and offset != start + run:
                    write.add(self._address + start, run, self._local_key)
                    run = 0
                if not run:
                    start = offset
                self._copy(content, 0, offset, first)
                run += first
                if first < length:
                    # Over the end of the ring.
                    write.add(self._address + start, run, self._local_key)
                    start = 0
                    run = length - first
                    self._copy(content, first, 0, run)
                copied += length
            size += length
            if length == len(content):
                # Release the buffer before those behind it are gathered.
                contents[self._first] = b""
                self._first += 1
            else:
                contents[self._first] = content[length:]
        if run:
            write.add(self._address + start, run, self._local_key)
        if self._first == len(contents):
            self.clear()
        elif self._first * 2 > len(contents):
            del contents[: self._first]
            self._first = 0
        self.lent = lent
        self.copied = copied
        return size

    def _registered_memory(self, content: Buffer) -> RegisteredMemory | None:
        """Return the registered memory that contains ``content``, if any."""
        if isinstance(content, bytes):
            return None
        assert isinstance(content, memoryview)
        if cython.compiled:
            address = _address_of(content)
            if not PyMemoryView_GET_BUFFER(content).readonly:
                for registered in self._memories.values():
                    # No other memory has these addresses: it stays mapped while it is registered.
                    if registered.address <= address < registered.address + registered.size:
                        return registered
            return None
        memory = content.obj
        # The uncompiled module cannot get the address of read-only memory.
        if type(memory) is _MMAP and not content.readonly:
            return self._memories.get(id(memory))
        return None

    def _copy(self, content: Buffer, begin: int, offset: int, length: int) -> None:
        """Copy ``length`` bytes of ``content``, starting at ``begin``, into the ring at ``offset``."""
        if cython.compiled:
            to = cython.cast(cython.p_char, cython.cast(cython.size_t, self._address + offset))
            if isinstance(content, bytes):
                memcpy(to, PyBytes_AS_STRING(content) + begin, length)
            else:
                memcpy(to, cython.cast(cython.p_char, PyMemoryView_GET_BUFFER(content).buf) + begin, length)
        else:
            self._ring[offset : offset + length] = content[begin : begin + length]
