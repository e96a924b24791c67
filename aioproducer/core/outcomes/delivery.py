"""Compiled. ``Delivery``: the return value of ``send()``, which asyncio accepts as a future although it contains none.

A ``Delivery`` consists of two fields: the batch of its record, and the index in the batch. Without a waiter there is no
future. Completing a batch of n records takes O(1) plus O(waiters).

No Python form: ``_send_awaiting`` and ``_send_finished`` fill the ``send`` slots of their types. ``__next__`` sets
``StopIteration`` by ``PyErr_SetObject``. ``call_back`` passes a task in C a finished future, see ``_done_future``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

from aioproducer.core.outcomes.future_type import FutureOfMetadata
from aioproducer.core.outcomes.loops import may_nest
from aioproducer.errors import KafkaError
from aioproducer.record import RecordMetadata, TopicPartition

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.core.outcomes.delivery import is_task_wakeup, set_send_slot
    from cython.cimports.cpython.exc import PyErr_SetObject
    from cython.cimports.cpython.object import PyObject
    from cython.cimports.cpython.ref import Py_INCREF

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from contextvars import Context


class FutureFactory(Protocol):
    """The part of an event loop that deliveries use; the callers pass the loop itself."""

    def create_future(self) -> Future[Any]: ...

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any: ...

    def call_exception_handler(self, context: dict[str, Any]) -> None: ...


# A waiter: callback (None for an Awaiting), its argument (the Delivery, or that Awaiting), context.
Waiter = tuple[Callable[..., Any] | None, Any, "Context | None"]


class OwnCallback:
    """A callback of the producer itself. A record with no other callback is unobserved: its sender gets no outcome."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def __call__(self, delivery: Any) -> None:
        self._function(delivery)


# Called with a group when its records have their outcomes, before any of their waiters runs.
OnOutcome = Callable[["DeliveryGroup"], None]

# One callback of the loop resumes at most this many awaiting tasks.
AWAITERS_PER_CALLBACK = 64


class DeliveryGroup:
    """The record or records behind deliveries: a batch, or a record that still waits for one."""

    __slots__ = ("awaiting", "loop", "waiters")

    def __init__(self, loop: FutureFactory) -> None:
        self.loop = loop
        # The awaiters in the order of their records, while each record has at most one and none was removed.
        self.awaiting: list[Awaiting] | None = None
        # Otherwise the waiters by the record's index: removing one does not search those of other records. A single
        # awaiter is stored without a list.
        self.waiters: dict[int, Awaiting | list[Waiter]] | None = None

    def is_done(self, index: int) -> bool:
        """Return whether the record has its outcome."""
        raise NotImplementedError

    def error(self, index: int) -> KafkaError | None:
        """Return a new exception object for a record that failed, or ``None``."""
        raise NotImplementedError

    def metadata(self, index: int) -> RecordMetadata:
        """Return the metadata of a record that was delivered."""
        raise NotImplementedError

    def where(self) -> TopicPartition:
        """Return the partition of the records."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Drop the record if it is in no batch yet: its only Delivery was cancelled."""

    def add_waiter(
        self, index: int, callback: Callable[..., Any] | None, argument: Any, context: Context | None = None
    ) -> None:
        """Add a waiter for the record's outcome: an Awaiting (no callback), or a callback with its argument."""
        if callback is None and self.waiters is None:
            awaiting: Awaiting = argument
            awaiting._index = index
            if self.awaiting is None:
                self.awaiting = [awaiting]
                return
            last: Awaiting = self.awaiting[-1]
            if last._index < index:
                self.awaiting.append(awaiting)
                return
        waiters = self.by_index()
        present = waiters.get(index)
        if present is None and callback is None:
            waiters[index] = argument
        elif isinstance(present, list):
            present.append((callback, argument, context))
        else:
            waiters[index] = [*_as_list(present), (callback, argument, context)]

    def pop_waiters(self, index: int, only: object = None) -> list[Waiter]:
        """Remove and return the waiters for a record: all, or those with this callback or Awaiting."""
        if self.awaiting is None and self.waiters is None:
            return []
        waiters = self.by_index()
        if index not in waiters:
            return []
        all_of_record = _as_list(waiters.pop(index))
        if only is None:
            return all_of_record
        if isinstance(only, Awaiting):
            # It occurs at most once, and usually near the front: the first waiters give up first.
            for position, waiter in enumerate(all_of_record):
                if waiter[1] is only:
                    del all_of_record[position]
                    if all_of_record:
                        waiters[index] = all_of_record
                    return [waiter]
        staying = [each for each in all_of_record if only not in each[:2]]
        if staying:
            waiters[index] = staying
        return [each for each in all_of_record if only in each[:2]]

    def by_index(self) -> dict[int, Awaiting | list[Waiter]]:
        """Return all waiters by the indices of their records, and store them like this from now on."""
        waiters = self.waiters
        if waiters is None:
            waiters = self.waiters = {}
        if self.awaiting is not None:
            for awaiting in self.awaiting:
                waiters[awaiting._index] = awaiting
            self.awaiting = None
        return waiters

    def observed_count(self) -> int:
        """Return the number of records with an awaiter or a callback other than ``OwnCallback``."""
        if self.awaiting is not None:
            return len(self.awaiting)
        return sum([_is_observed(waiters) for waiters in (self.waiters or {}).values()])

    def notify(self) -> None:
        """Wake all waiters, in the order in which their records were appended."""
        awaiters: list[Awaiting]
        if self.awaiting is not None:
            awaiters = _wake_all(self.awaiting)
            self.awaiting = None
            _call_back(self.loop, awaiters)
            return
        awaiters = []
        waiters = self.waiters
        if waiters:
            self.waiters = None
            for index in sorted(waiters) if len(waiters) > 1 else waiters:
                of_record = waiters[index]
                if isinstance(of_record, list):
                    _call_back(self.loop, awaiters)
                    awaiters = []
                    wake(self.loop, of_record)
                elif of_record.wake():
                    awaiters.append(of_record)
            _call_back(self.loop, awaiters)


