"""Transactions in a log: which are open, which were aborted, and what of that outlives the process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.log import AbortedTransaction, Log, LogConfig, MemoryStorage
from aioproducer.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from aioproducer.wire.control_batch import ControlRecordType, encode_control_batch, read_control_record
from aioproducer.wire.record_batch import RecordBatch, iter_batches
from tests.broker.log.building import (
    NOW,
    PRODUCER,
    Fault,
    FaultyStorage,
    Killed,
    aborted,
    batch,
    begin,
    content,
    end,
    open_log,
    open_transactions,
    producers,
    sequenced,
    stored,
    transactional,
    visible,
)

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)
OTHER = PRODUCER + 1


def stable(log: Log, high_watermark: int | None = None) -> int:
    return log.last_stable_offset(log.log_end_offset if high_watermark is None else high_watermark)


def expected(log: Log) -> tuple[int, list[tuple[int, int, int]]]:
    """The last stable offset and the aborted transactions once more, by reading every batch."""
    ongoing: dict[int, int] = {}
    found = []
    for each in stored(log):
        if each.is_control:
            first = ongoing.pop(each.producer_id, None)
            if first is not None and read_control_record(each).type is ControlRecordType.ABORT:
                found.append((each.producer_id, first, each.last_offset))
        elif each.is_transactional:
            ongoing.setdefault(each.producer_id, each.base_offset)
    return min(ongoing.values(), default=log.log_end_offset), found


def assert_as_read(log: Log) -> None:
    last_stable, found = expected(log)
    assert stable(log) == last_stable
    assert [each[:3] for each in aborted(log)] == found
    assert {key: first for key, (first, _) in open_transactions(log).items()} == open_by_reading(log)


def open_by_reading(log: Log) -> dict[int, int]:
    ongoing: dict[int, int] = {}
    for each in stored(log):
        if each.is_control:
            ongoing.pop(each.producer_id, None)
        elif each.is_transactional:
            ongoing.setdefault(each.producer_id, each.base_offset)
    return ongoing


# Readers of committed records


def test_the_last_stable_offset_is_where_the_first_open_transaction_begins() -> None:
    log = open_log()
    log.append_as_leader(batch(3), 0)
    assert stable(log) == 3
    begin(log, 0)
    log.append_as_leader(batch(), 0)
    begin(log, 0, producer_id=OTHER)
    begin(log, 1)
    assert stable(log) == 3
    assert stable(log, 2) == 2, "never above the high watermark"
    assert end(log) == 7
    assert stable(log) == 5
    end(log, producer_id=OTHER)
    assert stable(log) == log.log_end_offset == 9


def test_a_transaction_is_unstable_until_its_marker_is_replicated() -> None:
    log = open_log()
    begin(log, 0, 2)
    assert end(log) == 2
    begin(log, 2)
    assert end(log) == 4
    assert [stable(log, high_watermark) for high_watermark in range(6)] == [0, 0, 0, 3, 3, 5]


def test_a_marker_without_records_holds_nothing_back() -> None:
    log = open_log()
    end(log, committed=False, coordinator_epoch=3)
    assert (stable(log), aborted(log)) == (1, [])
    state = log.producer_state.producers[PRODUCER]
    assert (state.coordinator_epoch, state.batches, state.has_transaction) == (3, [], False)


def test_an_aborted_transaction_is_indexed_with_the_last_stable_offset_behind_it() -> None:
    log = open_log()
    begin(log, 0)
    begin(log, 0, producer_id=OTHER)
    begin(log, 1)
    end(log, committed=False)
    end(log, committed=False, producer_id=OTHER)
    assert aborted(log) == [AbortedTransaction(PRODUCER, 0, 3, 1), AbortedTransaction(OTHER, 1, 4, 5)]


def committed_records(log: Log, offset: int, max_bytes: int, high_watermark: int) -> list[int]:
    """The offsets that a reader of committed records finds, as Java's consumer does."""
    found, listed = log.read_committed(offset, max_bytes, up_to=stable(log, high_watermark), min_one_batch=True)
    left = sorted(listed, key=lambda each: each.first_offset)
    bad: set[int] = set()
    offsets: list[int] = []
    for each in iter_batches(b"".join(found)):
        while left and left[0].first_offset <= each.last_offset:
            bad.add(left.pop(0).producer_id)
        if each.is_control:
            if read_control_record(each).type is ControlRecordType.ABORT:
                bad.discard(each.producer_id)
        elif not (each.is_transactional and each.producer_id in bad):
            offsets += [record.offset for record in each.records() if record.offset >= offset]
    return offsets


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["data", "data", "plain", "commit", "abort", "reopen", "kill", "cut", "flush"]),
        st.integers(0, 2),
        st.integers(1, 3),
    ),
    max_size=30,
)


