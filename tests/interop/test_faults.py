"""Moved leaders, killed brokers and recreated topics under load: acknowledged records are stored once."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from aioproducer import Producer
from aioproducer.errors import DeliveryTimeoutError, KafkaError, MetadataTimeoutError
from tests.kafka.cluster import KafkaCluster
from tests.kafka.dump import check_batches
from tests.kafka.in_process import InProcessCluster
from tests.kafka.ledger import verify
from tests.kafka.load import Load

# Repetitions of each fault; more with `make soak`.
ROUNDS = int(os.environ.get("AIOPRODUCER_SOAK_ROUNDS", "1"))

Cluster = KafkaCluster | InProcessCluster

pytestmark = pytest.mark.timeout(120 + 60 * ROUNDS)


def _check(cluster: Cluster, topic: str, load: Load, partitions: int) -> None:
    assert not load.ledger.failed, next(iter(load.ledger.failed.values()))
    assert verify(load.ledger, cluster.read_back(topic)) == (load.ledger.sent, load.ledger.sent, 0)
    for partition in range(partitions):
        check_batches(cluster.dump_log(topic, partition))


@pytest.mark.parametrize("max_in_flight", [1, 5])
async def test_moved_leaders_lose_nothing_under_load(three_brokers: Cluster, topic: str, max_in_flight: int) -> None:
    await asyncio.to_thread(three_brokers.create_topic, topic, 3)
    async with Producer(
        bootstrap_servers=three_brokers.bootstrap_servers,
        max_in_flight_requests_per_connection=max_in_flight,
        linger_ms=0,
    ) as producer:
        load = Load(producer, topic, 3, size=200)
        async with load.running():
            for _ in range(2 * ROUNDS):
                await load.more(100)
                leader = await asyncio.to_thread(three_brokers.leader, topic, 0)
                await asyncio.to_thread(three_brokers.move_leader, topic, 0, leader % 3 + 1)
                await load.more(100)
    _check(three_brokers, topic, load, 3)


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("compression_type", ["lz4"])
async def test_a_killed_broker_of_three_loses_nothing_under_load(
    three_brokers: Cluster, topic: str, compression_type: str
) -> None:
    await asyncio.to_thread(three_brokers.create_topic, topic, 3)
    async with Producer(
        bootstrap_servers=three_brokers.bootstrap_servers,
        compression_type=compression_type,
        request_timeout_ms=5000,
        delivery_timeout_ms=60_000,
    ) as producer:
        load = Load(producer, topic, 3, size=200)
        async with load.running():
            for _ in range(ROUNDS):
                await load.more(100)
                victim = await asyncio.to_thread(three_brokers.leader, topic, 0)
                await asyncio.to_thread(three_brokers.kill, victim)
                try:
                    await load.more(1000)
                finally:
                    await asyncio.to_thread(three_brokers.restart, victim)
                await load.more(200)
                await asyncio.to_thread(three_brokers.wait_in_sync, topic)
                # Move back to the killed broker: the producer must reach it again.
                await asyncio.to_thread(three_brokers.move_leader, topic, 0, victim)
                await load.more(100)
    _check(three_brokers, topic, load, 3)


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_killed_only_broker_loses_nothing_under_load(topic: str, one_broker: Cluster, idempotent: bool) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic, 3)
    async with Producer(
        bootstrap_servers=one_broker.bootstrap_servers, enable_idempotence=idempotent, request_timeout_ms=5000
    ) as producer:
        load = Load(producer, topic, 3, size=200)
        async with load.running():
            for _ in range(ROUNDS):
                await load.more(200)
                await asyncio.to_thread(one_broker.kill, 1)
                await asyncio.to_thread(one_broker.restart, 1)
                await load.more(200)
    if idempotent:
        _check(one_broker, topic, load, 3)
    else:
        assert not load.ledger.failed
        # Without idempotence a batch with a lost response is stored twice, and later ones may overtake it.
        verdict = verify(load.ledger, one_broker.read_back(topic), exactly_once=False, in_order=False)
        assert verdict.acked == load.ledger.sent


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_every_record_has_an_outcome_when_a_topic_is_recreated_under_load(
    three_brokers: Cluster, topic: str
) -> None:
    await asyncio.to_thread(three_brokers.create_topic, topic, 2)
    other = await asyncio.to_thread(three_brokers.create_topic, f"{topic}-other", 2)
    async with Producer(
        bootstrap_servers=three_brokers.bootstrap_servers,
        delivery_timeout_ms=20_000,
        request_timeout_ms=5000,
        linger_ms=0,
    ) as producer:
        before, elsewhere = Load(producer, topic, 2, sender="before"), Load(producer, other, 2, sender="elsewhere")
        async with elsewhere.running():
            async with before.running():
                await before.more(100)
                await asyncio.to_thread(three_brokers.delete_topic, topic)
                await asyncio.to_thread(three_brokers.create_topic, topic, 2)
            # Each record has an outcome; those acknowledged before the deletion are deleted with the topic.
            assert before.ledger.unresolved == 0
            after = Load(producer, topic, 2, sender="after")
            async with after.running():
                await after.more(200)
        assert not after.ledger.failed
        assert not elsewhere.ledger.failed
    stored = {
        partition: [record for record in records if (record.value or b"").startswith(b"after:")]
        for partition, records in three_brokers.read_back(topic).items()
    }
    assert verify(after.ledger, stored) == (after.ledger.sent, after.ledger.sent, 0)
    assert verify(elsewhere.ledger, three_brokers.read_back(other)).acked == elsewhere.ledger.sent


async def _send_until_unknown(producer: Producer, topic: str) -> None:
    """Until the leader has applied the deletion, and the producer has requested metadata again."""
    async with asyncio.timeout(30):
        while True:
            with suppress(DeliveryTimeoutError):
                await producer.send(topic, b"after")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_deleted_topic_is_named_in_errors_until_it_is_recreated(three_brokers: Cluster, topic: str) -> None:
    await asyncio.to_thread(three_brokers.create_topic, topic, 3)
    async with Producer(
        bootstrap_servers=three_brokers.bootstrap_servers,
        max_block_ms=1500,
        request_timeout_ms=2000,
        delivery_timeout_ms=4000,
    ) as producer:
        await producer.send(topic, b"first", partition=2)
        await asyncio.to_thread(three_brokers.delete_topic, topic)
        before = producer.send(topic, b"before", partition=2)
        with pytest.raises(MetadataTimeoutError, match=r"was not found .*UNKNOWN_TOPIC_OR_PARTITION"):
            await _send_until_unknown(producer, topic)
        with pytest.raises(DeliveryTimeoutError, match=r"no longer has this partition"):
            await before
        waiting = producer.send(topic, b"again")
        await asyncio.to_thread(three_brokers.create_topic, topic, 1)
        async with asyncio.timeout(30):
            while True:
                try:
                    assert (await waiting).offset == 0
                    break
                except MetadataTimeoutError:
                    # It took longer to create it.
                    waiting = producer.send(topic, b"again")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_with_too_few_replicas_records_fail_at_their_deadline(topic: str, three_brokers: Cluster) -> None:
    await asyncio.to_thread(three_brokers.create_topic, topic, 1, config={"min.insync.replicas": "3"})
    leader = await asyncio.to_thread(three_brokers.leader, topic, 0)
    victim = leader % 3 + 1
    failures: list[BaseException] = []
    async with Producer(
        bootstrap_servers=three_brokers.bootstrap_servers,
        delivery_timeout_ms=4000,
        request_timeout_ms=2000,
        on_error=lambda place, count, error: failures.append(error),
    ) as producer:
        load = Load(producer, topic, 1)
        await load.send(10)
        await load.finish()
        await asyncio.to_thread(three_brokers.kill, victim)
        try:
            async with asyncio.timeout(60):
                while not load.ledger.failed:
                    await load.send(10)
                    await load.finish()
        finally:
            await asyncio.to_thread(three_brokers.restart, victim)
        assert isinstance(failures[0], KafkaError)
        await asyncio.to_thread(three_brokers.wait_in_sync, topic)
        async with asyncio.timeout(60):
            failed = -1
            while len(load.ledger.failed) != failed:
                failed = len(load.ledger.failed)
                await load.send(10)
                ledger = await load.finish()
    verify(ledger, three_brokers.read_back(topic))
