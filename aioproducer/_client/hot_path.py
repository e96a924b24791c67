"""Compiled. ``send``: the record's way from the caller into an open batch.

``Producer`` derives from ``RecordSender``. A record that needs more than an open batch, such as an async serializer or
a place in a queue, goes through ``slow_path.py``. The next file on the way is ``core/batching/accumulator.py``.

No Python form: ``wall_ms`` reads the clock by ``clock_gettime``.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, _get_running_loop
from collections.abc import Callable, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any

from aioproducer._client import ownership, validation
from aioproducer.core.batching.accumulator import RecordAccumulator
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.record import HeaderPair, normalise_headers
from aioproducer.wire.record_batch import Buffer

if TYPE_CHECKING:
    import cython

    from aioproducer._client.slow_path import SlowPath
    from aioproducer.core.columns.binary_column import BinaryColumn
    from aioproducer.core.columns.record_columns import HeaderColumn, TimestampColumn
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer._client.hot_path import PyCFunction_CheckExact, PyCFunction_GET_FUNCTION
    from cython.cimports.cpython.pythread import PyThread_get_thread_ident as get_ident
    from cython.cimports.posix.time import CLOCK_REALTIME, clock_gettime, timespec
else:
    from threading import get_ident

MAX_TIMESTAMP_MS = 2**63 - 1
# Seconds between two records of a topic's use. ``metadata_max_idle_ms`` is at least five seconds.
_USE_RECORDED_EVERY = 1.0
NO_HEADERS: tuple[tuple[str, Buffer | None], ...] = ()
# The same object again: a compiled module reads its own cdef variable without a lookup.
_NO_HEADERS = NO_HEADERS

if cython.compiled:
    _system_time = PyCFunction_GET_FUNCTION(time_ns)


class RecordSender:
    """Accepts records in the owning thread and appends them to their batches."""

    __slots__ = (
        "__weakref__",
        "_accumulator",
        "_intercepts",
        "_key_is_bytes",
        "_life",
        "_owner_loop",
        "_owner_thread",
        "_plain",
        "_record_topic_use",
        "_serialize_key",
        "_serialize_value",
        "_slow_path",
        "_value_is_bytes",
    )

    _accumulator: RecordAccumulator
    _slow_path: SlowPath
    _owner_thread: int
    _owner_loop: AbstractEventLoop | None
    _life: ownership.Life
    # Neither serializers nor interceptors are configured.
    _plain: bool
    _intercepts: bool
    _serialize_key: Callable[[str, object, list[HeaderPair]], Any]
    _serialize_value: Callable[[str, object, list[HeaderPair]], Any]
    # No serializer is configured for keys, or values: bytes pass unchanged.
    _key_is_bytes: bool
    _value_is_bytes: bool
    # Called with a topic that records are sent to, and the loop's time.
    _record_topic_use: Callable[[str, float], None]

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, Buffer | None]] = NO_HEADERS,
    ) -> Delivery:
        """Accept a record and return its Delivery: await it for the ``RecordMetadata``, or drop it.

        If the topic is known and there is memory, the record is in its batch when ``send`` returns. Otherwise it waits
        in a queue for at most ``max_block_ms``. Records of a topic keep the order of the calls.

        Args:
            value, key: bytes-likes or ``None``, or what the configured serializers accept.
            partition: the partition; ``None`` lets the partitioner choose.
            timestamp_ms: milliseconds since the epoch; ``None`` stands for now.
            headers: pairs of a str and bytes or ``None``.

        Raises:
            TypeError, ValueError: an argument is wrong.
            SerializationError: a serializer failed.
            BufferExhaustedError: the queues of waiting records are full as well.
            ProducerClosedError, WrongCallerError: the producer does not run, or belongs to another thread or loop.
            KafkaError: the producer has met a fatal error before.
        """
        if self._owner_thread != get_ident():
            raise ownership.wrong_thread(self._life)
        if self._plain:
            return self._send_plain(topic, partition, key, value, headers, timestamp_ms)
        if self._intercepts:
            return self._send_intercepted(topic, partition, key, value, headers, timestamp_ms)
        own_headers = [] if headers is _NO_HEADERS else list(normalise_headers(headers))
        return self._send_serialized(topic, partition, key, value, own_headers, timestamp_ms)

    def _send_plain(
        self,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int | None,
    ) -> Delivery:
        """Send a record without serializers and interceptors; a separate function so that it can have C types."""
        if timestamp_ms is None:
            milliseconds = wall_ms()
        elif type(timestamp_ms) is int and 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
            milliseconds = timestamp_ms
        else:
            validation.check(topic, partition, key, value, headers, timestamp_ms)
            milliseconds = int(timestamp_ms)
        return self._append_or_enqueue(topic, partition, key, value, headers, milliseconds)

    def _send_intercepted(
        self,
        topic: str,
        partition: int | None,
        key: Any,
        value: Any,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int | None,
    ) -> Delivery:
        """Send the record that the interceptors return, and report its outcome to them."""
        slow_path = self._slow_path
        record = slow_path.intercept(topic, partition, key, value, headers, timestamp_ms)
        own_headers = list(record.headers)
        try:
            delivery = self._send_serialized(
                record.topic, record.partition, record.key, record.value, own_headers, record.timestamp_ms
            )
        except BaseException as error:
            slow_path.report_rejected(record, error)
            raise
        slow_path.report_outcome(delivery, own_headers)
        return delivery

    def _send_serialized(
        self,
        topic: str,
        partition: int | None,
        key: Any,
        value: Any,
        headers: list[HeaderPair],
        timestamp_ms: int | None,
    ) -> Delivery:
        """Serialize the key, then the value, and send the result; serializers may append to ``headers``.

        Raises:
            SerializationError: a serializer failed.
        """
        if type(topic) is not str or not topic:
            topic = validation.check_topic(topic)
        if timestamp_ms is None:
            milliseconds = wall_ms()
        else:
            validation.check(topic, partition, None, None, headers, timestamp_ms)
            milliseconds = int(timestamp_ms)
        key_data, value_data = key, value
        if not self._key_is_bytes or (key is not None and type(key) is not bytes):
            key_data = self._serialize_key(topic, key, headers)
        try:
            if not self._value_is_bytes or (value is not None and type(value) is not bytes):
                value_data = self._serialize_value(topic, value, headers)
        except BaseException:
            self._slow_path.abandon(key_data)
            raise
        is_serialized = (key_data is None or type(key_data) is bytes) and (
            value_data is None or type(value_data) is bytes
        )
        if not is_serialized and self._slow_path.is_awaitable(key_data, value_data):
            return self._slow_path.enqueue_unserialized(
                topic, partition, key_data, value_data, headers, milliseconds, (key, value)
            )
        return self._append_or_enqueue(topic, partition, key_data, value_data, headers or _NO_HEADERS, milliseconds)

    def _append_or_enqueue(
        self,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int,
    ) -> Delivery:
        """Append the record to the open batch, else to a new one, else put it into the queue of its topic."""
        accumulator = self._accumulator
        if type(topic) is not str or (partition is not None and type(partition) is not int):
            topic = validation.check_topic_and_partition(topic, partition)
        if type(headers) is not tuple and type(headers) is not list:
            # A subclass may report another length than it has items, which would make a malformed batch.
            headers = normalise_headers(headers)
        if partition is None and accumulator.choose_partition is not None:
            partition = self._slow_path.choose_partition(topic, key, value)
        try:
            delivery = accumulator.append(topic, partition, key, value, headers, timestamp_ms)
            if delivery is not None:
                return delivery
            if not headers:
                delivery = self._begin_batch(topic, partition, key, value, timestamp_ms)
                if delivery is not None:
                    return delivery
            return self._slow_path.enqueue(topic, partition, key, value, headers, timestamp_ms, self._now())
        except validation.WRONG_ARGUMENTS:
            validation.explain(topic, partition, key, value, headers, timestamp_ms)
            raise

    def _begin_batch(
        self, topic: str, partition: int | None, key: Buffer | None, value: Buffer | None, timestamp_ms: int
    ) -> Delivery | None:
        """Put a record without headers into a new batch or slab; return None if it needs more than that."""
        accumulator = self._accumulator
        queues = accumulator.plain_topic(topic, partition)
        if queues is None:
            return None
        now = self._now()
        # The topic and the partition are known: metadata only has to keep the topic.
        if not 0 <= now - queues.use_recorded_at < _USE_RECORDED_EVERY:
            queues.use_recorded_at = now
            self._record_topic_use(topic, now)
        if not accumulator.begin_append():
            return None
        try:
            return accumulator.append_to_new_batch(queues, partition, key, value, _NO_HEADERS, timestamp_ms, now)
        finally:
            accumulator.end_append()

    def append_column(
        self,
        topic: str,
        partition: int | None,
        keys: Sequence[Any] | BinaryColumn | None,
        values: Sequence[Any] | BinaryColumn,
        timestamps: TimestampColumn | None,
        headers: HeaderColumn | None,
        first: int,
        touched: list[ProducerBatch],
    ) -> int:
        """Append rows by ``append_rows`` of ``core/columns``; return the next row, which may need ``send``."""
        if self._owner_thread != get_ident() or not self._plain:
            return first
        if partition is not None and type(partition) is not int:
            return first
        # A producer that only calls ``send`` does not load it.
        from aioproducer.core.columns.appending import append_rows

        accumulator = self._accumulator
        if not accumulator.begin_append():
            return first
        try:
            if topic not in accumulator.topics:
                return first
            now = self._now()
            self._slow_path.record_use(topic, partition, now)
            return append_rows(
                accumulator,
                topic,
                partition,
                keys,
                values,
                first,
                wall_ms(),
                now,
                touched,
                timestamps,
                headers,
            )
        except validation.WRONG_ARGUMENTS:
            # The rows before it are appended; ``send`` will raise the error of the next one.
            return first + sum([batch.record_count - batch.column_start for batch in touched])
        finally:
            accumulator.end_append()

    def _now(self) -> float:
        """Return the loop's time.

        Raises:
            WrongCallerError: another loop of this thread runs. Only records that begin a batch check it: the check
                takes a tenth of what an append does.
        """
        running = _get_running_loop()
        if running is not None and running is not self._owner_loop:
            raise ownership.wrong_loop()
        # Looked up each time: a test may have replaced the function.
        return self._owner_loop.time()  # type: ignore[union-attr]  # set with the thread


def wall_ms() -> int:
    """Return milliseconds since the epoch as ``time.time_ns`` does, also while a test has frozen or moved the time."""
    if not cython.compiled:
        return time_ns() // 1_000_000
    # freezegun replaces the function, time-machine the C function behind it.
    if not PyCFunction_CheckExact(time_ns) or PyCFunction_GET_FUNCTION(time_ns) != _system_time:
        patched: int = time_ns() // 1_000_000
        return patched
    now = cython.declare(timespec)
    clock_gettime(CLOCK_REALTIME, cython.address(now))
    milliseconds: int = now.tv_sec * 1000 + now.tv_nsec // 1_000_000
    return milliseconds


def is_compiled() -> bool:
    """Return whether this module is compiled."""
    compiled: bool = cython.compiled
    return compiled
