"""Start, flush, drain and close; calls from other threads and loops; what is left after close."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import gc
import inspect
import logging
import pickle
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
import uvloop

from aioproducer import Producer, RecordMetadata, TopicPartition
from aioproducer._client.threadsafe import ThreadsafeProducer
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.errors import (
    ConfigurationError,
    KafkaError,
    MetadataTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    WrongCallerError,
)
from aioproducer.testing import EmbeddedCluster, EmbeddedClusterThread
from tests.leaks import own_objects
from tests.waiting import know_topic, until

NOWHERE = "127.0.0.1:1"


pytestmark = pytest.mark.kafka_cluster(transport="memory")


@pytest.fixture
async def topic(kafka_cluster: EmbeddedCluster) -> str:
    kafka_cluster.create_topic("topic")
    return "topic"


# Configuration


async def test_unknown_keys_are_rejected_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'linger_ms'"):
        Producer(bootstrap_servers=NOWHERE, lingerms=5)
    with pytest.raises(ConfigurationError, match=r"did you mean 'linger\.ms'"):
        Producer.from_config({"bootstrap.servers": NOWHERE, "linger.mss": 5})


async def test_unsupported_settings_raise_an_error_that_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.mechanism is missing"):
        Producer(bootstrap_servers=NOWHERE, security_protocol="SASL_SSL")
    with pytest.raises(ConfigurationError, match=r"transactional\.id needs idempotence"):
        Producer(bootstrap_servers=NOWHERE, transactional_id="t", acks=1)
    with pytest.raises(ConfigurationError, match="transport 'pigeon' does not exist"):
        Producer(bootstrap_servers=NOWHERE, transport="pigeon")


@pytest.mark.kafka_cluster(transport="tcp")
async def test_from_config_and_from_properties(kafka_cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "linger.ms": "0", "client.id": "by-name"}
    path = tmp_path / "producer.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    errors: list[int] = []

    def on_error(topic_partition: TopicPartition, count: int, error: KafkaError) -> None:
        errors.append(count)

    for producer in (
        Producer.from_config(settings, on_error=on_error),
        Producer.from_properties(path, on_error=on_error),
    ):
        assert repr(producer) == "<Producer by-name>"
        async with producer:
            await producer.send(topic, b"v")
            with pytest.raises(RecordTooLargeError):
                await producer.send(topic, bytes(2_000_000))
    assert errors == [1, 1]


# Callers


async def test_methods_raise_before_start() -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    with pytest.raises(WrongCallerError, match="not started: use `async with"):
        producer.send("t", b"v")
    for call in (producer.drain, producer.flush):
        with pytest.raises(WrongCallerError, match="not started"):
            await call()
    for coroutine in (producer.send_many("t", []), producer.partitions_for("t"), producer.wait_ready(1)):
        with pytest.raises(WrongCallerError, match="not started"):
            await coroutine
    with pytest.raises(WrongCallerError, match="not started"):
        producer.metrics()
    with pytest.raises(WrongCallerError, match="not started"):
        producer.threadsafe()
    assert not producer.is_usable
    assert producer.connection_error is None


async def test_methods_raise_after_close() -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    await producer.start()
    await producer.start()
    assert producer.is_usable
    await producer.close()
    await producer.close()
    assert not producer.is_usable
    with pytest.raises(ProducerClosedError, match="closed: create a new one"):
        producer.send("t", b"v")
    for call in (producer.drain, producer.flush, producer.start):
        with pytest.raises(ProducerClosedError):
            await call()
    assert producer.metrics()["record-send-total"] == 0


async def test_a_producer_closed_before_its_start_is_closed() -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    await producer.close()
    with pytest.raises(ProducerClosedError):
        await producer.start()


async def test_a_call_from_another_thread_names_threadsafe() -> None:
    async with Producer(bootstrap_servers=NOWHERE) as producer:
        with pytest.raises(WrongCallerError, match=r"another thread: call producer.threadsafe\(\)"):
            await asyncio.to_thread(producer.send, "t", b"v")
        with pytest.raises(WrongCallerError, match="another thread"):
            await asyncio.to_thread(lambda: asyncio.run(producer.drain()))
        with pytest.raises(WrongCallerError, match="another thread"):
            await asyncio.to_thread(lambda: asyncio.run(producer.start()))
        with pytest.raises(WrongCallerError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(producer.close()))


def test_a_call_from_another_loop_in_the_same_thread_raises() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    producer = Producer(bootstrap_servers=NOWHERE)
    try:
        first.run_until_complete(producer.start())

        async def send() -> None:
            producer.send("t", b"v")

        for coroutine in (producer.flush(), producer.start(), producer.close(), producer.partitions_for("t"), send()):
            with pytest.raises(WrongCallerError, match="another event loop"):
                second.run_until_complete(coroutine)
        first.run_until_complete(producer.close(0))
    finally:
        first.close()
        second.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has no eager tasks")
@pytest.mark.parametrize("transport", ["tcp", "memory"])
async def test_eager_tasks_are_supported(transport: str) -> None:
    """The embedded broker once took the task of an immediate response for a pending one, and never stopped."""
    # Before CPython 3.13.3, asyncio's factory does not accept the arguments that uvloop 0.23 passes.
    asyncio.get_running_loop().set_task_factory(
        lambda loop, coroutine, name=None, context=None, **_: asyncio.Task(
            coroutine, loop=loop, name=name, context=context, eager_start=True
        )
    )
    async with asyncio.timeout(60), EmbeddedCluster(2, transport=transport) as cluster:
        cluster.create_topic("t", 4)
        async with cluster.producer(linger_ms=0) as producer:
            deliveries = [producer.send("t", b"%d" % number) for number in range(500)]
            assert await producer.send("t", b"500")
            await asyncio.gather(*deliveries)
        assert sorted(int(record.value or b"") for record in cluster.records("t")) == list(range(501))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def own_loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that the test closes under a producer; the warnings of the producer are ignored."""
    loop: asyncio.AbstractEventLoop = request.param()
    yield loop
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        loop.close()
        gc.collect()


