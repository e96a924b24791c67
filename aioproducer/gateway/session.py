"""A client's connection, its connection to the broker, and the data that pass between them.

One side is read only while the other side reads too. For each direction at most one receive is held, besides the bytes
in ``ResponseStream``. Transports have no half-closed connections: when one side has ended, its data are still sent,
then the other side is closed too.

The end of a connection that is not read may go unnoticed. While a client may send no further request because too many
are unanswered, its connection is therefore still read, until ``_MOST_HELD`` bytes are held.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from aioproducer._common.texts import counted
from aioproducer.gateway.requests import Exchange, RequestStream
from aioproducer.gateway.responses import ResponseStream
from aioproducer.gateway.rewriting import Translate
from aioproducer.transport.base import Buffer, Transport, TransportHandler

_logger = logging.getLogger(__name__)

_MOST_HELD: Final = 64 * 1024
"""Bytes; the receive that exceeds it is held as well."""


class SessionLimits(Protocol):
    """The limits of a session, which ``GatewaySettings`` has."""

    @property
    def max_request_size(self) -> int: ...
    @property
    def max_in_flight(self) -> int: ...
    @property
    def max_held_bytes(self) -> int: ...
    @property
    def whole_limit(self) -> int: ...
    @property
    def stall_timeout(self) -> float: ...
    @property
    def close_timeout(self) -> float: ...


class _Side:
    """One of the two connections; the handler of its transport."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_timeout: float, stalled: Callable[[], None]) -> None:
        self.transport: Transport | None = None
        self.received = 0
        """Number of bytes received."""
        self._unwritten = 0
        """Writes that the peer has not read."""
        self.lost = False
        self.closing = False
        self._paused = False
        self._loop = loop
        self._stall_timeout = stall_timeout
        self._stalled = stalled
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        """Whether the connection is lost, or was never made."""
        return self.lost or self.transport is None

    def write(self, buffers: list[Buffer]) -> None:
        """Send, unless the connection is lost."""
        if buffers and self.transport is not None and not self.lost and not self.transport.write(buffers):
            self._unwritten += 1
            if self._stall_timer is None:
                self._stall_timer = self._loop.call_later(self._stall_timeout, self._stalled)

    @property
    def full(self) -> bool:
        """Whether writes are pending."""
        return self._unwritten > 0

    def write_completed(self, count: int) -> None:
        """Count ``count`` completed writes."""
        self._set_unwritten(self._unwritten - count)

    def writes_ended(self) -> None:
        """All writes are completed, or never will be."""
        self._set_unwritten(0)

    def _set_unwritten(self, unwritten: int) -> None:
        self._unwritten = unwritten
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if unwritten:
            self._stall_timer = self._loop.call_later(self._stall_timeout, self._stalled)

    def pause(self, wanted: bool) -> None:
        """Pause or resume reading."""
        if self.transport is None or self.lost or self.closing or wanted == self._paused:
            return
        self._paused = wanted
        if wanted:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def close(self) -> None:
        """Close the connection after all writes."""
        if self.transport is not None and not self.closing:
            self.closing = True
            self.transport.close()

    def abort(self) -> None:
        """Reset the connection at once."""
        if self.transport is not None:
            self.closing = True
            self.transport.abort()


class _ClientHandler:
    """Callbacks of the client's transport."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def data_received(self, data: Buffer) -> None:
        self._session.client_sent(data)

    def write_completed(self, count: int) -> None:
        self._session.client_write_completed(count)

    def connection_lost(self, exception: Exception | None) -> None:
        self._session.client_lost(exception)


class _UpstreamHandler:
    """Callbacks of the transport to the broker."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def data_received(self, data: Buffer) -> None:
        self._session.upstream_sent(data)

    def write_completed(self, count: int) -> None:
        self._session.upstream_write_completed(count)

    def connection_lost(self, exception: Exception | None) -> None:
        self._session.upstream_lost(exception)


