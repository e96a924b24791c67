"""The direction from a broker to its client: responses with addresses are rewritten, everything else passes."""

from __future__ import annotations

import struct
from typing import Final, Protocol

from aioproducer.errors import ProtocolError
from aioproducer.gateway.plans import HeadPlan, TailPlan, VersionsPlan, plan_of
from aioproducer.gateway.requests import Exchange, Expected
from aioproducer.gateway.rewriting import Translate
from aioproducer.gateway.walking import Walker, walk, walk_over
from aioproducer.protocol import ApiKey, Buffer

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">ii")
"""Size and correlation id."""
_TLS_ALERT: Final = b"\x15\x03"
"""The start of a TLS alert, with which a TLS server answers anything else; no first response is that long."""
_LARGEST_FRAME: Final = 2**31 - 1


class _Frame(Protocol):
    """A response that is being rewritten."""

    passing: bool
    """Whether the rest passes unchanged."""

    def feed(self, data: memoryview) -> list[Buffer]:
        """Return the bytes that can be sent now."""

    def finish(self) -> list[Buffer]:
        """Return the rest after the whole frame has arrived; not called while ``passing``."""


class ResponseStream:
    """The responses of a broker.

    ``max_held``: maximum bytes of one response that may be held. ``whole_limit``: maximum size of a response that is
    held whole only because its last bytes are addresses.
    """

    __slots__ = ("_exchange", "_frame", "_held", "_max_held", "_remaining", "_translate", "_whole_limit", "failure")

    def __init__(self, exchange: Exchange, translate: Translate, max_held: int, whole_limit: int) -> None:
        self.failure: ProtocolError | None = None
        """Why nothing passes any longer: bytes that are no expected response, or a response that would exceed the limit
        of held bytes."""
        self._exchange = exchange
        self._translate = translate
        self._max_held = max_held
        self._whole_limit = min(whole_limit, max_held)
        self._held = b""
        """The received part of an incomplete header."""
        self._remaining = 0
        """Bytes of the current frame that have not arrived."""
        self._frame: _Frame | None = None

    @property
    def between_responses(self) -> bool:
        """Whether every response that has begun to arrive is complete."""
        return self._remaining == 0 and not self._held

    def feed(self, data: Buffer) -> list[Buffer]:
        """Return the bytes for the client, in memory of their own; none from the cause of ``failure`` on."""
        if self.failure is not None:
            return []
        view = memoryview(b"".join([self._held, data]))
        self._held = b""
        pieces: list[Buffer] = []
        begin = position = 0
        passed = 0
        """The position before which all bytes are in ``pieces`` or held."""
        try:
            while position < len(view):
                begin = position
                if self._remaining:
                    position += min(self._remaining, len(view) - position)
                    self._remaining -= position - begin
                else:
                    position += self._begin(view, position)
                    if position == begin:
                        self._held = bytes(view[position:])
                        break
                if self._frame is not None:
                    pieces += [view[passed:begin], *self._feed_frame(self._frame, view[begin:position])]
                    passed = position
        except ProtocolError as error:
            self.failure = error
            position = begin
        pieces.append(view[passed:position])
        return [piece for piece in pieces if len(piece)]

    def _feed_frame(self, frame: _Frame, data: memoryview) -> list[Buffer]:
        pieces = frame.feed(data)
        if frame.passing:
            self._frame = None
        elif not self._remaining:
            self._frame = None
            pieces = [*pieces, *frame.finish()]
        return pieces

    def _begin(self, view: memoryview, position: int) -> int:
        """Begin a frame; return the number of bytes read, 0 if there are too few yet."""
        available = len(view) - position
        if available < _SIZE.size:
            return 0
        (size,) = _SIZE.unpack_from(view, position)
        expected = self._exchange.expected
        if not expected and self._exchange.raw_tokens and size >= 0:
            self._remaining = size
            return _SIZE.size
        if self._exchange.responses == 0 and bytes(view[position : position + 2]) == _TLS_ALERT:
            raise ProtocolError("the broker answered with a TLS alert: it expects TLS, so set security.protocol=SSL")
        if size < _SIZE.size or not expected:
            raise ProtocolError(f"the broker sent a response of {size} bytes without a request")
        if available < _HEADER.size:
            return 0
        _, correlation_id = _HEADER.unpack_from(view, position)
        request = expected.popleft()
        if correlation_id != request.correlation_id:
            raise ProtocolError(
                f"the broker answered the request {correlation_id} instead of {request.correlation_id}, which is next"
            )
        self._exchange.responses += 1
        self._remaining = size - _SIZE.size
        self._frame = self._frame_of(request, size)
        return _HEADER.size

    def _frame_of(self, request: Expected, size: int) -> _Frame | None:
        plan = plan_of(request.api_key, request.version)
        if plan is None:
            return None
        name = f"{ApiKey(request.api_key).name} response"
        if isinstance(plan, HeadPlan):
            return _HeadFrame(plan, self._exchange, self._translate, self._max_held, name)
        if isinstance(plan, TailPlan) and size > self._whole_limit:
            return _TailFrame(plan, self._exchange, self._translate, size, self._max_held, name)
        if size > self._whole_limit:
            raise _too_long(name, self._whole_limit)
        return _WholeFrame(plan, self._exchange, self._translate)


