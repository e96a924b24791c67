"""Internal, for the Spark sink: transactions that one process leaves open and another one ends."""

from __future__ import annotations

from dataclasses import dataclass

from aioproducer.errors import TransactionAbortableError
from aioproducer.record import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The records of a transaction in one partition: first and last offset, and their number.

    Records of other producers may lie between them.
    """

    first_offset: int
    last_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that was left open: what ``Admin.end_transaction`` needs, and where its records are."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    """The generation of the protocol that the transaction was written in, 1 or 2."""
    partitions: dict[TopicPartition, PartitionFacts]
    topic_ids: dict[str, bytes]
    """The ids of the topics, of those that have one."""


class AcknowledgedRecords:
    """Gathers where the records of a transaction are, from the acknowledgement of each batch."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionFacts] = {}
        self._without_offset: set[TopicPartition] = set()

    def clear(self) -> None:
        """Begin the next transaction."""
        self._partitions.clear()
        self._without_offset.clear()

    def on_batch_acked(
        self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        """Receive an acknowledgement; see ``OnBatchAcked``."""
        if base_offset is None:
            self._without_offset.add(topic_partition)
            return
        last = base_offset + record_count - 1
        known = self._partitions.get(topic_partition)
        if known is None:
            facts = PartitionFacts(base_offset, last, record_count)
        else:
            facts = PartitionFacts(
                min(known.first_offset, base_offset),
                max(known.last_offset, last),
                known.record_count + record_count,
            )
        self._partitions[topic_partition] = facts

    def partitions(self) -> dict[TopicPartition, PartitionFacts]:
        """Return the facts of each partition.

        Raises:
            TransactionAbortableError: a broker acknowledged a duplicate without its offset, which it has forgotten.
        """
        if self._without_offset:
            where = min(self._without_offset)
            raise TransactionAbortableError(
                f"{where}: the broker acknowledged a batch as a duplicate, and no longer knows its offset; abort the "
                "transaction and send its records again"
            )
        return dict(self._partitions)
