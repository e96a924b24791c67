"""The messages by which two sides agree on a queue pair, over a TCP connection; no I/O.

::

    client                                     server
    HELLO    token, its facts            ->    makes its queue pair, connects it, posts its receives
             prepares the same way       <-    WELCOME  the client's token, its own token, its facts
    READY    the server's token          ->    may write from now on

So each side knows that the other answers *this* connection, and writes only after the peer has posted its receives.
REFUSAL replaces any of them and carries a readable reason. Afterwards nothing is sent over the TCP connection; its end
means that the peer has gone. Integers are big-endian. A message is the magic, a version, a kind, the length of the
body, and the body. The version applies to everything except this frame and REFUSAL, which never change.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from aioproducer.transport.rdma.verbs import QueuePairFacts

MAGIC: Final = b"\x8baiordma"
"""Kafka reads the first four bytes as a size. As that is negative, it ends the connection at once."""
PROTOCOL_VERSION: Final = 1
TOKEN_SIZE: Final = 16
MAX_RING_BYTES: Final = 2**30
MIN_RING_BYTES: Final = 1024
MAX_SLOTS: Final = 2**13
"""Limited so that counts of messages fit into an immediate, see ``ring``."""
MIN_CONTROLS: Final = 2

_FRAME: Final = struct.Struct(">8sHHH")
_FACTS: Final = struct.Struct(">16s16sI16sIHQIIHH")
_REQUEST_START: Final = struct.Struct(">ihh")
_MAX_BODY: Final = 2048
_MTUS: Final = frozenset({256, 512, 1024, 2048, 4096})
_TLS_RECORD_TYPES: Final = frozenset({0x14, 0x15, 0x16, 0x17})
_HIGHEST_API_KEY: Final = 200


class HandshakeError(ConnectionError):
    """The two sides could not agree; the text says why."""


class NotRdmaError(HandshakeError):
    """The other side does not speak the RDMA handshake at all."""


class Kind(IntEnum):
    """The kind of a message."""

    HELLO = 1
    WELCOME = 2
    READY = 3
    REFUSAL = 4


@dataclass(frozen=True, slots=True)
class RingFacts:
    """A receive ring, as the peer needs it for writing into it.

    address, key, size
        Its address, the remote key of its region, and its size in bytes.
    slots
        Maximum number of messages with data in it.
    controls
        Maximum number of messages without data in transit.
    """

    address: int
    key: int
    size: int
    slots: int
    controls: int


@dataclass(frozen=True, slots=True)
class Facts:
    """HELLO and WELCOME: the sender's facts. ``echo`` is the receiver's token, zeros in HELLO, which precedes it."""

    kind: Kind
    token: bytes
    echo: bytes
    queue_pair: QueuePairFacts
    ring: RingFacts


@dataclass(frozen=True, slots=True)
class Ready:
    """READY: the client is ready to receive writes."""

    echo: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """REFUSAL: there will be no connection."""

    reason: str


Message = Facts | Ready | Refusal


def encode(message: Message) -> bytes:
    """Return the bytes of ``message``."""
    if isinstance(message, Ready):
        return _frame(Kind.READY, message.echo)
    if isinstance(message, Refusal):
        return _frame(Kind.REFUSAL, message.reason.encode()[:_MAX_BODY])
    queue_pair, ring = message.queue_pair, message.ring
    body = _FACTS.pack(
        message.token,
        message.echo,
        queue_pair.number,
        queue_pair.gid,
        queue_pair.packet_number,
        queue_pair.mtu,
        ring.address,
        ring.key,
        ring.size,
        ring.slots,
        ring.controls,
    )
    return _frame(message.kind, body)


def _frame(kind: Kind, body: bytes) -> bytes:
    return _FRAME.pack(MAGIC, PROTOCOL_VERSION, kind, len(body)) + body


class HandshakeReader:
    """Parses the peer's bytes, in pieces as they arrive, into messages.

    ``peer`` is named in errors. ``accepting``: the peer is a client, so foreign bytes are checked for a Kafka request.
    """

    def __init__(self, peer: str, *, accepting: bool) -> None:
        self._peer = peer
        self._accepting = accepting
        self._data = bytearray()

    @property
    def has_begun(self) -> bool:
        """Whether part of a message has arrived."""
        return bool(self._data)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """Return the messages that are complete now.

        Raises:
            NotRdmaError: the peer uses another protocol.
            HandshakeError: a message is malformed or of another version.
        """
        self._data += data
        messages: list[Message] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        data = self._data
        start = data[: len(MAGIC)]
        if start != MAGIC[: len(start)]:
            raise self._not_rdma(bytes(data))
        if len(data) < _FRAME.size:
            return None
        _, version, number, length = _FRAME.unpack_from(data)
        if version != PROTOCOL_VERSION and number != Kind.REFUSAL:
            raise self._error(
                f"it speaks version {version} of the RDMA handshake, this side version {PROTOCOL_VERSION}: "
                "install the same version of aioproducer on both sides"
            )
        if length > _MAX_BODY:
            raise self._error(f"a message of {length} bytes (maximum {_MAX_BODY})")
        if len(data) < _FRAME.size + length:
            return None
        body = bytes(data[_FRAME.size : _FRAME.size + length])
        del data[: _FRAME.size + length]
        if number in (Kind.HELLO, Kind.WELCOME):
            return self._facts(Kind(number), body)
        if number == Kind.READY:
            if length != TOKEN_SIZE:
                raise self._error(f"READY has {length} bytes instead of {TOKEN_SIZE}")
            return Ready(body)
        if number == Kind.REFUSAL:
            return Refusal(body.decode(errors="replace"))
        raise self._error(f"a message of unknown kind {number}")

    def _facts(self, kind: Kind, body: bytes) -> Facts:
        if len(body) != _FACTS.size:
            raise self._error(f"{kind.name} has {len(body)} bytes instead of {_FACTS.size}")
        token, echo, number, gid, packet_number, mtu, address, key, size, slots, controls = _FACTS.unpack(body)
        for name, value, is_valid in (
            ("token", token.hex(), any(token)),
            ("echo", echo.hex(), kind is Kind.WELCOME or not any(echo)),
            ("queue pair", number, number < 2**24),
            ("GID", gid.hex(), any(gid)),
            ("packet number", packet_number, packet_number < 2**24),
            ("MTU", mtu, mtu in _MTUS),
            ("ring address", hex(address), 0 < address < 2**64 - size),
            ("ring size", size, MIN_RING_BYTES <= size <= MAX_RING_BYTES),
            ("number of slots", slots, 0 < slots <= MAX_SLOTS),
            ("number of controls", controls, MIN_CONTROLS <= controls <= MAX_SLOTS),
        ):
            if not is_valid:
                raise self._error(f"{kind.name} with an invalid {name}: {value}")
        return Facts(
            kind,
            token,
            echo,
            QueuePairFacts(number, gid, packet_number, mtu),
            RingFacts(address, key, size, slots, controls),
        )

    def _not_rdma(self, data: bytes) -> NotRdmaError:
        said = data[:16]
        if len(data) >= 2 and data[0] in _TLS_RECORD_TYPES and data[1] == 3:
            what = "it speaks TLS"
            hint = "this port takes RDMA clients only" if self._accepting else "RDMA needs a separate listener"
        elif self._accepting and _is_kafka_request(data):
            what = "a Kafka client that speaks plain TCP"
            hint = "this port takes RDMA clients only: give it the port of a TCP listener"
        else:
            what = f"it said {said!r}"
            hint = (
                "this port takes RDMA clients only"
                if self._accepting
                else "check that an RDMA listener or gateway is there, not a plain Kafka port"
            )
        return NotRdmaError(errno.EPROTO, f"{self._peer} does not speak the RDMA handshake ({what}): {hint}")

    def _error(self, text: str) -> HandshakeError:
        return HandshakeError(errno.EPROTO, f"{self._peer}: RDMA handshake: {text}")


def ended_early(peer: str, *, received: bool, accepting: bool) -> HandshakeError:
    """Return the error of a connection that ended before the handshake was over; ``received``: parts of it arrived."""
    if received or accepting:
        return HandshakeError(errno.ECONNRESET, f"{peer} ended the connection before the RDMA handshake was over")
    return NotRdmaError(
        errno.ECONNRESET,
        f"{peer} ended the connection without a word of the RDMA handshake: check that an RDMA listener or gateway "
        "is there, not a plain Kafka port",
    )


def _is_kafka_request(data: bytes) -> bool:
    """Whether ``data`` looks like the size, API key and version at the start of a Kafka request."""
    if len(data) < _REQUEST_START.size:
        return False
    start: tuple[int, int, int] = _REQUEST_START.unpack_from(data)
    size, api_key, version = start
    return 8 <= size < 2**24 and 0 <= api_key <= _HIGHEST_API_KEY and 0 <= version <= 64
