"""The log as a whole: appending, rolling, reading, truncating, retention, flushing."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioproducer.broker.log.reading as reading_module
from aioproducer.broker.log import DirectoryStorage, Log, LogConfig, MemoryStorage, Storage
from aioproducer.errors import KafkaStorageError, OffsetOutOfRangeError
from aioproducer.wire.record_batch import iter_batches
from aioproducer.wire.varint import INT32_MAX
from tests.broker.log.building import (
    NOW,
    PRODUCER,
    Fault,
    FaultyStorage,
    batch,
    content,
    open_log,
    producers,
    sequenced,
    stored,
    visible,
)

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 90)),
        st.tuples(st.just("sequenced"), st.integers(1, 3), st.integers(0, 60)),
        st.tuples(st.just("fail"), st.integers(0, 6), st.integers(0, 200)),
        st.tuples(st.just("truncate"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("start at"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("advance"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("delete"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("flush"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("reopen"), st.booleans(), st.just(0)),
    ),
    max_size=25,
)


class Bench:
    """A log and a list of what must be in it: each record's offset and value."""

    def __init__(self) -> None:
        self.fault = Fault()
        self.inner = MemoryStorage()
        self.storage = FaultyStorage(self.inner, self.fault)
        self.log = open_log(self.storage, SMALL)
        self.start = self.end = 0
        self.records: dict[int, bytes] = {}
        self.sequence = 0
        self.epoch = 0
        self.made = 0

    def step(self, step: str, first: int, second: int) -> None:
        log = self.log
        if step in ("append", "sequenced", "fail"):
            self.made += 1
            value = b"%d." % self.made + bytes(second)
            if step == "sequenced":
                known = log.producer_state.producers.get(PRODUCER)
                sequence = known.last_sequence + 1 if known is not None and known.batches else 0
                data, count = sequenced(sequence, first, value=value), first
            else:
                data, count = batch(1 if step == "fail" else first, value=value), 1 if step == "fail" else first
            if step == "fail":
                self.epoch += 1
                before = visible(log)
                self.fault.arm(first)
                try:
                    log.append_as_leader(data, self.epoch)
                except KafkaStorageError:
                    assert visible(log) == before
                    return
                finally:
                    self.fault.arm(-1)
            else:
                info = log.append_as_leader(data, self.epoch)
                assert (info.first_offset, info.last_offset) == (self.end, self.end + count - 1)
                assert info.log_start_offset == self.start
            self.records |= {self.end + index: value for index in range(count)}
            self.end += count
        elif step == "truncate":
            log.truncate_to(first)
            if first < self.end:
                # The whole batch goes that the offset lies in.
                kept = (
                    {record.offset for each in stored(log) for record in each.records()}
                    if first > self.start
                    else set()
                )
                assert {offset for offset in self.records if offset >= first} & kept == set()
                self.records = {offset: value for offset, value in self.records.items() if offset in kept}
                self.end = first
                self.start = min(self.start, first)
        elif step == "start at":
            log.truncate_fully_and_start_at(first)
            self.start = self.end = first
            self.records = {}
        elif step == "advance":
            if first > self.end:
                with pytest.raises(OffsetOutOfRangeError, match="larger than the log end offset"):
                    log.advance_log_start_offset(first)
            else:
                log.advance_log_start_offset(first)
                self.start = max(self.start, first)
        elif step == "delete":
            before = log.segment_base_offsets
            count = log.delete_old_segments(first)
            assert log.segment_base_offsets == before[count:]
            assert count == 0 or log.segment_base_offsets[0] <= min(first, self.start)
        elif step == "flush":
            log.flush(first)
            assert log.recovery_point >= min(first, self.end)
        elif step == "reopen":
            log.close(bool(first))
            known = producers(log)
            self.log = open_log(
                self.storage, SMALL, clean=bool(first), recovery_point=log.recovery_point, log_start_offset=self.start
            )
            # A batch that was cut in its middle leaves an end that no byte tells of.
            last = max(self.records, default=-1) + 1
            assert self.log.log_end_offset in (self.end, max(last, self.start, self.log.segment_base_offsets[-1]))
            self.end = self.log.log_end_offset
            self.start = self.log.log_start_offset
            assert producers(self.log) == known

    def check(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.recovery_point <= self.end
        found = {record.offset: record.value for each in stored(log) for record in each.records()}
        assert {offset: value for offset, value in found.items() if offset >= self.start} == {
            offset: value for offset, value in self.records.items() if offset >= self.start
        }
        bases = log.segment_base_offsets
        assert bases == sorted(set(bases))
        assert log.size == sum(
            len(self.inner.read(name) or b"") for name in self.inner.files() if name.endswith(".log")
        )


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_the_log_equals_a_list_of_records_whatever_fails(steps: list[tuple[str, int, int]]) -> None:
    bench = Bench()
    for step in steps:
        bench.step(*step)
        bench.check()


@pytest.mark.parametrize("at", range(12))
def test_an_append_that_fails_at_any_step_changes_nothing(at: int) -> None:
    """The append of a new leader that must roll: epochs, two indexes, a snapshot and a new segment stand before it."""
    fault = Fault()
    log = open_log(FaultyStorage(MemoryStorage(), fault), SMALL)
    log.append_as_leader(sequenced(0, value=bytes(300)), 0)
    before = visible(log)
    fault.arm(at)
    if at < 8:
        with pytest.raises(KafkaStorageError, match=r"cannot append to the log of topic-0 in memory: .*No space left"):
            log.append_as_leader(sequenced(1, value=bytes(200)), 5)
        assert visible(log) == before
        fault.arm(-1)
    info = log.append_as_leader(sequenced(1, value=bytes(200)), 5)
    assert (info.first_offset, log.segment_base_offsets) == (1, [0, 1])
    assert log.leader_epochs.entries == [(0, 0), (5, 1)]


@pytest.mark.parametrize("can_remove", [True, False])
def test_a_segment_begun_behind_a_gap_is_removed_again(can_remove: bool) -> None:
    """A follower's append behind a gap rolls and then fails; what comes next begins before the new segment."""
    fault, inner = Fault(), MemoryStorage()
    log = open_log(FaultyStorage(inner, fault), SMALL)
    log.append_as_leader(sequenced(0, value=bytes(300)), 0)
    before = visible(log)
    fault.arm(6)
    with pytest.raises(KafkaStorageError):
        log.append_as_follower(sequenced(1, value=bytes(200), base_offset=50, partition_leader_epoch=0))
    assert visible(log) == before
    assert log.segment_base_offsets == [0, 50]
    if not can_remove:
        fault.arm(0)
        with pytest.raises(KafkaStorageError, match="cannot append"):
            log.append_as_leader(sequenced(1), 0)
        with pytest.raises(KafkaStorageError, match="has a segment that could not be removed"):
            log.append_as_leader(sequenced(1), 0)
    else:
        for sequence in (1, 2, 3):
            log.append_as_leader(sequenced(sequence, value=bytes(200)), 0)
        assert log.segment_base_offsets == [0, 1, 2, 3] or log.segment_base_offsets == [0, 1, 3]
        assert max(log.producer_state.snapshots) <= 3
    fault.arm(-1)
    log.close(False)
    reopened = open_log(inner, SMALL, clean=False)
    assert reopened.log_end_offset in ((1, 50) if not can_remove else (4,))
    assert reopened.producer_state.producers[PRODUCER].last_sequence == (3 if can_remove else 0)


def test_a_failed_write_leaves_the_log_unchanged() -> None:
    fault = Fault()
    log = open_log(FaultyStorage(MemoryStorage(), fault))
    log.append_as_leader(batch(), 0)
    before = visible(log)
    fault.arm(0)
    with pytest.raises(KafkaStorageError, match="cannot append"):
        log.append_as_leader(batch(), 0)
    fault.arm(0)
    with pytest.raises(KafkaStorageError, match="cannot append"):
        log.append_as_follower(batch(base_offset=1, partition_leader_epoch=0))
    fault.arm(0)
    with pytest.raises(KafkaStorageError, match="cannot write the leader epochs of the log of topic-0"):
        log.assign_leader_epoch(4)
    assert visible(log) == before
    log.assign_leader_epoch(4)
    assert log.end_offset_for_epoch(0) == (0, 1)


def make(kind: str, tmp_path: Path) -> Storage:
    return MemoryStorage() if kind == "memory" else DirectoryStorage(tmp_path / "topic-0")


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_reading_gives_whole_batches_below_a_bound(kind: str, tmp_path: Path) -> None:
    log = open_log(make(kind, tmp_path), LogConfig(index_interval_bytes=200))
    for index in range(40):
        log.append_as_leader(batch(5, value=b"%d" % index), 0)
    size = len(batch(5, value=b"10"))

    def offsets(offset: int, max_bytes: int, up_to: int, min_one_batch: bool = False) -> list[int]:
        found = b"".join(log.read(offset, max_bytes, up_to=up_to, min_one_batch=min_one_batch))
        return [each.base_offset for each in iter_batches(found)]

    assert offsets(0, 1 << 20, 200) == list(range(0, 200, 5))
    assert offsets(100, 1 << 20, 200) == list(range(100, 200, 5))
    assert offsets(103, size * 2, 200) == [100, 105]
    assert offsets(103, size * 3 - 1, 200) == [100, 105]
    assert offsets(103, size - 1, 200) == []
    assert offsets(103, 0, 200, True) == [100]
    assert offsets(103, 1 << 20, 115) == [100, 105, 110]
    assert offsets(103, 1 << 20, 114) == [100, 105]
    assert offsets(103, 1 << 20, 104) == []
    assert offsets(103, 1 << 20, 103) == []
    assert offsets(150, size * 10, 500) == list(range(150, 200, 5))
    assert offsets(200, 1 << 20, 200, True) == []
    for outside in (-1, 201):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset {outside} for partition topic-0, but we only have"):
            log.read(outside, 1, up_to=200, min_one_batch=True)
    log.advance_log_start_offset(7)
    with pytest.raises(OffsetOutOfRangeError, match="from offset 7 up to 200"):
        log.read(6, 1, up_to=200, min_one_batch=True)


def test_one_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "MAX_READ_BYTES", 1000)
    log = open_log()
    for _ in range(100):
        log.append_as_leader(batch(value=bytes(100)), 0)
    log.append_as_leader(batch(value=bytes(3000)), 0)
    assert sum(map(len, log.read(0, 1 << 30, up_to=101, min_one_batch=True))) <= 1000
    assert sum(map(len, log.read(100, 1 << 30, up_to=101, min_one_batch=True))) > 3000


