"""The streaming sink as Spark runs it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kafka.in_process import InProcessCluster
from tests.spark.spark_log import wait_for_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

pytestmark = pytest.mark.interop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def put(folder: Path, name: str, numbers: Iterable[int]) -> None:
    """Let a file arrive."""
    rows = [json.dumps({"key": str(number), "value": f"value {number}"}) for number in numbers]
    hidden = folder / f".{name}"
    hidden.write_text("\n".join(rows))
    hidden.rename(folder / "in" / f"{name}.json")


def arriving(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder / "in"))


def sink(df: DataFrame, cluster: InProcessCluster, topic: str, folder: Path) -> DataStreamWriter:
    return (
        df.writeStream.format("aioproducer")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(100)
    assert query.exception() is None


def keys(cluster: InProcessCluster, topic: str) -> Counter[int]:
    return Counter(int(record.key) for record in cluster.embedded.records(topic) if record.key is not None)


def test_micro_batches_arrive_and_a_restart_goes_on_at_the_checkpoint(
    spark: SparkSession, embedded: InProcessCluster, topic: str, folder: Path, spark_log: Path
) -> None:
    embedded.create_topic(topic, 2)
    written = len(spark_log.read_text(errors="replace"))
    put(folder, "a", range(10))
    put(folder, "b", range(10, 20))
    query = sink(arriving(spark, folder), embedded, topic, folder).start()
    finish(query)
    assert keys(embedded, topic) == Counter(range(20))

    put(folder, "c", range(20, 30))
    again = sink(arriving(spark, folder), embedded, topic, folder).start()
    finish(again)
    assert keys(embedded, topic) == Counter(range(30))
    assert again.id == query.id

    for batch in range(3):
        where = rf"INFO aioproducer\.spark: query {query.id}, batch {batch}, "
        figures = r"\d+ bytes in \d+ batches, 0 retries, latency [\d.]+ ms, at most [\d.]+ ms"
        wait_for_line(
            spark_log, where + rf"partition 0, attempt 0 \(task \d+\): 10 rows, {figures}, [\d.]+ s\n", written
        )
        wait_for_line(spark_log, where + f"written; 10 rows of 1 finished task are in the topic, {figures}\n", written)
    # What a Python sink can put into the progress.
    progress = again.lastProgress
    assert progress is not None
    assert progress.sink.numOutputRows == 10
    assert not progress.sink.metrics


def test_complete_mode_writes_the_whole_result_each_time_as_sparks_own_sink(
    spark: SparkSession, embedded: InProcessCluster, topic: str, folder: Path
) -> None:
    embedded.create_topic(topic, 1)
    put(folder, "a", range(3))
    put(folder, "b", range(3))
    counts = arriving(spark, folder).groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    finish(sink(counts, embedded, topic, folder).outputMode("complete").start())
    found = Counter((record.key, record.value) for record in embedded.embedded.records(topic))
    assert found == Counter((b"%d" % key, b"%d" % count) for key in range(3) for count in (1, 2))


def test_a_continuous_query_commits_nothing_as_spark_lets_no_task_write(
    spark: SparkSession, embedded: InProcessCluster, topic: str, folder: Path, spark_log: Path
) -> None:
    """All its rows were lost, and its offsets committed."""
    embedded.create_topic(topic, 1)
    logged = len(spark_log.read_text(errors="replace"))
    numbers = spark.readStream.format("rate").option("rowsPerSecond", 100).option("numPartitions", 1).load()
    query = sink(numbers.selectExpr("CAST(value AS STRING) AS value"), embedded, topic, folder).trigger(
        continuous="1 second"
    )
    started = query.start()
    try:
        wait_for_line(spark_log, "Rows were not written: Spark hands those of a continuous query to no sink", logged)
    finally:
        started.stop()
    assert not list((folder / "checkpoint" / "commits").glob("[0-9]*"))
    assert not embedded.embedded.records(topic)


def test_a_topic_that_is_not_there_ends_the_query_at_once(
    spark: SparkSession, embedded: InProcessCluster, topic: str, folder: Path
) -> None:
    put(folder, "a", range(3))
    query = sink(arriving(spark, folder), embedded, topic, folder).start()
    with pytest.raises(Exception, match=f"There is no topic '{topic}' in this cluster"):
        query.awaitTermination(100)


def test_a_failed_micro_batch_is_written_by_the_next_start(
    spark: SparkSession, embedded: InProcessCluster, topic: str, folder: Path, spark_log: Path
) -> None:
    embedded.create_topic(topic, 1)
    put(folder, "a", range(10))
    finish(sink(arriving(spark, folder), embedded, topic, folder).start())
    written = len(spark_log.read_text(errors="replace"))
    put(folder, "b", range(10, 20))
    embedded.embedded.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=topic, times=None)
    try:
        query = sink(arriving(spark, folder), embedded, topic, folder).start()
        with pytest.raises(Exception, match=f"Rows for {topic}-0 were not delivered"):
            query.awaitTermination(100)
    finally:
        embedded.embedded.clear_faults()
    wait_for_line(spark_log, r"INFO aioproducer\.spark: batch 1, aborted; 0 rows of 0 finished tasks", written)
    finish(sink(arriving(spark, folder), embedded, topic, folder).start())
    assert keys(embedded, topic) == Counter(range(20))
