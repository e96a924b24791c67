"""DescribeConfigs: values and their sources, as Apache Kafka 4.4 returns them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aioproducer.broker.config import SERVER_CONFIG_DEF
from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.handlers import describe_configs
from aioproducer.errors import InvalidRequestError
from aioproducer.producer import Producer
from aioproducer.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from tests.broker.handlers.administered import Node, administered, ask

TOPIC, BROKER = 2, 4

Origin = tuple[str, str | None, int]


async def describe(
    node: Node,
    *resources: tuple[int, str, Sequence[str] | None],
    version: int = 4,
    synonyms: bool = True,
    documentation: bool = True,
) -> list[DescribeConfigsResult]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
            )
            for kind, name, keys in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation and version >= 3,
    )
    return (await ask(node, describe_configs, request, version)).results


async def one(node: Node, kind: int, name: str, key: str) -> DescribeConfigsResourceResult:
    (result,) = await describe(node, (kind, name, [key]))
    (config,) = result.configs
    assert config.name == key
    return config


def origins(config: DescribeConfigsResourceResult) -> list[Origin]:
    return [(origin.name, origin.value, origin.source) for origin in config.synonyms]


def with_topic(configs: dict[str, str | None] | None = None, **properties: object) -> Node:
    node = administered(2, properties)
    node.controller.create_topic(TopicSpec("a", configs=configs or {}))
    return node


async def test_a_topic_has_every_key_but_the_internal_one() -> None:
    (result,) = await describe(with_topic(), (TOPIC, "a", None))
    assert (result.error_code, result.error_message) == (0, "")
    assert (result.resource_type, result.resource_name) == (TOPIC, "a")
    assert len(result.configs) == 37
    assert all(config.documentation for config in result.configs)
    assert not any(config.read_only or config.is_sensitive for config in result.configs)
    (result,) = await describe(with_topic({"internal.segment.bytes": "100"}), (TOPIC, "a", []))
    assert len(result.configs) == 38


@pytest.mark.parametrize("version", describe_configs.VERSIONS)
async def test_each_version_has_its_fields(version: int) -> None:
    (result,) = await describe(with_topic(), (TOPIC, "a", ["retention.bytes", "nosuch"]), version=version)
    (config,) = result.configs
    assert (config.name, config.value, config.config_source) == ("retention.bytes", "-1", 5)
    assert origins(config) == [("log.retention.bytes", "-1", 5)]
    assert config.config_type == (5 if version >= 3 else 0)
    assert bool(config.documentation) == (version >= 3)


async def test_synonyms_and_documentation_come_only_on_request() -> None:
    (result,) = await describe(
        with_topic({"retention.ms": "5"}), (TOPIC, "a", ["retention.ms"]), synonyms=False, documentation=False
    )
    (config,) = result.configs
    assert (config.value, config.config_source, config.synonyms, config.documentation) == ("5", 1, [], None)


async def test_every_source_of_a_value_is_listed_the_strongest_first() -> None:
    node = with_topic({"retention.ms": "97"}, **{"log.retention.ms": -1})
    node.controller.alter_node_configs(None, {"log.retention.ms": "77"})
    node.controller.alter_node_configs(1, {"log.retention.ms": "66"})
    sources = [
        ("log.retention.ms", "66", 2),
        ("log.retention.ms", "77", 3),
        ("log.retention.ms", "-1", 4),
        ("log.retention.hours", "168", 5),
    ]
    config = await one(node, TOPIC, "a", "retention.ms")
    assert (config.value, config.config_source) == ("97", 1)
    assert origins(config) == [("retention.ms", "97", 1), *sources]
    node.controller.alter_topic_configs("a", {"retention.ms": None})
    config = await one(node, TOPIC, "a", "retention.ms")
    assert (config.value, config.config_source, origins(config)) == ("66", 2, sources)
    config = await one(node, BROKER, "1", "log.retention.ms")
    assert (config.value, config.config_source, origins(config)) == ("66", 2, sources)
    config = await one(node, BROKER, "", "log.retention.ms")
    assert (config.value, config.config_source, origins(config)) == ("77", 3, sources[1:2])
    node.controller.alter_node_configs(1, {"log.retention.ms": None})
    assert (await one(node, TOPIC, "a", "retention.ms")).value == "77"


async def test_a_value_in_another_unit_is_used_but_not_listed_as_in_kafka() -> None:
    config = await one(with_topic(log_roll_hours=1), TOPIC, "a", "segment.ms")
    assert (config.value, config.config_source, config.synonyms) == ("3600000", 5, [])


@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("preallocate", 1),
        ("compression.type", 2),
        ("segment.bytes", 3),
        ("retention.ms", 5),
        ("min.cleanable.dirty.ratio", 6),
        ("cleanup.policy", 7),
    ],
)
async def test_every_value_has_its_type(key: str, number: int) -> None:
    assert (await one(with_topic(), TOPIC, "a", key)).config_type == number


async def test_keys_without_effect_are_documented_as_such() -> None:
    config = await one(with_topic(), TOPIC, "a", "preallocate")
    assert config.documentation is not None
    assert config.documentation.endswith("No effect here: Files grow as they are written.")


async def test_a_broker_describes_its_keys_with_their_sources() -> None:
    node = with_topic(num_partitions=3, broker_rack="r")
    (result,) = await describe(node, (BROKER, "1", None))
    described = {config.name: config for config in result.configs}
    assert described.keys() == SERVER_CONFIG_DEF.keys.keys() - {"producer.id.expiration.check.interval.ms"}
    assert (described["num.partitions"].value, described["num.partitions"].config_source) == ("3", 4)
    assert origins(described["num.partitions"]) == [("num.partitions", "3", 4), ("num.partitions", "1", 5)]
    assert described["num.partitions"].read_only
    assert not described["log.segment.bytes"].read_only
    assert described["broker.rack"].value == "r"
    assert (
        described["log.roll.ms"].value,
        described["log.roll.ms"].config_source,
        described["log.roll.ms"].synonyms,
    ) == (None, 5, [])
    assert described["offsets.topic.replication.factor"].config_type == 4
    assert described["aioproducer.validate.records"].value == ("true" if Producer.compiled else "false")
    assert all(config.documentation for config in result.configs)


async def test_an_internal_key_of_a_broker_is_described_if_it_was_given() -> None:
    node = administered(1, {"producer.id.expiration.check.interval.ms": 5})
    assert (await one(node, BROKER, "1", "producer.id.expiration.check.interval.ms")).value == "5"


async def test_values_for_all_nodes_are_described() -> None:
    node = administered()
    assert [len(result.configs) for result in await describe(node, (BROKER, "", None))] == [0]
    node.controller.alter_node_configs(None, {"log.cleanup.policy": "compact", "nobody.knows": "secret"})
    (result,) = await describe(node, (BROKER, "", None))
    policy, unknown = result.configs
    assert (policy.name, policy.value, policy.config_source) == ("log.cleanup.policy", "compact", 3)
    assert (unknown.name, unknown.value, unknown.is_sensitive, unknown.read_only) == ("nobody.knows", None, True, True)
    assert (unknown.config_type, unknown.documentation) == (0, None)
    assert origins(unknown) == [("nobody.knows", None, 3)]


async def test_an_unknown_key_of_a_node_is_never_shown() -> None:
    node = administered()
    node.controller.alter_node_configs(1, {"nobody.knows": "secret"})
    config = await one(node, BROKER, "1", "nobody.knows")
    assert (config.value, config.is_sensitive, origins(config)) == (None, True, [("nobody.knows", None, 2)])


@pytest.mark.parametrize(
    ("kind", "name", "code", "text"),
    [
        (TOPIC, "nosuch", 3, ""),
        (TOPIC, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "2", 42, "Unexpected broker id, expected 1 or empty string, but received 2"),
        (BROKER, "x", 42, "Broker id must be an integer, but it is: x"),
        (8, "1", 42, "Unsupported resource type: BROKER_LOGGER"),
        (16, "1", 42, "Unsupported resource type: CLIENT_METRICS"),
        (32, "1", 42, "Unsupported resource type: GROUP"),
    ],
)
async def test_invalid_resources_are_refused(kind: int, name: str, code: int, text: str) -> None:
    refused, good = await describe(with_topic(), (kind, name, None), (TOPIC, "a", ["retention.ms"]))
    assert (refused.error_code, refused.error_message, refused.configs) == (code, text, [])
    assert (refused.resource_type, refused.resource_name) == (kind, name)
    assert (good.error_code, len(good.configs)) == (0, 1)


@pytest.mark.parametrize("kind", [0, 1, 3, 99])
async def test_an_unknown_type_fails_the_request(kind: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"Unexpected resource type {kind} for resource 1"):
        await describe(with_topic(), (TOPIC, "a", None), (kind, "1", None))


async def test_a_repeated_resource_is_described_twice() -> None:
    results = await describe(with_topic(), *[(TOPIC, "a", ["retention.ms"])] * 2)
    assert [len(result.configs) for result in results] == [1, 1]
