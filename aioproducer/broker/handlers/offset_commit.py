"""OffsetCommit, versions 2-10: store the offsets of a group.

* 2: with ``retention_time_ms``. 3: ``throttle_time_ms``. 4: as 3. 5: without ``retention_time_ms`` (KIP-211).
* 6: leader epochs (KIP-320). 7: static members by ``group_instance_id`` (KIP-345). 8: flexible.
* 9: a group that does not exist is GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION (KIP-848). 10: topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.broker.groups.commits import Committer
from aioproducer.broker.handlers.committing import CommitAnswer, known_offsets
from aioproducer.errors import BrokerError
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(2, 11)

_FIRST_WITH_TOPIC_IDS: Final = 10


async def handle(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Respond when the offsets are in the log; each unknown partition has its own error."""
    by_id = context.version >= _FIRST_WITH_TOPIC_IDS
    answer = CommitAnswer(by_id=by_id)
    offsets = known_offsets(
        context.broker.image, request.topics, answer, by_id=by_id, retention_ms=request.retention_time_ms
    )
    if offsets:
        committer = Committer(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        )
        try:
            codes = await context.broker.groups.commit(committer, offsets, version=context.version)
        except BrokerError as error:
            answer.add_all(offsets, error.code)
        else:
            answer.add_all(offsets, codes)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=index, error_code=code) for index, code in topic.codes
                ],
            )
            for topic in answer.topics
        ]
    )
