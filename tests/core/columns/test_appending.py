"""Columns of records: appended like single records, and a bounded number at a time."""

from __future__ import annotations

import pytest

from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.columns.appending import COLUMN_BATCH_BYTES, COLUMN_BYTES, append_rows
from aioproducer.wire.record import encode_record
from tests.core.accumulating import Bench, records_of


def test_a_column_continues_in_the_next_batch() -> None:
    """Each batch was once opened by a separate send, which cost more than all its other records."""
    bench = Bench(topics={"t": 2}, batch_size=1000, linger=100.0)
    values = [b"%3d" % number for number in range(400)]
    touched: list[ProducerBatch] = []
    taken = append_rows(bench.accumulator, "t", None, None, values, 0, 1000, bench.now, touched)
    assert taken == len(values)
    assert len(touched) > 4
    assert sum(batch.record_count for batch in touched) == taken
    assert [batch.column_start for batch in touched] == [0] * len(touched)
    bench.accumulator.ready.end_lingering(bench.now)
    stored = []
    while batches := bench.drain():
        for batch in batches:
            stored += [record.value for record in records_of(batch)]
            bench.ack(batch)
    assert sorted(stored) == values


@pytest.mark.parametrize("delta", [0, 63, 64, 8191, 8192, -1])
def test_a_column_is_encoded_like_its_records_one_by_one(delta: int) -> None:
    """Sizes at which a length field before the record's value takes one more byte."""
    bench = Bench(topics={"t": 1}, memory=1 << 24, batch_size=1 << 21, max_request_size=1 << 22, linger=100.0)
    sizes = [*range(140), *range(8160, 8200), *[n % 3 for n in range(8200)], *range(50, 70)]
    values = [bytes([size % 251]) * size for size in sizes]
    first = append_rows(bench.accumulator, "t", 0, None, values[:1], 0, 10_000, bench.now, [])
    while first < len(values):
        first = append_rows(bench.accumulator, "t", 0, None, values, first, 10_000 + delta, bench.now, [])
    batch = bench.queue().open_batch
    assert batch.record_count == len(values)
    expected = [encode_record(place, delta if place else 0, None, value) for place, value in enumerate(values)]
    assert batch.max_record_size == max(map(len, expected))
    batch.close()
    assert b"".join(bytes(part) for part in batch.body) == b"".join(expected)


def test_a_column_with_one_record_per_batch_is_appended_in_pieces() -> None:
    bench = Bench(topics={"t": 1}, batch_size=0, memory=1 << 24)
    taken = append_rows(bench.accumulator, "t", 0, None, [b"x"] * 10_000, 0, 1000, bench.now, [])
    assert 0 < taken <= COLUMN_BYTES // COLUMN_BATCH_BYTES


@pytest.mark.parametrize("value", [bytearray(b"x"), bytes(2000)])
def test_a_column_stops_before_a_record_that_send_must_validate(value: object) -> None:
    bench = Bench(topics={"t": 1}, max_request_size=1500)
    assert append_rows(bench.accumulator, "t", 0, None, [b"x", value], 0, 1000, bench.now, []) == 1 + (
        type(value) is bytearray
    )
    bench = Bench(topics={"t": 1}, max_request_size=1500)
    assert append_rows(bench.accumulator, "t", 0, None, [value], 0, 1000, bench.now, []) == 0


def test_a_column_waits_behind_records_blocked_on_memory() -> None:
    bench = Bench(topics={"t": 1}, memory=4096, batch_size=1000, max_request_size=4096)
    column = [b"x" * 500] * 20
    taken = append_rows(bench.accumulator, "t", 0, None, column, 0, 1000, bench.now, [])
    assert 0 < taken < len(column)
    bench.send(b"x" * 500, partition=0)
    assert bench.accumulator.blocked_records.memory_waiters
    assert append_rows(bench.accumulator, "t", 0, None, column, taken, 1000, bench.now, []) == taken
