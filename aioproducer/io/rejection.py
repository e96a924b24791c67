"""What fails because a broker has rejected this client: everything that depends on that broker, at once."""

from __future__ import annotations

from itertools import islice, takewhile

from aioproducer.core.batching.accumulator import RecordAccumulator
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.metadata.cluster import NO_LEADER
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.errors import KafkaError


class Rejection:
    """The records of the moment when a broker rejected the client's credentials; later records are not among them.

    Those are the records for partitions that the broker leads. If no other broker can say more, also those without
    a known leader or partition. Records for the partitions of other brokers wait for what these decide, and those in
    flight have their outcome from elsewhere. The sender fails some of them in each pass.

    Args:
        node_id: the rejecting broker.
        is_alone: no other broker is connected or connecting.
        now: loop time of the rejection.
    """

    def __init__(
        self, error: KafkaError, accumulator: RecordAccumulator, node_id: int, is_alone: bool, now: float
    ) -> None:
        self.error = error
        self.node_id = node_id
        self._accumulator = accumulator
        self._is_alone = is_alone
        self._since = now
        # The batches to examine are those from the first number to the last; the next of them may be known.
        self._first_number = accumulator.incomplete.first_number()
        self._last_number = accumulator.incomplete.last_number
        self._next: ProducerBatch | None = None

    @property
    def has_batches(self) -> bool:
        """Whether there are batches that `next_batches` has not examined."""
        return self._first_number <= self._last_number

    def next_batches(self, limit: int) -> list[ProducerBatch]:
        """Examine ``limit`` batches, oldest first, and return those that fail."""
        incomplete = self._accumulator.incomplete
        examined, self._next = incomplete.between(self._first_number, self._last_number, limit, self._next)
        self._first_number = self._last_number + 1 if self._next is None else self._next.number
        return [batch for batch in examined if not batch.on_wire and self._depends(batch)]

    def _depends(self, batch: ProducerBatch) -> bool:
        node = None if batch.queue is None else batch.queue.node
        if node is None or node.node_id == NO_LEADER:
            return self._is_alone
        return node.node_id == self.node_id

    def next_records(self, limit: int) -> list[PendingRecord]:
        """Return at most ``limit`` waiting records to fail, oldest first; the caller removes them."""
        if not self._is_alone:
            return []
        waiting = self._accumulator.blocked_records.pending.records
        return list(islice(takewhile(lambda pending: pending.since <= self._since, waiting), limit))
