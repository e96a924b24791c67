"""Waiting records and waiting callers: what ends the wait, and what they are told."""

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


def test_a_drain_for_room_does_not_wait_out_the_linger_of_the_batches_that_fill_the_buffer():
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


def test_a_loop_that_was_held_up_serves_a_record_whose_metadata_is_there_and_does_not_say_that_memory_is_short():
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


def test_a_partition_that_does_not_exist_is_named_and_others_go_on_meanwhile():
    async def scenario(world):
        world.cluster.create_topic("clicks", 2)
        async with world.producer(max_block_ms=500) as producer:
            await producer.partitions_for("clicks")
            missing = producer.send("clicks", b"v", partition=7)
            await producer.send("clicks", b"v", partition=0)
            assert not missing.done()
            with pytest.raises(MetadataTimeoutError, match=r"no partition 7 .* it has 2, numbered from 0"):
                await missing

    run(scenario)


def test_records_for_a_deleted_topic_fail_after_max_block_and_those_before_say_that_it_is_gone():
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
            with pytest.raises(DeliveryTimeoutError, match=r"does not have this partition any more"):
                await before

    run(scenario)


def test_records_that_waited_while_their_topic_was_deleted_and_created_anew_are_delivered():
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
            with pytest.raises(DeliveryTimeoutError, match=r"created anew with fewer partitions"):
                await before[2]
            assert not after[2].done()
            after[2].cancel()

    run(scenario)


def test_a_serializer_that_is_late_is_named_and_not_the_topic():
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


def test_a_record_over_max_request_size_went_through_an_open_batch_where_that_is_smaller_than_batch_size():
    async def scenario(world):
        world.cluster.create_topic("clicks", 1)
        async with world.producer(max_request_size=2000, batch_size=16384, linger_ms=50) as producer:
            await producer.partitions_for("clicks")
            small = producer.send("clicks", b"small")
            with pytest.raises(RecordTooLargeError, match="max_request_size"):
                await producer.send("clicks", bytes(3000))
            assert (await small).offset == 0

    run(scenario)
