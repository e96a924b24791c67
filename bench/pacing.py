"""Records at scheduled times: an open loop, in which no record waits for the outcome of an earlier one.

Latency counts from the scheduled time. A pause of 50 ms delays all records scheduled in it, and each of them counts
(otherwise: coordinated omission). A timer of the kernel (`timerfd`) wakes every client at the scheduled times. asyncio,
uvloop and Go round their own timers up to milliseconds, which is more than most latencies.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns

SECOND = 1_000_000_000


class Schedule:
    """``count`` records at ``rate`` a second: the first one interval after ``began``, in nanoseconds."""

    def __init__(self, rate: int, count: int, began: int) -> None:
        """Set up the schedule.

        Raises:
            ValueError: the interval is not a whole number of nanoseconds, or there is no record.
        """
        self.interval = interval_of(rate)
        if count < 1:
            raise ValueError(f"Nothing to schedule: {count} records.")
        self._next = began + self.interval
        self._last = began + count * self.interval

    def take(self, now: int) -> list[int]:
        """Return the scheduled times that have passed since the last call, in order."""
        until = min(now, self._last)
        times = list(range(self._next, until + 1, self.interval))
        if times:
            self._next = times[-1] + self.interval
        return times

    @property
    def ended(self) -> bool:
        """Whether every scheduled time has been returned."""
        return self._next > self._last


def interval_of(rate: int) -> int:
    """Return the nanoseconds from one record to the next.

    Raises:
        ValueError: it is not a whole number of nanoseconds.
    """
    if rate < 1 or SECOND % rate:
        raise ValueError(f"Invalid rate: {rate} records/s. It must divide {SECOND}, as 2000 does.")
    return SECOND // rate


async def at_rate(rate: int, count: int, send: Callable[[int], object]) -> None:
    """Call ``send`` with the scheduled time of each record, at that time, on the running loop.

    ``send`` must not block; the scheduled time is in nanoseconds of `time.monotonic_ns`.

    Raises:
        ValueError: see `Schedule`.
        OSError: the kernel has no such timer.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    with _timer(rate) as (descriptor, began):
        schedule = Schedule(rate, count, began)

        def fire() -> None:
            if ended.done():
                return
            try:
                os.read(descriptor, 8)
                for scheduled in schedule.take(monotonic_ns()):
                    send(scheduled)
                if schedule.ended:
                    ended.set_result(None)
            except Exception as error:
                ended.set_exception(error)

        loop.add_reader(descriptor, fire)
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)


def at_rate_blocking(rate: int, count: int, send: Callable[[int], object]) -> None:
    """Call ``send`` with the scheduled time of each record, at that time, in this thread.

    Raises:
        ValueError: see `Schedule`.
        OSError: the kernel has no such timer.
    """
    with _timer(rate) as (descriptor, began):
        schedule = Schedule(rate, count, began)
        while not schedule.ended:
            os.read(descriptor, 8)
            for scheduled in schedule.take(monotonic_ns()):
                send(scheduled)


class _Interval(ctypes.Structure):
    """The C structure `itimerspec`."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


@contextmanager
def _timer(rate: int) -> Iterator[tuple[int, int]]:
    """Return a descriptor that becomes readable at the times of a schedule, and its start in nanoseconds."""
    seconds, nanoseconds = divmod(interval_of(rate), SECOND)
    if sys.platform != "linux":
        raise OSError("Records at scheduled times need Linux: the timer is a timerfd.")
    # os.timerfd_create came with Python 3.13.
    library = ctypes.CDLL(None, use_errno=True)
    monotonic_clock, close_on_exec = 1, os.O_CLOEXEC
    descriptor = library.timerfd_create(monotonic_clock, close_on_exec)
    if descriptor < 0:
        raise _error()
    try:
        began = monotonic_ns()
        setting = _Interval(seconds, nanoseconds, seconds, nanoseconds)
        if library.timerfd_settime(descriptor, 0, ctypes.byref(setting), None) < 0:
            raise _error()
        yield descriptor, began
    finally:
        os.close(descriptor)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
