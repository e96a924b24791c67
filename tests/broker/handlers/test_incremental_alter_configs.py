"""IncrementalAlterConfigs: the codes and texts of Apache Kafka 4.4 for the same requests."""

from __future__ import annotations

import pytest

from aioproducer.broker import BrokerCluster
from aioproducer.broker.handlers import incremental_alter_configs
from aioproducer.protocol.messages.configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from aioproducer.transport.memory import MemoryNetwork
from tests.broker.handlers.administered import Node, administered, altered, with_topics

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)

Change = tuple[str, int, str | None]
Resource = tuple[int, str, list[Change]]


async def alter(
    node: Node, *resources: Resource, version: int = 1, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=key, config_operation=what, value=value) for key, what, value in changes],
            )
            for kind, name, changes in resources
        ],
        validate_only=validate_only,
    )
    return await altered(node, incremental_alter_configs, request, version)


@pytest.mark.parametrize("version", incremental_alter_configs.VERSIONS)
async def test_set_and_delete(version: int) -> None:
    node = with_topics("a", retention_ms="5", segment_ms="6")
    changes: list[Change] = [("retention.ms", SET, "7"), ("segment.ms", DELETE, None), ("flush.ms", SET, "8")]
    assert await alter(node, (TOPIC, "a", changes), version=version) == [(0, None)]
    assert node.image.topics["a"].configs == {"retention.ms": "7", "flush.ms": "8"}


async def test_append_and_subtract() -> None:
    node = with_topics("a")
    policies = []
    for what, value in [
        (APPEND, "compact"),
        (APPEND, "compact,delete"),
        (SUBTRACT, "delete"),
        (SUBTRACT, "nothere"),
        (SUBTRACT, "compact"),
        (APPEND, "delete"),
        (DELETE, None),
    ]:
        assert await alter(node, (TOPIC, "a", [("cleanup.policy", what, value)])) == [(0, None)]
        policies.append(node.image.topics["a"].configs.get("cleanup.policy"))
    assert policies == ["delete,compact", "delete,compact", "compact", "compact", "", "delete", None]


async def test_subtract_removes_one_of_several_values() -> None:
    node = with_topics("a", cleanup_policy="delete,delete,compact")
    assert await alter(node, (TOPIC, "a", [("cleanup.policy", SUBTRACT, "delete")])) == [(0, None)]
    assert node.image.topics["a"].configs == {"cleanup.policy": "delete,compact"}


async def test_validate_only_changes_nothing() -> None:
    node = with_topics("a")
    assert await alter(
        node,
        (TOPIC, "a", [("retention.ms", SET, "7")]),
        (BROKER, "1", [("log.retention.ms", SET, "7")]),
        (BROKER, "", [("log.retention.ms", SET, "x")]),
        validate_only=True,
    ) == [
        (0, None),
        (0, None),
        (42, "Invalid value x for configuration log.retention.ms: Not a number of type LONG"),
    ]
    assert node.image.topics["a"].configs == {}
    assert node.image.node_configs == {}


@pytest.mark.parametrize(
    ("name", "changes", "code", "text"),
    [
        ("a", [("retention.ms", SET, "7"), ("retention.ms", SET, "8")], 42, "Error due to duplicate config keys"),
        ("a", [("retention.ms", SET, None)], 42, "Null value not supported for : retention.ms"),
        (
            "a",
            [("cleanup.policy", APPEND, None), ("segment.ms", SET, None)],
            42,
            "Null value not supported for : cleanup.policy, segment.ms",
        ),
        ("a", [("nosuch", DELETE, None)], 0, None),
        ("a", [("nosuch", SET, "1")], 40, "Unknown topic config name: nosuch"),
        ("a", [("retention.ms", SET, "8"), ("nosuch", SET, "1")], 40, "Unknown topic config name: nosuch"),
        (
            "a",
            [("retention.ms", SET, "-9")],
            40,
            "Invalid value -9 for configuration retention.ms: Value must be at least -1",
        ),
        ("a", [("retention.ms", APPEND, "5")], 40, "Can't APPEND to key retention.ms because its type is not LIST."),
        (
            "a",
            [("retention.ms", SUBTRACT, "5")],
            40,
            "Can't SUBTRACT to key retention.ms because its type is not LIST.",
        ),
        ("a", [("nosuch", APPEND, "5")], 40, "Can't APPEND to key nosuch because its type is not LIST."),
        ("nosuch", [("retention.ms", SET, "7")], 3, "The topic 'nosuch' does not exist."),
        ("nosuch", [("nosuch", SET, "7")], 40, "Unknown topic config name: nosuch"),
        ("", [("retention.ms", SET, "7")], 42, "Default topic resources are not allowed."),
        (
            "a b",
            [("retention.ms", SET, "7")],
            17,
            (
                "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, "
                "'.', '_' and '-'"
            ),
        ),
        ("a", [("retention.ms", 9, "1")], 42, "Unknown operation 9 for retention.ms"),
        ("a", [], 0, None),
    ],
)
async def test_wrong_changes_of_topics_are_refused_as_by_kafka(
    name: str, changes: list[Change], code: int, text: str | None
) -> None:
    node = with_topics("a", "other", retention_ms="5")
    answers = await alter(node, (TOPIC, name, changes), (TOPIC, "other", [("retention.ms", SET, "6")]))
    assert answers == [(code, text), (0, None)]
    assert node.image.topics["a"].configs == {"retention.ms": "5"}, "all of a resource's changes or none"
    assert node.image.topics["other"].configs == {"retention.ms": "6"}


