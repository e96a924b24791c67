"""The loop wrapper in Spark's own Python workers: ``foreachPartition``, ``mapPartitions`` and ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kafka.in_process import InProcessCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.interop

COUNT = 2000


def sent(embedded: InProcessCluster, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in embedded.embedded.records(topic))


def expected(count: int = COUNT) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


def test_foreach_partition(spark: SparkSession, embedded: InProcessCluster, topic: str) -> None:
    embedded.create_topic(topic, 2)
    config = {"bootstrap.servers": embedded.bootstrap_servers}

    def send(rows: Iterable[Any]) -> None:
        from aioproducer.spark import executor_producer

        with executor_producer(config) as producer:
            for row in rows:
                producer.send(topic, b"%d" % row.id, b"%d" % (row.id % 7))

    spark.range(COUNT).repartition(4).foreachPartition(send)
    assert sent(embedded, topic) == expected()


def test_tasks_of_a_worker_share_the_loop_and_the_connections(
    spark: SparkSession, embedded: InProcessCluster, topic: str
) -> None:
    embedded.create_topic(topic, 2)
    config = {"bootstrap.servers": embedded.bootstrap_servers, "client.id": topic}

    def send(rows: Iterable[Any]) -> Iterator[tuple[int, float, int, int]]:
        import os

        from aioproducer.spark import executor_producer, run
        from aioproducer.spark.executor import Executor

        async def connections() -> float:
            return float((await Executor.current().producer(config)).metrics()["connection-creation-total"])

        with executor_producer(config) as producer:
            producer.send_many(topic, (b"%d" % row.id for row in rows))
            producer.flush()
            counts = producer.counts
        yield os.getpid(), run(connections()), counts.rows, counts.acked

    told = spark.range(COUNT).repartition(8).rdd.mapPartitions(send).collect()
    assert sent(embedded, topic) == expected()
    assert sum(rows for _, _, rows, _ in told) == sum(acked for _, _, _, acked in told) == COUNT
    assert len({process for process, _, _, _ in told}) < len(told) == 8
    # One to ask for the cluster, one to its only broker.
    assert {connections for _, connections, _, _ in told} <= {1.0, 2.0}


def test_foreach_batch(spark: SparkSession, embedded: InProcessCluster, topic: str, tmp_path: Path) -> None:
    embedded.create_topic(topic, 2)
    config = {"bootstrap.servers": embedded.bootstrap_servers}
    spark.range(COUNT).selectExpr("CAST(id AS STRING) AS value").repartition(2).write.text(str(tmp_path / "in"))

    def send(frame: DataFrame, batch_id: int) -> None:
        from aioproducer.spark import close_executor, executor_producer

        with executor_producer(config) as producer:
            producer.send_many(topic, (row.value.encode() for row in frame.toLocalIterator()))
        close_executor()

    lines = spark.readStream.schema("value string").text(str(tmp_path / "in"))
    query = (
        lines.writeStream.foreachBatch(send)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sent(embedded, topic) == expected()


def test_what_failed_is_what_spark_tells(spark: SparkSession, embedded: InProcessCluster, topic: str) -> None:
    embedded.create_topic(topic, 1)
    config = {"bootstrap.servers": embedded.bootstrap_servers}

    def send(rows: Iterable[Any]) -> None:
        from aioproducer.spark import executor_producer

        with executor_producer(config) as producer:
            for row in rows:
                producer.send(topic, bytes(2_000_000) if row.id == 500 else b"v")

    with pytest.raises(Exception, match=rf"RowsFailedError: Rows for {topic} were not .* takes 2000088"):
        spark.range(1000).repartition(1).foreachPartition(send)
