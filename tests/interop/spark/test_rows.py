"""Every row exactly where it belongs, as a foreign consumer finds it."""

from __future__ import annotations

import os

import pytest
from pyspark.sql import SparkSession

from tests.interop.spark.driver import SparkDriver
from tests.interop.spark.rows import EXPLICIT_PARTITIONS, KEYS, Plan, check, partitions_of_keys
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster

# `make soak` asks for more.
ROWS = int(os.environ.get("AIOPRODUCER_SPARK_ROWS", "50000"))
# The embedded broker is no data store: what passes through it stays in memory.
ROWS_EMBEDDED = 30_000

pytestmark = pytest.mark.timeout(300 + ROWS // 2000)


def write(spark: SparkSession, bootstrap_servers: str, plan: Plan, compression_type: str) -> None:
    (
        plan.rows(spark)
        .write.format("aioproducer")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.compression.type", compression_type)
        .option("kafka.max.request.size", 2_000_000)
        .mode("append")
        .save()
    )


def _every_row_arrives(driver: SparkDriver, cluster: KafkaCluster | InProcessCluster, topic: str, plan: Plan) -> None:
    large = {"max.message.bytes": "2000000"}
    cluster.create_topic(plan.explicit, EXPLICIT_PARTITIONS, config=large)
    cluster.create_topic(plan.keyed, plan.partitions, config=large)
    cluster.create_topic(plan.mixed, plan.partitions, config=large)
    reference = cluster.create_topic(f"{topic}-reference", plan.partitions)
    keys = [b"", *(b"key %d" % number for number in range(KEYS))]
    of_key = partitions_of_keys(cluster.bootstrap_servers, reference, keys)
    assert len(set(of_key.values())) == plan.partitions
    driver.submit(write, cluster.bootstrap_servers, plan, "lz4").result(120 + plan.count // 5000)
    check(cluster.bootstrap_servers, plan, of_key)


def test_apache_kafka(local_spark: SparkDriver, one_node: KafkaCluster, topic: str) -> None:
    plan = Plan(ROWS, 4, f"{topic}-explicit", f"{topic}-keyed", f"{topic}-mixed", 16)
    _every_row_arrives(local_spark, one_node, topic, plan)


def test_embedded_broker(local_spark: SparkDriver, one_embedded: InProcessCluster, topic: str) -> None:
    plan = Plan(ROWS_EMBEDDED, 3, f"{topic}-explicit", f"{topic}-keyed", f"{topic}-mixed", 16)
    _every_row_arrives(local_spark, one_embedded, topic, plan)
