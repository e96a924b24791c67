"""RecordAccumulator: where records wait, in batches, until a broker can take them.

The two ends are ``append`` (and ``enqueue``, its slow half), called by ``send``, and ``drain``, called for a broker
that can take a request. In between a batch has a place in its partition's queue, and one among the incomplete, whose
oldest is the next to expire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aioproducer.compression import Codec
from aioproducer.core.batching.batch import Header, ProducerBatch, new_batch
from aioproducer.core.batching.batch_memory import BatchMemory
from aioproducer.core.batching.buffer_pool import BufferPool
from aioproducer.core.batching.incomplete import IncompleteBatches
from aioproducer.core.batching.partition_queue import PartitionChoice, PartitionQueue, TopicQueues
from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.batching.topics import Topics
from aioproducer.core.outcomes.delivery import Delivery, FutureFactory, new_delivery
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.waiting.blocked_records import Lines
from aioproducer.core.waiting.pending import PendingRecord, payload_size
from aioproducer.errors import KafkaError
from aioproducer.partitioner import StickyPartitioner
from aioproducer.wire.murmur2 import partition_for_key
from aioproducer.wire.record import MAX_RECORD_OVERHEAD
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, Buffer, record_size_upper_bound

if TYPE_CHECKING:
    from random import Random

# What Kafka adds to the estimated compressed size (COMPRESSION_RATE_ESTIMATION_FACTOR).
RATIO_SAFETY = 1.05

# Each enqueue also admits up to this many waiting records. Otherwise arrivals could match the sender's rate, such as
# callers whose records it has just sent, and the line would never empty.
ADMITTED_BY_EACH = 2

# Batches up to this size are compressed at once where that is quick; a thread takes longer to wake.
_INLINE_COMPRESSION_SIZE = 4096


def _size_of(data: Buffer | None) -> int:
    """Bytes of a key or value, -1 for null."""
    if data is None:
        return -1
    return len(data) if type(data) is bytes else memoryview(data).nbytes


class AccumulatorSettings(NamedTuple):
    """What the accumulator keeps to. Times are in seconds, sizes in bytes."""

    batch_size: int = 16384
    linger: float = 0.005
    delivery_timeout: float = 120.0
    max_block: float = 60.0
    max_request_size: int = 1048576
    codec: Codec | None = None
    compression_level: int | None = None
    # At most one batch of a partition on the wire: order without idempotence.
    one_in_flight_per_partition: bool = False
    retry_backoff: ExponentialBackoff = ExponentialBackoff(100, 1000)
    ignore_keys: bool = False
    adaptive_partitioning: bool = True
    availability_timeout: float = 0.0
    rack: str | None = None


class RecordAccumulator(IncompleteBatches):
    """Partition queues, the lines of waiting records, and the deadlines of both.

    Args:
        loop: makes futures for waiters.
        wake: called when something is ready or a deadline has come nearer; cheap, and may be called often.
        choose_partition: a user's partitioner, or ``None`` for Kafka's own rule.
        rack_of: see ``Topics``.
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
    ) -> None:
        super().__init__(loop, pool, producer_state, settings, wake=wake, random=random)
        self.choose_partition = choose_partition
        self._ignore_keys = settings.ignore_keys
        self._max_request_size = settings.max_request_size
        self._one_in_flight = settings.one_in_flight_per_partition
        self._delivery_timeout = settings.delivery_timeout
        # No more than a request may have: then append need not ask whether a record is too large for one.
        # Where not even a header has room, each record is a batch.
        self._size_limit = max(min(settings.batch_size, settings.max_request_size) - BATCH_HEADER_SIZE, 0)
        self._compresses = settings.codec is not None
        self._memory = BatchMemory(pool, batch_size=settings.batch_size, compresses=self._compresses)
        # Batches up to this size are compressed at once, if any.
        self._inline_size = 0
        if settings.codec is not None and settings.codec.is_quick(settings.compression_level):
            self._inline_size = _INLINE_COMPRESSION_SIZE
        # The maximum size of a record less its sizes' varints: larger ones are measured exactly.
        self._largest_plain = min(settings.max_request_size, pool.total_memory) - BATCH_HEADER_SIZE - 3 * 5
        self.topics = Topics(self.ready, producer_state, settings, random, rack_of)
        # The topic of the last record, under the very string it was named by.
        self._last_name: str | None = None
        self._last_topic: TopicQueues | None = None
        self.lines = Lines(
            loop,
            topic=self.topics.begin,
            size_limit=pool.total_memory,
            max_block=settings.max_block,
            wake=wake,
            hurry=self.ready.hurry,
            left=self.check_watches,
        )
        # Asked for all the time.
        self._memory_line = self.lines.memory_line
        self._waiting = self.lines.waiting.records
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
        """Put a record into its open batch, or return ``None``: then ``enqueue`` knows what is missing."""
        if self._appending:
            return None
        topic = self._last_topic
        if topic is None or topic_name is not self._last_name:
            topic = self.topics.get(topic_name)
            if topic is None:
                return None
            self._last_name = topic_name
            self._last_topic = topic
        if topic.line_length:
            return None
        partitions = topic.partitions
        if not partitions:
            return None
        if partition is None:
            if self.choose_partition is not None:
                return None
            if key is None or self._ignore_keys:
                place = topic.sticky.partition  # type: ignore[union-attr]  # set with the partitions
            else:
                place = partition_for_key(key, len(partitions))
        else:
            place = partition
            if not 0 <= place < len(partitions):
                return None
        queue = partitions[place]
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
        """Give the batch a slab for a record of this size; False where that would not be all there is to do."""
        if batch.closed or batch.used_size() + record_size >= batch.size_limit or self._memory_line:
            # The record makes the batch full, or has to wait: ``enqueue`` sees to it.
            return False
        return self._extend(batch, record_size)

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
        """As ``append``, with whatever it takes: a new slab, a new batch, or a place in line.

        Raises:
            BufferExhaustedError: the lines are full as well.
        """
        if self._appending:
            pending = self.lines.make(topic_name, partition, key, value, headers, timestamp_ms, now)
            self._sent_meanwhile.append((pending, payload_size(key, value, headers)))
            return pending.delivery
        self._appending = True
        try:
            topic = self.topics.begin(topic_name)
            if not topic.line_length and topic.has_partition(partition):
                partition = self._choose(topic, partition, key, value)
                if topic.has_partition(partition):
                    first = not self._memory_line
                    delivery = self._place(topic, partition, key, value, headers, timestamp_ms, now, first)
                    if delivery is not None:
                        return delivery
            pending = self.lines.make(topic_name, partition, key, value, headers, timestamp_ms, now)
            self.lines.join(pending, payload_size(key, value, headers))
            self._advance(topic, now)
            return pending.delivery
        finally:
            self.end_append()

    def begin_append(self) -> bool:
        """Set the re-entrancy guard for what ``end_append`` ends; return False if an append is in progress."""
        if self._appending:
            return False
        self._appending = True
        return True

    def end_append(self) -> None:
        """Reset the re-entrancy guard, and enqueue the records that were sent meanwhile."""
        try:
            while self._sent_meanwhile:
                pending, size = self._sent_meanwhile.pop(0)
                self._put_in_line(pending, size)
        finally:
            self._appending = False

    def _put_in_line(self, pending: PendingRecord, size: int) -> None:
        if pending.withdrawn:
            return
        try:
            self.lines.join(pending, size)
        except KafkaError as error:
            # No caller could catch it.
            self.refused.append((pending, error))
            self.wake()
            return
        self._advance(self.topics.begin(pending.topic), pending.since)

    def _advance(self, topic: TopicQueues, now: float) -> None:
        """Advance the topic's line: the record that has joined it may not have to wait."""
        self.lines.advance(topic, now)
        if self._memory_line:
            self._admit(now, ADMITTED_BY_EACH)

    def expired_waiting(self, now: float, most: int | None = None) -> list[PendingRecord]:
        """See ``Lines``."""
        self._appending = True
        try:
            return self.lines.expired_waiting(now, most)
        finally:
            self.end_append()

    def waiting_for_topic(self, name: str, last_number: int, most: int) -> list[PendingRecord]:
        """See ``Lines``."""
        self._appending = True
        try:
            return self.lines.waiting_for_topic(name, last_number, most)
        finally:
            self.end_append()

    def plain_topic(self, name: str, partition: int | None) -> TopicQueues | None:
        """The topic, where nothing stands in the way of records for it, or for this partition of it."""
        topic = self.topics.get(name)
        if topic is None or topic.line_length or not topic.has_partition(partition):
            return None
        if partition is None:
            return topic if self.choose_partition is None else None
        return topic if partition >= 0 else None

    def chosen_partition(self, name: str, key: Buffer | None, value: Buffer | None) -> int | None:
        """What the user's partitioner says; ``None`` where ``enqueue`` should ask it, or find what is wrong."""
        if type(name) is not str or (key is not None and type(key) is not bytes):
            return None
        topic = self.topics.get(name)
        if topic is None or topic.line_length or not topic.partitions or self.choose_partition is None:
            return None
        if value is not None and type(value) is not bytes:
            return None
        return self.choose_partition(name, key, value)

    def place_plain(
        self,
        topic: TopicQueues,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        now: float,
    ) -> Delivery | None:
        """Put a record into a new batch, or a new slab; ``None`` where ``enqueue`` should see to it.

        ``topic`` is what ``plain_topic`` returned; the caller has called ``begin_append``.
        """
        if self._memory_line or self.producer_state.fatal_error is not None:
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
        return self._place(topic, partition, key, value, headers, timestamp_ms, now, True)

    def admit(self, now: float, limit: int) -> bool:
        """Serve the line for memory, at most ``limit`` records; True when more could be served at once."""
        if not self._waiting:
            return False
        self._appending = True
        try:
            return self._admit(now, limit)
        finally:
            self.end_append()

    def _admit(self, now: float, limit: int) -> bool:
        lines = self.lines
        lines.move_up(now)
        line = lines.memory_line
        while line:
            pending = next(iter(line))
            topic = self.topics[pending.topic]
            try:
                pending.partition = self._choose(topic, pending.partition, pending.key, pending.value)
            except Exception as error:
                # A user's partitioner, called where no caller could catch its error.
                lines.leave_line(pending)
                if not isinstance(error, KafkaError):
                    error = KafkaError(f"The partitioner failed on a record for topic {topic.name!r}: {error!r}")
                self.refused.append((pending, error.fresh()))
                continue
            if pending.withdrawn:
                # By its partitioner.
                continue
            if not topic.has_partition(pending.partition):
                lines.step_back(topic)
                lines.advance(topic, now)
                continue
            try:
                delivery = self._place(
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
                # It would hold up the records behind it, and an unrelated caller of send would get the error.
                lines.leave_line(pending)
                refusal = KafkaError(f"A record for topic {topic.name!r} cannot be written: {error!r}")
                self.refused.append((pending, refusal))
                continue
            if delivery is None:
                return False
            lines.end_memory_wait(pending, now)
            lines.leave_line(pending)
            pending.hand_over(delivery)
            limit -= 1
            if limit <= 0:
                return bool(line)
        return False

    def take_refused(self) -> list[tuple[PendingRecord, KafkaError]]:
        """Records that ``admit`` found impossible to place, each with the reason; the caller fails them."""
        refused, self.refused = self.refused, []
        return refused

    def _choose(
        self, topic: TopicQueues, partition: int | None, key: Buffer | None, value: Buffer | None
    ) -> int | None:
        """The record's own partition or the one that the user's partitioner says, which is asked once a record."""
        if partition is None and self.choose_partition is not None:
            return self.choose_partition(topic.name, key, value)
        return partition

    def _place(
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
        """Put the record into a batch; ``None`` where there is no memory, or where others come ``first``."""
        sticky: StickyPartitioner | None = None
        if partition is None:
            if key is not None and not self._ignore_keys and self.choose_partition is None:
                partition = partition_for_key(key, len(topic.partitions))
            else:
                sticky = topic.sticky
                assert sticky is not None
                partition = sticky.partition
        queue = topic.partitions[partition]
        batch = queue.open_batch
        while batch is not None:
            index = batch.append(key, value, headers, timestamp_ms)
            if index < 0 and batch.closed:
                if queue.open_batch is batch:
                    # It is being closed at this moment.
                    return None
                batch = queue.open_batch
                continue
            if index < 0 and batch.has_room_for(-index):
                if not first or not self._extend(batch, -index):
                    return None
                index = batch.append(key, value, headers, timestamp_ms)
                batch.limit_room()
            if index >= 0:
                if batch.is_full():
                    self._close(queue, batch, now, True)
                return new_delivery(batch, index)
            self._close(queue, batch, now, True)
            if sticky is None:
                break
            queue = topic.partitions[sticky.partition]
            batch = queue.open_batch
        if not first:
            return None
        size = record_size_upper_bound(_size_of(key), _size_of(value), headers)
        batch = self._open(topic, queue, size, timestamp_ms, now)
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
        self._note_new_batch(queue, batch, now)
        if batch.is_full():
            self._close(queue, batch, now, True)
        return new_delivery(batch, index)

    def _extend(self, batch: ProducerBatch, record_size: int) -> bool:
        slab = self._memory.next(batch, record_size, self.incomplete.count - self._open_batches)
        if slab is None:
            return False
        batch.add_slab(slab)
        return True

    def _open(
        self, topic: TopicQueues, queue: PartitionQueue, record_size: int, timestamp_ms: int, now: float
    ) -> ProducerBatch | None:
        limit = self._size_limit
        if self._compresses:
            # As many uncompressed bytes as will probably make a batch, but no more than a request may have.
            estimate = int(limit / (self._ratios.estimate(topic.name) * RATIO_SAFETY))
            limit = min(estimate, self._max_request_size - BATCH_HEADER_SIZE)
        under_way = self.incomplete.count - self._open_batches
        slab = self._memory.first(record_size, queue.last_batch_size, limit, self._open_batches, under_way)
        if slab is None:
            return None
        self._batch_number += 1
        batch = new_batch(self.loop, queue, queue.topic_partition, self._batch_number, now, limit)
        batch.base_timestamp = timestamp_ms
        batch.add_slab(slab)
        return batch

    def _note_new_batch(self, queue: PartitionQueue, batch: ProducerBatch, now: float) -> None:
        queue.open_batch = batch
        self._open_batches += 1
        queue.own_batches().append(batch)
        self.incomplete.add(batch)
        self.ready.opened(queue, batch, now, self.flushing > 0 or self.closing or bool(self._memory_line))
        if self.incomplete.count == 1:
            self.wake()

    def _close(self, queue: PartitionQueue, batch: ProducerBatch, now: float, full: bool) -> None:
        """Let the open batch take no more records."""
        fullness = 1.0 if full else min(1.0, batch.used_size() / max(batch.size_limit, 1))
        batch.close()
        if queue.open_batch is batch:
            queue.open_batch = None
            self._open_batches -= 1
        queue.last_batch_size = batch.used_before
        self.ready.closed(batch)
        self.topics.closed(queue, fullness, now)
        if full:
            if self._compresses:
                self._begin_compression(batch)
            self.ready.update(queue, now)

    # What metadata says, where that concerns those in line

    def set_partition_count(self, name: str, partition_count: int, now: float) -> None:
        """The topic has this many partitions.

        Also fewer, where it was re-created, or none, where it was deleted: what waits there goes out if they come back,
        or expires.
        """
        self._appending = True
        try:
            topic = self.topics.begin(name)
            shrinks = partition_count < len(topic.partitions)
            self.topics.resize(topic, partition_count, now)
            if shrinks:
                self.lines.step_back(topic)
            self.lines.partitions_changed(topic, now)
        finally:
            self.end_append()

    def forget_topic(self, name: str) -> bool:
        """Metadata no longer follows the topic: drop what is kept of it, unless something waits there."""
        if not self.topics.forget(name):
            return False
        self._last_name = self._last_topic = None
        self._ratios.forget(name)
        return True

    def withdraw(self, batch: ProducerBatch, now: float) -> None:
        """See ``IncompleteBatches.withdraw``."""
        topic, partition = batch.topic_partition
        queues = self.topics.get(topic)
        if queues is not None and not batch.closed:
            # It was never full, so nothing was counted: the turn would go on for ever where nothing gets out.
            self.topics.end_turn(queues, partition, now)
        IncompleteBatches.withdraw(self, batch, now)

    # Ready and drain

    def next_deadline(self) -> float:
        """When ``ready.poll``, ``expired`` or ``expired_waiting`` will next have work; infinity for never."""
        deadline = self.ready.next_deadline()
        oldest = self.incomplete.oldest
        if oldest is not None:
            deadline = min(deadline, oldest.created_at + self._delivery_timeout)
        if self._waiting:
            deadline = min(deadline, next(iter(self._waiting)).deadline)
        return deadline

    def drain(self, node_id: int, now: float) -> list[ProducerBatch]:
        """The batches for one request to a node: at most one a partition, ``max_request_size`` together, fairly.

        They are closed, have their sequences and belong to the caller until it says how the request ended. A batch
        larger than ``max_request_size`` goes alone.
        """
        self._appending = True
        try:
            return self.ready.drain(node_id, now, self._max_request_size, self._one_in_flight, self)
        finally:
            self.end_append()

    def finish_batch(self, queue: PartitionQueue, batch: ProducerBatch, now: float) -> bool:
        """See ``BatchFinisher``."""
        if not batch.closed:
            self._close(queue, batch, now, False)
        if not self._compresses or batch.codec_id:
            return True
        codec = self.settings.codec
        assert codec is not None
        assert batch.body is not None
        if batch.body_size <= self._inline_size:
            try:
                data = codec.compress(batch.body, self.settings.compression_level)
            except Exception:
                # A thread will meet the same, and then the batch is failed with it; what is drained already goes out.
                pass
            else:
                self._set_compressed(batch, data)
                return True
        self._begin_compression(batch)
        return False
