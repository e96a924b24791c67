"""Spark drivers that the tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.spark.driver import SparkDriver
from tests.interop.spark.gates import Gate
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
