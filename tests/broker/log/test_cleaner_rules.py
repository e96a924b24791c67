"""The decisions of the cleaner on values alone: what is cleaned, what becomes one segment, what a batch keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.broker.log import AbortedTransaction, LogConfig
from aioproducer.broker.log.cleaner.batch_filter import BatchFilter, Kept, LastBatch
from aioproducer.broker.log.cleaner.offset_map import SLOT_SIZE, OffsetMap
from aioproducer.broker.log.cleaner.selection import Cleanable, SegmentFacts, cleanable_part, group_segments
from aioproducer.broker.log.cleaner.steps import RECORDS_PER_STEP, Work, done_by
from aioproducer.broker.log.cleaner.transactions import CleanedTransactions
from aioproducer.broker.log.validation import BatchHeader, read_header
from aioproducer.errors import CorruptRecordError
from aioproducer.wire.control_batch import ControlRecordType, encode_control_batch
from aioproducer.wire.record_batch import RecordBatch, SimpleRecord, encode_batch, encode_header
from aioproducer.wire.varint import INT32_MAX
from tests.broker.log.cleaning import run_steps

NOW = 1_700_000_000_000
COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT


# The offset map


@given(st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 2**63 - 1)), max_size=200))
def test_the_map_returns_the_last_offset_of_each_key(entries: list[tuple[bytes, int]]) -> None:
    found = OffsetMap(1000 * SLOT_SIZE, 0.9, len(entries))
    expected = {}
    for key, offset in entries:
        found.put(key, offset)
        expected[key] = offset
    assert len(found) == len(expected)
    assert {key: found.get(key) for key in expected} == expected
    assert found.get(b"not there") == -1
    found.close()


def test_the_map_is_full_at_its_load_factor_and_every_search_still_ends() -> None:
    found = OffsetMap(20 * SLOT_SIZE, 0.5, 1000)
    count = 0
    while not found.is_full:
        found.put(b"%d" % count, count)
        count += 1
    assert count == found.capacity == 10
    whole = OffsetMap(20 * SLOT_SIZE, 1.0, 1000)
    assert whole.capacity == 19
    for count in range(19):
        whole.put(b"%d" % count, count)
    assert [whole.get(b"%d" % count) for count in range(20)] == [*range(19), -1]


@pytest.mark.parametrize(("memory", "load_factor"), [(SLOT_SIZE - 1, 1.0), (10 * SLOT_SIZE, 0.05)])
def test_a_map_without_room_for_a_key_is_an_error(memory: int, load_factor: float) -> None:
    with pytest.raises(ValueError, match="no room for a key"):
        OffsetMap(memory, load_factor, 10)


def test_the_map_covers_the_greatest_offset_it_was_told() -> None:
    found = OffsetMap(1000, 0.9, 1)
    assert found.latest_offset == -1
    found.cover(7)
    found.cover(5)
    assert found.latest_offset == 7


# Steps


def test_an_error_of_work_is_raised_where_it_was_yielded() -> None:
    def steps() -> Any:
        yield None
        try:
            yield from done_by(1, lambda: 1 // 0)
        except ZeroDivisionError:
            return (yield from done_by(1, lambda: "caught"))

    assert run_steps(steps()) == "caught"


# The part that is cleaned


def segment(base: int, size: int = 100, **facts: int) -> SegmentFacts:
    values = {"index_size": 8, "time_index_size": 12, "max_timestamp": NOW, "first_timestamp": NOW, **facts}
    return SegmentFacts(base, size, **values)


def part(*segments: SegmentFacts, checkpoint: int | None = None, stable: int = 1000, **options: Any) -> Cleanable:
    return cleanable_part(
        segments,
        LogConfig(**{"min_cleanable_dirty_ratio": 0.5, **options}),
        NOW,
        checkpoint=checkpoint,
        log_start_offset=0,
        log_end_offset=1000,
        last_stable_offset=stable,
    )


THREE = (segment(0), segment(100), segment(200), segment(300))


def test_a_log_that_was_never_cleaned_is_dirty_up_to_its_active_segment() -> None:
    assert part(*THREE) == Cleanable(0, 300, 1.0, True, False)


def test_what_was_cleaned_counts_as_clean() -> None:
    assert part(*THREE, checkpoint=200) == Cleanable(200, 300, 1 / 3, False, False)
    assert part(*THREE, checkpoint=100) == Cleanable(100, 300, 2 / 3, True, False)
    assert part(*THREE, checkpoint=100, min_cleanable_dirty_ratio=2 / 3).is_due is False


def test_a_checkpoint_within_a_segment_makes_the_segment_dirty_and_clean() -> None:
    """As in Kafka its bytes count twice."""
    assert part(*THREE, checkpoint=150) == Cleanable(150, 300, 2 / 4, False, False)


@pytest.mark.parametrize(("stable", "end"), [(1000, 300), (250, 200), (200, 200), (199, 100), (50, 0), (0, 0)])
def test_the_segment_of_the_last_stable_offset_and_those_behind_it_stay(stable: int, end: int) -> None:
    found = part(*THREE, stable=stable)
    assert found.end_offset == end
    assert found.is_due is (end > 0)


def test_segments_with_young_records_stay_with_all_behind_them() -> None:
    old, young = NOW - 10, NOW - 9
    segments = [segment(base, max_timestamp=at) for base, at in ((0, old), (100, young), (200, old), (300, old))]
    assert part(*segments, min_compaction_lag_ms=10).end_offset == 100
    assert part(*segments, min_compaction_lag_ms=9).end_offset == 300
    # What was cleaned already is not asked again.
    assert part(*segments, checkpoint=200, min_compaction_lag_ms=10).end_offset == 300


def test_a_log_with_too_old_dirty_records_is_due_whatever_its_ratio() -> None:
    segments = [segment(0, first_timestamp=NOW - 50), segment(100, first_timestamp=NOW - 20), segment(200)]
    options = {"min_cleanable_dirty_ratio": 1.0, "checkpoint": 100}
    assert not part(*segments, max_compaction_lag_ms=20, **options).is_due
    assert part(*segments, max_compaction_lag_ms=19, **options).is_due
    # Not if nothing of it can be cleaned yet, and records without timestamps have no age.
    assert not part(*segments, stable=150, max_compaction_lag_ms=19, **options).is_due
    timeless = [each._replace(first_timestamp=-1) for each in segments]
    assert not part(*timeless, max_compaction_lag_ms=1, **options).is_due


@pytest.mark.parametrize("checkpoint", [-1, 1001])
def test_a_checkpoint_outside_of_the_log_does_not_count(checkpoint: int) -> None:
    assert part(*THREE, checkpoint=checkpoint) == Cleanable(0, 300, 1.0, True, True)


def test_empty_segments_are_not_due() -> None:
    assert part(segment(0, 0), segment(100, 0)) == Cleanable(0, 100, 0.0, False, False)


# Groups


def groups(*segments: SegmentFacts, end: int = 10_000, **options: int) -> list[tuple[int, int]]:
    return group_segments(segments, LogConfig(**{"segment_bytes": 250, **options}), end)  # type: ignore[arg-type]


def test_a_group_fits_a_segment() -> None:
    assert groups(*THREE) == [(0, 2), (2, 4)]
    assert groups(*THREE, segment_bytes=400) == [(0, 4)]
    assert groups(*THREE, segment_bytes=10) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert groups() == []


def test_a_group_fits_the_indexes() -> None:
    assert groups(*THREE, segment_bytes=1000, segment_index_bytes=12 * 3) == [(0, 3), (3, 4)]
    large = [each._replace(index_size=20, time_index_size=0) for each in THREE]
    assert groups(*large, segment_bytes=1000, segment_index_bytes=40) == [(0, 2), (2, 4)]


def test_the_offsets_of_a_group_fit_31_bits() -> None:
    far = INT32_MAX + 1
    assert groups(segment(0), segment(10), end=far) == [(0, 2)]
    assert groups(segment(0), segment(10), end=far + 1) == [(0, 1), (1, 2)]
    assert groups(segment(0), segment(10), segment(far + 1), segment(far + 2)) == [(0, 1), (1, 3), (3, 4)]
    # An empty segment has no offsets.
    assert groups(segment(0), segment(far + 5, 0), end=far + 10) == [(0, 2)]


# Transactions


def data(producer_id: int, first: int, last: int, *, transactional: bool = True) -> BatchHeader:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": transactional}
    records = [SimpleRecord(NOW, b"k", b"v")] * (last - first + 1)
    return read_header(b"".join(encode_batch(records, base_offset=first, **fields)))  # type: ignore[arg-type]


def marker(producer_id: int, offset: int) -> BatchHeader:
    batch = encode_control_batch(
        ABORT, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=NOW, base_offset=offset
    )
    return read_header(batch)


def test_a_commit_marker_is_needed_while_batches_of_its_transaction_are_there() -> None:
    transactions = CleanedTransactions()
    assert not transactions.data_read(data(1, 0, 3))
    assert transactions.control_read(marker(2, 4), COMMIT) == (True, None)
    assert transactions.control_read(marker(1, 5), COMMIT) == (False, None)
    assert transactions.control_read(marker(1, 6), COMMIT) == (True, None)


def test_batches_of_an_aborted_transaction_may_go_and_then_its_marker_and_its_entry() -> None:
    first, second = AbortedTransaction(1, 0, 5, 6), AbortedTransaction(1, 10, 12, 13)
    transactions = CleanedTransactions()
    transactions.add([second, first])
    assert transactions.data_read(data(1, 0, 3))
    assert not transactions.data_read(data(2, 4, 4))
    # The next segment has the entry as well.
    transactions.add([first])
    assert transactions.control_read(marker(1, 5), ABORT) == (False, first)
    assert not transactions.data_read(data(1, 6, 9))
    assert transactions.control_read(marker(1, 9), COMMIT) == (False, None)
    assert transactions.control_read(marker(1, 12), ABORT) == (True, None)


def test_batches_without_a_transaction_are_never_aborted() -> None:
    transactions = CleanedTransactions()
    transactions.add([AbortedTransaction(1, 0, 5, 6)])
    assert not transactions.data_read(data(1, 0, 3, transactional=False))
    assert transactions.control_read(marker(1, 5), ABORT) == (True, None)


def test_an_empty_control_batch_may_go_and_one_of_an_unknown_type_stays() -> None:
    transactions = CleanedTransactions()
    assert transactions.control_read(marker(1, 5), None) == (True, None)
    assert transactions.control_read(marker(1, 6), ControlRecordType.UNKNOWN) == (False, None)


# Batches


def filtered(
    batch: bytes,
    offsets: dict[bytes, int],
    *,
    covered: int = 1000,
    last: dict[int, LastBatch] | None = None,
    now_ms: int = NOW,
    end_offset: int = 5000,
    control_type: ControlRecordType | None = None,
) -> RecordBatch | None:
    """What a round without transactions keeps of a batch."""
    known = OffsetMap(10_000, 1.0, 100)
    for key, offset in offsets.items():
        known.put(key, offset)
    known.cover(covered)
    rules = BatchFilter(
        known,
        (last or {}).get,
        now_ms=now_ms,
        delete_retention_ms=1000,
        end_offset=end_offset,
        topic_partition="topic-0",
    )
    kept = run_steps(rules.filter(read_header(batch), batch, control_type)).kept
    if kept is None:
        return None
    found = RecordBatch(kept.batch)
    found.validate()
    assert kept == Kept(kept.batch, found.max_timestamp)
    return found


def records(*pairs: tuple[bytes | None, bytes | None], **fields: Any) -> bytes:
    """A batch at offset 10, with timestamps that rise by one."""
    made = [SimpleRecord(NOW + index, key, value, [("h", b"x")]) for index, (key, value) in enumerate(pairs)]
    return b"".join(encode_batch(made, **{"base_offset": 10, "partition_leader_epoch": 3, **fields}))


ABC = records((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), producer_id=7, producer_epoch=2, base_sequence=5)


def test_a_batch_that_keeps_all_is_the_same_bytes() -> None:
    found = filtered(ABC, {})
    assert found is not None
    assert bytes(found.buffer) == ABC


def test_a_rewritten_batch_keeps_offsets_sequences_times_and_headers() -> None:
    found, before = filtered(ABC, {b"a": 100, b"c": 101}), RecordBatch(ABC)
    assert found is not None
    assert list(found.records()) == list(before.records())[1:2]
    for name in ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence", "last_sequence"):
        assert getattr(found, name) == getattr(before, name)
    assert (found.partition_leader_epoch, found.record_count, found.delete_horizon) == (3, 1, None)
    assert (found.base_timestamp, found.max_timestamp) == (NOW + 1, NOW + 1)


def test_a_record_behind_the_map_stays() -> None:
    found = filtered(ABC, {b"a": 11, b"b": 11, b"c": 11}, covered=11)
    assert found is not None
    assert [each.offset for each in found.records()] == [11, 12]


def test_a_batch_without_a_record_left_goes_or_stays_empty() -> None:
    gone = {b"a": 100, b"b": 100, b"c": 100}
    assert filtered(ABC, gone) is None
    assert filtered(ABC, gone, last={7: LastBatch(11, 2), 8: LastBatch(12, 2)}) is None
    for found in (filtered(ABC, gone, last={7: LastBatch(12, 2)}), filtered(ABC, gone, end_offset=13)):
        assert found is not None
        assert (found.record_count, found.base_offset, found.last_offset, found.base_sequence) == (0, 10, 12, 5)
        assert (found.max_timestamp, found.base_timestamp, list(found.records())) == (NOW + 2, -1, [])
        # Empty again, and gone once nothing needs it.
        empty = bytes(found.buffer)
        again = filtered(empty, {}, last={7: LastBatch(12, 2)})
        assert again is not None
        assert bytes(again.buffer) == empty
        assert filtered(empty, {}) is None


def test_tombstones_get_a_horizon_once_and_go_when_it_is_reached() -> None:
    batch = records((b"a", None), (b"b", b"2"))
    found = filtered(batch, {})
    assert found is not None
    assert found.delete_horizon == NOW + 1000
    assert list(found.records()) == list(RecordBatch(batch).records())
    marked = bytes(found.buffer)
    same = filtered(marked, {}, now_ms=NOW + 999)
    assert same is not None
    assert bytes(same.buffer) == marked
    later = filtered(marked, {}, now_ms=NOW + 1000)
    assert later is not None
    assert [each.key for each in later.records()] == [b"b"]
    assert later.delete_horizon == NOW + 1000


def test_a_marker_stays_empty_if_nothing_else_is_known_of_its_producer() -> None:
    batch = encode_control_batch(
        COMMIT, coordinator_epoch=4, producer_id=7, producer_epoch=2, timestamp=NOW, base_offset=10
    )
    found = filtered(batch, {}, control_type=COMMIT)
    assert found is not None
    assert (found.delete_horizon, found.is_control, found.record_count) == (NOW + 1000, True, 1)
    marked = bytes(found.buffer)
    late = {"now_ms": NOW + 1000, "control_type": COMMIT}
    assert filtered(marked, {}, **late) is None  # type: ignore[arg-type]
    assert filtered(marked, {}, last={7: LastBatch(-1, 3)}, **late) is None  # type: ignore[arg-type]
    assert filtered(marked, {}, last={7: LastBatch(5, 2)}, **late) is None  # type: ignore[arg-type]
    kept = filtered(marked, {}, last={7: LastBatch(-1, 2)}, **late)  # type: ignore[arg-type]
    assert kept is not None
    assert (kept.record_count, kept.is_control, kept.producer_epoch) == (0, True, 2)


@pytest.mark.parametrize("position", [17, 62])
def test_a_batch_with_a_wrong_checksum_is_not_rewritten(position: int) -> None:
    damaged = bytearray(ABC)
    damaged[position] ^= 1
    with pytest.raises(CorruptRecordError, match=r"corrupt .*topic-0"):
        filtered(bytes(damaged), {b"a": 100})


def test_a_batch_whose_records_cannot_be_read_is_named() -> None:
    header = encode_header([b"\x01"], record_count=1, base_timestamp=NOW, max_timestamp=NOW, base_offset=10)
    with pytest.raises(CorruptRecordError, match="batch at offset 10 of topic-0 cannot be read"):
        filtered(header + b"\x01", {})


def test_a_long_batch_pauses_often() -> None:
    batch = records(*[(b"%d" % index, b"") for index in range(1000)])
    known = OffsetMap(100_000, 1.0, 1000)
    known.put(b"0", 5000)
    known.cover(6000)
    rules = BatchFilter(known, {}.get, now_ms=NOW, delete_retention_ms=0, end_offset=9000, topic_partition="topic-0")
    pauses = list(rules.filter(read_header(batch), batch, None))
    # Decoded, looked up, encoded.
    assert pauses == [None] * (3 * (999 // RECORDS_PER_STEP))


def test_compressed_batches_are_work_for_a_thread() -> None:
    batch = records((b"a", b"x" * 1000), (b"b", b"y" * 1000), compression_type="gzip")
    known = OffsetMap(1000, 1.0, 10)
    known.put(b"a", 100)
    known.cover(1000)
    rules = BatchFilter(known, {}.get, now_ms=NOW, delete_retention_ms=0, end_offset=9000, topic_partition="topic-0")
    steps = rules.filter(read_header(batch), batch, None)
    unpacking = next(steps)
    assert isinstance(unpacking, Work)
    assert unpacking.size == len(batch) - 61
    packing = steps.send(unpacking.run())
    assert isinstance(packing, Work)
    assert 1000 < packing.size < 1100
    with pytest.raises(StopIteration) as end:
        steps.send(packing.run())
    assert [each.key for each in RecordBatch(end.value.value.kept.batch).records()] == [b"b"]


def test_a_compacted_segment_is_rolled_at_the_largest_lag() -> None:
    config = LogConfig(segment_ms=100, max_compaction_lag_ms=50)
    assert config.max_segment_ms == 100
    assert dataclasses.replace(config, cleanup_policy=frozenset({"compact"})).max_segment_ms == 50