def _is_observed(waiters: Awaiting | list[Waiter]) -> bool:
    if not isinstance(waiters, list):
        return True
    return any(not isinstance(callback, OwnCallback) for callback, _, _ in waiters)


def _as_list(waiters: Awaiting | list[Waiter] | None) -> list[Waiter]:
    if waiters is None:
        return []
    return waiters if isinstance(waiters, list) else [(None, waiters, None)]


def wake(loop: FutureFactory, waiters: list[Waiter]) -> None:
    """Wake all waiters of a record, in order."""
    for callback, argument, context in waiters:
        if callback is not None:
            try:
                loop.call_soon(callback, argument, context=context)
            except Exception as error:
                # A loop in debug mode rejects an object that is not callable. Later waiters must not miss the outcome.
                loop.call_exception_handler(
                    {"message": f"The callback {callback!r} of {argument!r} cannot be scheduled", "exception": error}
                )
        elif argument.wake():
            _call_back(loop, [argument])


def _wake_all(awaiting: list[Awaiting]) -> list[Awaiting]:
    """Wake the awaiters; return those with a task to call back."""
    awaiters = []
    for each in awaiting:
        if each.wake():
            awaiters.append(each)
    return awaiters


def _call_back(loop: FutureFactory, awaiters: list[Awaiting]) -> None:
    """Schedule the callbacks of awaiters, several in one call: the loop creates a handle for each call."""
    if len(awaiters) == 1 or may_nest(loop):
        for each in awaiters:
            loop.call_soon(each.call_back)
        return
    for first in range(0, len(awaiters), AWAITERS_PER_CALLBACK):
        loop.call_soon(_AwaiterCallback(loop, awaiters[first : first + AWAITERS_PER_CALLBACK]))


