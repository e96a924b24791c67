"""Heartbeat, versions 0-4: extend a member's session, and return whether its generation is current.

* 0. 1: ``throttle_time_ms``. 2: as 1. 3: static members by ``group_instance_id`` (KIP-345). 4: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(5)


async def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Extend the session; after REBALANCE_IN_PROGRESS the member joins again."""
    return HeartbeatResponse(error_code=context.broker.groups.heartbeat(request))
