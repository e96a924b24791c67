"""The batch sink as Spark runs it, and what a user sees of what is wrong."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from aioproducer.wire.murmur2 import murmur2
from tests.kafka.in_process import InProcessCluster
from tests.spark.spark_log import wait_for_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

pytestmark = pytest.mark.interop


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(1000).selectExpr("cast(id as string) as key", "concat('value ', id) as value")


def sink(df: DataFrame, cluster: InProcessCluster, topic: str | None, **options: object) -> DataFrameWriter:
    writer = df.write.format("aioproducer").mode("append")
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, **options}
    for name, value in given.items():
        if value is not None:
            writer = writer.option(name.replace("__", "."), str(value))
    return writer


def refusal(writer: DataFrameWriter) -> str:
    """What the user sees when the write is refused before any task: the last line of Spark's text."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as raised:
        writer.save()
    lines = [line for line in str(raised.value).splitlines() if line.strip() and "SQLSTATE" not in line]
    assert lines[0].startswith("[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer")
    # A short traceback, of nothing but where it was raised, and one line that says it all.
    assert len(lines) <= 6
    assert "During handling" not in str(raised.value)
    return lines[-1]


def test_rows_arrive(
    spark: SparkSession, rows: DataFrame, embedded: InProcessCluster, topic: str, spark_log: Path
) -> None:
    embedded.create_topic(topic, 3)
    written = len(spark_log.read_text(errors="replace"))
    sink(rows.repartition(2), embedded, topic).save()
    records = embedded.embedded.records(topic)
    assert sorted((record.key, record.value) for record in records) == sorted(
        (b"%d" % number, b"value %d" % number) for number in range(1000)
    )
    # A line of each task on the executor, and one of the job on the driver.
    for partition in (0, 1):
        found = wait_for_line(
            spark_log,
            rf"INFO aioproducer\.spark: partition {partition}, attempt 0 \(task \d+\): (\d+) rows, (\d+) bytes in "
            r"(\d+) batches, 0 retries, latency [\d.]+ ms, at most [\d.]+ ms, [\d.]+ s\n",
            written,
        )
        assert int(found[1]) == 500
        assert int(found[2]) > 500 * 10
        assert int(found[3]) >= 1
    wait_for_line(
        spark_log,
        r"INFO aioproducer\.spark: written; 1000 rows of 2 finished tasks are in the topic, \d+ bytes in \d+ batches, ",
        written,
    )


def test_all_columns_as_sparks_own_sink_reads_them(spark: SparkSession, embedded: InProcessCluster, topic: str) -> None:
    embedded.create_topic(topic, 4)
    df = spark.sql(
        f"select cast('k' as binary) as key, cast(null as binary) as value, '{topic}' as topic, 3 as partition, "
        "array(named_struct('key', 'h', 'value', cast('1' as binary))) as headers, "
        "timestamp_millis(1700000000123) as timestamp"
    )
    sink(df, embedded, None).save()
    (record,) = embedded.embedded.records(topic)
    assert (record.partition, record.key, record.value, record.timestamp_ms) == (3, b"k", None, 1700000000123)
    assert [tuple(header) for header in record.headers] == [("h", b"1")]


def test_the_keys_go_where_every_client_looks_for_them(rows: DataFrame, embedded: InProcessCluster, topic: str) -> None:
    embedded.create_topic(topic, 5)
    sink(rows, embedded, topic).save()
    for record in embedded.embedded.records(topic):
        assert record.key is not None
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 5


def test_registered_by_hand_it_goes_by_reference(
    spark: SparkSession, rows: DataFrame, embedded: InProcessCluster, topic: str
) -> None:
    from pyspark.serializers import CloudPickleSerializer

    from aioproducer.spark import register
    from aioproducer.spark.source import ProducerDataSource

    embedded.create_topic(topic, 1)
    register(spark)
    sink(rows, embedded, topic).save()
    assert len(embedded.embedded.records(topic)) == 1000
    pickled = CloudPickleSerializer().dumps(ProducerDataSource)
    assert len(pickled) < 200
    assert b"aioproducer.spark.source" in pickled


