"""Rows on their way from a thread that does not await to the producer on the executor's loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from aioproducer._client.bulk import ColumnsSender, SendManyResult
from aioproducer._common.texts import are, counted
from aioproducer.errors import BufferExhaustedError, KafkaError, ProducerClosedError, SendManyError
from aioproducer.record import HeaderPair, TopicPartition
from aioproducer.spark.figures import Figures, figures

if TYPE_CHECKING:
    from aioproducer.producer import Producer

# The loop is told of rows when there are so many bytes of them, or after linger.ms.
CHUNK_BYTES = 256 << 10
# So many bytes of rows may be on their way to the producer; one row, or one chunk of columns, may come on top.
BYTES_AHEAD = 4 * CHUNK_BYTES
# Shorter than that rows need not wait, in seconds: each waking of the loop costs the caller some microseconds.
SHORTEST_LINGER = 0.001
# How often it is looked for failures while rows wait for room or are flushed, in seconds.
LOOK_EVERY = 0.05

# The last records are decided by delivery.timeout.ms; so much later a flush is over unless something hangs.
FLUSH_MARGIN_MS = 10_000

LOOP_CLOSED = "the executor's event loop was closed meanwhile: what was not flushed may be lost"

Row: TypeAlias = "tuple[str, Any, Any, int | None, int | None, Sequence[HeaderPair], int]"
"""Topic, value, key, partition, timestamp, headers, and the bytes that it counts for."""


class RowsFailedError(SendManyError):
    """Rows could not be delivered: where, why, and how many were."""

    def __init__(self, rows: int, acked: int, errors: Mapping[TopicPartition, KafkaError]) -> None:
        super().__init__(SendManyResult(rows, acked), errors)
        topic_partition, error = next(iter(self.errors.items()))
        self.args = (f"Rows for {topic_partition} were not delivered: {error} {what_became(rows, acked)}",)


def what_became(rows: int, acked: int) -> str:
    return (
        f"Of {counted(rows, 'row')} sent {acked} {are(acked)} known to be acknowledged; of the other {rows - acked} "
        "some may be in the log all the same."
    )


class Columns(NamedTuple):
    """Rows of one topic, as ``ColumnsSender.send`` takes them."""

    topic: str
    values: Any
    keys: Any
    partition: int | None
    timestamps_ms: Any
    headers: Any
    size: int


class Intake:
    """Rows on their way from one thread to the producer, and what becomes of them.

    The thread appends to a deque and the loop takes from it, which needs no lock; each counter is written by one side.
    """

    def __init__(self, producer: Producer) -> None:
        """To be called on the loop."""
        config = producer.config
        self.producer = producer
        self.rows_in = 0
        self.stopped = False
        self.failure: Exception | None = None
        self.max_block = config.max_block_ms / 1000
        self.before = producer.metrics()
        self._loop = asyncio.get_running_loop()
        self._sender = ColumnsSender(producer)
        self._waiting: deque[Row | Columns] = deque()
        self._bytes_in = 0
        self._bytes_out = 0
        self._rows_out = 0
        # Bytes of rows since the loop was told to take them.
        self._bytes_untold = 0
        # The loop will not look for rows before it is told to.
        self._idle = True
        self._room = threading.Event()
        self._linger = max(config.linger_ms / 1000, SHORTEST_LINGER)
        self._timer: asyncio.TimerHandle | None = None
        self._told = asyncio.Event()
        self._progress = asyncio.Event()
        self._task = self._loop.create_task(self._take_on(), name="aioproducer-executor-rows")

    # In the thread that sends

    @property
    def acked(self) -> int:
        return self._sender.acked

    def put(self, item: Row | Columns, rows: int, size: int) -> None:
        """Append rows, once there is room.

        Raises:
            BufferExhaustedError: there was none for ``max.block.ms``.
            Exception: a row has failed meanwhile.
        """
        if self._is_full():
            self._wait_for_room()
        self._waiting.append(item)
        self.rows_in += rows
        self._bytes_in += size
        self._bytes_untold += size
        if self._bytes_untold >= CHUNK_BYTES:
            self._tell()
        elif self._idle:
            # The loop sets it before it looks for the last rows, and this comes behind the row: none is left unseen.
            self._idle = False
            self._call_soon(self._tell_later)

    def _tell(self) -> None:
        self._bytes_untold = 0
        self._call_soon(self._told.set)

    def _call_soon(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise ProducerClosedError(LOOP_CLOSED) from None

    def _is_full(self) -> bool:
        return self._bytes_in - self._bytes_out > BYTES_AHEAD

    def _wait_for_room(self) -> None:
        deadline = monotonic() + self.max_block
        self._tell()
        while True:
            self._room.clear()
            if self.stopped:
                raise self.why_stopped()
            if not self._is_full():
                return
            if not self._room.wait(max(deadline - monotonic(), 0)):
                raise BufferExhaustedError(
                    f"no room for another row within {self.max_block * 1000:.0f} ms (max.block.ms): the cluster takes "
                    f"rows more slowly than they come, or not at all. {what_became(self.rows_in, self.acked)}"
                    + because(self.producer)
                )

    def why_stopped(self) -> Exception:
        """What to raise instead of taking more."""
        if self.failure is None:
            return ProducerClosedError(LOOP_CLOSED)
        return self.failure.fresh() if isinstance(self.failure, KafkaError) else self.failure

    # On the loop

    def _tell_later(self) -> None:
        if self._timer is None and not self.stopped:
            self._timer = self._loop.call_later(self._linger, self._told.set)

    async def _take_on(self) -> None:
        try:
            while not self.stopped:
                await self._told.wait()
                self._told.clear()
                self._idle = True
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                while self._waiting and not self.stopped:
                    await self._send_and_look()
        except Exception as error:
            self._stop(error)
        finally:
            self._stop(None)

    async def _send_and_look(self) -> None:
        sending = self._loop.create_task(self._send_some())
        try:
            while not self.stopped and not sending.done():
                # With a full buffer the sending itself sees nothing before there is room.
                await asyncio.wait([sending], timeout=LOOK_EVERY)
                self.look()
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            failed = None if sending.cancelled() else sending.exception()
        if failed is not None and not self.stopped:
            raise failed

    async def _send_some(self) -> None:
        for columns in self._take():
            await self._sender.send(
                columns.topic,
                columns.values,
                keys=columns.keys,
                partition=columns.partition,
                timestamps_ms=columns.timestamps_ms,
                headers=columns.headers,
            )
            self._rows_out += len(columns.values)
            self._bytes_out += columns.size
            self._room.set()
            self._progress.set()

    def _take(self) -> Iterator[Columns]:
        """The columns that come next, or the rows, up to a chunk of them, as columns."""
        rows: list[Row] = []
        size = 0
        while self._waiting and size < CHUNK_BYTES:
            item = self._waiting[0]
            if isinstance(item, Columns):
                if not rows:
                    self._waiting.popleft()
                    yield item
                break
            self._waiting.popleft()
            rows.append(item)
            size += item[-1]
        yield from _as_columns(rows)

    def look(self) -> None:
        """See what has been delivered, and stop at the first failure."""
        self._sender.settle_finished()
        if self._sender.errors and not self.stopped:
            self._stop(RowsFailedError(self.rows_in, self.acked, self._sender.errors))

    def _stop(self, failure: Exception | None) -> None:
        if not self.stopped:
            self.stopped = True
            self.failure = failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._room.set()
        self._progress.set()

    async def flush(self) -> None:
        """Wait until all rows are acknowledged, or the first has failed."""
        self._told.set()
        while self._rows_out < self.rows_in and not self.stopped:
            self._progress.clear()
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._progress.wait()
            except TimeoutError:
                self.look()
        # Not all that the producer has, which others share.
        flushing = self._loop.create_task(self._sender.settle_all())
        try:
            while not self.stopped and not flushing.done():
                await asyncio.wait([flushing], timeout=LOOK_EVERY)
                self.look()
        finally:
            flushing.cancel()
        await asyncio.wait([flushing])
        if not flushing.cancelled():
            flushing.result()
        self.look()

    async def close(self) -> Figures:
        """Let go of the rows that the producer has not accepted."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._sender.settle_finished()
        return await self.figures()

    async def figures(self) -> Figures:
        return figures(self.before, self.producer.metrics())


def _as_columns(rows: Sequence[Row]) -> Iterator[Columns]:
    """Rows in columns, by topic and partition; where the partitioner decides on some, a topic's rows stay in line."""
    by_topic: dict[str, list[Row]] = {}
    for row in rows:
        by_topic.setdefault(row[0], []).append(row)
    for topic, of_topic in by_topic.items():
        partitions = {row[3] for row in of_topic}
        if len(partitions) > 1 and None not in partitions:
            of_topic.sort(key=lambda row: row[3] or 0)
        for partition, run in groupby(of_topic, key=lambda row: row[3]):
            _, values, keys, _, timestamps_ms, headers, sizes = zip(*run, strict=True)
            yield Columns(
                topic,
                values,
                keys if any(key is not None for key in keys) else None,
                partition,
                timestamps_ms if any(time is not None for time in timestamps_ms) else None,
                headers if any(headers) else None,
                sum(sizes),
            )


def because(producer: Producer) -> str:
    error = producer.connection_error
    return "" if error is None else f" The last error was: {error}"
