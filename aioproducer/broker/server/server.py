"""The broker's listener and its connections: accepts, counts, limits and closes them.

An error in one connection ends only that connection. Kafka's ``Processor`` catches everything in its loop for the same
reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from aioproducer.broker.server.connection import Answer, Reply, ServerConnection, host_of
from aioproducer.broker.server.request_memory import RequestMemory
from aioproducer.transport.base import Buffer, Listener, Listening, Transport, TransportHandler

__all__ = ["Answer", "Reply", "Server", "ServerConnection"]

_logger = logging.getLogger(__name__)

UNLIMITED: Final = 2**31 - 1
_CLOSING_GRACE: Final = 0.5
"""Seconds that connections without an unanswered request have for an orderly end."""
_LOG_INTERVAL: Final = 1.0


class _Refused:
    """The handler of a refused connection."""

    def data_received(self, data: Buffer) -> None:
        """Never called: the connection was aborted."""

    def write_completed(self, count: int) -> None:
        """Never called: nothing was written."""

    def connection_lost(self, exception: Exception | None) -> None:
        """Ignored: this side aborted the connection."""


class Server:
    """Accepts connections and answers their requests by ``answer``: for each connection one at a time, in order.

    ``answer(connection, frame)`` receives a whole request without its size and returns a ``Reply``. The frame's memory
    is writable, exclusive to it and never reused. An exception from ``answer`` is logged and ends the connection.

    ``max_request_bytes`` (``socket.request.max.bytes``): a longer request ends its connection before memory is
    allocated for it. ``max_connections`` (``max.connections``) and ``max_connections_per_ip``: a connection beyond them
    is reset at once; a connection counts until its last request was answered. ``queued_max_bytes``
    (``queued.max.request.bytes``): the limit for unanswered requests of all connections, -1 for none.
    ``connections_max_idle_ms`` (``connections.max.idle.ms``): a connection is closed when it neither sent nor received
    for that time, and none of its requests is being answered or throttled; -1 for never. ``stall_timeout_ms``: see
    ``RequestMemory``.

    **Memory.** An idle connection holds no buffer, about 2 KB in all. Requests take at most ``queued_max_bytes`` and
    one more request, that of the connection that continues when memory is short. Beyond that each connection may hold a
    receive (128 KiB) in a buffer of twice that size, and ``READ_AHEAD`` (128 KiB), before it is paused. Responses are
    held by reference, at most one for each connection.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        max_request_bytes: int = 100 * 1024 * 1024,
        max_connections: int = UNLIMITED,
        max_connections_per_ip: int = UNLIMITED,
        queued_max_bytes: int = 256 * 1024 * 1024,
        connections_max_idle_ms: int = 10 * 60 * 1000,
        stall_timeout_ms: int = 10_000,
    ) -> None:
        self.answer = answer
        self.max_request_bytes = max_request_bytes
        self.max_connections = max_connections
        self.max_connections_per_ip = max_connections_per_ip
        self.is_serving = False
        self.refused = 0
        """Number of refused connections."""
        self._queued_max_bytes = queued_max_bytes
        self._stall_timeout = stall_timeout_ms / 1000
        self._max_idle = connections_max_idle_ms / 1000
        self._listening: Listening | None = None
        self._last_used: OrderedDict[ServerConnection, float] = OrderedDict()
        """All connections and the time of their last use, ordered by it: the longest idle first."""
        self._by_host: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._refusal_logged = float("-inf")
        self._ended = asyncio.Event()
        """Set whenever a connection has ended."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that are cancelled but not finished."""

    async def start(self, listener: Listener, host: str, port: int, *, serve: bool = True) -> None:
        """Listen; port 0 chooses a free one.

        Connections are accepted at once. With ``serve=False`` requests are processed only after ``serve()``: so the
        port is known before the broker has loaded its logs.

        Raises:
            OSError: the host is unknown or does not belong to this machine, or the port is in use.
        """
        if self._listening is not None:
            raise RuntimeError("the server is already listening")
        self._loop = asyncio.get_running_loop()
        self.memory = RequestMemory(
            self._queued_max_bytes,
            stall_timeout=self._stall_timeout,
            loop=self._loop,
            connections=self._last_used.keys,
        )
        self.is_serving = serve
        self._listening = await listener.listen(host, port, self._accept)

    def serve(self) -> None:
        """Process requests from now on."""
        self.is_serving = True
        for connection in list(self._last_used):
            connection.advance()

    @property
    def host(self) -> str:
        """The host that was given to ``start``."""
        return self._bound().host

    @property
    def port(self) -> int:
        """The port that the server listens at."""
        return self._bound().port

    @property
    def connections(self) -> Collection[ServerConnection]:
        """Open connections, and lost ones with a request that is not answered yet."""
        return self._last_used.keys()

    async def stop(self, graceful: bool = True, *, timeout: float = 10.0) -> None:
        """Stop accepting, finish the requests that are being answered, close all connections.

        Waiting requests are dropped. Connections that are still open after ``timeout`` seconds are reset and their
        tasks cancelled; without ``graceful`` this happens at once. No connection is left when this returns or is
        cancelled, and no task when it returns.
        """
        try:
            if graceful and self._listening is not None:
                await self._stop_gracefully(self._listening, timeout)
        finally:
            self.abort()
        await self.wait_closed()

    async def _stop_gracefully(self, listening: Listening, timeout: float) -> None:
        listening.close()
        for connection in list(self._last_used):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._until_lost(lambda connection: connection.is_busy)
                async with asyncio.timeout(_CLOSING_GRACE):
                    await self._until_lost(lambda connection: True)

    async def _until_lost(self, which: Callable[[ServerConnection], bool]) -> None:
        """Wait until no connection that ``which`` selects is left."""
        while any(map(which, self._last_used)):
            self._ended.clear()
            await self._ended.wait()

    def abort(self) -> None:
        """Stop accepting, reset all connections and cancel their tasks, at once; see ``wait_closed``."""
        self.is_serving = False
        if self._listening is None:
            return
        self._listening.close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self.memory.close()
        for connection in list(self._last_used):
            connection.abort()
            task = connection.cancel_answer()
            if task is not None:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def wait_closed(self) -> None:
        """After ``abort``: wait until no connection and no task is left."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._listening is not None:
            await self._listening.wait_closed()
            await self._until_lost(lambda connection: True)

    # Called by connections

    def active(self, connection: ServerConnection) -> None:
        """Record a connection's use; connections that are being given up do not count."""
        if connection in self._last_used:
            self._last_used[connection] = self._loop.time()
            self._last_used.move_to_end(connection)

    def memory_changed(self, connection: ServerConnection, difference: int) -> None:
        """Count ``difference`` more bytes that the connection holds."""
        self.memory.changed(connection, difference)

    def ended(self, connection: ServerConnection) -> None:
        """Remove a connection that is closed and answered."""
        if self._last_used.pop(connection, None) is None:
            return
        host = connection.peer_host
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self.memory.ended(connection)
        self._ended.set()

    # Connections

    def _bound(self) -> Listening:
        if self._listening is None:
            raise RuntimeError("the server is not started: call start first")
        return self._listening

    def _accept(self, transport: Transport) -> TransportHandler:
        host = host_of(transport.peer)
        reason = ""
        if len(self._last_used) >= self.max_connections:
            reason = f"there are {self.max_connections} connections (max.connections)"
        elif self._by_host[host] >= self.max_connections_per_ip:
            reason = f"there are {self.max_connections_per_ip} connections from {host} (max.connections.per.ip)"
        if reason:
            self._refuse(transport, reason)
            return _Refused()
        connection_id = f"{self._local_name()}-{transport.peer}-{next(self._numbers)}"
        connection = ServerConnection(self, transport, connection_id)
        self._by_host[host] += 1
        self._last_used[connection] = self._loop.time()
        if self._idle_timer is None and self._max_idle >= 0:
            self._idle_timer = self._loop.call_later(self._max_idle, self._close_idle)
        return connection

    def _local_name(self) -> str:
        return f"{self.host}:{self.port}"

    def _refuse(self, transport: Transport, reason: str) -> None:
        transport.abort()
        self.refused += 1
        now = self._loop.time()
        if now - self._refusal_logged >= _LOG_INTERVAL:
            self._refusal_logged = now
            _logger.warning(
                "Refusing the connection from %s: %s (%d refused so far)", transport.peer, reason, self.refused
            )

    def _close_idle(self) -> None:
        """Close the connection that has been idle longest, if that was too long. One a call keeps each call short."""
        self._idle_timer = None
        if not self._last_used:
            return
        connection, last_used = next(iter(self._last_used.items()))
        due = last_used + self._max_idle
        if self._loop.time() >= due:
            if connection.expire():
                _logger.info("Closing the connection %s: idle for %s s", connection.id, self._max_idle)
            # The connection has the same time again to end. A connection with a request in progress is not idle.
            self.active(connection)
            due = next(iter(self._last_used.values())) + self._max_idle
        self._idle_timer = self._loop.call_at(due, self._close_idle)
