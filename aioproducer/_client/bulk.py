"""Sending many records at once: whole columns in, one result out."""

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

# How long records are sent, or outcomes read, between two turns for others, in seconds.
LONGEST_TURN = 0.0005
# So many rows of what is no list are looked at together.
CHUNK_ROWS = 1000
# And so many are sent before the columns behind them are tried again.
MOST_ROWS = 64
# Of rows that have to wait so many bytes are put in line at once.
MOST_BYTES_IN_LINE = 16 * 1024
# So many filled batches wait to be sent at most. More make nothing faster: what the caches forget of a batch before it
# is sent, and the garbage collector's looking through all of them, cost a sixth.
WAITING_TO_BE_SENT = 256
# How long one of them is waited for before others are looked at, in seconds.
LOOK_AGAIN = 0.05
# So many batches are settled between two turns for others; no more are filled in one.
SETTLED_AT_ONCE = 100


_Row: TypeAlias = tuple[Any, Any, int | None, Any]


@dataclass(frozen=True, slots=True)
class SendManyResult:
    """What became of a ``send_many``.

    count
        How many records were sent.
    acked
        How many were delivered; with ``acks=0`` how many were handed to a connection.
    offsets
        By partition, the offsets that its records have, in the order given, as ranges. Empty with ``acks=0``.
    """

    count: int
    acked: int
    offsets: dict[int, list[range]] = field(default_factory=dict)


class BulkConfig(Protocol):
    """What there is in a configuration for this."""

    @property
    def max_block_ms(self) -> int: ...
    @property
    def key_serializer(self) -> object: ...
    @property
    def value_serializer(self) -> object: ...


class Sends(Protocol):
    """The producer, as far as bulk sending goes."""

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
    """``Producer.send_many``, whose arguments these are."""
    sender = ColumnsSender(producer, keep_offsets=True)
    await sender.send(topic, values, keys=keys, partition=partition, timestamps_ms=timestamps_ms, headers=headers)
    await sender.settle_all()
    return sender.result()


class _Chunk(NamedTuple):
    """Columns of equal length; ``None`` where all entries are ``None``, or where there are no headers."""

    values: Any
    keys: Any
    timestamps_ms: Any
    headers: Any

    @property
    def is_plain(self) -> bool:
        """Whether it can go the short way."""
        return isinstance(self.values, BinaryColumn) or (self.timestamps_ms is None and self.headers is None)

    def __len__(self) -> int:
        # A list may be changed by its owner meanwhile; what there is, is sent.
        length = len(self.values)
        for column in (self.keys, self.timestamps_ms, self.headers):
            if column is not None and len(column) < length:
                length = len(column)
        return length

    def rows(self, start: int, stop: int) -> Iterator[_Row]:
        """The entries of some records, as they are now."""
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
            return [column[place] for place in range(start, stop)]
        part: Iterable[Any] = column[start:stop]
        return part


def _chunks(
    producer: Sends, values: Column, keys: Column | None, timestamps_ms: Column | None, headers: Column | None
) -> Iterator[_Chunk]:
    """Lists and tuples as they are, in one chunk; Arrow's as they lie; whatever else, some rows at a time."""
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
    """Whether records can be made of Arrow's buffers, with no Python object for a row."""
    config = producer.config
    return producer.compiled and config.value_serializer is None and config.key_serializer is None


def _length(name: str, column: Any) -> int:
    """
    Raises:
        TypeError: the column is none.
    """
    if not is_arrow(column) and (
        isinstance(column, str | bytes | bytearray | memoryview | Mapping)
        or not hasattr(column, "__len__")
        or not hasattr(column, "__getitem__")
    ):
        raise TypeError(
            f"{name} must be a sequence or a pyarrow array, not {type(column).__name__}: make a list of it, or send in "
            "a loop, with `await producer.drain()` between sends"
        )
    return len(column)


