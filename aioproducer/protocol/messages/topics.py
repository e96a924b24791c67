"""Create and delete topics, and add partitions to them."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    INT32,
    STRING,
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    uuid,
)


class CreatableTopicConfigs(Struct):
    """A configuration key of the new topic."""

    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = boolean("5+")
    config_source: int = int8("5+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("5+")


class CreatableTopicResult(Struct):
    """A new topic, or the error."""

    name: str = string("0+")
    topic_id: bytes = uuid("7+", ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = int16("5+", ignorable=True, tag=0)
    num_partitions: int = int32("5+", default=-1, ignorable=True)
    replication_factor: int = int16("5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, "5+", nullable="5+", ignorable=True)


class CreateTopicsResponse(Response, api_key=19, versions="2-7", flexible="5+"):
    """The created topics, or the errors (KIP-525 adds their properties)."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")


class CreatableReplicaAssignment(Struct):
    """The replicas of one partition, if the caller chooses them; the first is the preferred leader."""

    partition_index: int = int32("0+")
    broker_ids: list[int] = array(INT32, "0+")


class CreatableTopicConfig(Struct):
    """A configuration key of a topic to create."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class CreatableTopic(Struct):
    """A topic to create; -1 partitions or replicas stand for the broker's default (KIP-464).

    Both are also -1 if ``assignments`` determines them.
    """

    name: str = string("0+")
    num_partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Request[CreateTopicsResponse], api_key=19, versions="2-7", flexible="5+"):
    """Create topics, or only check whether that would succeed."""

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")


class DeletableTopicResult(Struct):
    """Whether one topic is being deleted."""

    name: str | None = string("0+", nullable="6+")
    topic_id: bytes = uuid("6+", ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Response, api_key=20, versions="1-6", flexible="4+"):
    """Whether each topic is being deleted."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")


class DeleteTopicState(Struct):
    """A topic, by name or by id."""

    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: bytes = uuid("6+")


class DeleteTopicsRequest(Request[DeleteTopicsResponse], api_key=20, versions="1-6", flexible="4+"):
    """Delete topics: by name in ``topic_names`` up to version 5, by name or id in ``topics`` from 6."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(STRING, "0-5", ignorable=True)
    timeout_ms: int = int32("0+")


class CreatePartitionsTopicResult(Struct):
    """Whether one topic has its new partitions."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Response, api_key=37, versions="0-3", flexible="2+"):
    """Whether each topic has its new partitions."""

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")


class CreatePartitionsAssignment(Struct):
    """The replicas of one new partition."""

    broker_ids: list[int] = array(INT32, "0+")


class CreatePartitionsTopic(Struct):
    """The new total number of a topic's partitions; with ``assignments`` ``None`` the broker places them."""

    name: str = string("0+")
    count: int = int32("0+")
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, "0+", nullable="0+")


class CreatePartitionsRequest(Request[CreatePartitionsResponse], api_key=37, versions="0-3", flexible="2+"):
    """Add partitions to topics."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")
