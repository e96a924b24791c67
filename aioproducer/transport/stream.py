"""TCP and TLS connections over a non-blocking socket of their own.

asyncio's own transports are not used because they leave open when the memory given to them is free again. On CPython
3.11 ``writelines`` joins its arguments first, which copies every byte; later versions keep the pieces, but forgot in
some releases to pause the writer; uvloop keeps references and reads the memory whenever the socket has room, so what
goes out is what the memory holds *then*, and nothing tells when that was. Here every byte goes from the caller's
buffers into the kernel by ``sendmsg``, without a copy on the way, and the call after which a buffer is never looked at
again is known exactly.

One callback of the loop does a bounded amount of work: one ``recv``, one ``sendmsg``, some pieces to encrypt.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import os
import socket
import ssl
import struct
import sys
from collections import deque
from collections.abc import Sequence

from aioproducer.transport.base import Buffer, TransportHandler
from aioproducer.transport.buffers import advance, bytes_of, first_bytes, views_of
from aioproducer.transport.tls_session import TlsSession, with_peer

_RECEIVE_SIZE = 128 * 1024
_SEND_LIMIT = 512 * 1024
"""Bytes given to one ``sendmsg``: the kernel copies them while the loop waits (some 0.1 ms on loopback)."""
_IOV_MAX = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1
"""Buffers given to one ``sendmsg``; where there is no ``sendmsg`` (Windows) buffers are sent one by one."""
_TLS_PIECE = 64 * 1024
"""Plaintext encrypted at a time: four full TLS records."""
_TLS_PIECES_PER_TURN = 4
_RESET_ON_CLOSE = struct.pack("HH" if sys.platform == "win32" else "ii", 1, 0)


class _State(enum.Enum):
    OPEN = "open"
    FAILED = "failed"
    """A write failed. What the peer sent before it went is still delivered, then the connection is lost."""
    FLUSHING = "flushing"
    """``close`` was called; what was written before is still being sent."""
    LINGERING = "lingering"
    """All is sent and our side shut. The socket is closed when the peer has seen it: closing earlier, with bytes of the
    peer's unread or on their way, makes the kernel reset the connection and drop what the peer has not taken yet."""
    ENDED = "ended"


class StreamConnector:
    """Makes TCP connections, and TLS connections where an ``ssl_context`` is given; a ``Connector``.

    Whether the certificate must name the host is ``ssl_context.check_hostname``'s to say. ``send_buffer_bytes`` and
    ``receive_buffer_bytes`` are the sizes of the socket's buffers (``send.buffer.bytes``, ``receive.buffer.bytes``), -1
    for the system's own. ``linger_timeout``: seconds that a closed connection waits, after everything was sent, for the
    peer to end its side.
    """

    def __init__(
        self,
        ssl_context: ssl.SSLContext | None = None,
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
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        sock = await self._connect_socket(loop, host, port, peer)
        try:
            if self._ssl_context is None:
                transport = StreamTransport(loop, sock, handler, peer, self._linger_timeout)
            else:
                session = TlsSession(self._ssl_context, server_hostname or host, peer)
                await session.handshake(loop, sock)
                transport = _TlsTransport(loop, sock, handler, peer, self._linger_timeout, session)
            transport._start()
        except BaseException:
            sock.close()
            raise
        return transport

    async def _connect_socket(self, loop: asyncio.AbstractEventLoop, host: str, port: int, peer: str) -> socket.socket:
        failure: OSError | None = None
        for family, sockaddr in await _resolve(loop, host, port, peer):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                _check_loop(loop, sock)
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, size in self._buffer_options:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
                await loop.sock_connect(sock, sockaddr)
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


def _check_loop(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    try:
        loop.remove_reader(sock)
    except NotImplementedError:
        raise RuntimeError(
            f"{type(loop).__name__} cannot watch sockets (it has no add_reader): "
            "run the producer on asyncio.SelectorEventLoop or uvloop"
        ) from None


_Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


async def _resolve(
    loop: asyncio.AbstractEventLoop, host: str, port: int, peer: str
) -> list[tuple[socket.AddressFamily, _Address]]:
    """The addresses of ``host``; one that is an address already takes neither a thread nor a turn of the loop."""
    try:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"cannot resolve the host of {peer}: {error.strerror}") from error
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"cannot resolve the host of {peer}: not a host name ({error})") from error
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


