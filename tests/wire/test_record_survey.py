"""The survey of a batch's records in one pass."""

from __future__ import annotations

import pytest

from aioproducer.errors import ProtocolError
from aioproducer.producer import Producer
from aioproducer.wire.record import encode_record
from aioproducer.wire.record_survey import IS_COMPILED, RecordSurvey, as_int64, survey_records

NONE = 2**63 - 1


def records(*fields: tuple[int, int, bytes | None]) -> bytes:
    """Records of (offset delta, timestamp delta, key)."""
    return b"".join(encode_record(offset, timestamp, key, b"v", [("h", None)]) for offset, timestamp, key in fields)


@pytest.mark.parametrize(
    ("fields", "base_timestamp", "expected"),
    [
        ([], 5, RecordSurvey(NONE, -1, True, True)),
        ([(0, 0, b"k")], 5, RecordSurvey(5, 5, True, True)),
        ([(0, 0, b""), (1, 9, b"k"), (2, -3, b"k")], 5, RecordSurvey(2, 14, True, True)),
        ([(0, 0, b"k"), (1, 0, None)], 5, RecordSurvey(5, 5, True, False)),
        ([(0, 0, b"k"), (2, 0, b"k")], 5, RecordSurvey(5, 5, False, True)),
        ([(1, 0, b"k")], 5, RecordSurvey(5, 5, False, True)),
        ([(0, 0, b"k"), (1, 10, b"k")], -1, RecordSurvey(9, 9, True, True)),
        ([(0, 0, b"k"), (1, -1, b"k")], -1, RecordSurvey(-2, -1, True, True)),
        ([(0, 0, b"k"), (1, 1, b"k")], 2**63 - 1, RecordSurvey(-(2**63), 2**63 - 1, True, True)),
    ],
)
def test_a_survey_covers_all_records(
    fields: list[tuple[int, int, bytes | None]], base_timestamp: int, expected: RecordSurvey
) -> None:
    assert survey_records(memoryview(records(*fields)), len(fields), base_timestamp) == expected


@pytest.mark.parametrize(
    ("data", "count", "text"),
    [
        (b"", 1, "ends inside a variable-length integer"),
        (records((0, 0, b"k")), -1, "a record batch states -1 records"),
        (records((0, 0, b"k")), 2, "ends inside a variable-length integer"),
        (records((0, 0, b"k"), (1, 0, b"k")), 1, "but 12 bytes are left behind them"),
        (records((0, 0, b"k"))[:-1], 1, "a record states a length of 11 bytes, but only 10 are left"),
        (b"\x01" + bytes(20), 1, "a record states a length of -1 bytes"),
        (bytes(20), 1, "a field of a record states 0 bytes, but only -4 are left"),
        (b"\xff" * 20, 1, "more than 5 bytes"),
        # A key, a name and a value that are longer than the record, a null name, and more headers than bytes.
        (b"\x0c\0\0\0\x0a\x01\0", 1, "a field of a record states 5 bytes, but only 2 are left"),
        (b"\x10\0\0\0\x01\x01\x02\x06x", 1, "a field of a record states 3 bytes, but only 1 are left"),
        (b"\x10\0\0\0\x01\x01\x02\x01x", 1, "the key of a record's header is null"),
        (b"\x10\0\0\0\x01\x01\x06xx", 1, "a record states 3 headers, but only 2 bytes are left"),
    ],
)
def test_malformed_records_are_rejected(data: bytes, count: int, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        survey_records(data, count, 0)


def test_memory_must_be_contiguous() -> None:
    with pytest.raises(BufferError) if IS_COMPILED else pytest.raises(ProtocolError):
        survey_records(memoryview(bytes(40))[::2], 1, 0)


@pytest.mark.parametrize(
    ("value", "expected"), [(5, 5), (2**63, -(2**63)), (2**63 - 1, 2**63 - 1), (-(2**63) - 1, 2**63 - 1), (2**64, 0)]
)
def test_sums_wrap_around_as_in_java(value: int, expected: int) -> None:
    assert as_int64(value) == expected


def test_surveys_use_the_build_of_the_producer() -> None:
    assert IS_COMPILED is Producer.compiled
