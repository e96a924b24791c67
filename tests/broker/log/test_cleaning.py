"""A round of cleaning over a log: what goes, what stays, and that a crash at any step loses nothing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.log import DirectoryStorage, Log, MemoryStorage, Storage
from aioproducer.broker.log.cleaner.offset_map import OffsetMap
from aioproducer.broker.log.cleaner.selection import Cleanable
from aioproducer.broker.log.cleaner.steps import Steps, Work
from aioproducer.broker.log.cleaning import (
    Cleaning,
    CleaningAbortedError,
    OffsetMapTooSmallError,
    cleanable,
)
from aioproducer.broker.log.segment import segment_name
from aioproducer.errors import CorruptRecordError, KafkaStorageError
from aioproducer.wire.record_batch import RecordBatch, SimpleRecord, encode_batch, iter_batches
from tests.broker.log.building import (
    NOW,
    Fault,
    FaultyStorage,
    Killed,
    aborted,
    batch,
    begin,
    end,
    open_log,
    producers,
    sequenced,
    stored,
    visible,
)
from tests.broker.log.cleaning import COMPACTED, Row, clean, latest, rows, run_steps


def put(log: Log, key: bytes, value: bytes | None = b"value", *, timestamp: int = NOW) -> int:
    """Append a record without a producer id; returns its offset."""
    return log.append_as_leader(batch(1, key=key, value=value, timestamp=timestamp), 0).first_offset


def roll(log: Log) -> None:
    """Begin a new segment, so that what was written can be cleaned."""
    config = log.config
    log.config = dataclasses.replace(config, segment_bytes=max(80, log._segments[-1].size))
    put(log, b"active")
    log.config = config


def compacted(storage: Storage | None = None, **options: object) -> Log:
    return open_log(storage, dataclasses.replace(COMPACTED, **options), clean=False)  # type: ignore[arg-type]


def keys(log: Log) -> list[tuple[int, bytes | None]]:
    return [(row.offset, row.key) for row in rows(log)]


def test_the_last_record_of_each_key_stays_with_its_offset_timestamp_and_headers() -> None:
    log = compacted()
    for index in range(12):
        put(log, b"k%d" % (index % 3), b"v%d" % index, timestamp=NOW + index)
    roll(log)
    before = latest(rows(log))
    part = clean(log)
    assert part.end_offset == log.active_base_offset == log.cleaned_to
    assert latest(rows(log)) == before
    assert [offset for offset, _ in keys(log) if offset < part.end_offset] == [9, 10, 11]


def test_the_active_segment_stays_as_it_is() -> None:
    log = compacted(segment_bytes=100_000)
    for _ in range(5):
        put(log, b"key")
    assert not clean(log).is_due
    assert len(rows(log)) == 5


def test_nothing_above_the_last_stable_offset_is_cleaned() -> None:
    log = compacted()
    for index in range(10):
        put(log, b"key", b"%d" % index)
    begin(log, 0, key=b"key")
    for index in range(10):
        put(log, b"key", b"%d" % index)
    roll(log)
    part = clean(log)
    assert part.end_offset <= 10
    assert [offset for offset, _ in keys(log) if offset > 10] == list(range(11, log.log_end_offset))


def test_nothing_above_the_high_watermark_is_cleaned() -> None:
    log = compacted()
    for _ in range(20):
        put(log, b"key")
    before = rows(log)
    assert not clean(log, high_watermark=1).is_due
    assert rows(log) == before


def test_a_tombstone_stays_until_its_horizon_and_the_records_before_it_go() -> None:
    log = compacted()
    put(log, b"key", b"1")
    tombstone = put(log, b"key", None)
    roll(log)
    clean(log)
    assert [row.offset for row in rows(log) if row.key == b"key"] == [tombstone]
    assert [each.delete_horizon for each in stored(log)] == [NOW + 1000, None]
    roll(log)
    clean(log, NOW + 999)
    assert tombstone in dict(keys(log))
    roll(log)
    clean(log, NOW + 1000)
    assert tombstone not in dict(keys(log))


def test_a_horizon_changes_no_timestamp() -> None:
    log = compacted()
    put(log, b"key", None, timestamp=NOW - 5)
    roll(log)
    clean(log)
    assert (rows(log)[0].timestamp, stored(log)[0].max_timestamp) == (NOW - 5, NOW - 5)
    assert stored(log)[0].delete_horizon == NOW + 1000


def test_records_without_a_key_are_dropped() -> None:
    """They were written before the topic was compacted."""
    log = open_log(config=dataclasses.replace(COMPACTED, cleanup_policy=frozenset({"delete"})))
    log.append_as_leader(batch(3), 0)
    log.config = COMPACTED
    put(log, b"key")
    roll(log)
    clean(log)
    assert keys(log) == [(3, b"key"), (4, b"active")]


@pytest.mark.parametrize("compression_type", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_keeps_its_codec_and_a_part_of_its_records(compression_type: str) -> None:
    log = compacted()
    log.append_as_leader(batch(1, key=b"a"), 0)
    log.append_as_leader(batch(4, key=b"a", compression_type=compression_type, timestamp=NOW + 7), 0)
    roll(log)
    clean(log)
    found = stored(log)[0]
    assert (found.base_offset, found.last_offset, found.record_count) == (1, 4, 1)
    assert [(each.offset, each.timestamp) for each in found.records()] == [(4, NOW + 10)]
    found.validate()


def test_append_times_stay() -> None:
    log = compacted(message_timestamp_type="LogAppendTime")
    log.append_as_leader(batch(2, key=b"a", timestamp=5), 0)
    put(log, b"b", None)
    roll(log)
    clean(log)
    assert [(row.offset, row.timestamp) for row in rows(log)][:2] == [(1, NOW), (2, NOW)]


def test_the_last_batch_of_a_producer_stays_empty_and_its_sequence_is_known_after_a_restart() -> None:
    storage = MemoryStorage()
    log = compacted(storage)
    log.append_as_leader(sequenced(0, 3, key=b"key"), 0)
    put(log, b"key")
    roll(log)
    clean(log)
    first = stored(log)[0]
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 0)
    known = producers(log)
    log.close(clean=False)
    for name in storage.files():
        if name.endswith(".snapshot"):
            storage.remove(name)
    log = compacted(storage)
    assert producers(log) == known
    assert log.append_as_leader(sequenced(0, 3, key=b"key"), 0).is_duplicate
    assert not log.append_as_leader(sequenced(3, key=b"key"), 0).is_duplicate


def test_the_last_batch_of_a_round_stays_empty_so_that_readers_see_where_the_log_goes_on() -> None:
    log = compacted()
    put(log, b"key")
    begin(log, 0, key=b"gone")
    end(log, committed=False)
    log.producer_state.producers.clear()
    roll(log)
    for now_ms in (NOW, NOW + 1000, NOW + 2000):
        clean(log, now_ms)
    assert stored(log)[-2].next_offset == log.active_base_offset


def test_only_records_of_aborted_transactions_are_dropped() -> None:
    log = compacted()
    begin(log, 0, 2, key=b"aborted")
    end(log, committed=False)
    begin(log, 2, 2, key=b"committed")
    end(log)
    roll(log)
    before = rows(log, committed=True)
    clean(log)
    assert [row for row in rows(log) if row.key == b"aborted"] == []
    assert latest(rows(log, committed=True)) == latest(before)


def test_an_aborted_record_does_not_replace_a_committed_one() -> None:
    log = compacted()
    put(log, b"key", b"stays")
    begin(log, 0, key=b"key", value=b"aborted")
    end(log, committed=False)
    roll(log)
    clean(log)
    assert latest(rows(log))[b"key"].value == b"stays"


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_goes_at_its_horizon_once_the_records_of_its_transaction_are_gone(committed: bool) -> None:
    log = compacted()
    begin(log, 0, key=b"key")
    marker = end(log, committed=committed)
    # The producer goes on elsewhere: its last batch must not hold the marker.
    log.producer_state.producers.clear()

    def has_marker() -> bool:
        return any(each.base_offset == marker and each.record_count for each in stored(log))

    put(log, b"key")
    roll(log)
    clean(log, NOW)
    assert has_marker(), "its records were read in this round"
    assert len(aborted(log)) == (0 if committed else 1)
    roll(log)
    clean(log, NOW + 5)
    assert has_marker(), "its horizon is set in this round"
    assert [each.delete_horizon for each in stored(log) if each.base_offset == marker] == [NOW + 5 + 1000]
    assert aborted(log) == []
    roll(log)
    clean(log, NOW + 5 + 999)
    assert has_marker()
    roll(log)
    clean(log, NOW + 5 + 1000)
    assert not has_marker()


def test_the_entry_of_an_aborted_transaction_stays_as_long_as_a_batch_of_it() -> None:
    log = compacted()
    begin(log, 0, key=b"key")
    end(log, committed=False)
    roll(log)
    entries = aborted(log)
    for now_ms in (NOW, NOW + 1000, NOW + 2000):
        clean(log, now_ms)
        roll(log)
    # The producer is active, so the last of its batches stays, empty.
    assert aborted(log) == entries
    assert [each.record_count for each in stored(log) if each.producer_id >= 0] == [0, 1]


def test_small_segments_become_one_and_those_behind_stay_where_they_are() -> None:
    log = compacted()
    for index in range(60):
        put(log, b"k%d" % (index % 2))
    bases = log.segment_base_offsets
    clean(log)
    clean(log)
    put(log, b"again")
    roll(log)
    clean(log)
    assert len(log.segment_base_offsets) < len(bases)
    assert [row.key for row in rows(log)][-3:-1] != []
    assert log.size == sum(segment.size for segment in log._segments)


def test_a_full_offset_map_ends_the_round_early_and_the_next_one_goes_on() -> None:
    log = compacted()
    for index in range(40):
        put(log, b"k%d" % (index % 10))
    roll(log)
    before = latest(rows(log))
    clean(log, keys=4)
    assert log.cleaned_to is not None
    assert 0 < log.cleaned_to < log.active_base_offset
    while log.cleaned_to < log.active_base_offset:
        clean(log, keys=4)
    assert latest(rows(log)) == before


def test_a_batch_with_more_keys_than_the_offset_map_has_room_for_is_an_error() -> None:
    log = compacted()
    for index in range(9):
        put(log, b"k%d" % index)
    roll(log)
    part = cleanable(log, NOW, log.log_end_offset)
    offsets = OffsetMap(48, 1.0, 100)
    log.cleaned_to = run_steps(Cleaning(log, part, offsets, NOW).steps())
    assert log.cleaned_to == 1
    log = compacted()
    log.append_as_follower(_two_keys())
    roll(log)
    part = cleanable(log, NOW, log.log_end_offset)
    with pytest.raises(OffsetMapTooSmallError, match=r"more keys than the 1 .* log\.cleaner\.dedupe\.buffer\.size"):
        run_steps(Cleaning(log, part, OffsetMap(48, 1.0, 100), NOW).steps())


def _two_keys() -> bytearray:
    return bytearray().join(
        encode_batch([SimpleRecord(NOW, b"a", b""), SimpleRecord(NOW, b"b", b"")], partition_leader_epoch=0)
    )


def test_a_damaged_batch_ends_the_round_and_leaves_the_log_as_it_is() -> None:
    storage = MemoryStorage()
    log = compacted(storage)
    for _ in range(9):
        put(log, b"key")
    roll(log)
    view = log._segments[0].file.peek(0, 10_000)
    memoryview(view).obj[len(view) - 3] ^= 1  # type: ignore[index]
    before = log.segment_base_offsets, log.size
    with pytest.raises(CorruptRecordError, match="corrupt"):
        clean(log)
    assert (log.segment_base_offsets, log.size) == before
    assert not [name for name in storage.files() if name.endswith(".cleaned")]


CHANGES: dict[str, Callable[[Log], object]] = {
    "truncate": lambda log: log.truncate_to(log.log_end_offset - 1),
    "truncate fully": lambda log: log.truncate_fully_and_start_at(3),
    "close": lambda log: log.close(clean=True),
    "kill": lambda log: log.close(clean=False),
    "delete segments": lambda log: (log.advance_log_start_offset(12), log.delete_old_segments(log.log_end_offset)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_round_ends_when_the_log_is_cut_or_closed_at_any_pause(change: str) -> None:
    """Whatever the pause, the log is what the change alone makes of it, as far as readers can tell."""
    pause = 0
    swapped_before: list[int] = []
    while True:
        storage = MemoryStorage()
        log = compacted(storage)
        for index in range(30):
            put(log, b"k%d" % (index % 3))
        before = latest(rows(log))
        steps = Cleaning(log, cleanable(log, NOW, log.log_end_offset), OffsetMap(10_000, 1.0, 100), NOW).steps()
        if advance(steps, pause):
            assert pause > 30
            return
        end_offset = log.log_end_offset
        CHANGES[change](log)
        # Behind the last swap nothing is left to abort.
        with suppress(CleaningAbortedError):
            assert advance(steps)
            swapped_before.append(pause)
        if change in ("close", "kill"):
            log = compacted(storage)
        if change == "truncate fully":
            assert (log.log_start_offset, log.log_end_offset, rows(log)) == (3, 3, [])
        elif change == "truncate":
            assert log.log_end_offset == end_offset - 1
        else:
            found = latest(rows(log))
            assert found == {key: row for key, row in before.items() if row.offset >= log.log_start_offset}
        assert not [name for name in storage.files() if name.endswith(".swap")]
        assert len(swapped_before) < 10, "the round must end, also before the last group"
        pause += 1


def advance(steps: Steps[int], count: int | None = None) -> bool:
    """Take ``count`` steps, or all that are left. Returns whether that was the end."""
    for _ in itertools.count() if count is None else range(count):
        try:
            work = next(steps)
        except StopIteration:
            return True
        if work is not None:
            work.run()
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """What is done to a log: writes, transactions and rounds."""
    kinds = st.sampled_from(["put", "tombstone", "idempotent", "transaction", "commit", "abort", "round", "later"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=40))


class History:
    """Carries out what ``histories`` draws, and knows what readers of committed records must find."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.now_ms = NOW
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def do(self, kind: str, number: int, count: int) -> None:
        log, key = self.log, b"k%d" % number
        producer_id = 10 + number
        if kind in ("put", "tombstone"):
            put(log, key, None if kind == "tombstone" else b"v%d" % log.log_end_offset)
        elif kind == "idempotent" and producer_id not in self.open:
            self._sequenced(producer_id, count, key, transactional=False)
        elif kind == "transaction":
            self._sequenced(producer_id, count, key, transactional=True)
            self.open.add(producer_id)
        elif kind in ("commit", "abort") and producer_id in self.open:
            end(log, committed=kind == "commit", producer_id=producer_id)
            self.open.discard(producer_id)
        elif kind == "later":
            self.now_ms += 600 * count

    def _sequenced(self, producer_id: int, count: int, key: bytes, *, transactional: bool) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + count
        value = b"v%d" % self.log.log_end_offset
        fields = {"key": key, "value": value, "transactional": transactional, "producer_id": producer_id}
        self.log.append_as_leader(sequenced(sequence, count, **fields), 0)  # type: ignore[arg-type]


