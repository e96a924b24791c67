"""Compiled. TLS over a socket; extends ``socket_transport``."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Sequence

from aioproducer.transport.addresses import with_peer
from aioproducer.transport.base import Buffer, TransportHandler
from aioproducer.transport.buffers import advance, first_bytes, views_of
from aioproducer.transport.socket_transport import State, StreamTransport
from aioproducer.transport.tls_session import TlsSession

_TLS_PIECE = 64 * 1024
"""Plaintext encrypted at a time: four full TLS records."""
_TLS_PIECES_PER_CALLBACK = 4


class TlsTransport(StreamTransport):
    """TLS over the same socket: ``_unsent`` holds ciphertext, ``_plaintext`` views of the caller's buffers.

    Plaintext is encrypted piece by piece as the socket accepts it, so a large write neither blocks the loop nor is
    copied as a whole. ``write_completed`` waits for the ciphertext too: otherwise a slow peer would cause no
    back-pressure.
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

    def start(self) -> None:
        # Data behind the handshake is already inside the session, and the socket may stay silent.
        self._loop.call_soon(self._decrypt)
        StreamTransport.start(self)

    def resume_reading(self) -> None:
        if self._reading_paused:
            # Data that the session has held since the pause goes before data from the socket, which is read later.
            self._loop.call_soon(self._decrypt)
        StreamTransport.resume_reading(self)

    def write(self, buffers: Sequence[Buffer]) -> bool:
        if self._state is not State.OPEN:
            return True
        idle = not self._has_unsent()
        self._plaintext.extend(views_of(buffers))
        if idle:
            try:
                self._send()
            except OSError as error:
                self._writes_owed += 1
                self._write_failed(error)
                return False
        return self._write_later()

    def _has_unsent(self) -> bool:
        return bool(self._unsent or self._plaintext)

    def _may_send(self) -> bool:
        return bool(self._unsent or (self._plaintext and not self._must_read_first))

    def _drop_unsent(self) -> None:
        StreamTransport._drop_unsent(self)
        self._plaintext.clear()

    def _send(self) -> None:
        for _ in range(_TLS_PIECES_PER_CALLBACK):
            if not self._unsent:
                self._encrypt()
            StreamTransport._send(self)
            if self._unsent or not self._plaintext:
                return

    def _encrypt(self) -> None:
        if self._plaintext:
            pieces = list(first_bytes(self._plaintext, _TLS_PIECE))
            try:
                # Small buffers share TLS records instead of taking one each.
                advance(self._plaintext, self._session.encrypt(pieces[0] if len(pieces) == 1 else b"".join(pieces)))
            except ssl.SSLWantReadError:
                self._must_read_first = True
        self._collect()

    def _collect(self) -> None:
        ciphertext = self._session.ciphertext()
        if ciphertext:
            self._unsent.append(memoryview(ciphertext))

    def _received(self, data: memoryview) -> None:
        if self._state is not State.LINGERING:
            self._session.feed(data)
            self._decrypt()

    def _decrypt(self) -> None:
        """Deliver all complete records, and send answers of TLS itself.

        Plaintext overwrites the received ciphertext, of which the session has a copy.
        """
        decrypted = self._receive_buffer
        more = True
        while more and self._state not in (State.LINGERING, State.ENDED):
            if self._reading_paused and self._state in (State.OPEN, State.FAILED):
                break
            size = 0
            ended = False
            failure: OSError | None = None
            try:
                while size < len(decrypted) and not ended:
                    count = self._session.decrypt_into(decrypted[size:])
                    size += count
                    ended = not count
            except ssl.SSLWantReadError:
                more = False
            except OSError as error:
                failure = with_peer(error, self._peer)
            if size:
                self._deliver(decrypted[:size])
            if failure is not None or ended:
                self._end_session(failure)
                return
        self._must_read_first = False
        self._collect()
        self._watch_writable()

    def _end_session(self, failure: OSError | None) -> None:
        """Handle the end of the peer's direction; try once to send an alert of this side."""
        self._collect()
        if failure is not None and self._state in (State.OPEN, State.FLUSHING):
            with contextlib.suppress(OSError):
                StreamTransport._send(self)
        self._receiving_ended(failure)

    def _end_of_stream(self) -> None:
        cut = self._state in (State.OPEN, State.FLUSHING) and self._session.inside_record
        message = f"{self._peer}: the connection ended in the middle of a TLS record"
        self._receiving_ended(ssl.SSLEOFError(ssl.SSL_ERROR_EOF, message) if cut else None)

    def _flushing_failed(self, error: OSError) -> None:
        # The caller's data is all before close_notify.
        self._end(None if self._notified else error)

    def _shut_down(self) -> None:
        if not self._notified:
            self._notified = True
            self._session.end()
            self._collect()
            self._watch_writable()
            if self._unsent:
                return
        StreamTransport._shut_down(self)
