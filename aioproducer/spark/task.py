"""One task: sends the Arrow batches of one partition on the executor's loop, and waits for their delivery.

The worker's main thread reads batches from Spark and cuts them into pieces. The loop's thread, a few batches behind,
turns pieces into records. There is one hand-over per Arrow batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from aioproducer._client.bulk import ColumnsSender
from aioproducer._common.texts import are, counted, were
from aioproducer.errors import KafkaError
from aioproducer.spark.executor import Executor
from aioproducer.spark.row_queue import last_error_text
from aioproducer.spark.statistics import SendStatistics, send_statistics

if TYPE_CHECKING:
    import pyarrow

    from aioproducer.producer import Producer
    from aioproducer.record import TopicPartition
    from aioproducer.spark.columns import Piece, SinkColumns
    from aioproducer.spark.options import SinkOptions

logger = logging.getLogger("aioproducer.spark")

# The most Arrow batches, and bytes of them, that wait to become records; a single batch may be larger.
BATCHES_AHEAD = 3
BYTES_AHEAD = 16 << 20
# Interval of the checks for failures while rows wait for room or are flushed, in seconds.
CHECK_INTERVAL = 0.05
# The most partitions that an error names.
NAMED_PARTITIONS = 5
# How long a task that ends early waits until the loop has dropped its rows, in seconds.
GRACE = 2.0


class SparkTaskError(KafkaError):
    """A task could not deliver its rows; the text has partition, reason, and the number of acknowledged rows.

    Spark runs a task at most ``spark.task.maxFailures`` times. Each run writes all rows of the task.
    """

    def __init__(self, reason: str, rows: int, acked: int, topic_partition: TopicPartition | None = None) -> None:
        super().__init__(
            f"{reason} Of {counted(rows, 'row')} sent in this attempt {acked} {are(acked)} known to be acknowledged; "
            f"of the other {rows - acked} some may be in the log all the same."
        )
        self.rows = rows
        """Rows that the producer had accepted."""
        self.acked = acked
        """Those of them that are known to be in the log."""
        self.topic_partition = topic_partition
        """Partition of the first failed row; None if the failure belongs to no partition."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """Outcome of a task that has delivered all of its rows.

    rows
        The number of rows.
    seconds
        From the request for the first row to the last acknowledgement.
    statistics
        Those of the producer during that time.
    """

    rows: int
    seconds: float
    statistics: SendStatistics


class PartitionSender:
    """A task's part on the loop: receives pieces, turns them into records in order, and checks their deliveries.

    Create and call it on the loop.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sender = ColumnsSender(producer)
        self._before = producer.metrics()
        self._began = perf_counter()
        self._waiting: deque[tuple[Sequence[Piece], int]] = deque()
        self._bytes_waiting = 0
        self._no_more = False
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._send_and_check(), name="aioproducer-spark-task")
        # A failure also ends the wait for room.
        self._task.add_done_callback(lambda _: self._room.set())

    @property
    def rows(self) -> int:
        """Rows that the producer has accepted."""
        return self._sender.count

    async def put(self, pieces: Sequence[Piece], size: int) -> None:
        """Accept the pieces of an Arrow batch of ``size`` bytes, once at most a few batches wait.

        Raises:
            SparkTaskError: rows of this task have failed.
        """
        while not self._task.done() and self._is_full(size):
            self._room.clear()
            await self._room.wait()
        if self._task.done():
            await self._task
        self._raise_failure()
        self._waiting.append((pieces, size))
        self._bytes_waiting += size
        self._filled.set()

    def _is_full(self, size: int) -> bool:
        if not self._waiting:
            return False
        return len(self._waiting) >= BATCHES_AHEAD or self._bytes_waiting + size > BYTES_AHEAD

    async def finish(self, timeout: float) -> TaskOutcome:
        """Wait until all rows are acknowledged, at most ``timeout`` seconds.

        Raises:
            SparkTaskError: not all were.
        """
        self._no_more = True
        self._filled.set()
        await asyncio.wait([self._task], timeout=timeout)
        if not self._task.done():
            await self.abandon()
            raise self._failure(
                f"Not all rows were acknowledged within {timeout * 1000:.0f} ms (flush_timeout_ms) after the last one "
                f"had come{self._still_waiting()}.{last_error_text(self._producer)}"
            )
        await self._task
        seconds = perf_counter() - self._began
        return TaskOutcome(self._sender.count, seconds, send_statistics(self._before, self._producer.metrics()))

    def _still_waiting(self) -> str:
        self._sender.settle_finished()
        waiting = [str(topic_partition) for topic_partition in self._sender.unfinished()]
        if not waiting:
            return ""
        more = f" and {len(waiting) - NAMED_PARTITIONS} more" if len(waiting) > NAMED_PARTITIONS else ""
        return f"; those for {', '.join(waiting[:NAMED_PARTITIONS])}{more} still wait"

    async def abandon(self) -> None:
        """Drop all rows that the producer has not accepted."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._waiting.clear()
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.debug("the task had failed: %s", error)

    async def _send_and_check(self) -> None:
        sending = asyncio.get_running_loop().create_task(self._send_all())
        try:
            while not sending.done():
                # With a full buffer the send itself notices no failure until there is room.
                await asyncio.wait([sending], timeout=CHECK_INTERVAL)
                self._check()
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                # Its error is raised below, unless a failed delivery was raised first.
                sending.exception()
        await sending

    async def _send_all(self) -> None:
        while self._waiting or not self._no_more:
            if not self._waiting:
                self._filled.clear()
                await self._filled.wait()
                continue
            pieces, size = self._waiting[0]
            for piece in pieces:
                await self._send(piece)
                self._raise_failure()
            self._waiting.popleft()
            self._bytes_waiting -= size
            self._room.set()
        # Only the records of this task: other tasks of this executor may share the producer.
        await self._sender.settle_all()

    async def _send(self, piece: Piece) -> None:
        try:
            await self._sender.send(
                piece.topic,
                piece.values,
                keys=piece.keys,
                partition=piece.partition,
                timestamps_ms=piece.timestamps_ms,
                headers=piece.headers,
            )
        except (KafkaError, TypeError, ValueError) as error:
            raise self._failure(f"A row for topic {piece.topic!r} was refused: {error}") from None

    def _check(self) -> None:
        """Check the finished deliveries.

        Raises:
            SparkTaskError: a delivery has failed.
        """
        self._sender.settle_finished()
        self._raise_failure()

    def _raise_failure(self) -> None:
        for topic_partition, error in self._sender.errors.items():
            raise self._failure(f"Rows for {topic_partition} were not delivered: {error}", topic_partition)

    def _failure(self, reason: str, topic_partition: TopicPartition | None = None) -> SparkTaskError:
        self._sender.settle_finished()
        return SparkTaskError(reason, self._sender.count, self._sender.acked, topic_partition)


async def _begin(executor: Executor, options: SinkOptions) -> PartitionSender:
    return PartitionSender(await executor.producer(dict(options.config)))


def write_partition(batches: Iterable[pyarrow.RecordBatch], columns: SinkColumns, options: SinkOptions) -> TaskOutcome:
    """Send a partition's rows, and return when all are acknowledged.

    Waiting rows occupy at most a few Arrow batches and ``buffer.memory``, whatever the size of the partition.

    Raises:
        SparkTaskError: a row could not be delivered, or not in time. The first failure raises it.
    """
    executor = Executor.current()
    sender = executor.run(_begin(executor, options))
    return send_all(executor, sender, batches, columns, options)


def send_all(
    executor: Executor,
    sender: PartitionSender,
    batches: Iterable[pyarrow.RecordBatch],
    columns: SinkColumns,
    options: SinkOptions,
) -> TaskOutcome:
    """Send a partition's rows by ``sender``; see ``write_partition``.

    Raises:
        SparkTaskError: a row could not be delivered, or not in time. The first failure raises it.
    """
    try:
        for batch in batches:
            for part in columns.parts(batch):
                pieces = tuple(columns.pieces(part))
                executor.run(sender.put(pieces, columns.size(part, pieces)))
        timeout = options.flush_timeout_ms / 1000
        return executor.run(sender.finish(timeout), timeout + GRACE)
    except BaseException as error:
        if sender.rows and not isinstance(error, SparkTaskError):
            rows = counted(sender.rows, "row")
            error.add_note(f"{rows} of this task {were(sender.rows)} sent before, and may be in the log.")
        _abandon(executor, sender)
        raise


def _abandon(executor: Executor, sender: PartitionSender) -> None:
    try:
        executor.run(sender.abandon(), GRACE)
    except Exception as error:
        # The task fails with the error before this one.
        logger.warning("a task's rows may still wait on the executor's loop: %r", error)