@settings(max_examples=120, deadline=None, derandomize=True)
@given(histories())
def test_whatever_was_written_the_last_value_of_each_key_offsets_and_producers_stay(
    history: list[tuple[str, int, int]],
) -> None:
    storage = MemoryStorage()
    log = compacted(storage, segment_bytes=400)
    doing = History(log)
    for kind, number, count in history:
        doing.do(kind, number, count)
        if kind != "round":
            continue
        before = visible_to_readers(log)
        all_before = {row.offset: row for row in rows(log)}
        known, end_before = producers(log), log.log_end_offset
        clean(log, doing.now_ms)
        assert without_tombstones(visible_to_readers(log)) == without_tombstones(before)
        assert all(all_before[row.offset] == row for row in rows(log)), "a record has changed"
        assert (producers(log), log.log_end_offset) == (known, end_before)
        expected = visible(log)
        log.close(clean=False)
        for name in storage.files():
            if name.endswith(".snapshot"):
                storage.remove(name)
        log = doing.log = compacted(storage, segment_bytes=400)
        assert producers(log) == known
        assert (log.log_end_offset, rows(log), log.last_stable_offset(log.log_end_offset)) == (
            end_before,
            rows_of(expected),
            expected[8],
        )


def visible_to_readers(log: Log) -> dict[bytes | None, Row]:
    """The last committed record of each key."""
    return latest(rows(log, committed=True))


