"""Compiled. Idempotence: producer id, epoch and sequences, and the recovery from a gap in the sequences.

The rules for each partition follow KIP-98, KIP-360 and Kafka's ``TransactionManager``; differences are in parentheses.

1. A batch receives its sequence when it is drained, and keeps it on every retry. An attempt without a response may have
   been written, and the broker detects that only by the same (producer id, epoch, sequence).
2. While a batch with a sequence waits for its retry, only the lowest sequence in flight is sent.
3. A batch may be given up after it was handed to a transport: expired, out of retries, or refused. It leaves its
   sequence *unresolved*: no new sequence is assigned until no batch is in flight. If the last acknowledged sequence is
   then the last assigned one, the partition continues; otherwise it needs a new epoch. (Kafka marks only batches in
   retry, but one that expires on its first attempt may have been written as well. Kafka requests the new epoch at once
   after a refused batch. But an earlier batch that waits for its retry may be in the log, and would be written again.)
4. A new epoch starts the partition again at sequence 0. It begins only when no request of the partition is on the wire.
   The batches that still wait for a retry are then rewritten. The first of them was refused as out of order: neither
   it nor any later one is in the log. (Kafka rewrites while requests are on the wire.)
5. Until the first batch of an epoch is acknowledged, no second one is sent. A broker without any state of a producer id
   accepts any sequence. It would write the second batch if the first was lost or refused, and the first after it.
   (Kafka sends up to five.) The same holds when the topic was deleted and re-created.
6. A broker detects duplicates of the last five batches. Therefore at most five are sent from the first in flight on,
   including those that were acknowledged before it, as happens when the leader moves. (Kafka counts those in flight.)
7. Partitions are independent: a partition without a gap keeps the old epoch until it has no batch in flight.
8. Sequences are modulo 2**31. After epoch 32767 a new producer id is requested.

A transactional producer gets its epochs from the transaction coordinator. A gap in the sequences of a partition then
fails the transaction, and the epoch that follows its abort starts all partitions again at sequence 0. A partition sends
nothing before it has joined the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from aioproducer.errors import KafkaError
from aioproducer.record import TopicPartition
from aioproducer.wire.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

LAST_EPOCH = 32767
# Shared by all partitions without a batch in flight: read only.
_NOTHING: list[SequencedBatch] = []
# A broker detects duplicates of this many batches of a producer and partition.
BATCHES_REMEMBERED = 5
# Sequences are modulo 2**31. Names of this module alone are C integers in the compiled module.
_MASK = 0x7FFFFFFF
_NO_SEQUENCE = NO_SEQUENCE


class SequencedBatch(Protocol):
    """The part of a ``ProducerBatch`` that this module uses."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def base_sequence(self) -> int:
        """-1 before the batch is drained."""

    @property
    def record_count(self) -> int: ...

    @property
    def on_wire(self) -> bool:
        """Whether a request in flight carries the batch."""

    def set_sequence(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None: ...


class TransactionPartitions:
    """Receives the partitions that a transaction needs: ``TransactionManager``."""

    def partition_used(self, topic_partition: TopicPartition, sequences: PartitionSequences) -> None:
        """Receive that the partition has a new batch, and has not joined the transaction yet."""
        raise NotImplementedError


class PartitionSequences:
    """The sequences of one partition.

    ``in_flight`` holds the batches with a sequence and an unknown outcome, in sequence order: on the wire, waiting for
    a retry, or expired while on the wire.
    """

    __slots__ = (
        "acked_early",
        "bump_wanted",
        "in_flight",
        "last_acked",
        "log_is_new",
        "next_sequence",
        "producer_epoch",
        "producer_id",
        "sent_to_old_log",
        "transaction",
        "unresolved",
    )

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.last_acked = _NO_SEQUENCE
        self.in_flight = _NOTHING
        # Number of batches acknowledged before the first in flight. They must not make the broker forget the first.
        self.acked_early = 0
        self.unresolved = False
        self.bump_wanted = False
        # The topic was re-created, and no batch sent since is acknowledged.
        self.log_is_new = False
        # Number of the last transaction that the partition has joined.
        self.transaction = 0
        # The batches on the wire at that time: their acknowledgements imply nothing about the new log.
        self.sent_to_old_log: tuple[SequencedBatch, ...] = ()


class ProducerState:
    """Assigns sequences, decides which batches may be sent, and follows every batch with a sequence to its end.

    Args:
        idempotent: False allows every batch, without a sequence.
        max_in_flight: the number of batches of a partition that may be in flight (a broker remembers five).
    """

    def __init__(self, *, idempotent: bool, max_in_flight: int) -> None:
        self.idempotent = idempotent
        self.max_in_flight = max_in_flight
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.fatal_error: KafkaError | None = None
        # Number of the current transaction, or of the last one; 0 without a transactional id.
        self.transaction = 0
        self.transactions: TransactionPartitions | None = None
        # By topic and partition, of partitions that records were sent to.
        self._sequences: dict[str, dict[int, PartitionSequences]] = {}

    def sequences(self, topic_partition: TopicPartition) -> PartitionSequences:
        """Return the partition's sequences. They outlive its queue: a forgotten topic that returns continues them."""
        topic, partition = topic_partition
        of_topic = self._sequences.get(topic)
        if of_topic is None:
            of_topic = self._sequences[topic] = {}
        sequences = of_topic.get(partition)
        if sequences is None:
            sequences = of_topic[partition] = PartitionSequences()
        return sequences

    def sequences_of(self, topic: str) -> Collection[PartitionSequences]:
        """Return the sequences of the topic's partitions that records were sent to."""
        return self._sequences.get(topic, {}).values()

    def needs_producer_id(self) -> bool:
        """Return whether a producer id has to be requested."""
        return (
            self.idempotent
            and self.producer_id == NO_PRODUCER_ID
            and self.fatal_error is None
            and self.transactions is None
        )

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Set the producer id and epoch from the response to InitProducerId."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch

    def begin_transaction(self) -> None:
        """Begin the next transaction, which no partition has joined."""
        self.transaction += 1

    def join_transaction(self, sequences: PartitionSequences) -> None:
        """Let the partition send: it has joined the transaction."""
        sequences.transaction = self.transaction

    def may_send(self, batch: SequencedBatch, sequences: PartitionSequences) -> bool:
        """Return whether the oldest batch of a partition may be drained now."""
        if self.fatal_error is not None:
            return False
        if not self.idempotent:
            return True
        if sequences.bump_wanted:
            return False
        in_flight = sequences.in_flight
        if batch.base_sequence != _NO_SEQUENCE:
            return in_flight[0] is batch
        if self.producer_id == NO_PRODUCER_ID or sequences.unresolved or sequences.transaction != self.transaction:
            return False
        if in_flight:
            # A broker without any state of this producer accepts any sequence: the first batch has to be in its log
            # before others are sent.
            begun = sequences.last_acked != _NO_SEQUENCE and not sequences.log_is_new
            remembered = len(in_flight) + sequences.acked_early < BATCHES_REMEMBERED
            return begun and remembered and len(in_flight) < self.max_in_flight and self._is_current(sequences)
        return True

    def assign(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """Assign a sequence to a batch that is drained for the first time; a retried batch keeps its own."""
        if not self.idempotent or batch.base_sequence != _NO_SEQUENCE:
            return
        if not self._is_current(sequences):
            assert not sequences.in_flight
            self._begin_epoch(sequences)
        batch.set_sequence(sequences.producer_id, sequences.producer_epoch, sequences.next_sequence)
        sequences.next_sequence = (sequences.next_sequence + batch.record_count) & _MASK
        if sequences.in_flight:
            sequences.in_flight.append(batch)
        else:
            sequences.in_flight = [batch]

    def acked(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """Remove an acknowledged batch from those in flight; it may have failed in this producer meanwhile."""
        if batch in sequences.in_flight:
            if not self.is_first_in_flight(batch, sequences):
                sequences.acked_early += 1
            self._remove(batch, sequences)
            if sequences.log_is_new:
                old = sequences.sent_to_old_log
                if batch in old:
                    # A list: a cpdef method cannot contain a generator expression.
                    sequences.sent_to_old_log = (*[other for other in old if other is not batch],)
                else:
                    self._set_log_is_new(sequences, False)
            last = (batch.base_sequence + batch.record_count - 1) & _MASK
            if sequences.last_acked == _NO_SEQUENCE or not _is_before(last, sequences.last_acked):
                sequences.last_acked = last

    def topic_recreated(self, sequences: PartitionSequences) -> None:
        """Apply rule 5 again: the partition has a new log, without any batch of this producer."""
        self._set_log_is_new(sequences, True)

    def _set_log_is_new(self, sequences: PartitionSequences, is_new: bool) -> None:
        sequences.log_is_new = is_new
        sequences.sent_to_old_log = tuple(batch for batch in sequences.in_flight if batch.on_wire) if is_new else ()

    def is_first_in_flight(self, batch: SequencedBatch, sequences: PartitionSequences) -> bool:
        return bool(sequences.in_flight) and sequences.in_flight[0] is batch

    def out_of_order(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """Start a new epoch with this batch, the first in flight: the broker lacks the batches before it.

        Neither this batch nor any later one is in the log.
        """
        if self.is_first_in_flight(batch, sequences):
            sequences.bump_wanted = True

    def abandoned(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """Mark the sequence of a failed batch unresolved: it expired, had its last retry, or was refused.

        It is unknown whether the batch is in the log: an earlier attempt may have written even a refused batch. The
        responses to later batches resolve that. A batch on the wire stays in flight until its request ends; call this
        again then.
        """
        if batch in sequences.in_flight:
            sequences.unresolved = True
            if not batch.on_wire:
                self._remove(batch, sequences)

    def _remove(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """Remove a batch from those in flight: its outcome is known."""
        sequences.in_flight.remove(batch)
        if not sequences.in_flight:
            # Most of very many partitions have no batch in flight: one list less for the garbage collector.
            sequences.in_flight = _NOTHING

    def split(self, batch: SequencedBatch, children: Sequence[SequencedBatch], sequences: PartitionSequences) -> None:
        """Pass the sequences of a batch that was too large for the broker on to its parts."""
        if batch.base_sequence == _NO_SEQUENCE:
            return
        sequence = batch.base_sequence
        for child in children:
            child.set_sequence(batch.producer_id, batch.producer_epoch, sequence)
            sequence = (sequence + child.record_count) & _MASK
        position = sequences.in_flight.index(batch)
        sequences.in_flight[position : position + 1] = children

    def resolve(self, sequences: PartitionSequences) -> bool:
        """Resolve the sequences as far as possible, after each end of a request of the partition or failure of a batch.

        Return whether the partition may send again although it could not before.
        """
        in_flight = sequences.in_flight
        if not in_flight:
            sequences.acked_early = 0
        if sequences.unresolved and not in_flight:
            sequences.unresolved = False
            if sequences.next_sequence != (sequences.last_acked + 1) & _MASK:
                sequences.bump_wanted = True
            elif not sequences.bump_wanted:
                return True
        if not sequences.bump_wanted:
            return False
        for batch in in_flight:
            if batch.on_wire:
                return False
        if self._is_current(sequences):
            if self.transactions is not None:
                return False
            self._bump()
        if self.producer_id == NO_PRODUCER_ID:
            return False
        self._begin_epoch(sequences)
        for batch in in_flight:
            batch.set_sequence(sequences.producer_id, sequences.producer_epoch, sequences.next_sequence)
            sequences.next_sequence = (sequences.next_sequence + batch.record_count) & _MASK
        return True

    def fail(self, error: KafkaError) -> None:
        """Send no record any more, now or later; the first error remains."""
        if self.fatal_error is None:
            self.fatal_error = error

    def _is_current(self, sequences: PartitionSequences) -> bool:
        return sequences.producer_id == self.producer_id and sequences.producer_epoch == self.producer_epoch

    def _bump(self) -> None:
        if self.producer_epoch >= LAST_EPOCH:
            self.producer_id = NO_PRODUCER_ID
            self.producer_epoch = NO_PRODUCER_EPOCH
        else:
            self.producer_epoch += 1

    def _begin_epoch(self, sequences: PartitionSequences) -> None:
        sequences.producer_id = self.producer_id
        sequences.producer_epoch = self.producer_epoch
        sequences.next_sequence = 0
        sequences.last_acked = _NO_SEQUENCE
        sequences.bump_wanted = False
        sequences.acked_early = 0
        self._set_log_is_new(sequences, False)


def _is_before(sequence: int, other: int) -> bool:
    """Return whether ``sequence`` precedes ``other``, both modulo 2**31 and less than half of that apart."""
    return (sequence - other) & _MASK > _MASK // 2
