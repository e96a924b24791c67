"""The TCP connection of a handshake, which stays open beside the queue pair: its messages, and its end.

If nothing resets the connection, keep-alive detects within half a minute that the peer's machine has gone, even while
nothing is sent.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final

from aioproducer._common.texts import printable
from aioproducer.transport.addresses import Address
from aioproducer.transport.base import Buffer, Transport
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.rdma.channel import RdmaTransport
from aioproducer.transport.rdma.handshake import HandshakeError, HandshakeReader, Message, Refusal, encode, ended_early
from aioproducer.transport.stream import StreamConnector

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))
"""Half a minute until a machine that has vanished is noticed."""
_MAX_MESSAGES: Final = 2
"""Messages that a client may send before it gets an answer."""


class ControlConnector(StreamConnector):
    """Makes the TCP connections of handshakes."""

    async def _connect_socket(self, loop: asyncio.AbstractEventLoop, host: str, port: int, peer: str) -> socket.socket:
        sock = await super()._connect_socket(loop, host, port, peer)
        _keep_alive(sock)
        return sock


class ControlListener(StreamListener):
    """Accepts the TCP connections of handshakes."""

    def _bind_one(self, family: socket.AddressFamily, address: Address, port: object) -> socket.socket:
        sock = super()._bind_one(family, address, port)
        # Accepted sockets inherit the options.
        _keep_alive(sock)
        return sock


def _keep_alive(sock: socket.socket) -> None:
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Control:
    """The handler of the TCP connection: first of the handshake's messages, then only of its end."""

    def __init__(self, peer: str, *, accepting: bool) -> None:
        self.transport: Transport | None = None
        self._peer = peer
        self._accepting = accepting
        self._reader = HandshakeReader(peer, accepting=accepting)
        self._has_received = False
        self._has_sent = False
        self._messages: asyncio.Queue[Message | HandshakeError] = asyncio.Queue()
        self._owner: RdmaTransport | None = None
        self._lost = asyncio.Event()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def data_received(self, data: Buffer) -> None:
        if self._owner is not None:
            self._received_late(self._owner, data)
            return
        self._has_received = True
        try:
            for message in self._reader.feed(data):
                self._messages.put_nowait(message)
            if self._messages.qsize() > _MAX_MESSAGES:
                raise self._unexpected_message()
        except HandshakeError as error:
            assert self.transport is not None
            self.transport.pause_reading()
            self._messages.put_nowait(error)

    def write_completed(self, count: int) -> None:
        """Do nothing: the kernel copies a message at once, or the connection is given up."""

    def connection_lost(self, exception: Exception | None) -> None:
        self._lost.set()
        if self._owner is not None:
            self._owner.control_lost(exception)
        else:
            error = self.ended_early()
            error.__cause__ = exception
            self._messages.put_nowait(error)

    def ended_early(self) -> HandshakeError:
        # Before this side has sent anything, silence means nothing: a plain Kafka port also reads before it ends.
        return ended_early(self._peer, received=self._has_received or not self._has_sent, accepting=self._accepting)

    async def receive(self) -> Message:
        """Receive the next message.

        Raises:
            HandshakeError: the data is no valid message, or the connection has ended.
        """
        return self._checked(await self._messages.get())

    def _checked(self, message: Message | HandshakeError) -> Message:
        if isinstance(message, HandshakeError):
            raise message
        if isinstance(message, Refusal):
            reason = printable(message.reason)
            raise HandshakeError(errno.ECONNREFUSED, f"{self._peer} refused the RDMA connection: {reason}")
        return message

    def _received_late(self, owner: RdmaTransport, data: Buffer) -> None:
        """Handle data after the handshake; the kind of an incomplete message is not known yet."""
        try:
            messages = self._reader.feed(data)
        except HandshakeError:
            owner.control_data_received()
            return
        if any(isinstance(message, Refusal) for message in messages):
            # The server stopped waiting for READY while that was on its way. For the owner the peer has gone.
            self.abort()
        elif messages:
            owner.control_data_received()

    def send(self, message: Message) -> None:
        assert self.transport is not None
        # A message does not count as sent if the connection has already ended.
        self._has_sent = self._has_sent or self.transport.is_writable
        self.transport.write([encode(message)])

    def refuse(self, reason: str) -> None:
        """End the connection, giving the peer a reason."""
        self.send(Refusal(reason))
        assert self.transport is not None
        self.transport.close()

    def close(self) -> None:
        assert self.transport is not None
        self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def check_no_more_messages(self) -> None:
        """Check that the handshake is complete.
        Raises:
            HandshakeError: another message has arrived, or the connection has ended.
        """
        if not self._messages.empty():
            self._checked(self._messages.get_nowait())
        elif not self._reader.has_begun:
            return
        raise self._unexpected_message()

    def set_owner(self, owner: RdmaTransport) -> None:
        """Pass the end of the connection to ``owner`` from now on: the handshake is over."""
        self._owner = owner

    def _unexpected_message(self) -> HandshakeError:
        return HandshakeError(errno.EPROTO, f"{self._peer}: RDMA handshake: more messages than expected")

    async def wait_lost(self) -> None:
        if self.transport is not None:
            await self._lost.wait()