async def _begin_a_batch(producer: Producer, cluster: EmbeddedClusterThread, topic: str) -> Delivery:
    cluster.create_topic(topic)
    await producer.start()
    await producer.send_many(topic, [b"v"])
    return producer.send(topic, b"in a batch that takes more")


def test_no_record_is_accepted_once_the_loop_is_closed(
    kafka_cluster_session: EmbeddedClusterThread,
    own_loop: asyncio.AbstractEventLoop,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An open batch accepts records without the loop: they were once accepted and never sent."""
    servers = kafka_cluster_session.bootstrap_servers
    producer = Producer(bootstrap_servers=servers, linger_ms=100_000, max_block_ms=30_000)
    topic = f"closed-under-it-{type(own_loop).__module__}"
    delivery = own_loop.run_until_complete(_begin_a_batch(producer, kafka_cluster_session, topic))
    assert producer.is_usable
    own_loop.close()
    assert not producer.is_usable
    assert not delivery.done()
    with pytest.raises(ProducerClosedError, match=r"event loop is closed.*create a new producer on a running loop"):
        producer.send(topic, b"never sent")
    assert [record.levelname for record in caplog.records if "records that were not delivered" in record.message] == [
        "ERROR"
    ]
    for call in (
        producer.drain,
        producer.flush,
        producer.start,
        producer.close,
        partial(producer.send_many, topic, [b"v"]),
        partial(producer.partitions_for, topic),
        partial(producer.wait_ready, 1),
    ):
        with pytest.raises(ProducerClosedError, match="event loop is closed"):
            asyncio.run(call())
    with pytest.raises(ProducerClosedError, match="event loop is closed"):
        producer.threadsafe()
    # Collected here: its warnings, and those of its sockets, would else be those of a later test.
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del producer, delivery, call
        gc.collect()
    assert [str(each.message) for each in warned if "was not closed" in str(each.message)]


def test_threadsafe_futures_fail_once_the_loop_is_closed(own_loop: asyncio.AbstractEventLoop) -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    own_loop.run_until_complete(producer.start())

    async def hand_over() -> list[concurrent.futures.Future[RecordMetadata]]:
        begun = threadsafe.send("t", b"waits for metadata")
        await asyncio.sleep(0.01)
        return [begun, threadsafe.send("t", b"on its way")]

    async def get() -> ThreadsafeProducer:
        return producer.threadsafe()

    threadsafe = own_loop.run_until_complete(get())
    futures = own_loop.run_until_complete(hand_over())
    own_loop.close()
    for future in futures:
        with pytest.raises(ProducerClosedError, match="event loop"):
            future.result(0)
    for call in (lambda: threadsafe.send("t", b"v"), threadsafe.flush, lambda: threadsafe.send_many("t", [b"v"])):
        with pytest.raises(ProducerClosedError, match="event loop is closed"):
            call()


async def test_the_loop_watch_is_renewed_until_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioproducer.producer.LOOP_WATCH_PERIOD", 0.001)
    async with Producer(bootstrap_servers=NOWHERE) as producer:
        first = producer._loop_watch
        await until(lambda: producer._loop_watch is not first)
        assert producer.is_usable
        assert producer._loop_watch is not None
        timer = producer._loop_watch()
        assert timer is not None
    assert timer.cancelled()
    assert producer._loop_watch is None


FORKING = """
import asyncio, os, sys, warnings
# The forked child starts no thread and takes no lock.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from aioproducer import Producer
from aioproducer.errors import WrongCallerError

async def main():
    unstarted = Producer(bootstrap_servers="127.0.0.1:1")
    producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=0)
    await producer.start()
    await producer.send(sys.argv[2], b"before")
    threadsafe = producer.threadsafe()
    if not (child := os.fork()):
        code = 1
        try:
            refused = 0
            try:
                producer.send(sys.argv[2], b"child")
            except WrongCallerError as error:
                refused += "after the fork" in str(error)
            for coroutine in (producer.start(), producer.close(), producer.flush()):
                try:
                    coroutine.send(None)
                except WrongCallerError as error:
                    refused += "after the fork" in str(error)
            try:
                unstarted.send("t", b"v")
            except WrongCallerError as error:
                refused += "not started" in str(error)
            for future in (threadsafe.send(sys.argv[2], b"child"), threadsafe.flush()):
                refused += "after the fork" in str(future.exception(0))
            try:
                # An exception that ends the child goes through here, and is not hidden.
                producer.__aexit__(SystemExit, SystemExit(), None).send(None)
            except StopIteration:
                code = 0 if refused == 7 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (await producer.send(sys.argv[2], b"after")).offset == 1
    await producer.close()

