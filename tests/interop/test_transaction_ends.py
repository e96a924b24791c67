"""Transactions that end without their block: a cancelled commit that fails, close, and a fatal error."""

from __future__ import annotations

import asyncio
import signal

import pytest

from aioproducer import KafkaError, Producer, Transaction
from aioproducer.core.transactions.states import ABORTABLE_ERROR
from aioproducer.errors import ProducerClosedError, ProducerFencedError
from tests.kafka import consuming
from tests.kafka.cluster import KafkaCluster


def producer_of(cluster: KafkaCluster, name: str, **config: int) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=name, **config)  # type: ignore[arg-type]


async def committed(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    partitions = await asyncio.to_thread(consuming.read_back, cluster.bootstrap_servers, topic, committed=True)
    return [record.value for records in partitions.values() for record in records]


async def test_a_commit_that_fails_after_its_block_was_cancelled_is_aborted(one_node: KafkaCluster, topic: str) -> None:
    process = one_node.nodes[1].process
    assert process is not None
    limits = {"delivery_timeout_ms": 1500, "request_timeout_ms": 1000, "linger_ms": 0}
    one_node.create_topic(topic, 1)
    async with producer_of(one_node, topic, **limits) as producer:
        begun: list[Transaction] = []
        failed = asyncio.Event()

        async def block() -> None:
            async with producer.transaction() as transaction:
                begun.append(transaction)
                process.send_signal(signal.SIGSTOP)
                # Threads of the broker may run on for some milliseconds.
                await asyncio.sleep(0.3)
                transaction.send(topic, b"lost").add_done_callback(lambda delivery: failed.set())

        async with producer.transaction() as transaction:
            await transaction.send(topic, b"first")
        task = asyncio.create_task(block())
        try:
            await asyncio.sleep(0.6)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            async with asyncio.timeout(30):
                await failed.wait()
        finally:
            process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(30):
            assert await begun[0].outcome() == "aborted"
        # Without those limits: the broker may have been fenced, and has to load its transactions.
        async with producer_of(one_node, f"{topic}-patient") as patient, patient.transaction() as transaction:
            transaction.send(topic, b"patient")
        async with producer.transaction() as transaction:
            transaction.send(topic, b"last")
    assert await committed(one_node, topic) == [b"first", b"patient", b"last"]


async def test_a_block_whose_transaction_close_aborted_raises(one_node: KafkaCluster, topic: str) -> None:
    producer = producer_of(one_node, topic)
    await producer.start()
    stored, end = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        async with producer.transaction() as transaction:
            await transaction.send(topic, b"value")
            stored.set()
            await end.wait()

    task = asyncio.create_task(block())
    async with asyncio.timeout(30):
        await stored.wait()
    await producer.close()
    end.set()
    with pytest.raises(ProducerClosedError, match="its transaction was aborted: none of its records is stored"):
        await task
    assert await committed(one_node, topic) == []


async def test_a_fatal_error_ends_the_open_transaction(one_node: KafkaCluster, topic: str) -> None:
    async with producer_of(one_node, topic) as producer:
        transaction = await producer.begin_transaction()
        await transaction.send(topic, b"value")
        waiting = asyncio.create_task(transaction.outcome())
        await asyncio.sleep(0)
        assert producer._parts is not None
        assert producer._parts.transactions is not None
        producer._parts.transactions.record_failed(ProducerFencedError("fenced"))
        async with asyncio.timeout(5):
            with pytest.raises(ProducerFencedError):
                await waiting


async def test_an_abortable_error_leaves_the_outcome_open(one_node: KafkaCluster, topic: str) -> None:
    async with producer_of(one_node, topic, max_request_size=1000) as producer:
        transaction = await producer.begin_transaction()
        with pytest.raises(KafkaError):
            await transaction.send(topic, b"x" * 2000)
        assert producer._parts is not None
        assert producer._parts.transactions is not None
        assert producer._parts.transactions.state is ABORTABLE_ERROR
        await producer.abort_transaction()
        assert await transaction.outcome() == "aborted"
