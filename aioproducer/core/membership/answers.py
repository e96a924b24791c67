"""What the error code of a response means for the member, one table for all requests.

It follows the response handlers of ``AbstractCoordinator`` and ``ConsumerCoordinator`` in Kafka 4.4. One rule differs:
Kafka's client fails on a retriable code that a handler does not name, such as NETWORK_EXCEPTION; here it is retried.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from aioproducer.core.membership.requests import RequestKind
from aioproducer.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_COMMIT_OFFSET_SIZE,
    INVALID_GROUP_ID,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NOT_COORDINATOR,
    OFFSET_METADATA_TOO_LARGE,
    REBALANCE_IN_PROGRESS,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    UNSUPPORTED_VERSION,
)
from aioproducer.errors import error_class


class Answer(Enum):
    """The effect of an error code."""

    RETRY = "send the request again after a backoff"
    FIND_COORDINATOR = "find the coordinator, then send the request again after a backoff"
    JOIN_AGAIN = "the group rebalances: join again at once, as the same member of the same generation"
    TAKE_MEMBER_ID = "join again at once with the member id of the response (KIP-394)"
    RESET_GENERATION = "the generation is over for this member: let go of everything, and join with the same member id"
    RESET_MEMBER = "the group does not know the member: let go of everything, and join as a new one"
    FENCED = "another member with the same group.instance.id has taken over"
    FAIL = "the request fails, and a member that joins fails"


_Rules = Mapping[int, Answer]

_COORDINATOR_MOVED: _Rules = {
    COORDINATOR_NOT_AVAILABLE: Answer.FIND_COORDINATOR,
    NOT_COORDINATOR: Answer.FIND_COORDINATOR,
}
# ILLEGAL_GENERATION does not concern the member id: with a new one the group would wait for the old one.
_MEMBER_LOST: _Rules = {
    UNKNOWN_MEMBER_ID: Answer.RESET_MEMBER,
    ILLEGAL_GENERATION: Answer.RESET_GENERATION,
    FENCED_INSTANCE_ID: Answer.FENCED,
}

RULES: Mapping[RequestKind, _Rules] = {
    RequestKind.FIND_COORDINATOR: {
        GROUP_AUTHORIZATION_FAILED: Answer.FAIL,
        INVALID_GROUP_ID: Answer.FAIL,
    },
    RequestKind.JOIN: {
        **_COORDINATOR_MOVED,
        COORDINATOR_LOAD_IN_PROGRESS: Answer.RETRY,
        UNKNOWN_MEMBER_ID: Answer.RESET_MEMBER,
        FENCED_INSTANCE_ID: Answer.FENCED,
        MEMBER_ID_REQUIRED: Answer.TAKE_MEMBER_ID,
        REBALANCE_IN_PROGRESS: Answer.JOIN_AGAIN,
        INCONSISTENT_GROUP_PROTOCOL: Answer.FAIL,
        INVALID_SESSION_TIMEOUT: Answer.FAIL,
        INVALID_GROUP_ID: Answer.FAIL,
        GROUP_AUTHORIZATION_FAILED: Answer.FAIL,
        GROUP_MAX_SIZE_REACHED: Answer.FAIL,
        UNSUPPORTED_VERSION: Answer.FAIL,
    },
    RequestKind.SYNC: {
        **_COORDINATOR_MOVED,
        **_MEMBER_LOST,
        REBALANCE_IN_PROGRESS: Answer.JOIN_AGAIN,
        INCONSISTENT_GROUP_PROTOCOL: Answer.FAIL,
        GROUP_AUTHORIZATION_FAILED: Answer.FAIL,
    },
    # Any other failure of a heartbeat is retried until the session ends.
    RequestKind.HEARTBEAT: {
        **_COORDINATOR_MOVED,
        **_MEMBER_LOST,
        REBALANCE_IN_PROGRESS: Answer.JOIN_AGAIN,
    },
    # A member that wants to leave has left, whatever the response.
    RequestKind.LEAVE: {},
    RequestKind.COMMIT: {
        **_COORDINATOR_MOVED,
        **_MEMBER_LOST,
        REQUEST_TIMED_OUT: Answer.FIND_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS: Answer.RETRY,
        UNKNOWN_TOPIC_OR_PARTITION: Answer.RETRY,
        REBALANCE_IN_PROGRESS: Answer.JOIN_AGAIN,
        GROUP_AUTHORIZATION_FAILED: Answer.FAIL,
        TOPIC_AUTHORIZATION_FAILED: Answer.FAIL,
        OFFSET_METADATA_TOO_LARGE: Answer.FAIL,
        INVALID_COMMIT_OFFSET_SIZE: Answer.FAIL,
    },
    RequestKind.FETCH_OFFSETS: {
        **_COORDINATOR_MOVED,
        # Of a partition: a transaction that commits its offset is open (KIP-447).
        UNSTABLE_OFFSET_COMMIT: Answer.RETRY,
        UNKNOWN_TOPIC_OR_PARTITION: Answer.FAIL,
        TOPIC_AUTHORIZATION_FAILED: Answer.FAIL,
        GROUP_AUTHORIZATION_FAILED: Answer.FAIL,
    },
}
"""The codes with a rule of their own. Other codes: ``RETRY`` if the error is retriable, else ``FAIL``."""


def answer_to(kind: RequestKind, code: int) -> Answer:
    """Return the effect of an error code (not 0) in the response to a request."""
    rule = RULES[kind].get(code)
    if rule is not None:
        return rule
    return Answer.RETRY if kind is RequestKind.HEARTBEAT or error_class(code).retriable else Answer.FAIL
