"""A classic consumer group: who is in it, what it waits for, and what each event changes (Kafka's ``ClassicGroup``).

It decides and never waits. Requests come with a function that takes their answer, at once or when others have come;
what must be in the log before it is true is put into ``writes``, and who drives the group appends it and calls back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.member import JoinAnswer, Member, SyncAnswer, distinct_protocols
from aioproducer.broker.groups.records import NO_TIMESTAMP, GroupMetadataValue, MemberMetadata
from aioproducer.broker.groups.roster import Roster, refused_join
from aioproducer.broker.groups.states import MAY_FOLLOW, GroupSettings, GroupState
from aioproducer.broker.groups.timers import Moment, Timers
from aioproducer.errors import ProtocolError
from aioproducer.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

logger = logging.getLogger(__name__)

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

FIRST_VERSION_THAT_REQUIRES_MEMBER_ID: Final = 4
FIRST_VERSION_THAT_SKIPS_ASSIGNMENT: Final = 9

_JOIN: Final = "join"
_SYNC: Final = "sync"


@dataclass(slots=True)
class GroupWrite:
    """What is to be appended to the log, and who is to be told with which code (0: it is there)."""

    value: GroupMetadataValue
    done: Callable[[int, Moment], None]


def _session(member_id: str) -> str:
    return f"session {member_id}"


class Group:
    """One group. Every method that changes it takes the moment at which it happens."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        unique: Callable[[], str],
        *,
        wall_ms: int = NO_TIMESTAMP,
    ) -> None:
        """``unique`` makes the end of a new member's id, which must never come twice."""
        self.group_id: Final = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_since_ms = wall_ms
        self.roster: Final = Roster()
        self.members: Final = self.roster.members
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.pending_members: set[str] = set()
        """Ids that were given out to clients which have not come back with them."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not asked for their assignment."""
        self.subscribed_topics: set[str] | None = None
        """None where they are not known: other protocol types, or bytes that are no subscription."""
        self.writes: list[GroupWrite] = []
        self.timers: Final = Timers()
        self._settings = settings
        self._unique = unique
        self._new_member_added = False

    @classmethod
    def load(
        cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings, unique: Callable[[], str]
    ) -> Group:
        """The group that its record in the log tells of. ``resume`` it before it is served."""
        group = cls(group_id, settings, unique, wall_ms=value.current_state_timestamp)
        group.generation_id = value.generation
        group.roster.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol
        group.roster.leader_id = value.leader
        for kept in value.members:
            timeout = kept.session_timeout if kept.rebalance_timeout == -1 else kept.rebalance_timeout
            protocols = [JoinGroupRequestProtocol(name=value.protocol or "", metadata=kept.subscription)]
            group.roster.add(
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
        return self.roster.leader_id

    @property
    def protocol_type(self) -> str | None:
        return self.roster.protocol_type

    def value(self, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """The group as its record says it, with ``assignments`` by member id, or those that its members have."""
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

    def resume(self, at: Moment) -> None:
        """Begin to serve a group that was loaded: its members have a whole session to be heard of."""
        for member in self.members.values():
            self._heard_of(member, at)
        if len(self.members) > self._settings.max_size:
            self._prepare_rebalance(at)

    def close(self, code: int) -> None:
        """The group is gone from here: who waits is told ``code``."""
        self.state = GroupState.DEAD
        self.timers.clear()
        self.writes.clear()
        for member in self.members.values():
            self.roster.answer_join(member, refused_join(member.member_id, code))
            self.roster.answer_sync(member, SyncGroupResponse(error_code=code))

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
        """A client wants to be, or stay, a member."""
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
        if instance_id is not None and instance_id in self.roster.static_members:
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
        if code := self.roster.validate_member(member_id, request.group_instance_id):
            answer(refused_join(member_id, code))
            return
        member = self.members[member_id]
        is_same = distinct_protocols(request.protocols) == member.protocols
        if self.state is GroupState.EMPTY:
            answer(refused_join(member_id, Code.UNKNOWN_MEMBER_ID))
        elif self.state is GroupState.COMPLETING_REBALANCE and is_same:
            # It may not have received the answer to its first JoinGroup.
            answer(self._joined(member))
        elif self.state is GroupState.STABLE and is_same and member_id != self.leader_id:
            answer(self._joined(member))
        else:
            # A leader that joins again wants a rebalance, for what its members' metadata does not show.
            self.roster.rejoin(member, request, answer)
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
        self.roster.add(member)
        self.pending_members.discard(member_id)
        # Its client does not know its id yet, so it cannot send heartbeats, and that its connection has gone is not
        # seen while it waits; without a limit clients that try again and again would leave members behind for ever.
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
        """A static member has been started again: it takes its own place, which fences whoever held it."""
        old_id = self.roster.static_members[instance_id]
        leader_before = self.leader_id
        member = self._rename(instance_id, member_id)
        self._heard_of(member, at)
        before = member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
        self.roster.rejoin(member, request, answer)
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id already.
            self._prepare_rebalance(at)
        elif self.state is not GroupState.STABLE:
            self._complete_join_if_all_joined(at)
        elif self.roster.select_protocol() != self.protocol_name:
            self._rebalance_or_complete_join(at)
        else:
            skips = version >= FIRST_VERSION_THAT_SKIPS_ASSIGNMENT

            def written(code: int, at: Moment) -> None:
                # In a rebalance that has begun meanwhile it has joined; if it was replaced again, it has its answer.
                if self.state is not GroupState.STABLE or self.members.get(member_id) is not member:
                    return
                if code:
                    self.roster.set_terms(member, *before)
                    self.roster.answer_join(member, refused_join("", code))
                    self.timers.cancel(_session(member_id))
                    self._heard_of(self._rename(instance_id, old_id), at)
                    return
                # Its session may have passed while this was written, and nobody watches over who waits for an answer.
                self._heard_of(member, at)
                response = self._joined(member)
                if skips:
                    response.skip_assignment = member_id == self.leader_id
                else:
                    # A leader of an older client would assign anew if it learnt that it leads, so it is not told.
                    response.leader, response.members = leader_before or "", []
                self.roster.answer_join(member, response)

            self.writes.append(GroupWrite(self.value(), written))

    def _accepts(self, member_id: str) -> bool:
        """Whether there is room. While members gather, those that have come count, so that the last are turned away."""
        member = self.members.get(member_id)
        match self.state:
            case GroupState.PREPARING_REBALANCE:
                is_waiting = member is not None and member.join_answer is not None
                return is_waiting or self.roster.awaiting_join < self._settings.max_size
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(self.members) < self._settings.max_size
            case _:
                return True

    def supports(self, protocol_type: str, protocols: Sequence[JoinGroupRequestProtocol]) -> bool:
        """Whether one of ``protocols`` is everybody's."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and self.roster.have_in_common(protocols)

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
        """Have everybody join again."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(Code.REBALANCE_IN_PROGRESS, at)
        self.pending_syncs.clear()
        self.timers.cancel(_SYNC)
        is_initial = self.state is GroupState.EMPTY
        self._move_to(GroupState.PREPARING_REBALANCE, at)
        if is_initial:
            delay = self._settings.initial_rebalance_delay_ms
            self._delay_initial_rebalance(delay, max(self.roster.rebalance_timeout_ms - delay, 0), at)
        elif self.all_joined:
            self._complete_join(at)
        else:
            self.timers.schedule(_JOIN, self.roster.rebalance_timeout_ms, self._complete_join, at)

    def _delay_initial_rebalance(self, delay_ms: int, remaining_ms: int, at: Moment) -> None:
        """The first members of a group seldom come alone: wait for more, the longer the more come."""

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
        return self.roster.awaiting_join == len(self.members) and not self.pending_members

    def _complete_join(self, at: Moment) -> None:
        """Who has joined by now makes the next generation; static members stay in it even when they have not."""
        self.timers.cancel(_JOIN)
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        for member in list(self.members.values()):
            if member.join_answer is None and member.group_instance_id is None:
                self._remove(member.member_id)
        if self.members and not self.roster.elect_joined_leader():
            # Only static members, of which none has come: go on when their sessions end.
            self.timers.schedule(_JOIN, self.roster.rebalance_timeout_ms, self._complete_join, at)
            return
        self.generation_id += 1
        self.pending_syncs.clear()
        if not self.members:
            self.protocol_name = None
            self._read_subscriptions()
            self._move_to(GroupState.EMPTY, at)
            # Should this record be lost, the generation before comes back and its members time out.
            self.writes.append(GroupWrite(self.value(), lambda code, at: None))
            return
        self.protocol_name = self.roster.select_protocol()
        self._read_subscriptions()
        self._move_to(GroupState.COMPLETING_REBALANCE, at)
        for member in self.members.values():
            self.roster.answer_join(member, self._joined(member))
            self._heard_of(member, at)
            member.is_new = False
            self.pending_syncs.add(member.member_id)
        generation_id = self.generation_id
        self.timers.schedule(
            _SYNC, self.roster.rebalance_timeout_ms, lambda at: self._expire_pending_syncs(generation_id, at), at
        )

    def _expire_pending_syncs(self, generation_id: int, at: Moment) -> None:
        in_generation = self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        if generation_id == self.generation_id and in_generation and self.pending_syncs:
            for member_id in list(self.pending_syncs):
                self._remove(member_id)
            self._prepare_rebalance(at)

    # SyncGroup

    def sync(self, request: SyncGroupRequest, answer: SyncAnswer, at: Moment) -> None:
        """A member asks for its assignment; the leader hands in everybody's."""
        code = self._validate_sync(request)
        if code:
            answer(SyncGroupResponse(error_code=code))
            return
        member = self.members[request.member_id]
        self.pending_syncs.discard(member.member_id)
        if not self.pending_syncs:
            self.timers.cancel(_SYNC)
        if self.state is GroupState.STABLE:
            answer(self._synced(member))
            return
        self.roster.answer_sync(member, SyncGroupResponse(error_code=Code.REBALANCE_IN_PROGRESS))
        member.sync_answer = answer
        if member.member_id != self.leader_id:
            return
        handed_in = {assigned.member_id: assigned.assignment for assigned in request.assignments}
        assignments = {member_id: handed_in.get(member_id, b"") for member_id in self.members}

        def written(code: int, at: Moment) -> None:
            # Somebody may have joined meanwhile; then this generation is over.
            if self.state is not GroupState.COMPLETING_REBALANCE or request.generation_id != self.generation_id:
                return
            if code:
                self._reset_assignments(code, at)
                self._rebalance_or_complete_join(at)
                return
            self._move_to(GroupState.STABLE, at)
            for member in self.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                if self.roster.answer_sync(member, self._synced(member)):
                    self._heard_of(member, at)

        self.writes.append(GroupWrite(self.value(assignments), written))

    def _validate_sync(self, request: SyncGroupRequest) -> int:
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if self.state is GroupState.EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        if code := self.roster.validate_member(request.member_id, request.group_instance_id):
            return code
        if request.generation_id != self.generation_id:
            return Code.ILLEGAL_GENERATION
        stated = (request.protocol_type, self.protocol_type), (request.protocol_name, self.protocol_name)
        if any(None not in (asked, known) and asked != known for asked, known in stated):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else Code.NONE

    def _synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def _reset_assignments(self, code: int, at: Moment) -> None:
        for member in self.members.values():
            member.assignment = b""
            if self.roster.answer_sync(member, SyncGroupResponse(error_code=code)):
                self._heard_of(member, at)

    # Heartbeat and LeaveGroup

    def heartbeat(self, member_id: str, instance_id: str | None, generation_id: int, at: Moment) -> int:
        """A member says that it lives; returns the code it is answered with."""
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if code := self.roster.validate_member(member_id, instance_id):
            return code
        if generation_id != self.generation_id:
            return Code.ILLEGAL_GENERATION
        if self.state is GroupState.EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        self._heard_of(self.members[member_id], at)
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else Code.NONE

    def leave(self, identities: Iterable[MemberIdentity], at: Moment) -> list[MemberResponse]:
        """Members leave, or are removed by their group instance ids."""
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

    def _leave_one(self, identity: MemberIdentity) -> int:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id:
            held_by = None if instance_id is None else self.roster.static_members.get(instance_id)
            if held_by is None:
                return Code.UNKNOWN_MEMBER_ID
            member_id = held_by
        elif member_id not in self.pending_members and (code := self.roster.validate_member(member_id, instance_id)):
            return code
        self._remove(member_id)
        return Code.NONE

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

    # Members

    def _remove(self, member_id: str) -> None:
        self.roster.remove(member_id)
        self.pending_members.discard(member_id)
        self.pending_syncs.discard(member_id)
        self.timers.cancel(_session(member_id))

    def _rename(self, instance_id: str, member_id: str) -> Member:
        """A static member goes on under another id, and owes under that the SyncGroup that it owed."""
        old_id = self.roster.static_members[instance_id]
        member = self.roster.rename(instance_id, member_id)
        if old_id in self.pending_syncs:
            self.pending_syncs.remove(old_id)
            self.pending_syncs.add(member_id)
        return member

    def _heard_of(self, member: Member, at: Moment) -> None:
        self._schedule_session(member.member_id, member.session_timeout_ms, at)

    def _schedule_session(self, member_id: str, timeout_ms: int, at: Moment) -> None:
        self.timers.schedule(_session(member_id), timeout_ms, lambda at: self._expire_session(member_id, at), at)

    def _move_to(self, state: GroupState, at: Moment) -> None:
        if self.state not in MAY_FOLLOW[state]:
            raise AssertionError(f"{self!r} cannot move to {state}")
        self.previous_state, self.state, self.state_since_ms = self.state, state, at.wall_ms

    def _read_subscriptions(self) -> None:
        """Learn which topics the members read; none are known of what is no consumer group, or cannot be read."""
        try:
            is_consumers = self.protocol_type == CONSUMER_PROTOCOL_TYPE
            self.subscribed_topics = self.roster.subscriptions(self.protocol_name) if is_consumers else None
        except ProtocolError as error:
            logger.warning("%r: a subscription cannot be read: %s", self, error)
            self.subscribed_topics = None

    # Offsets

    def validate_offset_commit(self, member_id: str, instance_id: str | None, generation_id: int) -> int:
        """0 where the offsets of such a member may be kept."""
        if self.state is GroupState.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return Code.NONE
        if generation_id >= 0 or member_id or instance_id is not None:
            if code := self.roster.validate_member(member_id, instance_id):
                return code
            if generation_id != self.generation_id:
                return Code.ILLEGAL_GENERATION
        elif self.state is not GroupState.EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING_REBALANCE else Code.NONE

    def committed_offsets(self, member_id: str, at: Moment) -> None:
        """A member commits offsets, which shows that it lives."""
        if self.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE) and member_id in self.members:
            self._heard_of(self.members[member_id], at)

    def validate_delete(self) -> int:
        """0 where the group may be deleted."""
        if self.state is GroupState.DEAD:
            return Code.GROUP_ID_NOT_FOUND
        return Code.NONE if self.state is GroupState.EMPTY else Code.NON_EMPTY_GROUP

    def validate_offset_delete(self) -> int:
        """0 where offsets may be deleted of topics to which the group is not subscribed."""
        code = self.validate_delete()
        if code == Code.NON_EMPTY_GROUP and self.protocol_type == CONSUMER_PROTOCOL_TYPE:
            return Code.NONE
        return code

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read ``topic``; every topic, where a consumer group's subscriptions cannot be read."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics
