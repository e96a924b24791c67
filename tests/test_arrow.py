"""Arrow columns as records: batches contain the values of the buffers."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import Producer
from aioproducer._client.arrow import can_be_read_in_place, is_binary, record_columns
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.columns.appending import COLUMN_RECORDS, append_rows
from aioproducer.wire.murmur2 import partition_for_key
from tests.core.accumulating import Bench, records_of

pytestmark = pytest.mark.skipif(not Producer.compiled, reason="the uncompiled build reads Arrow row by row")

PARTITIONS = 3
BYTES = st.none() | st.binary(max_size=40)
INDEX_TYPES = (
    pyarrow.int8(),
    pyarrow.uint8(),
    pyarrow.int16(),
    pyarrow.uint16(),
    pyarrow.int32(),
    pyarrow.uint32(),
    pyarrow.int64(),
    pyarrow.uint64(),
)


def plain(rows: list[bytes | None], kind: pyarrow.DataType) -> pyarrow.Array:
    texts = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
    return pyarrow.array([row.hex() if texts and row is not None else row for row in rows], kind)


def dictionary(rows: list[bytes | None], kind: pyarrow.DataType, data: st.DataObject) -> pyarrow.Array:
    """Indices in any order, with nulls among the indices and in the dictionary."""
    entries = [*rows, None]
    order = data.draw(st.permutations(range(len(entries))))
    null_entry = order.index(len(rows))
    numbers = [
        data.draw(st.sampled_from([None, null_entry])) if row is None else order.index(place)
        for place, row in enumerate(rows)
    ]
    index_type = data.draw(st.sampled_from(INDEX_TYPES))
    return pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(numbers, index_type), plain([entries[place] for place in order], kind)
    )


@st.composite
def columns(draw: st.DrawFn, count: int) -> pyarrow.Array | pyarrow.ChunkedArray:
    """An array of any kind that is read in place: sliced, chunked, as a dictionary."""
    data = draw(st.data())
    width = draw(st.integers(0, 9))
    kind = draw(
        st.sampled_from(
            [
                pyarrow.binary(),
                pyarrow.large_binary(),
                pyarrow.string(),
                pyarrow.large_string(),
                pyarrow.binary(width) if width else pyarrow.binary(),
            ]
        )
    )
    value = st.none() | st.binary(min_size=width, max_size=width) if pyarrow.types.is_fixed_size_binary(kind) else BYTES
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    rows = draw(st.lists(value, min_size=before + count + after, max_size=before + count + after))
    array = dictionary(rows, kind, data) if draw(st.booleans()) else plain(rows, kind)
    return sliced(draw, array, before, count)


def sliced(draw: st.DrawFn, array: pyarrow.Array, before: int, count: int) -> pyarrow.Array | pyarrow.ChunkedArray:
    array = array.slice(before, count)
    array.validate(full=True)
    cut = draw(st.integers(0, count))
    return pyarrow.chunked_array([array.slice(0, cut), array.slice(cut)]) if draw(st.booleans()) else array


@st.composite
def timestamp_columns(draw: st.DrawFn, count: int) -> pyarrow.Array | pyarrow.ChunkedArray:
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    number = st.none() | st.sampled_from([0, 1000, 1001, 2**40, 2**63 - 1]) | st.integers(0, 2**42)
    rows = draw(st.lists(number, min_size=before + count + after, max_size=before + count + after))
    return sliced(draw, pyarrow.array(rows, pyarrow.int64()), before, count)


@st.composite
def header_columns(draw: st.DrawFn, count: int) -> pyarrow.Array | pyarrow.ChunkedArray:
    """Lists of structs as Spark has them: either kind of list, its fields in any order and of any type that is read
    in place, and what is null not empty underneath."""
    before, after = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    total = before + count + after
    pair = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70))
    rows = draw(st.lists(st.none() | st.lists(pair, max_size=4), min_size=total, max_size=total))
    name = draw(st.sampled_from([pyarrow.string(), pyarrow.large_string()]))
    value = draw(st.sampled_from([pyarrow.binary(), pyarrow.large_binary()]))
    keys = pyarrow.array([key for row in rows for key, _ in row or ()], name)
    values = pyarrow.array([value for row in rows for _, value in row or ()], value)
    if draw(st.booleans()):
        keys = keys.dictionary_encode()
    fields = {"key": keys, "value": values}
    if draw(st.booleans()):
        fields = {"value": values, "key": keys}
    structs = pyarrow.StructArray.from_arrays(list(fields.values()), list(fields))
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row or ()))
    large = draw(st.booleans())
    kind = pyarrow.LargeListArray if large else pyarrow.ListArray
    offsets = pyarrow.array(ends, pyarrow.int64() if large else pyarrow.int32())
    nulls = pyarrow.array([row is None for row in rows], pyarrow.bool_())
    return sliced(draw, kind.from_arrays(offsets, structs, mask=nulls), before, count)


def python_headers(column: Any) -> list[list[tuple[str, bytes | None]]]:
    return [[(each["key"], each["value"]) for each in row or ()] for row in column.to_pylist()]


def python_rows(column: Any) -> list[bytes | None]:
    return [row.encode() if isinstance(row, str) else row for row in column.to_pylist()]


@given(data=st.data(), count=st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_a_row_equals_the_value_in_arrow(data: st.DataObject, count: int) -> None:
    first, second = data.draw(columns(count)), data.draw(columns(count))
    assert is_binary(first)
    timestamps, headers = data.draw(timestamp_columns(count)), data.draw(header_columns(count))
    assert can_be_read_in_place(first, second, timestamps, headers)
    pieces = list(record_columns(first, second, timestamps, headers))
    assert [row for piece in pieces for row in piece[0]] == python_rows(first)
    assert [row for piece in pieces for row in piece[1] or ()] == python_rows(second)
    assert [row for piece in pieces for row in piece[2] or ()] == timestamps.to_pylist()
    assert [row for piece in pieces for row in piece[3] or ()] == python_headers(headers)
    assert all(len({len(column or ()) for column in piece}) == 1 for piece in pieces)
    assert [piece[1:] for piece in record_columns(first)] == [(None, None, None)] * len(list(record_columns(first)))


@given(
    data=st.data(),
    count=st.integers(1, 60),
    batch_size=st.sampled_from([100, 1000, 1 << 14]),
    partition=st.none() | st.integers(0, PARTITIONS - 1),
    keyed=st.booleans(),
    timed=st.booleans(),
    headed=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_rows_go_to_the_partition_that_send_would_choose(
    data: st.DataObject, count: int, batch_size: int, partition: int | None, keyed: bool, timed: bool, headed: bool
) -> None:
    values = data.draw(columns(count))
    keys = data.draw(columns(count)) if keyed else None
    timestamps = data.draw(timestamp_columns(count)) if timed else None
    headers = data.draw(header_columns(count)) if headed else None
    bench = Bench(topics={"t": PARTITIONS}, batch_size=batch_size, linger=100.0)
    for piece in record_columns(values, keys, timestamps, headers):
        place = 0
        while place < len(piece[0]):
            after = _append(bench, partition, piece, place, 1000)
            place = after
            if place < len(piece[0]):
                value, key, timestamp, pairs = [None if column is None else column[place] for column in piece]
                bench.send(
                    value,
                    key=key,
                    partition=partition,
                    timestamp_ms=1000 if timestamp is None else timestamp,
                    headers=pairs or (),
                )
                place += 1
    stored: dict[int, list[Stored]] = {place: [] for place in range(PARTITIONS)}
    bench.accumulator.ready.end_lingering(bench.now)
    while batches := bench.drain():
        for batch in batches:
            stored[batch.topic_partition.partition] += [
                (record.key, record.value, record.timestamp, list(record.headers)) for record in records_of(batch)
            ]
            bench.ack(batch)
    sent: list[Stored] = list(
        zip(
            python_rows(keys) if keys is not None else [None] * count,
            python_rows(values),
            [1000 if number is None else number for number in timestamps.to_pylist()] if timed else [1000] * count,
            python_headers(headers) if headed else [[] for _ in range(count)],
            strict=True,
        )
    )
    assert sorted(map(repr, sent)) == sorted(repr(record) for records in stored.values() for record in records)
    for place, records in stored.items():
        if partition is not None:
            assert records == (sent if place == partition else [])
        elif keyed:
            by_key = [each for each in sent if each[0] is not None and partition_for_key(each[0], PARTITIONS) == place]
            assert [each for each in records if each[0] is not None] == by_key


Stored = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


def _append(bench: Bench, partition: int | None, piece: Any, place: int, timestamp_ms: int) -> int:
    """Return the row after those of a piece of columns that used the fast path."""
    values, keys, timestamps, headers = piece
    touched: list[ProducerBatch] = []
    after = append_rows(
        bench.accumulator, "t", partition, keys, values, place, timestamp_ms, bench.now, touched, timestamps, headers
    )
    assert after - place == sum(batch.record_count - batch.column_start for batch in touched)
    for batch in touched:
        batch.column_start = -1
    return after


HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


@pytest.mark.parametrize(
    ("timestamps", "headers"),
    [
        (pyarrow.array([1, 2, -1, 4]), None),
        (None, pyarrow.array([[("a", b"1")], None, [("b", None), (None, b"2")], []], HEADERS)),
    ],
    ids=["timestamp", "header"],
)
def test_appending_stops_before_a_row_that_cannot_be_sent(timestamps: Any, headers: Any) -> None:
    bench = Bench(topics={"t": 1})
    [piece] = record_columns(pyarrow.array([b"a", b"b", b"c", b"d"]), None, timestamps, headers)
    assert _append(bench, 0, piece, 0, 1000) == 2
    assert _append(bench, 0, piece, 2, 1000) == 2
    assert _append(bench, 0, piece, 3, 1000) == 4


@pytest.mark.parametrize(
    "headers",
    [
        pyarrow.array([[None, {"key": "a", "value": b"1"}]], HEADERS),
        pyarrow.array(
            [[("a", "1")]], pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.string())]))
        ),
        pyarrow.array(
            [[(1, b"1")]], pyarrow.list_(pyarrow.struct([("key", pyarrow.int32()), ("value", pyarrow.binary())]))
        ),
        pyarrow.array([["a"]]),
        pyarrow.array([[("a", b"1")]], pyarrow.map_(pyarrow.string(), pyarrow.binary())),
        pyarrow.array(["a"]),
        [[("a", b"1")]],
    ],
)
def test_other_headers_are_read_row_by_row(headers: Any) -> None:
    assert not can_be_read_in_place(pyarrow.array([b"v"]), None, None, headers)


@pytest.mark.parametrize("timestamps", [pyarrow.array([1.0]), pyarrow.array([1], pyarrow.int32()), [1]])
def test_other_timestamps_are_read_row_by_row(timestamps: Any) -> None:
    assert not can_be_read_in_place(pyarrow.array([b"v"]), None, timestamps, None)


def test_a_column_keeps_its_buffers_alive() -> None:
    array = pyarrow.array([bytes([number]) * 100 for number in range(100)])
    [(column, *_)] = record_columns(array)
    references = sys.getrefcount(array)
    del array
    churn = [pyarrow.array([Random(seed).randbytes(100)] * 100) for seed in range(50)]
    assert column[99] == b"c" * 100
    assert references
    assert churn


def test_a_column_of_many_rows_is_appended_in_pieces() -> None:
    """Appending a whole column in one call once blocked the loop all that time."""
    bench = Bench(topics={"t": 1}, memory=1 << 24, batch_size=1 << 20, max_request_size=1 << 20)
    bench.send(b"opens a batch")
    [(small, *_)] = record_columns(pyarrow.array([b"x"] * 10_000))
    assert append_rows(bench.accumulator, "t", 0, None, small, 0, 1000, bench.now, []) == COLUMN_RECORDS
    [(large, *_)] = record_columns(pyarrow.array([bytes(100_000)] * 100))
    assert append_rows(bench.accumulator, "t", 0, None, large, 0, 1000, bench.now, []) < 10


def test_rows_out_of_range_are_rejected() -> None:
    [columns] = record_columns(
        pyarrow.array([b"x"]), pyarrow.array([b"x"]), pyarrow.array([1]), pyarrow.array([[]], HEADERS)
    )
    for column in columns:
        assert column is not None
        for row in (-1, 1):
            with pytest.raises(IndexError):
                column[row]
