"""Compiled. The outcome of a batch when its request has ended or its ``delivery_timeout`` has passed.

This module makes all decisions about retries. Each depends on what a response implies about the log: it contains the
batch, it does not, or that is unknown.

An unknown state remains unknown: after an attempt with an unknown outcome, an error for a later attempt does not imply
that the log lacks the batch. Brokers check leaders, replicas, sizes and timestamps before sequences. A broker that
finds a sequence out of order does not have the batch. But the earlier attempt may still reach it, from the connection
that ended. Idempotence resolves such a batch only by success: a duplicate is acknowledged.
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
from aioproducer.error_codes import DUPLICATE_SEQUENCE_NUMBER, MESSAGE_TOO_LARGE, REFUSED_BEFORE_APPEND
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

# An error's text lists at most this many of the records that the broker blames.
MAX_SHOWN = 3

# The broker's sequences of the partition do not continue with the batch: the batch is not in the log.
_SEQUENCE_ERRORS = (OutOfOrderSequenceError, InvalidProducerEpochError)
# The broker will never accept a batch of this producer.
_FATAL_ERRORS = (ClusterAuthorizationError, TransactionalIdAuthorizationError, UnsupportedVersionError)


class Fate(Enum):
    """The decision about a batch."""

    ACKED = "acked"
    RETRIED = "retried"
    SPLIT = "split"
    FAILED = "failed"
    LATE = "late"
    """The batch had failed before the response arrived; nothing changes for the sender of the records."""


class Verdict(NamedTuple):
    """The decision, and the error that led to it, if any."""

    fate: Fate
    error: KafkaError | None = None

    @property
    def refresh_metadata(self) -> bool:
        return self.error is not None and self.error.refresh_metadata


class Rejection(NamedTuple):
    """A broker's error that blames some records of a batch (KIP-467)."""

    blamed: Mapping[int, KafkaError]
    """The errors of the blamed records, by their index in the batch."""
    others: BatchRejectedError
    """The error of all other records."""


ACKED = Verdict(Fate.ACKED)
LATE = Verdict(Fate.LATE)


class Completion:
    """Ends batches: responses, disconnections and deadlines lead to verdicts.

    Args:
        retries: the number of times that a batch may be sent again.
        keep_failed: a failed batch has one more of its ``readers``, which keeps its memory: the caller reads its
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
        """Complete a batch that is in the broker's log.

        ``base_offset`` is -1 if the broker no longer remembers it, ``log_append_time`` is -1 without LogAppendTime.
        """
        return self._succeed(batch, base_offset, log_append_time, now, True)

    def written(self, batch: ProducerBatch, now: float) -> Verdict:
        """Complete a batch that was written with acks=0: there will be no response."""
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
        """Decide about a batch that the broker answered with an error code.

        Args:
            record_messages: the records that the broker blames, and its messages about them (KIP-467).
            base_offset: the offset of a batch that was appended before the error. A leader that loses its leadership
                while it waits for replicas returns it (Kafka's DelayedProduce).
        """
        if code == DUPLICATE_SEQUENCE_NUMBER:
            return self.acked(batch, -1, -1, now)
        if base_offset >= 0 or code not in REFUSED_BEFORE_APPEND:
            batch.has_unknown_attempt = True
        error = broker_error(code, message)
        if isinstance(error, _SEQUENCE_ERRORS) and _whole_may_be_stored(batch):
            warning = "an earlier attempt, in a larger batch, may have written these records"
            error = broker_error(code, f"{warning}; {message}" if message else warning)
        if batch.state < SUCCEEDED:
            if code == MESSAGE_TOO_LARGE and batch.record_count > 1:
                return self._split(batch, error, now)
            if code == MESSAGE_TOO_LARGE:
                error = RecordTooLargeError(
                    f"The broker refuses a batch of {batch.size()} bytes with one record for {batch.topic_partition}: "
                    "raise the topic's max.message.bytes (or the broker's message.max.bytes) above that size, or send "
                    "a smaller record."
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
        """Decide about a batch after the end of its connection or a malformed response.

        It is unknown whether the broker has written the batch.
        """
        batch.has_unknown_attempt = True
        return self._unsuccessful(batch, error, now, retriable=True)

    def unsendable(self, batch: ProducerBatch, error: KafkaError, now: float) -> Verdict:
        """Fail a batch that cannot be encoded for this broker, and was not sent to it."""
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
            # The broker returns the same error for a part that it has already as for a batch after a gap.
            retriable = not _whole_may_be_stored(batch)
            if state.transactions is not None and state.is_first_in_flight(batch, sequences):
                # Only the coordinator gives a new epoch: the transaction fails.
                retriable = False
        if pending and state.fatal_error is None and retriable and self._can_retry(batch, now):
            if sequence_error:
                state.out_of_order(batch, sequences)
            # If the leader has moved meanwhile, the new one need not wait because of the error of the old one.
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
        self, now: float, limit: int | None = None, throttling: Callable[[int], str] = lambda node_id: ""
    ) -> list[tuple[ProducerBatch, KafkaError]]:
        """Fail the batches that have exceeded ``delivery_timeout``, at most ``limit``; return them with their errors.

        ``throttling`` returns a sentence about a node that throttles this client, and an empty text about other nodes.
        """
        expired: list[tuple[ProducerBatch, KafkaError]] = []
        for batch in self._accumulator.expired(now, limit):
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
        """Fail a batch, wherever it is. A batch on the wire stays there, and its response changes nothing."""
        self._accumulator.withdraw(batch, now)
        assert batch.queue is not None
        self._producer_state.abandoned(batch, batch.queue.sequences)
        if self._keep_failed:
            batch.readers += 1
        batch.fail(error.of_record(may_have_been_written=batch.has_unknown_attempt or batch.on_wire))
        self._accumulator.completed(batch, now)

    def fail_all(self, error: KafkaError, now: float, limit: int | None = None) -> list[ProducerBatch]:
        """Fail every batch without an outcome, or the oldest ``limit`` in order of creation, and return them."""
        batches = self._accumulator.incomplete.unfinished(limit)
        for batch in batches:
            self.fail(batch, error, now)
        return batches


def _rejection(
    batch: ProducerBatch, error: BrokerError, message: str | None, record_messages: Mapping[int, str | None] | None
) -> Rejection | None:
    """Return the errors of the records if the broker blames some of them, as Kafka's ``Sender.failBatch`` does."""
    named = (record_messages or {}).items()
    texts = {
        index: printable(text or message or "") or None for index, text in named if 0 <= index < batch.record_count
    }
    if not texts:
        return None
    # If several are blamed, the response does not show which of them the code belongs to.
    alone = len(texts) == 1
    blamed: dict[int, KafkaError] = {
        index: broker_error(error.code, text) if alone else InvalidRecordError(text) for index, text in texts.items()
    }
    culprits = [(index, texts[index] or str(error)) for index in sorted(texts)]
    shown = "; ".join([f"record {index} of the batch: {text}" for index, text in culprits[:MAX_SHOWN]])
    more = f"; and {len(culprits) - MAX_SHOWN} more" if len(culprits) > MAX_SHOWN else ""
    others = BatchRejectedError(
        f"The broker rejected the batch because of other records in it; this record may be sent again. ({shown}{more})",
        culprits,
    )
    others.__cause__ = error
    return Rejection(blamed, others)


def _whole_may_be_stored(part: ProducerBatch) -> bool:
    """Return whether the batch that this is a part of has an attempt with an unknown outcome from before its split."""
    whole = part.parent
    return whole is not None and whole.has_unknown_attempt
