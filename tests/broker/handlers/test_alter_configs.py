"""AlterConfigs: the codes and texts of Apache Kafka 4.4 for the same requests."""

from __future__ import annotations

import pytest

from aioproducer.broker.handlers import alter_configs
from aioproducer.protocol.messages.legacy_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tests.broker.handlers.administered import Node, administered, altered, with_topics

TOPIC, BROKER = 2, 4

Setting = tuple[str, str | None]
Resource = tuple[int, str, list[Setting]]


async def set_to(
    node: Node, *resources: Resource, version: int = 2, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=key, value=value) for key, value in settings],
            )
            for kind, name, settings in resources
        ],
        validate_only=validate_only,
    )
    return await altered(node, alter_configs, request, version)


@pytest.mark.parametrize("version", alter_configs.VERSIONS)
async def test_keys_that_are_not_listed_are_removed(version: int) -> None:
    node = with_topics("a", "b", retention_ms="5", segment_ms="6")
    settings: list[Setting] = [("retention.ms", "7"), ("flush.ms", "8")]
    assert await set_to(node, (TOPIC, "a", settings), version=version) == [(0, None)]
    assert node.image.topics["a"].configs == {"retention.ms": "7", "flush.ms": "8"}
    assert await set_to(node, (TOPIC, "a", []), version=version) == [(0, None)]
    assert node.image.topics["a"].configs == {}
    assert node.image.topics["b"].configs == {"retention.ms": "5", "segment.ms": "6"}


async def test_the_configurations_of_nodes_are_replaced() -> None:
    node = administered(2)
    for name in ("1", ""):
        assert await set_to(node, (BROKER, name, [("log.retention.ms", "7")])) == [(0, None)]
        assert await set_to(node, (BROKER, name, [("message.max.bytes", "70")])) == [(0, None)]
    assert node.image.node_configs == {"1": {"message.max.bytes": "70"}, "": {"message.max.bytes": "70"}}
    assert await set_to(node, (BROKER, "1", [])) == [(0, None)]
    assert node.image.node_configs == {"1": {}, "": {"message.max.bytes": "70"}}


async def test_validate_only_changes_nothing() -> None:
    node = with_topics("a", retention_ms="5")
    answers = await set_to(
        node,
        (TOPIC, "a", [("segment.ms", "7")]),
        (BROKER, "1", [("log.retention.ms", "7")]),
        (BROKER, "", [("log.retention.ms", "x")]),
        validate_only=True,
    )
    assert answers == [
        (0, None),
        (0, None),
        (42, "Invalid value x for configuration log.retention.ms: Not a number of type LONG"),
    ]
    assert node.image.topics["a"].configs == {"retention.ms": "5"}
    assert node.image.node_configs == {}


@pytest.mark.parametrize(
    ("name", "settings", "code", "text"),
    [
        ("a", [("retention.ms", "7"), ("retention.ms", "8")], 42, "Error due to duplicate config keys"),
        ("a", [("flush.ms", "1"), ("flush.ms", None)], 42, "Error due to duplicate config keys"),
        (
            "a",
            [("segment.ms", None), ("flush.ms", "1"), ("retention.ms", None)],
            42,
            "Null value not supported for : segment.ms, retention.ms",
        ),
        ("a", [("flush.ms", "8"), ("nosuch", "1")], 40, "Unknown topic config name: nosuch"),
        ("nosuch", [("retention.ms", "7")], 3, "The topic 'nosuch' does not exist."),
        ("nosuch", [], 3, "The topic 'nosuch' does not exist."),
        ("nosuch", [("nosuch", "7")], 40, "Unknown topic config name: nosuch"),
        ("", [("retention.ms", "7")], 42, "Default topic resources are not allowed."),
    ],
)
async def test_wrong_configurations_of_topics_are_refused_as_by_kafka(
    name: str, settings: list[Setting], code: int, text: str | None
) -> None:
    node = with_topics("a", "other", retention_ms="5")
    assert await set_to(node, (TOPIC, name, settings), (TOPIC, "other", [])) == [(code, text), (0, None)]
    assert node.image.topics["a"].configs == {"retention.ms": "5"}, "all of a resource's keys or none"
    assert node.image.topics["other"].configs == {}


async def test_a_repeated_resource_is_refused() -> None:
    node = with_topics("a", retention_ms="5")
    twice = (42, "Each resource must appear at most once.")
    assert await set_to(node, (TOPIC, "a", []), (TOPIC, "a", []), (BROKER, "1", [])) == [twice, twice, (0, None)]
    assert node.image.topics["a"].configs == {"retention.ms": "5"}


@pytest.mark.parametrize("kind", [0, 1, 3, 8, 16, 32, 99])
async def test_other_types_of_resources_are_refused(kind: int) -> None:
    assert await set_to(with_topics("a"), (kind, "a", [("x", "y")])) == [(42, f"Unknown resource type {kind}")]
