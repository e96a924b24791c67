"""DeleteGroups, versions 0-3: delete groups without members, with their committed offsets.

* 0, 1, 2: flexible. 3: an error text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.protocol.messages.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(4)


async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Respond with the result for each group when the deletions are in the log."""
    groups = context.broker.groups
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=await groups.delete(group_id))
            for group_id in request.groups_names
        ]
    )
