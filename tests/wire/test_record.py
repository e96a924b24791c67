"""One record: its encoding, the upper bound of its size, and malformed ones."""

from __future__ import annotations

import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.compression import CODECS, Codec
from aioproducer.errors import ProtocolError
from aioproducer.wire.record import (
    DecodedRecord,
    SimpleRecord,
    decode_record,
    encode_record,
    record_size_upper_bound,
)
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, encode_batch, estimate_size_in_bytes_upper_bound
from aioproducer.wire.varint import INT64_MAX, INT64_MIN, encode_varint

NULLABLE = st.none() | st.binary(max_size=100)
HEADERS = st.lists(st.tuples(st.text(max_size=8), NULLABLE), max_size=4)
DELTAS = st.integers(INT64_MIN, INT64_MAX) | st.integers(-5, 5)


@pytest.mark.parametrize(
    ("record", "encoded"),
    [
        (encode_record(0, 0, b"k", b"v0", [("h", b"\x01\x02")]), "1c000000026b047630020268040102"),
        (encode_record(1, 5, None, b"v1"), "10000a020104763100"),
        (encode_record(2, 3, b"k2", None), "10000604046b320100"),
        (encode_record(0, 0, None, None), "0c00000001" + "0100"),
        (encode_record(0, -1, b"", b""), "0c00010000" + "0000"),
    ],
)
def test_a_record_is_encoded_as_specified(record: bytes, encoded: str) -> None:
    assert record.hex() == encoded


@given(st.integers(0, 2**31 - 1) | st.integers(0, 5), DELTAS, NULLABLE, NULLABLE, HEADERS)
def test_records_round_trip(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> None:
    encoded = encode_record(offset_delta, timestamp_delta, key, value, headers)
    assert decode_record(b"\x00" + encoded + b"\x00", 1) == DecodedRecord(
        offset_delta, timestamp_delta, key, value, tuple(headers), 1 + len(encoded)
    )


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 100_000])
@pytest.mark.parametrize("key_size", [None, 0, 8191, 8192])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_sizes_around_those_of_the_length_fields(
    size: int, key_size: int | None, wrap: type[bytes | bytearray | memoryview]
) -> None:
    key = None if key_size is None else bytes(key_size)
    wrapped = None if key is None else wrap(key)
    encoded = encode_record(size, size, wrapped, wrap(bytes(size)))
    assert decode_record(encoded, 0) == DecodedRecord(size, size, key, bytes(size), (), len(encoded))


def test_a_view_with_wider_elements_is_encoded_by_its_bytes() -> None:
    numbers = array.array("d", [1.0, 2.0, 3.0])
    encoded = encode_record(0, 0, memoryview(numbers), memoryview(numbers), [("h", memoryview(numbers))])
    decoded = decode_record(encoded, 0)
    assert decoded.key == decoded.value == decoded.headers[0][1] == numbers.tobytes()
    assert record_size_upper_bound(24, 24, [("h", memoryview(numbers))]) >= len(encoded)


def test_a_value_that_is_not_a_buffer_is_rejected() -> None:
    with pytest.raises(TypeError):
        encode_record(0, 0, None, "text")  # type: ignore[arg-type]  # what a caller may do wrong
    with pytest.raises(TypeError):
        encode_record(0, 0, None, memoryview(b"abcd")[::2])
    with pytest.raises(TypeError):
        encode_record(0, 0, None, None, [(b"key", b"")])  # type: ignore[list-item]  # what a caller may do wrong
    with pytest.raises(OverflowError):
        encode_record(0, 2**63, None, b"")
    with pytest.raises(OverflowError):
        encode_record(2**31, 0, None, b"")


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@settings(max_examples=60)
@given(DELTAS, NULLABLE, st.none() | st.binary(max_size=2000), HEADERS)
def test_the_upper_bound_is_never_exceeded(
    codec: Codec, timestamp: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    sizes = (-1 if key is None else len(key), -1 if value is None else len(value))
    assert len(encode_record(2**31 - 1, timestamp, key, value, headers)) <= record_size_upper_bound(*sizes, headers)
    batch = b"".join(encode_batch([SimpleRecord(timestamp, key, value, headers)], compression_type=codec.name))
    assert len(batch) <= estimate_size_in_bytes_upper_bound(*sizes, headers, codec.name)


def test_without_compression_the_upper_bound_equals_that_of_java() -> None:
    assert estimate_size_in_bytes_upper_bound(3, 100) == BATCH_HEADER_SIZE + 21 + (1 + 3) + (2 + 100) + 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"", "ends inside a variable-length integer"),
        (encode_varint(-1) + bytes(20), "states a length of -1 bytes, but only 20 are left"),
        (encode_varint(21) + bytes(20), "states a length of 21 bytes, but only 20 are left"),
        (encode_varint(2**31 - 1) + bytes(20), "states a length of 2147483647 bytes, but only 20 are left"),
        (encode_varint(7) + b"\0\0\0\x01\x01\0\0", "ends 1 bytes away from its stated end"),
        (encode_varint(6) + b"\0\0\0\x02\x01\0", "ends inside"),
        (encode_varint(6) + b"\0\0\0" + encode_varint(30) + b"\x01\0", "field of a record states 30 bytes, but only 2"),
        (encode_varint(6) + b"\0\0\0\x01\x01" + encode_varint(5), "states 5 headers, but only 0 bytes"),
        (encode_varint(8) + b"\0\0\0\x01\x01\x01\0\0", "states -1 headers, but only 2 bytes"),
        (encode_varint(8) + b"\0\0\0\x01\x01\x02\x01\x01", "the key of a record's header is null"),
    ],
)
def test_malformed_records_are_rejected(record: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode_record(record, 0)


def test_malformed_utf_8_in_a_header_key_is_replaced_as_in_java() -> None:
    encoded = encode_record(0, 0, None, None, [("h?", b"")]).replace(b"h?", b"h\xff")
    assert decode_record(encoded, 0).headers == (("h\N{REPLACEMENT CHARACTER}", b""),)


def test_every_negative_length_is_null_as_in_java() -> None:
    record = encode_varint(6) + b"\0\0\0" + encode_varint(-7) + encode_varint(-2) + b"\0"
    assert decode_record(record, 0)[2:4] == (None, None)
