"""DescribeTransactions, version 0: the states of transactional ids (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.protocol.messages.described_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(1)


async def handle(context: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """Return the state of each transactional id, or its error."""
    coordinator = context.broker.transactions
    return DescribeTransactionsResponse(
        transaction_states=[coordinator.describe(transactional_id) for transactional_id in request.transactional_ids]
    )
