"""Heartbeat, versions 0-4: a member lives, and learns whether its generation still holds.

* 0. 1: ``throttle_time_ms``. 2: as 1. 3: static members by ``group_instance_id`` (KIP-345). 4: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(5)


async def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """REBALANCE_IN_PROGRESS has the member join again."""
    return HeartbeatResponse(error_code=context.broker.groups.heartbeat(request))
