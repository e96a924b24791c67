"""This project's sink in Spark with exactly-once delivery; and what one of its micro-batches costs without Spark."""

from __future__ import annotations

import itertools
import statistics
import time
import uuid
from typing import TYPE_CHECKING

from bench import spark_parts
from bench.job import Job, Measurement
from bench.spark_session import THREADS, kafka_writer, measure, warm_ups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELIVERY = {"delivery": "exactly-once", "sink.id": "bench", "decision.topic": "bench-decisions"}


def run(job: Job) -> Measurement:
    """With the pyspark that this process has."""
    writes = 0

    def write(spark: SparkSession, count: int) -> int:
        nonlocal writes
        writes += 1
        kafka_writer(spark, job, count, "aioproducer").options(**DELIVERY).save()
        return count

    assert all(count >= THREADS * job.partitions for count in (*warm_ups(job), job.records))
    measured = measure(job, write)
    # Each task writes to each partition.
    return {**measured, "markers": writes * THREADS * job.partitions}


def defaults(job: Job) -> Measurement:
    """With the settings of the job's scenario, or with none."""
    spark_parts.prepare()
    return run(job)


def micro_batches(job: Job) -> Measurement:
    """Micro-batches of a streaming query; see ``bench.spark_micro``."""
    from bench import spark_micro

    spark_parts.prepare()
    measured = spark_micro.measure(job, "aioproducer", DELIVERY)
    return {**measured, "markers": spark_micro.batches_of(job) * spark_micro.TASKS * job.partitions}


def parts(job: Job) -> Measurement:
    """Plan, write and commit as many micro-batches in this process, and return the median time of each part."""
    import pyarrow

    from aioproducer.spark.columns import SinkColumns
    from aioproducer.spark.exactly_once import TaskOf, commit_batch, plan_batch, write_transaction
    from aioproducer.spark.options import SinkOptions
    from bench.spark_micro import ROWS, TASKS, batches_of

    given = {"kafka.bootstrap.servers": job.bootstrap, "topic": job.topic, **DELIVERY}
    # Each round begins with batch 0.
    options = SinkOptions.parse({**given, "sink.id": f"bench-{uuid.uuid4().hex}"})
    columns = SinkColumns(job.topic, "", "")
    values = [b"%d" % number for number in range(ROWS // TASKS)]
    partitions = pyarrow.array([number % job.partitions for number in range(len(values))], pyarrow.int32())
    rows = pyarrow.record_batch([pyarrow.array(values, pyarrow.binary()), partitions], names=["value", "partition"])

    def log(text: str) -> None:
        """Log nothing."""

    found: list[tuple[float, float, float]] = []
    for batch_id in range(batches_of(job)):
        times = [time.perf_counter()]
        plan = plan_batch(options, log)
        times.append(time.perf_counter())
        task = TaskOf("query", batch_id, "run")
        reports = [write_transaction([rows], columns, options, plan, task)[1] for _ in range(TASKS)]
        times.append(time.perf_counter())
        commit_batch(options, reports, log)
        times.append(time.perf_counter())
        plan_s, tasks_s, commit_s = (after - before for before, after in itertools.pairwise(times))
        found.append((plan_s, tasks_s, commit_s))
    of_measured = found[job.warm_up // ROWS :]
    plan_ms, tasks_ms, commit_ms = (statistics.median(part) * 1000 for part in zip(*of_measured, strict=True))
    return {
        "sent": batches_of(job) * ROWS,
        "markers": batches_of(job) * TASKS * job.partitions,
        "plan_ms": plan_ms,
        "tasks_ms": tasks_ms,
        "commit_ms": commit_ms,
    }
