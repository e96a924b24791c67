"""The producer used from other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from aioproducer import Producer, RecordMetadata, SendManyResult
from aioproducer._client.threadsafe import ThreadsafeProducer
from aioproducer.errors import BufferExhaustedError, ProducerClosedError, RecordTooLargeError, WrongCallerError
from aioproducer.testing import EmbeddedCluster
from tests.waiting import know_topic

NOWHERE = "127.0.0.1:1"

_T = TypeVar("_T")


pytestmark = pytest.mark.kafka_cluster(transport="memory")


@pytest.fixture
async def topic(kafka_cluster: EmbeddedCluster) -> str:
    kafka_cluster.create_topic("topic")
    return "topic"


async def _elsewhere(function: Callable[[], _T]) -> _T:
    return await asyncio.wait_for(asyncio.to_thread(function), 10)


async def test_records_of_each_thread_keep_their_order(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    def work(name: int, threadsafe: ThreadsafeProducer) -> list[concurrent.futures.Future[RecordMetadata]]:
        futures = [threadsafe.send(topic, b"%d %d" % (name, number), b"key") for number in range(200)]
        threadsafe.flush().result(10)
        assert all(future.done() for future in futures)
        return futures

    async with kafka_cluster.producer() as producer:
        threadsafe = producer.threadsafe()
        by_thread = await asyncio.gather(*(asyncio.to_thread(work, name, threadsafe) for name in range(4)))
    stored = [(record.value or b"").split() for record in kafka_cluster.records(topic, 0)]
    for name, futures in enumerate(by_thread):
        assert [int(number) for thread, number in stored if int(thread) == name] == list(range(200))
        offsets = [future.result().offset for future in futures]
        assert offsets == sorted(offsets, key=lambda offset: offset or 0)


async def test_options_and_send_many_work_from_a_thread(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer() as producer:
        threadsafe = producer.threadsafe()

        def work() -> SendManyResult:
            threadsafe.send(topic, b"v", partition=0, headers=[("h", b"1")]).result(5)
            return threadsafe.send_many(topic, [b"1", b"2"], keys=[b"a", b"b"]).result(5)

        assert await _elsewhere(work) == SendManyResult(2, 2, {0: [range(1, 3)]})
    assert kafka_cluster.records(topic, 0)[0].headers == (("h", b"1"),)


async def test_errors_are_set_on_the_future(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer() as producer:
        threadsafe = producer.threadsafe()
        wrong: Any = "text"
        for future, kind in (
            (threadsafe.send(topic, wrong), TypeError),
            (threadsafe.send(topic, bytes(2_000_000)), RecordTooLargeError),
            (threadsafe.send(topic, b"v", unknown=1), TypeError),
            (threadsafe.send_many(topic, wrong), TypeError),
        ):
            with pytest.raises(kind):
                await asyncio.wrap_future(future)


async def test_cancelling_the_future_cancels_the_delivery(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """A call seen by the loop could once not be cancelled, though its record was blocked for a minute."""
    async with kafka_cluster.producer(linger_ms=0, max_block_ms=2000) as producer:
        await know_topic(producer, topic)
        await producer.send(topic, b"first")
        threadsafe = producer.threadsafe()
        in_line = threadsafe.send(topic, b"v", partition=7)
        await asyncio.sleep(0.01)
        assert in_line.cancel()
        assert (await asyncio.to_thread(concurrent.futures.wait, [in_line], 5)).done == {in_line}
        not_begun = threadsafe.send(topic, b"v")
        assert not_begun.cancel()
        many = threadsafe.send_many(topic, [b"v"], partition=7)
        await asyncio.sleep(0.01)
        assert many.cancel()
        await asyncio.sleep(0.01)
        assert producer.metrics()["waiting-threads"] == 1
    # The record of the cancelled send_many was accepted; its partition never appeared.
    assert [record.value for record in kafka_cluster.records(topic, 0)] == [b"first"]


async def test_cancelling_after_the_loop_is_closed_does_not_raise() -> None:
    futures = []

    def other_loop() -> None:
        async def main() -> None:
            producer = Producer(bootstrap_servers=NOWHERE)
            await producer.start()
            futures.append(producer.threadsafe().send("t", b"v"))
            await asyncio.sleep(0.01)
            # The record gets no outcome: no part of the producer refers to it any longer.
            producer._accumulator.blocked_records.pending.records.clear()
            await producer.close(0)

        asyncio.run(main())

    await _elsewhere(other_loop)
    assert futures[0].cancel()


async def test_the_thread_of_the_loop_may_send_but_not_wait(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """Waiting there would block the loop forever; a logging handler sends from any thread."""
    async with kafka_cluster.producer() as producer:
        future = producer.threadsafe().send(topic, b"v")
        with pytest.raises(WrongCallerError, match=r"would block the event loop.*await producer.send\("):
            future.result()
        with pytest.raises(WrongCallerError, match="would block the event loop"):
            future.exception()
        assert (await asyncio.wrap_future(future)).offset == 0
        assert future.result().offset == 0
        assert future.exception() is None


async def test_calls_queued_for_the_loop_are_bounded(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(buffer_memory=100_000) as producer:
        threadsafe = producer.threadsafe()
        # The loop does not run in the meantime.
        futures = [threadsafe.send(topic, bytes(10_000)) for _ in range(20)]
        refused = [future for future in futures if future.done()]
        assert len(refused) == 11
        assert all(isinstance(future.exception(), BufferExhaustedError) for future in refused)
        await asyncio.gather(*(asyncio.wrap_future(future) for future in futures), return_exceptions=True)
        assert (await asyncio.wrap_future(threadsafe.send(topic, bytes(10_000)))).offset is not None


async def test_headers_queued_for_the_loop_count_towards_the_limit(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(buffer_memory=100_000) as producer:
        threadsafe = producer.threadsafe()
        headers = [("h", bytes(5_000)), ("h", bytes(5_000))]
        futures = [threadsafe.send(topic, b"value", headers=headers) for _ in range(20)]
        refused = [future for future in futures if future.done()]
        assert len(refused) == 12
        assert all(isinstance(future.exception(), BufferExhaustedError) for future in refused)
        odd = threadsafe.send(topic, b"value", headers=[17])
        await asyncio.gather(*(asyncio.wrap_future(future) for future in futures), return_exceptions=True)
        assert isinstance(odd.exception(), TypeError)


async def test_calls_fail_after_the_producer_or_the_loop_is_closed() -> None:
    kept: list[ThreadsafeProducer] = []

    async def main() -> None:
        async with Producer(bootstrap_servers=NOWHERE) as producer:
            threadsafe = producer.threadsafe()
            kept.append(threadsafe)
            waiting = threadsafe.send("t", b"v")
            await asyncio.sleep(0.01)
            await producer.close(0)
            assert isinstance(await asyncio.to_thread(waiting.exception, 5), ProducerClosedError)
            for future in (threadsafe.send("t", b"v"), threadsafe.flush(), threadsafe.send_many("t", [])):
                assert isinstance(await asyncio.to_thread(future.exception, 5), ProducerClosedError)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    await asyncio.to_thread(thread.join)
    for call in (lambda: kept[0].send("t", b"v"), lambda: kept[0].send_many("t", []), kept[0].flush):
        assert isinstance(call().exception(5), ProducerClosedError)


def test_send_raises_if_the_loop_is_closed() -> None:
    loop = asyncio.new_event_loop()
    threadsafe = ThreadsafeProducer(Producer(bootstrap_servers=NOWHERE), loop, 1000)
    loop.close()
    with pytest.raises(ProducerClosedError, match="event loop is closed"):
        threadsafe.send("t", b"v")


async def test_a_call_that_the_loop_did_not_run_fails() -> None:
    """A call queued after the loop's last pass, and before the loop was closed, once never returned."""
    producer = Producer(bootstrap_servers=NOWHERE)
    await producer.start()
    threadsafe = producer.threadsafe()
    closing = asyncio.ensure_future(producer.close(0))
    await asyncio.sleep(0)
    # The loop does nothing until this coroutine suspends.
    late = threadsafe.send("t", b"v")
    assert isinstance(late.exception(0), ProducerClosedError)
    await closing
    assert isinstance(threadsafe.flush().exception(0), ProducerClosedError)


async def test_calls_queued_when_the_producer_closes_fail() -> None:
    async with Producer(bootstrap_servers=NOWHERE) as producer:
        threadsafe = producer.threadsafe()
        sent = threadsafe.send("t", b"v")
        flushed = threadsafe.flush()
        await producer.close(0)
        assert isinstance(sent.exception(0), ProducerClosedError)
        assert isinstance(flushed.exception(0), ProducerClosedError)
