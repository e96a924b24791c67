"""The producer over RDMA to the embedded broker, on the simulated fabric."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref

import pytest

from aioproducer import Producer
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.rdma import RdmaConnector


@pytest.fixture
def fabric():
    """At the end no verbs objects or threads are left, and every write has found a posted receive."""
    threads = set(threading.enumerate())
    made = SimulatedFabric()
    yield made
    assert not any(made.live)
    assert made.receiver_not_ready == 0
    assert set(threading.enumerate()) <= threads


async def send_all(producer, values):
    for number, value in enumerate(values):
        producer.send("topic", value, key=b"%d" % number)
        await producer.drain()
    await producer.flush()


def values_of(cluster):
    return [record.value for record in cluster.records("topic")]


async def test_ten_thousand_records_are_stored_in_order(fabric):
    values = [b"value %d" % number for number in range(10_000)]
    async with EmbeddedCluster(2, transport="rdma", verbs=fabric) as cluster:
        async with cluster.producer() as producer:
            await send_all(producer, values)
            metrics = producer.metrics()
        assert sorted(values_of(cluster)) == sorted(values)
    assert metrics["rdma-bytes-sent-total"] > 10_000 * 20
    # Only the heads of requests and batches: with the records it would be everything.
    assert metrics["rdma-bytes-copied-total"] < 0.2 * metrics["rdma-bytes-sent-total"]
    assert metrics["bytes-copied-total"] == metrics["rdma-bytes-copied-total"]
    assert metrics["rdma-completions-total"] >= metrics["rdma-signals-total"] > 0
    assert metrics["rdma-writes-total"] >= metrics["rdma-signals-total"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_a_megabyte_arrives_with_every_codec(fabric, codec):
    chance = random.Random(codec)
    values = [chance.randbytes(1_000_000) for _ in range(3)]
    async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster:
        async with cluster.producer(compression_type=codec, max_request_size=2_000_000) as producer:
            await send_all(producer, values)
            metrics = producer.metrics()
        assert sorted(values_of(cluster)) == sorted(values)
    copies = metrics["rdma-bytes-copied-total"] / metrics["rdma-bytes-sent-total"]
    assert copies < 0.001 if codec == "none" else copies <= 1


async def test_without_compression_no_byte_of_a_record_is_copied(fabric):
    """Only the requests without their records are copied, so the copied bytes do not grow with the records."""
    copied = []
    for size in (1_000, 100_000):
        async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster, cluster.producer() as producer:
            await producer.send("topic", bytes(10))
            before = producer.metrics()["rdma-bytes-copied-total"]
            await producer.send("topic", bytes(size))
            copied.append(producer.metrics()["rdma-bytes-copied-total"] - before)
    # A length takes one byte more.
    assert copied[0] <= copied[1] <= copied[0] + 4 < 200


async def test_without_zero_copy_each_byte_is_copied_once(fabric):
    async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster:
        connector = RdmaConnector(fabric, zero_copy=False)
        async with cluster.producer(transport=connector) as producer:
            await producer.send("topic", bytes(100_000))
            metrics = producer.metrics()
    assert metrics["rdma-bytes-copied-total"] == metrics["rdma-bytes-sent-total"] > 100_000


@pytest.mark.parametrize("how", ["queue pair in error", "TCP connection reset", "queue pair destroyed"])
async def test_broken_connections_lose_nothing(fabric, how, caplog):
    values = [b"%06d" % number * 20 for number in range(3000)]
    async with EmbeddedCluster(2, transport="rdma", verbs=fabric) as cluster:
        connector = RdmaConnector(fabric, ring_bytes=16384, slots=8)
        # Nothing else detects a broker that has lost its queue pair before it received a request.
        settings = {"linger_ms": 0, "retry_backoff_ms": 5, "request_timeout_ms": 1000}
        async with cluster.producer(transport=connector, **settings) as producer:
            await producer.wait_ready(10)
            for round_number in range(5):
                part = values[round_number * 600 : (round_number + 1) * 600]
                sending = asyncio.ensure_future(send_all(producer, part))
                await asyncio.sleep(0.01)
                break_one(cluster, how)
                await sending
            assert producer.metrics()["connection-close-total"] >= 1
        assert sorted(values_of(cluster)) == sorted(values)


def break_one(cluster, how):
    transports = [
        connection._transport
        for broker in cluster.broker_cluster.brokers.values()
        for connection in broker.server.connections
        # An ended one accepts nothing, although its connection may be notified an iteration later.
        if not connection.is_lost and connection._transport.is_writable
    ]
    if not transports:
        return
    transport = transports[0]
    if how == "TCP connection reset":
        transport._control.abort()
    elif how == "queue pair in error":
        transport._queue_pair.to_error()
    else:
        # A loop must not watch a closed descriptor. A killed process has no loop.
        transport._stop_watching()
        transport._queue_pair.close()


async def test_a_killed_and_restarted_broker_loses_nothing(fabric):
    values = [b"%06d" % number for number in range(1000)]
    async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster:
        async with cluster.producer(retry_backoff_ms=5, reconnect_backoff_ms=5) as producer:
            await send_all(producer, values[:500])
            sending = asyncio.ensure_future(send_all(producer, values[500:]))
            await cluster.kill(1)
            await cluster.restart(1)
            await sending
        assert sorted(values_of(cluster)) == sorted(values)


async def test_a_connector_keeps_nothing_of_a_closed_producer(fabric):
    """It releases the closed producer's memory, and still gathers from that of another one."""
    async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster:
        connector = RdmaConnector(fabric)
        async with cluster.producer(transport=connector) as staying:
            await staying.send("topic", b"one")
            before = fabric.live
            leaving = cluster.producer(transport=connector)
            await leaving.start()
            await leaving.send("topic", b"two")
            assert fabric.live.memory_regions > before.memory_regions
            memory = weakref.ref(leaving._accumulator.pool.arena)
            await leaving.close()
            del leaving
            for _ in range(1000):
                if fabric.live == before:
                    break
                await asyncio.sleep(0.01)
            assert fabric.live == before
            gc.collect()
            assert memory() is None
            copied = connector.counters.bytes_copied
            await staying.send("topic", bytes(100_000))
            assert connector.counters.bytes_copied - copied < 200
        assert len(values_of(cluster)) == 3


