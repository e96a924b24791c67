"""A client's connection, the connection to the broker that is made for it, and what passes between them.

What one side sends is read only while the other side takes it: at most one receive is held for each direction, and what
``ResponseStream`` holds. The seam has no half-closed connections: when one side has ended, what it sent before is still
sent on, then the other side ends too.

The end of a connection that is not read may not be noticed. While a client may send no further request, as too many
wait for their answers, it is therefore read on, until ``_MOST_HELD`` bytes are held of it.
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
"""Bytes; the receive that goes over it is held as well."""


class SessionLimits(Protocol):
    """What a session keeps to; ``GatewaySettings`` has it."""

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
        """Bytes that came."""
        self._unwritten = 0
        """Writes that it has not taken."""
        self.lost = False
        self.closing = False
        self._paused = False
        self._loop = loop
        self._stall_timeout = stall_timeout
        self._stalled = stalled
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing is left of it."""
        return self.lost or self.transport is None

    def write(self, buffers: list[Buffer]) -> None:
        """Send, unless it is over."""
        if buffers and self.transport is not None and not self.lost and not self.transport.write(buffers):
            self._unwritten += 1
            if self._stall_timer is None:
                self._stall_timer = self._loop.call_later(self._stall_timeout, self._stalled)

    @property
    def full(self) -> bool:
        """Whether something that was written has not gone yet."""
        return self._unwritten > 0

    def took(self, count: int) -> None:
        """So many writes have gone."""
        self._taken(self._unwritten - count)

    def taken(self) -> None:
        """All that was written has gone, or never will."""
        self._taken(0)

    def _taken(self, unwritten: int) -> None:
        self._unwritten = unwritten
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if unwritten:
            self._stall_timer = self._loop.call_later(self._stall_timeout, self._stalled)

    def pause(self, wanted: bool) -> None:
        """Read or do not."""
        if self.transport is None or self.lost or self.closing or wanted == self._paused:
            return
        self._paused = wanted
        if wanted:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def close(self) -> None:
        """End it when what was written has gone."""
        if self.transport is not None and not self.closing:
            self.closing = True
            self.transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.closing = True
            self.transport.abort()


class _ClientHandler:
    """What the client's transport calls back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def data_received(self, data: Buffer) -> None:
        self._session.client_sent(data)

    def write_completed(self, count: int) -> None:
        self._session.client_took(count)

    def connection_lost(self, exception: Exception | None) -> None:
        self._session.client_lost(exception)


class _UpstreamHandler:
    """What the transport to the broker calls back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def data_received(self, data: Buffer) -> None:
        self._session.upstream_sent(data)

    def write_completed(self, count: int) -> None:
        self._session.upstream_took(count)

    def connection_lost(self, exception: Exception | None) -> None:
        self._session.upstream_lost(exception)