class StreamTransport:
    """A TCP connection; a ``Transport``. Made by ``StreamConnector.connect``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handler: TransportHandler,
        peer: str,
        linger_timeout: float,
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._handler = handler
        self._peer = peer
        self._linger_timeout = linger_timeout
        self._linger_timer: asyncio.TimerHandle | None = None
        self._state = _State.OPEN
        self._failure: OSError | None = None
        self._unsent: deque[memoryview] = deque()
        self._completion_owed = False
        self._watching_writable = False
        self._receive_buffer = memoryview(bytearray(_RECEIVE_SIZE))

    def _start(self) -> None:
        self._loop.add_reader(self._socket, self._on_readable)

    @property
    def peer(self) -> str:
        """``host:port`` as connected to."""
        return self._peer

    def write(self, buffers: Sequence[Buffer]) -> bool:
        """Send ``buffers`` one after the other; see ``Transport.write``.

        Raises:
            TypeError, BufferError: something in ``buffers`` has no contiguous bytes; nothing of this call is sent.
        """
        if self._state is not _State.OPEN:
            return True
        idle = not self._unsent
        size = bytes_of(buffers)
        try:
            if idle and 0 < size <= _SEND_LIMIT and len(buffers) <= _IOV_MAX:
                sent = self._send_buffers(buffers)
                if sent == size:
                    return True
                self._unsent.extend(views_of(buffers))
                advance(self._unsent, sent)
            else:
                self._unsent.extend(views_of(buffers))
                if idle:
                    self._send()
        except OSError as error:
            self._write_failed(error)
            return False
        return self._write_later()

    def _write_later(self) -> bool:
        """Whether nothing is left to send; if something is, it is sent when the socket takes it."""
        if not self._has_unsent():
            return True
        self._completion_owed = True
        self._watch_writable()
        return False

    def close(self) -> None:
        """Send what was written, then end the connection; see ``Transport.close``."""
        if self._state is _State.FAILED:
            self._lose(self._failure)
        elif self._state is _State.OPEN:
            self._state = _State.FLUSHING
            if not self._has_unsent():
                self._shut()

    def abort(self) -> None:
        """End the connection at once, by a reset."""
        if self._state is _State.ENDED:
            return
        # Where the peer was first to reset, some systems refuse the option; the connection is as dead as it was to be.
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._lose(None)

    # What is sent

    def _has_unsent(self) -> bool:
        return bool(self._unsent)

    def _may_send(self) -> bool:
        """Whether a writable socket would be made use of."""
        return bool(self._unsent)

    def _watch_writable(self) -> None:
        wanted = self._state in (_State.OPEN, _State.FLUSHING) and self._may_send()
        if wanted == self._watching_writable:
            return
        self._watching_writable = wanted
        if wanted:
            self._loop.add_writer(self._socket, self._on_writable)
        else:
            self._loop.remove_writer(self._socket)

    def _send_buffers(self, buffers: Sequence[Buffer]) -> int:
        """How many bytes the socket took of at most ``_IOV_MAX`` buffers."""
        try:
            if sys.platform == "win32":
                return self._socket.send(buffers[0])
            return self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0

    def _send(self) -> None:
        """Send some of what is unsent, once.

        Raises:
            OSError: the connection is broken.
        """
        batch: list[memoryview] = []
        for view in first_bytes(self._unsent, _SEND_LIMIT):
            batch.append(view)
            if len(batch) == _IOV_MAX:
                break
        if batch:
            advance(self._unsent, self._send_buffers(batch))

    def _on_writable(self) -> None:
        try:
            self._send()
        except OSError as error:
            self._write_failed(error)
            return
        self._watch_writable()
        self._after_sending()

    def _after_sending(self) -> None:
        if self._has_unsent():
            return
        if self._completion_owed:
            self._completion_owed = False
            try:
                self._handler.write_completed()
            except Exception as error:
                self._handler_failed(error, "write_completed")
        if self._state is _State.FLUSHING and not self._has_unsent():
            self._shut()

    def _write_failed(self, error: OSError) -> None:
        named = with_peer(error, self._peer)
        if self._state is _State.FLUSHING:
            self._flushing_failed(named)
            return
        self._state = _State.FAILED
        self._failure = named
        self._drop_unsent()
        self._watch_writable()
        self._loop.remove_reader(self._socket)
        self._loop.call_soon(self._receive_rest)

    def _flushing_failed(self, error: OSError) -> None:
        self._lose(error)

    def _drop_unsent(self) -> None:
        self._unsent.clear()

    # What is received

    def _on_readable(self) -> None:
        try:
            count = self._socket.recv_into(self._receive_buffer)
        except BlockingIOError:
            if self._state is _State.FAILED:
                self._lose(self._failure)
        except OSError as error:
            self._receiving_ended(with_peer(error, self._peer))
        else:
            if count:
                self._received(self._receive_buffer[:count])
            else:
                self._end_of_stream()

    def _receive_rest(self) -> None:
        """Deliver what came before the connection broke, a turn of the loop for each piece."""
        if self._state is _State.FAILED:
            self._on_readable()
            self._loop.call_soon(self._receive_rest)

    def _received(self, data: memoryview) -> None:
        self._deliver(data)

    def _end_of_stream(self) -> None:
        self._receiving_ended(None)

    def _deliver(self, data: memoryview) -> None:
        """Hand ``data`` over; a handler that keeps it meets a released memoryview instead of bytes that change."""
        if self._state not in (_State.OPEN, _State.FAILED):
            return
        try:
            with data:
                self._handler.data_received(data)
        except Exception as error:
            self._handler_failed(error, "data_received")

    def _receiving_ended(self, error: OSError | None) -> None:
        if self._state is _State.OPEN:
            self._lose(error)
        elif self._state is _State.FAILED:
            self._lose(self._failure)
        elif self._state is _State.LINGERING:
            self._lose(None)
        elif self._state is _State.FLUSHING:
            if error is None:
                self._loop.remove_reader(self._socket)
            else:
                self._flushing_failed(error)

    # How it ends

    def _shut(self) -> None:
        """All is sent: say so to the peer and wait for its end."""
        self._state = _State.LINGERING
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            # The peer reset the connection after it had taken everything; there is nobody left to tell.
            self._lose(None)
            return
        self._loop.add_reader(self._socket, self._on_readable)
        self._linger_timer = self._loop.call_later(self._linger_timeout, self._lose, None)

    def _handler_failed(self, error: Exception, callback: str) -> None:
        self._loop.call_exception_handler(
            {
                "message": f"{callback} raised an exception; the connection to {self._peer} is given up",
                "exception": error,
                "transport": self,
            }
        )
        self._lose(error)

    def _lose(self, exception: Exception | None) -> None:
        if self._state is _State.ENDED:
            return
        self._state = _State.ENDED
        self._drop_unsent()
        self._loop.remove_reader(self._socket)
        self._watch_writable()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._socket.close()
        self._loop.call_soon(self._report_lost, exception)

    def _report_lost(self, exception: Exception | None) -> None:
        handler = self._handler
        del self._handler
        handler.connection_lost(exception)


class _TlsTransport(StreamTransport):
    """TLS over the same socket: ``_unsent`` holds ciphertext, ``_plaintext`` what is still in the caller's buffers.

    Plaintext is encrypted piece by piece as the socket takes it, so that neither the loop is held nor a second copy of
    a large write made; ``write_completed`` waits for the ciphertext too, or a slow peer would never be felt.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handler: TransportHandler,
        peer: str,
        linger_timeout: float,
        session: TlsSession,
    ) -> None:
        super().__init__(loop, sock, handler, peer, linger_timeout)
        self._session = session
        self._plaintext: deque[memoryview] = deque()
        self._must_read_first = False
        self._notified = False
        self._decrypted = memoryview(bytearray(_RECEIVE_SIZE))

    def _start(self) -> None:
        # What came behind the handshake is inside the session already: the socket may stay silent.
        self._loop.call_soon(self._decrypt)
        super()._start()

    def write(self, buffers: Sequence[Buffer]) -> bool:
        if self._state is not _State.OPEN:
            return True
        idle = not self._has_unsent()
        self._plaintext.extend(views_of(buffers))
        if idle:
            try:
                self._send()
            except OSError as error:
                self._write_failed(error)
                return False
        return self._write_later()

    def _has_unsent(self) -> bool:
        return bool(self._unsent or self._plaintext)

    def _may_send(self) -> bool:
        return bool(self._unsent or (self._plaintext and not self._must_read_first))

    def _drop_unsent(self) -> None:
        super()._drop_unsent()
        self._plaintext.clear()

    def _send(self) -> None:
        for _ in range(_TLS_PIECES_PER_TURN):
            if not self._unsent:
                self._encrypt()
            super()._send()
            if self._unsent or not self._plaintext:
                return

    def _encrypt(self) -> None:
        if self._plaintext:
            pieces = list(first_bytes(self._plaintext, _TLS_PIECE))
            try:
                # Small buffers share records; each would be one of its own otherwise.
                advance(self._plaintext, self._session.encrypt(pieces[0] if len(pieces) == 1 else b"".join(pieces)))
            except ssl.SSLWantReadError:
                self._must_read_first = True
        self._collect()

    def _collect(self) -> None:
        ciphertext = self._session.ciphertext()
        if ciphertext:
            self._unsent.append(memoryview(ciphertext))

    def _received(self, data: memoryview) -> None:
        if self._state is not _State.LINGERING:
            self._session.feed(data)
            self._decrypt()

    def _decrypt(self) -> None:
        """Deliver all that is complete, and send what TLS itself has to answer."""
        more = True
        while more and self._state not in (_State.LINGERING, _State.ENDED):
            size = 0
            ended = False
            failure: OSError | None = None
            try:
                while size < len(self._decrypted) and not ended:
                    count = self._session.decrypt_into(self._decrypted[size:])
                    size += count
                    ended = not count
            except ssl.SSLWantReadError:
                more = False
            except OSError as error:
                failure = with_peer(error, self._peer)
            if size:
                self._deliver(self._decrypted[:size])
            if failure is not None or ended:
                self._answer(failure)
                return
        self._must_read_first = False
        self._collect()
        self._watch_writable()

    def _answer(self, failure: OSError | None) -> None:
        """The peer's side is over. An alert of ours is worth one try."""
        self._collect()
        if failure is not None and self._state in (_State.OPEN, _State.FLUSHING):
            with contextlib.suppress(OSError):
                super()._send()
        self._receiving_ended(failure)

    def _end_of_stream(self) -> None:
        cut = self._state in (_State.OPEN, _State.FLUSHING) and self._session.inside_record
        message = f"{self._peer}: the connection ended in the middle of a TLS record"
        self._receiving_ended(ssl.SSLEOFError(ssl.SSL_ERROR_EOF, message) if cut else None)

    def _flushing_failed(self, error: OSError) -> None:
        # Behind close_notify there is nothing of the caller's.
        self._lose(None if self._notified else error)

    def _shut(self) -> None:
        if not self._notified:
            self._notified = True
            self._session.end()
            self._collect()
            self._watch_writable()
            if self._unsent:
                return
        super()._shut()
