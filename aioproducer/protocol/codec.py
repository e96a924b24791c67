"""Makes of a declaration what reads and writes one version of it, when that version is first used.

A struct's codec is a pair of functions written for it: a line for each field, or for several neighbours whose sizes are
fixed. Reading takes a buffer and a position and returns what was read and the position behind it; writing puts a value
behind what an ``Output`` has.

What is read may come from anybody. Nothing is allocated because a length says so: a length is held against the bytes
that are there, and an array's against the smallest size that so many elements can have. Reading behind the end raises
``IndexError`` or ``struct.error``; ``aioproducer.protocol.frames`` makes a ``ProtocolError`` of these.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol.schema import BYTES, STRING, UUID, Buffer, Field, Message, Records, Scalar
from aioproducer.wire.varint import decode_unsigned_varint, encode_unsigned_varint

LONGEST_STRING: Final = 2**15 - 1
"""A string's bytes, in whatever way its length is written."""

LONGEST_FRAME: Final = 2**31 - 1


class Output:
    """A gather list that grows: ``tail`` takes small pieces, whole buffers come behind it by reference."""

    __slots__ = ("buffers", "tail")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.tail = bytearray()

    def append_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Put ``buffers`` behind what is there."""
        if self.tail:
            self.buffers.append(self.tail)
            self.tail = bytearray()
        self.buffers.extend(buffers)

    def finish(self) -> list[Buffer]:
        """The gather list. Its first buffer is the first ``tail``, if anything was put there."""
        if self.tail or not self.buffers:
            self.buffers.append(self.tail)
        return self.buffers


Value: TypeAlias = Any
"""What a field holds; its type is known to the field's declaration only."""


class ValueCodec(NamedTuple):
    """Reads and writes one value; no encoding of it takes fewer bytes than ``minimum_size``."""

    read: Callable[[memoryview, int], tuple[Value, int]]
    write: Callable[[Output, Value], None]
    minimum_size: int


class StructCodec(NamedTuple):
    """Reads and writes one version of a message or struct."""

    read: Callable[[memoryview, int], tuple[Message, int]]
    write: Callable[[Output, Message], None]
    minimum_size: int


class Length(NamedTuple):
    """How a length is written before what it counts; -1 stands for null."""

    read: Callable[[memoryview, int], tuple[int, int]]
    write: Callable[[int], bytes]
    size: int


def _fixed_length(letter: str) -> Length:
    packer = struct.Struct(">" + letter)

    def read(buffer: memoryview, position: int) -> tuple[int, int]:
        return packer.unpack_from(buffer, position)[0], position + packer.size

    return Length(read, packer.pack, packer.size)


_SMALL_COMPACT: Final = [bytes([length + 1]) for length in range(127)]


def _read_compact_length(buffer: memoryview, position: int) -> tuple[int, int]:
    byte = buffer[position]
    if byte < 0x80:
        return byte - 1, position + 1
    value, position = decode_unsigned_varint(buffer, position)
    return value - 1, position


def _write_compact_length(length: int) -> bytes:
    return _SMALL_COMPACT[length] if 0 <= length < 127 else encode_unsigned_varint(length + 1)


INT16_LENGTH: Final = _fixed_length("h")
INT32_LENGTH: Final = _fixed_length("i")
COMPACT_LENGTH: Final = Length(_read_compact_length, _write_compact_length, 1)


@functools.cache
def message_codec(message_class: type[Message], version: int) -> StructCodec:
    """The codec of a request, response, header or data message.

    Raises:
        UnsupportedVersionError: there is no such version.
    """
    schema = message_class.schema
    if version not in schema.versions:
        raise UnsupportedVersionError(
            f"{message_class.__name__} has no version {version}, only {schema.versions[0]} to {schema.versions[-1]}"
        )
    return _struct_codec(message_class, version, version in schema.flexible)


@functools.cache
def _struct_codec(message_class: type[Message], version: int, flexible: bool) -> StructCodec:
    """The codec of a class that is, or is part of, a message of this version."""
    present = [field for field in message_class.schema.fields if version in field.versions]
    absent = [field for field in message_class.schema.fields if version not in field.versions]
    function = _Functions(message_class, version)
    function.absent_fields(absent)
    plain = [field for field in present if field.tag is None]
    for is_fixed, neighbours in itertools.groupby(plain, key=lambda field: field.struct_format != ""):
        if is_fixed:
            function.fixed_fields(list(neighbours))
        else:
            for field in neighbours:
                function.field(field, _value(message_class, version, flexible, field))
    if flexible:
        function.tagged_fields([field for field in present if field.tag is not None])
    return function.compile()


