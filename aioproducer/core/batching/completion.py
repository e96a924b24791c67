"""What becomes of a batch when its request has ended, or its time.

All decisions about retrying stand here, each by what the broker's answer says of the log: the batch is in it, it is
not, or that is unknown.

The last stays: once the outcome of an attempt is unknown, no refusal of a later one tells that the batch is not in the
log. Brokers check leaders, replicas, sizes and timestamps before sequences. A broker that finds a sequence out of order
does not have the batch, but the earlier attempt may still reach it, from the connection that ended. What idempotence
resolves, it resolves by success: a duplicate is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from aioproducer._common.diagnosis import delivery_timed_out
from aioproducer._common.texts import printable
from aioproducer.core.batching.accumulator import RecordAccumulator
from aioproducer.core.batching.batch import SUCCEEDED, ProducerBatch
from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.error_codes import REFUSED_BEFORE_APPEND
from aioproducer.errors import (
    BatchRejectedError,
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

NONE = 0
MESSAGE_TOO_LARGE = 10
DUPLICATE_SEQUENCE_NUMBER = 46

# So many of the records that a broker blames are named in an error's text.
MOST_SHOWN = 3

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
    """The batch had failed before the answer came; nothing changes for the sender of the records."""


class Verdict(NamedTuple):
    """The decision, and the error that led to it, if any."""

    fate: Fate
    error: KafkaError | None = None

    @property
    def refresh_metadata(self) -> bool:
        return self.error is not None and self.error.refresh_metadata


class Rejection(NamedTuple):
    """A refusal that blames some records of a batch (KIP-467)."""

    blamed: Mapping[int, KafkaError]
    """The errors of these records, by their place in the batch."""
    others: BatchRejectedError
    """The error of all others."""


ACKED = Verdict(Fate.ACKED)
LATE = Verdict(Fate.LATE)


class Completion:
    """Ends batches: answers, disconnections and deadlines come in, verdicts go out.

    Args:
        retries: how many times a batch may be sent again.
        keep_failed: a batch that fails has one more of its ``readers``, which keeps its memory: the caller reads its
            records, and releases it.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        producer_state: ProducerState,
        *,
        retries: int,
        keep_failed: bool = False,
    ) -> None:
        self._accumulator = accumulator
        self._producer_state = producer_state
        self._retries = retries
        self._keep_failed = keep_failed

    def acked(self, batch: ProducerBatch, base_offset: int, log_append_time: int, now: float) -> Verdict:
        """The broker has the batch; ``base_offset`` -1 where it remembers no more, times -1 without LogAppendTime."""
        return self._succeed(batch, base_offset, log_append_time, now, True)

    def written(self, batch: ProducerBatch, now: float) -> Verdict:
        """With acks=0: the batch was written, and there will be no response."""
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
        base_offset: int = -1,
    ) -> Verdict:
        """The broker answered with an error code; ``record_messages`` names the records it blames (KIP-467).

        ``base_offset`` is that of a batch which was appended before the error came: a leader that loses its leadership
        while it waits for replicas gives it (Kafka's DelayedProduce).
        """
        if code == DUPLICATE_SEQUENCE_NUMBER:
            return self.acked(batch, -1, -1, now)
        if base_offset >= 0 or code not in REFUSED_BEFORE_APPEND:
            batch.has_unknown_attempt = True
        error = broker_error(code, message)
        if isinstance(error, _SEQUENCE_ERRORS) and _whole_may_be_stored(batch):
            told = "an earlier attempt, in a larger batch, may have written these records"
            error = broker_error(code, f"{told}; {message}" if message else told)
        if batch.state < SUCCEEDED:
            if code == MESSAGE_TOO_LARGE and batch.record_count > 1:
                return self._split(batch, error, now)
            if code == MESSAGE_TOO_LARGE:
                error = RecordTooLargeError(
                    f"the broker refuses a batch of one record of {batch.size()} bytes for {batch.topic_partition}: "
                    f"raise the topic's max.message.bytes (or the broker's message.max.bytes) above that, or send less"
                )
        if batch.record_count == 1:
            text = (record_messages or {}).get(0)
            if text:
                error = broker_error(code, text)
            record_messages = None
        return self._unsuccessful(
            batch, error, now, retriable=error.retriable, rejection=_rejection(batch, error, message, record_messages)
        )

    def disconnected(self, batch: ProducerBatch, error: KafkaError, now: float) -> Verdict:
        """The connection ended, or the answer made no sense: whether the batch was written is unknown."""
        batch.has_unknown_attempt = True
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
        rejection: Rejection | None = None,
    ) -> Verdict:
        accumulator, state = self._accumulator, self._producer_state
        accumulator.request_ended(batch)
        assert batch.queue is not None
        sequences = batch.queue.sequences
        pending = batch.state < SUCCEEDED
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
        if pending and self._keep_failed:
            batch.readers += 1
        unknown = batch.has_unknown_attempt
        error = error.of_record(may_have_been_written=unknown)
        if rejection is None:
            batch.fail(error)
        else:
            blamed = {index: each.of_record(may_have_been_written=unknown) for index, each in rejection.blamed.items()}
            batch.fail(rejection.others.of_record(may_have_been_written=unknown), blamed)
        accumulator.completed(batch, now)
        return Verdict(Fate.FAILED if pending else Fate.LATE, error)

    def _can_retry(self, batch: ProducerBatch, now: float) -> bool:
        if now >= batch.created_at + self._accumulator.settings.delivery_timeout:
            return False
        return batch.attempts <= self._retries

    def _split(self, batch: ProducerBatch, error: BrokerError, now: float) -> Verdict:
        from aioproducer.core.batching.split import split_batch

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
                may_have_been_written=batch.has_unknown_attempt or batch.on_wire,
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
        if self._keep_failed:
            batch.readers += 1
        batch.fail(error.of_record(may_have_been_written=batch.has_unknown_attempt or batch.on_wire))
        self._accumulator.completed(batch, now)

    def fail_all(self, error: KafkaError, now: float, most: int | None = None) -> list[ProducerBatch]:
        """Fail every batch without an outcome, or the oldest ``most`` as they were made, and return them."""
        batches = self._accumulator.incomplete.unfinished(most)
        for batch in batches:
            self.fail(batch, error, now)
        return batches


