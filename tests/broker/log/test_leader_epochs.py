"""Leader epochs: the cache, its file, and truncation by it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.log import EpochEntry, LeaderEpochCache, MemoryStorage
from aioproducer.broker.log.checkpoints import CorruptFileError
from aioproducer.broker.log.leader_epochs import EPOCH_CHECKPOINT_NAME
from tests.broker.log.building import Fault, FaultyStorage, batch, content, open_log, stored

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(0, 8), st.integers(0, 40)),
        st.tuples(st.just("end"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("start"), st.integers(0, 40), st.just(0)),
    ),
    max_size=15,
)


@settings(max_examples=150)
@given(STEPS, st.integers(-1, 9), st.integers(0, 45))
def test_entries_rise_and_an_epoch_ends_where_the_next_begins(
    steps: list[tuple[str, int, int]], epoch: int, offset: int
) -> None:
    storage = MemoryStorage()
    cache = LeaderEpochCache(storage)
    for step, first, second in steps:
        if step == "assign":
            needed = cache.needs(first, second)
            before = cache.entries
            cache.assign(first, second)
            assert needed or before == cache.entries
            assert cache.latest_epoch == first or first <= (before[-1].epoch if before else -1)
        elif step == "end":
            cache.truncate_from_end(first)
            assert all(entry.start_offset < first for entry in cache.entries)
        else:
            covered = cache.epoch_for_offset(first)
            cache.truncate_from_start(first)
            assert all(entry.start_offset >= first for entry in cache.entries)
            assert cache.epoch_for_offset(first) == covered
        entries = cache.entries
        assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in itertools.pairwise(entries))
    cache.save()
    reloaded = LeaderEpochCache(storage)
    reloaded.load()
    assert reloaded.entries == cache.entries
    entries = cache.entries
    end = max(45, offset)
    if epoch < 0 or not entries or epoch > entries[-1].epoch:
        expected = (-1, -1)
    elif epoch == entries[-1].epoch:
        expected = (epoch, end)
    else:
        higher = next(entry for entry in entries if entry.epoch > epoch)
        floors = [entry.epoch for entry in entries if entry.epoch <= epoch]
        expected = (floors[-1] if floors else epoch, higher.start_offset)
    assert cache.end_offset_for(epoch, end) == expected
    covering = [entry.epoch for entry in entries if entry.start_offset <= offset]
    assert cache.epoch_for_offset(offset) == (covering[-1] if covering else None)
    assert cache.earliest == (entries[0] if entries else None)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=12))
def test_a_follower_that_truncates_by_epochs_keeps_nothing_that_the_leader_lacks(
    terms: list[tuple[bool, int, int]],
) -> None:
    """Two replicas take turns to lead, writing some batches that the other has not fetched when it takes over."""
    replicas = [open_log(), open_log()]
    for epoch, (leads, fetched, unfetched) in enumerate(terms):
        leader, follower = replicas[leads], replicas[not leads]
        while True:
            latest = follower.leader_epochs.latest_epoch
            if latest is None:
                follower.truncate_to(0)
                break
            found, end = leader.end_offset_for_epoch(latest)
            if end == -1:
                # The leader never heard of that epoch, nor of a later one: this replica led alone.
                follower.truncate_to(follower.leader_epochs.entries[-1].start_offset)
                continue
            mine, my_end = follower.end_offset_for_epoch(found)
            follower.truncate_to(min(end, my_end if mine == found else end))
            if mine == found:
                break
        assert content(leader).startswith(content(follower))
        for index in range(fetched + unfetched):
            leader.append_as_leader(batch(2, value=b"%d" % epoch), epoch)
            if index < fetched:
                while follower.log_end_offset < leader.log_end_offset:
                    for buffer in leader.read(
                        follower.log_end_offset, 1 << 20, up_to=leader.log_end_offset, min_one_batch=True
                    ):
                        follower.append_as_follower(bytes(buffer))
                assert content(follower) == content(leader)
                assert follower.leader_epochs.entries == leader.leader_epochs.entries


def test_the_file_is_kafkas() -> None:
    storage = MemoryStorage()
    cache = LeaderEpochCache(storage)
    cache.assign(0, 0)
    cache.assign(3, 17)
    assert storage.read(EPOCH_CHECKPOINT_NAME) == b"0\n2\n0 0\n3 17\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x\n", "does not begin with a version"),
        (b"1\n0\n", "is of version 1"),
        (b"0\n2\n0 0\n", "states 2 entries, where 1 are"),
        (b"0\n1\n0 zero\n", "no epoch and offset"),
        (b"0\n1\n0 0 0\n", "no epoch and offset"),
        (b"0\n2\n1 5\n0 9\n", "that follow 1 and 5"),
        (b"0\n1\n-1 9\n", "no epoch and offset"),
        (b"\xff\n0\n", "does not begin"),
    ],
)
def test_a_corrupt_epoch_file_is_an_error(data: bytes, message: str) -> None:
    storage = MemoryStorage()
    storage.replace(EPOCH_CHECKPOINT_NAME, data)
    with pytest.raises(CorruptFileError, match=message):
        LeaderEpochCache(storage).load()


@pytest.mark.parametrize("data", [b"", b"0\n", b"0\n0\n"])
def test_an_empty_file_has_no_entries(data: bytes) -> None:
    storage = MemoryStorage()
    storage.replace(EPOCH_CHECKPOINT_NAME, data)
    cache = LeaderEpochCache(storage)
    cache.load()
    assert cache.entries == []


def test_invalid_epoch_entries_are_rejected() -> None:
    cache = LeaderEpochCache(MemoryStorage())
    with pytest.raises(ValueError, match="no leader epoch -1"):
        cache.assign(-1, 0)


def test_a_file_that_cannot_be_written_changes_nothing_and_is_written_later() -> None:
    fault = Fault()
    storage = FaultyStorage(MemoryStorage(), fault)
    cache = LeaderEpochCache(storage)
    cache.assign(1, 0)
    fault.arm(0)
    with pytest.raises(OSError, match="No space"):
        cache.assign(2, 10)
    assert cache.entries == [EpochEntry(1, 0)]
    assert cache.needs(1, 5)
    cache.assign(1, 5)
    cache.sync()
    assert storage.read(EPOCH_CHECKPOINT_NAME) == b"0\n1\n1 0\n"
    assert not cache.needs(1, 5)


def test_every_leader_marks_its_records() -> None:
    log = open_log()
    for epoch in (0, 0, 4, 7):
        log.append_as_leader(batch(3), epoch)
    assert log.leader_epochs.entries == [EpochEntry(0, 0), EpochEntry(4, 6), EpochEntry(7, 9)]
    assert [each.partition_leader_epoch for each in stored(log)] == [0, 0, 4, 7]
    assert log.end_offset_for_epoch(5) == (4, 9)
    log.advance_log_start_offset(8)
    assert log.leader_epochs.entries == [EpochEntry(4, 8), EpochEntry(7, 9)]
    assert log.end_offset_for_epoch(0) == (0, 8)


def test_the_epochs_of_a_log_that_is_closed_are_not_written_to_the_one_that_has_its_place() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    log.append_as_leader(batch(), 3)
    # In another thread a flush was under way.
    log.leader_epochs.note(9, 1)
    log.close(clean=False)
    before = storage.read(EPOCH_CHECKPOINT_NAME)
    assert before is not None
    log.leader_epochs.sync()
    assert storage.read(EPOCH_CHECKPOINT_NAME) == before
