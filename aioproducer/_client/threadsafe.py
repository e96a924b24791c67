"""A producer's interface for other threads."""

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
        """The methods of a producer that other threads use."""

        @property
        def send_many(self) -> Callable[..., Coroutine[Any, Any, SendManyResult]]: ...


_T = TypeVar("_T")

# Bytes that a pending call occupies besides its record.
CALL_OVERHEAD = 1024

_LOOP_CLOSED_MEANWHILE = (
    "the producer's event loop was closed before this call ended; its records may have been written nevertheless. "
    "Close the producer before its loop (`async with Producer(...)`)"
)


class ThreadsafeFuture(concurrent.futures.Future[_T]):
    """A ``concurrent.futures.Future`` whose ``result`` and ``exception`` raise in the loop's own thread.

    They would never return there. ``cancel`` cancels the Delivery, or the whole ``send_many`` or ``flush``.
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
                "this call would block the event loop's thread for ever, as that thread delivers the record: "
                "`await producer.send(...)` instead"
            )


class ThreadsafeProducer:
    """``send``, ``send_many`` and ``flush`` for any thread, including threads with their own event loop.

    Errors go into the future; a call raises only if the loop is closed. When the producer is closed, calls that have
    not reached the loop fail. In the child of a fork, all calls fail. Records of one thread keep their order. No call
    blocks: records on their way to the loop occupy at most ``buffer_memory`` bytes, and further ones fail with
    ``BufferExhaustedError``.
    """

    def __init__(self, producer: Sends, loop: asyncio.AbstractEventLoop, buffer_memory: int) -> None:
        """Create it in the loop's thread."""
        self._producer = producer
        self._loop = loop
        self._loop_thread = get_ident()
        self._size_limit = buffer_memory
        self._lock = Lock()
        self._size = 0
        # Calls that the loop has not started; it never does if it is closed first.
        self._pending: set[ThreadsafeFuture[Any]] = set()
        # Calls that the loop has started.
        self._started: set[ThreadsafeFuture[Any]] = set()
        self._life = Life.RUNNING

    def refuse(self, life: Life) -> None:
        """Fail the pending calls and all later ones, because the producer has entered this state."""
        with self._lock:
            self._life = life
            pending, self._pending = self._pending, set()
            self._size = 0
        for future in pending:
            _fail(future, ownership.not_running(life))
        if life is Life.LOOP_CLOSED:
            # The loop runs no more callbacks, and threads may wait for these.
            started, self._started = self._started, set()
            for future in started:
                _fail(future, ProducerClosedError(_LOOP_CLOSED_MEANWHILE))

    def disown_after_fork(self) -> None:
        """Fail all calls in the child. The threads that held the lock or wait for futures exist only in the parent."""
        self._lock = Lock()
        self._pending = set()
        self._started = set()
        self.refuse(Life.FORKED)

    def send(
        self, topic: str, value: Any = None, key: Any = None, **options: Any
    ) -> concurrent.futures.Future[RecordMetadata]:
        """Call ``Producer.send`` on the loop; ``options`` are its keyword arguments."""
        return self._call(
            lambda: self._producer.send(topic, value, key, **options),
            validation.size_of(value)
            + validation.size_of(key)
            + validation.size_of_headers(options.get("headers"))
            + CALL_OVERHEAD,
        )

    def send_many(self, topic: str, values: Any, **options: Any) -> concurrent.futures.Future[SendManyResult]:
        """Call ``Producer.send_many`` on the loop; the columns must not change until the future is done."""
        return self._call(lambda: self._loop.create_task(self._producer.send_many(topic, values, **options)))

    def flush(self) -> concurrent.futures.Future[None]:
        """Call ``Producer.flush`` on the loop; it includes this thread's earlier sends."""
        return self._call(lambda: self._loop.create_task(self._producer.flush()))

    def _call(self, begin: Callable[[], asyncio.Future[_T]], size: int = 0) -> concurrent.futures.Future[_T]:
        """Schedule ``begin`` on the loop; the outcome of its result becomes that of the returned future."""
        future: ThreadsafeFuture[_T] = ThreadsafeFuture(self._loop_thread)
        with self._lock:
            count = len(self._pending)
            if self._life is Life.LOOP_CLOSED:
                raise ownership.not_running(self._life)
            if self._life is not Life.RUNNING:
                future.set_exception(ownership.not_running(self._life))
                return future
            if size and count and self._size + size > self._size_limit:
                future.set_exception(line_full(size, self._size, self._size_limit, count))
                return future
            self._size += size
            self._pending.add(future)
        try:
            self._loop.call_soon_threadsafe(self._begin, future, begin, size)
        except RuntimeError as error:
            with self._lock:
                self._pending.discard(future)
            raise ownership.not_running(Life.LOOP_CLOSED) from error
        return future

    def _begin(self, future: ThreadsafeFuture[_T], begin: Callable[[], asyncio.Future[_T]], size: int) -> None:
        with self._lock:
            if future not in self._pending:
                # The producer was closed meanwhile.
                return
            self._pending.remove(future)
            self._size -= size
        if future.cancelled():
            future.set_running_or_notify_cancel()
            return
        try:
            outcome = begin()
        except (Exception, asyncio.CancelledError) as error:
            _fail(future, error)
            return
        # The future stays cancellable until the outcome is there.
        self._started.add(future)
        outcome.add_done_callback(OwnCallback(lambda outcome: self._finish(outcome, future)))
        future.add_done_callback(lambda future: self._cancel(outcome) if future.cancelled() else None)

    def _finish(self, outcome: asyncio.Future[_T], future: ThreadsafeFuture[_T]) -> None:
        self._started.discard(future)
        _copy(outcome, future)

    def _cancel(self, outcome: asyncio.Future[_T]) -> None:
        """Cancel the outcome on the loop; runs in the thread that cancelled the future."""
        try:
            self._loop.call_soon_threadsafe(outcome.cancel)
        except RuntimeError:
            # The loop is closed: no call is in progress.
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
        _fail(future, error)


def _fail(future: concurrent.futures.Future[_T], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
