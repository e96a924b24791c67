"""The states of a transactional id, the possible transitions between them, and the fields stored for an id."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

TopicPartition: TypeAlias = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
MAX_EPOCH: Final = 2**15 - 1
"""An epoch that no client ever has: with it the coordinator can fence a client that has the highest epoch."""
LAST_CLIENT_EPOCH: Final = MAX_EPOCH - 1
"""At this epoch a producer id is exhausted, and the next transaction needs another one."""
EPOCH_FOR_EACH_TRANSACTION: Final = 2
"""The level of ``transaction.version`` from which on each end of a transaction raises the epoch (KIP-890)."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer, as a request identifies it."""

    producer_id: int
    epoch: int

    @property
    def is_exhausted(self) -> bool:
        """Whether no client may have a later epoch of this id."""
        return self.epoch >= LAST_CLIENT_EPOCH


class TransactionState(IntEnum):
    """The states of a transactional id, by their numbers in ``__transaction_state``."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """The id has expired, and its tombstone is being written."""
    PREPARE_EPOCH_FENCE = 7
    """The coordinator fences the producer; an abort follows at once, so this is only ever a pending state."""

    @property
    def label(self) -> str:
        """The state's name in responses (``CompleteCommit``)."""
        return self.name.title().replace("_", "")

    @property
    def is_ending(self) -> bool:
        """Whether the outcome is in the log and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def has_no_transaction(self) -> bool:
        """Whether there is no transaction, so that the id may expire."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


_NO_TRANSACTION: Final = frozenset(state for state in TransactionState if state.has_no_transaction)

PREVIOUS_STATES: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _NO_TRANSACTION,
    TransactionState.ONGOING: _NO_TRANSACTION | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset((TransactionState.ONGOING,)),
    # A client that lost track of its transaction may abort without one (KIP-890).
    TransactionState.PREPARE_ABORT: _NO_TRANSACTION | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset((TransactionState.PREPARE_COMMIT,)),
    TransactionState.COMPLETE_ABORT: frozenset((TransactionState.PREPARE_ABORT,)),
    TransactionState.DEAD: _NO_TRANSACTION,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset((TransactionState.ONGOING,)),
}
"""The states from which each state can be entered."""

STATES_BY_LABEL: Final = {state.label: state for state in TransactionState}


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The stored fields of a transactional id; times in milliseconds."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    """The partitions of the transaction."""
    start_ms: int = NO_TIMESTAMP
    last_update_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last transition, usually the same one."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after the end of the transaction, if the current one is exhausted."""
    last_producer_epoch: int = NO_EPOCH
    """The producer's previous epoch; not in the log."""
    client_version: int = 0
    """The ``transaction.version`` that the client uses."""

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The current producer."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether no client may have a later epoch of this producer id."""
        return self.producer.is_exhausted

    @property
    def producer_afterwards(self) -> ProducerIdAndEpoch:
        """The producer after the end of the transaction."""
        if self.client_version >= EPOCH_FOR_EACH_TRANSACTION and self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.producer
