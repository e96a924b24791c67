"""Run a coroutine on virtual time, and find what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from tests.simulation.loop import VirtualLoop

T = TypeVar("T")


class SteppedClock:
    """A loop whose clock shows these times first, one at each look, and its own time after them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, times: Iterable[float]) -> None:
        self._loop = loop
        self._times = iter(times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return next(self._times, None) or self._loop.time()


def run_to_end(loop: VirtualLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` and close ``loop``; no task, no timer and no exception that was never retrieved may be left."""
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        result = loop.run_until_complete(main)
        gc.collect()
        assert not asyncio.all_tasks(loop), asyncio.all_tasks(loop)
        assert not loop.pending_timers()
    finally:
        loop.close()
    gc.collect()
    assert not reported, reported
    return result
