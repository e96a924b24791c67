"""A group's offsets in transactions, committed by the producers of confluent-kafka, aiokafka and kafka-python.

librdkafka sends the member and generation of its consumer; aiokafka and kafka-python send only the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from kafka.structs import OffsetAndMetadata as PythonOffset

from aioproducer.broker import BrokerCluster

pytestmark = [
    pytest.mark.interop,
]

TOPIC = "orders"
GROUP = "readers"
DEADLINE = 30.0
PROPERTIES = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.min.isr": 1,
}


def confluent_commits(bootstrap_servers: str) -> None:
    """Run two transactions of librdkafka with its consumer's metadata: offset 5, and 9, which is aborted."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": GROUP,
            "session.timeout.ms": 6000,
            # Otherwise the consumer commits its position when it closes.
            "enable.auto.commit": False,
        }
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "confluent"})
    try:
        consumer.subscribe([TOPIC])
        while not consumer.assignment():
            consumer.poll(0.1)
        producer.init_transactions(DEADLINE)
        for offset, commits in ((5, True), (9, False)):
            producer.begin_transaction()
            producer.produce(TOPIC, b"value")
            positions = [confluent_kafka.TopicPartition(TOPIC, 0, offset)]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), DEADLINE)
            if commits:
                producer.commit_transaction(DEADLINE)
            else:
                producer.abort_transaction(DEADLINE)
    finally:
        consumer.close()


def aiokafka_commits(bootstrap_servers: str) -> None:
    """Run the same transactions by aiokafka."""

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id="aiokafka")
        await producer.start()
        try:
            for offset, commits in ((5, True), (9, False)):
                await producer.begin_transaction()
                await producer.send_and_wait(TOPIC, b"value")
                await producer.send_offsets_to_transaction({AioTopicPartition(TOPIC, 0): offset}, GROUP)
                await (producer.commit_transaction() if commits else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(run())


def kafka_python_commits(bootstrap_servers: str) -> None:
    """Run the same transactions by kafka-python."""
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap_servers.split(","), transactional_id="python")
    try:
        producer.init_transactions()
        for offset, commits in ((5, True), (9, False)):
            producer.begin_transaction()
            producer.send(TOPIC, b"value").get(DEADLINE)
            position = PythonOffset(offset, "", -1)
            producer.send_offsets_to_transaction({kafka.TopicPartition(TOPIC, 0): position}, GROUP)
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()


CLIENTS = {"confluent-kafka": confluent_commits, "aiokafka": aiokafka_commits, "kafka-python": kafka_python_commits}


def stable_offset(bootstrap_servers: str) -> int:
    """Return the group's offset for a consumer of librdkafka, which requests stable offsets and waits for them."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": GROUP, "enable.auto.commit": False}
    )
    try:
        [position] = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], timeout=DEADLINE)
        return int(position.offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("nodes", [1, 3])
async def test_the_offset_of_the_committed_transaction_remains(client: str, nodes: int) -> None:
    commits: Callable[[str], None] = CLIENTS[client]
    async with BrokerCluster(nodes, properties=PROPERTIES) as cluster:
        cluster.create_topic(TOPIC, 1, nodes)
        servers = cluster.bootstrap_servers
        await asyncio.wait_for(asyncio.to_thread(commits, servers), DEADLINE)
        assert await asyncio.to_thread(stable_offset, servers) == 5
