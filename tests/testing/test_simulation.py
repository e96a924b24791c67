"""``run_simulated`` and the mark ``simulated``: a user's own coroutines on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import re
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Callable, Coroutine
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.errors import KafkaError, KafkaTimeoutError
from aioproducer.testing.simulation import Simulation, SimulationError, StalledError, run_simulated
from aioproducer.testing.simulation.simulation import ALL_FAULTS, _current
from tests.nested_pytest import outcome_of, run_pytest
from tests.testing.test_plugin import AUTO, STRICT

PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "aioproducer.testing.plugin")
"""Those that these tests need: all that are installed take seconds to import."""

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulation.md"
ROOT = Path(__file__).parents[2]


async def _send(simulation: Simulation, count: int = 20) -> list[bytes | None]:
    """Send records under faults, each until it is acknowledged, and return what is stored."""
    simulation.create_topic("clicks", 2)
    producer = simulation.producer(delivery_timeout_ms=2000, request_timeout_ms=500)
    async with producer, simulation.faults(rate=5):
        for number in range(count):
            await asyncio.sleep(simulation.random.expovariate(10))
            while True:
                try:
                    await producer.send("clicks", b"%d" % number)
                    break
                except KafkaError:
                    await asyncio.sleep(0.1)
    return [record.value for record in simulation.records("clicks")]


@pytest.mark.parametrize("seed", range(6))
def test_acknowledged_records_survive_all_faults(seed: int) -> None:
    stored = run_simulated(_send, seed=seed)
    assert set(stored) == {b"%d" % number for number in range(20)}


def test_virtual_time_passes_at_once() -> None:
    async def main(simulation: Simulation) -> tuple[float, float, float]:
        before = asyncio.get_running_loop().time(), time.time(), time.monotonic()
        await asyncio.sleep(3000)
        after = asyncio.get_running_loop().time(), time.time(), time.monotonic()
        first, second, third = (round(late - early) for early, late in zip(before, after, strict=True))
        return first, second, third

    assert run_simulated(main, brokers=1) == (3000, 3000, 3000)


def test_a_seed_draws_every_source_of_randomness() -> None:
    async def main(simulation: Simulation) -> tuple[object, ...]:
        return uuid.uuid4(), random.random(), simulation.random.random()

    assert run_simulated(main, seed=5, brokers=1) == run_simulated(main, seed=5, brokers=1)
    assert run_simulated(main, seed=5, brokers=1) != run_simulated(main, seed=6, brokers=1)


_SCRIPT = """
import hashlib
from aioproducer.testing.simulation import run_simulated
from tests.testing.test_simulation import _send
digest = hashlib.sha256()
run_simulated(_send, seed=3, trace=lambda line: digest.update(line.encode()))
print(digest.hexdigest())
"""


def test_a_seed_replays_exactly_in_a_fresh_process() -> None:
    """The trace has each event of the network, of the clients and of the faults, with its time."""

    def digest_with(hash_seed: str) -> str:
        run = subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return run.stdout

    assert digest_with("1") == digest_with("2")


def test_a_seed_replays_exactly_after_other_simulations() -> None:
    """Clients were numbered by the process: producer-10 has another length than producer-9, and so have its bytes."""

    async def main(simulation: Simulation) -> None:
        simulation.create_topic("clicks")
        async with simulation.producer() as producer, simulation.consumer("clicks", group_id="readers") as consumer:
            await producer.send("clicks", b"value")
            await consumer.poll(1.0)

    def trace() -> list[str]:
        lines: list[str] = []
        run_simulated(main, seed=3, brokers=1, trace=lines.append)
        return lines

    before = trace()
    for seed in range(12):
        run_simulated(main, seed=seed, brokers=1)
    assert trace() == before


def test_a_task_group_cancels_its_tasks_in_the_same_order_wherever_they_are_in_memory() -> None:
    """A set of tasks was in the order of their addresses, which depend on all that the process has done before."""

    def order_of_ends(memory: random.Random) -> list[str]:
        ends: list[str] = []

        async def worker(number: int) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ends.append(f"{number} of {asyncio.current_task()!r}")

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError("ends the group")

        async def main(simulation: Simulation) -> None:
            filled = [bytes(memory.randrange(100, 500)) for _ in range(10_000)]
            memory.shuffle(filled)
            del filled[5000:]
            with contextlib.suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    for number in range(10):
                        group.create_task(worker(number))
                    group.create_task(fail())

        run_simulated(main, seed=3, brokers=1)
        return ends

    orders = [order_of_ends(random.Random(memory)) for memory in range(4)]
    assert len(orders[0]) == 10
    assert orders == [orders[0]] * 4


def test_a_failure_has_the_seed_and_the_last_events() -> None:
    async def main(simulation: Simulation) -> None:
        simulation.note("before the failure")
        raise AssertionError("wrong")

    with pytest.raises(AssertionError, match="wrong") as caught:
        run_simulated(main, seed=17, brokers=1)
    notes = "\n".join(caught.value.__notes__)
    assert "seed 17: run_simulated(..., seed=17) repeats it" in notes
    assert "before the failure" in notes


def test_a_program_that_waits_for_ever_is_reported() -> None:
    async def main(simulation: Simulation) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        run_simulated(main, brokers=1, limit=100)


def test_a_program_that_never_sleeps_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioproducer.testing.simulation.loop.LONGEST_TURN_COUNT", 1000)

    async def main(simulation: Simulation) -> None:
        while simulation.seed == 0:  # noqa: ASYNC110  # it waits for nothing
            await asyncio.sleep(0)

    clock = time.monotonic
    with pytest.raises(StalledError, match="never sleeps"):
        run_simulated(main, brokers=1)
    assert time.monotonic is clock


def test_a_lost_exception_is_reported() -> None:
    async def fails() -> None:
        raise ValueError("lost")

    async def main(simulation: Simulation) -> None:
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        del task

    with pytest.raises(SimulationError, match=r"received by nothing.*lost"):
        run_simulated(main, brokers=1)


class _Worker:
    """Its task, the exception of that, and the frame in its traceback refer to each other in a circle."""

    def __init__(self) -> None:
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        await asyncio.sleep(0.1)
        raise ValueError("lost")


def test_each_seed_reports_a_lost_exception_that_only_the_garbage_collector_finds() -> None:
    async def main(simulation: Simulation) -> None:
        worker = _Worker()
        await asyncio.sleep(1)
        assert worker.task.done()

    for seed in range(10):
        with pytest.raises(SimulationError, match=r"received by nothing.*lost"):
            run_simulated(main, seed=seed, brokers=1)
    assert gc.isenabled()


def test_sockets_are_refused_with_a_reason() -> None:
    async def main(simulation: Simulation) -> None:
        await asyncio.open_connection("localhost", 5432)

    with pytest.raises(RuntimeError, match="a simulation has no sockets"):
        run_simulated(main, brokers=1)


def test_modules_with_clocks_of_their_own_read_virtual_time() -> None:
    module = types.ModuleType("shop_clock")
    module.now = time.monotonic  # type: ignore[attr-defined]  # as `from time import monotonic as now`
    sys.modules["shop_clock"] = module
    try:

        async def main(simulation: Simulation) -> float:
            before = module.now()
            await asyncio.sleep(500)
            return float(module.now() - before)

        assert round(run_simulated(main, brokers=1, modules=["shop_clock"])) == 500
        assert module.now is time.monotonic
    finally:
        del sys.modules["shop_clock"]
    with pytest.raises(ValueError, match="no imported module 'shop_clock'"):
        run_simulated(main, brokers=1, modules=["shop_clock"])


def test_a_module_imported_meanwhile_keeps_no_virtual_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_clock.py").write_text("from time import monotonic\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def main(simulation: Simulation) -> None:
        import late_clock  # type: ignore[import-not-found]  # written above

        assert round(late_clock.monotonic() - time.monotonic()) == 0

    try:
        run_simulated(main, brokers=1)
        assert vars(sys.modules["late_clock"])["monotonic"] is time.monotonic
    finally:
        sys.modules.pop("late_clock", None)


def test_until_refuses_a_condition_that_is_async() -> None:
    """A coroutine is true: the wait was over at once."""

    async def is_done() -> bool:
        return False

    async def main(simulation: Simulation) -> None:
        for condition in (is_done, lambda: is_done()):
            with pytest.raises(TypeError, match="the condition of until must be a plain function, not async"):
                await simulation.until(condition)
        with pytest.raises(TimeoutError, match="not within 5 s: <lambda>"):
            await simulation.until(lambda: False, 5)

    run_simulated(main, brokers=1)


# Processes


def test_what_a_killed_process_does_never_reaches_the_cluster() -> None:
    async def main(simulation: Simulation) -> list[bytes | None]:
        simulation.create_topic("clicks")

        async def service() -> None:
            async with simulation.producer(acks=1) as producer:
                await producer.send("clicks", b"before")
                try:
                    await asyncio.sleep(100)
                finally:
                    producer.send("clicks", b"clean-up")

        process = simulation.start_process("service", service)
        await asyncio.sleep(5)
        process.kill()
        assert not process.is_running
        await asyncio.sleep(100)
        process.start()
        await asyncio.sleep(5)
        await process.stop()
        assert process.starts == 2
        return [record.value for record in simulation.records("clicks")]

    assert run_simulated(main, brokers=1) == [b"before", b"before", b"clean-up"]


async def _beats(simulation: Simulation) -> int:
    """Heartbeats that the cluster has 5 s later: 0 if nothing writes any longer."""
    before = len(simulation.records("beats"))
    await asyncio.sleep(5)
    return len(simulation.records("beats")) - before


def _beating(simulation: Simulation, *, seconds: float, starts: list[bytes]) -> Callable[[], Coroutine[Any, Any, None]]:
    """A service with a heartbeat in the background, whose client is closed by the cancellation of that task only."""

    async def beat(name: bytes) -> None:
        async with simulation.producer() as producer:
            while True:
                await producer.send("beats", name)
                await asyncio.sleep(0.1)

    async def service() -> None:
        starts.append(b"%d" % len(starts))
        simulation.note(repr(asyncio.create_task(beat(starts[-1]), name="beat")))
        await asyncio.sleep(seconds)

    return service


@pytest.mark.parametrize("end", ["stop", "kill", "return"])
def test_nothing_that_a_process_has_begun_outlives_it(end: str) -> None:
    async def main(simulation: Simulation) -> None:
        simulation.create_topic("beats")
        service = _beating(simulation, seconds=6 if end == "return" else 1000, starts=[])
        process = simulation.start_process("service", service)
        assert await _beats(simulation) > 10
        assert [task for task in asyncio.all_tasks() if task.get_name() == "beat"]
        if end == "stop":
            await process.stop()
        elif end == "kill":
            process.kill()
        await asyncio.sleep(2)
        assert not process.is_running
        assert await _beats(simulation) == 0
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "beat"]

    run_simulated(main, brokers=1)


def test_after_a_kill_only_the_next_start_writes() -> None:
    async def main(simulation: Simulation) -> None:
        simulation.create_topic("beats")
        process = simulation.start_process("service", _beating(simulation, seconds=1000, starts=[]))
        await asyncio.sleep(5)
        process.kill()
        process.start()
        before = len(simulation.records("beats"))
        assert await _beats(simulation) > 10
        assert {record.value for record in simulation.records("beats")[before:]} == {b"1"}

    run_simulated(main, brokers=1)


def test_the_cluster_goes_on_after_the_process_that_has_used_it_first() -> None:
    """What a request or a call lets the nodes do runs in tasks of the nodes, not of the process."""

    wrong: list[asyncio.Task[Any]] = []
    right: list[asyncio.Task[Any]] = []

    async def main(simulation: Simulation) -> None:
        add_to_run = simulation.loop.when_task_is_made
        assert add_to_run is not None

        def watch(task: asyncio.Task[Any], context: Context) -> None:
            if "/broker/" in task.get_coro().cr_code.co_filename:  # type: ignore[union-attr]  # of a coroutine
                (right if context.get(_current) is None else wrong).append(task)
            add_to_run(task, context)

        simulation.loop.when_task_is_made = watch

        async def service() -> None:
            async with simulation.faults("kill", "move leader", rate=5):
                simulation.create_topic("clicks", 3)
                async with simulation.producer(transactional_id="first") as producer:
                    for partition in range(3):
                        async with producer.transaction():
                            producer.send("clicks", b"first", partition=partition)
                async with simulation.consumer("clicks", group_id="readers", auto_offset_reset="earliest") as consumer:
                    await consumer.poll(5.0)
                await asyncio.sleep(1000)

        process = simulation.start_process("service", service, restart_on=KafkaError)
        await asyncio.sleep(10)
        process.kill()
        await asyncio.sleep(10)
        async with simulation.producer(transactional_id="second") as producer:
            for partition in range(3):
                async with producer.transaction():
                    producer.send("clicks", b"second", partition=partition)
        async with simulation.consumer("clicks", group_id="readers", auto_offset_reset="earliest") as consumer:
            assert await consumer.poll(60.0)
        await simulation.until(simulation.is_in_sync)

    run_simulated(main)
    assert right
    assert not wrong


def test_a_task_that_goes_on_although_it_was_cancelled_is_reported() -> None:
    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            simulation.note(repr(asyncio.create_task(stubborn(), name="stubborn")))
            await asyncio.sleep(5)

        killed = simulation.start_process("killed", service)
        await asyncio.sleep(1)
        killed.kill()
        stopped = simulation.start_process("stopped", service)
        await asyncio.sleep(1)
        with pytest.raises(SimulationError, match=r"tasks of stopped\.1 go on although they were cancelled: stubborn"):
            await stopped.stop()
        simulation.start_process("returns", service)
        await asyncio.sleep(1000)

    with pytest.raises(SimulationError, match=r"tasks of returns\.1 go on although they were cancelled: stubborn"):
        run_simulated(main, brokers=1)


def test_a_task_that_a_timer_makes_after_the_end_does_not_begin() -> None:
    begun: list[str] = []

    async def late() -> None:
        begun.append("late")

    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(10, lambda: simulation.note(repr(loop.create_task(late()))))

        simulation.start_process("service", service)
        await asyncio.sleep(100)

    run_simulated(main, brokers=1)
    assert not begun


def test_on_kill_is_called_before_the_clean_up() -> None:
    calls: list[str] = []

    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            simulation.on_kill(lambda: calls.append("killed"))
            try:
                await asyncio.sleep(100)
            finally:
                calls.append("clean-up")

        process = simulation.start_process("service", service)
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="on_kill is for code that runs in a process"):
            simulation.on_kill(calls.clear)

    run_simulated(main, brokers=1)
    assert calls == ["killed", "clean-up"]


def test_an_exception_of_a_process_fails_the_simulation() -> None:
    async def main(simulation: Simulation) -> None:
        async def service() -> None:
            await asyncio.sleep(1)
            raise ValueError("a bug of the service")

        simulation.start_process("service", service)
        await asyncio.sleep(100)

    with pytest.raises(ValueError, match="a bug of the service"):
        run_simulated(main, brokers=1)


def test_a_supervisor_restarts_after_expected_errors() -> None:
    async def main(simulation: Simulation) -> int:
        async def service() -> None:
            await asyncio.sleep(1)
            if process.starts < 3:
                raise KafkaTimeoutError("expected")
            await asyncio.sleep(1000)

        process = simulation.start_process("service", service, restart_on=KafkaError)
        await simulation.until(lambda: process.starts == 3)
        return process.starts

    assert run_simulated(main, brokers=1) == 3


def test_a_start_during_the_pause_of_a_restart_replaces_it() -> None:
    """The timer of the first pause then went off for the second one, whose own timer found nothing."""

    async def main(simulation: Simulation) -> int:
        async def service() -> None:
            if process.starts < 20:
                raise KafkaTimeoutError("expected")
            await asyncio.sleep(1000)

        process = simulation.start_process("service", service, restart_on=KafkaError)
        while process.starts < 20:
            await asyncio.sleep(0.01)
            process.start()
        await asyncio.sleep(10)
        return process.starts

    assert run_simulated(main, brokers=1) == 20


def test_faults_kill_processes_and_leave_them_running() -> None:
    async def main(simulation: Simulation) -> int:
        async def service() -> None:
            await asyncio.sleep(10_000)

        process = simulation.start_process("service", service)
        async with simulation.faults("kill process", rate=1):
            await asyncio.sleep(30)
        assert process.is_running
        return process.starts

    assert run_simulated(main, brokers=1) > 10


def test_names_of_faults_and_processes_are_checked() -> None:
    async def main(simulation: Simulation) -> None:
        with pytest.raises(ValueError, match="there is no fault 'cuts'"):
            async with simulation.faults("cuts"):
                pass
        with pytest.raises(ValueError, match="rate must not be negative: -1"):
            async with simulation.faults(rate=-1):
                pass

        async def service() -> None:
            await asyncio.sleep(1)

        simulation.start_process("service", service)
        with pytest.raises(ValueError, match="there is a process 'service' already"):
            simulation.start_process("service", service)

    run_simulated(main, brokers=1)


@pytest.mark.parametrize("kind", ALL_FAULTS)
def test_after_each_kind_of_fault_everything_works_again(kind: str) -> None:
    async def main(simulation: Simulation) -> None:
        simulation.create_topic("clicks")
        async with Producer(
            bootstrap_servers=simulation.bootstrap_servers, transport=simulation.transport, linger_ms=0
        ) as producer:
            async with simulation.faults(kind, rate=10):
                for _ in range(10):
                    producer.send("clicks", b"under faults")
                    await asyncio.sleep(0.2)
            await producer.send("clicks", b"after faults")
        assert simulation.nodes == [1, 2, 3]

    run_simulated(main)


# Groups of consumers


async def _read_in_a_group(simulation: Simulation, *, commits_early: bool) -> None:
    """Three processes of one group read under faults; each record is seen at least once."""
    simulation.create_topic("clicks", 4)
    sent: set[bytes] = set()
    seen: set[bytes | None] = set()

    async def worker() -> None:
        consumer = simulation.consumer(
            "clicks",
            group_id="workers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=1000,
        )
        async with consumer:
            while True:
                found = await consumer.poll(1.0)
                if found and commits_early:
                    await consumer.commit()
                await asyncio.sleep(0.5)
                for records in found.values():
                    seen.update(record.value for record in records)
                if found and not commits_early:
                    await consumer.commit()

    for number in range(3):
        simulation.start_process(f"worker{number}", worker, restart_on=KafkaError)
    producer = simulation.producer(delivery_timeout_ms=20_000, request_timeout_ms=2000)
    async with producer, simulation.faults("kill process", "kill", "cut", "move coordinator", "move leader", rate=8):
        for number in range(30):
            value = b"%d" % number
            await producer.send("clicks", value)
            sent.add(value)
            await asyncio.sleep(simulation.random.expovariate(5))
    await simulation.until(lambda: sent <= seen, 60)


@pytest.mark.parametrize("seed", range(5))
def test_a_group_sees_each_record_although_its_members_die(seed: int) -> None:
    run_simulated(lambda simulation: _read_in_a_group(simulation, commits_early=False), seed=seed)


def test_a_seed_finds_a_commit_before_the_work() -> None:
    """A member that commits what it has not processed yet loses records when it dies."""
    lost = []
    for seed in range(5):
        try:
            run_simulated(lambda simulation: _read_in_a_group(simulation, commits_early=True), seed=seed)
        except TimeoutError:
            lost.append(seed)
    assert lost


# The mark

_MARKED = """
import asyncio
import pytest

