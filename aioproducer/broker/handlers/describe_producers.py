"""DescribeProducers, version 0: the producers known to partitions, and their open transactions (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.controller.topic_rules import check_name
from aioproducer.broker.handlers.error_responses import error_code, error_message
from aioproducer.errors import InvalidTopicError, KafkaError, UnknownTopicOrPartitionError
from aioproducer.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(1)


async def handle(context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Describe each partition with a replica on this node, whether this node leads it or not, as Kafka does."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_describe(context, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _describe(context: RequestContext, topic: str, index: int) -> PartitionResponse:
    answer = PartitionResponse(partition_index=index)
    if topic not in context.broker.image.topics:
        answer.error_code, answer.error_message = _why_absent(topic)
        return answer
    try:
        partition = context.broker.replicas.partition(topic, index)
    except KafkaError as error:
        answer.error_code = error_code(error)
        return answer
    answer.active_producers = [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=state.producer_epoch,
            last_sequence=state.last_sequence,
            last_timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_start_offset=state.current_transaction_first_offset,
        )
        for producer_id, state in partition.log.producer_state.producers.items()
    ]
    return answer


def _why_absent(topic: str) -> tuple[int, str | None]:
    """Return code and message for an unknown topic; Kafka has a message here, but none for an unknown partition."""
    try:
        check_name(topic)
    except InvalidTopicError as error:
        return error.code, error_message(error)
    return UnknownTopicOrPartitionError.code, "This server does not host this topic-partition."
