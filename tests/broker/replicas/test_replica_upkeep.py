"""What a node does for its replicas from time to time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aioproducer.broker import BrokerCluster
from aioproducer.broker.log import LogManager
from aioproducer.broker.replicas import replica_upkeep as replica_upkeep_module
from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.replicas.replica_manager import ReplicaManager
from aioproducer.errors import KafkaStorageError
from aioproducer.transport.memory import MemoryNetwork
from tests.broker.replicas.nodes import batch

TOPIC = "topic"


class Clock:
    """The wall clock of a cluster."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def cluster(clock: Clock) -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(network=MemoryNetwork(), wall_ms=clock) as started:
        started.create_topic(TOPIC, 3)
        yield started


@pytest.fixture
def manager(cluster: BrokerCluster) -> ReplicaManager:
    return cluster.brokers[1].replicas


async def write(manager: ReplicaManager, index: int = 0, topic: str = TOPIC, **keywords: object) -> None:
    await manager.append({(topic, index): batch(b"a" * 100, **keywords)}, acks=-1, timeout_ms=1000)


async def test_retention_deletes_old_segments(cluster: BrokerCluster, manager: ReplicaManager, clock: Clock) -> None:
    cluster.controller.alter_topic_configs(TOPIC, {"retention.ms": "1000"})
    await write(manager)
    partition = manager.partition(TOPIC, 0)
    calls: list[None] = []
    partition.add_watcher(lambda: calls.append(None))
    await manager._upkeep.delete_old_segments()
    assert (partition.log_start_offset, calls) == (0, [])
    clock.now_ms += 1001
    await manager._upkeep.delete_old_segments()
    assert partition.log_start_offset == 1
    # DeleteRecords and readers wait for that.
    assert calls


async def test_a_follower_sends_its_own_log_start_to_its_leader(clock: Clock) -> None:
    properties = {"replica.fetch.wait.max.ms": 20}
    async with BrokerCluster(2, network=MemoryNetwork(), wall_ms=clock, properties=properties) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]}, configs={"retention.ms": "1000"})
        await write(cluster.brokers[1].replicas)
        follower = cluster.brokers[2].replicas.partition(TOPIC, 0)
        leader = cluster.brokers[1].replicas.partition(TOPIC, 0)
        moved = asyncio.Event()
        follower.add_watcher(moved.set)
        async with asyncio.timeout(10):
            while follower.high_watermark < 1:
                await moved.wait()
                moved.clear()
        clock.now_ms += 1001
        leader.add_watcher(moved.set)
        await cluster.brokers[2].replicas._upkeep.delete_old_segments()
        async with asyncio.timeout(10):
            while leader.followers[2].log_start_offset < 1:
                await moved.wait()
                moved.clear()


