"""The consumer against Apache Kafka: codecs, transactions, moved and killed leaders, the nearest rack."""

from __future__ import annotations

import asyncio

import confluent_kafka
import pytest

from aioproducer import Consumer, ConsumerRecord, Producer, TopicPartition
from aioproducer.protocol.messages.fetch import FetchRequest
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster

Broker = KafkaCluster | InProcessCluster

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def consumer_of(cluster: Broker, **options: object) -> Consumer:
    defaults = {"bootstrap_servers": cluster.bootstrap_servers, "auto_offset_reset": "earliest"}
    return Consumer.from_config({**defaults, **options})


async def read(consumer: Consumer, count: int, timeout: float = 60.0) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(timeout):
        while len(found) < count:
            for records in (await consumer.poll(5.0)).values():
                found += records
    return found


def by_partition(records: list[ConsumerRecord]) -> dict[int, list[ConsumerRecord]]:
    found: dict[int, list[ConsumerRecord]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


async def fill(cluster: Broker, topic: str, numbers: range, **config: object) -> None:
    async with Producer.from_config({"bootstrap.servers": cluster.bootstrap_servers, **config}) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % 3)
            await producer.drain()
        await producer.flush()


def check_once_and_in_order(records: list[ConsumerRecord], numbers: range) -> None:
    for partition in range(3):
        values = [int(record.value) for record in records if record.partition == partition]
        assert values == [number for number in numbers if number % 3 == partition]


@pytest.mark.parametrize("codec", CODECS)
async def test_records_of_every_codec_are_those_that_confluent_reads(
    one_broker: Broker, topic: str, codec: str
) -> None:
    """Written by librdkafka, in batches up to 500 kB, so that large ones are decompressed in threads."""
    await asyncio.to_thread(one_broker.create_topic, topic, 2)

    def write() -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": one_broker.bootstrap_servers,
                "compression.type": codec,
                "batch.size": 500_000,
                "linger.ms": 50,
            }
        )
        for number in range(3000):
            value = None if number % 100 == 0 else b"%d" % number * (number % 200)
            headers = [("h", b"1"), ("n", None)] if number % 3 == 0 else None
            key = b"k%d" % number if number % 2 else None
            producer.produce(topic, value, key, number % 2, timestamp=number + 1, headers=headers)
            if number % 500 == 0:
                producer.flush()
        producer.flush()

    await asyncio.to_thread(write)
    expected = await asyncio.to_thread(one_broker.read_back, topic, at_least=3000)
    async with consumer_of(one_broker) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        found = by_partition(await read(consumer, 3000))
    for partition, stored in expected.items():
        records = found[partition]
        assert [record.offset for record in records] == [each.offset for each in stored]
        assert [(record.key, record.value) for record in records] == [(each.key, each.value) for each in stored]
        assert [list(record.headers) for record in records] == [list(each.headers or ()) for each in stored]


async def test_an_old_broker_is_read(old_broker: KafkaCluster, topic: str) -> None:
    await asyncio.to_thread(old_broker.create_topic, topic, 3)
    await fill(old_broker, topic, range(300))
    async with consumer_of(old_broker) as consumer:
        consumer.assign([(topic, index) for index in range(3)])
        check_once_and_in_order(await read(consumer, 300), range(300))


async def test_read_committed_is_what_confluent_reads(one_broker: Broker, topic: str) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic, 3)
    async with Producer(bootstrap_servers=one_broker.bootstrap_servers, transactional_id=topic) as producer:
        await producer.init_transactions()
        for number in range(12):
            await producer.begin_transaction()
            for part in range(9):
                producer.send(topic, b"%d" % (number * 9 + part), partition=part % 3)
            await producer.flush()
            await (producer.abort_transaction() if number % 3 == 1 else producer.commit_transaction())
        expected = await asyncio.to_thread(one_broker.read_back, topic, at_least=72, committed=True)
        async with consumer_of(one_broker, isolation_level="read_committed") as consumer:
            consumer.assign([(topic, index) for index in range(3)])
            found = by_partition(await read(consumer, 72))
            for partition, stored in expected.items():
                assert [each.offset for each in found[partition]] == [each.offset for each in stored]
            await producer.begin_transaction()
            await producer.send(topic, b"open", partition=0)
            assert await consumer.poll(1.0) == {}
            await producer.commit_transaction()
            assert [record.value for record in await read(consumer, 1)] == [b"open"]


async def test_moved_and_killed_leaders_lose_and_repeat_nothing(three_nodes: KafkaCluster, topic: str) -> None:
    await asyncio.to_thread(three_nodes.create_topic, topic, 3)
    await fill(three_nodes, topic, range(3000), **{"batch.size": 1000})
    limits = {"max_partition_fetch_bytes": 2000, "fetch_buffer_bytes": 30_000}
    async with consumer_of(three_nodes, **limits) as consumer:
        consumer.assign([(topic, index) for index in range(3)])
        found = await read(consumer, 500)
        leader = await asyncio.to_thread(three_nodes.leader, topic, 0)
        await asyncio.to_thread(three_nodes.move_leader, topic, 0, leader % 3 + 1)
        found += await read(consumer, 500)
        killed = await asyncio.to_thread(three_nodes.leader, topic, 1)
        await asyncio.to_thread(three_nodes.kill, killed)
        try:
            writing = asyncio.ensure_future(fill(three_nodes, topic, range(3000, 3600)))
            found += await read(consumer, 3600 - len(found))
            await writing
        finally:
            await asyncio.to_thread(three_nodes.restart, killed)
            await asyncio.to_thread(three_nodes.wait_in_sync, topic)
        assert await consumer.poll(0.5) == {}
    check_once_and_in_order(found, range(3600))


async def test_a_recreated_topic_is_read_from_its_beginning(one_broker: Broker, topic: str) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic, 3)
    await fill(one_broker, topic, range(30))
    # Else its metadata requests create the topic between the two calls.
    async with consumer_of(one_broker, allow_auto_create_topics=False) as consumer:
        consumer.assign([(topic, index) for index in range(3)])
        check_once_and_in_order(await read(consumer, 30), range(30))
        await asyncio.to_thread(one_broker.delete_topic, topic)
        await asyncio.to_thread(one_broker.create_topic, topic, 3)
        await fill(one_broker, topic, range(30, 60))
        check_once_and_in_order(await read(consumer, 30), range(30, 60))


async def test_records_come_from_the_replica_in_the_rack(
    three_nodes: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-392: the leader names the replica in the consumer's rack."""
    await asyncio.to_thread(three_nodes.create_topic, topic, 3)
    await fill(three_nodes, topic, range(300))
    name = TopicPartition(topic, 0)
    leader = await asyncio.to_thread(three_nodes.leader, *name)
    near = leader % 3 + 1
    async with consumer_of(three_nodes, client_rack=f"rack-{near}") as consumer:
        consumer.assign([name])
        asked: list[int | None] = []
        request = consumer._clients.fetch.request

        def recorded(message, *, node_id=None, **options):
            if isinstance(message, FetchRequest):
                asked.append(node_id)
            return request(message, node_id=node_id, **options)

        monkeypatch.setattr(consumer._clients.fetch, "request", recorded)
        values = [int(record.value) for record in await read(consumer, 100)]
        assert values == list(range(0, 300, 3))
        assert asked[0] == leader
        assert near in asked
        await fill(three_nodes, topic, range(300, 330))
        assert len(await read(consumer, 10)) == 10
        assert asked[-1] == near