class Session:
    """Joins a client to the broker; made when the client was accepted, before there is a connection to the broker.

    ``ended`` is called once, when nothing is left of either side. ``sasl_passes``: whether clients authenticate to the
    broker themselves; otherwise the connection to the broker is authenticated when it is passed to ``connected``.
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
        """What the client has sent beyond the requests that it may have unanswered."""
        self._close_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        """The broker is given up then, unless something of it comes."""
        self._drain_timer: asyncio.TimerHandle | None = None
        """The broker's session is about to end then."""
        self.was_cut_short = False
        """Whether it was drained because the broker's session was about to end."""
        self.client.transport = client
        self.client.pause(True)

    # The connection to the broker

    def connected(self, upstream: Transport, lifetime: float = math.inf) -> None:
        """There is a connection to the broker, whose handler is ``upstream_handler``.

        It may be used for ``lifetime`` seconds; then the session is drained, and the client connects again.
        """
        self._connecting = False
        if lifetime < math.inf:
            self._drain_timer = self._loop.call_later(lifetime, self._cut_short)
        self.upstream.transport = upstream
        if self.client.closing:
            self.upstream.close()
        self._go_on()

    def not_connected(self) -> None:
        """There is none, and there will be none."""
        self._connecting = False
        self.end()

    def unusable(self, upstream: Transport) -> None:
        """End a connection to the broker that cannot be used, whose end is reported to ``upstream_handler``.

        ``not_connected`` follows.
        """
        self.upstream.transport = upstream
        self.upstream.abort()

    def _cut_short(self) -> None:
        if not self.client.closing:
            _logger.debug("The session with the broker ends; %s has to connect again", self.peer)
            self.was_cut_short = True
            self.drain()

    # From the client to the broker

    def client_sent(self, data: Buffer) -> None:
        self.client.received += len(data)
        if self._held or self._waits_for_answers or self._drained:
            self._held += data
        else:
            self._pass_on(data)
        self._go_on()

    def _pass_on(self, data: Buffer) -> None:
        if self._requests.failure is not None:
            return
        self.upstream.write(self._requests.feed(data))
        if self._requests.failure is not None:
            _logger.warning("Closing the connection of %s, which sent %s", self.peer, self._requests.failure)
            # What it had asked before is still answered.
            self.drain()

    def upstream_took(self, count: int) -> None:
        self.upstream.took(count)
        self._go_on()

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
            self._go_on()

    def client_took(self, count: int) -> None:
        self.client.took(count)
        self._go_on()

    # How it ends

    def client_lost(self, exception: Exception | None) -> None:
        _logger.debug("The client %s has gone: %s", self.peer, exception)
        self.client.lost = True
        self.client.taken()
        self._pass_on_held()
        self.end()

    def upstream_lost(self, exception: Exception | None) -> None:
        if exception is not None and not self.upstream.closing:
            _logger.warning("The connection to the broker for %s is lost: %s", self.peer, exception)
        self.upstream.lost = True
        self.upstream.taken()
        self.end()

    def end(self) -> None:
        """Send on what has come, then end both sides; what they do not take in time is dropped."""
        self.client.close()
        self.upstream.close()
        self._go_on()
        if not self._over and self._close_timer is None:
            self._close_timer = self._loop.call_later(self._limits.close_timeout, self.abort)

    def abort(self) -> None:
        """End both sides at once."""
        self.client.abort()
        self.upstream.abort()
        self._go_on()

    def drain(self) -> None:
        """Let no further request pass, and end when all that have passed are answered."""
        self._draining = True
        self._requests.stop()
        self._go_on()

    def _client_stalled(self) -> None:
        _logger.warning(
            "The client %s has taken nothing for %g s; its connection is reset", self.peer, self._limits.stall_timeout
        )
        self.abort()

    def _upstream_stalled(self) -> None:
        _logger.warning(
            "The broker has taken nothing of %s for %g s; the connection is reset",
            self.peer,
            self._limits.stall_timeout,
        )
        self.abort()

    def _broker_is_silent(self) -> None:
        _logger.warning(
            "The broker has not answered %s of %s for %g s; the connection is reset",
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
        """Requests whose answers have not come, or not whole."""
        return len(self.exchange.expected) + (not self._responses.between_responses)

    @property
    def _drained(self) -> bool:
        return self._draining and self._requests.between_requests

    def _expect_answers(self, wanted: bool) -> None:
        """Have a timer, or none: the client cannot go on before the broker has answered."""
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

    def _go_on(self) -> None:
        """Read what may be read; see whether it is over."""
        if self._over:
            return
        if not (self._waits_for_answers or self._drained or self.upstream.full):
            self._pass_on_held()
        self.client.pause(self._connecting or self.upstream.full or len(self._held) >= _MOST_HELD)
        self.upstream.pause(self.client.full)
        waits = self._waits_for_answers or (self._drained and self._unanswered > 0)
        # A broker whose answers the client does not take is not to blame.
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
