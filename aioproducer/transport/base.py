"""The seam between the producer's connections and what carries their bytes.

A transport knows nothing of Kafka: it takes lists of buffers and hands over bytes as they come. What it promises, and
what every transport (TCP, TLS, in memory, RDMA) is tested for:

* ``write`` accepts everything it is given, in order, however little the peer takes at a time. Back-pressure is the
  caller's: it looks at what ``write`` returned and writes no more until ``write_completed``.
* The buffers given to ``write`` are read until ``write`` has returned ``True``, or ``write_completed`` or
  ``connection_lost`` has been called. Before that nobody may change or reuse their memory; after it the transport never
  looks at them again.
* ``connection_lost`` is called exactly once for every transport that was connected, and is the last call.
* Nothing is called back from inside ``write``, ``close`` or ``abort``.

What it leaves out: reconnecting, deadlines, framing. These are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class TransportHandler(Protocol):
    """Whom a transport calls back, always on the loop's thread."""

    def data_received(self, data: Buffer) -> None:
        """Some bytes came, in order; ``data`` is valid only during the call."""

    def write_completed(self) -> None:
        """Everything written so far has left its buffers; called only after a ``write`` that returned ``False``."""

    def connection_lost(self, exception: Exception | None) -> None:
        """The connection has ended and no buffer is read any more.

        ``None`` after ``abort``, after a clean end by the peer, and after ``close`` unless something written before it
        could not be sent. An exception raised by a handler's own callback ends the connection and comes here too.
        """


class Transport(Protocol):
    """An established connection to one broker."""

    def write(self, buffers: Sequence[Buffer]) -> bool:
        """Send ``buffers`` one after the other.

        Returns ``True`` when all bytes have left their buffers, ``False`` when some will be read later; then
        ``write_completed`` follows once there is nothing left to read. After ``close`` or ``abort``, and after the
        connection has ended, it does nothing and returns ``True``.
        """

    def close(self) -> None:
        """Send what was written, then end the connection.

        No more data is received from here on. How long the sending takes is the peer's: the caller may ``abort`` later.
        """

    def abort(self) -> None:
        """End the connection at once; what is unsent is dropped."""

    @property
    def peer(self) -> str:
        """The other side, for messages to people: ``host:port`` as connected to."""


class Connector(Protocol):
    """Makes transports of one kind; what ``Producer(transport=...)`` takes."""

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
