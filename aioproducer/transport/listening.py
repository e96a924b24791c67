"""Accepting TCP connections, and TLS connections over them.

Ten thousand idle connections must cost next to nothing. All connections of a listener therefore share one receive
buffer, and only a connection in its TLS handshake has a task.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable

from aioproducer.transport.addresses import Address, check_loop, peer_name, resolve
from aioproducer.transport.base import Buffer, Transport, TransportHandler
from aioproducer.transport.socket_transport import StreamTransport
from aioproducer.transport.tls_session import TlsSession
from aioproducer.transport.tls_transport import TlsTransport

_logger = logging.getLogger(__name__)

_ACCEPTS_PER_CALLBACK = 64
_PAUSE_AFTER_ERROR = 0.5
"""Seconds without accepting after the system refused to accept: any sooner, descriptors would still be exhausted."""
_HANDSHAKE_SHARE = 0.1
"""Share of its timeout that the oldest handshake has while the limit of handshakes is reached."""
_BINDS = 10
"""Attempts to find a port that is free at every address of a name."""
_CONNECTION_ERRORS = frozenset(
    [errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN]
)
"""Errors of one connection, already gone, that Linux reports through ``accept`` (man accept)."""


class _NoHandler:
    """The handler of a connection that is not accepted yet."""

    def data_received(self, data: Buffer) -> None:
        """Cannot happen: nothing is read yet."""

    def write_completed(self, count: int) -> None:
        """Nothing waits for it."""

    def connection_lost(self, exception: Exception | None) -> None:
        """Nothing waits for it."""


_NO_HANDLER = _NoHandler()


class StreamListener:
    """Accepts TCP connections, or TLS connections if a server's ``ssl_context`` is given; a ``Listener``.

    ``send_buffer_bytes`` and ``receive_buffer_bytes`` are the sizes of the sockets' buffers, -1 for the default
    (``socket.send.buffer.bytes``, ``socket.receive.buffer.bytes``). ``linger_timeout``: seconds that a closed
    connection waits, after everything was sent, for the peer to end its side. ``backlog``: connections that the system
    holds until they are accepted (``socket.listen.backlog.size``). A TLS handshake must end within
    ``handshake_timeout`` seconds. While ``max_handshakes`` are in progress, no other connection is accepted, and the
    oldest handshake has a tenth of that time.
    """

    def __init__(
        self,
        ssl_context: ssl.SSLContext | None = None,
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        linger_timeout: float = 1.0,
        backlog: int = 1024,
        handshake_timeout: float = 10.0,
        max_handshakes: int = 256,
    ) -> None:
        self.ssl_context = ssl_context
        self.buffer_options = [
            (option, size)
            for option, size in ((socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes))
            if size != -1
        ]
        self.linger_timeout = linger_timeout
        self.backlog = backlog
        self.handshake_timeout = handshake_timeout
        self.max_handshakes = max_handshakes

    async def listen(self, host: str, port: int, accept: Callable[[Transport], TransportHandler]) -> ListeningSockets:
        """Listen at every address of ``host``, of the whole machine where it is empty; see ``Listener.listen``.

        Raises:
            OSError: the host is unknown or not of this machine, or the port is taken; the text names both.
            RuntimeError: the loop cannot watch sockets (asyncio's ``ProactorEventLoop``).
        """
        loop = asyncio.get_running_loop()
        name = peer_name(host, port)
        addresses = await resolve(loop, host or None, port, name, passive=True)
        if not addresses:
            raise OSError(errno.EADDRNOTAVAIL, f"cannot listen at {name}: the name has no address")
        sockets = self._bind(addresses, name)
        try:
            for sock in sockets:
                check_loop(loop, sock)
                sock.listen(self.backlog)
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        return ListeningSockets(loop, self, sockets, host, accept)

    def _bind(self, addresses: list[tuple[socket.AddressFamily, Address]], name: str) -> list[socket.socket]:
        any_port = addresses[0][1][1] == 0
        for attempt in itertools.count(1):
            try:
                return self._bind_all(addresses)
            except OSError as error:
                # The port that was free at the first address may be taken at the next.
                if any_port and error.errno == errno.EADDRINUSE and attempt < _BINDS:
                    continue
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise type(error)(error.errno, f"cannot listen at {name}: {reason}") from error
        raise AssertionError

    def _bind_all(self, addresses: list[tuple[socket.AddressFamily, Address]]) -> list[socket.socket]:
        """A socket for each address that this machine has, all with the same port."""
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        try:
            for family, address in addresses:
                port = sockets[0].getsockname()[1] if sockets else address[1]
                try:
                    sockets.append(self._bind_one(family, address, port))
                except OSError as error:
                    # A machine without IPv6 may know the IPv6 address of a name all the same.
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    missing = error
            if not sockets and missing is not None:
                raise missing
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        return sockets

    def _bind_one(self, family: socket.AddressFamily, address: Address, port: object) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if sys.platform != "win32":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # Its IPv4 twin has a socket of its own.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            for option, size in self.buffer_options:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
            sock.bind((address[0], port, *address[2:]))
        except BaseException:
            sock.close()
            raise
        return sock


class ListeningSockets:
    """Where a ``StreamListener`` listens; made by ``StreamListener.listen``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: StreamListener,
        sockets: list[socket.socket],
        host: str,
        accept: Callable[[Transport], TransportHandler],
    ) -> None:
        self.host = host
        self.port: int = sockets[0].getsockname()[1]
        self._loop = loop
        self._listener = listener
        self._sockets = sockets
        self._accept = accept
        self._handshakes: dict[asyncio.Task[None], float] = {}
        """Handshakes in progress, oldest first, with their start times."""
        self._resume_timer: asyncio.TimerHandle | None = None
        """Resumes accepting after an error."""
        self._drop_timer: asyncio.TimerHandle | None = None
        """Drops the oldest handshake when the limit is reached."""
        self._accepting = False
        self._closed = False
        self._start_accepting()

    def close(self) -> None:
        """Stop accepting and cancel the handshakes; accepted connections stay open."""
        if self._closed:
            return
        self._closed = True
        self._stop_accepting()
        for timer in (self._resume_timer, self._drop_timer):
            if timer is not None:
                timer.cancel()
        for sock in self._sockets:
            sock.close()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until everything that ``close`` ended is gone."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def _start_accepting(self) -> None:
        self._resume_timer = None
        if not self._accepting and not self._closed:
            self._accepting = True
            for sock in self._sockets:
                self._loop.add_reader(sock, self._on_acceptable, sock)

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            for sock in self._sockets:
                self._loop.remove_reader(sock)

    def _pause_accepting(self, seconds: float) -> None:
        self._stop_accepting()
        if self._resume_timer is None:
            self._resume_timer = self._loop.call_later(seconds, self._start_accepting)

    def _on_acceptable(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_CALLBACK):
            if not self._accepting:
                return
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _CONNECTION_ERRORS:
                    continue
                _logger.error(
                    "Accepting connections at %s failed, trying again in %s s: %s",
                    peer_name(self.host, self.port),
                    _PAUSE_AFTER_ERROR,
                    error,
                )
                self._pause_accepting(_PAUSE_AFTER_ERROR)
                return
            self._accepted(sock, peer_name(address[0], address[1]))

    def _accepted(self, sock: socket.socket, peer: str) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError:
            # Some systems refuse options if the peer has already reset the connection.
            sock.close()
            return
        if self._listener.ssl_context is None:
            linger_timeout = self._listener.linger_timeout
            self._hand_over(StreamTransport(self._loop, sock, _NO_HANDLER, peer, linger_timeout))
            return
        task = self._loop.create_task(self._shake_hands(self._listener.ssl_context, sock, peer))
        self._handshakes[task] = self._loop.time()
        task.add_done_callback(functools.partial(self._handshake_ended, sock))
        self._limit_handshakes()

    def _hand_over(self, transport: StreamTransport) -> None:
        """Let ``accept`` choose a handler for a connection, then start reading."""
        try:
            handler = self._accept(transport)
        except Exception:
            _logger.exception("The connection from %s was not accepted", transport.peer)
            transport.abort()
        else:
            transport.serve(handler)

    async def _shake_hands(self, ssl_context: ssl.SSLContext, sock: socket.socket, peer: str) -> None:
        session = TlsSession(ssl_context, None, peer)
        try:
            async with asyncio.timeout(self._listener.handshake_timeout):
                await session.handshake(self._loop, sock)
        except TimeoutError:
            _logger.info("%s: no TLS handshake within %s s", peer, self._listener.handshake_timeout)
            sock.close()
        except OSError as error:
            _logger.info("The TLS handshake failed: %s", error)
            sock.close()
        else:
            linger_timeout = self._listener.linger_timeout
            self._hand_over(TlsTransport(self._loop, sock, _NO_HANDLER, peer, linger_timeout, session))

    def _handshake_ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        del self._handshakes[task]
        if task.cancelled():
            # Not in the coroutine, which never runs if it is cancelled before its first step.
            sock.close()
        else:
            task.result()
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = None
            if self._resume_timer is None:
                self._start_accepting()

    def _limit_handshakes(self) -> None:
        """At the limit of handshakes, stop accepting until one has ended, and shorten the oldest one's time."""
        if len(self._handshakes) >= self._listener.max_handshakes:
            self._stop_accepting()
            began = next(iter(self._handshakes.values()))
            due = began + self._listener.handshake_timeout * _HANDSHAKE_SHARE
            self._drop_timer = self._loop.call_at(due, self._drop_oldest_handshake)

    def _drop_oldest_handshake(self) -> None:
        next(iter(self._handshakes)).cancel()
