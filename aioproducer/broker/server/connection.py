"""One connection of a client to the broker: requests out of its bytes, answered one at a time and in order.

A connection has a task only while one of its requests is being answered. Which request may be taken when is the table
below, after the mute states of Kafka's ``KafkaChannel``.
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
    """What becomes of a request."""

    buffers: Sequence[Buffer] = ()
    """What is sent, size and all, by reference: nobody may change it before it has gone. Nothing where empty."""
    close: bool = False
    """End the connection once that was sent."""
    abort: bool = False
    """Reset the connection at once; nothing is sent."""
    mute_ms: int = 0
    """How long the connection's next request has to wait (a throttle: KIP-219)."""


class Mute(enum.Enum):
    """Why the next request of a connection is not taken."""

    NOT = "it is taken"
    PROCESSING = "a request is being answered"
    SENDING = "the peer has not taken the answer"
    THROTTLED = "the throttle is not over"
    SENDING_THROTTLED = "neither"


class Event(enum.Enum):
    """What moves a connection from one ``Mute`` to another."""

    TAKEN = "a request was taken"
    ANSWERED = "its answer is being sent, or there is none to send"
    ANSWERED_THROTTLED = "that, and the connection is throttled"
    SENT = "the answer has left its memory"
    THROTTLE_OVER = "the throttle is over"


TRANSITIONS: Final = {
    (Mute.NOT, Event.TAKEN): Mute.PROCESSING,
    (Mute.PROCESSING, Event.ANSWERED): Mute.SENDING,
    (Mute.PROCESSING, Event.ANSWERED_THROTTLED): Mute.SENDING_THROTTLED,
    (Mute.SENDING, Event.SENT): Mute.NOT,
    (Mute.SENDING_THROTTLED, Event.SENT): Mute.THROTTLED,
    (Mute.SENDING_THROTTLED, Event.THROTTLE_OVER): Mute.SENDING,
    (Mute.THROTTLED, Event.THROTTLE_OVER): Mute.NOT,
}
"""All that may happen; anything else is a bug of this module."""


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    @property
    def is_serving(self) -> bool:
        """Whether requests may be taken."""

    @property
    def max_request_bytes(self) -> int: ...

    @property
    def answer(self) -> Answer: ...

    def active(self, connection: ServerConnection) -> None:
        """Bytes came, or an answer has gone."""

    def memory_changed(self, connection: ServerConnection, difference: int) -> None:
        """The connection holds so many bytes more."""

    def ended(self, connection: ServerConnection) -> None:
        """Nothing of the connection is left."""


class ServerConnection:
    """The broker's side of a client's connection, as handlers see it; the handler of its transport.

    It holds at most the request being answered, a whole one behind it, ``READ_AHEAD`` and one receive more, and
    one answer.
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
        """For handlers: what they know of this connection."""
        self.mute = Mute.NOT
        self.received = 0
        """Bytes that came."""
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
        """This side ends the connection: no further request is taken."""
        self._lost = False
        self._held_up: float | None = None
        self._progress: tuple[int, Mute] = (0, Mute.NOT)

    def __repr__(self) -> str:
        return f"<ServerConnection {self.id}: {self.mute.value}>"

    @property
    def peer_host(self) -> str:
        """The client's address, without its port (Kafka's "client host" is this with a slash before it)."""
        return host_of(self.peer)

    @property
    def memory(self) -> int:
        """Bytes of requests that are held: whole and partial, and the one being answered."""
        return self._memory

    @property
    def inside_frame(self) -> bool:
        """Whether a part of a request has come, and the rest has not."""
        return self._reader.inside_frame

    @property
    def has_request(self) -> bool:
        """Whether it holds a whole request that is not answered."""
        return self._processing > 0 or self._reader.has_frame

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered, or its answer sent."""
        return self.mute not in (Mute.NOT, Mute.THROTTLED)

    @property
    def is_lost(self) -> bool:
        """Whether the connection is over, though requests that had come may still be looked at."""
        return self._lost

    # What the transport calls

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

    # What the server calls

    def advance(self) -> None:
        """Do what can be done now: answer the next request, read on or not, end."""
        if self.mute is Mute.NOT and not self._closing and self._owner.is_serving:
            frame = self._reader.take()
            if frame is not None:
                self._move(Event.TAKEN)
                self._processing = len(frame)
                self._count_memory()
                # Without the loop's task factory: an eager one would answer within this call, and the next within that.
                self._answering = asyncio.Task(self._answer(frame), loop=asyncio.get_running_loop())
            elif self._reader.failure is not None and not self._lost:
                _logger.warning("Closing the connection %s: %s", self.id, self._reader.failure)
                # In order, as a reset would take away the answers that the peer has not read yet.
                self.close()
        if self._lost:
            if self._answering is None and (self._closing or not self._reader.has_frame):
                self._finish()
        else:
            self.regulate()

    def regulate(self) -> None:
        """Pause reading where no more may be held, resume where it may."""
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
        """Answer the request that is being answered, if there is one, and then end; others that wait are dropped."""
        if self._closing:
            return
        self._stop()
        if self.mute is not Mute.PROCESSING and not self._lost:
            self._transport.close()
        self.advance()

    def expire(self) -> bool:
        """End as nothing has come or gone for too long; ``False`` where that is our own doing."""
        if self.mute in (Mute.PROCESSING, Mute.THROTTLED) or self._lost:
            return False
        if self._closing or self.mute is not Mute.NOT:
            # The peer takes nothing: there is no other way.
            self.abort()
        else:
            self.close()
        return True

    def abort(self) -> None:
        """Reset the connection at once; a request that is being answered goes on, its answer is dropped."""
        self._stop()
        if not self._lost:
            self._transport.abort()
        self.advance()

    def cancel_answer(self) -> asyncio.Task[None] | None:
        """Cancel the task that answers a request, and return it; ``None`` where there is none."""
        task = self._answering
        if task is not None:
            task.cancel()
            task.add_done_callback(self._cancelled)
        return task

    def is_stalled(self, now: float, timeout: float, min_bytes: int) -> bool:
        """Whether the peer has let us hold memory for ``timeout`` seconds, and neither sent that much nor received.

        To be asked again and again; the first time begins the watch.
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
        """Take no further request, read no further bytes."""
        self._closing = True
        if not self._lost and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._reader.clear()
        self._count_memory()
        if self._throttle is not None:
            self._throttle.cancel()
            self._throttle = None

    # How a request is answered

    async def _answer(self, frame: memoryview) -> None:
        reply = Reply(abort=True)
        try:
            reply = await self._owner.answer(self, frame)
        except Exception:
            _logger.exception("Answering a request of the connection %s failed; the connection is closed", self.id)
        finally:
            self._answering = None
            self._processing = 0
            del frame
            self._count_memory()
            self._respond(reply)

    def _cancelled(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never gets to the end of its coroutine.
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
                _logger.exception("An answer for the connection %s could not be sent; it is closed", self.id)
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
            raise RuntimeError(f"{self.id}: {event.value}, though {self.mute.value}") from None

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
"""Answers a whole request, given without its size in memory of its own: writable, kept by nobody else, never reused."""


def host_of(peer: str) -> str:
    """The host of ``host:port``."""
    return peer.rpartition(":")[0].removeprefix("[").removesuffix("]")
