"""Offsets of transactions: pending until a marker is replicated, then visible or dropped."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.groups.codes import Code, coordinator_code, marker_code, verification_code
from aioproducer.broker.groups.records import decode_marker, group_record
from aioproducer.broker.groups.shard import Marker
from aioproducer.broker.groups.states import GroupState
from aioproducer.errors import (
    InvalidProducerEpochError,
    KafkaStorageError,
    NotEnoughReplicasError,
    ProtocolError,
    TransactionCoordinatorFencedError,
)
from aioproducer.wire.record_batch import RecordBatch

from .driving import Driver
from .replica import (
    Clock,
    Replica,
    committed,
    ended,
    marker_batch,
    offset,
    offsets_of,
    pending_of,
    serving,
    state_of,
)

MINUTE_MS = 60_000


async def test_a_commit_marker_makes_pending_offsets_visible() -> None:
    replica = Replica()
    shard = await serving(replica)
    assert committed(shard, 7, offset(0, 1), offset(1, 2)) == [Code.NONE]
    assert offsets_of(shard) == {}
    assert pending_of(shard) == {("orders", 0): {7}, ("orders", 1): {7}}
    # The group exists from the first pending offset on.
    assert shard.groups["group"].state is GroupState.EMPTY
    assert ended(shard, 7, commit=True) == [Code.NONE]
    assert offsets_of(shard) == {("orders", 0): 1, ("orders", 1): 2}
    assert pending_of(shard) == {}


async def test_an_abort_marker_drops_pending_offsets() -> None:
    shard = await serving(Replica())
    shard.append([offset(0, 1)], lambda code: None)
    committed(shard, 7, offset(0, 5))
    committed(shard, 8, offset(0, 6))
    assert pending_of(shard) == {("orders", 0): {7, 8}}
    assert ended(shard, 7, commit=False) == [Code.NONE]
    assert offsets_of(shard) == {("orders", 0): 1}
    assert pending_of(shard) == {("orders", 0): {8}}
    # A marker of a producer without pending offsets changes nothing.
    assert ended(shard, 7, commit=True) == [Code.NONE]
    assert offsets_of(shard) == {("orders", 0): 1}


async def test_a_batch_of_a_transaction_is_as_kafka_writes_it() -> None:
    replica = Replica()
    shard = await serving(replica)
    committed(shard, 7, offset(0, 1), epoch=3)
    batch = RecordBatch(replica.batches[0].buffer)
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, 0)
    shard.append([offset(0, 2)], lambda code: None)
    plain = RecordBatch(replica.batches[1].buffer)
    assert not plain.is_transactional
    assert (plain.producer_id, plain.producer_epoch, plain.base_sequence) == (-1, -1, -1)


async def test_nothing_takes_effect_before_it_is_replicated() -> None:
    replica = Replica(replicates=False)
    shard = await serving(replica)
    commit = committed(shard, 7, offset(0, 1))
    marker = ended(shard, 7, commit=True)
    assert (commit, marker) == ([], [])
    assert pending_of(shard) == {}
    assert offsets_of(shard) == {}
    replica.high_watermark = 1
    for watcher in tuple(replica.watchers):
        watcher()
    assert (commit, marker) == ([Code.NONE], [])
    assert pending_of(shard) == {("orders", 0): {7}}
    replica.replicate()
    assert marker == [Code.NONE]
    assert offsets_of(shard) == {("orders", 0): 1}


async def test_the_later_record_wins_in_any_order_of_visibility() -> None:
    """Compaction keeps the last record of a key, so the first one must not survive in memory."""
    shard = await serving(Replica())
    committed(shard, 7, offset(0, 1), offset(1, 1))
    shard.append([offset(0, 9)], lambda code: None)
    committed(shard, 7, offset(1, 2))
    ended(shard, 7, commit=True)
    assert offsets_of(shard) == {("orders", 0): 9, ("orders", 1): 2}


async def test_a_tombstone_drops_pending_offsets_too() -> None:
    shard = await serving(Replica())
    committed(shard, 7, offset(0, 1), offset(1, 1))
    committed(shard, 8, offset(0, 2))
    shard.append([offset(0, None)], lambda code: None)
    assert pending_of(shard) == {("orders", 1): {7}}
    assert set(shard.offsets.pending) == {7}
    ended(shard, 8, commit=True)
    ended(shard, 7, commit=True)
    assert offsets_of(shard) == {("orders", 1): 1}


async def test_a_guard_is_good_until_the_next_marker() -> None:
    replica = Replica()
    shard = await serving(replica)
    guard = shard.begin_verification(7, 0, adds=False)
    assert guard is not None
    ended(shard, 7, commit=False)
    codes: list[int] = []
    shard.append_in_transaction([offset(0, 1)], 7, 0, guard, codes.append)
    assert codes == [Code.INVALID_TXN_STATE]
    committed(shard, 7, offset(0, 1))
    assert shard.begin_verification(7, 0, adds=False) is None
    with pytest.raises(InvalidProducerEpochError):
        shard.begin_verification(7, -1, adds=False)


async def test_pending_offsets_are_loaded() -> None:
    replica = Replica()
    first = await serving(replica)
    committed(first, 7, offset(0, 1))
    committed(first, 8, offset(0, 2), offset(0, 3, "other"))
    committed(first, 9, offset(1, 4))
    ended(first, 9, commit=True)
    committed(first, 9, offset(1, 5))
    ended(first, 9, commit=False)
    first.close(Code.NOT_COORDINATOR)
    second = await serving(replica)
    assert offsets_of(second) == {("orders", 1): 4}
    assert pending_of(second) == {("orders", 0): {7, 8}}
    assert pending_of(second, "other") == {("orders", 0): {8}}
    assert state_of(second) == state_of(first)
    ended(second, 8, commit=True)
    assert offsets_of(second) == {("orders", 0): 2, ("orders", 1): 4}
    assert offsets_of(second, "other") == {("orders", 0): 3}


async def test_control_records_that_are_no_markers_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica()
    shard = await serving(replica)
    committed(shard, 7, offset(0, 1))
    for batch in (marker_batch(7, kind=5), marker_batch(7, kind=1)):
        replica.take(batch)
    loaded = await serving(replica)
    assert offsets_of(loaded) == {("orders", 0): 1}
    assert caplog.records == []
    assert decode_marker(b"\0\0\0\0") is False
    assert decode_marker(b"\0\0\0\5") is None
    for key in (None, b"\0\0\0"):
        with pytest.raises(ProtocolError, match="has no type"):
            decode_marker(key)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TransactionCoordinatorFencedError(), 52),
        (InvalidProducerEpochError(), Code.INVALID_PRODUCER_EPOCH),
        (NotEnoughReplicasError(), Code.NOT_ENOUGH_REPLICAS),
        (KafkaStorageError(), Code.KAFKA_STORAGE_ERROR),
    ],
)
async def test_a_failed_marker_leaves_offsets_pending(
    error: NotEnoughReplicasError, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    replica = Replica()
    shard = await serving(replica)
    committed(shard, 7, offset(0, 1))
    replica.append_error = error
    assert ended(shard, 7, commit=True) == [code]
    assert pending_of(shard) == {("orders", 0): {7}}
    assert "a coordinator's write failed" in caplog.text
    replica.append_error = None
    assert ended(shard, 7, commit=True) == [Code.NONE]


async def test_a_closed_shard_accepts_neither_offsets_nor_markers() -> None:
    replica = Replica(replicates=False)
    shard = await serving(replica)
    waiting = committed(shard, 7, offset(0, 1))
    shard.close(Code.NOT_COORDINATOR)
    codes: list[int] = []
    shard.append_in_transaction([offset(0, 1)], 7, 0, None, codes.append)
    shard.append_marker(Marker(7, 0, True, 1, 2), codes.append)
    assert waiting + codes == [Code.NOT_COORDINATOR] * 3


async def test_a_pending_offset_keeps_the_visible_one_and_its_group() -> None:
    clock, replica = Clock(), Replica()
    shard = await serving(replica, clock)
    shard.append([offset(0, 1), offset(1, 1)], lambda code: None)
    committed(shard, 7, offset(0, 2))
    committed(shard, 8, offset(0, 2, "only pending"))
    clock.wall_ms += 10 * MINUTE_MS
    await shard.clean_up(MINUTE_MS)
    assert offsets_of(shard) == {("orders", 0): 1}
    assert set(shard.groups) == {"group", "only pending"}
    ended(shard, 7, commit=False)
    ended(shard, 8, commit=False)
    await shard.clean_up(MINUTE_MS)
    assert shard.groups == {}
    assert (await serving(replica, clock)).groups == {}


async def test_pending_offsets_of_deleted_partitions_are_deleted() -> None:
    shard = await serving(Replica())
    committed(shard, 7, offset(0, 1), offset(1, 1))
    shard.append([offset(1, 0)], lambda code: None)
    shard.forget_partitions({("orders", 1), ("orders", 2)})
    ended(shard, 7, commit=True)
    assert offsets_of(shard) == {("orders", 0): 1}


async def test_a_group_that_is_written_after_pending_offsets_keeps_its_metadata() -> None:
    driver = Driver()
    driver.stable(1)
    replica = Replica()
    shard = await serving(replica)
    committed(shard, 7, offset(0, 1))
    replica.keep(group_record("group", driver.group.value()))
    committed(shard, 7, offset(1, 1))
    loaded = await serving(replica)
    assert loaded.groups["group"].state is GroupState.STABLE
    loaded.close(Code.NOT_COORDINATOR)


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (Code.PRODUCER_FENCED, 5, Code.INVALID_PRODUCER_EPOCH),
        (Code.TRANSACTION_ABORTABLE, 4, Code.TRANSACTION_ABORTABLE),
        (Code.TRANSACTION_ABORTABLE, 3, Code.INVALID_TXN_STATE),
        (Code.NETWORK_EXCEPTION, 5, Code.COORDINATOR_LOAD_IN_PROGRESS),
        (Code.INVALID_TXN_STATE, 5, Code.INVALID_TXN_STATE),
    ],
)
def test_codes_of_a_failed_verification(code: int, version: int, expected: int) -> None:
    assert verification_code(code, version) == expected


def test_codes_of_a_coordinator_and_of_a_marker() -> None:
    unready = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)
    assert {marker_code(code) for code in unready} == {Code.NOT_LEADER_OR_FOLLOWER}
    assert marker_code(Code.REQUEST_TIMED_OUT) == Code.REQUEST_TIMED_OUT
    assert coordinator_code(Code.REQUEST_TIMED_OUT) == Code.COORDINATOR_NOT_AVAILABLE


GROUPS = ["a", "b"]
PRODUCERS = [1, 2]

_offsets = st.lists(st.tuples(st.sampled_from(GROUPS), st.integers(0, 1), st.integers(0, 99)), min_size=1, max_size=3)
_commits = st.tuples(st.just("commit"), st.sampled_from([None, *PRODUCERS]), _offsets)
_markers = st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans())
_others = st.one_of(
    st.tuples(st.just("delete"), st.sampled_from(GROUPS), st.integers(0, 1)),
    st.tuples(st.just("delete group"), st.sampled_from(GROUPS), st.none()),
    st.tuples(st.just("forget"), st.integers(0, 1), st.none()),
    st.tuples(st.sampled_from(["expire", "replicate", "reload"]), st.none(), st.none()),
)
_steps = st.one_of(_commits, _markers, _others)


class Model:
    """The offsets that result from the log's records alone, in their order."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], tuple[int, int]] = {}
        self.pending: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
        self.end = 0

    def commit(self, producer_id: int | None, offsets: list[tuple[str, int, int]]) -> None:
        for group_id, index, value in offsets:
            where = self.kept if producer_id is None else self.pending.setdefault(producer_id, {})
            where[group_id, index] = value, self.end
            self.end += 1

    def finish(self, producer_id: int, commit: bool) -> None:
        self.end += 1
        for offset_key, (value, record) in self.pending.pop(producer_id, {}).items():
            if commit and record > self.kept.get(offset_key, (0, -1))[1]:
                self.kept[offset_key] = value, record

    def delete(self, offset_key: tuple[str, int]) -> None:
        self.kept.pop(offset_key, None)
        for offsets in self.pending.values():
            offsets.pop(offset_key, None)


