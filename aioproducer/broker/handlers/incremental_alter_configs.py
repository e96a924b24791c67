"""IncrementalAlterConfigs, versions 0-1: set and remove configurations of topics, of this node and of all nodes.

* 1: flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from aioproducer.broker.config.server_keys import SERVER_CONFIG_DEF
from aioproducer.broker.config.topic_keys import TOPIC_KEYS
from aioproducer.broker.config.values import as_text
from aioproducer.broker.handlers.config_changes import alter_each, check_keys, configs_of, make_changes
from aioproducer.broker.handlers.resources import TOPIC
from aioproducer.config import ConfigKey, Type
from aioproducer.errors import InvalidConfigurationError, InvalidRequestError
from aioproducer.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode, RequestContext

VERSIONS = range(2)


class Operation(IntEnum):
    """The change of a key's value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = frozenset(int(operation) for operation in Operation)


async def handle(context: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """Change some keys of each resource; the failure of one resource does not affect the others."""

    def alter(resource: AlterConfigsResource) -> None:
        changes = _changes(context.broker, resource)
        make_changes(context.broker, resource, changes, validate_only=request.validate_only)

    return IncrementalAlterConfigsResponse(responses=alter_each(request.resources, alter))


def _changes(broker: BrokerNode, resource: AlterConfigsResource) -> dict[str, str | None]:
    check_keys(
        [config.name for config in resource.configs],
        [
            config.name
            for config in resource.configs
            if config.value is None and config.config_operation != Operation.DELETE
        ],
    )
    for config in resource.configs:
        if config.config_operation not in _OPERATIONS:
            raise InvalidRequestError(f"Unknown operation {config.config_operation} for {config.name}")
    before = configs_of(broker, resource)
    key_of = _topic_key if resource.resource_type == TOPIC else _broker_key
    return {config.name: _changed(config, before, key_of(config)) for config in resource.configs}


def _topic_key(config: AlterableConfig) -> ConfigKey | None:
    entry = TOPIC_KEYS.get(config.name)
    if _is_of_lists(config) and (entry is None or entry.key.type is not Type.LIST):
        operation = Operation(config.config_operation).name
        raise InvalidConfigurationError(f"Can't {operation} to key {config.name} because its type is not LIST.")
    return entry.key if entry else None


def _broker_key(config: AlterableConfig) -> ConfigKey | None:
    key = SERVER_CONFIG_DEF.keys.get(config.name)
    if _is_of_lists(config):
        if key is None:
            raise InvalidConfigurationError(f"Unknown config name: {config.name}")
        if key.type is not Type.LIST:
            operation = Operation(config.config_operation).name.lower()
            raise InvalidConfigurationError(f"Config value {operation} is not allowed for config key: {config.name}")
    return key


def _is_of_lists(config: AlterableConfig) -> bool:
    return config.config_operation in (Operation.APPEND, Operation.SUBTRACT)


def _changed(config: AlterableConfig, before: Mapping[str, str], key: ConfigKey | None) -> str | None:
    """Return the value after an operation; ``None`` if the key is removed."""
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
