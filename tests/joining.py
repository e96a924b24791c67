"""Members of groups that tests join by single requests, without a consumer."""

from __future__ import annotations

from collections.abc import Iterable

from aioproducer.admin import Admin
from aioproducer.core.membership.subscription import Assignment, encode_assignment
from aioproducer.core.transactions.requests import CoordinatorType
from aioproducer.io.coordinators import find_coordinators
from aioproducer.protocol.messages import JoinGroupRequest, SyncGroupRequest
from aioproducer.protocol.messages.groups import SyncGroupRequestAssignment
from aioproducer.record import TopicPartition
from tests.broker.groups.driving import protocols

TIMEOUT = 30.0


async def join_group(
    admin: Admin, group_id: str, assignment: Iterable[TopicPartition], *, group_instance_id: str | None = None
) -> str:
    """Let a member that reads the topic ``orders`` join a group without members, and return its id.

    It stays for a session of 30 s; the cluster has had a coordinator for the group before.
    """
    nodes = await find_coordinators(admin.client, CoordinatorType.GROUP, [group_id], TIMEOUT)
    member_id = ""
    for _ in range(2):
        join = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            group_instance_id=group_instance_id,
            protocol_type="consumer",
            protocols=protocols("range"),
        )
        answer = await admin.client.request(join, node_id=nodes[group_id], timeout=TIMEOUT)
        member_id = answer.member_id
        if not answer.error_code:
            break
    assert answer.error_code == 0
    data = encode_assignment(Assignment(tuple(assignment)))
    sync = SyncGroupRequest(
        group_id=group_id,
        generation_id=answer.generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=data)],
    )
    assert (await admin.client.request(sync, node_id=nodes[group_id], timeout=TIMEOUT)).error_code == 0
    return member_id