@cython.final
@cython.no_gc  # There are millions of deliveries; their groups drop references to them when the outcome is known.
@cython.cclass
class Delivery(FutureOfMetadata):
    """The outcome of one ``send()``: await it, pass it to asyncio's functions, or drop it.

    It works with ``await``, ``gather``, ``wait``, ``wait_for``, ``shield``, ``as_completed``, ``timeout`` and
    ``add_done_callback``. Awaiting it returns the record's ``RecordMetadata`` or raises the record's error, a new
    exception object each time.

    ``cancel()`` succeeds on every undone Delivery and cancels this handle. The record itself is withdrawn only if it
    was in no batch yet (``withdrawn``): a batch that was handed to a transport cannot be unsent.
    """

    __slots__ = ("_group", "_index")

    # asyncio.isfuture() checks for this name. No task ever receives a yielded Delivery: it stays False.
    _asyncio_future_blocking = False
    # gather(return_exceptions=True) reads it of a cancelled future. The argument of cancel() is not stored.
    _cancel_message = None

    _group: DeliveryGroup
    _index: int

    def __init__(self, group: DeliveryGroup, index: int) -> None:
        self._group = group
        self._index = index

    @property
    def withdrawn(self) -> bool:
        """Whether ``cancel()`` withdrew the record: it was in no batch yet and will not be sent."""
        return self._index < 0 and isinstance(self._group, Withdrawable) and self._group.withdrawn

    @property
    def topic_partition(self) -> TopicPartition:
        """The record's topic and partition; the partition is -1 while none is chosen."""
        return self._group.where()

    def get_loop(self) -> AbstractEventLoop:
        """The producer's event loop."""
        return self._group.loop  # type: ignore[return-value]  # the loop itself, of which this module uses a part

    def done(self) -> bool:
        return self._index < 0 or self._group.is_done(self._index)

    def cancelled(self) -> bool:
        return self._index < 0

    def result(self) -> RecordMetadata:
        """Return the record's metadata.

        Raises:
            KafkaError: the record failed; each call raises a new object.
            asyncio.CancelledError: this handle was cancelled.
            asyncio.InvalidStateError: there is no outcome yet.
        """
        if self._index >= 0 and not self._group.is_done(self._index):
            self.exception()
        return _result_of(self)

    def exception(self) -> BaseException | None:
        """Return the record's error, or ``None``; raise as ``result`` does if there is no outcome."""
        if self._index < 0:
            raise self._make_cancelled_error()
        if not self._group.is_done(self._index):
            # A future of the loop raises asyncio's exception for this.
            self._group.loop.create_future().result()
        return self._group.error(self._index)

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel this handle, and withdraw its record if it is in no batch yet; return False if it is done."""
        if self.done():
            return False
        group, index = self._group, self._index
        self._index = -1 - index
        group.withdraw()
        wake(group.loop, group.pop_waiters(index))
        return True

    def add_done_callback(self, callback: Callable[[Delivery], object], /, *, context: Context | None = None) -> None:
        """Call ``callback`` with this Delivery when it is done, in ``context`` or else the current context."""
        if context is None:
            context = copy_context()
        if self.done():
            self._group.loop.call_soon(callback, self, context=context)
        else:
            self._group.add_waiter(self._index, callback, self, context)

    def remove_done_callback(self, callback: Callable[[Delivery], object], /) -> int:
        """Remove a callback, and return how many times it was added."""
        if self._index < 0:
            return 0
        return len(self._group.pop_waiters(self._index, callback))

    def _make_cancelled_error(self) -> Any:
        future = self._group.loop.create_future()
        future.cancel()
        return future._make_cancelled_error()  # type: ignore[attr-defined]  # asyncio's own protocol between futures

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return _await(self)

    def __iter__(self) -> Generator[Any, None, RecordMetadata]:
        return _await(self)

    def __reduce__(self) -> str:
        """Reject copying and pickling, as a future does: of two handles, the group could notify only one."""
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def __repr__(self) -> str:
        if self._index < 0:
            state = "withdrawn" if self.withdrawn else "cancelled"
        elif not self._group.is_done(self._index):
            state = "pending"
        else:
            error = self._group.error(self._index)
            state = repr(self._group.metadata(self._index)) if error is None else repr(error)
        return f"<Delivery {state}>"


def new_delivery(group: DeliveryGroup, index: int) -> Delivery:
    """Return ``Delivery(group, index)`` without the cost of calling a class."""
    if not cython.compiled:
        return Delivery(group, index)
    delivery = Delivery.__new__(Delivery)
    delivery._group = group
    delivery._index = index
    return delivery


def _result_of(delivery: Delivery) -> RecordMetadata:
    """Return the metadata of a record that has its outcome, or raise its error."""
    group, index = delivery._group, delivery._index
    error = group.error(index) if index >= 0 else delivery.exception()
    if error is not None:
        try:
            raise error
        finally:
            # The traceback refers to this frame: otherwise the error would refer to itself, and to this Delivery.
            del error
    return group.metadata(index)


IDLE, PENDING, FINISHED, CANCELLED = range(4)


class _NoLoop:
    """The part of a loop that a finished future uses."""

    def get_debug(self) -> bool:
        return False


@cython.final
@cython.freelist(64)
@cython.cclass
class Awaiting:
    """One ``await`` of an undone Delivery, and the future that the awaiting task waits for.

    Cancelling one awaiter does not affect the others. One object acts as generator and as future, without being an
    instance of either: the loop does not have to create it, and one handle of the loop calls many of them back.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_context",
        "_delivery",
        "_index",
        "_message",
        "_others",
        "_state",
    )

    # A task checks it to distinguish a future to wait for from a bare yield.
    _asyncio_future_blocking: bool
    _delivery: Delivery
    # The record's index in its group.
    _index: int
    _state: int
    # The first callback, which is that of the awaiting task and nearly always the only one.
    _callback: Callable[..., object] | None
    _context: Context | None
    _others: list[tuple[Callable[..., object], Context | None]] | None
    _message: Any

    def __iter__(self) -> Awaiting:
        return self

    def _step(self) -> RecordMetadata | None:
        """Return the metadata, or ``None`` if the task has to wait for this future; raise the record's error."""
        delivery = self._delivery
        if self._state == IDLE:
            group = delivery._group
            if delivery._index >= 0 and not group.is_done(delivery._index):
                self._state = PENDING
                self._asyncio_future_blocking = True
                group.add_waiter(delivery._index, None, self, None)
                return None
        elif self._state == PENDING:
            raise RuntimeError("await wasn't used with future")
        elif self._state == CANCELLED:
            self.result()
        return _result_of(delivery)

    def __next__(self) -> Any:
        metadata = self._step()
        if metadata is None:
            return self
        if cython.compiled:
            # Has the effect of the statement below, but without a traceback, and without an exception object if Python
            # allows it. Cython compiles a bare `raise StopIteration` to a return without a value: the set error stays.
            PyErr_SetObject(StopIteration, metadata)
            raise StopIteration
        raise StopIteration(metadata)

    def send(self, value: object) -> Any:
        return self.__next__()

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        self.close()
        error = value if value is not None else kind() if isinstance(kind, type) else kind
        if isinstance(error, StopIteration):
            # PEP 479: a thrown StopIteration must not be taken for the outcome.
            raise StopIteration(self._delivery.result())
        raise error

    def close(self) -> None:
        if self._state == PENDING:
            # The group may have changed: a waiting record has entered its batch.
            self._delivery._group.pop_waiters(self._delivery._index, self)

    # The future

    def wake(self) -> bool:
        """Finish the future, as the record has its outcome; return whether a callback has to be called."""
        if self._state != PENDING:
            return False
        self._state = FINISHED
        return self._callback is not None

    def call_back(self) -> None:
        """Call the first callback in its context, and schedule the others."""
        callback, context, others = self._callback, self._context, self._others
        self._callback = self._context = self._others = None
        if callback is None:
            return
        if others is not None:
            loop = self._delivery._group.loop
            for other, its_context in others:
                loop.call_soon(other, self, context=its_context)
        future: Any = self
        if cython.compiled and self._state == FINISHED and is_task_wakeup(callback):
            # A task reads the result of its own type of future directly, and calls ``result`` of any other type. Both
            # have the same result.
            future = _done_future(self._delivery._group.loop) or self
        if context is None:
            callback(future)
        else:
            context.run(callback, future)

    def get_loop(self) -> Any:
        return self._delivery._group.loop

    def done(self) -> bool:
        return self._state == FINISHED or self._state == CANCELLED

    def cancelled(self) -> bool:
        return self._state == CANCELLED

    def cancel(self, msg: Any | None = None) -> bool:
        if self._state != PENDING:
            return False
        self.close()
        self._state = CANCELLED
        self._message = msg
        if self._callback is not None:
            _call_back(self._delivery._group.loop, [self])
        return True

    def result(self) -> None:
        if self._state != FINISHED:
            # A future of the loop raises asyncio's exceptions for this.
            future = self._delivery._group.loop.create_future()
            if self._state == CANCELLED:
                future.cancel(self._message)
            future.result()

    def exception(self) -> None:
        self.result()

    def add_done_callback(self, callback: Callable[..., object], /, *, context: Context | None = None) -> None:
        if context is None:
            context = copy_context()
        if self._callback is None:
            self._callback, self._context = callback, context
        elif self._others is None:
            self._others = [(callback, context)]
        else:
            self._others.append((callback, context))
        if self._state != PENDING:
            _call_back(self._delivery._group.loop, [self])

    def remove_done_callback(self, callback: Callable[..., object], /) -> int:
        if self._callback is None:
            return 0
        present = [(self._callback, self._context), *(self._others or ())]
        staying = [each for each in present if each[0] != callback]
        self._callback, self._context = staying[0] if staying else (None, None)
        self._others = staying[1:] or None
        return len(present) - len(staying)

    def __repr__(self) -> str:
        return f"<Awaiting {self._delivery!r}>"


