"""Compiled. RecordAccumulator: holds records in batches until the sender drains them for a broker.

``send`` calls ``append``, and ``enqueue`` if the record needs more than an open batch; the next file on the way of a
record is ``batch.py``. The sender calls ``drain`` for a broker that can take a request. In between a batch is in the
queue of its partition and in the list of incomplete batches; the oldest of them is the next to expire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aioproducer.compression import Codec
from aioproducer.core.batching.batch import CLOSED, SUCCEEDED, Header, ProducerBatch, new_batch
from aioproducer.core.batching.batch_compression import BatchCompression
from aioproducer.core.batching.batch_memory import BatchMemory
from aioproducer.core.batching.buffer_pool import BufferPool
from aioproducer.core.batching.drain_waiters import DrainWaiters
from aioproducer.core.batching.incomplete_batches import IncompleteBatches
from aioproducer.core.batching.partition_queue import PartitionChoice, PartitionQueue, TopicQueues
from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.batching.ready import BatchFinisher, ReadyPartitions
from aioproducer.core.batching.topics import Topics
from aioproducer.core.outcomes.delivery import Delivery, FutureFactory, OnOutcome, new_delivery
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.waiting.blocked_records import BlockedRecords
from aioproducer.core.waiting.pending import PendingRecord, payload_size
from aioproducer.core.waiting.waiters import FlushWaiters
from aioproducer.errors import KafkaError
from aioproducer.partitioner import StickyPartitioner
from aioproducer.wire.murmur2 import partition_for_key
from aioproducer.wire.record import MAX_RECORD_OVERHEAD
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, Buffer, record_size_upper_bound

if TYPE_CHECKING:
    from asyncio import Future
    from random import Random

# Each enqueue also admits up to this many waiting records. Otherwise arrivals could match the sender's rate, such as
# callers that await the records it has just sent, and the queue would never empty.
ADMITTED_BY_EACH = 2


# Names of this module alone are C integers in the compiled module.
_CLOSED, _SUCCEEDED = CLOSED, SUCCEEDED


def _size_of(data: Buffer | None) -> int:
    """Return the bytes of a key or value, -1 for null."""
    if data is None:
        return -1
    return len(data) if type(data) is bytes else memoryview(data).nbytes


class AccumulatorSettings(NamedTuple):
    """The configuration of an accumulator. Times are in seconds, sizes in bytes."""

    batch_size: int = 16384
    linger: float = 0.005
    delivery_timeout: float = 120.0
    max_block: float = 60.0
    max_request_size: int = 1048576
    codec: Codec | None = None
    compression_level: int | None = None
    # At most one batch of a partition is on the wire: this keeps the order without idempotence.
    one_in_flight_per_partition: bool = False
    retry_backoff: ExponentialBackoff = ExponentialBackoff(100, 1000)
    ignore_keys: bool = False
    adaptive_partitioning: bool = True
    availability_timeout: float = 0.0
    rack: str | None = None


class RecordAccumulator(BatchFinisher):
    """Fills batches, queues them by partition, and drains them; records that cannot be appended wait here too.

    Args:
        loop: makes futures for waiters.
        wake: called when something is ready or a deadline has come nearer; cheap, and may be called often.
        choose_partition: a user's partitioner, or ``None`` for Kafka's own rule.
        rack_of: see ``Topics``.
        on_outcome: called with each batch, and each waiting record, once its outcome is known; ``None`` costs nothing.
    """

    def __init__(
        self,
        loop: FutureFactory,
        pool: BufferPool,
        producer_state: ProducerState,
        settings: AccumulatorSettings,
        *,
        wake: Callable[[], None],
        random: Random,
        choose_partition: PartitionChoice | None = None,
        rack_of: Callable[[int], str | None] = lambda node_id: None,
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self.loop = loop
        self.pool = pool
        self.producer_state = producer_state
        self.settings = settings
        self.wake = wake
        self.random = random
        self.choose_partition = choose_partition
        self._on_outcome = on_outcome
        self._ignore_keys = settings.ignore_keys
        self._max_request_size = settings.max_request_size
        self._one_in_flight = settings.one_in_flight_per_partition
        self._delivery_timeout = settings.delivery_timeout
        # Record bytes of a batch: at most those of a request, so that ``append`` need not check that a record fits into
        # one. If not even a header fits, each record is a batch.
        self._size_limit = max(min(settings.batch_size, settings.max_request_size) - BATCH_HEADER_SIZE, 0)
        # The maximum size of a record less its sizes' varints: larger ones are measured exactly.
        self._largest_plain = min(settings.max_request_size, pool.total_memory) - BATCH_HEADER_SIZE - 3 * 5
        self.ready = ReadyPartitions(producer_state, settings.linger, wake)
        self.topics = Topics(
            self.ready,
            producer_state,
            random,
            batch_size=settings.batch_size,
            is_adaptive=settings.adaptive_partitioning,
            availability_timeout=settings.availability_timeout,
            rack=settings.rack,
            rack_of=rack_of,
        )
        # The topic of the last record, under the very string that named it.
        self._last_name: str | None = None
        self._last_topic: TopicQueues | None = None
        self.incomplete = IncompleteBatches()
        # Batches that still take records.
        self._open_batches = 0
        # Batches that a request in flight carries, those included that have failed meanwhile.
        self.on_wire = 0
        self.compression: BatchCompression | None = None
        if settings.codec is not None:
            self.compression = BatchCompression(settings.codec, settings.compression_level, pool, wake)
        self._memory = BatchMemory(pool, batch_size=settings.batch_size, compresses=self.compression is not None)
        self.blocked_records = BlockedRecords(
            loop,
            topic=self.topics.ensure,
            size_limit=pool.total_memory,
            max_block=settings.max_block,
            wake=wake,
            end_lingering=self.ready.end_lingering,
            on_removed=self.check_flush_waiters,
            on_outcome=on_outcome,
        )
        # Read for each record.
        self._memory_waiters = self.blocked_records.memory_waiters
        self._pending_records = self.blocked_records.pending.records
        self._flush_waiters = FlushWaiters(
            loop,
            first_batch=self.incomplete.first_number,
            first_record=self.blocked_records.pending.first_number,
        )
        self.drain_waiters = DrainWaiters(
            loop, pool, self.incomplete, self.blocked_records, settings.max_request_size, wake
        )
        # While either is set, new batches do not linger.
        self.flushing = 0
        self.closing = False
        # The re-entrancy guard: a record is being appended. The garbage collector may run meanwhile, and with it code
        # that sends, such as a logging handler that reports an unretrieved exception; so may a user's partitioner.
        self._appending = False
        # Records that such code has sent, each with its size: they are enqueued when the append ends.
        self._sent_meanwhile: list[tuple[PendingRecord, int]] = []
        # Records that a user's partitioner failed while they waited; the sender fails them.
        self.refused: list[tuple[PendingRecord, KafkaError]] = []

    # The hot path

    def append(
        self,
        topic_name: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
    ) -> Delivery | None:
        """Append a record to the open batch of its partition; return ``None`` if ``enqueue`` has to do more."""
        if self._appending:
            return None
        topic = self._last_topic
        if topic is None or topic_name is not self._last_name:
            topic = self.topics.get(topic_name)
            if topic is None:
                return None
            self._last_name = topic_name
            self._last_topic = topic
        if topic.blocked_count:
            return None
        partitions = topic.partitions
        if not partitions:
            return None
        if partition is None:
            if self.choose_partition is not None:
                return None
            if key is None or self._ignore_keys:
                number = topic.sticky.partition  # type: ignore[union-attr]  # set with the partitions
            else:
                number = partition_for_key(key, len(partitions))
        else:
            number = partition
            if not 0 <= number < len(partitions):
                return None
        queue = partitions[number]
        if queue is None:
            return None
        batch = queue.open_batch
        if batch is None:
            return None
        self._appending = True
        try:
            index = batch.append(key, value, headers, timestamp_ms)
            if index < 0:
                if not self._grow(batch, -index):
                    return None
                index = batch.append(key, value, headers, timestamp_ms)
                batch.limit_room()
            return new_delivery(batch, index)
        finally:
            self.end_append()

    def _grow(self, batch: ProducerBatch, record_size: int) -> bool:
        """Add a slab for a record of this size; return False if that is not all that is missing."""
        if batch.state >= _CLOSED or batch.used_size() + record_size >= batch.size_limit or self._memory_waiters:
            # The record makes the batch full, or has to wait: ``enqueue`` does that.
            return False
        return self._add_slab(batch, record_size)

    def enqueue(
        self,
        topic_name: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        now: float,
    ) -> Delivery:
        """Append a record to a batch that may need a slab or be new, or let it wait for metadata or memory.

        Raises:
            BufferExhaustedError: the waiting records take ``buffer_memory`` bytes.
        """
        if self._appending:
            pending = self.blocked_records.make_record(topic_name, partition, key, value, headers, timestamp_ms, now)
            self._sent_meanwhile.append((pending, payload_size(key, value, headers)))
            return pending.delivery
        self._appending = True
        try:
            topic = self.topics.ensure(topic_name)
            if not topic.blocked_count and topic.has_partition(partition):
                partition = self._choose(topic, partition, key, value)
                if topic.has_partition(partition):
                    first = not self._memory_waiters
                    delivery = self._append_to_queue(topic, partition, key, value, headers, timestamp_ms, now, first)
                    if delivery is not None:
                        return delivery
            pending = self.blocked_records.make_record(topic_name, partition, key, value, headers, timestamp_ms, now)
            self.blocked_records.add(pending, payload_size(key, value, headers))
            self._unblock(topic, now)
            return pending.delivery
        finally:
            self.end_append()

    def begin_append(self) -> bool:
        """Begin an append; return False during another one, as its user code may send. ``end_append`` ends it."""
        if self._appending:
            return False
        self._appending = True
        return True

    def end_append(self) -> None:
        """Reset the re-entrancy guard, and enqueue the records that were sent meanwhile."""
        try:
            while self._sent_meanwhile:
                pending, size = self._sent_meanwhile.pop(0)
                self._enqueue_sent_meanwhile(pending, size)
        finally:
            self._appending = False

    def _enqueue_sent_meanwhile(self, pending: PendingRecord, size: int) -> None:
        if pending.withdrawn:
            return
        try:
            self.blocked_records.add(pending, size)
        except KafkaError as error:
            # No caller could catch it.
            self.refused.append((pending, error))
            self.wake()
            return
        self._unblock(self.topics.ensure(pending.topic), pending.since)

    def _unblock(self, topic: TopicQueues, now: float) -> None:
        """Append what need not wait any longer: a record has joined the waiters of the topic."""
        self.blocked_records.advance(topic, now)
        if self._memory_waiters:
            self._admit(now, ADMITTED_BY_EACH)

    def expired_records(self, now: float, limit: int | None = None) -> list[PendingRecord]:
        """Remove the records that have waited for ``max_block``, at most ``limit``; the caller fails them."""
        self._appending = True
        try:
            return self.blocked_records.expired_records(now, limit)
        finally:
            self.end_append()

    def records_of_topic(self, name: str, last_number: int, limit: int) -> list[PendingRecord]:
        """Return at most ``limit`` records that wait for the topic's metadata, up to a number."""
        self._appending = True
        try:
            return self.blocked_records.records_of_topic(name, last_number, limit)
        finally:
            self.end_append()

    def plain_topic(self, name: str, partition: int | None) -> TopicQueues | None:
        """Return the topic if its records, or those of this partition, need not wait for anything but memory."""
        topic = self.topics.get(name)
        if topic is None or topic.blocked_count or not topic.has_partition(partition):
            return None
        if partition is None:
            return topic if self.choose_partition is None else None
        return topic if partition >= 0 else None

    def chosen_partition(self, name: str, key: Buffer | None, value: Buffer | None) -> int | None:
        """Return the choice of the user's partitioner; ``None`` if ``enqueue`` should call it or reject the record."""
        if type(name) is not str or (key is not None and type(key) is not bytes):
            return None
        topic = self.topics.get(name)
        if topic is None or topic.blocked_count or not topic.partitions or self.choose_partition is None:
            return None
        if value is not None and type(value) is not bytes:
            return None
        return self.choose_partition(name, key, value)

    def append_to_new_batch(
        self,
        topic: TopicQueues,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        now: float,
    ) -> Delivery | None:
        """Append a record to a new batch, or to a new slab; return ``None`` if ``enqueue`` has to do more.

        ``topic`` is what ``plain_topic`` returned; the caller has called ``begin_append``.
        """
        if self._memory_waiters or self.producer_state.fatal_error is not None:
            return None
        size = MAX_RECORD_OVERHEAD
        if value is not None:
            if type(value) is not bytes:
                return None
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                return None
            size += len(key)
        if headers:
            size = record_size_upper_bound(_size_of(key), _size_of(value), headers)
        if size > self._largest_plain:
            return None
        return self._append_to_queue(topic, partition, key, value, headers, timestamp_ms, now, True)

    def admit(self, now: float, limit: int) -> bool:
        """Append at most ``limit`` records that waited for memory; return whether more could be appended at once."""
        if not self._pending_records:
            return False
        self._appending = True
        try:
            return self._admit(now, limit)
        finally:
            self.end_append()

    def _admit(self, now: float, limit: int) -> bool:
        blocked_records = self.blocked_records
        blocked_records.resume_topics(now)
        waiters = self._memory_waiters
        while waiters:
            pending = next(iter(waiters))
            topic = self.topics[pending.topic]
            try:
                pending.partition = self._choose(topic, pending.partition, pending.key, pending.value)
            except Exception as error:
                # A user's partitioner raised, and no caller can catch its error here.
                blocked_records.remove(pending)
                if not isinstance(error, KafkaError):
                    error = KafkaError(f"The partitioner failed on a record for topic {topic.name!r}: {error!r}")
                self.refused.append((pending, error.fresh()))
                continue
            if pending.withdrawn:
                # Its partitioner has withdrawn it.
                continue
            if not topic.has_partition(pending.partition):
                blocked_records.return_to_topic(topic)
                blocked_records.advance(topic, now)
                continue
            try:
                delivery = self._append_to_queue(
                    topic,
                    pending.partition,
                    pending.key,
                    pending.value,
                    pending.headers,
                    pending.timestamp_ms,
                    now,
                    True,
                )
            except Exception as error:
                # The record would hold up those behind it, and an unrelated caller of ``send`` would get the error.
                blocked_records.remove(pending)
                refusal = KafkaError(f"A record for topic {topic.name!r} cannot be written: {error!r}")
                self.refused.append((pending, refusal))
                continue
            if delivery is None:
                return False
            blocked_records.report_memory_wait(pending, now)
            blocked_records.remove(pending)
            pending.hand_over(delivery)
            limit -= 1
            if limit <= 0:
                return bool(waiters)
        return False

    def take_refused(self) -> list[tuple[PendingRecord, KafkaError]]:
        """Return the records that ``admit`` could not append, each with its error; the caller fails them."""
        refused, self.refused = self.refused, []
        return refused

    def _choose(
        self, topic: TopicQueues, partition: int | None, key: Buffer | None, value: Buffer | None
    ) -> int | None:
        """Return the record's own partition, or call the user's partitioner, which happens once for each record."""
        if partition is None and self.choose_partition is not None:
            return self.choose_partition(topic.name, key, value)
        return partition

    def _append_to_queue(
        self,
        topic: TopicQueues,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        now: float,
        first: bool,
    ) -> Delivery | None:
        """Append the record to a batch; return ``None`` if there is no memory, or others wait (``first`` is False)."""
        sticky: StickyPartitioner | None = None
        if partition is None:
            if key is not None and not self._ignore_keys and self.choose_partition is None:
                partition = partition_for_key(key, len(topic.partitions))
            else:
                sticky = topic.sticky
                assert sticky is not None
                partition = sticky.partition
        queue = self.topics.queue(topic, partition)
        batch = queue.open_batch
        while batch is not None:
            index = batch.append(key, value, headers, timestamp_ms)
            if index < 0 and batch.state >= _CLOSED:
                if queue.open_batch is batch:
                    # The batch is being closed at this moment.
                    return None
                batch = queue.open_batch
                continue
            if index < 0 and batch.has_room_for(-index):
                if not first or not self._add_slab(batch, -index):
                    return None
                index = batch.append(key, value, headers, timestamp_ms)
                batch.limit_room()
            if index >= 0:
                if batch.is_full():
                    self._close_batch(queue, batch, now, True)
                return new_delivery(batch, index)
            self._close_batch(queue, batch, now, True)
            if sticky is None:
                break
            queue = self.topics.queue(topic, sticky.partition)
            batch = queue.open_batch
        if not first:
            return None
        size = record_size_upper_bound(_size_of(key), _size_of(value), headers)
        batch = self._open_batch(topic, queue, size, timestamp_ms, now)
        if batch is None:
            return None
        try:
            index = batch.append(key, value, headers, timestamp_ms)
        except BaseException:
            # The batch is in no queue yet.
            batch.abandon(self.pool)
            raise
        assert index == 0
        batch.limit_room()
        self._queue_open_batch(queue, batch, now)
        if batch.is_full():
            self._close_batch(queue, batch, now, True)
        return new_delivery(batch, index)

    def _add_slab(self, batch: ProducerBatch, record_size: int) -> bool:
        slab = self._memory.next(batch, record_size, self.incomplete.count - self._open_batches)
        if slab is None:
            return False
        batch.add_slab(slab)
        return True

    def _open_batch(
        self, topic: TopicQueues, queue: PartitionQueue, record_size: int, timestamp_ms: int, now: float
    ) -> ProducerBatch | None:
        limit = self._size_limit
        if self.compression is not None:
            limit = self.compression.uncompressed_limit(topic.name, limit, self._max_request_size - BATCH_HEADER_SIZE)
        in_progress = self.incomplete.count - self._open_batches
        slab = self._memory.first(record_size, queue.last_batch_size, limit, self._open_batches, in_progress)
        if slab is None:
            return None
        number = self.incomplete.next_number()
        batch = new_batch(self.loop, queue, queue.topic_partition, number, now, limit)
        batch.base_timestamp = timestamp_ms
        if self._on_outcome is not None:
            batch.report_to(self._on_outcome)
        batch.add_slab(slab)
        return batch

    def _queue_open_batch(self, queue: PartitionQueue, batch: ProducerBatch, now: float) -> None:
        queue.open_batch = batch
        self._open_batches += 1
        queue.own_batches().append(batch)
        self.incomplete.add(batch)
        state = self.producer_state
        if queue.sequences.transaction != state.transaction:
            assert state.transactions is not None
            state.transactions.partition_used(queue.topic_partition, queue.sequences)
        self.ready.batch_opened(queue, batch, now, self.flushing > 0 or self.closing or bool(self._memory_waiters))
        if self.incomplete.count == 1:
            self.wake()

    def _close_batch(self, queue: PartitionQueue, batch: ProducerBatch, now: float, full: bool) -> None:
        """Close the open batch: it takes no more records."""
        fullness = 1.0 if full else min(1.0, batch.used_size() / max(batch.size_limit, 1))
        batch.close()
        if queue.open_batch is batch:
            queue.open_batch = None
            self._open_batches -= 1
        queue.last_batch_size = batch.used_before
        self.ready.batch_closed(batch)
        self.topics.batch_closed(queue, fullness, now)
        if full:
            if self.compression is not None:
                self.compression.enqueue(batch)
            self.ready.update(queue, now)

    # Metadata

    def set_partition_count(self, name: str, partition_count: int, now: float) -> None:
        """Set the number of partitions of a topic.

        There may be fewer than before if the topic was re-created, or none if it was deleted: batches of the others are
        sent if their partitions come back, or expire.
        """
        self._appending = True
        try:
            topic = self.topics.ensure(name)
            shrinks = partition_count < len(topic.partitions)
            self.topics.resize(topic, partition_count, now)
            if shrinks:
                self.blocked_records.return_to_topic(topic)
            self.blocked_records.partitions_changed(topic, now)
        finally:
            self.end_append()

    def forget_topic(self, name: str) -> bool:
        """Drop the state of a topic that metadata no longer follows; return False if something waits there."""
        if not self.topics.forget(name):
            return False
        self._last_name = self._last_topic = None
        if self.compression is not None:
            self.compression.ratios.forget(name)
        return True

    # Ready and drain

    def next_deadline(self) -> float:
        """Return the loop time of the next deadline: a linger, a backoff or a time-out; infinity for none."""
        deadline = self.ready.next_deadline()
        oldest = self.incomplete.oldest
        if oldest is not None:
            deadline = min(deadline, oldest.created_at + self._delivery_timeout)
        if self._pending_records:
            deadline = min(deadline, next(iter(self._pending_records)).deadline)
        return deadline

    def drain(self, node_id: int, now: float) -> list[ProducerBatch]:
        """Return the batches for one request to a node: at most one of a partition, in the order they became ready.

        Together they have at most ``max_request_size`` bytes; a larger batch is returned alone. They are closed, have
        their sequences and belong to the caller until it reports how the request ended.
        """
        self._appending = True
        try:
            drained = self.ready.drain(node_id, now, self._max_request_size, self._one_in_flight, self)
            self.on_wire += len(drained)
            return drained
        finally:
            self.end_append()

    def finish_batch(self, queue: PartitionQueue, batch: ProducerBatch, now: float) -> bool:
        """See ``BatchFinisher``."""
        if batch.state < _CLOSED:
            self._close_batch(queue, batch, now, False)
        compression = self.compression
        if compression is None or batch.codec_id or compression.compress_inline(batch):
            return True
        compression.enqueue(batch)
        return False

    def compressed(self, batch: ProducerBatch, data: bytes | None, now: float) -> None:
        """Receive the compressed bytes of a batch; ``None`` if the batch is given up."""
        compression = self.compression
        assert compression is not None
        compression.end(batch)
        if batch.state >= _SUCCEEDED:
            self.release(batch)
        elif data is not None:
            compression.set_compressed(batch, data)
            if batch.queue is not None:
                self.ready.update(batch.queue, now)

    # Outcomes

    def request_ended(self, batch: ProducerBatch) -> None:
        """Let the partition send again: the request that carried the batch has a response, or its connection ended."""
        assert batch.queue is not None
        batch.on_wire = False
        batch.queue.on_wire -= 1
        self.on_wire -= 1
        self.ready.unmute(batch.queue)

    def completed(self, batch: ProducerBatch, now: float) -> None:
        """Remove a batch that has its outcome, and let its partition send again."""
        queue = batch.queue
        assert queue is not None
        self._finish(batch)
        if not batch.on_wire:
            batch.queue = None
        self.ready.unblock(queue, now)

    def _finish(self, batch: ProducerBatch) -> None:
        self.incomplete.finish(batch)
        self._flush_waiters.check()
        self.release(batch)

    def release(self, batch: ProducerBatch) -> None:
        """Return the memory of a finished batch to the pool, unless a transport or a compressor still reads it."""
        if batch.state >= _SUCCEEDED and batch.readers == 0:
            batch.release_memory(self.pool)
            if self._memory_waiters or self.drain_waiters.waiters:
                self.wake()

    def reenqueue(self, batch: ProducerBatch, now: float, *, backoff: bool = True) -> None:
        """Queue a batch to be sent again: in order of sequences, before all batches without one."""
        queue = batch.queue
        assert queue is not None
        if backoff:
            self.ready.back_off(queue, now + self.settings.retry_backoff.delay(max(batch.attempts - 1, 0), self.random))
        queue.insert([batch])
        self.ready.unblock(queue, now)
        self.wake()

    def split(self, batch: ProducerBatch, children: list[ProducerBatch], now: float) -> None:
        """Send ``children`` in place of a batch that was too large."""
        queue = batch.queue
        assert queue is not None
        if self.compression is not None:
            self.compression.ratios.reset(batch.topic_partition.topic, batch.size() / batch.uncompressed_size())
        for child in children:
            self.pool.charge(child.charged_size)
        self.producer_state.split(batch, children, queue.sequences)
        batch.split_into(children)
        queue.insert(children)
        batch.queue = None
        self.release(batch)
        self.ready.unblock(queue, now)
        self.wake()

    def withdraw(self, batch: ProducerBatch, now: float) -> None:
        """Take a batch that is about to fail out of its queue."""
        queue = batch.queue
        assert queue is not None
        if batch.state < _CLOSED:
            topic = self.topics.get(queue.topic)
            if topic is not None:
                # The batch was never full and therefore not counted: keyless records would go to this partition for
                # ever although none can be sent there.
                self.topics.switch_sticky(topic, queue.partition, now)
            batch.close()
        if queue.open_batch is batch:
            queue.open_batch = None
            self._open_batches -= 1
        self.ready.batch_closed(batch)
        if self.compression is not None:
            self.compression.discard(batch)
        if not batch.on_wire:
            queue.remove(batch)
            self.ready.batch_withdrawn(queue)

    def expired(self, now: float, limit: int | None = None) -> list[ProducerBatch]:
        """Return the batches that have exceeded ``delivery_timeout``, oldest first; the caller fails them.

        Of at most ``limit`` batches: a split one counts once, with all its parts.
        """
        return self.incomplete.expired(now, self._delivery_timeout, limit)

    def has_undelivered(self) -> bool:
        """Return whether an accepted record has no outcome yet."""
        return bool(self.incomplete.count or self._pending_records)

    # Waiting for many records

    def batches_finished(self) -> Future[None]:
        """Return a future that is done when every batch created so far has its outcome."""
        return self._flush_waiters.batches(self.incomplete.last_number)

    def records_unblocked(self) -> Future[None]:
        """Return a future that is done when every record that waits now has its batch or has failed."""
        return self._flush_waiters.records(self.blocked_records.pending.last_number)

    def check_flush_waiters(self) -> None:
        """Resolve the futures of ``flush`` that need not wait any more."""
        self._flush_waiters.check()

    def recharge(self, pending: PendingRecord) -> None:
        """Charge the size of a waiting record instead of the estimate: its serializers are done."""
        self.blocked_records.pending.recharge(pending)
        if self.drain_waiters.waiters:
            self.wake()
