"""Compiled. ``send``: the record's way from the caller into an open batch.

``Producer`` derives from ``RecordSender``. A record that needs more than an open batch, such as an async serializer or
a place in a queue, goes through ``slow_path.py``. The next file on the way is ``core/batching/accumulator.py``.

No Python form: ``wall_ms`` and ``seconds`` read the clocks by ``clock_gettime``.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, _get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any

from aioproducer._client import ownership, validation
from aioproducer.core.batching.accumulator import RecordAccumulator
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.core.waiting.waiters import NO_WAIT
from aioproducer.errors import KafkaError
from aioproducer.interceptors import InterceptorChain
from aioproducer.record import HeaderPair, header_list, new_record
from aioproducer.wire.record_batch import Buffer

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if TYPE_CHECKING:
    from aioproducer._client.slow_path import SlowPath
    from aioproducer.core.columns.binary_column import BinaryColumn
    from aioproducer.core.columns.record_columns import HeaderColumn, TimestampColumn
    from aioproducer.serializers import ResolvedSerializer

if cython.compiled:
    from cython.cimports.aioproducer._client.hot_path import PyCFunction_CheckExact, PyCFunction_GET_FUNCTION
    from cython.cimports.cpython.pythread import PyThread_get_thread_ident as get_ident
    from cython.cimports.posix.time import CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec
else:
    from threading import get_ident

MAX_TIMESTAMP_MS = 2**63 - 1
# How long a caller of ``drain`` may hold the loop before ``drain`` lets other tasks run, in seconds.
LONGEST_TURN = 0.0005
# The same number in C.
_LONGEST_TURN = LONGEST_TURN
# Seconds between two records of a topic's use. ``metadata_max_idle_ms`` is at least five seconds.
_USE_RECORDED_EVERY = 1.0
NO_HEADERS: tuple[tuple[str, Buffer | None], ...] = ()
# The same object again: a compiled module reads its own cdef variable without a lookup.
_NO_HEADERS = NO_HEADERS

if cython.compiled:
    _system_time = PyCFunction_GET_FUNCTION(time_ns)
    _system_counter = PyCFunction_GET_FUNCTION(perf_counter)


class FieldSerializer:
    """Calls the configured serializer of keys, or of values, without another function in between."""

    __slots__ = ("_function", "_resolved", "_takes_value_alone")

    def __init__(self, resolved: ResolvedSerializer) -> None:
        self._resolved = resolved
        self._function = resolved.function
        self._takes_value_alone = resolved.takes_value_alone

    def serialize(self, topic: str, value: Any, headers: list[HeaderPair]) -> Any:
        """Return what ``ResolvedSerializer`` returns, or raise the same."""
        if self._takes_value_alone and value is None:
            return None
        try:
            result = self._function(value) if self._takes_value_alone else self._function(topic, value, headers)
        except Exception as error:
            raise self._resolved.failure(topic, error) from error
        return result if type(result) is bytes else self._resolved.accepted(topic, result)


class RecordSender:
    """Accepts records in the owning thread and appends them to their batches."""

    __slots__ = (
        "__weakref__",
        "_accumulator",
        "_interceptors",
        "_intercepts",
        "_key_is_bytes",
        "_key_serializer",
        "_life",
        "_owner_loop",
        "_owner_thread",
        "_plain",
        "_record_topic_use",
        "_sending_thread",
        "_serializes",
        "_slow_path",
        "_turn_began",
        "_value_is_bytes",
        "_value_serializer",
    )

    _accumulator: RecordAccumulator
    _slow_path: SlowPath
    _owner_thread: int
    # The same while records are accepted: always, or with a transactional id inside a transaction.
    _sending_thread: int
    _owner_loop: AbstractEventLoop | None
    _life: ownership.Life
    # Neither serializers nor interceptors are configured.
    _plain: bool
    _interceptors: InterceptorChain
    _intercepts: bool
    # A serializer of keys, or of values, is configured.
    _serializes: bool
    _key_serializer: FieldSerializer
    _value_serializer: FieldSerializer
    # No serializer is configured for keys, or values: bytes pass unchanged.
    _key_is_bytes: bool
    _value_is_bytes: bool
    # When ``drain`` last let other tasks run, by ``perf_counter``.
    _turn_began: float
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
            TransactionEndedError: the producer has a transactional id, and no transaction is open.
            KafkaError: the producer has met a fatal error before, or the transaction has to be aborted.
        """
        if self._sending_thread != get_ident():
            raise self._why_not_sent()
        if self._plain:
            return self._send_plain(topic, partition, key, value, headers, timestamp_ms)
        if self._intercepts:
            return self._send_intercepted(topic, partition, key, value, headers, timestamp_ms)
        own_headers = [] if headers is _NO_HEADERS else header_list(headers)
        return self._send_serialized(topic, partition, key, value, own_headers, timestamp_ms)

    def _why_not_sent(self) -> KafkaError:
        """Return the error of ``send`` from this thread, or outside a transaction; ``Producer`` implements it."""
        raise NotImplementedError

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
        """Send the record that the interceptors return; report to them if it is not accepted."""
        interceptors = self._interceptors
        own_headers: Any = headers
        if interceptors.wants_records:
            record = interceptors.on_send(new_record(topic, value, key, partition, timestamp_ms, headers))
            topic, partition, key, value = record.topic, record.partition, record.key, record.value
            timestamp_ms = record.timestamp_ms
            own_headers = list(record.headers)
        elif interceptors.wants_headers or self._serializes or headers is not _NO_HEADERS:
            own_headers = [] if headers is _NO_HEADERS else header_list(headers)
        if type(topic) is not str or not topic:
            topic = validation.check_topic(topic)
        if interceptors.wants_headers:
            interceptors.on_headers(topic, own_headers)
        try:
            if self._serializes:
                return self._send_serialized(topic, partition, key, value, own_headers, timestamp_ms)
            return self._send_plain(topic, partition, key, value, own_headers, timestamp_ms)
        except BaseException as error:
            interceptors.on_send_error(topic, partition, error, own_headers)
            raise

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
            key_data = self._key_serializer.serialize(topic, key, headers)
        try:
            if not self._value_is_bytes or (value is not None and type(value) is not bytes):
                value_data = self._value_serializer.serialize(topic, value, headers)
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
            headers = header_list(headers)
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

    def drain(self) -> Coroutine[Any, Any, None]:
        """Wait for memory, and let other tasks run if the caller has held the loop for half a millisecond.

        Await it between sends in a loop, as ``StreamWriter.drain``. It returns when all records that waited for memory
        before it have their memory or have failed, first come, first served, after at most ``max_block_ms``, and
        raises no timeout. If the producer is closed meanwhile, it returns and the next ``send`` raises.

        Raises:
            WrongCallerError, ProducerClosedError: as ``send``.
        """
        if self._owner_thread != get_ident():
            raise ownership.wrong_thread(self._life)
        if seconds() - self._turn_began <= _LONGEST_TURN and self._accumulator.drain_waiters.has_room():
            return NO_WAIT
        return self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Wait as ``drain`` promises, if it may be long; ``Producer`` implements it, as it need not be compiled."""
        raise NotImplementedError

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
        if self._sending_thread != get_ident() or not self._plain:
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


class TransactionSender:
    """The ``send`` of a transaction. In Python, a method around that of its producer would double a record's cost.

    ``Transaction`` derives from it.
    """

    __slots__ = ("_sender",)

    # The producer, until the transaction ends.
    _sender: RecordSender | None

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
        """Send a record that belongs to this transaction; as ``Producer.send``.

        Raises:
            TransactionEndedError: this transaction was committed or aborted, or is about to be.
        """
        sender = self._sender
        if sender is None:
            raise self._ended_error()
        if sender._plain and sender._sending_thread == get_ident():
            return sender._send_plain(topic, partition, key, value, headers, timestamp_ms)
        return sender.send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)

    def _ended_error(self) -> KafkaError:
        """Return the error of a call after the end; ``Transaction`` implements it."""
        raise NotImplementedError


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


def seconds() -> float:
    """Return ``time.perf_counter()``, also while a test has replaced it."""
    if not cython.compiled:
        return perf_counter()
    if not PyCFunction_CheckExact(perf_counter) or PyCFunction_GET_FUNCTION(perf_counter) != _system_counter:
        return perf_counter()
    now = cython.declare(timespec)
    clock_gettime(CLOCK_MONOTONIC, cython.address(now))
    seconds: float = now.tv_sec + now.tv_nsec * 1e-9
    return seconds


def is_compiled() -> bool:
    """Return whether this module is compiled."""
    compiled: bool = cython.compiled
    return compiled
