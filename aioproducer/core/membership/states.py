"""The states of a member of a consumer group, and the transitions that are possible."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class MemberState(Enum):
    """The state of a member; Kafka's ``AbstractCoordinator.MemberState`` has four of them."""

    UNJOINED = "not in the group"
    FINDING_COORDINATOR = "finding its coordinator"
    JOINING = "joining"
    """Kafka's PREPARING_REBALANCE."""
    AWAITING_SYNC = "awaiting its assignment"
    """Kafka's COMPLETING_REBALANCE."""
    STABLE = "stable"
    REVOKING = "revoking partitions"
    """Revoked partitions await their confirmation before the member joins again, or leaves."""
    LEAVING = "leaving"
    FENCED = "replaced by another member with its group.instance.id"
    """The final state."""
    FAILED = "failed"


UNJOINED = MemberState.UNJOINED
FINDING_COORDINATOR = MemberState.FINDING_COORDINATOR
JOINING = MemberState.JOINING
AWAITING_SYNC = MemberState.AWAITING_SYNC
STABLE = MemberState.STABLE
REVOKING = MemberState.REVOKING
LEAVING = MemberState.LEAVING
FENCED = MemberState.FENCED
FAILED = MemberState.FAILED

NEXT_STATES: Mapping[MemberState, frozenset[MemberState]] = {
    # LEAVING if the group may still know the member's id.
    UNJOINED: frozenset({FINDING_COORDINATOR, JOINING, LEAVING}),
    # FENCED by the response to an earlier heartbeat.
    FINDING_COORDINATOR: frozenset({JOINING, LEAVING, UNJOINED, FENCED, FAILED}),
    # UNJOINED if the group does not know the member; what it kept while it joined is lost.
    JOINING: frozenset({FINDING_COORDINATOR, AWAITING_SYNC, LEAVING, UNJOINED, FENCED, FAILED}),
    # JOINING if the group began another rebalance. REVOKING if a cooperative assignment lacks some partitions.
    AWAITING_SYNC: frozenset({STABLE, REVOKING, JOINING, FINDING_COORDINATOR, LEAVING, UNJOINED, FENCED, FAILED}),
    # JOINING if nothing has to be revoked before.
    STABLE: frozenset({REVOKING, JOINING, FINDING_COORDINATOR, LEAVING, UNJOINED, FENCED, FAILED}),
    # STABLE if the rest of a cooperative assignment follows.
    REVOKING: frozenset({STABLE, JOINING, FINDING_COORDINATOR, LEAVING, UNJOINED, FENCED, FAILED}),
    LEAVING: frozenset({UNJOINED}),
    FENCED: frozenset(),
    FAILED: frozenset({UNJOINED}),
}
"""The states that may follow each state."""

IN_GENERATION = frozenset({AWAITING_SYNC, STABLE, REVOKING})
"""The states in which a member with a generation sends heartbeats."""
