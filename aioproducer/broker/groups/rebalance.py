"""JoinGroup, and the rebalance that it starts: members join, and form the next generation."""

from __future__ import annotations

from typing import Final

from aioproducer.broker.groups.classic_group import ClassicGroup, GroupWrite
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.member import JoinAnswer, Member, distinct_protocols
from aioproducer.broker.groups.members import refused_join
from aioproducer.broker.groups.states import MAY_FOLLOW, GroupState
from aioproducer.broker.groups.timers import Moment
from aioproducer.protocol.messages.groups import JoinGroupRequest, JoinGroupResponse, SyncGroupResponse

FIRST_VERSION_THAT_REQUIRES_MEMBER_ID: Final = 4
FIRST_VERSION_THAT_SKIPS_ASSIGNMENT: Final = 9

_JOIN: Final = "join"
_SYNC: Final = "sync"


def session_timer(member_id: str) -> str:
    """Return the name of the timer of a member's session."""
    return f"session {member_id}"


class RebalancingGroup(ClassicGroup):
    """A group that clients join, and the sessions of its members. ``Group`` adds the requests after a rebalance."""

    # JoinGroup

    def join(
        self,
        request: JoinGroupRequest,
        answer: JoinAnswer,
        at: Moment,
        *,
        version: int,
        client_id: str = "",
        client_host: str = "",
    ) -> None:
        """JoinGroup: a client becomes a member, or joins again."""
        if not self._accepts(request.member_id):
            self._remove(request.member_id)
            answer(refused_join("", Code.GROUP_MAX_SIZE_REACHED))
        elif self.state is GroupState.DEAD:
            answer(refused_join(request.member_id, Code.COORDINATOR_NOT_AVAILABLE))
        elif not self.supports(request.protocol_type, request.protocols):
            answer(refused_join(request.member_id, Code.INCONSISTENT_GROUP_PROTOCOL))
        elif request.member_id:
            self._join_existing(request, answer, at, client_id, client_host)
        else:
            self._join_new(request, answer, at, version, client_id, client_host)

    def _join_new(
        self, request: JoinGroupRequest, answer: JoinAnswer, at: Moment, version: int, client_id: str, client_host: str
    ) -> None:
        instance_id = request.group_instance_id
        member_id = f"{client_id if instance_id is None else instance_id}-{self._unique()}"
        if instance_id is not None and instance_id in self.membership.static_members:
            self._replace_static(request, answer, at, version, instance_id, member_id)
        elif instance_id is None and version >= FIRST_VERSION_THAT_REQUIRES_MEMBER_ID:
            self.pending_members.add(member_id)
            self._schedule_session(member_id, request.session_timeout_ms, at)
            answer(refused_join(member_id, Code.MEMBER_ID_REQUIRED))
        else:
            self._add_joining(request, answer, at, member_id, client_id, client_host)

    def _join_existing(
        self, request: JoinGroupRequest, answer: JoinAnswer, at: Moment, client_id: str, client_host: str
    ) -> None:
        member_id = request.member_id
        if member_id in self.pending_members:
            if request.group_instance_id is not None:
                answer(refused_join("", Code.UNKNOWN_SERVER_ERROR))
            else:
                self._add_joining(request, answer, at, member_id, client_id, client_host)
            return
        if code := self.membership.validate_member(member_id, request.group_instance_id):
            answer(refused_join(member_id, code))
            return
        member = self.members[member_id]
        is_same = distinct_protocols(request.protocols) == member.protocols
        if self.state is GroupState.EMPTY:
            answer(refused_join(member_id, Code.UNKNOWN_MEMBER_ID))
        elif self.state is GroupState.COMPLETING_REBALANCE and is_same:
            # It may not have received the response to its first JoinGroup.
            answer(self._joined(member))
        elif self.state is GroupState.STABLE and is_same and member_id != self.leader_id:
            answer(self._joined(member))
        else:
            # A leader that joins again requests a rebalance, for reasons that its metadata does not show.
            self.membership.rejoin(member, request, answer)
            self._rebalance_or_complete_join(at)

    def _add_joining(
        self, request: JoinGroupRequest, answer: JoinAnswer, at: Moment, member_id: str, client_id: str, host: str
    ) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY:
            self._new_member_added = True
        member = Member(
            member_id,
            request.group_instance_id,
            client_id,
            host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocol_type,
            distinct_protocols(request.protocols),
            is_new=True,
            join_answer=answer,
        )
        self.membership.add(member)
        self.pending_members.discard(member_id)
        # The client does not know its id yet, so it cannot send heartbeats, and a lost connection goes unnoticed while
        # it waits. Without this limit, clients that retry would leave members behind for ever.
        self._schedule_session(member_id, self._settings.new_member_join_timeout_ms, at)
        self._rebalance_or_complete_join(at)

    def _replace_static(
        self,
        request: JoinGroupRequest,
        answer: JoinAnswer,
        at: Moment,
        version: int,
        instance_id: str,
        member_id: str,
    ) -> None:
        """Let a restarted static member take over its membership, which fences its former process."""
        old_id = self.membership.static_members[instance_id]
        leader_before = self.leader_id
        member = self._rename(instance_id, member_id)
        self._extend_session(member, at)
        before = member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
        self.membership.rejoin(member, request, answer)
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id already.
            self._prepare_rebalance(at)
        elif self.state is not GroupState.STABLE:
            self._complete_join_if_all_joined(at)
        elif self.membership.select_protocol() != self.protocol_name:
            self._rebalance_or_complete_join(at)
        else:
            skips = version >= FIRST_VERSION_THAT_SKIPS_ASSIGNMENT

            def written(code: int, at: Moment) -> None:
                # If a rebalance has begun since, the member takes part in it; if it was replaced, it has its response.
                if self.state is not GroupState.STABLE or self.members.get(member_id) is not member:
                    return
                if code:
                    self.membership.set_terms(member, *before)
                    self.membership.answer_join(member, refused_join("", code))
                    self.timers.cancel(session_timer(member_id))
                    self._extend_session(self._rename(instance_id, old_id), at)
                    return
                # Its session may have expired during the write: it is not enforced while a member waits.
                self._extend_session(member, at)
                response = self._joined(member)
                if skips:
                    response.skip_assignment = member_id == self.leader_id
                else:
                    # An older client would compute a new assignment if the response named it as leader.
                    response.leader, response.members = leader_before or "", []
                self.membership.answer_join(member, response)

            self.writes.append(GroupWrite(self.value(), written))

    def _accepts(self, member_id: str) -> bool:
        """Whether there is room. During a rebalance only members that have joined count, so late ones are refused."""
        member = self.members.get(member_id)
        match self.state:
            case GroupState.PREPARING_REBALANCE:
                is_waiting = member is not None and member.join_answer is not None
                return is_waiting or self.membership.awaiting_join < self._settings.max_size
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(self.members) < self._settings.max_size
            case _:
                return True

    def _joined(self, member: Member) -> JoinGroupResponse:
        leads = member.member_id == self.leader_id
        members = [other.joined(self.protocol_name) for other in self.members.values()] if leads else []
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            member_id=member.member_id,
            members=members,
        )

    # Rebalancing

    def _rebalance_or_complete_join(self, at: Moment) -> None:
        if self.state in MAY_FOLLOW[GroupState.PREPARING_REBALANCE]:
            self._prepare_rebalance(at)
        else:
            self._complete_join_if_all_joined(at)

    def _prepare_rebalance(self, at: Moment) -> None:
        """Begin a rebalance: every member has to join again."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(Code.REBALANCE_IN_PROGRESS, at)
        self.pending_syncs.clear()
        self.timers.cancel(_SYNC)
        is_initial = self.state is GroupState.EMPTY
        self._move_to(GroupState.PREPARING_REBALANCE, at)
        if is_initial:
            delay = self._settings.initial_rebalance_delay_ms
            self._delay_initial_rebalance(delay, max(self.membership.rebalance_timeout_ms - delay, 0), at)
        elif self.all_joined:
            self._complete_join(at)
        else:
            self.timers.schedule(_JOIN, self.membership.rebalance_timeout_ms, self._complete_join, at)

    def _reset_assignments(self, code: int, at: Moment) -> None:
        for member in self.members.values():
            member.assignment = b""
            if self.membership.answer_sync(member, SyncGroupResponse(error_code=code)):
                self._extend_session(member, at)

    def _delay_initial_rebalance(self, delay_ms: int, remaining_ms: int, at: Moment) -> None:
        """Wait for more members, as the first member of a group seldom comes alone. Each new one extends the wait."""

        def expire(at: Moment) -> None:
            if self._new_member_added and remaining_ms:
                self._new_member_added = False
                next_delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
                self._delay_initial_rebalance(next_delay_ms, max(remaining_ms - delay_ms, 0), at)
            else:
                self._complete_join(at)

        self.timers.schedule(_JOIN, delay_ms, expire, at)

    def _complete_join_if_all_joined(self, at: Moment) -> None:
        preparing = self.state is GroupState.PREPARING_REBALANCE
        if preparing and self.previous_state is not GroupState.EMPTY and self.all_joined:
            self._complete_join(at)

    @property
    def all_joined(self) -> bool:
        return self.membership.awaiting_join == len(self.members) and not self.pending_members

    def _complete_join(self, at: Moment) -> None:
        """Begin the next generation with the members that have joined; static members stay in it in any case."""
        self.timers.cancel(_JOIN)
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        for member in list(self.members.values()):
            if member.join_answer is None and member.group_instance_id is None:
                self._remove(member.member_id)
        if self.members and not self.membership.elect_joined_leader():
            # Only static members are left, and none has joined: continue when their sessions end.
            self.timers.schedule(_JOIN, self.membership.rebalance_timeout_ms, self._complete_join, at)
            return
        self.generation_id += 1
        self.pending_syncs.clear()
        if not self.members:
            self.protocol_name = None
            self._read_subscriptions()
            self._move_to(GroupState.EMPTY, at)
            # If this record is lost, the previous generation is loaded again and its members time out.
            self.writes.append(GroupWrite(self.value(), lambda code, at: None))
            return
        self.protocol_name = self.membership.select_protocol()
        self._read_subscriptions()
        self._move_to(GroupState.COMPLETING_REBALANCE, at)
        for member in self.members.values():
            self.membership.answer_join(member, self._joined(member))
            self._extend_session(member, at)
            member.is_new = False
            self.pending_syncs.add(member.member_id)
        generation_id = self.generation_id
        self.timers.schedule(
            _SYNC, self.membership.rebalance_timeout_ms, lambda at: self._expire_pending_syncs(generation_id, at), at
        )

    def _expire_pending_syncs(self, generation_id: int, at: Moment) -> None:
        in_generation = self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        if generation_id == self.generation_id and in_generation and self.pending_syncs:
            for member_id in list(self.pending_syncs):
                self._remove(member_id)
            self._prepare_rebalance(at)

    def _received_sync(self, member: Member) -> None:
        self.pending_syncs.discard(member.member_id)
        if not self.pending_syncs:
            self.timers.cancel(_SYNC)

    # Members and their sessions

    def _remove(self, member_id: str) -> None:
        self.membership.remove(member_id)
        self.pending_members.discard(member_id)
        self.pending_syncs.discard(member_id)
        self.timers.cancel(session_timer(member_id))

    def _rename(self, instance_id: str, member_id: str) -> Member:
        """Change the id of a static member, also among the members with an expected SyncGroup."""
        old_id = self.membership.static_members[instance_id]
        member = self.membership.rename(instance_id, member_id)
        if old_id in self.pending_syncs:
            self.pending_syncs.remove(old_id)
            self.pending_syncs.add(member_id)
        return member

    def _extend_session(self, member: Member, at: Moment) -> None:
        self._schedule_session(member.member_id, member.session_timeout_ms, at)

    def _schedule_session(self, member_id: str, timeout_ms: int, at: Moment) -> None:
        self.timers.schedule(session_timer(member_id), timeout_ms, lambda at: self._expire_session(member_id, at), at)

    def _expire_session(self, member_id: str, at: Moment) -> None:
        member = self.members.get(member_id)
        if member is not None and member.has_satisfied_heartbeat:
            return
        if member is None and member_id not in self.pending_members:
            return
        self._remove(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            if self.all_joined:
                self._complete_join(at)
        elif member is not None:
            self._prepare_rebalance(at)
