"""The responses of share groups (KIP-932) with addresses, declared as in ``aioproducer.protocol.messages``."""

from __future__ import annotations

from aioproducer.protocol.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from aioproducer.protocol.schema import (
    Records,
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


class AcquiredRecords(Struct):
    """A range of records that the consumer may acknowledge."""

    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    delivery_count: int = int16("0+")


class SharePartitionData(Struct):
    """The records of one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acknowledge_error_code: int = int16("0+")
    acknowledge_error_message: str | None = string("0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "0+")
    records: Records = records("0+", nullable="0+")
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords, "0+")


class ShareFetchableTopicResponse(Struct):
    """The records of one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[SharePartitionData] = array(SharePartitionData, "0+")


class ShareFetchResponse(Response, api_key=78, versions="0-2", flexible="0+"):
    """Records for a member of a share group, and the current leaders; version 0 is Kafka 4.0's early access."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "0+")


class ShareAcknowledgePartitionData(Struct):
    """The results of the acknowledgements for one partition."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "0+")


class ShareAcknowledgeTopicResponse(Struct):
    """The results of the acknowledgements for one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[ShareAcknowledgePartitionData] = array(ShareAcknowledgePartitionData, "0+")


class ShareAcknowledgeResponse(Response, api_key=79, versions="0-2", flexible="0+"):
    """The results of acknowledgements, and the current leaders."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "0+")
