"""pytest fixtures: ``kafka_cluster`` and ``producer`` for a test, ``kafka_cluster_session`` for a whole run.

The mark ``simulated`` runs a test on virtual time, with the seeds that it names.

pytest finds them when aioproducer is installed. Nothing else is imported until a test asks for one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from aioproducer.producer import Producer
    from aioproducer.testing.cluster import EmbeddedCluster
    from aioproducer.testing.simulation import Simulation
    from aioproducer.testing.thread import EmbeddedClusterThread

MARKER = "kafka_cluster"
SIMULATED = "simulated"
SEEDS_OPTION = "--simulated-seeds"
PATIENCE = 5.0

T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(brokers=1, *, properties=None, data_dir=None, transport='tcp'): "
        "arguments of this test's fixture kafka_cluster, see aioproducer.testing.EmbeddedCluster",
    )
    config.addinivalue_line(
        "markers",
        f"{SIMULATED}(seeds=range(10), *, brokers=3, properties=None, features=None, modules=(), limit=3600): "
        "run this coroutine on virtual time, once for each seed, see aioproducer.testing.simulation.run_simulated",
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("aioproducer").addoption(
        SEEDS_OPTION,
        metavar="A-B",
        help="seeds of the tests that are marked as simulated, instead of their own: 17, or 0-999",
    )


# Simulated tests: each seed is a parameter, and what pytest calls is a function that runs the coroutine.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker(SIMULATED)
    if marker is not None:
        seeds = _seeds_of(marker, metafunc.config)
        metafunc.parametrize("simulation", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


def _seeds_of(marker: pytest.Mark, config: pytest.Config) -> list[int]:
    given: str | None = config.getoption(SEEDS_OPTION)
    if given is None:
        (seeds,) = marker.args or (marker.kwargs.get("seeds", range(10)),)
        return list(seeds)
    first, _, last = given.partition("-")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        # Without a seed pytest would skip the tests.
        raise pytest.UsageError(f"{SEEDS_OPTION} takes a number or a range such as 0-999, not {given!r}")
    return list(seeds)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, object, object]:
    # Innermost: pytest-asyncio, which has its own loop for coroutines, gets a plain function.
    made = yield
    items: list[object] = made if isinstance(made, list) else [made]
    for item in items:
        if isinstance(item, pytest.Function) and (marker := item.get_closest_marker(SIMULATED)) is not None:
            item.obj = _simulated(item.obj, marker, item.nodeid.partition("[")[0])
    return made


def _simulated(function: Callable[..., Any], marker: pytest.Mark, node_id: str) -> Callable[..., None]:
    """A plain function that runs a coroutine function in a simulation; its argument ``simulation`` is the seed."""
    if not inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        def wrong(**arguments: object) -> None:
            pytest.fail("a test that is marked as simulated is a coroutine function: async def", pytrace=False)

        return wrong
    options = {name: value for name, value in marker.kwargs.items() if name != "seeds"}

    @functools.wraps(function)
    def run(*, simulation: int, **arguments: object) -> None:
        from aioproducer.testing.simulation import run_simulated

        async def main(world: Simulation) -> None:
            await function(simulation=world, **arguments)

        try:
            run_simulated(main, seed=simulation, **options)
        except BaseException as error:
            error.add_note(f'repeat: pytest "{node_id}" {SEEDS_OPTION}={simulation}')
            raise

    return run


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Any:
    """The ``Simulation`` of a test that is marked by ``@pytest.mark.simulated(seeds=range(20))``."""
    if not hasattr(request, "param"):
        pytest.fail("the fixture simulation is for tests with @pytest.mark.simulated(seeds=range(20))", pytrace=False)
    return request.param


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
