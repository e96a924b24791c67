"""The nodes, topics and partitions of a cluster: Metadata, and DescribeTopicPartitions (KIP-966)."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    INT32,
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    nullable_struct,
    string,
    uuid,
)


class MetadataResponseBroker(Struct):
    """A broker and its address for the listener that received the request."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    """One partition; ``leader_id`` is -1 while it has no leader."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("7+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(INT32, "0+")
    isr_nodes: list[int] = array(INT32, "0+")
    offline_replicas: list[int] = array(INT32, "5+", ignorable=True)


class MetadataResponseTopic(Struct):
    """A topic, or the error; it always has a name or an id."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="12+")
    topic_id: bytes = uuid("10+", ignorable=True)
    is_internal: bool = boolean("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = int32("8+", default=-(2**31))


class MetadataResponse(Response, api_key=3, versions="0-13", flexible="9+"):
    """Brokers, and the partitions of the requested topics.

    ``cluster_authorized_operations`` and ``topic_authorized_operations`` are sets of bits numbered as Kafka's
    ``AclOperation``, or the lowest 32-bit integer if they were not requested.
    """

    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = int32("8-10", default=-(2**31))
    error_code: int = int16("13+", ignorable=True)


class MetadataRequestTopic(Struct):
    """A topic, by name or by id."""

    topic_id: bytes = uuid("10+", ignorable=True)
    name: str | None = string("0+", nullable="10+")


class MetadataRequest(Request[MetadataResponse], api_key=3, versions="0-13", flexible="9+"):
    """Request brokers, and the partitions of some topics.

    ``topics`` is ``None`` for all topics from version 1 on, and empty for none; in version 0 an empty list means all.
    Topic ids are understood from version 12 on, although 10 and 11 have the field.
    """

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class DescribeTopicPartitionsResponsePartition(Struct):
    """One partition, with the replicas that may become leader besides those in sync."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(INT32, "0+")
    isr_nodes: list[int] = array(INT32, "0+")
    eligible_leader_replicas: list[int] | None = array(INT32, "0+", nullable="0+", default=None)
    last_known_elr: list[int] | None = array(INT32, "0+", nullable="0+", default=None)
    offline_replicas: list[int] = array(INT32, "0+", ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic, or the error."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="0+")
    topic_id: bytes = uuid("0+", ignorable=True)
    is_internal: bool = boolean("0+", ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition, "0+")
    topic_authorized_operations: int = int32("0+", default=-(2**31))


class Cursor(Struct):
    """The first topic and partition of a page."""

    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsResponse(Response, api_key=75, versions="0", flexible="0+"):
    """A page of partitions; ``next_cursor`` is ``None`` after the last."""

    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic, "0+")
    next_cursor: Cursor | None = nullable_struct(Cursor, "0+")


class TopicRequest(Struct):
    """A topic to describe."""

    name: str = string("0+")


class DescribeTopicPartitionsRequest(Request[DescribeTopicPartitionsResponse], api_key=75, versions="0", flexible="0+"):
    """Request the partitions of some topics in alphabetical order, in pages (KIP-966)."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: Cursor | None = nullable_struct(Cursor, "0+")
