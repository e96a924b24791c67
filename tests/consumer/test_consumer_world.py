"""A consumer in a cluster where everything moves, on virtual time, from a seed: each record once and in order.

A producer writes all the time. Leaders move, connections end, answers are late or refused, brokers go down and come
back; the consumer pauses, resumes, is cancelled, and reads by either form.
"""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest

from aioproducer import Consumer, TopicPartition
from aioproducer.testing import EmbeddedCluster

from .virtual import run

PARTITIONS = 4
RECORDS = 400
FAULTS = [
    lambda cluster, random: cluster.disconnect("Fetch", random.choice(["before", "after", "half"])),
    lambda cluster, random: cluster.disconnect("Metadata"),
    lambda cluster, random: cluster.disconnect("OffsetForLeaderEpoch"),
    lambda cluster, random: cluster.fail("Fetch", "FETCH_SESSION_ID_NOT_FOUND"),
    lambda cluster, random: cluster.fail("Fetch", "INVALID_FETCH_SESSION_EPOCH"),
    lambda cluster, random: cluster.fail("Fetch", "KAFKA_STORAGE_ERROR", topic="a"),
    lambda cluster, random: cluster.fail("Fetch", "OFFSET_NOT_AVAILABLE", topic="a"),
    lambda cluster, random: cluster.fail("Fetch", "UNKNOWN_TOPIC_ID", topic="a"),
    lambda cluster, random: cluster.fail("OffsetForLeaderEpoch", "UNKNOWN_LEADER_EPOCH", topic="a"),
    lambda cluster, random: cluster.delay("Fetch", random.randrange(2000)),
    lambda cluster, random: cluster.throttle("Fetch", random.randrange(500)),
]


async def disturb(cluster, random):
    """Let something happen every now and then, until cancelled."""
    down = None
    try:
        while True:
            await asyncio.sleep(random.uniform(0, 0.3))
            match random.randrange(8):
                case 0 if down is None:
                    down = random.choice(cluster.nodes)
                    await cluster.kill(down)
                case 1 if down is not None:
                    await cluster.restart(down)
                    await cluster.wait_in_sync()
                    down = None
                case 2 | 3 | 4:
                    partition = random.randrange(PARTITIONS)
                    in_sync = [node for node in cluster.in_sync_replicas("a", partition) if node in cluster.nodes]
                    if in_sync:
                        cluster.move_leader("a", partition, random.choice(in_sync))
                case _:
                    random.choice(FAULTS)(cluster, random)
    finally:
        cluster.clear_faults()
        if down is not None:
            await cluster.restart(down)


async def write(cluster, random):
    async with cluster.producer(
        batch_size=300, linger_ms=1, compression_type=random.choice(["none", "lz4"])
    ) as producer:
        for number in range(RECORDS):
            producer.send("a", b"%d" % number, partition=number % PARTITIONS)
            if random.random() < 0.2:
                await asyncio.sleep(random.uniform(0, 0.1))
        await producer.flush()


async def read(consumer, random):
    """Every record, however the caller behaves."""
    names = [TopicPartition("a", index) for index in range(PARTITIONS)]
    consumer.assign(names)
    seen = []
    while len(seen) < RECORDS:
        match random.randrange(10):
            case 0:
                consumer.pause(random.choice(names))
            case 1 | 2:
                consumer.resume()
            case 3:
                # Nothing changes by a seek to where the consumer is.
                name = random.choice(names)
                consumer.seek(name, await consumer.position(name))
            case 4:
                await asyncio.sleep(random.uniform(0, 0.5))
            case 5:
                call = asyncio.ensure_future(consumer.poll(1.0))
                await asyncio.sleep(random.choice([0, 0, 0.001, 0.1]))
                call.cancel()
                await asyncio.wait([call])
                if not call.cancelled():
                    seen += [record for records in call.result().values() for record in records]
            case 6:
                try:
                    async with asyncio.timeout(random.uniform(0, 0.5)):
                        seen.append(await anext(consumer))
                except TimeoutError:
                    pass
            case _:
                found = await consumer.poll(random.uniform(0, 0.5), max_records=random.randrange(1, 50))
                seen += [record for records in found.values() for record in records]
        buffer = consumer._fetcher.buffer
        assert buffer.used <= buffer.capacity + 3 * 2000
    return seen


# A record was once skipped with seed 136.
@pytest.mark.parametrize("seed", [*range(7), 136])
def test_each_record_is_read_once_and_in_order(seed, monkeypatch):
    # Where brokers read the real clock, producers that wrote years before would have expired.
    monkeypatch.setattr("aioproducer.testing.simulation.determinism.WALL_CLOCK", time.time())

    async def scenario(_loop):
        random = Random(seed)
        properties = {"min.insync.replicas": "2"}
        async with EmbeddedCluster(3, transport="memory", properties=properties) as cluster:
            cluster.create_topic("a", PARTITIONS)
            await cluster.wait_in_sync()
            async with Consumer(
                bootstrap_servers=cluster.bootstrap_servers,
                transport=cluster.transport,
                auto_offset_reset="earliest",
                max_partition_fetch_bytes=random.choice([200, 1000, 100_000]),
                fetch_buffer_bytes=random.choice([500, 2000, 1_000_000]),
                request_timeout_ms=5000,
            ) as consumer:
                disturbing = asyncio.ensure_future(disturb(cluster, random))
                writing = asyncio.ensure_future(write(cluster, random))
                try:
                    async with asyncio.timeout(900):
                        seen = await read(consumer, random)
                finally:
                    disturbing.cancel()
                    await asyncio.gather(disturbing, writing, return_exceptions=True)
                writing.result()
                for partition in range(PARTITIONS):
                    part = [record for record in seen if record.partition == partition]
                    stored = cluster.records("a", partition)
                    assert [(each.offset, each.value) for each in part] == [
                        (each.offset, each.value) for each in stored
                    ]
                    assert [record.offset for record in part] == list(range(RECORDS // PARTITIONS))
                    assert [int(record.value) for record in part] == list(range(partition, RECORDS, PARTITIONS))

    run(scenario, seed)