class Writer:
    """Three producers that write as steps say, and what each of their records became."""

    def __init__(self, log: Log, storage: Any) -> None:
        self.log = log
        self.storage = storage
        self.sequences: dict[int, int] = {}

    def step(self, kind: str, pick: int, count: int) -> None:
        log, producer_id = self.log, PRODUCER + pick
        if kind == "data":
            state = log.producer_state.producers.get(producer_id)
            sequence = 0 if state is None or not state.batches else state.last_sequence + 1
            begin(log, sequence, count, producer_id=producer_id, value=bytes(20 * count))
        elif kind == "plain":
            log.append_as_leader(batch(count), 0)
        elif kind in ("commit", "abort"):
            end(log, committed=kind == "commit", producer_id=producer_id)
        elif kind == "flush":
            log.flush()
        elif kind == "cut":
            log.truncate_to(max(log.log_start_offset, log.log_end_offset - 3 * count))
        else:
            log.close(kind == "reopen")
            point = log.recovery_point
            self.log = open_log(self.storage, SMALL, clean=kind == "reopen", recovery_point=point)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_readers_of_committed_records_see_no_open_or_aborted_transaction(steps: list[tuple[str, int, int]]) -> None:
    """After any steps, from any offset, and however few bytes are read at a time."""
    storage = MemoryStorage()
    writer = Writer(open_log(storage, SMALL), storage)
    for step in steps:
        writer.step(*step)
        assert_as_read(writer.log)
    log = writer.log
    last_stable, found = expected(log)
    good: list[int] = []
    for each in stored(log):
        is_aborted = each.is_transactional and any(
            producer_id == each.producer_id and first <= each.base_offset < last for producer_id, first, last in found
        )
        if not each.is_control and not is_aborted:
            good += [record.offset for record in each.records() if record.offset < last_stable]
    for start in range(last_stable):
        for max_bytes in (1, 150, 10_000):
            got = committed_records(log, start, max_bytes, log.log_end_offset)
            wanted = [offset for offset in good if offset >= start]
            assert got == wanted[: len(got)]


def test_the_last_stable_offset_is_never_above_the_high_watermark_or_below_the_log_start() -> None:
    log = open_log()
    begin(log, 0, 5)
    log.append_as_leader(batch(3), 0)
    log.advance_log_start_offset(4)
    assert stable(log) == 4
    assert [stable(log, each) for each in (4, 6, 8)] == [4, 4, 4]
    assert end(log, committed=False) == 8
    assert stable(log) == 9
    assert aborted(log) == [AbortedTransaction(PRODUCER, 0, 8, 9)]


# Checks before an append


def test_a_transaction_begins_only_where_it_was_verified() -> None:
    log = open_log()
    with pytest.raises(InvalidTxnStateError, match="not part of an ongoing transaction"):
        log.append_as_leader(transactional(0), 0)
    guard = log.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=False)
    assert guard is not None
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(transactional(0), 0)
    log.append_as_leader(transactional(0), 0, guard=guard)
    assert log.begin_verification(PRODUCER, 1, 0, supports_epoch_bump=False) is None
    log.append_as_leader(transactional(1), 0)


def test_verification_can_be_switched_off() -> None:
    log = open_log(config=LogConfig(transaction_partition_verification_enable=False))
    log.append_as_leader(transactional(0), 0)
    assert stable(log) == 0


