"""``TransactionPool``: several transactional producers, for services with many transactions at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from threading import get_ident
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack

from aioproducer import config as configuration
from aioproducer._client import validation
from aioproducer._client.pool_queue import PoolQueue
from aioproducer._client.transactions import Transaction, TransactionContext
from aioproducer._common.client_log import ClientLog
from aioproducer._common.texts import are, counted
from aioproducer.config import CONFIG_DEF, ProducerConfig
from aioproducer.core.metadata.shared_metadata import SharedMetadata
from aioproducer.core.transactions.states import READY
from aioproducer.errors import (
    ConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionStateError,
    WrongCallerError,
)
from aioproducer.io.failure_reporter import OnError
from aioproducer.metrics import MetricsSnapshot
from aioproducer.producer import GRACE_AFTER_EXCEPTION, Producer
from aioproducer.transport.base import Connector

# As for the time-outs of Kafka's configuration that are an int.
_MAX_TIMEOUT_MS = 2**31 - 1


class _Slot:
    """One transactional id of the pool, with its producer from the first use on."""

    __slots__ = ("begun", "number", "producer", "started", "transactional_id")

    def __init__(self, prefix: str, number: int) -> None:
        self.number = number
        self.transactional_id = f"{prefix}-{number}"
        self.producer: Producer | None = None
        self.started = False
        # When the last transaction began, in loop seconds.
        self.begun = 0.0

    @property
    def is_warm(self) -> bool:
        """Whether the producer has a producer id, and no transaction."""
        return self.started and self._state is READY

    @property
    def _state(self) -> object:
        transactions = None if self.producer is None else self.producer._transactions
        return None if transactions is None else transactions.manager.state

    @property
    def fatal_error(self) -> KafkaError | None:
        """The error after which the producer cannot continue."""
        if not self.started or self.producer is None or self.producer.is_usable:
            return None
        transactions = self.producer._transactions
        error = None if transactions is None else transactions.manager.error
        return ProducerClosedError("the producer has ended") if error is None else error

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction of a usable producer is open or ending."""
        producer = self.producer
        if producer is None or not producer.is_usable or producer._transactions is None:
            return False
        return producer._transactions.current is not None


