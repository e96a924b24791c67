"""Generates the functions that read and write one version of a message, when that version is first used.

The codec of a message consists of two generated functions. They have one line for each field, or for several adjacent
ones of fixed size, and a loop for each array with the lines of its structs. Reading takes a buffer and a position, and
returns the value and the position behind it; writing appends a value to an ``Output``.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, cast

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol.schema import BYTES, STRING, UUID, Field, Message, Scalar
from aioproducer.protocol.values import (
    COMPACT_LENGTH,
    INT16_LENGTH,
    INT32_LENGTH,
    SMALL_COMPACT,
    Output,
    Read,
    StructCodec,
    Value,
    ValueCodec,
    Write,
    binary_codec,
    fixed_array_codec,
    fixed_codec,
    negative,
    none_refused,
    nullable_struct_codec,
    read_compact_length,
    records_codec,
    string_codec,
    too_short,
    write_compact_length,
)
from aioproducer.wire.varint import decode_unsigned_varint, encode_unsigned_varint


@functools.cache
def message_codec(message_class: type[Message], version: int) -> StructCodec:
    """Return the codec of a request, response, header or data message.

    Raises:
        UnsupportedVersionError: there is no such version.
    """
    schema = message_class.schema
    if version not in schema.versions:
        raise UnsupportedVersionError(
            f"{message_class.__name__} has no version {version}: use {schema.versions[0]} to {schema.versions[-1]}"
        )
    return struct_codec(message_class, version, version in schema.flexible)


@functools.cache
def struct_codec(message_class: type[Message], version: int, flexible: bool) -> StructCodec:
    """Return the codec of a class that is, or is part of, a message of this version."""
    return _CodecWriter(version, flexible).of_struct(message_class)


ReadFields: TypeAlias = Callable[[memoryview, int, Message], int]
"""Takes a buffer, a position and a message, sets fields of it, and returns the position behind them."""


def fields_reader(message_class: type[Message], version: int, flexible: bool, fields: Sequence[Field]) -> ReadFields:
    """Return a function that reads adjacent fields of a struct, none of them tagged."""
    return _CodecWriter(version, flexible).of_fields(message_class, fields)


class _Code(NamedTuple):
    """Lines that read and lines that write a part of a message, and its minimum number of bytes."""

    reading: list[str]
    writing: list[str]
    minimum_size: int


class _CodecWriter:
    """Generates the two functions of a codec, as ``dataclasses`` generates methods.

    Objects that a line needs, besides ``buffer``, ``position``, ``output`` and its ``tail``, have unique names.
    """

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self._count = 0
        self._names: dict[str, object] = {
            "StructError": struct.error,
            "COMPACT": SMALL_COMPACT,
            "new": object.__new__,
            "negative": negative,
            "none_refused": none_refused,
            "too_short": too_short,
            "write_compact": write_compact_length,
            "read_compact": read_compact_length,
        }

    def of_struct(self, message_class: type[Message]) -> StructCodec:
        """Generate the functions for a message or struct."""
        code = self._struct(message_class, "value")
        what = message_class.__name__
        return StructCodec(
            functools.partial(self._reader, code.reading, what),
            functools.partial(self._writer, code.writing, what),
            code.minimum_size,
        )

    def of_fields(self, message_class: type[Message], fields: Sequence[Field]) -> ReadFields:
        """Generate the function that reads some fields of a message."""
        reading = [line for piece in self._fields(message_class, fields, "value") for line in piece.reading]
        lines = ["def read(buffer, position, value):", *_indented(reading), " return position"]
        what = f"{message_class.__name__}.{fields[0].name}" if fields else message_class.__name__
        return cast("ReadFields", self._made("read", lines, what))

    def of_tagged(self, message_class: type[Message], field: Field) -> ValueCodec:
        """Generate the functions for the value of a field."""
        code = self._field(message_class, field, "value")
        what = f"{message_class.__name__}.{field.name}"
        return ValueCodec(self._reader(code.reading, what), self._writer(code.writing, what), code.minimum_size)

    def _reader(self, reading: list[str], what: str) -> Read:
        """Compile a function from lines that leave the value read in the variable ``value``."""
        lines = ["def read(buffer, position):", *_indented(reading), " return value, position"]
        return cast("Read", self._made("read", lines, what))

    def _writer(self, writing: list[str], what: str) -> Write:
        """Compile a function from lines that write the variable ``value``."""
        lines = ["def write(output, value):", " tail = output.tail", *_indented(writing)]
        return cast("Write", self._made("write", lines, what))

    def _made(self, name: str, lines: list[str], what: str) -> object:
        """Compile the lines, and return the function with that name."""
        exec(compile("\n".join(lines), f"<{what} version {self.version}>", "exec"), self._names)
        return self._names[name]

    def _new_name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def _name(self, stem: str, value: object) -> str:
        name = self._new_name(stem)
        self._names[name] = value
        return name

    def _struct(self, message_class: type[Message], variable: str) -> _Code:
        """Generate the code for a struct in the variable ``variable``."""
        fields = message_class.schema.fields
        present = [field for field in fields if self.version in field.versions]
        reading = [f"{variable} = new({self._name('message_class', message_class)})"]
        writing: list[str] = []
        minimum_size = 0
        for field in fields:
            if self.version not in field.versions:
                reading += self._default(field, variable)
                writing += self._refusal(message_class, field, variable)
        for piece in self._fields(message_class, [field for field in present if field.tag is None], variable):
            reading += piece.reading
            writing += piece.writing
            minimum_size += piece.minimum_size
        if self.flexible:
            tagged = [field for field in present if field.tag is not None]
            for field in tagged:
                reading += self._default(field, variable)
            tags = Tags(message_class, self.version, tagged)
            reading += [
                f"if buffer[position]: position = {self._name('read_tags', tags.read)}(buffer, position, {variable})",
                "else: position += 1",
            ]
            writing.append(
                f"{self._name('write_tags', tags.write)}(output, {variable})" if tagged else "tail.append(0)"
            )
            minimum_size += 1
        return _Code(reading, writing or ["pass"], minimum_size)

    def _fields(self, message_class: type[Message], fields: Sequence[Field], variable: str) -> Iterator[_Code]:
        """Generate the code for the present fields without tags of the struct in the variable ``variable``."""
        for is_fixed, neighbours in itertools.groupby(fields, key=lambda field: field.struct_format != ""):
            if is_fixed:
                yield self._fixed_fields(message_class, list(neighbours), variable)
            else:
                for field in neighbours:
                    yield self._field(message_class, field, f"{variable}.{field.name}")

    def _default(self, field: Field, variable: str) -> list[str]:
        """Generate lines that set a field to its default."""
        target = f"{variable}.{field.name}"
        if not field.has_mutable_default:
            return [f"{target} = {self._name('default', field.default)}"]
        if field.is_array or isinstance(field.element, Scalar):
            return [f"{target} = []"]
        made = self._new_name("made")
        lines = [f"{target} = {made} = new({self._name('message_class', field.element)})"]
        for inner in field.element.schema.fields:
            lines += self._default(inner, made)
        return lines

    def _refusal(self, message_class: type[Message], field: Field, variable: str) -> list[str]:
        """Generate lines for a field that the version lacks: dropped if ignorable, else an error if it is set."""
        if field.ignorable:
            return []
        target = f"{variable}.{field.name}"
        is_default = self._name("is_default", _default_test(field))
        refuse = self._name("refuse", functools.partial(_no_such_field, message_class, self.version, field.name))
        return [f"if not {is_default}({target}): raise {refuse}({target})"]

    def _fixed_fields(self, message_class: type[Message], fields: Sequence[Field], variable: str) -> _Code:
        """Generate the code for adjacent fields of fixed sizes, read and written at once."""
        packer = struct.Struct(">" + "".join(field.struct_format for field in fields))
        values = ", ".join(f"{variable}.{field.name}" for field in fields)
        reading = [
            f"{values}, = {self._name('unpack', packer.unpack_from)}(buffer, position)",
            f"position += {packer.size}",
        ]
        writing = []
        for field in fields:
            if field.element is UUID:
                wrong = functools.partial(_wrong_uuid, where_of(message_class, self.version, field))
                target = f"{variable}.{field.name}"
                writing.append(f"if len({target} or b'') != 16: raise {self._name('wrong', wrong)}({target})")
        names = [field.name for field in fields]
        misfit = self._name("misfit", functools.partial(_misfit, message_class, self.version, names))
        writing += [
            f"try: tail += {self._name('pack', packer.pack)}({values})",
            f"except StructError as error: raise {misfit}({variable}, error) from error",
        ]
        return _Code(reading, writing, packer.size)

    def _field(self, message_class: type[Message], field: Field, target: str) -> _Code:
        """Generate the code for a value without a fixed size, stored in ``target``: an attribute or a loop variable."""
        nullable = self.version in field.nullable
        if field.is_array and not (isinstance(field.element, Scalar) and field.element.struct_format):
            return self._array(message_class, field, target)
        if not isinstance(field.element, Scalar) and not field.is_array and not nullable:
            variable = self._new_name("part")
            code = self._struct(field.element, variable)
            return _Code(
                [*code.reading, f"{target} = {variable}"], [f"{variable} = {target}", *code.writing], code.minimum_size
            )
        codec = _value(message_class, self.version, self.flexible, field)
        reading = f"{target}, position = {self._name('read', codec.read)}(buffer, position)"
        # The value may be large, and be appended behind the tail by reference.
        writing = f"{self._name('write', codec.write)}(output, {target}); tail = output.tail"
        if nullable and field.element is STRING and self.flexible and field.flexible:
            # Usually it is null; that needs no call.
            return _Code(
                [f"if buffer[position]: {reading}", f"else: {target} = None; position += 1"],
                [f"if {target} is None: tail.append(0)", f"else: {writing}"],
                codec.minimum_size,
            )
        return _Code([reading], [writing], codec.minimum_size)

    def _array(self, message_class: type[Message], field: Field, target: str) -> _Code:
        """Generate the code for an array, a loop."""
        where = where_of(message_class, self.version, field)
        compact = self.flexible and field.flexible
        nullable = self.version in field.nullable
        values, item = self._new_name("values"), self._new_name("item")
        element = field.of_element()
        inner = self._field(message_class, element, item)
        where_it_is = self._name("where", where)
        if compact:
            length = COMPACT_LENGTH
            read_count = [
                "count = buffer[position] - 1",
                "if count < 127: position += 1",
                "else: count, position = read_compact(buffer, position)",
            ]
            write_count = f"tail += COMPACT[len({values})] if len({values}) < 127 else write_compact(len({values}))"
        else:
            length = INT32_LENGTH
            read_count = [f"count, position = {self._name('read_length', length.read)}(buffer, position)"]
            write_count = f"tail += {self._name('write_length', length.write)}(len({values}))"
        reading = [
            *read_count,
            "if count < 0:",
            f" if count != -1: raise negative(count, {where_it_is})"
            if nullable
            else f" raise negative(count, {where_it_is})",
            *([f" {target} = None"] if nullable else []),
            "else:",
            f" if count * {inner.minimum_size} > len(buffer) - position:",
            f"  raise too_short({where_it_is}, count, 'elements', len(buffer) - position)",
            f" {target} = {values} = []",
            " for _ in range(count):",
            *_indented(inner.reading, 2),
            f"  {values}.append({item})",
        ]
        writing = [
            f"{values} = {target}",
            f"if {values} is None:",
            f" tail += {length.write(-1)!r}" if nullable else f" raise none_refused({where_it_is})",
            "else:",
            f" {write_count}",
            f" for {item} in {values}:",
            *_indented(inner.writing, 2),
        ]
        return _Code(reading, writing, length.size)


def _indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return [" " * depth + line for line in lines]


def where_of(message_class: type[Message], version: int, field: Field) -> str:
    """Return the start of an error text about a field."""
    return f"{message_class.__name__}.{field.name} of version {version}"


def _no_such_field(message_class: type[Message], version: int, name: str, value: object) -> UnsupportedVersionError:
    return UnsupportedVersionError(
        f"{message_class.__name__}.{name} is set to {value!r}, but version {version} has no such field"
    )


def _wrong_uuid(where: str, value: bytes | None) -> ProtocolError:
    return ProtocolError(f"{where} is {value!r}, which is not 16 bytes")


def _misfit(
    message_class: type[Message], version: int, names: Sequence[str], message: Message, error: Exception
) -> ProtocolError:
    values = ", ".join(f"{name}={getattr(message, name)!r}" for name in names)
    return ProtocolError(f"{message_class.__name__} of version {version} cannot hold {values}: {error}")


def _default_test(field: Field) -> Callable[[Value], bool]:
    """Return a function that tells whether a value is the field's default, which need not be written."""
    if field.is_array and field.has_mutable_default:
        return lambda value: value is not None and len(value) == 0
    default = field.make_default()
    return lambda value: bool(value == default)


