"""EndTxn, versions 0-5: commit or abort a transaction.

* 0, 1: the base. 2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. 3: flexible.
* 4: an error may be TRANSACTION_ABORTABLE: aborting the transaction resolves it (KIP-890).
* 5: the epoch rises with each transaction, and the response has the producer for the next one (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import EPOCH_FOR_EACH_TRANSACTION, ProducerIdAndEpoch
from aioproducer.protocol.messages.transactions import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(6)

_FIRST_WITH_PRODUCER_FENCED: Final = 2
_FIRST_WITH_NEW_EPOCH: Final = 5


async def handle(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Respond when the outcome is in the log; markers are written afterwards."""
    code, producer = await context.broker.transactions.end_transaction(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
        client_version=EPOCH_FOR_EACH_TRANSACTION if context.version >= _FIRST_WITH_NEW_EPOCH else 0,
    )
    if code == Code.PRODUCER_FENCED and context.version < _FIRST_WITH_PRODUCER_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=code, producer_id=producer.producer_id, producer_epoch=producer.epoch)
