"""One transactional id as a state machine: it decides how a request changes the id, and never waits.

Each call returns either the state to write, which is pending then, or the code of the response. The caller writes the
state and calls ``apply`` when it is replicated, or ``drop`` when it cannot be written. Until then every other change is
refused with CONCURRENT_TRANSACTIONS. ``metadata`` is therefore always that of the last replicated record.

The rules are those of Kafka's ``TransactionCoordinator`` and ``TransactionMetadata``, with one exception. Kafka gives
up a pending transition when its write takes too long, although the record may be replicated later; here it stays
pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import (
    EPOCH_FOR_EACH_TRANSACTION,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PREVIOUS_STATES,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)

Decision: TypeAlias = TransactionMetadata | Code
"""The state to write, or the code of the response if nothing is written."""

AllocateProducerId: TypeAlias = Callable[[], int]

NO_TIMEOUT: Final = 2**31 - 1
"""The timeout of a transaction that an external coordinator ends (KIP-939)."""


class IllegalTransitionError(Exception):
    """A transition that ``states`` does not allow: a defect of this module or its caller."""


class Transaction:
    """One transactional id, and its possible changes."""

    __slots__ = ("is_logged", "metadata", "pending", "transactional_id", "unmarked")

    def __init__(self, transactional_id: str, metadata: TransactionMetadata, *, is_logged: bool) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata
        self.is_logged = is_logged
        """Whether any record of this id has been replicated."""
        self.pending: TransactionMetadata | None = None
        """The state that is being written, or will be when all markers are."""
        self.unmarked: set[TopicPartition] = set(metadata.partitions) if metadata.state.is_ending else set()
        """The partitions without a marker, while the transaction ends."""

    def __repr__(self) -> str:
        pending = "" if self.pending is None else f" -> {self.pending.state.label}"
        producer = self.metadata.producer
        return (
            f"Transaction({self.transactional_id!r}, {self.metadata.state.label}{pending}, "
            f"producer {producer.producer_id}, epoch {producer.epoch})"
        )

    @classmethod
    def new(cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """Create an id without a record, for InitProducerId."""
        metadata = TransactionMetadata(producer_id, NO_EPOCH, timeout_ms, TransactionState.EMPTY, last_update_ms=now_ms)
        return cls(transactional_id, metadata, is_logged=False)

    # Transitions

    def _begin(self, **changes: object) -> TransactionMetadata:
        current = self.metadata
        new = replace(current, **{"previous_producer_id": current.producer_id, **changes})  # type: ignore[arg-type]  # the fields by name
        entered_from = current.state
        if self.pending is not None:
            if self.pending.state is not TransactionState.PREPARE_EPOCH_FENCE:
                raise IllegalTransitionError(f"{self!r} cannot begin {new.state.label}")
            entered_from = TransactionState.PREPARE_EPOCH_FENCE
        if entered_from not in PREVIOUS_STATES[new.state] or new.producer_id < 0:
            raise IllegalTransitionError(f"{self!r} cannot become {new}")
        if new.state is not TransactionState.DEAD and not 0 <= new.producer_epoch <= MAX_EPOCH:
            raise IllegalTransitionError(f"{self!r} cannot have the epoch {new.producer_epoch}")
        self.pending = new
        return new

    def apply(self, new: TransactionMetadata) -> None:
        """Apply the pending state ``new``, which was replicated."""
        unwritten = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
        if new is not self.pending or new.state in unwritten:
            raise IllegalTransitionError(f"{self!r} has not begun {new}")
        self.metadata = new
        self.pending = None
        self.is_logged = True
        self.unmarked = set(new.partitions) if new.state.is_ending else set()

    def drop(self) -> None:
        """Drop the pending state, which cannot be written."""
        self.pending = None

    @property
    def is_fencing(self) -> bool:
        """Whether the coordinator has begun to fence the producer, and is about to abort its transaction."""
        return self.pending is not None and self.pending.state is TransactionState.PREPARE_EPOCH_FENCE

    @property
    def is_busy(self) -> bool:
        """Whether a transition is pending that no request may interrupt."""
        return self.pending is not None and not self.is_fencing

    # InitProducerId

    def initialize(
        self, timeout_ms: int, expected: ProducerIdAndEpoch | None, allocate: AllocateProducerId, now_ms: int
    ) -> Decision:
        """Begin a new epoch or a new producer id, for a producer that starts or (``expected``) continues (KIP-360).

        An ongoing transaction is fenced first; the caller then aborts it.
        """
        current = self.metadata
        if self.pending is not None:
            return Code.CONCURRENT_TRANSACTIONS
        if expected is not None and not self._may_go_on(expected):
            return Code.PRODUCER_FENCED
        if current.state.is_ending:
            return Code.CONCURRENT_TRANSACTIONS
        if current.state is TransactionState.ONGOING:
            return self.fence()
        if current.is_epoch_exhausted and (expected is None or expected.epoch == current.producer_epoch):
            return self._begin(
                state=TransactionState.EMPTY,
                producer_id=allocate(),
                producer_epoch=0,
                last_producer_epoch=NO_EPOCH if expected is None else current.producer_epoch,
                **_without_transaction(timeout_ms, now_ms),
            )
        return self._next_epoch(timeout_ms, expected, now_ms)

    def _may_go_on(self, expected: ProducerIdAndEpoch) -> bool:
        """Whether a producer of this id may continue; its epoch is checked when the next one is chosen.

        A new id has no epoch: its producer recovers from the expiry of the old one. A producer with the previous,
        exhausted id may repeat a request after its response was lost.
        """
        current = self.metadata
        return (
            current.producer_epoch == NO_EPOCH
            or expected.producer_id == current.producer_id
            or (expected.producer_id == current.previous_producer_id and expected.is_exhausted)
        )

    def _next_epoch(self, timeout_ms: int, expected: ProducerIdAndEpoch | None, now_ms: int) -> Decision:
        current = self.metadata
        epoch = current.producer_epoch
        if current.is_epoch_exhausted:
            # Kafka fails with this code too.
            return Code.UNKNOWN_SERVER_ERROR
        if expected is None:
            epochs = epoch + 1, NO_EPOCH
        elif epoch in (NO_EPOCH, expected.epoch):
            epochs = epoch + 1, epoch
        elif expected.epoch == current.last_producer_epoch:
            # A repeated request: a new producer would have reset the last epoch.
            epochs = epoch, current.last_producer_epoch
        else:
            return Code.PRODUCER_FENCED
        return self._begin(
            state=TransactionState.EMPTY,
            producer_epoch=epochs[0],
            last_producer_epoch=epochs[1],
            **_without_transaction(timeout_ms, now_ms),
        )

    def fence(self) -> TransactionMetadata:
        """Begin to fence the producer of the ongoing transaction; the coordinator's abort follows."""
        epoch = min(self.metadata.producer_epoch + 1, MAX_EPOCH)
        return self._begin(state=TransactionState.PREPARE_EPOCH_FENCE, producer_epoch=epoch)

    # Partitions

    def add_partitions(
        self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition], now_ms: int, client_version: int
    ) -> Decision:
        """Begin a transaction with these partitions, or add them to the ongoing one."""
        current = self.metadata
        added = frozenset(partitions)
        if self.pending is not None:
            # Checked first: over a rollover the producer may have the new id already, which is only pending here.
            return Code.CONCURRENT_TRANSACTIONS
        refused = self._refuse(producer)
        if refused:
            return refused
        is_ongoing = current.state is TransactionState.ONGOING
        if is_ongoing and added <= current.partitions:
            return Code.NONE
        return self._begin(
            state=TransactionState.ONGOING,
            partitions=current.partitions | added if is_ongoing else added,
            start_ms=current.start_ms if is_ongoing else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def verify(
        self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Code] | Code:
        """Check whether each partition is in the transaction. Pending changes do not matter: the log checks again."""
        refused = self._refuse(producer)
        if refused:
            return refused
        known = self.metadata.partitions
        return {partition: Code.NONE if partition in known else Code.TRANSACTION_ABORTABLE for partition in partitions}

    def _refuse(self, producer: ProducerIdAndEpoch) -> Code:
        current = self.metadata
        if current.producer_id != producer.producer_id:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if current.producer_epoch != producer.epoch:
            return Code.PRODUCER_FENCED
        return Code.CONCURRENT_TRANSACTIONS if current.state.is_ending else Code.NONE

    # The end; ``ending`` decides whether it is allowed

    def prepare_end(
        self, *, commit: bool, client_version: int, allocate: AllocateProducerId, now_ms: int, is_empty: bool = False
    ) -> TransactionMetadata:
        """Begin the end of the transaction; ``is_empty``: an abort without a transaction, which is logged as well."""
        current = self.metadata
        epoch, last_epoch, next_id = current.producer_epoch, current.last_producer_epoch, NO_PRODUCER_ID
        if client_version >= EPOCH_FOR_EACH_TRANSACTION:
            if current.is_epoch_exhausted:
                next_id = allocate()
            # The greatest epoch means that something went wrong before, so an abort is allowed (KAFKA-20090).
            epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
        elif self.pending is not None and self.is_fencing:
            epoch, last_epoch = self.pending.producer_epoch, NO_EPOCH
        return self._begin(
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_id,
            start_ms=now_ms if is_empty else current.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare_complete(self, now_ms: int) -> TransactionMetadata:
        """Begin the last transition, which is written when all partitions have their marker."""
        current = self.metadata
        is_commit = current.state is TransactionState.PREPARE_COMMIT
        producer = current.producer_afterwards
        return self._begin(
            state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    # Time

    def has_timed_out(self, now_ms: int) -> bool:
        """Whether the coordinator should abort the transaction."""
        current = self.metadata
        return (
            self.pending is None
            and current.state is TransactionState.ONGOING
            and current.timeout_ms != NO_TIMEOUT
            and current.start_ms + current.timeout_ms < now_ms
        )

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id should be deleted."""
        current = self.metadata
        return (
            self.pending is None
            and current.state.has_no_transaction
            and current.last_update_ms <= now_ms - expiration_ms
        )

    def expire(self) -> TransactionMetadata:
        """Begin the deletion of the id; when the tombstone is replicated, there is nothing left to apply."""
        return self._begin(state=TransactionState.DEAD, partitions=frozenset())


def _without_transaction(timeout_ms: int, now_ms: int) -> dict[str, object]:
    return {
        "timeout_ms": timeout_ms,
        "partitions": frozenset(),
        "start_ms": NO_TIMESTAMP,
        "last_update_ms": now_ms,
    }