class _Functions:
    """Writes the two functions of a struct's codec, a line or two for each field, as ``dataclasses`` writes methods.

    What a line needs besides ``buffer``, ``position``, ``output`` and ``message`` goes by a name of its own.
    """

    def __init__(self, message_class: type[Message], version: int) -> None:
        self.message_class = message_class
        self.version = version
        self.minimum_size = 0
        self._reading = ["def read(buffer, position):", "message = new(message_class)"]
        self._writing = ["def write(output, message):"]
        self._names: dict[str, object] = {
            "message_class": message_class,
            "new": message_class.__new__,
            "StructError": struct.error,
        }

    def _name(self, stem: str, value: object) -> str:
        name = f"{stem}_{len(self._names)}"
        self._names[name] = value
        return name

    def _where(self, field: Field) -> str:
        return _where(self.message_class, self.version, field)

    def absent_fields(self, fields: Sequence[Field]) -> None:
        """Fields that the version does not have: read as their defaults, dropped if ignorable, else not to be set."""
        for field in fields:
            self._set_default(field)
            if not field.ignorable:
                is_default = self._name("is_default", _default_test(field))
                refuse = self._name("refuse", self._refuse(field))
                self._writing.append(f"if not {is_default}(message.{field.name}): raise {refuse}(message.{field.name})")

    def _set_default(self, field: Field) -> None:
        if field.has_mutable_default:
            self._reading.append(f"message.{field.name} = {self._name('make', field.make_default)}()")
        else:
            self._reading.append(f"message.{field.name} = {self._name('default', field.default)}")

    def _refuse(self, field: Field) -> Callable[[Value], UnsupportedVersionError]:
        where = f"{self.message_class.__name__}.{field.name}"
        version = self.version
        return lambda value: UnsupportedVersionError(
            f"{where} is set to {value!r}, but version {version} has no such field"
        )

    def fixed_fields(self, fields: Sequence[Field]) -> None:
        """Neighbours whose sizes are fixed, read and written at once."""
        packer = struct.Struct(">" + "".join(field.struct_format for field in fields))
        values = ", ".join(f"message.{field.name}" for field in fields)
        self._reading += [
            f"{values}, = {self._name('unpack', packer.unpack_from)}(buffer, position)",
            f"position += {packer.size}",
        ]
        for field in fields:
            if field.element is UUID:
                wrong = self._name("wrong", functools.partial(_wrong_uuid, self._where(field)))
                self._writing.append(f"if len(message.{field.name} or b'') != 16: raise {wrong}(message.{field.name})")
        names = [field.name for field in fields]
        misfit = self._name("misfit", functools.partial(_misfit, self.message_class, self.version, names))
        self._writing += [
            f"try: output.tail += {self._name('pack', packer.pack)}({values})",
            f"except StructError as error: raise {misfit}(message, error) from error",
        ]
        self.minimum_size += packer.size

    def field(self, field: Field, codec: ValueCodec) -> None:
        """A field whose size is not fixed."""
        self._reading.append(f"message.{field.name}, position = {self._name('read', codec.read)}(buffer, position)")
        self._writing.append(f"{self._name('write', codec.write)}(output, message.{field.name})")
        self.minimum_size += codec.minimum_size

    def tagged_fields(self, fields: Sequence[Field]) -> None:
        """The tagged fields (KIP-482), of which there may be none; what is at its default is left out."""
        for field in fields:
            self._set_default(field)
        tags = _Tags(self.message_class, self.version, fields)
        self._reading += [
            f"if buffer[position]: position = {self._name('read_tags', tags.read)}(buffer, position, message)",
            "else: position += 1",
        ]
        if fields:
            self._writing.append(f"{self._name('write_tags', tags.write)}(output, message)")
        else:
            self._writing.append("output.tail.append(0)")
        self.minimum_size += 1

    def compile(self) -> StructCodec:
        """Make functions of what was written."""
        self._reading.append("return message, position")
        source = "\n ".join(self._reading) + "\n" + "\n ".join([*self._writing, "return"])
        exec(compile(source, f"<{self.message_class.__name__} version {self.version}>", "exec"), self._names)
        read = cast("Callable[[memoryview, int], tuple[Message, int]]", self._names["read"])
        write = cast("Callable[[Output, Message], None]", self._names["write"])
        return StructCodec(read, write, self.minimum_size)


def _where(message_class: type[Message], version: int, field: Field) -> str:
    """What the text of an error begins with."""
    return f"{message_class.__name__}.{field.name} of version {version}"


def _wrong_uuid(where: str, value: bytes | None) -> ProtocolError:
    return ProtocolError(f"{where} is {value!r}, which is not 16 bytes")


