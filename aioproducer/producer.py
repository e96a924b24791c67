"""Producer: what a user sees.

The way of a record begins here: ``send`` puts it into a batch (``core/accumulator.py``), the accumulator task drains
the batch (``io/sender.py``) into its leader's request (``io/node.py``), which a transport carries
(``transport/stream.py``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from random import Random
from threading import get_ident
from time import perf_counter, perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from aioproducer import callers
from aioproducer.assembly import MemoryRegistry, Parts, assemble, connector_for
from aioproducer.build import take_uncompiled_warning
from aioproducer.client_log import ClientLog
from aioproducer.config import ProducerConfig
from aioproducer.core.delivery import Delivery
from aioproducer.core.pending import PendingRecord
from aioproducer.entry import RecordEntry, is_compiled
from aioproducer.errors import (
    BufferExhaustedError,
    InvalidTopicError,
    KafkaError,
    MetadataTimeoutError,
    ProducerClosedError,
    WrongCallerError,
    broker_error,
)
from aioproducer.hooks import Hooks
from aioproducer.metrics import MetricsSnapshot
from aioproducer.preparation import Admission, Preparation, abandon, finish
from aioproducer.record import HeaderPair, PartitionInfo, TopicPartition
from aioproducer.texts import counted
from aioproducer.transport.base import Connector
from aioproducer.wire.record_batch import Buffer

if TYPE_CHECKING:
    import pyarrow

    from aioproducer.bulk import Column, SendManyResult
    from aioproducer.outgoing import Record
    from aioproducer.threadsafe import ThreadsafeProducer

OnError = Callable[[TopicPartition, int, KafkaError], None]

# How long ``drain`` lets its caller go on without a turn for others, in seconds.
LONGEST_TURN = 0.0005
# What is left to send gets this long when ``async with`` is left by an exception, in seconds.
GRACE_AFTER_EXCEPTION = 1.0
# Seconds until the timer that a closed loop drops is set again: asyncio waits no longer for a timer either.
LOOP_WATCH_PERIOD = 86400.0
# So many records that were refused one after the other may still be asked for their error before they are told of.
REFUSED_KEPT = 1000

_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _disown_after_fork() -> None:
    for producer in _producers:
        producer._owner_thread = callers.NO_THREAD
        producer._refusal = callers.FORKED
        for threadsafe in producer._threadsafe:
            threadsafe.disown_after_fork()


os.register_at_fork(after_in_child=_disown_after_fork)


class Producer(RecordEntry):
    """Sends records to Apache Kafka from one event loop.

    ::

        async with Producer(bootstrap_servers="localhost:9092") as producer:
            metadata = await producer.send("clicks", b"value", key=b"key")

    Args:
        config: every key of Kafka's producer in snake_case; docs/configuration.md lists them.
        transport: ``"tcp"``; ``"rdma"``, which needs an RDMA device and brokers, or gateways before them, that speak
            RDMA; ``"rdma,tcp"``: RDMA where both are to be had, TCP where not, and the log says why; or an object that
            makes connections (``aioproducer.transport.base.Connector``). See docs/rdma.md.
        on_error: called with topic and partition (-1 where none was chosen), number of records and error whenever
            records are given up, whether somebody awaits them or not.
        hooks: objects with some of the methods in ``aioproducer.hooks``.

    Exceptions of ``on_error`` and of hooks are logged.

    A producer belongs to the loop, thread and process that started it; ``threadsafe()`` serves other threads.

    Raises:
        ConfigurationError: a key is unknown, or a value is wrong.
        TypeError: ``on_error`` or a hook is not what it should be.
    """

    compiled = is_compiled()
    """Whether the hot path is compiled: False where the package was installed without a C compiler."""

    _refusal = callers.CLOSED

    def __init__(
        self,
        *,
        transport: str | Connector = "tcp",
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
        **config: object,
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
        """A producer of Kafka's dotted names: ``Producer.from_config({"bootstrap.servers": ...})``."""
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
        """A producer of a Java properties file, as it is."""
        producer = cls.__new__(cls)
        producer._configure(ProducerConfig.from_properties(path), transport, on_error, hooks)
        return producer

    def _configure(
        self, config: ProducerConfig, transport: str | Connector, on_error: OnError | None, hooks: Sequence[object]
    ) -> None:
        if on_error is not None and (not callable(on_error) or inspect.iscoroutinefunction(on_error)):
            raise TypeError(f"on_error must be a plain function: nobody awaits it; got {on_error!r}")
        self.config = config
        self._log = ClientLog("Producer", config.client_id)
        self._warn_of_uncompiled()
        self._connector = connector_for(config, transport)
        self._on_error = on_error
        self._hooks = Hooks(hooks, self._log)
        self._preparation = Preparation(config, self._note_raised, self._log)
        self._keys_are_bytes = self._preparation.keys_are_bytes
        self._values_are_bytes = self._preparation.values_are_bytes
        self._serialize_key = self._preparation.serialize_key
        self._serialize_value = self._preparation.serialize_value
        self._plain = self._preparation.is_idle
        self._serializes = not self._preparation.intercepts
        self._owner_thread = callers.NO_THREAD
        self._owner_loop = None
        self._refusal = callers.NOT_STARTED
        self._task: asyncio.Task[None] | None = None
        self._delivering: asyncio.Timeout | None = None
        self._closed: asyncio.Future[None] | None = None
        self._loop_watch: weakref.ref[asyncio.TimerHandle] | None = None
        self._turn_began = 0.0
        self._parts: Parts | None = None
        self._threadsafe: weakref.WeakSet[ThreadsafeProducer] = weakref.WeakSet()
        # Records that failed by themselves in this turn, to be told together.
        self._refused: dict[tuple[TopicPartition, type[KafkaError]], _RefusedRecords] = {}

    def _warn_of_uncompiled(self) -> None:
        warning = None if self.compiled else take_uncompiled_warning()
        if warning is not None:
            self._log.warning("%s", warning)

    # Life

    async def start(self) -> None:
        """Begin to connect. Nothing fails here that the configuration did not; ``wait_ready`` waits for the cluster.

        Starting twice is starting once.

        Raises:
            ProducerClosedError: it was closed; a producer cannot be started again.
            ConfigurationError: the machine does not give as much memory as ``buffer_memory``.
        """
        if self._refusal == callers.RUNNING:
            self._check_caller()
            return
        if self._refusal != callers.NOT_STARTED:
            raise callers.refusal(self._refusal)
        loop = asyncio.get_running_loop()
        parts = assemble(self.config, loop, self._connector, self._hooks, self._note_failure, Random(), self._log)
        cluster = parts.sender.cluster
        self._loop = self._owner_loop = loop
        self._parts = parts
        self._accumulator = parts.accumulator
        self._sender = parts.sender
        self._want_topic = cluster.want_topic
        self._admission = Admission(
            self.config,
            loop,
            parts.accumulator,
            parts.metadata,
            want=self._want,
            want_topic=cluster.want_topic,
            note_refused=self._note_refused,
            keeps_refused=bool(self._hooks.record_failed),
            note_raised=self._note_raised,
        )
        self._owner_thread = get_ident()
        self._refusal = callers.RUNNING
        self._watch_loop()
        _producers.add(self)
        self._task = loop.create_task(parts.sender.run(), name=f"aioproducer-sender-{self.config.client_id}")

    def _watch_loop(self) -> None:
        """Refuse records from the moment in which the loop is closed.

        asyncio does not tell when a loop is closed, and to ask with every record would cost as much as a tenth of it. A
        closed loop drops its timers: this one does nothing but to be dropped.
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
        if self._refusal != callers.RUNNING:
            return
        self._owner_thread = callers.NO_THREAD
        self._refusal = callers.LOOP_CLOSED
        if self._accumulator.has_undelivered():
            self._log.error(
                "The event loop was closed before the producer: records that were not delivered yet are lost. Close "
                "the producer first (`async with Producer(...)`, or await close())"
            )
        for threadsafe in self._threadsafe:
            threadsafe.refuse(callers.LOOP_CLOSED)

    async def wait_ready(self, timeout: float) -> None:
        """Wait until a broker has told about the cluster, at most ``timeout`` seconds.

        Raises:
            MetadataTimeoutError: none did; the text says what happened instead.
        """
        self._check_caller()
        parts = self._running_parts()
        try:
            async with asyncio.timeout(timeout):
                while parts.metadata.last_update is None:
                    await self._next_metadata(parts)
        except TimeoutError:
            cause = parts.sender.cluster.last_error()
            because = "" if cause is None else f" The last error was: {cause}"
            error = MetadataTimeoutError(f"No broker answered within {timeout:g} s.{because}")
            raise error from cause

    async def _next_metadata(self, parts: Parts) -> None:
        """Wait for a metadata response.

        Raises:
            ProducerClosedError: there will be none.
        """
        parts.sender.wake()
        cluster = parts.sender.cluster
        answer = cluster.watch_metadata()
        try:
            await asyncio.wait([answer])
        finally:
            cluster.unwatch_metadata(answer)
        if self._refusal != callers.RUNNING:
            raise callers.refusal(self._refusal)

    async def close(self, timeout: float | None = None) -> None:
        """Deliver what was accepted, at most for ``timeout`` seconds, fail the rest, and end all tasks and connections.

        ``None`` waits until everything is delivered or has failed; no record takes longer than ``max_block_ms`` and
        ``delivery_timeout_ms``. Closing twice is closing once, within the shorter time; who is cancelled in ``close``
        has the rest failed at once.

        Raises:
            WrongCallerError: the producer belongs to another loop or process.
            ProducerClosedError: its loop is closed.
        """
        if self._refusal in (callers.FORKED, callers.LOOP_CLOSED):
            raise callers.refusal(self._refusal)
        if self._task is None:
            self._refusal = callers.CLOSED
            return
        self._check_loop()
        if self._closed is not None:
            if self._delivering is not None and timeout is not None:
                _shorten(self._delivering, self._loop.time() + timeout)
            await asyncio.shield(self._closed)
            return
        self._owner_thread = callers.NO_THREAD
        self._refusal = callers.CLOSED
        self._unwatch_loop()
        for threadsafe in self._threadsafe:
            threadsafe.refuse(callers.CLOSED)
        self._closed = self._loop.create_future()
        try:
            await self._deliver_all(timeout)
        finally:
            # A task of its own, which goes on if this one is cancelled again.
            await asyncio.shield(self._loop.create_task(self._end(), name="aioproducer-close"))

    async def _deliver_all(self, timeout: float | None) -> None:
        accumulator = self._accumulator
        serializing = self._admission.serializing
        accumulator.closing = True
        try:
            async with asyncio.timeout(timeout) as self._delivering:
                while accumulator.has_undelivered() or serializing:
                    accumulator.ready.hurry(self._loop.time())
                    self._sender.wake()
                    await accumulator.watch_line()
                    await accumulator.watch_batches()
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
            # What was begun in this turn must run once before it is cancelled.
            await asyncio.sleep(0)
            serializing = list(self._admission.serializing)
            for task in serializing:
                task.cancel()
            try:
                if self._accumulator.has_undelivered():
                    error = ProducerClosedError("the producer was closed before the record was delivered")
                    await self._sender.fail_rest(error)
                await self._sender.tell_rest()
            finally:
                self._task.cancel()
                await asyncio.gather(self._task, *serializing, return_exceptions=True)
                self._report_refused()
                await self._sender.tell_rest()
                await self._sender.close()
        finally:
            # A connector that is shared lives on, and with it all that it knows of.
            arena = self._accumulator.pool.arena
            if isinstance(self._connector, MemoryRegistry) and arena is not None:
                self._connector.unregister(arena)
            self._preparation.close()
            _producers.discard(self)
            self._closed.set_result(None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._refusal == callers.FORKED:
            # The producer is the parent's; what ends the child says why.
            return
        await self.close(None if exception is None else GRACE_AFTER_EXCEPTION)

    def __del__(self) -> None:
        if self._refusal in (callers.RUNNING, callers.LOOP_CLOSED):
            warnings.warn(f"{self!r} was not closed: use `async with`, or await close()", ResourceWarning, 2, self)

    # Sending

    def send_record(self, record: Record) -> Delivery:
        """``send`` for a ``Record``."""
        return self.send(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
        )

    def _enqueue(
        self,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int,
    ) -> Delivery:
        return self._admission.enqueue(topic, partition, key, value, headers, timestamp_ms)

    def _send_otherwise(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[tuple[str, Buffer | None]],
    ) -> Delivery:
        if self._owner_thread != get_ident():
            raise callers.refusal(self._refusal_here())
        preparation = self._preparation
        record = preparation.intercept(topic, value, key, partition, timestamp_ms, headers)
        added_to = list(record.headers)
        try:
            delivery = self._take_serialized(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms, added_to
            )
        except BaseException as error:
            preparation.send_failed(record, error)
            raise
        if preparation.wants_acknowledgements:
            preparation.report_outcome(delivery, added_to)
        return delivery

    def _chosen_partition(self, topic: str, key: Buffer | None, value: Buffer | None) -> int | None:
        try:
            return self._accumulator.chosen_partition(topic, key, value)
        except KafkaError as error:
            self._note_raised(error)
            raise

    def _put_made(
        self,
        topic: str,
        partition: int | None,
        key: Any,
        value: Any,
        headers: list[HeaderPair],
        timestamp_ms: int,
        given: tuple[Any, Any],
    ) -> Delivery:
        if not inspect.iscoroutine(key) and not inspect.iscoroutine(value):
            return self._put(topic, partition, key, value, headers, timestamp_ms)
        size_hint = callers.size_of(given[0]) + callers.size_of(given[1])
        both = finish(key, value, self._loop)
        return self._admission.serialize_in_line(topic, partition, both, headers, timestamp_ms, size_hint, given)

    def _abandon(self, made: object) -> None:
        if inspect.iscoroutine(made):
            abandon(made, self._loop)

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
        """Send many records, wait for room in between, and return when all are delivered.

        Each column is a sequence (list, tuple, ...) or a pyarrow array, as long as ``values``; ``None`` stands for a
        null or, in ``timestamps_ms``, for now. An Arrow column of strings gives UTF-8 where no serializer is set, one
        of timestamps gives milliseconds, and its headers are lists of structs of ``key`` and ``value``, as Spark's.

        Whatever ``send`` raises for a record ends the call there; a note on the exception says how many records were
        accepted before. Those are delivered as ever, also where the caller is cancelled.

        Raises:
            SendManyError: some failed; it holds the result and the first error of each partition.
            TypeError: a column is no sequence.
            ValueError: the columns are of different lengths.
        """
        from aioproducer.bulk import send_columns

        self._check_caller()
        return await send_columns(self, callers.check_topic(topic), values, keys, partition, timestamps_ms, headers)

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
        """``send_many`` of an Arrow batch's columns, which are named.

        Raises:
            KeyError: there is no such column.
            SendManyError: some failed.
            TypeError: ``batch`` is nothing of Arrow's.
        """
        if not hasattr(batch, "column"):
            raise TypeError(
                f"batch must be a pyarrow RecordBatch or Table, not {type(batch).__name__}: make one of it, of a "
                "DataFrame by pyarrow.Table.from_pandas"
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

    async def drain(self) -> None:
        """Wait for room, and give others a turn where the caller has held the loop for half a millisecond.

        Await it between sends in a loop, as ``StreamWriter.drain``. It takes a place in the line for memory, in which
        records wait as well, first come, first served: it returns when all records before it have their memory or have
        failed, so after at most ``max_block_ms``, and never raises for the time. When the producer is closed meanwhile,
        it returns, and the next ``send`` raises.
        """
        if self._owner_thread != get_ident():
            raise callers.refusal(self._refusal_here())
        if perf_counter() - self._turn_began > LONGEST_TURN:
            self._check_loop()
            await asyncio.sleep(0)
            self._turn_began = perf_counter()
        accumulator = self._accumulator
        if not accumulator.has_room():
            self._check_loop()
            began = perf_counter_ns()
            # Room comes from what is sent: nothing may linger while somebody waits for it.
            with self.hurrying(), suppress(TimeoutError):
                async with asyncio.timeout(self.config.max_block_ms / 1000):
                    await accumulator.watch_room()
            self._running_parts().metrics.buffer_wait.record(perf_counter_ns() - began, self._loop.time())
            self._turn_began = perf_counter()

    async def flush(self) -> None:
        """Wait until every record accepted before has been acknowledged or has failed; none waits out its linger."""
        self._check_caller()
        accumulator = self._accumulator
        began = perf_counter_ns()
        with self.hurrying():
            await accumulator.watch_line()
            await accumulator.watch_batches()
        self._running_parts().metrics.flush.record(perf_counter_ns() - began, self._loop.time())

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """While it lasts, no batch lingers."""
        accumulator = self._accumulator
        accumulator.flushing += 1
        try:
            accumulator.ready.hurry(self._loop.time())
            self._sender.wake()
            yield
        finally:
            accumulator.flushing -= 1

    # Asking

    @property
    def is_usable(self) -> bool:
        """Whether records can be sent: the producer was started, neither it nor its loop was closed, and it has met no
        fatal error. For any thread.
        """
        if self._refusal != callers.RUNNING or self._task is None or self._task.done():
            return False
        return self._accumulator.producer_state.fatal_error is None

    @property
    def connection_error(self) -> KafkaError | None:
        """What last kept it from speaking with a broker, where it has not spoken with one since."""
        return None if self._parts is None else self._parts.sender.cluster.last_error()

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The topic's partitions, in order.

        Raises:
            MetadataTimeoutError: nothing is known of the topic after ``max_block_ms``.
            TopicAuthorizationError, InvalidTopicError: the cluster refuses to tell.
        """
        self._check_caller()
        topic = callers.check_topic(topic)
        unlawful = callers.why_unlawful(topic)
        if unlawful is not None:
            raise InvalidTopicError(unlawful)
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
            raise parts.sender.cluster.why_unknown(topic, self.config.max_block_ms) from None
        return list(parts.view.partitions_for(topic))

    def metrics(self) -> MetricsSnapshot:
        """Kafka's metrics by name; ``.topics`` and ``.nodes`` hold those of each topic and broker."""
        return self._running_parts().metrics.snapshot(self._loop.time())

    def threadsafe(self) -> ThreadsafeProducer:
        """The same producer for other threads, whose sends return ``concurrent.futures.Future``."""
        from aioproducer.threadsafe import ThreadsafeProducer

        self._check_caller()
        threadsafe = ThreadsafeProducer(self, self._loop, self.config.buffer_memory)
        self._threadsafe.add(threadsafe)
        return threadsafe

    # Inside

    def _running_parts(self) -> Parts:
        if self._parts is None:
            raise callers.refusal(self._refusal)
        return self._parts

    def _refusal_here(self) -> int:
        """Why a call from this thread is refused."""
        return callers.OTHER_THREAD if self._refusal == callers.RUNNING else self._refusal

    def _check_caller(self) -> None:
        if self._owner_thread != get_ident():
            raise callers.refusal(self._refusal_here())
        self._check_loop()

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise callers.refusal(callers.OTHER_LOOP)

    def _note_failure(self, topic_partition: TopicPartition, count: int, unobserved: int, error: KafkaError) -> None:
        self._log.log(
            logging.ERROR if unobserved else logging.DEBUG,
            "%s for %s failed, %d of them unobserved (no await, no callback): %s",
            counted(count, "record"),
            topic_partition,
            unobserved,
            error,
        )
        if self._on_error is not None:
            try:
                self._on_error(topic_partition, count, error.fresh())
            except (Exception, asyncio.CancelledError):
                self._log.exception("on_error failed")

    def _note_refused(self, pending: PendingRecord, error: KafkaError) -> None:
        """Note a record that failed by itself; those of one turn are told together."""
        if isinstance(error, BufferExhaustedError):
            self._running_parts().metrics.buffer_exhausted.record(1, self._loop.time())
        if not self._refused:
            # One pass of the loop later than the next: the caller of ``send`` awaits the Delivery by then, if at all.
            self._loop.call_soon(self._loop.call_soon, self._report_refused)
        kind = pending.where(), type(error)
        refused = self._refused.get(kind)
        if refused is None:
            refused = self._refused[kind] = _RefusedRecords(error)
        refused.add(pending)
        failed_records = self._sender.failed_records
        if failed_records is not None:
            failed_records.add(pending)

    def _note_raised(self, error: KafkaError) -> None:
        """Count an error that ``send`` raises for a record that is not accepted, as Kafka's ``doSend`` does."""
        if not isinstance(error, WrongCallerError | ProducerClosedError):
            self._running_parts().metrics.send_raised(error, self._loop.time())

    def _report_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for (topic_partition, _), records in refused.items():
            self._running_parts().metrics.records_failed(topic_partition.topic, records.count, self._loop.time())
            self._note_failure(topic_partition, records.count, records.unobserved(), records.error)

    def _want_partition(self, topic: str, partition: int, now: float) -> None:
        parts = self._running_parts()
        if 0 < parts.view.partition_count(topic) <= partition:
            parts.sender.cluster.want_update(now, f"a record is for partition {partition} of topic {topic}")

    def __repr__(self) -> str:
        return f"<Producer {self.config.client_id}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a producer cannot be pickled or copied: make one in the process that sends "
            "(in a Spark task: aioproducer.spark.executor_producer)"
        )


class _RefusedRecords:
    """Records of one partition that failed with the same kind of error; however many, a bounded number is kept."""

    __slots__ = ("_recent", "_unobserved", "count", "error")

    def __init__(self, error: KafkaError) -> None:
        self.error = error
        self.count = 0
        self._unobserved = 0
        self._recent: list[PendingRecord] = []

    def add(self, pending: PendingRecord) -> None:
        if len(self._recent) == REFUSED_KEPT:
            self.unobserved()
        self.count += 1
        self._recent.append(pending)

    def unobserved(self) -> int:
        """How many nobody has asked for, so far."""
        self._unobserved += sum([not pending.observed for pending in self._recent])
        self._recent.clear()
        return self._unobserved


def _shorten(timeout: asyncio.Timeout, deadline: float) -> None:
    """Let a timeout end no later than ``deadline``."""
    when = timeout.when()
    if not timeout.expired() and (when is None or deadline < when):
        timeout.reschedule(deadline)
