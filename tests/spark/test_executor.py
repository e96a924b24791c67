"""The event loop of a Spark worker, and the producer for code that does not await: without Spark, by threads alone."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
import pytest
import uvloop

import aioproducer.spark
from aioproducer._client.bulk import SendManyResult
from aioproducer.errors import (
    BufferExhaustedError,
    ClusterAuthorizationError,
    ConfigurationError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    SerializationError,
    TopicAuthorizationError,
    WrongCallerError,
)
from aioproducer.record import TopicPartition
from aioproducer.spark import RowsFailedError, close_executor, executor_producer, run
from aioproducer.spark.executor import KEPT_CONNECTED, MANY_PRODUCERS, Call, Executor
from aioproducer.spark.row_queue import RowQueue
from aioproducer.spark.statistics import SendStatistics, send_statistics
from aioproducer.testing import EmbeddedClusterThread
from aioproducer.wire.murmur2 import partition_for_key
from tests.spark.interrupting import interrupt_wait_in
from tests.waiting import know_topic

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _closed_afterwards() -> Iterator[None]:
    yield
    close_executor(0.1)
    # What was left open would tell now, and not in the test of another.
    gc.collect()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread(properties={"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedClusterThread, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"t{abs(hash(request.node.name))}"
    cluster.create_topic(name, 2)
    yield name
    cluster.clear_faults()


@pytest.fixture
def config(cluster: EmbeddedClusterThread) -> dict[str, object]:
    return {"bootstrap.servers": cluster.bootstrap_servers}


def values(cluster: EmbeddedClusterThread, topic: str, partition: int | None = None) -> list[bytes | None]:
    return [record.value for record in cluster.records(topic, partition)]


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.002)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "aioproducer-executor"]


async def tasks_named(name: str) -> int:
    return len([task for task in asyncio.all_tasks() if task.get_name() == name])


async def tasks() -> int:
    return len(asyncio.all_tasks())


# The loop


async def _add(one: int, other: int) -> int:
    await asyncio.sleep(0)
    return one + other


def test_run_gives_the_result_or_raises() -> None:
    assert run(_add(1, 2)) == 3

    async def fails() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(fails())

    async def cancels_itself() -> None:
        raise asyncio.CancelledError("mine")

    with pytest.raises(asyncio.CancelledError):
        run(cancels_itself())


def test_one_loop_for_all_threads() -> None:
    async def loop() -> int:
        return id(asyncio.get_running_loop())

    found = [run(loop())]
    others = [threading.Thread(target=lambda: found.append(run(loop()))) for _ in range(3)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert len(threads()) == 1


def test_the_loop_is_uvloops_where_that_is_installed_else_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_uvloop() -> bool:
        return isinstance(asyncio.get_running_loop(), uvloop.Loop)

    assert run(is_uvloop())
    close_executor()
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert not run(is_uvloop())


def test_a_thread_that_cannot_start_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Executor()
    gc.collect()
    assert run(_add(1, 1)) == 2


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that the coroutine of ``run`` sets; the timeout counts from then on.

    Otherwise it counts from the hand-over to the loop, and a busy machine may cancel the coroutine before its first
    step. Cancelled coroutines have time to end, too.
    """
    event = threading.Event()
    result = Call.result

    def result_after_beginning(call: Call[Any], timeout: float | None = None) -> Any:
        if timeout is not None:
            assert event.wait(PATIENCE)
        return result(call, timeout)

    monkeypatch.setattr(Call, "result", result_after_beginning)
    monkeypatch.setattr("aioproducer.spark.executor.CANCEL_GRACE", PATIENCE)
    return event


def test_a_timeout_cancels_the_coroutine_and_says_so(began: threading.Event) -> None:
    cancelled = threading.Event()

    async def sleeps() -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError, match=r"sleeps did not end within 0.05 s: it was cancelled$"):
        run(sleeps(), 0.05)
    assert cancelled.is_set()


def test_a_coroutine_that_will_not_be_cancelled_is_told_of(
    began: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioproducer.spark.executor.CANCEL_GRACE", 0.05)
    go_on = threading.Event()

    async def stubborn() -> None:
        began.set()
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    with pytest.raises(TimeoutError, match="which has not ended it yet"):
        run(stubborn(), 0.05)
    go_on.set()
    until(lambda: run(tasks()) == 1)


def test_a_timeout_of_the_coroutines_own_is_its_own() -> None:
    async def times_out() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match=r"^mine$"):
        run(times_out(), 5)


def test_a_result_that_comes_while_it_is_cancelled_is_a_result(began: threading.Event) -> None:
    async def shrugs() -> str:
        try:
            began.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done"
        return "late"

    assert run(shrugs(), 0.01) == "done"


def test_only_coroutines_are_run() -> None:
    with pytest.raises(TypeError, match=r"give a coroutine, as work\(\) is one of `async def work\(\)`, not <function"):
        run(_add)  # type: ignore[arg-type]  # what is tested


