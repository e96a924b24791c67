"""CreateTopics: the codes and texts of Apache Kafka 4.4 for the same requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from aioproducer.broker.handlers import create_topics
from aioproducer.errors import PolicyViolationError
from aioproducer.protocol import ZERO_UUID
from aioproducer.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from tests.broker.handlers.administered import Node, administered, ask


def topic(
    name: str,
    num_partitions: int = -1,
    replication_factor: int = -1,
    assignments: Iterable[tuple[int, list[int]]] = (),
    configs: Iterable[tuple[str, str | None]] = (),
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        assignments=[CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in assignments],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )


async def create(
    node: Node, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=5000, validate_only=validate_only)
    return (await ask(node, create_topics, request, version)).topics


async def test_a_topic_has_the_brokers_defaults() -> None:
    node = administered(3, {"num.partitions": 2, "default.replication.factor": 3})
    (result,) = await create(node, topic("a"))
    made = node.image.topics["a"]
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.num_partitions, result.replication_factor) == (2, 3)
    assert result.topic_id == made.topic_id != ZERO_UUID
    assert [len(partition.replicas) for partition in made.partitions] == [3, 3]
    assert result.topic_config_error_code == 0


@pytest.mark.parametrize("version", create_topics.VERSIONS)
async def test_each_version_has_its_fields(version: int) -> None:
    node = administered()
    (result,) = await create(node, topic("a", 2, 1), version=version)
    assert result.error_code == 0
    assert len(node.image.topics["a"].partitions) == 2
    assert (result.num_partitions, result.replication_factor) == ((2, 1) if version >= 5 else (-1, -1))
    assert bool(result.configs) == (version >= 5)
    assert (result.topic_id != ZERO_UUID) == (version >= 7)


async def test_configs_in_the_response_have_their_sources() -> None:
    node = administered(1, {"log.roll.hours": 1, "log.cleanup.policy": "compact,delete"})
    node.controller.alter_node_configs(None, {"log.segment.bytes": "1048577", "log.index.interval.bytes": "7"})
    node.controller.alter_node_configs(1, {"log.index.interval.bytes": "8"})
    (result,) = await create(node, topic("a", configs=[("retention.ms", "5")]))
    assert result.configs is not None
    returned = {config.name: (config.value, config.config_source) for config in result.configs}
    assert list(returned) == sorted(returned)
    assert "internal.segment.bytes" not in returned
    assert len(returned) == 37
    assert returned["retention.ms"] == ("5", 1)
    assert returned["index.interval.bytes"] == ("8", 2)
    assert returned["segment.bytes"] == ("1048577", 3)
    assert returned["segment.ms"] == ("3600000", 4)
    assert returned["cleanup.policy"] == ("compact,delete", 4)
    assert returned["flush.ms"] == ("9223372036854775807", 5)
    assert returned["min.cleanable.dirty.ratio"] == ("0.5", 5)
    assert not any(config.read_only or config.is_sensitive for config in result.configs)


async def test_validate_only_creates_nothing() -> None:
    node = administered()
    (result,) = await create(node, topic("a", 4, 1), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 4)
    assert node.image.topics == {}
    (result,) = await create(node, topic("a", 4, 2), validate_only=True)
    assert result.error_code == 38


REFUSED: Mapping[str, tuple[CreatableTopic, int, str]] = {
    "exists": (topic("there"), 36, "Topic 'there' already exists."),
    "empty name": (topic(""), 17, "Topic name is invalid: the empty string is not allowed"),
    "dots": (topic(".."), 17, "Topic name is invalid: '..' is not allowed"),
    "characters": (
        topic("a b"),
        17,
        (
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        ),
    ),
    "collision": (topic("x.y"), 17, "Topic 'x.y' collides with existing topic: x_y"),
    "metadata": (topic("__cluster_metadata"), 42, "Creation of internal topic __cluster_metadata is prohibited."),
    "no partitions": (topic("a", 0, 1), 37, "Number of partitions was set to an invalid non-positive value."),
    "negative": (topic("a", -2, 1), 37, "Number of partitions was set to an invalid non-positive value."),
    "no replicas": (
        topic("a", 1, 0),
        38,
        "Replication factor must be larger than 0, or -1 to use the default value.",
    ),
    "both": (
        topic("a", 1, 1, [(0, [1])]),
        42,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    ),
    "count and assignment": (
        topic("a", 1, -1, [(0, [1])]),
        42,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    ),
    "hole": (topic("a", assignments=[(1, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
    "index twice": (
        topic("a", assignments=[(0, [1]), (0, [1])]),
        39,
        "Found multiple manual partition assignments for partition 0",
    ),
    "broker twice": (
        topic("a", assignments=[(0, [1, 1])]),
        39,
        "The manual partition assignment includes the broker 1 more than once.",
    ),
    "unknown broker": (
        topic("a", assignments=[(0, [9])]),
        39,
        "The manual partition assignment includes broker 9, but no such broker is registered.",
    ),
    "nobody": (
        topic("a", assignments=[(0, [])]),
        39,
        "The manual partition assignment includes an empty replica list.",
    ),
    "unknown config": (topic("a", configs=[("nosuch", "1")]), 40, "Unknown topic config name: nosuch"),
    "null configs": (
        topic("a", configs=[("retention.ms", None), ("segment.ms", None)]),
        40,
        "Null value not supported for topic configs: retention.ms,segment.ms",
    ),
    "bad config": (
        topic("a", configs=[("retention.ms", "-9")]),
        40,
        "Invalid value -9 for configuration retention.ms: Value must be at least -1",
    ),
    "config before counts": (topic("a", 0, 0, configs=[("nosuch", "1")]), 40, "Unknown topic config name: nosuch"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_invalid_topics_are_refused_with_kafkas_code_and_text(case: str) -> None:
    asked, code, text = REFUSED[case]
    node = administered()
    await create(node, topic("there"), topic("x_y"))
    refused, made = (
        await create(node, asked, topic("other"))
        if case != "metadata"
        else (await create(node, topic("other"), asked))[::-1]
    )
    assert (refused.name, refused.error_code, refused.error_message) == (asked.name, code, text)
    assert (refused.num_partitions, refused.replication_factor, refused.configs) == (-1, -1, [])
    assert refused.topic_id == ZERO_UUID
    assert made.error_code == 0, "the others are made"
    assert node.image.topics.keys() == {"there", "x_y", "other"}


async def test_more_partitions_than_a_controller_accepts_are_refused() -> None:
    node = administered()
    (result,) = await create(node, topic("a", 10000, 1))
    assert (result.error_code, result.error_message) == (44, "Unable to perform excessively large batch operation.")
    assert node.image.topics == {}


async def test_too_many_replicas_are_refused() -> None:
    (result,) = await create(administered(), topic("a", 1, 2))
    assert result.error_code == 38
    assert result.error_message is not None
    assert result.error_message.startswith(
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because "
        "only 1 broker(s) are registered"
    )


async def test_a_repeated_name_in_one_request_is_refused() -> None:
    node = administered()
    results = await create(node, topic("a", 1), topic("b", 1), topic("a", 2))
    assert [(result.name, result.error_code, result.error_message) for result in results] == [
        ("b", 0, None),
        ("a", 42, "Duplicate topic name."),
    ]
    assert node.image.topics.keys() == {"b"}


async def test_too_many_partitions_in_one_request_fail_it_whole() -> None:
    node = administered()
    for topics in (
        [topic("a", 10001), topic("b", 1)],
        [topic("a", 5001), topic("b", 5000)],
        [topic("a", 9999), topic("b", assignments=[(0, [1]), (1, [1])])],
    ):
        with pytest.raises(PolicyViolationError, match=r"Excessively large number of partitions per request\."):
            await create(node, *topics)
    assert node.image.topics == {}


async def test_assignments_and_configs() -> None:
    node = administered(3)
    configs = [("retention.ms", "5"), ("retention.ms", "6")]
    (result,) = await create(node, topic("a", assignments=[(1, [3, 2]), (0, [1, 2])], configs=configs))
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    made = node.image.topics["a"]
    assert [partition.replicas for partition in made.partitions] == [[1, 2], [3, 2]]
    assert made.configs == {"retention.ms": "6"}, "the last one counts"


async def test_a_request_without_topics_has_an_empty_response() -> None:
    assert await create(administered()) == []
