"""The members of a group: its leader, its waiting members, and the protocols that all support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.member import JoinAnswer, Member, distinct_protocols
from aioproducer.errors import ProtocolError
from aioproducer.protocol import decode_version_prefixed
from aioproducer.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from aioproducer.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupResponse,
)


def refused_join(member_id: str, code: int) -> JoinGroupResponse:
    """The response to a JoinGroup that adds no member; with MEMBER_ID_REQUIRED it contains the client's new id."""
    return JoinGroupResponse(member_id=member_id, error_code=code, protocol_name=None)


class Members:
    """The members of a group. A removed or replaced member's waiting requests are answered."""

    def __init__(self) -> None:
        self.members: Final[dict[str, Member]] = {}
        self.static_members: Final[dict[str, str]] = {}
        """The member id of each group instance id."""
        self.leader_id: str | None = None
        self.protocol_type: str | None = None
        self.awaiting_join = 0
        """Number of members that wait for the response to a JoinGroup."""
        self._supported: Counter[str] = Counter()

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader and determines the group's protocol type."""
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count(member.protocols, +1)
        self.awaiting_join += member.join_answer is not None

    def remove(self, member_id: str) -> Member | None:
        """Remove a member and elect another leader if necessary. Its waiting requests receive UNKNOWN_MEMBER_ID."""
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self.answer_join(member, refused_join("", Code.UNKNOWN_MEMBER_ID))
        self.answer_sync(member, SyncGroupResponse(error_code=Code.UNKNOWN_MEMBER_ID))
        self._count(member.protocols, -1)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if member_id == self.leader_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def rename(self, instance_id: str, member_id: str) -> Member:
        """Give a static member another id; requests that wait with the old id are fenced."""
        old_id = self.static_members[instance_id]
        member = self.members.pop(old_id)
        self.answer_join(member, refused_join(old_id, Code.FENCED_INSTANCE_ID))
        self.answer_sync(member, SyncGroupResponse(error_code=Code.FENCED_INSTANCE_ID))
        member.member_id = member_id
        self.members[member_id] = member
        self.static_members[instance_id] = member_id
        if old_id == self.leader_id:
            self.leader_id = member_id
        return member

    def rejoin(self, member: Member, request: JoinGroupRequest, answer: JoinAnswer) -> None:
        """Update a member that joins again. An earlier JoinGroup that still waits must be repeated by its client."""
        self.answer_join(member, refused_join(member.member_id, Code.REBALANCE_IN_PROGRESS))
        self.set_terms(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        member.join_answer = answer
        self.awaiting_join += 1

    def set_terms(
        self,
        member: Member,
        protocols: Iterable[JoinGroupRequestProtocol],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Set a member's protocols and timeouts."""
        self._count(member.protocols, -1)
        member.protocols = distinct_protocols(protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._count(member.protocols, +1)

    def answer_join(self, member: Member, response: JoinGroupResponse) -> bool:
        """Answer the member's JoinGroup; return ``False`` if none waits."""
        answer, member.join_answer = member.join_answer, None
        if answer is None:
            return False
        self.awaiting_join -= 1
        answer(response)
        return True

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Answer the member's SyncGroup; return ``False`` if none waits."""
        answer, member.sync_answer = member.sync_answer, None
        if answer is None:
            return False
        answer(response)
        return True

    def validate_member(self, member_id: str, instance_id: str | None) -> int:
        """Return 0 if the member exists, else the error code."""
        if instance_id is not None:
            held_by = self.static_members.get(instance_id)
            if held_by is None:
                return Code.UNKNOWN_MEMBER_ID
            if held_by != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined the leader; return ``False`` if none has."""
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.join_answer is None:
            joined = next((member for member in self.members.values() if member.join_answer is not None), None)
            if joined is None:
                return False
            self.leader_id = joined.member_id
        return True

    def have_in_common(self, protocols: Iterable[JoinGroupRequestProtocol]) -> bool:
        """Whether every member supports one of ``protocols``."""
        return any(self._supported[protocol.name] == len(self.members) for protocol in protocols)

    def select_protocol(self) -> str:
        """Return the protocol that all members support and most of them prefer."""
        candidates = {name for name, count in self._supported.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def subscriptions(self, protocol_name: str | None) -> set[str]:
        """Return the topics of all members' subscriptions, from their metadata for the assignor.

        Only version 0 is read, with which all others begin (Kafka's ``ClassicGroup``): some clients state a later
        version and omit its fields.

        Raises:
            ProtocolError: a member's metadata is no subscription; the text contains its id.
        """
        topics: set[str] = set()
        for member in self.members.values():
            try:
                metadata = member.metadata(protocol_name)
                said = decode_version_prefixed(ConsumerProtocolSubscription, metadata, as_version=0)
            except ProtocolError as error:
                raise ProtocolError(f"{member.member_id}: {error}") from error
            topics.update(said.topics)
        return topics

    @property
    def rebalance_timeout_ms(self) -> int:
        """Milliseconds that members may take to join again: the maximum of their rebalance timeouts."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _count(self, protocols: Iterable[JoinGroupRequestProtocol], by: int) -> None:
        for protocol in protocols:
            self._supported[protocol.name] += by
