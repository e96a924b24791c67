"""AlterConfigs: replace the whole configuration of a resource (KIP-133); superseded by IncrementalAlterConfigs
(KIP-339).

In its own module because Kafka gives the structs of both requests the same names.
"""

from __future__ import annotations

from aioproducer.protocol.messages.configs import AlterConfigsResourceResponse
from aioproducer.protocol.schema import Request, Response, Struct, array, boolean, int8, int32, string


class AlterConfigsResponse(Response, api_key=33, versions="0-2", flexible="2+"):
    """Whether each resource was changed."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


class AlterableConfig(Struct):
    """A key and its new value."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """One resource and its new configuration."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class AlterConfigsRequest(Request[AlterConfigsResponse], api_key=33, versions="0-2", flexible="2+"):
    """Set these keys of some resources, and remove all others."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")