def without_tombstones(found: dict[bytes | None, Row]) -> dict[bytes | None, Row]:
    """Tombstones may go; then the key is simply absent."""
    return {key: row for key, row in found.items() if row.value is not None}


def rows_of(expected: tuple[Any, ...]) -> list[Row]:
    """The rows in the bytes that ``visible`` returned."""
    return [
        Row(each.offset, each.timestamp, each.key, each.value, each.headers)
        for found in iter_batches(expected[6])
        if not found.is_control
        for each in found.records()
    ]


def filled(storage: Storage) -> Log:
    """A log with all that a cleaner treats specially; its first segments are small, so they become one."""
    log = compacted(storage)
    for index in range(9):
        put(log, b"k%d" % (index % 3), b"%d" % index)
    put(log, b"stays")
    roll(log)
    clean(log)
    for index in range(3):
        put(log, b"k%d" % index, b"%d" % index)
    begin(log, 0, 2, key=b"k0", value=b"aborted")
    end(log, committed=False)
    begin(log, 2, 2, key=b"k1", value=b"committed")
    end(log)
    put(log, b"k2", None)
    for index in range(5):
        put(log, b"k%d" % (index % 3 + 2), b"%d" % index)
    roll(log)
    log.flush()
    return log


def strikes_of_a_round() -> int:
    fault = Fault()
    log = filled(FaultyStorage(MemoryStorage(), fault))
    fault.arm(-1)
    count = len(log.segment_base_offsets)
    clean(log)
    assert len(log.segment_base_offsets) < count, "segments must become one"
    return fault.count


