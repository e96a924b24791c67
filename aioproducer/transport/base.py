"""The interface between a connection (a client's or the broker's) and the transport that carries its bytes.

A transport knows nothing of Kafka: it accepts lists of buffers and delivers bytes as they arrive. Every transport (TCP,
TLS, in memory, RDMA) guarantees the following, and is tested for it:

* ``write`` accepts all data, in order, however little the peer reads at a time. Back-pressure is up to the caller: it
  checks the result of ``write`` and writes no more until ``write_completed``. A caller that does not need the memory of
  its writes back may continue while ``is_writable`` is true.
* The transport reads the buffers given to ``write`` until ``write`` returns ``True``, ``write_completed`` counts that
  write, or ``connection_lost`` is called. Until then their memory must not be changed or reused; afterwards the
  transport never reads it again.
* ``connection_lost`` is called exactly once for every established transport, and is the last call.
* ``write``, ``close``, ``abort``, ``pause_reading`` and ``resume_reading`` never call back from inside.

Reconnecting, deadlines and framing are the caller's responsibility.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class TransportHandler(Protocol):
    """Receives a transport's callbacks: always on the loop's thread, from a callback of the loop, never inside a task.

    A callback may therefore resume tasks that wait for the data, which asyncio refuses inside another task.
    """

    def data_received(self, data: Buffer) -> None:
        """Handle received bytes, in order; ``data`` is valid only during the call."""

    def write_completed(self, count: int) -> None:
        """Handle the release of the oldest ``count`` writes that returned ``False``: their buffers are no longer read.

        ``count`` is at least 1. Each of those writes is counted once, even an empty one. Some transports complete all
        writes at once, others one by one.

        This is also called when sending fails while reading is paused, because nothing more is sent from the buffers.
        The loss of the connection follows after reading is resumed and all data that had arrived is delivered.
        """

    def connection_lost(self, exception: Exception | None) -> None:
        """Handle the end of the connection; no buffer is read any longer.

        ``exception`` is ``None`` after ``abort``, after a clean end by the peer, and after ``close`` if all data
        written before was sent. An exception that a handler's callback raises ends the connection and is passed here.
        """


class Transport(Protocol):
    """An established connection."""

    def write(self, buffers: Sequence[Buffer]) -> bool:
        """Send ``buffers`` one after the other.

        Return ``True`` if the transport no longer reads any buffer. Return ``False`` if it still reads some of these or
        of an earlier write; ``write_completed`` follows once it does not. After ``close`` or ``abort``, and after the
        connection has ended, do nothing and return ``True``.
        """

    @property
    def is_writable(self) -> bool:
        """Whether a write would be sent at once, without waiting for the peer or the system.

        This can be true while buffers of earlier writes are still being read. It is false after ``close`` or ``abort``,
        and after sending has failed.
        """

    def close(self) -> None:
        """Send the data written so far, then end the connection.

        No more data is received. The peer determines how long the sending takes: the caller may ``abort`` later.
        """

    def abort(self) -> None:
        """End the connection at once and drop unsent data.

        Over sockets, data that ``close`` has sent still reaches a peer that reads slowly.
        """

    def pause_reading(self) -> None:
        """Stop calling ``data_received`` until ``resume_reading``.

        Data that has already arrived may be held meanwhile, at most as much as one ``data_received`` delivers; the rest
        waits with the peer. As nothing is read, the end of the connection may be noticed only after ``resume_reading``,
        behind the data before it. A handler that pauses must therefore resume, ``close`` or ``abort`` at some point.
        May be called at any time, including from inside the callbacks. Does nothing if reading is paused or the
        connection has ended.
        """

    def resume_reading(self) -> None:
        """Undo ``pause_reading`` without calling back from inside."""

    @property
    def peer(self) -> str:
        """The other side, for logs and errors: ``host:port`` as connected to, or as accepted from."""


class Connector(Protocol):
    """Makes transports of one kind; the type of ``Producer(transport=...)``."""

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of ``host`` in the order in which to try them; ``connect`` accepts each of them.

        Names belong to the transport: a host of one network may not exist in another.

        Raises:
            OSError: there is no such name (``socket.gaierror`` is one).
        """

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> Transport:
        """Connect to ``host`` and ``port`` and return a transport that is already reading.

        If ``host`` is a resolved address, ``server_hostname`` is the name that the user configured or the cluster
        advertised; a TLS certificate is checked against it. The caller sets the deadline and cancels when it has
        passed. Cancelling must leave nothing open.

        Raises:
            OSError: no connection could be made (``ssl.SSLError`` is one, for a failed TLS handshake).
        """


class Listening(Protocol):
    """The sockets or ports at which connections are accepted."""

    @property
    def host(self) -> str:
        """The host that was given to ``listen``."""

    @property
    def port(self) -> int:
        """The port that accepts connections, also if ``listen`` was asked for any (0)."""

    def close(self) -> None:
        """Stop accepting. Accepted connections stay open; pending ones are refused or reset."""

    async def wait_closed(self) -> None:
        """Wait until everything that ``close`` ended is gone."""


class Listener(Protocol):
    """Accepts connections of one kind; the counterpart of a ``Connector``."""

    def listen(self, host: str, port: int, accept: Callable[[Transport], TransportHandler]) -> Awaitable[Listening]:
        """Call ``accept`` for every connection to ``host`` and ``port`` once it is ready for use.

        ``accept`` returns the handler for the transport's callbacks, and may write, pause, close or abort at once. If
        ``accept`` raises, the connection is dropped and the error logged. Accepting continues after that, and after any
        error of a single connection. Port 0 stands for any free port.

        Raises:
            OSError: the host is unknown or not of this machine, or the port is taken; the text names both.
        """
