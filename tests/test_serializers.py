"""Serializers: the same bytes as in Java, rejected values, and calls of configured ones."""

from __future__ import annotations

import array
import inspect
import math
import struct
import uuid
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer import serializers
from aioproducer.errors import SerializationError
from aioproducer.record import HeaderPair
from aioproducer.serializers import (
    JAVA_CLASS_NAMES,
    BooleanSerializer,
    BytesSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntegerSerializer,
    JsonSerializer,
    LongSerializer,
    ResolvedSerializer,
    Serialized,
    Serializer,
    ShortSerializer,
    StringSerializer,
    UUIDSerializer,
    VoidSerializer,
)

READY_MADE = [
    BooleanSerializer,
    BytesSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntegerSerializer,
    JsonSerializer,
    LongSerializer,
    ShortSerializer,
    StringSerializer,
    UUIDSerializer,
    VoidSerializer,
]


@pytest.mark.parametrize(
    ("serializer", "value", "expected"),
    [
        (ShortSerializer(), -2, "fffe"),
        (IntegerSerializer(), 258, "00000102"),
        (IntegerSerializer(), -(2**31), "80000000"),
        (LongSerializer(), 2**63 - 1, "7fffffffffffffff"),
        (FloatSerializer(), 1.5, "3fc00000"),
        (FloatSerializer(), 1, "3f800000"),
        (DoubleSerializer(), -0.1, "bfb999999999999a"),
        (BooleanSerializer(), True, "01"),
        (BooleanSerializer(), False, "00"),
        (StringSerializer(), "grün", "6772c3bc6e"),
        (StringSerializer("utf-16-be"), "ü", "00fc"),
        (UUIDSerializer(), uuid.UUID(int=10), b"00000000-0000-0000-0000-00000000000a".hex()),
        (UUIDSerializer("utf-16-le"), uuid.UUID(int=0), str(uuid.UUID(int=0)).encode("utf-16-le").hex()),
        (JsonSerializer(), {"ü": [1, None]}, '{"ü":[1,null]}'.encode().hex()),
        (JsonSerializer(sort_keys=True), {"b": 1, "a": 2}, b'{"a":2,"b":1}'.hex()),
        (JsonSerializer(default=sorted), {2, 1}, b"[1,2]".hex()),
    ],
)
def test_serializers_write_the_same_bytes_as_java(serializer: Serializer, value: object, expected: str) -> None:
    result = serializer.serialize("clicks", value, [])
    assert isinstance(result, bytes)
    assert result.hex() == expected


@pytest.mark.parametrize("serializer", READY_MADE)
def test_none_stays_none(serializer: Callable[[], Serializer]) -> None:
    assert serializer().serialize("clicks", None, []) is None


@pytest.mark.parametrize(
    ("serializer", "value", "text"),
    [
        (BytesSerializer(), "text", r"BytesSerializer takes bytes, not str 'text': .* StringSerializer"),
        (BytesSerializer(), 5, "BytesSerializer takes bytes, bytearray, memoryview or None, not int 5"),
        (StringSerializer(), b"x", "StringSerializer takes str or None, not bytes b'x'"),
        (ShortSerializer(), 2**15, r"ShortSerializer takes an int from -2\*\*15 to .*, not int 32768"),
        (IntegerSerializer(), 2**31, r"IntegerSerializer takes an int from -2\*\*31 to .*, not int 2147483648"),
        (IntegerSerializer(), True, "IntegerSerializer takes .*, not bool True"),
        (IntegerSerializer(), 1.0, "IntegerSerializer takes .*, not float 1.0"),
        (LongSerializer(), "1", "LongSerializer takes .*, not str '1'"),
        (FloatSerializer(), 1e300, r"FloatSerializer takes a float within the range of 32 bits .*, not float 1e\+300"),
        (DoubleSerializer(), "1.0", "DoubleSerializer takes a float or None, not str '1.0'"),
        (BooleanSerializer(), 1, "BooleanSerializer takes bool or None, not int 1"),
        (UUIDSerializer(), "0" * 100, r"UUIDSerializer takes uuid.UUID or None, not str '0{56}\.\.\."),
        (VoidSerializer(), b"", "VoidSerializer takes only None, not bytes b''"),
        (JsonSerializer(), object(), "JsonSerializer cannot write object .* not JSON serializable"),
        (JsonSerializer(), float("nan"), "JsonSerializer cannot write float nan"),
    ],
)
def test_a_wrong_type_error_names_the_actual_and_the_expected_type(
    serializer: Serializer, value: object, text: str
) -> None:
    with pytest.raises(SerializationError, match=text):
        serializer.serialize("clicks", value, [])


def test_an_unknown_encoding_is_rejected_at_construction() -> None:
    with pytest.raises(LookupError, match="unknown encoding: utf-99"):
        StringSerializer("utf-99")
    with pytest.raises(LookupError, match="unknown encoding: utf-99"):
        UUIDSerializer("utf-99")