@settings(max_examples=200, deadline=None)
@given(st.lists(_steps, min_size=10, max_size=40))
async def test_a_load_results_in_the_live_state(
    steps: list[tuple[str, object, object]],
) -> None:
    clock, replica, model = Clock(), Replica(replicates=False), Model()
    shard = await serving(replica, clock)
    for step in steps:
        match step:
            case ("commit", producer_id, offsets):
                assert isinstance(offsets, list)
                records = [offset(index, value, group_id) for group_id, index, value in offsets]
                if isinstance(producer_id, int):
                    committed(shard, producer_id, *records)
                    model.commit(producer_id, offsets)
                else:
                    shard.append(records, lambda code: None)
                    model.commit(None, offsets)
            case ("end", int(producer_id), bool(commit)):
                ended(shard, producer_id, commit=commit)
                model.finish(producer_id, commit)
            case ("delete", str(group_id), int(index)):
                shard.append([offset(index, None, group_id)], lambda code: None)
                model.delete((group_id, index))
                model.end += 1
            case ("delete group", str(group_id), _):
                replica.replicate()
                tombstones = shard.offsets.forgotten(group_id)
                shard.append([*tombstones, group_record(group_id, None)], lambda code: None)
                for record in tombstones:
                    model.delete((record.key.group, record.key.partition))
                model.end += len(tombstones) + 1
            case ("forget", int(index), _):
                replica.replicate()
                before = len(replica.batches)
                shard.forget_partitions({("orders", index)})
                for group_id in GROUPS:
                    model.delete((group_id, index))
                model.end += sum(batch.record_count for batch in replica.batches[before:])
            case ("expire", _, _):
                replica.replicate()
                clock.wall_ms += 10 * MINUTE_MS
                before = len(replica.batches)
                await shard.clean_up(MINUTE_MS)
                pending = {offset_key for offsets in model.pending.values() for offset_key in offsets}
                for offset_key in set(model.kept) - pending:
                    # Old offsets only: each commit here has the time of the start.
                    del model.kept[offset_key]
                model.end += sum(batch.record_count for batch in replica.batches[before:])
            case ("reload", _, _):
                replica.replicate()
                shard.close(Code.NOT_COORDINATOR)
                shard = await serving(replica, clock)
            case _:
                replica.replicate()
    replica.replicate()
    assert model.end == replica.log_end_offset
    assert {
        (group_id, index): (kept.value.offset, kept.record_offset)
        for group_id in GROUPS
        for _, partitions in shard.offsets.of_group(group_id).items()
        for index, kept in partitions.items()
    } == model.kept
    assert {
        producer_id: {
            (group_id, index): (kept.value.offset, kept.record_offset) for (group_id, _, index), kept in offsets.items()
        }
        for producer_id, offsets in shard.offsets.pending.items()
    } == {producer_id: offsets for producer_id, offsets in model.pending.items() if offsets}
    loaded = await serving(replica, clock)
    assert state_of(loaded) == state_of(shard)
