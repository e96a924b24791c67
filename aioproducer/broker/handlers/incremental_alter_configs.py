"""IncrementalAlterConfigs, versions 0-1: sets and takes away configurations of topics, of this node and of all nodes.

* 1: flexible.

What is set is true at once, for logs that are open as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from aioproducer.broker.config.server_keys import DYNAMIC_KEYS, SERVER_CONFIG_DEF, why_meaningless
from aioproducer.broker.config.topic_keys import TOPIC_KEYS
from aioproducer.broker.config.topics import validate_topic_configs
from aioproducer.broker.config.values import as_text, parse_as_kafka
from aioproducer.broker.error_responses import error_code, error_message
from aioproducer.broker.handlers.places import places_of
from aioproducer.broker.handlers.resources import BROKER, TOPIC
from aioproducer.broker.image import CLUSTER_DEFAULT
from aioproducer.broker.topic_rules import check_name
from aioproducer.config import ConfigKey, Type
from aioproducer.errors import (
    ConfigurationError,
    InvalidConfigurationError,
    InvalidRequestError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from aioproducer.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.node import Broker
    from aioproducer.broker.requests import RequestContext

VERSIONS = range(2)


class Operation(IntEnum):
    """What is done to a key's value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = frozenset(int(operation) for operation in Operation)


async def handle(context: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """Change each resource, all of its keys or none; one that fails keeps no other from being changed."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses = []
    for resource in request.resources:
        response = AlterConfigsResourceResponse(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            _alter(context.broker, resource, request.validate_only)
        except KafkaError as error:
            response.error_code, response.error_message = error_code(error), error_message(error)
        responses.append(response)
    return IncrementalAlterConfigsResponse(responses=responses)


def _alter(broker: Broker, resource: AlterConfigsResource, validate_only: bool) -> None:
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise InvalidRequestError("Error due to duplicate config keys")
    missing = [
        config.name
        for config in resource.configs
        if config.value is None and config.config_operation != Operation.DELETE
    ]
    if missing:
        raise InvalidRequestError(f"Null value not supported for : {', '.join(missing)}")
    for config in resource.configs:
        if config.config_operation not in _OPERATIONS:
            raise InvalidRequestError(f"Unknown operation {config.config_operation} for {config.name}")
    if resource.resource_type == TOPIC:
        _alter_topic(broker, resource, validate_only)
    elif resource.resource_type == BROKER:
        _alter_broker(broker, resource, validate_only)
    else:
        raise InvalidRequestError(f"Unknown resource type {resource.resource_type}")


def _alter_topic(broker: Broker, resource: AlterConfigsResource, validate_only: bool) -> None:
    name = resource.resource_name
    topic = broker.image.topics.get(name)
    before: Mapping[str, str] = topic.configs if topic else {}
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        entry = TOPIC_KEYS.get(config.name)
        if config.config_operation in (Operation.APPEND, Operation.SUBTRACT) and (
            entry is None or entry.key.type is not Type.LIST
        ):
            operation = Operation(config.config_operation).name
            raise InvalidConfigurationError(f"Can't {operation} to key {config.name} because its type is not LIST.")
        changes[config.name] = _changed(config, before, entry.key if entry else None)
    if not name:
        raise InvalidRequestError("Default topic resources are not allowed.")
    check_name(name)
    validate_topic_configs(_merged(before, changes), broker.config)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"The topic '{name}' does not exist.")
    broker.controller.alter_topic_configs(name, changes, validate_only=validate_only)


def _alter_broker(broker: Broker, resource: AlterConfigsResource, validate_only: bool) -> None:
    node_id = _node_id(broker, resource.resource_name)
    before = broker.image.node_configs.get(CLUSTER_DEFAULT if node_id is None else str(node_id), {})
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        key = SERVER_CONFIG_DEF.keys.get(config.name)
        if config.config_operation in (Operation.APPEND, Operation.SUBTRACT):
            operation = Operation(config.config_operation).name.lower()
            if key is None:
                raise InvalidConfigurationError(f"Unknown config name: {config.name}")
            if key.type is not Type.LIST:
                raise InvalidConfigurationError(
                    f"Config value {operation} is not allowed for config key: {config.name}"
                )
        changes[config.name] = _changed(config, before, key)
    _check_dynamic(changes)
    after = _merged(before, changes)
    places = places_of(broker)
    try:
        if node_id is None:
            places.config.with_dynamic(after, places.node)
        else:
            places.config.with_dynamic(places.cluster, after)
    except ConfigurationError as error:
        raise InvalidRequestError(str(error)) from None
    broker.controller.alter_node_configs(node_id, changes, validate_only=validate_only)


def _node_id(broker: Broker, name: str) -> int | None:
    """The node that a resource is; ``None`` where it is all of them."""
    if not name:
        return None
    try:
        node_id = int(name)
    except ValueError:
        raise InvalidRequestError(f"Node id must be an integer, but it is: {name}") from None
    if node_id != broker.node_id:
        raise InvalidRequestError(f"Unexpected broker id, expected {broker.node_id}, but received {name}")
    return node_id


def _check_dynamic(changes: Mapping[str, str | None]) -> None:
    """Whether keys can be changed while the broker runs, and their values are ones that it can have.

    A key that nobody knows can be set, as in Kafka, where plug-ins may have keys of their own.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    fixed = [name for name in given if _is_known(name) and name not in DYNAMIC_KEYS]
    if fixed:
        raise InvalidRequestError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    for name, value in given.items():
        key = SERVER_CONFIG_DEF.keys.get(name)
        if key is not None:
            try:
                parse_as_kafka(key, value)
            except InvalidConfigurationError as error:
                raise InvalidRequestError(str(error)) from None


def _is_known(name: str) -> bool:
    return name in SERVER_CONFIG_DEF.keys or bool(why_meaningless(name))


def _changed(config: AlterableConfig, before: Mapping[str, str], key: ConfigKey | None) -> str | None:
    """The value after an operation; ``None`` where the key is taken away."""
    operation, value = config.config_operation, config.value
    if operation == Operation.DELETE or value is None:
        return None
    if operation == Operation.SET:
        return value
    default = as_text(key.default) if key and key.default is not None else ""
    items = [item for item in before.get(config.name, default).split(",") if item]
    for item in value.split(","):
        if operation == Operation.SUBTRACT and item in items:
            items.remove(item)
        elif operation == Operation.APPEND and item not in items:
            items.append(item)
    return ",".join(items)


def _merged(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**before, **changes}.items() if value is not None}