def test_a_thread_that_did_not_make_the_session(
    spark: SparkSession, rows: DataFrame, embedded: InProcessCluster, topic: str
) -> None:
    """Spark looks for sources in Python in the JVM thread's active session: none was found."""
    from aioproducer.spark import register

    def write() -> None:
        register(spark)
        sink(rows, embedded, topic).save()

    embedded.create_topic(topic, 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result(100)
    assert len(embedded.embedded.records(topic)) == 1000


# What is refused


def test_a_mode_that_would_overwrite(rows: DataFrame, embedded: InProcessCluster, topic: str) -> None:
    text = refusal(sink(rows, embedded, topic).mode("overwrite"))
    assert text.startswith("aioproducer.errors.ConfigurationError: The sink only appends")
    assert ".mode('append')" in text


def test_an_option_that_is_misspelt(rows: DataFrame, embedded: InProcessCluster, topic: str) -> None:
    text = refusal(sink(rows, embedded, topic, kafka__lingerms=5))
    assert "kafka.lingerms" in text
    assert "did you mean 'kafka.linger.ms'?" in text


def test_a_column_of_another_type(spark: SparkSession, embedded: InProcessCluster, topic: str) -> None:
    text = refusal(sink(spark.range(1).withColumnRenamed("id", "value"), embedded, topic))
    assert "value" in text
    assert "bigint" in text
    assert "value_format" in text


def test_a_topic_that_is_not_there(rows: DataFrame, embedded: InProcessCluster, topic: str) -> None:
    began = time.monotonic()
    text = refusal(sink(rows, embedded, topic))
    assert time.monotonic() - began < 60
    assert text == (
        f"aioproducer.admin.NoSuchTopicError: There is no topic {topic!r} in this cluster, and the brokers do not "
        "create topics on demand (auto.create.topics.enable), so that no task was started: check the spelling of the "
        "option `topic`, or create the topic."
    )
    assert topic not in embedded.embedded.topics()


def test_a_topic_that_brokers_create_on_demand_is_left_to_the_first_row(rows: DataFrame, topic: str) -> None:
    with InProcessCluster(1, properties={"auto.create.topics.enable": "true"}) as cluster:
        sink(rows, cluster, topic).save()
        assert len(cluster.embedded.records(topic)) == 1000


def test_a_topic_name_that_cannot_be(rows: DataFrame, embedded: InProcessCluster) -> None:
    assert "InvalidTopic" in refusal(sink(rows, embedded, "no topic!"))


def test_a_cluster_that_is_not_there(rows: DataFrame, embedded: InProcessCluster) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        began = time.monotonic()
        text = refusal(sink(rows, embedded, "t", kafka__bootstrap__servers=f"127.0.0.1:{port}", check_timeout_ms=2000))
        assert time.monotonic() - began < 60
    assert f"The cluster at 127.0.0.1:{port} did not answer within 2000 ms (check_timeout_ms)" in text
    assert "Nothing listens" in text
    assert "bootstrap" in text


def test_a_cluster_that_does_not_answer(rows: DataFrame, embedded: InProcessCluster) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        text = refusal(sink(rows, embedded, "t", kafka__bootstrap__servers=f"127.0.0.1:{port}", check_timeout_ms=1000))
    assert "did not answer within 1000 ms (check_timeout_ms)" in text


def test_the_check_leaves_no_connection_in_sparks_process(
    rows: DataFrame, embedded: InProcessCluster, topic: str
) -> None:
    refusal(sink(rows, embedded, topic))
    port = int(embedded.bootstrap_servers.rpartition(":")[2])
    planners = [each for each in psutil.Process().children(recursive=True) if "write_into_data_source" in _line(each)]
    assert planners
    for process in planners:
        assert [each for each in process.net_connections() if each.raddr and each.raddr.port == port] == []


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_it_does_not_read(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="only writes: read topics with Spark's own format 'kafka'"):
        spark.read.format("aioproducer").load()


# What fails later


def test_a_failed_delivery_fails_the_job_and_tells_what_is_in_the_topic(
    rows: DataFrame, embedded: InProcessCluster, topic: str, spark_log: Path
) -> None:
    embedded.create_topic(topic, 1)
    written = len(spark_log.read_text(errors="replace"))
    embedded.embedded.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=topic, times=None)
    try:
        with pytest.raises(Exception, match=f"Rows for {topic}-0 were not delivered: ") as raised:
            sink(rows, embedded, topic).save()
    finally:
        embedded.embedded.clear_faults()
    assert "0 are known to be acknowledged" in str(raised.value)
    wait_for_line(spark_log, r"INFO aioproducer\.spark: aborted; 0 rows of 0 finished tasks are in the topic", written)