class Session:
    """Joins a client to the broker; created for an accepted client, before the connection to the broker.

    ``ended`` is called once, when both sides have ended. ``sasl_passes``: whether clients authenticate to the broker
    themselves; otherwise the connection to the broker is authenticated before it is passed to ``connected``.
    """

    def __init__(
        self,
        client: Transport,
        limits: SessionLimits,
        translate: Translate,
        ended: Callable[[Session], None],
        *,
        sasl_passes: bool = True,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.exchange = Exchange(sasl_passes=sasl_passes)
        self.peer = client.peer
        self.client = _Side(loop, limits.stall_timeout, self._client_stalled)
        self.upstream = _Side(loop, limits.stall_timeout, self._upstream_stalled)
        self.client_handler: TransportHandler = _ClientHandler(self)
        self.upstream_handler: TransportHandler = _UpstreamHandler(self)
        self._loop = loop
        self._limits = limits
        self._ended = ended
        self._requests = RequestStream(self.exchange, limits.max_request_size)
        self._responses = ResponseStream(self.exchange, translate, limits.max_held_bytes, limits.whole_limit)
        self._connecting = True
        self._draining = False
        self._over = False
        self._held = bytearray()
        """Bytes that the client has sent beyond its limit of unanswered requests."""
        self._close_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        """When it fires, the broker is given up; data from the broker reset it."""
        self._drain_timer: asyncio.TimerHandle | None = None
        """Fires shortly before the broker's session ends."""
        self.was_cut_short = False
        """Whether the session was drained because the broker's session was about to end."""
        self.client.transport = client
        self.client.pause(True)

    # The connection to the broker

    def connected(self, upstream: Transport, lifetime: float = math.inf) -> None:
        """Start passing data through the connection to the broker; its handler is ``upstream_handler``.

        It may be used for ``lifetime`` seconds; then the session is drained, and the client connects again.
        """
        self._connecting = False
        if lifetime < math.inf:
            self._drain_timer = self._loop.call_later(lifetime, self._cut_short)
        self.upstream.transport = upstream
        if self.client.closing:
            self.upstream.close()
        self._advance()

    def not_connected(self) -> None:
        """End the client's connection: connecting to the broker has failed."""
        self._connecting = False
        self.end()

    def unusable(self, upstream: Transport) -> None:
        """Close an unusable connection to the broker; its end is reported to ``upstream_handler``.

        ``not_connected`` follows.
        """
        self.upstream.transport = upstream
        self.upstream.abort()

    def _cut_short(self) -> None:
        if not self.client.closing:
            _logger.debug("The session with the broker ends soon; %s has to connect again", self.peer)
            self.was_cut_short = True
            self.drain()

    # From the client to the broker

    def client_sent(self, data: Buffer) -> None:
        self.client.received += len(data)
        if self._held or self._waits_for_answers or self._drained:
            self._held += data
        else:
            self._pass_on(data)
        self._advance()

    def _pass_on(self, data: Buffer) -> None:
        if self._requests.failure is not None:
            return
        self.upstream.write(self._requests.feed(data))
        if self._requests.failure is not None:
            _logger.warning("Closing the connection of %s, which sent %s", self.peer, self._requests.failure)
            # Earlier requests are still answered.
            self.drain()

    def upstream_write_completed(self, count: int) -> None:
        self.upstream.write_completed(count)
        self._advance()

    # From the broker to the client

    def upstream_sent(self, data: Buffer) -> None:
        self.upstream.received += len(data)
        self._expect_answers(False)
        if self._responses.failure is not None:
            return
        self.client.write(self._responses.feed(data))
        if self._responses.failure is not None:
            _logger.warning("Closing the connection of %s: %s", self.peer, self._responses.failure)
            self.end()
        else:
            self._advance()

    def client_write_completed(self, count: int) -> None:
        self.client.write_completed(count)
        self._advance()

    # The end of a session

    def client_lost(self, exception: Exception | None) -> None:
        _logger.debug("The client %s has gone: %s", self.peer, exception)
        self.client.lost = True
        self.client.writes_ended()
        self._pass_on_held()
        self.end()

    def upstream_lost(self, exception: Exception | None) -> None:
        if exception is not None and not self.upstream.closing:
            _logger.warning("The connection to the broker for %s is lost: %s", self.peer, exception)
        self.upstream.lost = True
        self.upstream.writes_ended()
        self.end()

    def end(self) -> None:
        """Send the data that have arrived, then close both sides; data that they do not read in time are dropped."""
        self.client.close()
        self.upstream.close()
        self._advance()
        if not self._over and self._close_timer is None:
            self._close_timer = self._loop.call_later(self._limits.close_timeout, self.abort)

    def abort(self) -> None:
        """Reset both sides at once."""
        self.client.abort()
        self.upstream.abort()
        self._advance()

    def drain(self) -> None:
        """Let no further request pass, and end when all earlier ones are answered."""
        self._draining = True
        self._requests.stop()
        self._advance()

    def _client_stalled(self) -> None:
        _logger.warning(
            "Resetting the connection of %s: the client has read nothing for %g s",
            self.peer,
            self._limits.stall_timeout,
        )
        self.abort()

    def _upstream_stalled(self) -> None:
        _logger.warning(
            "Resetting the connection to the broker for %s: the broker has read nothing for %g s",
            self.peer,
            self._limits.stall_timeout,
        )
        self.abort()

    def _broker_is_silent(self) -> None:
        _logger.warning(
            "Resetting the connection to the broker: it has not answered %s of %s for %g s",
            counted(self._unanswered, "request"),
            self.peer,
            self._limits.stall_timeout,
        )
        self.abort()

    @property
    def _waits_for_answers(self) -> bool:
        return len(self.exchange.expected) >= self._limits.max_in_flight

    @property
    def _unanswered(self) -> int:
        """Number of requests without a complete response."""
        return len(self.exchange.expected) + (not self._responses.between_responses)

    @property
    def _drained(self) -> bool:
        return self._draining and self._requests.between_requests

    def _expect_answers(self, wanted: bool) -> None:
        """Start or stop the timer for the broker's next response, without which the client cannot continue."""
        if wanted == (self._answer_timer is not None):
            return
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
        else:
            self._answer_timer = self._loop.call_later(self._limits.stall_timeout, self._broker_is_silent)

    def _pass_on_held(self) -> None:
        held, self._held = self._held, bytearray()
        if held:
            self._pass_on(held)

    def _advance(self) -> None:
        """Pause or resume reading on both sides; end the session if it is finished."""
        if self._over:
            return
        if not (self._waits_for_answers or self._drained or self.upstream.full):
            self._pass_on_held()
        self.client.pause(self._connecting or self.upstream.full or len(self._held) >= _MOST_HELD)
        self.upstream.pause(self.client.full)
        waits = self._waits_for_answers or (self._drained and self._unanswered > 0)
        # The broker cannot send if the client does not read its responses.
        self._expect_answers(waits and not self.client.full and not self.client.closing)
        if self._drained and not self._unanswered and not self.client.closing:
            self.end()
        elif self.client.ended and self.upstream.ended and not self._connecting:
            self._over = True
            self._expect_answers(False)
            for timer in (self._close_timer, self._drain_timer):
                if timer is not None:
                    timer.cancel()
            self._ended(self)
