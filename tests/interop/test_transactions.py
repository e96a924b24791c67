"""Transactions in both generations of the protocol: readers of committed records see all or nothing of each, once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress

import confluent_kafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from aioproducer import Producer
from aioproducer.errors import (
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
    TransactionEndedError,
    TransactionStateError,
)
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster

Cluster = KafkaCluster | InProcessCluster

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 3


@pytest.fixture(
    params=[
        "one_node",
        "one_node_with_old_transactions",
        "old_broker",
        "one_embedded",
        "one_embedded_with_old_transactions",
    ]
)
def broker(request: pytest.FixtureRequest) -> Cluster:
    """Both generations of Kafka 4.4 and the embedded broker, and the older one of Kafka 3.3."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


def _producer(cluster: Cluster, topic: str, **config: object) -> Producer:
    settings: dict[str, object] = {"linger_ms": 0, "transactional_id": f"t-{topic}", **config}
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **settings)  # type: ignore[arg-type]


def _values(cluster: Cluster, topic: str, *, committed: bool = True) -> dict[int, list[bytes | None]]:
    stored = cluster.read_back(topic, committed=committed)
    return {partition: [record.value for record in records] for partition, records in stored.items()}


def _committed_offsets(cluster: Cluster, group: str, topic: str) -> Mapping[int, int]:
    """Return the offsets that the group has committed, once none is of a transaction that is about to end.

    In the first generation of the protocol EndTxn is answered before the group has the marker.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, each) for each in range(PARTITIONS)])
    deadline = time.monotonic() + 30
    while True:
        (future,) = admin.list_consumer_group_offsets([asked], require_stable=True).values()
        found = future.result().topic_partitions
        unstable = [each for each in found if each.error is not None]
        if not unstable:
            return {each.partition: each.offset for each in found}
        assert {each.error.code() for each in unstable} == {confluent_kafka.KafkaError.UNSTABLE_OFFSET_COMMIT}
        assert time.monotonic() < deadline, unstable
        time.sleep(0.02)


async def test_readers_see_all_or_nothing_of_each_transaction_in_order_and_once(broker: Cluster, topic: str) -> None:
    """Lone awaited sends, gathered ones and sends without an await; commits, aborts and empty transactions."""
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    chosen = random.Random(7)
    expected: dict[int, list[bytes | None]] = {partition: [] for partition in range(PARTITIONS)}
    count = 0
    async with _producer(broker, topic) as producer:
        for number in range(30):
            aborts = number % 3 == 2
            sent: list[tuple[int, bytes]] = []
            try:
                async with producer.transaction() as transaction:
                    style = chosen.choice(["lone", "gathered", "dropped"])
                    deliveries = []
                    for _ in range(chosen.randrange(12)):
                        partition, value = count % PARTITIONS, b"%d" % count
                        count += 1
                        delivery = transaction.send(topic, value, partition=partition)
                        sent.append((partition, value))
                        if style == "lone":
                            await delivery
                        elif style == "gathered":
                            deliveries.append(delivery)
                    await asyncio.gather(*deliveries)
                    if aborts:
                        raise LookupError
            except LookupError:
                assert await transaction.outcome() == "aborted"
            else:
                assert await transaction.outcome() == "committed"
                for partition, value in sent:
                    expected[partition].append(value)
    assert await asyncio.to_thread(_values, broker, topic) == expected
    uncommitted = await asyncio.to_thread(_values, broker, topic, committed=False)
    for partition, values in uncommitted.items():
        assert len(values) == len(set(values))
        assert [value for value in values if value in expected[partition]] == expected[partition]


async def test_offsets_are_committed_with_the_transaction(broker: Cluster, topic: str) -> None:
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    async with _producer(broker, topic) as producer:
        async with producer.transaction() as transaction:
            transaction.send(topic, b"1")
            await transaction.send_offsets({(topic, 0): 5, (topic, 1): 6}, topic)
            await transaction.send_offsets({(topic, 1): 7}, topic)
        with suppress(LookupError):
            async with producer.transaction() as transaction:
                await transaction.send_offsets({(topic, 0): 50}, topic)
                raise LookupError
        assert await transaction.outcome() == "aborted"
        async with producer.transaction() as transaction:
            await transaction.send_offsets({(topic, 2): 9}, topic)
    offsets = await asyncio.to_thread(_committed_offsets, broker, topic, topic)
    assert offsets == {0: 5, 1: 7, 2: 9}


async def test_a_member_that_the_group_does_not_know_cannot_commit_offsets(broker: Cluster, topic: str) -> None:
    from aioproducer.errors import CommitFailedError
    from aioproducer.offsets import ConsumerGroupMetadata

    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 30
        while not consumer.assignment() and time.monotonic() < deadline:
            await asyncio.to_thread(consumer.poll, 0.1)
        outdated = ConsumerGroupMetadata(topic, 77, "nobody")
        async with _producer(broker, topic) as producer:
            with pytest.raises(CommitFailedError):
                async with producer.transaction() as transaction:
                    await transaction.send_offsets({(topic, 0): 5}, outdated)
            assert await transaction.outcome() == "aborted"
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"1", partition=0)
    finally:
        consumer.close()
    assert (await asyncio.to_thread(_values, broker, topic))[0] == [b"1"]


async def test_a_newer_producer_fences_the_older_one(broker: Cluster, topic: str) -> None:
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    async with _producer(broker, topic) as old, _producer(broker, topic) as new:
        async with old.transaction() as transaction:
            await transaction.send(topic, b"1", partition=0)
        await old.begin_transaction()
        await old.send(topic, b"open", partition=0)
        await new.init_transactions()
        with pytest.raises(KafkaError):
            await old.send(topic, b"2", partition=0)
        with pytest.raises(ProducerFencedError):
            await old.abort_transaction()
        with pytest.raises(ProducerFencedError):
            await old.begin_transaction()
        async with new.transaction() as transaction:
            await transaction.send(topic, b"3", partition=0)
    assert (await asyncio.to_thread(_values, broker, topic))[0] == [b"1", b"3"]


async def test_a_record_that_fails_aborts_the_transaction_and_the_next_one_succeeds(
    broker: Cluster, topic: str
) -> None:
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS, config={"max.message.bytes": "2000"})
    async with _producer(broker, topic) as producer:
        context = producer.transaction()
        transaction = await context.__aenter__()
        transaction.send(topic, b"before", partition=0)
        transaction.send(topic, b"x" * 3000, partition=1)
        with pytest.raises(RecordTooLargeError):
            await context.__aexit__(None, None, None)
        assert await transaction.outcome() == "aborted"
        await producer.begin_transaction()
        producer.send(topic, b"x" * 3000, partition=1)
        with pytest.raises(RecordTooLargeError):
            await producer.commit_transaction()
        with pytest.raises(RecordTooLargeError):
            producer.send(topic, b"after", partition=0)
        with pytest.raises(RecordTooLargeError):
            await producer.begin_transaction()
        await producer.abort_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as transaction:
            for number in range(3):
                transaction.send(topic, b"%d" % number, partition=1)
    values = await asyncio.to_thread(_values, broker, topic)
    assert values == {0: [], 1: [b"0", b"1", b"2"], 2: []}


async def test_records_that_were_not_sent_before_an_abort_fail(broker: Cluster, topic: str) -> None:
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    async with _producer(broker, topic, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        await producer.begin_transaction()
        delivery = producer.send(topic, b"lingers", partition=0)
        unknown = producer.send(f"{topic}-unknown", b"waits")
        await producer.abort_transaction()
        for each in (delivery, unknown):
            with pytest.raises(TransactionAbortedError):
                await each
        with pytest.raises(TransactionEndedError):
            producer.send(topic, b"after")
        with pytest.raises(TransactionStateError):
            await producer.commit_transaction()


async def test_a_cancelled_block_aborts_and_the_producer_continues(broker: Cluster, topic: str) -> None:
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    async with _producer(broker, topic) as producer:
        begun = asyncio.Event()

        async def work() -> None:
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"cancelled", partition=0)
                begun.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with producer.transaction() as transaction:
            await transaction.send(topic, b"next", partition=0)
    assert (await asyncio.to_thread(_values, broker, topic))[0] == [b"next"]


async def test_a_cancelled_commit_continues_and_the_next_call_waits_for_it(broker: Cluster, topic: str) -> None:
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    async with _producer(broker, topic) as producer:
        transaction = await producer.begin_transaction()
        await transaction.send(topic, b"1", partition=0)
        commit = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        with pytest.raises(TransactionEndedError):
            producer.send(topic, b"late")
        with pytest.raises(TransactionEndedError):
            transaction.send(topic, b"late")
        later = await producer.begin_transaction()
        assert await transaction.outcome() == "committed"
        assert producer.send(topic, b"2", partition=0)
        await producer.commit_transaction()
        assert await later.outcome() == "committed"
    assert (await asyncio.to_thread(_values, broker, topic))[0] == [b"1", b"2"]


async def test_a_producer_that_closes_aborts_its_transaction(broker: Cluster, topic: str) -> None:
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    async with _producer(broker, topic) as producer:
        transaction = await producer.begin_transaction()
        await transaction.send(topic, b"open", partition=0)
    assert await transaction.outcome() == "aborted"
    async with _producer(broker, topic) as producer, producer.transaction() as transaction:
        await transaction.send(topic, b"next", partition=0)
    assert (await asyncio.to_thread(_values, broker, topic))[0] == [b"next"]


async def test_a_time_out_longer_than_the_brokers_is_rejected(broker: Cluster, topic: str) -> None:
    async with _producer(broker, topic, transaction_timeout_ms=2_000_000) as producer:
        with pytest.raises(KafkaError, match=r"transaction\.max\.timeout\.ms"):
            await producer.init_transactions()


async def test_without_a_broker_the_calls_end_after_max_block_ms() -> None:
    async with Producer(bootstrap_servers="127.0.0.1:1", transactional_id="t", max_block_ms=200) as producer:
        with pytest.raises(KafkaTimeoutError, match=r"within 200 ms \(max\.block\.ms\)"):
            await producer.init_transactions()
        with pytest.raises(KafkaTimeoutError):
            async with producer.transaction():
                pass


@pytest.mark.parametrize("dies", ["coordinator", "leader"])
async def test_committed_transactions_survive_the_death_of_a_broker(
    three_brokers: Cluster, topic: str, dies: str
) -> None:
    await asyncio.to_thread(three_brokers.create_topic, topic, PARTITIONS)
    expected: dict[int, list[bytes | None]] = {partition: [] for partition in range(PARTITIONS)}
    async with _producer(three_brokers, topic, request_timeout_ms=5000, delivery_timeout_ms=60_000) as producer:

        async def transact(first: int) -> None:
            async with producer.transaction() as transaction:
                for number in range(first, first + 10):
                    transaction.send(topic, b"%d" % number, partition=number % PARTITIONS)
            for number in range(first, first + 10):
                expected[number % PARTITIONS].append(b"%d" % number)

        await transact(0)
        if dies == "coordinator":
            manager = producer._transactions.manager  # type: ignore[union-attr]
            (_, node_id) = next(iter(manager.queue.coordinators.values()))
        else:
            node_id = await asyncio.to_thread(three_brokers.leader, topic, 0)
        killed = asyncio.create_task(asyncio.to_thread(three_brokers.kill, node_id))
        for first in range(10, 200, 10):
            await transact(first)
        await killed
        await transact(200)
        await asyncio.to_thread(three_brokers.restart, node_id)
        await transact(210)
    await asyncio.to_thread(three_brokers.wait_in_sync, topic)
    assert await asyncio.to_thread(_values, three_brokers, topic) == expected