async def test_several_producers_can_use_one_connector_one_after_the_other(fabric):
    async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster:
        connector = RdmaConnector(fabric)
        for number in range(3):
            async with cluster.producer(transport=connector) as producer:
                await producer.send("topic", b"%d" % number)
        assert values_of(cluster) == [b"0", b"1", b"2"]


def test_verbs_require_the_rdma_transport():
    with pytest.raises(ValueError, match="verbs are for transport"):
        EmbeddedCluster(verbs=SimulatedFabric())
    with pytest.raises(ValueError, match='transport must be "tcp", "memory" or "rdma"'):
        EmbeddedCluster(transport="carrier pigeon")


async def test_requests_do_not_wait_until_the_card_has_read_those_before_them(fabric):
    """Only unsent data delays a request; memory is released when the card completes the write."""
    async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster:
        cluster.create_topic("topic", partitions=3)
        async with cluster.producer(linger_ms=0, metadata_max_age_ms=3_600_000) as producer:
            for partition in range(3):
                await producer.send("topic", b"first", partition=partition)
            fabric.hold()
            before = producer.metrics()["rdma-writes-total"]
            deliveries = []
            for partition in range(3):
                deliveries.append(producer.send("topic", b"second", partition=partition))
                for _ in range(10):
                    await asyncio.sleep(0)
            assert producer.metrics()["rdma-writes-total"] == before + 3
            assert not any(delivery.done() for delivery in deliveries)
            fabric.release()
            for delivery in deliveries:
                await delivery
            assert sorted(values_of(cluster)) == [b"first"] * 3 + [b"second"] * 3


async def test_without_acknowledgements_memory_is_released_too(fabric):
    settings = {"acks": 0, "linger_ms": 0, "buffer_memory": 1_000_000, "batch_size": 100_000}
    async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster, cluster.producer(**settings) as producer:
        await send_all(producer, [b"%03d" % number * 20_000 for number in range(100)])
        for number in range(100):
            assert (await producer.send("topic", b"%d" % number)).offset is None
        # The broker sends no response when it has them.
        for _ in range(1000):
            if len(values_of(cluster)) == 200:
                break
            await asyncio.sleep(0.01)
        assert len(values_of(cluster)) == 200


async def test_rings_of_one_message_continue_after_the_first(fabric):
    """Its write once requested no completion, and nothing else could be in transit."""
    async with EmbeddedCluster(transport="rdma", verbs=fabric) as cluster:
        config = {"bootstrap_servers": cluster.bootstrap_servers}
        async with Producer(transport=RdmaConnector(fabric, slots=1), **config) as producer, asyncio.timeout(20):
            for number in range(3):
                await producer.send("topic", b"%d" % number + bytes(900_000))
        assert len(values_of(cluster)) == 3
