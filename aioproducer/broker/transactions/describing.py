"""Transactional ids as DescribeTransactions and ListTransactions return them (KIP-664)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import STATES_BY_LABEL, TransactionState
from aioproducer.broker.transactions.transaction import Transaction
from aioproducer.errors import InvalidRegularExpressionError
from aioproducer.protocol.messages import described_transactions, listed_transactions


def described(transaction: Transaction) -> described_transactions.TransactionState:
    """Return the id for DescribeTransactions; of a transaction that is ending, only the partitions without a marker."""
    metadata = transaction.metadata
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(transaction.unmarked if metadata.state.is_ending else metadata.partitions):
        topics[topic].append(index)
    return described_transactions.TransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=metadata.state.label,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[described_transactions.TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )


def described_unknown(transactional_id: str, code: int) -> described_transactions.TransactionState:
    """Return the error for an id that cannot be described."""
    return described_transactions.TransactionState(
        transactional_id=transactional_id, error_code=code or Code.TRANSACTIONAL_ID_NOT_FOUND
    )


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of ListTransactions; empty collections exclude nothing."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    duration_ms: int = -1
    """Minimum age of a transaction, -1 for any."""
    pattern: str | None = None
    """A regular expression that must match the whole id; ``None`` or empty for any."""

    def unknown_states(self) -> list[str]:
        """Return those of ``states`` that do not exist."""
        return [name for name in dict.fromkeys(self.states) if name not in STATES_BY_LABEL]


class Selection:
    """Selects the transactional ids that pass filters at one time."""

    def __init__(self, filters: Filters, now_ms: int) -> None:
        """
        Raises:
            InvalidRegularExpressionError: the pattern is invalid.
        """
        self._filters = filters
        self._now_ms = now_ms
        self._states = {STATES_BY_LABEL[name] for name in filters.states if name in STATES_BY_LABEL}
        self._producer_ids = frozenset(filters.producer_ids)
        try:
            self._pattern = re.compile(filters.pattern) if filters.pattern else None
        except re.error as error:
            raise InvalidRegularExpressionError(
                f"Transaction ID pattern `{filters.pattern}` is not a valid regular expression: {error}."
            ) from error

    def has(self, transaction: Transaction) -> bool:
        """Whether an id passes all filters."""
        metadata, filters = transaction.metadata, self._filters
        is_dead = transaction.pending is not None and transaction.pending.state is TransactionState.DEAD
        return (
            not is_dead
            and (not self._producer_ids or metadata.producer_id in self._producer_ids)
            and (not filters.states or metadata.state in self._states)
            and (filters.duration_ms < 0 or self._now_ms - metadata.start_ms > filters.duration_ms)
            and (self._pattern is None or self._pattern.fullmatch(transaction.transactional_id) is not None)
        )


def listed(transaction: Transaction) -> listed_transactions.TransactionState:
    """Return the id for ListTransactions."""
    return listed_transactions.TransactionState(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.metadata.producer_id,
        transaction_state=transaction.metadata.state.label,
    )
