"""Spark's own sink, on Kafka's Java producer in the JVM: ``format("kafka")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import spark_micro, spark_parts
from bench.job import Job, Measurement
from bench.spark_session import kafka_writer, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def defaults(job: Job) -> Measurement:
    """With the settings of the job's scenario, or with none."""
    spark_parts.prepare()

    def write(spark: SparkSession, count: int) -> int:
        kafka_writer(spark, job, count, "kafka").save()
        return count

    return measure(job, write, spark_parts.connector())


large_batches = defaults


def micro_batches(job: Job) -> Measurement:
    """Micro-batches of a streaming query; see ``bench.spark_micro``."""
    spark_parts.prepare()
    return spark_micro.measure(job, "kafka", {}, spark_parts.connector())
