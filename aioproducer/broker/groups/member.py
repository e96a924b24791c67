"""A member of a classic group, as the coordinator knows it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from aioproducer.protocol.messages.groups import (
    DescribedGroupMember,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

JoinAnswer: TypeAlias = Callable[[JoinGroupResponse], None]
"""Takes the answer of a JoinGroup; called once."""

SyncAnswer: TypeAlias = Callable[[SyncGroupResponse], None]
"""Takes the answer of a SyncGroup; called once."""


def distinct_protocols(protocols: Iterable[JoinGroupRequestProtocol]) -> list[JoinGroupRequestProtocol]:
    """The protocols in the order given, of each name the first (Kafka keeps them in a set that is ordered)."""
    by_name: dict[str, JoinGroupRequestProtocol] = {}
    for protocol in protocols:
        by_name.setdefault(protocol.name, protocol)
    return list(by_name.values())


@dataclass(slots=True)
class Member:
    """A member; times in milliseconds. Kafka's ``ClassicGroupMember``."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: list[JoinGroupRequestProtocol]
    """What it supports, in its order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """Whether it has never been told its generation; its client cannot send heartbeats yet."""
    join_answer: JoinAnswer | None = None
    sync_answer: SyncAnswer | None = None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether waiting shows that the member lives. A new one's does not: its client may be gone for good."""
        return not self.is_new and (self.join_answer is not None or self.sync_answer is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member says to that protocol; empty where it does not know it."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def vote(self, candidates: Container[str]) -> str:
        """The candidate that the member likes best.

        Raises:
            ValueError: it supports none.
        """
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise ValueError(f"member {self.member_id} supports none of the candidate protocols")

    def joined(self, protocol_name: str | None) -> JoinGroupResponseMember:
        """How the leader sees it."""
        return JoinGroupResponseMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            metadata=self.metadata(protocol_name),
        )

    def described(self, protocol_name: str | None) -> DescribedGroupMember:
        """How DescribeGroups tells of it: with metadata and assignment only where the group is stable."""
        described = DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
        )
        if protocol_name is not None:
            described.member_metadata = self.metadata(protocol_name)
            described.member_assignment = self.assignment
        return described
