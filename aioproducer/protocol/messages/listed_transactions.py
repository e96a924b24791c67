"""ListTransactions: the transactional ids that a broker coordinates (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    INT64,
    STRING,
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class TransactionState(Struct):
    """One transactional id and the state of its last transaction."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    transaction_state: str = string("0+")


class ListTransactionsResponse(Response, api_key=66, versions="0-2", flexible="0+"):
    """The transactional ids that pass the filters, and the filters for states that do not exist."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array(STRING, "0+")
    transaction_states: list[TransactionState] = array(TransactionState, "0+")


class ListTransactionsRequest(Request[ListTransactionsResponse], api_key=66, versions="0-2", flexible="0+"):
    """List transactional ids; an empty filter excludes none.

    Version 1 adds ``duration_filter``, the minimum age of a transaction in milliseconds, -1 for any. Version 2 adds a
    regular expression that must match the whole id.
    """

    state_filters: list[str] = array(STRING, "0+")
    producer_id_filters: list[int] = array(INT64, "0+")
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)
