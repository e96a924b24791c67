"""Connecting by TCP, and by TLS over it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
from typing import Protocol

from aioproducer.transport.addresses import Address, check_loop, not_a_host_name, peer_name, resolve
from aioproducer.transport.base import TransportHandler
from aioproducer.transport.socket_transport import StreamTransport


class SslContextSource(Protocol):
    """Supplies the SSL context of each new connection."""

    async def current(self) -> ssl.SSLContext:
        """Return the context for a connection that is opened now. Does not fail, and returns within seconds."""


class StreamConnector:
    """Makes TCP connections, or TLS connections if an ``ssl_context`` is given; a ``Connector``.

    ``ssl_context`` may also be an object that is asked for the context of each connection. The context's
    ``check_hostname`` decides whether the certificate must name the host. ``send_buffer_bytes`` and
    ``receive_buffer_bytes`` are the sizes of the socket's buffers (``send.buffer.bytes``, ``receive.buffer.bytes``), -1
    for the system's default. ``linger_timeout``: seconds that a closed connection waits, after everything was sent, for
    the peer to end its side.
    """

    def __init__(
        self,
        ssl_context: ssl.SSLContext | SslContextSource | None = None,
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        linger_timeout: float = 1.0,
    ) -> None:
        self._ssl_context = ssl_context
        self._buffer_options = [
            (option, size)
            for option, size in ((socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes))
            if size != -1
        ]
        self._linger_timeout = linger_timeout

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return all addresses of ``host``, in the resolver's order; see ``Connector.resolve``."""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            # The resolver would return the same, from a thread.
            return [host]
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise not_a_host_name(peer_name(host, port), error) from error
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> StreamTransport:
        """Connect to an address, or to the first address of a name that answers.

        Returns a transport that reads from now on. Cancelling leaves nothing open.

        Raises:
            OSError: ``host`` cannot be resolved, or no connection to it could be made; the text names it.
            ssl.SSLError: the TLS handshake failed (an ``OSError`` as well).
            RuntimeError: the loop cannot watch sockets (asyncio's ``ProactorEventLoop``).
        """
        loop = asyncio.get_running_loop()
        peer = peer_name(host, port)
        context = self._ssl_context
        if context is not None and not isinstance(context, ssl.SSLContext):
            context = await context.current()
        sock = await self._connect_socket(loop, host, port, peer)
        try:
            if context is None:
                transport = StreamTransport(loop, sock, handler, peer, self._linger_timeout)
            else:
                from aioproducer.transport.tls_session import TlsSession
                from aioproducer.transport.tls_transport import TlsTransport

                session = TlsSession(context, server_hostname or host, peer)
                await session.handshake(loop, sock)
                transport = TlsTransport(loop, sock, handler, peer, self._linger_timeout, session)
            transport.start()
        except BaseException:
            sock.close()
            raise
        return transport

    async def _connect_socket(self, loop: asyncio.AbstractEventLoop, host: str, port: int, peer: str) -> socket.socket:
        failure: OSError | None = None
        for family, sockaddr in await resolve(loop, host, port, peer):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                check_loop(loop, sock)
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, size in self._buffer_options:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
                await _connect(loop, sock, sockaddr)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        if failure is None:
            raise OSError(errno.EADDRNOTAVAIL, f"cannot connect to {peer}: the name has no address")
        reason = os.strerror(failure.errno) if failure.errno else str(failure)
        raise type(failure)(failure.errno, f"cannot connect to {peer}: {reason}") from failure


async def _connect(loop: asyncio.AbstractEventLoop, sock: socket.socket, sockaddr: Address) -> None:
    """Connect ``sock`` like ``loop.sock_connect``, but without a thread: uvloop resolves even an address in one.

    Raises:
        OSError: no connection could be made.
    """
    try:
        sock.connect(sockaddr)
    except BlockingIOError:
        writable: asyncio.Future[None] = loop.create_future()
        loop.add_writer(sock, _set_writable, writable)
        try:
            await writable
        finally:
            loop.remove_writer(sock)
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number)) from None


def _set_writable(writable: asyncio.Future[None]) -> None:
    if not writable.done():
        writable.set_result(None)
