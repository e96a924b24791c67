"""EndTxn: whether a transaction may end, and the response to a repeated request, in both generations of the protocol.

In the first generation (EndTxn up to version 4) the epoch does not change, so only the state distinguishes a repeated
request from the next one. With KIP-890 (from version 5 on) each end raises the epoch, so a repeated request has the
previous epoch::

                    abort, previous epoch   abort, current epoch   commit, previous epoch   commit, current epoch
    Empty           PRODUCER_FENCED         ends                   PRODUCER_FENCED          INVALID_TXN_STATE
    CompleteAbort   NONE                    ends                   PRODUCER_FENCED          INVALID_TXN_STATE
    CompleteCommit  INVALID_TXN_STATE       ends                   NONE                     INVALID_TXN_STATE
"""

from __future__ import annotations

from typing import NamedTuple

from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import (
    EPOCH_FOR_EACH_TRANSACTION,
    LAST_CLIENT_EPOCH,
    ProducerIdAndEpoch,
    TransactionState,
)
from aioproducer.broker.transactions.transaction import AllocateProducerId, Decision, Transaction


class End(NamedTuple):
    """A request to end a transaction, of a client or (``is_from_client`` False) of the coordinator."""

    producer: ProducerIdAndEpoch
    commit: bool
    client_version: int
    is_from_client: bool = True


def end(transaction: Transaction, request: End, allocate: AllocateProducerId, now_ms: int) -> Decision:
    """Begin the end of a transaction, or return the code: NONE if it has ended that way already."""
    if request.client_version >= EPOCH_FOR_EACH_TRANSACTION:
        return _end_with_new_epoch(transaction, request, allocate, now_ms)
    return _end_with_same_epoch(transaction, request, allocate, now_ms)


def _end_with_same_epoch(transaction: Transaction, request: End, allocate: AllocateProducerId, now_ms: int) -> Decision:
    current, producer = transaction.metadata, request.producer
    if current.producer_id != producer.producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING
    if producer.epoch < current.producer_epoch or (request.is_from_client and producer.epoch > current.producer_epoch):
        return Code.PRODUCER_FENCED
    if transaction.is_busy:
        return Code.CONCURRENT_TRANSACTIONS
    if current.state is TransactionState.ONGOING:
        return transaction.prepare_end(commit=request.commit, client_version=0, allocate=allocate, now_ms=now_ms)
    if current.state is _completed(request):
        return Code.NONE
    if current.state is _prepared(request):
        return Code.CONCURRENT_TRANSACTIONS
    return Code.INVALID_TXN_STATE


def _end_with_new_epoch(transaction: Transaction, request: End, allocate: AllocateProducerId, now_ms: int) -> Decision:
    current, producer = transaction.metadata, request.producer
    state = current.state
    is_rollover = (
        not transaction.is_fencing
        and current.previous_producer_id == producer.producer_id
        and producer.epoch == LAST_CLIENT_EPOCH
        and current.producer_epoch == 0
    )
    is_repeated = is_rollover or (not transaction.is_fencing and current.producer_epoch == producer.epoch + 1)
    if transaction.is_busy:
        # Checked first: over a rollover the producer may have the new id already, which is only pending here.
        return Code.CONCURRENT_TRANSACTIONS
    if current.producer_id != producer.producer_id and not is_rollover:
        return Code.INVALID_PRODUCER_ID_MAPPING
    if not _has_valid_epoch(transaction, request, is_rollover=is_rollover, is_repeated=is_repeated):
        return Code.PRODUCER_FENCED
    if state is TransactionState.ONGOING:
        return transaction.prepare_end(
            commit=request.commit, client_version=request.client_version, allocate=allocate, now_ms=now_ms
        )
    if state.is_ending:
        return Code.CONCURRENT_TRANSACTIONS if state is _prepared(request) else Code.INVALID_TXN_STATE
    if is_repeated:
        if state is _completed(request):
            return Code.NONE
        # The coordinator aborted the transaction before the commit arrived: the producer can begin again (KAFKA-20785).
        return Code.PRODUCER_FENCED if request.commit else Code.INVALID_TXN_STATE
    if request.commit:
        return Code.INVALID_TXN_STATE
    # A client that lost track of its transaction aborts it.
    return transaction.prepare_end(
        commit=False, client_version=request.client_version, allocate=allocate, now_ms=now_ms, is_empty=True
    )


def _has_valid_epoch(transaction: Transaction, request: End, *, is_rollover: bool, is_repeated: bool) -> bool:
    current, epoch = transaction.metadata, request.producer.epoch
    if transaction.is_fencing:
        # The fence's epoch, which the abort will have.
        return epoch >= current.producer_epoch and (not request.is_from_client or epoch == current.producer_epoch)
    if current.state.is_ending:
        return current.producer_epoch == epoch + 1
    if current.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return is_repeated or is_rollover or epoch == current.producer_epoch
    return epoch == current.producer_epoch


def _prepared(request: End) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if request.commit else TransactionState.PREPARE_ABORT


def _completed(request: End) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if request.commit else TransactionState.COMPLETE_ABORT
