"""``send_many``: sends whole columns of records and returns one result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice, repeat
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from aioproducer._client.arrow import (
    can_be_read_in_place,
    encoded,
    header_pairs,
    in_milliseconds,
    is_arrow,
    items,
    record_columns,
)
from aioproducer._common.texts import counted, were
from aioproducer.core.batching.batch import ProducerBatch, parts
from aioproducer.core.columns.batch_runs import BatchRuns
from aioproducer.core.columns.binary_column import BinaryColumn
from aioproducer.core.columns.record_columns import HeaderColumn, TimestampColumn
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import BufferExhaustedError, KafkaError, SendManyError
from aioproducer.record import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    Column: TypeAlias = Sequence[Any] | pyarrow.Array | pyarrow.ChunkedArray
else:
    Column = Any

# How long the loop is held for sending records or counting outcomes, in seconds.
LONGEST_TURN = 0.0005
# Rows that are read together from a column that is no list.
CHUNK_ROWS = 1000
# Rows that are sent one by one before the remaining columns are tried as a whole again.
MAX_ROWS = 64
# Bytes of waiting rows that are enqueued at once.
MAX_QUEUED_BYTES = 16 * 1024
# The most filled batches that wait to be sent. More are no faster: batches drop out of the CPU's caches before they are
# sent, and the garbage collector traverses all of them. Together this cost a sixth.
WAITING_TO_BE_SENT = 256
# How long the first unfinished batch is awaited before the others are checked, in seconds.
CHECK_INTERVAL = 0.05
# Batches that are counted before the loop runs again; not more than this are filled meanwhile.
BATCHES_AT_ONCE = 100


_Row: TypeAlias = tuple[Any, Any, int | None, Any]


@dataclass(frozen=True, slots=True)
class SendManyResult:
    """The result of a ``send_many``.

    count
        Number of records sent.
    acked
        Number of records delivered; with ``acks=0`` the number passed to a connection.
    offsets
        For each partition the offsets of its records as ranges, in the order of the columns. Empty with ``acks=0``.
    """

    count: int
    acked: int
    offsets: dict[int, list[range]] = field(default_factory=dict)


class BulkConfig(Protocol):
    """The configuration keys that bulk sending reads."""

    @property
    def max_block_ms(self) -> int: ...
    @property
    def key_serializer(self) -> object: ...
    @property
    def value_serializer(self) -> object: ...


class Sends(Protocol):
    """The methods of a producer that bulk sending uses."""

    @property
    def config(self) -> BulkConfig: ...
    @property
    def compiled(self) -> bool: ...

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = (),
    ) -> Delivery: ...

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
    ) -> int: ...

    async def drain(self) -> None: ...

    async def flush(self) -> None: ...

    def hurrying(self) -> AbstractContextManager[None]: ...


async def send_columns(
    producer: Sends,
    topic: str,
    values: Column,
    keys: Column | None,
    partition: int | None,
    timestamps_ms: Column | None,
    headers: Column | None,
) -> SendManyResult:
    """Send columns as ``Producer.send_many``, with its arguments and errors."""
    sender = ColumnsSender(producer, keep_offsets=True)
    await sender.send(topic, values, keys=keys, partition=partition, timestamps_ms=timestamps_ms, headers=headers)
    await sender.settle_all()
    return sender.result()


class _Chunk(NamedTuple):
    """Columns of equal length; a column is ``None`` if all its entries are ``None``, or if there are no headers."""

    values: Any
    keys: Any
    timestamps_ms: Any
    headers: Any

    @property
    def is_plain(self) -> bool:
        """Whether ``append_column`` can append it."""
        return isinstance(self.values, BinaryColumn) or (self.timestamps_ms is None and self.headers is None)

    def __len__(self) -> int:
        # The caller may change a list during the send; the rows that it has now are sent.
        length = len(self.values)
        for column in (self.keys, self.timestamps_ms, self.headers):
            if column is not None and len(column) < length:
                length = len(column)
        return length

    def rows(self, start: int, stop: int) -> Iterator[_Row]:
        """Return the current entries of some rows."""
        stop = min(stop, len(self))
        return zip(
            self._part(self.values, start, stop, None),
            self._part(self.keys, start, stop, None),
            self._part(self.timestamps_ms, start, stop, None),
            self._part(self.headers, start, stop, ()),
            strict=False,
        )

    @staticmethod
    def _part(column: Any, start: int, stop: int, otherwise: Any) -> Iterable[Any]:
        if column is None:
            return repeat(otherwise)
        if isinstance(column, BinaryColumn | TimestampColumn | HeaderColumn):
            return [column[row] for row in range(start, stop)]
        part: Iterable[Any] = column[start:stop]
        return part


def _chunks(
    producer: Sends, values: Column, keys: Column | None, timestamps_ms: Column | None, headers: Column | None
) -> Iterator[_Chunk]:
    """Split columns into chunks: lists and tuples into one, Arrow's by their buffers, others by a number of rows."""
    columns = (values, keys, timestamps_ms, headers)
    if all(column is None or isinstance(column, list | tuple) for column in columns):
        yield _Chunk(*columns)
        return
    timestamps_ms = in_milliseconds(timestamps_ms)
    if _may_read_in_place(producer) and can_be_read_in_place(values, keys, timestamps_ms, headers):
        for columns_of_one_run in record_columns(values, keys, timestamps_ms, headers):
            yield _Chunk(*columns_of_one_run)
        return
    config = producer.config
    iterators = [
        iter(items(values, encoded if config.value_serializer is None else None)),
        None if keys is None else iter(items(keys, encoded if config.key_serializer is None else None)),
        None if timestamps_ms is None else iter(items(timestamps_ms, None)),
        None if headers is None else iter(items(headers, header_pairs)),
    ]
    while True:
        chunk = _Chunk(*[None if each is None else list(islice(each, CHUNK_ROWS)) for each in iterators])
        if not len(chunk):
            return
        yield chunk


