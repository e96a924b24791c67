"""A member of a classic group in the coordinator."""

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
"""Receives the response to a JoinGroup; called once."""

SyncAnswer: TypeAlias = Callable[[SyncGroupResponse], None]
"""Receives the response to a SyncGroup; called once."""


def distinct_protocols(protocols: Iterable[JoinGroupRequestProtocol]) -> list[JoinGroupRequestProtocol]:
    """Return the protocols in the given order, the first of each name (Kafka keeps them in an ordered set)."""
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
    """The supported protocols, in the member's order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """Whether it has never received its generation; its client cannot send heartbeats yet."""
    join_answer: JoinAnswer | None = None
    sync_answer: SyncAnswer | None = None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether a waiting request shows that the member lives. Not for a new one: its client may have ended."""
        return not self.is_new and (self.join_answer is not None or self.sync_answer is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for that protocol; empty if it does not support it."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def vote(self, candidates: Container[str]) -> str:
        """Return the first candidate in the member's order of preference.

        Raises:
            ValueError: the member supports none of the candidates.
        """
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise ValueError(f"member {self.member_id} supports none of the candidate protocols")

    def joined(self, protocol_name: str | None) -> JoinGroupResponseMember:
        """The member in the leader's JoinGroup response."""
        return JoinGroupResponseMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            metadata=self.metadata(protocol_name),
        )

    def described(self, protocol_name: str | None) -> DescribedGroupMember:
        """The member in DescribeGroups: with metadata and assignment only if the group is stable."""
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
