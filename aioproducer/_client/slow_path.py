"""The slow path of a send: async serializers, and records that cannot go straight into a batch.

``hot_path.py`` calls it; the records that it accepts wait in ``core/waiting/blocked_records.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from aioproducer._client import validation
from aioproducer._common.diagnosis import line_full, record_too_large
from aioproducer.core.batching.accumulator import RecordAccumulator
from aioproducer.core.outcomes.delivery import Delivery, OwnCallback
from aioproducer.core.waiting.pending import PENDING_OVERHEAD, PendingRecord, payload_size
from aioproducer.error_codes import INVALID_TOPIC_EXCEPTION
from aioproducer.errors import InvalidTopicError, KafkaError, SerializationError, broker_error
from aioproducer.io.cluster import Cluster
from aioproducer.io.failure_reporter import FailureReporter
from aioproducer.record import HeaderPair, normalise_headers
from aioproducer.wire.record import MAX_RECORD_OVERHEAD
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, Buffer, estimate_size_in_bytes_upper_bound

if TYPE_CHECKING:
    from aioproducer.config import ProducerConfig


# Upper bound of a record's estimated size without key, value and headers: three sizes are varints of up to 5 bytes.
_MAX_OVERHEAD = BATCH_HEADER_SIZE + MAX_RECORD_OVERHEAD + 3 * 5
# Memory that a running async serializer takes besides its argument, in bytes: its task and its coroutines.
SERIALIZER_OVERHEAD = 2560

Serialized = tuple[Buffer | None, Buffer | None]


class SlowPath:
    """Accepts the records that the hot path cannot append.

    Args:
        failures: receives each record that fails here and each error that is raised.
    """

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        accumulator: RecordAccumulator,
        cluster: Cluster,
        failures: FailureReporter,
    ) -> None:
        self._limits = (
            (config.max_request_size, "max_request_size"),
            (config.buffer_memory, "buffer_memory"),
        )
        self._least_limit = min(config.max_request_size, config.buffer_memory)
        self._loop = loop
        self._accumulator = accumulator
        self._cluster = cluster
        self._failures = failures
        # Tasks of async serializers, in the order of their records: a set is ordered by addresses, and a simulation
        # in which a close cancels them could not be replayed.
        self.serializing: dict[asyncio.Task[None], None] = {}

    # Into the queues

    def choose_partition(self, topic: str, key: Buffer | None, value: Buffer | None) -> int | None:
        """Ask the user's partitioner, as ``RecordAccumulator.chosen_partition``; count its errors."""
        try:
            return self._accumulator.chosen_partition(topic, key, value)
        except KafkaError as error:
            self._failures.record_raised(error)
            raise

    def record_use(self, topic: str, partition: int | None, now: float) -> None:
        """Let metadata keep the topic, and request an update if it does not know the partition."""
        self._cluster.record_topic_use(topic, now)
        if partition is not None:
            self._cluster.record_partition_use(topic, partition, now)

    def enqueue(
        self,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int,
        now: float,
    ) -> Delivery:
        """Put the record into a new batch or a queue, or return a Delivery that has failed.

        Raises:
            TypeError, ValueError: an argument is wrong.
            BufferExhaustedError: the queues are full.
            KafkaError: the producer has met a fatal error before.
        """
        if headers or type(value) is not bytes or (key is not None and type(key) is not bytes):
            validation.check(topic, partition, key, value, headers, timestamp_ms)
            key, value = validation.as_buffer("key", key), validation.as_buffer("value", value)
        else:
            # Nearly every record that comes here.
            validation.check_topic_and_partition(topic, partition)
        try:
            error = self._why_rejected(topic, key, value, headers)
            if error is not None:
                pending = self._accumulator.blocked_records.make_record(
                    topic, partition, None, None, (), timestamp_ms, now
                )
                self._reject(pending, key, value, headers, error)
                return pending.delivery
            self.record_use(topic, partition, now)
            return self._accumulator.enqueue(topic, partition, key, value, headers, timestamp_ms, now)
        except KafkaError as raised:
            self._failures.record_raised(raised)
            raise

    def _reject(
        self,
        pending: PendingRecord,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        error: KafkaError,
    ) -> None:
        pending.headers = normalise_headers(headers)
        if self._failures.failed_records is not None:
            # The hook receives the whole record.
            pending.key = None if key is None else bytes(key)
            pending.value = None if value is None else bytes(value)
            pending.charged = payload_size(key, value, headers) + PENDING_OVERHEAD
        pending.fail(error)
        self._failures.record_rejected(pending, error)

    def _why_rejected(
        self,
        topic: str,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
    ) -> KafkaError | None:
        """Return the error that fails the record before it is enqueued, or raise the fatal error."""
        fatal = self._accumulator.producer_state.fatal_error
        if fatal is not None:
            raise fatal.fresh()
        known = self._accumulator.topics.get(topic)
        if known is None or not known.partitions:
            invalid = validation.why_invalid_topic(topic)
            if invalid is not None:
                return InvalidTopicError(invalid)
            if self._cluster.metadata.topic_error(topic) == INVALID_TOPIC_EXCEPTION:
                return broker_error(INVALID_TOPIC_EXCEPTION)
        if (
            not headers
            and (value is None or type(value) is bytes)
            and (key is None or type(key) is bytes)
            and len(value or b"") + len(key or b"") + _MAX_OVERHEAD <= self._least_limit
        ):
            return None
        size = estimate_size_in_bytes_upper_bound(
            -1 if key is None else memoryview(key).nbytes, -1 if value is None else memoryview(value).nbytes, headers
        )
        if size > self._least_limit:
            for limit, name in self._limits:
                if size > limit:
                    return record_too_large(topic, size, limit, name)
        return None

    # Async serializers

    def is_awaitable(self, key: object, value: object) -> bool:
        """Return whether a serializer of the key or the value returned a coroutine."""
        return iscoroutine(key) or iscoroutine(value)

    def abandon(self, serialized: object) -> None:
        """Cancel the pending async serializer after the other one failed."""
        if iscoroutine(serialized):
            abandon(serialized, self._loop)

    def enqueue_unserialized(
        self,
        topic: str,
        partition: int | None,
        key: Any,
        value: Any,
        headers: Sequence[HeaderPair],
        timestamp_ms: int,
        given: tuple[Any, Any],
    ) -> Delivery:
        """Enqueue the record while its async serializers run; ``headers`` are read after they have ended.

        Args:
            key, value: data, or the coroutine of a serializer.
            given: the serializers' arguments, key and value: they represent the record until its data exists.

        Raises:
            TypeError, ValueError: an argument is wrong.
            BufferExhaustedError: the queues are full.
        """
        size_hint = validation.size_of(given[0]) + validation.size_of(given[1])
        coroutine = finish(key, value, self._loop)
        now = self._loop.time()
        try:
            validation.check(topic, partition, None, None, headers, timestamp_ms)
            blocked_records = self._accumulator.blocked_records
            pending = blocked_records.make_record(topic, partition, None, None, (), timestamp_ms, now)
            # The serialized size is not known yet.
            blocked_records.add(pending, size_hint + SERIALIZER_OVERHEAD)
        except BaseException as error:
            abandon(coroutine, self._loop)
            if isinstance(error, KafkaError):
                self._failures.record_raised(error)
            raise
        pending.serialized = False
        pending.key, pending.value = given
        pending.headers = headers
        delivery = pending.delivery
        self._cluster.record_topic_use(topic, now)
        task = self._loop.create_task(self._finish(pending, coroutine, headers), name="aioproducer-serializer")
        self.serializing[task] = None
        task.add_done_callback(self.serializing.pop)
        # If the record is withdrawn or expires, its serializer is no longer needed.
        delivery.add_done_callback(OwnCallback(lambda delivery: task.cancel()))
        return delivery

    async def _finish(
        self, pending: PendingRecord, coroutine: Coroutine[Any, Any, Serialized], headers: Sequence[HeaderPair]
    ) -> None:
        accumulator = self._accumulator
        error: KafkaError | None
        try:
            key, value = await coroutine
            error = self._admit(
                pending, validation.as_buffer("key", key), validation.as_buffer("value", value), headers
            )
        except KafkaError as failure:
            error = failure
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error = SerializationError(f"a serializer for topic {pending.topic!r} cancelled itself")
        except Exception as failure:
            error = SerializationError(
                f"a serializer for topic {pending.topic!r} returned data that cannot be sent: {failure}"
            )
        if error is not None:
            accumulator.blocked_records.remove(pending)
            if not pending.is_done(0) and not pending.withdrawn:
                pending.fail(error.fresh())
                self._failures.record_rejected(pending, error)
            return
        topic = accumulator.topics.get(pending.topic)
        if topic is not None:
            accumulator.blocked_records.advance(topic, self._loop.time())

    def _admit(
        self, pending: PendingRecord, key: Buffer | None, value: Buffer | None, headers: Sequence[HeaderPair]
    ) -> KafkaError | None:
        """Store the serialized data in the pending record; return the error if it cannot be sent."""
        error = self._why_rejected(pending.topic, key, value, headers)
        if error is not None:
            return error
        waiting = self._accumulator.blocked_records.pending
        size = payload_size(key, value, headers)
        others = waiting.size - pending.charged
        if others and others + size + PENDING_OVERHEAD > waiting.size_limit:
            # The memory was reserved with an estimate, which was too low.
            return line_full(size, others, waiting.size_limit, len(waiting.records) - 1)
        pending.key = None if key is None else bytes(key)
        pending.value = None if value is None else bytes(value)
        pending.headers = normalise_headers(headers)
        pending.serialized = True
        self._accumulator.recharge(pending)
        return None


async def finish(key: Any, value: Any, loop: asyncio.AbstractEventLoop) -> Serialized:
    """Await the coroutines among key and value, one after the other: both may add headers."""
    try:
        key_data = await key if iscoroutine(key) else key
    except BaseException:
        if iscoroutine(value):
            abandon(value, loop)
        raise
    return key_data, await value if iscoroutine(value) else value


def abandon(coroutine: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> None:
    """Cancel a coroutine that is no longer needed. It is started first: Python warns of those that never were."""
    task = loop.create_task(coroutine)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    loop.call_soon(task.cancel)
