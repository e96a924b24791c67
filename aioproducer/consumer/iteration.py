"""Compiled. ``RecordIterator``: ``async for`` over records, without a coroutine for a record that is decoded already.

No Python form: ``_send_next`` fills the slot ``am_send`` of ``NextRecord``, so that a record is returned without
``StopIteration``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.consumer.iteration import PyIter_Send
    from cython.cimports.aioproducer.core.outcomes.delivery import set_send_slot
    from cython.cimports.cpython.object import PyObject
    from cython.cimports.cpython.ref import Py_INCREF

if TYPE_CHECKING:
    import asyncio

    from aioproducer.consumer.membership import Membership
    from aioproducer.core.fetching.records import ConsumerRecord
    from aioproducer.core.fetching.turns import RecordTurns


@cython.final
@cython.cclass
class RecordIterator:
    """The records of a consumer, one after the other.

    Args:
        wait: returns the next record once there is one; raises StopAsyncIteration at the end. It serves each call that
            finds ``is_open`` False, news of the group, or no decoded record.
    """

    __slots__ = ("_loop", "_membership", "_records", "_wait", "is_open")

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, ConsumerRecord]]) -> None:
        self._wait = wait
        self.is_open = False
        """Whether a decoded record may be returned at once: the consumer is running, and no call is in progress."""
        self._records: RecordTurns | None = None
        self._membership: Membership | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, records: RecordTurns, membership: Membership | None, loop: asyncio.AbstractEventLoop) -> None:
        """Return decoded records from now on; each counts as a request of the group's member for records."""
        self._records = records
        self._membership = membership
        self._loop = loop
        self.is_open = True

    def __aiter__(self) -> RecordIterator:
        return self

    def __anext__(self) -> NextRecord:
        return NextRecord(self)

    def take(self) -> ConsumerRecord | None:
        """Return the next record if it is decoded and may be returned; those before count as processed then."""
        if not self.is_open:
            return None
        membership = self._membership
        if membership is not None and membership.has_news:
            return None
        assert self._records is not None
        record = self._records.next_one()
        if record is not None and membership is not None:
            assert self._loop is not None
            membership.polled_at = self._loop.time()
        return record

    def wait(self) -> Coroutine[Any, Any, ConsumerRecord]:
        """Return the coroutine of the long way."""
        return self._wait()


@cython.final
@cython.cclass
class NextRecord:
    """The coroutine of one call of ``anext``. The record is taken when it runs, so that one that never runs loses none.

    ``asyncio.create_task`` and its like accept it, as it has the methods of ``collections.abc.Coroutine``.
    """

    __slots__ = ("_is_done", "_iterator", "_waiting")

    def __init__(self, iterator: RecordIterator) -> None:
        self._iterator = iterator
        self._waiting: Coroutine[Any, Any, ConsumerRecord] | None = None
        self._is_done = False

    def __await__(self) -> NextRecord:
        return self

    def __iter__(self) -> NextRecord:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: object) -> Any:
        """Return what the call waits for; StopIteration has the record."""
        record = self._begin()
        if record is not None:
            raise StopIteration(record)
        assert self._waiting is not None
        return self._waiting.send(value)

    def _begin(self) -> ConsumerRecord | None:
        """Return the record if it can be had without waiting, else let ``_waiting`` get it."""
        if self._waiting is None:
            if self._is_done:
                raise RuntimeError("cannot reuse already awaited coroutine")
            self._is_done = True
            record = self._iterator.take()
            if record is not None:
                return record
            self._waiting = self._iterator.wait()
        return None

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise an exception where the call waits; before it runs, here."""
        error = value if value is not None else kind() if isinstance(kind, type) else kind
        if self._waiting is None:
            self._is_done = True
            raise error
        return self._waiting.throw(error)

    def close(self) -> None:
        """End the call; it may not have begun."""
        self._is_done = True
        if self._waiting is not None:
            self._waiting.close()


# Compiled only


def _send_next(following: NextRecord, value: object, result: Any) -> int:
    """``send``, for the interpreter: return 0 and the record, 1 and what the call waits for, or -1 with an error."""
    record = following._begin()
    if record is not None:
        Py_INCREF(record)
        result[0] = cython.cast(cython.pointer(PyObject), record)
        return 0
    status: int = PyIter_Send(following._waiting, value, result)
    return status


if cython.compiled:
    set_send_slot(NextRecord, cython.cast(cython.p_void, _send_next))
