"""A server's clock that only a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aioproducer.broker.server.server import Server


class ManualClock:
    """The loop of a server, with a time that stands still between calls of ``advance``.

    A stall of the machine makes none of the server's timers due. Callbacks and tasks run as on the real loop.
    """

    def __init__(self, server: Server) -> None:
        """Give a server without connections this clock."""
        assert not server.connections
        self._loop = server._loop
        self._now = self._loop.time()
        self._timers: list[asyncio.TimerHandle] = []
        server._loop = server.memory._loop = self  # type: ignore[assignment]  # as much of a loop as both need

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *arguments)

    def call_at(self, when: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, arguments, self)  # type: ignore[arg-type]  # as above
        if when > self._now:
            self._timers.append(timer)
        else:
            self._loop.call_soon(self._run, timer)
        return timer

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        """Ignore what a cancelled timer reports to its loop: it runs nothing."""

    def advance(self, seconds: float) -> None:
        """Move the time, and run the timers that are due then. Those that they start run in later iterations."""
        self._now += seconds
        due = sorted(timer for timer in self._timers if timer.when() <= self._now)
        self._timers = [timer for timer in self._timers if timer.when() > self._now]
        for timer in due:
            self._run(timer)

    def _run(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            timer._run()
