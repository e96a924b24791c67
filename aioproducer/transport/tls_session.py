"""TLS without I/O: ciphertext and plaintext in and out. Only the handshake uses a socket."""

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
"""OpenSSL's reasons, before 3.2 and after, for bytes that are no TLS record."""
_CLIENT_HINT = "does the client speak TLS, and trust this certificate?"


class TlsSession:
    """One TLS connection; the accepting side if no ``server_hostname`` is given.

    OpenSSL does not learn of the end of the stream. Otherwise Python would make it accept an end without close_notify
    as a clean one, even inside a record. Record lengths are tracked here instead, and ``inside_record`` shows whether
    an end now would cut off data.
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
        """Run the TLS handshake; data that the peer sent behind it stays inside, to be decrypted.

        Raises:
            ssl.SSLError, OSError: the text gives a hint.
        """
        complete = False
        while not complete:
            try:
                self._object.do_handshake()
                complete = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                # The alert gives the peer the reason. If the socket is already closed, the handshake's error counts.
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
        """Add ciphertext."""
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
        """Decrypt into ``buffer`` and return the number of bytes, 0 after close_notify.

        Raises:
            ssl.SSLWantReadError: there is no complete record.
            ssl.SSLError: the peer violated the protocol, or sent an alert that this side did.
        """
        # With a buffer it returns a count, which the type stub does not know.
        return int(self._object.read(len(buffer), buffer))

    def encrypt(self, data: Buffer) -> int:
        """Encrypt ``data`` and return the number of bytes consumed.

        Raises:
            ssl.SSLWantReadError: data of the peer (a renegotiation, in TLS 1.2) has to be read first.
        """
        return self._object.write(data)

    def end(self) -> None:
        """Append close_notify to the encrypted data."""
        # It waits for the peer's close_notify or rejects data that the peer still sends. Neither matters any longer.
        with contextlib.suppress(ssl.SSLError):
            self._object.unwrap()

    def ciphertext(self) -> bytes:
        """Take the ciphertext that is to be sent."""
        return self._outgoing.read()
