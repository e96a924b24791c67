"""Requests and responses out of a stream of bytes, however it is cut: a 4-byte big-endian size before each.

Sans-IO. Memory grows with what has come, never with what a size claims, and every byte is copied at most twice on its
way from the transport's receive buffer to the frame. Rules as in Kafka's ``NetworkReceive``.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from aioproducer.errors import ProtocolError
from aioproducer.transport.base import Buffer

READ_AHEAD: Final = 128 * 1024
"""Bytes that may wait beyond a whole frame that waits."""
FRAME_OVERHEAD: Final = 192
"""What a frame takes beside its bytes, so that a flood of empty frames is bounded as well."""
_SMALLEST: Final = 512
_SIZE: Final = struct.Struct(">i")


class FrameReader:
    """Bytes in, whole frames out, each in writable memory of its own."""

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
        """Whole frames that wait to be taken; ``None`` for none, as an empty deque takes 600 bytes."""
        self._waiting = 0
        """What the frames that wait take, with their overhead."""
        self._ahead = 0
        """That, without the first of them."""
        self._frame: memoryview | None = None
        """The frame that has come in part; as long as the part that there is room for."""
        self._filled = 0
        self._size = 0
        """How long ``_frame`` is to become, and how much of it has come."""
        self._prefix = b""
        """What has come of a size, if not all of it."""
        self._rest: memoryview | None = None
        """What came when no more should be read ahead, unlooked at."""
        self.failure: ProtocolError | None = None
        """Why nothing can come behind the frames that wait: a size that is none."""

    @property
    def memory(self) -> int:
        """Bytes that are held: frames that wait, what there is of the next, and what came behind."""
        size = self._waiting + len(self._prefix)
        if self._frame is not None:
            size += len(self._frame)
        if self._rest is not None:
            size += len(self._rest)
        return size

    @property
    def is_full(self) -> bool:
        """Whether more should be fed only when a frame has been taken."""
        return self._rest is not None or (bool(self._frames) and self._ahead + self._filled >= READ_AHEAD)

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame waits."""
        return bool(self._frames)

    @property
    def inside_frame(self) -> bool:
        """Whether the stream would be cut off if it ended now."""
        return self._frame is not None or bool(self._prefix)

    def feed(self, data: Buffer) -> None:
        """Take the next bytes of the stream; they are copied. Nothing more is looked at once there is a ``failure``."""
        if self._rest is not None:
            self._rest = memoryview(b"".join([self._rest, data]))
            return
        view = memoryview(data)
        done = self._parse(view)
        if done < len(view):
            self._rest = memoryview(bytes(view[done:]))

    def take(self) -> memoryview | None:
        """The next frame, whole, writable, and nobody else's; ``None`` where none is whole yet."""
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
        """Forget what there is of a frame that will not become whole."""
        self._frame = None
        self._filled = 0
        self._prefix = b""

    def clear(self) -> None:
        """Forget everything."""
        self.drop_partial()
        self._frames = None
        self._waiting = self._ahead = 0
        self._rest = None

    def _parse(self, view: memoryview) -> int:
        """How many bytes were made frames of, or parts."""
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
                    f"a frame of {size} bytes was announced, but one has between 0 and {self._max_bytes}: "
                    "is it something else than Kafka's protocol, or TLS, that is spoken?"
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
        """Add to the frame that has come in part; the position behind what was added."""
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
