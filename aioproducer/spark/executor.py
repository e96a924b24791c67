"""The event loop of a Spark worker's process, in a separate thread, and one producer for each configuration.

A worker runs many tasks in a row, and Spark ends it by SIGKILL. The first task creates the loop and the producers, and
later tasks use them again. Each task waits for its own rows before it ends. The processes in which Spark plans and
commits micro-batches have one too, and keep a sink's connections on it.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import os
import socket
import threading
from collections.abc import Coroutine, Hashable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from aioproducer.config import ProducerConfig
from aioproducer.errors import KafkaError, ProducerClosedError, WrongCallerError
from aioproducer.spark.statistics import MeteredProducer

if TYPE_CHECKING:
    from aioproducer.producer import Producer

logger = logging.getLogger("aioproducer.spark")

T = TypeVar("T")

# The producers' client.id, unless the configuration has one.
CLIENT_ID = "aioproducer-executor"
# How long accepted rows may still be delivered when the loop is closed, in seconds.
CLOSE_GRACE = 1.0
# How long everything else may take to end afterwards, in seconds.
END_MARGIN = 5.0
# How long a caller waits for the end of a cancelled coroutine, in seconds.
CANCEL_GRACE = 1.0
# With more producers than this, some configurations probably differ by mistake.
MANY_PRODUCERS = 8
# Sinks that stay connected between their batches.
KEPT_CONNECTED = 4

_FORKED = "this belongs to the parent process: call executor_producer() or run() again in this process, after the fork"


class Call(Generic[T]):
    """A coroutine on the executor's loop, for the thread that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._refusal: KafkaError | None = None
        self._ended = threading.Event()
        self._cancelling = False

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def begin(self) -> None:
        """Start the coroutine. Call this on the loop."""
        if not self.ended:
            self._task = self._loop.create_task(self._coroutine)
            self._task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            # Otherwise asyncio would log it as never retrieved if the caller no longer waits.
            task.exception()
        self._ended.set()

    def refuse(self, error: KafkaError) -> None:
        """Fail an unfinished call: its coroutine has not begun, or can no longer continue."""
        if not self.ended:
            self._refusal = error
            if self._task is None:
                self._coroutine.close()
            self._ended.set()

    def cancel(self) -> None:
        """Cancel the coroutine, once, without waiting for its end."""
        if self.ended or self._cancelling:
            return
        self._cancelling = True
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            # The loop is closed: everything on it has ended.
            return

    def _cancel(self) -> None:
        if self._task is None:
            self.refuse(ProducerClosedError(f"{self._name()} was cancelled before it began"))
        else:
            self._task.cancel()

    def result(self, timeout: float | None = None) -> T:
        """Return the coroutine's result, or raise its error. An exception that ends the wait cancels the coroutine.

        Raises:
            TimeoutError: it did not end within ``timeout`` seconds.
            ProducerClosedError: the loop was closed before it ended.
            asyncio.CancelledError: it cancelled itself.
        """
        try:
            in_time = self._ended.wait(timeout)
        except BaseException:
            self._cancel_and_wait()
            raise
        if not in_time:
            self._cancel_and_wait()
            if self._was_cancelled() or not self.ended:
                how = "was cancelled" if self.ended else "was cancelled, which has not ended it yet"
                raise TimeoutError(f"{self._name()} did not end within {timeout:g} s: it {how}")
        if self._refusal is not None:
            raise self._refusal
        if self._was_cancelled() and self._cancelling:
            raise ProducerClosedError(f"{self._name()} was cancelled, as everything is when the loop is closed")
        assert self._task is not None
        return self._task.result()

    def _cancel_and_wait(self) -> None:
        self.cancel()
        self._ended.wait(CANCEL_GRACE)

    def _was_cancelled(self) -> bool:
        return self._task is not None and self._task.cancelled()

    def _name(self) -> str:
        return getattr(self._coroutine, "__qualname__", repr(self._coroutine))


class Connected(Protocol):
    """Something with connections on the executor's loop."""

    async def close(self) -> None: ...


class _Kept(NamedTuple):
    config: ProducerConfig
    producer: MeteredProducer


