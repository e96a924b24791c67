"""A task's rows on their way to brokers in this process; Spark is only played."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Iterator

import pyarrow
import pytest

from aioproducer._client.bulk import WAITING_TO_BE_SENT
from aioproducer.metrics import MetricsSnapshot
from aioproducer.producer import Producer
from aioproducer.record import TopicPartition
from aioproducer.spark import SinkOptions, close_executor, run
from aioproducer.spark.columns import SinkColumns
from aioproducer.spark.executor import Call, Executor
from aioproducer.spark.task import BATCHES_AHEAD, SparkTaskError, TaskOutcome, write_partition
from aioproducer.testing import EmbeddedClusterThread
from tests.spark.interrupting import interrupt_wait_in

ROWS = 500
MAX_IN_FLIGHT = 5
"""Kafka's ``max.in.flight.requests.per.connection``."""


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread(1) as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: EmbeddedClusterThread, topic: str) -> Iterator[EmbeddedClusterThread]:
    module_cluster.create_topic(topic, 1)
    try:
        yield module_cluster
    finally:
        module_cluster.clear_faults()
        close_executor()


def batch(first: int, count: int = ROWS, size: int = 10) -> pyarrow.RecordBatch:
    keys = pyarrow.array([b"%d" % number for number in range(first, first + count)])
    return pyarrow.record_batch([keys, pyarrow.array([b"x" * size] * count)], names=["key", "value"])


def write(
    cluster: EmbeddedClusterThread, topic: str, batches: Iterator[pyarrow.RecordBatch], **options: object
) -> TaskOutcome:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic}
    given |= {name.replace("__", "."): str(value) for name, value in options.items()}
    parsed = SinkOptions.parse(given)
    return write_partition(batches, SinkColumns(topic, "", ""), parsed)


def endless(pulled: list[int], size: int = 10) -> Iterator[pyarrow.RecordBatch]:
    while True:
        pulled.append(len(pulled))
        yield batch(len(pulled) * ROWS, size=size)


def tasks_on_loop() -> list[str]:
    """The names of the tasks on the executor's loop that are of a Spark task."""

    async def look() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if "spark-task" in task.get_name()]

    return run(look())


def test_every_row_is_there_in_order_when_it_returns(cluster: EmbeddedClusterThread, topic: str) -> None:
    outcome = write(cluster, topic, iter([batch(0), batch(ROWS), batch(2 * ROWS, 0), batch(2 * ROWS, 1)]))
    records = cluster.records(topic)
    assert [record.key for record in records] == [b"%d" % number for number in range(2 * ROWS + 1)]
    assert outcome.rows == 2 * ROWS + 1
    statistics = outcome.statistics
    assert statistics.rows == statistics.acked == outcome.rows
    assert statistics.batches >= 1
    assert statistics.bytes > outcome.rows * 10
    assert statistics.retries == 0
    assert 0 < statistics.latency_avg_ms <= statistics.latency_max_ms <= outcome.seconds * 1000 + 1000
    assert tasks_on_loop() == []


def test_rows_that_name_their_topics_stay_in_order_within_each(cluster: EmbeddedClusterThread, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(20)]
    for name in names:
        cluster.create_topic(name, 1)
    columns = SinkColumns(None, "", "")
    options = SinkOptions.parse({"kafka.bootstrap.servers": cluster.bootstrap_servers})

    def rows(first: int) -> pyarrow.RecordBatch:
        topics = pyarrow.array([names[number * 7 % 20] for number in range(first, first + ROWS)])
        values = pyarrow.array([b"%d" % number for number in range(first, first + ROWS)])
        return pyarrow.record_batch([topics, values], names=["topic", "value"])

    assert write_partition(iter([rows(0), rows(ROWS)]), columns, options).rows == 2 * ROWS
    for name in names:
        found = [int(record.value or b"") for record in cluster.records(name)]
        assert found == [number for number in range(2 * ROWS) if names[number * 7 % 20] == name]


