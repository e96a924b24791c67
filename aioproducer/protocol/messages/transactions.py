"""Transactions, and the producers that take part (KIP-98, KIP-890)."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    INT32,
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class AddPartitionsToTxnPartitionResult(Struct):
    """Whether one partition belongs to the transaction."""

    partition_index: int = int32("0+")
    partition_error_code: int = int16("0+")


class AddPartitionsToTxnTopicResult(Struct):
    """Whether one topic's partitions belong to the transaction."""

    name: str = string("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult, "0+")


class AddPartitionsToTxnResult(Struct):
    """Whether one transaction's partitions belong to it."""

    transactional_id: str = string("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


class AddPartitionsToTxnResponse(Response, api_key=24, versions="0-5", flexible="3+"):
    """Whether each partition belongs to its transaction."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "0-3")


class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[int] = array(INT32, "0+")


class AddPartitionsToTxnTransaction(Struct):
    """Partitions for one transaction; ``verify_only``: only check whether they belong to it already."""

    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = boolean("4+")
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse], api_key=24, versions="0-5", flexible="3+"):
    """Add partitions to a transaction before the first batch to them.

    Up to version 3 from clients, in the ``v3_and_below`` fields; from 4 on between brokers, several transactions at
    once.
    """

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


class AddOffsetsToTxnResponse(Response, api_key=25, versions="0-4", flexible="3+"):
    """Whether the group's offsets belong to the transaction."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse], api_key=25, versions="0-4", flexible="3+"):
    """Add a group's offsets to a transaction before the first TxnOffsetCommit."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


class TxnOffsetCommitResponsePartition(Struct):
    """Whether one partition's offset is part of the transaction."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class TxnOffsetCommitResponseTopic(Struct):
    """Whether one topic's offsets are part of the transaction."""

    name: str = string("0-5", ignorable=True)
    topic_id: bytes = uuid("6+", ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition, "0+")


class TxnOffsetCommitResponse(Response, api_key=28, versions="0-6", flexible="3+"):
    """Whether each offset is part of the transaction."""

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")


class TxnOffsetCommitRequestPartition(Struct):
    """The offset of the next record to read of one partition."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    committed_metadata: str | None = string("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """The offsets of one topic."""

    name: str = string("0-5", ignorable=True)
    topic_id: bytes = uuid("6+", ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse], api_key=28, versions="0-6", flexible="3+"):
    """Store a group's offsets if and when the transaction commits.

    From version 5 on it also adds the group to the transaction, as AddOffsetsToTxn did (KIP-890). Topics are identified
    by id from version 6.
    """

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id_or_member_epoch: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")


class EndTxnResponse(Response, api_key=26, versions="0-5", flexible="3+"):
    """The result; from version 5 on with the id and epoch for the next transaction (KIP-890)."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)


class EndTxnRequest(Request[EndTxnResponse], api_key=26, versions="0-5", flexible="3+"):
    """Commit or abort a transaction."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


class WritableTxnMarkerPartitionResult(Struct):
    """Whether the marker was written to one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class WritableTxnMarkerTopicResult(Struct):
    """Whether the marker was written to one topic's partitions."""

    name: str = string("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult, "0+")


class WritableTxnMarkerResult(Struct):
    """Whether one transaction's marker was written."""

    producer_id: int = int64("0+")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, "0+")


class WriteTxnMarkersResponse(Response, api_key=27, versions="1-2", flexible="1+"):
    """Whether each marker was written."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, "0+")


class WritableTxnMarkerTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partition_indexes: list[int] = array(INT32, "0+")


class WritableTxnMarker(Struct):
    """The outcome of one transaction: ``transaction_result`` is ``True`` for commit."""

    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    transaction_result: bool = boolean("0+")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, "0+")
    coordinator_epoch: int = int32("0+")
    transaction_version: int = int8("2+", ignorable=True)


class WriteTxnMarkersRequest(Request[WriteTxnMarkersResponse], api_key=27, versions="1-2", flexible="1+"):
    """A coordinator's request to write the outcome of transactions into the logs."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "0+")


class ProducerState(Struct):
    """A producer's last batch, and the first offset of its open transaction, -1 for none."""

    producer_id: int = int64("0+")
    producer_epoch: int = int32("0+")
    last_sequence: int = int32("0+", default=-1)
    last_timestamp: int = int64("0+", default=-1)
    coordinator_epoch: int = int32("0+")
    current_txn_start_offset: int = int64("0+", default=-1)


class PartitionResponse(Struct):
    """The producers known to one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState, "0+")


class TopicResponse(Struct):
    """The producers known to one topic's partitions."""

    name: str = string("0+")
    partitions: list[PartitionResponse] = array(PartitionResponse, "0+")


class DescribeProducersResponse(Response, api_key=61, versions="0", flexible="0+"):
    """The producers of the requested partitions."""

    throttle_time_ms: int = int32("0+")
    topics: list[TopicResponse] = array(TopicResponse, "0+")


class TopicRequest(Struct):
    """A topic to describe."""

    name: str = string("0+")
    partition_indexes: list[int] = array(INT32, "0+")


class DescribeProducersRequest(Request[DescribeProducersResponse], api_key=61, versions="0", flexible="0+"):
    """Request the producers known to partitions (KIP-664)."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
