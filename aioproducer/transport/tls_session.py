"""TLS as a step machine: ciphertext in and out, plaintext in and out, no socket of its own but for the handshake."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl

from aioproducer.transport.addresses import with_peer
from aioproducer.transport.base import Buffer

_RECORD_HEADER = 5
_HANDSHAKE_READ = 64 * 1024
_CLOSED_HINT = "is it a PLAINTEXT listener, or does it require a client certificate?"
_NO_TLS_HINT = "the answer is not TLS: is it a PLAINTEXT listener?"
_NOT_TLS = frozenset(["WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"])
"""What OpenSSL, before 3.2 and after, calls bytes that are no TLS record."""
_CLIENT_HINT = "does the client speak TLS, and trust this certificate?"


class TlsSession:
    """One TLS connection; the accepting side of it where no ``server_hostname`` is given.

    OpenSSL is not told of the end of the stream: Python makes it take an end without close_notify for a clean one
    wherever it comes, even inside a record. So the lengths of records are followed here, and ``inside_record`` tells
    whether an end now would cut something off.
    """

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None, peer: str) -> None:
        self._peer = peer
        self._closed_hint = _CLIENT_HINT if server_hostname is None else _CLOSED_HINT
        self._answer_hint = "the client does not speak TLS" if server_hostname is None else _NO_TLS_HINT
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._record_header = bytearray()
        self._record_left = 0
        try:
            self._object = context.wrap_bio(
                self._incoming,
                self._outgoing,
                server_side=server_hostname is None,
                server_hostname=None if server_hostname is None else server_hostname.removesuffix("."),
            )
        except ValueError as error:
            raise OSError(errno.EINVAL, f"{peer}: {server_hostname!r} is no name for TLS: {error}") from error

    async def handshake(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        """Agree with the peer on keys; whatever it sent behind its handshake stays inside, to be decrypted.

        Raises:
            ssl.SSLError, OSError: the text says what to look at.
        """
        complete = False
        while not complete:
            try:
                self._object.do_handshake()
                complete = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                # The alert tells the peer why; the handshake's own error counts, not that of a socket already closed.
                with contextlib.suppress(OSError):
                    sock.send(self._outgoing.read())
                hint = f" ({self._answer_hint})" if error.reason in _NOT_TLS else ""
                raise with_peer(error, self._peer, hint) from error
            try:
                if self._outgoing.pending:
                    await loop.sock_sendall(sock, self._outgoing.read())
                data = b"" if complete else await loop.sock_recv(sock, _HANDSHAKE_READ)
            except OSError as error:
                raise with_peer(error, self._peer, f" during the TLS handshake ({self._closed_hint})") from error
            if not complete and not data:
                raise ssl.SSLEOFError(
                    ssl.SSL_ERROR_EOF,
                    f"{self._peer}: the peer closed the connection during the TLS handshake ({self._closed_hint})",
                )
            self.feed(memoryview(data))

    def feed(self, data: memoryview) -> None:
        """Take ciphertext."""
        self._incoming.write(data)
        position = 0
        while position < len(data):
            if self._record_left:
                step = min(self._record_left, len(data) - position)
                self._record_left -= step
            else:
                step = min(_RECORD_HEADER - len(self._record_header), len(data) - position)
                self._record_header += data[position : position + step]
                if len(self._record_header) == _RECORD_HEADER:
                    self._record_left = int.from_bytes(self._record_header[3:])
                    self._record_header.clear()
            position += step

    @property
    def inside_record(self) -> bool:
        return bool(self._record_left or self._record_header)

    def decrypt_into(self, buffer: memoryview) -> int:
        """The number of bytes decrypted, 0 after close_notify.

        Raises:
            ssl.SSLWantReadError: there is no full record.
            ssl.SSLError: the peer broke the rules, or said that this side did.
        """
        # With a buffer it returns a count, which its type stub does not know.
        return int(self._object.read(len(buffer), buffer))

    def encrypt(self, data: Buffer) -> int:
        """The number of bytes taken.

        Raises:
            ssl.SSLWantReadError: something of the peer's (a renegotiation, in TLS 1.2) has to be read first.
        """
        return self._object.write(data)

    def end(self) -> None:
        """Put close_notify behind what was encrypted."""
        # It waits for the peer's close_notify, or complains of what the peer sends meanwhile: neither matters any more.
        with contextlib.suppress(ssl.SSLError):
            self._object.unwrap()

    def ciphertext(self) -> bytes:
        """What is to be sent, once."""
        return self._outgoing.read()
