"""Embedded clusters in the loop and in a thread: their state, fault injection, and cleanup."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer

from aioproducer import Producer
from aioproducer.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    NotEnoughReplicasError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from aioproducer.testing import EmbeddedCluster, EmbeddedClusterThread
from tests.kafka.cluster import free_ports

TRANSPORTS = ("tcp", "memory")


@pytest.fixture(params=TRANSPORTS)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(transport=request.param) as started:
        yield started


@pytest.fixture(params=TRANSPORTS)
async def three(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(3, transport=request.param) as started:
        yield started


def _values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in cluster.records(topic)]


async def test_records_returns_what_was_sent(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("clicks", 2)
    async with cluster.producer(compression_type="lz4") as producer:
        producer.send("clicks", b"a", b"k", partition=1, timestamp_ms=1_700_000_000_000, headers=[("h", None)])
        producer.send("clicks", None, partition=0)
        await producer.flush()
    first, second = cluster.records("clicks")
    assert first[:3] == ("clicks", 0, 0)
    assert (first.key, first.value, first.headers) == (None, None, ())
    assert second == ("clicks", 1, 0, 1_700_000_000_000, b"k", b"a", (("h", None),))
    assert cluster.records("clicks", 1) == [second]


async def test_records_of_a_missing_topic_or_partition_raises(cluster: EmbeddedCluster) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.records("nowhere")
    cluster.create_topic("clicks")
    assert cluster.records("clicks") == []
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.records("clicks", 1)


async def test_topics_can_be_created_and_deleted(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("clicks", 3, configs={"retention.ms": "1000"})
    with pytest.raises(TopicExistsError):
        cluster.create_topic("clicks")
    assert cluster.topics() == ["clicks"]
    cluster.delete_topic("clicks")
    assert cluster.topics() == []
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.recreate_topic("clicks")


async def test_recreated_topic_is_empty_and_accepts_records(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("clicks", 2)
    async with cluster.producer(retry_backoff_ms=5) as producer:
        await producer.send("clicks", b"before", partition=1)
        cluster.recreate_topic("clicks")
        assert _values(cluster, "clicks") == []
        await producer.send("clicks", b"after", partition=1)
    assert _values(cluster, "clicks") == [b"after"]


@pytest.mark.parametrize("when", ["before", "after", "half"])
async def test_disconnected_requests_are_sent_again_and_stored_once(cluster: EmbeddedCluster, when: str) -> None:
    cluster.create_topic("clicks")
    async with cluster.producer(retry_backoff_ms=5, reconnect_backoff_ms=5) as producer:
        cluster.disconnect("Produce", when, times=2)
        await producer.send("clicks", b"value")
    assert _values(cluster, "clicks") == [b"value"]
    assert cluster.pending_faults() == []


async def test_a_repeated_produce_request_is_stored_once_and_acknowledged(cluster: EmbeddedCluster) -> None:
    """The first pass writes offsets into the records of its request: the second one must read the original."""
    cluster.create_topic("clicks", 1)
    async with cluster.producer() as producer:
        await producer.send("clicks", b"a")
        cluster.repeat("Produce")
        metadata = await producer.send("clicks", b"b")
    assert metadata.offset == 1
    assert _values(cluster, "clicks") == [b"a", b"b"]
    assert cluster.pending_faults() == []


async def test_failed_requests_are_sent_again(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("clicks", 2)
    cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", times=2, topic="clicks", partition=1)
    async with cluster.producer(retry_backoff_ms=5) as producer:
        await producer.send("clicks", b"value", partition=0)
        assert len(cluster.pending_faults()) == 1
        await producer.send("clicks", b"value", partition=1)
        assert cluster.pending_faults() == []
        assert producer.metrics()["record-retry-total"] == 2
    assert len(cluster.records("clicks")) == 2


async def test_a_permanent_fault_lasts_until_cleared(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("clicks")
    cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", times=None)
    async with cluster.producer(retry_backoff_ms=5, retries=3, linger_ms=0) as producer:
        with pytest.raises(NotEnoughReplicasError):
            await producer.send("clicks", b"lost")
        cluster.clear_faults()
        await producer.send("clicks", b"stored")
    assert _values(cluster, "clicks") == [b"stored"]


async def test_a_misspelt_fault_suggests_the_nearest_name(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ValueError, match="Produce"):
        cluster.fail("Prodcue", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(ValueError, match="NOT_LEADER_OR_FOLLOWER"):
        cluster.fail("Produce", "NOT_LEADER")
    with pytest.raises(ValueError, match="half"):
        cluster.disconnect("Produce", "later")


async def test_responses_can_be_delayed_and_throttled(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("clicks")
    async with cluster.producer(linger_ms=0) as producer:
        await producer.send("clicks", b"warm")
        cluster.delay("Produce", 60)
        started = time.monotonic()
        await producer.send("clicks", b"delayed")
        # uvloop counts whole milliseconds, from the start of its iteration.
        assert time.monotonic() - started > 0.055
        cluster.throttle("Produce", 50)
        await producer.send("clicks", b"throttled")
        await producer.send("clicks", b"after")
        assert producer.metrics()["produce-throttle-time-max"] == 50


async def test_delayed_responses_do_not_delay_the_shutdown() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("clicks")
        producer = cluster.producer(linger_ms=0)
        await producer.start()
        cluster.delay("Produce", 60_000, times=None)
        delivery = producer.send("clicks", b"value")
        while not cluster.records("clicks"):
            await producer.drain()
            await asyncio.sleep(0)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    await delivery
    await producer.close()


async def test_a_leader_can_be_moved(three: EmbeddedCluster) -> None:
    three.create_topic("clicks")
    await three.wait_in_sync()
    async with three.producer(retry_backoff_ms=5) as producer:
        for _ in range(3):
            await producer.send("clicks", b"value")
            leader = three.leader("clicks", 0)
            three.move_leader("clicks", 0, leader % 3 + 1)
            assert three.leader("clicks", 0) == leader % 3 + 1
            three.move_leader("clicks", 0, leader % 3 + 1)
            await producer.send("clicks", b"value")
    assert len(three.records("clicks")) == 6


async def test_a_node_can_be_killed_and_restarted(three: EmbeddedCluster) -> None:
    three.create_topic("clicks", configs={"min.insync.replicas": "2"})
    await three.wait_in_sync()
    async with three.producer(retry_backoff_ms=5, reconnect_backoff_ms=5) as producer:
        await producer.send("clicks", b"1")
        victim = three.leader("clicks", 0)
        await three.kill(victim)
        assert victim not in three.nodes
        await producer.send("clicks", b"2")
        await three.restart(victim)
        await three.wait_in_sync()
        assert three.in_sync_replicas("clicks", 0) != []
        three.move_leader("clicks", 0, victim)
        await producer.send("clicks", b"3")
    assert _values(three, "clicks") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("brokers", [1, 3])
async def test_a_transactional_id_survives_when_its_coordinator_is_dropped(brokers: int) -> None:
    async with EmbeddedCluster(brokers) as cluster:
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.drop_transaction_coordinator("id")
        assert cluster.transaction_coordinator("id") == -1
        with pytest.raises(CoordinatorNotAvailableError):
            cluster.broker_cluster.brokers[1].transactions.shards.find("id")
        epochs = []
        for _ in range(3):
            await cluster.wait_in_sync()
            before = cluster.transaction_coordinator("id")
            coordinator = cluster.broker_cluster.brokers[before].transactions
            while (answer := await coordinator.init_producer_id("id", 1000, None)).code:
                assert answer.code == CoordinatorLoadInProgressError.code
                await asyncio.sleep(0)
            epochs.append(answer.producer.epoch)
            cluster.drop_transaction_coordinator("id")
            assert (cluster.transaction_coordinator("id") != before) == (brokers > 1)
        assert epochs == [0, 1, 2]


async def test_features_have_the_levels_that_are_given() -> None:
    async with EmbeddedCluster() as cluster:
        assert cluster.broker_cluster.image.transaction_version == 2
    async with EmbeddedCluster(features={"transaction.version": 1}) as cluster:
        assert cluster.broker_cluster.image.transaction_version == 1
    with EmbeddedClusterThread(features={"transaction.version": 0}) as thread:
        assert thread._call(lambda cluster: cluster.image.transaction_version) == 0


@pytest.mark.parametrize("brokers", [1, 3])
async def test_a_group_continues_when_its_coordinator_is_dropped(brokers: int) -> None:
    async with EmbeddedCluster(brokers) as cluster:
        cluster.create_topic("clicks")
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.drop_coordinator("readers")
        assert cluster.coordinator("readers") == -1
        async with cluster.producer() as producer, asyncio.timeout(30):
            consumer = AIOKafkaConsumer(
                "clicks",
                bootstrap_servers=cluster.bootstrap_servers,
                group_id="readers",
                auto_offset_reset="earliest",
                retry_backoff_ms=10,
            )
            await consumer.start()
            try:
                for count in range(3):
                    await producer.send("clicks", b"%d" % count)
                    assert (await consumer.getone()).value == b"%d" % count
                    await cluster.wait_in_sync()
                    before = cluster.coordinator("readers")
                    cluster.drop_coordinator("readers")
                    assert (cluster.coordinator("readers") != before) == (brokers > 1)
                    # Before the consumer stops: then aiokafka looks for no new coordinator, but waits for the old one.
                    await consumer.commit()
            finally:
                await consumer.stop()


async def test_the_only_node_keeps_its_log_when_killed(cluster: EmbeddedCluster) -> None:
    async with cluster.producer(retry_backoff_ms=5, reconnect_backoff_ms=5) as producer:
        await producer.send("clicks", b"1")
        await cluster.kill(1)
        delivery = producer.send("clicks", b"2")
        await cluster.restart(1)
        await delivery
    assert _values(cluster, "clicks") == [b"1", b"2"]


async def test_a_cluster_on_disk_continues_with_its_stored_data(tmp_path: Path) -> None:
    for count in (1, 2):
        async with EmbeddedCluster(data_dir=tmp_path) as cluster:
            async with cluster.producer() as producer:
                await producer.send("clicks", str(count).encode())
            assert len(cluster.records("clicks")) == count


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_stopping_leaves_nothing_running(transport: str) -> None:
    before = asyncio.all_tasks()
    threads = set(threading.enumerate())
    process = psutil.Process()
    for round_number in range(3):
        async with EmbeddedCluster(3, transport=transport) as cluster:
            cluster.create_topic("clicks")
            async with cluster.producer() as producer:
                await producer.send("clicks", b"value")
            if round_number == 1:
                await cluster.kill(2)
        await asyncio.sleep(0)
        gc.collect()
        if round_number == 0:
            open_files = process.num_fds()
    assert asyncio.all_tasks() == before
    # The loop keeps the threads of its default executor, as any loop does.
    assert {thread for thread in threading.enumerate() if "executor" not in thread.name.lower()} <= threads | {
        thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")
    }
    assert process.num_fds() <= open_files
    if transport == "tcp":
        with pytest.raises(RuntimeError, match="not running"):
            _ = cluster.bootstrap_servers


async def test_hundreds_of_clusters_run_without_sockets() -> None:
    process = psutil.Process()
    open_files = process.num_fds()
    clusters = [EmbeddedCluster(transport="memory") for _ in range(200)]
    for cluster in clusters:
        await cluster.start()
    assert process.num_fds() - open_files < 10
    for cluster in clusters[::50]:
        async with cluster.producer() as producer:
            await producer.send("clicks", b"value")
        assert _values(cluster, "clicks") == [b"value"]
    for cluster in clusters:
        await cluster.stop()


def test_plain_methods_work_while_the_loop_is_not_running() -> None:
    """A synchronous fixture that uses the cluster of another fixture does this."""
    with asyncio.Runner() as runner:
        cluster = EmbeddedCluster()
        runner.run(cluster.start())
        cluster.create_topic("clicks")
        cluster.delete_topic("clicks")
        assert cluster.topics() == []
        runner.run(cluster.stop())


async def test_calls_from_another_thread_are_rejected(cluster: EmbeddedCluster) -> None:
    with pytest.raises(RuntimeError, match="EmbeddedClusterThread"):
        await asyncio.to_thread(cluster.topics)


def test_an_unknown_transport_is_rejected() -> None:
    with pytest.raises(ValueError, match="tcp"):
        EmbeddedCluster(transport="udp")


def _cluster_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "aioproducer-embedded-cluster"}


async def test_a_cluster_thread_serves_the_loop_of_the_test() -> None:
    before = _cluster_threads()
    cluster = EmbeddedClusterThread(3)
    await asyncio.to_thread(cluster.start)
    try:
        cluster.create_topic("clicks")
        async with Producer(bootstrap_servers=cluster.bootstrap_servers, retry_backoff_ms=5) as producer:
            await producer.send("clicks", b"1")
            leader = cluster.leader("clicks", 0)
            await asyncio.to_thread(cluster.wait_in_sync)
            cluster.kill(leader)
            await producer.send("clicks", b"2")
            cluster.restart(leader)
        assert [record.value for record in cluster.records("clicks")] == [b"1", b"2"]
    finally:
        await asyncio.to_thread(cluster.stop)
    assert _cluster_threads() == before


async def test_a_cluster_thread_can_be_stopped_while_another_loop_runs() -> None:
    """Stopping it in a coroutine once raised "Cannot run the event loop while another loop is running"."""
    before = _cluster_threads()
    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("clicks")
        async with cluster.producer() as producer:
            await producer.send("clicks", b"1")
    assert _cluster_threads() == before


def test_a_cluster_thread_can_be_stopped_twice_and_restarted() -> None:
    cluster = EmbeddedClusterThread()
    with pytest.raises(RuntimeError, match="not running"):
        cluster.topics()
    for _ in range(2):
        with cluster:
            cluster.create_topic("clicks")
            assert cluster.topics() == ["clicks"]
            cluster.delete_topic("clicks")
        cluster.stop()


def test_a_cluster_thread_that_cannot_start_leaves_no_state(tmp_path: Path) -> None:
    before = _cluster_threads()
    with EmbeddedClusterThread(data_dir=tmp_path), pytest.raises(KafkaError, match="lock"):
        EmbeddedClusterThread(data_dir=tmp_path).start()
    assert _cluster_threads() == before


def test_a_cluster_listens_on_given_ports() -> None:
    ports = free_ports(2)
    servers = [f"127.0.0.1:{port}" for port in ports]
    with EmbeddedClusterThread(2, ports=ports) as cluster:
        assert sorted(cluster.bootstrap_servers.split(",")) == sorted(servers)
        cluster.kill(2)
        cluster.restart(2)
        assert sorted(cluster.bootstrap_servers.split(",")) == sorted(servers)
    with pytest.raises(ValueError, match="ports"):
        EmbeddedCluster(2, ports=ports[:1])
