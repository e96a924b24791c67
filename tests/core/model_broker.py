"""A model of Kafka's brokers for an idempotent producer: logs, producer state, leaders, connections."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from aioproducer.wire.record_batch import RecordBatch, increment_sequence

MESSAGE_TOO_LARGE = 10
NOT_LEADER_OR_FOLLOWER = 6
OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47

# Errors returned although the batch was written.
REQUEST_TIMED_OUT = 7
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
WRITTEN_ALL_THE_SAME = {REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND}

BATCHES_REMEMBERED = 5


@dataclass
class ProducerEntry:
    """A partition's state of a producer id (Kafka's ``ProducerStateEntry``)."""

    epoch: int
    # (first sequence, last sequence, first offset) of the last five batches
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))


@dataclass(frozen=True)
class Answer:
    code: int
    base_offset: int = -1


class ModelPartition:
    """A replicated log; every leader has all of it."""

    def __init__(self, leader: int, max_batch_size: int) -> None:
        self.leader = leader
        self.max_batch_size = max_batch_size
        self.log: list[bytes] = []
        self.producers: dict[int, ProducerEntry] = {}
        # Responses to the next batches that do not come from the log.
        self.injected: deque[int] = deque()

    def produce(self, node: int, data: bytes) -> Answer:
        """Apply the rules of ``UnifiedLog.append`` and ``ProducerAppendInfo``, in their order."""
        if node != self.leader:
            return Answer(NOT_LEADER_OR_FOLLOWER)
        injected = self.injected.popleft() if self.injected else 0
        if injected and injected not in WRITTEN_ALL_THE_SAME:
            return Answer(injected)
        batch = RecordBatch(data)
        batch.validate()
        if batch.size_in_bytes > self.max_batch_size:
            return Answer(MESSAGE_TOO_LARGE)
        answer = self._append(batch)
        if answer.code == 0 and injected:
            return Answer(injected)
        return answer

    def _append(self, batch: RecordBatch) -> Answer:
        first, last, epoch = batch.base_sequence, batch.last_sequence, batch.producer_epoch
        entry = self.producers.get(batch.producer_id)
        if entry is not None:
            if epoch == entry.epoch:
                for known_first, known_last, offset in entry.batches:
                    if (known_first, known_last) == (first, last):
                        return Answer(0, offset)
            if epoch < entry.epoch:
                return Answer(INVALID_PRODUCER_EPOCH)
            if epoch > entry.epoch:
                if first != 0:
                    return Answer(OUT_OF_ORDER_SEQUENCE)
            elif first != increment_sequence(entry.batches[-1][1], 1):
                return Answer(OUT_OF_ORDER_SEQUENCE)
        if entry is None or epoch > entry.epoch:
            entry = self.producers[batch.producer_id] = ProducerEntry(epoch)
        offset = len(self.log)
        values = [record.value for record in batch.records()]
        assert all(value is not None for value in values)
        self.log += values
        entry.batches.append((first, last, offset))
        return Answer(0, offset)
