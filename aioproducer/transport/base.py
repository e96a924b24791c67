"""The seam between connections, of clients and of the broker, and what carries their bytes.

A transport knows nothing of Kafka: it takes lists of buffers and hands over bytes as they come. What it promises, and
what every transport (TCP, TLS, in memory, RDMA) is tested for:

* ``write`` accepts everything it is given, in order, however little the peer takes at a time. Back-pressure is the
  caller's: it looks at what ``write`` returned and writes no more until ``write_completed``, or, where it can do
  without the memory of what it wrote, while ``is_writable`` is false.
* The buffers given to ``write`` are read until ``write`` has returned ``True``, or ``write_completed`` has counted that
  write, or ``connection_lost`` has been called. Before that their memory must not be changed or reused; after it the
  transport never looks at them again.
* ``connection_lost`` is called exactly once for every transport that was connected, and is the last call.
* Nothing is called back from inside ``write``, ``close``, ``abort``, ``pause_reading`` or ``resume_reading``.

What it leaves out: reconnecting, deadlines, framing. These are the caller's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class TransportHandler(Protocol):
    """Receives a transport's callbacks: always on the loop's thread, and from its callbacks, never from inside a task.

    Tasks that wait for what was received may be resumed in the same call, which asyncio refuses inside another one.
    """

    def data_received(self, data: Buffer) -> None:
        """Some bytes came, in order; ``data`` is valid only during the call."""

    def write_completed(self, count: int) -> None:
        """The next ``count`` of the writes that returned ``False``, oldest first, have left their buffers.

        ``count`` is at least 1, and each of those writes is counted once, also one without a byte. Some transports are
        through with all of them at once, others with one after the other.

        Where sending failed while reading is paused, this is called as well, as nothing will be sent from them: that
        the connection is lost shows when reading is resumed and all that had come was received.
        """

    def connection_lost(self, exception: Exception | None) -> None:
        """The connection has ended and no buffer is read any more.

        ``None`` after ``abort``, after a clean end by the peer, and after ``close`` unless something written before it
        could not be sent. An exception raised by a handler's own callback ends the connection and comes here too.
        """


class Transport(Protocol):
    """An established connection."""

    def write(self, buffers: Sequence[Buffer]) -> bool:
        """Send ``buffers`` one after the other.

        Returns ``True`` when all bytes have left their buffers, ``False`` when some will be read later, or some of an
        earlier write; then ``write_completed`` follows once there is nothing left to read. After ``close`` or
        ``abort``, and after the connection has ended, it does nothing and returns ``True``.
        """

    @property
    def is_writable(self) -> bool:
        """Whether what is written now goes out at once, behind nothing that waits for the peer or the system.

        It may, though buffers written earlier are still being read. After ``close`` or ``abort``, and when sending has
        failed, it is false.
        """

    def close(self) -> None:
        """Send what was written, then end the connection.

        No more data is received from here on. How long the sending takes is the peer's: the caller may ``abort`` later.
        """

    def abort(self) -> None:
        """End the connection at once; what is unsent is dropped.

        What ``close`` has sent reaches a peer that is slow to read all the same, over sockets.
        """

    def pause_reading(self) -> None:
        """Call ``data_received`` no more until ``resume_reading``.

        What has come already may be held meanwhile, at most as much as one ``data_received`` would hand over; the rest
        waits with the peer. As nothing is read, an end of the connection may be noticed only after ``resume_reading``,
        behind what came before it: a handler that pauses must resume, ``close`` or ``abort`` some time. May be called
        at any time, from inside the callbacks too; if reading is paused or the connection has ended, it does nothing.
        """

    def resume_reading(self) -> None:
        """Undo ``pause_reading``; nothing is called back from inside."""

    @property
    def peer(self) -> str:
        """The other side, for messages to people: ``host:port`` as connected to, or as it was accepted from."""


class Connector(Protocol):
    """Makes transports of one kind; what ``Producer(transport=...)`` takes."""

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of ``host``, in the order in which they should be tried; ``connect`` takes any of them.

        Names are the transport's: what is a host in one network is nothing in another.

        Raises:
            OSError: there is no such name (``socket.gaierror`` is one).
        """

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> Transport:
        """Connect to ``host`` and ``port`` and return a transport that reads from now on.

        ``server_hostname`` is the name that the user configured or the cluster advertised, when ``host`` is an address
        that it resolved to: a TLS certificate is checked against it. The caller sets the deadline and cancels when it
        has passed: nothing may be left open then.

        Raises:
            OSError: no connection could be made (``ssl.SSLError`` is one, for a failed TLS handshake).
        """


class Listening(Protocol):
    """Somewhere that connections are accepted."""

    @property
    def host(self) -> str:
        """As it was given to ``listen``."""

    @property
    def port(self) -> int:
        """The port that connections come to, also where ``listen`` was asked for any (0)."""

    def close(self) -> None:
        """Accept no more. Connections that were accepted stay, those that were not are refused or reset."""

    async def wait_closed(self) -> None:
        """Wait until nothing is left of what ``close`` ended."""


class Listener(Protocol):
    """Accepts connections of one kind: the other side of a ``Connector``."""

    def listen(self, host: str, port: int, accept: Callable[[Transport], TransportHandler]) -> Awaitable[Listening]:
        """Call ``accept`` for every connection to ``host`` and ``port``, once it is ready to be used.

        ``accept`` returns the handler that the transport calls back from then on, and may write, pause, close or abort
        at once. A connection for which it raises is dropped and the error logged. Accepting continues, as it does after
        any error of one connection. Port 0 stands for any free port.

        Raises:
            OSError: the host is unknown or not of this machine, or the port is taken; the text names both.
        """
