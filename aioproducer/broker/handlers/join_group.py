"""JoinGroup, versions 0-9: become or stay a member of a group.

* 0: the session timeout is also the rebalance timeout. 1: ``rebalance_timeout_ms``. 2: ``throttle_time_ms``.
* 4: a client without a member id receives one with MEMBER_ID_REQUIRED, and repeats the request with it (KIP-394).
* 5: static members by ``group_instance_id`` (KIP-345). 6: flexible. 7: the response has the protocol type, and a null
  protocol name if there is none. 8: ``reason`` (KIP-800).
* 9: ``skip_assignment``: a leader that returns as a static member has nothing to assign (KIP-814).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.protocol.messages.groups import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(10)

_FIRST_WITH_REBALANCE_TIMEOUT: Final = 1
_FIRST_WITH_NULL_PROTOCOL_NAME: Final = 7


async def handle(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Respond when the group's next generation begins."""
    if context.version < _FIRST_WITH_REBALANCE_TIMEOUT:
        request.rebalance_timeout_ms = request.session_timeout_ms
    response = await context.broker.groups.join(
        request,
        version=context.version,
        client_id=context.header.client_id or "",
        client_host=f"/{context.connection.peer_host}",
    )
    if context.version < _FIRST_WITH_NULL_PROTOCOL_NAME:
        response.protocol_name = response.protocol_name or ""
    else:
        response.protocol_name = response.protocol_name or None
    return response
