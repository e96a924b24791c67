"""Idempotence: producer id, epoch and sequences, and what to do when the chain of sequences breaks.

The rules, per partition (KIP-98, KIP-360; Kafka's ``TransactionManager`` is the model, what differs is said):

1. A batch gets its sequence when it is drained, and keeps it on every retry: an attempt whose response was lost may
   have been written, and only the same (producer id, epoch, sequence) lets the broker see that.
2. While a batch with a sequence waits for its retry, only the lowest sequence in flight is sent.
3. A batch that was ever handed to a transport and is given up (expired, retries used up, refused) leaves its sequence
   *unresolved*: no new sequence is assigned until nothing is in flight. If then the last acknowledged sequence is the
   last assigned one, all is well; else the partition needs a new epoch. (Kafka marks only batches in retry; one that
   expires on its first attempt may have been written as well. Kafka asks for the new epoch at once where a batch was
   refused; one before it that waits for its retry may be in the log, and would be written again.)
4. A new epoch starts the partition again at sequence 0. It is taken only when no request of the partition is on the
   wire, and what still waits for a retry then is rewritten: the first of these was refused as out of order, so that
   neither it nor any after it is in the log. (Kafka rewrites while requests are on the wire.)
5. Until the first batch of an epoch is acknowledged, no second one is sent: a broker that knows nothing of a producer
   id takes any sequence, so that the second would be written where the first is lost on its way or refused, and the
   first behind it. (Kafka sends up to five.) The same holds when the topic was deleted and created anew.
6. A broker knows the last five batches again. So no more than five are sent from the first in flight on, counting those
   that were acknowledged before it, as happens when the leader moves. (Kafka counts those in flight.)
7. Partitions do not share their troubles: one that is well keeps the old epoch until it has nothing in flight.
8. Sequences are modulo 2**31; an epoch ends at 32767, then a new producer id is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aioproducer.errors import KafkaError
from aioproducer.record import TopicPartition
from aioproducer.wire.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

LAST_EPOCH = 32767
# What is in flight of all partitions that have nothing in flight: read only.
_NOTHING: list[SequencedBatch] = []
# How many batches of a producer and partition a broker knows again.
BATCHES_REMEMBERED = 5
# Sequences are modulo 2**31. Private: the compiled module has them as C's integers.
_MASK = 0x7FFFFFFF
_NO_SEQUENCE = NO_SEQUENCE


class SequencedBatch(Protocol):
    """What this module needs of a batch (``ProducerBatch``)."""

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


class PartitionSequences:
    """The sequences of one partition.

    ``in_flight``: the batches with a sequence whose fate is not known yet, in sequence order: on the wire, waiting for
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
        "unresolved",
    )

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.last_acked = _NO_SEQUENCE
        self.in_flight = _NOTHING
        # How many were acknowledged before the first in flight, which the broker must not forget for them.
        self.acked_early = 0
        self.unresolved = False
        self.bump_wanted = False
        # The topic was made anew, and nothing sent since is acknowledged.
        self.log_is_new = False
        # What was on the wire then: its acknowledgement says nothing of the new log.
        self.sent_to_old_log: tuple[SequencedBatch, ...] = ()


