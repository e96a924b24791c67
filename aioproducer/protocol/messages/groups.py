"""The classic consumer group: finding its coordinator, joining, leaving, describing."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    STRING,
    Request,
    Response,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    string,
)


class Coordinator(Struct):
    """The coordinator of one key, or the error."""

    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Response, api_key=10, versions="0-6", flexible="3+"):
    """The coordinators: in the response's own fields up to version 3, in ``coordinators`` from 4."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")


class FindCoordinatorRequest(Request[FindCoordinatorResponse], api_key=10, versions="0-6", flexible="3+"):
    """Find the broker that coordinates a group (``key_type`` 0), transactional id (1) or share group (2).

    One in ``key`` up to version 3, several in ``coordinator_keys`` from 4 (KIP-699).
    """

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array(STRING, "4+")


class JoinGroupResponseMember(Struct):
    """A member and its metadata for the chosen assignor."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = binary("0+")


class JoinGroupResponse(Response, api_key=11, versions="0-9", flexible="6+"):
    """The new generation; its leader, and only it, receives all the members."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+")
    member_id: str = string("0+")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, "0+")


class JoinGroupRequestProtocol(Struct):
    """An assignor that the member supports, with the member's metadata for it."""

    name: str = string("0+")
    metadata: bytes = binary("0+")


class JoinGroupRequest(Request[JoinGroupResponse], api_key=11, versions="0-9", flexible="6+"):
    """Become or stay a member of a group while it rebalances.

    An empty ``member_id`` requests a new one. From version 4 on the broker refuses the first request with
    MEMBER_ID_REQUIRED and returns the id for the next one (KIP-394).
    """

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, "0+")
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class SyncGroupResponse(Response, api_key=14, versions="0-5", flexible="4+"):
    """The member's own assignment."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = binary("0+")


class SyncGroupRequestAssignment(Struct):
    """One member's assignment."""

    member_id: str = string("0+")
    assignment: bytes = binary("0+")


class SyncGroupRequest(Request[SyncGroupResponse], api_key=14, versions="0-5", flexible="4+"):
    """Send the assignments, which only the leader has, and request the member's own."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")


class HeartbeatResponse(Response, api_key=12, versions="0-4", flexible="4+"):
    """Whether the generation is still current."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")


class HeartbeatRequest(Request[HeartbeatResponse], api_key=12, versions="0-4", flexible="4+"):
    """Extend the session of a member."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class MemberResponse(Struct):
    """Whether one member has left."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = int16("3+")


class LeaveGroupResponse(Response, api_key=13, versions="0-5", flexible="4+"):
    """Whether each member has left."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")


class MemberIdentity(Struct):
    """A member that leaves."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Request[LeaveGroupResponse], api_key=13, versions="0-5", flexible="4+"):
    """Leave a group: one member up to version 2, several from 3 (KIP-345)."""

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


class DescribedGroupMember(Struct):
    """A member; the group's protocol type determines the content of its bytes."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = binary("0+")
    member_assignment: bytes = binary("0+")


class DescribedGroup(Struct):
    """A group, or the error."""

    error_code: int = int16("0+")
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=-(2**31))


class DescribeGroupsResponse(Response, api_key=15, versions="0-6", flexible="5+"):
    """The requested groups."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")


class DescribeGroupsRequest(Request[DescribeGroupsResponse], api_key=15, versions="0-6", flexible="5+"):
    """Request the states and members of some groups."""

    groups: list[str] = array(STRING, "0+")
    include_authorized_operations: bool = boolean("3+")


class ListedGroup(Struct):
    """A group's id, kind and state."""

    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


class ListGroupsResponse(Response, api_key=16, versions="0-5", flexible="3+"):
    """The groups that pass the filters."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")


class ListGroupsRequest(Request[ListGroupsResponse], api_key=16, versions="0-5", flexible="3+"):
    """List the groups that a broker coordinates; empty filters exclude none (KIP-518, KIP-848)."""

    states_filter: list[str] = array(STRING, "4+")
    types_filter: list[str] = array(STRING, "5+")


class DeletableGroupResult(Struct):
    """Whether one group was deleted."""

    group_id: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class DeleteGroupsResponse(Response, api_key=42, versions="0-3", flexible="2+"):
    """Whether each group was deleted."""

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")


class DeleteGroupsRequest(Request[DeleteGroupsResponse], api_key=42, versions="0-3", flexible="2+"):
    """Delete groups without members, and their committed offsets (KIP-229)."""

    groups_names: list[str] = array(STRING, "0+")
