"""The groups in one partition's log: loading, writing, expiry. The partition is a stand-in."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.records import OffsetCommitValue, group_record, offset_record
from aioproducer.broker.groups.shard import Shard
from aioproducer.broker.groups.states import GroupState
from aioproducer.broker.yielding import MAX_STEP_SECONDS
from aioproducer.errors import (
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
)
from tests.simulation.loop import VirtualLoop
from tests.virtual_time import run_to_end

from .driving import WALL_MS, Driver
from .replica import Clock, Replica, offset, offsets_of, serving

MINUTE_MS = 60_000


async def test_written_records_are_loaded() -> None:
    driver = Driver()
    members = driver.stable(2)
    replica = Replica()
    replica.keep(group_record("gone", driver.group.value()), offset(0, 5), offset(1, 6), key=b"\0\3\0\1g")
    replica.keep(group_record("group", driver.group.value()), offset(0, 7), offset(1, None))
    replica.keep(group_record("gone", None), offset(0, 9, "simple"), key=b"\0\2")
    shard = await serving(replica)
    assert set(shard.groups) == {"group", "simple"}
    assert shard.groups["group"].value() == driver.group.value()
    assert shard.groups["group"].state is GroupState.STABLE
    assert shard.groups["simple"].protocol_type is None
    assert offsets_of(shard) == {("orders", 0): 7}
    assert offsets_of(shard, "simple") == {("orders", 0): 9}
    code = shard.groups["group"].heartbeat(members[0].answer.member_id, None, 1, Clock().moment())
    assert code == Code.NONE
    shard.close(Code.NOT_COORDINATOR)
    assert not replica.watchers


def test_loading_yields_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """On virtual time, a record takes a tenth of a step: the load of the machine does not count."""
    loop = VirtualLoop(Random(1))
    replay = Shard._replay

    def replay_slowly(*arguments: Any) -> None:
        loop.hold_up(MAX_STEP_SECONDS / 10)
        replay(*arguments)

    monkeypatch.setattr(Shard, "_replay", replay_slowly)

    async def main() -> None:
        replica = Replica()
        for start in range(0, 20_000, 500):
            replica.keep(*[offset(index, index) for index in range(start, start + 500)])
        loading = asyncio.create_task(serving(replica))
        turns, longest, began = 0, 0.0, loop.time()
        while not loading.done():
            await asyncio.sleep(0)
            now = loop.time()
            turns, longest, began = turns + 1, max(longest, now - began), now
        # Ten records a turn, or eleven.
        assert turns > 20_000 / 12
        assert longest < 1.2 * MAX_STEP_SECONDS
        shard = loading.result()
        assert len(offsets_of(shard)) == 20_000
        shard.close(Code.NOT_COORDINATOR)

    run_to_end(loop, main())


async def test_a_log_may_be_cut_at_its_start_while_it_is_loaded() -> None:
    replica = Replica()
    replica.keep(offset(0, 1))
    replica.keep(offset(1, 1), offset(2, 1))
    replica.log_start_offset = 2
    shard = await serving(replica)
    assert offsets_of(shard) == {("orders", 2): 1}


async def test_offsets_take_effect_when_they_are_replicated() -> None:
    replica = Replica(replicates=False)
    shard = await serving(replica)
    codes: list[int] = []
    shard.append([offset(0, 1)], codes.append)
    shard.append([offset(0, 2), offset(1, 3)], codes.append)
    assert codes == []
    assert offsets_of(shard) == {}
    barrier: list[int] = []
    shard.append([], barrier.append)
    assert not barrier
    replica.high_watermark = 1
    replica.fail(NotEnoughReplicasAfterAppendError())
    assert codes == [0, 0]
    assert barrier == [0]
    assert offsets_of(shard) == {("orders", 0): 2, ("orders", 1): 3}
    assert "group" in shard.groups
    shard.close(Code.NOT_COORDINATOR)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotEnoughReplicasError(), Code.COORDINATOR_NOT_AVAILABLE),
        (NotLeaderOrFollowerError(), Code.NOT_COORDINATOR),
        (KafkaStorageError(), Code.NOT_COORDINATOR),
        (RecordTooLargeError(), Code.UNKNOWN_SERVER_ERROR),
        (KafkaError("anything"), Code.UNKNOWN_SERVER_ERROR),
    ],
)
@pytest.mark.parametrize("when", ["appending", "replicating"])
async def test_a_failed_write_changes_nothing(error: KafkaError, code: int, when: str) -> None:
    replica = Replica(replicates=False)
    shard = await serving(replica)
    codes: list[int] = []
    if when == "appending":
        replica.append_error = error
    shard.append([offset(0, 1)], codes.append)
    if when == "replicating":
        replica.fail(error)
    assert codes == [code]
    assert offsets_of(shard) == {}
    assert shard.groups == {}


async def test_a_slow_write_times_out_and_takes_effect_later() -> None:
    replica = Replica(replicates=False)
    shard = await serving(replica, timeout_ms=10)
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()
    second: asyncio.Future[int] = loop.create_future()
    shard.append([offset(0, 1)], first.set_result)
    await asyncio.sleep(0)
    shard.append([offset(1, 1)], second.set_result)
    assert await asyncio.wait_for(first, 5) == Code.COORDINATOR_NOT_AVAILABLE
    assert await asyncio.wait_for(second, 5) == Code.COORDINATOR_NOT_AVAILABLE
    assert offsets_of(shard) == {}
    replica.replicate()
    assert offsets_of(shard) == {("orders", 0): 1, ("orders", 1): 1}


async def test_waiting_requests_are_answered_when_the_shard_closes() -> None:
    replica = Replica(replicates=False)
    shard = await serving(replica)
    codes: list[int] = []
    shard.append([offset(0, 1)], codes.append)
    group = shard.create_group("new")
    shard.write_new(group)
    shard.serve(group)
    shard.close(Code.NOT_COORDINATOR)
    shard.append([offset(0, 2)], codes.append)
    assert codes == [Code.NOT_COORDINATOR] * 2
    assert group.state is GroupState.DEAD
    replica.replicate()
    assert offsets_of(shard) == {}


async def test_a_new_group_that_cannot_be_written_is_dropped() -> None:
    replica = Replica()
    replica.append_error = NotEnoughReplicasError()
    shard = await serving(replica)
    group = shard.create_group("new")
    driver = Driver(group=group)
    required = driver.join()
    assert required.code == Code.MEMBER_ID_REQUIRED
    waiting = driver.join(required.answer.member_id)
    shard.write_new(group)
    shard.serve(group)
    assert shard.groups == {}
    assert waiting.code == Code.COORDINATOR_NOT_AVAILABLE


async def test_timers_of_a_group_fire() -> None:
    replica = Replica()
    shard = await serving(replica)
    group = shard.create_group("group")
    driver = Driver(group=group)
    loop = asyncio.get_running_loop()
    driver.now = loop.time()
    required = driver.join(session_ms=60_000)
    shard.serve(group)
    answered: asyncio.Future[None] = loop.create_future()
    driver.join(required.answer.member_id, session_ms=60_000)
    group.members[required.answer.member_id].join_answer = lambda response: answered.set_result(None)
    shard.serve(group)
    await asyncio.wait_for(answered, 5)
    assert group.state is GroupState.COMPLETING_REBALANCE
    shard.close(Code.NOT_COORDINATOR)


async def test_offsets_expire_with_their_group() -> None:
    clock, replica = Clock(), Replica()
    driver = Driver()
    (member,) = driver.stable(1)
    driver.leave_as(member)
    empty = driver.group.value()
    empty.current_state_timestamp = WALL_MS + 5 * MINUTE_MS
    replica.keep(group_record("group", empty), offset(0, 1), offset(0, 1, "simple"))
    shard = await serving(replica, clock)
    clock.wall_ms += 7 * MINUTE_MS
    await shard.clean_up(6 * MINUTE_MS)
    # A deleted group: its offsets expire after their commit, the others after the last member left.
    assert set(shard.groups) == {"group"}
    assert offsets_of(shard) == {("orders", 0): 1}
    clock.wall_ms += 4 * MINUTE_MS
    await shard.clean_up(6 * MINUTE_MS)
    assert shard.groups == {}
    assert offsets_of(shard) == {}
    again = await serving(replica, clock)
    assert again.groups == {}


async def test_offsets_of_an_active_group_expire_if_no_member_reads_the_topic() -> None:
    clock, replica = Clock(), Replica()
    driver = Driver()
    driver.stable(1)
    other = Driver()
    other.stable(1, protocol_type="connect")
    replica.keep(group_record("group", driver.group.value()), offset(0, 1), offset(0, 1, topic="left"))
    replica.keep(group_record("other", other.group.value()), offset(0, 1, "other", topic="left"))
    shard = await serving(replica, clock)
    clock.wall_ms += 10 * MINUTE_MS
    await shard.clean_up(MINUTE_MS)
    assert offsets_of(shard) == {("orders", 0): 1}
    assert offsets_of(shard, "other") == {("left", 0): 1}
    shard.close(Code.NOT_COORDINATOR)


async def test_an_offset_with_an_expiry_expires_then() -> None:
    clock, replica = Clock(), Replica()
    value = OffsetCommitValue(offset=1, commit_timestamp=WALL_MS, expire_timestamp=WALL_MS + MINUTE_MS)
    replica.keep(offset_record("group", "orders", 0, value))
    shard = await serving(replica, clock)
    clock.wall_ms += MINUTE_MS - 1
    await shard.clean_up(0)
    assert offsets_of(shard) == {("orders", 0): 1}
    clock.wall_ms += 1
    await shard.clean_up(100 * MINUTE_MS)
    assert offsets_of(shard) == {}


async def test_offsets_of_commits_in_progress_do_not_expire() -> None:
    clock, replica = Clock(), Replica()
    replica.keep(offset(0, 1))
    shard = await serving(replica, clock)
    clock.wall_ms += 10 * MINUTE_MS
    replica.replicates = False
    shard.append([offset(0, 2)], lambda code: None)
    await shard.clean_up(MINUTE_MS)
    replica.replicate()
    assert offsets_of(shard) == {("orders", 0): 2}
    shard.close(Code.NOT_COORDINATOR)
    await shard.clean_up(MINUTE_MS)


async def test_offsets_of_deleted_partitions_are_deleted() -> None:
    replica = Replica()
    replica.keep(offset(0, 1), offset(1, 1))
    shard = await serving(replica)
    replica.replicates = False
    shard.append([offset(2, 1)], lambda code: None)
    shard.forget_partitions({("orders", 1), ("orders", 2)})
    replica.replicate()
    replica.replicate()
    assert offsets_of(shard) == {("orders", 0): 1}
