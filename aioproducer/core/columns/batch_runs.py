"""Compiled. The batches of one sender's records, and the outcomes of these records.

Records are stored by batch, as runs of indices in it: the memory depends on the batches in progress, not on the number
of records.
"""

from __future__ import annotations

from aioproducer.core.batching.batch import ProducerBatch, parts
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import KafkaError
from aioproducer.record import TopicPartition


class BatchRuns:
    """Runs of records by batch, in the order in which each batch was added, until their outcomes are counted.

    acked
        The number of counted records that were delivered.
    errors
        The first error of each partition among the counted records.
    may_have_been_written
        Whether that holds for any counted record that failed.
    offsets
        The offsets of the counted records as ranges, by partition; ``None`` unless ``keep_offsets``.
    """

    def __init__(self, *, keep_offsets: bool) -> None:
        self.acked = 0
        self.errors: dict[TopicPartition, KafkaError] = {}
        self.may_have_been_written = False
        self.offsets: dict[int, list[range]] | None = {} if keep_offsets else None
        # Starts and ends of runs, alternating.
        self._runs: dict[ProducerBatch, list[int]] = {}

    def __len__(self) -> int:
        """Return the number of batches with records that are not counted yet."""
        return len(self._runs)

    def add(self, batch: ProducerBatch, start: int, stop: int) -> None:
        """Add the records from index ``start`` to before ``stop``."""
        runs = self._runs.get(batch)
        if runs is None:
            self._runs[batch] = [start, stop]
        elif runs[-1] == start:
            # The records follow the last run, as nearly all do.
            runs[-1] = stop
        else:
            runs.append(start)
            runs.append(stop)

    def add_delivery(self, delivery: Delivery) -> bool:
        """Add a record; return False if it is in no batch."""
        batch = delivery._group
        if not isinstance(batch, ProducerBatch):
            return False
        self.add(batch, delivery._index, delivery._index + 1)
        return True

    def add_columns(self, touched: list[ProducerBatch]) -> int:
        """Add the records of these batches from ``column_start`` on; return their number."""
        count = 0
        for batch in touched:
            start = batch.column_start
            stop = batch.record_count
            batch.column_start = -1
            self.add(batch, start, stop)
            count += stop - start
        return count

    def first(self) -> ProducerBatch | None:
        """Return the batch with the records that have waited longest."""
        return next(iter(self._runs), None)

    def batch_to_await(self, limit: int) -> ProducerBatch | None:
        """Return the batch to wait for while more than ``limit`` closed batches wait to be sent, or ``None``.

        Batches on the wire do not count: if responses take long, there may be many.
        """
        if len(self._runs) <= limit:
            return None
        closed: list[ProducerBatch] = []
        allowed = limit
        for batch in self._runs:
            if batch.closed:
                closed.append(batch)
                allowed += batch.on_wire
        return closed[-allowed - 1] if len(closed) > allowed else None

    def topic_partitions(self) -> set[TopicPartition]:
        """Return the partitions of the records that are not counted yet."""
        return {batch.topic_partition for batch in self._runs}

    def count_first(self, limit: int) -> None:
        """Count finished batches in order, at most ``limit``, up to the first unfinished one."""
        # In one iteration: finding the first key of a dict takes longer with each key that was deleted before it.
        finished: list[ProducerBatch] = []
        for batch in self._runs:
            if len(finished) == limit or not _is_finished(batch):
                break
            finished.append(batch)
        for batch in finished:
            self.count(batch)

    def count_finished(self) -> None:
        """Count every finished batch, including those after an unfinished one."""
        for batch in [batch for batch in self._runs if _is_finished(batch)]:
            self.count(batch)

    def count(self, batch: ProducerBatch) -> None:
        """Count a finished batch, unless it was counted before, and remove its records."""
        runs = self._runs.pop(batch, None)
        if runs is None:
            return
        plain = self.offsets is None and batch.stored_error is None and batch.children is None
        for index in range(0, len(runs), 2):
            if plain:
                # The usual case.
                self.acked += runs[index + 1] - runs[index]
            else:
                self._count_run(batch, runs[index], runs[index + 1])

    def _count_run(self, batch: ProducerBatch, start: int, stop: int) -> None:
        for first, part in parts(batch):
            begin, end = max(start - first, 0), min(stop - first, part.record_count)
            if begin < end:
                self._count_part(part, begin, end - begin)

    def _count_part(self, batch: ProducerBatch, index: int, count: int) -> None:
        blamed = batch.record_errors or ()
        # The error of a record that the broker blames, if any (KIP-467): the others were only in the same batch.
        error = batch.error(min([each for each in blamed if index <= each < index + count], default=index))
        if error is not None:
            self.add_error(batch.topic_partition, error)
            return
        self.acked += count
        offset = None if self.offsets is None else batch.metadata(index).offset
        if self.offsets is None or offset is None:
            return
        ranges = self.offsets.setdefault(batch.topic_partition.partition, [])
        if ranges and ranges[-1].stop == offset:
            ranges[-1] = range(ranges[-1].start, offset + count)
        else:
            ranges.append(range(offset, offset + count))

    def add_error(self, topic_partition: TopicPartition, error: BaseException | None) -> None:
        """Keep the error if it is one of Kafka's and the partition's first."""
        if isinstance(error, KafkaError):
            self.errors.setdefault(topic_partition, error)
            self.may_have_been_written = self.may_have_been_written or error.may_have_been_written


def _is_finished(batch: ProducerBatch) -> bool:
    """Return whether the batch accepts no more records, and every record has its outcome."""
    return batch.is_finished()
