"""OffsetDelete, version 0: delete the offsets of a group for topics that its members do not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.errors import UnknownTopicOrPartitionError
from aioproducer.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(1)


async def handle(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Respond when the deletion is in the log; each unknown partition has its own error.

    Raises:
        BrokerError: no offset can be deleted.
    """
    codes: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        known = context.broker.image.topics.get(topic.name)
        count = 0 if known is None else len(known.partitions)
        for partition in topic.partitions:
            index = partition.partition_index
            codes.setdefault(topic.name, {})[index] = 0 if 0 <= index < count else UnknownTopicOrPartitionError.code
    there = {(name, index) for name, of_topic in codes.items() for index, code in of_topic.items() if not code}
    for (name, index), code in (await context.broker.groups.delete_offsets(request.group_id, there)).items():
        codes[name][index] = code
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=index, error_code=code)
                    for index, code in of_topic.items()
                ],
            )
            for name, of_topic in codes.items()
        ]
    )