def test_the_loops_own_thread_is_refused(config: dict[str, object]) -> None:
    """It would wait for itself; the coroutine it came with is closed, or its being never awaited would be an error."""

    async def inside() -> None:
        with pytest.raises(WrongCallerError, match="would wait for itself"):
            run(_add(1, 2))
        with pytest.raises(WrongCallerError, match="would wait for itself"), executor_producer(config):
            raise AssertionError("not reached")
        with pytest.raises(WrongCallerError, match="cannot be closed on its own event loop"):
            Executor.current().close()

    run(inside())
    gc.collect()


def test_sending_on_the_loops_own_thread_is_refused(config: dict[str, object], topic: str) -> None:
    with executor_producer(config) as producer:

        async def inside() -> None:
            for call in (lambda: producer.send(topic), lambda: producer.send_many(topic, []), producer.flush):
                with pytest.raises(WrongCallerError, match="would wait for itself"):
                    call()

        run(inside())


def test_an_interrupted_wait_leaves_no_coroutine_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioproducer.spark.executor.CANCEL_GRACE", PATIENCE)
    began, ended = threading.Event(), threading.Event()

    async def sleeps() -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        finally:
            ended.set()

    thread = interrupt_wait_in(Call.result, began.is_set)
    with pytest.raises(KeyboardInterrupt):
        run(sleeps())
    thread.join()
    assert ended.is_set()
    assert run(tasks()) == 1


def test_closing_ends_the_thread_and_what_is_under_way() -> None:
    began = threading.Event()
    outcome: list[BaseException] = []

    async def sleeps() -> None:
        began.set()
        await asyncio.sleep(60)

    def work() -> None:
        try:
            run(sleeps())
        except ProducerClosedError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(PATIENCE)
    close_executor()
    thread.join(PATIENCE)
    assert "was cancelled, as everything is when the loop is closed" in str(outcome[0])
    assert threads() == []
    close_executor()
    assert run(_add(1, 1)) == 2


def test_a_loop_that_is_blocked_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aioproducer.spark.executor.END_MARGIN", 0.05)
    go_on = threading.Event()

    async def blocks() -> None:
        go_on.wait(PATIENCE)

    thread = threading.Thread(target=lambda: run(blocks()))
    thread.start()
    executor = Executor.current()
    until(lambda: len(executor._calls) == 1)
    executor.close(0.05)
    assert "has not ended: a callback on it blocks" in caplog.text
    go_on.set()
    thread.join()
    until(lambda: threads() == [])


def test_an_executor_that_was_closed_refuses() -> None:
    executor = Executor.current()
    executor.close()
    executor.close()
    with pytest.raises(ProducerClosedError, match="event loop was closed; executor_producer"):
        executor.run(_add(1, 1))
    gc.collect()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, None])
def test_a_loop_that_died_is_replaced(
    cluster: EmbeddedClusterThread,
    config: dict[str, object],
    topic: str,
    error: type[BaseException] | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def dies() -> None:
        if error is not None:
            raise error("of the user's")
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)

    with executor_producer(config) as producer:
        producer.send(topic, b"1")
    executor = Executor.current()
    with pytest.raises(error or ProducerClosedError):
        run(dies())
    until(lambda: executor.over)
    with executor_producer(config) as producer:
        producer.send(topic, b"2")
    assert Executor.current() is not executor
    assert sorted(record.value or b"" for record in cluster.records(topic)) == [b"1", b"2"]
    assert ("was ended by" in caplog.text) == (error is not None)


