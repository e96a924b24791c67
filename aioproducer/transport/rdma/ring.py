"""Compiled. The accounting of rings, credits and work requests; no I/O.

A side writes only into the peer's receive ring, sequentially and wrapping around. A *message* is one RDMA WRITE with
immediate. It uses up a posted receive of the peer and, if it carries data, a run of bytes in the ring that never
crosses the ring's end. The peer frees messages in order as it consumes them. The immediate of its next message reports
how many data messages and how many control messages it has freed.

**No overrun.** Data messages are bounded by the peer's slots and by the bytes of its ring, control messages by its
number of controls. Each of them has a posted receive, and one more receive is reserved for the goodbye.

**No deadlock.** The consumer of data returns credits by a control message once enough have accumulated. Controls are
acknowledged by the peer's next data message. If all controls wait for that, the last of them has given the peer at
least one data credit. If the peer has data to write, it can, and thereby acknowledges; if not, it needs no credits.

No Python form: ``Fifo`` indexes its array through a C pointer.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

_KIND_SHIFT: Final = 28
_DATA_SHIFT: Final = 14
_COUNT_MASK: Final = 0x3FFF


class RingError(ConnectionError):
    """The peer violated the rules of the rings."""


class MessageKind(IntEnum):
    """The kind of a message, part of its immediate."""

    DATA = 1
    CREDITS = 2
    GOODBYE = 3
    """The peer writes no more data."""


def encode_immediate(kind: int, data_freed: int, controls_freed: int) -> int:
    """Return the 32 bits of a message: 4 for its kind, 14 each for the data and control messages that were freed."""
    return kind << _KIND_SHIFT | data_freed << _DATA_SHIFT | controls_freed


def decode_immediate(value: int) -> tuple[int, int, int]:
    """Return kind, freed data messages and freed control messages; the inverse of ``encode_immediate``.

    Raises:
        RingError: there is no such kind.
    """
    kind = value >> _KIND_SHIFT
    if kind < 1 or kind > 3:
        raise RingError(f"a message of unknown kind {kind}")
    return kind, value >> _DATA_SHIFT & _COUNT_MASK, value & _COUNT_MASK


class Fifo:
    """A queue of integers: a circular array that doubles in size when it is full."""

    def __init__(self) -> None:
        if not cython.compiled:
            self._numbers = array("q")
        self._size = 0
        self._first = 0
        self.count = 0
        self._grow()

    def _grow(self) -> None:
        size = max(2 * self._size, 8)
        memory = array("q", bytes(8 * size))
        for index in range(self.count):
            memory[index] = self._numbers[(self._first + index) % self._size]
        self._memory = memory
        if cython.compiled:
            self._numbers = cython.cast(cython.p_longlong, cython.cast(cython.size_t, memory.buffer_info()[0]))
        else:
            self._numbers = memory
        self._first = 0
        self._size = size

    def append(self, number: int) -> None:
        if self.count == self._size:
            self._grow()
        index = self._first + self.count
        if index >= self._size:
            index -= self._size
        self._numbers[index] = number
        self.count += 1

    def first(self) -> int:
        """Return the oldest number; the queue must not be empty."""
        number: int = self._numbers[self._first]
        return number

    def take(self) -> int:
        """Remove and return the oldest number; the queue must not be empty."""
        number: int = self._numbers[self._first]
        self._first += 1
        if self._first == self._size:
            self._first = 0
        self.count -= 1
        return number

    def clear(self) -> None:
        self.count = 0


class PeerRing:
    """The peer's receive ring as this side, which writes into it, knows it."""

    def __init__(self, size: int, slots: int, controls: int) -> None:
        self.size = size
        self.free_bytes = size
        self.free_slots = slots
        self.free_controls = controls
        self._controls = controls
        self._position = 0
        self._lengths = Fifo()

    def room(self) -> int:
        """Return the maximum size of the next message in bytes."""
        if not self.free_slots:
            return 0
        return min(self.free_bytes, self.size - self._position)

    def take(self, length: int) -> int:
        """Return the ring offset of a message of ``length`` bytes; there must be ``room``."""
        assert 0 < length <= self.room()
        offset = self._position
        self._position = offset + length
        if self._position == self.size:
            self._position = 0
        self.free_bytes -= length
        self.free_slots -= 1
        self._lengths.append(length)
        return offset

    def take_control(self) -> None:
        """Account for a control message that is sent; ``free_controls`` must be over 0."""
        assert self.free_controls > 0
        self.free_controls -= 1

    def freed(self, data: int, controls: int) -> None:
        """Account for messages that the peer has freed.

        Raises:
            RingError: the peer had fewer.
        """
        if not data and not controls:
            return
        if data > self._lengths.count:
            raise RingError(f"credits for {data} messages, but only {self._lengths.count} were written")
        if self.free_controls + controls > self._controls:
            raise RingError(f"credits for {controls} control messages, more than were written")
        for _ in range(data):
            self.free_bytes += self._lengths.take()
        self.free_slots += data
        self.free_controls += controls


