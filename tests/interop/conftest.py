"""Clusters that the tests of one run share. Each test writes to its own topics."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Generator, Iterator

import pytest

from tests.kafka import jars
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster
from tests.kafka.mock import MockCluster


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here + os.sep):
            item.add_marker(pytest.mark.interop)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test if a requirement is not installed, whether a fixture or the test needs it."""
    try:
        yield
    except jars.HarnessUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """As ``pytest_runtest_setup``."""
    try:
        yield
    except jars.HarnessUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def one_node() -> Iterator[KafkaCluster]:
    """One broker in a rack that creates topics on demand, with TLS listeners."""
    properties = {"auto.create.topics.enable": "true", "broker.rack": "east"}
    with KafkaCluster(1, tls=True, properties=properties) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def one_node_with_old_transactions() -> Iterator[KafkaCluster]:
    """One broker of a cluster with transactions as before KIP-890."""
    with KafkaCluster(1, features={"transaction.version": 1}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[KafkaCluster]:
    """Three brokers, topics on all of them with min.insync.replicas=2; no topic is created on demand.

    Each is in a separate rack, and consumers with a rack read there.
    """
    properties = {
        "auto.create.topics.enable": "false",
        "min.insync.replicas": "2",
        "broker.rack": "rack-{node}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with KafkaCluster(3, properties=properties) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def one_embedded() -> Iterator[InProcessCluster]:
    """One embedded broker that creates topics on demand."""
    with InProcessCluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def one_embedded_with_old_transactions() -> Iterator[InProcessCluster]:
    """One embedded broker with transactions as before KIP-890."""
    with InProcessCluster(1, features={"transaction.version": 1}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_embedded() -> Iterator[InProcessCluster]:
    """Three embedded brokers, configured as ``three_nodes``."""
    properties = {"auto.create.topics.enable": "false", "min.insync.replicas": "2"}
    with InProcessCluster(3, properties=properties) as cluster:
        yield cluster


@pytest.fixture(params=["one_node", "one_embedded"])
def one_broker(request: pytest.FixtureRequest) -> KafkaCluster | InProcessCluster:
    """Apache Kafka, then the embedded broker: the same must hold for both."""
    found: KafkaCluster | InProcessCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["three_nodes", "three_embedded"])
def three_brokers(request: pytest.FixtureRequest) -> KafkaCluster | InProcessCluster:
    """As ``one_broker``, with three brokers each."""
    found: KafkaCluster | InProcessCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def old_broker() -> Iterator[KafkaCluster]:
    """One broker of Apache Kafka 3.3."""
    with KafkaCluster(1, version=jars.OLD) as cluster:
        yield cluster


@pytest.fixture
def mock_cluster() -> Iterator[MockCluster]:
    """Three brokers of librdkafka's mock cluster."""
    with MockCluster(3) as cluster:
        yield cluster


@pytest.fixture
def embedded_cluster() -> Iterator[InProcessCluster]:
    """Three embedded brokers for a single test, as ``mock_cluster``."""
    with InProcessCluster(3) as cluster:
        yield cluster


@pytest.fixture(params=["mock_cluster", "embedded_cluster"])
def faulty_cluster(request: pytest.FixtureRequest) -> MockCluster | InProcessCluster:
    """The clusters that inject errors on request."""
    found: MockCluster | InProcessCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["one_node", "three_nodes", "old_broker", "mock_cluster", "one_embedded", "three_embedded"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster | MockCluster | InProcessCluster:
    """Every implementation in turn."""
    found: KafkaCluster | MockCluster | InProcessCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; the topic does not exist."""
    name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")
    return f"{name[:60]}-{uuid.uuid4().hex[:8]}"
