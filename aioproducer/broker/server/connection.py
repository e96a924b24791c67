"""One connection of a client to the broker: it reads requests, and answers them in order, one at a time.

A connection has a task only while one of its requests is being answered. ``TRANSITIONS`` defines when the next request
may be taken, after the mute states of Kafka's ``KafkaChannel``.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aioproducer.broker.server.framing import FrameReader
from aioproducer.transport.base import Buffer, Transport

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a request."""

    buffers: Sequence[Buffer] = ()
    """Bytes of the response with its size, by reference: unchanged until they are sent. Empty: no response."""
    close: bool = False
    """Close the connection after the response was sent."""
    abort: bool = False
    """Reset the connection at once; the response is not sent."""
    mute_ms: int = 0
    """Milliseconds that the connection's next request has to wait (throttling, KIP-219)."""


class Mute(enum.Enum):
    """Reason why the next request of a connection is not taken."""

    NOT_MUTED = "not muted"
    PROCESSING = "a request is being answered"
    SENDING = "the response is being sent"
    THROTTLED = "throttled"
    SENDING_THROTTLED = "the response is being sent, then throttled"


class Event(enum.Enum):
    """An event that moves a connection from one ``Mute`` to another."""

    TAKEN = "a request was taken"
    ANSWERED = "its response is being sent, or there is none"
    ANSWERED_THROTTLED = "its response is being sent, and the connection is throttled"
    SENT = "the response was sent"
    THROTTLE_OVER = "the throttling ended"


TRANSITIONS: Final = {
    (Mute.NOT_MUTED, Event.TAKEN): Mute.PROCESSING,
    (Mute.PROCESSING, Event.ANSWERED): Mute.SENDING,
    (Mute.PROCESSING, Event.ANSWERED_THROTTLED): Mute.SENDING_THROTTLED,
    (Mute.SENDING, Event.SENT): Mute.NOT_MUTED,
    (Mute.SENDING_THROTTLED, Event.SENT): Mute.THROTTLED,
    (Mute.SENDING_THROTTLED, Event.THROTTLE_OVER): Mute.SENDING,
    (Mute.THROTTLED, Event.THROTTLE_OVER): Mute.NOT_MUTED,
}
"""All possible transitions; any other is a bug of this module."""


class ConnectionOwner(Protocol):
    """What a connection needs from its server."""

    @property
    def is_serving(self) -> bool:
        """Whether requests may be taken."""

    @property
    def max_request_bytes(self) -> int: ...

    @property
    def answer(self) -> Answer: ...

    def active(self, connection: ServerConnection) -> None:
        """Bytes were received or sent."""

    def memory_changed(self, connection: ServerConnection, difference: int) -> None:
        """The connection holds ``difference`` more bytes."""

    def ended(self, connection: ServerConnection) -> None:
        """The connection is closed and all its requests are answered."""


