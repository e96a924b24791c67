"""Connections inside one process, for tests and simulations: no sockets and no time, only loop iterations.

They keep the contract of ``base`` and use all the freedom it leaves: written data stays in the caller's buffers until
it is delivered, so the other side sees memory that was changed too early. The amount that a side receives per iteration
can be set. The same calls in the same order cause the same callbacks in the same order.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import itertools
from collections import deque
from collections.abc import Callable, Generator, Sequence

from aioproducer.transport.base import Buffer, TransportHandler
from aioproducer.transport.buffers import advance, first_bytes, views_of

_BYTES_PER_CALLBACK = 128 * 1024
"""Bytes that a side without a ``receive_window`` receives per loop iteration."""


class _State(enum.Enum):
    OPEN = "open"
    FLUSHING = "flushing"
    """``close`` was called; data written before it is still being delivered."""
    LINGERING = "lingering"
    """All data is delivered, and the other side is being notified."""
    ENDED = "ended"


class MemoryListener:
    """An address in a ``MemoryNetwork`` at which connections are accepted."""

    def __init__(
        self, network: MemoryNetwork, host: str, port: int, accept: Callable[[MemoryTransport], TransportHandler]
    ) -> None:
        self._network = network
        self.host = host
        self.port = port
        self.accept = accept

    def __await__(self) -> Generator[None, None, MemoryListener]:
        """Return itself without a loop iteration, so that a network can be used as a ``Listener``."""
        return self
        yield

    def close(self) -> None:
        """Refuse connections from now on; existing ones stay open."""
        if self._network.listeners.get((self.host, self.port)) is self:
            del self._network.listeners[self.host, self.port]

    async def wait_closed(self) -> None:
        """Return at once: ``close`` leaves nothing behind."""


class MemoryNetwork:
    """Hosts and ports inside this process; both a ``Listener`` and a ``Connector``.

    ``send_buffer_bytes``: how much of the data that a side writes is copied at once, as a socket's send buffer would.
    ``write`` returns ``True`` when all data fits into it. With 0 every byte stays in the caller's buffers until it is
    delivered.
    """

    def __init__(self, *, send_buffer_bytes: int = 0) -> None:
        self.listeners: dict[tuple[str, int], MemoryListener] = {}
        self._send_buffer_bytes = send_buffer_bytes
        self._client_ports = itertools.count(1)

    def listen(self, host: str, port: int, accept: Callable[[MemoryTransport], TransportHandler]) -> MemoryListener:
        """Call ``accept`` with the server's side of each connection to ``host`` and ``port``; it returns the handler.

        Port 0 stands for the first free port from 49152 on.

        Raises:
            OSError: the address is taken.
        """
        if port == 0:
            port = next(number for number in itertools.count(49152) if (host, number) not in self.listeners)
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, f"something listens at {host}:{port} already")
        listener = MemoryListener(self, host, port, accept)
        self.listeners[host, port] = listener
        return listener

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return ``host`` itself: names are addresses here, and connecting shows whether an address exists."""
        return [host]

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> MemoryTransport:
        """Connect to the listener at ``host`` and ``port``, after one loop iteration.

        An exception of ``accept`` is raised here. ``server_hostname`` is not used: there is no certificate.

        Raises:
            ConnectionRefusedError: nothing listens there.
        """
        await asyncio.sleep(0)
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"cannot connect to {host}:{port}: nothing listens there")
        client, server = self._make_pair(host, port)
        client._other, server._other = server, client
        client._handler = handler
        server._handler = listener.accept(server)
        return client

    def _make_pair(self, host: str, port: int) -> tuple[MemoryTransport, MemoryTransport]:
        """Return the client's and the server's side of a new connection; a simulation overrides it."""
        loop = asyncio.get_running_loop()
        client = MemoryTransport(loop, f"{host}:{port}", self._send_buffer_bytes)
        server = MemoryTransport(loop, f"client:{next(self._client_ports)}", self._send_buffer_bytes)
        return client, server


