"""Reading and changing the configuration of topics and brokers (KIP-133, KIP-339)."""

from __future__ import annotations

from aioproducer.protocol.schema import (
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
)


class DescribeConfigsSynonym(Struct):
    """The other sources of a key's value, strongest first."""

    name: str = string("1+")
    value: str | None = string("1+", nullable="0+")
    source: int = int8("1+")


class DescribeConfigsResourceResult(Struct):
    """A key, its value, and the value's source (Kafka's ``ConfigSource``)."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")
    read_only: bool = boolean("0+")
    config_source: int = int8("1+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("0+")
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+", ignorable=True)
    config_type: int = int8("3+", ignorable=True)
    documentation: str | None = string("3+", nullable="0+", ignorable=True)


class DescribeConfigsResult(Struct):
    """One resource's configuration, or the error."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, "0+")


class DescribeConfigsResponse(Response, api_key=32, versions="1-4", flexible="4+"):
    """The configuration of the requested resources; sensitive values are ``None``."""

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, "0+")


class DescribeConfigsResource(Struct):
    """A resource; ``configuration_keys`` is ``None`` for all keys."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = array(STRING, "0+", nullable="0+")


class DescribeConfigsRequest(Request[DescribeConfigsResponse], api_key=32, versions="1-4", flexible="4+"):
    """Request the configuration of some resources.

    ``resource_type`` is Kafka's ``ConfigResource.Type``: 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32
    group.
    """

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


class AlterConfigsResourceResponse(Struct):
    """Whether one resource was changed."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


class IncrementalAlterConfigsResponse(Response, api_key=44, versions="0-1", flexible="1+"):
    """Whether each resource was changed."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


class AlterableConfig(Struct):
    """The operation on a key's value: set (0), delete (1), append to (2) or subtract from (3)."""

    name: str = string("0+")
    config_operation: int = int8("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """The changes to one resource."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class IncrementalAlterConfigsRequest(
    Request[IncrementalAlterConfigsResponse], api_key=44, versions="0-1", flexible="1+"
):
    """Change some keys of some resources, leaving the others as they are."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")
