"""Compiled. The memory of a consumer: bytes of responses, of requests in flight, and of decoded records."""

from __future__ import annotations

from typing import Final

RECORD_OVERHEAD = 250
"""Bytes of the Python objects of a decoded record, beside its key, value and headers: tuple, integers, two bytes."""

_DECODING_PART = 4


class FetchBuffer:
    """Counts bytes in memory, and the bytes that requests in flight have reserved.

    A quarter of the capacity is for what is decoded: decompressed bodies and records that were not returned yet.
    """

    __slots__ = ("capacity", "decoded", "decoding_room", "has_room_again", "reserved", "share", "used")

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.decoding_room: Final = capacity // _DECODING_PART
        """Bytes that may be decoded before the caller takes records."""
        self.share = 1
        """Bytes of responses that each partition may occupy."""
        self.reserved = 0
        self.used = 0
        """Bytes of responses."""
        self.decoded = 0
        """Bytes of decompressed bodies and decoded records."""
        self.has_room_again = False
        """Whether requests may have waited for room that there is now."""

    @property
    def response_capacity(self) -> int:
        """Bytes that responses may occupy."""
        return self.capacity - self.decoding_room

    @property
    def free(self) -> int:
        """Bytes that a further request may reserve."""
        return self.capacity - self.reserved - self.used - max(self.decoded, self.decoding_room)

    @property
    def may_decode(self) -> bool:
        """Whether further records may be decoded while others wait for the caller."""
        return self.decoded < self.decoding_room

    def release_decoded(self, size: int) -> None:
        """Release ``size`` bytes of what was decoded."""
        if self.decoded > self.decoding_room:
            self.has_room_again = True
        self.decoded -= size


class FetchedResponse:
    """The memory of one response: its size counts until its last part is dropped."""

    __slots__ = ("_parts", "_size", "buffer")

    def __init__(self, buffer: FetchBuffer, size: int) -> None:
        self.buffer: Final = buffer
        self._parts = 0
        self._size = size

    def hold(self) -> None:
        """Count one more part."""
        if self._parts == 0:
            self.buffer.used += self._size
        self._parts += 1

    def drop(self) -> None:
        """Drop one part."""
        self._parts -= 1
        if self._parts == 0:
            self.buffer.used -= self._size
