"""DeleteGroups, versions 0-3: groups without members are deleted, with the offsets that they keep.

* 0, 1, 2: flexible. 3: a text beside the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.protocol.messages.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(4)


async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Answered when the log says that they are gone; each group, or why it is not deleted."""
    groups = context.broker.groups
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=await groups.delete(group_id))
            for group_id in request.groups_names
        ]
    )