class _HeadFrame:
    """Holds a response until its addresses have arrived."""

    def __init__(self, plan: HeadPlan, exchange: Exchange, translate: Translate, max_held: int, name: str) -> None:
        self.passing = False
        self._plan = plan
        self._exchange = exchange
        self._translate = translate
        self._max_held = max_held
        self._name = name
        self._held = bytearray()
        self._before = Walker(walk((_HEADER.size, *plan.before)))
        self._over = Walker(walk(plan.over))
        self._start = 0
        """The position of the addresses in the held bytes."""

    def feed(self, data: memoryview) -> list[Buffer]:
        position = 0
        if not self._before.done:
            position = self._before.feed(data)
            if self._before.done:
                self._start = len(self._held) + position
        if self._before.done:
            position += self._over.feed(data[position:])
        self._held += data[:position]
        if len(self._held) > self._max_held:
            raise _too_long(self._name, self._max_held)
        if not self._over.done:
            return []
        self.passing = True
        held = memoryview(self._held)
        old = held[self._start :]
        new = b"".join(self._plan.rewrite(old, self._translate))
        self._exchange.rewritten += new != old
        (size,) = _SIZE.unpack_from(held)
        return [_size_of(size + len(new) - len(old)), held[_SIZE.size : self._start], new, data[position:]]

    def finish(self) -> list[Buffer]:
        raise ProtocolError(f"the {self._name} ends before its addresses")


class _WholeFrame:
    """Holds a response whole."""

    def __init__(self, plan: TailPlan | VersionsPlan, exchange: Exchange, translate: Translate) -> None:
        self.passing = False
        self._plan = plan
        self._exchange = exchange
        self._translate = translate
        self._held = bytearray()

    def feed(self, data: memoryview) -> list[Buffer]:
        self._held += data
        return []

    def finish(self) -> list[Buffer]:
        held = memoryview(self._held)
        start = _HEADER.size
        if isinstance(self._plan, VersionsPlan):
            pieces = self._plan.rewrite(held[start:], self._exchange.sasl_passes)
        else:
            _, start = walk_over(walk(self._plan.before), held, start)
            pieces = self._plan.rewrite_tail(held[start:], self._translate)
        new = b"".join(pieces)
        self._exchange.rewritten += new != held[start:]
        return [_size_of(start - _SIZE.size + len(new)), held[_SIZE.size : start], new]


class _TailFrame:
    """Passes a response up to the position of its addresses; the rest is held, and keeps its size."""

    def __init__(
        self, plan: TailPlan, exchange: Exchange, translate: Translate, size: int, max_held: int, name: str
    ) -> None:
        self.passing = False
        self._plan = plan
        self._exchange = exchange
        self._translate = translate
        self._left = size + _SIZE.size
        """Bytes between the current position and the end of the frame."""
        self._max_held = max_held
        self._name = name
        self._before = Walker(walk((_HEADER.size, *plan.before)))
        self._held = bytearray()

    def feed(self, data: memoryview) -> list[Buffer]:
        if self._before.done:
            self._held += data
            return []
        position = self._before.feed(data)
        self._left -= position
        if self._before.done and self._left > self._max_held:
            raise _too_long(self._name, self._max_held)
        self._held += data[position:]
        return [data[:position]]

    def finish(self) -> list[Buffer]:
        if not self._before.done:
            raise ProtocolError(f"the {self._name} ends before its addresses")
        new, has_addresses = self._plan.fit_tail(memoryview(self._held), self._translate)
        self._exchange.rewritten += new != self._held
        self._exchange.shortened += not has_addresses
        return [new]


def _size_of(size: int) -> bytes:
    if size > _LARGEST_FRAME:
        raise ProtocolError(f"with its new addresses the response has {size} bytes, more than a frame may have")
    return _SIZE.pack(size)


def _too_long(name: str, max_held: int) -> ProtocolError:
    return ProtocolError(f"the {name} has more than {max_held} bytes that must be held to rewrite it")
