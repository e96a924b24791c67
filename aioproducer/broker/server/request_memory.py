"""How much memory the requests of all connections may take together, and who waits when there is no more.

Kafka's ``MemoryPool`` gives a request its memory whole or not at all. Here a request takes memory as its bytes come, so
that a size announced costs nothing. What keeps that from a deadlock of many requests that are all half there is that
one of those who wait, the first, may always go on; the next may when that one's request is answered.
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
"""What a connection that may read again is expected to take before it is asked again."""
_MIN_PROGRESS: Final = 64 * 1024
"""Bytes that a peer must have sent in ``stall_timeout`` to be left alone while others wait for memory."""


class RequestMemory:
    """The memory of all requests not answered yet, and the line of those who are in the middle of one and must wait.

    ``max_bytes``: from here on connections in the middle of a request are paused, first come, first served; -1 for no
    bound. While others wait, a connection that holds memory, could send and does not (less than 64 KiB in
    ``stall_timeout`` seconds), or does not take its answer for so long, is reset.
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
        """Bytes of all requests: whole, in part, and being answered."""
        self._max_bytes = max_bytes
        self._stall_timeout = stall_timeout
        self._loop = loop
        self._connections = connections
        self._line: OrderedDict[ServerConnection, None] = OrderedDict()
        self._favoured: ServerConnection | None = None
        """The one that went on though there was no memory, until its request is answered."""
        self._favoured_is_whole = False
        """Whether that request has come; only until then may it take what there is not."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many connections are paused for want of memory."""
        return len(self._line)

    def changed(self, connection: ServerConnection, difference: int) -> None:
        """``connection`` holds so many bytes more."""
        self.used += difference
        if connection is self._favoured:
            self._favoured_is_whole = self._favoured_is_whole or not connection.inside_frame
            if self._favoured_is_whole and not connection.has_request:
                self._favoured = None
        if self._max_bytes < 0:
            return
        if (
            difference > 0
            and connection.inside_frame
            and self.used >= self._max_bytes
            and (connection is not self._favoured or self._favoured_is_whole)
        ):
            self._line[connection] = None
            connection.waits_for_memory = True
        if self._line:
            self._serve_line()

    def ended(self, connection: ServerConnection) -> None:
        """``connection`` takes part no more; it holds nothing."""
        connection.waits_for_memory = False
        self._line.pop(connection, None)
        if connection is self._favoured:
            self._favoured = None
        if self._line:
            self._serve_line()

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._line.clear()

    def _serve_line(self) -> None:
        """Let go on as many as there is room for, or one where there is none."""
        room = self._max_bytes - self.used
        while self._line and (room > 0 or self._favoured is None):
            connection, _ = self._line.popitem(last=False)
            if room <= 0:
                self._favoured = connection
                self._favoured_is_whole = False
            room -= _STEP
            connection.waits_for_memory = False
            # Not at once: this may be in the midst of what that connection is doing.
            self._loop.call_soon(connection.regulate)
        if self._line and self._timer is None:
            self._timer = self._loop.call_later(self._stall_timeout / 4, self._look_for_stalled)

    def _look_for_stalled(self) -> None:
        self._timer = None
        if not self._line:
            return
        self._timer = self._loop.call_later(self._stall_timeout / 4, self._look_for_stalled)
        now = self._loop.time()
        for connection in list(self._connections()):
            if connection.is_stalled(now, self._stall_timeout, _MIN_PROGRESS):
                _logger.warning(
                    "Closing the connection %s: it holds %d bytes of requests and has stood still for %s s, "
                    "while others wait for memory",
                    connection.id,
                    connection.memory,
                    self._stall_timeout,
                )
                connection.abort()
