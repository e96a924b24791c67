"""The error codes of group coordination, by Kafka's names."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from aioproducer.broker.coordination.codes import coordinator_code

FIRST_VERSION_WITH_TRANSACTION_ABORTABLE: Final = 4
"""Version of TxnOffsetCommit."""


class Code(IntEnum):
    """Codes of ``org.apache.kafka.common.protocol.Errors``."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    NOT_ENOUGH_REPLICAS = 19
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_REQUEST = 42
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    TRANSACTION_ABORTABLE = 120


_COORDINATOR_UNREADY: Final[frozenset[int]] = frozenset(
    {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
)


def marker_code(code: int) -> int:
    """Return the code that a transaction coordinator receives after a marker failed with ``code``.

    It does not handle the errors of a group coordinator. After NOT_LEADER_OR_FOLLOWER it sends the marker again.
    """
    return Code.NOT_LEADER_OR_FOLLOWER if code in _COORDINATOR_UNREADY else code


def verification_code(code: int, version: int) -> int:
    """Return the code of TxnOffsetCommit of ``version`` after the transaction's verification failed with ``code``.

    Clients know TRANSACTION_ABORTABLE from version 4 on (KIP-890).
    """
    if code == Code.PRODUCER_FENCED:
        return Code.INVALID_PRODUCER_EPOCH
    if code == Code.NETWORK_EXCEPTION:
        # Clients repeat the request without looking for another coordinator.
        return Code.COORDINATOR_LOAD_IN_PROGRESS
    if code == Code.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_TRANSACTION_ABORTABLE:
        return Code.INVALID_TXN_STATE
    return coordinator_code(code)
