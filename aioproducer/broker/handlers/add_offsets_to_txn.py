"""AddOffsetsToTxn, versions 0-4: add a group's partition of ``__consumer_offsets`` to a transaction.

* 0, 1: the base. 2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. 3: flexible.
* 4: an error may be TRANSACTION_ABORTABLE: aborting the transaction resolves it (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.broker.image import GROUP_METADATA_TOPIC
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import ProducerIdAndEpoch
from aioproducer.protocol.messages.transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(5)

_FIRST_WITH_PRODUCER_FENCED: Final = 2


async def handle(context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """Respond when the partition is in the log. Clients with KIP-890 do not send this request."""
    broker = context.broker
    code = await broker.transactions.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        [(GROUP_METADATA_TOPIC, broker.groups.shards.partition_for(request.group_id))],
        client_version=0,
    )
    if code == Code.PRODUCER_FENCED and context.version < _FIRST_WITH_PRODUCER_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=code)
