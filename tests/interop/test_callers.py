"""Cancelled deliveries, timeouts, and many coroutines at once; a closed producer leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import weakref
from collections import Counter

import psutil
import pytest

from aioproducer import Producer
from aioproducer.errors import KafkaError, ProducerClosedError
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster
from tests.kafka.ledger import Ledger, verify
from tests.kafka.mock import DISCONNECT, PRODUCE, MockCluster
from tests.leaks import own_objects


async def test_many_coroutines_await_their_own_records(one_node: KafkaCluster, topic: str) -> None:
    await asyncio.to_thread(one_node.create_topic, topic, 3)
    ledgers = [Ledger(f"caller{number}") for number in range(300)]

    async def call(ledger: Ledger, partition: int) -> None:
        for _ in range(10):
            value = ledger.next_value(100)
            ledger.ack(value, await producer.send(topic, value, partition=partition))

    async with Producer(bootstrap_servers=one_node.bootstrap_servers) as producer:
        await asyncio.gather(*(call(ledger, number % 3) for number, ledger in enumerate(ledgers)))
    assert verify(ledgers, one_node.read_back(topic)) == (3000, 3000, 0)


async def test_a_timeout_ends_the_wait_but_not_the_record(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic)
    async with Producer(bootstrap_servers=mock_cluster.bootstrap_servers, linger_ms=0) as producer:
        await producer.send(topic, b"warm")
        mock_cluster.set_round_trip(3000)
        delivery = producer.send(topic, b"slow")

        async def wait_shortly() -> None:
            async with asyncio.timeout(0.05):
                await delivery

        with pytest.raises(TimeoutError):
            await wait_shortly()
        assert not delivery.done()
        assert (await delivery).offset == 1

        other = producer.send(topic, b"given up")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other, 0.05)
        assert other.cancelled()
        assert not other.withdrawn
        mock_cluster.set_round_trip(0)
        await producer.flush()
    assert [record.value for record in mock_cluster.read_back(topic)[0]] == [b"warm", b"slow", b"given up"]


async def test_awaiters_of_one_record_do_not_cancel_each_other(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic)
    async with Producer(bootstrap_servers=mock_cluster.bootstrap_servers, linger_ms=0) as producer:
        await producer.send(topic, b"warm")
        mock_cluster.set_round_trip(200)
        delivery = producer.send(topic, b"shared")

        async def wait() -> int | None:
            return (await delivery).offset

        tasks = [asyncio.create_task(wait()) for _ in range(10)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[1::2] == [1] * 5
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])


async def test_a_record_cancelled_in_a_queue_is_never_sent(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic)
    async with Producer(bootstrap_servers=mock_cluster.bootstrap_servers) as producer:
        # Before the first metadata every record is in a queue.
        deliveries = [producer.send(topic, b"%d" % number) for number in range(10)]
        assert all(delivery.cancel() for delivery in deliveries[::2])
        assert all(delivery.withdrawn for delivery in deliveries[::2])
        await producer.flush()
        assert [delivery.result().offset for delivery in deliveries[1::2]] == [0, 1, 2, 3, 4]
    assert [record.value for record in mock_cluster.read_back(topic)[0]] == [b"1", b"3", b"5", b"7", b"9"]


async def test_cancelled_callers_lose_no_record_of_others(one_node: KafkaCluster, topic: str) -> None:
    await asyncio.to_thread(one_node.create_topic, topic)
    generator = random.Random(1)
    ledger = Ledger("others")
    cancelled = Ledger("cancelled")

    async def call(doomed: Ledger) -> None:
        while True:
            value = doomed.next_value()
            try:
                doomed.ack(value, await producer.send(topic, value))
            except (KafkaError, asyncio.CancelledError) as error:
                doomed.fail(value, error)
                raise

    async with Producer(bootstrap_servers=one_node.bootstrap_servers, linger_ms=0) as producer:
        for _ in range(50):
            task = asyncio.create_task(call(cancelled))
            for _ in range(10):
                value = ledger.next_value()
                ledger.ack(value, await producer.send(topic, value))
                if generator.random() < 0.1:
                    task.cancel()
            task.cancel()
            await asyncio.wait([task])
    verdict = verify([ledger, cancelled], one_node.read_back(topic))
    assert len(ledger.acked) == 500
    assert verdict.acked == 500 + len(cancelled.acked)


async def test_flush_and_drain_can_be_cancelled(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic)
    async with Producer(
        bootstrap_servers=mock_cluster.bootstrap_servers, buffer_memory=100_000, batch_size=10_000
    ) as producer:
        await producer.send(topic, b"warm")
        mock_cluster.set_round_trip(3000)
        deliveries = [producer.send(topic, bytes(1000)) for _ in range(150)]
        for wait in (producer.flush, producer.drain):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wait(), 0.05)
        mock_cluster.set_round_trip(0)
        await producer.flush()
        assert [delivery.result().offset for delivery in deliveries] == list(range(1, 151))


async def test_a_closed_producer_accepts_nothing(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic)
    producer = Producer(bootstrap_servers=mock_cluster.bootstrap_servers)
    await producer.start()
    delivery = producer.send(topic, b"v")
    await producer.close()
    assert delivery.result().offset == 0
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"v")
    await producer.close()


# Leaks


# Embedded brokers of other tests run in this process, and their requests to each other last for a long poll.
_OF_BROKERS = ("aioproducer.protocol.messages.fetch", "aioproducer.protocol.messages.headers")


async def _trouble(cluster: MockCluster, topic: str) -> list[weakref.ref[object]]:
    """Run a producer with failed batches, retries and cancelled deliveries, and close it."""
    references: list[weakref.ref[object]] = []
    kept = []
    async with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        retry_backoff_ms=10,
        delivery_timeout_ms=3000,
        request_timeout_ms=500,
    ) as producer:
        references.append(weakref.ref(producer))
        await asyncio.gather(*(producer.send(topic, bytes(100), partition=0) for _ in range(100)))
        cluster.push_errors(PRODUCE, [7, DISCONNECT, 10, 29])
        for round_number in range(20):
            deliveries = [producer.send(topic, bytes(100), partition=round_number % 2) for _ in range(10)]
            deliveries[3].cancel()
            task = asyncio.create_task(asyncio.wait(deliveries[5:]))
            await asyncio.sleep(0)
            if round_number % 2:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            kept.extend(deliveries)
        cluster.set_down()
        failing = [producer.send(topic, bytes(100)) for _ in range(10)]
        outcomes = await asyncio.gather(*failing, return_exceptions=True)
        assert all(isinstance(outcome, KafkaError) for outcome in outcomes)
        references.extend(weakref.ref(outcome) for outcome in outcomes)
        cluster.set_up()
    for delivery in kept:
        assert delivery.done()
    return references


async def test_nothing_is_left_of_a_closed_producer(
    mock_cluster: MockCluster, three_embedded: InProcessCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Gives the brokers a reason for requests to each other.
    three_embedded.create_topic(topic, 3, 3)
    # pytest keeps log records, and with them the errors in their arguments.
    monkeypatch.setattr(logging.getLogger("aioproducer"), "disabled", True)
    mock_cluster.create_topic(topic, 2, 3)
    # The first pass fills caches.
    await _trouble(mock_cluster, topic)
    objects, tasks = own_objects(without=_OF_BROKERS), asyncio.all_tasks()
    for _ in range(2):
        references = await _trouble(mock_cluster, topic)
        await asyncio.sleep(0)
        gc.collect()
        assert [reference() for reference in references if reference() is not None] == []
    assert own_objects(without=_OF_BROKERS) - objects == Counter()
    assert asyncio.all_tasks() == tasks
    # By the remote port: the mock's own sides of the connections are in this process too.
    brokers = {int(address.rpartition(":")[2]) for address in mock_cluster.bootstrap_servers.split(",")}
    connections = psutil.Process().net_connections("tcp")
    assert [connection for connection in connections if connection.raddr and connection.raddr.port in brokers] == []


async def test_failures_are_freed_without_the_collector(mock_cluster: MockCluster, topic: str) -> None:
    """A raised error must not keep its batch, traceback and frames alive: handles are outside the cycle collector."""
    mock_cluster.create_topic(topic)
    async with Producer(bootstrap_servers=mock_cluster.bootstrap_servers, linger_ms=0, retries=0) as producer:
        await producer.send(topic, b"warm")
        mock_cluster.push_errors(PRODUCE, [29] * 100)
        references: list[weakref.ref[object]] = []
        gc.disable()
        try:
            for _ in range(20):
                try:
                    await producer.send(topic, b"v")
                except KafkaError as error:
                    references.append(weakref.ref(error))
            await asyncio.sleep(0.05)
            assert len(references) == 20
            alive = sum(reference() is not None for reference in references)
        finally:
            gc.enable()
    assert alive <= 1
