"""The TCP connection of a handshake, which stays open beside the queue pair: what is said on it, and its end.

Where it is not reset by anybody, its keep-alive notices within half a minute that the peer's machine has gone, though
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
"""A machine that has vanished is noticed after half a minute."""
_MOST_MESSAGES: Final = 2
"""What a client may say before it was answered."""


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
        # What is accepted inherits it.
        _keep_alive(sock)
        return sock


def _keep_alive(sock: socket.socket) -> None:
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Control:
    """The handler of the TCP connection: of the handshake's messages first, then of its end alone."""

    def __init__(self, peer: str, *, accepting: bool) -> None:
        self.transport: Transport | None = None
        self._peer = peer
        self._accepting = accepting
        self._reader = HandshakeReader(peer, accepting=accepting)
        self._heard = False
        self._spoke = False
        self._messages: asyncio.Queue[Message | HandshakeError] = asyncio.Queue()
        self._owner: RdmaTransport | None = None
        self._lost = asyncio.Event()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def data_received(self, data: Buffer) -> None:
        if self._owner is not None:
            self._said_late(self._owner, data)
            return
        self._heard = True
        try:
            for message in self._reader.feed(data):
                self._messages.put_nowait(message)
            if self._messages.qsize() > _MOST_MESSAGES:
                raise self._too_much()
        except HandshakeError as error:
            assert self.transport is not None
            self.transport.pause_reading()
            self._messages.put_nowait(error)

    def write_completed(self, count: int) -> None:
        """What is said here is copied by the kernel at once, or the connection is given up."""

    def connection_lost(self, exception: Exception | None) -> None:
        self._lost.set()
        if self._owner is not None:
            self._owner.control_lost(exception)
        else:
            error = self.ended_early()
            error.__cause__ = exception
            self._messages.put_nowait(error)

    def ended_early(self) -> HandshakeError:
        # To what was never asked, silence is no answer: a plain Kafka port as well ends nothing before it has read.
        return ended_early(self._peer, heard=self._heard or not self._spoke, accepting=self._accepting)

    async def receive(self) -> Message:
        """The next message.

        Raises:
            HandshakeError: what came is none, or nothing more will come.
        """
        return self._checked(await self._messages.get())

    def _checked(self, message: Message | HandshakeError) -> Message:
        if isinstance(message, HandshakeError):
            raise message
        if isinstance(message, Refusal):
            reason = printable(message.reason)
            raise HandshakeError(errno.ECONNREFUSED, f"{self._peer} refused the RDMA connection: {reason}")
        return message

    def _said_late(self, owner: RdmaTransport, data: Buffer) -> None:
        """Of a message that has come in part it is not known yet what it is."""
        try:
            messages = self._reader.feed(data)
        except HandshakeError:
            owner.control_said()
            return
        if any(isinstance(message, Refusal) for message in messages):
            # The server would not wait for READY while that was on its way: to the owner the peer has gone.
            self.abort()
        elif messages:
            owner.control_said()

    def say(self, message: Message) -> None:
        assert self.transport is not None
        # What is said to a connection that has ended was not said.
        self._spoke = self._spoke or self.transport.is_writable
        self.transport.write([encode(message)])

    def refuse(self, reason: str) -> None:
        """End the connection with a sentence for the peer."""
        self.say(Refusal(reason))
        assert self.transport is not None
        self.transport.close()

    def close(self) -> None:
        assert self.transport is not None
        self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def check_silent(self) -> None:
        """
        Raises:
            HandshakeError: something was said besides what was received, or it has ended.
        """
        if not self._messages.empty():
            self._checked(self._messages.get_nowait())
        elif not self._reader.has_begun:
            return
        raise self._too_much()

    def belong_to(self, owner: RdmaTransport) -> None:
        """From now on there is no handshake any more."""
        self._owner = owner

    def _too_much(self) -> HandshakeError:
        return HandshakeError(errno.EPROTO, f"{self._peer}: RDMA handshake: more was said than belongs to it")

    async def until_lost(self) -> None:
        if self.transport is not None:
            await self._lost.wait()
