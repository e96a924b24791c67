"""Decoding of records: limits and errors. ``tests/fuzz`` compares both builds, and records with rows."""

from __future__ import annotations

import pytest

from aioproducer.core.fetching.records import BatchReader
from aioproducer.errors import ProtocolError
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, LOG_APPEND_TIME, RecordBatch, SimpleRecord, encode_batch


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
    for _ in range(2):
        with pytest.raises(ProtocolError, match="before the end of its body"):
            read.read("t", 0, 9, 10**6)


def test_records_before_a_malformed_one_come_first():
    batch = RecordBatch(b"".join(encode_batch([SimpleRecord(1, None, b"a"), SimpleRecord(1, None, b"b")])))
    torn = bytearray(batch.buffer[BATCH_HEADER_SIZE:])
    # The size of the second value.
    torn[-3] = 99
    read = BatchReader(batch, bytes(torn), 0)
    assert [record.value for record in read.read("t", 0, 9, 10**6)] == [b"a"]
    for _ in range(2):
        with pytest.raises(ProtocolError):
            read.read("t", 0, 9, 10**6)
