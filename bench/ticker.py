"""Lateness of a timer of 1 ms while its loop has other work, and the duration of the loop's callbacks.

Ticks are scheduled on a fixed grid of 1 ms. If the loop is blocked for 50 ms, 50 ticks are late, by 50, 49, ..., 1 ms,
although only one callback runs late. All 50 are counted; otherwise a slower loop would have fewer samples (coordinated
omission). The lateness of the callbacks alone, as ``asyncio.sleep(0.001)`` in a loop would see, is reported too.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Self

from bench.job import Measurement, percentile

INTERVAL = 0.001


class Ticker:
    """Ticks from its creation until ``stop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Not loop.time(): uvloop's is the start of the current iteration.
        self._next = time.monotonic() + INTERVAL
        self._seen: list[float] = []
        self._missed: list[float] = []
        self._handle = loop.call_later(INTERVAL, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        # A loop may fire early by its clock's resolution.
        late = max(now - self._next, 0.0)
        self._seen.append(late)
        self._next += INTERVAL
        self._miss(now)
        self._handle = self._loop.call_later(self._next - now, self._tick)

    def _miss(self, now: float) -> None:
        while self._next <= now:
            self._missed.append(now - self._next)
            self._next += INTERVAL

    def stop(self) -> Measurement:
        """Return the lateness in milliseconds."""
        self._handle.cancel()
        self._miss(time.monotonic())
        return summary(self._seen, self._missed)


def summary(seen: list[float], missed: list[float]) -> Measurement:
    """Return percentiles, in milliseconds, of lateness in seconds: of every tick of the grid, and of those that ran."""
    every = sorted(seen + missed)
    ran = sorted(seen)
    return {
        "ticks": len(every),
        **{f"late_p{name}_ms": percentile(every, name) * 1000 for name in (50, 99, 99.9)},
        "late_max_ms": every[-1] * 1000,
        **{f"ran_late_p{name}_ms": percentile(ran, name) * 1000 for name in (50, 99, 99.9)},
    }


class Callbacks:
    """Thread CPU time of each callback that asyncio's loop runs, by the name of the called function.

    asyncio's loop runs every callback, timer and step of a task through ``asyncio.Handle._run``, which is replaced by a
    function that reads the thread's CPU clock before and after. Only the loop's own selector runs outside it. Executor
    threads do not count; garbage collection inside a callback does.
    """

    def __init__(self) -> None:
        self.taken: dict[str, list[int]] = defaultdict(list)
        self._run = asyncio.Handle._run

    def __enter__(self) -> Self:
        run, taken, clock = self._run, self.taken, time.thread_time_ns

        def timed(handle: asyncio.Handle) -> None:
            name = name_of(handle._callback)
            began = clock()
            run(handle)
            taken[name].append(clock() - began)

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]

    def summary(self, ours_begin: str, callers: str = "") -> Measurement:
        """Return figures in microseconds of the callbacks with names that begin with the given prefix.

        ``callers`` names the caller's task: its steps contain its own work and that of ``send``.
        """
        ours = sorted(one for name, taken in self.taken.items() if name.startswith(ours_begin) for one in taken)
        callers_own = sorted(self.taken.get(callers, []))
        longest = sorted(((max(taken), len(taken), name) for name, taken in self.taken.items()), reverse=True)
        return {
            "callbacks": len(ours),
            "callback_p99.9_us": percentile(ours, 99.9) / 1000 if ours else 0.0,
            "callback_max_us": ours[-1] / 1000 if ours else 0.0,
            "caller_step_max_us": callers_own[-1] / 1000 if callers_own else 0.0,
            "longest_us": {name: [most / 1000, count] for most, count, name in longest[:12]},
        }


def name_of(callback: object) -> str:
    """Return a callback's module and name; for the step of a task, those of its coroutine."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        frame = getattr(coroutine, "cr_frame", None)
        module = frame.f_globals.get("__name__", "") if frame is not None else ""
        return f"{module}.{getattr(coroutine, '__qualname__', type(coroutine).__qualname__)}"
    wrapped = getattr(callback, "func", callback)
    owner = getattr(wrapped, "__self__", None)
    module = getattr(wrapped, "__module__", None) or type(owner).__module__
    return f"{module}.{getattr(wrapped, '__qualname__', type(wrapped).__qualname__)}"