class TransactionPool:
    """Transactional producers for a service in which several transactions are open at once.

    ::

        settings = {"max_producers": 8, "acquire_timeout_ms": 5000, "bootstrap_servers": "localhost:9092"}
        async with TransactionPool(transactional_id_prefix="orders-1", **settings) as pool:
            async with pool.transaction() as transaction:
                transaction.send("orders", b"value")

    A producer has one transaction at a time. The pool starts its producers when they are first needed, and they share
    metadata: a response to one producer answers equal requests of the others. Their
    transactional ids are ``<prefix>-0`` to ``<prefix>-<max_producers - 1>``. Callers that find all producers busy wait,
    first come, first served.

    A producer that has failed is closed, and replaced at the next use of its id. If a producer is fenced in less than
    ``transaction_timeout_ms``, another process uses the same prefix: the pool is closed.

    Args:
        transactional_id_prefix: a different one for each process that runs at the same time, and the same after a
            restart: the next process then aborts the transactions that this one has left open.
        max_producers: the number of transactions that can be open at once.
        acquire_timeout_ms: how long ``transaction()`` waits for a producer.
        transport, on_error, hooks: as for ``Producer``; all producers have the same.
        config: as for ``Producer``, without ``transactional_id``. ``buffer_memory`` is that of all producers together.
            Interceptors and serializers that are objects are shared by the producers; each producer calls ``close``.

    A pool belongs to the loop, thread and process that started it.

    Raises:
        ConfigurationError: a key is unknown, or a value is wrong; ``buffer_memory`` is too small for this number of
            producers.
        TypeError, ValueError: an argument is wrong.
    """

    def __init__(
        self,
        *,
        transactional_id_prefix: str,
        max_producers: int,
        acquire_timeout_ms: float,
        transport: str | Connector = "tcp",
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
        **config: Unpack[configuration.ProducerConfigDict],
    ) -> None:
        settings = transactional_id_prefix, max_producers, acquire_timeout_ms
        self._configure(config, settings, transport, on_error, hooks)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        *,
        transactional_id_prefix: str,
        max_producers: int,
        acquire_timeout_ms: float,
        transport: str | Connector = "tcp",
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
    ) -> Self:
        """Create a pool from Kafka's dotted names: ``{"bootstrap.servers": ...}``; arguments as ``TransactionPool``.

        Raises:
            ConfigurationError, TypeError, ValueError: as ``TransactionPool(...)``.
        """
        pool = cls.__new__(cls)
        settings = transactional_id_prefix, max_producers, acquire_timeout_ms
        pool._configure(config, settings, transport, on_error, hooks)
        return pool

    @classmethod
    def from_properties(
        cls,
        path: str | os.PathLike[str],
        *,
        transactional_id_prefix: str,
        max_producers: int,
        acquire_timeout_ms: float,
        transport: str | Connector = "tcp",
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
    ) -> Self:
        """Create a pool from a Java properties file; arguments as ``TransactionPool``.

        Raises:
            ConfigurationError, TypeError, ValueError: as ``TransactionPool(...)``; also if the file cannot be read.
        """
        # Imported late, as few pools are configured by a file.
        from aioproducer.config.client_files import load_client_file

        pool = cls.__new__(cls)
        settings = transactional_id_prefix, max_producers, acquire_timeout_ms
        pool._configure(load_client_file(path, CONFIG_DEF), settings, transport, on_error, hooks)
        return pool

    def _configure(
        self,
        config: Mapping[str, object],
        settings: tuple[str, int, float],
        transport: str | Connector,
        on_error: OnError | None,
        hooks: Sequence[object],
    ) -> None:
        transactional_id_prefix, max_producers, acquire_timeout_ms = settings
        _check_arguments(transactional_id_prefix, max_producers, acquire_timeout_ms)
        if any(config.get(name) is not None for name in ("transactional_id", "transactional.id")):
            raise ConfigurationError(
                "transactional_id: a pool makes the ids of its producers; pass transactional_id_prefix alone"
            )
        self._prefix = transactional_id_prefix
        self._max_producers = max_producers
        self._acquire_timeout = acquire_timeout_ms / 1000
        self._transport = transport
        self._on_error = on_error
        self._hooks = hooks
        self._slots = [_Slot(transactional_id_prefix, number) for number in range(max_producers)]
        given = {name: value for name, value in config.items() if name not in ("transactional_id", "transactional.id")}
        whole = ProducerConfig.from_mapping({**given, "transactional.id": self._slots[0].transactional_id})
        given.pop("buffer_memory", None)
        self._config = {**given, "buffer.memory": _share(whole, max_producers)}
        self._transaction_timeout = whole.transaction_timeout_ms / 1000
        self._metadata = SharedMetadata(whole.metadata_max_age_ms / 1000)
        # Wrong arguments are found now and not at the first transaction.
        self._slots[0].producer = self._new_producer(self._slots[0])
        self._log = ClientLog("TransactionPool", transactional_id_prefix)
        self._queue: PoolQueue[_Slot] = PoolQueue(self._slot_freed)
        # Slots after the end of their block, with a transaction or producer that has not ended yet.
        self._ending = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._process = 0
        self._error: KafkaError | None = None
        self._closing: asyncio.Task[None] | None = None
        self._all_ended: asyncio.Future[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        for slot in self._slots:
            self._queue.give_back(slot)

    def _new_producer(self, slot: _Slot) -> Producer:
        config = {**self._config, "transactional.id": slot.transactional_id}
        producer = Producer.from_config(config, transport=self._transport, on_error=self._on_error, hooks=self._hooks)
        producer._shared_metadata = self._metadata
        return producer

    # Life

    async def start(self) -> None:
        """Make the running loop the pool's own; producers start at their first use. A second call has no effect.

        Raises:
            ProducerClosedError: it was closed; a pool cannot be started again.
            WrongCallerError: it was started by another loop, thread or process.
        """
        if self._loop is not None or self._error is not None:
            self._check_caller()
            return
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._process = os.getpid()

    async def close(self, timeout: float | None = None) -> None:
        """Wait for the open transactions for at most ``timeout`` seconds, and close all producers.

        It never waits longer than ``transaction_timeout_ms``: the cluster aborts open transactions after that.
        Callers that wait for a producer fail at once. A transaction that is still open after the wait is aborted, which
        takes at most ``transaction_abort_grace_ms``. A second call waits for the first, and the shorter wait applies.
        If ``close`` is cancelled, it no longer waits for open transactions.

        Raises:
            WrongCallerError: the pool belongs to another loop, thread or process.
            TypeError, ValueError: ``timeout`` is not a number; the pool continues.
        """
        if timeout is not None:
            validation.check_timeout(timeout)
        closed = ProducerClosedError("this pool is closed: create a new one")
        if self._loop is None:
            self._error = closed
            self._queue.close(closed)
            return
        self._check_owner()
        closing = self._begin_close(closed, timeout)
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            self._stop_waiting()
            await asyncio.shield(closing)
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process != os.getpid():
            # The pool belongs to the parent process; an exception in the child propagates.
            return
        await self.close(None if exception is None else GRACE_AFTER_EXCEPTION)

    # Transactions

    def transaction(self) -> PooledTransaction:
        """Return a context that takes a free producer, begins a transaction, and ends it with the block.

        The block commits at its end, and aborts on an exception or a cancellation, as that of ``Producer.transaction``.
        If the abort outlasts ``transaction_abort_grace_ms``, its producer remains busy until the abort has ended.

        Raises:
            KafkaTimeoutError: at the begin: no producer became free within ``acquire_timeout_ms``.
            ProducerFencedError: another process uses the prefix; the pool is closed.
            ProducerClosedError: the pool is closed.
            WrongCallerError: the pool is not started, or belongs to another loop, thread or process.
            KafkaError: as ``Producer.transaction``.
        """
        self._check_caller()
        return PooledTransaction(self)

    # Asking

    def metrics(self) -> dict[str, MetricsSnapshot]:
        """Return Kafka's metrics of each producer that was started, by transactional id.

        A producer that replaces a failed one counts from 0.
        """
        return {
            slot.transactional_id: slot.producer.metrics() for slot in self._slots if slot.producer and slot.started
        }

    @property
    def busy(self) -> int:
        """Number of producers with a transaction that is open or ending."""
        return self._max_producers - self._queue.free

    @property
    def waiting(self) -> int:
        """Number of callers that wait for a producer."""
        return self._queue.waiting

    @property
    def is_usable(self) -> bool:
        """Whether the pool is started, and neither closed nor fenced. Any thread may read it."""
        return self._loop is not None and self._error is None

    # Inside

    def _check_caller(self) -> None:
        if self._error is not None:
            raise self._error.fresh()
        if self._loop is None:
            raise WrongCallerError("this pool is not started: use `async with TransactionPool(...)`, or await start()")
        self._check_owner()

    def _check_owner(self) -> None:
        if os.getpid() != self._process:
            raise WrongCallerError(
                "this pool belongs to the parent process: create one in this process, after the fork, with a prefix of "
                "its own"
            )
        if get_ident() != self._thread:
            raise WrongCallerError(
                "this pool belongs to another thread: run the block on the pool's loop, by "
                "asyncio.run_coroutine_threadsafe(coroutine, loop)"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise WrongCallerError("this pool belongs to another event loop: create one on this loop")

    async def _acquire(self) -> _Slot:
        self._check_caller()
        return await self._queue.take(self._acquire_timeout, self._all_busy)

    def _all_busy(self) -> KafkaTimeoutError:
        ending = "" if not self._ending else f" ({self._ending} of them {are(self._ending)} ending a transaction)"
        return KafkaTimeoutError(
            f"No producer became free within {self._acquire_timeout * 1000:.0f} ms (acquire_timeout_ms): the pool has "
            f"{counted(self._max_producers, 'producer')}, all busy{ending}, and a queue of "
            f"{counted(self.waiting, 'caller')}. Raise max_producers, keep transactions shorter, or limit how many "
            "begin at once"
        )

    async def _started(self, slot: _Slot) -> Producer:
        """Return the slot's producer, a new one if it has none or the last one has failed."""
        if slot.fatal_error is not None:
            await self._discard(slot)
        if slot.producer is None:
            slot.producer = self._new_producer(slot)
        if not slot.started:
            await slot.producer.start()
            slot.started = True
        return slot.producer

    async def _discard(self, slot: _Slot) -> None:
        producer = slot.producer
        if producer is not None:
            await producer.close(0)
            slot.producer = None
            slot.started = False

    def _release(self, slot: _Slot) -> None:
        """Receive a slot after the end of its block; it is free when its transaction has ended too."""
        if slot.fatal_error is None and not slot.has_open_transaction:
            self._queue.give_back(slot)
            return
        self._note_fence(slot)
        self._ending += 1
        self._run(self._end(slot), f"aioproducer-pool-{slot.transactional_id}")

    async def _end(self, slot: _Slot) -> None:
        """Wait until the slot's transaction has ended, and close its producer if that cannot continue."""
        try:
            producer = slot.producer
            assert producer is not None
            while slot.has_open_transaction:
                try:
                    # It waits for a commit or abort in progress, and aborts a commit that has failed.
                    await producer.abort_transaction()
                except KafkaError as error:
                    if slot.has_open_transaction:
                        self._log.debug("%s is still ending its transaction: %s", slot.transactional_id, error)
                        await asyncio.sleep(producer.config.retry_backoff_ms / 1000)
            if slot.fatal_error is not None:
                self._note_fence(slot)
                if self._closing is None:
                    await self._discard(slot)
        finally:
            self._ending -= 1
            self._queue.give_back(slot)

    def _slot_freed(self) -> None:
        if self._all_ended is not None and not self.busy and not self._all_ended.done():
            self._all_ended.set_result(None)

    def _note_fence(self, slot: _Slot) -> None:
        """Close the pool if its producer was fenced by another one."""
        cause = slot.fatal_error
        if not isinstance(cause, ProducerFencedError) or self._error is not None or self._may_have_timed_out(slot):
            return
        error = ProducerFencedError(
            f"Another process uses the transactional id prefix {self._prefix!r}: it has fenced the producer "
            f"{slot.transactional_id!r}, and this pool is closed. Give each process a different prefix, and the same "
            "one after a restart"
        )
        error.__cause__ = cause
        self._log.warning("%s", error)
        self._begin_close(error, None)

    def _may_have_timed_out(self, slot: _Slot) -> bool:
        """Whether the cluster may have aborted the transaction for its time, and fenced the producer for that.

        In the first generation of the protocol both have the same error code. An id that is used twice is found soon.
        """
        assert self._loop is not None
        return self._loop.time() - slot.begun >= self._transaction_timeout

    def _time_out_note(self, slot: _Slot) -> str | None:
        """Return what to add to the error of a producer that was fenced, or failed, because of a time-out."""
        if slot.fatal_error is None or not self._may_have_timed_out(slot):
            return None
        assert self._loop is not None
        return (
            f"The transaction was open for {self._loop.time() - slot.begun:.1f} s: the cluster aborts transactions "
            f"after {self._transaction_timeout:g} s (transaction_timeout_ms). Raise that, or send less in a transaction"
        )

    def _fenced(self, slot: _Slot) -> KafkaError | None:
        """Return the pool's error if this slot's producer was fenced, and the pool was closed for that."""
        if isinstance(self._error, ProducerFencedError) and isinstance(slot.fatal_error, ProducerFencedError):
            return self._error.fresh()
        return None

    def _begin_close(self, error: KafkaError, timeout: float | None) -> asyncio.Task[None]:
        assert self._loop is not None
        wait = self._transaction_timeout if timeout is None else min(timeout, self._transaction_timeout)
        when = self._loop.time() + wait
        if self._patience is None or when < self._patience.when():
            if self._patience is not None:
                self._patience.cancel()
            self._patience = self._loop.call_at(when, self._stop_waiting)
        if self._closing is None:
            self._error = error
            self._queue.close(error)
            self._all_ended = self._loop.create_future()
            if not self.busy:
                self._all_ended.set_result(None)
            self._closing = self._run(self._close_producers(self._all_ended), "aioproducer-pool-close")
        return self._closing

    def _stop_waiting(self) -> None:
        if self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)

    async def _close_producers(self, all_ended: asyncio.Future[None]) -> None:
        await all_ended
        assert self._patience is not None
        self._patience.cancel()
        closing = [
            slot.producer.close(slot.producer.config.transaction_abort_grace_ms / 1000)
            for slot in self._slots
            if slot.producer is not None
        ]
        await asyncio.gather(*closing)
        others = self._tasks - {asyncio.current_task()}
        await asyncio.gather(*others)

    def _run(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        assert self._loop is not None
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __repr__(self) -> str:
        return f"<TransactionPool {self._prefix}, {self.busy} of {self._max_producers} producers busy>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pool cannot be pickled or copied: create one in the process that sends")


class PooledTransaction:
    """The context of ``TransactionPool.transaction()``: takes a producer for the block."""

    def __init__(self, pool: TransactionPool) -> None:
        self._pool = pool
        self._slot: _Slot | None = None
        self._context: TransactionContext | None = None
        self._transaction: Transaction | None = None
        self._was_used = False

    async def __aenter__(self) -> Transaction:
        if self._was_used:
            raise TransactionStateError("call pool.transaction() for each transaction: this one was used before")
        self._was_used = True
        self._slot = slot = await self._pool._acquire()
        slot.begun = asyncio.get_running_loop().time()
        try:
            producer = await self._pool._started(slot)
            self._context = producer.transaction()
            self._transaction = await self._context.__aenter__()
        except KafkaError as error:
            self._give_back(error)
            raise
        except BaseException:
            self._give_back(None)
            raise
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._context is not None
        try:
            await self._context.__aexit__(kind, exception, traceback)
            if exception is None:
                await self._check_committed()
        except KafkaError as error:
            self._give_back(error)
            raise
        except BaseException:
            self._give_back(None)
            raise
        self._give_back(exception)

    async def _check_committed(self) -> None:
        """Raise unless the transaction was committed: the pool may have closed its producer inside the block.

        Raises:
            ProducerClosedError: it was aborted.
            KafkaError: it has failed.
        """
        assert self._transaction is not None
        if self._pool._closing is not None and await self._transaction.outcome() == "aborted":
            raise ProducerClosedError(
                "the pool was closed before the end of this block, and its transaction was aborted: none of its "
                "records is stored. Give close() more time, or begin no transactions before it"
            )

    def _give_back(self, error: BaseException | None) -> None:
        """Release the producer.

        Raises:
            ProducerFencedError: the producer was fenced, and the block ends with another error of Kafka.
        """
        assert self._slot is not None
        pool, slot = self._pool, self._slot
        pool._release(slot)
        fenced = pool._fenced(slot)
        if not isinstance(error, KafkaError):
            return
        if fenced is not None:
            raise fenced from error
        note = pool._time_out_note(slot)
        if note is not None:
            error.add_note(note)


def _check_arguments(prefix: object, max_producers: object, acquire_timeout_ms: object) -> None:
    if not isinstance(prefix, str):
        raise TypeError(f"transactional_id_prefix must be a str, not {type(prefix).__name__}")
    if not prefix:
        raise ValueError(
            "transactional_id_prefix must not be empty: name the service and its instance, as in 'orders-1'"
        )
    if type(max_producers) is not int:
        raise TypeError(f"max_producers must be an int, not {type(max_producers).__name__}")
    if max_producers < 1:
        raise ValueError(f"max_producers must be at least 1, not {max_producers}: no transaction could begin")
    if isinstance(acquire_timeout_ms, bool) or not isinstance(acquire_timeout_ms, int | float):
        raise TypeError(f"acquire_timeout_ms must be a number, not {type(acquire_timeout_ms).__name__}")
    if not 0 <= acquire_timeout_ms <= _MAX_TIMEOUT_MS:
        raise ValueError(f"acquire_timeout_ms must be from 0 to {_MAX_TIMEOUT_MS} ms, not {acquire_timeout_ms}")


def _share(config: ProducerConfig, max_producers: int) -> int:
    """Return the memory of one producer in bytes."""
    share = config.buffer_memory // max_producers
    if share < config.max_request_size:
        raise ConfigurationError(
            f"buffer_memory: {config.buffer_memory} bytes are {share} bytes for each of "
            f"{counted(max_producers, 'producer')}, less than max_request_size ({config.max_request_size} bytes): "
            f"raise buffer_memory to at least {config.max_request_size * max_producers}, or lower max_producers or "
            "max_request_size"
        )
    return share