@pytest.mark.simulated(seeds=range(3), brokers=1)
async def test_marked(simulation, tmp_path):
    assert tmp_path.exists()
    assert simulation.nodes == [1]
    await asyncio.sleep(1000)

class TestOfAClass:
    @pytest.mark.simulated([7], brokers=1)
    async def test_marked(self, simulation):
        assert simulation.seed == 7

@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.simulated(seeds=range(2), brokers=1)
async def test_with_parameters(simulation, number):
    assert number in (1, 2)
"""


def _run_tests(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_pytest(folder, *PLUGINS, *arguments, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


@pytest.mark.parametrize("settings", [AUTO, STRICT], ids=["auto", "strict"])
def test_a_marked_test_runs_with_each_seed(tmp_path: Path, settings: str) -> None:
    (tmp_path / "pytest.ini").write_text(settings)
    (tmp_path / "test_service.py").write_text(_MARKED)
    run = _run_tests(tmp_path)
    assert outcome_of(run) == "8 passed", run.stdout


_FAILING = """
import pytest

@pytest.mark.simulated(seeds=range(2), brokers=1)
async def test_wrong(simulation):
    assert simulation.seed != 1

@pytest.mark.simulated(brokers=1)
def test_no_coroutine(simulation):
    pass

async def test_unmarked(simulation):
    pass