def _misfit(
    message_class: type[Message], version: int, names: Sequence[str], message: Message, error: Exception
) -> ProtocolError:
    values = ", ".join(f"{name}={getattr(message, name)!r}" for name in names)
    return ProtocolError(f"{message_class.__name__} of version {version} cannot hold {values}: {error}")


def _default_test(field: Field) -> Callable[[Value], bool]:
    """Whether a value is the field's default, so that leaving it out loses nothing."""
    if field.is_array and field.has_mutable_default:
        return lambda value: value is not None and len(value) == 0
    default = field.make_default()
    return lambda value: bool(value == default)


class _Tags:
    """Reads and writes the tagged fields of a struct, in the order of their tags; unknown ones are skipped."""

    def __init__(self, message_class: type[Message], version: int, fields: Sequence[Field]) -> None:
        self._where = f"{message_class.__name__} of version {version}"
        self._fields = {
            field.tag: (field.name, _value(message_class, version, True, field), _default_test(field))
            for field in sorted(fields, key=lambda field: field.tag or 0)
            if field.tag is not None
        }

    def read(self, buffer: memoryview, position: int, message: Message) -> int:
        """Fill what is there into ``message``, which has all the defaults, and return the position behind it."""
        count, position = decode_unsigned_varint(buffer, position)
        previous = -1
        for _ in range(count):
            tag, position = decode_unsigned_varint(buffer, position)
            size, position = decode_unsigned_varint(buffer, position)
            if tag <= previous:
                raise ProtocolError(f"{self._where} has the tag {tag} behind the tag {previous}")
            previous = tag
            end = position + size
            if end > len(buffer):
                raise _too_short(f"the tag {tag} of {self._where}", size, "bytes", len(buffer) - position)
            if tag in self._fields:
                name, codec, _ = self._fields[tag]
                value, read_to = codec.read(buffer[:end], position)
                if read_to != end:
                    raise ProtocolError(f"the tag {tag} of {self._where} has {end - read_to} bytes too many")
                setattr(message, name, value)
            position = end
        return position

    def write(self, output: Output, message: Message) -> None:
        """Put those of ``message`` that are not at their defaults behind what ``output`` has."""
        present = []
        for tag, (name, codec, is_default) in self._fields.items():
            value = getattr(message, name)
            if not is_default(value):
                present.append((tag, codec, value))
        output.tail += encode_unsigned_varint(len(present))
        for tag, codec, value in present:
            content = Output()
            codec.write(content, value)
            output.tail += encode_unsigned_varint(tag) + encode_unsigned_varint(len(content.tail)) + content.tail


def _value(message_class: type[Message], version: int, flexible: bool, field: Field) -> ValueCodec:
    """The codec of a field's value."""
    where = _where(message_class, version, field)
    nullable = version in field.nullable
    compact = flexible and field.flexible
    if field.is_array:
        length = COMPACT_LENGTH if compact else INT32_LENGTH
        if isinstance(field.element, Scalar) and field.element.struct_format:
            return _fixed_array(field.element.struct_format, length, nullable, where)
        element = dataclasses.replace(field, is_array=False, nullable=range(0))
        return _array(_value(message_class, version, flexible, element), length, nullable, where)
    if not isinstance(field.element, Scalar):
        codec = _struct_codec(field.element, version, flexible)
        return _nullable_struct(codec, where) if nullable else ValueCodec(*codec)
    if field.struct_format:
        return _fixed(field.struct_format, where)
    if field.element is STRING:
        return _string(COMPACT_LENGTH if compact else INT16_LENGTH, nullable, where)
    length = COMPACT_LENGTH if compact else INT32_LENGTH
    return (_binary if field.element is BYTES else _records)(length, nullable, where)


def _fixed(struct_format: str, where: str) -> ValueCodec:
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


def _negative(length: int, where: str) -> ProtocolError:
    """The error for a length below zero that does not stand for an allowed null."""
    return ProtocolError(f"{where} is null" if length == -1 else f"{where} has the length {length}")


def _none(where: str) -> ProtocolError:
    return ProtocolError(f"{where} cannot be None")


def _too_short(where: str, claimed: int, what: str, there: int) -> ProtocolError:
    return ProtocolError(f"{where} claims {claimed} {what}, but only {there} bytes follow")


