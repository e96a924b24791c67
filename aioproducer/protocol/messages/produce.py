"""Produce: append record batches to partitions."""

from __future__ import annotations

from aioproducer.protocol.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from aioproducer.protocol.schema import (
    Records,
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class BatchIndexAndErrorMessage(Struct):
    """A record that made the broker refuse its batch (KIP-467)."""

    batch_index: int = int32("8+")
    batch_index_error_message: str | None = string("8+", nullable="8+", default=None)


class PartitionProduceResponse(Struct):
    """The result for a partition's batch.

    ``base_offset`` is the offset of its first record; ``log_append_time_ms`` is -1 unless the topic has the broker's
    timestamps.
    """

    index: int = int32("0+")
    error_code: int = int16("0+")
    base_offset: int = int64("0+")
    log_append_time_ms: int = int64("2+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+", ignorable=True)
    error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    """The results for a topic's batches."""

    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse, "0+")


class ProduceResponse(Response, api_key=0, versions="3-13", flexible="9+"):
    """The result for each batch.

    From version 10 on ``current_leader`` and ``node_endpoints`` contain a partition's new leader (KIP-951).
    """

    responses: list[TopicProduceResponse] = array(TopicProduceResponse, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)


class PartitionProduceData(Struct):
    """One record batch for one partition."""

    index: int = int32("0+")
    records: Records = records("0+", nullable="0+")


class TopicProduceData(Struct):
    """The batches for one topic."""

    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, "0+")


class ProduceRequest(Request[ProduceResponse], api_key=0, versions="3-13", flexible="9+"):
    """Append a record batch to each of some partitions.

    ``acks`` is 0 (no response), 1 (the leader has the batch) or -1 (all in-sync replicas have it); ``timeout_ms``
    limits how long the leader waits for the others. Topics are identified by name up to version 12, by id from 13
    (KIP-516). From version 12 on a batch of a transaction adds its partition to the transaction; clients of older
    transactions use version 11 (KIP-890).
    """

    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = int16("0+")
    timeout_ms: int = int32("0+")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "0+")
