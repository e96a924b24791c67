"""CreateTopics, versions 2-7: create topics, or only check that with ``validate_only``.

* 4: -1 partitions or replicas stand for the broker's defaults (accepted in every version, as by Kafka).
* 5: flexible; the response has a new topic's partitions, replicas and configurations (KIP-525).
* 6: a quota may throttle it; there are none here. 7: topic ids in the response (KIP-516).

Every node knows a new topic before the response is sent, so ``timeout_ms`` never passes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from aioproducer.broker.config.describing import effective_topic
from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.handlers.config_sources import sources_of
from aioproducer.broker.handlers.error_responses import error_code, error_message
from aioproducer.broker.image import TopicState
from aioproducer.errors import InvalidReplicaAssignmentError, InvalidRequestError, KafkaError, PolicyViolationError
from aioproducer.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode, RequestContext

VERSIONS = range(2, 8)

MAX_PARTITIONS = 10_000
"""Maximum partitions of all topics in a request, and of those that CreatePartitions adds at once."""

_CLUSTER_METADATA_TOPIC = "__cluster_metadata"


async def handle(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create each topic; the failure of one does not affect the others.

    Raises:
        PolicyViolationError: more partitions at once than a controller of Kafka accepts.
    """
    counts = Counter(topic.name for topic in request.topics)
    single = [topic for topic in request.topics if counts[topic.name] == 1 and topic.name != _CLUSTER_METADATA_TOPIC]
    default = context.broker.config.num_partitions
    if sum(_partitions(topic, default) for topic in single) > MAX_PARTITIONS:
        raise PolicyViolationError("Excessively large number of partitions per request.")
    results = [_create(context.broker, topic, request.validate_only) for topic in single]
    duplicate = InvalidRequestError("Duplicate topic name.")
    results += [_failed(name, duplicate) for name, count in counts.items() if count > 1]
    if counts[_CLUSTER_METADATA_TOPIC] == 1:
        prohibited = InvalidRequestError(f"Creation of internal topic {_CLUSTER_METADATA_TOPIC} is prohibited.")
        results.append(_failed(_CLUSTER_METADATA_TOPIC, prohibited))
    return CreateTopicsResponse(topics=results)


def _partitions(topic: CreatableTopic, default: int) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return default if topic.num_partitions == -1 else topic.num_partitions


def _failed(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error_code(error), error_message=error_message(error), configs=[])


def _create(broker: BrokerNode, topic: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
    try:
        created = broker.controller.create_topic(_spec(topic), validate_only=validate_only)
    except KafkaError as error:
        return _failed(topic.name, error)
    return CreatableTopicResult(
        name=created.name,
        topic_id=created.topic_id,
        error_message=None,
        num_partitions=len(created.partitions),
        replication_factor=len(created.partitions[0].replicas),
        configs=_configs(broker, created),
    )


def _spec(topic: CreatableTopic) -> TopicSpec:
    assignments: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            raise InvalidReplicaAssignmentError(
                f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            )
        assignments[assignment.partition_index] = assignment.broker_ids
    return TopicSpec(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        assignments or None,
        {config.name: config.value for config in topic.configs},
    )


def _configs(broker: BrokerNode, topic: TopicState) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in effective_topic(sources_of(broker), topic.configs)
    ]