class ProducerState:
    """Answers drain's ``may_send`` and follows every batch with a sequence to its end.

    Args:
        idempotent: False makes every answer the trivial one.
        max_in_flight: how many batches of a partition may be in flight (a broker remembers five).
    """

    def __init__(self, *, idempotent: bool, max_in_flight: int) -> None:
        self.idempotent = idempotent
        self.max_in_flight = max_in_flight
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.fatal_error: KafkaError | None = None
        self._sequences: dict[TopicPartition, PartitionSequences] = {}

    def sequences(self, topic_partition: TopicPartition) -> PartitionSequences:
        """The partition's sequences. They outlive its queue: a forgotten topic that comes back goes on counting."""
        sequences = self._sequences.get(topic_partition)
        if sequences is None:
            sequences = self._sequences[topic_partition] = PartitionSequences()
        return sequences

    def needs_producer_id(self) -> bool:
        return self.idempotent and self.producer_id == NO_PRODUCER_ID and self.fatal_error is None

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """What InitProducerId answered."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch

    def may_send(self, batch: SequencedBatch, sequences: PartitionSequences) -> bool:
        """Whether the head of a partition's queue may be drained now."""
        if self.fatal_error is not None:
            return False
        if not self.idempotent:
            return True
        if sequences.bump_wanted:
            return False
        in_flight = sequences.in_flight
        if batch.base_sequence != _NO_SEQUENCE:
            return in_flight[0] is batch
        if self.producer_id == NO_PRODUCER_ID or sequences.unresolved:
            return False
        if in_flight:
            # A broker that knows nothing of this producer takes any sequence: the first has to be there before others.
            begun = sequences.last_acked != _NO_SEQUENCE and not sequences.log_is_new
            remembered = len(in_flight) + sequences.acked_early < BATCHES_REMEMBERED
            return begun and remembered and len(in_flight) < self.max_in_flight and self._is_current(sequences)
        return True

    def assign(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """Give a batch that is drained for the first time its sequence; a retried one keeps its own."""
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
        """The broker has the batch (also one that was failed here meanwhile)."""
        if batch in sequences.in_flight:
            if not self.is_first_in_flight(batch, sequences):
                sequences.acked_early += 1
            self._left(batch, sequences)
            if sequences.log_is_new:
                old = sequences.sent_to_old_log
                if batch in old:
                    # No generator: a compiled method takes none.
                    sequences.sent_to_old_log = (*[other for other in old if other is not batch],)
                else:
                    self._set_log_is_new(sequences, False)
            last = (batch.base_sequence + batch.record_count - 1) & _MASK
            if sequences.last_acked == _NO_SEQUENCE or not _is_before(last, sequences.last_acked):
                sequences.last_acked = last

    def topic_recreated(self, sequences: PartitionSequences) -> None:
        """The partition has a log that knows nothing of this producer."""
        self._set_log_is_new(sequences, True)

    def _set_log_is_new(self, sequences: PartitionSequences, is_new: bool) -> None:
        sequences.log_is_new = is_new
        sequences.sent_to_old_log = tuple(batch for batch in sequences.in_flight if batch.on_wire) if is_new else ()

    def is_first_in_flight(self, batch: SequencedBatch, sequences: PartitionSequences) -> bool:
        return bool(sequences.in_flight) and sequences.in_flight[0] is batch

    def out_of_order(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """The broker misses what came before this batch, the first in flight: the chain begins anew with it.

        Neither it nor any after it is in the log.
        """
        if self.is_first_in_flight(batch, sequences):
            sequences.bump_wanted = True

    def abandoned(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """A batch was failed: by its deadline, after its last retry, or because the broker refused it.

        Whether it is in the log is not known: one that was refused may have been written by an earlier attempt. What
        follows it will tell. One that is still on the wire stays in flight until its request ends; call this again
        then.
        """
        if batch in sequences.in_flight:
            sequences.unresolved = True
            if not batch.on_wire:
                self._left(batch, sequences)

    def _left(self, batch: SequencedBatch, sequences: PartitionSequences) -> None:
        """Its fate is known."""
        sequences.in_flight.remove(batch)
        if not sequences.in_flight:
            # Of very many partitions most have nothing in flight: one list less for the collector.
            sequences.in_flight = _NOTHING

    def split(self, batch: SequencedBatch, children: Sequence[SequencedBatch], sequences: PartitionSequences) -> None:
        """Children take over the sequences of a batch that was too large for the broker."""
        if batch.base_sequence == _NO_SEQUENCE:
            return
        sequence = batch.base_sequence
        for child in children:
            child.set_sequence(batch.producer_id, batch.producer_epoch, sequence)
            sequence = (sequence + child.record_count) & _MASK
        place = sequences.in_flight.index(batch)
        sequences.in_flight[place : place + 1] = children

    def resolve(self, sequences: PartitionSequences) -> bool:
        """Resolve what can be resolved; call it whenever a request of the partition has ended or a batch was failed.

        Returns whether the partition may go on where it could not before.
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
            self._bump()
        if self.producer_id == NO_PRODUCER_ID:
            return False
        self._begin_epoch(sequences)
        for batch in in_flight:
            batch.set_sequence(sequences.producer_id, sequences.producer_epoch, sequences.next_sequence)
            sequences.next_sequence = (sequences.next_sequence + batch.record_count) & _MASK
        return True

    def fail(self, error: KafkaError) -> None:
        """No record can be sent any more, now or later; the first reason stays."""
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
    """Whether ``sequence`` comes before ``other``, both modulo 2**31 and less than half of that apart."""
    return (sequence - other) & _MASK > _MASK // 2
