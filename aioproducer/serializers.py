"""Serializers of keys and values.

A serializer is an object with ``serialize(topic, value, headers)``, or any function of the value alone
(``orjson.dumps``, ``str.encode``). Either may be asynchronous. The serializers of this module return the same bytes as
those of the same name in ``org.apache.kafka.common.serialization``, so that Java consumers can read them. ``None``
stays ``None``; as a value it is a tombstone.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from aioproducer.errors import KafkaError, SerializationError
from aioproducer.record import HeaderPair

Serialized: TypeAlias = bytes | bytearray | memoryview | None
"""The result of a serializer: bytes-like, or None for a null."""

SerializerFunction: TypeAlias = Callable[[str, object, list[HeaderPair]], Serialized | Awaitable[Serialized]]
"""``(topic, value, headers) -> bytes``, or an awaitable of it."""


@runtime_checkable
class Serializer(Protocol):
    """An object that serializes keys or values."""

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized | Awaitable[Serialized]:
        """Return ``value`` as bytes, or None for a null. It may append to ``headers``, which are sent with the record.

        It runs inside ``send`` and must not block, but may return an awaitable. Until that ends, the record keeps its
        position in the queue. An exception becomes the cause of a SerializationError, which fails the record.
        """
        ...


def _wrong_type(serializer: object, expected: str, value: object) -> SerializationError:
    return SerializationError(f"{type(serializer).__name__} takes {expected}, not {_describe(value)}")


def _describe(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


class BytesSerializer:
    """Passes bytes unchanged: bytes, bytearray, memoryview, and objects with a buffer (``array``, numpy)."""

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None or isinstance(value, bytes | bytearray):
            return value
        if isinstance(value, str):
            raise SerializationError(
                f"BytesSerializer takes bytes, not {_describe(value)}: encode it, or configure a StringSerializer"
            )
        try:
            view = memoryview(value)  # type: ignore[arg-type]  # raises the TypeError below for other objects
        except TypeError:
            raise _wrong_type(self, "bytes, bytearray, memoryview or None", value) from None
        return view.cast("B") if view.c_contiguous and view.nbytes else bytes(view)


class StringSerializer:
    """Encodes text, by default in UTF-8.

    Raises:
        LookupError: Python does not have the encoding.
    """

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)
        self.encoding = encoding

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        if not isinstance(value, str):
            raise _wrong_type(self, "str or None", value)
        return value.encode(self.encoding)


class _StructSerializer:
    """Writes numbers of a fixed width, big-endian as Java."""

    _struct: struct.Struct
    _expected: str

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        if isinstance(value, bool):
            raise _wrong_type(self, self._expected, value)
        try:
            return self._struct.pack(value)
        except (struct.error, OverflowError):
            raise _wrong_type(self, self._expected, value) from None


class ShortSerializer(_StructSerializer):
    """Writes a signed integer in 2 bytes."""

    _struct = struct.Struct(">h")
    _expected = "an int from -2**15 to 2**15 - 1 or None"


class IntegerSerializer(_StructSerializer):
    """Writes a signed integer in 4 bytes."""

    _struct = struct.Struct(">i")
    _expected = "an int from -2**31 to 2**31 - 1 or None"


class LongSerializer(_StructSerializer):
    """Writes a signed integer in 8 bytes."""

    _struct = struct.Struct(">q")
    _expected = "an int from -2**63 to 2**63 - 1 or None"


class FloatSerializer(_StructSerializer):
    """Writes a number as a 4-byte IEEE 754 float, rounded to the nearest."""

    _struct = struct.Struct(">f")
    _expected = "a float within the range of 32 bits or None"


class DoubleSerializer(_StructSerializer):
    """Writes a number as an 8-byte IEEE 754 float."""

    _struct = struct.Struct(">d")
    _expected = "a float or None"


class BooleanSerializer:
    """Writes True as the byte 1, False as the byte 0."""

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        if not isinstance(value, bool):
            raise _wrong_type(self, "bool or None", value)
        return b"\x01" if value else b"\x00"


class UUIDSerializer:
    """Writes a UUID as its 36 characters of text, by default in UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        from uuid import UUID

        "".encode(encoding)
        self.encoding = encoding
        self._uuid_class = UUID

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        if not isinstance(value, self._uuid_class):
            raise _wrong_type(self, "uuid.UUID or None", value)
        return str(value).encode(self.encoding)


class VoidSerializer:
    """Accepts only None, for topics without keys, or without values."""

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is not None:
            raise _wrong_type(self, "only None", value)
        return None


