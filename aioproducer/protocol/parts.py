"""Decodes a response in parts, if decoding it at once would block the event loop for too long.

A Metadata response may have tens of thousands of partitions, which take a tenth of a second to decode.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol.codec import ReadFields, Tags, fields_reader, struct_codec, where_of
from aioproducer.protocol.frames import _decode_prefix, _response_header_version, _view
from aioproducer.protocol.messages.headers import ResponseHeader
from aioproducer.protocol.schema import Buffer, Field, Message, Response, Scalar, Struct
from aioproducer.protocol.values import COMPACT_LENGTH, INT32_LENGTH, Length, StructCodec, negative, too_short

ResponseT = TypeVar("ResponseT", bound=Response)
ElementT = TypeVar("ElementT", bound=Struct)

ELEMENTS_PER_STEP: Final = 16
"""Number of structs inside an element that are decoded between two steps: about 0.05 ms."""


class _Plan(NamedTuple):
    """How to decode a struct around one of its arrays."""

    before: ReadFields
    array: Field
    length: Length
    where: str
    after: ReadFields
    tags: Tags | None


@functools.cache
def _plan(message_class: type[Message], array_name: str, version: int, flexible: bool) -> _Plan:
    present = [field for field in message_class.schema.fields if version in field.versions]
    plain = [field for field in present if field.tag is None]
    index = next(index for index, field in enumerate(plain) if field.name == array_name)
    tagged = [field for field in present if field.tag is not None]
    return _Plan(
        fields_reader(message_class, version, flexible, plain[:index]),
        plain[index],
        COMPACT_LENGTH if flexible else INT32_LENGTH,
        where_of(message_class, version, plain[index]),
        fields_reader(message_class, version, flexible, plain[index + 1 :]),
        Tags(message_class, version, tagged) if flexible else None,
    )


def _array_of_structs(message_class: type[Message]) -> str:
    return next(
        field.name for field in message_class.schema.fields if field.is_array and not isinstance(field.element, Scalar)
    )


class ResponseInParts(Generic[ResponseT, ElementT]):
    """A response with one array of elements that are decoded later, one by one.

    Args:
        element_class: The class of the array's elements, which have an array of structs themselves.

    Raises:
        UnsupportedVersionError: there is no such version.
        ProtocolError: the bytes before the array are malformed.
    """

    __slots__ = ("_element_class", "_flexible", "_plan", "_position", "_version", "_view", "head")

    def __init__(
        self, response_class: type[ResponseT], element_class: type[ElementT], version: int, frame: Buffer
    ) -> None:
        array_name = next(field.name for field in response_class.schema.fields if field.element is element_class)
        self._element_class: Final = element_class
        self._version: Final = version
        self._flexible: Final = version in response_class.schema.flexible
        self._view: Final = _view(frame)
        _, position = _decode_prefix(ResponseHeader, _response_header_version(response_class, version), self._view, 0)
        if version not in response_class.schema.versions:
            raise UnsupportedVersionError(f"{response_class.__name__} has no version {version}")
        self._plan: Final = _plan(response_class, array_name, version, self._flexible)
        self.head: Final = response_class()
        """The response without the elements; it is complete when they have been decoded."""
        try:
            self._position = self._plan.before(self._view, position, self.head)
        except (IndexError, struct.error) as error:
            raise self._cut_short() from error

    @property
    def throttle_time_ms(self) -> int:
        """The field of the response."""
        throttle_time_ms: int = getattr(self.head, "throttle_time_ms", 0)
        return throttle_time_ms

    def elements(self) -> Iterator[ElementT | None]:
        """Yield each element once, and ``None`` between steps while a large one is decoded.

        Raises:
            ProtocolError: the bytes are malformed; some elements may have been yielded before.
        """
        try:
            yield from self._read_elements()
        except (IndexError, struct.error) as error:
            raise self._cut_short() from error

    def _cut_short(self) -> ProtocolError:
        return ProtocolError(
            f"{type(self.head).__name__} of version {self._version} is cut off after {len(self._view)} bytes"
        )

    def _read_elements(self) -> Iterator[ElementT | None]:
        view, plan, element_class = self._view, self._plan, self._element_class
        inner = _plan(element_class, _array_of_structs(element_class), self._version, self._flexible)
        array_name = inner.array.name
        outer_codec = struct_codec(element_class, self._version, self._flexible)
        assert not isinstance(inner.array.element, Scalar)
        inner_codec = struct_codec(inner.array.element, self._version, self._flexible)
        read_struct = inner_codec.read
        count, position = _read_count(plan, outer_codec, view, self._position)
        for _ in range(count):
            element = element_class()
            position = inner.before(view, position, element)
            inner_count, position = _read_count(inner, inner_codec, view, position)
            values = []
            for number in range(1, inner_count + 1):
                value, position = read_struct(view, position)
                values.append(value)
                if number % ELEMENTS_PER_STEP == 0:
                    yield None
            setattr(element, array_name, values)
            position = _read_rest(element, inner, view, position)
            yield element
        self._position = _read_rest(self.head, plan, view, position)


def _read_rest(message: Message, plan: _Plan, view: memoryview, position: int) -> int:
    position = plan.after(view, position, message)
    if plan.tags is None:
        return position
    return plan.tags.read(view, position, message) if view[position] else position + 1


def _read_count(plan: _Plan, element: StructCodec, view: memoryview, position: int) -> tuple[int, int]:
    count, position = plan.length.read(view, position)
    if count < 0:
        raise negative(count, plan.where)
    if count * element.minimum_size > len(view) - position:
        raise too_short(plan.where, count, "elements", len(view) - position)
    return count, position
