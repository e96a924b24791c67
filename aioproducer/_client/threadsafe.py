"""A producer for other threads than its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from aioproducer._client import ownership, validation
from aioproducer._client.ownership import Life
from aioproducer._common.diagnosis import line_full
from aioproducer.core.outcomes.delivery import OwnCallback
from aioproducer.errors import ProducerClosedError, WrongCallerError

if TYPE_CHECKING:
    from typing import Protocol

    from aioproducer._client.bulk import SendManyResult
    from aioproducer._client.bulk import Sends as SendsInBulk
    from aioproducer.record import RecordMetadata

    class Sends(SendsInBulk, Protocol):
        """The producer, as far as other threads need it."""

        @property
        def send_many(self) -> Callable[..., Coroutine[Any, Any, SendManyResult]]: ...


_T = TypeVar("_T")

# What a call on its way to the loop holds besides its record.
CALL_OVERHEAD = 1024

_LOOP_CLOSED_MEANWHILE = (
    "the producer's event loop was closed before this was done; records may have been written all the same. Close the "
    "producer before its loop (`async with Producer(...)`)"
)


class ThreadsafeFuture(concurrent.futures.Future[_T]):
    """A ``concurrent.futures.Future`` whose ``result`` and ``exception`` do not wait in the loop's own thread.

    They would wait for ever there. Cancelling it cancels the Delivery, or the whole ``send_many`` or ``flush``.
    """

    def __init__(self, loop_thread: int) -> None:
        super().__init__()
        self._loop_thread = loop_thread

    def result(self, timeout: float | None = None) -> _T:
        self._check_thread()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_thread()
        return super().exception(timeout)

    def _check_thread(self) -> None:
        if get_ident() == self._loop_thread and not self.done():
            raise WrongCallerError(
                "this would wait for itself: the event loop's thread has to deliver what is waited for here; await "
                "producer.send() instead"
            )


class ThreadsafeProducer:
    """``send``, ``send_many`` and ``flush`` for any thread, also one with another event loop.

    What goes wrong, goes into the future: nothing but a closed loop raises here. When the producer is closed, what is
    still on its way to the loop fails; after a fork everything does, in the child. Records of one thread keep their
    order. No call blocks: records on their way to the loop are bounded by ``buffer_memory``, and fail with
    ``BufferExhaustedError`` past that.
    """

    def __init__(self, producer: Sends, loop: asyncio.AbstractEventLoop, buffer_memory: int) -> None:
        """To be called in the loop's thread."""
        self._producer = producer
        self._loop = loop
        self._loop_thread = get_ident()
        self._size_limit = buffer_memory
        self._lock = Lock()
        self._size = 0
        # On their way to the loop, which does not come to them where it ends before.
        self._on_the_way: set[ThreadsafeFuture[Any]] = set()
        # Those behind them, that the loop has begun.
        self._begun: set[ThreadsafeFuture[Any]] = set()
        self._life = Life.RUNNING

    def refuse(self, life: Life) -> None:
        """Fail the calls that are on their way and all later ones: the producer has entered this state."""
        with self._lock:
            self._life = life
            on_the_way, self._on_the_way = self._on_the_way, set()
            self._size = 0
        for future in on_the_way:
            _end(future, ownership.not_running(life))
        if life is Life.LOOP_CLOSED:
            # No callback ends them any more, and threads may wait for them.
            begun, self._begun = self._begun, set()
            for future in begun:
                _end(future, ProducerClosedError(_LOOP_CLOSED_MEANWHILE))

    def disown_after_fork(self) -> None:
        """In the child: refuse all. The threads that held the lock or wait for futures are in the parent."""
        self._lock = Lock()
        self._on_the_way = set()
        self._begun = set()
        self.refuse(Life.FORKED)

    def send(
        self, topic: str, value: Any = None, key: Any = None, **options: Any
    ) -> concurrent.futures.Future[RecordMetadata]:
        """``Producer.send``."""
        return self._call(
            lambda: self._producer.send(topic, value, key, **options),
            validation.size_of(value)
            + validation.size_of(key)
            + validation.size_of_headers(options.get("headers"))
            + CALL_OVERHEAD,
        )

    def send_many(self, topic: str, values: Any, **options: Any) -> concurrent.futures.Future[SendManyResult]:
        """``Producer.send_many``; the columns must not be changed before it is done."""
        return self._call(lambda: self._loop.create_task(self._producer.send_many(topic, values, **options)))

    def flush(self) -> concurrent.futures.Future[None]:
        """``Producer.flush``: of what was sent before, this thread's sends included."""
        return self._call(lambda: self._loop.create_task(self._producer.flush()))

    def _call(self, begin: Callable[[], asyncio.Future[_T]], size: int = 0) -> concurrent.futures.Future[_T]:
        """Let ``begin`` run on the loop, and what it returns end the future that is returned."""
        future: ThreadsafeFuture[_T] = ThreadsafeFuture(self._loop_thread)
        with self._lock:
            count = len(self._on_the_way)
            if self._life is Life.LOOP_CLOSED:
                raise ownership.not_running(self._life)
            if self._life is not Life.RUNNING:
                future.set_exception(ownership.not_running(self._life))
                return future
            if size and count and self._size + size > self._size_limit:
                future.set_exception(line_full(size, self._size, self._size_limit, count))
                return future
            self._size += size
            self._on_the_way.add(future)
        try:
            self._loop.call_soon_threadsafe(self._begin, future, begin, size)
        except RuntimeError as error:
            with self._lock:
                self._on_the_way.discard(future)
            raise ownership.not_running(Life.LOOP_CLOSED) from error
        return future

    def _begin(self, future: ThreadsafeFuture[_T], begin: Callable[[], asyncio.Future[_T]], size: int) -> None:
        with self._lock:
            if future not in self._on_the_way:
                # The producer was closed meanwhile.
                return
            self._on_the_way.remove(future)
            self._size -= size
        if future.cancelled():
            future.set_running_or_notify_cancel()
            return
        try:
            outcome = begin()
        except (Exception, asyncio.CancelledError) as error:
            _end(future, error)
            return
        # Until it has ended the future is pending, and can be cancelled.
        self._begun.add(future)
        outcome.add_done_callback(OwnCallback(lambda outcome: self._finish(outcome, future)))
        future.add_done_callback(lambda future: self._cancel(outcome) if future.cancelled() else None)

    def _finish(self, outcome: asyncio.Future[_T], future: ThreadsafeFuture[_T]) -> None:
        self._begun.discard(future)
        _copy(outcome, future)

    def _cancel(self, outcome: asyncio.Future[_T]) -> None:
        """In the thread that has cancelled."""
        try:
            self._loop.call_soon_threadsafe(outcome.cancel)
        except RuntimeError:
            # The loop is closed: nothing is under way any more.
            return


def _copy(outcome: asyncio.Future[_T], future: concurrent.futures.Future[_T]) -> None:
    if outcome.cancelled():
        future.cancel()
        future.set_running_or_notify_cancel()
        return
    error = outcome.exception()
    if error is None:
        if future.set_running_or_notify_cancel():
            future.set_result(outcome.result())
    else:
        _end(future, error)


def _end(future: concurrent.futures.Future[_T], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
