"""OffsetForLeaderEpoch, versions 2-4: the end of a leader epoch in the leader's log.

* 2: the client's own leader epoch is checked (KIP-320). 3: replica id. 4: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.handlers.error_responses import error_code
from aioproducer.errors import KafkaError
from aioproducer.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext
    from aioproducer.protocol.messages.offsets import OffsetForLeaderPartition

VERSIONS = range(2, 5)


async def handle(context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Return the end of each requested epoch, or of the largest one below it."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_end(context, topic.topic, requested) for requested in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _end(context: RequestContext, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = context.broker.replicas.leader(topic, requested.partition, requested.current_leader_epoch)
        epoch, end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error_code(error), partition=requested.partition)
    return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)
