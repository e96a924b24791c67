"""DescribeConfigs, versions 1-4: the configurations of topics, of this node and of all nodes, and their sources.

* 1: synonyms. 2: a quota may throttle it; there are none here. 3: types and documentation. 4: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.config.describing import (
    TYPE_NUMBERS,
    Entry,
    describe_broker,
    describe_cluster,
    describe_topic,
)
from aioproducer.broker.controller.topic_rules import check_name
from aioproducer.broker.handlers.config_sources import sources_of
from aioproducer.broker.handlers.error_responses import error_code, error_message
from aioproducer.broker.handlers.resources import BROKER, RESOURCE_TYPES, TOPIC
from aioproducer.errors import InvalidRequestError, KafkaError, UnknownTopicOrPartitionError
from aioproducer.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode, RequestContext

VERSIONS = range(1, 5)


async def handle(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Return the configurations of each resource.

    Raises:
        InvalidRequestError: a resource has a type that does not exist in Kafka.
    """
    for resource in request.resources:
        if resource.resource_type not in RESOURCE_TYPES:
            raise InvalidRequestError(
                f"Unexpected resource type {resource.resource_type} for resource {resource.resource_name}"
            )
    return DescribeConfigsResponse(
        results=[_describe(context.broker, request, resource) for resource in request.resources]
    )


def _describe(
    broker: BrokerNode, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        entries = _entries(broker, resource)
    except UnknownTopicOrPartitionError as error:
        # Kafka has no error text here either.
        result.error_code = error.code
    except KafkaError as error:
        result.error_code, result.error_message = error_code(error), error_message(error)
    else:
        wanted = resource.configuration_keys
        result.configs = [_config(entry, request) for entry in entries if not wanted or entry.name in wanted]
    return result


def _entries(broker: BrokerNode, resource: DescribeConfigsResource) -> list[Entry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_name(name)
        return describe_topic(sources_of(broker), broker.image.topic(name).configs)
    if resource.resource_type == BROKER:
        if not name:
            return describe_cluster(sources_of(broker))
        try:
            node_id = int(name)
        except ValueError:
            raise InvalidRequestError(f"Broker id must be an integer, but it is: {name}") from None
        if node_id != broker.node_id:
            raise InvalidRequestError(
                f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}"
            )
        return describe_broker(sources_of(broker))
    raise InvalidRequestError(f"Unsupported resource type: {RESOURCE_TYPES[resource.resource_type]}")


def _config(entry: Entry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    is_sensitive = entry.is_sensitive
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=None if is_sensitive else entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=origin.name, value=None if is_sensitive else origin.value, source=origin.source)
            for origin in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=TYPE_NUMBERS[entry.key.type] if entry.key else 0,
        documentation=_documentation(entry) if request.include_documentation else None,
    )


def _documentation(entry: Entry) -> str | None:
    if entry.key is None:
        return None
    return " ".join(filter(None, (entry.key.doc, entry.key.reason and f"No effect here: {entry.key.reason}")))