def test_a_gap_between_segments_is_skipped() -> None:
    log = open_log(config=SMALL)
    log.append_as_follower(batch(2, base_offset=0, value=bytes(300)) + batch(2, base_offset=50))
    assert log.segment_base_offsets == [0, 50]
    assert [each.base_offset for each in iter_batches(b"".join(log.read(7, 1000, up_to=52, min_one_batch=True)))] == [
        50
    ]
    log.truncate_to(50)
    assert (log.log_end_offset, log.read(7, 1000, up_to=52, min_one_batch=True)) == (50, [])


def test_followers_copy_the_leader_byte_for_byte() -> None:
    leader, follower = open_log(), open_log(config=SMALL)
    for index in range(30):
        leader.append_as_leader(sequenced(index, value=bytes(index * 7)), index // 10)
    data = content(leader)
    info = follower.append_as_follower(data + data[:50])
    assert (info.first_offset, info.last_offset, info.size) == (0, 29, len(data))
    assert content(follower) == data
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    assert producers(follower) == producers(leader)
    assert len(follower.segment_base_offsets) > 5
    nothing = follower.append_as_follower(b"")
    assert (nothing.first_offset, nothing.last_offset, nothing.size) == (30, 29, 0)
    follower.append_as_follower(batch(base_offset=30, partition_leader_epoch=-1))
    assert follower.leader_epochs.latest_epoch == 2
    assert open_log(config=SMALL).append_as_follower(batch(base_offset=0, value=bytes(1000))).last_offset == 0


# Rolling


def test_segments_roll_by_size_index_and_offset() -> None:
    log = open_log(config=LogConfig(segment_bytes=len(batch()) * 3))
    for _ in range(7):
        log.append_as_leader(batch(), 0)
    assert log.segment_base_offsets == [0, 3, 6]
    log = open_log(config=LogConfig(segment_index_bytes=24, index_interval_bytes=1))
    for index in range(6):
        log.append_as_leader(batch(timestamp=NOW + index), 0)
    assert log.segment_base_offsets == [0, 2, 4]
    log = open_log()
    log.append_as_follower(batch(base_offset=INT32_MAX))
    log.append_as_follower(batch(base_offset=INT32_MAX + 1))
    assert log.segment_base_offsets == [0, INT32_MAX + 1]
    log = open_log()
    log.append_as_follower(batch(base_offset=INT32_MAX + 1))
    assert log.segment_base_offsets == [0, INT32_MAX + 1]


def test_segments_roll_by_time() -> None:
    now = NOW
    config = LogConfig(segment_ms=1000)
    log = open_log(config=config, wall_ms=lambda: now)
    log.append_as_leader(batch(timestamp=NOW), 0)
    log.append_as_leader(batch(timestamp=NOW + 1000), 0)
    now += 5000
    log.append_as_leader(batch(timestamp=NOW + 1000), 0)
    assert log.segment_base_offsets == [0]
    log.append_as_leader(batch(timestamp=NOW + 1001), 0)
    assert log.segment_base_offsets == [0, 3]
    log = open_log(config=config, wall_ms=lambda: now)
    log.append_as_leader(batch(timestamp=-1), 0)
    now += 1001
    log.append_as_leader(batch(timestamp=-1), 0)
    assert log.segment_base_offsets == [0, 1]
    log = open_log(storage := MemoryStorage(), config)
    log.append_as_leader(batch(timestamp=NOW), 0)
    log.close(True)
    log = open_log(storage, config)
    log.append_as_leader(batch(timestamp=NOW + 1001), 0)
    assert log.segment_base_offsets == [0, 1]


def test_jitter_spreads_rolls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.randrange", lambda bound: bound - 1)
    log = open_log(config=LogConfig(segment_ms=1000, segment_jitter_ms=500))
    log.append_as_leader(batch(timestamp=NOW), 0)
    log.append_as_leader(batch(timestamp=NOW + 1001), 0)
    log.append_as_leader(batch(timestamp=NOW + 1001 + 502), 0)
    assert log.segment_base_offsets == [0, 1, 2]


def test_a_changed_configuration_applies_to_later_appends() -> None:
    log = open_log()
    log.append_as_leader(batch(), 0)
    log.append_as_leader(batch(), 0)
    log.config = LogConfig(segment_bytes=len(batch()), index_interval_bytes=0)
    log.append_as_leader(batch(), 0)
    assert log.segment_base_offsets == [0, 2]


# Retention


def filled(config: LogConfig, wall_ms: Any = lambda: NOW) -> Log:
    """Five segments of one record each, a second apart."""
    log = open_log(config=config, wall_ms=wall_ms)
    for index in range(5):
        log.append_as_leader(batch(value=bytes(100), timestamp=NOW + index * 1000), 0)
    assert log.segment_base_offsets == [0, 1, 2, 3, 4]
    return log


ONE_EACH: dict[str, Any] = {"segment_bytes": 180}


@pytest.mark.parametrize(
    ("config", "later", "high_watermark", "left"),
    [
        (LogConfig(**ONE_EACH), 0, 5, [0, 1, 2, 3, 4]),
        (LogConfig(**ONE_EACH, retention_ms=1000), 3000, 5, [2, 3, 4]),
        (LogConfig(**ONE_EACH, retention_ms=1000), 3000, 1, [1, 2, 3, 4]),
        (LogConfig(**ONE_EACH, retention_ms=1000), 60_000, 5, [5]),
        (LogConfig(**ONE_EACH, retention_ms=1000), 60_000, 4, [4]),
        (LogConfig(**ONE_EACH, retention_ms=-1), 10**15, 5, [0, 1, 2, 3, 4]),
        (LogConfig(**ONE_EACH, retention_ms=1, cleanup_policy=frozenset({"compact"})), 60_000, 5, [0, 1, 2, 3, 4]),
        (LogConfig(**ONE_EACH, retention_bytes=350), 0, 5, [2, 3, 4]),
        (LogConfig(**ONE_EACH, retention_bytes=0), 0, 5, [5]),
        (LogConfig(**ONE_EACH, retention_bytes=10_000), 0, 5, [0, 1, 2, 3, 4]),
    ],
)
def test_old_segments_are_deleted(config: LogConfig, later: int, high_watermark: int, left: list[int]) -> None:
    now = NOW
    log = filled(LogConfig(**ONE_EACH), lambda: now)
    log.config = config
    now += later
    end, before = log.log_end_offset, len(log.segment_base_offsets)
    count = log.delete_old_segments(high_watermark)
    assert log.segment_base_offsets == left
    assert count == before - len(left) + (left == [5])
    assert (log.log_start_offset, log.log_end_offset) == (left[0], end)
    assert log.delete_old_segments(high_watermark) == 0
    assert log.append_as_leader(batch(key=b"k"), 1).first_offset == 5


def test_segments_before_the_log_start_are_deleted_under_any_policy() -> None:
    log = filled(LogConfig(**ONE_EACH))
    log.config = LogConfig(cleanup_policy=frozenset({"compact"}))
    log.advance_log_start_offset(5)
    assert log.delete_old_segments(5) == 4
    assert (log.segment_base_offsets, log.log_start_offset) == ([4], 5)
    assert log.producer_state.snapshots == [4]


def test_old_segments_are_deleted_a_few_at_a_time_on_request() -> None:
    log = filled(LogConfig(**ONE_EACH))
    log.config = LogConfig(retention_bytes=0)
    bases = log.segment_base_offsets
    for left in range(len(bases) - 1, 0, -1):
        assert log.delete_old_segments(5, at_most=1) == 1
        assert log.segment_base_offsets == bases[-left:]
        assert log.log_start_offset == bases[-left]
    assert log.delete_old_segments(5, at_most=3) == 1
    assert (log.segment_base_offsets, log.size) == ([5], 0)
    assert log.delete_old_segments(5, at_most=1) == 0


def test_records_without_time_age_from_their_segment_on() -> None:
    now = NOW
    log = open_log(config=LogConfig(retention_ms=1000), wall_ms=lambda: now)
    log.append_as_leader(batch(timestamp=-1), 0)
    now += 1000
    assert log.delete_old_segments(1) == 0
    now += 1
    assert log.delete_old_segments(1) == 1
    assert log.max_timestamp_offset() is None
    assert log.offset_for_timestamp(0) is None


# Truncating


def test_records_before_the_log_start_are_not_found_by_time() -> None:
    log = open_log(config=LogConfig(**ONE_EACH))
    for timestamp in (NOW + 900, NOW, NOW + 1000, NOW):
        log.append_as_leader(batch(timestamp=timestamp, value=bytes(100)), 0)
    log.advance_log_start_offset(1)
    assert log.offset_for_timestamp(NOW + 500) == (NOW + 1000, 2, 0)
    assert log.offset_for_timestamp(NOW + 1000) == (NOW + 1000, 2, 0)
    log.advance_log_start_offset(3)
    assert log.offset_for_timestamp(NOW + 1) is None


def test_rolled_segments_wait_for_a_flush() -> None:
    log = open_log(config=LogConfig(**ONE_EACH))
    log.append_as_leader(batch(value=bytes(100)), 0)
    assert not log.rolled_segments_unflushed
    log.append_as_leader(batch(value=bytes(100)), 0)
    assert log.rolled_segments_unflushed
    assert log.active_base_offset == 1
    log.flush(log.active_base_offset)
    assert (log.recovery_point, log.rolled_segments_unflushed) == (1, False)


def test_a_segment_behind_a_gap_does_not_require_flushes_for_ever() -> None:
    fault = Fault()
    log = open_log(FaultyStorage(MemoryStorage(), fault), LogConfig(**ONE_EACH))
    log.append_as_follower(batch(value=bytes(100)))
    for at in range(20):
        fault.arm(at)
        with suppress(KafkaStorageError):
            log.append_as_follower(batch(base_offset=50, value=bytes(100)))
        if log.active_base_offset == 50:
            break
    assert (log.log_end_offset, log.active_base_offset) == (1, 50)
    fault.arm(-1)
    log.flush(log.active_base_offset)
    assert not log.rolled_segments_unflushed


def test_a_truncation_within_a_batch_drops_the_whole_batch() -> None:
    log = open_log()
    log.append_as_leader(sequenced(0, 5), 0)
    log.append_as_leader(sequenced(5, 5), 3)
    log.truncate_to(7)
    assert (log.log_end_offset, len(stored(log))) == (7, 1)
    assert log.producer_state.producers[PRODUCER].last_sequence == 4
    assert log.append_as_leader(sequenced(5, 5), 3).first_offset == 7
    log.truncate_to(100)
    assert log.log_end_offset == 12
    assert log.last_stable_offset(9) == 9
    with pytest.raises(ValueError, match="to offset -1"):
        log.truncate_to(-1)


def test_a_truncation_removes_times_and_epochs() -> None:
    log = open_log(config=LogConfig(index_interval_bytes=0))
    for index, timestamp in enumerate([NOW, NOW + 500, NOW + 100, NOW + 900]):
        log.append_as_leader(batch(timestamp=timestamp), index)
    log.truncate_to(3)
    assert log.max_timestamp_offset() == (NOW + 500, 1, 1)
    log.truncate_to(1)
    assert log.max_timestamp_offset() == (NOW, 0, 0)
    assert log.leader_epochs.entries == [(0, 0)]
    log.truncate_to(0)
    assert log.max_timestamp_offset() is None


def test_truncating_below_the_first_segment_starts_there() -> None:
    log = open_log()
    log.truncate_fully_and_start_at(100)
    log.append_as_leader(batch(), 0)
    log.truncate_to(40)
    assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (40, 40, [40])


def test_the_recovery_point_is_lowered_before_the_truncation() -> None:
    log = open_log(config=SMALL)
    for _ in range(8):
        log.append_as_leader(batch(value=bytes(100)), 0)
    log.flush()
    seen: list[tuple[int, int, int]] = []
    log.before_truncation = lambda end: seen.append((end, log.recovery_point, log.log_end_offset))
    log.truncate_to(3)
    log.truncate_to(2)
    assert seen == [(3, 3, 8), (2, 2, 3)]


@pytest.mark.parametrize("at", range(9))
def test_a_log_with_a_failed_truncation_must_be_opened_again(at: int) -> None:
    fault = Fault()
    storage = FaultyStorage(MemoryStorage(), fault)
    log = open_log(storage, SMALL)
    for index in range(6):
        log.append_as_leader(sequenced(index, value=bytes(150)), index)
    whole = content(log)
    fault.arm(at)
    with pytest.raises(KafkaStorageError, match="cannot truncate"):
        log.truncate_to(3)
    fault.arm(-1)
    for use in (
        lambda: log.append_as_leader(batch(), 9),
        lambda: log.append_as_follower(batch(base_offset=99)),
        lambda: log.truncate_to(1),
        lambda: log.delete_old_segments(9),
        lambda: log.close(True),
    ):
        with pytest.raises(KafkaStorageError, match=r"could not be truncated, and must be opened again|is closed"):
            use()
    again = open_log(storage, SMALL, clean=False)
    assert 3 <= again.log_end_offset <= 6
    assert whole.startswith(content(again))


# Flushing


def test_the_recovery_point_moves_after_the_sync_and_only_then() -> None:
    fault = Fault()
    log = open_log(FaultyStorage(MemoryStorage(), fault), LogConfig(flush_messages=3))
    log.append_as_leader(batch(2), 0)
    assert not log.flush_due
    log.append_as_leader(batch(2), 0)
    assert log.flush_due
    for at in range(4):
        fault.arm(at)
        with pytest.raises(KafkaStorageError, match="cannot flush the log of topic-0"):
            log.flush()
        assert log.recovery_point == 0
    fault.arm(-1)
    log.flush(2)
    assert log.recovery_point == 2
    log.flush()
    assert log.recovery_point == 4
    assert not log.flush_due
    fault.arm(0)
    log.flush()


def test_a_flush_during_a_truncation_does_not_raise_the_recovery_point() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    log.append_as_leader(batch(9), 0)
    during = storage.sync

    def sync() -> None:
        during()
        log.truncate_to(0)
        log.append_as_leader(batch(20), 1)

    storage.sync = sync  # type: ignore[method-assign]
    log.flush()
    assert log.recovery_point == 0


def test_a_flush_during_a_close_does_nothing() -> None:
    fault = Fault()
    storage = FaultyStorage(MemoryStorage(), fault)
    log = open_log(storage)
    log.append_as_leader(batch(9), 0)
    log.close(False)
    fault.arm(0)
    log.flush()
    assert log.recovery_point == 0


def test_a_flush_in_another_thread_during_appends_is_safe(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "topic-0")
    log = open_log(storage, LogConfig(segment_bytes=20_000, index_interval_bytes=500))
    stop = threading.Event()
    points: list[int] = []

    def flush() -> None:
        while not stop.is_set():
            log.flush()
            points.append(log.recovery_point)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for index in range(1500):
            log.append_as_leader(sequenced(index, value=bytes(200)), index // 100)
            if index % 400 == 399:
                log.truncate_to(log.log_end_offset - 1)
                log.append_as_leader(sequenced(index, value=bytes(200)), index // 100)
    finally:
        stop.set()
        thread.join()
    assert points[-1] <= 1500
    log.close(True)
    reopened = open_log(storage, LogConfig(segment_bytes=20_000, index_interval_bytes=500))
    assert (reopened.log_end_offset, reopened.recovery_point) == (1500, 1500)
    assert len(stored(reopened)) == 1500
    assert producers(reopened) == producers(log)


def test_a_closed_log_rejects_appends() -> None:
    log = open_log()
    log.close(False)
    with pytest.raises(KafkaStorageError, match="the log of topic-0 in memory is closed"):
        log.append_as_leader(batch(), 0)
