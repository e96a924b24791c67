"""Speculation on a standalone cluster of two workers: Spark runs a slow task again beside its first attempt."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.interop.spark.crashes import recover
from tests.interop.spark.driver import ROOT, SparkDriver, eventually
from tests.interop.spark.gates import SIZE, SlowRow
from tests.interop.spark.sink_program import options_of
from tests.interop.spark.standalone import StandaloneCluster
from tests.kafka.cluster import KafkaCluster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

# Two tasks, of one file each, in each of two batches.
BATCHES, FILES = 2, 2
ROWS = 1500
# Of the first batch's second task, near its end.
SLOW = 2 * ROWS - 20

CONFIGURATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    # Otherwise a task that reads as fast as the others is no candidate.
    "spark.speculation.efficiency.enabled": "false",
    "spark.executor.cores": "1",
    "spark.executor.memory": "768m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


@pytest.fixture(scope="module")
def two_workers() -> Iterator[StandaloneCluster]:
    with StandaloneCluster(2) as cluster:
        yield cluster


def arrive(folder: Path) -> None:
    folder.mkdir()
    for number in range(BATCHES * FILES):
        lines = [str(each).ljust(SIZE) for each in range(number * ROWS, (number + 1) * ROWS)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
        os.utime(folder / f"{number}.txt", (1_700_000_000 + number,) * 2)


def write_stream(spark: SparkSession, folder: str, options: dict[str, str], slow: SlowRow) -> None:
    query = (
        spark.readStream.option("maxFilesPerTrigger", FILES)
        .text(folder + "/in")
        .select(slow.column("value").alias("value"))
        .writeStream.format("aioproducer")
        .options(**options)
        .option("checkpointLocation", folder + "/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def values(cluster: KafkaCluster, topic: str, committed: bool) -> Counter[int]:
    found = cluster.read_back(topic, committed=committed)
    return Counter(int(record.value or b"-1") for of in found.values() for record in of)


@pytest.mark.parametrize("both_end", [False, True], ids=["the-first-is-killed", "both-end"])
def test_a_task_that_runs_twice_by_speculation_writes_each_row_once(
    two_workers, one_node, topic, sink, tmp_path, both_end
):
    """Either attempt may win. If both end, Spark finds the winner after their rows, and tells the loser nothing."""
    one_node.create_topic(topic, 3)
    options = options_of(one_node.bootstrap_servers, topic, sink, **{"kafka.linger.ms": "0"})
    arrive(tmp_path / "in")
    slow = SlowRow(tmp_path, SLOW, first_only=not both_end)
    with SparkDriver(two_workers.master, configuration=CONFIGURATION) as driver:
        running = driver.submit(write_stream, str(tmp_path), options, slow)
        eventually(slow.waiting(0).exists, "the first attempt is at its slow row")
        eventually(slow.waiting(1).exists, "a second attempt is there too")
        # It is no retry: the first one had not ended.
        assert slow.waiting(1).read_text().split()[1:] == slow.waiting(0).read_text().split()
        if both_end:
            # Both wait, and go on together.
            assert not running.done()
            slow.go.touch()
        running.result(240)
    rows = Counter(range(BATCHES * FILES * ROWS))
    assert values(one_node, topic, committed=True) == rows
    # Both attempts have written rows.
    twice = values(one_node, topic, committed=False) - rows
    assert twice.total() > ROWS // 4
    assert set(twice) <= set(range(ROWS, 2 * ROWS))
    recover(one_node, topic, sink)
