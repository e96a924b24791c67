"""What becomes of a batch when its request has ended, or its time.

All decisions about retrying stand here, each by what the broker's answer says of the log: the batch is in it, it is
not, or nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from aioproducer.core.accumulator import RecordAccumulator
from aioproducer.core.batch import PENDING, ProducerBatch
from aioproducer.core.producer_state import ProducerState
from aioproducer.core.split import split_batch
from aioproducer.diagnosis import delivery_timed_out
from aioproducer.errors import (
    BrokerError,
    ClusterAuthorizationError,
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
    broker_error,
)
from aioproducer.texts import printable

NONE = 0
MESSAGE_TOO_LARGE = 10
DUPLICATE_SEQUENCE_NUMBER = 46

# The broker has lost the thread of the partition's sequences: the batch is not in the log.
_SEQUENCE_ERRORS = (OutOfOrderSequenceError, InvalidProducerEpochError)
# Nothing of this producer will ever be accepted.
_FATAL_ERRORS = (ClusterAuthorizationError, TransactionalIdAuthorizationError, UnsupportedVersionError)


class Fate(Enum):
    """What was decided for a batch."""

    ACKED = "acked"
    RETRIED = "retried"
    SPLIT = "split"
    FAILED = "failed"
    LATE = "late"
    """The batch had failed before the answer came; nothing changes for who sent it."""


class Verdict(NamedTuple):
    """The decision, and the error that led to it, if any."""

    fate: Fate
    error: KafkaError | None = None

    @property
    def refresh_metadata(self) -> bool:
        return self.error is not None and self.error.refresh_metadata


ACKED = Verdict(Fate.ACKED)
LATE = Verdict(Fate.LATE)


class Completion:
    """Ends batches: answers, disconnections and deadlines come in, verdicts go out.

    Args:
        retries: how many times a batch may be sent again.
    """

    def __init__(self, accumulator: RecordAccumulator, producer_state: ProducerState, *, retries: int) -> None:
        self._accumulator = accumulator
        self._producer_state = producer_state
        self._retries = retries

    def acked(self, batch: ProducerBatch, base_offset: int, log_append_time: int, now: float) -> Verdict:
        """The broker has the batch; ``base_offset`` -1 where it remembers no more, times -1 without LogAppendTime."""
        return self._succeed(batch, base_offset, log_append_time, now, True)

    def written(self, batch: ProducerBatch, now: float) -> Verdict:
        """With acks=0: the batch was handed over, and nobody will say more."""
        return self._succeed(batch, -1, -1, now, False)

    def _succeed(
        self, batch: ProducerBatch, base_offset: int, log_append_time: int, now: float, acknowledged: bool
    ) -> Verdict:
        self._accumulator.request_ended(batch)
        assert batch.queue is not None
        self._producer_state.acked(batch, batch.queue.sequences)
        was_pending = batch.succeed(base_offset, log_append_time, acknowledged)
        self._accumulator.completed(batch, now)
        return ACKED if was_pending else LATE

    def refused(
        self,
        batch: ProducerBatch,
        code: int,
        now: float,
        message: str | None = None,
        record_messages: Mapping[int, str | None] | None = None,
    ) -> Verdict:
        """The broker answered with an error code; ``record_messages`` names the records it blames (KIP-467)."""
        if code == DUPLICATE_SEQUENCE_NUMBER:
            return self.acked(batch, -1, -1, now)
        error = broker_error(code, message)
        if isinstance(error, _SEQUENCE_ERRORS) and _whole_may_be_stored(batch):
            told = "an earlier attempt, in a larger batch, may have written these records"
            error = broker_error(code, f"{told}; {message}" if message else told)
        if batch.outcome == PENDING:
            if code == MESSAGE_TOO_LARGE and batch.record_count > 1:
                return self._split(batch, error, now)
            if code == MESSAGE_TOO_LARGE:
                error = RecordTooLargeError(
                    f"the broker refuses a batch of one record of {batch.size()} bytes for {batch.topic_partition}: "
                    f"raise the topic's max.message.bytes (or the broker's message.max.bytes) above that, or send less"
                )
        record_errors = None
        if record_messages:
            # Of several it is not told which of them the code means (Kafka's Sender).
            alone = len(record_messages) == 1
            record_errors = {
                index: broker_error(code, text or message) if alone else _invalid_record(text or message)
                for index, text in record_messages.items()
            }
        return self._unsuccessful(batch, error, now, retriable=error.retriable, record_errors=record_errors)

    def disconnected(self, batch: ProducerBatch, error: KafkaError, now: float) -> Verdict:
        """The connection ended, or the answer made no sense: whether the batch was written is unknown."""
        return self._unsuccessful(batch, error, now, retriable=True)

    def unsendable(self, batch: ProducerBatch, error: KafkaError, now: float) -> Verdict:
        """The batch cannot be said to this broker, which did not hear of it."""
        return self._unsuccessful(batch, error, now, retriable=False)

    def _unsuccessful(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        now: float,
        *,
        retriable: bool,
        record_errors: Mapping[int, KafkaError] | None = None,
    ) -> Verdict:
        accumulator, state = self._accumulator, self._producer_state
        accumulator.request_ended(batch)
        assert batch.queue is not None
        sequences = batch.queue.sequences
        pending = batch.outcome == PENDING
        batch.last_error = error
        sequence_error = batch.base_sequence >= 0 and isinstance(error, _SEQUENCE_ERRORS)
        if isinstance(error, _FATAL_ERRORS) and state.idempotent:
            state.fail(error)
        if sequence_error:
            # Of a part that is there already the broker says what it says of one behind a gap.
            retriable = not _whole_may_be_stored(batch)
        if pending and state.fatal_error is None and retriable and self._can_retry(batch, now):
            if sequence_error:
                state.out_of_order(batch, sequences)
            # A leader that has moved meanwhile is not made to wait for what the old one said.
            node = batch.queue.node
            accumulator.reenqueue(batch, now, backoff=node is None or node.node_id == batch.sent_to)
            return Verdict(Fate.RETRIED, error)
        state.abandoned(batch, sequences)
        batch.fail(error, record_errors)
        accumulator.completed(batch, now)
        return Verdict(Fate.FAILED if pending else Fate.LATE, error)

    def _can_retry(self, batch: ProducerBatch, now: float) -> bool:
        if now >= batch.created_at + self._accumulator.settings.delivery_timeout:
            return False
        return batch.attempts <= self._retries

    def _split(self, batch: ProducerBatch, error: BrokerError, now: float) -> Verdict:
        self._accumulator.request_ended(batch)
        parts = split_batch(batch, self._accumulator.settings.batch_size)
        self._accumulator.split(batch, parts, now)
        return Verdict(Fate.SPLIT, error)

    def expire(
        self, now: float, most: int | None = None, throttling: Callable[[int], str] = lambda node_id: ""
    ) -> list[tuple[ProducerBatch, KafkaError]]:
        """Fail every batch whose ``delivery_timeout`` has passed, or ``most``, and return them with their errors.

        ``throttling`` is a sentence about a node that throttles this client, empty of one that does not.
        """
        expired: list[tuple[ProducerBatch, KafkaError]] = []
        for batch in self._accumulator.expired(now, most):
            node = None if batch.queue is None else batch.queue.node
            error = delivery_timed_out(
                batch.topic_partition,
                batch.record_count,
                (now - batch.created_at) * 1000,
                sent=batch.attempts > 0,
                gone=not self._accumulator.topics.has_partition(batch.topic_partition),
                throttling="" if node is None else throttling(node.node_id),
                last_error=batch.last_error,
            )
            self.fail(batch, error, now)
            expired.append((batch, error))
        return expired

    def fail(self, batch: ProducerBatch, error: KafkaError, now: float) -> None:
        """Fail a batch wherever it is; one that is on the wire stays there, and its answer changes nothing."""
        self._accumulator.withdraw(batch, now)
        assert batch.queue is not None
        self._producer_state.abandoned(batch, batch.queue.sequences)
        batch.fail(error)
        self._accumulator.completed(batch, now)

    def fail_all(self, error: KafkaError, now: float, most: int | None = None) -> list[ProducerBatch]:
        """Fail every batch without an outcome, or the oldest ``most`` as they were made, and return them."""
        batches = self._accumulator.all_incomplete(most)
        for batch in batches:
            self.fail(batch, error, now)
        return batches


def _invalid_record(message: str | None) -> InvalidRecordError:
    return InvalidRecordError(None if message is None else printable(message))


def _whole_may_be_stored(part: ProducerBatch) -> bool:
    """Whether the batch that this is a part of was sent before it was split, with an outcome that is not known."""
    whole = part.parent
    while whole is not None:
        if whole.attempts > 1:
            return True
        whole = whole.parent
    return False
