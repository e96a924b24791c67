"""How late a timer of 1 ms fires while its loop has other work, and how long the loop's callbacks take.

The ticks stand on a grid of 1 ms that nothing shifts. A loop that is held for 50 ms makes 50 ticks late, by 50, 49,
..., 1 ms, although one callback alone runs late: all 50 are counted, or else the worse a loop does the fewer samples
tell of it (coordinated omission). What callbacks alone saw, as ``asyncio.sleep(0.001)`` in a loop would, is beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Self

from bench.job import Measurement, percentile

INTERVAL = 0.001


class Ticker:
    """Ticks from when it is made until ``stop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Not loop.time(): uvloop's is that of the turn's beginning, which knows nothing of what the turn has taken.
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
        """Milliseconds of lateness."""
        self._handle.cancel()
        self._miss(time.monotonic())
        return summary(self._seen, self._missed)


def summary(seen: list[float], missed: list[float]) -> Measurement:
    """Percentiles, in milliseconds, of lateness in seconds: of every tick of the grid, and of those that ran."""
    every = sorted(seen + missed)
    ran = sorted(seen)
    return {
        "ticks": len(every),
        **{f"late_p{name}_ms": percentile(every, name) * 1000 for name in (50, 99, 99.9)},
        "late_max_ms": every[-1] * 1000,
        **{f"ran_late_p{name}_ms": percentile(ran, name) * 1000 for name in (50, 99, 99.9)},
    }


class Callbacks:
    """Thread CPU time of each callback that the plain loop runs, by what was called.

    The plain loop runs every callback, timer and step of a task through ``asyncio.Handle._run``; that is replaced by
    one that reads the thread's CPU clock before and after. Nothing runs outside of it but the loop's own selector. What
    a thread of an executor does is not the loop's; what the garbage collector does in a callback is.
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
        """In microseconds, of the callbacks whose names begin so.

        ``callers`` names the caller's task: its steps are its own work and ``send``'s together.
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
    """Where a callback comes from: module and name; for the step of a task, those of its coroutine."""
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