class ReceiveRing:
    """This side's receive ring: what the peer has written, and what the peer need not know yet to be free."""

    def __init__(self, size: int, slots: int, controls: int) -> None:
        self.size = size
        self._slots = slots
        self._controls = controls
        self._position = 0
        self._held_bytes = 0
        """Bytes that are written and, as far as the peer knows, not free."""
        self._held = Fifo()
        """The length of each data message that has arrived and is not consumed."""
        self.waiting = 0
        """Number of these messages."""
        self._oldest = 0
        """Ring offset of the first of them."""
        self._freed_bytes = 0
        self.data_freed = 0
        """Consumed messages that the peer does not know of."""
        self.controls_freed = 0

    def arrived(self, length: int) -> None:
        """Account for a data message that has arrived.

        Raises:
            RingError: the peer had no room for it.
        """
        offset = self._position
        if not length:
            raise RingError("a data message without data")
        if length > self.size - max(offset, self._held_bytes):
            raise RingError(f"a message of {length} bytes, more than the ring had room for")
        if self.waiting + self.data_freed >= self._slots:
            raise RingError(f"more than {self._slots} messages at a time")
        self._position = (offset + length) % self.size
        self._held_bytes += length
        self._held.append(length)
        self.waiting += 1

    def oldest(self) -> tuple[int, int]:
        """Return offset and length of the oldest data message; one must be ``waiting``."""
        return self._oldest, self._held.first()

    def control_arrived(self) -> None:
        """Account for a control message, which is consumed at once.

        Raises:
            RingError: there are more of them than the peer may send.
        """
        if self.controls_freed >= self._controls:
            raise RingError(f"more than {self._controls} control messages at a time")
        self.controls_freed += 1

    def consumed(self) -> None:
        """Account for the oldest message: it is consumed, and its receive will be posted again."""
        length = self._held.take()
        self.waiting -= 1
        self._oldest = (self._oldest + length) % self.size
        self._freed_bytes += length
        self.data_freed += 1

    def owes_credits(self) -> bool:
        """Whether enough was freed to send the peer a message of its own."""
        return self.data_freed * 4 >= self._slots or self._freed_bytes * 4 >= self.size

    def attaches_credits(self) -> bool:
        """Whether enough was freed to attach credits to a data message. For less, no receives are posted again yet.

        The limit is lower than that of ``owes_credits``. One freed control is enough: nothing else acknowledges it.
        """
        return self.controls_freed > 0 or self.data_freed * 8 >= self._slots or self._freed_bytes * 8 >= self.size

    def take_credits(self) -> tuple[int, int]:
        """Take the numbers of freed data and control messages, for the next message to report."""
        data = self.data_freed
        controls = self.controls_freed
        self._held_bytes -= self._freed_bytes
        self._freed_bytes = 0
        self.data_freed = 0
        self.controls_freed = 0
        return data, controls


