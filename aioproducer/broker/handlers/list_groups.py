"""ListGroups, versions 0-5: the groups that this node coordinates.

* 0. 1: ``throttle_time_ms``. 2: as 1. 3: flexible. 4: states, and a filter by them (KIP-518).
* 5: types, and a filter by them (KIP-848); all groups here are classic ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(6)


async def handle(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """Return all groups that pass the filters.

    Raises:
        CoordinatorLoadInProgressError: some groups are still loading.
        CoordinatorNotAvailableError: the broker is stopping.
    """
    return ListGroupsResponse(groups=context.broker.groups.list_groups(request.states_filter, request.types_filter))
