"""Drives a group under test: the test passes the time, and keeps responses and writes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from aioproducer.broker.groups.classic_group import GroupWrite
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.group import Group
from aioproducer.broker.groups.states import GroupSettings
from aioproducer.broker.groups.timers import Moment
from aioproducer.protocol import encode_version_prefixed
from aioproducer.protocol.messages import ConsumerProtocolSubscription
from aioproducer.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

SESSION_MS = 10_000
REBALANCE_MS = 30_000
WALL_MS = 1_700_000_000_000
NEWEST = 9


def subscription(*topics: str, version: int = 1) -> bytes:
    """The metadata of a consumer with a subscription to ``topics``."""
    return encode_version_prefixed(ConsumerProtocolSubscription(topics=list(topics)), version)


def protocols(*names: str, metadata: bytes | None = None) -> list[JoinGroupRequestProtocol]:
    said = subscription("orders") if metadata is None else metadata
    return [JoinGroupRequestProtocol(name=name, metadata=said) for name in names]


@dataclass
class Join:
    """A JoinGroup and its responses, of which there must finally be one."""

    request: JoinGroupRequest
    answers: list[JoinGroupResponse] = field(default_factory=list)

    @property
    def answer(self) -> JoinGroupResponse:
        (answer,) = self.answers
        return answer

    @property
    def code(self) -> int:
        return self.answer.error_code


@dataclass
class Sync:
    """A SyncGroup and its responses."""

    request: SyncGroupRequest
    answers: list[SyncGroupResponse] = field(default_factory=list)

    @property
    def answer(self) -> SyncGroupResponse:
        (answer,) = self.answers
        return answer

    @property
    def code(self) -> int:
        return self.answer.error_code


class Driver:
    """Drives one group. Writes wait until ``write`` is called, or are done at once."""

    def __init__(
        self, settings: GroupSettings | None = None, *, writes_at_once: bool = True, group: Group | None = None
    ) -> None:
        self._numbers = itertools.count(1)
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.group = group or Group("group", self.settings, self.unique, wall_ms=WALL_MS)
        self.now = 1000.0
        self.writes_at_once = writes_at_once
        self.waiting: list[GroupWrite] = []
        self.written: list[GroupWrite] = []

    def unique(self) -> str:
        return str(next(self._numbers))

    @property
    def moment(self) -> Moment:
        return Moment(self.now, WALL_MS + int((self.now - 1000.0) * 1000))

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        names: tuple[str, ...] = ("range",),
        metadata: bytes | None = None,
        version: int = NEWEST,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> Join:
        join = Join(
            JoinGroupRequest(
                group_id="group",
                member_id=member_id,
                group_instance_id=instance_id,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=protocols(*names, metadata=metadata),
            )
        )
        self.group.join(join.request, join.answers.append, self.moment, version=version, client_id="client")
        self.serve()
        return join

    def enter(self, **options: object) -> Join:
        """Join as a new member does: request an id, join with it."""
        required = self.join(**options)  # type: ignore[arg-type]  # the options of join
        assert required.code == Code.MEMBER_ID_REQUIRED
        return self.join(required.answer.member_id, **options)  # type: ignore[arg-type]  # the options of join

    def enter_refused(self, **options: object) -> int:
        """Return the code with which a new member is refused."""
        return self.join(**options).code  # type: ignore[arg-type]  # the options of join

    def sync(self, join: Join, assignments: dict[str, bytes] | None = None, **changes: object) -> Sync:
        values: dict[str, object] = {
            "group_id": "group",
            "generation_id": join.answer.generation_id,
            "member_id": join.answer.member_id,
            "group_instance_id": join.request.group_instance_id,
            "protocol_type": join.answer.protocol_type,
            "protocol_name": join.answer.protocol_name,
            "assignments": [
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        }
        sync = Sync(SyncGroupRequest(**{**values, **changes}))  # type: ignore[arg-type]  # the fields by name
        self.group.sync(sync.request, sync.answers.append, self.moment)
        self.serve()
        return sync

    def heartbeat(self, join: Join, generation_id: int | None = None) -> int:
        generation = join.answer.generation_id if generation_id is None else generation_id
        code = self.group.heartbeat(join.answer.member_id, join.request.group_instance_id, generation, self.moment)
        self.serve()
        return code

    def leave(self, *identities: MemberIdentity) -> list[MemberResponse]:
        responses = self.group.leave(identities, self.moment)
        self.serve()
        return responses

    def leave_as(self, join: Join) -> int:
        (response,) = self.leave(MemberIdentity(member_id=join.answer.member_id))
        return response.error_code

    def advance(self, seconds: float) -> None:
        """Advance the time; timers fire when they are due."""
        end = self.now + seconds
        while (wake_at := self.group.timers.wake_at) is not None and wake_at <= end:
            self.now = max(self.now, wake_at)
            self.group.timers.expire(self.moment)
            self.serve()
        self.now = end

    def timers_of(self, member_id: str) -> bool:
        """Whether there is a timer for the member's session."""
        return f"session {member_id}" in self.group.timers

    def serve(self) -> None:
        while self.group.writes:
            self.waiting.append(self.group.writes.pop(0))
            if self.writes_at_once:
                self.write()

    def write(self, code: int = 0) -> None:
        """End the oldest pending write."""
        write = self.waiting.pop(0)
        if not code:
            self.written.append(write)
        write.done(code, self.moment)
        self.serve()

    def complete_join(self) -> None:
        """Begin the generation of all members that have joined."""
        self.advance(0.01)

    def stable(self, count: int, **options: object) -> list[Join]:
        """Return a stable group of ``count`` members, each with its own id as assignment; the leader first."""
        joins = [self.enter(**options) for _ in range(count)]
        self.complete_join()
        assert all(join.code == Code.NONE for join in joins)
        leader = next(join for join in joins if join.answer.member_id == join.answer.leader)
        joins.remove(leader)
        everybody = {join.answer.member_id: join.answer.member_id.encode() for join in [leader, *joins]}
        syncs = [self.sync(leader, everybody), *[self.sync(join) for join in joins]]
        assert all(sync.code == Code.NONE for sync in syncs)
        return [leader, *joins]