class Tags:
    """Reads and writes the tagged fields of a struct, in the order of their tags; unknown ones are skipped."""

    def __init__(self, message_class: type[Message], version: int, fields: Sequence[Field]) -> None:
        self._message_class = message_class
        self._version = version
        self._where = f"{message_class.__name__} of version {version}"
        self._fields = {
            field.tag: (field, _default_test(field))
            for field in sorted(fields, key=lambda field: field.tag or 0)
            if field.tag is not None
        }
        # Each codec is generated at its first use; most are never used.
        self._codecs: dict[str, ValueCodec] = {}

    def _codec(self, field: Field) -> ValueCodec:
        codec = self._codecs.get(field.name)
        if codec is None:
            writer = _CodecWriter(self._version, flexible=True)
            codec = self._codecs[field.name] = writer.of_tagged(self._message_class, field)
        return codec

    def read(self, buffer: memoryview, position: int, message: Message) -> int:
        """Set the tagged fields of ``message``, which has all defaults, and return the position behind them."""
        count, position = decode_unsigned_varint(buffer, position)
        previous = -1
        for _ in range(count):
            tag, position = decode_unsigned_varint(buffer, position)
            size, position = decode_unsigned_varint(buffer, position)
            if tag <= previous:
                raise ProtocolError(f"{self._where} has the tag {tag} behind the tag {previous}: tags must be in order")
            previous = tag
            end = position + size
            if end > len(buffer):
                raise too_short(f"the tag {tag} of {self._where}", size, "bytes", len(buffer) - position)
            if tag in self._fields:
                field, _ = self._fields[tag]
                value, read_to = self._codec(field).read(buffer[:end], position)
                if read_to != end:
                    raise ProtocolError(f"the tag {tag} of {self._where} has {end - read_to} bytes too many")
                setattr(message, field.name, value)
            position = end
        return position

    def write(self, output: Output, message: Message) -> None:
        """Append the tagged fields of ``message`` that differ from their defaults to ``output``."""
        present = []
        for tag, (field, is_default) in self._fields.items():
            value = getattr(message, field.name)
            if not is_default(value):
                present.append((tag, self._codec(field), value))
        output.tail += encode_unsigned_varint(len(present))
        for tag, codec, value in present:
            content = Output()
            codec.write(content, value)
            output.tail += encode_unsigned_varint(tag) + encode_unsigned_varint(len(content.tail)) + content.tail


def _value(message_class: type[Message], version: int, flexible: bool, field: Field) -> ValueCodec:
    """Return the codec of a value that is neither a plain struct nor an array of elements without a fixed size."""
    where = where_of(message_class, version, field)
    nullable = version in field.nullable
    compact = flexible and field.flexible
    if field.is_array:
        assert isinstance(field.element, Scalar)
        length = COMPACT_LENGTH if compact else INT32_LENGTH
        return fixed_array_codec(field.element.struct_format, length, nullable, where)
    if not isinstance(field.element, Scalar):
        return nullable_struct_codec(struct_codec(field.element, version, flexible), where)
    if field.struct_format:
        return fixed_codec(field.struct_format, where)
    if field.element is STRING:
        return string_codec(COMPACT_LENGTH if compact else INT16_LENGTH, nullable, where)
    length = COMPACT_LENGTH if compact else INT32_LENGTH
    return (binary_codec if field.element is BYTES else records_codec)(length, nullable, where)
