"""A queue of rows, from a thread without an event loop to the producer on the executor's loop."""

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
from aioproducer.spark.statistics import SendStatistics, send_statistics

if TYPE_CHECKING:
    from aioproducer.producer import Producer

# The loop is woken after this many bytes of rows, or after linger.ms.
CHUNK_BYTES = 256 << 10
# The most bytes of rows in the queue; one row, or one chunk of columns, may exceed it.
BYTES_AHEAD = 4 * CHUNK_BYTES
# Shortest linger, in seconds: each wake-up of the loop costs the caller some microseconds.
SHORTEST_LINGER = 0.001
# Interval of the checks for failures while rows wait for room or are flushed, in seconds.
CHECK_INTERVAL = 0.05

# delivery.timeout.ms resolves the last records; a flush that takes this much longer is stuck.
FLUSH_MARGIN_MS = 10_000

LOOP_CLOSED = "the executor's event loop was closed meanwhile: what was not flushed may be lost"

Row: TypeAlias = "tuple[str, Any, Any, int | None, int | None, Sequence[HeaderPair], int]"
"""Topic, value, key, partition, timestamp, headers, and the row's size in bytes."""


class RowsFailedError(SendManyError):
    """Rows could not be delivered; the text has partition, reason, and the number of acknowledged rows."""

    def __init__(self, rows: int, acked: int, errors: Mapping[TopicPartition, KafkaError]) -> None:
        super().__init__(SendManyResult(rows, acked), errors)
        topic_partition, error = next(iter(self.errors.items()))
        self.args = (f"Rows for {topic_partition} were not delivered: {error} {outcome_text(rows, acked)}",)


def outcome_text(rows: int, acked: int) -> str:
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


class RowQueue:
    """A queue of rows from one thread to the producer, which also checks their deliveries.

    The thread appends to a deque and the loop pops from it, without a lock; each counter is written by one side only.
    """

    def __init__(self, producer: Producer) -> None:
        """Create the queue. Call this on the loop."""
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
        # Bytes of rows since the last wake-up of the loop.
        self._unannounced_bytes = 0
        # The loop does not check the queue until it is woken.
        self._idle = True
        self._room = threading.Event()
        self._linger = max(config.linger_ms / 1000, SHORTEST_LINGER)
        self._timer: asyncio.TimerHandle | None = None
        self._wakeup = asyncio.Event()
        self._progress = asyncio.Event()
        self._task = self._loop.create_task(self._run(), name="aioproducer-executor-rows")

    # In the thread that sends

    @property
    def acked(self) -> int:
        return self._sender.acked

    def put(self, item: Row | Columns, rows: int, size: int) -> None:
        """Append rows, once there is room.

        Raises:
            BufferExhaustedError: there was no room for ``max.block.ms``.
            Exception: a row has failed.
        """
        if self._is_full():
            self._wait_for_room()
        self._waiting.append(item)
        self.rows_in += rows
        self._bytes_in += size
        self._unannounced_bytes += size
        if self._unannounced_bytes >= CHUNK_BYTES:
            self._wake()
        elif self._idle:
            # The loop sets it before it checks the queue for the last time, and this comes after the append: no row is
            # overlooked.
            self._idle = False
            self._call_soon(self._wake_after_linger)

    def _wake(self) -> None:
        self._unannounced_bytes = 0
        self._call_soon(self._wakeup.set)

    def _call_soon(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise ProducerClosedError(LOOP_CLOSED) from None

    def _is_full(self) -> bool:
        return self._bytes_in - self._bytes_out > BYTES_AHEAD

    def _wait_for_room(self) -> None:
        deadline = monotonic() + self.max_block
        self._wake()
        while True:
            self._room.clear()
            if self.stopped:
                raise self.stop_error()
            if not self._is_full():
                return
            if not self._room.wait(max(deadline - monotonic(), 0)):
                raise BufferExhaustedError(
                    f"no room for another row within {self.max_block * 1000:.0f} ms (max.block.ms): the cluster stores "
                    f"rows more slowly than they are sent, or not at all. {outcome_text(self.rows_in, self.acked)}"
                    + last_error_text(self.producer)
                )

    def stop_error(self) -> Exception:
        """Return the error to raise for each further row."""
        if self.failure is None:
            return ProducerClosedError(LOOP_CLOSED)
        return self.failure.fresh() if isinstance(self.failure, KafkaError) else self.failure

    # On the loop

    def _wake_after_linger(self) -> None:
        if self._timer is None and not self.stopped:
            self._timer = self._loop.call_later(self._linger, self._wakeup.set)

    async def _run(self) -> None:
        try:
            while not self.stopped:
                await self._wakeup.wait()
                self._wakeup.clear()
                self._idle = True
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                while self._waiting and not self.stopped:
                    await self._send_and_check()
        except Exception as error:
            self._stop(error)
        finally:
            self._stop(None)

    async def _send_and_check(self) -> None:
        sending = self._loop.create_task(self._send_some())
        try:
            while not self.stopped and not sending.done():
                # With a full buffer the send itself notices no failure until there is room.
                await asyncio.wait([sending], timeout=CHECK_INTERVAL)
                self.check()
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            failed = None if sending.cancelled() else sending.exception()
        if failed is not None and not self.stopped:
            raise failed

    async def _send_some(self) -> None:
        for columns in self._next_columns():
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

    def _next_columns(self) -> Iterator[Columns]:
        """Pop the next columns, or the next rows, at most a chunk of them, as columns."""
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

    def check(self) -> None:
        """Check the finished deliveries, and stop at the first failure."""
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
        self._wakeup.set()
        while self._rows_out < self.rows_in and not self.stopped:
            self._progress.clear()
            try:
                async with asyncio.timeout(CHECK_INTERVAL):
                    await self._progress.wait()
            except TimeoutError:
                self.check()
        # Only the rows of this queue: other tasks may share the producer.
        flushing = self._loop.create_task(self._sender.settle_all())
        try:
            while not self.stopped and not flushing.done():
                await asyncio.wait([flushing], timeout=CHECK_INTERVAL)
                self.check()
        finally:
            flushing.cancel()
        await asyncio.wait([flushing])
        if not flushing.cancelled():
            flushing.result()
        self.check()

    async def close(self) -> SendStatistics:
        """Drop the rows that the producer has not accepted, and return the statistics."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._sender.settle_finished()
        return await self.statistics()

    async def statistics(self) -> SendStatistics:
        return send_statistics(self.before, self.producer.metrics())


def _as_columns(rows: Sequence[Row]) -> Iterator[Columns]:
    """Group rows into columns by topic and partition; a topic's rows without a partition keep their order."""
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


def last_error_text(producer: Producer) -> str:
    error = producer.connection_error
    return "" if error is None else f" The last error was: {error}"
