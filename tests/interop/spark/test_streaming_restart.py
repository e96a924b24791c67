"""Queries that end in the middle of a micro-batch: the next start writes that one again, and nothing else twice."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.interop.spark.driver import DriverGoneError, SparkDriver
from tests.interop.spark.gates import HALF, SIZE, Gate, stored, wait_for_rows
from tests.kafka.cluster import KafkaCluster
from tests.spark.spark_log import wait_for_line

# Each is a micro-batch; in the one that is larger the gate stands.
SMALL, LARGE = 500, 3 * HALF
FILES = (SMALL, LARGE, SMALL)


def arrive(folder: Path) -> None:
    """Files in their order, a number in each line."""
    folder.mkdir()
    first = 0
    for place, count in enumerate(FILES):
        lines = [str(number).ljust(SIZE) for number in range(first, first + count)]
        (folder / f"{place}.txt").write_text("\n".join(lines))
        os.utime(folder / f"{place}.txt", (1_700_000_000 + place,) * 2)
        first += count


def start(spark: SparkSession, bootstrap_servers: str, topic: str, folder: str, gate: Gate) -> StreamingQuery:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(folder + "/in")
    return (
        lines.select(gate.column("value").alias("value"))
        .writeStream.format("aioproducer")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.linger.ms", 0)
        .option("topic", topic)
        .option("checkpointLocation", folder + "/checkpoint")
        .queryName("restarted")
        .trigger(availableNow=True)
        .start()
    )


def run(spark: SparkSession, bootstrap_servers: str, topic: str, folder: str, gate: Gate) -> str:
    """Until all that is there has been written, or the query was stopped; its id."""
    query = start(spark, bootstrap_servers, topic, folder, gate)
    query.awaitTermination()
    return query.id


def stop(spark: SparkSession) -> None:
    (query,) = spark.streams.active
    query.stop()


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.soak), "SIGKILL"])
def test_restart_from_the_checkpoint(
    local_spark: SparkDriver, one_node: KafkaCluster, topic: str, gate: Gate, tmp_path: Path, how: str
) -> None:
    one_node.create_topic(topic, 3)
    folder = tmp_path / "stream"
    folder.mkdir()
    arrive(folder / "in")
    arguments = (one_node.bootstrap_servers, topic, str(folder), gate)
    with SparkDriver("local[2]") as driver:
        ended = driver.submit(run, *arguments)
        wait_for_rows(one_node, topic, SMALL + HALF // 2)
        query_id = wait_for_line(driver.log, r"query (\S+), batch 0, written; ")[1]
        family = driver.family()
        if how == "stop":
            driver.call(stop)
            assert ended.result(240) == query_id
        else:
            driver.kill()
            with pytest.raises(DriverGoneError):
                ended.result(240)
            # No worker goes on by itself.
            assert psutil.wait_procs(family, timeout=120)[1] == []
    # Workers of a query that was stopped may send what they have until they end.
    assert psutil.wait_procs(family, timeout=120)[1] == []
    before = stored(one_node, topic)
    assert SMALL + HALF // 2 <= before.total() <= SMALL + LARGE
    logged = len(local_spark.log.read_text())
    gate.open()
    assert local_spark.submit(run, *arguments).result(240) == query_id

    found = stored(one_node, topic)
    assert set(found) == set(range(sum(FILES)))
    twice = Counter({number: times - 1 for number, times in found.items() if times > 1})
    # What had been there of the micro-batch that did not end, is there once more.
    assert twice == Counter({number: 1 for number in before if number >= SMALL})
    wait_for_line(local_spark.log, rf"query {query_id}, batch 2, written; {SMALL} rows", logged)
    log = local_spark.log.read_text()[logged:]
    assert re.findall(rf"query {query_id}, batch (\d+), written; (\d+) rows", log) == [
        ("1", str(LARGE)),
        ("2", str(SMALL)),
    ]
