"""Running a command's coroutine until it ends or a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aioproducer.cli.exits import SIGNALLED

T = TypeVar("T")


class Interruption:
    """SIGINT and SIGTERM: the first requests the command to end, the second cancels it."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The first signal."""
        self._event = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a command that a signal has ended."""
        assert self.signal is not None
        return SIGNALLED + self.signal

    def attach(self, task: asyncio.Task[Any]) -> None:
        """Handle signals; the second one cancels ``task``."""
        self._task = task
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle, number)

    def detach(self) -> None:
        """Stop handling signals."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def handle(self, number: signal.Signals) -> None:
        """Handle a signal."""
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._event.set()
        elif self._task is not None:
            self._task.cancel()

    def uncancel(self) -> None:
        """Let the task continue although the second signal has cancelled it."""
        if self._task is not None:
            self._task.uncancel()

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._event.wait()

    async def unless(self, awaitable: Awaitable[T], *, grace: float = 0.0) -> T | None:
        """Return the awaitable's result; if a signal comes first, cancel it after ``grace`` seconds and return None."""
        work = asyncio.ensure_future(awaitable)
        signalled = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait([work, signalled], return_when=asyncio.FIRST_COMPLETED)
            if grace and not work.done():
                await asyncio.wait([work], timeout=grace)
            return work.result() if work.done() else None
        finally:
            signalled.cancel()
            work.cancel()
            await asyncio.gather(work, signalled, return_exceptions=True)


def run(body: Callable[[Interruption], Coroutine[Any, Any, int]]) -> int:
    """Run ``body`` and return its exit code, or that of the signal if the second one ended it."""

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
    """Run a command that needs no orderly end: the first signal cancels it."""

    async def interruptible(interruption: Interruption) -> int:
        code = await interruption.unless(body())
        return interruption.exit_code if code is None else code

    return run(interruptible)
