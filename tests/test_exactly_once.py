"""Consume, transform, produce by the example's loop: each input once, under rebalances, faults, zombies, crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import pytest

from aioproducer import Consumer, Producer, Transaction
from aioproducer.consumer import ConsumerRecord
from aioproducer.errors import CommitFailedError, FencedInstanceIdError, KafkaError, ProducerFencedError
from aioproducer.record import TopicPartition
from aioproducer.testing import EmbeddedCluster
from tests.exactly_once import check_results, load_example

example = load_example()

GROUP = "upper"
INPUTS = [b"line-%03d" % number for number in range(240)]
TIMEOUT = 60


def consumer_of(cluster: EmbeddedCluster, *topics: str, **config: object) -> Consumer:
    fields: dict[str, object] = {
        "group_id": GROUP,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "heartbeat_interval_ms": 30,
        "max_poll_records": 8,
        "fetch_max_wait_ms": 50,
        "retry_backoff_ms": 5,
        "retry_backoff_max_ms": 20,
        **config,
    }
    return Consumer.from_config(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            **{name.replace("_", "."): value for name, value in fields.items()},
        },
        *topics,
        transport=cluster.transport,
    )


def producer_of(cluster: EmbeddedCluster, instance: str) -> Producer:
    return cluster.producer(transactional_id=f"{GROUP}-{instance}", retry_backoff_ms=5, retry_backoff_max_ms=20)


@asynccontextmanager
async def filled(brokers: int = 1) -> AsyncIterator[EmbeddedCluster]:
    """A cluster with the inputs in four partitions of ``lines``; the results go to two of ``upper``."""
    async with asyncio.timeout(TIMEOUT), EmbeddedCluster(brokers, transport="memory") as cluster:
        cluster.create_topic("lines", 4)
        cluster.create_topic("upper", 2)
        async with cluster.producer() as producer:
            for number, line in enumerate(INPUTS):
                producer.send("lines", line, partition=number % 4)
            await producer.flush()
        yield cluster


def results_of(cluster: EmbeddedCluster) -> list[bytes]:
    return [record.value or b"" for record in cluster.records("upper", committed=True)]


async def until_all(cluster: EmbeddedCluster) -> None:
    """Wait until every input is committed."""
    wanted = {TopicPartition("lines", partition): len(INPUTS) // 4 for partition in range(4)}
    while True:
        with suppress(KafkaError):
            # The coordinator may be moving.
            if cluster.committed(GROUP) == wanted:
                return
        await asyncio.sleep(0.02)


async def work(
    cluster: EmbeddedCluster, instance: str, transform: Callable[[ConsumerRecord], bytes], stop: asyncio.Event
) -> None:
    """One instance of the service; one that the cluster has replaced starts again, as a supervisor lets it."""
    while not stop.is_set():
        async with producer_of(cluster, instance) as producer, consumer_of(cluster, "lines") as consumer:
            try:
                await producer.init_transactions()
                await example.transform_all(consumer, producer, "upper", transform, stop)
            except KafkaError:
                if producer.is_usable:
                    raise


def faults_of(cluster: EmbeddedCluster) -> Iterator[Callable[[], None]]:
    """What happens in the middle of transactions, one after the other."""
    yield lambda: cluster.rebalance(GROUP)
    yield lambda: cluster.fail("TxnOffsetCommit", "NOT_COORDINATOR", group=GROUP)
    yield lambda: cluster.expire_session(GROUP)
    yield lambda: cluster.disconnect("TxnOffsetCommit", "after")
    yield lambda: cluster.drop_coordinator(GROUP)
    yield lambda: cluster.fail("TxnOffsetCommit", "ILLEGAL_GENERATION", group=GROUP)
    yield lambda: cluster.disconnect("EndTxn", "after")
    yield lambda: cluster.drop_transaction_coordinator(f"{GROUP}-0")
    yield lambda: cluster.fail("OffsetFetch", "UNSTABLE_OFFSET_COMMIT", group=GROUP)
    yield lambda: cluster.expire_session(GROUP, next(iter(cluster.members(GROUP)), None))
    yield lambda: cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="upper")
    yield lambda: cluster.rebalance(GROUP)


async def test_two_members_transform_each_record_once_under_faults_of_the_group() -> None:
    async with filled() as cluster:
        stop, faults, seen = asyncio.Event(), faults_of(cluster), 0

        def transform(record: ConsumerRecord) -> bytes:
            nonlocal seen
            seen += 1
            if seen % 15 == 0 and (fault := next(faults, None)) is not None:
                with suppress(KafkaError):
                    # Two faults may meet, as a moved coordinator and a member that is to be removed.
                    fault()
            return example.shout(record)

        async with asyncio.TaskGroup() as group:
            for instance in ("0", "1"):
                group.create_task(work(cluster, instance, transform, stop))
            await until_all(cluster)
            stop.set()
        assert next(faults, None) is None
        # Aborted transactions were transformed again.
        assert seen > len(INPUTS)
        check_results(INPUTS, results_of(cluster))


async def test_members_that_come_and_go_transform_each_record_once() -> None:
    async with filled() as cluster:
        stops: list[asyncio.Event] = []
        tasks: list[asyncio.Task[None]] = []
        reached = asyncio.Event()
        seen = 0

        def transform(record: ConsumerRecord) -> bytes:
            nonlocal seen
            seen += 1
            if seen % 40 == 0:
                reached.set()
            return example.shout(record)

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                stops.append(asyncio.Event())
                tasks.append(group.create_task(work(cluster, str(number), transform, stops[-1])))
                await reached.wait()
                reached.clear()
            # One leaves in good order, one is cancelled in the middle of whatever it does.
            stops[0].set()
            await tasks[0]
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            await until_all(cluster)
            stops[2].set()
        check_results(INPUTS, results_of(cluster))


async def test_brokers_that_die_repeat_and_lose_nothing() -> None:
    async with filled(3) as cluster:
        await cluster.wait_in_sync()
        stop, reached, seen = asyncio.Event(), asyncio.Event(), 0

        def transform(record: ConsumerRecord) -> bytes:
            nonlocal seen
            seen += 1
            if seen == len(INPUTS) // 3:
                reached.set()
            return example.shout(record)

        async with asyncio.TaskGroup() as group:
            for instance in ("0", "1"):
                group.create_task(work(cluster, instance, transform, stop))
            await reached.wait()
            dead = cluster.coordinator(GROUP)
            await cluster.kill(dead)
            await cluster.restart(dead)
            await until_all(cluster)
            stop.set()
        check_results(INPUTS, results_of(cluster))


Batches: TypeAlias = dict[TopicPartition, list[ConsumerRecord]]


async def poll_some(consumer: Consumer) -> Batches:
    while not (batches := await consumer.poll(1.0)):
        pass
    return batches


def next_offsets(batches: Batches) -> dict[TopicPartition, int]:
    return {partition: records[-1].offset + 1 for partition, records in batches.items()}


async def finish(cluster: EmbeddedCluster, instance: str) -> None:
    """Let a new instance transform everything that is left."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(work(cluster, instance, example.shout, stop))
        await until_all(cluster)
        stop.set()


