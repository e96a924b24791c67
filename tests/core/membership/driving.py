"""A member under test, whose coordinator the test plays by hand."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from aioproducer.core.membership.assignors import ASSIGNORS, Assignor
from aioproducer.core.membership.events import EventKind, MembershipSettings
from aioproducer.core.membership.membership import GroupMembership
from aioproducer.core.membership.requests import GroupRequest, RequestKind
from aioproducer.core.membership.states import STABLE
from aioproducer.core.membership.subscription import Assignment, Subscription, encode_assignment, encode_subscription
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.protocol import Request, Response
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from aioproducer.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)
from aioproducer.record import TopicPartition

RequestT = TypeVar("RequestT", bound=Request[Response])

NODE = 7
MEMBER = "member-1"
BACKOFF_MS = 100


def partitions(*numbers: int, topic: str = "orders") -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


def owned(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(partitions(*numbers))


class Driver:
    """Time stands still unless a test advances it; backoffs have no jitter."""

    def __init__(self, *assignors: str | Assignor, topics: tuple[str, ...] = ("orders",), **settings: object) -> None:
        self.now = 100.0
        self.settings = MembershipSettings("group", **settings)  # type: ignore[arg-type]  # the fields by name
        made = [ASSIGNORS[each]() if isinstance(each, str) else each for each in assignors or ("range",)]
        backoff = ExponentialBackoff(BACKOFF_MS, 1000, jitter=0)
        self.membership = GroupMembership(self.settings, made, backoff, Random(0))
        if topics:
            self.membership.subscribe(topics)
        self.generation_id = 0
        self.name = made[0].name

    @property
    def state(self) -> object:
        return self.membership.state

    def poll(self) -> GroupRequest | None:
        return self.membership.poll(self.now)

    def sent(self, kind: RequestKind) -> GroupRequest:
        """The next request, which is of this kind."""
        request = self.poll()
        assert request is not None, f"nothing is sent, but {kind} was expected in {self.membership.state}"
        assert request.kind is kind, request
        return request

    def idle(self) -> None:
        request = self.poll()
        assert request is None, request

    def message(self, request: GroupRequest, message_class: type[RequestT], version: int = 9) -> RequestT:
        message = request.build(version)
        assert isinstance(message, message_class)
        return message

    def answer(self, request: GroupRequest, response: Response) -> None:
        self.membership.answered(request, response, self.now)

    def find(self) -> None:
        found = FindCoordinatorResponse(coordinators=[Coordinator(key="group", node_id=NODE)])
        self.answer(self.sent(RequestKind.FIND_COORDINATOR), found)

    def joined(self, *, leads: bool = False, member_id: str = MEMBER, **changes: object) -> JoinGroupResponse:
        """The response to a JoinGroup: the next generation."""
        self.generation_id += 1
        members = []
        if leads:
            data = encode_subscription(Subscription(topics=("orders",)))
            members = [JoinGroupResponseMember(member_id=each, metadata=data) for each in (member_id, "other")]
        fields: dict[str, object] = {
            "generation_id": self.generation_id,
            "protocol_type": "consumer",
            "protocol_name": self.name,
            "leader": member_id if leads else "other",
            "member_id": member_id,
            "members": members,
        }
        return JoinGroupResponse(**{**fields, **changes})  # type: ignore[arg-type]  # the fields by name

    def synced(self, *numbers: int, topic: str = "orders") -> SyncGroupResponse:
        assignment = encode_assignment(Assignment(partitions(*numbers, topic=topic)))
        return SyncGroupResponse(protocol_type="consumer", protocol_name=self.name, assignment=assignment)

    def rejoin(self, *numbers: int) -> JoinGroupRequest:
        """Go through a rebalance; return the message of JoinGroup."""
        join = self.sent(RequestKind.JOIN)
        self.answer(join, self.joined())
        self.answer(self.sent(RequestKind.SYNC), self.synced(*numbers))
        return self.message(join, JoinGroupRequest)

    def stable(self, *numbers: int) -> Driver:
        """A member with its assignment, which its owner has confirmed."""
        self.idle_until_lookup()
        self.rejoin(*numbers)
        self.confirm(EventKind.ASSIGNED)
        self.idle()
        assert self.state is STABLE
        return self

    def idle_until_lookup(self) -> None:
        if self.membership.coordinator is None:
            self.find()

    def confirm(self, kind: EventKind, *numbers: int) -> None:
        """Confirm the event that is expected; with numbers, its partitions are as well."""
        event = self.membership.event
        assert event is not None
        assert event.kind is kind
        if numbers:
            assert event.partitions == owned(*numbers)
        self.membership.confirm(event)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def heartbeat(self, code: int = 0) -> None:
        """Send the next heartbeat when it is due, and answer it."""
        self.advance(self.settings.heartbeat_interval_ms / 1000)
        self.answer(self.sent(RequestKind.HEARTBEAT), HeartbeatResponse(error_code=code))

    def commit_response(self, request: GroupRequest, code: int = 0) -> OffsetCommitResponse:
        """The same code for each partition of a commit."""
        message = self.message(request, OffsetCommitRequest)
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                        for partition in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )
