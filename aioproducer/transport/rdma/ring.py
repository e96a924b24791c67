"""The accounting of rings, credits and work requests; no input or output here.

A side writes only into the peer's receive ring, one piece after the other, round and round. A *message* is one RDMA
WRITE with immediate: it takes a posted receive of the peer and, if it carries data, a run of bytes in the ring, which
never goes over the ring's end. The peer frees messages oldest first, as it consumes them, and says so in the immediate
of its next message: how many of those with data, how many of those without.

**No overrun.** Data messages are bounded by the peer's slots and by the bytes of its ring, controls by its number of
controls; every message of them has a receive posted, and one receive more is kept for the goodbye.

**No deadlock.** Whoever consumes data returns credits by a control message when enough has come together. Controls are
acknowledged by the peer's next data message. Where all controls wait for that, the peer has at least one data credit by
the last of them: if it has something to write it can, and thereby acknowledges; if not, it needs no credits.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import cython
else:
    from aioproducer._common.uncompiled import cython

_KIND_SHIFT: Final = 28
_DATA_SHIFT: Final = 14
_COUNT_MASK: Final = 0x3FFF


class RingError(ConnectionError):
    """The peer broke the rules of the rings."""


class MessageKind(IntEnum):
    """What the immediate says that its message is."""

    DATA = 1
    CREDITS = 2
    GOODBYE = 3
    """The peer writes no more data."""


def encode_immediate(kind: int, data_freed: int, controls_freed: int) -> int:
    """The 32 bits of a message: 4 for its kind, 14 each for how many messages the sender has freed meanwhile."""
    return kind << _KIND_SHIFT | data_freed << _DATA_SHIFT | controls_freed


def decode_immediate(value: int) -> tuple[int, int, int]:
    """The opposite of ``encode_immediate``.

    Raises:
        RingError: there is no such kind.
    """
    kind = value >> _KIND_SHIFT
    if kind < 1 or kind > 3:
        raise RingError(f"a message of the unknown kind {kind}")
    return kind, value >> _DATA_SHIFT & _COUNT_MASK, value & _COUNT_MASK


class Fifo:
    """Whole numbers in the order in which they came: an array that goes round, of twice the length when it is full."""

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
        for place in range(self.count):
            memory[place] = self._numbers[(self._first + place) % self._size]
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
        place = self._first + self.count
        if place >= self._size:
            place -= self._size
        self._numbers[place] = number
        self.count += 1

    def first(self) -> int:
        """The oldest; there must be one."""
        number: int = self._numbers[self._first]
        return number

    def take(self) -> int:
        """The oldest, which goes; there must be one."""
        number: int = self._numbers[self._first]
        self._first += 1
        if self._first == self._size:
            self._first = 0
        self.count -= 1
        return number

    def clear(self) -> None:
        self.count = 0


class PeerRing:
    """The peer's receive ring, as whoever writes into it knows it."""

    def __init__(self, size: int, slots: int, controls: int) -> None:
        self.size = size
        self.free_bytes = size
        self.free_slots = slots
        self.free_controls = controls
        self._controls = controls
        self._position = 0
        self._lengths = Fifo()

    def room(self) -> int:
        """How many bytes the next message may have at most."""
        if not self.free_slots:
            return 0
        return min(self.free_bytes, self.size - self._position)

    def take(self, length: int) -> int:
        """Where in the ring a message of ``length`` bytes goes; there must be ``room``."""
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
        """A control message is sent; ``free_controls`` must be over 0."""
        assert self.free_controls > 0
        self.free_controls -= 1

    def freed(self, data: int, controls: int) -> None:
        """The peer has freed that many messages.

        Raises:
            RingError: there were not as many.
        """
        if not data and not controls:
            return
        if data > self._lengths.count:
            raise RingError(f"credits for {data} messages, of which only {self._lengths.count} were written")
        if self.free_controls + controls > self._controls:
            raise RingError(f"credits for {controls} control messages, more than were written")
        for _ in range(data):
            self.free_bytes += self._lengths.take()
        self.free_slots += data
        self.free_controls += controls


