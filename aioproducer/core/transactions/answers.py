"""What the error code of a transactional response means for the transaction.

The table follows the response handlers of ``TransactionManager`` in Kafka 4.4. The flags of the error classes
(``retriable``, ``abortable``, ``fatal``) describe the raised error; these decisions depend on the request as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from aioproducer.core.transactions.requests import RequestKind
from aioproducer.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
    REQUEST_TIMED_OUT,
    STALE_MEMBER_EPOCH,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_PRODUCER_ID,
)
from aioproducer.errors import error_class


class Answer(Enum):
    """The effect of an error code."""

    RETRY = "send the request again"
    FIND_COORDINATOR = "find the coordinator, then send the request again"
    ABORTABLE = "the transaction has to be aborted"
    ABORTABLE_WITH_NEW_EPOCH = "the transaction has to be aborted, and the next one needs a new epoch"
    UNAUTHORIZED = "the request has failed; the producer may try again with other permissions"
    NOT_COMMITTED = "the group rejects the offsets: the transaction has to be aborted"
    ENDED_BEFORE = "the coordinator has ended the transaction already; the next one needs a new epoch"
    FENCED = "another producer with the transactional id has taken over"
    FATAL = "the producer cannot continue"


_Rules = Mapping[int, Answer]

_COORDINATOR_MOVED: _Rules = {
    COORDINATOR_NOT_AVAILABLE: Answer.FIND_COORDINATOR,
    NOT_COORDINATOR: Answer.FIND_COORDINATOR,
}
# Old coordinators answer INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED (KIP-588).
_FENCED: _Rules = {INVALID_PRODUCER_EPOCH: Answer.FENCED, PRODUCER_FENCED: Answer.FENCED}

_INIT: _Rules = {
    **_COORDINATOR_MOVED,
    **_FENCED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Answer.UNAUTHORIZED,
    CLUSTER_AUTHORIZATION_FAILED: Answer.UNAUTHORIZED,
    TRANSACTION_ABORTABLE: Answer.ABORTABLE,
}

RULES: Mapping[RequestKind, _Rules] = {
    RequestKind.FIND_COORDINATOR: {
        GROUP_AUTHORIZATION_FAILED: Answer.ABORTABLE,
        TRANSACTION_ABORTABLE: Answer.ABORTABLE,
    },
    RequestKind.INIT_PRODUCER_ID: _INIT,
    RequestKind.BUMP_EPOCH: _INIT,
    RequestKind.ADD_PARTITIONS: {
        **_COORDINATOR_MOVED,
        **_FENCED,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Answer.FATAL,
        INVALID_TXN_STATE: Answer.FATAL,
        INVALID_PRODUCER_ID_MAPPING: Answer.FATAL,
        TOPIC_AUTHORIZATION_FAILED: Answer.ABORTABLE,
        UNKNOWN_PRODUCER_ID: Answer.ABORTABLE_WITH_NEW_EPOCH,
        TRANSACTION_ABORTABLE: Answer.ABORTABLE,
    },
    RequestKind.ADD_OFFSETS: {
        **_COORDINATOR_MOVED,
        **_FENCED,
        UNKNOWN_PRODUCER_ID: Answer.ABORTABLE_WITH_NEW_EPOCH,
        GROUP_AUTHORIZATION_FAILED: Answer.ABORTABLE,
        TRANSACTION_ABORTABLE: Answer.ABORTABLE,
    },
    RequestKind.COMMIT_OFFSETS: {
        **_COORDINATOR_MOVED,
        **_FENCED,
        REQUEST_TIMED_OUT: Answer.FIND_COORDINATOR,
        GROUP_AUTHORIZATION_FAILED: Answer.ABORTABLE,
        FENCED_INSTANCE_ID: Answer.ABORTABLE,
        TRANSACTION_ABORTABLE: Answer.ABORTABLE,
        UNKNOWN_MEMBER_ID: Answer.NOT_COMMITTED,
        ILLEGAL_GENERATION: Answer.NOT_COMMITTED,
        GROUP_ID_NOT_FOUND: Answer.NOT_COMMITTED,
        STALE_MEMBER_EPOCH: Answer.NOT_COMMITTED,
    },
    RequestKind.COMMIT: {
        **_COORDINATOR_MOVED,
        **_FENCED,
        UNKNOWN_PRODUCER_ID: Answer.ABORTABLE_WITH_NEW_EPOCH,
        TRANSACTION_ABORTABLE: Answer.ABORTABLE,
    },
    # An abort that fails by an abortable error is not aborted again.
    RequestKind.ABORT: {
        **_COORDINATOR_MOVED,
        **_FENCED,
        # Kafka's client fails for good; but the code means only that no transaction of this epoch is open.
        INVALID_TXN_STATE: Answer.ENDED_BEFORE,
        UNKNOWN_PRODUCER_ID: Answer.ENDED_BEFORE,
    },
}
"""The codes with a rule of their own. Other codes: ``RETRY`` if the error is retriable, else ``FATAL``."""


def answer_to(kind: RequestKind, code: int) -> Answer:
    """Return the effect of an error code (not 0) in the response to a request."""
    rule = RULES[kind].get(code)
    if rule is not None:
        return rule
    if error_class(code).retriable:
        return Answer.RETRY
    # Partitions that cannot be added concern only this transaction.
    return Answer.ABORTABLE if kind is RequestKind.ADD_PARTITIONS else Answer.FATAL
