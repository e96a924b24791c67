"""OffsetFetch, versions 1-10: the committed offsets of groups.

* 1: one group; its error is at each partition. 2: null ``topics`` means all; the error is that of the response.
* 3: ``throttle_time_ms``. 4: as 3. 5: leader epochs (KIP-320). 6: flexible. 7: ``require_stable`` (KIP-447): wait for
  commits in progress; a partition with an offset of an open transaction has UNSTABLE_OFFSET_COMMIT.
* 8: several groups (KIP-709). 9: as 8 for classic groups (KIP-848). 10: topics by id.

A partition without an offset has -1 and no error, even if the group or partition does not exist.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from aioproducer.broker.groups.offsets import StoredOffset
from aioproducer.errors import BrokerError, UnknownTopicIdError, UnstableOffsetCommitError
from aioproducer.protocol import ZERO_UUID
from aioproducer.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext
    from aioproducer.broker.image import ClusterImage

VERSIONS = range(1, 11)

_FIRST_WITH_ERROR_OF_RESPONSE: Final = 2
_FIRST_WITH_SEVERAL_GROUPS: Final = 8
_FIRST_WITH_TOPIC_IDS: Final = 10

_NO_OFFSETS: Final[Mapping[int, StoredOffset]] = {}


class _Wanted(NamedTuple):
    """Partitions of one topic; the name is ``None`` if the topic's id is unknown."""

    name: str | None
    topic_id: bytes
    indexes: list[int]


async def handle(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return the offsets of each group."""
    if context.version >= _FIRST_WITH_SEVERAL_GROUPS:
        groups = [await _fetch(context, group, request.require_stable) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    requested = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    return _single(await _fetch(context, requested, request.require_stable), topics or [], context.version)


async def _fetch(
    context: RequestContext, requested: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    image, by_id = context.broker.image, context.version >= _FIRST_WITH_TOPIC_IDS
    response = OffsetFetchResponseGroup(group_id=requested.group_id)
    try:
        offsets, unstable = await context.broker.groups.offsets(requested.group_id, require_stable=require_stable)
    except BrokerError as error:
        response.error_code = error.code
        return response
    if requested.topics is None:
        for name, partitions in offsets.items():
            topic = image.topics.get(name)
            # A response by ids cannot contain a topic that has no id any longer.
            if topic is not None or not by_id:
                topic_id = ZERO_UUID if topic is None else topic.topic_id
                wanted_topic = _Wanted(name, topic_id, list(partitions))
                response.topics.append(_topic(wanted_topic, partitions, unstable.get(name, ()), check_id=False))
        return response
    wanted = [_wanted(image, topic, by_id) for topic in requested.topics]
    # As in Kafka, topics with unknown ids come last.
    for topic_wanted in sorted(wanted, key=lambda each: each.name is None):
        if topic_wanted.name is None:
            response.topics.append(_unknown(topic_wanted))
        else:
            kept = offsets.get(topic_wanted.name, _NO_OFFSETS)
            pending = unstable.get(topic_wanted.name, ())
            response.topics.append(_topic(topic_wanted, kept, pending, check_id=by_id))
    return response


def _wanted(image: ClusterImage, topic: OffsetFetchRequestTopics, by_id: bool) -> _Wanted:
    if not by_id:
        return _Wanted(topic.name, ZERO_UUID, topic.partition_indexes)
    known = image.topics_by_id.get(topic.topic_id)
    return _Wanted(None if known is None else known.name, topic.topic_id, topic.partition_indexes)


def _unknown(wanted: _Wanted) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=wanted.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=UnknownTopicIdError.code
            )
            for index in wanted.indexes
        ],
    )


def _topic(
    wanted: _Wanted, kept: Mapping[int, StoredOffset], unstable: Container[int], *, check_id: bool
) -> OffsetFetchResponseTopics:
    topic = OffsetFetchResponseTopics(name=wanted.name or "", topic_id=wanted.topic_id)
    for index in wanted.indexes:
        found = kept.get(index)
        value = None if found is None else found.value
        if value is not None and check_id and value.topic_id not in (ZERO_UUID, wanted.topic_id):
            # The offset belongs to a deleted topic of the same name.
            value = None
        partition = OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="")
        if index in unstable:
            partition.error_code = UnstableOffsetCommitError.code
        elif value is not None:
            partition.committed_offset = value.offset
            partition.committed_leader_epoch = value.leader_epoch
            partition.metadata = value.metadata
        topic.partitions.append(partition)
    return topic


def _single(
    group: OffsetFetchResponseGroup, requested: list[OffsetFetchRequestTopics], version: int
) -> OffsetFetchResponse:
    """Build the response of versions with only one group."""
    if group.error_code and version < _FIRST_WITH_ERROR_OF_RESPONSE:
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=index, committed_offset=-1, metadata="", error_code=group.error_code
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in requested
            ]
        )
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
                for partition in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)