STRIKES = strikes_of_a_round()


@pytest.mark.parametrize("mode", ["stop", "tear"])
def test_a_process_that_dies_at_any_step_of_a_round_loses_nothing(mode: str) -> None:
    assert STRIKES > 25
    for at in range(STRIKES):
        storage = MemoryStorage()
        fault = Fault()
        log = filled(FaultyStorage(storage, fault))
        before = without_tombstones(visible_to_readers(log))
        known, end_before = producers(log), log.log_end_offset
        fault.arm(at, mode, keep=50)
        with pytest.raises(Killed):
            clean(log)
        log = compacted(storage)
        assert without_tombstones(visible_to_readers(log)) == before, at
        assert (producers(log), log.log_end_offset) == (known, end_before), at
        assert not [name for name in storage.files() if name.endswith((".cleaned", ".swap", ".deleted"))], at
        for segment, following in itertools.pairwise(log.segments):
            assert segment.next_offset() <= following.base_offset, at
        clean(log)
        assert without_tombstones(visible_to_readers(log)) == before, at


def test_a_swap_that_was_not_wholly_prepared_leaves_the_old_segments() -> None:
    """The log file has its ``.swap`` name, and an index still its ``.cleaned`` name."""
    found = 0
    for at in range(STRIKES):
        storage = MemoryStorage()
        fault = Fault()
        log = filled(FaultyStorage(storage, fault))
        fault.arm(at, "stop")
        with pytest.raises(Killed):
            clean(log)
        suffixes = {name.rpartition(".")[2] for name in storage.files()}
        if {"swap", "cleaned"} <= suffixes:
            found += 1
            before = {name: storage.read(name) for name in storage.files() if name.endswith(".log")}
            compacted(storage)
            assert {name: storage.read(name) for name in storage.files() if name.endswith(".log")} == before
    assert found >= 2


