"""The states of a transactional producer, and the transitions that are possible (Kafka's ``TransactionManager``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class TransactionState(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "uninitialized"
    """It has no producer id yet."""
    INITIALIZING = "initializing"
    """It requests a producer id, or the next epoch of its own."""
    READY = "ready"
    """No transaction is in progress."""
    IN_TRANSACTION = "in a transaction"
    """Records that are sent belong to the transaction."""
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "failed: abort the transaction"
    """A record or a request of the transaction failed. Only an abort is possible."""
    FATAL_ERROR = "failed: close the producer"
    """The final state."""


UNINITIALIZED = TransactionState.UNINITIALIZED
INITIALIZING = TransactionState.INITIALIZING
READY = TransactionState.READY
IN_TRANSACTION = TransactionState.IN_TRANSACTION
COMMITTING = TransactionState.COMMITTING
ABORTING = TransactionState.ABORTING
ABORTABLE_ERROR = TransactionState.ABORTABLE_ERROR
FATAL_ERROR = TransactionState.FATAL_ERROR

NEXT_STATES: Mapping[TransactionState, frozenset[TransactionState]] = {
    # READY if the producer continues with the producer id and epoch of another one.
    UNINITIALIZED: frozenset({INITIALIZING, READY, FATAL_ERROR}),
    # Back to UNINITIALIZED if the cluster rejects the client: with other permissions the next attempt may succeed.
    INITIALIZING: frozenset({READY, UNINITIALIZED, ABORTABLE_ERROR, FATAL_ERROR}),
    # INITIALIZING if the next epoch is requested between two transactions.
    READY: frozenset({IN_TRANSACTION, INITIALIZING, FATAL_ERROR}),
    # UNINITIALIZED if the transaction is left open, to be ended by another client.
    IN_TRANSACTION: frozenset({COMMITTING, ABORTING, ABORTABLE_ERROR, UNINITIALIZED, FATAL_ERROR}),
    # INITIALIZING if the end of the transaction is followed by a request for the next epoch.
    COMMITTING: frozenset({READY, INITIALIZING, ABORTABLE_ERROR, FATAL_ERROR}),
    ABORTING: frozenset({READY, INITIALIZING, FATAL_ERROR}),
    ABORTABLE_ERROR: frozenset({ABORTING, FATAL_ERROR}),
    FATAL_ERROR: frozenset(),
}
"""The states that may follow each state."""
