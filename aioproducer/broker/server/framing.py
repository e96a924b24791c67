"""Splits a byte stream into requests or responses, each behind a 4-byte big-endian size.

Sans-IO. Memory grows with the bytes received, never with an announced size. Every byte is copied at most twice between
the transport's receive buffer and the frame. The rules are those of Kafka's ``NetworkReceive``.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from aioproducer.errors import ProtocolError
from aioproducer.transport.base import Buffer

READ_AHEAD: Final = 128 * 1024
"""Bytes that may be held behind a whole frame that waits."""
FRAME_OVERHEAD: Final = 192
"""Memory of a frame beside its bytes, so that a flood of empty frames is bounded too."""
_SMALLEST: Final = 512
_SIZE: Final = struct.Struct(">i")


class FrameReader:
    """Turns bytes into whole frames, each in its own writable memory."""

    __slots__ = (
        "_ahead",
        "_filled",
        "_frame",
        "_frames",
        "_max_bytes",
        "_prefix",
        "_rest",
        "_size",
        "_waiting",
        "failure",
    )

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: deque[memoryview] | None = None
        """Whole frames that wait to be taken; ``None`` if there are none, as an empty deque takes 600 bytes."""
        self._waiting = 0
        """Memory of the waiting frames, with their overhead."""
        self._ahead = 0
        """The same without the first frame."""
        self._frame: memoryview | None = None
        """The frame that was received in part; as long as the part for which memory was allocated."""
        self._filled = 0
        self._size = 0
        """Final length of ``_frame``, and how much of it was received."""
        self._prefix = b""
        """The received bytes of an incomplete size."""
        self._rest: memoryview | None = None
        """Bytes that were received beyond the read-ahead limit and are not parsed yet."""
        self.failure: ProtocolError | None = None
        """Why the stream is broken behind the waiting frames: an invalid size."""

    @property
    def memory(self) -> int:
        """Bytes that are held: waiting frames, the partial frame, and unparsed bytes."""
        size = self._waiting + len(self._prefix)
        if self._frame is not None:
            size += len(self._frame)
        if self._rest is not None:
            size += len(self._rest)
        return size

    @property
    def is_full(self) -> bool:
        """Whether the next bytes should be fed only after a frame was taken."""
        return self._rest is not None or (bool(self._frames) and self._ahead + self._filled >= READ_AHEAD)

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame waits."""
        return bool(self._frames)

    @property
    def inside_frame(self) -> bool:
        """Whether the end of the stream would cut off a frame now."""
        return self._frame is not None or bool(self._prefix)

    def feed(self, data: Buffer) -> None:
        """Copy and parse the next bytes of the stream. After a ``failure`` all bytes are ignored."""
        if self._rest is not None:
            self._rest = memoryview(b"".join([self._rest, data]))
            return
        view = memoryview(data)
        done = self._parse(view)
        if done < len(view):
            self._rest = memoryview(bytes(view[done:]))

    def take(self) -> memoryview | None:
        """Return the next whole frame, in writable memory that is the caller's; ``None`` if there is none."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._waiting -= len(frame) + FRAME_OVERHEAD
        if self._frames:
            self._ahead -= len(self._frames[0]) + FRAME_OVERHEAD
        else:
            self._frames = None
            if self._rest is not None:
                rest, self._rest = self._rest, None
                done = self._parse(rest)
                if done < len(rest):
                    self._rest = rest[done:]
        return frame

    def drop_partial(self) -> None:
        """Drop the partial frame, which will not be completed."""
        self._frame = None
        self._filled = 0
        self._prefix = b""

    def clear(self) -> None:
        """Drop all frames and bytes."""
        self.drop_partial()
        self._frames = None
        self._waiting = self._ahead = 0
        self._rest = None

    def _parse(self, view: memoryview) -> int:
        """Parse frames, whole or partial, and return the number of bytes consumed."""
        if self.failure is not None:
            return len(view)
        position = 0
        end = len(view)
        while position < end:
            if self._frame is not None:
                position = self._fill(view, position)
                continue
            if self.is_full:
                break
            if self._prefix or end - position < _SIZE.size:
                missing = _SIZE.size - len(self._prefix)
                self._prefix += bytes(view[position : position + missing])
                position = min(position + missing, end)
                if len(self._prefix) < _SIZE.size:
                    break
                (size,) = _SIZE.unpack(self._prefix)
                self._prefix = b""
            else:
                (size,) = _SIZE.unpack_from(view, position)
                position += _SIZE.size
            if not 0 <= size <= self._max_bytes:
                self.failure = ProtocolError(
                    f"invalid frame size {size} (must be between 0 and {self._max_bytes} bytes): "
                    "the peer may use TLS, or another protocol than Kafka's"
                )
                return end
            available = end - position
            if available >= size:
                self._append(memoryview(bytearray(view[position : position + size])))
                position += size
            else:
                self._size = size
                self._frame = memoryview(bytearray(min(size, max(2 * available, _SMALLEST))))
        return position

    def _fill(self, view: memoryview, position: int) -> int:
        """Add bytes to the partial frame, and return the position behind them."""
        frame = self._frame
        assert frame is not None
        size = self._size
        filled = self._filled
        count = min(size - filled, len(view) - position)
        if filled + count > len(frame):
            longer = memoryview(bytearray(min(size, max(2 * len(frame), filled + count))))
            longer[:filled] = frame[:filled]
            self._frame = frame = longer
        frame[filled : filled + count] = view[position : position + count]
        self._filled = filled + count
        if self._filled == size:
            self.drop_partial()
            self._append(frame)
        return position + count

    def _append(self, frame: memoryview) -> None:
        size = len(frame) + FRAME_OVERHEAD
        self._waiting += size
        if self._frames is None:
            self._frames = deque([frame])
            self._ahead = 0
        else:
            self._frames.append(frame)
            self._ahead += size
