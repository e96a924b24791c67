"""SyncGroup, versions 0-5: the leader hands in everybody's assignment, each member gets its own.

* 0. 1: ``throttle_time_ms``. 2: as 1. 3: static members by ``group_instance_id`` (KIP-345). 4: flexible.
* 5: protocol type and name are stated, and must be the group's; the response has them (KIP-559).
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
    """Answered when the leader's assignment is in the log.

    Raises:
        InconsistentGroupProtocolError: protocol type or name are missing where they must be stated.
    """
    if context.version >= _FIRST_WITH_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        raise InconsistentGroupProtocolError()
    return await context.broker.groups.sync(request)