class JsonSerializer:
    """Writes JSON in UTF-8, without spaces. None is a null (a tombstone), not the text ``null``.

    ``default`` converts objects that ``json`` cannot write into ones that it can. NaN and infinities are rejected, as
    JSON does not have them.
    """

    def __init__(self, default: Callable[[object], object] | None = None, *, sort_keys: bool = False) -> None:
        import json

        self._encode = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default, sort_keys=sort_keys
        ).encode

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        try:
            return self._encode(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(f"JsonSerializer cannot write {_describe(value)}: {error}") from error


JAVA_CLASS_NAMES: dict[str, type[Serializer]] = {
    "org.apache.kafka.common.serialization.BooleanSerializer": BooleanSerializer,
    "org.apache.kafka.common.serialization.ByteArraySerializer": BytesSerializer,
    "org.apache.kafka.common.serialization.ByteBufferSerializer": BytesSerializer,
    "org.apache.kafka.common.serialization.BytesSerializer": BytesSerializer,
    "org.apache.kafka.common.serialization.DoubleSerializer": DoubleSerializer,
    "org.apache.kafka.common.serialization.FloatSerializer": FloatSerializer,
    "org.apache.kafka.common.serialization.IntegerSerializer": IntegerSerializer,
    "org.apache.kafka.common.serialization.LongSerializer": LongSerializer,
    "org.apache.kafka.common.serialization.ShortSerializer": ShortSerializer,
    "org.apache.kafka.common.serialization.StringSerializer": StringSerializer,
    "org.apache.kafka.common.serialization.UUIDSerializer": UUIDSerializer,
    "org.apache.kafka.common.serialization.VoidSerializer": VoidSerializer,
}
"""Kafka's serializer classes, with the classes of this module that write the same bytes. ``ListSerializer`` is missing:
it is configured by further keys, which name its inner serializer."""


class ResolvedSerializer:
    """A configured serializer: an object or class with ``serialize``, or a function.

    A class is instantiated without arguments. A function of the value alone is not called for None: None stays None.

    Calling it raises only SerializationError, if the serializer raises or returns something other than bytes. The text
    names the field, the topic and the cause. If the serializer is asynchronous, the result is an awaitable that raises
    the same way.

    Args:
        on_error: called with the errors of calls, not of awaitables.

    Raises:
        TypeError: ``serializer`` is none of these.
    """

    __slots__ = ("_field", "_name", "_on_error", "function", "takes_value_alone")

    def __init__(
        self,
        serializer: object,
        field: Literal["key", "value"],
        on_error: Callable[[KafkaError], None] = lambda error: None,
    ) -> None:
        if inspect.isclass(serializer) and hasattr(serializer, "serialize"):
            serializer = serializer()
        self.function: Callable[..., object]
        """The function to call: with the value alone, or with topic, value and headers."""
        if isinstance(serializer, Serializer):
            self.function = serializer.serialize
        elif callable(serializer):
            self.function = serializer
        else:
            raise TypeError(
                f"{field}_serializer must be an object with serialize(topic, value, headers) or a function of the "
                f"value, not {_describe(serializer)}"
            )
        self.takes_value_alone = self.function is serializer
        self._field = field
        self._name = getattr(serializer, "__qualname__", None) or type(serializer).__qualname__
        self._on_error = on_error

    def __call__(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized | Awaitable[Serialized]:
        if self.takes_value_alone and value is None:
            return None
        try:
            result = self.function(value) if self.takes_value_alone else self.function(topic, value, headers)
        except Exception as error:
            raise self.failure(topic, error) from error
        return result if type(result) is bytes else self.accepted(topic, result)

    def failure(self, topic: str, error: Exception) -> SerializationError:
        """Return the error for a serializer that raised ``error``, after passing it to ``on_error``."""
        failure = self._failed(topic, error)
        self._on_error(failure)
        return failure

    def accepted(self, topic: str, result: object) -> Serialized | Awaitable[Serialized]:
        """Return a result other than bytes if a record may have it.

        Raises:
            SerializationError: it may not.
        """
        try:
            if inspect.isawaitable(result):
                return self._finish(topic, result)
            return self._checked(result)
        except Exception as error:
            raise self.failure(topic, error) from error

    def _failed(self, topic: str, error: Exception) -> SerializationError:
        reason = str(error) if isinstance(error, SerializationError) else f"{self._name} raised {error!r}"
        return SerializationError(f"the {self._field} of a record for topic {topic!r} cannot be serialized: {reason}")

    def _checked(self, result: object) -> Serialized:
        if result is None or isinstance(result, bytes | bytearray | memoryview):
            return result
        raise SerializationError(f"{self._name} must return bytes or None, not {_describe(result)}")

    async def _finish(self, topic: str, pending: Awaitable[Serialized]) -> Serialized:
        try:
            return self._checked(await pending)
        except Exception as error:
            raise self._failed(topic, error) from error
