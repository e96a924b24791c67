"""Calls of users' functions in threads and as tasks."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from aioproducer.security.calls import MAX_THREADS, Calls, DaemonExecutor, Outcome, is_async


class AsyncObject:
    async def __call__(self) -> str:
        return "async object"


class SyncObject:
    def __call__(self) -> str:
        return "sync object"


async def coroutine_function() -> str:
    return "coroutine function"


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (coroutine_function, "coroutine function"),
        (functools.partial(coroutine_function), "coroutine function"),
        (lambda: coroutine_function(), "coroutine function"),
        (AsyncObject(), "async object"),
        (SyncObject(), "sync object"),
        (lambda: "lambda", "lambda"),
    ],
)
async def test_functions_of_every_kind_are_called(function: object, value: str) -> None:
    calls = Calls(asyncio.get_running_loop(), 10)
    outcome = await calls.call(function)  # type: ignore[arg-type]
    assert (outcome.value, outcome.error, outcome.is_late) == (value, None, False)
    await calls.close()


async def test_sync_functions_run_in_daemon_threads_and_async_ones_on_the_loop() -> None:
    calls = Calls(asyncio.get_running_loop(), 10)
    threads = []

    def in_thread() -> None:
        threads.append(threading.current_thread())

    async def on_loop() -> None:
        threads.append(threading.current_thread())

    await calls.call(in_thread)
    await calls.call(on_loop)
    assert threads[0].daemon
    assert threads[0].name == "aioproducer-login"
    assert threads[1] is threading.current_thread()
    await calls.close()


async def test_hanging_functions_hold_a_few_threads_and_later_calls_wait_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(asyncio.get_running_loop(), 0.2)
    release = threading.Event()
    began: list[int] = []
    has_begun = threading.Semaphore(0)
    submit = calls.executor.submit

    def hang() -> None:
        began.append(1)
        has_begun.release()
        release.wait()

    def submit_and_begin(*arguments: Any) -> Future[Any]:
        """Submit a call. A thread for it begins before the loop goes on, and so before any deadline."""
        future = submit(*arguments)
        if len(began) < MAX_THREADS:
            assert has_begun.acquire(timeout=30)
        return future

    monkeypatch.setattr(calls.executor, "submit", submit_and_begin)
    outcomes = await asyncio.gather(*(calls.call(hang) for _ in range(10)))
    assert all(outcome.is_late for outcome in outcomes)
    assert len(began) == MAX_THREADS
    assert (await calls.call(lambda: "no thread")).is_late
    await calls.close()
    release.set()
    patient = Calls(asyncio.get_running_loop(), 10)
    assert (await patient.call(lambda: "again")).value == "again"


async def test_a_queued_call_that_was_given_up_is_never_made() -> None:
    executor = DaemonExecutor(1, "aioproducer-login")
    release = threading.Event()
    first: Future[bool] = executor.submit(release.wait)
    made: list[str] = []
    given_up: Future[None] = executor.submit(made.append, "given up")
    last: Future[None] = executor.submit(made.append, "last")
    assert given_up.cancel()
    release.set()
    assert first.result(10)
    last.result(10)
    assert made == ["last"]


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("x"), GeneratorExit(), ValueError("x")])
async def test_any_exception_of_a_sync_function_is_its_own_failure(error: BaseException) -> None:
    calls = Calls(asyncio.get_running_loop(), 10)

    def fail() -> None:
        raise error

    assert (await calls.call(fail)).error is error
    await calls.close()


async def test_a_system_without_threads_fails_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(asyncio.get_running_loop(), 10)

    def cannot_start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        outcome = await calls.call(lambda: "never")
    assert str(outcome.error) == "can't start new thread"
    assert (await calls.call(lambda: "now")).value == "now"
    await calls.close()


async def test_a_call_that_the_program_cancels_has_failed_and_is_not_late() -> None:
    """As code that cancels all tasks of the loop does."""
    calls = Calls(asyncio.get_running_loop(), 10)
    for _ in range(2):
        call = asyncio.ensure_future(calls.call(asyncio.Event().wait))
        await asyncio.sleep(0)
        (task,) = calls._tasks
        task.cancel()
        outcome = await call
        assert not outcome.is_late
        assert str(outcome.error) == "it was cancelled"
    await calls.close()


async def test_the_text_of_an_outcome_and_its_task_contains_no_value() -> None:
    assert repr(Outcome("hush", ValueError("hush"))) == "Outcome(hidden)"
    calls = Calls(asyncio.get_running_loop(), 10)
    texts = []

    async def look() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda done: texts.append(repr(done)))
        return "hush"

    await calls.call(look)
    await asyncio.sleep(0)
    assert len(texts) == 1
    assert "result=Outcome(hidden)" in texts[0]


def test_kinds_of_functions_are_distinguished() -> None:
    assert is_async(coroutine_function)
    assert is_async(AsyncObject())
    assert not is_async(SyncObject())
    assert not is_async(lambda: None)
    assert not is_async(print)


def test_a_hanging_thread_does_not_keep_the_interpreter() -> None:
    program = """
import asyncio, threading
from aioproducer.security.calls import Calls
async def main():
    calls = Calls(asyncio.get_running_loop(), 0.05)
    outcome = await calls.call(threading.Event().wait)
    await calls.close()
    print(outcome.is_late)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
