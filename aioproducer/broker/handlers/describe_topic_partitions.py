"""DescribeTopicPartitions, version 0: the partitions of topics in the order of their names, in pages (KIP-966).

Eligible leader replicas are not kept; their lists are empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.controller.topic_rules import check_name
from aioproducer.broker.handlers.leaders import TOPIC_OPERATIONS
from aioproducer.broker.handlers.metadata import describe_partition
from aioproducer.broker.image import INTERNAL_TOPICS
from aioproducer.errors import BrokerError, InvalidRequestError, InvalidTopicError, UnknownTopicOrPartitionError
from aioproducer.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext
    from aioproducer.broker.image import ClusterImage, PartitionState, TopicState

VERSIONS = range(1)


async def handle(context: RequestContext, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """Return as many partitions as the request and the broker allow, and the start of the next page.

    Raises:
        InvalidRequestError: the cursor's topic is not in the request, or its partition is invalid.
    """
    image = context.broker.image
    cursor = request.cursor
    first = "" if cursor is None else cursor.topic_name
    names = {topic.name for topic in request.topics} or image.topics.keys()
    wanted = sorted(name for name in names if name >= first)
    if cursor is not None:
        if request.topics and cursor.topic_name not in wanted:
            raise InvalidRequestError(
                f"DescribeTopicPartitionsRequest topic list should contain the cursor topic: {cursor.topic_name}"
            )
        if cursor.partition_index < 0:
            raise InvalidRequestError(f"DescribeTopicPartitionsRequest cursor partition must be valid: {cursor}")
    limit = context.broker.config.max_request_partition_size_limit
    room = max(min(limit, request.response_partition_limit), 1)
    response = DescribeTopicPartitionsResponse(next_cursor=None)
    for name in wanted:
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = image.topics.get(name)
        error = context.error_for(name)
        if topic is None or error is not None:
            response.topics.append(_absent(name, error or _why_absent(name)))
            continue
        start = cursor.partition_index if cursor is not None and name == first else 0
        states = topic.partitions[start : start + room]
        response.topics.append(_described(context, image, topic, states))
        if start + room < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=start + room)
            break
        room -= len(states)
    return response


def _why_absent(name: str) -> BrokerError:
    try:
        check_name(name)
    except InvalidTopicError as error:
        return error
    return UnknownTopicOrPartitionError()


def _absent(name: str, error: BrokerError) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error.code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described(
    context: RequestContext, image: ClusterImage, topic: TopicState, states: list[PartitionState]
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for state in states:
        known = describe_partition(image, state)
        error = context.error_for(topic.name, state.index)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                # Unlike Metadata it has no error for a partition without a leader.
                error_code=0 if error is None else error.code,
                partition_index=state.index,
                leader_id=known.leader_id,
                leader_epoch=known.leader_epoch,
                replica_nodes=known.replica_nodes,
                isr_nodes=known.isr_nodes,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=known.offline_replicas,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