def test_an_empty_partition_is_soon_done(cluster: EmbeddedClusterThread, topic: str) -> None:
    assert write(cluster, topic, iter([])).rows == 0


def test_the_next_task_has_the_same_producer(cluster: EmbeddedClusterThread, topic: str) -> None:
    config = {"bootstrap.servers": cluster.bootstrap_servers}
    executor = Executor.current()
    producer = run(executor.producer(config))
    before = run(_metrics(producer))
    for number in range(3):
        assert write(cluster, topic, iter([batch(number * ROWS)])).rows == ROWS
    after = run(_metrics(producer))
    assert after["record-send-total"] - before["record-send-total"] == 3 * ROWS


async def _metrics(producer: Producer) -> MetricsSnapshot:
    return producer.metrics()


def test_retries_are_in_the_statistics(cluster: EmbeddedClusterThread, topic: str) -> None:
    cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", times=1)
    outcome = write(cluster, topic, iter([batch(0)]))
    assert outcome.statistics.retries > 0
    assert len(cluster.records(topic)) == ROWS


@pytest.mark.parametrize("size", [10, 4000])
def test_rows_that_wait_are_bounded_while_brokers_stall(cluster: EmbeddedClusterThread, topic: str, size: int) -> None:
    cluster.delay("Produce", 60_000, times=None)
    buffer_memory = 256 * 1024
    pulled: list[int] = []
    with pytest.raises(SparkTaskError):
        write(
            cluster,
            topic,
            endless(pulled, size),
            kafka__buffer__memory=buffer_memory,
            kafka__delivery__timeout__ms=600,
            kafka__request__timeout__ms=500,
            kafka__linger__ms=0,
        )
    in_buffer = buffer_memory // (ROWS * size)
    # One is being sent and one was just made, beside those that wait.
    assert len(pulled) <= in_buffer + BATCHES_AHEAD + 2


def test_filled_batches_that_wait_are_bounded_while_brokers_stall(cluster: EmbeddedClusterThread, topic: str) -> None:
    cluster.delay("Produce", 60_000, times=None)
    pulled: list[int] = []
    with pytest.raises(SparkTaskError):
        write(
            cluster,
            topic,
            endless(pulled),
            kafka__batch__size=1000,
            kafka__delivery__timeout__ms=600,
            kafka__request__timeout__ms=500,
            kafka__linger__ms=0,
        )
    # A row takes 18 bytes at least, its key of one byte included.
    in_batches = (WAITING_TO_BE_SENT + MAX_IN_FLIGHT) * (1000 // 18) // ROWS
    assert len(pulled) <= in_batches + 1 + BATCHES_AHEAD + 2


def _until_stored(cluster: EmbeddedClusterThread, topic: str) -> None:
    while not cluster.records(topic):
        time.sleep(0.002)


def test_the_first_failed_delivery_ends_the_task_and_says_all(cluster: EmbeddedClusterThread, topic: str) -> None:
    pulled: list[int] = []

    def batches() -> Iterator[pyarrow.RecordBatch]:
        for number, each in enumerate(endless(pulled)):
            if number == 20:
                # Some are to be acknowledged before.
                _until_stored(cluster, topic)
                cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
            yield each
            time.sleep(0.002)

    with pytest.raises(SparkTaskError) as raised:
        write(cluster, topic, batches(), kafka__linger__ms=0)
    error = raised.value
    assert error.topic_partition == TopicPartition(topic, 0)
    assert error.rows >= 20 * ROWS > error.acked - ROWS * 20
    assert 0 < error.acked < error.rows
    assert error.acked == len(cluster.records(topic))
    text = str(error)
    assert text.startswith(f"Rows for {topic}-0 were not delivered: ")
    assert "not allowed" in text.lower() or "authoriz" in text.lower()
    assert f"Of {error.rows} rows sent in this attempt {error.acked} are known to be acknowledged" in text
    assert len(pulled) < 200
    assert tasks_on_loop() == []


def test_a_failure_in_the_closing_flush_does_not_wait_for_the_deadline(
    cluster: EmbeddedClusterThread, topic: str
) -> None:
    cluster.fail("Produce", "INVALID_RECORD", times=None)
    began = time.monotonic()
    with pytest.raises(SparkTaskError, match="were not delivered"):
        write(cluster, topic, iter([batch(0)]), flush_timeout_ms=60_000)
    assert time.monotonic() - began < 50


def test_a_failure_is_seen_behind_rows_that_are_tried_again_and_again(
    cluster: EmbeddedClusterThread, topic: str
) -> None:
    cluster.create_topic(f"{topic}-2", 2)
    cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", topic=f"{topic}-2", partition=0, times=None)
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=f"{topic}-2", partition=1, times=None)
    began = time.monotonic()
    with pytest.raises(SparkTaskError) as raised:
        write(cluster, f"{topic}-2", iter([batch(0)]))
    assert time.monotonic() - began < 50
    assert raised.value.topic_partition == TopicPartition(f"{topic}-2", 1)