def _string(length: Length, nullable: bool, where: str) -> ValueCodec:
    read_length, write_length, length_size = length

    def read(buffer: memoryview, position: int) -> tuple[str | None, int]:
        size, position = read_length(buffer, position)
        if size < 0:
            if nullable and size == -1:
                return None, position
            raise _negative(size, where)
        end = position + size
        if end > len(buffer):
            raise _too_short(where, size, "bytes", len(buffer) - position)
        if size > LONGEST_STRING:
            raise ProtocolError(f"{where} is {size} bytes long, but a string has at most {LONGEST_STRING}")
        try:
            return str(buffer[position:end], "utf-8"), end
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{where} is not UTF-8: {error}") from error

    def write(output: Output, value: str | None) -> None:
        if value is None:
            if not nullable:
                raise _none(where)
            output.tail += write_length(-1)
            return
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise ProtocolError(f"{where} cannot be written as UTF-8: {error}") from error
        if len(encoded) > LONGEST_STRING:
            raise ProtocolError(f"{where} is {len(encoded)} bytes long, but a string has at most {LONGEST_STRING}")
        output.tail += write_length(len(encoded))
        output.tail += encoded

    return ValueCodec(read, write, length_size)


def _records(length: Length, nullable: bool, where: str) -> ValueCodec:
    read_length, write_length, length_size = length

    def read(buffer: memoryview, position: int) -> tuple[memoryview | None, int]:
        size, position = read_length(buffer, position)
        if size < 0:
            if nullable and size == -1:
                return None, position
            raise _negative(size, where)
        end = position + size
        if end > len(buffer):
            raise _too_short(where, size, "bytes", len(buffer) - position)
        return buffer[position:end], end

    def write(output: Output, value: Records) -> None:
        if value is None:
            if not nullable:
                raise _none(where)
            output.tail += write_length(-1)
            return
        buffers = (value,) if isinstance(value, Buffer) else value
        size = 0
        for buffer in buffers:
            size += buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
        output.tail += _write_size(write_length, size, where)
        output.append_buffers(buffers)

    return ValueCodec(read, write, length_size)


def _binary(length: Length, nullable: bool, where: str) -> ValueCodec:
    _, write_length, length_size = length
    read_view = _records(length, nullable, where).read

    def read(buffer: memoryview, position: int) -> tuple[bytes | None, int]:
        view, position = read_view(buffer, position)
        return (None if view is None else bytes(view)), position

    def write(output: Output, value: bytes | None) -> None:
        if value is None:
            if not nullable:
                raise _none(where)
            output.tail += write_length(-1)
            return
        output.tail += _write_size(write_length, len(value), where)
        output.tail += value

    return ValueCodec(read, write, length_size)


def _write_size(write_length: Callable[[int], bytes], size: int, where: str) -> bytes:
    if size > LONGEST_FRAME:
        raise ProtocolError(f"{where} is {size} bytes long, but a frame has at most {LONGEST_FRAME}")
    return write_length(size)


def _array(element: ValueCodec, length: Length, nullable: bool, where: str) -> ValueCodec:
    read_length, write_length, length_size = length
    read_element, write_element, minimum_size = element

    def read(buffer: memoryview, position: int) -> tuple[list[Value] | None, int]:
        count, position = read_length(buffer, position)
        if count < 0:
            if nullable and count == -1:
                return None, position
            raise _negative(count, where)
        if count * minimum_size > len(buffer) - position:
            raise _too_short(where, count, "elements", len(buffer) - position)
        values = []
        for _ in range(count):
            value, position = read_element(buffer, position)
            values.append(value)
        return values, position

    def write(output: Output, values: Sequence[Value] | None) -> None:
        if values is None:
            if not nullable:
                raise _none(where)
            output.tail += write_length(-1)
            return
        output.tail += write_length(len(values))
        for value in values:
            write_element(output, value)

    return ValueCodec(read, write, length_size)


def _fixed_array(struct_format: str, length: Length, nullable: bool, where: str) -> ValueCodec:
    """An array of numbers."""
    read_length, write_length, length_size = length
    element = struct.Struct(">" + struct_format)

    def read(buffer: memoryview, position: int) -> tuple[list[Value] | None, int]:
        count, position = read_length(buffer, position)
        if count < 0:
            if nullable and count == -1:
                return None, position
            raise _negative(count, where)
        end = position + count * element.size
        if end > len(buffer):
            raise _too_short(where, count, "elements", len(buffer) - position)
        return [value for (value,) in element.iter_unpack(buffer[position:end])], end

    def write(output: Output, values: Sequence[Value] | None) -> None:
        if values is None:
            if not nullable:
                raise _none(where)
            output.tail += write_length(-1)
            return
        output.tail += write_length(len(values))
        try:
            output.tail += b"".join([element.pack(value) for value in values])
        except struct.error as error:
            raise ProtocolError(f"{where} cannot hold {values!r}: {error}") from error

    return ValueCodec(read, write, length_size)


def _nullable_struct(codec: StructCodec, where: str) -> ValueCodec:
    """A struct behind a byte that says whether there is one: 1, or -1 for null."""

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