def _may_read_in_place(producer: Sends) -> bool:
    """Return whether records can be made from Arrow's buffers, without a Python object for a row."""
    config = producer.config
    return producer.compiled and config.value_serializer is None and config.key_serializer is None


def _length(name: str, column: Any) -> int:
    """Return the length of a column.

    Raises:
        TypeError: it is neither a sequence nor an Arrow array.
    """
    if not is_arrow(column) and (
        isinstance(column, str | bytes | bytearray | memoryview | Mapping)
        or not hasattr(column, "__len__")
        or not hasattr(column, "__getitem__")
    ):
        raise TypeError(
            f"{name} must be a sequence or a pyarrow array, not {type(column).__name__}: pass a list, or call send() "
            "in a loop, with `await producer.drain()` between sends"
        )
    return len(column)


class ColumnsSender:
    """Sends columns in successive calls, counts outcomes, and optionally collects offsets as ranges.

    It keeps the Delivery of a queued record until the record is in a batch.

    count
        Number of accepted records.
    """

    def __init__(self, producer: Sends, *, keep_offsets: bool = False) -> None:
        self.count = 0
        self._producer = producer
        self._runs = BatchRuns(keep_offsets=keep_offsets)
        self._queued: deque[Delivery] = deque()
        # Kept over calls: a single quick call is too short to reach LONGEST_TURN.
        self._turn_began = perf_counter()

    @property
    def acked(self) -> int:
        """Number of records that are counted as delivered."""
        return self._runs.acked

    @property
    def errors(self) -> Mapping[TopicPartition, KafkaError]:
        """The first counted error of each partition."""
        return self._runs.errors

    async def send(
        self,
        topic: str,
        values: Column,
        *,
        keys: Column | None = None,
        partition: int | None = None,
        timestamps_ms: Column | None = None,
        headers: Column | None = None,
    ) -> None:
        """Send as ``Producer.send_many``, but return when the last record is accepted. Calls must not overlap.

        Raises:
            TypeError: a column is no sequence.
            ValueError: the columns have different lengths.
            KafkaError: as ``Producer.send``; the record that it concerns and the later ones are not sent.
        """
        count = _length("values", values)
        for name, column in (("keys", keys), ("timestamps_ms", timestamps_ms), ("headers", headers)):
            if column is not None and _length(name, column) != count:
                raise ValueError(f"{name} has {_length(name, column)} entries for {counted(count, 'value')}")
        accepted_before = self.count
        try:
            await self._send(topic, partition, _chunks(self._producer, values, keys, timestamps_ms, headers))
        except BaseException as error:
            accepted = self.count - accepted_before
            error.add_note(
                f"{accepted} of {counted(count, 'record')} of this send_many for topic {topic!r} {were(accepted)} "
                "accepted before the error; their delivery continues"
            )
            raise

    async def _send(self, topic: str, partition: int | None, chunks: Iterator[_Chunk]) -> None:
        for chunk in chunks:
            row = 0
            # If columns cannot be appended as a whole, some rows are sent before the columns are tried again.
            row_limit = 1
            while row < len(chunk):
                first = row
                row = self._append_column(topic, partition, chunk, row)
                waits = False
                if row > first:
                    row_limit = 1
                else:
                    row, waits = await self._send_rows(topic, partition, chunk, row, row_limit)
                    # Double the limit, unless rows were read in vain: large ones take long to read.
                    row_limit = min(2 * max(row - first, 1), MAX_ROWS)
                if waits or perf_counter() - self._turn_began >= LONGEST_TURN:
                    await self._producer.drain()
                    await self._wait_for_unsent()
                    self._turn_began = perf_counter()

    async def _send_rows(
        self, topic: str, partition: int | None, chunk: _Chunk, first: int, limit: int
    ) -> tuple[int, bool]:
        """Send rows by ``send``: they wait, or ``append_column`` does not support them.

        Returns:
            The next row, and whether rows are queued.
        """
        send = self._producer.send
        row = first
        waits = False
        # Several rows are enqueued at once: each pass over the queue for memory delays the other records in it.
        queued_bytes = 0
        for value, key, timestamp_ms, row_headers in chunk.rows(first, first + limit):
            headers = () if row_headers is None else row_headers
            # At least one row is sent, however long the read took: only a send requests metadata.
            if row > first and perf_counter() - self._turn_began >= LONGEST_TURN:
                break
            try:
                delivery = send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
            except BufferExhaustedError:
                again = partial(
                    send, topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
                )
                delivery = await self._send_with_room(again)
            row += 1
            self.count += 1
            # After a queued record all are queued, so that the order is kept.
            if self._queued or not self._runs.add_delivery(delivery):
                self._queued.append(delivery)
                waits = True
                queued_bytes += sum(len(each) for each in (value, key) if isinstance(each, Sized))
                if queued_bytes >= MAX_QUEUED_BYTES:
                    break
        return row, waits

    async def _send_with_room(self, send_row: Callable[[], Delivery]) -> Delivery:
        """Send a row after the queues were too full for it.

        Raises:
            BufferExhaustedError: they are still too full after ``max_block_ms``.
        """
        producer = self._producer
        clock = asyncio.get_running_loop().time
        ends = clock() + producer.config.max_block_ms / 1000
        # A row may need more room than drain waits for: after a flush the queues are empty.
        for wait in cycle((producer.drain, producer.flush)):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await wait()
            try:
                return send_row()
            except BufferExhaustedError:
                if clock() >= ends:
                    raise
        raise AssertionError("cycle() does not end")

    def _append_column(self, topic: str, partition: int | None, chunk: _Chunk, first: int) -> int:
        """Append rows from ``first`` on, as far as possible, and remember their batches; return the next row."""
        if self._queued or not chunk.is_plain:
            return first
        touched: list[ProducerBatch] = []
        try:
            return self._producer.append_column(
                topic, partition, chunk.keys, chunk.values, chunk.timestamps_ms, chunk.headers, first, touched
            )
        finally:
            self.count += self._runs.add_columns(touched)

    def _dequeue(self) -> None:
        """Remove queued records that have entered a batch or failed; the others keep their order."""
        queued = self._queued
        while queued:
            delivery = queued[0]
            if not self._runs.add_delivery(delivery):
                if not delivery.done():
                    return
                self._runs.add_error(delivery.topic_partition, delivery.exception())
            queued.popleft()

    def unfinished(self) -> list[TopicPartition]:
        """Return the partitions of records without an outcome; a partition is -1 if none is chosen yet."""
        return sorted({*self._runs.topic_partitions(), *[delivery.topic_partition for delivery in self._queued]})

    def settle_finished(self) -> None:
        """Count all finished batches, including those after an unfinished one, so that a failure is seen at once."""
        self._dequeue()
        self._runs.count_finished()

    async def _wait_for_unsent(self) -> None:
        """Count finished batches, and wait until at most ``WAITING_TO_BE_SENT`` filled batches are left."""
        self._count_first()
        while (batch := self._runs.batch_to_await(WAITING_TO_BE_SENT)) is not None:
            if not batch.is_finished():
                # Batches usually finish in order, but the first may be retried for a long time.
                await _wait_for_part(batch, CHECK_INTERVAL)
            self.settle_finished()

    def _count_first(self) -> None:
        """Count finished batches in order, up to the first unfinished one and at most ``BATCHES_AT_ONCE``."""
        self._dequeue()
        self._runs.count_first(BATCHES_AT_ONCE)

    async def settle_all(self) -> None:
        """Wait for all records, without lingering, and count them."""
        with self._producer.hurrying():
            await self._count_all()

    async def _count_all(self) -> None:
        turn_began = perf_counter()
        while True:
            self._dequeue()
            batch = self._runs.first()
            if batch is not None:
                while not batch.is_finished():
                    await _wait_for_part(batch)
                # Does nothing if another task has counted it meanwhile.
                self._runs.count(batch)
                self._count_first()
            elif self._queued:
                await asyncio.wait([self._queued[0]])
            else:
                return
            if perf_counter() - turn_began > LONGEST_TURN:
                await asyncio.sleep(0)
                turn_began = perf_counter()

    def result(self) -> SendManyResult:
        """Return the result of all calls.

        Raises:
            SendManyError: not all records were delivered.
        """
        runs = self._runs
        result = SendManyResult(self.count, runs.acked, runs.offsets or {})
        if runs.errors:
            raise SendManyError(result, runs.errors, may_have_been_written=runs.may_have_been_written)
        return result


async def _wait_for_part(batch: ProducerBatch, timeout: float | None = None) -> None:
    """Wait for the first part of the batch without an outcome; a batch that was not split is its only part."""
    first_undone = next(first for first, part in parts(batch) if not part.is_finished())
    await asyncio.wait([Delivery(batch, first_undone)], timeout=timeout)
