"""What ``send()`` returns: a future to asyncio, without being one inside.

A ``Delivery`` is two words: the batch of its record and the index there. Without a waiter there is no future.
Completing a batch of n records takes O(1) plus O(waiters).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

from aioproducer.core.outcomes.future_type import FutureOfMetadata
from aioproducer.core.outcomes.loops import may_nest
from aioproducer.errors import KafkaError
from aioproducer.record import RecordMetadata, TopicPartition

if TYPE_CHECKING:
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
    """The part of an event loop that deliveries need; the loop itself is given."""

    def create_future(self) -> Future[Any]: ...

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any: ...

    def call_exception_handler(self, context: dict[str, Any]) -> None: ...


# A waiter: callback (None for an Awaiting), its argument (the Delivery, or that Awaiting), context.
Waiter = tuple[Callable[..., Any] | None, Any, "Context | None"]


class OwnCallback:
    """A callback of the producer's own. A record that has no other is unobserved: its sender learns nothing by it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def __call__(self, delivery: Any) -> None:
        self._function(delivery)


# So many awaiters are woken by one callback of the loop.
WOKEN_TOGETHER = 64


class DeliveryGroup:
    """What stands behind deliveries: a batch, or a record that is still in line."""

    __slots__ = ("awaiting", "loop", "waiters")

    def __init__(self, loop: FutureFactory) -> None:
        self.loop = loop
        # The awaiters in the order of their records, as long as each record has at most one and none has left.
        self.awaiting: list[Awaiting] | None = None
        # Otherwise waiters by the record's index, so that one can leave without a look at those of other records. A
        # single awaiter is stored without a list.
        self.waiters: dict[int, Awaiting | list[Waiter]] | None = None

    def is_done(self, index: int) -> bool:
        raise AssertionError("the group says")

    def error(self, index: int) -> KafkaError | None:
        """A new exception object for a record that failed, or ``None``."""
        raise AssertionError("the group says")

    def metadata(self, index: int) -> RecordMetadata:
        raise AssertionError("the group says")

    def where(self) -> TopicPartition:
        raise AssertionError("the group says")

    def withdraw(self) -> None:
        """The only handle was cancelled: drop the record if it went nowhere yet."""

    def add_waiter(
        self, index: int, callback: Callable[..., Any] | None, argument: Any, context: Context | None = None
    ) -> None:
        """Wake with the record's outcome: an Awaiting (no callback), or a callback with its argument."""
        if callback is None and self.waiters is None:
            awaiting: Awaiting = argument
            awaiting._place = index
            if self.awaiting is None:
                self.awaiting = [awaiting]
                return
            last: Awaiting = self.awaiting[-1]
            if last._place < index:
                self.awaiting.append(awaiting)
                return
        waiters = self.by_index()
        there = waiters.get(index)
        if there is None and callback is None:
            waiters[index] = argument
        elif isinstance(there, list):
            there.append((callback, argument, context))
        else:
            waiters[index] = [*_as_list(there), (callback, argument, context)]

    def pop_waiters(self, index: int, only: object = None) -> list[Waiter]:
        """Take back the waiters for a record: all, or those with this callback or Awaiting."""
        if self.awaiting is None and self.waiters is None:
            return []
        waiters = self.by_index()
        if index not in waiters:
            return []
        all_of_record = _as_list(waiters.pop(index))
        if only is None:
            return all_of_record
        if isinstance(only, Awaiting):
            # It is there at most once, and mostly near the front: the first waiters give up first.
            for place, waiter in enumerate(all_of_record):
                if waiter[1] is only:
                    del all_of_record[place]
                    if all_of_record:
                        waiters[index] = all_of_record
                    return [waiter]
        staying = [each for each in all_of_record if only not in each[:2]]
        if staying:
            waiters[index] = staying
        return [each for each in all_of_record if only in each[:2]]

    def by_index(self) -> dict[int, Awaiting | list[Waiter]]:
        """Return all waiters by their records' indices, and keep them so from now on."""
        waiters = self.waiters
        if waiters is None:
            waiters = self.waiters = {}
        if self.awaiting is not None:
            for awaiting in self.awaiting:
                waiters[awaiting._place] = awaiting
            self.awaiting = None
        return waiters

    def observed_count(self) -> int:
        """How many records have an awaiter or a callback, the producer's own apart."""
        if self.awaiting is not None:
            return len(self.awaiting)
        return sum([_is_observed(there) for there in (self.waiters or {}).values()])

    def notify(self) -> None:
        """Wake all waiters, in the order in which their records were appended."""
        woken: list[Awaiting]
        if self.awaiting is not None:
            woken = _wake_all(self.awaiting)
            self.awaiting = None
            _call_back(self.loop, woken)
            return
        woken = []
        waiters = self.waiters
        if waiters:
            self.waiters = None
            for index in sorted(waiters) if len(waiters) > 1 else waiters:
                there = waiters[index]
                if isinstance(there, list):
                    _call_back(self.loop, woken)
                    woken = []
                    wake(self.loop, there)
                elif there.wake():
                    woken.append(there)
            _call_back(self.loop, woken)