class MemoryTransport:
    """One side of a connection; a ``Transport``."""

    _handler: TransportHandler
    _other: MemoryTransport

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str, send_buffer_bytes: int) -> None:
        self._loop = loop
        self._peer = peer
        self._send_buffer_bytes = send_buffer_bytes
        self._copied = bytearray()
        self._unread: deque[memoryview] = deque()
        self._writes_owed = 0
        """Writes that returned ``False`` and are not completed."""
        self._transfer_scheduled = False
        self._receive_window: int | None = None
        self._reading_paused = False
        self._state = _State.OPEN
        self._other_shut = False

    @property
    def peer(self) -> str:
        """``host:port`` as connected to; on the accepting side a name generated for the client."""
        return self._peer

    @property
    def receive_window(self) -> int | None:
        """Bytes that this side receives per loop iteration; ``None`` for the default, 0 for none.

        A closing side receives everything and drops it.
        """
        return self._receive_window

    @receive_window.setter
    def receive_window(self, size: int | None) -> None:
        self._receive_window = size
        self._other._schedule_transfer()

    def pause_reading(self) -> None:
        """Receive nothing until ``resume_reading``; see ``Transport.pause_reading``."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Receive data of the other side again."""
        if self._reading_paused:
            self._reading_paused = False
            self._other._schedule_transfer()

    def write(self, buffers: Sequence[Buffer]) -> bool:
        """Send ``buffers`` one after the other; see ``Transport.write``.

        Raises:
            TypeError: something in ``buffers`` has no contiguous bytes; nothing of this call is sent.
        """
        if self._state is not _State.OPEN:
            return True
        self._unread.extend(views_of(buffers))
        self._copy()
        self._schedule_transfer()
        if self._unread:
            self._writes_owed += 1
        return not self._unread

    @property
    def is_writable(self) -> bool:
        """See ``Transport.is_writable``."""
        return self._state is _State.OPEN and not self._unread

    def close(self) -> None:
        """Send the data written so far, then end the connection; see ``Transport.close``."""
        if self._state is _State.OPEN:
            self._state = _State.FLUSHING
            self._schedule_transfer()
            self._other._schedule_transfer()

    def abort(self) -> None:
        """End the connection at once; the other side sees a reset."""
        self._end(None, reset=True)

    def _copy(self) -> None:
        data = b"".join(first_bytes(self._unread, self._send_buffer_bytes - len(self._copied)))
        self._copied += data
        advance(self._unread, len(data))

    def _schedule_transfer(self) -> None:
        if not self._transfer_scheduled and self._state is not _State.ENDED:
            self._transfer_scheduled = True
            self._reach_other(self._transfer)

    def _reach_other(self, callback: Callable[[], None]) -> None:
        """Run ``callback``, which changes the other side, one loop iteration later.

        All that one side causes at the other passes here, in order; a simulation overrides it to add latency.
        """
        self._loop.call_soon(callback)

    def _transfer(self) -> None:
        """Deliver as much unsent data as the other side accepts."""
        self._transfer_scheduled = False
        if self._state is _State.LINGERING or self._has_ended() or self._other._has_ended():
            return
        data = self._take(self._other._room())
        if data:
            self._schedule_transfer()
            self._other._deliver(memoryview(data))
        self._copy()
        if self._writes_owed and not self._unread and not self._has_ended():
            count, self._writes_owed = self._writes_owed, 0
            try:
                self._handler.write_completed(count)
            except Exception as error:
                self._handler_failed(error, "write_completed")
        if self._state is _State.FLUSHING and not self._copied and not self._unread:
            self._state = _State.LINGERING
            self._reach_other(self._other._end_of_stream)
            if self._other_shut:
                self._end(None, reset=False)

    def _has_ended(self) -> bool:
        return self._state is _State.ENDED

    def _room(self) -> int:
        if self._state is not _State.OPEN:
            return _BYTES_PER_CALLBACK
        if self._reading_paused:
            return 0
        return _BYTES_PER_CALLBACK if self._receive_window is None else self._receive_window

    def _take(self, limit: int) -> bytes:
        data = bytes(self._copied[:limit])
        del self._copied[:limit]
        rest = b"".join(first_bytes(self._unread, limit - len(data)))
        advance(self._unread, len(rest))
        return data + rest

    def _deliver(self, data: memoryview) -> None:
        """Deliver ``data``; a handler that keeps it is left with a released memoryview, as with a socket."""
        if self._state is not _State.OPEN:
            return
        try:
            with data:
                self._handler.data_received(data)
        except Exception as error:
            self._handler_failed(error, "data_received")

    def _end_of_stream(self) -> None:
        self._other_shut = True
        if self._state in (_State.OPEN, _State.LINGERING):
            self._end(None, reset=False)

    def _connection_reset(self) -> None:
        if self._state is _State.LINGERING:
            self._end(None, reset=False)
        else:
            error = ConnectionResetError(errno.ECONNRESET, f"{self._peer}: Connection reset by peer")
            self._end(error, reset=False)

    def _handler_failed(self, error: Exception, callback: str) -> None:
        self._loop.call_exception_handler(
            {
                "message": f"{callback} raised an exception; the connection to {self._peer} is given up",
                "exception": error,
                "transport": self,
            }
        )
        self._end(error, reset=True)

    def _end(self, exception: Exception | None, *, reset: bool) -> None:
        if self._state is _State.ENDED:
            return
        self._state = _State.ENDED
        self._copied.clear()
        self._unread.clear()
        self._loop.call_soon(self._report_lost, exception)
        self._reach_other(self._other._connection_reset if reset else self._other._end_of_stream)

    def _report_lost(self, exception: Exception | None) -> None:
        handler = self._handler
        del self._handler
        handler.connection_lost(exception)