class SendQueue:
    """Outstanding work requests, the send ring, and the other memory that they read.

    A completion covers its work request and all before it, so only some are *signaled*: one in a quarter of ``depth``,
    the one by which half of the ring is in use, and those whose completion the caller needs. ``lent`` owns the memory
    that must not change until the card has read it.

    All written data forms one stream of bytes, in which each write of the caller has an end. A write is *done* when all
    bytes up to its end were posted, and no outstanding work request that begins before it reads lent memory.

    ``reserve``: work requests reserved for controls and the goodbye.
    """

    def __init__(self, depth: int, reserve: int, ring_size: int) -> None:
        self._depth = depth
        self._data_depth = depth - reserve
        # With few work requests for data, the last of them must be signaled.
        self._interval = max(1, min(depth // 4, self._data_depth))
        self._ring_size = ring_size
        self.room = ring_size
        """Bytes of the ring that are not in use."""
        self.position = 0
        """Offset in the ring at which they begin."""
        self._unsignaled = 0
        self._unsignaled_bytes = 0
        self._next_id = 0
        self._signaled = Fifo()
        """For each signaled work request its id; the next two cover it and the unsignaled ones before it."""
        self._copied = Fifo()
        """Bytes of the ring that they read."""
        self._lending = Fifo()
        """How many of them read lent memory."""
        self._unsignaled_lending = 0
        self._done = 0
        """All ids before this one have completed."""
        self.lent = 0
        """Outstanding work requests that read lent memory."""
        self._held: list[object] = [None] * depth
        """The owners of that memory, circular; the next field is the index of the oldest."""
        self._first_held = 0
        self._lent_from = Fifo()
        """For each work request that reads lent memory, its position in the stream."""
        self.written_to = 0
        """End of the stream of all data written so far."""
        self.posted_to = 0
        self._owed = Fifo()
        """Ends of the writes that the caller waits for."""
        self.owed = 0

    @property
    def under_way(self) -> int:
        """Number of outstanding work requests."""
        return self._next_id - self._done

    def may_post(self) -> bool:
        """Whether there is room for a work request with data."""
        return self._next_id - self._done < self._data_depth

    def may_post_control(self) -> bool:
        """Whether there is room for a work request without data, and for the goodbye behind it."""
        return self._next_id - self._done < self._depth - 1

    def may_post_goodbye(self) -> bool:
        """Whether there is room for the last work request."""
        return self._next_id - self._done < self._depth

    def run(self) -> int:
        """Return how many bytes fit before the end of the ring."""
        return min(self.room, self._ring_size - self.position)

    def take(self, length: int) -> tuple[int, int]:
        """Take ``length`` bytes of the ring: return the offset, and how many fit there; the rest goes to its start."""
        assert 0 < length <= self.room
        offset = self.position
        self.position = (offset + length) % self._ring_size
        self.room -= length
        return offset, min(length, self._ring_size - offset)

    def written(self, length: int) -> None:
        """Account for ``length`` bytes that the caller has written."""
        self.written_to += length

    def done_to(self) -> int:
        """Return the stream position up to which all writes are done."""
        return self._lent_from.first() if self.lent else self.posted_to

    def owe(self) -> None:
        """Record that the caller waits for the last write to be done."""
        self._owed.append(self.written_to)
        self.owed += 1

    def take_done(self) -> int:
        """Take the number of writes that the caller waits for and that are done, oldest first."""
        owed = self._owed
        done_to = self.done_to()
        count = 0
        while owed.count and owed.first() <= done_to:
            owed.take()
            count += 1
        self.owed -= count
        return count

    def take_owed(self) -> int:
        """Take the number of all writes that the caller waits for, as nothing is read any longer."""
        count = self.owed
        self._owed.clear()
        self.owed = 0
        return count

    def posted(self, length: int, copied: int, lent: object, wanted: bool) -> tuple[int, bool]:
        """Account for the next work request; return its id and whether it is signaled.

        It carries ``length`` bytes of the stream, and reads ``copied`` bytes of the ring and, unless ``None``, the
        memory of ``lent``. ``wanted``: its completion is needed.
        """
        self._unsignaled += 1
        self._unsignaled_bytes += copied
        work_request_id = self._next_id
        self._next_id += 1
        if lent is not None:
            self._held[(self._first_held + self.lent) % self._depth] = lent
            self.lent += 1
            self._lent_from.append(self.posted_to)
            self._unsignaled_lending += 1
        self.posted_to += length
        signaled = wanted or self._unsignaled >= self._interval or self._unsignaled_bytes * 2 >= self._ring_size
        if signaled:
            self._signaled.append(work_request_id)
            self._copied.append(self._unsignaled_bytes)
            self._lending.append(self._unsignaled_lending)
            self._unsignaled = 0
            self._unsignaled_bytes = 0
            self._unsignaled_lending = 0
        return work_request_id, signaled

    def completed(self, work_request_id: int) -> None:
        """Account for the completion of a signaled work request and of all before it."""
        returned = 0
        while self._signaled.count and self._signaled.first() <= work_request_id:
            self._done = self._signaled.take() + 1
            self.room += self._copied.take()
            returned += self._lending.take()
        self.lent -= returned
        for _ in range(returned):
            self._lent_from.take()
            self._held[self._first_held] = None
            self._first_held = (self._first_held + 1) % self._depth
