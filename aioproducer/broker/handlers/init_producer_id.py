"""InitProducerId, versions 0-5: a producer id for an idempotent or a transactional producer (KIP-98).

* 0, 1: the base. 2: flexible. 3: a producer that has an id sends it with its epoch (KIP-360); as in Kafka one without a
  transactional id gets a new id anyway. 4: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH.
* 5: an error may be TRANSACTION_ABORTABLE: aborting the transaction resolves it (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.broker.transactions.states import NO_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from aioproducer.errors import InvalidProducerEpochError, InvalidRequestError, ProducerFencedError
from aioproducer.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(6)

_FIRST_WITH_PRODUCER_FENCED: Final = 4


async def handle(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Without a transactional id return an id that no other producer has; with one, its id with a new epoch.

    Raises:
        InvalidRequestError: a producer id without epoch or the reverse.
    """
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise InvalidRequestError()
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=context.broker.controller.allocate_producer_id(), producer_epoch=0)
    expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    code, producer = await context.broker.transactions.init_producer_id(
        request.transactional_id,
        request.transaction_timeout_ms,
        None if request.producer_id == NO_PRODUCER_ID else expected,
    )
    if code == ProducerFencedError.code and context.version < _FIRST_WITH_PRODUCER_FENCED:
        code = InvalidProducerEpochError.code
    return InitProducerIdResponse(error_code=code, producer_id=producer.producer_id, producer_epoch=producer.epoch)
