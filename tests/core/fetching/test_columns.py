"""Columns of records: rows, runs and errors. ``tests/fuzz`` compares them with decoded records."""

from __future__ import annotations

import pytest

from aioproducer.core.fetching.buffer import decompressed
from aioproducer.core.fetching.columns import BinaryRows, RecordColumns
from aioproducer.core.fetching.partition import FetchPosition
from aioproducer.core.fetching.records import BatchReader
from aioproducer.errors import ProtocolError
from aioproducer.record import TopicPartition
from aioproducer.wire.record_batch import LOG_APPEND_TIME, RecordBatch, SimpleRecord, encode_batch
from tests.core.fetching_world import FetchingWorld, batch
from tests.fuzz.test_columns import rows_of

NAME = TopicPartition("t", 0)
ALL = (1000, 2**20)


def reader(records, first=0, stop=None, **options):
    found = RecordBatch(b"".join(encode_batch(records, base_offset=10, partition_leader_epoch=4, **options)))
    return BatchReader(found, decompressed(found), first, stop)


def read(records, *limits, **options):
    columns, source = RecordColumns(), reader(records, **options)
    for limit in limits or [ALL]:
        columns.read(NAME, source, *limit)
    return columns


RECORDS = [
    SimpleRecord(100, None, b"value"),
    SimpleRecord(101, b"key", None),
    SimpleRecord(99, b"", b""),
    SimpleRecord(103, b"k", b"v" * 5000, [("h", b"1"), ("n", None)]),
]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_each_row_is_a_record(codec):
    columns = read(RECORDS, compression_type=codec)
    assert rows_of(columns) == [
        (10, 100, None, b"value", ()),
        (11, 101, b"key", None, ()),
        (12, 99, b"", b"", ()),
        (13, 103, b"k", b"v" * 5000, (("h", b"1"), ("n", None))),
    ]
    assert columns.runs == [(NAME, 4, 4)]
    assert (columns.size, columns.last_offset) == (5009, 13)


def test_reading_ends_at_each_limit():
    assert [len(rows_of(read(RECORDS, *limits))) for limits in ([(2, 2**20)], [(9, 1)], [(1, 99), (2, 99)])] == [
        2,
        1,
        3,
    ]
    assert [row[0] for row in rows_of(read(RECORDS, first=11, stop=13))] == [11, 12]


def test_the_time_of_the_append_is_that_of_every_row():
    columns = read(RECORDS, timestamp_type=LOG_APPEND_TIME, max_timestamp=77)
    assert [row[1] for row in rows_of(columns)] == [77] * 4


def test_rows_before_a_malformed_record_come_first():
    source = reader([SimpleRecord(1, None, b"a"), SimpleRecord(1, None, b"b")])
    torn = bytearray(source.body)
    # The size of the second value.
    torn[-3] = 99
    source = BatchReader(RecordBatch(bytes(batch(0, 2))), bytes(torn), 0)
    columns = RecordColumns()
    assert columns.read(NAME, source, *ALL) == 1
    for _ in range(2):
        with pytest.raises(ProtocolError):
            columns.read(NAME, source, *ALL)
    assert [row[3] for row in rows_of(columns)] == [b"a"]


def test_bytes_behind_the_last_record_are_an_error():
    found = RecordBatch(batch(0, 2))
    source = BatchReader(found, bytes(decompressed(found)) + b"x", 0)
    columns = RecordColumns()
    assert columns.read(NAME, source, *ALL) == 1
    with pytest.raises(ProtocolError, match="before the end of its body"):
        columns.read(NAME, source, *ALL)


def test_a_stated_count_takes_no_memory():
    found = bytearray(batch(0, 2))
    found[57:61] = (2**31 - 1).to_bytes(4, "big")
    found = RecordBatch(found)
    columns = RecordColumns()
    assert columns.read(NAME, BatchReader(found, decompressed(found), 0), 2**31, 2**40) == 2
    assert len(columns.offsets) < 1000


def test_a_column_of_two_gibibytes_is_an_error():
    with pytest.raises(OverflowError, match="at most 2147483647 bytes"):
        BinaryRows().reserve(1, 2**31)


def test_rows_move_the_position_and_count_as_processed_with_the_next():
    world = FetchingWorld().start()
    world.fetch((0, batch(0)))
    records = world.fetcher.records
    columns = RecordColumns()
    assert records.decode_columns(columns, 3, 2**20)
    partition = world.partition()
    assert [row[0] for row in rows_of(columns)] == [0, 1, 2]
    assert (partition.position, partition.processed.offset) == (FetchPosition(3, 0), 0)
    records.mark_processed()
    assert partition.processed.offset == 3
    assert records.decode_columns(columns, 6, 2**20)
    assert (partition.position, partition.processed.offset) == (FetchPosition(5, 0), 3)
    records.mark_processed()
    assert partition.processed.offset == 5
    assert (world.fetcher.buffer.used, world.fetcher.buffer.decoded) == (0, 0)
