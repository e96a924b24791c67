"""Finds a position in a message that arrives in pieces, without holding the message.

The fields before the position are walked over one by one, by the message's schema: sizes and counts are read,
everything else is skipped. A walk is a generator. It yields ``-n`` to skip ``n`` bytes, and ``n`` to receive the next
``n``; a ``Walker`` drives it over the bytes that have arrived.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Generator, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from aioproducer.errors import ProtocolError
from aioproducer.protocol import Buffer, Message
from aioproducer.protocol.schema import BYTES, RECORDS, STRING, Field, Scalar

T = TypeVar("T")

Walk: TypeAlias = Generator[int, Buffer, T]

Step: TypeAlias = int | Callable[[], Walk[None]]
"""A number of bytes to skip, or a part that must be read."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_LONGEST_VARINT: Final = 5


def walk(steps: Sequence[Step]) -> Walk[None]:
    """Walk over all ``steps``."""
    for step in steps:
        if isinstance(step, int):
            yield -step
        else:
            yield from step()


def walk_varint() -> Walk[int]:
    """Walk over an unsigned varint, and return it."""
    value = (yield 1)[0]
    return value if value < 0x80 else (yield from _walk_longer_varint(value))


def _walk_longer_varint(first: int) -> Walk[int]:
    """Walk over a varint with the first byte ``first``."""
    value = first & 0x7F
    for shift in range(7, 7 * _LONGEST_VARINT, 7):
        byte = (yield 1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise ProtocolError(f"a varint has more than {_LONGEST_VARINT} bytes")


def walk_length(packer: struct.Struct | None) -> Walk[int]:
    """Return a length: in ``packer``'s integer, or compact if there is none; -1 for null."""
    length: int
    if packer is None:
        length = (yield from walk_varint()) - 1
    else:
        (length,) = packer.unpack((yield packer.size))
    if length < -1:
        raise ProtocolError(f"invalid length {length}")
    return length


def walk_sized(packer: struct.Struct | None) -> Walk[None]:
    """Walk over a string, or bytes, with a length in front."""
    length = yield from walk_length(packer)
    if length > 0:
        yield -length


def walk_tags() -> Walk[None]:
    """Walk over the tagged fields at the end of a struct (KIP-482)."""
    for _ in range((yield from walk_varint())):
        yield from walk_varint()
        size = yield from walk_varint()
        if size:
            yield -size


def _walk_array(compact: bool, element: Sequence[Step]) -> Walk[None]:
    count = yield from walk_length(None if compact else _INT32)
    if len(element) == 1 and isinstance(element[0], int):
        if count > 0:
            yield -count * element[0]
        return
    for _ in range(count):
        yield from walk(element)


def _walk_nullable_struct(steps: Sequence[Step]) -> Walk[None]:
    if (yield 1)[0] < 0x80:
        yield from walk(steps)


@functools.cache
def steps_of(
    message_class: type[Message],
    version: int,
    flexible: bool,
    *,
    after: str | None = None,
    until: str | None = None,
    tags: bool = True,
) -> tuple[Step, ...]:
    """Return the steps over a message or struct of this version.

    They begin at its start, or behind the field ``after``. They end before the field ``until``, or at its end; if
    ``tags`` is false, before its tagged fields.
    """
    steps: list[Step] = []
    wanted = after is None
    for field in message_class.schema.fields:
        if field.name == until:
            return tuple(steps)
        if wanted and version in field.versions and field.tag is None:
            for step in _field_steps(field, version, flexible):
                if isinstance(step, int) and steps and isinstance(steps[-1], int):
                    steps[-1] += step
                else:
                    steps.append(step)
        wanted = wanted or field.name == after
    if flexible and tags:
        steps.append(walk_tags)
    return tuple(steps)


def field_steps(message_class: type[Message], version: int, flexible: bool, name: str) -> tuple[Step, ...]:
    """Return the steps over one field of a message or struct."""
    (field,) = (field for field in message_class.schema.fields if field.name == name)
    return tuple(_field_steps(field, version, flexible))


def _field_steps(field: Field, version: int, flexible: bool) -> Sequence[Step]:
    compact = flexible and field.flexible
    if field.is_array:
        element = tuple(_field_steps(field.of_element(), version, flexible))
        return [functools.partial(_walk_array, compact, element)]
    if isinstance(field.element, Scalar):
        if field.struct_format:
            return [struct.calcsize(f">{field.struct_format}")]
        assert field.element in (STRING, BYTES, RECORDS)
        packer = None if compact else _INT16 if field.element is STRING else _INT32
        return [functools.partial(walk_sized, packer)]
    steps = steps_of(field.element, version, flexible)
    return [functools.partial(_walk_nullable_struct, steps)] if version in field.nullable else steps


class Walker(Generic[T]):
    """Drives a walk over bytes as they arrive."""

    __slots__ = ("_gathered", "_generator", "_result", "_wanted", "done")

    def __init__(self, generator: Walk[T]) -> None:
        self._generator = generator
        self._gathered = b""
        """The first part of the bytes that the walk has requested."""
        self._wanted = 0
        """The walk's last request; reduced by the bytes that were skipped."""
        self._result: T
        self.done = False
        """Whether the position was reached; nothing more is fed then."""
        try:
            self._wanted = next(generator)
        except StopIteration as stop:
            self._end(stop)

    @property
    def result(self) -> T:
        """The return value of the walk when it is done."""
        return self._result

    def feed(self, data: Buffer) -> int:
        """Walk over ``data``; return how many of its bytes are before the position, all while it is not reached.

        Raises:
            ProtocolError: the bytes do not fit the schema.
        """
        if self.done:
            return 0
        position = 0
        end = len(data)
        wanted = self._wanted
        send = self._generator.send
        try:
            if self._gathered:
                position = wanted - len(self._gathered)
                self._gathered += data[:position]
                if position > end:
                    return end
                gathered, self._gathered = self._gathered, b""
                wanted = send(gathered)
            while True:
                if wanted < 0:
                    position -= wanted
                    if position > end:
                        self._wanted = end - position
                        return end
                    wanted = send(b"")
                else:
                    start = position
                    position += wanted
                    if position > end:
                        self._wanted = wanted
                        self._gathered = bytes(data[start:])
                        return end
                    wanted = send(data[start:position])
        except StopIteration as stop:
            self._end(stop)
            return position

    def _end(self, stop: StopIteration) -> None:
        self._result = stop.value
        self.done = True


def walk_over(generator: Walk[T], memory: memoryview, position: int) -> tuple[T, int]:
    """Walk over memory from ``position`` on; return the walk's result and the position behind it.

    Raises:
        ProtocolError: the bytes do not fit the schema, or end too early.
    """
    walker = Walker(generator)
    position += walker.feed(memory[position:])
    if not walker.done:
        raise ProtocolError("the message ends inside a field")
    return walker.result, position
