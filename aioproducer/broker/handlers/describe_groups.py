"""DescribeGroups, versions 0-6: states and members of groups.

* 0. 1: ``throttle_time_ms``. 2: as 1. 3: the client's permissions for a group, on request. 4: ``group_instance_id``.
* 5: flexible. 6: a group that does not exist is GROUP_ID_NOT_FOUND with a text, up to 5 a dead one (KIP-1043).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(7)

_FIRST_WITH_OPERATIONS: Final = 3

# Kafka's AclOperation: 3 READ, 6 DELETE, 8 DESCRIBE, 10 DESCRIBE_CONFIGS, 11 ALTER_CONFIGS.
_GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))


async def handle(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Return the description of each group, or its error."""
    groups = [context.broker.groups.describe(group_id, version=context.version) for group_id in request.groups]
    if context.version >= _FIRST_WITH_OPERATIONS and request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = _GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=groups)