class TestBytes:
    @pytest.mark.parametrize("value", [b"abc", bytearray(b"abc")])
    def test_bytes_are_passed_without_a_copy(self, value: bytes | bytearray) -> None:
        assert BytesSerializer().serialize("clicks", value, []) is value

    def test_other_buffers_are_passed_as_bytes_without_a_copy(self) -> None:
        numbers = array.array("H", [1, 2])
        result = BytesSerializer().serialize("clicks", numbers, [])
        assert isinstance(result, memoryview)
        assert (len(result), bytes(result)) == (4, numbers.tobytes())
        numbers[0] = 7
        assert bytes(result) == numbers.tobytes()

    def test_a_strided_view_is_copied(self) -> None:
        result = BytesSerializer().serialize("clicks", memoryview(b"abcdef")[::2], [])
        assert result == b"ace"

    def test_an_empty_view_is_empty_bytes(self) -> None:
        assert BytesSerializer().serialize("clicks", memoryview(b"")[::2], []) == b""


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_round_trip(value: int) -> None:
    result = LongSerializer().serialize("clicks", value, [])
    assert isinstance(result, bytes)
    assert int.from_bytes(result, "big", signed=True) == value


@given(st.floats(width=32))
def test_floats_round_trip(value: float) -> None:
    result = FloatSerializer().serialize("clicks", value, [])
    assert isinstance(result, bytes)
    (back,) = struct.unpack(">f", result)
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_every_serializer_class_of_kafka_has_an_equivalent() -> None:
    prefix = "org.apache.kafka.common.serialization."
    assert JAVA_CLASS_NAMES[prefix + "StringSerializer"] is StringSerializer
    assert JAVA_CLASS_NAMES[prefix + "ByteArraySerializer"] is BytesSerializer
    for name, serializer in JAVA_CLASS_NAMES.items():
        assert name.startswith(prefix)
        assert getattr(serializers, serializer.__name__) is serializer
        assert ResolvedSerializer(serializer, "value")("clicks", None, []) is None


class Stamping:
    def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> Serialized:
        headers.append(("schema", topic.encode()))
        return bytearray(str(value), "ascii")


class Asynchronous:
    def __init__(self, result: object) -> None:
        self.result = result

    async def serialize(self, topic: str, value: object, headers: list[HeaderPair]) -> object:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class TestResolve:
    def test_a_serializer_object_gets_topic_and_headers_and_may_add_headers(self) -> None:
        headers: list[HeaderPair] = [("a", b"1")]
        assert ResolvedSerializer(Stamping(), "value")("clicks", 5, headers) == b"5"
        assert headers == [("a", b"1"), ("schema", b"clicks")]

    def test_a_class_is_instantiated(self) -> None:
        assert ResolvedSerializer(IntegerSerializer, "key")("clicks", 1, []) == b"\0\0\0\x01"

    def test_a_function_gets_only_the_value_and_is_not_called_for_none(self) -> None:
        serialize = ResolvedSerializer(str.encode, "value")
        assert serialize("clicks", "x", []) == b"x"
        assert serialize("clicks", None, []) is None

    def test_memoryview_is_accepted_as_a_serializer(self) -> None:
        assert ResolvedSerializer(memoryview, "value")("clicks", b"x", []) == b"x"

    def test_an_object_that_is_neither_serializer_nor_callable_is_rejected(self) -> None:
        with pytest.raises(TypeError, match=r"key_serializer must be .* serialize\(topic, .*, not str 'json'"):
            ResolvedSerializer("json", "key")

    @pytest.mark.parametrize("field", ["key", "value"])
    def test_an_error_names_field_and_topic(self, field: str) -> None:
        serialize = ResolvedSerializer(IntegerSerializer(), "key" if field == "key" else "value")
        text = f"the {field} of a record for topic 'clicks' cannot be serialized: IntegerSerializer takes an int"
        with pytest.raises(SerializationError, match=text):
            serialize("clicks", "x", [])

    def test_an_exception_of_a_function_is_the_cause(self) -> None:
        def fails(value: object) -> bytes:
            raise KeyError("schema 7")

        with pytest.raises(SerializationError, match=r"fails raised KeyError\('schema 7'\)") as raised:
            ResolvedSerializer(fails, "value")("clicks", 1, [])
        assert isinstance(raised.value.__cause__, KeyError)

    def test_a_result_that_is_not_bytes_raises(self) -> None:
        with pytest.raises(SerializationError, match=r"str must return bytes or None, not str '5'"):
            ResolvedSerializer(str, "value")("clicks", 5, [])

    async def test_an_awaitable_result_is_passed_through(self) -> None:
        pending = ResolvedSerializer(Asynchronous(b"later"), "value")("clicks", 1, [])
        assert inspect.isawaitable(pending)
        assert await pending == b"later"

    async def test_a_coroutine_function_of_the_value_is_accepted(self) -> None:
        async def encode(value: object) -> bytes:
            return str(value).encode()

        pending = ResolvedSerializer(encode, "value")("clicks", 1, [])
        assert isinstance(pending, Awaitable)
        assert await pending == b"1"

    @pytest.mark.parametrize(
        ("result", "text"),
        [
            (ValueError("no schema"), r"Asynchronous raised ValueError\('no schema'\)"),
            (SerializationError("no schema"), "cannot be serialized: no schema"),
            ("text", "Asynchronous must return bytes or None, not str 'text'"),
        ],
    )
    async def test_errors_of_an_awaitable_name_field_and_topic(self, result: object, text: str) -> None:
        pending = ResolvedSerializer(Asynchronous(result), "value")("clicks", 1, [])
        assert isinstance(pending, Awaitable)
        with pytest.raises(SerializationError, match=f"the value of a record for topic 'clicks' .*{text}"):
            await pending
