"""CreatePartitions, versions 0-3: add partitions to topics, or only check that with ``validate_only``.

* 2: flexible. 3: a quota may throttle it; there are none here. 1: as 0.

Every node knows new partitions before the response is sent, so ``timeout_ms`` never passes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from aioproducer.broker.handlers.create_topics import MAX_PARTITIONS
from aioproducer.broker.handlers.error_responses import error_code, error_message
from aioproducer.errors import (
    InvalidRequestError,
    KafkaError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from aioproducer.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode, RequestContext

VERSIONS = range(4)


async def handle(context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Add partitions to each topic; the failure of one topic does not affect the others.

    Raises:
        PolicyViolationError: more partitions at once than a controller of Kafka accepts.
    """
    counts = Counter(topic.name for topic in request.topics)
    duplicate = InvalidRequestError("Duplicate topic name.")
    results = [_result(name, duplicate) for name, count in counts.items() if count > 1]
    single = [topic for topic in request.topics if counts[topic.name] == 1]
    topics = context.broker.image.topics
    additional = sum(
        max(topic.count - len(topics[topic.name].partitions), 0) for topic in single if topic.name in topics
    )
    if additional > MAX_PARTITIONS:
        raise PolicyViolationError("Excessively large number of additional partitions per request.")
    results += [_result(topic.name, _enlarge(context.broker, topic, request.validate_only)) for topic in single]
    return CreatePartitionsResponse(results=results)


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name)
    # Kafka has no text for a topic that it does not know.
    text = None if isinstance(error, UnknownTopicOrPartitionError) else error_message(error)
    return CreatePartitionsTopicResult(name=name, error_code=error_code(error), error_message=text)


def _enlarge(broker: BrokerNode, topic: CreatePartitionsTopic, validate_only: bool) -> KafkaError | None:
    assignments = None
    if topic.assignments is not None:
        assignments = [assignment.broker_ids for assignment in topic.assignments]
    try:
        broker.controller.create_partitions(topic.name, topic.count, assignments, validate_only=validate_only)
    except KafkaError as error:
        return error
    return None
