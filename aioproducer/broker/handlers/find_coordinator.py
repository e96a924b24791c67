"""FindCoordinator, versions 0-6: the node that coordinates a group or a transactional id.

* 0: one group. 1: ``key_type``, ``throttle_time_ms``, ``error_message``. 2: as 1. 3: flexible.
* 4: several keys at once (KIP-699). 5: an error may be TRANSACTION_ABORTABLE (KIP-890).
* 6: share groups (KIP-932).

Keys are groups and transactional ids. For share groups the response is INVALID_REQUEST, as Kafka's for a kind of
coordinator that a broker does not have; clients treat it as final.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.errors import BrokerError, CoordinatorNotAvailableError, InvalidRequestError
from aioproducer.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(7)

_FIRST_WITH_SEVERAL_KEYS: Final = 4
_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_MALFORMED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)


async def handle(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Return the coordinator of each key; its topic is created if it does not exist."""
    if context.version >= _FIRST_WITH_SEVERAL_KEYS:
        found = [_find(context, request.key_type, key) for key in request.coordinator_keys]
        for one in found:
            if one.error_code == CoordinatorNotAvailableError.code or request.key_type == _SHARE:
                # Kafka has no text for these errors if the request may have several keys.
                one.error_message = ""
        return FindCoordinatorResponse(coordinators=found)
    one = _find(context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        # Kafka's text for success.
        error_message=one.error_message or "NONE",
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _find(context: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        if key_type == _GROUP:
            node = context.broker.groups.shards.find(key)
        elif key_type == _TRANSACTION:
            node = context.broker.transactions.shards.find(key)
        else:
            raise InvalidRequestError(_MALFORMED)
    except BrokerError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=str(error))
    return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port)