"""


def test_failures_of_marked_tests_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(AUTO)
    (tmp_path / "test_service.py").write_text(_FAILING)
    run = _run_tests(tmp_path, "--simulated-seeds=1-1")
    assert outcome_of(run) == "2 failed, 1 error", run.stdout
    assert 'repeat: pytest "test_service.py::test_wrong" --simulated-seeds=1' in run.stdout
    assert "seed 1: run_simulated(..., seed=1) repeats it" in run.stdout
    assert "a coroutine function: async def" in run.stdout
    assert "with @pytest.mark.simulated(seeds=range(20))" in run.stdout
    assert outcome_of(_run_tests(tmp_path, "--simulated-seeds=0", "-k", "wrong")) == "1 passed, 2 deselected"
    for given in "many", "5-3":
        wrong = _run_tests(tmp_path, f"--simulated-seeds={given}")
        text = f"--simulated-seeds takes a number or a range such as 0-999, not '{given}'"
        assert text in wrong.stdout + wrong.stderr


def test_the_examples_of_the_documentation_pass_and_find_the_bug(tmp_path: Path) -> None:
    """docs/simulation.md: swapping two lines of its service makes a seed fail."""
    text = DOCUMENT.read_text()
    blocks = re.findall(r"```python\n(# (test_\w+\.py)\n.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```python") == 2
    (tmp_path / "pytest.ini").write_text(AUTO)
    for source, name in blocks:
        (tmp_path / name).write_text(source)
    run = _run_tests(tmp_path)
    assert outcome_of(run) == "6 passed", run.stdout
    send, delete = (
        '            await producer.send("orders", event)\n',
        "            database.outbox.remove(event)\n",
    )
    source = blocks[0][0]
    assert send + delete in source
    (tmp_path / "test_outbox.py").write_text(source.replace(send + delete, delete + send))
    run = _run_tests(tmp_path, "test_outbox.py")
    assert re.search(r"[1-5] failed", outcome_of(run)), run.stdout
    assert "repeats it" in run.stdout
