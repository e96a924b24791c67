"""Compiled. A connection over a non-blocking socket of its own.

asyncio's transports are not used because they do not specify when memory that was given to them is free again. On
CPython 3.11 ``writelines`` joins its arguments first, which copies every byte. Later versions keep the pieces, but some
releases do not pause the writer. uvloop keeps references and reads the memory when the socket has room, so it sends
what the memory holds *then*, without a notification. Here ``sendmsg`` copies every byte from the caller's buffers
directly into the kernel. It is therefore known exactly when a buffer is read for the last time.

One callback of the loop does a bounded amount of work: one ``recv``, one ``sendmsg``, a few pieces to encrypt.

No Python form: ``pending_error`` reads a socket's error by ``getsockopt`` in C.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from aioproducer._common.views import part_of
from aioproducer.transport.addresses import with_peer
from aioproducer.transport.base import Buffer, TransportHandler
from aioproducer.transport.buffers import advance, bytes_of, first_bytes, views_of

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.transport.socket_transport import pending_error

RECEIVE_SIZE = 128 * 1024
_SEND_LIMIT = 256 * 1024
"""Bytes given to one ``sendmsg``: the kernel copies them while the loop waits (0.1 to 0.2 ms on loopback, where it does
the receiver's part as well)."""
_IOV_MAX = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1
"""Buffers given to one ``sendmsg``. Without ``sendmsg`` (Windows) buffers are sent one by one."""
_SOL_SOCKET, _SO_ERROR = socket.SOL_SOCKET, socket.SO_ERROR
_HAS_SENDMSG = sys.platform != "win32"
_RESET_ON_CLOSE = struct.pack("HH" if sys.platform == "win32" else "ii", 1, 0)


class State(enum.Enum):
    OPEN = "open"
    FAILED = "failed"
    """A write failed. Data that had arrived before is still delivered, then the connection is lost."""
    FLUSHING = "flushing"
    """``close`` was called; data written before it is still being sent."""
    LINGERING = "lingering"
    """All data is sent and this direction is shut down. The socket is closed once the peer has noticed. Closing
    earlier, with unread data of the peer, makes the kernel reset the connection and drop data the peer has not read."""
    ENDED = "ended"


# Plain objects, compared with every request and answer: an Enum's member costs a call in Python 3.11.
_OPEN, _FAILED, _ENDED = State.OPEN, State.FAILED, State.ENDED


_receive_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


def receive_buffer(loop: asyncio.AbstractEventLoop) -> memoryview:
    """Return the memory that all connections of a loop receive into; its bytes are valid during one callback only.

    A buffer for each connection would be most of the memory of an idle producer. Another loop may run in another
    thread, and receive at the same time.
    """
    buffer = _receive_buffers.get(loop)
    if buffer is None:
        buffer = _receive_buffers[loop] = memoryview(bytearray(RECEIVE_SIZE))
    return buffer


class StreamTransport:
    """A TCP connection; a ``Transport``. Made by ``StreamConnector.connect`` and ``StreamListener.listen``."""

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
        self._descriptor = sock.fileno()
        self._handler = handler
        self._peer = peer
        self._linger_timeout = linger_timeout
        self._linger_timer: asyncio.TimerHandle | None = None
        self._state = State.OPEN
        self._failure: OSError | None = None
        self._unsent: deque[memoryview] = deque()
        self._writes_owed = 0
        """Writes that returned ``False`` and are not completed."""
        self._watching_writable = False
        self._error_is_reported_once = not isinstance(loop, asyncio.BaseEventLoop)
        """uvloop reports a socket's error only once, even if there is data to receive before the error."""
        self._sent_since_receive = False
        """Since data was last received: the socket accepted data then, so it had no error."""
        self._reading_paused = False
        self._receive_buffer = receive_buffer(loop)

    def start(self) -> None:
        """Start reading, unless the handler has already ended or paused the connection."""
        if self._state is State.OPEN and not self._reading_paused:
            self._loop.add_reader(self._socket, self._on_readable)

    def serve(self, handler: TransportHandler) -> None:
        """Call ``handler`` back from now on, and start reading."""
        self._handler = handler
        self.start()

    @property
    def peer(self) -> str:
        """``host:port`` as connected to, or as accepted from."""
        return self._peer

    def write(self, buffers: Sequence[Buffer]) -> bool:
        """Send ``buffers`` one after the other; see ``Transport.write``.

        Raises:
            TypeError, BufferError: something in ``buffers`` has no contiguous bytes; nothing of this call is sent.
        """
        if self._state is not _OPEN:
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
            self._writes_owed += 1
            self._write_failed(error)
            return False
        return self._write_later()

    def _write_later(self) -> bool:
        """Return whether nothing is left to send; anything that is left is sent when the socket accepts it."""
        if not self._has_unsent():
            return True
        self._writes_owed += 1
        self._watch_writable()
        return False

    @property
    def is_writable(self) -> bool:
        """See ``Transport.is_writable``."""
        return self._state is _OPEN and not self._has_unsent()

    def pause_reading(self) -> None:
        """Receive nothing until ``resume_reading``; see ``Transport.pause_reading``."""
        if not self._reading_paused:
            self._reading_paused = True
            if self._state is State.OPEN:
                self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        """Receive again."""
        if not self._reading_paused:
            return
        self._reading_paused = False
        if self._state is State.OPEN:
            self._loop.add_reader(self._socket, self._on_readable)
        elif self._state is State.FAILED:
            self._loop.call_soon(self._receive_rest)

    def close(self) -> None:
        """Send the data written so far, then end the connection; see ``Transport.close``."""
        if self._state is State.FAILED:
            self._end(self._failure)
        elif self._state is State.OPEN:
            self._state = State.FLUSHING
            if not self._has_unsent():
                self._shut_down()

    def abort(self) -> None:
        """End the connection at once, by a reset. After ``close``, with all data sent, stop waiting for the peer."""
        if self._state is State.ENDED:
            return
        # A reset would discard data that the peer has not read: if all data is sent, let the system finish alone.
        if self._state is not State.LINGERING:
            # Some systems refuse the option if the peer has reset the connection first, which ends it just as well.
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._end(None)

    # Sending

    def _has_unsent(self) -> bool:
        return bool(self._unsent)

    def _may_send(self) -> bool:
        """Whether a writable socket could be used now."""
        return bool(self._unsent)

    def _watch_writable(self) -> None:
        wanted = self._state in (State.OPEN, State.FLUSHING) and self._may_send()
        if wanted == self._watching_writable:
            return
        self._watching_writable = wanted
        if wanted:
            self._loop.add_writer(self._socket, self._on_writable)
        else:
            self._loop.remove_writer(self._socket)

    def _send_buffers(self, buffers: Sequence[Buffer]) -> int:
        """Send at most ``_IOV_MAX`` buffers and return how many bytes the socket accepted."""
        try:
            if _HAS_SENDMSG and len(buffers) > 1:
                sent = self._socket.sendmsg(buffers)
            else:
                sent = self._socket.send(buffers[0])
        except BlockingIOError:
            return 0
        self._sent_since_receive = True
        return sent

    def _send(self) -> None:
        """Send some of the unsent data, once.

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
        self._report_completed()
        if self._state is State.FLUSHING and not self._has_unsent():
            self._shut_down()

    def _report_completed(self) -> None:
        """Report pending writes as completed: their buffers are no longer read."""
        if self._writes_owed:
            count, self._writes_owed = self._writes_owed, 0
            try:
                self._handler.write_completed(count)
            except Exception as error:
                self._handler_failed(error, "write_completed")

    def _write_failed(self, error: OSError) -> None:
        named = with_peer(error, self._peer)
        if self._state is State.FLUSHING:
            self._flushing_failed(named)
            return
        self._state = State.FAILED
        self._failure = named
        self._drop_unsent()
        self._watch_writable()
        self._loop.remove_reader(self._socket)
        self._loop.call_soon(self._receive_rest)

    def _flushing_failed(self, error: OSError) -> None:
        self._end(error)

    def _drop_unsent(self) -> None:
        self._unsent.clear()

    # Receiving

    def _on_readable(self) -> None:
        try:
            count = self._socket.recv_into(self._receive_buffer)
        except BlockingIOError:
            if self._state is State.FAILED:
                self._end(self._failure)
        except OSError as error:
            self._receiving_ended(with_peer(error, self._peer))
        else:
            if count:
                self._sent_since_receive = False
                self._received(part_of(self._receive_buffer, 0, count))
                if self._error_is_reported_once and not self._sent_since_receive and self._state is not _FAILED:
                    self._check_for_reset()
            else:
                self._end_of_stream()

    def _check_for_reset(self) -> None:
        """Handle a reset behind the received data, which the loop does not report."""
        if self._state is _ENDED:
            return
        if cython.compiled:
            number = pending_error(self._descriptor)
        else:
            number = self._socket.getsockopt(_SOL_SOCKET, _SO_ERROR)
        if number:
            error = OSError(number, os.strerror(number))
            if self._state is State.LINGERING:
                self._end(None)
            else:
                self._write_failed(error)

    def _receive_rest(self) -> None:
        """Deliver data that arrived before the connection broke, one piece per loop iteration."""
        if self._state is not State.FAILED:
            return
        if self._reading_paused:
            self._report_completed()
        else:
            self._on_readable()
            self._loop.call_soon(self._receive_rest)

    def _received(self, data: memoryview) -> None:
        self._deliver(data)

    def _end_of_stream(self) -> None:
        self._receiving_ended(None)

    def _deliver(self, data: memoryview) -> None:
        """Deliver ``data``; a handler that keeps it is left with a released memoryview, not with bytes that change."""
        if self._state is not _OPEN and self._state is not _FAILED:
            return
        try:
            try:
                self._handler.data_received(data)
            finally:
                data.release()
        except Exception as error:
            self._handler_failed(error, "data_received")

    def _receiving_ended(self, error: OSError | None) -> None:
        if self._state is State.OPEN:
            self._end(error)
        elif self._state is State.FAILED:
            self._end(self._failure)
        elif self._state is State.LINGERING:
            self._end(None)
        elif self._state is State.FLUSHING:
            if error is None:
                self._loop.remove_reader(self._socket)
            else:
                self._flushing_failed(error)

    # Ending

    def _shut_down(self) -> None:
        """Shut down this direction after all data is sent, and wait for the peer to end its own."""
        self._state = State.LINGERING
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            # The peer received everything and reset the connection: there is nothing to wait for.
            self._end(None)
            return
        self._loop.add_reader(self._socket, self._on_readable)
        self._linger_timer = self._loop.call_later(self._linger_timeout, self._end, None)

    def _handler_failed(self, error: Exception, callback: str) -> None:
        self._loop.call_exception_handler(
            {
                "message": f"{callback} raised an exception; the connection to {self._peer} is given up",
                "exception": error,
                "transport": self,
            }
        )
        self._end(error)

    def _end(self, exception: Exception | None) -> None:
        if self._state is State.ENDED:
            return
        self._state = State.ENDED
        self._drop_unsent()
        self._loop.remove_reader(self._socket)
        self._watch_writable()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._socket.close()
        self._loop.call_soon(self._report_lost, exception)

    def _report_lost(self, exception: Exception | None) -> None:
        handler = self._handler
        # The handler and this object refer to each other; no callback follows.
        self._handler = None  # type: ignore[assignment]
        handler.connection_lost(exception)