def test_a_marker_between_verification_and_append_invalidates_the_guard() -> None:
    log = open_log()
    stale = log.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=False)
    end(log, committed=False)
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(transactional(0), 0, guard=stale)
    guard = log.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=False)
    assert guard is not stale
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(transactional(0), 0, guard=stale)
    log.append_as_leader(transactional(0), 0, guard=guard)
    end(log)
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(transactional(1), 0, guard=guard)


def test_the_marker_of_the_transaction_before_leaves_a_verification_of_the_bumped_epoch() -> None:
    log = open_log()
    guard = log.begin_verification(PRODUCER, 0, 1, supports_epoch_bump=True)
    end(log, epoch=1, version=2)
    log.append_as_leader(transactional(0, epoch=1), 0, guard=guard)
    assert open_transactions(log) == {PRODUCER: (1, 1)}


def test_verifications_expire() -> None:
    log = open_log()
    guard = log.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=False)
    log.producer_state.remove_expired(NOW + 999, 1000)
    assert log.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=False) is guard
    log.producer_state.remove_expired(NOW + 1000, 1000)
    assert log.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=False) is not guard


def test_a_later_batch_does_not_overtake_one_whose_verification_failed() -> None:
    log = open_log()
    log.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=False)
    guard = log.begin_verification(PRODUCER, 3, 0, supports_epoch_bump=False)
    with pytest.raises(OutOfOrderSequenceError, match=r"3 \(incoming seq. number\), 0 \(earliest seen sequence\)"):
        log.append_as_leader(transactional(3), 0, guard=guard)
    log.append_as_leader(transactional(0, 3), 0, guard=guard)
    log.append_as_leader(transactional(3), 0)
    assert log.log_end_offset == 4


def test_an_unknown_producer_with_its_own_epoch_for_each_transaction_begins_at_zero() -> None:
    log = open_log()
    guard = log.begin_verification(PRODUCER, 4, 0, supports_epoch_bump=True)
    with pytest.raises(OutOfOrderSequenceError, match="Expected sequence 0 for transactions v2"):
        log.append_as_leader(transactional(4), 0, guard=guard)
    log = open_log()
    begin(log, 4)


def test_an_older_epoch_is_refused_before_it_is_verified() -> None:
    log = open_log()
    log.append_as_leader(sequenced(0, epoch=2), 0)
    with pytest.raises(InvalidProducerEpochError, match="is 1, which is smaller than the last seen epoch 2"):
        log.begin_verification(PRODUCER, 1, 1, supports_epoch_bump=False)
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(transactional(1, epoch=1), 0)


def test_a_producer_with_an_open_transaction_writes_nothing_outside_of_it() -> None:
    log = open_log()
    begin(log, 0)
    before = visible(log)
    with pytest.raises(InvalidTxnStateError, match="Expected transactional write from producer 4000 at offset 1"):
        log.append_as_leader(sequenced(1), 0)
    assert visible(log) == before
    end(log)
    log.append_as_leader(sequenced(1), 0)


def test_the_coordinator_of_groups_verifies_its_transactional_batches_too() -> None:
    log = open_log()
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(transactional(-1), 0, origin="coordinator")
    guard = log.begin_verification(PRODUCER, -1, 0, supports_epoch_bump=True)
    log.append_as_leader(transactional(-1), 0, origin="coordinator", guard=guard)
    assert stable(log) == 0


# Markers


def test_a_marker_of_the_first_version_has_at_least_the_current_epoch() -> None:
    log = open_log()
    begin(log, 0, epoch=3)
    with pytest.raises(InvalidProducerEpochError, match=r"is 2, which is < the last seen epoch 3 \(TV1\)"):
        end(log, epoch=2)
    end(log, epoch=3)
    end(log, epoch=3)
    begin(log, 1, epoch=3)
    end(log, epoch=4)
    assert log.producer_state.producers[PRODUCER].batches == []
    assert stable(log) == log.log_end_offset


