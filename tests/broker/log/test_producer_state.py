"""What a partition remembers of producers, and its snapshots."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.log import LogConfig, MemoryStorage
from aioproducer.broker.log.checkpoints import CorruptFileError
from aioproducer.broker.log.producers import decode_snapshot, encode_snapshot
from aioproducer.errors import InvalidProducerEpochError, KafkaError, OutOfOrderSequenceError
from aioproducer.wire.control_batch import ControlRecordType, encode_control_batch
from aioproducer.wire.record_batch import increment_sequence
from tests.broker.log.building import NOW, PRODUCER, batch, open_log, sequenced, stored, visible

MAX = 2**31 - 1


class Model:
    """The rules for sequences once more, over the plain list of accepted batches."""

    def __init__(self) -> None:
        self.accepted: list[tuple[int, int, int, int]] = []  # epoch, first sequence, count, offset
        self.end = 0

    def offer(self, epoch: int, sequence: int, count: int) -> int | type[KafkaError]:
        if self.accepted:
            current = self.accepted[-1][0]
            recent = [each for each in self.accepted if each[0] == current][-5:]
            for each in recent:
                if each[:3] == (epoch, sequence, count):
                    return each[3]
            if epoch < current:
                return InvalidProducerEpochError
            due = 0 if epoch > current else increment_sequence(recent[-1][1], recent[-1][2])
            if sequence != due:
                return OutOfOrderSequenceError
        self.accepted.append((epoch, sequence, count, self.end))
        self.end += count
        return self.end - count


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([0, 5, MAX - 4, MAX]),
    st.lists(
        st.tuples(
            st.sampled_from(["next", "replay", "gap", "epoch", "old", "any"]), st.integers(1, 4), st.integers(0, 9)
        ),
        max_size=25,
    ),
)
def test_the_last_five_batches_of_a_producer_are_remembered(start: int, steps: list[tuple[str, int, int]]) -> None:
    log, model = open_log(), Model()
    epoch = 3
    for step, count, pick in [("first", 2, 0), *steps]:
        last = model.accepted[-1] if model.accepted else (epoch, start, 0, 0)
        due = increment_sequence(last[1], last[2])
        replayed = model.accepted[-min(pick + 1, len(model.accepted)) :][:1] or [last]
        offered: dict[str, tuple[int, int, int]] = {
            "first": (epoch, start, count),
            "next": (last[0], due, count),
            "replay": replayed[0][:3],
            "gap": (last[0], increment_sequence(due, 1 + pick), count),
            "epoch": (last[0] + 1, 0 if pick else 7, count),
            "old": (last[0] - 1, 0, count),
            "any": (last[0], pick, count),
        }
        epoch_now, sequence, count = offered[step]
        expected = model.offer(epoch_now, sequence, count)
        before = visible(log)
        if isinstance(expected, int):
            info = log.append_as_leader(sequenced(sequence, count, epoch=epoch_now), 0)
            assert (info.first_offset, info.last_offset) == (expected, expected + count - 1)
            assert info.is_duplicate == (before[1] == model.end)
            if info.is_duplicate:
                assert visible(log) == before
        else:
            with pytest.raises(expected):
                log.append_as_leader(sequenced(sequence, count, epoch=epoch_now), 0)
            assert visible(log) == before
        assert log.log_end_offset == model.end


def test_a_duplicate_is_answered_with_the_first_offset_and_timestamp() -> None:
    log = open_log()
    log.append_as_leader(batch(4), 0)
    first = log.append_as_leader(sequenced(0, 3, timestamp=NOW - 1000), 0)
    for sequence in range(3, 7):
        log.append_as_leader(sequenced(sequence), 0)
    again = log.append_as_leader(sequenced(0, 3, timestamp=NOW - 1000), 0)
    assert again.is_duplicate
    assert (again.first_offset, again.last_offset, again.size) == (first.first_offset, first.last_offset, 0)
    assert again.log_append_time_ms == again.max_timestamp == NOW - 998
    log.append_as_leader(sequenced(7), 0)
    with pytest.raises(OutOfOrderSequenceError, match=r"0 \(incoming seq. number\), 7 \(current end sequence number\)"):
        log.append_as_leader(sequenced(0, 3, timestamp=NOW - 1000), 0)


def test_an_unknown_producer_may_begin_anywhere_and_errors_give_the_reason() -> None:
    log = open_log()
    log.append_as_leader(sequenced(77, epoch=2), 0)
    with pytest.raises(InvalidProducerEpochError, match="is 1, which is smaller than the last seen epoch 2"):
        log.append_as_leader(sequenced(0, epoch=1), 0)
    with pytest.raises(OutOfOrderSequenceError, match="Invalid sequence number for new epoch"):
        log.append_as_leader(sequenced(78, epoch=3), 0)
    log.append_as_leader(sequenced(0, epoch=3), 0)


def test_sequences_wrap() -> None:
    log = open_log()
    log.append_as_leader(sequenced(MAX - 1, 4), 0)
    assert log.append_as_leader(sequenced(2, 2), 0).first_offset == 4
    assert log.append_as_leader(sequenced(MAX - 1, 4), 0).is_duplicate


def test_sequences_of_followers_and_coordinators_are_not_checked() -> None:
    log = open_log()
    log.append_as_leader(sequenced(5), 0)
    log.append_as_leader(sequenced(99), 0, origin="coordinator")
    assert log.producer_state.producers[PRODUCER].last_sequence == 99
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(sequenced(0, epoch=-1), 0, origin="coordinator")
    follower = open_log()
    follower.append_as_follower(sequenced(50, epoch=4, base_offset=0))
    follower.append_as_follower(sequenced(7, epoch=3, base_offset=1))
    assert follower.producer_state.producers[PRODUCER].producer_epoch == 3
    assert follower.producer_state.producers[PRODUCER].last_sequence == 7


def test_a_control_batch_of_a_new_epoch_removes_the_batches_of_older_ones() -> None:
    log = open_log()
    log.append_as_leader(sequenced(0), 0)
    marker = encode_control_batch(
        ControlRecordType.ABORT, coordinator_epoch=1, producer_id=PRODUCER, producer_epoch=1, timestamp=NOW
    )
    log.append_as_leader(bytearray(marker), 0, origin="coordinator")
    state = log.producer_state.producers[PRODUCER]
    assert (state.producer_epoch, state.batches, state.last_sequence) == (1, [], -1)
    assert stored(log)[-1].is_control
    with pytest.raises(OutOfOrderSequenceError):
        log.append_as_leader(sequenced(4, epoch=1), 0)
    log.append_as_leader(sequenced(0, epoch=1), 0)


def test_producers_expire() -> None:
    now = NOW
    config = LogConfig(producer_id_expiration_ms=1000, retention_ms=-1)
    storage = MemoryStorage()
    log = open_log(storage, config, wall_ms=lambda: now)
    log.append_as_leader(sequenced(0), 0)
    log.append_as_leader(sequenced(0, producer_id=1, timestamp=NOW + 500), 0)
    now = NOW + 1000
    log.delete_old_segments(log.log_end_offset)
    assert list(log.producer_state.producers) == [1]
    log.append_as_leader(sequenced(40), 0)
    log.close(True)
    now = NOW + 1600
    assert list(open_log(storage, config, wall_ms=lambda: now).producer_state.producers) == []


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=20))
def test_snapshots_hold_the_last_batch_of_each_producer(writes: list[tuple[int, int]]) -> None:
    log = open_log()
    for producer_id, epoch in writes:
        state = log.producer_state.producers.get(producer_id)
        if state is None or state.producer_epoch <= epoch:
            log.append_as_leader(sequenced(9, producer_id=producer_id, epoch=epoch), 0, origin="coordinator")
    known = log.producer_state.producers
    found = decode_snapshot(encode_snapshot(known))
    assert found.keys() == known.keys()
    for producer_id, state in found.items():
        assert state.batches == known[producer_id].batches[-1:]
        assert state.producer_epoch == known[producer_id].producer_epoch
    again = decode_snapshot(encode_snapshot(found))
    assert again == found
    assert found or not known


def test_an_incomplete_snapshot_is_an_error() -> None:
    log = open_log()
    log.append_as_leader(sequenced(0), 0)
    good = encode_snapshot(log.producer_state.producers)
    flipped = bytearray(good)
    flipped[20] ^= 1
    for data, message in (
        (b"", "no snapshot"),
        (good[:-1], "checksum"),
        (flipped, "checksum"),
        (struct.pack(">h", 7) + good[2:], "version 7"),
    ):
        with pytest.raises(CorruptFileError, match=message):
            decode_snapshot(bytes(data))


def rolled(storage: MemoryStorage, **options: Any) -> Any:
    return open_log(storage, LogConfig(segment_bytes=200), **options)


def test_a_snapshot_is_taken_where_a_segment_begins_and_at_a_clean_close() -> None:
    storage = MemoryStorage()
    log = rolled(storage)
    for sequence in range(5):
        log.append_as_leader(sequenced(sequence, value=bytes(60)), 0)
    assert log.segment_base_offsets == [0, 1, 2, 3, 4]
    assert log.producer_state.snapshots == [1, 2, 3, 4]
    log.close(True)
    assert [name for name in storage.files() if name.endswith("5.snapshot")]
    reopened = rolled(storage)
    assert reopened.producer_state.producers[PRODUCER].last_sequence == 4
    assert reopened.append_as_leader(sequenced(4, value=bytes(60)), 0).is_duplicate


def test_a_corrupt_snapshot_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    log = rolled(storage)
    for sequence in range(5):
        log.append_as_leader(sequenced(sequence, value=bytes(60)), 0)
    log.close(True)
    storage.replace("00000000000000000005.snapshot", b"nonsense")
    storage.replace("00000000000000000099.snapshot", b"of the future")
    reopened = rolled(storage)
    assert "producer snapshot at offset 5" in caplog.text
    assert reopened.producer_state.snapshots == [1, 2, 3, 4]
    assert reopened.producer_state.producers[PRODUCER].last_sequence == 4


def test_snapshots_without_a_segment_are_deleted_except_the_newest() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for sequence in range(3):
        log.append_as_leader(sequenced(sequence), 0)
        log.producer_state.take_snapshot()
    log.close(False)
    assert open_log(storage).producer_state.snapshots == [3]