def test_a_gap_at_the_end_of_the_dirty_part_is_clean_as_well() -> None:
    log = compacted()
    log.append_as_follower(batch(1, key=b"a", partition_leader_epoch=0))
    log.config = dataclasses.replace(COMPACTED, segment_bytes=1)
    log.append_as_follower(batch(1, key=b"b", base_offset=10, partition_leader_epoch=0))
    log.config = COMPACTED
    assert log.active_base_offset == 10
    clean(log)
    assert log.cleaned_to == 10


def test_a_process_that_dies_again_while_it_recovers_loses_nothing() -> None:
    for at in range(STRIKES - 25, STRIKES, 6):
        for again in range(60):
            storage = MemoryStorage()
            fault = Fault()
            log = filled(FaultyStorage(storage, fault))
            before = without_tombstones(visible_to_readers(log))
            fault.arm(at, "stop")
            with pytest.raises(Killed):
                clean(log)
            fault.is_dead = False
            fault.arm(again, "stop")
            try:
                compacted(FaultyStorage(storage, fault))
            except Killed:
                assert without_tombstones(visible_to_readers(compacted(storage))) == before, (at, again)
            else:
                break
        else:
            raise AssertionError("a start takes more than 60 steps")


@pytest.mark.parametrize("at", range(STRIKES))
def test_a_disk_that_fails_at_any_step_leaves_a_log_that_goes_on_or_must_be_opened_again(at: int) -> None:
    storage = MemoryStorage()
    fault = Fault()
    log = filled(FaultyStorage(storage, fault))
    before = without_tombstones(visible_to_readers(log))
    fault.arm(at, "fail")
    with pytest.raises((OSError, KafkaStorageError)):
        clean(log)
    if not log._unusable:
        assert without_tombstones(visible_to_readers(log)) == before
        clean(log)
        assert without_tombstones(visible_to_readers(log)) == before
    assert without_tombstones(visible_to_readers(compacted(storage))) == before


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_log_that_must_be_opened_again_is_not_cleaned_before(is_on_disk: bool, tmp_path: Path) -> None:
    """The next start finishes its swap. Nothing that is called before may write or create a file."""
    found = 0
    # The second half of a swap is among the last steps of a round.
    for at in range(STRIKES - 10, STRIKES):
        storage: Storage = DirectoryStorage(tmp_path / str(at)) if is_on_disk else MemoryStorage()
        fault = Fault()
        log = filled(FaultyStorage(storage, fault))
        before = without_tombstones(visible_to_readers(log))
        fault.arm(at, "fail")
        with pytest.raises((OSError, KafkaStorageError)):
            clean(log)
        if log._unusable:
            found += 1
            names = storage.files()
            part = Cleanable(log.log_start_offset, log.active_base_offset, 1.0, True, False)
            with pytest.raises(KafkaStorageError, match="must be opened again"):
                run_steps(Cleaning(log, part, OffsetMap(10_000, 1.0, 100), NOW).steps())
            for segment in log.segments:
                with suppress(OSError):
                    segment.file.peek(0, 100)
            assert storage.files() == names, at
            log.close(clean=False)
            assert without_tombstones(visible_to_readers(compacted(storage))) == before, at
    assert found > 5