class Executor:
    """An event loop in a daemon thread, and the producers on it. ``Executor.current()`` is this process's."""

    def __init__(self) -> None:
        self.loop = _new_event_loop()
        self.over = False
        """Whether it accepts no more calls: it was closed, has failed, or belongs to the parent of a forked process."""
        self._is_forked = False
        self._why_over = "the executor's event loop was closed"
        self._kept: list[_Kept] = []
        self._idle_connections: dict[Hashable, Connected] = {}
        self._making = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._calls: set[Call[Any]] = set()
        self._lock = threading.Lock()
        self._grace = CLOSE_GRACE
        self._thread = threading.Thread(target=self._serve, name="aioproducer-executor", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.loop.close()
            raise

    @staticmethod
    def current() -> Executor:
        """Return the executor of this process; the first use, also after its end, creates one."""
        global _current
        with _current_lock:
            if _current is None or _current.over:
                _current = Executor()
            return _current

    # For other threads

    @property
    def thread_id(self) -> int | None:
        """The result of ``threading.get_ident`` in the loop's thread."""
        return self._thread.ident

    def check_caller(self) -> None:
        """
        Raises:
            WrongCallerError: this is the loop's own thread, which would wait for itself, or a forked process.
            ProducerClosedError: the loop has ended.
        """
        if self.over:
            raise self._refusal()
        if get_ident() == self._thread.ident:
            raise WrongCallerError(
                "this call on the executor's own event loop would wait for itself: await instead, or call it in "
                "another thread"
            )

    def _refusal(self) -> KafkaError:
        if self._is_forked:
            return WrongCallerError(_FORKED)
        return ProducerClosedError(f"{self._why_over}; executor_producer() and run() make a new one")

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop, and return its result. An exception that ends the wait cancels the coroutine.

        Raises:
            TimeoutError: it did not end within ``timeout`` seconds, and was cancelled.
            WrongCallerError: this is the loop's own thread, which would wait for itself, or a forked process.
            ProducerClosedError: the loop was closed.
            TypeError: it is no coroutine.
        """
        if not inspect.iscoroutine(coroutine):
            raise TypeError(f"give a coroutine, as work() is one of `async def work()`, not {coroutine!r}")
        call: Call[T] = Call(self.loop, coroutine)
        try:
            self.check_caller()
            self._submit(call)
            return call.result(timeout)
        except BaseException:
            self._give_up(call)
            raise
        finally:
            self._calls.discard(call)

    def _submit(self, call: Call[Any]) -> None:
        with self._lock:
            if self.over:
                raise self._refusal()
            self._calls.add(call)
            self.loop.call_soon_threadsafe(call.begin)

    def _give_up(self, call: Call[Any]) -> None:
        if call in self._calls:
            call.cancel()
        else:
            call.refuse(self._refusal())

    def close(self, timeout: float = CLOSE_GRACE) -> None:
        """Close the producers, which deliver their records for at most ``timeout`` seconds, and end the loop.

        Raises:
            WrongCallerError: this is the loop's own thread.
        """
        if get_ident() == self._thread.ident:
            raise WrongCallerError("the executor cannot be closed on its own event loop: close it in another thread")
        with self._lock:
            if self._is_forked:
                return
            if not self.over:
                self.over = True
                self._grace = timeout
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout + END_MARGIN)
        if self._thread.is_alive():
            logger.warning("the executor's event loop has not ended: a callback on it blocks")

    def leave_to_parent(self) -> None:
        """Stop all use after a fork: the thread and the connections belong to the parent process."""
        self._is_forked = True
        self.over = True
        for task in asyncio.all_tasks(self.loop):
            # The task continues in the parent process. Here it ends with the process, which asyncio need not log.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch

    # On the loop

    async def producer(self, config: Mapping[str, object]) -> Producer:
        """Return the started producer of a configuration. Await this on the loop.

        Equal configurations share one producer. A producer that was closed, or has failed with a fatal error, is
        replaced. ``send_statistics`` compares two results of its ``metrics()``.

        Raises:
            ConfigurationError: the configuration is wrong.
            WrongCallerError: this is another loop.
        """
        if get_ident() != self._thread.ident:
            raise WrongCallerError(
                "the producer would belong to another event loop: let executor.run() await this call"
            )
        if "client.id" not in config and "client_id" not in config:
            config = {**config, "client.id": CLIENT_ID}
        parsed = ProducerConfig.from_mapping(config)
        async with self._making:
            kept = next((each for each in self._kept if each.config == parsed), None)
            if kept is not None and kept.producer.is_usable:
                return kept.producer
            if kept is not None:
                self._kept.remove(kept)
                self._retire(kept.producer)
            producer = MeteredProducer.metered(config)
            await producer.start()
            self._kept.append(_Kept(parsed, producer))
        if len(self._kept) > MANY_PRODUCERS:
            logger.warning(
                "%d producers in this process, each with its own connections and buffer.memory. Equal configurations "
                "share one, and are equal if their values are; a new function or object in each task is not",
                len(self._kept),
            )
        return producer

    def keep_connected(self, key: Hashable, connected: Connected) -> None:
        """Keep connections that are not in use, for ``take_connected`` with the same key.

        The end of the loop closes them, or more than ``KEPT_CONNECTED`` kept after them, or others of the same key.
        """
        idle = self._idle_connections
        other = idle.pop(key, None)
        if other is not None:
            self._end_later(other.close())
        idle[key] = connected
        if len(idle) > KEPT_CONNECTED:
            self._end_later(idle.pop(next(iter(idle))).close())

    def take_connected(self, key: Hashable) -> Connected | None:
        """Return what was kept for the key, for this caller alone, or None."""
        return self._idle_connections.pop(key, None)

    def discard(self, producer: Producer, timeout: float = 0.0) -> None:
        """Close a producer that ``producer`` has returned, without waiting; the next call makes another one.

        Args:
            timeout: seconds in which an open transaction can be aborted.
        """
        self._kept = [kept for kept in self._kept if kept.producer is not producer]
        self._retire(producer, timeout)

    def _retire(self, producer: Producer, timeout: float = 0.0) -> None:
        self._end_later(producer.close(timeout))

    def _end_later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(closing)
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _serve(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            if not self.over:
                self._why_over = "the executor's event loop was stopped"
        except BaseException as error:
            # A user's coroutine can raise SystemExit or KeyboardInterrupt through the loop.
            self._why_over = f"the executor's event loop was ended by {error!r}"
            logger.error("%s", self._why_over)
        try:
            with self._lock:
                self.over = True
            loop.run_until_complete(self._end())
        finally:
            loop.close()
            for call in list(self._calls):
                call.refuse(self._refusal())

    async def _end(self) -> None:
        for call in list(self._calls):
            call.cancel()
        closing = [asyncio.ensure_future(kept.producer.close(self._grace)) for kept in self._kept]
        closing += [asyncio.ensure_future(each.close()) for each in self._idle_connections.values()]
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                logger.warning("connections could not be closed: %r", error)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=CANCEL_GRACE)
        await self.loop.shutdown_asyncgens()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()

    class Loop(uvloop.Loop):
        """Resolves names in Python's threads: libuv joins its own at the end of a process, also of a forked one."""

        async def getaddrinfo(
            self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
        ) -> Any:
            return await self.run_in_executor(None, socket.getaddrinfo, host, port, family, type, proto, flags)

    return Loop()


_current: Executor | None = None
_current_lock = threading.Lock()
# Never collected in the child: their finalizers would change what they share with the parent process.
_left_to_parent: list[Executor] = []


def _reset_after_fork() -> None:
    global _current, _current_lock
    _current_lock = threading.Lock()
    if _current is not None:
        _current.leave_to_parent()
        _left_to_parent.append(_current)
        _current = None


os.register_at_fork(after_in_child=_reset_after_fork)


def run(coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine on this process's executor loop, and return its result.

    An exception that ends the wait, such as KeyboardInterrupt, cancels the coroutine.

    Raises:
        TimeoutError: it did not end within ``timeout`` seconds, and was cancelled.
        WrongCallerError: this is that loop's own thread, which would wait for itself.
        ProducerClosedError: the loop was closed meanwhile.
        TypeError: it is no coroutine.
    """
    return Executor.current().run(coroutine, timeout)


def close_executor(timeout: float = CLOSE_GRACE) -> None:
    """Close this process's producers, and end its loop; the next use creates new ones.

    The producers deliver accepted rows for at most ``timeout`` seconds. A process that exits normally closes them
    itself, and Spark's workers do not need it. Call it in a process that continues without ``executor_producer``, such
    as a driver or a test.
    """
    global _current
    with _current_lock:
        executor, _current = _current, None
    if executor is not None:
        executor.close(timeout)


atexit.register(close_executor)
