"""A classic consumer group, and how each request changes it.

It decides and never waits. A request comes with a function for its response, which is called at once or when other
members have joined. Changes that must be logged before they take effect go into ``writes``; the caller appends them
and then calls ``GroupWrite.done``.

* ``classic_group`` has the state of a group, and checks that change nothing;
* ``rebalance`` has JoinGroup and the rebalance;
* this module has the requests of members in a generation: SyncGroup, Heartbeat, LeaveGroup, and commits of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioproducer.broker.groups.classic_group import GroupWrite
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.member import Member, SyncAnswer
from aioproducer.broker.groups.members import refused_join
from aioproducer.broker.groups.rebalance import RebalancingGroup, session_timer
from aioproducer.broker.groups.states import GroupState
from aioproducer.broker.groups.timers import Moment
from aioproducer.errors import UnknownMemberIdError
from aioproducer.protocol.messages.groups import MemberIdentity, MemberResponse, SyncGroupRequest, SyncGroupResponse


class Group(RebalancingGroup):
    """One group. Every method that changes it takes the current time as a ``Moment``."""

    def resume(self, at: Moment) -> None:
        """Start serving a group that was loaded: each member has a whole session to send a heartbeat."""
        for member in self.members.values():
            self._extend_session(member, at)
        if len(self.members) > self._settings.max_size:
            self._prepare_rebalance(at)

    def close(self, code: int) -> None:
        """End the group on this node; waiting requests receive ``code``."""
        self.state = GroupState.DEAD
        self.timers.clear()
        self.writes.clear()
        for member in self.members.values():
            self.membership.answer_join(member, refused_join(member.member_id, code))
            self.membership.answer_sync(member, SyncGroupResponse(error_code=code))

    # SyncGroup

    def sync(self, request: SyncGroupRequest, answer: SyncAnswer, at: Moment) -> None:
        """SyncGroup: a member requests its assignment; the leader sends those of all members."""
        code = self._validate_sync(request)
        if code:
            answer(SyncGroupResponse(error_code=code))
            return
        member = self.members[request.member_id]
        self._received_sync(member)
        if self.state is GroupState.STABLE:
            answer(self._synced(member))
            return
        self.membership.answer_sync(member, SyncGroupResponse(error_code=Code.REBALANCE_IN_PROGRESS))
        member.sync_answer = answer
        if member.member_id != self.leader_id:
            return
        received = {assigned.member_id: assigned.assignment for assigned in request.assignments}
        assignments = {member_id: received.get(member_id, b"") for member_id in self.members}

        def written(code: int, at: Moment) -> None:
            # If a member has joined during the write, this generation is over.
            if self.state is not GroupState.COMPLETING_REBALANCE or request.generation_id != self.generation_id:
                return
            if code:
                self._reset_assignments(code, at)
                self._rebalance_or_complete_join(at)
                return
            self._move_to(GroupState.STABLE, at)
            for member in self.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                if self.membership.answer_sync(member, self._synced(member)):
                    self._extend_session(member, at)

        self.writes.append(GroupWrite(self.value(assignments), written))

    def _validate_sync(self, request: SyncGroupRequest) -> int:
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if self.state is GroupState.EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        if code := self.membership.validate_member(request.member_id, request.group_instance_id):
            return code
        if request.generation_id != self.generation_id:
            return Code.ILLEGAL_GENERATION
        stated = (request.protocol_type, self.protocol_type), (request.protocol_name, self.protocol_name)
        if any(None not in (given, known) and given != known for given, known in stated):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else Code.NONE

    def _synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    # Heartbeat, LeaveGroup and OffsetCommit

    def heartbeat(self, member_id: str, instance_id: str | None, generation_id: int, at: Moment) -> int:
        """Heartbeat: extend the member's session; return the error code of the response."""
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if code := self.membership.validate_member(member_id, instance_id):
            return code
        if generation_id != self.generation_id:
            return Code.ILLEGAL_GENERATION
        if self.state is GroupState.EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        self._extend_session(self.members[member_id], at)
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else Code.NONE

    def committed_offsets(self, member_id: str, at: Moment) -> None:
        """Extend the session of a member that has committed offsets."""
        if self.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE) and member_id in self.members:
            self._extend_session(self.members[member_id], at)

    def leave(self, identities: Iterable[MemberIdentity], at: Moment) -> list[MemberResponse]:
        """LeaveGroup: members leave, or are removed by their group instance ids."""
        responses = []
        for identity in identities:
            code = self._leave_one(identity)
            responses.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
        if any(response.error_code == Code.NONE for response in responses):
            if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._prepare_rebalance(at)
            else:
                self._complete_join_if_all_joined(at)
        return responses

    # What tests inject

    def rebalance(self, at: Moment) -> None:
        """Let every member join again; nothing happens if a rebalance has begun, or if there are no members."""
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(at)

    def fence(self, instance_id: str, at: Moment) -> None:
        """Replace a static member as if another process had joined with its ``group.instance.id``.

        That process sends nothing more: the membership ends with its session.

        Raises:
            UnknownMemberIdError: there is no such static member.
        """
        old_id = self.membership.static_members.get(instance_id)
        if old_id is None:
            raise UnknownMemberIdError()
        self.timers.cancel(session_timer(old_id))
        self._extend_session(self._rename(instance_id, f"{instance_id}-{self._unique()}"), at)
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._prepare_rebalance(at)
        elif self.state is GroupState.STABLE:
            self.writes.append(GroupWrite(self.value(), lambda code, at: None))

    def _leave_one(self, identity: MemberIdentity) -> int:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id:
            held_by = None if instance_id is None else self.membership.static_members.get(instance_id)
            if held_by is None:
                return Code.UNKNOWN_MEMBER_ID
            member_id = held_by
        elif member_id not in self.pending_members and (
            code := self.membership.validate_member(member_id, instance_id)
        ):
            return code
        self._remove(member_id)
        return Code.NONE
