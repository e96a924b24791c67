"""This project's sink in Spark, ``format("aioproducer")``, which Spark finds by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import spark_micro, spark_parts
from bench.job import Job, Measurement
from bench.spark_session import kafka_writer, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(job: Job) -> Measurement:
    """With the pyspark that this process has."""

    def write(spark: SparkSession, count: int) -> int:
        kafka_writer(spark, job, count, "aioproducer").save()
        return count

    return measure(job, write)


def defaults(job: Job) -> Measurement:
    """With the settings of the job's scenario, or with none."""
    spark_parts.prepare()
    return run(job)


large_batches = defaults


def micro_batches(job: Job) -> Measurement:
    """Micro-batches of a streaming query; see ``bench.spark_micro``."""
    spark_parts.prepare()
    return spark_micro.measure(job, "aioproducer", {})
