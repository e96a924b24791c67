"""Codecs of single values, and the buffer for written values.

Bytes to read are not trusted. Nothing is allocated because of a stated length. It is compared with the bytes that are
left; that of an array is multiplied by the minimum size of its elements first. Reading behind the end raises
``IndexError`` or ``struct.error``, which ``aioproducer.protocol.frames`` turns into a ``ProtocolError``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from aioproducer.errors import ProtocolError
from aioproducer.protocol.schema import Buffer, Message, Records
from aioproducer.wire.varint import decode_unsigned_varint, encode_unsigned_varint

LONGEST_STRING: Final = 2**15 - 1
"""Maximum bytes of a string, for both encodings of its length."""

LONGEST_FRAME: Final = 2**31 - 1

_BUFFERS: Final = (bytes, bytearray, memoryview)


class Output:
    """A growing gather list: ``tail`` collects small pieces, whole buffers are appended by reference."""

    __slots__ = ("_size", "buffers", "tail")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.tail = bytearray()
        self._size = 0

    @property
    def size(self) -> int:
        """Number of bytes in the list."""
        return self._size + len(self.tail)

    def append_buffers(self, buffers: Sequence[Buffer], size: int) -> None:
        """Append ``buffers``, which have ``size`` bytes together."""
        tail = self.tail
        if tail:
            self.buffers.append(tail)
            self._size += len(tail)
            self.tail = bytearray()
        self.buffers.extend(buffers)
        self._size += size

    def finish(self) -> list[Buffer]:
        """Return the gather list. Its first buffer is the first ``tail``, unless that is empty."""
        if self.tail or not self.buffers:
            self.buffers.append(self.tail)
        return self.buffers


Value: TypeAlias = Any
"""The value of a field; only the field's declaration has its type."""


Read: TypeAlias = Callable[[memoryview, int], tuple[Value, int]]
"""Takes a buffer and a position, and returns the value and the position behind it."""

Write: TypeAlias = Callable[[Output, Value], None]
"""Appends a value to an ``Output``."""


class ValueCodec(NamedTuple):
    """Reads and writes one value; every encoding of it has at least ``minimum_size`` bytes."""

    read: Read
    write: Write
    minimum_size: int


class StructCodec:
    """Reads and writes one version of a message or struct.

    Each function is generated at its first use, as most are needed in one direction only: a client writes requests and
    reads responses.
    """

    def __init__(self, make_read: Callable[[], Read], make_write: Callable[[], Write], minimum_size: int) -> None:
        self._make_read = make_read
        self._make_write = make_write
        self.minimum_size: Final = minimum_size

    @functools.cached_property
    def read(self) -> Read:
        """The function that reads the message."""
        return self._make_read()

    @functools.cached_property
    def write(self) -> Write:
        """The function that writes the message."""
        return self._make_write()


class Length(NamedTuple):
    """The encoding of a length; -1 stands for null."""

    read: Callable[[memoryview, int], tuple[int, int]]
    write: Callable[[int], bytes]
    size: int


def _fixed_length(letter: str) -> Length:
    packer = struct.Struct(">" + letter)

    def read(buffer: memoryview, position: int) -> tuple[int, int]:
        return packer.unpack_from(buffer, position)[0], position + packer.size

    return Length(read, packer.pack, packer.size)


SMALL_COMPACT: Final = [bytes([length + 1]) for length in range(127)]


def read_compact_length(buffer: memoryview, position: int) -> tuple[int, int]:
    byte = buffer[position]
    if byte < 0x80:
        return byte - 1, position + 1
    value, position = decode_unsigned_varint(buffer, position)
    return value - 1, position


def write_compact_length(length: int) -> bytes:
    return SMALL_COMPACT[length] if 0 <= length < 127 else encode_unsigned_varint(length + 1)


INT16_LENGTH: Final = _fixed_length("h")
INT32_LENGTH: Final = _fixed_length("i")
COMPACT_LENGTH: Final = Length(read_compact_length, write_compact_length, 1)


def fixed_codec(struct_format: str, where: str) -> ValueCodec:
    packer = struct.Struct(">" + struct_format)

    def read(buffer: memoryview, position: int) -> tuple[Value, int]:
        (value,) = packer.unpack_from(buffer, position)
        return value, position + packer.size

    def write(output: Output, value: Value) -> None:
        try:
            output.tail += packer.pack(value)
        except struct.error as error:
            raise ProtocolError(f"{where} cannot hold {value!r}: {error}") from error

    return ValueCodec(read, write, packer.size)


def negative(length: int, where: str) -> ProtocolError:
    """The error for a length below zero that does not stand for an allowed null."""
    return ProtocolError(f"{where} is null" if length == -1 else f"{where} has the length {length}")


def none_refused(where: str) -> ProtocolError:
    return ProtocolError(f"{where} cannot be None")


