"""Writing through a node: outcomes of each partition, waiting for acknowledgements, flushing, logs that come and go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aioproducer.broker import Broker, BrokerCluster
from aioproducer.broker.log import AppendInfo, LeaderEpochCache, Log, LogManager
from aioproducer.broker.replicas import replica_manager as replicas_module
from aioproducer.broker.replicas.replica_manager import Outcomes, ReplicaManager
from aioproducer.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    InvalidRequiredAcksError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from aioproducer.transport.memory import MemoryNetwork
from tests.broker.replicas.nodes import batch, contents

TOPIC = "topic"


@pytest.fixture
async def cluster() -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(network=MemoryNetwork()) as started:
        started.create_topic(TOPIC, 3)
        yield started


@pytest.fixture
async def pair() -> AsyncIterator[BrokerCluster]:
    """Two nodes, of which the second fetches nothing."""
    async with BrokerCluster(2, network=MemoryNetwork()) as started:
        started.create_topic(TOPIC, assignments={0: [1, 2]})
        for fetcher in started.brokers[2].replicas.fetchers.values():
            await fetcher.close()
        yield started


@pytest.fixture
def broker(cluster: BrokerCluster) -> Broker:
    return cluster.brokers[1]


@pytest.fixture
def manager(broker: Broker) -> ReplicaManager:
    return broker.replicas


async def test_an_append_without_followers_does_not_wait(manager: ReplicaManager) -> None:
    for acks in (-1, 1, 0):
        append = manager.append({(TOPIC, 0): batch(b"a")}, acks=acks, timeout_ms=1000)
        with pytest.raises(StopIteration) as stopped:
            append.send(None)
        outcomes: Outcomes = stopped.value.value
        assert isinstance(outcomes[TOPIC, 0], AppendInfo)
    assert manager.partition(TOPIC, 0).high_watermark == 3


@pytest.mark.parametrize("acks", [-2, 2])
async def test_invalid_acks_are_rejected(manager: ReplicaManager, acks: int) -> None:
    with pytest.raises(InvalidRequiredAcksError):
        await manager.append({(TOPIC, 0): batch(b"a")}, acks=acks, timeout_ms=1000)
    assert manager.partition(TOPIC, 0).log_end_offset == 0


async def test_each_partition_has_its_own_outcome(manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = batch(b"b")
    broken[-1] ^= 1

    def fail(*args: object, **keywords: object) -> AppendInfo:
        raise RuntimeError("a bug")

    monkeypatch.setattr(manager.partition(TOPIC, 2), "append", fail)
    outcomes = await manager.append(
        {(TOPIC, 0): broken, (TOPIC, 2): batch(b"a"), ("other", 0): batch(b"a"), (TOPIC, 1): batch(b"a")},
        acks=-1,
        timeout_ms=1000,
    )
    assert isinstance(outcomes[TOPIC, 0], CorruptRecordError)
    assert isinstance(outcomes[TOPIC, 2], UnknownServerError)
    assert isinstance(outcomes["other", 0], UnknownTopicOrPartitionError)
    assert isinstance(outcomes[TOPIC, 1], AppendInfo)


async def test_partitions_are_found_or_the_error_says_why_not(pair: BrokerCluster) -> None:
    pair.create_topic("alone", assignments={0: [2]})
    manager = pair.brokers[1].replicas
    assert manager.leader(TOPIC, 0, 0) is manager.partition(TOPIC, 0)
    pair.controller.elect_leader(TOPIC, 0, 2)
    with pytest.raises(FencedLeaderEpochError):
        manager.leader(TOPIC, 0, 0)
    with pytest.raises(NotLeaderOrFollowerError, match="Leader not local"):
        manager.leader(TOPIC, 0)
    with pytest.raises(NotLeaderOrFollowerError, match="is not on broker 1"):
        manager.partition("alone", 0)
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.partition(TOPIC, 1)


async def test_a_request_times_out_and_leaves_nothing_behind(pair: BrokerCluster) -> None:
    manager = pair.brokers[1].replicas
    for timeout_ms in (10, 0, -1):
        outcomes = await manager.append({(TOPIC, 0): batch(b"a")}, acks=-1, timeout_ms=timeout_ms)
        assert isinstance(outcomes[TOPIC, 0], RequestTimedOutError)
        assert outcomes.unacknowledged[TOPIC, 0].last_offset == manager.partition(TOPIC, 0).log_end_offset - 1
    assert manager.partition(TOPIC, 0).watcher_count == 0


async def test_a_cancelled_request_leaves_nothing_behind(pair: BrokerCluster) -> None:
    manager = pair.brokers[1].replicas
    waiting = asyncio.create_task(manager.append({(TOPIC, 0): batch(b"a")}, acks=-1, timeout_ms=10_000))
    await asyncio.sleep(0)
    assert manager.partition(TOPIC, 0).watcher_count == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert manager.partition(TOPIC, 0).watcher_count == 0


async def test_a_request_that_waits_for_a_deleted_topic_fails(pair: BrokerCluster) -> None:
    manager = pair.brokers[1].replicas
    waiting = asyncio.create_task(manager.append({(TOPIC, 0): batch(b"a")}, acks=-1, timeout_ms=10_000))
    await asyncio.sleep(0)
    pair.controller.delete_topic(TOPIC)
    outcomes = await waiting
    assert isinstance(outcomes[TOPIC, 0], UnknownTopicOrPartitionError)
    assert not manager.broker.logs.logs


async def test_one_partition_of_a_request_waits_for_the_followers_the_other_does_not(pair: BrokerCluster) -> None:
    pair.create_topic("alone", assignments={0: [1]})
    manager = pair.brokers[1].replicas
    waiting = asyncio.create_task(
        manager.append({(TOPIC, 0): batch(b"a"), ("alone", 0): batch(b"a")}, acks=-1, timeout_ms=10_000)
    )
    await asyncio.sleep(0)
    assert not waiting.done()
    for fetcher in pair.brokers[2].replicas.fetchers.values():
        fetcher.start()
    outcomes = await waiting
    assert all(isinstance(outcome, AppendInfo) for outcome in outcomes.values())


async def test_a_large_request_gives_other_callbacks_a_turn(
    manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_module, "LONGEST_TURN", -1.0)
    waiting = asyncio.create_task(
        manager.append({(TOPIC, index): batch(b"a") for index in range(3)}, acks=1, timeout_ms=1000)
    )
    seen = []
    while not waiting.done():
        await asyncio.sleep(0)
        seen.append(sum(manager.partition(TOPIC, index).log_end_offset for index in range(3)))
    assert set(seen) >= {1, 2, 3}


class SlowDisk:
    """Flushes that take until they are let go, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.error: Exception | None = None
        self.threads: set[int] = set()
        flush = Log.flush

        def slow(log: Log, up_to: int | None = None) -> None:
            self.threads.add(threading.get_ident())
            assert self.gate.wait(10)
            if self.error is not None:
                raise self.error
            flush(log, up_to)

        monkeypatch.setattr(Log, "flush", slow)


