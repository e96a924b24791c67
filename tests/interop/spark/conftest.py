"""Spark drivers that the tests of one module share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioproducer.spark.executor import close_executor
from tests.interop.spark.crashes import PARTITIONS, Cluster
from tests.interop.spark.driver import SparkDriver
from tests.interop.spark.gates import Gate
from tests.interop.spark.sink_program import options_of
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster


@pytest.fixture(scope="module")
def local_spark() -> Iterator[SparkDriver]:
    """Spark in two threads of one JVM; a task that fails is tried once more."""
    with SparkDriver("local[2,2]") as driver:
        yield driver


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate that is shut."""
    return Gate(tmp_path / "gate")


@pytest.fixture(params=["one_node", pytest.param("one_embedded", marks=pytest.mark.soak)])
def one_broker(request: pytest.FixtureRequest) -> KafkaCluster | InProcessCluster:
    """A cluster of one broker: Apache Kafka's, and at length the embedded one too."""
    cluster: KafkaCluster | InProcessCluster = request.getfixturevalue(request.param)
    return cluster


# The exactly-once sink, without Spark


@pytest.fixture(
    params=[
        "one_node",
        "one_node_with_old_transactions",
        pytest.param("one_embedded", marks=pytest.mark.soak),
        pytest.param("one_embedded_with_old_transactions", marks=pytest.mark.soak),
    ]
)
def kafka(request: pytest.FixtureRequest) -> Cluster:
    """A cluster with each generation of transactions: Apache Kafka's, and at length the embedded one too."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def sink() -> Iterator[str]:
    """The id of a sink, whose producers in this process are closed at the end."""
    yield f"sink-{uuid.uuid4().hex[:8]}"
    close_executor()


@pytest.fixture
def options(kafka: Cluster, topic: str, sink: str) -> dict[str, str]:
    """Options of the sink, which writes to a topic that exists."""
    kafka.create_topic(topic, PARTITIONS)
    return options_of(kafka.bootstrap_servers, topic, sink, **{"kafka.linger.ms": "0"})
