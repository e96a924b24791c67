"""Producer: what a user sees.

The way of a record begins here: ``send`` puts it into a batch (``core/accumulator.py``), the accumulator task drains
the batch (``io/sender.py``) into its leader's request (``io/node.py``), which a transport carries
(``transport/stream.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from random import Random
from threading import get_ident
from time import perf_counter, perf_counter_ns, time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aioproducer import callers
from aioproducer.assembly import Parts, assemble, connector_for
from aioproducer.bulk import SendManyResult, send_columns
from aioproducer.config import ProducerConfig
from aioproducer.core.delivery import Delivery
from aioproducer.core.pending import PendingRecord
from aioproducer.diagnosis import record_too_large
from aioproducer.errors import KafkaError, MetadataTimeoutError, ProducerClosedError, broker_error
from aioproducer.hooks import Hooks
from aioproducer.metrics import MetricsSnapshot
from aioproducer.preparation import Preparation
from aioproducer.record import PartitionInfo, Record, TopicPartition, normalise_headers
from aioproducer.threadsafe import ThreadsafeProducer
from aioproducer.transport.base import Connector
from aioproducer.wire.record_batch import Buffer, estimate_size_in_bytes_upper_bound

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger("aioproducer")

OnError = Callable[[TopicPartition, int, KafkaError], None]

INVALID_TOPIC = 17
# How long ``drain`` lets its caller go on without a turn for others, in seconds.
LONGEST_TURN = 0.0005
# What is left to send gets this long when ``async with`` is left by an exception, in seconds.
GRACE_AFTER_EXCEPTION = 1.0

_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _disown_after_fork() -> None:
    for producer in _producers:
        producer._owner_thread = callers.NO_THREAD
        producer._refusal = callers.FORKED


os.register_at_fork(after_in_child=_disown_after_fork)


class Producer:
    """Sends records to Apache Kafka from one event loop.

    ::

        async with Producer(bootstrap_servers="localhost:9092") as producer:
            metadata = await producer.send("clicks", b"value", key=b"key")

    Args:
        config: every key of Kafka's producer in snake_case; docs/configuration.md lists them.
        transport: ``"tcp"``, or an object that makes connections (``aioproducer.transport.base.Connector``).
        on_error: called with topic and partition (-1 where none was chosen), number of records and error whenever
            records are given up, whether somebody awaits them or not.
        hooks: objects with some of the methods in ``aioproducer.hooks``.

    A producer belongs to the loop, thread and process that started it; ``threadsafe()`` serves other threads.

    Raises:
        ConfigurationError: a key is unknown, or a value is wrong.
    """

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
        self.config = config
        self._connector = connector_for(config, transport)
        self._on_error = on_error
        self._hooks = Hooks(hooks)
        self._preparation = Preparation(config)
        # Records that nothing of the user's has to touch take the short way.
        self._plain = self._preparation.is_idle
        self._owner_thread = callers.NO_THREAD
        self._refusal = callers.NOT_STARTED
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._turn_began = 0.0
        self._parts: Parts | None = None
        self._serializing: set[asyncio.Task[None]] = set()

    # Life

    async def start(self) -> None:
        """Begin to connect. Nothing fails here that the configuration did not; ``wait_ready`` waits for the cluster."""
        if self._task is not None:
            if self._refusal == callers.CLOSED:
                raise ProducerClosedError("this producer is closed: make a new one")
            return
        loop = asyncio.get_running_loop()
        self._loop = loop
        parts = self._parts = assemble(self.config, loop, self._connector, self._hooks, self._note_failure, Random())
        self._accumulator = parts.accumulator
        self._sender = parts.sender
        self._append = parts.accumulator.append
        self._owner_thread = get_ident()
        _producers.add(self)
        self._task = loop.create_task(parts.sender.run(), name=f"aioproducer-sender-{self.config.client_id}")

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
                    await parts.sender.cluster.watch_metadata()
        except TimeoutError:
            cause = parts.sender.cluster.last_error()
            because = "" if cause is None else f" The last error was: {cause}"
            error = MetadataTimeoutError(f"No broker answered within {timeout:g} s.{because}")
            raise error from cause

    async def close(self, timeout: float | None = None) -> None:
        """Deliver what was accepted, at most for ``timeout`` seconds, fail the rest, and end all tasks and connections.

        ``None`` waits until everything is delivered or has failed; no record takes longer than ``delivery_timeout_ms``.
        Closing twice is closing once.
        """
        if self._task is None or self._parts is None:
            self._refusal = callers.CLOSED
            return
        self._check_loop()
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._owner_thread = callers.NO_THREAD
        self._refusal = callers.CLOSED
        self._closing = self._loop.create_future()
        try:
            await self._deliver_all(timeout)
        finally:
            try:
                await self._end()
            finally:
                self._closing.set_result(None)

    async def _deliver_all(self, timeout: float | None) -> None:
        accumulator = self._accumulator
        accumulator.closing = True
        try:
            async with asyncio.timeout(timeout):
                while accumulator.has_undelivered() or self._serializing:
                    accumulator.ready.hurry(self._loop.time())
                    self._sender.wake()
                    await accumulator.watch_line()
                    await accumulator.watch_batches()
                    if self._serializing:
                        await asyncio.wait(self._serializing)
        except TimeoutError:
            logger.debug("close: giving up what is not delivered after %s s", timeout)

    async def _end(self) -> None:
        assert self._task is not None
        for task in self._serializing:
            task.cancel()
        if self._accumulator.has_undelivered():
            error = ProducerClosedError("the producer was closed before the record was delivered")
            self._sender.fail_everything(error, self._loop.time())
        self._task.cancel()
        await asyncio.gather(self._task, *self._serializing, return_exceptions=True)
        await self._sender.close()
        self._preparation.close()
        _producers.discard(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(None if exception is None else GRACE_AFTER_EXCEPTION)

    # Sending

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, Buffer | None]] = (),
    ) -> Delivery:
        """Accept a record, and return its Delivery: await it for the ``RecordMetadata``, or let it go.

        Where there is room and the topic is known, the record is in its batch when ``send`` returns; else it takes its
        place in line for at most ``max_block_ms``. Records of a topic keep the order of the calls.

        Args:
            value, key: bytes-likes or ``None``, or what the configured serializers take.
            partition: else the partitioner chooses.
            timestamp_ms: milliseconds since the epoch; else now.
            headers: pairs of a name and bytes or ``None``.

        Raises:
            TypeError, ValueError: an argument is not what it should be.
            SerializationError: a serializer failed.
            BufferExhaustedError: there is not even room in line.
            ProducerClosedError, WrongCallerError: not here, or not any more.
            KafkaError: the producer has met a fatal error before.
        """
        if self._owner_thread != get_ident():
            raise callers.refusal(self._refusal)
        if not self._plain:
            return self._send_prepared(Record(topic, value, key, partition, timestamp_ms, normalise_headers(headers)))
        if timestamp_ms is None:
            timestamp_ms = int(time() * 1000)
        try:
            delivery = self._append(topic, partition, key, value, headers, timestamp_ms)
            if delivery is None:
                return self._enqueue(topic, partition, key, value, headers, timestamp_ms)
        except (TypeError, ValueError, AttributeError, OverflowError, BufferError) as error:
            raise callers.explain(error, topic, value, key, partition, timestamp_ms, headers) from error
        return delivery

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
        """The long way of a record: a new batch, or a place in line."""
        callers.check(topic, value, key, partition, timestamp_ms, headers)
        parts = self._running_parts()
        now = self._loop.time()
        failed = self._refused_at_once(parts, topic, key, value, headers)
        if failed is not None:
            return self._failed_delivery(topic, partition, failed, now)
        parts.sender.cluster.want_topic(topic, now)
        if partition is not None and 0 < parts.view.partition_count(topic) <= partition:
            parts.sender.cluster.want_update(now, f"a record is for partition {partition} of topic {topic}")
        return self._accumulator.enqueue(topic, partition, key, value, headers, timestamp_ms, now)

    def _refused_at_once(
        self,
        parts: Parts,
        topic: str,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
    ) -> KafkaError | None:
        fatal = self._accumulator.producer_state.fatal_error
        if fatal is not None:
            raise fatal.fresh()
        if parts.metadata.topic_error(topic) == INVALID_TOPIC:
            return broker_error(INVALID_TOPIC)
        size = estimate_size_in_bytes_upper_bound(
            -1 if key is None else memoryview(key).nbytes, -1 if value is None else memoryview(value).nbytes, headers
        )
        for limit, name in (
            (self.config.max_request_size, "max_request_size"),
            (self.config.buffer_memory, "buffer_memory"),
        ):
            if size > limit:
                return record_too_large(topic, size, limit, name)
        return None

    def _failed_delivery(self, topic: str, partition: int | None, error: KafkaError, now: float) -> Delivery:
        """A Delivery that has failed already."""
        pending = PendingRecord(
            self._loop, topic, partition, None, None, (), 0, since=now, deadline=now, leave=lambda pending: None
        )
        pending.fail(error)
        self._note_failure(TopicPartition(topic, -1 if partition is None else partition), 1, error)
        return pending.delivery

    def _send_prepared(self, record: Record) -> Delivery:
        """The way of a record that interceptors or serializers have to see first."""
        preparation = self._preparation
        record = preparation.intercept(record)
        try:
            timestamp_ms = int(time() * 1000) if record.timestamp_ms is None else record.timestamp_ms
            prepared = preparation.serialize(record)
            if prepared.awaitable is None:
                delivery = self._append_or_enqueue(
                    record.topic, record.partition, prepared.key, prepared.value, prepared.headers, timestamp_ms
                )
            else:
                delivery = self._serialize_in_line(record, prepared.awaitable, timestamp_ms)
        except BaseException as error:
            preparation.send_failed(record, error)
            raise
        if preparation.wants_acknowledgements:
            delivery.add_done_callback(preparation.acknowledge(record, prepared.headers))
        return delivery

    def _append_or_enqueue(
        self,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int,
    ) -> Delivery:
        delivery = self._append(topic, partition, key, value, headers, timestamp_ms)
        if delivery is None:
            delivery = self._enqueue(topic, partition, key, value, headers, timestamp_ms)
        return delivery

    def _serialize_in_line(self, record: Record, awaitable: Any, timestamp_ms: int) -> Delivery:
        """Keep the record's place while an async serializer works on it."""
        accumulator = self._accumulator
        parts = self._running_parts()
        now = self._loop.time()
        pending = accumulator.queue_up(
            record.topic, record.partition, None, None, (), timestamp_ms, now, size=callers.size_hint(record)
        )
        pending.serialized = False
        parts.sender.cluster.want_topic(record.topic, now)

        async def finish() -> None:
            try:
                key, value, headers = await awaitable
                failed = self._refused_at_once(parts, record.topic, key, value, headers)
                if failed is not None:
                    raise failed
            except KafkaError as error:
                if not pending.delivery.done():
                    parts.sender.fail_waiting([pending], error)
            else:
                pending.key, pending.value, pending.headers = key, value, headers
                pending.serialized = True
                accumulator.waiting.recharge(pending)
            accumulator.advance(accumulator.topic(record.topic), self._loop.time())

        task = self._loop.create_task(finish(), name="aioproducer-serializer")
        self._serializing.add(task)
        task.add_done_callback(self._serializing.discard)
        # Withdrawn or out of time: the serializer works for nobody.
        pending.delivery.add_done_callback(lambda delivery: task.cancel() if pending.withdrawn else None)
        return pending.delivery

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any] | pyarrow.Array | pyarrow.ChunkedArray,
        *,
        keys: Sequence[Any] | pyarrow.Array | pyarrow.ChunkedArray | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Sequence[tuple[str, Buffer | None]]] | None = None,
    ) -> SendManyResult:
        """Send many records, wait for room in between, and return when all are delivered.

        ``keys``, ``timestamps_ms`` and ``headers`` are as long as ``values``.

        Raises:
            SendManyError: some failed; it holds the result and the first error of each partition.
            ValueError: the columns are of different lengths.
        """
        self._check_caller()
        return await send_columns(self, topic, values, keys, partition, timestamps_ms, headers)

    async def send_arrow(
        self,
        topic: str,
        batch: pyarrow.RecordBatch | pyarrow.Table,
        *,
        value: str = "value",
        key: str | None = None,
        timestamp_ms: str | None = None,
    ) -> SendManyResult:
        """``send_many`` of an Arrow batch's columns, which are named.

        Raises:
            KeyError: there is no such column.
            SendManyError: some failed.
        """
        self._check_caller()
        return await send_columns(
            self,
            topic,
            batch.column(value),
            None if key is None else batch.column(key),
            None,
            None if timestamp_ms is None else batch.column(timestamp_ms).to_pylist(),
            None,
        )

    async def drain(self) -> None:
        """Wait for room, and give others a turn where the caller has held the loop for half a millisecond.

        Await it between sends in a loop, as ``StreamWriter.drain``.
        """
        accumulator = self._accumulator
        if not accumulator.has_room():
            self._check_caller()
            began = perf_counter_ns()
            await accumulator.watch_room()
            self._running_parts().metrics.buffer_wait.record(perf_counter_ns() - began, self._loop.time())
            self._turn_began = perf_counter()
        elif perf_counter() - self._turn_began > LONGEST_TURN:
            self._check_caller()
            await asyncio.sleep(0)
            self._turn_began = perf_counter()

    async def flush(self) -> None:
        """Wait until every record accepted before has been acknowledged or has failed; none waits out its linger."""
        self._check_caller()
        accumulator = self._accumulator
        began = perf_counter_ns()
        accumulator.flushing += 1
        try:
            accumulator.ready.hurry(self._loop.time())
            self._sender.wake()
            await accumulator.watch_line()
            await accumulator.watch_batches()
        finally:
            accumulator.flushing -= 1
        self._running_parts().metrics.flush.record(perf_counter_ns() - began, self._loop.time())

    # Asking

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The topic's partitions, in order.

        Raises:
            MetadataTimeoutError: nothing is known of the topic after ``max_block_ms``.
            TopicAuthorizationError, InvalidTopicError: the cluster refuses to tell.
        """
        self._check_caller()
        parts = self._running_parts()
        try:
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                while parts.metadata.add_topic(topic, self._loop.time()) is None:
                    code = parts.metadata.topic_error(topic)
                    if code:
                        error = broker_error(code)
                        if not error.retriable:
                            raise error
                    parts.sender.wake()
                    await parts.sender.cluster.watch_metadata()
        except TimeoutError:
            raise parts.sender.cluster.why_unknown(topic, self.config.max_block_ms) from None
        return list(parts.view.partitions_for(topic))

    def metrics(self) -> MetricsSnapshot:
        """Kafka's metrics by name; ``.topics`` and ``.nodes`` hold those of each topic and broker."""
        return self._running_parts().metrics.snapshot(self._loop.time())

    def threadsafe(self) -> ThreadsafeProducer:
        """The same producer for other threads, whose sends return ``concurrent.futures.Future``."""
        self._check_caller()
        return ThreadsafeProducer(self, self._loop)

    # Inside

    def _running_parts(self) -> Parts:
        if self._parts is None:
            raise callers.refusal(self._refusal)
        return self._parts

    def _check_caller(self) -> None:
        if self._owner_thread != get_ident():
            raise callers.refusal(self._refusal)
        self._check_loop()

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise callers.refusal(callers.OTHER_LOOP)

    def _note_failure(self, topic_partition: TopicPartition, count: int, error: KafkaError) -> None:
        logger.error("%d record(s) for %s failed: %s", count, topic_partition, error)
        if self._on_error is not None:
            try:
                self._on_error(topic_partition, count, error.fresh())
            except Exception:
                logger.exception("on_error failed")

    def __repr__(self) -> str:
        return f"<Producer {self.config.client_id}>"