def test_a_round_deletes_the_unfinished_files_of_an_earlier_one() -> None:
    """Otherwise they would make the next start drop the swap of a later segment."""
    storage = MemoryStorage()
    log = filled(storage)
    for suffix in (".log", ".index"):
        storage.replace(segment_name(1, suffix) + ".cleaned", b"")
    clean(log)
    assert not [name for name in storage.files() if name.endswith(".cleaned")]


def test_on_disk_the_files_are_those_of_kafka(tmp_path: Path) -> None:
    log = filled(DirectoryStorage(tmp_path))
    before = without_tombstones(visible_to_readers(log))
    seen = set()
    part = cleanable(log, NOW, log.log_end_offset)
    steps = Cleaning(log, part, OffsetMap(10_000, 1.0, 100), NOW).steps()
    result: object = None
    try:
        while True:
            work: Work | None = steps.send(result)
            result = None if work is None else work.run()
            seen |= {path.name for path in tmp_path.iterdir()}
            assert without_tombstones(visible_to_readers(log)) == before
    except StopIteration as stop:
        log.cleaned_to = stop.value
    first = segment_name(0, ".log")
    assert {f"{first}.cleaned", f"{first}.swap", segment_name(0, ".index") + ".swap"} <= seen
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]
    for each in stored(log):
        RecordBatch(bytes(each.buffer)).validate()
    found = rows(log)
    log.close(clean=True)
    assert rows(open_log(DirectoryStorage(tmp_path), COMPACTED, clean=True)) == found


def test_a_round_that_is_closed_during_a_sync_leaves_no_file(tmp_path: Path) -> None:
    """The sync may still run in its thread. A file that it wrote would make the next start drop a later swap."""
    log = filled(DirectoryStorage(tmp_path))
    before = rows(log)
    steps = Cleaning(log, cleanable(log, NOW, log.log_end_offset), OffsetMap(10_000, 1.0, 100), NOW).steps()
    work = next(steps)
    while work is None or not work.is_slow:
        work = next(steps)
    steps.close()
    work.run()
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".cleaned"]
    assert rows(log) == before
    clean(log)
    assert without_tombstones(visible_to_readers(log))


def test_a_truncation_makes_what_replaces_the_records_dirty() -> None:
    log = compacted()
    for _ in range(20):
        put(log, b"key")
    clean(log)
    assert log.cleaned_to == log.active_base_offset
    log.truncate_to(15)
    assert log.cleaned_to == log.active_base_offset > 0
    log.truncate_to(3)
    assert log.cleaned_to == 0


def test_max_compaction_lag_rolls_a_compacted_segment() -> None:
    log = compacted(segment_bytes=100_000, max_compaction_lag_ms=100, min_cleanable_dirty_ratio=1.0)
    put(log, b"key", timestamp=NOW)
    put(log, b"key", timestamp=NOW + 101)
    assert log.segment_base_offsets == [0, 1]
    assert not clean(log, NOW + 100).is_due
    assert clean(log, NOW + 101).is_due