def too_short(where: str, claimed: int, what: str, there: int) -> ProtocolError:
    return ProtocolError(f"{where} states {claimed} {what}, but only {there} bytes follow")


def string_codec(length: Length, nullable: bool, where: str) -> ValueCodec:
    read_length, write_length, length_size = length

    def read(buffer: memoryview, position: int) -> tuple[str | None, int]:
        size, position = read_length(buffer, position)
        if size < 0:
            if nullable and size == -1:
                return None, position
            raise negative(size, where)
        end = position + size
        if end > len(buffer):
            raise too_short(where, size, "bytes", len(buffer) - position)
        if size > LONGEST_STRING:
            raise ProtocolError(f"{where} is too long: {size} bytes (maximum {LONGEST_STRING})")
        try:
            return str(buffer[position:end], "utf-8"), end
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{where} is not UTF-8: {error}") from error

    def write(output: Output, value: str | None) -> None:
        if value is None:
            if not nullable:
                raise none_refused(where)
            output.tail += write_length(-1)
            return
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise ProtocolError(f"{where} cannot be written as UTF-8: {error}") from error
        if len(encoded) > LONGEST_STRING:
            raise ProtocolError(f"{where} is too long: {len(encoded)} bytes (maximum {LONGEST_STRING})")
        output.tail += write_length(len(encoded))
        output.tail += encoded

    return ValueCodec(read, write, length_size)


def records_codec(length: Length, nullable: bool, where: str) -> ValueCodec:
    read_length, write_length, length_size = length

    def read(buffer: memoryview, position: int) -> tuple[memoryview | None, int]:
        size, position = read_length(buffer, position)
        if size < 0:
            if nullable and size == -1:
                return None, position
            raise negative(size, where)
        end = position + size
        if end > len(buffer):
            raise too_short(where, size, "bytes", len(buffer) - position)
        return buffer[position:end], end

    def write(output: Output, value: Records) -> None:
        if value is None:
            if not nullable:
                raise none_refused(where)
            output.tail += write_length(-1)
            return
        buffers = (value,) if isinstance(value, _BUFFERS) else value
        size = 0
        for buffer in buffers:
            size += buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
        if size > LONGEST_FRAME:
            raise _too_long(size, where)
        output.tail += write_length(size)
        output.append_buffers(buffers, size)

    return ValueCodec(read, write, length_size)


def binary_codec(length: Length, nullable: bool, where: str) -> ValueCodec:
    _, write_length, length_size = length
    read_view = records_codec(length, nullable, where).read

    def read(buffer: memoryview, position: int) -> tuple[bytes | None, int]:
        view, position = read_view(buffer, position)
        return (None if view is None else bytes(view)), position

    def write(output: Output, value: bytes | None) -> None:
        if value is None:
            if not nullable:
                raise none_refused(where)
            output.tail += write_length(-1)
            return
        if len(value) > LONGEST_FRAME:
            raise _too_long(len(value), where)
        output.tail += write_length(len(value))
        output.tail += value

    return ValueCodec(read, write, length_size)


def _too_long(size: int, where: str) -> ProtocolError:
    return ProtocolError(f"{where} is too long: {size} bytes (maximum {LONGEST_FRAME})")


def fixed_array_codec(struct_format: str, length: Length, nullable: bool, where: str) -> ValueCodec:
    """An array of numbers."""
    read_length, write_length, length_size = length
    element = struct.Struct(">" + struct_format)

    def read(buffer: memoryview, position: int) -> tuple[list[Value] | None, int]:
        count, position = read_length(buffer, position)
        if count < 0:
            if nullable and count == -1:
                return None, position
            raise negative(count, where)
        end = position + count * element.size
        if end > len(buffer):
            raise too_short(where, count, "elements", len(buffer) - position)
        return [value for (value,) in element.iter_unpack(buffer[position:end])], end

    def write(output: Output, values: Sequence[Value] | None) -> None:
        if values is None:
            if not nullable:
                raise none_refused(where)
            output.tail += write_length(-1)
            return
        output.tail += write_length(len(values))
        try:
            output.tail += b"".join([element.pack(value) for value in values])
        except struct.error as error:
            raise ProtocolError(f"{where} cannot hold {values!r}: {error}") from error

    return ValueCodec(read, write, length_size)


def nullable_struct_codec(codec: StructCodec, where: str) -> ValueCodec:
    """A struct behind a byte that is 1 if there is one, or -1 for null."""

    def read(buffer: memoryview, position: int) -> tuple[Message | None, int]:
        presence = buffer[position]
        if presence == 0xFF:
            return None, position + 1
        if presence != 1:
            raise ProtocolError(f"{where} begins with {presence} instead of 1, or 255 for null")
        return codec.read(buffer, position + 1)

    def write(output: Output, value: Message | None) -> None:
        if value is None:
            output.tail.append(0xFF)
            return
        output.tail.append(1)
        codec.write(output, value)

    return ValueCodec(read, write, 1)
