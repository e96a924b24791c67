"""Where a record comes in: ``send``, and the short way from there into its batch.

A class of its own because it is compiled; ``Producer`` is this with a life around it.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, _get_running_loop
from collections.abc import Callable, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any

from aioproducer import callers
from aioproducer.core.accumulator import RecordAccumulator
from aioproducer.core.batch import ProducerBatch
from aioproducer.core.binary_column import BinaryColumn
from aioproducer.core.columns import append_rows
from aioproducer.core.delivery import Delivery
from aioproducer.core.record_columns import HeaderColumn, TimestampColumn
from aioproducer.record import HeaderPair, normalise_headers
from aioproducer.wire.record_batch import Buffer

if TYPE_CHECKING:
    import cython
else:
    from aioproducer.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.entry import PyCFunction_CheckExact, PyCFunction_GET_FUNCTION
    from cython.cimports.cpython.pythread import PyThread_get_thread_ident as get_ident
    from cython.cimports.posix.time import CLOCK_REALTIME, clock_gettime, timespec
else:
    from threading import get_ident

LATEST_TIMESTAMP = 2**63 - 1
# Seconds: the least that metadata_max_idle_ms may be is five.
_USE_NOTED_EVERY = 1.0
NO_HEADERS: tuple[tuple[str, Buffer | None], ...] = ()
# The same for this module alone, where the compiled one need not look it up.
_NO_HEADERS = NO_HEADERS

if cython.compiled:
    _system_time = PyCFunction_GET_FUNCTION(time_ns)


class RecordEntry:
    """Takes records from the thread that owns it, and puts them into their batches."""

    __slots__ = (
        "__weakref__",
        "_accumulator",
        "_keys_are_bytes",
        "_owner_loop",
        "_owner_thread",
        "_plain",
        "_serialize_key",
        "_serialize_value",
        "_serializes",
        "_values_are_bytes",
        "_want_topic",
    )

    _accumulator: RecordAccumulator
    _owner_thread: int
    _owner_loop: AbstractEventLoop | None
    # Records that nothing of the user's has to touch take the short way.
    _plain: bool
    # Those that only serializers have to touch.
    _serializes: bool
    _serialize_key: Callable[[str, object, list[HeaderPair]], Any]
    _serialize_value: Callable[[str, object, list[HeaderPair]], Any]
    # Nothing is configured for keys, or values: bytes need not be looked at.
    _keys_are_bytes: bool
    _values_are_bytes: bool
    # Who is told of each topic that records are for, and when.
    _want_topic: Callable[[str, float], None]

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
        if self._owner_thread == get_ident():
            if self._plain:
                return self._take(topic, value, key, partition, timestamp_ms, headers)
            if self._serializes:
                own_headers = [] if headers is _NO_HEADERS else list(normalise_headers(headers))
                return self._take_serialized(topic, value, key, partition, timestamp_ms, own_headers)
        return self._send_otherwise(topic, value, key, partition, timestamp_ms, headers)

    def _take(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[tuple[str, Buffer | None]],
    ) -> Delivery:
        """Take a record that nothing of the user's has to touch; a function of its own so that it can have C types."""
        if timestamp_ms is None:
            milliseconds = wall_ms()
        elif type(timestamp_ms) is int and 0 <= timestamp_ms <= LATEST_TIMESTAMP:
            milliseconds = timestamp_ms
        else:
            callers.check(topic, value, key, partition, timestamp_ms, headers)
            milliseconds = int(timestamp_ms)
        return self._take_at(topic, value, key, partition, milliseconds, headers)

    def _take_serialized(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: list[HeaderPair],
    ) -> Delivery:
        """Take what the serializers make, of the key first; they may add to ``headers`` until they are done.

        Raises:
            SerializationError: one failed.
        """
        if type(topic) is not str or not topic:
            topic = callers.check_topic(topic)
        if timestamp_ms is None:
            milliseconds = wall_ms()
        else:
            callers.check(topic, None, None, partition, timestamp_ms, headers)
            milliseconds = int(timestamp_ms)
        key_made, value_made = key, value
        if not self._keys_are_bytes or (key is not None and type(key) is not bytes):
            key_made = self._serialize_key(topic, key, headers)
        try:
            if not self._values_are_bytes or (value is not None and type(value) is not bytes):
                value_made = self._serialize_value(topic, value, headers)
        except BaseException:
            self._abandon(key_made)
            raise
        if (key_made is None or type(key_made) is bytes) and (value_made is None or type(value_made) is bytes):
            return self._take_at(topic, value_made, key_made, partition, milliseconds, headers or _NO_HEADERS)
        return self._put_made(topic, partition, key_made, value_made, headers, milliseconds, (key, value))

    def _take_at(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        partition: int | None,
        milliseconds: int,
        headers: Sequence[tuple[str, Buffer | None]],
    ) -> Delivery:
        if (
            headers is _NO_HEADERS
            and partition is None
            and type(topic) is str
            and (value is None or type(value) is bytes)
            and (key is None or type(key) is bytes)
        ):
            # Nothing can be wrong with it.
            delivery = self._accumulator.append(topic, None, key, value, _NO_HEADERS, milliseconds)
            if delivery is not None:
                return delivery
            delivery = self._begin_batch(topic, None, key, value, milliseconds)
            if delivery is not None:
                return delivery
            if self._accumulator.choose_partition is None:
                return self._enqueue(topic, None, key, value, _NO_HEADERS, milliseconds)
        elif type(topic) is not str or (partition is not None and type(partition) is not int):
            topic = callers.check_place(topic, partition)
        if type(headers) is not tuple and type(headers) is not list:
            # A class of the caller's may say one length and give another; a batch would be malformed for it.
            headers = normalise_headers(headers)
        if partition is None and self._accumulator.choose_partition is not None:
            partition = self._chosen_partition(topic, key, value)
        return self._put(topic, partition, key, value, headers, milliseconds)

    def _put(
        self,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int,
    ) -> Delivery:
        """The short way, or else the long one; a wrong argument is told apart where it led to an error."""
        try:
            delivery = self._accumulator.append(topic, partition, key, value, headers, timestamp_ms)
            if delivery is not None:
                return delivery
            if not headers:
                delivery = self._begin_batch(topic, partition, key, value, timestamp_ms)
                if delivery is not None:
                    return delivery
            return self._enqueue(topic, partition, key, value, headers, timestamp_ms)
        except callers.WRONG_ARGUMENTS:
            callers.explain(topic, value, key, partition, timestamp_ms, headers)
            raise

    def _begin_batch(
        self, topic: str, partition: int | None, key: Buffer | None, value: Buffer | None, timestamp_ms: int
    ) -> Delivery | None:
        """Put a record without headers into a new batch, or a new slab; ``None`` where there is more to do."""
        accumulator = self._accumulator
        queues = accumulator.plain_topic(topic, partition)
        if queues is None:
            return None
        now = self._now()
        # Topic and partition are there, so that nobody need ask for them: only that they are used is to be known.
        if not 0 <= now - queues.noted_at < _USE_NOTED_EVERY:
            queues.noted_at = now
            self._want_topic(topic, now)
        if accumulator.busy:
            return None
        accumulator.busy = True
        try:
            return accumulator.place_plain(queues, partition, key, value, _NO_HEADERS, timestamp_ms, now)
        finally:
            accumulator.not_busy()

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
        """``core.columns.append_rows`` with the time; it takes nothing that ``send`` has to see itself."""
        if self._owner_thread != get_ident() or not self._plain:
            return first
        if partition is not None and type(partition) is not int:
            return first
        accumulator = self._accumulator
        if accumulator.busy:
            return first
        try:
            if topic not in accumulator.topics:
                return first
            now = self._want(topic, partition)
            accumulator.busy = True
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
        except callers.WRONG_ARGUMENTS:
            # Those before are in; ``send`` will say what is wrong with the next.
            return first + sum([batch.record_count - batch.column_start for batch in touched])
        finally:
            accumulator.not_busy()

    def _want(self, topic: str, partition: int | None) -> float:
        """Note that records are for this topic, and its partition; the loop's time."""
        now = self._now()
        self._want_topic(topic, now)
        if partition is not None:
            self._want_partition(topic, partition, now)
        return now

    def _now(self) -> float:
        """The loop's time.

        Raises:
            WrongCallerError: another loop of this thread runs. It is seen here, where a batch begins: to ask for every
                record would be a tenth of what that costs.
        """
        running = _get_running_loop()
        if running is not None and running is not self._owner_loop:
            raise callers.refusal(callers.OTHER_LOOP)
        # Asked anew each time: a test may have put another function in its place.
        return self._owner_loop.time()  # type: ignore[union-attr]  # set with the thread

    def _want_partition(self, topic: str, partition: int, now: float) -> None:
        """Note that records are for this partition, which may not be known."""
        raise AssertionError("the producer says")

    def _send_otherwise(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[tuple[str, Buffer | None]],
    ) -> Delivery:
        """Refuse the caller, or send what interceptors make of the record."""
        raise AssertionError("the producer says")

    def _chosen_partition(self, topic: str, key: Buffer | None, value: Buffer | None) -> int | None:
        """``RecordAccumulator.chosen_partition``, whose errors count."""
        raise AssertionError("the producer says")

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
        """Put what serializers have made of ``given``, key and value, or will have made when it is awaited."""
        raise AssertionError("the producer says")

    def _abandon(self, made: object) -> None:
        """End what a serializer has begun, if it is to be awaited: the other one has failed."""
        raise AssertionError("the producer says")

    def _enqueue(
        self,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int,
    ) -> Delivery:
        """Put a record into a new batch, or in line; or fail it."""
        raise AssertionError("the producer says")


def wall_ms() -> int:
    """Milliseconds since the epoch, as ``time.time_ns`` says: also where a test has frozen or moved the time."""
    if not cython.compiled:
        return time_ns() // 1_000_000
    # freezegun has another function in its place, time-machine another in C behind it.
    if not PyCFunction_CheckExact(time_ns) or PyCFunction_GET_FUNCTION(time_ns) != _system_time:
        told: int = time_ns() // 1_000_000
        return told
    now = cython.declare(timespec)
    clock_gettime(CLOCK_REALTIME, cython.address(now))
    milliseconds: int = now.tv_sec * 1000 + now.tv_nsec // 1_000_000
    return milliseconds


def is_compiled() -> bool:
    """Whether this is the compiled build."""
    compiled: bool = cython.compiled
    return compiled
