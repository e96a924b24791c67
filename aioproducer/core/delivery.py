"""What ``send()`` returns: a future to asyncio, without being one inside.

A ``Delivery`` is two words, the batch its record went into and its index there. Until somebody waits there is no
``asyncio.Future``; completing a batch of n records costs O(1) plus O(those who wait).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from aioproducer.core.future_type import FutureOfMetadata
from aioproducer.errors import KafkaError
from aioproducer.record import RecordMetadata, TopicPartition

try:
    import cython
except ImportError:
    from aioproducer.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.exc import PyErr_SetObject

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from contextvars import Context


class FutureFactory(Protocol):
    """The part of an event loop that deliveries need; the loop itself is given."""

    def create_future(self) -> Future[Any]: ...

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any: ...


# One who waits: callback (None for an awaiting future), its argument (the Delivery, or that future), context.
Waiter = tuple[Callable[..., Any] | None, Any, "Context | None"]


class DeliveryGroup:
    """What stands behind deliveries: a batch, or a record that is still in line."""

    __slots__ = ("loop", "waiters")

    def __init__(self, loop: FutureFactory) -> None:
        self.loop = loop
        # By the record's index, so that leaving costs no look at those who wait for other records. One awaiter alone,
        # which is what nearly every record has, stands as its bare future.
        self.waiters: dict[int, Future[None] | list[Waiter]] | None = None

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
        """Wake with the record's outcome: a future (no callback), or a callback with its argument."""
        waiters = self.waiters
        if waiters is None:
            waiters = self.waiters = {}
        there = waiters.get(index)
        if there is None and callback is None:
            waiters[index] = argument
        else:
            waiters[index] = [*_as_list(there), (callback, argument, context)]

    def pop_waiters(self, index: int, only: object = None) -> list[Waiter]:
        """Take back the waiters for a record: all, or those with this callback or future."""
        waiters = self.waiters
        if waiters is None or index not in waiters:
            return []
        all_of_record = _as_list(waiters.pop(index))
        if only is None:
            return all_of_record
        staying = [each for each in all_of_record if only not in each[:2]]
        if staying:
            waiters[index] = staying
        return [each for each in all_of_record if only in each[:2]]

    def notify(self) -> None:
        """Wake all who wait, in the order in which their records were appended."""
        waiters = self.waiters
        if waiters:
            self.waiters = None
            for index in sorted(waiters):
                there = waiters[index]
                if isinstance(there, list):
                    wake(self.loop, there)
                elif not there.done():
                    there.set_result(None)


def _as_list(waiters: Future[None] | list[Waiter] | None) -> list[Waiter]:
    if waiters is None:
        return []
    return waiters if isinstance(waiters, list) else [(None, waiters, None)]


def wake(loop: FutureFactory, waiters: list[Waiter]) -> None:
    for callback, argument, context in waiters:
        if callback is not None:
            loop.call_soon(callback, argument, context=context)
        elif not argument.done():
            argument.set_result(None)


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
        return _new_awaiting(self)

    def __iter__(self) -> Generator[Any, None, RecordMetadata]:
        return _new_awaiting(self)

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
    group, index = delivery._group, delivery._index
    error = group.error(index) if index >= 0 and group.is_done(index) else delivery.exception()
    if error is not None:
        try:
            raise error
        finally:
            # The traceback holds this frame: without this the error would hold itself, and this handle.
            del error
    return group.metadata(index)


@cython.final
@cython.freelist(64)
@cython.cclass
class Awaiting:
    """One ``await`` of a Delivery: waits by a future of its own, whose cancellation is nobody else's business.

    A generator in all but its type; an object of this class takes a fourth of the time to make.
    """

    __slots__ = ("_delivery", "_future")

    _delivery: Delivery
    _future: Future[None] | None

    def __iter__(self) -> Awaiting:
        return self

    def __next__(self) -> Any:
        delivery = self._delivery
        future = self._future
        if future is not None:
            if not future.done():
                raise RuntimeError("await wasn't used with future")
            self._future = None
            # Raises where the awaiter was cancelled.
            future.result()
        elif delivery._index >= 0 and not delivery._group.is_done(delivery._index):
            group = delivery._group
            future = self._future = group.loop.create_future()
            group.add_waiter(delivery._index, None, future, None)
            # How a task knows that this is for it to wait for, and not a bare yield.
            future._asyncio_future_blocking = True
            return future
        metadata = _result_of(delivery)
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
        future, self._future = self._future, None
        if future is not None:
            # The group may be another by now: a record in line has gone into its batch.
            self._delivery._group.pop_waiters(self._delivery._index, future)


def _new_awaiting(delivery: Delivery) -> Awaiting:
    awaiting: Awaiting = Awaiting.__new__(Awaiting)
    awaiting._delivery = delivery
    awaiting._future = None
    return awaiting


class Withdrawable(DeliveryGroup):
    """A group of one record that can still be taken back."""

    __slots__ = ("withdrawn",)

    def __init__(self, loop: FutureFactory) -> None:
        super().__init__(loop)
        self.withdrawn = False
