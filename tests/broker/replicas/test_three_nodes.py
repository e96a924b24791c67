"""Nodes that fetch from each other for real: nothing acknowledged is lost, and the logs end up equal byte for byte."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from pathlib import Path

import pytest

from aioproducer.broker import Broker, BrokerCluster
from aioproducer.broker.log import AppendInfo, LogManager
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import (
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
)
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.wire.record_batch import iter_batches
from tests import waiting
from tests.broker.replicas.nodes import batch, contents

TOPIC = "topic"


def leader_of(cluster: BrokerCluster, index: int = 0, topic: str = TOPIC) -> Broker:
    return cluster.brokers[cluster.image.partition(topic, index).leader]


def replicas_of(cluster: BrokerCluster, index: int = 0, topic: str = TOPIC) -> list[Partition]:
    return [
        broker.replicas.partitions[topic, index]
        for broker in cluster.brokers.values()
        if broker.is_running and (topic, index) in broker.replicas.partitions
    ]


until = functools.partial(waiting.until, timeout=20, pause=0.002)


def are_equal(cluster: BrokerCluster, index: int = 0, topic: str = TOPIC) -> bool:
    """Whether all replicas are in sync, know that all is committed, and have the same bytes."""
    replicas = replicas_of(cluster, index, topic)
    state = cluster.image.partition(topic, index)
    ends = {(replica.log_end_offset, replica.high_watermark, replica.log_start_offset) for replica in replicas}
    return (
        sorted(state.isr) == sorted(state.replicas)
        and len(ends) == 1
        and all(replica.high_watermark == replica.log_end_offset for replica in replicas)
        and len({contents(replica.log) for replica in replicas}) == 1
    )


async def append(
    cluster: BrokerCluster, *values: bytes, acks: int = -1, timeout_ms: int = 10_000, index: int = 0, topic: str = TOPIC
) -> AppendInfo:
    outcomes = await leader_of(cluster, index, topic).replicas.append(
        {(topic, index): batch(*values)}, acks=acks, timeout_ms=timeout_ms
    )
    outcome = outcomes[topic, index]
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


def values_of(partition: Partition) -> list[bytes]:
    return [record.value or b"" for found in iter_batches(contents(partition.log)) for record in found.records()]


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


# Followers receive the last high watermark when a fetch without records ends.
QUICK = {"replica.fetch.wait.max.ms": 20}


async def test_acknowledged_records_are_on_all_three_nodes(network: MemoryNetwork) -> None:
    async with BrokerCluster(3, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, 1, 3)
        for number in range(5):
            info = await append(cluster, b"%d" % number)
            assert info.first_offset == number
            assert all(replica.log_end_offset > number for replica in replicas_of(cluster))
        await until(lambda: are_equal(cluster))


async def test_the_first_write_to_a_new_topic_does_not_wait_for_a_long_poll(network: MemoryNetwork) -> None:
    properties = {"replica.fetch.wait.max.ms": 20_000}
    async with BrokerCluster(3, network=network, properties=properties) as cluster:
        cluster.create_topic("other", 3, 3)
        await append(cluster, b"a", topic="other")
        await asyncio.sleep(0.1)
        cluster.create_topic(TOPIC, 1, 3)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await append(cluster, b"a")
        # The leader would hold the fetches of the other topic for replica.fetch.wait.max.ms.
        assert loop.time() - begin < 10


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
async def test_no_acknowledged_record_is_lost_when_leaders_die(
    network: MemoryNetwork, tmp_path: Path, on_disk: bool
) -> None:
    properties = {**QUICK, "min.insync.replicas": 2}
    data_dir = tmp_path if on_disk else None
    async with BrokerCluster(3, network=network, properties=properties, data_dir=data_dir) as cluster:
        cluster.create_topic(TOPIC, 1, 3)
        acknowledged: dict[int, bytes] = {}
        is_over = False

        async def write(name: int) -> None:
            number = 0
            while not is_over:
                value = b"%d-%d" % (name, number)
                number += 1
                try:
                    info = await append(cluster, value, timeout_ms=500)
                except (KafkaError, KeyError):
                    await asyncio.sleep(0.001)
                else:
                    acknowledged[info.first_offset] = value

        async with asyncio.TaskGroup() as writers:
            for name in range(4):
                writers.create_task(write(name))
            for _ in range(3):
                before = len(acknowledged)
                await until(lambda: len(acknowledged) > before + 20)  # noqa: B023  # awaited within the turn
                leader = cluster.image.partition(TOPIC, 0).leader
                await cluster.kill(leader)
                before = len(acknowledged)
                await until(lambda: len(acknowledged) > before + 20)  # noqa: B023  # as above
                await cluster.restart(leader)
                await until(lambda: len(cluster.image.partition(TOPIC, 0).isr) == 3)
            is_over = True
        await until(lambda: are_equal(cluster))
        for replica in replicas_of(cluster):
            values = values_of(replica)
            assert {offset: values[offset] for offset in acknowledged} == acknowledged


async def test_a_batch_that_only_the_dead_leader_has_is_truncated(network: MemoryNetwork) -> None:
    async with BrokerCluster(3, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, 1, 3)
        await append(cluster, b"kept")
        await until(lambda: are_equal(cluster))
        old = leader_of(cluster)
        for broker in cluster.brokers.values():
            if broker is not old:
                for fetcher in broker.replicas.fetchers.values():
                    await fetcher.close()
        await append(cluster, b"lost", acks=1)
        assert leader_of(cluster).replicas.partition(TOPIC, 0).high_watermark == 1
        await cluster.kill(old.node_id)
        for broker in cluster.brokers.values():
            if broker is not old:
                for fetcher in broker.replicas.fetchers.values():
                    fetcher.start()
        await append(cluster, b"new")
        await cluster.restart(old.node_id)
        await until(lambda: are_equal(cluster))
        assert values_of(replicas_of(cluster)[0]) == [b"kept", b"new"]


async def test_a_follower_behind_the_leaders_log_start_begins_there(
    network: MemoryNetwork,
) -> None:
    async with BrokerCluster(2, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]})
        await append(cluster, b"a")
        await cluster.kill(2)
        for value in (b"b", b"c", b"d"):
            await append(cluster, value)
        leader = leader_of(cluster).replicas.partition(TOPIC, 0)
        assert leader.delete_records(3) == 3
        await cluster.restart(2)
        await until(lambda: are_equal(cluster))
        assert cluster.brokers[2].replicas.partition(TOPIC, 0).log_start_offset == 3
        assert values_of(leader) == [b"d"]


async def test_a_log_that_begins_within_a_batch_is_replicated_with_the_whole_batch(network: MemoryNetwork) -> None:
    async with BrokerCluster(2, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]})
        await append(cluster, b"a")
        await cluster.kill(2)
        await append(cluster, b"b", b"c", b"d")
        leader = leader_of(cluster).replicas.partition(TOPIC, 0)
        leader.delete_records(2)
        await cluster.restart(2)
        await until(lambda: are_equal(cluster))
        assert cluster.brokers[2].replicas.partition(TOPIC, 0).log_start_offset == 2


async def test_a_recreated_topic_is_empty(network: MemoryNetwork) -> None:
    async with BrokerCluster(3, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, 1, 3)
        await append(cluster, b"old")
        await cluster.kill(3)
        cluster.controller.delete_topic(TOPIC)
        cluster.create_topic(TOPIC, assignments={0: [1, 2, 3]})
        await append(cluster, b"new")
        await cluster.restart(3)
        await until(lambda: are_equal(cluster))
        assert values_of(cluster.brokers[3].replicas.partition(TOPIC, 0)) == [b"new"]


async def test_a_topic_deleted_while_its_node_was_down_leaves_no_log(network: MemoryNetwork) -> None:
    async with BrokerCluster(2, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, 1, 2)
        await append(cluster, b"old")
        await cluster.kill(2)
        cluster.controller.delete_topic(TOPIC)
        await cluster.restart(2)
        assert not cluster.brokers[2].logs.logs
        assert not cluster.brokers[2].replicas.partitions


async def test_acks_all_times_out_without_followers(network: MemoryNetwork) -> None:
    async with BrokerCluster(2, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]})
        for fetcher in cluster.brokers[2].replicas.fetchers.values():
            await fetcher.close()
        with pytest.raises(RequestTimedOutError):
            await append(cluster, b"a", timeout_ms=20)
        partition = cluster.brokers[1].replicas.partition(TOPIC, 0)
        assert partition.log_end_offset == 1
        assert partition.high_watermark == 0


async def test_a_follower_that_lags_leaves_the_isr_and_comes_back(network: MemoryNetwork) -> None:
    properties = {**QUICK, "replica.lag.time.max.ms": 100}
    async with BrokerCluster(2, network=network, properties=properties) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]}, configs={"min.insync.replicas": "1"})
        (fetcher,) = cluster.brokers[2].replicas.fetchers.values()
        await fetcher.close()
        await append(cluster, b"a")
        assert cluster.image.partition(TOPIC, 0).isr == [1]
        fetcher.start()
        await until(lambda: cluster.image.partition(TOPIC, 0).isr == [1, 2])
        await until(lambda: are_equal(cluster))


async def test_below_min_insync_replicas_nothing_is_written(network: MemoryNetwork) -> None:
    async with BrokerCluster(2, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]}, configs={"min.insync.replicas": "2"})
        await cluster.kill(2)
        with pytest.raises(NotEnoughReplicasError):
            await append(cluster, b"a")
        partition = cluster.brokers[1].replicas.partition(TOPIC, 0)
        assert partition.log_end_offset == 0
        await append(cluster, b"b", acks=1)
        # Written, but not committed: KIP-966.
        assert (partition.log_end_offset, partition.high_watermark) == (1, 0)
        await cluster.restart(2)
        await until(lambda: are_equal(cluster))


async def test_a_waiting_request_fails_when_the_leader_moves(network: MemoryNetwork) -> None:
    async with BrokerCluster(2, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]})
        for fetcher in cluster.brokers[2].replicas.fetchers.values():
            await fetcher.close()
        waiting = asyncio.create_task(append(cluster, b"a"))
        await asyncio.sleep(0)
        partition = cluster.brokers[1].replicas.partition(TOPIC, 0)
        assert partition.watcher_count == 1
        cluster.controller.elect_leader(TOPIC, 0, 2)
        with pytest.raises(NotLeaderOrFollowerError):
            await waiting
        assert partition.watcher_count == 0


async def test_many_partitions_share_one_connection_between_two_nodes(network: MemoryNetwork) -> None:
    async with BrokerCluster(3, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, 30, 3)
        await asyncio.gather(*(append(cluster, b"%d" % index, index=index) for index in range(30)))
        for index in range(30):
            await until(lambda: are_equal(cluster, index))  # noqa: B023  # awaited within the turn
        for broker in cluster.brokers.values():
            assert len(broker.replicas.fetchers) == 2


async def test_after_an_unclean_election_the_logs_agree(
    network: MemoryNetwork,
) -> None:
    async with BrokerCluster(2, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]})
        await append(cluster, b"a")
        await cluster.kill(2)
        await append(cluster, b"lost")
        await append(cluster, b"lost too")
        await cluster.kill(1)
        await cluster.restart(2)
        cluster.controller.elect_unclean(TOPIC, 0)
        await append(cluster, b"b")
        await cluster.restart(1)
        await until(lambda: are_equal(cluster))
        assert values_of(cluster.brokers[1].replicas.partition(TOPIC, 0)) == [b"a", b"b"]


async def test_a_partition_that_moves_away_leaves_no_log(network: MemoryNetwork) -> None:
    async with BrokerCluster(3, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]})
        await append(cluster, b"a")
        broker = cluster.brokers[2]
        state = cluster.image.partition(TOPIC, 0)
        elsewhere = replace(state, replicas=[1, 3], isr=[1], partition_epoch=state.partition_epoch + 1)
        broker.replicas.apply([elsewhere], [])
        assert not broker.logs.logs
        assert not broker.replicas.fetchers


async def test_a_log_that_cannot_be_deleted_is_logged(
    network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: LogManager, topic: str, index: int) -> None:
        raise KafkaStorageError("no such device")

    async with BrokerCluster(2, network=network, properties=QUICK) as cluster:
        cluster.create_topic(TOPIC, 1, 2)
        with monkeypatch.context() as patch:
            patch.setattr(LogManager, "delete", fail)
            cluster.controller.delete_topic(TOPIC)
        assert caplog.text.count("cannot be deleted: no such device") == 2
        assert not cluster.brokers[1].replicas.partitions
