"""LeaveGroup, versions 0-5: members leave their group.

* 0: one member. 1: ``throttle_time_ms``. 2: as 1. 3: several members, also by ``group_instance_id`` alone (KIP-345).
* 4: flexible. 5: ``reason`` (KIP-800).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(6)

_FIRST_WITH_SEVERAL_MEMBERS: Final = 3


async def handle(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Return the result for each member; up to version 2 the only member's error is that of the response."""
    has_several = context.version >= _FIRST_WITH_SEVERAL_MEMBERS
    if not has_several:
        request.members = [MemberIdentity(member_id=request.member_id)]
    response = await context.broker.groups.leave(request)
    if not has_several:
        member_code = response.members[0].error_code if response.members else 0
        return LeaveGroupResponse(error_code=response.error_code or member_code)
    return response
