"""The simulation itself: its clock, the rules of its brokers, and its check for leftovers."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import RecordBatch, encode_batch
from tests.simulation import Partition, StalledError, World, run
from tests.simulation.cluster import (
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    _append_to_log,
)


def test_time_passes_without_real_waiting() -> None:
    async def scenario(world: World) -> tuple[float, int]:
        began, turns = world.loop.time(), world.loop.turns
        await asyncio.sleep(86_400 * 7)
        return world.loop.time() - began, world.loop.turns - turns

    (took, turns), _ = run(scenario)
    assert 86_400 * 7 <= took < 86_400 * 7 + 1
    assert turns < 20


def test_timers_fire_in_time_order() -> None:
    async def scenario(world: World) -> list[int]:
        fired: list[int] = []
        delays = list(range(1, 50))
        world.random.shuffle(delays)
        await asyncio.gather(*(_note_after(delay, fired) for delay in delays))
        return fired

    assert run(scenario)[0] == list(range(1, 50))


async def _note_after(delay: int, fired: list[int]) -> None:
    await asyncio.sleep(delay)
    fired.append(delay)


def test_waiting_for_an_impossible_event_raises_and_does_not_hang() -> None:
    async def scenario(world: World) -> None:
        await world.loop.create_future()

    with pytest.raises(StalledError, match="nothing is scheduled"):
        run(scenario)


class Client:
    """A client that takes no interest."""

    def data_received(self, data: object) -> None: ...

    def write_completed(self, count: int) -> None: ...

    def connection_lost(self, exception: Exception | None) -> None: ...


@pytest.mark.parametrize("left", ["a task", "a connection"])
def test_leftovers_are_detected(left: str) -> None:
    async def scenario(world: World) -> object:
        if left == "a task":
            return asyncio.create_task(asyncio.sleep(1000), name="left behind")
        return await world.connect("broker1", 9092, Client())

    with pytest.raises(AssertionError, match="left behind"):
        run(scenario)


def test_executor_jobs_run_as_timers() -> None:
    async def scenario(world: World) -> list[object]:
        failing = world.loop.run_in_executor(None, int, "x")
        return await asyncio.gather(world.loop.run_in_executor(None, int, "7"), failing, return_exceptions=True)

    (number, error), world = run(scenario)
    assert number == 7
    assert isinstance(error, ValueError)
    assert world.loop.executor_calls == 2


class Log:
    """A partition that batches are appended to by their sequences."""

    def __init__(self) -> None:
        self.partition = Partition(leader=1)

    def append(self, base_sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> tuple[int, int]:
        data = encode_batch(
            [SimpleRecord(0, None, b"value")] * count,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=base_sequence,
        )
        return _append_to_log(self.partition, RecordBatch(b"".join(data)), None)


def test_sequences_must_be_contiguous_and_a_duplicate_returns_its_offset() -> None:
    log = Log()
    assert [log.append(0, 3), log.append(3, 2), log.append(5)] == [(0, 0), (0, 3), (0, 5)]
    assert log.append(3, 2) == (0, 3)
    assert log.append(7) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert len(log.partition.records) == 6


def test_only_the_last_five_batches_are_remembered() -> None:
    log = Log()
    for sequence in range(6):
        assert log.append(sequence) == (0, sequence)
    assert log.append(1) == (0, 1)
    assert log.append(0) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_epochs_only_grow_and_start_at_sequence_0() -> None:
    log = Log()
    log.append(0, epoch=1)
    assert log.append(1, epoch=0) == (INVALID_PRODUCER_EPOCH, -1)
    assert log.append(1, epoch=2) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert log.append(0, epoch=2) == (0, 1)


def test_an_unknown_producer_may_start_at_any_sequence() -> None:
    """As in Kafka, where logs forget producers; this makes the first batch of a producer special."""
    assert Log().append(17) == (0, 0)


def test_sequences_wrap_around() -> None:
    log = Log()
    assert log.append(2**31 - 2, 2) == (0, 0)
    assert log.append(0) == (0, 2)


def test_the_same_seed_gives_the_same_topics() -> None:
    async def scenario(world: World) -> bytes:
        return world.cluster.create_topic("clicks").topic_id

    first, again, other = (run(scenario, seed=seed)[0] for seed in (1, 1, 2))
    assert first == again != other
