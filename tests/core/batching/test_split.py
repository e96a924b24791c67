"""Splitting a batch that is too large for the broker."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.compression import codec
from aioproducer.core.batching.split import split_batch
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE
from tests.core.accumulating import Bench, records_of

RECORD = st.tuples(
    st.integers(0, 2**45),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=300),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(RECORD, min_size=2, max_size=25),
    st.integers(0, 2000),
    st.sampled_from([None, "gzip", "zstd"]),
)
def test_the_parts_hold_the_records_in_order(records, batch_size: int, codec_name: str | None) -> None:
    bench = Bench(batch_size=1 << 18, codec=codec(codec_name) if codec_name else None)
    for timestamp_ms, key, value, headers in records:
        bench.send(value, key=key, headers=tuple(headers), timestamp_ms=timestamp_ms)
    bench.accumulator.ready.end_lingering(0)
    drained = bench.drain()
    if not drained:
        bench.compress()
        drained = bench.drain()
    (batch,) = drained
    parts = split_batch(batch, batch_size)
    assert len(parts) >= 2
    before = [(each.timestamp, each.key, each.value, each.headers) for each in records_of(batch)]
    after = [(each.timestamp, each.key, each.value, each.headers) for part in parts for each in records_of(part)]
    assert after == before
    for part in parts:
        assert part.size() <= batch_size or part.record_count == 1 or part.size() <= batch.uncompressed_size() // 2
        assert part.closed
        assert part.codec_id == 0
        assert part.created_at == batch.created_at
        assert part.attempts == 0
        assert part.charged_size == part.body_size
        assert part.max_timestamp == max(each.timestamp for each in records_of(part))
        assert part.topic_partition == batch.topic_partition


def test_one_record_cannot_be_split() -> None:
    bench = Bench()
    bench.send()
    bench.accumulator.ready.end_lingering(0)
    with pytest.raises(ValueError, match="cannot be split"):
        split_batch(bench.drain_one(), 100)


def test_a_batch_within_batch_size_is_halved() -> None:
    bench = Bench(batch_size=10_000)
    for _ in range(40):
        bench.send(b"x" * 100)
    bench.accumulator.ready.end_lingering(0)
    batch = bench.drain_one()
    parts = split_batch(batch, 10_000)
    assert all(part.size() <= batch.uncompressed_size() // 2 for part in parts)
    assert len(parts) == 3


def test_a_larger_batch_is_cut_to_batch_size() -> None:
    bench = Bench(batch_size=1 << 16)
    for _ in range(40):
        bench.send(b"x" * 100)
    bench.accumulator.ready.end_lingering(0)
    parts = split_batch(bench.drain_one(), 1000)
    assert all(part.size() <= 1000 for part in parts)
    # As full as they can be.
    assert all(part.size() + 110 > 1000 for part in parts[:-1])


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(BATCH_HEADER_SIZE + 20, 1500))
def test_repeated_splitting_ends(count: int, broker_limit: int) -> None:
    """A broker with a limit below batch_size gets batches below that limit, or of one record."""
    bench = Bench(batch_size=1 << 16, linger=0)
    deliveries = [bench.send(b"%d" % index) for index in range(count)]
    written = 0
    for _ in range(300):
        for batch in bench.drain():
            if batch.size() > broker_limit and batch.record_count > 1:
                bench.refuse(batch, 10)
            else:
                bench.ack(batch, written)
                written += batch.record_count
        if all(delivery.done() for delivery in deliveries):
            break
    assert [delivery.result().offset for delivery in deliveries] == list(range(count))
    assert bench.all_memory_is_back()
