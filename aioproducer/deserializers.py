"""Deserializers of keys and values.

A deserializer is an object with ``deserialize(topic, data, headers)``, or any function of the bytes alone
(``orjson.loads``, ``bytes.decode``). Either may be asynchronous. The deserializers of this module read the bytes of
those of the same name in ``org.apache.kafka.common.serialization``. ``None``, a tombstone's value, stays ``None``.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from aioproducer.errors import SerializationError
from aioproducer.record import HeaderPair

Deserialized: TypeAlias = Any
"""The result of a deserializer: any object."""


@runtime_checkable
class Deserializer(Protocol):
    """An object that deserializes keys or values."""

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> object:
        """Return the object that ``data`` stands for, or an awaitable of it.

        It runs inside ``poll`` and must not block. An exception becomes the cause of a RecordDeserializationError.
        """
        ...


def _wrong_size(deserializer: object, expected: int, data: bytes) -> SerializationError:
    return SerializationError(f"{type(deserializer).__name__} reads {expected} bytes, not {len(data)}")


class BytesDeserializer:
    """Returns the bytes unchanged, as a consumer without deserializers does."""

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> bytes | None:
        return data


class StringDeserializer:
    """Decodes text, by default in UTF-8. Malformed text is an error; Java replaces it.

    Raises:
        LookupError: Python does not have the encoding.
    """

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)
        self.encoding = encoding

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> str | None:
        return None if data is None else data.decode(self.encoding)


class _StructDeserializer:
    """Reads numbers of a fixed width, big-endian as Java."""

    _struct: struct.Struct

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> Any:
        if data is None:
            return None
        if len(data) != self._struct.size:
            raise _wrong_size(self, self._struct.size, data)
        return self._struct.unpack(data)[0]


class ShortDeserializer(_StructDeserializer):
    """Reads a signed integer of 2 bytes."""

    _struct = struct.Struct(">h")


class IntegerDeserializer(_StructDeserializer):
    """Reads a signed integer of 4 bytes."""

    _struct = struct.Struct(">i")


class LongDeserializer(_StructDeserializer):
    """Reads a signed integer of 8 bytes."""

    _struct = struct.Struct(">q")


class FloatDeserializer(_StructDeserializer):
    """Reads a 4-byte IEEE 754 float."""

    _struct = struct.Struct(">f")


class DoubleDeserializer(_StructDeserializer):
    """Reads an 8-byte IEEE 754 float."""

    _struct = struct.Struct(">d")


class BooleanDeserializer:
    """Reads the byte 1 as True, the byte 0 as False."""

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> bool | None:
        if data is None:
            return None
        if data not in (b"\x00", b"\x01"):
            raise SerializationError(f"BooleanDeserializer reads the byte 0 or 1, not {data[:8]!r}")
        return data == b"\x01"


class UUIDDeserializer:
    """Reads a UUID from its text, by default in UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        from uuid import UUID

        "".encode(encoding)
        self.encoding = encoding
        self._uuid_class = UUID

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> Any:
        return None if data is None else self._uuid_class(data.decode(self.encoding))


class VoidDeserializer:
    """Accepts only None, for topics without keys, or without values."""

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> None:
        if data is not None:
            raise SerializationError(f"VoidDeserializer reads only a null, not {len(data)} bytes")


class JsonDeserializer:
    """Reads JSON in UTF-8. A null (a tombstone) is None, as is the text ``null``."""

    def __init__(self) -> None:
        import json

        self._decode = json.loads

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> Any:
        return None if data is None else self._decode(data)


JAVA_CLASS_NAMES: dict[str, type[Deserializer]] = {
    "org.apache.kafka.common.serialization.BooleanDeserializer": BooleanDeserializer,
    "org.apache.kafka.common.serialization.ByteArrayDeserializer": BytesDeserializer,
    "org.apache.kafka.common.serialization.ByteBufferDeserializer": BytesDeserializer,
    "org.apache.kafka.common.serialization.BytesDeserializer": BytesDeserializer,
    "org.apache.kafka.common.serialization.DoubleDeserializer": DoubleDeserializer,
    "org.apache.kafka.common.serialization.FloatDeserializer": FloatDeserializer,
    "org.apache.kafka.common.serialization.IntegerDeserializer": IntegerDeserializer,
    "org.apache.kafka.common.serialization.LongDeserializer": LongDeserializer,
    "org.apache.kafka.common.serialization.ShortDeserializer": ShortDeserializer,
    "org.apache.kafka.common.serialization.StringDeserializer": StringDeserializer,
    "org.apache.kafka.common.serialization.UUIDDeserializer": UUIDDeserializer,
    "org.apache.kafka.common.serialization.VoidDeserializer": VoidDeserializer,
}
"""Kafka's deserializer classes, with the classes of this module that read the same bytes."""


class ResolvedDeserializer:
    """A configured deserializer: an object or class with ``deserialize``, or a function.

    A class is instantiated without arguments. A function of the bytes alone is not called for None: None stays None.

    Raises:
        TypeError: ``deserializer`` is none of these.
    """

    __slots__ = ("function", "takes_data_alone")

    def __init__(self, deserializer: object, field: Literal["key", "value"]) -> None:
        if inspect.isclass(deserializer) and hasattr(deserializer, "deserialize"):
            deserializer = deserializer()
        self.function: Callable[..., object]
        if isinstance(deserializer, Deserializer):
            self.function = deserializer.deserialize
        elif callable(deserializer):
            self.function = deserializer
        else:
            raise TypeError(
                f"{field}_deserializer must be an object with deserialize(topic, data, headers) or a function of the "
                f"bytes, not {type(deserializer).__name__}"
            )
        self.takes_data_alone = self.function is deserializer

    def __call__(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...]) -> object | Awaitable[object]:
        """Return the object, or an awaitable of it; exceptions of the deserializer pass through."""
        if self.takes_data_alone:
            return None if data is None else self.function(data)
        return self.function(topic, data, headers)
