"""CreatePartitions: the codes and texts of Apache Kafka 4.4 for the same requests."""

from __future__ import annotations

import pytest

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.handlers import create_partitions
from aioproducer.errors import PolicyViolationError
from aioproducer.protocol.messages.topics import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.broker.handlers.administered import Node, administered, ask

Wish = tuple[str, int, list[list[int]] | None]


async def enlarge(
    node: Node, *topics: Wish, version: int = 3, validate_only: bool = False
) -> list[tuple[str, int, str | None]]:
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if assignments is None
                else [CreatePartitionsAssignment(broker_ids=broker_ids) for broker_ids in assignments],
            )
            for name, count, assignments in topics
        ],
        timeout_ms=5000,
        validate_only=validate_only,
    )
    response = await ask(node, create_partitions, request, version)
    return [(result.name, result.error_code, result.error_message) for result in response.results]


def with_topics(*names: str, nodes: int = 1) -> Node:
    node = administered(nodes)
    for name in names:
        node.controller.create_topic(TopicSpec(name, 2, 1))
    return node


@pytest.mark.parametrize("version", create_partitions.VERSIONS)
async def test_topics_get_more_partitions(version: int) -> None:
    node = with_topics("a", "b")
    assert await enlarge(node, ("a", 5, None), ("b", 3, [[1]]), version=version) == [("a", 0, None), ("b", 0, None)]
    assert len(node.image.topics["a"].partitions) == 5
    assert len(node.image.topics["b"].partitions) == 3


async def test_new_partitions_get_the_assigned_replicas() -> None:
    node = with_topics("a", nodes=3)
    assert await enlarge(node, ("a", 4, [[3], [2]])) == [("a", 0, None)]
    assert [partition.replicas for partition in node.image.topics["a"].partitions[2:]] == [[3], [2]]


async def test_validate_only_adds_nothing() -> None:
    node = with_topics("a")
    assert await enlarge(node, ("a", 5, None), validate_only=True) == [("a", 0, None)]
    assert len(node.image.topics["a"].partitions) == 2


@pytest.mark.parametrize(
    ("wish", "code", "text"),
    [
        (("a", 2, None), 37, "Topic already has 2 partition(s)."),
        (("a", 1, None), 37, "The topic a currently has 2 partition(s); 1 would not be an increase."),
        (("a", 0, None), 37, "The topic a currently has 2 partition(s); 0 would not be an increase."),
        (("a", -1, None), 37, "The topic a currently has 2 partition(s); -1 would not be an increase."),
        (("nosuch", 5, None), 3, None),
        (("", 5, None), 3, None),
        (
            ("a", 3, [[1], [1]]),
            39,
            "Attempted to add 1 additional partition(s), but only 2 assignment(s) were specified.",
        ),
        (("a", 3, []), 39, "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified."),
        (("a", 3, [[9]]), 39, "The manual partition assignment includes broker 9, but no such broker is registered."),
        (("a", 3, [[1, 1]]), 39, "The manual partition assignment includes the broker 1 more than once."),
        (("a", 3, [[]]), 39, "The manual partition assignment includes an empty replica list."),
    ],
)
async def test_invalid_topics_are_refused_with_kafkas_code_and_text(wish: Wish, code: int, text: str | None) -> None:
    node = with_topics("a", "b")
    assert await enlarge(node, wish, ("b", 3, None)) == [(wish[0], code, text), ("b", 0, None)]
    assert len(node.image.topics["a"].partitions) == 2


async def test_a_repeated_name_in_one_request_is_refused() -> None:
    node = with_topics("a", "b")
    assert await enlarge(node, ("a", 4, None), ("b", 3, None), ("a", 5, None)) == [
        ("a", 42, "Duplicate topic name."),
        ("b", 0, None),
    ]
    assert len(node.image.topics["a"].partitions) == 2


async def test_too_many_partitions_at_once_are_refused() -> None:
    node = with_topics("a", "b")
    text = r"Excessively large number of additional partitions per request\."
    with pytest.raises(PolicyViolationError, match=text):
        await enlarge(node, ("a", 10003, None))
    with pytest.raises(PolicyViolationError, match=text):
        await enlarge(node, ("a", 6000, None), ("b", 6000, None))
    assert await enlarge(node, ("a", 10002, None), validate_only=True) == [("a", 0, None)]