def resume(loop: FutureFactory, awaiting: list[Awaiting]) -> None:
    """Call back at once the awaiters of records with an outcome; must not be called inside a task.

    If a callback may run the loop, the callbacks are scheduled instead: a nested run would wait for the caller.
    """
    awaiters = _wake_all(awaiting)
    if may_nest(loop):
        _call_back(loop, awaiters)
    else:
        _call_each(loop, awaiters)


def _call_each(loop: FutureFactory, awaiters: list[Awaiting]) -> None:
    """Call back awaiters one after the other, each in its context."""
    for position in range(len(awaiters)):
        awaiting = awaiters[position]
        try:
            awaiting.call_back()
        except Exception as error:
            loop.call_exception_handler({"message": f"Exception in callback of {awaiting!r}", "exception": error})
        except BaseException:
            # The exception ends the loop. If the loop is run again, the later awaiters must not wait for ever.
            _call_back(loop, awaiters[position + 1 :])
            raise


class _AwaiterCallback:
    """A callback of the loop that calls back several awaiters."""

    __slots__ = ("awaiters", "loop")

    def __init__(self, loop: FutureFactory, awaiters: list[Awaiting]) -> None:
        self.loop = loop
        self.awaiters = awaiters

    def __call__(self) -> None:
        _call_each(self.loop, self.awaiters)


