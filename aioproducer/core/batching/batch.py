"""Compiled. A batch of records of one partition, from its first append to its last outcome.

No Python form: ``append_at`` and ``append_run`` write at addresses, as ``append`` does for keys and values of bytes.
``_close_slab`` copies from an address, and ``buffers`` writes the header in C.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aioproducer._common.texts import counted
from aioproducer.core.batching.buffer_pool import SMALLEST_SLAB, BufferPool, Slab
from aioproducer.core.outcomes.delivery import DeliveryGroup, FutureFactory, OnOutcome, Waiter
from aioproducer.errors import KafkaError
from aioproducer.record import RecordMetadata, TopicPartition, new_record_metadata
from aioproducer.wire.record import encode_record
from aioproducer.wire.record_batch import (
    BATCH_HEADER_SIZE,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    Buffer,
    pack_header,
)

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
else:
    # The compiled module imports these by its .pxd file.
    from aioproducer.wire.record import plain_headers_size, write_headers, write_plain_record, write_run
    from aioproducer.wire.record_batch import write_header

if TYPE_CHECKING:
    from contextvars import Context

    # A circular import: a batch refers to its partition's queue, and the queue holds batches.
    from aioproducer.core.batching.partition_queue import PartitionQueue

# A slab is as large as all earlier ones together: a batch of any size has few slabs and wastes at most half. Slabs grow
# no larger than this, as the waste would then matter.
LARGEST_GROWTH = 65536

# Bytes of a slab that are copied out when it is closed; of more bytes a view is cheaper.
_LARGEST_COPIED = 512

# The states of a batch, in order: from CLOSED on it accepts no records. The last three end it; a split batch is
# finished when its parts are.
OPEN, DUE, CLOSED, COMPRESSING, SUCCEEDED, FAILED, SPLIT = range(7)

STATE_NAMES = ("open", "due", "closed", "compressing", "succeeded", "failed", "split")

NEXT_STATES: Mapping[int, tuple[int, ...]] = {
    OPEN: (DUE, CLOSED),
    DUE: (CLOSED,),
    CLOSED: (COMPRESSING, SUCCEEDED, FAILED, SPLIT),
    COMPRESSING: (CLOSED, FAILED),
    SUCCEEDED: (),
    FAILED: (),
    SPLIT: (),
}
"""The states that may follow each state of a batch."""

# The same as one number, for ``set_state``: eight bits for each state. Names of this module alone are C integers in the
# compiled module.
_TRANSITIONS = sum([1 << 8 * old + new for old, states in NEXT_STATES.items() for new in states])
_DUE, _CLOSED, _SUCCEEDED, _FAILED, _SPLIT = DUE, CLOSED, SUCCEEDED, FAILED, SPLIT
_HEADER_SIZE = BATCH_HEADER_SIZE
_TRANSACTIONAL = TRANSACTIONAL_FLAG

Header = tuple[str, Buffer | None]

_NO_HEADERS: tuple[Header, ...] = ()


class ProducerBatch(DeliveryGroup):
    """Records of one partition, encoded in place in a chain of slabs.

    ``state`` is OPEN while the batch accepts records and lingers, and DUE while it accepts records and may be sent. A
    CLOSED batch accepts no more. It is COMPRESSING until a thread has compressed it, then CLOSED again, in its queue or
    on the wire, until it has one outcome: SUCCEEDED, FAILED or SPLIT (``NEXT_STATES``).

    ``on_wire`` and ``readers`` are independent of the outcome: a batch that has expired may still be in a request.

    The slabs, or the compressed bytes that replace them, return to the pool when two conditions hold: the outcome is
    known, *and* neither a transport nor a compressor reads them (``readers``).

    Created by ``new_batch``.
    """

    __slots__ = (
        "acknowledged",
        "address",
        "attempts",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "body",
        "body_size",
        "charged_size",
        "children",
        "codec_id",
        "column_start",
        "created_at",
        "first_timestamp",
        "has_unknown_attempt",
        "header",
        "kept_headers",
        "last_error",
        "last_timestamp",
        "log_append_time",
        "max_record_size",
        "max_timestamp",
        "newer",
        "number",
        "older",
        "on_outcome",
        "on_wire",
        "order",
        "parent",
        "position",
        "producer_epoch",
        "producer_id",
        "queue",
        "readers",
        "record_count",
        "record_errors",
        "room_end",
        "run_start",
        "run_stop",
        "run_timestamp",
        "sent_to",
        "size_limit",
        "slabs",
        "state",
        "stored_error",
        "timestamp_values",
        "timestamps_from",
        "topic_partition",
        "undone_children",
        "unobserved",
        "used_before",
    )

    # Number of records that had neither an awaiter nor a callback when the batch failed; not set before.
    unobserved: int

    def begin(
        self,
        loop: FutureFactory,
        queue: PartitionQueue,
        topic_partition: TopicPartition,
        number: int,
        created_at: float,
        size_limit: int,
    ) -> None:
        """Initialise the batch, instead of ``__init__``; see ``new_batch``."""
        self.loop = loop
        self.awaiting = None
        self.waiters = None
        self.queue: PartitionQueue | None = queue
        self.topic_partition = topic_partition
        # Position in the order of creation; a flush waits for all batches up to a number.
        self.number = number
        # Position among the batches of the partition: the parts of a split batch share its number.
        self.order: tuple[int, ...] = (number,)
        self.created_at = created_at
        self.attempts = 0
        # The node of the last attempt, and the error of the attempt if it failed.
        self.sent_to = -1
        self.last_error: KafkaError | None = None
        self.on_wire = False
        # The batch was sent, alone or as part of another batch, and the outcome of that attempt is unknown.
        self.has_unknown_attempt = False
        # Appends: the current slab ends at memory[room_end] and is used up to memory[position]. used_before counts the
        # bytes of the full slabs.
        self.size_limit = size_limit
        self.slabs: list[Slab] = []
        self.position = 0
        self.room_end = 0
        self.used_before = 0
        self.record_count = 0
        self.max_record_size = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.last_timestamp = -1
        # Index of the first record of a column while the column is appended; see core/columns/appending.py.
        self.column_start = -1
        # Timestamps by runs: the first record has first_timestamp. If not all records have the same, records from
        # timestamps_from[i] on have timestamp_values[i].
        self.first_timestamp = -1
        self.timestamps_from: list[int] | None = None
        self.timestamp_values: list[int] | None = None
        # The last run that ``metadata`` has looked up.
        self.run_start = 0
        self.run_stop = 0
        self.run_timestamp = -1
        self.state = OPEN
        self.body: list[Buffer] | None = None
        self.body_size = 0
        self.codec_id = 0
        # Bytes of the body that are not in slabs: compressed records, or a part of a split batch.
        self.charged_size = 0
        self.header: bytes | None = None
        self.readers = 0
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.base_offset = -1
        self.log_append_time = -1
        self.acknowledged = False
        self.stored_error: KafkaError | None = None
        self.record_errors: Mapping[int, KafkaError] | None = None
        # Its neighbours among the batches without an outcome.
        self.older: ProducerBatch | None = None
        self.newer: ProducerBatch | None = None
        self.parent: ProducerBatch | None = None
        self.children: list[tuple[int, ProducerBatch]] | None = None
        self.undone_children = 0
        self.on_outcome: OnOutcome | None = None
        self.kept_headers: dict[int, Sequence[Header]] | None = None

    def report_to(self, on_outcome: OnOutcome) -> None:
        """Call ``on_outcome`` with the batch when it has succeeded or failed, and keep the headers of its records."""
        self.on_outcome = on_outcome
        self.kept_headers = {}

    # Appending

    def append(self, key: Buffer | None, value: Buffer | None, headers: Sequence[Header], timestamp_ms: int) -> int:
        """Encode a record into the current slab; return its index, or minus its encoded size if it does not fit.

        If the batch was closed during encoding, return minus a size larger than any batch.
        """
        headers_size = 0
        if cython.compiled and (value is None or type(value) is bytes) and (key is None or type(key) is bytes):
            headers_size = 1 if headers is _NO_HEADERS or not headers else plain_headers_size(headers)
        if headers_size:
            # No key, value or header is of a type that runs code of the caller.
            key_address = value_address = cython.NULL
            key_size = value_size = -1
            if key is not None:
                key_address = cython.cast(cython.p_uchar, PyBytes_AS_STRING(key))
                key_size = PyBytes_GET_SIZE(key)
            if value is not None:
                value_address = cython.cast(cython.p_uchar, PyBytes_AS_STRING(value))
                value_size = PyBytes_GET_SIZE(value)
            if headers_size == 1:
                return self.append_at(key_address, key_size, value_address, value_size, 1, timestamp_ms)
            index = self.append_at(key_address, key_size, value_address, value_size, headers_size, timestamp_ms)
            if index >= 0:
                write_headers(self.address + self.position - headers_size, headers)
                if self.kept_headers is not None:
                    self.kept_headers[index] = headers
            return index
        while True:
            index = self.record_count
            record = encode_record(index, timestamp_ms - self.base_timestamp, key, value, headers)
            if self.record_count == index:
                break
            # Reading the caller's object has run its code, which has sent a record itself.
        size = len(record)
        if self.state >= _CLOSED:
            return -size - self.size_limit
        position = self.position
        if position + size > self.room_end:
            return -size
        self.slabs[-1].memory[position : position + size] = record
        if self.kept_headers is not None and headers:
            self.kept_headers[index] = headers
        return self._appended(timestamp_ms, size)

    def _appended(self, timestamp_ms: int, size: int) -> int:
        index = self.record_count
        self.position += size
        self.record_count = index + 1
        if size > self.max_record_size:
            self.max_record_size = size
        if timestamp_ms != self.last_timestamp:
            self._begin_timestamp(index, timestamp_ms)
        return index

    def _begin_timestamp(self, index: int, timestamp_ms: int) -> None:
        self.last_timestamp = timestamp_ms
        if timestamp_ms > self.max_timestamp:
            self.max_timestamp = timestamp_ms
        if not index:
            self.first_timestamp = timestamp_ms
            return
        if self.timestamps_from is None or self.timestamp_values is None:
            self.timestamps_from, self.timestamp_values = [], []
        self.timestamps_from.append(index)
        self.timestamp_values.append(timestamp_ms)

    def used_size(self) -> int:
        """Return the bytes of encoded records so far, without the batch header."""
        if not self.slabs:
            return self.used_before
        slab = self.slabs[-1]
        return self.used_before + self.position - slab.start

    def has_room_for(self, record_size: int) -> bool:
        """Return whether the batch may grow by a record; the first always fits (Kafka's ``hasRoomFor``)."""
        return self.record_count == 0 or self.used_size() + record_size <= self.size_limit

    def next_slab_size(self, record_size: int) -> int:
        """Return the preferred size of the next slab, for a record that the current one cannot hold."""
        used = self.used_size()
        preferred = min(max(used, SMALLEST_SLAB), LARGEST_GROWTH, max(self.size_limit - used, 0))
        return max(record_size, preferred)

    def add_slab(self, slab: Slab) -> None:
        """Write the next records into this slab."""
        self._close_slab()
        self.slabs.append(slab)
        if cython.compiled:
            self.address = slab.address
        self.position = slab.start
        self.room_end = slab.start + slab.size

    def limit_room(self) -> None:
        """End the room of the current slab where the batch is full."""
        slab = self.slabs[-1]
        self.room_end = min(slab.start + slab.size, max(slab.start + self.size_limit - self.used_before, self.position))

    def _close_slab(self) -> None:
        if self.slabs:
            slab = self.slabs[-1]
            used = self.position - slab.start
            self.used_before += used
            body = self.body
            if body is None:
                body = self.body = []
            if used > _LARGEST_COPIED:
                body.append(slab.memory[slab.start : self.position])
            elif used:
                # A view of so few bytes costs more than the copy.
                if cython.compiled:
                    begin = cython.cast(cython.p_char, self.address + slab.start)
                    body.append(PyBytes_FromStringAndSize(begin, used))
                else:
                    body.append(bytes(slab.memory[slab.start : self.position]))

    def take_records(self, body: bytes, timestamps: Sequence[int], base_timestamp: int, max_record_size: int) -> None:
        """Fill the batch with records that were encoded elsewhere, as a part of a split batch, and close it.

        Each record has one of ``timestamps``.
        """
        self.base_timestamp = base_timestamp
        for index, timestamp_ms in enumerate(timestamps):
            if timestamp_ms != self.last_timestamp or not index:
                self._begin_timestamp(index, timestamp_ms)
        self.record_count = len(timestamps)
        self.max_record_size = max_record_size
        self.set_state(CLOSED)
        self.body = [body]
        self.body_size = self.used_before = self.charged_size = len(body)

    # Closing

    def close(self) -> None:
        """Accept no more records; ``body`` is then the list of buffers with the appended ones."""
        if self.state < _CLOSED:
            self.set_state(_CLOSED)
            # No record fits any more, whatever its size. This precedes any allocation, in which the collector may run.
            self.room_end = 0
            self._close_slab()
            self.position = 0
            self.body_size = self.used_before

    def is_full(self) -> bool:
        """Return whether no record fits any more."""
        return self.state >= _CLOSED or (self.record_count > 0 and self.used_size() >= self.size_limit)

    def set_compressed(self, codec_id: int, data: bytes, pool: BufferPool) -> None:
        """Replace the records by the codec's output, and return their memory to the pool."""
        self.codec_id = codec_id
        self._replace_memory(data, pool)

    def _replace_memory(self, data: bytes, pool: BufferPool) -> None:
        # Charged first: the records' memory must not be allocated again before the new bytes are counted.
        pool.charge(len(data))
        self._release_memory(pool)
        self.charged_size = len(data)
        self.body = [data]
        self.body_size = len(data)

    def size(self) -> int:
        """Return the bytes of the closed batch on the wire."""
        return _HEADER_SIZE + self.body_size

    def uncompressed_size(self) -> int:
        """Return the bytes that the closed batch takes on the wire without compression."""
        return _HEADER_SIZE + self.used_before

    # Sending

    def set_sequence(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Set the identity of the batch for the broker; the header has to be encoded again."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.header = None

    def buffers(self) -> list[Buffer]:
        """Return the batch as it goes on the wire: header, then body. The header is encoded again if it has changed."""
        assert self.body is not None
        attributes = self.codec_id
        assert self.queue is not None
        if self.queue.sequences.transaction:
            attributes |= _TRANSACTIONAL
        if cython.compiled and self.header is None:
            self.header = write_header(
                self.body,
                self.body_size,
                self.record_count,
                self.base_timestamp,
                self.max_timestamp,
                attributes,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
            )
        elif self.header is None:
            self.header = pack_header(
                self.body,
                self.body_size,
                self.record_count,
                self.base_timestamp,
                self.max_timestamp,
                attributes,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                0,
                self.record_count - 1,
                NO_PARTITION_LEADER_EPOCH,
            )
        return [self.header, *self.body]

    # Outcome

    def succeed(self, base_offset: int, log_append_time: int, acknowledged: bool = True) -> bool:
        """Give every record its metadata; return False if the batch has failed before, as it then stays failed."""
        if self.state == _FAILED:
            return False
        self.set_state(_SUCCEEDED)
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.acknowledged = acknowledged
        if self.on_outcome is not None:
            self.on_outcome(self)
        self.notify()
        return True

    def fail(self, error: KafkaError, record_errors: Mapping[int, KafkaError] | None = None) -> bool:
        """Fail every record; return False if the batch has failed before.

        ``record_errors`` holds the errors of records that do not fail with ``error``, by index.
        """
        if self.state == _FAILED:
            return False
        self.set_state(_FAILED)
        self.stored_error = error
        self.record_errors = record_errors
        self.unobserved = self.record_count - self.observed_count()
        if self.on_outcome is not None:
            self.on_outcome(self)
        self.notify()
        return True

    def split_into(self, children: list[ProducerBatch]) -> None:
        """Take each record's outcome from ``children`` from now on; they hold the records in order."""
        self.set_state(_SPLIT)
        self.children = []
        first = 0
        for position, child in enumerate(children):
            child.parent = self
            child.order = (*self.order, position)
            child.has_unknown_attempt = self.has_unknown_attempt
            self.children.append((first, child))
            first += child.record_count
        assert first == self.record_count
        self.undone_children = len(children)
        for index in [*self.by_index()]:
            for waiter in DeliveryGroup.pop_waiters(self, index):
                self.add_waiter(index, *waiter)
        self.waiters = None

    def add_waiter(
        self, index: int, callback: Callable[..., Any] | None, argument: Any, context: Context | None = None
    ) -> None:
        if self.state == _SPLIT:
            child, index = self._child(index)
            child.add_waiter(index, callback, argument, context)
        else:
            DeliveryGroup.add_waiter(self, index, callback, argument, context)

    def pop_waiters(self, index: int, only: object = None) -> list[Waiter]:
        if self.state == _SPLIT:
            child, index = self._child(index)
            return child.pop_waiters(index, only)
        return DeliveryGroup.pop_waiters(self, index, only)

    def set_state(self, state: int) -> None:
        """Change the state.

        Raises:
            AssertionError: ``state`` may not follow the batch's state.
        """
        if not _TRANSITIONS >> 8 * self.state + state & 1:
            raise AssertionError(f"{self!r} cannot become {STATE_NAMES[state]}")
        self.state = state

    def end_lingering(self) -> None:
        """Make an open batch due, so that it may be sent."""
        self.set_state(_DUE)

    @property
    def closed(self) -> bool:
        """Whether the batch accepts no more records."""
        return self.state >= CLOSED

    def is_finished(self) -> bool:
        """Return whether every record has its outcome."""
        if self.state == _SPLIT:
            return self.undone_children == 0
        return self.state >= _SUCCEEDED

    def _child(self, index: int) -> tuple[ProducerBatch, int]:
        assert self.children is not None
        position = bisect_right(self.children, index, key=lambda child: child[0]) - 1
        first, child = self.children[position]
        return child, index - first

    def is_done(self, index: int) -> bool:
        if self.state == _SPLIT:
            child, index = self._child(index)
            return child.is_done(index)
        return self.state >= _SUCCEEDED

    def error(self, index: int) -> KafkaError | None:
        if self.state == _SPLIT:
            child, index = self._child(index)
            return child.error(index)
        if self.stored_error is None:
            return None
        if self.record_errors:
            return self.record_errors.get(index, self.stored_error).fresh()
        return self.stored_error.fresh()

    def metadata(self, index: int) -> RecordMetadata:
        if self.state == _SPLIT:
            child, index = self._child(index)
            return child.metadata(index)
        if not self.acknowledged:
            return new_record_metadata(self.topic_partition, -1, -1)
        offset = -1 if self.base_offset < 0 else self.base_offset + index
        timestamp_ms = self.log_append_time
        if timestamp_ms < 0:
            if not self.run_start <= index < self.run_stop:
                self._find_run(index)
            timestamp_ms = self.run_timestamp
        return new_record_metadata(self.topic_partition, offset, timestamp_ms)

    def _find_run(self, index: int) -> None:
        """Find the run of records with the timestamp of this one; callers usually read consecutive records."""
        starts, values = self.timestamps_from, self.timestamp_values
        if starts is None or values is None:
            self.run_start, self.run_stop, self.run_timestamp = 0, self.record_count, self.first_timestamp
            return
        run = bisect_right(starts, index)
        self.run_start = starts[run - 1] if run else 0
        self.run_stop = starts[run] if run < len(starts) else self.record_count
        self.run_timestamp = values[run - 1] if run else self.first_timestamp

    def where(self) -> TopicPartition:
        return self.topic_partition

    # Memory

    def release_memory(self, pool: BufferPool) -> None:
        """Return all memory to the pool, once; the outcome must be known, and ``readers`` be 0."""
        assert self.readers == 0
        assert self.state >= _SUCCEEDED
        self._release_memory(pool)
        self.body = None
        self.header = None

    def abandon(self, pool: BufferPool) -> None:
        """Return the memory of a batch without records that is in no queue."""
        assert self.record_count == 0
        self._release_memory(pool)

    def _release_memory(self, pool: BufferPool) -> None:
        slabs, self.slabs = self.slabs, []
        for slab in slabs:
            pool.release(slab)
        charged, self.charged_size = self.charged_size, 0
        pool.refund(charged)

    def __repr__(self) -> str:
        sequence = f", sequence {self.base_sequence}" if self.base_sequence >= 0 else ""
        records = counted(self.record_count, "record")
        return f"<ProducerBatch {self.topic_partition} #{self.number}: {records}{sequence}, {STATE_NAMES[self.state]}>"

    # Compiled only

    def append_at(
        self, key: Any, key_size: int, value: Any, value_size: int, headers_size: int, timestamp_ms: int
    ) -> int:
        """Append a record with key and value given by address; a size of -1 is null.

        ``headers_size`` is 1 without headers: their count takes a byte. The caller writes headers before ``position``.
        """
        size = write_plain_record(
            self.address + self.position,
            self.room_end - self.position,
            self.record_count,
            timestamp_ms - self.base_timestamp,
            key,
            key_size,
            value,
            value_size,
            headers_size,
        )
        return size if size < 0 else self._appended(timestamp_ms, size)

    def append_run(self, timestamp_ms: int, values: list[Any], first: int, stop: int, room: int) -> int:
        """Append values without keys from index ``first`` on, as ``append_at`` would one by one.

        The run ends before ``stop``, before a value that is not a bytes object or does not fit, and after ``room``
        bytes. Return the index after the last value.
        """
        sizes = cython.declare(cython.Py_ssize_t[2])
        sizes[1] = self.max_record_size
        end = write_run(
            self.address + self.position,
            self.room_end - self.position,
            room,
            self.record_count,
            timestamp_ms - self.base_timestamp,
            values,
            first,
            stop,
            sizes,
        )
        if end > first:
            self.position += sizes[0]
            self.max_record_size = sizes[1]
            if timestamp_ms != self.last_timestamp:
                self._begin_timestamp(self.record_count, timestamp_ms)
            self.record_count += end - first
        return end


def new_batch(
    loop: FutureFactory,
    queue: PartitionQueue,
    topic_partition: TopicPartition,
    number: int,
    created_at: float,
    size_limit: int,
) -> ProducerBatch:
    """Return an open batch without memory.

    A function: a class called with this many arguments costs more than filling in the object.
    """
    batch = ProducerBatch.__new__(ProducerBatch)
    batch.begin(loop, queue, topic_partition, number, created_at, size_limit)
    return batch


def parts(batch: ProducerBatch, first: int = 0) -> Iterator[tuple[int, ProducerBatch]]:
    """Yield the batch, or the batches it was split into, each with the index of its first record."""
    if batch.children is None:
        yield first, batch
        return
    for offset, child in batch.children:
        yield from parts(child, first + offset)