def _is_observed(there: Awaiting | list[Waiter]) -> bool:
    if not isinstance(there, list):
        return True
    return any(not isinstance(callback, OwnCallback) for callback, _, _ in there)


def _as_list(waiters: Awaiting | list[Waiter] | None) -> list[Waiter]:
    if waiters is None:
        return []
    return waiters if isinstance(waiters, list) else [(None, waiters, None)]


def wake(loop: FutureFactory, waiters: list[Waiter]) -> None:
    for callback, argument, context in waiters:
        if callback is not None:
            try:
                loop.call_soon(callback, argument, context=context)
            except Exception as error:
                # A loop in debug mode refuses what it cannot call; nothing behind it is to wait for that.
                loop.call_exception_handler(
                    {"message": f"{argument!r} cannot call back {callback!r}", "exception": error}
                )
        elif argument.wake():
            _call_back(loop, [argument])


def _wake_all(awaiting: list[Awaiting]) -> list[Awaiting]:
    """Wake the awaiters; return those that have to be called back."""
    woken = []
    for each in awaiting:
        if each.wake():
            woken.append(each)
    return woken


def _call_back(loop: FutureFactory, woken: list[Awaiting]) -> None:
    """Schedule the callbacks of woken awaiters, some of them together: the loop makes a handle for each call."""
    if len(woken) == 1 or may_nest(loop):
        for each in woken:
            loop.call_soon(each.call_back)
        return
    for first in range(0, len(woken), WOKEN_TOGETHER):
        loop.call_soon(_Woken(loop, woken[first : first + WOKEN_TOGETHER]))


@cython.final
@cython.no_gc  # Handles are made by the million; what they hold lets go of them when its outcome is known.
@cython.cclass
class Delivery(FutureOfMetadata):
    """The outcome of one ``send()``, to be awaited, waited for, or let go.

    Works with ``await``, ``gather``, ``wait``, ``wait_for``, ``shield``, ``as_completed``, ``timeout`` and
    ``add_done_callback``. Awaiting gives the record's ``RecordMetadata`` or raises what failed it, a new exception
    object each time.

    ``cancel()`` succeeds on every undone Delivery and cancels this handle. The record itself is withdrawn only if it
    was still in line (``withdrawn``): a batch that was handed to a transport cannot be unsent.
    """

    __slots__ = ("_group", "_index")

    # asyncio.isfuture() looks at this name; no task ever sees a Delivery yielded, so that it stays False.
    _asyncio_future_blocking = False
    # gather(return_exceptions=True) reads it of one that is cancelled. There is no room for what cancel() was given.
    _cancel_message = None

    _group: DeliveryGroup
    _index: int

    def __init__(self, group: DeliveryGroup, index: int) -> None:
        self._group = group
        self._index = index

    @property
    def withdrawn(self) -> bool:
        """Whether ``cancel()`` came in time: the record was not in a batch yet and will not be sent."""
        return self._index < 0 and isinstance(self._group, Withdrawable) and self._group.withdrawn

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the record goes; partition -1 while none is chosen."""
        return self._group.where()

    def get_loop(self) -> AbstractEventLoop:
        """The producer's event loop."""
        return self._group.loop  # type: ignore[return-value]  # the loop itself, known here by what is used of it

    def done(self) -> bool:
        return self._index < 0 or self._group.is_done(self._index)

    def cancelled(self) -> bool:
        return self._index < 0

    def result(self) -> RecordMetadata:
        """The record's metadata.

        Raises:
            KafkaError: the record failed; a new object each time.
            asyncio.CancelledError: this handle was cancelled.
            asyncio.InvalidStateError: not done yet.
        """
        if self._index >= 0 and not self._group.is_done(self._index):
            self.exception()
        return _result_of(self)

    def exception(self) -> BaseException | None:
        """What failed the record, or ``None``; raises as ``result`` where there is no outcome."""
        if self._index < 0:
            raise self._make_cancelled_error()
        if not self._group.is_done(self._index):
            # The loop's own future knows asyncio's exception for this.
            self._group.loop.create_future().result()
        return self._group.error(self._index)

    def cancel(self, msg: Any | None = None) -> bool:
        if self.done():
            return False
        group, index = self._group, self._index
        self._index = -1 - index
        group.withdraw()
        wake(group.loop, group.pop_waiters(index))
        return True

    def add_done_callback(self, callback: Callable[[Delivery], object], /, *, context: Context | None = None) -> None:
        """Call ``callback`` with this once it is done, in ``context``, or else in the one that is current now."""
        if context is None:
            context = copy_context()
        if self.done():
            self._group.loop.call_soon(callback, self, context=context)
        else:
            self._group.add_waiter(self._index, callback, self, context)

    def remove_done_callback(self, callback: Callable[[Delivery], object], /) -> int:
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
        """Refuse to be copied or pickled, as a future does: of two handles, one would be woken for the other's end."""
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
    """``Delivery(group, index)``, without what a call of a class costs."""
    if not cython.compiled:
        return Delivery(group, index)
    delivery = Delivery.__new__(Delivery)
    delivery._group = group
    delivery._index = index
    return delivery