@cython.final
@cython.freelist(64)
@cython.no_gc
@cython.cclass
class Finished:
    """One ``await`` of a Delivery that is done."""

    __slots__ = ("_delivery",)

    _delivery: Delivery

    def __iter__(self) -> Finished:
        return self

    def __next__(self) -> Any:
        metadata = _result_of(self._delivery)
        if cython.compiled:
            # As in ``Awaiting``.
            PyErr_SetObject(StopIteration, metadata)
            raise StopIteration
        raise StopIteration(metadata)


def _await(delivery: Delivery) -> Generator[Any, None, RecordMetadata]:
    """Return the iterator of one ``await``."""
    if delivery._index < 0 or delivery._group.is_done(delivery._index):
        finished: Finished = Finished.__new__(Finished)
        finished._delivery = delivery
        return finished  # type: ignore[return-value]  # it has the methods of a generator that an await uses
    awaiting: Awaiting = Awaiting.__new__(Awaiting)
    awaiting._delivery = delivery
    awaiting._state = IDLE
    awaiting._callback = awaiting._context = awaiting._others = None
    return awaiting


class Withdrawable(DeliveryGroup):
    """A group of one record that can be withdrawn."""

    __slots__ = ("withdrawn",)

    def __init__(self, loop: FutureFactory) -> None:
        super().__init__(loop)
        self.withdrawn = False


# Compiled only

# A finished future of asyncio's type in C, with the result None. All loops share it, as it never calls its loop.
_done: Any = None


def _done_future(loop: FutureFactory) -> Any:
    """Return a finished future of asyncio's type in C, or ``None`` if the loop creates futures of another type."""
    global _done
    if _done is None:
        kind: Any = type(loop.create_future())
        if kind.__module__ != "_asyncio":
            return None
        _done = kind(loop=_NoLoop())
        _done.set_result(None)
    return _done


def _send_awaiting(awaiting: Awaiting, value: object, result: Any) -> int:
    """Fill the slot ``am_send`` of ``Awaiting``, which the interpreter calls instead of ``send``."""
    outcome: object = awaiting._step()
    is_over = outcome is not None
    if not is_over:
        outcome = awaiting
    Py_INCREF(outcome)
    result[0] = cython.cast(cython.pointer(PyObject), outcome)
    return 0 if is_over else 1


def _send_finished(finished: Finished, value: object, result: Any) -> int:
    """Fill the slot ``am_send`` of ``Finished``."""
    outcome = _result_of(finished._delivery)
    Py_INCREF(outcome)
    result[0] = cython.cast(cython.pointer(PyObject), outcome)
    return 0


if cython.compiled:
    set_send_slot(Awaiting, cython.cast(cython.p_void, _send_awaiting))
    set_send_slot(Finished, cython.cast(cython.p_void, _send_finished))
