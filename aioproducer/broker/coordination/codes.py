"""The error codes that clients of a coordinator receive when the coordinator's own log fails."""

from __future__ import annotations

from typing import Final

from aioproducer.errors import (
    CoordinatorNotAvailableError,
    KafkaError,
    KafkaStorageError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)

_OF_APPENDING: Final = {
    UnknownTopicOrPartitionError.code: CoordinatorNotAvailableError.code,
    NotEnoughReplicasError.code: CoordinatorNotAvailableError.code,
    RequestTimedOutError.code: CoordinatorNotAvailableError.code,
    NotLeaderOrFollowerError.code: NotCoordinatorError.code,
    KafkaStorageError.code: NotCoordinatorError.code,
    RecordTooLargeError.code: UnknownServerError.code,
    RecordBatchTooLargeError.code: UnknownServerError.code,
}


def code_of(error: KafkaError) -> int:
    """Return the error code of an error that a partition raised."""
    return int(getattr(error, "code", UnknownServerError.code))


def coordinator_code(code: int) -> int:
    """Return the code that a client receives when the coordinator's own write failed with ``code``.

    Clients handle a coordinator's errors, but not those of a log that they did not write to (Kafka's
    ``CoordinatorOperationExceptionHelper``, and ``TransactionStateManager.appendTransactionToLog``).
    """
    return _OF_APPENDING.get(code, code)