async def test_a_member_that_was_replaced_in_its_transaction_cannot_commit_it() -> None:
    async with filled() as cluster, producer_of(cluster, "zombie") as producer, consumer_of(cluster, "lines") as zombie:
        batches = await poll_some(zombie)
        begun: list[Transaction] = []

        async def transform_late() -> None:
            async with producer.transaction() as transaction:
                begun.append(transaction)
                for records in batches.values():
                    for record in records:
                        transaction.send("upper", example.shout(record))
                await producer.flush()
                # It was away for too long; another one works on its partitions, and has its records done first.
                cluster.expire_session(GROUP)
                await finish(cluster, "other")
                await transaction.send_offsets(next_offsets(batches), zombie.group_metadata())

        with pytest.raises(CommitFailedError):
            await transform_late()
        assert await begun[0].outcome() == "aborted"
        assert producer.is_usable
        check_results(INPUTS, results_of(cluster))


async def test_a_static_member_that_was_fenced_cannot_commit() -> None:
    async with filled() as cluster, producer_of(cluster, "zombie") as producer:
        async with consumer_of(cluster, "lines", group_instance_id="zombie") as zombie:
            batches = await poll_some(zombie)
            cluster.fence_member(GROUP, "zombie")
            with pytest.raises((FencedInstanceIdError, CommitFailedError)):
                await example.transform_batch(zombie, producer, "upper", batches, example.shout)
            assert producer.is_usable
        cluster.expire_session(GROUP)
        await finish(cluster, "other")
        check_results(INPUTS, results_of(cluster))


async def test_a_crashed_instance_is_replaced_and_its_open_transaction_aborted() -> None:
    async with filled() as cluster, producer_of(cluster, "0") as crashed, consumer_of(cluster, "lines") as consumer:
        batches = await poll_some(consumer)
        transaction = await crashed.begin_transaction()
        for records in batches.values():
            for record in records:
                transaction.send("upper", example.shout(record))
        await transaction.send_offsets(next_offsets(batches), consumer.group_metadata())
        # Everything but the commit was done when the process ended. The same instance starts again.
        cluster.expire_session(GROUP)
        await finish(cluster, "0")
        with pytest.raises(ProducerFencedError):
            await crashed.commit_transaction()
        assert not crashed.is_usable
        check_results(INPUTS, results_of(cluster))
