"""DeleteTopics, versions 1-6: delete topics.

* 3: TOPIC_DELETION_DISABLED if topics cannot be deleted, INVALID_REQUEST before. 4: flexible. 5: error texts; a quota
  may throttle it; there are none here. 6: topics by id or by name (KIP-516).

A topic is deleted from every node before the response is sent, so ``timeout_ms`` never passes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from aioproducer.broker.handlers.error_responses import error_code
from aioproducer.errors import (
    BrokerError,
    InvalidRequestError,
    TopicDeletionDisabledError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aioproducer.protocol import ZERO_UUID
from aioproducer.protocol.messages.topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext
    from aioproducer.broker.image import ClusterImage

VERSIONS = range(1, 7)


async def handle(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete each topic; the failure of one does not affect the others.

    Raises:
        TopicDeletionDisabledError: delete.topic.enable is false.
        InvalidRequestError: the same, for clients that are too old for the other error.
    """
    broker = context.broker
    if not broker.config.delete_topic_enable:
        if context.version < 3:
            raise InvalidRequestError("Topic deletion is disabled.")
        raise TopicDeletionDisabledError
    results, names, ids = _sorted_out(request)
    found, failures = _resolve(broker.image, names, ids)
    results += failures
    for name, topic_id in found.items():
        try:
            broker.controller.delete_topic(name)
        except BrokerError as error:
            results.append(_failed(name, topic_id, error))
        else:
            results.append(DeletableTopicResult(name=name, topic_id=topic_id))
    return DeleteTopicsResponse(responses=results)


def _failed(name: str | None, topic_id: bytes, error: BrokerError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error_code(error), error_message=str(error) or None
    )


def _sorted_out(request: DeleteTopicsRequest) -> tuple[list[DeletableTopicResult], list[str], list[bytes]]:
    """Return the errors that follow from the request alone, and the remaining names and ids."""
    failures: list[DeletableTopicResult] = []
    names = Counter(request.topic_names)
    ids: Counter[bytes] = Counter()
    for topic in request.topics:
        if topic.name is None and topic.topic_id == ZERO_UUID:
            failures.append(_failed(None, ZERO_UUID, InvalidRequestError("Neither topic name nor id were specified.")))
        elif topic.name is None:
            ids[topic.topic_id] += 1
        elif topic.topic_id == ZERO_UUID:
            names[topic.name] += 1
        else:
            both = InvalidRequestError("You may not specify both topic name and topic id.")
            failures.append(_failed(topic.name, topic.topic_id, both))
    same_name = InvalidRequestError("Duplicate topic name.")
    failures += [_failed(name, ZERO_UUID, same_name) for name, count in names.items() if count > 1]
    same_id = InvalidRequestError("Duplicate topic id.")
    failures += [_failed(None, topic_id, same_id) for topic_id, count in ids.items() if count > 1]
    return (
        failures,
        [name for name, count in names.items() if count == 1],
        [topic_id for topic_id, count in ids.items() if count == 1],
    )


def _resolve(
    image: ClusterImage, names: list[str], ids: list[bytes]
) -> tuple[dict[str, bytes], list[DeletableTopicResult]]:
    """Return the existing topics by name, and an error for each one that does not exist or is repeated."""
    failures: list[DeletableTopicResult] = []
    found: dict[str, bytes] = {}
    for topic_id in ids:
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            unknown_id = UnknownTopicIdError("This server does not host this topic ID.")
            failures.append(_failed(None, topic_id, unknown_id))
        else:
            found[topic.name] = topic_id
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            unknown = UnknownTopicOrPartitionError("This server does not host this topic-partition.")
            failures.append(_failed(name, ZERO_UUID, unknown))
        elif found.pop(name, None) is not None:
            twice = InvalidRequestError("The provided topic name maps to an ID that was already supplied.")
            failures.append(_failed(name, topic.topic_id, twice))
        else:
            found[name] = topic.topic_id
    return found, failures
