"""Members of a group and the embedded broker's coordinator on virtual time, with faults.

Each member has one connection to the coordinator, whose requests are answered in order, as brokers do. Messages are
encoded and decoded on their way.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.group import Group
from aioproducer.broker.groups.states import GroupSettings
from aioproducer.broker.groups.timers import Moment
from aioproducer.core.membership.assignors import ASSIGNORS
from aioproducer.core.membership.events import EventKind, LeaveOperation, MembershipSettings, RebalanceEvent
from aioproducer.core.membership.membership import GroupMembership
from aioproducer.core.membership.requests import GroupRequest
from aioproducer.core.membership.states import FENCED, STABLE
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.transactions.requests import Result
from aioproducer.errors import NetworkError
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.protocol import APIS, Request, Response
from aioproducer.protocol.frames import decode, encode
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aioproducer.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aioproducer.record import TopicPartition

WALL_MS = 1_700_000_000_000
SESSION_MS = 6_000
POLL_INTERVAL_MS = 12_000
Answer = Callable[[Response], None]


class World:
    """Virtual time, the coordinator, and the members."""

    def __init__(self, random: Random, topics: dict[str, int], settings: GroupSettings | None = None) -> None:
        self.random = random
        self.now = 1000.0
        self.topics = dict(topics)
        self._numbers = itertools.count(1)
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.group = Group("group", settings or GroupSettings(initial_rebalance_delay_ms=500), self._unique, wall_ms=0)
        self.nodes = (1, 2)
        self.coordinator = 1
        self.is_loading = False
        self.committed: dict[TopicPartition, int] = {}
        self.members: list[SimulatedMember] = []
        self.latency = 0.05
        self.most_steps = 200_000
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        """The member that a generation has given each partition to."""

    def _unique(self) -> str:
        return f"{next(self._numbers)}"

    @property
    def moment(self) -> Moment:
        return Moment(self.now, WALL_MS + int((self.now - 1000) * 1000))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), action))

    def delay(self) -> float:
        return self.random.uniform(0.001, self.latency)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while True:
            wake_at = self.group.timers.wake_at
            at = min(self._due[0][0] if self._due else end, end if wake_at is None else wake_at)
            if at >= end:
                break
            self.most_steps -= 1
            assert self.most_steps, "the members never come to rest"
            self.now = max(self.now, at)
            if self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            else:
                self.group.timers.expire(self.moment)
            self.serve()
        self.now = end

    def run_until(self, condition: Callable[[], bool], seconds: float) -> float:
        """Let time pass until a condition holds, at most ``seconds``; return how long that took."""
        began = self.now
        while not condition():
            assert self.now < began + seconds, [member.membership.state for member in self.members]
            self.run(0.1)
        return self.now - began

    def serve(self) -> None:
        """Do the group's writes."""
        while self.group.writes:
            self.group.writes.pop(0).done(0, self.moment)

    def move_coordinator(self) -> None:
        """Another node coordinates the group, with its state; requests in flight lose their connections."""
        self.coordinator = 3 - self.coordinator
        for member in self.members:
            member.disconnect()

    # Members

    def add(self, assignor: str, topics: Sequence[str], *, instance_id: str | None = None) -> SimulatedMember:
        member = SimulatedMember(self, assignor, topics, instance_id)
        self.members.append(member)
        member.pump()
        return member

    @property
    def alive(self) -> list[SimulatedMember]:
        return [member for member in self.members if member.is_alive]

    def is_settled(self) -> bool:
        """Whether all members are stable, in the group's generation, and each partition has its owner."""
        generation_id = self.group.generation_id
        for member in self.alive:
            membership = member.membership
            if membership.state is not STABLE or membership.event is not None:
                return False
            if membership.generation.generation_id != generation_id:
                return False
        wanted = {topic for member in self.alive for topic in member.membership.subscription}
        expected = sorted(
            TopicPartition(topic, partition)
            for topic in wanted & self.topics.keys()
            for partition in range(self.topics[topic])
        )
        owned = sorted(where for member in self.alive for where in member.membership.assignment)
        return owned == expected

    def check_owners(self, member: SimulatedMember) -> None:
        """No partition has two owners in one generation; a static member may be replaced in it."""
        membership = member.membership
        name = member.instance_id or member.name
        generation_id = membership.generation.generation_id
        for where in membership.assignment:
            owner = self.owners.setdefault((generation_id, where), name)
            assert owner == name, f"{where} has two owners in generation {generation_id}: {owner}, {name}"

    # The coordinator

    def answer(self, node: int | None, request: Request[Response], version: int, name: str, answer: Answer) -> None:
        """Answer a request, at once or later."""
        error: int = Code.NONE
        if node is not None and node != self.coordinator:
            error = Code.NOT_COORDINATOR
        elif self.is_loading:
            error = Code.COORDINATOR_LOAD_IN_PROGRESS
        match request:
            case FindCoordinatorRequest():
                node_id = self.coordinator
                answer(FindCoordinatorResponse(coordinators=[Coordinator(key="group", node_id=node_id, port=9092)]))
            case JoinGroupRequest():
                if error:
                    answer(JoinGroupResponse(error_code=error))
                else:
                    self.group.join(request, answer, self.moment, version=version, client_id=name)
            case SyncGroupRequest():
                if error:
                    # Kafka's coordinator answers so while it loads: the rebalance is forgotten.
                    code: int = Code.REBALANCE_IN_PROGRESS if error == Code.COORDINATOR_LOAD_IN_PROGRESS else error
                    answer(SyncGroupResponse(error_code=code))
                else:
                    self.group.sync(request, answer, self.moment)
            case HeartbeatRequest():
                code = error or self.group.heartbeat(
                    request.member_id, request.group_instance_id, request.generation_id, self.moment
                )
                answer(HeartbeatResponse(error_code=code))
            case LeaveGroupRequest():
                answer(LeaveGroupResponse(members=self.group.leave(request.members, self.moment)))
            case OffsetCommitRequest():
                code = error or self.group.validate_offset_commit(
                    request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
                )
                answer(self._committed(request, code))
            case OffsetFetchRequest():
                answer(self._fetched(request, error))
            case _:
                raise AssertionError(request)
        self.serve()

    def _committed(self, request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
        topics = []
        for topic in request.topics:
            for partition in topic.partitions:
                if not code:
                    self.committed[TopicPartition(topic.name, partition.partition_index)] = partition.committed_offset
            topics.append(
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                        for partition in topic.partitions
                    ],
                )
            )
        return OffsetCommitResponse(topics=topics)

    def _fetched(self, request: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
        group = OffsetFetchResponseGroup(group_id="group", error_code=code)
        for topic in request.groups[0].topics or ():
            group.topics.append(
                OffsetFetchResponseTopics(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartitions(
                            partition_index=index,
                            committed_offset=self.committed.get(TopicPartition(topic.name, index), -1),
                            metadata="",
                        )
                        for index in topic.partition_indexes
                    ],
                )
            )
        return OffsetFetchResponse(groups=[group])