def _result_of(delivery: Delivery) -> RecordMetadata:
    """The outcome of one that is done."""
    group, index = delivery._group, delivery._index
    error = group.error(index) if index >= 0 else delivery.exception()
    if error is not None:
        try:
            raise error
        finally:
            # The traceback holds this frame: without this the error would hold itself, and this handle.
            del error
    return group.metadata(index)


IDLE, PENDING, WOKEN, CANCELLED = range(4)


class _NoLoop:
    """What a future that is done needs of its loop."""

    def get_debug(self) -> bool:
        return False


# A future of the loop's own kind whose result is None; all loops share it, as none is called for it.
_done: Any = None


def _done_future(loop: FutureFactory) -> Any:  # compiled only
    """A future that is done and of asyncio's own kind, or ``None`` where the loop makes others."""
    global _done
    if _done is None:
        kind: Any = type(loop.create_future())
        if kind.__module__ != "_asyncio":
            return None
        _done = kind(loop=_NoLoop())
        _done.set_result(None)
    return _done


@cython.final
@cython.freelist(64)
@cython.cclass
class Awaiting:
    """One ``await`` of an undone Delivery, and the future that the awaiting task is given to wait for.

    Cancelling one awaiter does not affect the others. It is generator and future in one object, without being an
    instance of either: the loop does not have to make it, and one handle calls many of them back.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_context",
        "_delivery",
        "_message",
        "_others",
        "_place",
        "_state",
    )

    # A task sees by it that this is for it to wait for, and not a bare yield.
    _asyncio_future_blocking: bool
    _delivery: Delivery
    # The record's index in the group that it waits in.
    _place: int
    _state: int
    # The first callback, which is the awaiting task's own and nearly always the only one.
    _callback: Callable[..., object] | None
    _context: Context | None
    _others: list[tuple[Callable[..., object], Context | None]] | None
    _message: Any

    def __iter__(self) -> Awaiting:
        return self

    def _step(self) -> RecordMetadata | None:
        """The outcome, or ``None`` where the task has to wait for this."""
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
            # As the statement below, but without a traceback, nor an exception object where Python allows it: Cython
            # makes of a bare `raise StopIteration` that no value is returned, and what is set stays set.
            PyErr_SetObject(StopIteration, metadata)
            raise StopIteration
        raise StopIteration(metadata)

    def send(self, value: object) -> Any:
        return self.__next__()

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        self.close()
        error = value if value is not None else kind() if isinstance(kind, type) else kind
        if isinstance(error, StopIteration):
            # PEP 479: it must not look like the outcome.
            raise StopIteration(self._delivery.result())
        raise error

    def close(self) -> None:
        if self._state == PENDING:
            # The group may be another by now: a record in line has gone into its batch.
            self._delivery._group.pop_waiters(self._delivery._index, self)

    # The future

    def wake(self) -> bool:
        """The record has its outcome; return whether a task has to be called back."""
        if self._state != PENDING:
            return False
        self._state = WOKEN
        return self._callback is not None

    def call_back(self) -> None:
        callback, context, others = self._callback, self._context, self._others
        self._callback = self._context = self._others = None
        if callback is None:
            return
        if others is not None:
            loop = self._delivery._group.loop
            for other, its_context in others:
                loop.call_soon(other, self, context=its_context)
        future: Any = self
        if cython.compiled and self._state == WOKEN and is_task_wakeup(callback):  # compiled only
            # Asked for its result, as every future is whose type the task does not know, this would say nothing else.
            future = _done_future(self._delivery._group.loop) or self
        if context is None:
            callback(future)
        else:
            context.run(callback, future)

    def get_loop(self) -> Any:
        return self._delivery._group.loop

    def done(self) -> bool:
        return self._state == WOKEN or self._state == CANCELLED

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
        if self._state != WOKEN:
            # The loop's own future knows asyncio's exceptions for this.
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
        there = [(self._callback, self._context), *(self._others or ())]
        staying = [each for each in there if each[0] != callback]
        self._callback, self._context = staying[0] if staying else (None, None)
        self._others = staying[1:] or None
        return len(there) - len(staying)

    def __repr__(self) -> str:
        return f"<Awaiting {self._delivery!r}>"


def _send_awaiting(awaiting: Awaiting, value: object, result: Any) -> int:  # compiled only
    """The type's slot for ``send``, which the interpreter calls in its place."""
    outcome: object = awaiting._step()
    is_over = outcome is not None
    if not is_over:
        outcome = awaiting
    Py_INCREF(outcome)
    result[0] = cython.cast(cython.pointer(PyObject), outcome)
    return 0 if is_over else 1