class ServerConnection:
    """The broker's side of a client's connection: the handler of its transport, and an argument of request handlers.

    It holds at most the request being answered, the next whole request, one response, ``READ_AHEAD`` and one receive.
    """

    __slots__ = (
        "_answering",
        "_closing",
        "_held_up",
        "_lost",
        "_memory",
        "_owner",
        "_paused",
        "_processing",
        "_progress",
        "_reader",
        "_throttle",
        "_transport",
        "client_software_name",
        "client_software_version",
        "id",
        "mute",
        "peer",
        "received",
        "state",
        "waits_for_memory",
    )

    def __init__(self, owner: ConnectionOwner, transport: Transport, connection_id: str) -> None:
        self.peer = transport.peer
        self.id = connection_id
        self.client_software_name: str | None = None
        self.client_software_version: str | None = None
        self.state: dict[str, object] = {}
        """State that request handlers keep for this connection."""
        self.mute = Mute.NOT_MUTED
        self.received = 0
        """Bytes received."""
        self.waits_for_memory = False
        """Reading is paused until the server has memory; set by the server, which then calls ``regulate``."""
        self._owner = owner
        self._transport = transport
        self._reader = FrameReader(owner.max_request_bytes)
        self._answering: asyncio.Task[None] | None = None
        self._processing = 0
        self._memory = 0
        self._throttle: asyncio.TimerHandle | None = None
        self._paused = False
        self._closing = False
        """This side closes the connection: no further request is taken."""
        self._lost = False
        self._held_up: float | None = None
        self._progress: tuple[int, Mute] = (0, Mute.NOT_MUTED)

    def __repr__(self) -> str:
        return f"<ServerConnection {self.id}: {self.mute.value}>"

    @property
    def peer_host(self) -> str:
        """The client's address, without its port (Kafka's "client host" is this with a slash before it)."""
        return host_of(self.peer)

    @property
    def memory(self) -> int:
        """Bytes of the requests that are held: whole, partial, and being answered."""
        return self._memory

    @property
    def inside_frame(self) -> bool:
        """Whether a request was received only in part."""
        return self._reader.inside_frame

    @property
    def has_request(self) -> bool:
        """Whether a whole request waits to be answered."""
        return self._processing > 0 or self._reader.has_frame

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered, or its response sent."""
        return self.mute not in (Mute.NOT_MUTED, Mute.THROTTLED)

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost; requests received before may still be processed."""
        return self._lost

    # Called by the transport

    def data_received(self, data: Buffer) -> None:
        self.received += len(data)
        self._owner.active(self)
        self._reader.feed(data)
        self._count_memory()
        self.advance()

    def write_completed(self, count: int) -> None:
        self._owner.active(self)
        self._move(Event.SENT)
        self.advance()

    def connection_lost(self, exception: Exception | None) -> None:
        self._lost = True
        # The rest of a partial request will not arrive; complete ones are still processed.
        self._reader.drop_partial()
        self._count_memory()
        if self.mute in (Mute.SENDING, Mute.SENDING_THROTTLED):
            self._move(Event.SENT)
        self.advance()

    # Called by the server

    def advance(self) -> None:
        """Do what is possible now: answer the next request, pause or resume reading, close."""
        if self.mute is Mute.NOT_MUTED and not self._closing and self._owner.is_serving:
            frame = self._reader.take()
            if frame is not None:
                self._move(Event.TAKEN)
                self._processing = len(frame)
                self._count_memory()
                # Without the loop's task factory: an eager task would answer inside this call, and the next one inside
                # that.
                self._answering = asyncio.Task(self._answer(frame), loop=asyncio.get_running_loop())
            elif self._reader.failure is not None and not self._lost:
                _logger.warning("Closing the connection %s: %s", self.id, self._reader.failure)
                # Answer earlier requests first: a reset would discard responses that the peer has not read yet.
                self.close()
        if self._lost:
            if self._answering is None and (self._closing or not self._reader.has_frame):
                self._finish()
        else:
            self.regulate()

    def regulate(self) -> None:
        """Pause reading when no more may be held, and resume it when there is room."""
        if self._lost or self._closing:
            return
        pause = self._reader.is_full or self.waits_for_memory or self._reader.failure is not None
        if pause and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        elif self._paused and not pause:
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Finish the request that is being answered, then close; drop requests that wait."""
        if self._closing:
            return
        self._stop()
        if self.mute is not Mute.PROCESSING and not self._lost:
            self._transport.close()
        self.advance()

    def expire(self) -> bool:
        """Close because the connection was idle for too long; return ``False`` if this side caused that."""
        if self.mute in (Mute.PROCESSING, Mute.THROTTLED) or self._lost:
            return False
        if self._closing or self.mute is not Mute.NOT_MUTED:
            # The peer reads nothing, so an orderly end is impossible.
            self.abort()
        else:
            self.close()
        return True

    def abort(self) -> None:
        """Reset the connection at once. A request that is being answered continues, but its response is dropped."""
        self._stop()
        if not self._lost:
            self._transport.abort()
        self.advance()

    def cancel_answer(self) -> asyncio.Task[None] | None:
        """Cancel the task that answers a request, and return it; ``None`` if there is none."""
        task = self._answering
        if task is not None:
            task.cancel()
            task.add_done_callback(self._cancelled)
        return task

    def is_stalled(self, now: float, timeout: float, min_bytes: int) -> bool:
        """Whether the peer made too little progress for ``timeout`` seconds while this connection held memory.

        Progress is ``min_bytes`` received, or a response that the peer has read. Call this repeatedly; the first call
        starts the measurement.
        """
        waiting_for_rest = self.inside_frame and not self._paused
        sending = self.mute in (Mute.SENDING, Mute.SENDING_THROTTLED)
        if not self._memory or self._lost or not (waiting_for_rest or sending):
            self._held_up = None
            return False
        received, mute = self._progress
        if self._held_up is None or self.received - received >= min_bytes or mute is not self.mute:
            self._held_up = now
            self._progress = (self.received, self.mute)
        return now - self._held_up >= timeout

    def _stop(self) -> None:
        """Take no further request and read no further bytes."""
        self._closing = True
        if not self._lost and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._reader.clear()
        self._count_memory()
        if self._throttle is not None:
            self._throttle.cancel()
            self._throttle = None

    # Answering a request

    async def _answer(self, frame: memoryview) -> None:
        reply = Reply(abort=True)
        try:
            reply = await self._owner.answer(self, frame)
        except Exception:
            _logger.exception("Closing the connection %s: answering its request failed", self.id)
        finally:
            self._answering = None
            self._processing = 0
            del frame
            self._count_memory()
            self._respond(reply)

    def _cancelled(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs its coroutine, so the cleanup is here.
        if self._answering is task:
            self._answering = None
            self._processing = 0
            self._count_memory()
            self._respond(Reply(abort=True))

    def _respond(self, reply: Reply) -> None:
        throttled = reply.mute_ms > 0 and not self._closing
        self._move(Event.ANSWERED_THROTTLED if throttled else Event.ANSWERED)
        if throttled:
            loop = asyncio.get_running_loop()
            self._throttle = loop.call_later(reply.mute_ms / 1000, self._throttle_over)
        sent = True
        if reply.abort:
            self.abort()
        elif not self._lost:
            try:
                sent = not reply.buffers or self._transport.write(reply.buffers)
            except (TypeError, BufferError):
                _logger.exception("Closing the connection %s: its response could not be sent", self.id)
                self.abort()
        if sent:
            self._move(Event.SENT)
        if self._closing or reply.close:
            if not self._closing:
                self._stop()
            if not self._lost:
                self._transport.close()
        self.advance()

    def _throttle_over(self) -> None:
        self._throttle = None
        self._move(Event.THROTTLE_OVER)
        self.advance()

    def _move(self, event: Event) -> None:
        try:
            self.mute = TRANSITIONS[self.mute, event]
        except KeyError:
            raise RuntimeError(f"{self.id}: impossible event {event.name} in the state {self.mute.name}") from None

    def _count_memory(self) -> None:
        memory = self._processing + self._reader.memory
        if memory != self._memory:
            difference = memory - self._memory
            self._memory = memory
            self._owner.memory_changed(self, difference)

    def _finish(self) -> None:
        if self._throttle is not None:
            self._throttle.cancel()
            self._throttle = None
        self._owner.ended(self)


Answer = Callable[[ServerConnection, memoryview], Awaitable[Reply]]
"""Answers one whole request, given without its size. The memory is writable, exclusive to the callee, never reused."""


def host_of(peer: str) -> str:
    """Host of ``host:port``."""
    return peer.rpartition(":")[0].removeprefix("[").removesuffix("]")
