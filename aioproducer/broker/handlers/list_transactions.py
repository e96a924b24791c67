"""ListTransactions, versions 0-2: the transactional ids that this node coordinates (KIP-664).

* 0: by state and producer id. 1: by age (KIP-994). 2: by a pattern of the id (KIP-1152).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.transactions.describing import Filters
from aioproducer.protocol.messages.listed_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(3)


async def handle(context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """Return all transactional ids that pass the filters, and the unknown states in the filters.

    Raises:
        CoordinatorLoadInProgressError: some ids are still loading.
        CoordinatorNotAvailableError: the broker is stopping.
        InvalidRegularExpressionError: the pattern is invalid.
    """
    filters = Filters(
        request.state_filters, request.producer_id_filters, request.duration_filter, request.transactional_id_pattern
    )
    return ListTransactionsResponse(
        unknown_state_filters=filters.unknown_states(),
        transaction_states=context.broker.transactions.list_transactions(filters),
    )
