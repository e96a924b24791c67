"""How a log comes back after its process ended: cleanly, or in the middle of anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.log import DirectoryStorage, Log, LogConfig, MemoryStorage, Storage
from aioproducer.errors import KafkaStorageError
from tests.broker.log.building import (
    NOW,
    Fault,
    FaultyStorage,
    Killed,
    batch,
    content,
    open_log,
    producers,
    sequenced,
    stored,
)

SMALL = LogConfig(segment_bytes=500, index_interval_bytes=100)


def copied(storage: MemoryStorage, names: str = ".log") -> MemoryStorage:
    """Another folder with the files of ``storage`` that end with ``names``: what can be rebuilt from them alone?"""
    copy = MemoryStorage()
    for name in storage.files():
        if name.endswith(names):
            copy.open(name).append([storage.read(name) or b""])
    return copy


def assert_rebuilt(log: Log, storage: MemoryStorage) -> None:
    """``log`` is what the bytes of its segments say, and nothing else."""
    bytes_alone = open_log(copied(storage), SMALL, clean=False, log_start_offset=log.log_start_offset)
    assert log.log_end_offset == bytes_alone.log_end_offset
    assert log.log_start_offset == bytes_alone.log_start_offset
    assert content(log) == content(bytes_alone)
    assert producers(log) == producers(bytes_alone)
    assert log.max_timestamp_offset() == bytes_alone.max_timestamp_offset()
    assert log.leader_epochs.entries == bytes_alone.leader_epochs.entries
    for offset in range(log.log_start_offset, log.log_end_offset):
        assert log.read(offset, 1, up_to=log.log_end_offset, min_one_batch=True)


def write(log: Log, count: int, returned: list[int]) -> None:
    """Idempotent batches under changing leaders, with a flush and a truncation between; notes what is promised."""
    for index in range(count):
        info = log.append_as_leader(sequenced(len(returned), value=bytes(index * 13 % 90)), index // 3)
        returned.append(info.last_offset)
        if index % 5 == 4:
            log.flush()
        if index % 7 == 6:
            cut = log.log_end_offset - 1
            del returned[-1]
            log.truncate_to(cut)


def operations(count: int) -> int:
    fault = Fault()
    log = open_log(FaultyStorage(MemoryStorage(), fault), SMALL)
    write(log, count, [])
    return fault.count


TOTAL = operations(20)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, TOTAL - 1), st.sampled_from(["stop", "tear"]), st.integers(0, 160))
def test_a_log_killed_at_any_step_recovers_what_its_bytes_contain(at: int, mode: str, keep: int) -> None:
    """At the n-th thing done to the storage the process dies, where that is a write perhaps in its middle."""
    storage = MemoryStorage()
    returned: list[int] = []
    log: Log | None = None
    recovery_point = 0
    fault = Fault(at, mode, keep)
    try:
        log = open_log(FaultyStorage(storage, fault), SMALL)
        write(log, 20, returned)
    except Killed:
        recovery_point = log.recovery_point if log is not None else 0
    reopened = open_log(storage, SMALL, clean=False, recovery_point=recovery_point)
    assert_rebuilt(reopened, storage)
    assert reopened.log_end_offset >= len(returned), "a written batch is gone"
    assert [each.base_sequence for each in stored(reopened)][: len(returned)] == list(range(len(returned)))
    follow = reopened.append_as_leader(sequenced(reopened.log_end_offset), 99)
    assert follow.first_offset == reopened.log_end_offset - 1
    reopened.close(True)
    assert_rebuilt(open_log(storage, SMALL), storage)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_log_killed_during_recovery_recovers_at_the_next_start(data: st.DataObject) -> None:
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    write(log, 13, [])
    log.close(False)
    before = content(open_log(copied(storage), SMALL, clean=False))
    last = sorted(name for name in storage.files() if name.endswith(".log"))[-1]
    storage.open(last).append([bytes(data.draw(st.integers(0, 100)))])
    for _ in range(3):
        try:
            open_log(FaultyStorage(storage, Fault(data.draw(st.integers(0, 20)), "stop")), SMALL, clean=False)
        except Killed:
            pass
    reopened = open_log(storage, SMALL, clean=False)
    assert content(reopened) == before
    assert_rebuilt(reopened, storage)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2000), st.sampled_from(["cut", "flip", "zeros", "repeat"]))
def test_a_torn_tail_is_cut_at_the_first_bad_batch(position: int, damage: str) -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(index_interval_bytes=100))
    ends = []
    for index in range(12):
        log.append_as_leader(sequenced(2 * index, 2, value=bytes(40)), 0)
        ends.append(log.size)
    log.close(False)
    name = "00000000000000000000.log"
    data = bytearray(storage.read(name) or b"")
    position %= len(data)
    good = [end for end in ends if end <= position]
    if damage == "cut":
        del data[position:]
    elif damage == "flip":
        # Leader epoch and base offset are outside of the checksum; the rest of the batch is not.
        position = max(position, (good[-1] if good else 0) + 16)
        data[position] ^= 0x10
        good = [end for end in ends if end <= position]
    elif damage == "zeros":
        position = good[-1] if good else 0
        data[position:] = bytes(len(data) - position)
    else:
        position = good[-1] if good else 0
        data = data[:position] + data[: ends[0]]
        good = good or [ends[0]]
    storage.remove(name)
    storage.open(name).append([bytes(data)])
    reopened = open_log(storage, SMALL, clean=False)
    assert reopened.size == (good[-1] if good else 0)
    assert reopened.log_end_offset == 2 * len(good)
    assert_rebuilt(reopened, storage)


def test_segments_behind_a_damaged_one_are_deleted() -> None:
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for _ in range(9):
        log.append_as_leader(batch(value=bytes(150)), 0)
    assert log.segment_base_offsets == [0, 2, 4, 6, 8]
    storage.open("00000000000000000004.log").truncate(100)
    storage.sync()
    reopened = open_log(storage, SMALL, clean=False, recovery_point=3)
    assert (reopened.segment_base_offsets, reopened.log_end_offset) == ([0, 2, 4], 4)
    assert not [name for name in storage.files() if name.startswith("00000000000000000008")]


def test_flushed_records_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for index in range(9):
        log.append_as_leader(sequenced(index, value=bytes(150)), 0)
        if index == 4:
            log.flush()
    read: list[int] = []
    recover = log._segments[0].recover
    monkeypatch.setattr(
        "aioproducer.broker.log.segment.Segment.recover",
        lambda self, *arguments: (read.append(self.base_offset), recover.__func__(self, *arguments))[1],
    )
    assert open_log(storage, SMALL, clean=False, recovery_point=log.recovery_point).log_end_offset == 9
    assert read == [4, 6, 8]
    read.clear()
    log.close(True)
    assert open_log(storage, SMALL, clean=True).log_end_offset == 9
    assert read == []


@pytest.mark.parametrize("damage", ["missing", "garbage", "no time index"])
def test_invalid_indexes_are_rebuilt(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for index in range(30):
        log.append_as_leader(batch(value=bytes(30), timestamp=NOW + index), 0)
    log.close(True)
    expected = {name: storage.read(name) for name in storage.files() if name.endswith("index")}
    for name in expected:
        if damage == "missing":
            storage.remove(name)
        elif damage == "garbage":
            storage.replace(name, b"not a multiple")
        elif name.endswith(".timeindex"):
            storage.remove(name)
    reopened = open_log(storage, SMALL)
    assert "are rebuilt" in caplog.text
    assert {name: storage.read(name) for name in expected} == expected
    assert reopened.offset_for_timestamp(NOW + 17) == (NOW + 17, 17, 0)


def test_a_file_damaged_after_a_clean_end_is_detected(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for _ in range(3):
        log.append_as_leader(batch(), 0)
    log.close(True)
    storage.open("00000000000000000000.log").truncate(log.size - 1)
    reopened = open_log(storage)
    assert f"is damaged at byte {2 * len(batch())}" in caplog.text
    assert reopened.log_end_offset == 2
    file = storage.open("00000000000000000000.log")
    bytes_now = bytearray(file.peek(0, file.size))
    file.truncate(0)
    file.append([bytes_now[:8] + bytes(4) + bytes_now[12:]])
    with pytest.raises(KafkaStorageError, match=r"log in memory is damaged at byte 0: .* a length of 12 bytes"):
        reopened.read(1, 100, up_to=2, min_one_batch=True)


def test_a_corrupt_epoch_file_is_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for index in range(12):
        log.append_as_leader(batch(value=bytes(90)), index // 4)
    log.close(True)
    storage.replace("leader-epoch-checkpoint", b"0\n7\nnonsense\n")
    reopened = open_log(storage, SMALL)
    assert "leader-epoch-checkpoint states 7 entries, where 1 are; it is rebuilt from the log" in caplog.text
    assert reopened.leader_epochs.entries == [(0, 0), (1, 4), (2, 8)]


def test_an_empty_segment_within_another_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    log.append_as_leader(batch(5), 0)
    log.close(True)
    storage.open("00000000000000000003.log")
    reopened = open_log(storage)
    assert (reopened.log_end_offset, reopened.segment_base_offsets) == (5, [0])
    assert "the empty segment 3 begins within the previous one, and is deleted" in caplog.text


def test_temporary_files_are_deleted_at_the_start() -> None:
    storage = MemoryStorage()
    for name in ("00000000000000000000.log.deleted", "x.tmp", "00000000000000000007.index", "9.timeindex", "kept"):
        storage.replace(name, b"x")
    log = open_log(storage)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert [name for name in storage.files() if not name.startswith("00000000000000000000.")] == ["kept"]


def test_a_log_that_lost_all_records_behind_its_start_is_empty() -> None:
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for _ in range(6):
        log.append_as_leader(batch(value=bytes(150)), 0)
    reopened = open_log(storage, SMALL, clean=False, log_start_offset=10)
    assert (reopened.log_start_offset, reopened.log_end_offset, reopened.size) == (10, 10, 0)
    assert reopened.segment_base_offsets == [10]
    assert reopened.append_as_leader(batch(), 0).first_offset == 10


def test_an_advanced_log_start_survives_a_restart() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for epoch in range(4):
        log.append_as_leader(batch(2), epoch)
    log.close(True)
    reopened = open_log(storage, log_start_offset=3)
    assert (reopened.log_start_offset, reopened.leader_epochs.entries[0]) == (3, (1, 3))


@pytest.mark.parametrize("clean", [False, True])
def test_disk_and_memory_recover_alike(tmp_path: Path, clean: bool) -> None:
    found = []
    for storage in (MemoryStorage(), DirectoryStorage(tmp_path / "topic-0")):
        again: Storage = storage
        log = open_log(storage, SMALL)
        write(log, 25, [])
        log.close(clean)
        if isinstance(storage, DirectoryStorage):
            shutil.copytree(tmp_path / "topic-0", tmp_path / "copy")
            again = DirectoryStorage(tmp_path / "copy")
        reopened = open_log(again, SMALL, clean=clean, recovery_point=log.recovery_point)
        found.append((content(reopened), reopened.log_end_offset, producers(reopened), again.files()))
    assert found[0] == found[1]


def test_an_error_of_the_disk_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "topic-0").write_text("a file where the folder should be")
    with pytest.raises(KafkaStorageError, match=r"cannot open the log of topic-0 in .*topic-0: "):
        open_log(DirectoryStorage(tmp_path / "topic-0"))
    for at in range(8):
        fault = Fault()
        log = open_log(FaultyStorage(MemoryStorage(), fault))
        log.append_as_leader(batch(), 0)
        fault.arm(at)
        with pytest.raises(
            KafkaStorageError, match=r"cannot (close|flush) the log of topic-0 in memory: .*No space left"
        ):
            log.close(True)
