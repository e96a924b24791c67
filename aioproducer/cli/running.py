"""A command's coroutine, run until it ends or a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aioproducer.cli.exits import SIGNALLED

T = TypeVar("T")


class Interruption:
    """SIGINT and SIGTERM: the first asks the command to end, the second ends it."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The first one that came."""
        self._event = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a command that a signal has ended."""
        assert self.signal is not None
        return SIGNALLED + self.signal

    def attach(self, task: asyncio.Task[Any]) -> None:
        """Watch for signals, on behalf of this task."""
        self._task = task
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.come, number)

    def detach(self) -> None:
        """Leave signals alone again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def come(self, number: signal.Signals) -> None:
        """A signal has come."""
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._event.set()
        elif self._task is not None:
            self._task.cancel()

    def settle(self) -> None:
        """The task goes on although the second signal has cancelled it."""
        if self._task is not None:
            self._task.uncancel()

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._event.wait()

    async def unless(self, awaitable: Awaitable[T]) -> T | None:
        """The awaitable's result; None, and it is cancelled, where a signal comes first."""
        work = asyncio.ensure_future(awaitable)
        signalled = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait([work, signalled], return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            signalled.cancel()
            work.cancel()
            await asyncio.gather(work, signalled, return_exceptions=True)


def run(body: Callable[[Interruption], Coroutine[Any, Any, int]]) -> int:
    """The exit code that ``body`` returns, or that of the signal where the second one ended it."""

    async def main() -> int:
        interruption = Interruption()
        task = asyncio.current_task()
        assert task is not None
        interruption.attach(task)
        try:
            return await body(interruption)
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
            return interruption.exit_code
        finally:
            interruption.detach()

    return asyncio.run(main())


def run_briefly(body: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """The same for a command that has nothing to bring to an end: the first signal ends it."""

    async def interruptible(interruption: Interruption) -> int:
        code = await interruption.unless(body())
        return interruption.exit_code if code is None else code

    return run(interruptible)