def test_a_failure_is_seen_while_a_full_buffer_waits_for_rows_that_are_tried_again_and_again(
    cluster: EmbeddedClusterThread, topic: str
) -> None:
    """It was found when there was room: after delivery.timeout.ms, and the partition that was named was another."""
    cluster.create_topic(f"{topic}-many", 16)
    for partition in range(15):
        cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", topic=f"{topic}-many", partition=partition, times=None)
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=f"{topic}-many", partition=15, times=None)
    # So that the buffer is full before it is refused.
    cluster.delay("Produce", 300, times=None)
    began = time.monotonic()
    with pytest.raises(SparkTaskError) as raised:
        write(cluster, f"{topic}-many", endless([], 100), kafka__buffer__memory=256 * 1024)
    assert time.monotonic() - began < 50
    assert raised.value.topic_partition == TopicPartition(f"{topic}-many", 15)
    assert tasks_on_loop() == []


def test_a_task_does_not_wait_for_the_rows_of_another(cluster: EmbeddedClusterThread, topic: str) -> None:
    cluster.create_topic(f"{topic}-stuck", 1)
    cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", topic=f"{topic}-stuck", times=None)
    go_on = threading.Event()

    def stuck() -> Iterator[pyarrow.RecordBatch]:
        yield batch(0)
        go_on.wait(100)

    def other() -> None:
        with pytest.raises(SparkTaskError):
            write(cluster, f"{topic}-stuck", stuck(), flush_timeout_ms=100)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        began = time.monotonic()
        assert write(cluster, topic, iter([batch(0)]), flush_timeout_ms=60_000).rows == ROWS
        assert time.monotonic() - began < 50
    finally:
        go_on.set()
        thread.join()


def test_the_closing_flush_has_a_deadline(cluster: EmbeddedClusterThread, topic: str) -> None:
    cluster.delay("Produce", 60_000, times=None)

    def batches() -> Iterator[pyarrow.RecordBatch]:
        yield batch(0)
        # From here on only the acknowledgement is missing.
        _until_stored(cluster, topic)

    began = time.monotonic()
    with pytest.raises(SparkTaskError) as raised:
        write(cluster, topic, batches(), flush_timeout_ms=300)
    assert time.monotonic() - began < 50
    assert str(raised.value) == (
        "Not all rows were acknowledged within 300 ms (flush_timeout_ms) after the last one had come; those for "
        f"{topic}-0 still wait. Of 500 rows sent in this attempt 0 are known to be acknowledged; of the other 500 some "
        "may be in the log all the same."
    )
    assert tasks_on_loop() == []