def test_a_marker_of_the_second_version_has_a_greater_epoch_than_an_open_transaction() -> None:
    log = open_log()
    begin(log, 0, epoch=3)
    before = visible(log)
    for epoch in (2, 3):
        with pytest.raises(InvalidProducerEpochError, match=rf"is {epoch}, which is <= the last seen epoch 3 \(TV2\)"):
            end(log, epoch=epoch, version=2)
    assert visible(log) == before
    end(log, epoch=4, version=2)
    assert stable(log) == log.log_end_offset


def test_a_marker_that_is_sent_again_is_accepted_while_no_transaction_is_open() -> None:
    log = open_log()
    begin(log, 0, epoch=3)
    end(log, epoch=4, committed=False, version=2)
    assert end(log, epoch=4, committed=False, version=2) == 2
    assert aborted(log) == [AbortedTransaction(PRODUCER, 0, 1, 2)]
    begin(log, 0, epoch=4)
    with pytest.raises(InvalidProducerEpochError):
        end(log, epoch=4, committed=False, version=2)
    assert stable(log) == 3


def test_a_transaction_of_the_greatest_epoch_can_be_ended() -> None:
    log = open_log()
    begin(log, 0, epoch=32767)
    end(log, epoch=32767, version=2)
    assert stable(log) == log.log_end_offset


def test_a_coordinator_that_was_replaced_ends_nothing() -> None:
    log = open_log()
    end(log, coordinator_epoch=5)
    begin(log, 0)
    with pytest.raises(TransactionCoordinatorFencedError, match=r"4 \(zombie\), 5 \(current\)"):
        end(log, coordinator_epoch=4)
    end(log, coordinator_epoch=5)


# What outlives the process


def test_producers_with_an_open_transaction_do_not_expire() -> None:
    now = NOW
    config = LogConfig(producer_id_expiration_ms=1000, retention_ms=-1)
    storage = MemoryStorage()
    log = open_log(storage, config, wall_ms=lambda: now)
    begin(log, 0)
    log.append_as_leader(sequenced(0, producer_id=OTHER), 0)
    now = NOW + 5000
    log.delete_old_segments(log.log_end_offset)
    assert list(log.producer_state.producers) == [PRODUCER]
    log.close(True)
    log = open_log(storage, config, wall_ms=lambda: now)
    assert open_transactions(log) == {PRODUCER: (0, 0)}
    assert stable(log) == 0


def test_a_segment_in_which_an_open_transaction_began_can_be_deleted() -> None:
    """As in Kafka retention heeds the high watermark alone; the transaction stays open until it is ended."""
    storage = MemoryStorage()
    config = LogConfig(segment_bytes=200, retention_bytes=250, retention_ms=-1)
    log = open_log(storage, config)
    begin(log, 0, value=bytes(100))
    for _ in range(4):
        log.append_as_leader(batch(value=bytes(100)), 0)
    assert log.delete_old_segments(log.log_end_offset) == 3
    assert (log.log_start_offset, stable(log)) == (3, 3)
    log.close(True)
    log = open_log(storage, config)
    assert (open_transactions(log), stable(log)) == ({PRODUCER: (0, 0)}, 3)
    end(log, committed=False)
    assert aborted(log) == [AbortedTransaction(PRODUCER, 0, 5, 6)]
    assert stable(log) == 6


def test_the_transaction_index_is_deleted_with_its_segment() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=200, retention_bytes=0, retention_ms=-1))
    for sequence in range(3):
        begin(log, sequence, value=bytes(100))
        end(log, committed=False)
    log.close(True)
    names = [name for name in storage.files() if name.endswith(".txnindex")]
    assert len(names) == len(aborted(log)) == 3
    log = open_log(storage, LogConfig(segment_bytes=200, retention_bytes=0, retention_ms=-1))
    log.delete_old_segments(log.log_end_offset)
    assert [name for name in storage.files() if name.endswith(".txnindex")] == []
    assert aborted(log) == []


def test_a_segment_without_aborted_transactions_has_no_index_of_them() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    begin(log, 0)
    end(log)
    log.close(True)
    assert [name for name in storage.files() if name.endswith(".txnindex")] == []