def test_a_plain_script_ends_cleanly(cluster: EmbeddedClusterThread, topic: str) -> None:
    script = f"""
from aioproducer.spark import executor_producer
with executor_producer({{"bootstrap.servers": {cluster.bootstrap_servers!r}}}) as producer:
    producer.send_many({topic!r}, [b"%d" % number for number in range(1000)], partition=0)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert values(cluster, topic) == [b"%d" % number for number in range(1000)]


# Producers


async def _producer(config: dict[str, object]) -> Any:
    return await Executor.current().producer(config)


def test_equal_configurations_have_one_producer(config: dict[str, object]) -> None:
    first = run(_producer({**config, "linger.ms": "7"}))
    assert first.config.client_id == "aioproducer-executor"
    assert run(_producer({**config, "linger.ms": 7})) is first
    assert run(_producer({"bootstrap_servers": config["bootstrap.servers"], "linger_ms": 7})) is first
    assert run(_producer({**config, "linger.ms": 8})) is not first
    assert run(_producer({**config, "linger.ms": 7, "client.id": "mine"})).config.client_id == "mine"


def test_a_wrong_configuration_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"linger\.ms"), executor_producer({"linger.mss": 5}):
        raise AssertionError("not reached")


def test_producers_for_ever_more_configurations_are_told_of(
    config: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MANY_PRODUCERS):
        run(_producer({**config, "linger.ms": number}))
    assert caplog.text == ""
    run(_producer({**config, "linger.ms": 100}))
    assert f"{MANY_PRODUCERS + 1} producers in this process" in caplog.text


async def test_a_producer_of_the_executor_is_made_on_its_loop(config: dict[str, object]) -> None:
    with pytest.raises(WrongCallerError, match="another event loop"):
        await Executor.current().producer(config)


def test_a_producer_that_was_closed_is_made_anew(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    first = run(_producer(config))
    run(first.close())
    with executor_producer(config) as producer:
        producer.send(topic, b"v")
    assert values(cluster, topic) == [b"v"]
    assert run(_producer(config)) is not first


def test_a_producer_that_met_a_fatal_error_is_made_anew(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    """All later tasks of the worker would fail with it."""
    cluster.fail("InitProducerId", "CLUSTER_AUTHORIZATION_FAILED")
    with pytest.raises(RowsFailedError) as failed, executor_producer(config) as producer:
        producer.send(topic, b"1")
    assert [type(error) for error in failed.value.errors.values()] == [ClusterAuthorizationError]
    with executor_producer(config) as producer:
        producer.send(topic, b"2")
    assert values(cluster, topic) == [b"2"]
    until(lambda: run(tasks_named("aioproducer-sender-aioproducer-executor")) == 1)


def test_the_producer_and_its_connections_stay_for_the_next_task(config: dict[str, object], topic: str) -> None:
    async def created() -> float:
        metrics = (await _producer(config)).metrics()
        return float(metrics["connection-creation-total"])

    with executor_producer(config) as producer:
        producer.send(topic, b"1")
    before = run(created())
    for _ in range(3):
        with executor_producer(config) as producer:
            producer.send(topic, b"1")
    assert run(created()) == before
    assert run(tasks_named("aioproducer-executor-rows")) == 0


def test_connections_closed_for_idleness_are_opened_again() -> None:
    async def metric(name: str) -> float:
        return float((await _producer(config)).metrics()[name])

    with EmbeddedClusterThread(properties={"connections.max.idle.ms": 200}) as cluster:
        cluster.create_topic("idle", 1)
        config: dict[str, object] = {"bootstrap.servers": cluster.bootstrap_servers}
        for number in (1, 2):
            with executor_producer(config) as producer:
                producer.send("idle", b"%d" % number)
            until(lambda: run(metric("connection-count")) == 0)
        assert run(metric("connection-creation-total")) >= 2
        assert values(cluster, "idle") == [b"1", b"2"]
        close_executor()


# Sending


def test_rows_arrive_as_they_were_sent(cluster: EmbeddedClusterThread, config: dict[str, object], topic: str) -> None:
    with executor_producer(config) as producer:
        producer.send(topic, b"v", b"k", partition=1, timestamp_ms=5, headers=[("h", b"1"), ("n", None)])
        producer.send(topic, None, b"k", partition=1, timestamp_ms=6)
        producer.send(topic, b"", partition=1, timestamp_ms=7)
        assert producer.counts.rows == 3
        producer.flush()
        assert producer.counts == (3, 3)
    assert [record[2:] for record in cluster.records(topic, 1)] == [
        (0, 5, b"k", b"v", (("h", b"1"), ("n", None))),
        (1, 6, b"k", None, ()),
        (2, 7, None, b"", ()),
    ]


def test_rows_keep_their_order_also_between_the_ways_to_send(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    numbers = iter(range(1_000_000))

    def rows(count: int) -> list[bytes]:
        return [b"%d" % next(numbers) for _ in range(count)]

    with executor_producer({**config, "batch.size": 1000}) as producer:
        for _ in range(20):
            for value in rows(30):
                producer.send(topic, value, b"key")
            producer.send_many(topic, rows(700), keys=[b"key"] * 700)
            producer.send_many(topic, iter(rows(40)), keys=iter([b"key"] * 40))
            producer.send_many(topic, pyarrow.array(rows(500)), keys=pyarrow.array([b"key"] * 500))
    stored = [record.value for partition in (0, 1) for record in cluster.records(topic, partition)]
    assert stored == [b"%d" % number for number in range(20 * (30 + 700 + 40 + 500))]


def test_rows_of_many_topics_and_partitions(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    other = f"{topic}-other"
    cluster.create_topic(other, 2)
    with executor_producer(config) as producer:
        for number in range(400):
            producer.send((topic, other)[number % 2], b"%d" % number, partition=number // 2 % 2)
        for number in range(400, 500):
            # Where the partitioner decides on some, no row overtakes another.
            producer.send(topic, b"%d" % number, b"same key", partition=(None, _partition_of(b"same key"))[number % 2])
    assert values(cluster, topic, 0)[:100] == [b"%d" % number for number in range(0, 400, 4)]
    assert values(cluster, other, 1) == [b"%d" % number for number in range(3, 400, 4)]
    assert values(cluster, topic, _partition_of(b"same key"))[100:] == [b"%d" % number for number in range(400, 500)]


def _partition_of(key: bytes) -> int:
    return partition_for_key(key, 2)


def test_what_its_owner_changes_afterwards_is_as_it_was(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    buffer = bytearray(b"0")
    column: list[Any] = [b"2", buffer]
    headers = [("h", b"1")]
    with executor_producer(config) as producer:
        producer.send(topic, buffer, memoryview(b"key")[:1], partition=0, headers=headers)
        buffer[:] = b"1"
        producer.send_many(topic, column, partition=0)
        buffer[:] = b"x"
        column.clear()
        headers.clear()
    assert values(cluster, topic, 0) == [b"0", b"2", b"1"]
    assert cluster.records(topic, 0)[0][4] == b"k"
    assert cluster.records(topic, 0)[0].headers == (("h", b"1"),)


def test_columns_of_every_kind(cluster: EmbeddedClusterThread, config: dict[str, object], topic: str) -> None:
    pairs = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
    with executor_producer(config) as producer:
        producer.send_many(topic, (b"%d" % number for number in range(2)), partition=0)
        producer.send_many(topic, pyarrow.array(["2", None]), keys=[b"k", None], partition=0, timestamps_ms=[7, 8])
        producer.send_many(
            topic,
            iter([b"4"]),
            keys=pyarrow.array(["k"]),
            partition=0,
            timestamps_ms=pyarrow.array([9_000], pyarrow.timestamp("us")),
            headers=pyarrow.array([[{"key": "h", "value": b"1"}]], pairs),
        )
        producer.send_many(topic, [], partition=0)
        producer.send_many(topic, pyarrow.chunked_array([["5"], ["6"]]), partition=0)
        assert producer.counts.rows == 7
    stored = cluster.records(topic, 0)
    assert [record.value for record in stored] == [b"0", b"1", b"2", None, b"4", b"5", b"6"]
    assert [record.key for record in stored][2:5] == [b"k", None, b"k"]
    assert [record.timestamp_ms for record in stored][2:5] == [7, 8, 9]
    assert stored[4].headers == (("h", b"1"),)


def test_serializers_get_what_was_sent(cluster: EmbeddedClusterThread, config: dict[str, object], topic: str) -> None:
    with executor_producer({**config, "value.serializer": str.encode, "key.serializer": repr_bytes}) as producer:
        producer.send(topic, "é", 1, partition=0)
        producer.send_many(topic, ["ü"], keys=[(1, 2)], partition=0)
        producer.send_many(topic, pyarrow.array(["ö"]), keys=pyarrow.array([5]), partition=0)
    assert [(record.key, record.value) for record in cluster.records(topic, 0)] == [
        (b"1", "é".encode()),
        (b"(1, 2)", "ü".encode()),
        (b"5", "ö".encode()),
    ]


def repr_bytes(value: object) -> bytes:
    return repr(value).encode()


def test_wrong_arguments_raise_at_once_and_spoil_nothing(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    wrong: Any = "text"
    with executor_producer(config) as producer:
        for call, text in (
            (lambda: producer.send(topic, wrong), "value must be bytes-like"),
            (lambda: producer.send(topic, None, wrong), "key must be bytes-like"),
            (lambda: producer.send(topic, partition=wrong), "partition must be int"),
            (lambda: producer.send(topic, timestamp_ms=wrong), "timestamp_ms must be int"),
            (lambda: producer.send(topic, headers=[wrong]), "header"),
            (lambda: producer.send(b"topic"), "topic must be str"),  # type: ignore[arg-type]  # what is tested
            (lambda: producer.send_many(topic, [b"1", wrong]), "value must be bytes-like"),
            (lambda: producer.send_many(topic, [], partition=wrong), "partition must be int"),
            (lambda: producer.send_many(topic, b"bytes"), "values must be a pyarrow array or an iterable of rows"),
            (lambda: producer.send_many(topic, [b"1"], keys=5), "keys must be a pyarrow array or an iterable"),  # type: ignore[arg-type]  # what is tested
        ):
            with pytest.raises((TypeError, ValueError), match=text):
                call()
        with pytest.raises(ValueError, match="keys has 1 entries for 2 values"):
            producer.send_many(topic, [b"1", b"2"], keys=[b"k"])
        with pytest.raises(ValueError, match="values, keys are not of one length"):
            producer.send_many(topic, iter([b"1", b"2"]), keys=iter([b"k"]))
        producer.send(topic, b"right")
    assert sorted(value or b"" for value in values(cluster, topic)) == [b"1", b"right"]


def test_rows_of_a_slow_iterator_do_not_wait_for_the_next(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    def slow() -> Iterator[bytes]:
        for number in range(3):
            yield b"%d" % number
            until(lambda expected=number + 1: len(cluster.records(topic)) == expected)  # type: ignore[misc]  # bound now

    with executor_producer({**config, "linger.ms": 0}) as producer:
        producer.send_many(topic, slow(), partition=0)
        producer.send(topic, b"3", partition=0)
        until(lambda: len(cluster.records(topic)) == 4)


def test_rows_wait_no_longer_than_linger(config: dict[str, object], topic: str) -> None:
    """The loop is notified of a row when there was none, and of a chunk: never of each row."""
    told: list[object] = []
    with executor_producer({**config, "linger.ms": 100}) as producer:
        loop = Executor.current().loop
        assert producer._queue is not None
        call_soon = producer._queue._call_soon
        producer._queue._call_soon = lambda function: (told.append(function), call_soon(function))[1]  # type: ignore[method-assign]  # counted
        for _ in range(1000):
            producer.send(topic, b"v")
    assert loop is not None
    assert 1 <= len(told) <= 10


# Room


def test_the_caller_waits_for_room_and_no_longer_than_max_block(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    cluster.delay("Produce", 60_000, times=None)
    small: dict[str, object] = {"buffer.memory": 200_000, "max.block.ms": 300, "batch.size": 1000, "linger.ms": 0}
    counts: list[int] = []
    # So that room is all that is waited for.
    run(know_topic(run(_producer({**config, **small})), topic))

    def task() -> None:
        with executor_producer({**config, **small}) as producer:
            try:
                for number in range(1_000_000):
                    producer.send(topic, b"%d" % number + bytes(1000), partition=0)
            finally:
                counts.append(producer.counts.rows)

    tracemalloc.start()
    try:
        # Which comes first: the caller's time is over, or that of the row that is in line.
        with pytest.raises(
            (BufferExhaustedError, RowsFailedError), match=r"(?i)no room .* within \d+ ms \(max.block.ms\)"
        ):
            task()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts[0] < 3000
    assert peak < 10_000_000


def test_many_large_rows_go_through_a_small_buffer(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    large = [bytes([number]) * 200_000 for number in range(20)]
    small: dict[str, object] = {"buffer.memory": 500_000, "linger.ms": 0}
    with executor_producer({**config, **small}) as producer:
        producer.send_many(topic, large, partition=0)
        producer.send_many(topic, pyarrow.array(large), partition=0)
        for value in large:
            producer.send(topic, value, partition=0)
    assert values(cluster, topic, 0) == large * 3


@pytest.mark.parametrize("kind", ["list", "arrow", "dictionary"])
def test_rows_go_over_to_the_loop_many_at_a_time_also_behind_a_large_one(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They went one at a time: a large row made chunks small for good, and each part of a dictionary counted it all."""
    handed_over: list[int] = []
    put = RowQueue.put

    def counting(queue: RowQueue, item: Any, rows: int, size: int) -> None:
        handed_over.append(rows)
        put(queue, item, rows, size)

    monkeypatch.setattr(RowQueue, "put", counting)
    data = [bytes(900_000), *[b"%d" % number for number in range(20_000)]]
    column: Any = data if kind == "list" else pyarrow.array(data)
    if kind == "dictionary":
        # No part of it has the large one, which only 20,000 others make small.
        column = column.dictionary_encode().slice(1)
        data = data[1:]
    with executor_producer(config) as producer:
        producer.send_many(topic, column, partition=0)
    assert values(cluster, topic, 0) == data
    assert len(handed_over) < 100


