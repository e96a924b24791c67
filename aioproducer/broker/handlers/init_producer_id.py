"""InitProducerId, versions 0-5: a producer id for an idempotent producer (KIP-98).

* 0, 1: the base. 2: flexible. 3: a producer that has an id says it and its epoch (KIP-360); as in Kafka one without a
  transactional id gets a new id all the same. 4, 5: errors that concern transactions.

Transactions are not served: a transactional id is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, see ``produce``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.handlers.produce import TRANSACTIONS_NOT_SERVED
from aioproducer.errors import InvalidRequestError, TransactionalIdAuthorizationError
from aioproducer.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(6)


async def handle(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """An id that no other producer has, with the epoch 0.

    Raises:
        TransactionalIdAuthorizationError: there is a transactional id.
        InvalidRequestError: an empty transactional id, or an id without epoch or the reverse.
    """
    if request.transactional_id:
        raise TransactionalIdAuthorizationError(TRANSACTIONS_NOT_SERVED)
    if request.transactional_id is not None or (request.producer_id == -1) != (request.producer_epoch == -1):
        raise InvalidRequestError()
    return InitProducerIdResponse(producer_id=context.broker.controller.allocate_producer_id(), producer_epoch=0)
