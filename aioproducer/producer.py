"""``Producer``: its life, and all calls except ``send``.

A record passes these files, in order: ``_client/hot_path.py`` (``send``), ``core/batching/accumulator.py`` (chooses the
partition), ``core/batching/batch.py`` (writes the record), ``io/sender.py`` (drains batches into requests),
``io/node.py`` (one connection per broker) and ``transport/socket_transport.py`` (bytes).
"""

from __future__ import annotations

import asyncio
import inspect
import os
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from random import Random
from threading import get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, Unpack

from aioproducer import config as configuration
from aioproducer._build import take_uncompiled_warning
from aioproducer._client import ownership, validation
from aioproducer._client.factory import MemoryRegistry, Parts, connector_for, make_parts
from aioproducer._client.hot_path import LONGEST_TURN, FieldSerializer, RecordSender, is_compiled, seconds
from aioproducer._client.ownership import NEXT_LIFE, NO_THREAD, Life
from aioproducer._client.slow_path import SlowPath
from aioproducer._common.client_log import ClientLog
from aioproducer.config import ProducerConfig
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import (
    InvalidTopicError,
    KafkaError,
    MetadataTimeoutError,
    ProducerClosedError,
    TransactionStateError,
    broker_error,
)
from aioproducer.hooks import Hooks
from aioproducer.interceptors import InterceptorChain
from aioproducer.io.failure_reporter import OnError
from aioproducer.metrics import MetricsSnapshot
from aioproducer.record import PartitionInfo, Record
from aioproducer.serializers import BytesSerializer, ResolvedSerializer
from aioproducer.transport.base import Connector

if TYPE_CHECKING:
    import pyarrow

    from aioproducer._client.bulk import Column, SendManyResult
    from aioproducer._client.threadsafe import ThreadsafeProducer
    from aioproducer._client.transactions import Transaction, TransactionContext, Transactions
    from aioproducer.core.metadata.shared_metadata import SharedMetadata
    from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
    from aioproducer.record import TopicPartition

# How long ``close`` delivers remaining records if ``async with`` ends with an exception, in seconds.
GRACE_AFTER_EXCEPTION = 1.0
# Period of the timer that a closed loop drops, in seconds: asyncio's own limit of a wait.
LOOP_WATCH_PERIOD = 86400.0

_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _disown_after_fork() -> None:
    for producer in _producers:
        producer._enter(Life.FORKED)
        for threadsafe in producer._threadsafe:
            threadsafe.disown_after_fork()


os.register_at_fork(after_in_child=_disown_after_fork)


