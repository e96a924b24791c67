"""The common part of all tests: event loops, groups of files for pytest-xdist, and required interop tests.

asyncio tests run on asyncio's loop, and mostly on uvloop too. AIOPRODUCER_LOOPS=asyncio, or uvloop, selects one loop,
which halves the time. AIOPRODUCER_PURE=1 runs the sources of the compiled modules; AIOPRODUCER_BUILD=pure, compiled or
sanitized is the build that must be under test (tests/builds/test_modules.py). AIOPRODUCER_COVERED=rooms traces only the
tests of the rooms that must reach 95 % of coverage. With --hypothesis-profile=soak the fuzzers try many more examples,
and new ones each time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest
import uvloop

import aioproducer
from aioproducer._build import COMPILED_MODULES, is_pure_wanted

# Tests and the bench import the helpers in tests/kafka as tests.kafka.
_TESTS = Path(__file__).parent
_ROOT = str(_TESTS.parent)

_LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

# Folders that start whole programs, in addition to files with the mark. The Makefile reads this line.
_PROGRAMS = ("builds/test_wheel.py", "docs/", "examples/", "fresh_root/", "testing/test_plugin.py")

# Threads that end with their owner. A thread of an executor that was not closed would wait without an end.
_THREADS_THAT_END = ("aioproducer-compressor", "aioproducer-verbs")

# Rooms with code that is independent of the loop: it is above connections, and waits only for futures.
_ONE_LOOP = (
    *("bench/", "core/", "consumer/"),
    *("broker/cluster/", "broker/groups/", "broker/handlers/", "broker/replicas/", "broker/test_"),
)

# Groups of files that one process of pytest-xdist runs: they share a Spark session, or a cluster of three brokers and
# one of an old version, which take seconds to start. With --dist loadfile each other file is a group.
_SPARK_SESSION = ("spark/",)
_THREE_NODES = tuple(f"interop/test_{name}.py" for name in ("command_line", "faults", "harness", "records"))
# The longest groups come first: at the end one process would wait for the other. The differential run comes before all
# that begin transactions: it compares clusters on which __transaction_state does not exist yet.
_LONG_GROUPS = (_SPARK_SESSION, _THREE_NODES, ("interop/differential/",), ("interop/spark/",), ("gateway/",))

# The tests that show the coverage of core, wire and protocol: tracing more than doubles the CPU time of a test.
_COVERED = ("core/", "wire/", "protocol/", "fuzz/", "compression/")
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

# No deadline: the time of an example depends on the machine's load. Both profiles set derandomize, because they inherit
# from the profile that is loaded now: where the variable CI is set, that one is deterministic.
hypothesis.settings.register_profile("project", deadline=None, derandomize=True)
hypothesis.settings.register_profile("soak", deadline=None, derandomize=False, max_examples=20_000)
hypothesis.settings.load_profile("project")


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT in background processes, so tests that interrupt a process would wait without an end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not is_pure_wanted():
        # Importable from here on, see _ROOT.
        from tests.builds.freshness import what_is_wrong

        wrong = what_is_wrong(Path(aioproducer.__file__).parents[1], COMPILED_MODULES)
        if wrong is not None:
            raise pytest.UsageError(wrong)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    chosen = os.environ.get("AIOPRODUCER_LOOPS", " ".join(_LOOPS)).split()
    return {name: _LOOPS[name] for name in (chosen[:1] if _is_below(item, _ONE_LOOP) else chosen)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rooms_alone = os.environ.get("AIOPRODUCER_COVERED") == "rooms"
    for item in items:
        if _is_below(item, _PROGRAMS):
            item.add_marker(pytest.mark.programs)
        if rooms_alone and not _is_below(item, _COVERED):
            item.add_marker(pytest.mark.no_cover)
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    """Return the position of the item's group among the long ones, or after them."""
    return next((rank for rank, places in enumerate(_LONG_GROUPS) if _is_below(item, places)), len(_LONG_GROUPS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Schedule by group of files: with pytest 9.2 the marks of pytest-xdist 3.8 for groups have no effect."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class GroupScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            place = file.removeprefix("tests/")
            return next((group[0] for group in (_SPARK_SESSION, _THREE_NODES) if place.startswith(group)), file)

    return GroupScheduling(config, log)


def pytest_collection_finish() -> None:
    """Hide the collected items from the garbage collector: thousands of them would make each full collection slow."""
    gc.collect()
    gc.freeze()


def _is_below(item: pytest.Item, places: tuple[str, ...]) -> bool:
    return item.path.is_relative_to(_TESTS) and str(item.path.relative_to(_TESTS)).startswith(places)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(_THREADS_THAT_END):
            thread.join(5)
            assert not thread.is_alive(), f"{thread.name} is left behind"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The folder of the newest Apache Kafka's jars, if Java is installed."""
    from tests.kafka import jars

    try:
        jars.java()
        return jars.resolve(jars.BROKER[jars.NEWEST])
    except jars.HarnessUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With AIOPRODUCER_REQUIRE_INTEROP=1, fail an interop or guest test that is skipped, with its reason."""
    report = yield
    required = os.environ.get("AIOPRODUCER_REQUIRE_INTEROP") == "1" and (
        item.get_closest_marker("interop") is not None or os.environ.get("AIOPRODUCER_TEST_GUEST") == "1"
    )
    if required and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"AIOPRODUCER_REQUIRE_INTEROP=1 allows no skip of an interop or guest test. {reason}"
    return report
