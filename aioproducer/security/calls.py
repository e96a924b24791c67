"""Calls of users' functions that return secrets: in daemon threads or as tasks, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from threading import Lock, Thread
from typing import Any, Final, cast

from aioproducer.errors import ProducerClosedError

MAX_THREADS = 4
"""Threads of one `Calls`. A function that hangs keeps its thread; later calls wait for another one."""

CLOSE_GRACE_S = 1.0
"""How long `Calls.close` waits for cancelled tasks that clean up, in seconds."""


class Outcome:
    """The value or error of a call. Its text contains neither: asyncio writes results of tasks into its debug log."""

    __slots__ = ("error", "is_late", "value")

    def __init__(self, value: object = None, error: BaseException | None = None, *, is_late: bool = False) -> None:
        self.value: Final = value
        self.error: Final = error
        self.is_late: Final = is_late
        """The deadline has passed; there is neither a value nor an error."""

    def __repr__(self) -> str:
        return "Outcome(hidden)"


class DaemonExecutor(Executor):
    """Runs calls in a few daemon threads, which end when no call waits.

    A ThreadPoolExecutor would join a thread that hangs when the interpreter exits.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._lock = Lock()
        self._threads = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """
        Raises:
            RuntimeError: the system has no more threads.
        """
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((future, lambda: function(*args, **kwargs)))
            if self._threads == self._max_threads:
                return future
            self._threads += 1
        try:
            Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                self._waiting = deque(entry for entry in self._waiting if entry[0] is not future)
            raise
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                future, function = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, function


class Calls:
    """Calls functions without arguments; none delays its caller or `close` for ever, even if it ignores cancellation.

    Args:
        timeout_s: deadline of each call, in seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._loop = loop
        self.timeout_s: Final = timeout_s
        self.executor: Final = DaemonExecutor(MAX_THREADS, "aioproducer-login")
        """Its threads begin at the first call of a sync function."""
        self._tasks: set[asyncio.Task[Outcome]] = set()

    async def call(self, function: Callable[[], object]) -> Outcome:
        """Call ``function``, and return its value, its error or its lateness; raise nothing else."""
        task = self._loop.create_task(self._outcome(function))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait([task], timeout=self.timeout_s)
        finally:
            is_late = not task.done()
            if is_late:
                # Not awaited: it may ignore the cancellation.
                _cancel(task)
        if is_late:
            return Outcome(is_late=True)
        # `stop` may have cancelled it, or code that cancels all tasks of the loop.
        return _cancelled() if task.cancelled() else task.result()

    async def _outcome(self, function: Callable[[], object]) -> Outcome:
        try:
            if is_async(function):
                return Outcome(await cast("Awaitable[object]", function()))
            outcome: Outcome = await self._loop.run_in_executor(self.executor, _call, function)
            if inspect.isawaitable(outcome.value):
                return Outcome(await outcome.value)
            return outcome
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if task.cancelling():
                raise
            return _cancelled()
        except Exception as error:
            return Outcome(error=error)

    def stop(self) -> None:
        """Cancel the calls in progress; safe to call twice."""
        for task in self._tasks:
            _cancel(task)

    async def close(self) -> None:
        """Cancel the calls in progress and wait `CLOSE_GRACE_S` for those that clean up."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_GRACE_S)


def login_closed() -> ProducerClosedError:
    """Return the error for a call of a login after its `close`."""
    return ProducerClosedError("The client is closed, and its login with it.")


def _cancelled() -> Outcome:
    return Outcome(error=RuntimeError("it was cancelled"))


def _cancel(task: asyncio.Task[Outcome]) -> None:
    """Cancel a task once: a second time would interrupt its cleanup."""
    if not task.cancelling():
        task.cancel()


def is_async(function: Callable[[], object]) -> bool:
    """Return whether ``function`` is a coroutine function, or an object with such a ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _call(function: Callable[[], object]) -> Outcome:
    """Call ``function`` in a thread, where even SystemExit is a failure of the function alone."""
    try:
        return Outcome(function())
    except BaseException as error:
        return Outcome(error=error)
