"""Micro-batches of 1,000 rows in 4 tasks: a streaming query over files, of which each micro-batch reads four.

What is measured is the time that Spark itself reports for a micro-batch (``triggerExecution``), and its largest part,
``addBatch``. Each task writes to each partition, by the column ``partition``, so that the markers of transactions can
be counted.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.job import Job, Measurement
from bench.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
TASKS = 4


def batches_of(job: Job) -> int:
    """Return the number of micro-batches of a job, those of the warm-up included."""
    return (job.warm_up + job.records) // ROWS


def write_files(folder: Path, batches: int) -> None:
    """Write four files for each micro-batch, with a number in each line."""
    folder.mkdir()
    of_file = ROWS // TASKS
    for number in range(batches * TASKS):
        lines = map(str, range(number * of_file, (number + 1) * of_file))
        (folder / f"{number:06}.txt").write_text("\n".join(lines))


def measure(job: Job, sink: str, options: Mapping[str, str], jars: Sequence[Path] = ()) -> Measurement:
    """Run the query to the end of its files, and return the median times of its micro-batches after the warm-up."""
    with tempfile.TemporaryDirectory(prefix="bench-micro-") as name, session(jars, TASKS) as spark:
        folder = Path(name)
        write_files(folder / "in", batches_of(job))
        durations = _run(spark, job, sink, options, folder)
    if len(durations) != batches_of(job):
        raise RuntimeError(f"{len(durations)} micro-batches were reported, not {batches_of(job)}")
    measured = durations[job.warm_up // ROWS :]
    return {
        "sent": batches_of(job) * ROWS,
        "batch_ms": statistics.median(each["triggerExecution"] for each in measured),
        "add_batch_ms": statistics.median(each["addBatch"] for each in measured),
    }


def _run(spark: SparkSession, job: Job, sink: str, options: Mapping[str, str], folder: Path) -> list[Mapping[str, int]]:
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(batches_of(job) + 10))
    # All times of modification may be equal: the order of the files is of no account.
    lines = spark.readStream.option("maxFilesPerTrigger", TASKS).text(str(folder / "in"))
    query = (
        lines.selectExpr("value", f"cast(cast(value as int) % {job.partitions} as int) as partition")
        .writeStream.format(sink)
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("topic", job.topic)
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]