class ReceiveRing:
    """This side's receive ring: what the peer has written there, and what it need not know yet to be free."""

    def __init__(self, size: int, slots: int, controls: int) -> None:
        self.size = size
        self._slots = slots
        self._controls = controls
        self._position = 0
        self._held_bytes = 0
        """Written, and not free for the peer, as far as it knows."""
        self._held = Fifo()
        """The length of each data message that has come and is not consumed."""
        self.waiting = 0
        """How many those are."""
        self._oldest = 0
        """Where the first of them lies."""
        self._freed_bytes = 0
        self.data_freed = 0
        """Messages consumed that the peer does not know of."""
        self.controls_freed = 0

    def arrived(self, length: int) -> None:
        """A data message has come.

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
        """Where the oldest data message lies, and its length; one must be ``waiting``."""
        return self._oldest, self._held.first()

    def control_arrived(self) -> None:
        """A control message has come, and is done with.

        Raises:
            RingError: there are more of them than the peer may send.
        """
        if self.controls_freed >= self._controls:
            raise RingError(f"more than {self._controls} control messages at a time")
        self.controls_freed += 1

    def consumed(self) -> None:
        """The oldest message is not needed any more, and its receive posted again."""
        length = self._held.take()
        self.waiting -= 1
        self._oldest = (self._oldest + length) % self.size
        self._freed_bytes += length
        self.data_freed += 1

    def owes_credits(self) -> bool:
        """Whether so much was freed that the peer should be told, though there be nothing else to tell."""
        return self.data_freed * 4 >= self._slots or self._freed_bytes * 4 >= self.size

    def tells_credits(self) -> bool:
        """Whether so much was freed that a message with data tells of it: for less no receives are posted yet.

        It is less than what ``owes_credits`` waits for, and never of controls, which nothing else acknowledges.
        """
        return self.controls_freed > 0 or self.data_freed * 8 >= self._slots or self._freed_bytes * 8 >= self.size

    def take_credits(self) -> tuple[int, int]:
        """How many data messages and controls were freed, to be told with the next message."""
        data = self.data_freed
        controls = self.controls_freed
        self._held_bytes -= self._freed_bytes
        self._freed_bytes = 0
        self.data_freed = 0
        self.controls_freed = 0
        return data, controls


class SendQueue:
    """Work requests under way, the send ring whose bytes they read, and what they read besides it.

    A completion is of its work request and all before it, so only some of them are *signaled*: one in a quarter of
    ``depth``, the one by which half of the ring is in use, and where the caller waits for one. ``lent`` is whatever
    must stay as it is until the card has read it.

    All that is written is one stream of bytes, in which each write of the caller's ends somewhere. A write is *done*
    when all bytes up to its end were posted, and no work request under way that begins before it reads what was lent.

    ``reserve``: work requests kept for controls and the goodbye.
    """

    def __init__(self, depth: int, reserve: int, ring_size: int) -> None:
        self._depth = depth
        self._data_depth = depth - reserve
        # With few work requests for data the last of them has to be one of those.
        self._interval = max(1, min(depth // 4, self._data_depth))
        self._ring_size = ring_size
        self.room = ring_size
        """Bytes of the ring that nobody reads."""
        self.position = 0
        """Where in the ring they begin."""
        self._unsignaled = 0
        self._unsignaled_bytes = 0
        self._next_id = 0
        self._signaled = Fifo()
        """Of each that is: its id; and of it and those before it that are not:"""
        self._copied = Fifo()
        """how many bytes of the ring they read,"""
        self._lending = Fifo()
        """and how many of them read what was lent."""
        self._unsignaled_lending = 0
        self._done = 0
        """The ids before it are done with."""
        self.lent = 0
        """How many of those under way read what was lent."""
        self._held: list[object] = [None] * depth
        """What that is, round and round; and where the oldest of it is:"""
        self._first_held = 0
        self._lent_from = Fifo()
        """Of each of those: where in the stream it begins."""
        self.written_to = 0
        """Where the stream of all that was written ends."""
        self.posted_to = 0
        self._owed = Fifo()
        """Where the writes end whose caller waits for them to be done."""
        self.owed = 0

    @property
    def under_way(self) -> int:
        """How many work requests are."""
        return self._next_id - self._done

    def may_post(self) -> bool:
        """Whether there is room for a work request with data."""
        return self._next_id - self._done < self._data_depth

    def may_post_control(self) -> bool:
        """Whether there is room for a work request without data, and the goodbye behind it."""
        return self._next_id - self._done < self._depth - 1

    def may_post_goodbye(self) -> bool:
        """Whether there is room for the last work request."""
        return self._next_id - self._done < self._depth

    def run(self) -> int:
        """How many bytes there is room for that do not go over the end of the ring."""
        return min(self.room, self._ring_size - self.position)

    def take(self, length: int) -> tuple[int, int]:
        """Where in the ring the next ``length`` bytes go: how many of them at which offset; the rest at its start."""
        assert 0 < length <= self.room
        offset = self.position
        self.position = (offset + length) % self._ring_size
        self.room -= length
        return offset, min(length, self._ring_size - offset)

    def written(self, length: int) -> None:
        """The caller has written so many bytes more."""
        self.written_to += length

    def done_to(self) -> int:
        """All writes that end here or before are done."""
        return self._lent_from.first() if self.lent else self.posted_to

    def owe(self) -> None:
        """The last write is not done, and its caller waits for it."""
        self._owed.append(self.written_to)
        self.owed += 1

    def take_done(self) -> int:
        """How many of the writes that are waited for are done, oldest first; each is said once."""
        owed = self._owed
        done_to = self.done_to()
        count = 0
        while owed.count and owed.first() <= done_to:
            owed.take()
            count += 1
        self.owed -= count
        return count

    def take_owed(self) -> int:
        """How many writes are waited for: nothing is read any more, and they are done as they are."""
        count = self.owed
        self._owed.clear()
        self.owed = 0
        return count

    def posted(self, length: int, copied: int, lent: object, wanted: bool) -> tuple[int, bool]:
        """The next work request: its id, and whether it is signaled.

        It has ``length`` bytes of the stream; it reads ``copied`` bytes of the ring, and ``lent``, where that is not
        ``None``. ``wanted``: somebody waits for its completion.
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
        """That work request, which is signaled, is done with, and all before it."""
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
