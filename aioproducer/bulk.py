"""Sending many records at once: whole columns in, one result out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice, repeat, takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from aioproducer.arrow import (
    can_be_read_in_place,
    encoded,
    header_pairs,
    in_milliseconds,
    is_arrow,
    items,
    record_columns,
)
from aioproducer.core.batch import ProducerBatch
from aioproducer.core.binary_column import BinaryColumn
from aioproducer.core.delivery import Delivery
from aioproducer.core.record_columns import HeaderColumn, TimestampColumn
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

    Records are remembered by batch, as runs of places in it: memory goes with the batches under way, not with the
    records. A record that is in line has its Delivery kept until it is in a batch.

    count
        How many records were accepted.
    acked
        How many of them are known to be delivered.
    errors
        The first error of each partition, as far as known.
    """

    def __init__(self, producer: Sends, *, keep_offsets: bool = False) -> None:
        self.count = 0
        self.acked = 0
        self.errors: dict[TopicPartition, KafkaError] = {}
        self._producer = producer
        self._offsets: dict[int, list[range]] | None = {} if keep_offsets else None
        # Starts and ends of runs, in turn, for each batch; batches in the order of their first records.
        self._runs: dict[ProducerBatch, list[int]] = {}
        self._in_line: deque[Delivery] = deque()

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
                raise ValueError(f"{name} has {_length(name, column)} entries for {count} values")
        accepted_before = self.count
        try:
            await self._send(topic, partition, _chunks(self._producer, values, keys, timestamps_ms, headers))
        except BaseException as error:
            error.add_note(
                f"{self.count - accepted_before} of {count} records of this send_many for topic {topic!r} were "
                "accepted before; they are delivered as ever"
            )
            raise

    async def _send(self, topic: str, partition: int | None, chunks: Iterator[_Chunk]) -> None:
        producer = self._producer
        turn_began = perf_counter()
        for chunk in chunks:
            place = 0
            # Where whole columns do not get in, some rows are tried before columns are again.
            most_rows = 1
            while place < len(chunk):
                first = place
                place = self._append_column(topic, partition, chunk, place)
                most_rows = 1 if place > first else min(2 * most_rows, MOST_ROWS)
                first = place
                place, waits = await self._send_rows(topic, partition, chunk, place, most_rows, turn_began)
                # Those behind were read for nothing, and large ones take long to read.
                most_rows = max(place - first, 1)
                if waits or perf_counter() - turn_began >= LONGEST_TURN:
                    await producer.drain()
                    self._settle_first()
                    turn_began = perf_counter()

    async def _send_rows(
        self, topic: str, partition: int | None, chunk: _Chunk, place: int, most: int, turn_began: float
    ) -> tuple[int, bool]:
        """Send rows that have to wait, or need more than the short way has; the place behind them, and if they wait."""
        producer = self._producer
        send = producer.send
        batch: object = None
        run = [0]
        first = place
        for value, key, timestamp_ms, row_headers in chunk.rows(place, place + most):
            headers = () if row_headers is None else row_headers
            # However long it took to read them, one goes on its way: nothing else has metadata asked for.
            if place > first and perf_counter() - turn_began >= LONGEST_TURN:
                break
            try:
                delivery = send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
            except BufferExhaustedError:
                again = partial(
                    send, topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
                )
                delivery = await self._send_with_room(again)
            place += 1
            if delivery._group is batch and delivery._index == run[-1]:
                # Behind the last one, as nearly all are.
                run[-1] += 1
                self.count += 1
                continue
            if self._note(delivery):
                return place, True
            batch = delivery._group
            run = self._runs[batch]  # type: ignore[index]  # it is in a batch, or it would wait
        return place, False

    async def _send_with_room(self, send_row: Callable[[], Delivery]) -> Delivery:
        """Send a row for which the lines were too full.

        Raises:
            BufferExhaustedError: they still are, ``max_block_ms`` later.
        """
        producer = self._producer
        clock = asyncio.get_running_loop().time
        ends = clock() + producer.config.max_block_ms / 1000
        # Of those who wait by drain the next goes on only while there is room; a row may want more than what is room to
        # drain, and has it when all that is in line has gone.
        for wait in cycle((producer.drain, producer.flush)):
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
            for batch in touched:
                start, batch.column_start = batch.column_start, -1
                self.count += batch.record_count - start
                self._note_in_batch(batch, start, batch.record_count)

    def _note(self, delivery: Delivery) -> bool:
        """Remember a record; True where it is in line, so that its sender should look for room."""
        self.count += 1
        if not self._in_line:
            group = delivery._group
            if isinstance(group, ProducerBatch):
                self._note_in_batch(group, delivery._index, delivery._index + 1)
                return False
        self._in_line.append(delivery)
        return True

    def _note_in_batch(self, batch: ProducerBatch, start: int, stop: int) -> None:
        runs = self._runs.get(batch)
        if runs is None:
            self._runs[batch] = [start, stop]
        elif runs[-1] == start:
            runs[-1] = stop
        else:
            runs += start, stop

    def _move_up(self) -> None:
        """Take those out of the line that have come into batches, or failed; the line keeps its order."""
        line = self._in_line
        while line:
            delivery = line[0]
            group = delivery._group
            if isinstance(group, ProducerBatch):
                self._note_in_batch(group, delivery._index, delivery._index + 1)
            elif delivery.done():
                self._note_error(delivery.topic_partition, delivery.exception())
            else:
                return
            line.popleft()

    def unfinished(self) -> list[TopicPartition]:
        """Where records are under way to; the partition is -1 where none has been chosen yet."""
        found = [delivery.topic_partition for delivery in self._in_line]
        return sorted({*found, *[batch.topic_partition for batch in self._runs]})

    def settle_finished(self) -> None:
        """Count every batch that is done, also behind one that is not: a failure is seen at once."""
        self._move_up()
        for batch in list(filter(_is_over, self._runs)):
            self._settle(batch, self._runs.pop(batch))

    async def settle_down_to(self, most: int) -> None:
        """Wait until no more than ``most`` of the batches that take no records any more are without an outcome."""
        while len(self._runs) > most:
            self._settle_first()
            closed = [batch for batch in self._runs if batch.closed]
            if len(closed) <= most:
                return
            last = closed[-most - 1]
            if last.is_finished():
                # Behind one that is not: as a rule they end in the order in which they began.
                self.settle_finished()
            else:
                await _wait_for_part(last)

    def _settle_first(self) -> None:
        """Count the batches that are done, from the first on, as many as one turn may."""
        self._move_up()
        # In one go: to look for the first one again each time takes the longer, the more were there before it.
        for batch in list(islice(takewhile(_is_over, self._runs), SETTLED_AT_ONCE)):
            self._settle(batch, self._runs.pop(batch))

    async def settle_all(self) -> None:
        """Wait for all, none of which waits out its linger, and count them."""
        with self._producer.hurrying():
            await self._settle_all()

    async def _settle_all(self) -> None:
        turn_began = perf_counter()
        while True:
            self._move_up()
            if self._runs:
                batch = next(iter(self._runs))
                while not batch.is_finished():
                    await _wait_for_part(batch)
                # Somebody else may have settled it meanwhile.
                self._settle(batch, self._runs.pop(batch, []))
                self._settle_first()
            elif self._in_line:
                await asyncio.wait([self._in_line[0]])
            else:
                return
            if perf_counter() - turn_began > LONGEST_TURN:
                await asyncio.sleep(0)
                turn_began = perf_counter()

    def _settle(self, batch: ProducerBatch, runs: list[int]) -> None:
        if self._offsets is None and batch.stored_error is None and batch.children is None:
            # As nearly all are.
            self.acked += sum(runs[1::2]) - sum(runs[::2])
            return
        for first, part in _parts(batch):
            end = first + part.record_count
            for start, stop in zip(runs[::2], runs[1::2], strict=True):
                start, stop = max(start, first), min(stop, end)
                if start < stop:
                    self._settle_run(part, start - first, stop - start)

    def _settle_run(self, batch: ProducerBatch, index: int, count: int) -> None:
        blamed = batch.record_errors or ()
        # Of those that the broker blames, if any (KIP-467): the others had only the same batch.
        error = batch.error(min([each for each in blamed if index <= each < index + count], default=index))
        if error is not None:
            self._note_error(batch.topic_partition, error)
            return
        self.acked += count
        offset = None if self._offsets is None else batch.metadata(index).offset
        if self._offsets is None or offset is None:
            return
        ranges = self._offsets.setdefault(batch.topic_partition.partition, [])
        if ranges and ranges[-1].stop == offset:
            ranges[-1] = range(ranges[-1].start, offset + count)
        else:
            ranges.append(range(offset, offset + count))

    def _note_error(self, topic_partition: TopicPartition, error: BaseException | None) -> None:
        if isinstance(error, KafkaError):
            self.errors.setdefault(topic_partition, error)

    def result(self) -> SendManyResult:
        """The whole outcome.

        Raises:
            SendManyError: not all were delivered.
        """
        result = SendManyResult(self.count, self.acked, self._offsets or {})
        if self.errors:
            raise SendManyError(result, self.errors)
        return result


def _is_over(batch: ProducerBatch) -> bool:
    """Whether nothing is added any more, and the outcome is known."""
    return batch.closed and batch.is_finished()


def _parts(batch: ProducerBatch, first: int = 0) -> Iterator[tuple[int, ProducerBatch]]:
    """The batch, or those it was split into, each with its first record's place."""
    if batch.children is None:
        yield first, batch
        return
    for offset, child in batch.children:
        yield from _parts(child, first + offset)


async def _wait_for_part(batch: ProducerBatch) -> None:
    """Wait for the first of those into which the batch was split, if it was, that is without an outcome."""
    first_undone = next(first for first, part in _parts(batch) if not part.is_finished())
    await asyncio.wait([Delivery(batch, first_undone)])