@pytest.mark.parametrize("acks", [-1, 1])
async def test_records_are_flushed_before_they_are_acknowledged(
    cluster: BrokerCluster, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    cluster.create_topic("safe", 1, configs={"flush.messages": "1"})
    disk = SlowDisk(monkeypatch)
    partition = manager.partition("safe", 0)
    waiting = [
        asyncio.create_task(manager.append({("safe", 0): batch(b"a")}, acks=acks, timeout_ms=10_000)) for _ in range(3)
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    # All are in the log, the loop continues, and no request is answered yet.
    assert partition.log_end_offset == 3
    assert not any(task.done() for task in waiting)
    assert partition.high_watermark == 0
    # A request without acknowledgement does not wait.
    await manager.append({("safe", 0): batch(b"a")}, acks=0, timeout_ms=10_000)
    disk.gate.set()
    for outcomes in await asyncio.gather(*waiting):
        assert isinstance(outcomes["safe", 0], AppendInfo)
    assert threading.get_ident() not in disk.threads
    assert partition.log.recovery_point >= 3


@pytest.mark.parametrize("error", [OSError("disk is gone"), KafkaStorageError("disk is gone")])
async def test_unflushed_records_are_not_acknowledged(
    cluster: BrokerCluster, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    cluster.create_topic("safe", 1, configs={"flush.messages": "1"})
    with monkeypatch.context() as patch:
        disk = SlowDisk(patch)
        disk.error = error
        disk.gate.set()
        outcomes = await manager.append({("safe", 0): batch(b"a")}, acks=-1, timeout_ms=10_000)
        assert isinstance(outcomes["safe", 0], KafkaStorageError)
        assert "disk is gone" in str(outcomes["safe", 0])
    outcomes = await manager.append({("safe", 0): batch(b"a")}, acks=-1, timeout_ms=10_000)
    assert isinstance(outcomes["safe", 0], AppendInfo)


async def test_a_log_that_cannot_be_opened_fails_only_its_partition(
    cluster: BrokerCluster, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: LogManager, topic: str, index: int, topic_id: bytes) -> Log:
        raise KafkaStorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(LogManager, "get_or_create", fail)
        cluster.create_topic("full", 1)
    with pytest.raises(KafkaStorageError, match=r"full-0 cannot be used: .*no room"):
        manager.partition("full", 0)
    outcomes = await manager.append({("full", 0): batch(b"a"), (TOPIC, 0): batch(b"a")}, acks=-1, timeout_ms=1000)
    assert isinstance(outcomes["full", 0], KafkaStorageError)
    assert isinstance(outcomes[TOPIC, 0], AppendInfo)
    manager.apply([cluster.image.partition("full", 0)], [])
    assert manager.leader("full", 0).log_end_offset == 0


async def test_a_partition_that_cannot_be_led_does_not_affect_its_topic(
    cluster: BrokerCluster, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign = LeaderEpochCache.assign

    def fail(cache: LeaderEpochCache, epoch: int, start_offset: int) -> None:
        monkeypatch.setattr(LeaderEpochCache, "assign", assign)
        raise OSError("no room")

    monkeypatch.setattr(LeaderEpochCache, "assign", fail)
    cluster.create_topic("full", 2)
    with pytest.raises(KafkaStorageError, match=r"full-0 cannot be used: .*no room"):
        manager.partition("full", 0)
    assert manager.leader("full", 1).log_end_offset == 0
    cluster.controller.delete_topic("full")
    assert ("full", 0) not in manager.broker.logs.logs
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.partition("full", 0)


async def test_an_unusable_log_is_kept_at_the_start(
    cluster: BrokerCluster, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cache: LeaderEpochCache, epoch: int, start_offset: int) -> None:
        raise OSError("no room")

    await manager.append({(TOPIC, 0): batch(b"a")}, acks=-1, timeout_ms=1000)
    await cluster.kill(1)
    with monkeypatch.context() as patch:
        patch.setattr(LeaderEpochCache, "assign", fail)
        await cluster.restart(1)
        with pytest.raises(KafkaStorageError):
            cluster.brokers[1].replicas.partition(TOPIC, 0)
    await cluster.restart(1)
    assert cluster.brokers[1].replicas.leader(TOPIC, 0).log_end_offset == 1


async def test_changed_configurations_reach_the_logs(cluster: BrokerCluster, manager: ReplicaManager) -> None:
    cluster.controller.alter_topic_configs(TOPIC, {"retention.ms": "12345"})
    assert {partition.log.config.retention_ms for partition in manager.partitions.values()} == {12345}
    cluster.create_topic("other", 1)
    manager.reconfigure(["unknown"])
    assert manager.partition("other", 0).log.config.retention_ms != 12345


async def test_records_survive_a_stop_and_a_kill(tmp_path: Path) -> None:
    cluster = BrokerCluster(network=MemoryNetwork(), data_dir=tmp_path)
    async with cluster:
        cluster.create_topic(TOPIC)
        await cluster.brokers[1].replicas.append({(TOPIC, 0): batch(b"a")}, acks=-1, timeout_ms=1000)
        await cluster.restart(1)
        assert cluster.brokers[1].replicas.partition(TOPIC, 0).high_watermark == 1
        await cluster.brokers[1].replicas.append({(TOPIC, 0): batch(b"b")}, acks=-1, timeout_ms=1000)
        before = contents(cluster.brokers[1].replicas.partition(TOPIC, 0).log)
        await cluster.kill(1)
        await cluster.restart(1)
        partition = cluster.brokers[1].replicas.partition(TOPIC, 0)
        assert contents(partition.log) == before
        assert partition.high_watermark == 2


async def test_after_close_nothing_is_applied_and_no_request_waits(pair: BrokerCluster) -> None:
    manager = pair.brokers[1].replicas
    waiting = asyncio.create_task(manager.append({(TOPIC, 0): batch(b"a")}, acks=-1, timeout_ms=10_000))
    await asyncio.sleep(0)
    await manager.close()
    outcomes = await waiting
    assert isinstance(outcomes[TOPIC, 0], NotLeaderOrFollowerError)
    manager.apply([pair.image.partition(TOPIC, 0)], [])
    assert not manager.partition(TOPIC, 0).is_leader
    await manager.close()


async def test_some_of_many_new_logs_are_opened_later_or_on_request(
    cluster: BrokerCluster, manager: ReplicaManager
) -> None:
    count = 500
    topic_id = cluster.create_topic("many", count).topic_id
    known = [key for key in manager.partitions if key[0] == "many"]
    assert len(known) == replicas_module.LOGS_OPENED_AT_ONCE
    # A request opens it, and changes in the meantime are not lost.
    assert manager.leader("many", count - 1).topic_id == topic_id
    cluster.controller.create_partitions("many", count + 20)
    cluster.controller.alter_topic_configs("many", {"flush.ms": "5"})
    outcomes = await manager.append({("many", count - 2): batch(b"a")}, acks=-1, timeout_ms=1000)
    assert isinstance(outcomes["many", count - 2], AppendInfo)
    async with asyncio.timeout(10):
        while len(manager.partitions) < count + 20 + 3:  # noqa: ASYNC110  # that all are there has no event of its own
            await asyncio.sleep(0)
    assert all(manager.partition("many", index).is_leader for index in range(count + 20))
    assert {key for key in manager.flushed_by_time if key[0] == "many"} == {("many", i) for i in range(count + 20)}
    cluster.controller.alter_topic_configs("many", {"flush.ms": None})
    assert not manager.flushed_by_time


async def test_unopened_logs_are_deleted_with_their_topic(
    cluster: BrokerCluster, broker: Broker, manager: ReplicaManager
) -> None:
    cluster.create_topic("many", 100)
    cluster.controller.delete_topic("many")
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.partition("many", 99)
    second = cluster.create_topic("many", 100).topic_id
    assert manager.partition("many", 99).topic_id == second
    assert {key[0] for key in broker.logs.logs} == {TOPIC, "many"}
    # And a node that stops meanwhile has them when it comes back.
    await cluster.kill(1)
    await cluster.restart(1)
    restarted = broker.replicas
    assert restarted is not manager
    assert {restarted.partition("many", index).topic_id for index in range(100)} == {second}


async def test_memory_of_a_deleted_topic_is_freed_in_pieces(
    cluster: BrokerCluster, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_module, "FREED_PER_TURN", 100_000)
    for _ in range(5):
        await manager.append({(TOPIC, 0): batch(bytes(90_000))}, acks=1, timeout_ms=1000)
    left: list[bool] = []
    give_back = manager.broker.logs.give_back

    def noted(size: int) -> bool:
        left.append(give_back(size))
        return left[-1]

    monkeypatch.setattr(manager.broker.logs, "give_back", noted)
    cluster.controller.delete_topic(TOPIC)
    assert left == []
    for _ in range(10):
        await asyncio.sleep(0)
    assert left.count(True) >= 2
    assert left[-1] is False
