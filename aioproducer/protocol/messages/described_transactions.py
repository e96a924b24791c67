"""DescribeTransactions: the state of transactional ids (KIP-664)."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    INT32,
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


class TopicData(Struct):
    """Partitions of one topic in a transaction."""

    topic: str = string("0+")
    partitions: list[int] = array(INT32, "0+")


class TransactionState(Struct):
    """One transactional id: its producer and its last transaction.

    While the transaction is ending, ``topics`` has the partitions without a marker. Times are in milliseconds.
    """

    error_code: int = int16("0+")
    transactional_id: str = string("0+")
    transaction_state: str = string("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_start_time_ms: int = int64("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    topics: list[TopicData] = array(TopicData, "0+")


class DescribeTransactionsResponse(Response, api_key=65, versions="0", flexible="0+"):
    """The requested transactional ids, each with its own error code."""

    throttle_time_ms: int = int32("0+")
    transaction_states: list[TransactionState] = array(TransactionState, "0+")


class DescribeTransactionsRequest(Request[DescribeTransactionsResponse], api_key=65, versions="0", flexible="0+"):
    """Describe transactional ids; only their coordinator can."""

    transactional_ids: list[str] = array(STRING, "0+")
