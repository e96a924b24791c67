"""What replicas do with the disk, and what becomes of them where it fails.

Segments that take no more batches are brought to it in the background, so that no start need check them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aioproducer.broker import BrokerCluster
from aioproducer.broker.log import AppendInfo, Log
from aioproducer.broker.log.segment import Segment
from aioproducer.broker.replicas.replica_manager import ReplicaManager
from aioproducer.errors import KafkaStorageError
from aioproducer.transport.memory import MemoryNetwork
from tests.broker.replicas.nodes import batch

TOPIC = "topic"
ONE_EACH = {"segment.bytes": str(1024 * 1024)}
"""With batches of which a second one does not fit."""
BIG = b"x" * 600_000


@pytest.fixture
async def cluster() -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(network=MemoryNetwork()) as started:
        started.create_topic(TOPIC, 1, configs=ONE_EACH)
        yield started


async def write(cluster: BrokerCluster, count: int = 1) -> None:
    manager = cluster.brokers[1].replicas
    for _ in range(count):
        outcomes = await manager.append({(TOPIC, 0): batch(BIG)}, acks=-1, timeout_ms=10_000)
        assert isinstance(outcomes[TOPIC, 0], AppendInfo)


async def flushed(manager: ReplicaManager) -> None:
    """Until what is under way is on disk."""
    while manager._flushing:
        await asyncio.wait(manager._flushing.values())


async def test_a_roll_flushes_the_segments_before_it(cluster: BrokerCluster) -> None:
    manager = cluster.brokers[1].replicas
    log = manager.partition(TOPIC, 0).log
    await write(cluster)
    assert not manager._flushing
    for rolled_to in (1, 2, 3):
        await write(cluster)
        await flushed(manager)
        assert (log.segment_base_offsets[-1], log.recovery_point) == (rolled_to, rolled_to)


async def test_a_start_after_an_unclean_end_checks_only_unflushed_segments(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(cluster, 5)
    await flushed(cluster.brokers[1].replicas)
    await cluster.brokers[1].replicas._upkeep.checkpoint()
    recovered: list[int] = []
    recover = Segment.recover

    def noted(segment: Segment, *arguments: object) -> int:
        recovered.append(segment.base_offset)
        return recover(segment, *arguments)  # type: ignore[arg-type]  # passed on as they come

    monkeypatch.setattr(Segment, "recover", noted)
    await cluster.kill(1)
    await cluster.restart(1)
    assert cluster.brokers[1].replicas.partition(TOPIC, 0).log_end_offset == 5
    assert recovered == [4]


async def test_a_followers_roll_flushes_the_segments_before_it() -> None:
    async with BrokerCluster(2, network=MemoryNetwork(), properties={"replica.fetch.wait.max.ms": 20}) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]}, configs=ONE_EACH)
        await write(cluster, 3)
        follower = cluster.brokers[2].replicas
        await flushed(follower)
        assert follower.partition(TOPIC, 0).log.recovery_point == 2


async def test_a_failed_flush_after_a_roll_fails_no_append_and_is_retried_with_the_next_roll(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = cluster.brokers[1].replicas
    log = manager.partition(TOPIC, 0).log
    tried: list[int | None] = []

    def fail(log: Log, up_to: int | None = None) -> None:
        tried.append(up_to)
        raise KafkaStorageError("disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "flush", fail)
        await write(cluster, 2)
        await flushed(manager)
        assert "disk is gone" in caplog.text
        # Not with every append.
        await manager.append({(TOPIC, 0): batch(b"small")}, acks=-1, timeout_ms=10_000)
        await flushed(manager)
        assert tried == [1]
    await write(cluster)
    await flushed(manager)
    assert log.recovery_point == log.segment_base_offsets[-1] == 3


async def test_a_due_flush_covers_the_whole_log(cluster: BrokerCluster) -> None:
    cluster.controller.alter_topic_configs(TOPIC, {**ONE_EACH, "flush.messages": "1"})
    await write(cluster, 3)
    assert cluster.brokers[1].replicas.partition(TOPIC, 0).log.recovery_point == 3


async def test_a_node_that_cannot_write_its_epoch_does_not_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with BrokerCluster(2, network=MemoryNetwork()) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]})
        manager = cluster.brokers[2].replicas

        def fail(epoch: int, start_offset: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(manager.partition(TOPIC, 0).log.leader_epochs, "assign", fail)
        cluster.controller.elect_leader(TOPIC, 0, 2)
        with pytest.raises(KafkaStorageError, match="cannot write the leader epochs of the log of topic-0"):
            manager.leader(TOPIC, 0)
