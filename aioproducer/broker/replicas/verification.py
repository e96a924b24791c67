"""Verification of a transaction by its coordinator, before its first batch in a partition (KIP-890, part 1).

A caller that writes transactional batches calls ``verify`` first, and passes the guards to ``ReplicaManager.append``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aioproducer.error_codes import CODES
from aioproducer.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    NetworkError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownServerError,
    broker_error,
)

if TYPE_CHECKING:
    from aioproducer.broker.log import VerificationGuard
    from aioproducer.broker.replicas.host import PartitionKey
    from aioproducer.broker.replicas.replica_manager import ReplicaManager

# Older clients retry after NOT_ENOUGH_REPLICAS, but some of them not after these.
_RETRIABLE = frozenset(
    {
        NetworkError.code,
        CoordinatorLoadInProgressError.code,
        CoordinatorNotAvailableError.code,
        NotCoordinatorError.code,
    }
)


class TransactionVerifier(Protocol):
    """The coordinators of transactions, on this and other nodes."""

    async def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[PartitionKey],
        *,
        verify_only: bool,
    ) -> dict[PartitionKey, int]:
        """Verify that the partitions belong to the open transaction, or add them to it.

        Returns an error code, or 0, for each of ``partitions``.
        """


class Support(Enum):
    """The verification that the version of a client's request supports (``TransactionSupportedOperation``)."""

    VERIFY = "verify"
    VERIFY_ABORTABLE = "verify, and abort on TRANSACTION_ABORTABLE"
    ADD = "have partitions added to the transaction by its first batch"


class Verified(NamedTuple):
    """The outcome for each partition. A partition in neither has an open transaction already, or needs no guard."""

    guards: dict[PartitionKey, VerificationGuard]
    errors: dict[PartitionKey, KafkaError]


async def verify(
    replicas: ReplicaManager,
    verifier: TransactionVerifier,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    sequences: Mapping[PartitionKey, int],
    support: Support,
) -> Verified:
    """Verify a transaction in each partition in which the producer has none open.

    While the previous transaction is ending, and the client cannot wait for it, verification is retried for a while.

    Args:
        sequences: the sequence number of the next batch by partition; -1 for a batch without one.
    """
    config = replicas.broker.config
    if support is not Support.ADD and not config.transaction_partition_verification_enable:
        return Verified({}, {})
    ends = replicas.now() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
    while True:
        guards, codes = _begin(replicas, producer_id, producer_epoch, sequences, support)
        if guards:
            codes |= await verifier.add_or_verify(
                transactional_id, producer_id, producer_epoch, tuple(guards), verify_only=support is not Support.ADD
            )
        if (
            support is not Support.ADD
            or ConcurrentTransactionsError.code not in codes.values()
            or replicas.now() >= ends
        ):
            break
        await asyncio.sleep(config.add_partitions_to_txn_retry_backoff_ms / 1000)
    errors = {key: _error(code, support) for key, code in codes.items() if code}
    return Verified(guards, errors)


def _begin(
    replicas: ReplicaManager,
    producer_id: int,
    producer_epoch: int,
    sequences: Mapping[PartitionKey, int],
    support: Support,
) -> tuple[dict[PartitionKey, VerificationGuard], dict[PartitionKey, int]]:
    guards: dict[PartitionKey, VerificationGuard] = {}
    codes: dict[PartitionKey, int] = {}
    for key, sequence in sequences.items():
        try:
            guard = replicas.leader(*key).begin_verification(
                producer_id, sequence, producer_epoch, supports_epoch_bump=support is Support.ADD
            )
        except KafkaError as error:
            codes[key] = getattr(error, "code", UnknownServerError.code)
        else:
            if guard is not None:
                guards[key] = guard
    return guards, codes


def _error(code: int, support: Support) -> KafkaError:
    """Return the client's error for an error code of the coordinator."""
    if code == ProducerFencedError.code:
        code = InvalidProducerEpochError.code
    elif code == TransactionAbortableError.code and support is Support.VERIFY:
        code = InvalidTxnStateError.code
    if code == InvalidTxnStateError.code:
        return InvalidTxnStateError("Partition was not added to the transaction")
    if code in _RETRIABLE or (code == ConcurrentTransactionsError.code and support is not Support.ADD):
        return NotEnoughReplicasError(
            f"Unable to verify the partition has been added to the transaction. Underlying error: {CODES[code][0]}"
        )
    return broker_error(code)
