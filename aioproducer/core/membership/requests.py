"""The requests of a member: their lanes, and their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from aioproducer.core.membership.subscription import NO_GENERATION, PROTOCOL_TYPE
from aioproducer.offsets import OffsetAndMetadata, numbers_by_topic
from aioproducer.protocol import ApiKey, Request, Response
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from aioproducer.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from aioproducer.record import TopicPartition

_ANY = 32767
# LeaveGroup: members in a list, with a reason since version 5 (KIP-345, KIP-800).
LEAVING_MEMBERS_FROM = 3
# OffsetFetch: offsets of open transactions are waited for (KIP-447); groups in a list (KIP-709).
STABLE_OFFSETS_FROM = 7
FETCHED_GROUPS_FROM = 8
# Kafka truncates reasons likewise (JoinGroupRequest.maybeTruncateReason).
LONGEST_REASON = 255


class Lane(Enum):
    """A sequence of requests, of which one is in flight."""

    LOOKUP = "lookup"
    MEMBERSHIP = "membership"
    HEARTBEAT = "heartbeat"
    COMMIT = "commit"
    FETCH = "fetch"


class RequestKind(Enum):
    """The requests of a member: lane, API, highest version, lowest version for a static member (KIP-345).

    Offsets go by topic names, so versions with topic ids are not used: Kafka's classic consumer does the same.
    """

    FIND_COORDINATOR = (Lane.LOOKUP, ApiKey.FIND_COORDINATOR, _ANY, 0)
    JOIN = (Lane.MEMBERSHIP, ApiKey.JOIN_GROUP, _ANY, 5)
    SYNC = (Lane.MEMBERSHIP, ApiKey.SYNC_GROUP, _ANY, 3)
    LEAVE = (Lane.MEMBERSHIP, ApiKey.LEAVE_GROUP, _ANY, 0)
    HEARTBEAT = (Lane.HEARTBEAT, ApiKey.HEARTBEAT, _ANY, 3)
    COMMIT = (Lane.COMMIT, ApiKey.OFFSET_COMMIT, 9, 7)
    FETCH_OFFSETS = (Lane.FETCH, ApiKey.OFFSET_FETCH, 9, 0)

    @property
    def lane(self) -> Lane:
        return self.value[0]


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of the group, and the member's id in it."""

    generation_id: int = NO_GENERATION
    member_id: str = ""
    protocol_name: str | None = None
    """The assignor that the group has chosen."""

    @property
    def exists(self) -> bool:
        """Whether the member is in a generation. It may have an id without one."""
        return self.generation_id != NO_GENERATION


@dataclass(frozen=True, slots=True, eq=False)
class GroupRequest:
    """A request to send now."""

    kind: RequestKind
    node: int | None
    """The coordinator; None: any node."""
    generation: Generation
    """The member's generation when it was made."""
    timeout: float
    """Seconds to wait for the response; a JoinGroup waits for the other members."""
    lowest_version: int
    build: Callable[[int], Request[Response]]
    """Returns the message for a version of the API."""
    needs_new_connection: bool = False
    """A JoinGroup or SyncGroup of this member is in flight, and its response no longer counts. A broker answers the
    requests of a connection in order, so this one would wait for it."""

    @property
    def api_key(self) -> ApiKey:
        return self.kind.value[1]

    @property
    def highest_version(self) -> int:
        return self.kind.value[2]

    def __repr__(self) -> str:
        return f"<GroupRequest {self.kind.name} to {self.node}>"


def join_message(
    group_id: str,
    generation: Generation,
    group_instance_id: str | None,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    protocols: Mapping[str, bytes],
    reason: str,
) -> JoinGroupRequest:
    """Return the message of JoinGroup; ``protocols`` are the assignors in the order of preference."""
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=generation.member_id,
        group_instance_id=group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols.items()],
        reason=reason[:LONGEST_REASON],
    )


def sync_message(
    group_id: str, generation: Generation, group_instance_id: str | None, assignments: Mapping[str, bytes]
) -> SyncGroupRequest:
    """Return the message of SyncGroup; only the leader has assignments."""
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=generation.protocol_name,
        assignments=[
            SyncGroupRequestAssignment(member_id=member_id, assignment=data) for member_id, data in assignments.items()
        ],
    )


def heartbeat_message(group_id: str, generation: Generation, group_instance_id: str | None) -> HeartbeatRequest:
    """Return the message of Heartbeat."""
    return HeartbeatRequest(
        group_id=group_id,
        generation_id=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=group_instance_id,
    )


def leave_message(group_id: str, member_id: str, reason: str, version: int) -> LeaveGroupRequest:
    """Return the message of LeaveGroup."""
    if version < LEAVING_MEMBERS_FROM:
        return LeaveGroupRequest(group_id=group_id, member_id=member_id)
    return LeaveGroupRequest(
        group_id=group_id, members=[MemberIdentity(member_id=member_id, reason=reason[:LONGEST_REASON])]
    )


def commit_message(
    group_id: str,
    generation: Generation,
    group_instance_id: str | None,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> OffsetCommitRequest:
    """Return the message of OffsetCommit; without a generation it commits for a group without members."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation.generation_id,
        member_id=generation.member_id if generation.exists else "",
        group_instance_id=group_instance_id if generation.exists else None,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def fetch_offsets_message(group_id: str, partitions: Iterable[TopicPartition], version: int) -> OffsetFetchRequest:
    """Return the message of OffsetFetch. Offsets that an open transaction is about to commit are waited for."""
    topics = numbers_by_topic(partitions)
    is_stable = version >= STABLE_OFFSETS_FROM
    if version < FETCHED_GROUPS_FROM:
        return OffsetFetchRequest(
            group_id=group_id,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=of) for topic, of in topics.items()],
            require_stable=is_stable,
        )
    group = OffsetFetchRequestGroup(
        group_id=group_id,
        topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=of) for topic, of in topics.items()],
    )
    return OffsetFetchRequest(groups=[group], require_stable=is_stable)
