"""SyncGroup, versions 0-5: the leader sends all assignments, each member receives its own.

* 0. 1: ``throttle_time_ms``. 2: as 1. 3: static members by ``group_instance_id`` (KIP-345). 4: flexible.
* 5: the request has protocol type and name, which must be the group's; the response has them too (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.errors import InconsistentGroupProtocolError
from aioproducer.protocol.messages.groups import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(6)

_FIRST_WITH_PROTOCOL: Final = 5


async def handle(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Respond when the leader's assignment is in the log.

    Raises:
        InconsistentGroupProtocolError: protocol type or name are missing although the version requires them.
    """
    if context.version >= _FIRST_WITH_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        raise InconsistentGroupProtocolError()
    return await context.broker.groups.sync(request)
