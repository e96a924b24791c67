"""Topics of a producer: missing, refused, growing, recreated and forgotten ones."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.errors import InvalidTopicError, TopicAuthorizationError
from aioproducer.protocol import ApiKey
from tests.simulation import Fault, run

INVALID_TOPIC_EXCEPTION = 17
NOT_ENOUGH_REPLICAS = 19
TOPIC_AUTHORIZATION_FAILED = 29


@pytest.mark.parametrize(
    ("code", "error_class"),
    [(INVALID_TOPIC_EXCEPTION, InvalidTopicError), (TOPIC_AUTHORIZATION_FAILED, TopicAuthorizationError)],
)
def test_a_topic_that_the_cluster_refuses_fails_only_its_records_and_at_once(code, error_class):
    async def scenario(world):
        world.cluster.create_topic("good")
        world.cluster.topic_errors["bad"] = code
        async with world.producer() as producer:
            good = producer.send("good", b"value")
            bad = [producer.send("bad", b"value") for _ in range(3)]
            for delivery in bad:
                with pytest.raises(error_class):
                    await delivery
            assert world.loop.time() < 1001
            await good
            with pytest.raises(error_class):
                await producer.partitions_for("bad")

    _, world = run(scenario)
    assert [(where.topic, count) for where, count, _ in world.failures] == [("bad", 3)]


def test_requesting_a_topic_creates_it_if_the_cluster_auto_creates_topics():
    async def scenario(world):
        async with world.producer() as producer:
            await producer.send("new", b"value")

    _, world = run(scenario, auto_create=2)
    assert len(world.cluster.topics["new"].partitions) == 2


def test_a_record_for_a_future_partition_waits_for_it():
    async def scenario(world):
        topic = world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer() as producer:
            await producer.send("clicks", b"value")
            delivery = producer.send("clicks", b"value", partition=1)
            await asyncio.sleep(3)
            topic.partitions.append(type(topic.partitions[0])(leader=2))
            assert (await delivery).partition == 1

    _, world = run(scenario)
    assert len(world.events(ApiKey.METADATA)) < 12


def test_a_slow_serializer_causes_no_metadata_requests():
    async def serialize(value):
        await asyncio.sleep(20)
        return value

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(value_serializer=serialize) as producer:
            await producer.send("clicks", b"value")

    _, world = run(scenario)
    assert len(world.events(ApiKey.METADATA)) <= 3


def test_a_topic_recreated_with_another_id_is_followed():
    async def scenario(world):
        world.cluster.create_topic("clicks", 3)
        async with world.producer() as producer:
            await producer.send("clicks", b"old", partition=2)
            world.cluster.create_topic("clicks", 3, leaders=[2, 3, 1])
            assert (await producer.send("clicks", b"new", partition=2)).offset == 0

    _, world = run(scenario)
    assert world.cluster.values("clicks", 2) == [b"new"]


def test_an_unused_topic_is_forgotten_and_returns_with_its_sequences():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"metadata_max_idle_ms": 5000, "metadata_max_age_ms": 2000}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"before")
            assert "clicks" in producer.metrics().topics
            await asyncio.sleep(20)
            assert list(producer._parts.metadata.topics_in_use) == []
            assert "clicks" not in producer._accumulator.topics
            assert producer.metrics().topics == {}
            await producer.send("clicks", b"after")

    _, world = run(scenario)
    assert world.cluster.values("clicks") == [b"before", b"after"]


def test_a_topic_is_not_forgotten_while_records_wait_in_it():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"metadata_max_idle_ms": 5000, "metadata_max_age_ms": 1000, "request_timeout_ms": 60_000}
        async with world.producer(**config, delivery_timeout_ms=100_000) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=30))
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(20)
            assert "clicks" in producer._accumulator.topics
            await delivery

    run(scenario)


@pytest.mark.parametrize("listed", [False, True])
def test_keyless_records_leave_a_partition_that_sends_nothing(listed):
    """Bytes were once counted only when a batch was full; this one never was, so all records went there and expired."""

    async def scenario(world):
        world.cluster.create_topic("clicks", 4, leaders=[1, 1, 1, 2])
        config = {"delivery_timeout_ms": 30_000, "request_timeout_ms": 10_000, "metadata_max_age_ms": 5000}
        async with world.producer(**config, partitioner_availability_timeout_ms=1000) as producer:
            while (await producer.send("clicks", bytes(900))).partition != 3:
                pass
            world.stop_node(2)
            if listed:
                # Named as the leader, but unreachable.
                world.cluster.listed = {1, 2}
            deliveries = []
            for _ in range(300):
                deliveries.append(producer.send("clicks", b"x" * 20))
                await asyncio.sleep(1)
            outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
        return sum(isinstance(outcome, Exception) for outcome in outcomes)

    failed, _ = run(scenario, nodes=2, seed=3, check=False)
    # Records sent before the first expiry, and before the loss of the leader was known.
    assert 0 < failed <= (31 if listed else 6)


def test_after_a_topic_is_recreated_the_first_batch_is_sent_alone():
    """The new log accepts any sequence: a batch behind the first, rejected one was once stored before it."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=0, batch_size=0, metadata_max_age_ms=300) as producer:
            for number in range(3):
                await producer.send("clicks", b"old%d" % number)
            world.cluster.create_topic("clicks", leaders=[1])
            await asyncio.sleep(1)
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS))
            return await asyncio.gather(*[producer.send("clicks", b"new%d" % number) for number in range(5)])

    sent, world = run(scenario, nodes=1, check=False)
    assert world.cluster.values("clicks") == [b"new%d" % number for number in range(5)]
    assert [metadata.offset for metadata in sent] == list(range(5))
