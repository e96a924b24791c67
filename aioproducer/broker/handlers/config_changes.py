"""Shared by AlterConfigs and IncrementalAlterConfigs: check the changes of each resource, then make them.

A change is a key's new value, or ``None`` to remove it. It takes effect at once, also for open logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from aioproducer.broker.config.server_keys import DYNAMIC_KEYS, SERVER_CONFIG_DEF, why_meaningless
from aioproducer.broker.config.topics import validate_topic_configs
from aioproducer.broker.config.values import parse_as_kafka
from aioproducer.broker.controller.controller import merged
from aioproducer.broker.controller.topic_rules import check_name
from aioproducer.broker.handlers.config_sources import sources_of
from aioproducer.broker.handlers.error_responses import error_code, error_message
from aioproducer.broker.handlers.resources import BROKER, TOPIC
from aioproducer.broker.image import CLUSTER_DEFAULT
from aioproducer.errors import (
    ConfigurationError,
    InvalidConfigurationError,
    InvalidRequestError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from aioproducer.protocol.messages.configs import AlterConfigsResourceResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode


class Resource(Protocol):
    """The fields of a resource in both requests."""

    resource_type: int
    resource_name: str


ResourceT = TypeVar("ResourceT", bound=Resource)


def alter_each(
    resources: Sequence[ResourceT], alter: Callable[[ResourceT], None]
) -> list[AlterConfigsResourceResponse]:
    """Change all keys of each resource, or none; the failure of one resource does not affect the others."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    responses = []
    for resource in resources:
        response = AlterConfigsResourceResponse(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            alter(resource)
        except KafkaError as error:
            response.error_code, response.error_message = error_code(error), error_message(error)
        responses.append(response)
    return responses


def check_keys(names: Collection[str], without_value: Sequence[str]) -> None:
    """Check that each key occurs once and has a value.

    Raises:
        InvalidRequestError: a key is repeated or has no value.
    """
    if len(set(names)) < len(names):
        raise InvalidRequestError("Error due to duplicate config keys")
    if without_value:
        raise InvalidRequestError(f"Null value not supported for : {', '.join(without_value)}")


def configs_of(broker: BrokerNode, resource: Resource) -> Mapping[str, str]:
    """Return the dynamic configurations of ``resource``; empty for a topic that does not exist.

    Raises:
        InvalidRequestError: the resource has no configurations, or is another node than this one.
    """
    if resource.resource_type == TOPIC:
        topic = broker.image.topics.get(resource.resource_name)
        return topic.configs if topic else {}
    if resource.resource_type == BROKER:
        node_id = _node_id(broker, resource.resource_name)
        return broker.image.node_configs.get(CLUSTER_DEFAULT if node_id is None else str(node_id), {})
    raise InvalidRequestError(f"Unknown resource type {resource.resource_type}")


def make_changes(
    broker: BrokerNode, resource: Resource, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Make ``changes`` to the result of ``configs_of``, or only check them.

    Raises:
        KafkaError: they are invalid.
    """
    after = merged(configs_of(broker, resource), changes)
    if resource.resource_type == TOPIC:
        name = resource.resource_name
        if not name:
            raise InvalidRequestError("Default topic resources are not allowed.")
        check_name(name)
        validate_topic_configs(after, broker.config)
        if name not in broker.image.topics:
            raise UnknownTopicOrPartitionError(f"The topic '{name}' does not exist.")
        broker.controller.alter_topic_configs(name, changes, validate_only=validate_only)
        return
    node_id = _node_id(broker, resource.resource_name)
    _check_dynamic(changes)
    sources = sources_of(broker)
    try:
        if node_id is None:
            sources.config.with_dynamic(after, sources.node)
        else:
            sources.config.with_dynamic(sources.cluster, after)
    except ConfigurationError as error:
        raise InvalidRequestError(str(error)) from None
    broker.controller.alter_node_configs(node_id, changes, validate_only=validate_only)


def _node_id(broker: BrokerNode, name: str) -> int | None:
    """Return the node that a resource stands for; ``None`` for all nodes."""
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
    """Check that the keys can be changed while the broker runs, and that their values are valid.

    An unknown key can be set, as in Kafka, where plug-ins may have keys of their own.
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
