"""Columns of fetched records: both builds give the same rows and errors for any bytes, and those of decoded records."""

from __future__ import annotations

from itertools import pairwise
from struct import unpack
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError
from aioproducer.record import TopicPartition
from aioproducer.wire.record import encode_record
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, encode_header
from tests.fuzz import shapes
from tests.fuzz.sources import uncompiled_together

NAME = TopicPartition("t", 7)
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
RECORDS = "aioproducer.core.fetching.records"
COLUMNS = "aioproducer.core.fetching.columns"
BATCHES = "aioproducer.wire.record_batch"
MODULES = (RECORDS, COLUMNS, BATCHES)


def module(name: str, *, is_source: bool) -> Any:
    from importlib import import_module

    if not is_source:
        return import_module(name)
    return dict(zip(MODULES, uncompiled_together(*MODULES), strict=True))[name]


def reader(body: bytes, count: int, first: int, stop: int | None, base: tuple[int, int], *, is_source: bool) -> Any:
    header = encode_header(
        [body],
        record_count=count,
        base_offset=base[0],
        base_timestamp=base[1],
        max_timestamp=0,
        last_offset_delta=max(count - 1, 0),
        partition_leader_epoch=5,
    )
    batch = module(BATCHES, is_source=is_source).RecordBatch(header + body)
    view = batch.buffer[BATCH_HEADER_SIZE:]
    return module(RECORDS, is_source=is_source).BatchReader(batch, view, first, stop)


def binary(column: Any) -> list[bytes | None]:
    ends = unpack(f"={column.count + 1}i", bytes(column.ends[: 4 * (column.count + 1)]))
    assert ends[0] == 0
    assert ends[-1] == column.used <= len(column.data)
    rows = [
        bytes(column.data[begin:end]) if column.validity[row >> 3] >> (row & 7) & 1 else None
        for row, (begin, end) in enumerate(pairwise(ends))
    ]
    assert rows.count(None) == column.nulls
    return rows


def rows_of(columns: Any) -> list[Row]:
    count = columns.count
    headers = dict(columns.headers)
    assert sum(rows for _, _, rows in columns.runs) == columns.keys.count == columns.values.count == count
    return [
        (*row, tuple(headers.get(index, ())))
        for index, row in enumerate(
            zip(
                unpack(f"={count}q", bytes(columns.offsets[: 8 * count])),
                unpack(f"={count}q", bytes(columns.timestamps[: 8 * count])),
                binary(columns.keys),
                binary(columns.values),
                strict=True,
            )
        )
    ]


def read_all(read: Any, limits: list[tuple[int, int]], *, is_source: bool) -> tuple[list[Row], str]:
    """The rows of calls with these limits in turn, and the error that ends them."""
    columns = module(COLUMNS, is_source=is_source).RecordColumns()
    calls = 0
    while not read.is_at_end:
        limit, most_bytes = limits[calls % len(limits)]
        calls += 1
        place = read.place
        try:
            found = columns.read(NAME, read, limit, most_bytes)
        except Exception as error:
            return rows_of(columns), f"{type(error).__name__}: {error}"
        assert found <= limit
        assert read.is_at_end or read.place > place or found == 0
    return rows_of(columns), ""


def records_of(read: Any, limits: list[tuple[int, int]]) -> tuple[list[Row], str]:
    """The records of calls with these limits in turn, as rows, and the error that ends them."""
    rows: list[Row] = []
    calls = 0
    while not read.is_at_end:
        limit, most_bytes = limits[calls % len(limits)]
        calls += 1
        try:
            found = read.read("t", 7, limit, most_bytes)
        except Exception as error:
            return rows, f"{type(error).__name__}: {error}"
        assert len(found) <= limit
        for topic, partition, *row, epoch in found:
            assert (topic, partition, epoch) == ("t", 7, 5)
            rows.append((row[0], row[1], row[2], row[3], row[4]))
    return rows, ""


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300) | st.integers(-(2**31), 2**31 - 1),
            st.integers(-300, 2**28) | st.integers(-(2**63), 2**63 - 1),
            shapes.nullable,
            shapes.nullable,
            st.just(()) | shapes.headers,
        ),
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(0, 120), st.binary(max_size=4), st.integers(0, 4)), max_size=3),
    st.integers(-1, 8) | st.just(None) | st.just(2**31 - 1),
    st.integers(-5, 200),
    st.none() | st.integers(0, 400),
    st.tuples(st.sampled_from([0, 100, 2**62, 2**63 - 1]), st.sampled_from([0, 1_700_000_000_000, 2**62, -(2**63)])),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 300)), min_size=1, max_size=3),
    st.binary(max_size=2),
)
def test_both_builds_decode_rows_and_records_alike(
    sent: list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    changes: list[tuple[int, bytes, int]],
    stated: int | None,
    first: int,
    stop: int | None,
    base: tuple[int, int],
    limits: list[tuple[int, int]],
    tail: bytes,
) -> None:
    data = bytearray().join(encode_record(*each) for each in sent) + tail
    for place, inserted, removed in changes:
        data[place : place + removed] = inserted
    count = len(sent) if stated is None else stated
    arguments = (bytes(data), count, first, stop, base)
    if count < 0:
        # Validation rejects the batch.
        return
    outcome = read_all(reader(*arguments, is_source=False), limits, is_source=False)
    assert read_all(reader(*arguments, is_source=True), limits, is_source=True) == outcome
    assert not outcome[1] or outcome[1].startswith(ProtocolError.__name__)
    for is_source in (False, True):
        assert records_of(reader(*arguments, is_source=is_source), limits) == outcome


@given(st.binary(max_size=80), st.integers(1, 2**31 - 1))
def test_any_bytes_are_rows_or_an_error(data: bytes, count: int) -> None:
    arguments = (data, count, 0, None, (0, 0))
    outcome = read_all(reader(*arguments, is_source=False), [(10_000, 2**21)], is_source=False)
    assert read_all(reader(*arguments, is_source=True), [(10_000, 2**21)], is_source=True) == outcome
