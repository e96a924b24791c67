"""What was written and is not posted yet, and where the card reads it from.

Buffers that lie in registered memory are gathered from where they are, if it is worth a piece of its own; all else is
copied into the send ring.
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

if TYPE_CHECKING:
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.cpython.memoryview import PyMemoryView_GET_BUFFER
    from cython.cimports.libc.string import memcpy

_MMAP: Final = mmap.mmap
_SMALL: Final = 4096
"""Bytes objects up to this size are cut, where they have to be, by copying: to make a view costs more."""
_MOST_TAKEN: Final = 64 * 1024
"""Bytes that ``Unsent.take`` copies at most: where it finds late that it cannot take all, they are copied again."""
_LEAST_LENT: Final = 512
"""Bytes that are worth a piece of their own: fewer are copied sooner than their memory is lent and had back."""


def _address_of(view: memoryview) -> int:
    if cython.compiled:
        address: int = cython.cast(cython.size_t, PyMemoryView_GET_BUFFER(view).buf)
        return address
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class Unsent:
    """The bytes that were written and not posted, in their order.

    ``ring`` is the send ring, registered with ``local_key`` at ``address``, and ``queue`` what accounts for it.
    ``memories`` is what else is registered, by the ``id`` of the memory. ``write`` gets the pieces.
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
        """The contents before it are gathered."""
        self.waiting = False
        """Whether there are any."""
        self.lent: Sequence[Buffer] | None = None
        """Of what was found last, by ``gather`` or ``take``: what holds the memory that was lent, which must stay as it
        is until the card has read it; and:"""
        self.copied = 0
        """Bytes that were copied into the send ring."""

    def add(self, buffers: Sequence[Buffer]) -> int:
        """Put ``buffers`` behind what there is; how many bytes they have.

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
        """Forget all."""
        self._contents = []
        self._first = 0
        self.waiting = False

    def close(self) -> None:
        """Forget all, and let go of the send ring."""
        self.clear()
        self._ring.release()

    def take(self, buffers: Sequence[Buffer], limit: int, most: int) -> int:
        """Take all of ``buffers`` for one write, where nothing waits: at most ``limit`` bytes in ``most`` pieces.

        How many bytes they have; 0 where that is not to be done so simply, and they are to be added.

        Raises:
            TypeError, ValueError: something in ``buffers`` has no bytes; nothing is taken.
        """
        queue = self._queue
        write = self._write
        write.clear()
        room = min(queue.run(), _MOST_TAKEN)
        start = queue.position
        size = copied = run = 0
        lends = False
        for buffer in buffers:
            registered = None
            if type(buffer) is bytes:
                length = len(buffer)
            elif type(buffer) is memoryview:
                # Of a view that was released it raises: nobody may look into it then.
                length = len(buffer)
                if not is_of_bytes(buffer):
                    return 0
                if length >= _LEAST_LENT:
                    registered = self._memory_of(buffer)
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
            if address + length > end or write.count + 3 > most:
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

    def gather(self, limit: int, most: int) -> int:
        """Take what one write carries from the front: at most ``limit`` bytes in ``most`` pieces.

        How many bytes; 0 where the send ring has no room for what comes next.
        """
        contents = self._contents
        queue = self._queue
        write = self._write
        write.clear()
        lent: list[memoryview] | None = None
        size = copied = 0
        # What was copied last and is no piece yet: where in the ring it begins, and its length.
        start = run = 0
        while self._first < len(contents) and size < limit and write.count + (run > 0) < most:
            content = contents[self._first]
            length = min(len(content), limit - size)
            registered = None if len(content) < _LEAST_LENT else self._memory_of(content)
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
                # Not kept alive by what is behind it.
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

    def _memory_of(self, content: Buffer) -> RegisteredMemory | None:
        """What the bytes of ``content`` are gathered from, if they lie in registered memory."""
        if isinstance(content, bytes):
            return None
        assert isinstance(content, memoryview)
        if cython.compiled:
            address = _address_of(content)
            if not PyMemoryView_GET_BUFFER(content).readonly:
                for registered in self._memories.values():
                    # Nothing else has these addresses while it is registered, which keeps it mapped.
                    if registered.address <= address < registered.address + registered.size:
                        return registered
            return None
        memory = content.obj
        # Of one that is read-only the uncompiled module has no address.
        if type(memory) is _MMAP and not content.readonly:
            return self._memories.get(id(memory))
        return None

    def _copy(self, content: Buffer, begin: int, offset: int, length: int) -> None:
        """Copy ``length`` bytes of ``content`` from ``begin`` on into the ring at ``offset``."""
        if cython.compiled:
            to = cython.cast(cython.p_char, cython.cast(cython.size_t, self._address + offset))
            if isinstance(content, bytes):
                memcpy(to, PyBytes_AS_STRING(content) + begin, length)
            else:
                memcpy(to, cython.cast(cython.p_char, PyMemoryView_GET_BUFFER(content).buf) + begin, length)
        else:
            self._ring[offset : offset + length] = content[begin : begin + length]