def resume(loop: FutureFactory, awaiting: list[Awaiting]) -> None:
    """Call back at once the awaiters of records with an outcome; must not be called from inside a task.

    If a callback may run the loop inside itself, the loop calls them: a nested run would wait for our caller.
    """
    woken = _wake_all(awaiting)
    if may_nest(loop):
        _call_back(loop, woken)
    else:
        _call_each(loop, woken)


def _call_each(loop: FutureFactory, woken: list[Awaiting]) -> None:
    """Call back woken awaiters one after the other, each in its context."""
    for place in range(len(woken)):
        awaiting = woken[place]
        try:
            awaiting.call_back()
        except Exception as error:
            loop.call_exception_handler({"message": f"Exception in callback of {awaiting!r}", "exception": error})
        except BaseException:
            # It ends the loop; the later awaiters must not wait for ever if the loop is run again.
            _call_back(loop, woken[place + 1 :])
            raise


class _Woken:
    """``_call_each`` of some, as a callback."""

    __slots__ = ("loop", "woken")

    def __init__(self, loop: FutureFactory, woken: list[Awaiting]) -> None:
        self.loop = loop
        self.woken = woken

    def __call__(self) -> None:
        _call_each(self.loop, self.woken)


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
            # See Awaiting.
            PyErr_SetObject(StopIteration, metadata)
            raise StopIteration
        raise StopIteration(metadata)


def _send_finished(finished: Finished, value: object, result: Any) -> int:  # compiled only
    outcome = _result_of(finished._delivery)
    Py_INCREF(outcome)
    result[0] = cython.cast(cython.pointer(PyObject), outcome)
    return 0


if cython.compiled:
    set_send_slot(Awaiting, cython.cast(cython.p_void, _send_awaiting))
    set_send_slot(Finished, cython.cast(cython.p_void, _send_finished))


def _await(delivery: Delivery) -> Generator[Any, None, RecordMetadata]:
    if delivery._index < 0 or delivery._group.is_done(delivery._index):
        finished: Finished = Finished.__new__(Finished)
        finished._delivery = delivery
        return finished  # type: ignore[return-value]  # a generator in all but its type
    awaiting: Awaiting = Awaiting.__new__(Awaiting)
    awaiting._delivery = delivery
    awaiting._state = IDLE
    awaiting._callback = awaiting._context = awaiting._others = None
    return awaiting


class Withdrawable(DeliveryGroup):
    """A group of one record that can still be taken back."""

    __slots__ = ("withdrawn",)

    def __init__(self, loop: FutureFactory) -> None:
        super().__init__(loop)
        self.withdrawn = False
