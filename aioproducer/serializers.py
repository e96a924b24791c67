"""Turning keys and values into bytes.

A serializer is an object with ``serialize(topic, value, headers)``, or any function of the value alone
(``orjson.dumps``, ``str.encode``). Either may be asynchronous. Those here write the same bytes as the serializers of
the same name in ``org.apache.kafka.common.serialization``, so that Java consumers read them; ``None`` stays ``None``,
which as a value is a tombstone.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from aioproducer.errors import KafkaError, SerializationError
from aioproducer.record import HeaderPair

Serialized: TypeAlias = bytes | bytearray | memoryview | None
"""What a serializer makes: bytes in some form, or None for none."""

SerializerFunction: TypeAlias = Callable[[str, object, list[HeaderPair]], Serialized | Awaitable[Serialized]]
"""``(topic, value, headers) -> bytes``, or an awaitable of it."""


@runtime_checkable
class Serializer(Protocol):
    """An object that turns keys or values into bytes."""

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized | Awaitable[Serialized]:
        """``value`` as bytes, or None for a null. May append to ``headers``, which then go out with the record.

        Called in the caller's task: it must not block, but may return an awaitable. The record keeps its place in line
        meanwhile. Whatever it raises reaches the sender as the cause of a SerializationError.
        """
        ...


def _refuse(serializer: object, expected: str, value: object) -> SerializationError:
    return SerializationError(f"{type(serializer).__name__} takes {expected}, but {_describe(value)} came")


def _describe(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


class BytesSerializer:
    """Bytes as they are: bytes, bytearray, memoryview, or whatever has its bytes in a buffer (``array``, numpy)."""

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None or isinstance(value, bytes | bytearray):
            return value
        if isinstance(value, str):
            raise SerializationError(
                f"BytesSerializer takes bytes, but {_describe(value)} came: encode it, or configure a StringSerializer"
            )
        try:
            view = memoryview(value)  # type: ignore[arg-type]  # what has no buffer raises the TypeError below
        except TypeError:
            raise _refuse(self, "bytes, bytearray, memoryview or None", value) from None
        return view.cast("B") if view.c_contiguous and view.nbytes else bytes(view)


class StringSerializer:
    """Text in an encoding, UTF-8 unless told. Raises LookupError at construction for an encoding Python has not."""

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)
        self.encoding = encoding

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        if not isinstance(value, str):
            raise _refuse(self, "str or None", value)
        return value.encode(self.encoding)


class _StructSerializer:
    """Numbers of a fixed width, big-endian as Java's."""

    _struct: struct.Struct
    _expected: str

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        if isinstance(value, bool):
            raise _refuse(self, self._expected, value)
        try:
            return self._struct.pack(value)
        except (struct.error, OverflowError):
            raise _refuse(self, self._expected, value) from None


class ShortSerializer(_StructSerializer):
    """A signed integer in 2 bytes."""

    _struct = struct.Struct(">h")
    _expected = "an int from -2**15 to 2**15 - 1 or None"


class IntegerSerializer(_StructSerializer):
    """A signed integer in 4 bytes."""

    _struct = struct.Struct(">i")
    _expected = "an int from -2**31 to 2**31 - 1 or None"


class LongSerializer(_StructSerializer):
    """A signed integer in 8 bytes."""

    _struct = struct.Struct(">q")
    _expected = "an int from -2**63 to 2**63 - 1 or None"


class FloatSerializer(_StructSerializer):
    """A number as a 4-byte IEEE 754 float, rounded to the nearest."""

    _struct = struct.Struct(">f")
    _expected = "a float within the range of 32 bits or None"


class DoubleSerializer(_StructSerializer):
    """A number as an 8-byte IEEE 754 float."""

    _struct = struct.Struct(">d")
    _expected = "a float or None"


class BooleanSerializer:
    """True as the byte 1, False as the byte 0."""

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        if not isinstance(value, bool):
            raise _refuse(self, "bool or None", value)
        return b"\x01" if value else b"\x00"


class UUIDSerializer:
    """A UUID as its 36 characters of text, in an encoding (UTF-8 unless told)."""

    def __init__(self, encoding: str = "utf-8") -> None:
        from uuid import UUID

        "".encode(encoding)
        self.encoding = encoding
        self._uuid_class = UUID

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is None:
            return None
        if not isinstance(value, self._uuid_class):
            raise _refuse(self, "uuid.UUID or None", value)
        return str(value).encode(self.encoding)


class VoidSerializer:
    """None only: for topics whose records have no key, or no value."""

    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        if value is not None:
            raise _refuse(self, "None only", value)
        return None


class JsonSerializer:
    """Whatever ``json`` writes, in UTF-8 without spaces. None is a null (a tombstone), not the text ``null``.

    ``default`` is called for objects that ``json`` cannot write and returns one that it can. NaN and infinities are
    refused: JSON has none.
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
"""Kafka's serializer classes and the ones here that write the same bytes. Its ``ListSerializer`` has no equal: which
inner serializer it uses stands in keys of its own."""


def resolve(
    serializer: object, field: Literal["key", "value"], note_raised: Callable[[KafkaError], None] = lambda error: None
) -> SerializerFunction:
    """The function to call for a configured serializer: an object or class with ``serialize``, or a function.

    A class is instantiated without arguments. A function of the value alone is not called for None: None stays None.

    The result raises SerializationError, and nothing else, when the serializer raises or makes something other than
    bytes; the text names ``field``, the topic and the cause. It returns an awaitable where the serializer does, which
    raises likewise. ``note_raised`` is called with what the function raises, not with what the awaitable does.

    Raises TypeError when ``serializer`` is neither.
    """
    if inspect.isclass(serializer) and hasattr(serializer, "serialize"):
        serializer = serializer()
    name = getattr(serializer, "__qualname__", None) or type(serializer).__qualname__
    serialize = serializer.serialize if isinstance(serializer, Serializer) else None
    if serialize is None and not callable(serializer):
        raise TypeError(
            f"{field}_serializer must have serialize(topic, value, headers) or be a function of the value, "
            f"not {_describe(serializer)}"
        )
    function: Callable[[object], Serialized | Awaitable[Serialized]] = serializer  # type: ignore[assignment]

    def failed(topic: str, error: Exception) -> SerializationError:
        reason = str(error) if isinstance(error, SerializationError) else f"{name} raised {error!r}"
        return SerializationError(f"the {field} of a record for topic {topic!r} cannot be serialized: {reason}")

    def checked(result: object) -> Serialized:
        if result is None or isinstance(result, bytes | bytearray | memoryview):
            return result
        raise SerializationError(f"{name} must make bytes or None, but made {_describe(result)}")

    async def finish(topic: str, pending: Awaitable[Serialized]) -> Serialized:
        try:
            return checked(await pending)
        except Exception as error:
            raise failed(topic, error) from error

    def resolved(topic: str, value: object, headers: list[HeaderPair]) -> Serialized | Awaitable[Serialized]:
        try:
            if serialize is not None:
                result = serialize(topic, value, headers)
            elif value is None:
                return None
            else:
                result = function(value)
            if type(result) is bytes:
                return result
            if inspect.isawaitable(result):
                return finish(topic, result)
            return checked(result)
        except Exception as error:
            refusal = failed(topic, error)
            note_raised(refusal)
            raise refusal from error

    return resolved
