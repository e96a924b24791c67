"""Waiting records and callers: what ends the wait, and which error they get."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.errors import (
    DeliveryTimeoutError,
    KafkaError,
    KafkaTimeoutError,
    MetadataTimeoutError,
    RecordTooLargeError,
)
from tests.simulation import run


def test_drain_does_not_wait_for_the_linger_of_the_batches_that_fill_the_buffer():
    async def scenario(world):
        world.cluster.create_topic("clicks", 1)
        config = {"buffer_memory": 8192, "linger_ms": 60_000, "batch_size": 16384, "max_block_ms": 1000}
        async with world.producer(delivery_timeout_ms=200_000, **config) as producer:
            await producer.partitions_for("clicks")
            began = world.loop.time()
            for _ in range(50):
                producer.send("clicks", bytes(1000))
                await producer.drain()
            assert world.loop.time() - began < 1

    run(scenario)


def test_after_a_blocked_loop_a_record_with_metadata_is_served_and_does_not_expire():
    async def scenario(world):
        world.cluster.create_topic("clicks", 1)
        async with world.producer(max_block_ms=500) as producer:
            delivery = producer.send("clicks", b"v")
            while not producer._accumulator.blocked_records.memory_waiters:
                assert not delivery.done()
                await asyncio.sleep(0)
            world.loop.hold_up(0.6)
            assert (await delivery).offset == 0

    run(scenario)


def test_a_missing_partition_is_named_in_the_error_and_delays_no_other():
    async def scenario(world):
        world.cluster.create_topic("clicks", 2)
        async with world.producer(max_block_ms=500) as producer:
            await producer.partitions_for("clicks")
            missing = producer.send("clicks", b"v", partition=7)
            await producer.send("clicks", b"v", partition=0)
            assert not missing.done()
            with pytest.raises(MetadataTimeoutError, match=r"no partition 7: .* it has 2, numbered from 0"):
                await missing

    run(scenario)


def test_records_for_a_deleted_topic_fail_after_max_block_and_earlier_ones_report_the_deletion():
    async def scenario(world):
        world.cluster.create_topic("clicks", 2)
        world.cluster.create_topic("views", 1)
        async with world.producer(max_block_ms=2000, delivery_timeout_ms=10_000, request_timeout_ms=5000) as producer:
            await producer.send("clicks", b"v", partition=1)
            del world.cluster.topics["clicks"]
            before = producer.send("clicks", b"before", partition=1)
            await asyncio.sleep(1)
            began = world.loop.time()
            after = producer.send("clicks", b"after")
            await producer.send("views", b"v")
            with pytest.raises(MetadataTimeoutError, match=r"'clicks' was not found .*UNKNOWN_TOPIC_OR_PARTITION"):
                await after
            assert world.loop.time() - began < 2.1
            with pytest.raises(MetadataTimeoutError, match=r"'clicks' was not found"):
                await producer.partitions_for("clicks")
            with pytest.raises(DeliveryTimeoutError, match=r"no longer has this partition"):
                await before

    run(scenario)


def test_records_that_wait_while_their_topic_is_recreated_are_delivered():
    async def scenario(world):
        world.cluster.create_topic("clicks", 3)
        async with world.producer(delivery_timeout_ms=10_000, request_timeout_ms=5000) as producer:
            for partition in range(3):
                await producer.send("clicks", b"old", partition=partition)
            del world.cluster.topics["clicks"]
            before = [producer.send("clicks", b"before", partition=partition) for partition in range(3)]
            await asyncio.sleep(1)
            after = [producer.send("clicks", b"after", partition=partition) for partition in range(3)]
            assert not any(each.done() for each in (*before, *after))
            world.cluster.create_topic("clicks", 2)
            await asyncio.gather(*before[:2], *after[:2])
            assert [world.cluster.values("clicks", partition) for partition in range(2)] == [[b"before", b"after"]] * 2
            with pytest.raises(DeliveryTimeoutError, match=r"created again with fewer partitions"):
                await before[2]
            assert not after[2].done()
            after[2].cancel()

    run(scenario)


def test_a_late_serializer_is_named_in_the_error_instead_of_the_topic():
    async def scenario(world):
        world.cluster.create_topic("clicks", 1)

        class Late:
            async def serialize(self, topic, value, headers):
                await asyncio.sleep(60)

        async with world.producer(max_block_ms=500, value_serializer=Late()) as producer:
            with pytest.raises(KafkaTimeoutError, match=r"A serializer did not finish .* within 500 ms"):
                await producer.send("clicks", "text")

    run(scenario)


def test_a_partitioner_that_fails_on_a_waiting_record_is_reported_to_on_error():
    async def scenario(world):
        def choose(topic, key, value, cluster):
            raise LookupError("no such shard")

        async with world.producer(partitioner_class=choose) as producer:
            delivery = producer.send("clicks", b"v")
            world.cluster.create_topic("clicks", 1)
            with pytest.raises(KafkaError, match=r"The partitioner failed .*no such shard"):
                await delivery
        assert [(str(where), count) for where, count, _ in world.failures] == [("clicks", 1)]

    run(scenario)


def test_max_request_size_below_batch_size_also_limits_records_in_an_open_batch():
    async def scenario(world):
        world.cluster.create_topic("clicks", 1)
        async with world.producer(max_request_size=2000, batch_size=16384, linger_ms=50) as producer:
            await producer.partitions_for("clicks")
            small = producer.send("clicks", b"small")
            with pytest.raises(RecordTooLargeError, match="max_request_size"):
                await producer.send("clicks", bytes(3000))
            assert (await small).offset == 0

    run(scenario)
