"""Arrow's columns as records: what lies in the buffers is what goes into the batches."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import Producer
from aioproducer.arrow import binary_columns, is_binary
from aioproducer.core.batch import ProducerBatch
from aioproducer.core.columns import COLUMN_RECORDS, append_rows
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
    """Numbers in any order; nulls among the numbers and in the dictionary."""
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
    """An array of any kind that is read where it lies: sliced, chunked, as a dictionary."""
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
    array = array.slice(before, count)
    cut = draw(st.integers(0, count))
    return pyarrow.chunked_array([array.slice(0, cut), array.slice(cut)]) if draw(st.booleans()) else array


def python_rows(column: Any) -> list[bytes | None]:
    return [row.encode() if isinstance(row, str) else row for row in column.to_pylist()]


@given(data=st.data(), count=st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_a_row_is_what_arrow_says_it_is(data: st.DataObject, count: int) -> None:
    first, second = data.draw(columns(count)), data.draw(columns(count))
    assert is_binary(first)
    pieces = list(binary_columns(first, None, second))
    assert [row for piece in pieces for row in piece[0] or ()] == python_rows(first)
    assert [row for piece in pieces for row in piece[2] or ()] == python_rows(second)
    assert all(piece[1] is None and len(piece[0] or ()) == len(piece[2] or ()) for piece in pieces)


@given(
    data=st.data(),
    count=st.integers(1, 60),
    batch_size=st.sampled_from([100, 1000, 1 << 14]),
    partition=st.none() | st.integers(0, PARTITIONS - 1),
    keyed=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_rows_go_where_send_would_put_them(
    data: st.DataObject, count: int, batch_size: int, partition: int | None, keyed: bool
) -> None:
    values = data.draw(columns(count))
    keys = data.draw(columns(count)) if keyed else None
    bench = Bench(topics={"t": PARTITIONS}, batch_size=batch_size, linger=100.0)
    accumulator = bench.accumulator
    for value_column, key_column in binary_columns(values, keys):
        assert value_column is not None
        place = 0
        while place < len(value_column):
            touched: list[ProducerBatch] = []
            after = append_rows(accumulator, "t", partition, key_column, value_column, place, 1000, bench.now, touched)
            assert after - place == sum(batch.record_count - batch.column_start for batch in touched)
            for batch in touched:
                batch.column_start = -1
            place = after
            if place < len(value_column):
                key = None if key_column is None else key_column[place]
                bench.send(value_column[place], key=key, partition=partition)
                place += 1
    stored: dict[int, list[tuple[bytes | None, bytes | None]]] = {place: [] for place in range(PARTITIONS)}
    bench.accumulator.ready.hurry(bench.now)
    while batches := bench.drain():
        for batch in batches:
            stored[batch.topic_partition.partition] += [(record.key, record.value) for record in records_of(batch)]
            bench.ack(batch)
    sent = list(zip(python_rows(keys) if keys is not None else [None] * count, python_rows(values), strict=True))
    assert sorted(map(repr, sent)) == sorted(repr(record) for records in stored.values() for record in records)
    for place, records in stored.items():
        if partition is not None:
            assert records == (sent if place == partition else [])
        elif keyed:
            by_key = [each for each in sent if each[0] is not None and partition_for_key(each[0], PARTITIONS) == place]
            assert [each for each in records if each[0] is not None] == by_key


def test_a_column_keeps_its_buffers_alive() -> None:
    array = pyarrow.array([bytes([number]) * 100 for number in range(100)])
    [(column,)] = binary_columns(array)
    assert column is not None
    references = sys.getrefcount(array)
    del array
    churn = [pyarrow.array([Random(seed).randbytes(100)] * 100) for seed in range(50)]
    assert column[99] == b"c" * 100
    assert references
    assert churn


def test_a_column_of_many_rows_is_taken_in_pieces() -> None:
    """One call that took a whole column held the loop for as long as that lasted."""
    bench = Bench(topics={"t": 1}, memory=1 << 24, batch_size=1 << 20, max_request_size=1 << 20)
    bench.send(b"opens a batch")
    [(small,)] = binary_columns(pyarrow.array([b"x"] * 10_000))
    assert append_rows(bench.accumulator, "t", 0, None, small, 0, 1000, bench.now, []) == COLUMN_RECORDS
    [(large,)] = binary_columns(pyarrow.array([bytes(100_000)] * 100))
    assert append_rows(bench.accumulator, "t", 0, None, large, 0, 1000, bench.now, []) < 10


def test_rows_that_do_not_exist_are_refused() -> None:
    [(column,)] = binary_columns(pyarrow.array([b"x"]))
    assert column is not None
    for row in (-1, 1):
        with pytest.raises(IndexError):
            column[row]