def workers() -> set[int]:
    """The processes that run tasks, and the one that they are forked from."""
    return {each.pid for each in psutil.Process().children(recursive=True) if "daemon pyspark.worker" in _line(each)}


@contextmanager
def when_busy(
    spark: SparkSession, cluster: InProcessCluster, topic: str, action: Callable[[set[int]], None]
) -> Iterator[None]:
    """While the broker answers no write of the block's job, let ``action`` have its workers; none may be left then.

    The job has two tasks, with keys below 500 and from there on. Among the workers are idle ones of other jobs that are
    still connected: as many as there are tasks have to end.
    """
    cluster.embedded.delay("Produce", 120_000, times=None)
    busy: set[int] = set()

    def both_wait() -> bool:
        # What is not answered is stored all the same.
        keys = {int(record.key or b"") for record in cluster.embedded.records(topic)}
        return any(key < 500 for key in keys) and any(key >= 500 for key in keys)

    def act() -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not both_wait():
            time.sleep(0.05)
        busy.update(busy_workers(cluster))
        action(busy)

    spark.sparkContext.setJobGroup(topic, "to be disturbed", interruptOnCancel=True)
    thread = threading.Thread(target=act)
    thread.start()
    began = time.monotonic()
    try:
        yield
        thread.join()
        assert len(busy) >= 2
        assert time.monotonic() - began < 110
        deadline = time.monotonic() + 60
        while len(busy - workers()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(busy - workers()) >= 2
    finally:
        cluster.embedded.clear_faults()
        spark.sparkContext.setJobGroup(None, None)


def test_a_cancelled_job_leaves_nothing_that_hangs(
    spark: SparkSession, rows: DataFrame, embedded: InProcessCluster, topic: str
) -> None:
    """Spark gives its tasks two seconds to end, and kills their processes."""
    embedded.create_topic(topic, 1)
    with (
        when_busy(spark, embedded, topic, lambda _: spark.sparkContext.cancelJobGroup(topic)),
        pytest.raises(Exception, match="SPARK_JOB_CANCELLED"),
    ):
        sink(rows, embedded, topic).save()
    sink(rows, embedded, topic).save()
    assert len(embedded.embedded.records(topic)) >= 1000


def test_a_killed_worker_fails_its_task_and_nothing_hangs(
    spark: SparkSession, rows: DataFrame, embedded: InProcessCluster, topic: str
) -> None:
    """Spark in one JVM, as here, tries no task again."""
    embedded.create_topic(topic, 1)

    def kill(pids: set[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    with (
        when_busy(spark, embedded, topic, kill),
        pytest.raises(Exception, match="Python worker exited unexpectedly"),
    ):
        sink(rows, embedded, topic).save()
    sink(rows, embedded, topic).save()
    assert len(embedded.embedded.records(topic)) >= 1000


def busy_workers(cluster: InProcessCluster) -> set[int]:
    """Those that are connected to the cluster."""
    port = int(cluster.bootstrap_servers.rpartition(":")[2])
    found = set()
    for pid in workers():
        try:
            connections = psutil.Process(pid).net_connections()
        except psutil.NoSuchProcess:
            continue
        if any(each.raddr and each.raddr.port == port for each in connections):
            found.add(pid)
    return found