def test_an_interrupt_while_waiting_for_room_ends_the_with_soon(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    cluster.delay("Produce", 60_000, times=None)
    small: dict[str, object] = {"buffer.memory": 100_000, "linger.ms": 0}
    began = time.monotonic()
    thread = interrupt_wait_in(RowQueue._wait_for_room)

    def task() -> None:
        with executor_producer({**config, **small}) as producer:
            while True:
                producer.send(topic, bytes(10_000), partition=0)

    with pytest.raises(KeyboardInterrupt) as raised:
        task()
    thread.join()
    assert time.monotonic() - began < 50
    assert "known to be acknowledged" in raised.value.__notes__[0]
    assert run(tasks_named("aioproducer-executor-rows")) == 0


# Failures, and the end of the `with`


def test_the_first_failure_is_raised_when_the_with_is_left(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    def task() -> None:
        with executor_producer(config) as producer:
            producer.send_many(topic, [b"v"] * 5, partition=1)
            producer.flush()
            cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
            producer.send_many(topic, [b"v"] * 10, partition=0)

    with pytest.raises(RowsFailedError) as failed:
        task()
    assert failed.value.result == SendManyResult(15, 5)
    assert {place: type(error) for place, error in failed.value.errors.items()} == {
        TopicPartition(topic, 0): TopicAuthorizationError
    }
    assert str(failed.value).startswith(f"Rows for {topic}-0 were not delivered: ")
    assert str(failed.value).endswith(
        "Of 15 rows sent 5 are known to be acknowledged; of the other 10 some may be in the log all the same."
    )


def test_after_a_failure_every_call_raises_it(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    raised: list[RowsFailedError] = []

    def task() -> None:
        with executor_producer(config) as producer:
            cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
            producer.send(topic, b"v", partition=0)
            for call in (
                producer.flush,
                lambda: producer.send(topic, b"v"),
                lambda: producer.send_many(topic, [b"v"]),
                producer.flush,
            ):
                with pytest.raises(RowsFailedError) as failed:
                    call()
                raised.append(failed.value)

    with pytest.raises(RowsFailedError) as at_the_end:
        task()
    assert {str(error) for error in raised} == {str(at_the_end.value)}
    assert len({id(error) for error in (*raised, at_the_end.value)}) == 5


def test_a_failure_stops_a_loop_of_sends_soon(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    began = time.monotonic()

    def task() -> None:
        with executor_producer(config) as producer:
            while time.monotonic() < began + PATIENCE:
                producer.send(topic, bytes(100), partition=0)

    with pytest.raises(RowsFailedError, match="not delivered"):
        task()
    assert time.monotonic() - began < PATIENCE


def test_a_failure_is_raised_by_the_call_that_waits_for_room(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    cluster.delay("Produce", 300)
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
    small: dict[str, object] = {"buffer.memory": 100_000, "linger.ms": 0}
    taken: list[int] = []

    def task() -> None:
        with executor_producer({**config, **small}) as producer:
            for number in range(1_000_000):
                producer.send(topic, bytes(1000), partition=0)
                taken.append(number)

    with pytest.raises(RowsFailedError) as failed:
        task()
    assert failed.value.result == SendManyResult(len(taken), 0)


def test_a_failure_is_raised_while_a_full_buffer_waits_for_rows_that_are_tried_again_and_again(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    cluster.create_topic(f"{topic}-many", 16)
    for partition in range(15):
        cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", topic=f"{topic}-many", partition=partition, times=None)
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=f"{topic}-many", partition=15, times=None)

    def task() -> None:
        with executor_producer({**config, "buffer.memory": 262_144}) as producer:
            for number in range(10_000_000):
                producer.send(f"{topic}-many", bytes(100), b"%d" % number)

    began = time.monotonic()
    with pytest.raises(RowsFailedError, match=f"Rows for {topic}-many-15 were not delivered"):
        task()
    assert time.monotonic() - began < PATIENCE


def test_rows_for_a_topic_that_is_not_there(cluster: EmbeddedClusterThread, config: dict[str, object]) -> None:
    with (
        pytest.raises(RowsFailedError, match=r"^Rows for missing were not delivered: .*missing"),
        executor_producer({**config, "max.block.ms": 200}) as producer,
    ):
        producer.send("missing", b"v")


def test_a_row_that_is_too_large(cluster: EmbeddedClusterThread, config: dict[str, object], topic: str) -> None:
    with pytest.raises(RowsFailedError) as failed, executor_producer(config) as producer:
        producer.send_many(topic, [b"1", bytes(2_000_000), b"3"], partition=0)
    assert [type(error) for error in failed.value.errors.values()] == [RecordTooLargeError]


def test_what_a_serializer_raises_comes_back(config: dict[str, object], topic: str) -> None:
    with (
        pytest.raises(SerializationError) as raised,
        executor_producer({**config, "value.serializer": str.encode}) as producer,
    ):
        producer.send(topic, 5)
    assert "0 of 1 record of" in raised.value.__notes__[0]


def release_stored(cluster: EmbeddedClusterThread, topic: str, count: int) -> None:
    """Send the response that a delay holds back; it is held once its rows are stored."""
    until(lambda: len(values(cluster, topic)) == count)
    cluster.clear_faults()


def test_a_flush_without_any_time_tells_whether_all_is_acknowledged(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    with executor_producer(config, flush_timeout=0) as producer:
        producer.flush(0)
        producer.send(topic, b"1", partition=0)
        producer.flush(60)
        producer.flush(0)
        cluster.delay("Produce", 60_000)
        producer.send(topic, b"2", partition=0)
        with pytest.raises(KafkaTimeoutError, match="not every row was acknowledged within 0 s"):
            producer.flush(0)
        release_stored(cluster, topic, 2)
        producer.flush(60)


def test_a_transactional_id_is_rejected(config: dict[str, object]) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"transactional\.id: executor_producer sends outside"),
        executor_producer({**config, "transactional.id": "t"}),
    ):
        pass


def test_a_flush_with_nothing_to_wait_for_does_not_wait_for_a_loop_that_is_busy(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    let_go = threading.Event()
    with executor_producer(config) as producer:
        producer.send(topic, b"1", partition=0)
        producer.flush(10)
        Executor.current().loop.call_soon_threadsafe(let_go.wait, 10)
        try:
            producer.flush(0)
        finally:
            let_go.set()


def test_the_flush_has_a_deadline(cluster: EmbeddedClusterThread, config: dict[str, object], topic: str) -> None:
    with executor_producer(config) as producer:
        producer.send(topic, b"1", partition=0)
        producer.flush()
        cluster.delay("Produce", 60_000)
        producer.send(topic, b"2", partition=0)
        with pytest.raises(
            KafkaTimeoutError, match=r"not every row was acknowledged within 0.2 s. Of 2 rows sent 1 is known"
        ):
            producer.flush(0.2)
        release_stored(cluster, topic, 2)
        # They are sent on, and the next flush knows of them.
        producer.send(topic, b"3", partition=0)
        producer.flush()
        assert producer.counts == (3, 3)
    assert values(cluster, topic, 0) == [b"1", b"2", b"3"]


def test_leaving_has_a_deadline_and_the_next_task_a_producer(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    cluster.delay("Produce", 60_000)
    began = time.monotonic()

    def task() -> None:
        with executor_producer(config, flush_timeout=0.1) as producer:
            producer.send(topic, b"1", partition=0)
            # A row that the producer has not accepted would be dropped.
            until(lambda: values(cluster, topic, 0) == [b"1"])

    with pytest.raises(KafkaTimeoutError, match=r"within 0.1 s"):
        task()
    assert time.monotonic() - began < 50
    cluster.clear_faults()
    with executor_producer(config) as producer:
        producer.send(topic, b"2", partition=0)
    assert values(cluster, topic, 0) == [b"1", b"2"]


def test_a_dead_cluster_is_named_when_the_time_is_over() -> None:
    config: dict[str, object] = {"bootstrap.servers": "127.0.0.1:1"}

    def task() -> None:
        with executor_producer(config, flush_timeout=0.3) as producer:
            producer.send("t", b"v")
            until(lambda: run(_producer(config)).connection_error is not None)

    with pytest.raises(KafkaTimeoutError, match=r"Of 1 row sent 0 .* The last error was: .*127.0.0.1:1\b"):
        task()


def test_an_exception_goes_on_and_takes_no_more_than_its_grace(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    cluster.delay("Produce", 60_000, times=None)
    began = time.monotonic()

    def task() -> None:
        with executor_producer(config) as producer:
            producer.send(topic, b"v")
            raise LookupError("mine")

    with pytest.raises(LookupError, match=r"^mine\n") as raised:
        task()
    assert time.monotonic() - began < 30
    assert raised.value.__notes__ == [
        "Of 1 row sent 0 are known to be acknowledged; of the other 1 some may be in the log all the same."
    ]


def test_an_exception_leaves_what_was_sent_delivered(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may need more than a second to connect and to send.
    monkeypatch.setattr("aioproducer.spark.rows.GRACE_AFTER_EXCEPTION", PATIENCE)

    def task() -> None:
        with executor_producer(config) as producer:
            producer.send(topic, b"v")
            raise LookupError("mine")

    with pytest.raises(LookupError) as raised:
        task()
    assert not hasattr(raised.value, "__notes__")
    assert values(cluster, topic) == [b"v"]


def test_an_exception_of_the_callers_hides_no_other_and_is_not_hidden(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")

    def task() -> None:
        with executor_producer(config) as producer:
            producer.send(topic, b"v")
            raise LookupError("mine")

    with pytest.raises(LookupError):
        task()


def test_calls_after_the_with_are_refused(config: dict[str, object], topic: str) -> None:
    with executor_producer(config) as producer:
        producer.send(topic, b"v")
    for call in (lambda: producer.send(topic), lambda: producer.send_many(topic, []), producer.flush):
        with pytest.raises(ProducerClosedError, match=r"the `with executor_producer\(...\)` that made this was left"):
            call()
    assert producer.counts == (1, 1)


def test_closed_in_the_middle(config: dict[str, object], topic: str) -> None:
    def task() -> None:
        with executor_producer(config) as producer:
            producer.send(topic, b"v")
            close_executor()
            producer.send(topic, b"v")

    with pytest.raises(ProducerClosedError, match="event loop was closed"):
        task()


def test_a_producer_closed_in_the_middle(config: dict[str, object], topic: str) -> None:
    def task() -> None:
        with executor_producer(config) as producer:
            run(run(_producer(config)).close())
            producer.send(topic, b"v")

    with pytest.raises(ProducerClosedError):
        task()
    with executor_producer(config) as producer:
        producer.send(topic, b"v")


def test_two_threads_share_the_producer_each_with_its_own_rows(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    counts = []

    def work(name: int) -> None:
        with executor_producer(config) as producer:
            for number in range(3000):
                producer.send(topic, b"%d %d" % (name, number), partition=name)
            producer.flush()
            counts.append(producer.counts)

    workers = [threading.Thread(target=work, args=(name,)) for name in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counts == [(3000, 3000)] * 2
    for name in (0, 1):
        assert values(cluster, topic, name) == [b"%d %d" % (name, number) for number in range(3000)]


# SendStatistics


def test_statistics_are_those_of_the_with(
    cluster: EmbeddedClusterThread, config: dict[str, object], topic: str
) -> None:
    # One batch, however long the rows take, of a topic that is known: rows in line for it may come into two.
    config["linger.ms"] = 60_000
    with executor_producer(config) as producer:
        producer.send(topic, b"v", partition=0)
    # A clock of whole milliseconds, such as uvloop's, sees that too.
    cluster.delay("Produce", 20)
    with executor_producer(config) as producer:
        producer.send_many(topic, [b"v" * 100] * 50, partition=0)
        producer.flush()
        inside = producer.statistics()
    assert producer.statistics() == inside
    assert (inside.rows, inside.acked, inside.batches, inside.retries) == (50, 50, 1, 0)
    assert 50 * 100 < inside.bytes < 50 * 120
    assert 0 < inside.latency_avg_ms <= inside.latency_max_ms

    cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    with executor_producer(config) as producer:
        producer.send_many(topic, [b"v" * 100] * 20, partition=0)
        producer.flush()
        again = producer.statistics()
    assert (again.rows, again.acked, again.batches, again.retries) == (20, 20, 1, 20)
    assert again.bytes > 2 * 20 * 100
    # The backoff is of 100 ms, more or less by a fifth.
    assert again.latency_max_ms >= 70


def test_statistics_of_nothing(config: dict[str, object]) -> None:
    with executor_producer(config) as producer:
        assert producer.statistics() == SendStatistics()
    assert producer.statistics() == SendStatistics()
    assert producer.counts == (0, 0)


async def test_statistics_are_of_the_executors_producers(config: dict[str, object]) -> None:
    from aioproducer import Producer

    async with Producer.from_config(config) as producer:
        with pytest.raises(TypeError, match=r"Executor.producer\(\)"):
            send_statistics(producer.metrics(), producer.metrics())


# The package


def test_importing_the_package_imports_nothing_that_is_not_used() -> None:
    script = """
import sys
import aioproducer.spark
heavy = {"asyncio", "pyspark", "pyarrow", "numpy", "uvloop", "aioproducer.producer", "aioproducer.spark.executor"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert set(aioproducer.spark.__all__) <= set(dir(aioproducer.spark))
from aioproducer.spark import executor_producer
assert not {"pyspark", "pyarrow", "numpy"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_public_name_is_there() -> None:
    for name in aioproducer.spark.__all__:
        assert getattr(aioproducer.spark, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        aioproducer.spark.nothing  # noqa: B018  # asking is what is tested


def test_closed_between_the_check_and_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor.current()
    monkeypatch.setattr(executor, "check_caller", executor.close)
    with pytest.raises(ProducerClosedError, match="event loop was closed"):
        executor.run(_add(1, 1))
    gc.collect()


# Connections that are not in use


class Connections:
    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


async def _keep(key: str, connected: Connections) -> None:
    Executor.current().keep_connected(key, connected)


async def _take(key: str) -> object:
    return Executor.current().take_connected(key)


def test_kept_connections_are_for_one_caller() -> None:
    kept = Connections()
    run(_keep("a", kept))
    assert [run(_take(key)) for key in ("b", "a", "a")] == [None, kept, None]
    assert kept.closed == 0


def test_of_two_kept_for_one_key_the_earlier_is_closed() -> None:
    first, second = Connections(), Connections()
    run(_keep("a", first))
    run(_keep("a", second))
    until(lambda: first.closed == 1)
    assert run(_take("a")) is second
    assert second.closed == 0


def test_of_many_kept_connections_the_oldest_are_closed() -> None:
    kept = [Connections() for _ in range(KEPT_CONNECTED + 2)]
    for number, each in enumerate(kept):
        run(_keep(str(number), each))
    until(lambda: sum(each.closed for each in kept) == 2)
    assert [each.closed for each in kept[:2]] == [1, 1]


def test_the_end_of_the_loop_closes_what_is_kept() -> None:
    kept, taken = Connections(), Connections()
    run(_keep("a", kept))
    run(_keep("b", taken))
    run(_take("b"))
    close_executor()
    assert (kept.closed, taken.closed) == (1, 0)


def test_connections_that_cannot_be_closed_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Connections):
        async def close(self) -> None:
            raise OSError("they are gone")

    run(_keep("a", Broken()))
    close_executor()
    assert "connections could not be closed: OSError('they are gone')" in caplog.text
