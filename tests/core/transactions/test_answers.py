"""The effects of error codes of transactional responses, for each handler of Kafka's ``TransactionManager``."""

from __future__ import annotations

import pytest

from aioproducer.core.transactions.answers import Answer, answer_to
from aioproducer.core.transactions.requests import RequestKind
from aioproducer.error_codes import CODES
from aioproducer.errors import error_class

# The codes that each handler in Kafka 4.4 names. It retries the other retriable codes; all others are fatal.
KAFKA: dict[RequestKind, dict[str, Answer]] = {
    RequestKind.INIT_PRODUCER_ID: {
        "NOT_COORDINATOR": Answer.FIND_COORDINATOR,
        "COORDINATOR_NOT_AVAILABLE": Answer.FIND_COORDINATOR,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Answer.UNAUTHORIZED,
        "CLUSTER_AUTHORIZATION_FAILED": Answer.UNAUTHORIZED,
        "INVALID_PRODUCER_EPOCH": Answer.FENCED,
        "PRODUCER_FENCED": Answer.FENCED,
        "TRANSACTION_ABORTABLE": Answer.ABORTABLE,
    },
    RequestKind.FIND_COORDINATOR: {
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Answer.FATAL,
        "GROUP_AUTHORIZATION_FAILED": Answer.ABORTABLE,
        "TRANSACTION_ABORTABLE": Answer.ABORTABLE,
    },
    RequestKind.ADD_OFFSETS: {
        "NOT_COORDINATOR": Answer.FIND_COORDINATOR,
        "COORDINATOR_NOT_AVAILABLE": Answer.FIND_COORDINATOR,
        "UNKNOWN_PRODUCER_ID": Answer.ABORTABLE_WITH_NEW_EPOCH,
        "INVALID_PRODUCER_EPOCH": Answer.FENCED,
        "PRODUCER_FENCED": Answer.FENCED,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Answer.FATAL,
        "INVALID_TXN_STATE": Answer.FATAL,
        "INVALID_PRODUCER_ID_MAPPING": Answer.FATAL,
        "GROUP_AUTHORIZATION_FAILED": Answer.ABORTABLE,
        "TRANSACTION_ABORTABLE": Answer.ABORTABLE,
    },
    RequestKind.COMMIT_OFFSETS: {
        "NOT_COORDINATOR": Answer.FIND_COORDINATOR,
        "COORDINATOR_NOT_AVAILABLE": Answer.FIND_COORDINATOR,
        "REQUEST_TIMED_OUT": Answer.FIND_COORDINATOR,
        "GROUP_AUTHORIZATION_FAILED": Answer.ABORTABLE,
        "FENCED_INSTANCE_ID": Answer.ABORTABLE,
        "TRANSACTION_ABORTABLE": Answer.ABORTABLE,
        "UNKNOWN_MEMBER_ID": Answer.NOT_COMMITTED,
        "ILLEGAL_GENERATION": Answer.NOT_COMMITTED,
        "GROUP_ID_NOT_FOUND": Answer.NOT_COMMITTED,
        "STALE_MEMBER_EPOCH": Answer.NOT_COMMITTED,
        "INVALID_PRODUCER_EPOCH": Answer.FENCED,
        "PRODUCER_FENCED": Answer.FENCED,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Answer.FATAL,
        "UNSUPPORTED_FOR_MESSAGE_FORMAT": Answer.FATAL,
    },
    RequestKind.COMMIT: {
        "NOT_COORDINATOR": Answer.FIND_COORDINATOR,
        "COORDINATOR_NOT_AVAILABLE": Answer.FIND_COORDINATOR,
        "INVALID_PRODUCER_EPOCH": Answer.FENCED,
        "PRODUCER_FENCED": Answer.FENCED,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Answer.FATAL,
        "INVALID_TXN_STATE": Answer.FATAL,
        "INVALID_PRODUCER_ID_MAPPING": Answer.FATAL,
        "UNKNOWN_PRODUCER_ID": Answer.ABORTABLE_WITH_NEW_EPOCH,
        "TRANSACTION_ABORTABLE": Answer.ABORTABLE,
    },
}
KAFKA[RequestKind.BUMP_EPOCH] = KAFKA[RequestKind.INIT_PRODUCER_ID]
# An abort differs: its abortable errors are fatal. A transaction that has already ended counts as aborted here.
KAFKA[RequestKind.ABORT] = {
    **KAFKA[RequestKind.COMMIT],
    "TRANSACTION_ABORTABLE": Answer.FATAL,
    "INVALID_TXN_STATE": Answer.ENDED_BEFORE,
    "UNKNOWN_PRODUCER_ID": Answer.ENDED_BEFORE,
}
KAFKA[RequestKind.ADD_PARTITIONS] = {
    "NOT_COORDINATOR": Answer.FIND_COORDINATOR,
    "COORDINATOR_NOT_AVAILABLE": Answer.FIND_COORDINATOR,
    "INVALID_PRODUCER_EPOCH": Answer.FENCED,
    "PRODUCER_FENCED": Answer.FENCED,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Answer.FATAL,
    "INVALID_TXN_STATE": Answer.FATAL,
    "INVALID_PRODUCER_ID_MAPPING": Answer.FATAL,
    "UNKNOWN_PRODUCER_ID": Answer.ABORTABLE_WITH_NEW_EPOCH,
}


@pytest.mark.parametrize("kind", RequestKind, ids=lambda kind: kind.name)
def test_each_code_has_the_effect_that_it_has_in_kafka(kind: RequestKind) -> None:
    for code, (name, _, _) in CODES.items():
        # Each other code of AddPartitionsToTxn concerns its partition.
        others = Answer.ABORTABLE if kind is RequestKind.ADD_PARTITIONS else Answer.FATAL
        expected = Answer.RETRY if error_class(code).retriable else others
        assert answer_to(kind, code) is KAFKA[kind].get(name, expected), name


def test_an_unknown_code_is_not_retried() -> None:
    assert answer_to(RequestKind.COMMIT, 999) is Answer.FATAL
