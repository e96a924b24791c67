"""Cancelling a consumer's caller or its tasks, wherever they wait, loses no record and leaves nothing behind.

Whole lives on virtual time against the embedded cluster, cancelled at each step in turn.
"""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Consumer, TopicPartition
from aioproducer.errors import ConsumerClosedError
from aioproducer.testing import EmbeddedCluster
from tests.simulation.test_cancellation import CancelledAt

from .virtual import run, run_at_each_step

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
COUNT = 60
MOST_STEPS = 1000


async def deserialized(data):
    await asyncio.sleep(0.001)
    return int(data)


async def filled():
    cluster = EmbeddedCluster(2, transport="memory")
    await cluster.start()
    cluster.create_topic("a", 2)
    async with cluster.producer(batch_size=100, compression_type="gzip") as producer:
        for number in range(COUNT):
            producer.send("a", b"%d" % number, partition=number % 2)
        await producer.flush()
    return cluster


def consumer_of(cluster):
    return Consumer(
        bootstrap_servers=cluster.bootstrap_servers,
        transport=cluster.transport,
        auto_offset_reset="earliest",
        value_deserializer=deserialized,
        max_partition_fetch_bytes=300,
        fetch_buffer_bytes=1500,
    )


def note(seen, found):
    for records in found.values():
        seen += [record.value for record in records]


async def read_all(consumer, seen):
    """What is left, whatever was read before."""
    async with asyncio.timeout(60):
        while len(seen) < COUNT:
            note(seen, await consumer.poll(5.0, max_records=7))


async def life(consumer, seen):
    """A whole life, with all that can be awaited in it."""
    await consumer.start()
    consumer.assign([A0, A1])
    await consumer.position(A0)
    await consumer.offsets_for_times({A0: 1, A1: 1})
    for _ in range(4):
        seen.append((await anext(consumer)).value)
    for _ in range(4):
        note(seen, await consumer.poll(1.0, max_records=3))


def check(seen):
    for part in (0, 1):
        assert [value for value in seen if value % 2 == part] == list(range(part, COUNT, 2))


def test_a_caller_can_be_cancelled_wherever_it_waits():
    async def scenario(loop, step):
        cluster = await filled()
        consumer, seen = consumer_of(cluster), []
        caller = CancelledAt(life(consumer, seen), step)
        task = asyncio.ensure_future(caller.run())
        await asyncio.wait([task])
        assert task.cancelled() == caller.was_cancelled
        await consumer.start()
        consumer.assign([A0, A1])
        await read_all(consumer, seen)
        check(seen)
        began = loop.time()
        await consumer.close()
        assert loop.time() - began < 2.0
        assert (consumer._fetcher.buffer.used, consumer._fetcher.buffer.reserved) == (0, 0)
        await cluster.stop()
        return not caller.was_cancelled

    run_at_each_step(scenario, more_than=20, most=MOST_STEPS)


@pytest.mark.parametrize("name", ["FetchDriver._fetch", "FetchDriver._look_up", "FetchDriver._update_metadata"])
def test_a_task_of_the_consumer_can_be_cancelled_wherever_it_waits(name):
    """``for task in asyncio.all_tasks(): task.cancel()`` does this."""

    async def scenario(loop, step):
        cluster = await filled()
        wrapped = []

        def factory(loop, coroutine, **options):
            if coroutine.__qualname__ == name:
                wrapped.append(CancelledAt(coroutine, step))
                coroutine = wrapped[-1].run()
            task = asyncio.Task(coroutine, loop=loop, **options)
            if len(wrapped) >= 3:
                loop.set_task_factory(None)
            return task

        loop.set_task_factory(factory)
        consumer, seen = consumer_of(cluster), []
        await life(consumer, seen)
        await read_all(consumer, seen)
        check(seen)
        loop.set_task_factory(None)
        await consumer.close()
        await cluster.stop()
        return not any(each.was_cancelled for each in wrapped)

    run_at_each_step(scenario, more_than=1, most=50)


@pytest.mark.parametrize("name", ["FetchDriver._fetch", "FetchDriver._look_up", "FetchDriver._update_metadata"])
def test_a_task_of_the_consumer_can_be_cancelled_before_it_begins(name):
    """Such a task runs no line of its own. Its request was then never sent again."""

    async def scenario(loop):
        cluster = await filled()
        cancelled = []

        def factory(loop, coroutine, **options):
            qualified = coroutine.__qualname__
            task = asyncio.Task(coroutine, loop=loop, **options)
            if qualified == name and len(cancelled) < 2:
                cancelled.append(task)
                task.cancel()
            return task

        loop.set_task_factory(factory)
        consumer, seen = consumer_of(cluster), []
        await life(consumer, seen)
        await read_all(consumer, seen)
        check(seen)
        assert len(cancelled) == 2
        loop.set_task_factory(None)
        await consumer.close()
        await cluster.stop()

    run(scenario)


def test_closing_can_be_cancelled_twice_wherever_it_waits():
    async def scenario(loop, step):
        cluster = await filled()
        consumer, seen = consumer_of(cluster), []
        await life(consumer, seen)
        caller = CancelledAt(consumer.close(), step, times=2)
        await asyncio.wait([asyncio.ensure_future(caller.run())])
        await consumer.close()
        assert not [task for task in asyncio.all_tasks() if "consumer" in task.get_name()]
        await cluster.stop()
        return not caller.was_cancelled

    run_at_each_step(scenario, more_than=1, most=50)


@pytest.mark.parametrize("timeout", [0.0, 1.0])
def test_a_close_ends_within_its_timeout_while_no_broker_answers(timeout):
    async def scenario(loop):
        cluster = await filled()
        consumer, seen = consumer_of(cluster), []
        await life(consumer, seen)
        cluster.delay("Fetch", 600_000, times=None)
        cluster.delay("Metadata", 600_000, times=None)
        note(seen, await consumer.poll(3.0, max_records=1000))
        began = loop.time()
        await consumer.close(timeout)
        assert loop.time() - began <= timeout + 0.3
        await cluster.stop()

    run(scenario)


def test_a_close_ends_calls_in_their_order():
    async def scenario(loop):
        cluster = await filled()
        consumer, ended = consumer_of(cluster), []
        await consumer.start()
        cluster.delay("ListOffsets", 600_000, times=None)

        async def call(number):
            with pytest.raises(ConsumerClosedError):
                await consumer.offsets_for_times({A0: 1})
            ended.append(number)

        calls = [asyncio.ensure_future(call(number)) for number in range(50)]
        await asyncio.sleep(1)
        await consumer.close()
        await asyncio.wait(calls)
        assert ended == list(range(50))
        await cluster.stop()

    run(scenario)