class ColumnsSender:
    """Sends columns, one call after the other, counts outcomes, and gathers offsets into ranges where they are wanted.

    A record that is in line has its Delivery kept until it is in a batch.

    count
        How many records were accepted.
    """

    def __init__(self, producer: Sends, *, keep_offsets: bool = False) -> None:
        self.count = 0
        self._producer = producer
        self._runs = BatchRuns(keep_offsets=keep_offsets)
        self._in_line: deque[Delivery] = deque()
        # Of many quick calls each is too short for others to get a turn.
        self._turn_began = perf_counter()

    @property
    def acked(self) -> int:
        """How many of them are known to be delivered."""
        return self._runs.acked

    @property
    def errors(self) -> Mapping[TopicPartition, KafkaError]:
        """The first error of each partition, as far as known."""
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
        """As ``Producer.send_many``, but it returns when the last record is accepted. One call at a time.

        Raises:
            TypeError: a column is no sequence.
            ValueError: the columns are of different lengths.
            KafkaError: as ``Producer.send``; the record of which it speaks and those behind it are not sent.
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
                "accepted before; their delivery goes on"
            )
            raise

    async def _send(self, topic: str, partition: int | None, chunks: Iterator[_Chunk]) -> None:
        for chunk in chunks:
            place = 0
            # Where whole columns do not get in, some rows are tried before columns are again.
            most_rows = 1
            while place < len(chunk):
                first = place
                place = self._append_column(topic, partition, chunk, place)
                waits = False
                if place > first:
                    most_rows = 1
                else:
                    place, waits = await self._send_rows(topic, partition, chunk, place, most_rows)
                    # Twice as many the next time, unless those behind were read for nothing: large ones take long.
                    most_rows = min(2 * max(place - first, 1), MOST_ROWS)
                if waits or perf_counter() - self._turn_began >= LONGEST_TURN:
                    await self._producer.drain()
                    await self._settle_down()
                    self._turn_began = perf_counter()

    async def _send_rows(
        self, topic: str, partition: int | None, chunk: _Chunk, place: int, most: int
    ) -> tuple[int, bool]:
        """Send rows that have to wait, or need more than the short way has; the place behind them, and if they wait."""
        send = self._producer.send
        first = place
        waits = False
        # Some at once: each time that the line for memory is served costs the others' time as well.
        in_line = 0
        for value, key, timestamp_ms, row_headers in chunk.rows(place, place + most):
            headers = () if row_headers is None else row_headers
            # However long it took to read them, one goes on its way: nothing else has metadata asked for.
            if place > first and perf_counter() - self._turn_began >= LONGEST_TURN:
                break
            try:
                delivery = send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
            except BufferExhaustedError:
                again = partial(
                    send, topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
                )
                delivery = await self._send_with_room(again)
            place += 1
            self.count += 1
            # Behind one that is in line all are: their order stays.
            if self._in_line or not self._runs.add_delivery(delivery):
                self._in_line.append(delivery)
                waits = True
                in_line += sum(len(each) for each in (value, key) if isinstance(each, Sized))
                if in_line >= MOST_BYTES_IN_LINE:
                    break
        return place, waits

    async def _send_with_room(self, send_row: Callable[[], Delivery]) -> Delivery:
        """Send a row for which the lines were too full.

        Raises:
            BufferExhaustedError: they still are, ``max_block_ms`` later.
        """
        producer = self._producer
        clock = asyncio.get_running_loop().time
        ends = clock() + producer.config.max_block_ms / 1000
        # A row may want more room than there is when drain returns: it has it when all that is in line has gone.
        for wait in cycle((producer.drain, producer.flush)):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await wait()
            try:
                return send_row()
            except BufferExhaustedError:
                if clock() >= ends:
                    raise
        raise AssertionError("there is always another time")

    def _append_column(self, topic: str, partition: int | None, chunk: _Chunk, place: int) -> int:
        """Append what can go the short way, from ``place`` on, and remember it; returns the place behind that."""
        if self._in_line or not chunk.is_plain:
            return place
        touched: list[ProducerBatch] = []
        try:
            return self._producer.append_column(
                topic, partition, chunk.keys, chunk.values, chunk.timestamps_ms, chunk.headers, place, touched
            )
        finally:
            self.count += self._runs.add_columns(touched)

    def _move_up(self) -> None:
        """Take those out of the line that have come into batches, or failed; the line keeps its order."""
        line = self._in_line
        while line:
            delivery = line[0]
            if not self._runs.add_delivery(delivery):
                if not delivery.done():
                    return
                self._runs.note_error(delivery.topic_partition, delivery.exception())
            line.popleft()

    def unfinished(self) -> list[TopicPartition]:
        """Where records are under way to; the partition is -1 where none has been chosen yet."""
        return sorted({*self._runs.topic_partitions(), *[delivery.topic_partition for delivery in self._in_line]})

    def settle_finished(self) -> None:
        """Count every batch that is done, also behind one that is not: a failure is seen at once."""
        self._move_up()
        self._runs.settle_finished()

    async def _settle_down(self) -> None:
        """Count what is done, and wait until few enough of the batches that were filled wait to be sent."""
        self._settle_first()
        while (batch := self._runs.beyond(WAITING_TO_BE_SENT)) is not None:
            if not batch.is_finished():
                # As a rule they end in the order in which they began, but one may be tried again for long.
                await _wait_for_part(batch, LOOK_AGAIN)
            self.settle_finished()

    def _settle_first(self) -> None:
        """Count the batches that are done, from the first on, as many as one turn may."""
        self._move_up()
        self._runs.settle_first(SETTLED_AT_ONCE)

    async def settle_all(self) -> None:
        """Wait for all, none of which waits out its linger, and count them."""
        with self._producer.hurrying():
            await self._settle_all()

    async def _settle_all(self) -> None:
        turn_began = perf_counter()
        while True:
            self._move_up()
            batch = self._runs.first()
            if batch is not None:
                while not batch.is_finished():
                    await _wait_for_part(batch)
                # Unless another task has meanwhile.
                self._runs.settle(batch)
                self._settle_first()
            elif self._in_line:
                await asyncio.wait([self._in_line[0]])
            else:
                return
            if perf_counter() - turn_began > LONGEST_TURN:
                await asyncio.sleep(0)
                turn_began = perf_counter()

    def result(self) -> SendManyResult:
        """The whole outcome.

        Raises:
            SendManyError: not all were delivered.
        """
        runs = self._runs
        result = SendManyResult(self.count, runs.acked, runs.offsets or {})
        if runs.errors:
            raise SendManyError(result, runs.errors, may_have_been_written=runs.may_have_been_written)
        return result


async def _wait_for_part(batch: ProducerBatch, timeout: float | None = None) -> None:
    """Wait for the first of those into which the batch was split, if it was, that is without an outcome."""
    first_undone = next(first for first, part in parts(batch) if not part.is_finished())
    await asyncio.wait([Delivery(batch, first_undone)], timeout=timeout)
