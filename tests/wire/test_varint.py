"""Variable-length integers: known encodings, round trips, and malformed ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError
from aioproducer.wire import varint

INT32 = st.integers(varint.INT32_MIN, varint.INT32_MAX)
INT64 = st.integers(varint.INT64_MIN, varint.INT64_MAX)
UINT32 = st.integers(0, varint.UINT32_MAX)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (1048575, "feff7f"),
        (134217728, "8080808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_varint_is_encoded_as_kafka_does(value: int, encoded: str) -> None:
    assert varint.encode_varint(value).hex() == encoded
    assert varint.encode_varlong(value).hex() == encoded
    assert varint.decode_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@pytest.mark.parametrize(
    ("value", "encoded"), [(2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")]
)
def test_varlong_extremes(value: int, encoded: str) -> None:
    assert varint.encode_varlong(value).hex() == encoded
    assert varint.decode_varlong(bytes.fromhex(encoded), 0) == (value, 10)
    assert varint.size_of_varlong(value) == 10


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f"), (2**32 - 1, "ffffffff0f")]
)
def test_unsigned_varint_is_encoded_as_kafka_does(value: int, encoded: str) -> None:
    assert varint.encode_unsigned_varint(value).hex() == encoded
    assert varint.decode_unsigned_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


def test_the_table_holds_every_small_value() -> None:
    assert len(varint.SMALL_VARINTS) == varint.SMALL_VARINT_COUNT
    for value, encoded in enumerate(varint.SMALL_VARINTS):
        assert varint.decode_varint(encoded, 0) == (value, len(encoded))
        assert varint.size_of_varint(value) == len(encoded)


@given(INT32)
def test_varint_round_trip(value: int) -> None:
    encoded = varint.encode_varint(value)
    assert len(encoded) == varint.size_of_varint(value)
    assert varint.decode_varint(b"\xff" + encoded + b"\xff", 1) == (value, 1 + len(encoded))


@given(INT64)
def test_varlong_round_trip(value: int) -> None:
    encoded = varint.encode_varlong(value)
    assert len(encoded) == varint.size_of_varlong(value)
    assert varint.decode_varlong(memoryview(encoded), 0) == (value, len(encoded))


@given(UINT32)
def test_unsigned_varint_round_trip(value: int) -> None:
    encoded = varint.encode_unsigned_varint(value)
    assert len(encoded) == varint.size_of_unsigned_varint(value)
    assert varint.decode_unsigned_varint(bytearray(encoded), 0) == (value, len(encoded))


@pytest.mark.parametrize("decode", [varint.decode_varint, varint.decode_varlong, varint.decode_unsigned_varint])
def test_an_unterminated_integer_is_rejected(decode: Callable[[bytes, int], tuple[int, int]]) -> None:
    with pytest.raises(ProtocolError, match="ends inside"):
        decode(b"", 0)
    with pytest.raises(ProtocolError, match="ends inside"):
        decode(b"\x80\x80", 0)
    with pytest.raises(ProtocolError, match="more than"):
        decode(b"\x80" * 11, 0)
    with pytest.raises(ProtocolError, match="cannot start at"):
        decode(b"\x00", -1)


def test_a_varlong_is_not_accepted_as_varint() -> None:
    with pytest.raises(ProtocolError, match="more than 5 bytes"):
        varint.decode_varint(varint.encode_varlong(2**40), 0)


@pytest.mark.parametrize(
    ("encode", "value"),
    [
        (varint.encode_varint, 2**31),
        (varint.encode_varint, -(2**31) - 1),
        (varint.encode_varlong, 2**63),
        (varint.encode_varlong, -(2**63) - 1),
        (varint.encode_unsigned_varint, 2**32),
        (varint.encode_unsigned_varint, -1),
    ],
)
def test_a_value_too_large_for_its_field_is_rejected(encode: Callable[[int], bytes], value: int) -> None:
    with pytest.raises(OverflowError, match=str(value)):
        encode(value)


@given(st.binary(max_size=12), st.integers(0, 12))
def test_any_bytes_decode_or_raise_protocol_error(data: bytes, position: int) -> None:
    for decode in (varint.decode_varint, varint.decode_varlong, varint.decode_unsigned_varint):
        try:
            _, end = decode(data, position)
        except ProtocolError:
            continue
        assert position < end <= len(data)
