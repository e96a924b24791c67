"""The state of a classic consumer group, and the checks that change nothing of it (Kafka's ``ClassicGroup``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.member import Member
from aioproducer.broker.groups.members import Members
from aioproducer.broker.groups.records import NO_TIMESTAMP, GroupMetadataValue, MemberMetadata
from aioproducer.broker.groups.states import MAY_FOLLOW, GroupSettings, GroupState
from aioproducer.broker.groups.timers import Moment, Timers
from aioproducer.errors import ProtocolError
from aioproducer.protocol.messages.groups import JoinGroupRequestProtocol

logger = logging.getLogger(__name__)

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


@dataclass(slots=True)
class GroupWrite:
    """A record to append to the log; ``done`` receives the write's error code, 0 when the record is in the log."""

    value: GroupMetadataValue
    done: Callable[[int, Moment], None]


class ClassicGroup:
    """A group's members, state and generation. ``Group`` adds the requests that change them."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        unique: Callable[[], str],
        *,
        wall_ms: int = NO_TIMESTAMP,
    ) -> None:
        """``unique`` returns the suffix of a new member id, a different one each time."""
        self.group_id: Final = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_since_ms = wall_ms
        self.membership: Final = Members()
        self.members: Final = self.membership.members
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.pending_members: set[str] = set()
        """Member ids that clients received and have not joined with yet."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not sent SyncGroup yet."""
        self.subscribed_topics: set[str] | None = None
        """``None`` if unknown: another protocol type, or metadata that is no subscription."""
        self.writes: list[GroupWrite] = []
        self.timers: Final = Timers()
        self._settings = settings
        self._unique = unique
        self._new_member_added = False

    @classmethod
    def load(cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings, unique: Callable[[], str]) -> Self:
        """Build the group from its record in the log. Call ``resume`` before serving it."""
        group = cls(group_id, settings, unique, wall_ms=value.current_state_timestamp)
        group.generation_id = value.generation
        group.membership.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol
        group.membership.leader_id = value.leader
        for kept in value.members:
            timeout = kept.session_timeout if kept.rebalance_timeout == -1 else kept.rebalance_timeout
            protocols = [JoinGroupRequestProtocol(name=value.protocol or "", metadata=kept.subscription)]
            group.membership.add(
                Member(
                    kept.member_id,
                    kept.group_instance_id,
                    kept.client_id,
                    kept.client_host,
                    timeout,
                    kept.session_timeout,
                    value.protocol_type,
                    protocols,
                    kept.assignment,
                )
            )
        if group.members:
            group.state = GroupState.STABLE
        group._read_subscriptions()
        return group

    def __repr__(self) -> str:
        return f"Group({self.group_id!r}, {self.state}, generation {self.generation_id}, {len(self.members)} members)"

    @property
    def leader_id(self) -> str | None:
        return self.membership.leader_id

    @property
    def protocol_type(self) -> str | None:
        return self.membership.protocol_type

    def value(self, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """The value of the group's record, with ``assignments`` by member id, by default the members' current ones."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_since_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=member.assignment if assignments is None else assignments[member.member_id],
                )
                for member in self.members.values()
            ],
        )

    # Checks

    def supports(self, protocol_type: str, protocols: Sequence[JoinGroupRequestProtocol]) -> bool:
        """Whether every member supports one of ``protocols``."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and self.membership.have_in_common(protocols)

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, generation_id: int, *, in_transaction: bool = False
    ) -> int:
        """Return 0 if such a member may commit offsets, else the error code.

        In a transaction a commit without a member is allowed even if the group has members: TxnOffsetCommit had no
        field for a member before KIP-447, and the group may be completing a rebalance.
        """
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return Code.NONE
        if generation_id >= 0 or member_id or instance_id is not None:
            if code := self.membership.validate_member(member_id, instance_id):
                return code
            if generation_id != self.generation_id:
                return Code.ILLEGAL_GENERATION
        elif not in_transaction and self.state is not GroupState.EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        if not in_transaction and self.state is GroupState.COMPLETING_REBALANCE:
            return Code.REBALANCE_IN_PROGRESS
        return Code.NONE

    def validate_delete(self) -> int:
        """Return 0 if the group may be deleted, else the error code."""
        if self.state is GroupState.DEAD:
            return Code.GROUP_ID_NOT_FOUND
        return Code.NONE if self.state is GroupState.EMPTY else Code.NON_EMPTY_GROUP

    def validate_offset_delete(self) -> int:
        """Return 0 if offsets of topics that no member is subscribed to may be deleted, else the error code."""
        code = self.validate_delete()
        if code == Code.NON_EMPTY_GROUP and self.protocol_type == CONSUMER_PROTOCOL_TYPE:
            return Code.NONE
        return code

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads ``topic``; true for all topics if a consumer group's subscriptions are unknown."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    # Changes

    def _move_to(self, state: GroupState, at: Moment) -> None:
        if self.state not in MAY_FOLLOW[state]:
            raise AssertionError(f"{self!r} cannot move to {state}")
        self.previous_state, self.state, self.state_since_ms = self.state, state, at.wall_ms

    def _read_subscriptions(self) -> None:
        """Set ``subscribed_topics`` from the members' metadata."""
        try:
            is_consumers = self.protocol_type == CONSUMER_PROTOCOL_TYPE
            self.subscribed_topics = self.membership.subscriptions(self.protocol_name) if is_consumers else None
        except ProtocolError as error:
            logger.warning("%r: invalid subscription: %s", self, error)
            self.subscribed_topics = None
