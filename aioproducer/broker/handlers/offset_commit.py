"""OffsetCommit, versions 2-10: a group's offsets are kept.

* 2: with ``retention_time_ms``. 3: ``throttle_time_ms``. 4: as 3. 5: without ``retention_time_ms`` (KIP-211).
* 6: leader epochs (KIP-320). 7: static members by ``group_instance_id`` (KIP-345). 8: flexible.
* 9: a group that does not exist is GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION (KIP-848). 10: topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.broker.groups.coordinator import CommittedOffset, Committer
from aioproducer.errors import BrokerError, UnknownTopicIdError, UnknownTopicOrPartitionError
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext
    from aioproducer.broker.image import ClusterImage

VERSIONS = range(2, 11)

_FIRST_WITH_TOPIC_IDS: Final = 10


async def handle(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Answered when the offsets are in the log; those of unknown partitions are refused one by one."""
    by_id = context.version >= _FIRST_WITH_TOPIC_IDS
    answer = _Answer(by_id)
    offsets: list[CommittedOffset] = []
    for topic in request.topics:
        name, partition_count, code = _look_up(context.broker.image, topic, by_id)
        for partition in topic.partitions:
            index = partition.partition_index
            if code or not 0 <= index < partition_count:
                answer.add(topic.name, topic.topic_id, index, code or UnknownTopicOrPartitionError.code)
                continue
            offsets.append(
                CommittedOffset(
                    name,
                    topic.topic_id,
                    index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata,
                    request.retention_time_ms,
                )
            )
    if offsets:
        committer = Committer(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        )
        try:
            codes = await context.broker.groups.commit(committer, offsets, version=context.version)
        except BrokerError as error:
            codes = {(offset.topic, offset.partition): error.code for offset in offsets}
        for offset in offsets:
            answer.add(offset.topic, offset.topic_id, offset.partition, codes[offset.topic, offset.partition])
    return OffsetCommitResponse(topics=answer.topics)


def _look_up(image: ClusterImage, topic: OffsetCommitRequestTopic, by_id: bool) -> tuple[str, int, int]:
    """The topic's name and number of partitions, and the error code where it is unknown."""
    known = image.topics_by_id.get(topic.topic_id) if by_id else image.topics.get(topic.name)
    if known is None:
        return "", 0, (UnknownTopicIdError if by_id else UnknownTopicOrPartitionError).code
    return known.name, len(known.partitions), 0


class _Answer:
    """Gathers partitions under their topics."""

    def __init__(self, by_id: bool) -> None:
        self.topics: list[OffsetCommitResponseTopic] = []
        self._by_id = by_id
        self._known: dict[str | bytes, OffsetCommitResponseTopic] = {}

    def add(self, name: str, topic_id: bytes, index: int, code: int) -> None:
        key = topic_id if self._by_id else name
        topic = self._known.get(key)
        if topic is None:
            topic = self._known[key] = OffsetCommitResponseTopic(name=name, topic_id=topic_id)
            self.topics.append(topic)
        topic.partitions.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