async def test_an_error_of_one_partition_does_not_affect_the_others(
    cluster: BrokerCluster,
    manager: ReplicaManager,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(high_watermark: int, *, at_most: int) -> int:
        raise KafkaStorageError("disk is gone")

    cluster.controller.alter_topic_configs(TOPIC, {"retention.ms": "1000"})
    for index in range(3):
        await write(manager, index)
    clock.now_ms += 1001
    monkeypatch.setattr(manager.partition(TOPIC, 0).log, "delete_old_segments", fail)
    await manager._upkeep.delete_old_segments()
    assert [manager.partition(TOPIC, index).log_start_offset for index in range(3)] == [0, 1, 1]
    assert "disk is gone" in caplog.text


async def test_other_callbacks_run_between_partitions_and_may_remove_them(
    cluster: BrokerCluster, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_upkeep_module, "LONGEST_TURN", -1.0)
    seen: list[Partition] = []
    task = asyncio.create_task(manager._upkeep._each(seen.append))
    await asyncio.sleep(0)
    assert len(seen) == 1
    cluster.controller.delete_topic(TOPIC)
    await task
    assert len(seen) == 1


async def test_high_watermarks_are_checkpointed_after_a_change(
    manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    checkpoint = LogManager.checkpoint

    def record(logs: LogManager, high_watermarks: dict[tuple[str, int], int]) -> None:
        written.append(dict(high_watermarks))
        checkpoint(logs, high_watermarks)

    monkeypatch.setattr(LogManager, "checkpoint", record)
    await manager._upkeep.checkpoint()
    await manager._upkeep.checkpoint()
    assert written == [{(TOPIC, 0): 0, (TOPIC, 1): 0, (TOPIC, 2): 0}]
    await write(manager, 1)
    await manager._upkeep.checkpoint()
    assert written[1:] == [{(TOPIC, 0): 0, (TOPIC, 1): 1, (TOPIC, 2): 0}]
    assert manager.broker.logs.high_watermark(TOPIC, 1) == 1


async def test_expired_producers_are_removed(manager: ReplicaManager, clock: Clock) -> None:
    await write(manager, producer_id=7, producer_epoch=0, base_sequence=0)
    producers = manager.partition(TOPIC, 0).log.producer_state.producers
    await manager._upkeep.expire_producers()
    assert list(producers) == [7]
    clock.now_ms += 86_400_000
    await manager._upkeep.expire_producers()
    assert not producers


async def test_flush_ms_flushes_a_log_after_its_interval(
    cluster: BrokerCluster,
    manager: ReplicaManager,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 100.0
    monkeypatch.setattr(ReplicaManager, "now", lambda self: now)
    cluster.create_topic("safe", 1, configs={"flush.ms": "5000"})
    log = manager.partition("safe", 0).log
    await manager._upkeep.flush()
    await write(manager)
    await write(manager, topic="safe")
    now += 4.9
    await manager._upkeep.flush()
    assert log.recovery_point == 0
    now += 0.1
    with monkeypatch.context() as patch:

        async def fail(partition: Partition) -> None:
            raise KafkaStorageError("disk is gone")

        patch.setattr(manager, "flush_log", fail)
        await manager._upkeep.flush()
        assert "disk is gone" in caplog.text
    await manager._upkeep.flush()
    assert log.recovery_point == 1
    assert manager.partition(TOPIC, 0).log.recovery_point == 0
    await write(manager, topic="safe")
    now += 4.9
    await manager._upkeep.flush()
    now += 4.9
    await manager._upkeep.flush()
    # The time counts from when the flush before was seen.
    assert log.recovery_point == 1
    now += 0.2
    await manager._upkeep.flush()
    assert log.recovery_point == 2


@pytest.mark.parametrize(
    "configs", [{"log.flush.interval.ms": 10}, {"log.flush.interval.ms": 10, "log.flush.scheduler.interval.ms": 10}]
)
async def test_every_periodic_loop_runs(configs: dict[str, int]) -> None:
    properties = {
        "replica.lag.time.max.ms": 20,
        "replica.fetch.wait.max.ms": 10,
        "log.retention.check.interval.ms": 10,
        "replica.high.watermark.checkpoint.interval.ms": 10,
        **configs,
    }
    async with BrokerCluster(network=MemoryNetwork(), properties=properties) as cluster:
        cluster.create_topic(TOPIC)
        manager = cluster.brokers[1].replicas
        await write(manager)
        log = manager.partition(TOPIC, 0).log
        async with asyncio.timeout(10):
            while log.recovery_point < 1 or manager.broker.logs.high_watermark(TOPIC, 0) < 1:  # noqa: ASYNC110  # timers
                await asyncio.sleep(0.005)


async def test_one_failure_does_not_end_a_loop(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0
    enough = asyncio.Event()

    async def step() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            enough.set()
        raise RuntimeError("a bug")

    task = asyncio.create_task(replica_upkeep_module._every(0.001, step))
    await enough.wait()
    task.cancel()
    assert "a bug" in caplog.text
