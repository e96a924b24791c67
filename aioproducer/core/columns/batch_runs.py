"""Which records of one sender are in which batch, and what has become of them.

Records are remembered by batch, as runs of places in it: memory goes with the batches under way, not with the records.
"""

from __future__ import annotations

from aioproducer.core.batching.batch import ProducerBatch, parts
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import KafkaError
from aioproducer.record import TopicPartition


class BatchRuns:
    """Runs of records, by batch, in the order of each batch's first; *settled* are those whose outcome is counted.

    acked
        How many settled records were delivered.
    errors
        The first error of each partition, as far as settled.
    may_have_been_written
        Whether that holds for any settled record that failed.
    offsets
        By partition, the offsets of the settled records as ranges; ``None`` unless ``keep_offsets``.
    """

    def __init__(self, *, keep_offsets: bool) -> None:
        self.acked = 0
        self.errors: dict[TopicPartition, KafkaError] = {}
        self.may_have_been_written = False
        self.offsets: dict[int, list[range]] | None = {} if keep_offsets else None
        # Starts and ends of runs, in turn.
        self._runs: dict[ProducerBatch, list[int]] = {}

    def __len__(self) -> int:
        """In how many batches there are records that are not settled."""
        return len(self._runs)

    def add(self, batch: ProducerBatch, start: int, stop: int) -> None:
        """Remember the records from place ``start`` to before ``stop``."""
        runs = self._runs.get(batch)
        if runs is None:
            self._runs[batch] = [start, stop]
        elif runs[-1] == start:
            # Behind the last one, as nearly all are.
            runs[-1] = stop
        else:
            runs.append(start)
            runs.append(stop)

    def add_delivery(self, delivery: Delivery) -> bool:
        """Remember a record; False where it is in no batch."""
        batch = delivery._group
        if not isinstance(batch, ProducerBatch):
            return False
        self.add(batch, delivery._index, delivery._index + 1)
        return True

    def add_columns(self, touched: list[ProducerBatch]) -> int:
        """Remember what was appended to these batches from their ``column_start`` on; how many records."""
        count = 0
        for batch in touched:
            start = batch.column_start
            stop = batch.record_count
            batch.column_start = -1
            self.add(batch, start, stop)
            count += stop - start
        return count

    def first(self) -> ProducerBatch | None:
        """The batch whose records have waited longest."""
        return next(iter(self._runs), None)

    def beyond(self, most: int) -> ProducerBatch | None:
        """What to wait for while more than ``most`` batches that take no more records wait to be sent, or ``None``.

        What is on the wire does not count: where answers take long that may be many.
        """
        if len(self._runs) <= most:
            return None
        closed: list[ProducerBatch] = []
        allowed = most
        for batch in self._runs:
            if batch.closed:
                closed.append(batch)
                allowed += batch.on_wire
        return closed[-allowed - 1] if len(closed) > allowed else None

    def topic_partitions(self) -> set[TopicPartition]:
        """Where records are under way to."""
        return {batch.topic_partition for batch in self._runs}

    def settle_first(self, most: int) -> None:
        """Count the batches that are done, ``most`` of them, up to the first that is not."""
        # In one go: to look for the first one again each time takes the longer, the more were there before it.
        over: list[ProducerBatch] = []
        for batch in self._runs:
            if len(over) == most or not _is_over(batch):
                break
            over.append(batch)
        for batch in over:
            self.settle(batch)

    def settle_finished(self) -> None:
        """Count every batch that is done, also behind one that is not."""
        for batch in [batch for batch in self._runs if _is_over(batch)]:
            self.settle(batch)

    def settle(self, batch: ProducerBatch) -> None:
        """Count a batch that is done, if that has not been; its records are forgotten."""
        runs = self._runs.pop(batch, None)
        if runs is None:
            return
        plain = self.offsets is None and batch.stored_error is None and batch.children is None
        for place in range(0, len(runs), 2):
            if plain:
                # As nearly all are.
                self.acked += runs[place + 1] - runs[place]
            else:
                self._settle_run(batch, runs[place], runs[place + 1])

    def _settle_run(self, batch: ProducerBatch, start: int, stop: int) -> None:
        for first, part in parts(batch):
            begin, end = max(start - first, 0), min(stop - first, part.record_count)
            if begin < end:
                self._settle_part(part, begin, end - begin)

    def _settle_part(self, batch: ProducerBatch, index: int, count: int) -> None:
        blamed = batch.record_errors or ()
        # Of those that the broker blames, if any (KIP-467): the others had only the same batch.
        error = batch.error(min([each for each in blamed if index <= each < index + count], default=index))
        if error is not None:
            self.note_error(batch.topic_partition, error)
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

    def note_error(self, topic_partition: TopicPartition, error: BaseException | None) -> None:
        """Remember the error, if it is one of Kafka's and the partition's first."""
        if isinstance(error, KafkaError):
            self.errors.setdefault(topic_partition, error)
            self.may_have_been_written = self.may_have_been_written or error.may_have_been_written


def _is_over(batch: ProducerBatch) -> bool:
    """Whether nothing is added any more, and the outcome is known."""
    return batch.is_finished()
