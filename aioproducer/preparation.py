"""The long way of a record: what a user's interceptors and serializers make of it, and its place in line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from aioproducer import callers
from aioproducer.client_log import ClientLog
from aioproducer.core.accumulator import RecordAccumulator
from aioproducer.core.delivery import Delivery, OwnCallback
from aioproducer.core.metadata import ClusterMetadata
from aioproducer.core.pending import PENDING_OVERHEAD, PendingRecord, payload_size
from aioproducer.diagnosis import line_full, record_too_large
from aioproducer.errors import InvalidTopicError, KafkaError, SerializationError, broker_error
from aioproducer.interceptors import InterceptorChain
from aioproducer.record import HeaderPair, RecordMetadata, normalise_headers
from aioproducer.serializers import BytesSerializer, resolve
from aioproducer.wire.record import MAX_RECORD_OVERHEAD
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, Buffer, estimate_size_in_bytes_upper_bound

if TYPE_CHECKING:
    from aioproducer.config import ProducerConfig
    from aioproducer.outgoing import Record

INVALID_TOPIC = 17
# The most that the estimate for a record without headers is larger than its key and value: three sizes are varints.
_MOST_BESIDE_PAYLOAD = BATCH_HEADER_SIZE + MAX_RECORD_OVERHEAD + 3 * 5
# What an async serializer at work holds besides what it works on: its task, and the coroutines that it runs.
SERIALIZER_OVERHEAD = 2560

Serialized = tuple[Buffer | None, Buffer | None]


class Preparation:
    """The configured interceptors and serializers."""

    def __init__(self, config: ProducerConfig, note_raised: Callable[[KafkaError], None], log: ClientLog) -> None:
        """``note_raised`` is called with each error that a serializer makes ``send`` raise."""
        self._chain = InterceptorChain(config.interceptor_classes, log)
        self.keys_are_bytes = config.key_serializer is None
        self.values_are_bytes = config.value_serializer is None
        key_serializer = BytesSerializer() if self.keys_are_bytes else config.key_serializer
        value_serializer = BytesSerializer() if self.values_are_bytes else config.value_serializer
        self.serialize_key = resolve(key_serializer, "key", note_raised)
        self.serialize_value = resolve(value_serializer, "value", note_raised)
        self.wants_acknowledgements = self._chain.wants_acknowledgements
        self.intercepts = self._chain.wants_records or self._chain.wants_acknowledgements
        self.is_idle = self.keys_are_bytes and self.values_are_bytes and not self.intercepts

    def intercept(self, *record: Any) -> Record:
        """What the interceptors make of the ``Record`` of these arguments."""
        record_class = self._chain.record_class
        assert record_class is not None
        return self._chain.on_send(record_class(*record))

    def send_failed(self, record: Record, error: BaseException) -> None:
        """Tell the interceptors that the record was not accepted."""
        self._chain.on_send_error(record, record.partition, error)

    def report_outcome(self, delivery: Delivery, headers: Sequence[HeaderPair]) -> None:
        """Tell the interceptors once, when the record is delivered, has failed or was withdrawn."""

        def tell(delivery: Delivery) -> None:
            if delivery.cancelled() and not delivery.withdrawn:
                # Only the caller's handle is gone: what became of the record is known to another one.
                Delivery(delivery._group, -1 - delivery._index).add_done_callback(OwnCallback(tell))
                return
            error = asyncio.CancelledError() if delivery.withdrawn else delivery.exception()
            metadata = RecordMetadata(*delivery.topic_partition, None, None) if error else delivery.result()
            self._chain.on_acknowledgement(metadata, error, tuple(headers))

        delivery.add_done_callback(OwnCallback(tell))

    def close(self) -> None:
        self._chain.close()


async def finish(key: Any, value: Any, loop: asyncio.AbstractEventLoop) -> Serialized:
    """Await what of key and value is still to be awaited, one after the other: both may add headers."""
    try:
        done_key = await key if iscoroutine(key) else key
    except BaseException:
        if iscoroutine(value):
            abandon(value, loop)
        raise
    return done_key, await value if iscoroutine(value) else value


def abandon(coroutine: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> None:
    """End a coroutine that nobody needs any more. It is begun first: Python warns of those that never were."""
    task = loop.create_task(coroutine)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    loop.call_soon(task.cancel)


class Admission:
    """Lets records in that cannot go straight into an open batch.

    Args:
        want: told of each topic, and partition, that records are for; gives the loop's time.
        want_topic: the same where the time is known.
        note_refused: told of each record that failed by itself.
        keeps_refused: such a record keeps what it holds.
        note_raised: called with each error that ``send`` raises for a record that is not accepted.
    """

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        accumulator: RecordAccumulator,
        metadata: ClusterMetadata,
        *,
        want: Callable[[str, int | None], float],
        want_topic: Callable[[str, float], None],
        note_refused: Callable[[PendingRecord, KafkaError], None],
        keeps_refused: bool,
        note_raised: Callable[[KafkaError], None],
    ) -> None:
        self._limits = (
            (config.max_request_size, "max_request_size"),
            (config.buffer_memory, "buffer_memory"),
        )
        self._least_limit = min(config.max_request_size, config.buffer_memory)
        self._loop = loop
        self._accumulator = accumulator
        self._metadata = metadata
        self._want = want
        self._want_topic = want_topic
        self._note_refused = note_refused
        self._keeps_refused = keeps_refused
        self._note_raised = note_raised
        # Async serializers at work.
        self.serializing: set[asyncio.Task[None]] = set()

    def enqueue(
        self,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
        timestamp_ms: int,
    ) -> Delivery:
        """A new batch, or a place in line, or a Delivery that has failed.

        Raises:
            TypeError, ValueError: an argument is wrong.
            BufferExhaustedError: the lines are full.
            KafkaError: the producer has met a fatal error before.
        """
        if headers or type(value) is not bytes or (key is not None and type(key) is not bytes):
            callers.check(topic, value, key, partition, timestamp_ms, headers)
            key, value = callers.as_buffer("key", key), callers.as_buffer("value", value)
        else:
            # What nearly every record is; a linger of 0 brings all of them here.
            callers.check_place(topic, partition)
        try:
            error = self._refusal(topic, key, value, headers)
            if error is not None:
                pending = self._accumulator.lines.make(
                    topic, partition, None, None, (), timestamp_ms, self._loop.time()
                )
                if self._keeps_refused:
                    pending.key = None if key is None else bytes(key)
                    pending.value = None if value is None else bytes(value)
                    pending.headers = normalise_headers(headers)
                    pending.charged = payload_size(key, value, headers) + PENDING_OVERHEAD
                pending.fail(error)
                self._note_refused(pending, error)
                return pending.delivery
            now = self._want(topic, partition)
            return self._accumulator.enqueue(topic, partition, key, value, headers, timestamp_ms, now)
        except KafkaError as raised:
            self._note_raised(raised)
            raise

    def _refusal(
        self,
        topic: str,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, Buffer | None]],
    ) -> KafkaError | None:
        """What fails a record before it is in line."""
        fatal = self._accumulator.producer_state.fatal_error
        if fatal is not None:
            raise fatal.fresh()
        known = self._accumulator.topics.get(topic)
        if known is None or not known.partitions:
            unlawful = callers.why_unlawful(topic)
            if unlawful is not None:
                return InvalidTopicError(unlawful)
            if self._metadata.topic_error(topic) == INVALID_TOPIC:
                return broker_error(INVALID_TOPIC)
        if (
            not headers
            and (value is None or type(value) is bytes)
            and (key is None or type(key) is bytes)
            and len(value or b"") + len(key or b"") + _MOST_BESIDE_PAYLOAD <= self._least_limit
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

    def serialize_in_line(
        self,
        topic: str,
        partition: int | None,
        coroutine: Coroutine[Any, Any, Serialized],
        headers: Sequence[HeaderPair],
        timestamp_ms: int,
        size_hint: int,
        given: tuple[Any, Any],
    ) -> Delivery:
        """Keep the record's place while an async serializer works on it; ``headers`` are read when it is done.

        ``given`` are key and value as the serializers were, which stand for the record until then.

        Raises:
            TypeError, ValueError: an argument is wrong.
            BufferExhaustedError: the lines are full.
        """
        now = self._loop.time()
        try:
            callers.check(topic, None, None, partition, timestamp_ms, headers)
            lines = self._accumulator.lines
            pending = lines.make(topic, partition, None, None, (), timestamp_ms, now)
            # Its bytes are not known yet.
            lines.join(pending, size_hint + SERIALIZER_OVERHEAD)
        except BaseException as error:
            abandon(coroutine, self._loop)
            if isinstance(error, KafkaError):
                self._note_raised(error)
            raise
        pending.serialized = False
        pending.key, pending.value = given
        pending.headers = headers
        delivery = pending.delivery
        self._want_topic(topic, now)
        task = self._loop.create_task(self._finish(pending, coroutine, headers), name="aioproducer-serializer")
        self.serializing.add(task)
        task.add_done_callback(self.serializing.discard)
        # Withdrawn or out of time: then the serializer works for nobody.
        delivery.add_done_callback(OwnCallback(lambda delivery: task.cancel()))
        return delivery

    async def _finish(
        self, pending: PendingRecord, coroutine: Coroutine[Any, Any, Serialized], headers: Sequence[HeaderPair]
    ) -> None:
        accumulator = self._accumulator
        error: KafkaError | None
        try:
            key, value = await coroutine
            error = self._admit(pending, callers.as_buffer("key", key), callers.as_buffer("value", value), headers)
        except KafkaError as failure:
            error = failure
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error = SerializationError(f"a serializer for topic {pending.topic!r} cancelled itself")
        except Exception as failure:
            error = SerializationError(f"what a serializer made for topic {pending.topic!r} cannot be sent: {failure}")
        if error is not None:
            accumulator.lines.leave_line(pending)
            if not pending.is_done(0) and not pending.withdrawn:
                pending.fail(error.fresh())
                self._note_refused(pending, error)
            return
        topic = accumulator.topics.get(pending.topic)
        if topic is not None:
            accumulator.lines.advance(topic, self._loop.time())

    def _admit(
        self, pending: PendingRecord, key: Buffer | None, value: Buffer | None, headers: Sequence[HeaderPair]
    ) -> KafkaError | None:
        """Take in what the serializer has made, or say why not."""
        error = self._refusal(pending.topic, key, value, headers)
        if error is not None:
            return error
        waiting = self._accumulator.lines.waiting
        size = payload_size(key, value, headers)
        others = waiting.size - pending.charged
        if others and others + size + PENDING_OVERHEAD > waiting.size_limit:
            # Its place was reserved by a guess, and the guess was too low.
            return line_full(size, others, waiting.size_limit, len(waiting.records) - 1)
        pending.key = None if key is None else bytes(key)
        pending.value = None if value is None else bytes(value)
        pending.headers = normalise_headers(headers)
        pending.serialized = True
        self._accumulator.recharge(pending)
        return None
