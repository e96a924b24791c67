"""Decoding of records: the short way returns what the long way does, and leaves everything else to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.fetching.records import BatchReader, decode_small_record
from aioproducer.errors import ProtocolError
from aioproducer.wire.record import decode_record, encode_record
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, LOG_APPEND_TIME, RecordBatch, SimpleRecord, encode_batch

SIZES = st.sampled_from([0, 1, 30, 31, 32, 62, 63, 64, 65, 127, 128, 4000, 8150, 8191, 8192, 20_000])
NUMBERS = st.one_of(st.integers(-70, 70), st.integers(-9000, 9000), st.integers(-(2**31), 2**31 - 1))


def optional_bytes():
    return st.one_of(st.none(), SIZES.map(lambda size: b"x" * size), st.binary(max_size=3))


def long_way(data, place):
    try:
        return decode_record(data, place)
    except ProtocolError:
        return None


@given(NUMBERS, NUMBERS, optional_bytes(), optional_bytes(), st.booleans(), st.binary(max_size=3))
def test_the_short_way_returns_what_the_long_way_does(offset_delta, timestamp_delta, key, value, has_headers, before):
    headers = [("h", b"1")] if has_headers else []
    data = before + encode_record(offset_delta, timestamp_delta, key, value, headers) + b"tail"
    expected = decode_record(data, len(before))
    found = decode_small_record(data, len(before))
    if found is not None:
        assert (*found[:4], (), found[4]) == tuple(expected)
    small = [number for number in (offset_delta, timestamp_delta) if -8192 <= number < 8192]
    total = sum(len(part) for part in (key, value) if part is not None)
    if len(small) == 2 and offset_delta >= 0 and not has_headers and total < 8000:
        assert found is not None


@given(st.binary(max_size=40), st.integers(0, 5))
def test_malformed_records_are_left_to_the_long_way(data, place):
    found = decode_small_record(data, place)
    if found is not None:
        assert (*found[:4], (), found[4]) == tuple(long_way(data, place) or ())


@given(st.data())
def test_a_truncated_or_changed_record_is_never_read_differently(data):
    encoded = bytearray(encode_record(3, 5, b"key", b"value" * data.draw(st.integers(0, 40))))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    found = decode_small_record(cut, 0)
    if found is not None:
        assert (*found[:4], (), found[4]) == tuple(long_way(cut, 0) or ())


def reader(records, first=0, **options):
    batch = RecordBatch(b"".join(encode_batch(records, base_offset=10, partition_leader_epoch=4, **options)))
    return BatchReader(batch, bytes(batch.buffer[BATCH_HEADER_SIZE:]), first)


def test_records_are_read_some_at_a_time_from_an_offset_on():
    read = reader([SimpleRecord(100 + number, None, b"%d" % number) for number in range(5)], first=12)
    assert [record.value for record in read.read("t", 7, 2, 10**6)] == [b"2", b"3"]
    assert not read.is_at_end
    assert read.read("t", 7, 2, 10**6) == [("t", 7, 14, 104, None, b"4", (), 4)]
    assert read.is_at_end
    assert read.read("t", 7, 2, 10**6) == []


def test_the_time_of_the_append_is_that_of_every_record():
    read = reader([SimpleRecord(1), SimpleRecord(2)], timestamp_type=LOG_APPEND_TIME, max_timestamp=99)
    assert [record.timestamp_ms for record in read.read("t", 0, 9, 10**6)] == [99, 99]


def test_bytes_behind_the_last_record_are_an_error():
    batch = RecordBatch(b"".join(encode_batch([SimpleRecord(1, None, b"v")])))
    read = BatchReader(batch, bytes(batch.buffer[BATCH_HEADER_SIZE:]) + b"x", 0)
    with pytest.raises(ProtocolError, match="before the end of its body"):
        read.read("t", 0, 9, 10**6)
