"""Compiled. Futures of ``flush`` and ``close``, which wait for many records, and the wait that is none.

No Python form: ``_send_no_wait`` fills the ``send`` slot of its type.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aioproducer.core.outcomes.delivery import FutureFactory

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.core.outcomes.delivery import set_send_slot
    from cython.cimports.cpython.object import PyObject
    from cython.cimports.cpython.ref import Py_INCREF

if TYPE_CHECKING:
    from asyncio import Future

# Futures resolved in one pass of the loop, which takes some tenths of a millisecond.
RESOLVED_PER_PASS = 500

# Number of futures from which on cancelled ones are removed.
_MANY = 64


class FlushWaiters:
    """Batches and waiting records are numbered; a flush waits until the oldest unfinished number exceeds its own.

    Args:
        first_batch: returns the number of the oldest batch without an outcome, or of the next batch.
        first_record: returns the same for waiting records.
    """

    __slots__ = ("_batches", "_continues", "_first_batch", "_first_record", "_loop", "_records")

    def __init__(
        self,
        loop: FutureFactory,
        *,
        first_batch: Callable[[], int],
        first_record: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._first_batch = first_batch
        self._first_record = first_record
        self._batches = WaiterQueue()
        self._records = WaiterQueue()
        # Whether another check is scheduled, because one pass may not resolve all.
        self._continues = False

    def batches(self, last_number: int) -> Future[None]:
        """Return a future that is done when all batches up to a number have their outcomes."""
        return self._add(self._batches, last_number)

    def records(self, last_number: int) -> Future[None]:
        """Return a future that is done when no record up to a number waits any more."""
        return self._add(self._records, last_number)

    def _add(self, queue: WaiterQueue, number: int) -> Future[None]:
        future: Future[None] = self._loop.create_future()
        queue.add(number, future)
        self.check()
        return future

    def check(self) -> None:
        """Resolve the futures that need not wait any more. Called when a batch ends or a record no longer waits."""
        more = False
        if self._batches.waiting:
            more = self._batches.resolve(self._first_batch())
        if self._records.waiting:
            more = self._records.resolve(self._first_record()) or more
        if more and not self._continues:
            self._continues = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._continues = False
        self.check()


class WaiterQueue:
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

    def resolve(self, oldest: int) -> bool:
        """Resolve ``RESOLVED_PER_PASS`` futures with numbers below ``oldest``; return whether there are more."""
        waiting = self.waiting
        left = RESOLVED_PER_PASS
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


@cython.final
@cython.cclass
class NoWait:
    """A coroutine that has nothing to wait for: ``drain`` returns it while there is room.

    It has no state, so that one object serves all calls. ``asyncio.create_task`` and its like accept it, as it has the
    methods of ``collections.abc.Coroutine``.
    """

    __slots__ = ()

    def __await__(self) -> NoWait:
        return self

    def __iter__(self) -> NoWait:
        return self

    def __next__(self) -> None:
        raise StopIteration

    def send(self, value: object) -> None:
        raise StopIteration

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> None:
        raise value if value is not None else kind() if isinstance(kind, type) else kind

    def close(self) -> None:
        """Nothing to close."""


NO_WAIT = NoWait()


# Compiled only


def _send_no_wait(wait: NoWait, value: object, result: Any) -> int:
    """Fill the slot ``am_send`` of ``NoWait``, which the interpreter calls instead of ``send``."""
    outcome: object = None
    Py_INCREF(outcome)
    result[0] = cython.cast(cython.pointer(PyObject), outcome)
    return 0


if cython.compiled:
    set_send_slot(NoWait, cython.cast(cython.p_void, _send_no_wait))