@pytest.mark.parametrize("damage", [b"y", b"x" * 33, b"\0\1" + bytes(32), bytes(68)], ids=range(4))
def test_an_invalid_transaction_index_is_rebuilt(damage: bytes) -> None:
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for sequence in range(4):
        begin(log, sequence, value=bytes(90))
        end(log, committed=False)
    log.close(True)
    before = aborted(log)
    name = max(name for name in storage.files() if name.endswith(".txnindex"))
    good = storage.read(name)
    assert good
    storage.replace(name, damage)
    log = open_log(storage, SMALL)
    assert aborted(log) == before
    assert storage.read(name) == good


def test_followers_index_what_the_leader_indexed() -> None:
    log, follower = open_log(config=SMALL), open_log(config=SMALL)
    for sequence in range(6):
        begin(log, sequence, value=bytes(40))
        begin(log, sequence, producer_id=OTHER)
        end(log, committed=sequence % 2 == 0)
        end(log, committed=sequence % 3 == 0, producer_id=OTHER)
    begin(log, 6)
    follower.append_as_follower(bytearray(content(log)))
    assert aborted(follower) == aborted(log)
    assert producers(follower) == producers(log)
    assert stable(follower) == stable(log) == 24


def test_a_follower_rejects_an_unreadable_control_batch() -> None:
    marker = bytearray(
        encode_control_batch(
            ControlRecordType.ABORT, coordinator_epoch=1, producer_id=PRODUCER, producer_epoch=1, timestamp=NOW
        )
    )
    good = RecordBatch(marker)
    broken = batch(producer_id=PRODUCER, producer_epoch=1, base_sequence=-1, transactional=True, control=True)
    follower = open_log()
    with pytest.raises(CorruptRecordError, match="control batch at offset 0"):
        follower.append_as_follower(broken)
    assert follower.log_end_offset == 0
    follower.append_as_follower(marker)
    assert follower.log_end_offset == good.next_offset


KILL_STEPS = [
    (kind, pick, 1 + index % 2)
    for index, (kind, pick) in enumerate(
        [("data", 0), ("data", 1), ("plain", 0), ("abort", 0), ("data", 2), ("flush", 0), ("data", 0), ("abort", 1)] * 2
        + [("cut", 0), ("data", 1), ("abort", 0), ("commit", 2), ("data", 0), ("flush", 0), ("abort", 1), ("plain", 0)]
    )
]


def write(storage: Any, log: Log) -> None:
    writer = Writer(log, storage)
    for step in KILL_STEPS:
        writer.step(*step)


def operations() -> int:
    fault = Fault()
    storage = FaultyStorage(MemoryStorage(), fault)
    write(storage, open_log(storage, SMALL))
    return fault.count


@settings(max_examples=150, deadline=None)
@given(st.integers(0, operations() - 1), st.sampled_from(["stop", "tear"]), st.integers(0, 160), st.integers(0, 25))
def test_a_log_killed_at_any_step_recovers_its_transactions(at: int, mode: str, keep: int, again: int) -> None:
    """The process dies at any step of writing, and perhaps once more while it recovers."""
    storage = MemoryStorage()
    log: Log | None = None
    point = 0
    fault = Fault(at, mode, keep)
    try:
        log = open_log(FaultyStorage(storage, fault), SMALL)
        write(storage, log)
    except Killed:
        point = log.recovery_point if log is not None else 0
    try:
        open_log(FaultyStorage(storage, Fault(again, "stop")), SMALL, clean=False, recovery_point=point)
    except Killed:
        pass
    log = open_log(storage, SMALL, clean=False, recovery_point=point)
    assert_as_read(log)
    alone = MemoryStorage()
    for name in storage.files():
        if name.endswith(".log"):
            alone.open(name).append([storage.read(name) or b""])
    rebuilt = open_log(alone, SMALL, clean=False)
    assert aborted(log) == aborted(rebuilt)
    assert producers(log) == producers(rebuilt)
    for producer_id in open_transactions(log):
        end(log, committed=False, producer_id=producer_id)
    assert stable(log) == log.log_end_offset
    log.close(True)
    assert_as_read(open_log(storage, SMALL))