class Producer(RecordSender):
    """Sends records to Apache Kafka from one event loop.

    ::

        async with Producer(bootstrap_servers="localhost:9092") as producer:
            metadata = await producer.send("clicks", b"value", key=b"key")

    Args:
        config: every key of Kafka's producer in snake_case; docs/configuration.md lists them, and
            ``aioproducer.config.ProducerConfigDict`` has their types.
        transport: ``"tcp"``; ``"rdma"``, which needs an RDMA device, and brokers or gateways that speak RDMA;
            ``"rdma,tcp"``: RDMA if both are available, else TCP, with the reason in the log; or an object that opens
            connections (``aioproducer.transport.base.Connector``). See docs/rdma.md.
        on_error: called with topic and partition (-1 if none was chosen), number of records and error whenever
            records fail, awaited or not.
        hooks: objects with some of the methods in ``aioproducer.hooks``.

    Exceptions that ``on_error`` and hooks raise are logged.

    A producer belongs to the loop, thread and process that started it. Other threads use ``threadsafe()``.

    Raises:
        ConfigurationError: a key is unknown, or a value is wrong.
        TypeError: ``on_error`` is no plain function, or a hook has none of the hooks' methods.
    """

    compiled = is_compiled()
    """Whether the hot path is compiled: False if the package was installed without a C compiler."""

    def __init__(
        self,
        *,
        transport: str | Connector = "tcp",
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
        **config: Unpack[configuration.ProducerConfigDict],
    ) -> None:
        self._configure(ProducerConfig.from_kwargs(**config), transport, on_error, hooks)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        *,
        transport: str | Connector = "tcp",
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
    ) -> Self:
        """Create a producer from Kafka's dotted names: ``Producer.from_config({"bootstrap.servers": ...})``.

        Raises:
            ConfigurationError, TypeError: as ``Producer(...)``.
        """
        producer = cls.__new__(cls)
        producer._configure(ProducerConfig.from_mapping(config), transport, on_error, hooks)
        return producer

    @classmethod
    def from_properties(
        cls,
        path: str | os.PathLike[str],
        *,
        transport: str | Connector = "tcp",
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
    ) -> Self:
        """Create a producer from a Java properties file.

        Raises:
            ConfigurationError, TypeError: as ``Producer(...)``; also if the file cannot be read.
        """
        producer = cls.__new__(cls)
        producer._configure(ProducerConfig.from_properties(path), transport, on_error, hooks)
        return producer

    def _configure(
        self, config: ProducerConfig, transport: str | Connector, on_error: OnError | None, hooks: Sequence[object]
    ) -> None:
        if on_error is not None and (not callable(on_error) or inspect.iscoroutinefunction(on_error)):
            raise TypeError(f"on_error must be a plain function, not a coroutine function; got {on_error!r}")
        self.config = config
        # Of the producers of a pool, which sets it before the start.
        self._shared_metadata: SharedMetadata | None = None
        self._log = ClientLog("Producer", config.client_id)
        self._warn_of_uncompiled()
        self._connector = connector_for(config, transport, self._log)
        self._on_error = on_error
        self._hooks = Hooks(hooks, self._log)
        self._interceptors = InterceptorChain(config.interceptor_classes, self._log)
        chain = self._interceptors
        self._intercepts = chain.wants_records or chain.wants_headers or chain.wants_acknowledgements
        self._key_is_bytes = config.key_serializer is None
        self._value_is_bytes = config.value_serializer is None
        key_serializer = BytesSerializer() if self._key_is_bytes else config.key_serializer
        value_serializer = BytesSerializer() if self._value_is_bytes else config.value_serializer
        self._key_serializer = FieldSerializer(ResolvedSerializer(key_serializer, "key", self._record_raised))
        self._value_serializer = FieldSerializer(ResolvedSerializer(value_serializer, "value", self._record_raised))
        self._serializes = not (self._key_is_bytes and self._value_is_bytes)
        self._plain = not self._serializes and not self._intercepts
        self._owner_thread = NO_THREAD
        self._sending_thread = NO_THREAD
        self._owner_loop = None
        self._life = Life.NOT_STARTED
        self._task: asyncio.Task[None] | None = None
        self._delivering: asyncio.Timeout | None = None
        self._closed: asyncio.Future[None] | None = None
        self._loop_watch: weakref.ref[asyncio.TimerHandle] | None = None
        self._turn_began = 0.0
        self._parts: Parts | None = None
        self._transactions: Transactions | None = None
        self._threadsafe: weakref.WeakSet[ThreadsafeProducer] = weakref.WeakSet()

    def _warn_of_uncompiled(self) -> None:
        warning = None if self.compiled else take_uncompiled_warning()
        if warning is not None:
            self._log.warning("%s", warning)

    # Life

    async def start(self) -> None:
        """Start to connect, without waiting for a connection; ``wait_ready`` waits for the cluster.

        A second call has no effect.

        Raises:
            ProducerClosedError: it was closed; a producer cannot be started again.
            ConfigurationError: the machine cannot reserve ``buffer_memory`` bytes.
        """
        if self._life is Life.RUNNING:
            self._check_caller()
            return
        if self._life is not Life.NOT_STARTED:
            raise ownership.not_running(self._life)
        loop = asyncio.get_running_loop()
        parts = make_parts(
            self.config, loop, self._connector, self._hooks, self._interceptors, self._on_error, Random(), self._log
        )
        cluster = parts.sender.cluster
        cluster.shared_metadata = self._shared_metadata
        self._loop = self._owner_loop = loop
        self._parts = parts
        self._accumulator = parts.accumulator
        self._sender = parts.sender
        self._record_topic_use = cluster.record_topic_use
        self._slow_path = SlowPath(self.config, loop, parts.accumulator, cluster, parts.failures)
        if parts.transactions is not None:
            from aioproducer._client.transactions import Transactions

            self._transactions = Transactions(
                self,
                parts.transactions,
                parts.accumulator,
                parts.sender,
                parts.metrics,
                self._log,
                self._check_caller,
            )
            parts.transactions.on_state = self._transaction_state_changed
        self._enter(Life.RUNNING)
        self._watch_loop()
        _producers.add(self)
        self._task = loop.create_task(parts.sender.run(), name=f"aioproducer-sender-{self.config.client_id}")

    def _enter(self, life: Life) -> None:
        """Change the state; only a running producer has an owner thread."""
        if life not in NEXT_LIFE[self._life]:
            raise AssertionError(f"a producer that is {self._life.value} cannot become {life.value}")
        self._life = life
        self._owner_thread = get_ident() if life is Life.RUNNING else NO_THREAD
        self._update_sending_thread()

    def _update_sending_thread(self) -> None:
        """Accept records in the owner's thread; with a transactional id only inside a transaction."""
        accepts = self._transactions is None or self._transactions.manager.accepts_records
        self._sending_thread = self._owner_thread if accepts else NO_THREAD

    def _transaction_state_changed(self) -> None:
        assert self._transactions is not None
        self._update_sending_thread()
        self._transactions.state_changed()

    def _why_not_sent(self) -> KafkaError:
        if self._owner_thread != get_ident() or self._transactions is None:
            return ownership.wrong_thread(self._life)
        return self._transactions.manager.why_not("send")

    def _watch_loop(self) -> None:
        """Reject records as soon as the loop is closed.

        asyncio has no callback for a closed loop, and a check for each record would cost a tenth of a send. A closed
        loop drops its timers, however: this timer has no other purpose than to be dropped.
        """
        this = weakref.ref(self)
        loop = self._loop

        def watch_on() -> None:
            producer = this()
            if producer is not None:
                producer._watch_loop()

        def dropped(_: weakref.ref[asyncio.TimerHandle]) -> None:
            producer = this()
            if producer is not None and loop.is_closed():
                producer._loop_closed()

        self._loop_watch = weakref.ref(loop.call_later(LOOP_WATCH_PERIOD, watch_on), dropped)

    def _unwatch_loop(self) -> None:
        timer = None if self._loop_watch is None else self._loop_watch()
        self._loop_watch = None
        if timer is not None:
            timer.cancel()

    def _loop_closed(self) -> None:
        if self._life is not Life.RUNNING:
            return
        self._enter(Life.LOOP_CLOSED)
        if self._accumulator.has_undelivered():
            self._log.error(
                "The event loop was closed before the producer: records that were not delivered yet are lost. Close "
                "the producer first (`async with Producer(...)`, or await close())"
            )
        for threadsafe in self._threadsafe:
            threadsafe.refuse(Life.LOOP_CLOSED)

    async def wait_ready(self, timeout: float) -> None:
        """Wait for the first metadata of the cluster, for at most ``timeout`` seconds.

        Raises:
            MetadataTimeoutError: no broker answered; the text contains the last error.
            AuthenticationError: a broker has rejected the client, and none serves it.
            TypeError, ValueError: ``timeout`` is not a number.
        """
        validation.check_timeout(timeout)
        self._check_caller()
        parts = self._running_parts()
        try:
            async with asyncio.timeout(timeout):
                while parts.metadata.last_update is None:
                    await self._next_metadata(parts)
        except TimeoutError:
            cause = parts.sender.cluster.pool.last_error()
            because = "" if cause is None else f" The last error was: {cause}"
            error = MetadataTimeoutError(f"No broker answered within {timeout:g} s.{because}")
            raise error from cause

    async def _next_metadata(self, parts: Parts) -> None:
        """Wait for a metadata response.

        Raises:
            ProducerClosedError: the producer was closed.
            AuthenticationError: a broker has rejected the client, and none serves it.
        """
        cluster = parts.sender.cluster
        answer = cluster.add_metadata_waiter()
        parts.sender.wake()
        try:
            await asyncio.wait([answer])
        finally:
            cluster.remove_metadata_waiter(answer)
        if self._life is not Life.RUNNING:
            raise ownership.not_running(self._life)
        error = answer.result()
        if error is not None:
            raise error.fresh()

    async def close(self, timeout: float | None = None) -> None:
        """Deliver the accepted records within ``timeout`` seconds, fail the rest, and end all tasks and connections.

        With ``None`` it waits until every record is delivered or has failed. Each record has an outcome within
        ``max_block_ms`` plus ``delivery_timeout_ms``. A second call waits for the first, and the shorter timeout
        applies. If ``close`` is cancelled, the remaining records fail at once.

        Raises:
            WrongCallerError: the producer belongs to another loop or process.
            ProducerClosedError: its loop is closed.
            TypeError, ValueError: ``timeout`` is not a number; the producer continues.
        """
        if timeout is not None:
            validation.check_timeout(timeout)
        if self._life in (Life.FORKED, Life.LOOP_CLOSED):
            raise ownership.not_running(self._life)
        if self._task is None:
            self._enter(Life.CLOSED)
            return
        self._check_loop()
        if self._closed is not None:
            if self._delivering is not None and timeout is not None:
                _shorten(self._delivering, self._loop.time() + timeout)
            await asyncio.shield(self._closed)
            return
        self._enter(Life.CLOSED)
        self._unwatch_loop()
        for threadsafe in self._threadsafe:
            threadsafe.refuse(Life.CLOSED)
        self._closed = self._loop.create_future()
        try:
            await self._deliver_all(timeout)
        finally:
            # A separate task, which continues if this one is cancelled again.
            await asyncio.shield(self._loop.create_task(self._end(), name="aioproducer-close"))

    async def _deliver_all(self, timeout: float | None) -> None:
        accumulator = self._accumulator
        serializing = self._slow_path.serializing
        accumulator.closing = True
        try:
            async with asyncio.timeout(timeout) as self._delivering:
                if self._transactions is not None:
                    await self._transactions.finish()
                while accumulator.has_undelivered() or serializing:
                    accumulator.ready.end_lingering(self._loop.time())
                    self._sender.wake()
                    await accumulator.records_unblocked()
                    await accumulator.batches_finished()
                    if serializing:
                        await asyncio.wait(serializing)
        except TimeoutError:
            self._log.debug("close: giving up what is not delivered in time")
        finally:
            self._delivering = None

    async def _end(self) -> None:
        assert self._task is not None
        assert self._closed is not None
        try:
            # A task that was just created must run once before it is cancelled.
            await asyncio.sleep(0)
            serializing = list(self._slow_path.serializing)
            for task in serializing:
                task.cancel()
            try:
                if self._transactions is not None:
                    self._transactions.close()
                if self._accumulator.has_undelivered():
                    error = ProducerClosedError("the producer was closed before the record was delivered")
                    await self._sender.fail_rest(error)
                await self._sender.report_rest()
                if self._transactions is not None:
                    await self._transactions.wait_closed()
            finally:
                self._task.cancel()
                await asyncio.gather(self._task, *serializing, return_exceptions=True)
                self._running_parts().failures.report_rejected()
                await self._sender.report_rest()
                await self._sender.close()
        finally:
            # A shared connector outlives the producer, and would keep the memory alive.
            arena = self._accumulator.pool.arena
            if isinstance(self._connector, MemoryRegistry) and arena is not None:
                self._connector.unregister(arena)
            self._interceptors.close()
            _producers.discard(self)
            self._closed.set_result(None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._life is Life.FORKED:
            # The producer belongs to the parent process; an exception in the child propagates.
            return
        await self.close(None if exception is None else GRACE_AFTER_EXCEPTION)

    def __del__(self) -> None:
        # After a rejected configuration the attribute is missing.
        if getattr(self, "_life", None) in (Life.RUNNING, Life.LOOP_CLOSED):
            warnings.warn(f"{self!r} was not closed: use `async with`, or await close()", ResourceWarning, 2, self)

    # Sending

    def send_record(self, record: Record) -> Delivery:
        """Send a ``Record``; as ``send``."""
        return self.send(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
        )

    async def send_many(
        self,
        topic: str,
        values: Column,
        *,
        keys: Column | None = None,
        partition: int | None = None,
        timestamps_ms: Column | None = None,
        headers: Column | None = None,
    ) -> SendManyResult:
        """Send many records, wait for memory as needed, and return when all are delivered.

        Each column is a sequence (list, tuple, ...) or a pyarrow array of the same length as ``values``. ``None``
        stands for a null or, in ``timestamps_ms``, for now. Arrow columns are converted: strings to UTF-8 if no
        serializer is set, timestamps to milliseconds. Arrow headers are lists of structs of ``key`` and ``value``, as
        in Spark.

        If ``send`` raises for a record, the call ends there; a note on the exception contains the number of records
        accepted before. Accepted records are delivered, even if the caller is cancelled.

        Raises:
            SendManyError: some records failed; it holds the result and the first error of each partition.
            TypeError: a column is no sequence.
            ValueError: the columns have different lengths.
        """
        from aioproducer._client.bulk import send_columns

        self._check_caller()
        return await send_columns(self, validation.check_topic(topic), values, keys, partition, timestamps_ms, headers)

    async def send_arrow(
        self,
        topic: str,
        batch: pyarrow.RecordBatch | pyarrow.Table,
        *,
        value: str = "value",
        key: str | None = None,
        partition: int | None = None,
        timestamp_ms: str | None = None,
        headers: str | None = None,
    ) -> SendManyResult:
        """Send the rows of an Arrow batch, given the names of its columns; as ``send_many``.

        Raises:
            KeyError: there is no such column.
            SendManyError: some records failed.
            TypeError: ``batch`` is neither an Arrow RecordBatch nor a Table.
        """
        if not hasattr(batch, "column"):
            raise TypeError(
                f"batch must be a pyarrow RecordBatch or Table, not {type(batch).__name__}: convert it, a DataFrame "
                "with pyarrow.Table.from_pandas"
            )
        columns = [None if name is None else batch.column(name) for name in (key, timestamp_ms, headers)]
        return await self.send_many(
            topic,
            batch.column(value),
            keys=columns[0],
            partition=partition,
            timestamps_ms=columns[1],
            headers=columns[2],
        )

    async def _wait_for_room(self) -> None:
        if self._owner_thread != get_ident():
            # The coroutine was awaited by another thread, or later.
            raise ownership.wrong_thread(self._life)
        if seconds() - self._turn_began > LONGEST_TURN:
            self._check_loop()
            await asyncio.sleep(0)
            self._turn_began = seconds()
        accumulator = self._accumulator
        if not accumulator.drain_waiters.has_room():
            self._check_loop()
            began = perf_counter_ns()
            # Sending frees memory, so no batch may linger while a caller waits for it.
            with self.hurrying(), suppress(TimeoutError):
                async with asyncio.timeout(self.config.max_block_ms / 1000):
                    await accumulator.drain_waiters.add()
            self._running_parts().metrics.buffer_wait.record(perf_counter_ns() - began, self._loop.time())
            self._turn_began = seconds()

    async def flush(self) -> None:
        """Send without lingering, and wait until every record accepted before is acknowledged or has failed.

        Raises:
            WrongCallerError, ProducerClosedError: as ``send``.
        """
        self._check_caller()
        accumulator = self._accumulator
        began = perf_counter_ns()
        with self.hurrying():
            await accumulator.records_unblocked()
            await accumulator.batches_finished()
        await self._sender.outcomes_reported()
        self._running_parts().metrics.flush.record(perf_counter_ns() - began, self._loop.time())

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Send batches without lingering while the context is active."""
        accumulator = self._accumulator
        accumulator.flushing += 1
        try:
            accumulator.ready.end_lingering(self._loop.time())
            self._sender.wake()
            yield
        finally:
            accumulator.flushing -= 1

    # Asking

    # Transactions

    def transaction(self) -> TransactionContext:
        """Return a context that begins a transaction, commits it at its end, and aborts it on an exception.

        ::

            async with producer.transaction() as transaction:
                transaction.send("clicks", b"value")

        The exception, or the cancellation, propagates after at most ``transaction_abort_grace_ms``. If a record fails,
        the transaction is aborted at the end of the block and the first failure is raised.

        Raises:
            TransactionStateError: the producer has no transactional id; at the begin, a transaction is open.
            WrongCallerError, ProducerClosedError: as ``send``.
        """
        from aioproducer._client.transactions import TransactionContext

        return TransactionContext(self._transactional_calls(), self.config.transaction_abort_grace_ms)

    async def init_transactions(self) -> None:
        """Get the producer id and epoch, which fences earlier producers of the transactional id.

        Transactions that they left open are aborted, or committed if their commit had begun. Optional: the first
        transaction does it.

        Raises:
            KafkaTimeoutError: there was no coordinator within ``max_block_ms``; the same call waits on.
            TransactionStateError: it was called before, or the producer has no transactional id.
            KafkaError: the cluster rejects the transactional id, or its time-out.
        """
        await self._transactional_calls().init()

    async def begin_transaction(self) -> Transaction:
        """Begin a transaction: all records that are sent from now on belong to it.

        If an earlier, cancelled call is still ending a transaction, its end is awaited first.

        Raises:
            TransactionStateError: a transaction is open, or the producer has no transactional id.
            KafkaError: the fatal error, or the error after which a transaction has to be aborted.
        """
        return await self._transactional_calls().begin()

    async def commit_transaction(self) -> None:
        """Wait for the records of the transaction, and commit it.

        If the call is cancelled, the commit continues: the next call waits for it, and ``Transaction.outcome`` is its
        result.

        Raises:
            KafkaError: the first failure of a record or request. Unless it is ``fatal``, abort the transaction.
            KafkaTimeoutError: no answer within ``max_block_ms``; the commit continues, and the same call waits on.
            TransactionOutcomeUnknownError: the commit was sent, and the producer cannot find out how it has ended.
            TransactionStateError: no transaction is open.
        """
        await self._transactional_calls().commit()

    async def abort_transaction(self) -> None:
        """Abort the transaction: no reader of committed records sees any of it. Records that were not sent fail.

        After an abort it does nothing.

        Raises:
            KafkaTimeoutError: no answer within ``max_block_ms``; the abort continues, and the same call waits on.
            TransactionStateError: no transaction is open.
            KafkaError: the fatal error.
        """
        await self._transactional_calls().abort()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: ConsumerGroupMetadata | str
    ) -> None:
        """Let a consumer group commit offsets if, and only if, the transaction commits (consume, transform, produce).

        Args:
            offsets: of each partition, the offset of the next record to read.
            group: the group's id, or its metadata: with a member, the group fences outdated members (KIP-447).

        Raises:
            CommitFailedError: the group has replaced the member; abort the transaction.
            KafkaTimeoutError: the group has not accepted the offsets within ``max_block_ms``; abort the transaction.
            TransactionStateError: no transaction is open.
            KafkaError: the first failure of the transaction.
            TypeError, ValueError: an argument is wrong.
        """
        await self._transactional_calls().send_offsets(offsets, group)

    def _transactional_calls(self) -> Transactions:
        self._check_caller()
        if self._transactions is None:
            raise TransactionStateError(
                "this producer has no transactional id: set transactional_id, a different one for each producer that "
                "runs at the same time"
            )
        return self._transactions

    @property
    def is_usable(self) -> bool:
        """Whether the producer accepts records: it is started, neither it nor its loop is closed, and it has had no
        fatal error. Any thread may read it.
        """
        if self._life is not Life.RUNNING or self._task is None or self._task.done():
            return False
        return self._accumulator.producer_state.fatal_error is None

    @property
    def connection_error(self) -> KafkaError | None:
        """The last connection error, or None if a broker has answered since."""
        return None if self._parts is None else self._parts.sender.cluster.pool.last_error()

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """Return the topic's partitions, ordered by number.

        Raises:
            MetadataTimeoutError: the topic is still unknown after ``max_block_ms``.
            TopicAuthorizationError, InvalidTopicError: the cluster rejects the request.
        """
        self._check_caller()
        topic = validation.check_topic(topic)
        invalid = validation.why_invalid_topic(topic)
        if invalid is not None:
            raise InvalidTopicError(invalid)
        parts = self._running_parts()
        try:
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                while parts.metadata.add_topic(topic, self._loop.time()) is None:
                    code = parts.metadata.topic_error(topic)
                    if code:
                        error = broker_error(code)
                        if not error.retriable:
                            raise error
                    await self._next_metadata(parts)
        except TimeoutError:
            raise parts.sender.cluster.unknown_topic_error(topic, self.config.max_block_ms) from None
        from aioproducer.core.metadata.cluster_view import MetadataView

        return list(MetadataView(parts.metadata).partitions_for(topic))

    def metrics(self) -> MetricsSnapshot:
        """Return Kafka's metrics by name; ``.topics`` and ``.nodes`` hold those of each topic and broker."""
        return self._running_parts().metrics.snapshot(self._loop.time())

    def threadsafe(self) -> ThreadsafeProducer:
        """Return an interface to this producer for other threads; its sends return ``concurrent.futures.Future``."""
        from aioproducer._client.threadsafe import ThreadsafeProducer

        self._check_caller()
        threadsafe = ThreadsafeProducer(self, self._loop, self.config.buffer_memory)
        self._threadsafe.add(threadsafe)
        return threadsafe

    # Inside

    def _running_parts(self) -> Parts:
        if self._parts is None:
            raise ownership.not_running(self._life)
        return self._parts

    def _check_caller(self) -> None:
        if self._owner_thread != get_ident():
            raise ownership.wrong_thread(self._life)
        self._check_loop()

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise ownership.wrong_loop()

    def _record_raised(self, error: KafkaError) -> None:
        self._running_parts().failures.record_raised(error)

    def __repr__(self) -> str:
        return f"<Producer {self.config.client_id}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a producer cannot be pickled or copied: create one in the process that sends "
            "(in a Spark task: aioproducer.spark.executor_producer)"
        )


def _shorten(timeout: asyncio.Timeout, deadline: float) -> None:
    """Reschedule a timeout that would end after ``deadline``."""
    when = timeout.when()
    if not timeout.expired() and (when is None or deadline < when):
        timeout.reschedule(deadline)