def test_a_flush_that_found_no_broker_says_so(topic: str, closed_port: int) -> None:
    """A second attempt begins with a producer that has never seen the cluster, and is what Spark shows."""
    options = SinkOptions.parse(
        {"kafka.bootstrap.servers": f"127.0.0.1:{closed_port}", "topic": topic, "flush_timeout_ms": "500"}
    )

    def batches() -> Iterator[pyarrow.RecordBatch]:
        yield batch(0)
        producer = run(Executor.current().producer(dict(options.config)))
        while producer.connection_error is None:
            time.sleep(0.002)

    with pytest.raises(SparkTaskError) as raised:
        write_partition(batches(), SinkColumns(topic, "", ""), options)
    assert f"those for {topic} still wait. The last error was: " in str(raised.value)
    assert f"127.0.0.1:{closed_port}" in str(raised.value)
    assert tasks_on_loop() == []


def test_what_the_producer_refuses_names_the_topic(cluster: EmbeddedClusterThread, topic: str) -> None:
    columns = SinkColumns(None, "", "")
    rows = pyarrow.record_batch([pyarrow.array(["no topic!"]), pyarrow.array([b"v"])], names=["topic", "value"])
    options = SinkOptions.parse({"kafka.bootstrap.servers": cluster.bootstrap_servers})
    with pytest.raises(SparkTaskError, match="no topic!"):
        write_partition(iter([rows]), columns, options)


def test_rows_that_cannot_be_read_end_the_task(cluster: EmbeddedClusterThread, topic: str) -> None:
    columns = SinkColumns(None, "", "")
    names = ["topic", "value"]
    good = pyarrow.record_batch([pyarrow.array([topic]), pyarrow.array([b"v"])], names=names)
    bad = pyarrow.record_batch([pyarrow.array([None], "string"), pyarrow.array([b"v"])], names=names)
    options = SinkOptions.parse({"kafka.bootstrap.servers": cluster.bootstrap_servers})

    def batches() -> Iterator[pyarrow.RecordBatch]:
        yield good
        _until_stored(cluster, topic)
        yield bad

    with pytest.raises(ValueError, match="null topic") as raised:
        write_partition(batches(), columns, options)
    assert raised.value.__notes__ == ["1 row of this task was sent before, and may be in the log."]
    assert tasks_on_loop() == []


def test_an_upstream_failure_leaves_nothing_on_the_loop(cluster: EmbeddedClusterThread, topic: str) -> None:
    def batches() -> Iterator[pyarrow.RecordBatch]:
        yield batch(0)
        raise EOFError("Spark has closed the socket")

    with pytest.raises(EOFError):
        write(cluster, topic, batches())
    assert tasks_on_loop() == []
    # The producer is as good as before.
    assert write(cluster, topic, iter([batch(0)])).rows == ROWS


def test_an_interrupt_while_it_waits_for_room_leaves_nothing(cluster: EmbeddedClusterThread, topic: str) -> None:
    cluster.delay("Produce", 500, times=None)
    pulled: list[int] = []
    thread = interrupt_wait_in(Call.result, lambda: len(pulled) > BATCHES_AHEAD)
    with pytest.raises(KeyboardInterrupt):
        write(cluster, topic, endless(pulled, 1000), kafka__buffer__memory=65536)
    thread.join()
    assert tasks_on_loop() == []


def test_an_interrupt_in_the_closing_flush_leaves_nothing(cluster: EmbeddedClusterThread, topic: str) -> None:
    cluster.delay("Produce", 60_000, times=None)
    ended = threading.Event()

    def batches() -> Iterator[pyarrow.RecordBatch]:
        yield batch(0)
        ended.set()

    thread = interrupt_wait_in(Call.result, ended.is_set)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        write(cluster, topic, batches())
    assert time.monotonic() - began < 50
    thread.join()
    assert tasks_on_loop() == []


def test_the_error_goes_through_pickle() -> None:
    error = SparkTaskError("It failed.", 5, 3, TopicPartition("t", 1))
    twin = pickle.loads(pickle.dumps(error))
    assert str(twin) == str(error)
    assert (twin.rows, twin.acked, twin.topic_partition) == (5, 3, TopicPartition("t", 1))