async def test_a_repeated_resource_is_refused() -> None:
    node = with_topics("a")
    twice = (42, "Each resource must appear at most once.")
    resource: Resource = (TOPIC, "a", [("retention.ms", SET, "7")])
    assert await alter(node, resource, resource, (BROKER, "1", [])) == [twice, twice, (0, None)]
    assert node.image.topics["a"].configs == {}


@pytest.mark.parametrize("kind", [0, 1, 3, 8, 16, 32, 99])
async def test_other_types_of_resources_are_refused(kind: int) -> None:
    assert await alter(with_topics("a"), (kind, "a", [("x", SET, "y")])) == [(42, f"Unknown resource type {kind}")]


@pytest.mark.parametrize(
    ("name", "change", "code", "text"),
    [
        ("1", ("log.retention.ms", SET, "77"), 0, None),
        ("", ("log.retention.ms", SET, "77"), 0, None),
        (
            "1",
            ("log.retention.ms", SET, "x"),
            42,
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
        (
            "",
            ("log.segment.bytes", SET, "1"),
            42,
            "Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576",
        ),
        ("1", ("node.id", SET, "5"), 42, "Cannot update these configs dynamically: [node.id]"),
        ("", ("num.partitions", SET, "5"), 42, "Cannot update these configs dynamically: [num.partitions]"),
        ("1", ("node.id", DELETE, None), 0, None),
        ("1", ("nobody.knows", SET, "5"), 0, None),
        (
            "",
            ("log.retention.ms", APPEND, "5"),
            40,
            "Config value append is not allowed for config key: log.retention.ms",
        ),
        (
            "",
            ("log.retention.ms", SUBTRACT, "5"),
            40,
            "Config value subtract is not allowed for config key: log.retention.ms",
        ),
        ("", ("nobody.knows", APPEND, "5"), 40, "Unknown config name: nobody.knows"),
        ("2", ("log.retention.ms", SET, "77"), 42, "Unexpected broker id, expected 1, but received 2"),
        ("-1", ("log.retention.ms", SET, "77"), 42, "Unexpected broker id, expected 1, but received -1"),
        ("x", ("log.retention.ms", SET, "77"), 42, "Node id must be an integer, but it is: x"),
        (
            "1",
            ("log.retention.ms", SET, "0"),
            42,
            "log.retention.ms (or .minutes, .hours) must be at least 1, or -1 for unlimited",
        ),
    ],
)
async def test_changes_of_brokers_have_kafkas_result(name: str, change: Change, code: int, text: str | None) -> None:
    node = administered(2)
    assert await alter(node, (BROKER, name, [change])) == [(code, text)]
    key, _, value = change
    assert node.image.node_configs.get(name, {}) == ({key: value} if code == 0 and value is not None else {})


async def test_a_list_of_a_broker_begins_with_its_default() -> None:
    node = administered()
    assert await alter(node, (BROKER, "", [("log.cleanup.policy", APPEND, "compact")])) == [(0, None)]
    assert node.image.node_configs == {"": {"log.cleanup.policy": "delete,compact"}}
    assert await alter(node, (BROKER, "", [("log.cleanup.policy", DELETE, None)])) == [(0, None)]
    assert node.image.node_configs.get("", {}) == {}


async def test_defaults_of_topics_must_go_together() -> None:
    node = administered()
    assert await alter(node, (BROKER, "", [("log.cleaner.max.compaction.lag.ms", SET, "5")])) == [(0, None)]
    (answer,) = await alter(node, (BROKER, "1", [("log.cleaner.min.compaction.lag.ms", SET, "6")]))
    assert answer[0] == 42
    assert "conflict topic config setting" in str(answer[1])


async def test_open_logs_follow_the_change() -> None:
    async with BrokerCluster(2, network=MemoryNetwork()) as cluster:
        cluster.create_topic("a", 1, 2)
        broker = cluster.brokers[1]
        logs = [node.logs.logs["a", 0] for node in cluster.brokers.values()]
        node = Node(1, cluster.image, cluster.controller, broker.config)
        assert (
            await alter(
                node,
                (TOPIC, "a", [("retention.ms", SET, "7")]),
                (BROKER, "", [("log.segment.bytes", SET, "1048577")]),
                (BROKER, "1", [("log.index.interval.bytes", SET, "8")]),
            )
            == [(0, None)] * 3
        )
        assert [log.config.retention_ms for log in logs] == [7, 7]
        assert [log.config.segment_bytes for log in logs] == [1048577] * 2
        assert [log.config.index_interval_bytes for log in logs] == [8, 4096]
        assert await alter(node, (TOPIC, "a", [("retention.ms", DELETE, None)])) == [(0, None)]
        assert [log.config.retention_ms for log in logs] == [604800000] * 2
