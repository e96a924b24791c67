"""Exactly-once queries whose driver and executors are killed at a named point, and started again with more cores."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from aioproducer.spark.halting import VARIABLE
from tests.interop.spark.crashes import Cluster, abort_tasks, recover
from tests.interop.spark.driver import DriverGoneError, JobFailedError, SparkDriver, eventually
from tests.interop.spark.gates import ROWS as GATED_ROWS
from tests.interop.spark.gates import SIZE, Gate, SlowRow, write
from tests.spark.spark_log import wait_for_line

BATCHES = 3
ROWS = 60
FILES = 4
# Of a file of which many rows are on their way before its last one is read.
LARGE = 1000


@pytest.fixture(scope="module")
def three_cores() -> Iterator[SparkDriver]:
    """The drivers that are killed have two."""
    with SparkDriver("local[3]") as driver:
        yield driver


@pytest.fixture
def options(one_broker: Cluster, topic: str) -> dict[str, str]:
    one_broker.create_topic(topic, 3)
    sink = topic[-8:]
    return {
        "kafka.bootstrap.servers": one_broker.bootstrap_servers,
        "kafka.linger.ms": "0",
        "topic": topic,
        "delivery": "exactly-once",
        "sink.id": sink,
        "decision.topic": f"{sink}-decisions",
    }


def arrive(folder: Path) -> None:
    """Batches of files: which partitions they become depends on the number of cores."""
    folder.mkdir()
    for batch in range(BATCHES):
        for number in range(FILES):
            first = (batch * FILES + number) * ROWS
            (folder / f"{batch}-{number}.txt").write_text("\n".join(map(str, range(first, first + ROWS))))


def start_and_wait(spark: SparkSession, folder: str, options: dict[str, str]) -> str:
    query = (
        spark.readStream.option("maxFilesPerTrigger", FILES)
        .text(folder + "/in")
        .writeStream.format("aioproducer")
        .options(**options)
        .option("checkpointLocation", folder + "/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query.id


def write_twice(spark: SparkSession, folder: str, options: dict[str, str]) -> None:
    """A function that fails once, after it has written."""

    def write(df: DataFrame, batch_id: int) -> None:
        from aioproducer.spark import write_batch

        write_batch(df, batch_id, name="a", options=options)
        marker = Path(folder) / "failed"
        if batch_id == 1 and not marker.exists():
            marker.touch()
            raise RuntimeError("once")
        write_batch(df, batch_id, name="b", options=options)

    stream = spark.readStream.option("maxFilesPerTrigger", FILES).text(folder + "/in")
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", folder + "/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()


def write_job(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("aioproducer").options(**options).mode("append").save()


def committed(cluster: Cluster, topic: str) -> Counter[int]:
    found = cluster.read_back(topic, committed=True)
    return Counter(int(record.value or b"-1") for of in found.values() for record in of)


# In soak: commits/N deleted, stop() in the tasks and in the commit, an orphaned commit, and a task that is tried again.


@pytest.mark.soak
def test_a_batch_whose_commit_spark_has_lost_is_skipped(three_cores, one_broker, topic, options, tmp_path):
    folder = tmp_path / "stream"
    folder.mkdir()
    arrive(folder / "in")
    three_cores.call(start_and_wait, str(folder), options)
    for name in ("2", ".2.crc"):
        (folder / "checkpoint" / "commits" / name).unlink()
    before = len(three_cores.log.read_text())
    three_cores.call(start_and_wait, str(folder), options)
    wait_for_line(three_cores.log, r"not written again: the batch is decided", before)
    assert committed(one_broker, topic) == Counter(range(BATCHES * FILES * ROWS))


def stop_at(spark: SparkSession, folder: str, options: dict[str, str], marker: str) -> None:
    """Start the query, and stop it when the marker is there, which goes then."""
    query = (
        spark.readStream.option("maxFilesPerTrigger", FILES)
        .text(folder + "/in")
        .writeStream.format("aioproducer")
        .options(**options)
        .option("checkpointLocation", folder + "/checkpoint")
        .start()
    )
    deadline = time.monotonic() + 100
    while not Path(marker).exists():
        assert time.monotonic() < deadline, "the query does not reach the point"
        time.sleep(0.02)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    time.sleep(1)
    Path(marker).unlink()
    stopping.join(60)


@pytest.mark.soak
@pytest.mark.parametrize("point", ["planned", "deciding", "decided"])
def test_a_query_that_is_stopped_writes_each_row_once(three_cores, one_broker, topic, options, tmp_path, point):
    folder = tmp_path / "stream"
    folder.mkdir()
    arrive(folder / "in")
    marker = tmp_path / "halted"
    with SparkDriver("local[2]", environment={VARIABLE: f"{point}={marker}"}) as driver:
        driver.call(stop_at, str(folder), options, str(marker))
    three_cores.call(start_and_wait, str(folder), options)
    assert committed(one_broker, topic) == Counter(range(BATCHES * FILES * ROWS))


def arrive_large(folder: Path) -> None:
    """A batch of rows that pass on through Spark's processes before the last is there, and a small batch."""
    folder.mkdir()
    for number in range(2 * FILES):
        first = number * LARGE if number < FILES else FILES * LARGE + (number - FILES) * ROWS
        count = LARGE if number < FILES else ROWS
        lines = [str(each).ljust(SIZE) for each in range(first, first + count)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
        os.utime(folder / f"{number}.txt", (1_700_000_000 + number,) * 2)


def start_slow(spark: SparkSession, folder: str, options: dict[str, str], slow: SlowRow) -> None:
    """As ``start_and_wait``, or until ``stop``."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
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


def stop(spark: SparkSession) -> None:
    (query,) = spark.streams.active
    query.stop()


@pytest.mark.soak
def test_a_query_that_is_stopped_in_its_tasks_writes_each_row_once(three_cores, one_broker, topic, options, tmp_path):
    folder = tmp_path / "stream"
    folder.mkdir()
    arrive_large(folder / "in")
    slow = SlowRow(tmp_path, LARGE - 50)
    with SparkDriver("local[4]") as driver:
        ended = driver.submit(start_slow, str(folder), options, slow)
        eventually(slow.waiting(0).exists, "a task is at its slow row")
        eventually(lambda: stored_rows(one_broker, topic) > LARGE // 2, "rows are in open transactions")
        driver.call(stop)
        ended.result(240)
    assert committed(one_broker, topic) == Counter()
    three_cores.call(start_and_wait, str(folder), options)
    assert committed(one_broker, topic) == Counter(range(FILES * (LARGE + ROWS)))
    recover(one_broker, topic, options["sink.id"])


def stored_rows(cluster: Cluster, topic: str) -> int:
    """How many rows there are, those of open and of aborted transactions included."""
    return sum(len(each) for each in cluster.read_back(topic).values())


def left_alone(processes: list[psutil.Process]) -> psutil.Process | None:
    """Return the only process that is left of these, None as long as there are several."""
    running = [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert running, "the commit has ended with its driver"
    return running[0] if len(running) == 1 else None


@pytest.mark.soak
@pytest.mark.parametrize("point", ["deciding", "appended", "decided", "half-ended", "ended"])
def test_an_orphaned_commit_that_goes_on_beside_the_next_driver_loses_and_doubles_nothing(
    three_cores, one_broker, topic, options, tmp_path, point
):
    """The driver is killed, and its Python process of the commit is not; the next driver is in its tasks meanwhile."""
    folder = tmp_path / "stream"
    folder.mkdir()
    arrive(folder / "in")
    halted = tmp_path / "halted"
    with SparkDriver("local[2]", environment={VARIABLE: f"{point}={halted}"}) as driver:
        ended = driver.submit(start_and_wait, str(folder), options)
        eventually(halted.exists, f"the commit has reached {point}")
        workers = driver.kill_without_workers()
        with pytest.raises(DriverGoneError):
            ended.result(240)
        orphan = eventually(lambda: left_alone(workers), "the other workers have ended")
    if point in ("decided", "half-ended"):
        abort_tasks(one_broker, options["sink.id"])
    slow = SlowRow(tmp_path, FILES * ROWS + 10)
    running = three_cores.submit(start_slow, str(folder), options, slow)
    eventually(slow.waiting(0).exists, "the next driver is in its second batch")
    assert orphan.is_running()
    halted.unlink()
    orphan.wait(240)
    slow.go.touch()
    running.result(240)
    assert committed(one_broker, topic) == Counter(range(BATCHES * FILES * ROWS))
    recover(one_broker, topic, options["sink.id"])


@pytest.mark.soak
def test_a_task_that_is_tried_again_writes_each_row_once(local_spark, one_broker, topic, options, tmp_path):
    gate = Gate(tmp_path / "gate", fail="error")
    gate.open()
    local_spark.call(write, one_broker.bootstrap_servers, topic, gate, options)
    found = one_broker.read_back(topic, committed=True)
    counts = Counter(int(record.value or b"-1") for of in found.values() for record in of)
    assert counts == Counter(range(GATED_ROWS))


@pytest.mark.parametrize("point", ["deciding", "decided", "half-ended", "done"])
def test_a_killed_query_writes_each_row_once(three_cores, one_broker, topic, options, tmp_path, point):
    folder = tmp_path / "stream"
    folder.mkdir()
    arrive(folder / "in")
    halted = tmp_path / "halted"
    with SparkDriver("local[2]", environment={VARIABLE: f"{point}={halted}"}) as driver:
        ended = driver.submit(start_and_wait, str(folder), options)
        eventually(halted.exists, f"the commit has reached {point}")
        family = driver.family()
        driver.kill()
        for process in family:
            if process.is_running():
                process.kill()
        with pytest.raises(DriverGoneError):
            ended.result(240)
        psutil.wait_procs(family, timeout=120)
    if point in ("decided", "half-ended"):
        abort_tasks(one_broker, options["sink.id"])
    before = len(three_cores.log.read_text())
    three_cores.call(start_and_wait, str(folder), options)
    if point != "deciding":
        wait_for_line(three_cores.log, r"not written again: the batch is decided", before)
    if point in ("decided", "half-ended"):
        wait_for_line(three_cores.log, r"copied \d+ of \d+ rows", before)
    assert committed(one_broker, topic) == Counter(range(BATCHES * FILES * ROWS))


def test_a_function_that_fails_after_its_write_writes_nothing_twice(three_cores, one_broker, topic, options, tmp_path):
    folder = tmp_path / "stream"
    folder.mkdir()
    arrive(folder / "in")
    with pytest.raises(JobFailedError, match="once"):
        three_cores.call(write_twice, str(folder), options)
    three_cores.call(write_twice, str(folder), options)
    assert committed(one_broker, topic) == Counter(dict.fromkeys(range(BATCHES * FILES * ROWS), 2))


def test_a_batch_job_with_an_id_writes_once(three_cores, one_broker, topic, options):
    for _ in range(2):
        three_cores.call(write_job, {**options, "write.id": "2026-11-29"})
    assert committed(one_broker, topic) == Counter(range(100))
    three_cores.call(write_job, options)
    assert committed(one_broker, topic) == Counter(dict.fromkeys(range(100), 2))
