"""Futures of ``flush`` and ``close``, which wait for many records, and of ``drain``, which waits for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer.core.outcomes.delivery import FutureFactory

if TYPE_CHECKING:
    from asyncio import Future

# Futures resolved in one pass of the loop, which takes some tenths of a millisecond.
ENDED_AT_ONCE = 500

# Number of futures from which on cancelled ones are removed.
_MANY = 64


class Watches:
    """Batches and waiting records are numbered; a flush waits until the oldest unfinished number exceeds its own.

    Args:
        first_batch: returns the number of the oldest batch without an outcome, or of the next batch.
        first_in_line: returns the same for waiting records.
    """

    __slots__ = ("_batches", "_first_batch", "_first_in_line", "_line", "_loop", "_to_go_on")

    def __init__(
        self,
        loop: FutureFactory,
        *,
        first_batch: Callable[[], int],
        first_in_line: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._first_batch = first_batch
        self._first_in_line = first_in_line
        self._batches = Watched()
        self._line = Watched()
        # Whether another check is scheduled, because one pass may not resolve all.
        self._to_go_on = False

    def batches(self, last_number: int) -> Future[None]:
        """Return a future that is done when all batches up to a number have their outcomes."""
        return self._watch(self._batches, last_number)

    def line(self, last_number: int) -> Future[None]:
        """Return a future that is done when no record up to a number waits any more."""
        return self._watch(self._line, last_number)

    def _watch(self, watched: Watched, number: int) -> Future[None]:
        future: Future[None] = self._loop.create_future()
        watched.add(number, future)
        self.check()
        return future

    def check(self) -> None:
        """Resolve the futures that need not wait any more. Called when a batch ends or a record has left a line."""
        more = False
        if self._batches.waiting:
            more = self._batches.end(self._first_batch())
        if self._line.waiting:
            more = self._line.end(self._first_in_line()) or more
        if more and not self._to_go_on:
            self._to_go_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._to_go_on = False
        self.check()


class Watched:
    """Futures that wait for numbers to be passed; the numbers never decrease."""

    __slots__ = ("_many", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Future[None]]] = deque()
        self._many = _MANY

    def add(self, number: int, future: Future[None]) -> None:
        if len(self.waiting) >= self._many:
            # Cancelled futures behind one that still waits.
            self.waiting = deque([each for each in self.waiting if not each[1].done()])
            self._many = max(_MANY, 2 * len(self.waiting))
        self.waiting.append((number, future))

    def end(self, oldest: int) -> bool:
        """Resolve futures with a number below ``oldest``, at most ``ENDED_AT_ONCE``; return whether there are more."""
        waiting = self.waiting
        left = ENDED_AT_ONCE
        while waiting:
            number, future = waiting[0]
            if not future.done():
                if number >= oldest:
                    return False
                if not left:
                    return True
                left -= 1
                future.set_result(None)
            waiting.popleft()
        return False


class DrainWaiter:
    """A ``drain`` that waits for room; the numbers are the last ones that existed when it was called.

    memory_number, line_number
        Of records in the line for memory, and in any line.
    batch_number
        Of batches.
    behind_records
        Whether the line for memory had records.
    """

    __slots__ = ("batch_number", "behind_records", "future", "line_number", "memory_number")

    def __init__(
        self, future: Future[None], memory_number: int, line_number: int, batch_number: int, behind_records: bool
    ) -> None:
        self.future = future
        self.memory_number = memory_number
        self.line_number = line_number
        self.batch_number = batch_number
        self.behind_records = behind_records