class SimulatedMember:
    """A member and its owner: it polls, confirms events after a while, and may stop doing so."""

    def __init__(
        self,
        world: World,
        assignor: str,
        topics: Sequence[str],
        instance_id: str | None,
    ) -> None:
        self.world = world
        self.name = f"member-{len(world.members)}"
        self.instance_id = instance_id
        settings = MembershipSettings(
            "group",
            group_instance_id=instance_id,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=1000,
            max_poll_interval_ms=POLL_INTERVAL_MS,
            request_timeout_ms=4000,
        )
        self.membership = GroupMembership(
            settings, [ASSIGNORS[assignor]()], ExponentialBackoff(100, 1000), Random(world.random.random())
        )
        self.membership.subscribe(topics)
        self.is_alive = True
        self.is_polling = True
        self.paused_until = 0.0
        self.events: list[EventKind] = []
        self._connection = 0
        self._queue: deque[Callable[[], None]] = deque()
        self._is_busy = False
        self._in_flight: set[GroupRequest] = set()
        self._announced: RebalanceEvent | None = None
        self._wakes_at = float("inf")
        self._poll_records()

    # What the application does

    def _poll_records(self) -> None:
        if self.is_alive:
            if self.is_polling and self.world.now >= self.paused_until:
                self.membership.polled(self.world.now)
                self.pump()
            self.world.after(1.0, self._poll_records)

    def commit(self, offset: int) -> tuple[dict[TopicPartition, OffsetAndMetadata], Result]:
        offsets = {where: OffsetAndMetadata(offset) for where in self.membership.assignment}
        result = self.membership.commit(offsets, self.world.now + 5)
        self.pump()
        return offsets, result

    def leave(self, operation: LeaveOperation = LeaveOperation.DEFAULT) -> Result:
        """Close: the member is gone when the result has ended."""
        result = self.membership.leave(operation)
        result.add_callback(self.kill)
        self.pump()
        return result

    def kill(self) -> None:
        self.is_alive = False
        self.disconnect()

    def pause(self, seconds: float) -> None:
        """The whole process stands still."""
        self.paused_until = self.world.now + seconds
        self.world.after(seconds, self.pump)

    # What its owner does

    def pump(self) -> None:
        """Send what is due, and take care of events."""
        if not self.is_alive or self.world.now < self.paused_until:
            return
        membership, world = self.membership, self.world
        while (request := membership.poll(world.now)) is not None:
            self._send(request)
        if membership.coordinator is None and self._queue:
            self.disconnect()
        if membership.generation.exists:
            world.check_owners(self)
        if membership.needs_metadata:
            world.after(world.delay(), self._update_metadata)
        if membership.event is not None and membership.event is not self._announced:
            self._announced = membership.event
            self.events.append(membership.event.kind)
            world.after(world.random.uniform(0, 0.5), self._confirm)
        if membership.wake_at < self._wakes_at:
            self._wakes_at = membership.wake_at
            world.after(max(membership.wake_at - world.now, 0), self._wake)

    def _wake(self) -> None:
        self._wakes_at = float("inf")
        self.pump()

    def _update_metadata(self) -> None:
        topics = {name: tuple(frozenset[str]() for _ in range(count)) for name, count in self.world.topics.items()}
        self.membership.update_metadata(topics, self.membership.watched_topics)
        self.pump()

    def refresh_metadata(self) -> None:
        self._update_metadata()

    def _confirm(self) -> None:
        if not self.is_alive:
            return
        if self.world.now < self.paused_until or not self.is_polling:
            self.world.after(0.5, self._confirm)
            return
        if self._announced is not None and self._announced is self.membership.event:
            self.membership.confirm(self._announced)
            self.pump()

    # Its connection

    def _send(self, request: GroupRequest) -> None:
        if request.needs_new_connection:
            self.disconnect()
        self._in_flight.add(request)
        connection = self._connection
        api = APIS[request.api_key]
        version = min(api.max_version, request.highest_version)
        message = decode(api.request, version, b"".join(encode(request.build(version), version)))

        def arrive() -> None:
            if connection != self._connection:
                return
            self.world.answer(request.node, message, version, self.name, answer)

        def answer(response: Response) -> None:
            received = decode(api.response, version, b"".join(encode(response, version)))
            self.world.after(self.world.delay(), lambda: self._receive(connection, request, received))
            if connection == self._connection and request.node is not None:
                self._is_busy = False
                self._next()

        self.world.after(request.timeout, lambda: self._expire(request))
        if request.node is None:
            self.world.after(self.world.delay(), arrive)
        else:
            self._queue.append(arrive)
            self._next()

    def _next(self) -> None:
        """The coordinator takes the next request of the connection, when it has answered the one before."""
        if self._queue and not self._is_busy:
            self._is_busy = True
            self.world.after(self.world.delay(), self._queue.popleft())

    def _receive(self, connection: int, request: GroupRequest, response: Response) -> None:
        if not self.is_alive or connection != self._connection or request not in self._in_flight:
            return
        if self.world.now < self.paused_until:
            self.world.after(
                self.paused_until - self.world.now + 0.001, lambda: self._receive(connection, request, response)
            )
            return
        self._in_flight.discard(request)
        self.membership.answered(request, response, self.world.now)
        self.pump()

    def _expire(self, request: GroupRequest) -> None:
        if request in self._in_flight:
            self.disconnect()

    def disconnect(self) -> None:
        """The connection ends: every request in flight fails."""
        self._connection += 1
        self._queue.clear()
        self._is_busy = False
        failed, self._in_flight = self._in_flight, set()
        if self.is_alive and failed:
            self.world.after(0.001, lambda: self._fail(failed))

    def _fail(self, failed: set[GroupRequest]) -> None:
        for request in failed:
            self.membership.disconnected(request, NetworkError(), self.world.now)
        self.pump()

    @property
    def is_fenced(self) -> bool:
        return self.membership.state is FENCED

    @property
    def is_leader(self) -> bool:
        return self.membership.generation.member_id == self.world.group.leader_id

    def __repr__(self) -> str:
        return f"<{self.name} {self.membership.state.value} {self.membership.generation}>"
