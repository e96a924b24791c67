"""pytest fixtures: ``kafka_cluster`` and ``producer`` for a test, ``kafka_cluster_session`` for a whole run.

pytest finds them when aioproducer is installed. Nothing else is imported until a test asks for one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from aioproducer.producer import Producer
    from aioproducer.testing.cluster import EmbeddedCluster
    from aioproducer.testing.thread import EmbeddedClusterThread

MARKER = "kafka_cluster"
PATIENCE = 5.0

T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(brokers=1, *, properties=None, data_dir=None, transport='tcp'): "
        "arguments of this test's fixture kafka_cluster, see aioproducer.testing.EmbeddedCluster",
    )


def _in_the_tests_loop(function: Callable[..., AsyncIterator[T]]) -> Callable[..., object]:
    """Return a fixture made of an async generator, in both modes of pytest-asyncio; without it, the fixture fails."""
    try:
        from pytest_asyncio import fixture
    except ImportError:

        def missing() -> None:
            pytest.fail(
                f"the fixture {function.__name__} needs pytest-asyncio (pip install pytest-asyncio); "
                "kafka_cluster_session works without it",
                pytrace=False,
            )

        return pytest.fixture(missing, name=function.__name__)
    return fixture(function)


@_in_the_tests_loop
async def kafka_cluster(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    """An ``EmbeddedCluster`` for this test alone; ``@pytest.mark.kafka_cluster(brokers=3)`` has its arguments."""
    from aioproducer.testing.cluster import EmbeddedCluster

    marker = request.node.get_closest_marker(MARKER)
    options: dict[str, Any] = dict(marker.kwargs) if marker else {}
    async with EmbeddedCluster(*(marker.args if marker else ()), **options) as cluster:
        yield cluster


@_in_the_tests_loop
async def producer(kafka_cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    """A started ``Producer`` with the default configuration for the cluster of this test.

    After the test it has ``PATIENCE`` seconds to deliver the remaining records; a lasting fault may prevent that.
    """
    started = kafka_cluster.producer()
    await started.start()
    yield started
    await started.close(PATIENCE)


@pytest.fixture(scope="session")
def kafka_cluster_session() -> Iterator[EmbeddedClusterThread]:
    """One ``EmbeddedClusterThread`` for all tests of the run; each test should use its own topics.

    It keeps records regardless of their timestamps. Kafka's default removes records with timestamps older than a week
    every five minutes, so a test that writes fixed timestamps would rarely lose its records.
    """
    from aioproducer.testing.thread import EmbeddedClusterThread

    with EmbeddedClusterThread(properties={"log.retention.ms": "-1"}) as cluster:
        yield cluster