asyncio.run(main())
"""


def test_a_forked_child_cannot_send_and_does_not_harm_the_parent(kafka_cluster_session: EmbeddedClusterThread) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORKING, kafka_cluster_session.bootstrap_servers, "forked"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
async def test_a_producer_cannot_be_pickled_or_copied(
    kafka_cluster: EmbeddedCluster, take: Callable[[object], object]
) -> None:
    async with kafka_cluster.producer() as started:
        for producer in (Producer(bootstrap_servers=NOWHERE), started):
            with pytest.raises(TypeError, match="create one in the process that sends"):
                take(producer)


async def test_a_cancelled_wait_for_metadata_leaves_no_state() -> None:
    """A health check does this repeatedly while no broker responds."""
    async with Producer(bootstrap_servers=NOWHERE) as producer:
        for _ in range(5):
            with pytest.raises(MetadataTimeoutError):
                await producer.wait_ready(0.001)
        waiting = asyncio.create_task(producer.partitions_for("any"))
        await asyncio.sleep(0)
        waiters = producer._sender.cluster._metadata_waiters
        assert len(waiters) == 1
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not waiters


async def test_an_unclosed_producer_warns() -> None:
    producer = Producer(bootstrap_servers=NOWHERE, client_id="forgotten")
    await producer.start()
    with pytest.warns(ResourceWarning, match="<Producer forgotten> was not closed: use `async with`"):
        producer.__del__()
    await producer.close()


# Flush and drain


async def test_flush_ends_a_long_linger(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(linger_ms=100_000) as producer:
        await producer.flush()
        in_line = producer.send(topic, b"1")
        await asyncio.wait_for(producer.flush(), 5)
        assert in_line.done()
        in_batch = [producer.send(topic, b"2") for _ in range(3)]
        await asyncio.wait_for(asyncio.gather(*(producer.flush() for _ in range(5))), 5)
        assert all(delivery.done() for delivery in in_batch)
        late = producer.send(topic, b"3")
        await asyncio.sleep(0.02)
        assert not late.done()
        assert producer.metrics()["flush-time-ns-total"] > 0
    assert late.result().offset == 4


async def test_records_after_a_cancelled_flush_linger(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(linger_ms=100_000) as producer:
        await producer.send_many(topic, [b"v"])
        kafka_cluster.delay("Produce", 100)
        producer.send(topic, b"v")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.flush(), 0.02)
        late = producer.send(topic, b"v")
        await asyncio.sleep(0.02)
        assert not late.done()


async def test_flush_waits_only_for_records_sent_before_it(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(linger_ms=0) as producer:
        await producer.send(topic, b"v")
        stop = False

        async def go_on() -> None:
            while not stop:
                producer.send(topic, b"v")
                await producer.drain()

        other = asyncio.create_task(go_on())
        await asyncio.sleep(0.01)
        await asyncio.wait_for(producer.flush(), 30)
        assert not other.done()
        stop = True
        await other


async def test_a_loop_of_sends_does_not_starve_other_tasks(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer() as producer:
        await producer.send(topic, b"v")
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        # Collecting the garbage of earlier tests would use up the time.
        gc.collect()
        gc.disable()
        try:
            # Use the CPU time of this thread: other programs share the machine.
            deadline = time.thread_time() + 0.1
            while time.thread_time() < deadline:
                producer.send(topic, b"v")
                await producer.drain()
        finally:
            gc.enable()
        ticker.cancel()
        # One pass per half millisecond, and the time of the passes themselves.
        assert turns > 20


async def test_drain_with_room_is_a_coroutine_that_ends_at_once(kafka_cluster: EmbeddedCluster) -> None:
    async with kafka_cluster.producer() as producer:
        # The first one lets other tasks run.
        await producer.drain()
        drained = producer.drain()
        assert drained is producer.drain()
        assert asyncio.iscoroutine(drained)
        assert inspect.isawaitable(drained)
        assert await drained is None
        assert await asyncio.create_task(producer.drain()) is None
        assert await asyncio.wait_for(producer.drain(), 1) is None
        assert await asyncio.gather(producer.drain(), producer.drain()) == [None, None]
        async with asyncio.TaskGroup() as group:
            group.create_task(producer.drain())
        with pytest.raises(StopIteration):
            drained.send(None)
        with pytest.raises(StopIteration):
            next(drained.__await__())
        for thrown in (ZeroDivisionError, ZeroDivisionError("thrown")):
            with pytest.raises(ZeroDivisionError):
                drained.throw(thrown)
        drained.close()


async def test_drain_waits_for_room_and_close_ends_the_wait() -> None:
    producer = Producer(bootstrap_servers=NOWHERE, buffer_memory=4096)
    await producer.start()
    delivery = producer.send("t", bytes(3000))
    waiting = asyncio.create_task(producer.drain())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await producer.close(0)
    await asyncio.wait_for(waiting, 10)
    assert isinstance(delivery.exception(), ProducerClosedError)


async def test_sends_after_drain_do_not_exhaust_the_buffer(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(buffer_memory=20_000) as producer:

        async def call(number: int) -> None:
            await producer.drain()
            await producer.send(topic, bytes(5000))

        await asyncio.gather(*(call(number) for number in range(50)))
    assert len(kafka_cluster.records(topic)) == 50


# Close


async def test_close_delivers_accepted_records(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(linger_ms=100_000) as producer:
        in_line = producer.send(topic, b"1")
        await producer.partitions_for(topic)
        in_batch = producer.send(topic, b"2")
    assert [in_line.result().offset, in_batch.result().offset] == [0, 1]


async def test_a_forced_close_fails_the_remaining_records() -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    await producer.start()
    delivery = producer.send("t", b"v")
    awaiting = asyncio.create_task(_await(delivery))
    began = time.monotonic()
    await producer.close(0.1)
    assert 0.05 < time.monotonic() - began < 10
    with pytest.raises(ProducerClosedError, match="closed before the record was delivered"):
        await awaiting


async def _await(delivery: Delivery) -> int | None:
    return (await delivery).offset


async def test_a_second_close_with_a_shorter_timeout_shortens_the_first() -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    await producer.start()
    delivery = producer.send("t", b"v")
    first, patient = asyncio.create_task(producer.close()), asyncio.create_task(producer.close())
    await asyncio.sleep(0.02)
    assert not first.done()
    await asyncio.wait_for(asyncio.gather(producer.close(50), producer.close(0.05), producer.close(20)), 10)
    await first
    await patient
    assert isinstance(delivery.exception(), ProducerClosedError)


async def test_a_cancelled_close_leaves_no_state() -> None:
    tasks = asyncio.all_tasks()
    producer = Producer(bootstrap_servers=NOWHERE)
    await producer.start()
    delivery = producer.send("t", b"v")
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0.02)
    closing.cancel()
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.wait_for(producer.close(), 10)
    assert isinstance(delivery.exception(), ProducerClosedError)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("cancelled", [False, True])
async def test_leaving_the_context_by_an_exception_takes_at_most_a_second(cancelled: bool) -> None:
    deliveries: list[Delivery] = []

    async def work() -> None:
        async with Producer(bootstrap_servers=NOWHERE) as producer:
            deliveries.append(producer.send("t", b"v"))
            if not cancelled:
                raise ZeroDivisionError
            await asyncio.sleep(60)

    began = time.monotonic()
    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel() if cancelled else None
    with pytest.raises(asyncio.CancelledError if cancelled else ZeroDivisionError):
        await task
    assert 0.9 < time.monotonic() - began < 10
    assert isinstance(deliveries[0].exception(), ProducerClosedError)


async def test_closing_fails_pending_waits_for_metadata() -> None:
    producer = Producer(bootstrap_servers=NOWHERE)
    await producer.start()
    waiting = [asyncio.create_task(producer.wait_ready(50)), asyncio.create_task(_partitions(producer))]
    await asyncio.sleep(0.01)
    await producer.close()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, ProducerClosedError)


async def _partitions(producer: Producer) -> None:
    await producer.partitions_for("t")


# Failures


async def test_on_error_reports_a_failed_batch_once_with_its_record_count(
    kafka_cluster: EmbeddedCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[TopicPartition, int, type[KafkaError]]] = []

    def on_error(topic_partition: TopicPartition, count: int, error: KafkaError) -> None:
        told.append((topic_partition, count, type(error)))
        raise ZeroDivisionError

    async with kafka_cluster.producer(linger_ms=20, on_error=on_error) as producer:
        await producer.send(topic, b"v")
        kafka_cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
        deliveries = [producer.send(topic, b"v") for _ in range(10)]
        await producer.flush()
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
    assert {type(outcome).__name__ for outcome in outcomes} == {"TopicAuthorizationError"}
    assert [(where, count, kind.__name__) for where, count, kind in told] == [
        (TopicPartition(topic, 0), 10, "TopicAuthorizationError")
    ]
    messages = [record.getMessage() for record in caplog.records]
    assert sum(f"10 records for {topic}-0 failed" in message for message in messages) == 1
    assert sum(message.endswith("on_error failed") for message in messages) == 1


async def test_close_continues_though_on_error_raises_cancelled_error() -> None:
    """close() once raised CancelledError, and left tasks and connections open."""
    waiter = asyncio.get_running_loop().create_future()
    waiter.cancel()
    before = asyncio.all_tasks()
    producer = Producer(bootstrap_servers=NOWHERE, on_error=lambda place, count, error: waiter.result())
    await producer.start()
    delivery = producer.send("t", b"v")
    await asyncio.sleep(0.01)
    await producer.close(0)
    assert isinstance(delivery.exception(), ProducerClosedError)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_records_stay_acknowledged_though_a_hook_raises_cancelled_error(
    kafka_cluster: EmbeddedCluster,
) -> None:
    class Looks:
        def on_batch_acked(self, *arguments: object) -> None:
            raise asyncio.CancelledError

        def on_ready(self, *arguments: object) -> None:
            raise asyncio.CancelledError

    kafka_cluster.create_topic("three", 3)
    async with kafka_cluster.producer(hooks=[Looks()], linger_ms=20) as producer, asyncio.timeout(10):
        deliveries = [producer.send("three", b"v", partition=number % 3) for number in range(6)]
        assert [(await delivery).offset for delivery in deliveries] == [0, 0, 0, 1, 1, 1]


async def test_a_buffer_memory_that_cannot_be_allocated_is_rejected() -> None:
    producer = Producer(bootstrap_servers=NOWHERE, buffer_memory=2**62)
    with pytest.raises(ConfigurationError, match=r"buffer\.memory: this machine cannot reserve \d+ bytes"):
        await producer.start()
    await producer.close()


async def test_metrics_windows_may_have_zero_length() -> None:
    async with Producer(bootstrap_servers=NOWHERE, metrics_sample_window_ms=0) as producer:
        assert producer.metrics()["record-send-total"] == 0


async def test_records_rejected_in_one_loop_pass_are_reported_together(
    kafka_cluster: EmbeddedCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """There is never one log line per record."""
    told: list[int] = []
    async with kafka_cluster.producer(on_error=lambda place, count, error: told.append(count)) as producer:
        for _ in range(100):
            producer.send(topic, bytes(2_000_000))
            producer.send("no topic", b"v")
        # The first pass is for awaiters.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told == [100, 100]
        assert producer.metrics()["record-error-total"] == 200
    assert sum("failed" in record.getMessage() for record in caplog.records) == 2


@pytest.mark.parametrize("on_error", [5, "asynchronous"])
async def test_on_error_must_be_a_plain_function(on_error: object) -> None:
    async def asynchronous(topic_partition: TopicPartition, count: int, error: KafkaError) -> None: ...

    with pytest.raises(TypeError, match="on_error must be a plain function"):
        Producer(bootstrap_servers=NOWHERE, on_error=asynchronous if on_error != 5 else on_error)  # type: ignore[arg-type]  # the mistake


async def test_hooks_are_called_for_batches(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    heard: list[tuple[TopicPartition, int]] = []

    class Hook:
        def on_batch_acked(
            self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
        ) -> None:
            heard.append((topic_partition, record_count))

    async with kafka_cluster.producer(linger_ms=50, hooks=[Hook()]) as producer:
        producer.send(topic, b"v")
        producer.send(topic, b"v")
    assert heard == [(TopicPartition(topic, 0), 2)]


# What is left after close


async def _trouble(kafka_cluster: EmbeddedCluster, topic: str) -> list[weakref.ref[BaseException]]:
    references: list[weakref.ref[BaseException]] = []
    async with kafka_cluster.producer(linger_ms=0, compression_type="gzip", max_block_ms=50) as producer:
        await know_topic(producer, topic)
        await producer.send_many(topic, [bytes(range(256)) * 100] * 3)
        kafka_cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
        failing = [
            producer.send(topic, b"v"),
            producer.send(topic, bytes(2_000_000)),
            producer.send("no topic", b"v"),
            producer.send(topic, b"v", partition=7),
        ]
        for delivery in failing:
            try:
                await delivery
            except KafkaError as error:
                references.append(weakref.ref(error))
        cancelled = [producer.send(topic, b"v"), producer.send(topic, b"v", partition=7)]
        for delivery in cancelled:
            delivery.cancel()
        task = asyncio.create_task(_await(producer.send(topic, b"v")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(references) == 4
    return references


@pytest.mark.kafka_cluster(transport="tcp")
async def test_a_closed_producer_leaves_no_objects(
    kafka_cluster: EmbeddedCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Log records are kept until the end of the test.
    caplog.set_level(logging.CRITICAL, "aioproducer")
    await _trouble(kafka_cluster, topic)
    objects, tasks, threads = own_objects(), asyncio.all_tasks(), threading.active_count()
    references = [*await _trouble(kafka_cluster, topic), *await _trouble(kafka_cluster, topic)]
    await asyncio.sleep(0)
    assert own_objects() - objects == Counter()
    assert [reference() for reference in references if reference() is not None] == []
    assert asyncio.all_tasks() == tasks
    assert threading.active_count() == threads
    port = int(kafka_cluster.bootstrap_servers.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    assert [each for each in connections if each.raddr and each.raddr.port == port] == []


def _handles() -> list[object]:
    return [each for each in gc.get_objects() if type(each) in (PendingRecord, Delivery)]


async def test_failures_are_freed_without_the_garbage_collector(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(linger_ms=0, max_block_ms=200) as producer:
        await know_topic(producer, topic)
        await producer.send(topic, b"v")
        gc.disable()
        before = {id(each) for each in _handles()}
        try:
            errors: list[weakref.ref[BaseException]] = []
            for number in range(21):
                kafka_cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
                try:
                    if number == 10:
                        await producer.send(topic, b"v", partition=9)
                    else:
                        await producer.send(topic, b"v" if number % 2 else bytes(2_000_000))
                except KafkaError as error:
                    errors.append(weakref.ref(error))
            await asyncio.sleep(0.02)
            alive = [error() for error in errors if error() is not None]
            kept = [each for each in _handles() if id(each) not in before]
        finally:
            gc.enable()
    assert len(errors) == 21
    assert alive == []
    assert kept == []


async def test_a_timeout_that_is_no_number_changes_nothing() -> None:
    """It once caused an error of asyncio about float and str, after ``close`` had ended the producer."""
    async with EmbeddedCluster() as cluster, Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for call in (producer.wait_ready, producer.close):
            with pytest.raises(TypeError, match="timeout must be a number of seconds, not str"):
                await call("10")
        await producer.send("t", b"v")
