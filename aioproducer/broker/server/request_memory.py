"""Bounds the memory of the requests of all connections, and orders the connections that wait for memory.

Kafka's ``MemoryPool`` allocates the whole request or nothing. Here a request takes memory as its bytes arrive, so an
announced size costs nothing. To avoid a deadlock of many partial requests, the first waiting connection may always
continue; the next one may when that request is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from aioproducer.broker.server.connection import ServerConnection

_logger = logging.getLogger(__name__)

_STEP: Final = 128 * 1024
"""Bytes that a resumed connection is expected to take before the limit is checked again."""
_MIN_PROGRESS: Final = 64 * 1024
"""Bytes that a peer must send in ``stall_timeout`` to keep its connection while others wait for memory."""


class RequestMemory:
    """The memory of all unanswered requests, and the queue of connections that wait in the middle of a request.

    ``max_bytes``: above it connections in the middle of a request are paused, and resumed first come, first served; -1
    means no bound. While others wait, a connection that holds memory must make progress in ``stall_timeout`` seconds,
    or it is reset: it has to send 64 KiB, or to read its response.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        stall_timeout: float,
        loop: asyncio.AbstractEventLoop,
        connections: Callable[[], Iterable[ServerConnection]],
    ) -> None:
        self.used = 0
        """Bytes of all requests: whole, partial, and being answered."""
        self._max_bytes = max_bytes
        self._stall_timeout = stall_timeout
        self._loop = loop
        self._connections = connections
        self._waiters: OrderedDict[ServerConnection, None] = OrderedDict()
        self._exempt: ServerConnection | None = None
        """The connection that continued although memory was exhausted, until its request is answered."""
        self._exempt_is_complete = False
        """Whether that request is complete; only until then may it exceed the limit."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of connections that are paused until memory is free."""
        return len(self._waiters)

    def changed(self, connection: ServerConnection, difference: int) -> None:
        """Count ``difference`` more bytes that ``connection`` holds."""
        self.used += difference
        if connection is self._exempt:
            self._exempt_is_complete = self._exempt_is_complete or not connection.inside_frame
            if self._exempt_is_complete and not connection.has_request:
                self._exempt = None
        if self._max_bytes < 0:
            return
        if (
            difference > 0
            and connection.inside_frame
            and self.used >= self._max_bytes
            and (connection is not self._exempt or self._exempt_is_complete)
        ):
            self._waiters[connection] = None
            connection.waits_for_memory = True
        if self._waiters:
            self._resume_waiters()

    def ended(self, connection: ServerConnection) -> None:
        """Remove ``connection``, which holds no memory any longer."""
        connection.waits_for_memory = False
        self._waiters.pop(connection, None)
        if connection is self._exempt:
            self._exempt = None
        if self._waiters:
            self._resume_waiters()

    def close(self) -> None:
        """Forget all waiting connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiters.clear()

    def _resume_waiters(self) -> None:
        """Resume as many connections as there is room for, or one if there is no room."""
        room = self._max_bytes - self.used
        while self._waiters and (room > 0 or self._exempt is None):
            connection, _ = self._waiters.popitem(last=False)
            if room <= 0:
                self._exempt = connection
                self._exempt_is_complete = False
            room -= _STEP
            connection.waits_for_memory = False
            # Deferred: this call may come from inside that connection's own code.
            self._loop.call_soon(connection.regulate)
        if self._waiters and self._timer is None:
            self._timer = self._loop.call_later(self._stall_timeout / 4, self._look_for_stalled)

    def _look_for_stalled(self) -> None:
        self._timer = None
        if not self._waiters:
            return
        self._timer = self._loop.call_later(self._stall_timeout / 4, self._look_for_stalled)
        now = self._loop.time()
        for connection in list(self._connections()):
            if connection.is_stalled(now, self._stall_timeout, _MIN_PROGRESS):
                _logger.warning(
                    "Closing the connection %s: it holds %d bytes of requests and has made no progress for %s s, "
                    "while others wait for memory",
                    connection.id,
                    connection.memory,
                    self._stall_timeout,
                )
                connection.abort()