def _rejection(
    batch: ProducerBatch, error: BrokerError, message: str | None, record_messages: Mapping[int, str | None] | None
) -> Rejection | None:
    """What the records fail with, where the broker blames some of them; as in Kafka's ``Sender.failBatch``."""
    named = (record_messages or {}).items()
    texts = {
        index: printable(text or message or "") or None for index, text in named if 0 <= index < batch.record_count
    }
    if not texts:
        return None
    # Of several it is not told which of them the code means.
    alone = len(texts) == 1
    blamed: dict[int, KafkaError] = {
        index: broker_error(error.code, text) if alone else InvalidRecordError(text) for index, text in texts.items()
    }
    culprits = [(index, texts[index] or str(error)) for index in sorted(texts)]
    shown = "; ".join([f"record {index} of the batch: {text}" for index, text in culprits[:MOST_SHOWN]])
    more = f"; and {len(culprits) - MOST_SHOWN} more" if len(culprits) > MOST_SHOWN else ""
    others = BatchRejectedError(
        f"The broker rejected the batch because of other records in it; this one may be sent again. ({shown}{more})",
        culprits,
    )
    others.__cause__ = error
    return Rejection(blamed, others)


def _whole_may_be_stored(part: ProducerBatch) -> bool:
    """Whether the batch that this is a part of was sent before it was split, with an outcome that is not known."""
    whole = part.parent
    return whole is not None and whole.has_unknown_attempt
