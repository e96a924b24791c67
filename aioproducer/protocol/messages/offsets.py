"""The offsets of partitions: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
)


class ListOffsetsPartitionResponse(Struct):
    """The offset found in one partition, and the epoch of the leader that wrote it."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """The offsets found in one topic."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


class ListOffsetsResponse(Response, api_key=2, versions="1-11", flexible="6+"):
    """The offsets found; timestamp and offset are -1 if there is none."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")


class ListOffsetsPartition(Struct):
    """A timestamp to look up in one partition."""

    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
    timestamp: int = int64("0+")


class ListOffsetsTopic(Struct):
    """The timestamps to look up in one topic."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Request[ListOffsetsResponse], api_key=2, versions="1-11", flexible="6+"):
    """Find the first offset whose record is not older than a timestamp, in some partitions.

    Negative timestamps stand for special offsets: -1 latest, -2 earliest, -3 the record with the largest timestamp
    (version 7), -4 earliest local (8), -5 latest tiered (9), -6 earliest pending upload (11).
    """

    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+", ignorable=True)


class EpochEndOffset(Struct):
    """The end of a leader epoch; -1 if unknown."""

    error_code: int = int16("0+")
    partition: int = int32("0+")
    leader_epoch: int = int32("1+", default=-1, ignorable=True)
    end_offset: int = int64("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The ends of the epochs of one topic's partitions."""

    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Response, api_key=23, versions="2-4", flexible="4+"):
    """The ends of the requested epochs, or of the largest epochs below them."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")


class OffsetForLeaderPartition(Struct):
    """An epoch of one partition."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    leader_epoch: int = int32("0+")


class OffsetForLeaderTopic(Struct):
    """The epochs of one topic's partitions."""

    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse], api_key=23, versions="2-4", flexible="4+"):
    """Request the ends of leader epochs, to find the offset of a truncation (KIP-101, KIP-320)."""

    replica_id: int = int32("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")


class DeleteRecordsPartitionResult(Struct):
    """The new log start offset of one partition."""

    partition_index: int = int32("0+")
    low_watermark: int = int64("0+")
    error_code: int = int16("0+")


class DeleteRecordsTopicResult(Struct):
    """The new log start offsets of one topic."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult, "0+")


class DeleteRecordsResponse(Response, api_key=21, versions="0-2", flexible="2+"):
    """The new log start offsets."""

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, "0+")


class DeleteRecordsPartition(Struct):
    """The offset before which records of one partition are deleted."""

    partition_index: int = int32("0+")
    offset: int = int64("0+")


class DeleteRecordsTopic(Struct):
    """The offsets before which records of one topic are deleted."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Request[DeleteRecordsResponse], api_key=21, versions="0-2", flexible="2+"):
    """Delete the records before given offsets; the offset -1 stands for the high watermark (KIP-107)."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")
