"""What a member tells its owner, and what its owner configures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aioproducer.record import TopicPartition


class EventKind(Enum):
    """The calls of Kafka's ``ConsumerRebalanceListener``."""

    REVOKED = "revoked"
    """Another member may receive the partitions. Until the confirmation their offsets can be committed. With an eager
    assignor it comes at each rebalance, with no partition as well."""
    LOST = "lost"
    """Another member may have the partitions already: their offsets can no longer be committed."""
    ASSIGNED = "assigned"
    """The partitions were added. It comes at the end of each rebalance, with no partition as well."""


@dataclass(frozen=True, slots=True, eq=False)
class RebalanceEvent:
    """Partitions that come or go; the member goes on when its owner confirms it."""

    kind: EventKind
    partitions: frozenset[TopicPartition]


class LeaveOperation(Enum):
    """What becomes of the membership when the consumer closes (KIP-1092, ``CloseOptions``)."""

    DEFAULT = "a dynamic member leaves, a static one stays until its session ends"
    LEAVE_GROUP = "the member leaves"
    REMAIN_IN_GROUP = "the member stays until its session ends"


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The configuration of a member, under Kafka's names.

    Raises:
        ValueError: the heartbeat interval is not below the session timeout, or the group id is empty.
    """

    group_id: str
    group_instance_id: str | None = None
    """Makes a static member (KIP-345)."""
    rack: str | None = None
    """``client.rack``: partitions with a replica in it are preferred (KIP-881)."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """Also the time that the group waits for this member in a rebalance."""
    request_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("group_id must not be empty: name the group to join")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}): a third of it, or less, lets two heartbeats fail"
            )
