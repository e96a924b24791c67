"""DeleteTopics: the codes and texts of Apache Kafka 4.4 for the same requests."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.handlers import delete_topics
from aioproducer.errors import InvalidRequestError, KafkaStorageError, TopicDeletionDisabledError
from aioproducer.protocol import ZERO_UUID
from aioproducer.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from tests.broker.handlers.administered import Node, administered, ask

Result = tuple[str | None, bytes, int, str | None]


async def delete(
    node: Node,
    version: int,
    names: Iterable[str] = (),
    topics: Iterable[tuple[str | None, bytes]] = (),
) -> list[Result]:
    request = DeleteTopicsRequest(
        topic_names=list(names),
        topics=[DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics],
        timeout_ms=5000,
    )
    response = await ask(node, delete_topics, request, version)
    return [(result.name, result.topic_id, result.error_code, result.error_message) for result in response.responses]


def with_topics(*names: str, **properties: object) -> tuple[Node, dict[str, bytes]]:
    node = administered(1, properties)
    return node, {name: node.controller.create_topic(TopicSpec(name)).topic_id for name in names}


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(version: int) -> None:
    node, _ = with_topics("a", "b")
    assert await delete(node, version, ["a", "nosuch"]) == [
        ("nosuch", ZERO_UUID, 3, "This server does not host this topic-partition." if version >= 5 else None),
        ("a", ZERO_UUID, 0, None),
    ]
    assert node.image.topics.keys() == {"b"}


async def test_topics_are_deleted_by_name_and_by_id() -> None:
    node, ids = with_topics("a", "b", "c")
    assert await delete(node, 6, topics=[("a", ZERO_UUID), (None, ids["b"])]) == [
        ("b", ids["b"], 0, None),
        ("a", ids["a"], 0, None),
    ]
    assert node.image.topics.keys() == {"c"}
    assert await delete(node, 6, topics=[(None, ids["b"])]) == [
        (None, ids["b"], 100, "This server does not host this topic ID.")
    ]


async def test_a_repeated_name_is_refused() -> None:
    node, _ = with_topics("a", "b")
    assert await delete(node, 5, ["a", "a", "b"]) == [
        ("a", ZERO_UUID, 42, "Duplicate topic name."),
        ("b", ZERO_UUID, 0, None),
    ]
    assert node.image.topics.keys() == {"a"}


async def test_a_repeated_id_is_refused_also_beside_its_name() -> None:
    node, ids = with_topics("a", "b")
    assert await delete(node, 6, topics=[(None, ids["a"]), (None, ids["a"])]) == [
        (None, ids["a"], 42, "Duplicate topic id.")
    ]
    assert await delete(node, 6, topics=[(None, ids["a"]), ("a", ZERO_UUID)]) == [
        ("a", ids["a"], 42, "The provided topic name maps to an ID that was already supplied.")
    ]
    assert node.image.topics.keys() == {"a", "b"}


async def test_a_topic_needs_exactly_one_of_name_and_id() -> None:
    node, ids = with_topics("a")
    assert await delete(node, 6, topics=[(None, ZERO_UUID), ("a", ids["a"])]) == [
        (None, ZERO_UUID, 42, "Neither topic name nor id were specified."),
        ("a", ids["a"], 42, "You may not specify both topic name and topic id."),
    ]
    assert node.image.topics.keys() == {"a"}


async def test_deletion_can_be_disabled() -> None:
    node, _ = with_topics("a", delete_topic_enable=False)
    with pytest.raises(InvalidRequestError, match=r"Topic deletion is disabled\."):
        await delete(node, 2, ["a"])
    with pytest.raises(TopicDeletionDisabledError):
        await delete(node, 3, ["a"])
    assert node.image.topics.keys() == {"a"}


async def test_a_journal_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    node, ids = with_topics("a")

    def full(name: str) -> None:
        raise KafkaStorageError("disk full")

    monkeypatch.setattr(node.controller, "delete_topic", full)
    assert await delete(node, 6, topics=[("a", ZERO_UUID)]) == [("a", ids["a"], 56, "disk full")]
