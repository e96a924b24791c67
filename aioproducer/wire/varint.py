"""Compiled. Variable-length integers of Kafka's record format and flexible messages.

``varint`` and ``varlong`` are zig-zag encoded (32 and 64 bits), as in ``org.apache.kafka.common.utils.ByteUtils``;
``unsigned_varint`` is not (KIP-482). Seven bits a byte, least significant first; a high bit of 1 means that more bytes
follow.

Decoders take a buffer and a position, and return the value and the position behind it. Their input is not trusted: an
encoding that ends too early or is too long raises :class:`~aioproducer.errors.ProtocolError`.
"""

from __future__ import annotations

from aioproducer.compression.base import Buffer
from aioproducer.errors import ProtocolError

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
UINT32_MAX = 2**32 - 1

SMALL_VARINT_COUNT = 1024
"""``SMALL_VARINTS`` has the encodings of 0 to this number: more would add milliseconds to every import."""


def _encode_zigzagged(value: int) -> bytes:
    if 0x80 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


SMALL_VARINTS: tuple[bytes, ...] = tuple([_encode_zigzagged(value << 1) for value in range(SMALL_VARINT_COUNT)])
"""The zig-zag encoding of every ``value`` with ``0 <= value < SMALL_VARINT_COUNT``, at the index ``value``."""


def encode_varint(value: int) -> bytes:
    """Return the zig-zag encoding of a signed 32-bit integer.

    Raises:
        OverflowError: ``value`` does not fit 32 bits.
    """
    if 0 <= value < SMALL_VARINT_COUNT:
        return SMALL_VARINTS[value]
    if not INT32_MIN <= value <= INT32_MAX:
        raise OverflowError(f"{value} does not fit a 32-bit varint")
    return _encode_zigzagged(value << 1 if value >= 0 else (~value << 1) | 1)


def encode_varlong(value: int) -> bytes:
    """Return the zig-zag encoding of a signed 64-bit integer.

    Raises:
        OverflowError: ``value`` does not fit 64 bits.
    """
    if 0 <= value < SMALL_VARINT_COUNT:
        return SMALL_VARINTS[value]
    if not INT64_MIN <= value <= INT64_MAX:
        raise OverflowError(f"{value} does not fit a 64-bit varlong")
    return _encode_zigzagged(value << 1 if value >= 0 else (~value << 1) | 1)


def encode_unsigned_varint(value: int) -> bytes:
    """Return the encoding of an unsigned 32-bit integer, without zig-zag.

    Raises:
        OverflowError: ``value`` is negative or does not fit 32 bits.
    """
    if not 0 <= value <= UINT32_MAX:
        raise OverflowError(f"{value} does not fit an unsigned 32-bit varint")
    return _encode_zigzagged(value)


def size_of_varint(value: int) -> int:
    """Return the size of ``encode_varint(value)`` in bytes; also correct for ``encode_varlong``."""
    zigzagged = value << 1 if value >= 0 else (~value << 1) | 1
    return (zigzagged.bit_length() + 6) // 7 or 1


size_of_varlong = size_of_varint


def size_of_unsigned_varint(value: int) -> int:
    """Return the size of ``encode_unsigned_varint(value)`` in bytes."""
    return (value.bit_length() + 6) // 7 or 1


def decode_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned 32-bit integer at ``position``; returns it and the position behind it.

    Raises:
        ProtocolError: the buffer ends inside the integer, or it is longer than 5 bytes.
    """
    return _decode(buffer, position, 5, UINT32_MAX)


def decode_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a zig-zag encoded signed 32-bit integer at ``position``; returns it and the position behind it.

    Raises:
        ProtocolError: the buffer ends inside the integer, or it is longer than 5 bytes.
    """
    value, position = _decode(buffer, position, 5, UINT32_MAX)
    return (value >> 1) ^ -(value & 1), position


def decode_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a zig-zag encoded signed 64-bit integer at ``position``; returns it and the position behind it.

    Raises:
        ProtocolError: the buffer ends inside the integer, or it is longer than 10 bytes.
    """
    value, position = _decode(buffer, position, 10, 2**64 - 1)
    return (value >> 1) ^ -(value & 1), position


def _decode(buffer: Buffer, position: int, longest: int, mask: int) -> tuple[int, int]:
    """Read at most ``longest`` bytes; bits beyond ``mask`` in the last one are dropped, as by Java's shifts."""
    end = len(buffer)
    if position < 0:
        raise ProtocolError(f"a variable-length integer cannot start at position {position}")
    value = 0
    for index in range(longest):
        if position >= end:
            raise ProtocolError("the data ends inside a variable-length integer")
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & mask, position
    raise ProtocolError(f"a variable-length integer has more than {longest} bytes")
