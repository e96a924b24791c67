"""DeleteRecords, versions 0-2: move the start of logs to later offsets (KIP-107).

* 0, 1: the base. 2: flexible. The offset -1 stands for the high watermark. The response waits until all living replicas
  have deleted the records, or contains REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioproducer.broker.handlers.error_responses import error_code
from aioproducer.broker.image import INTERNAL_TOPICS
from aioproducer.errors import InvalidTopicError, KafkaError, RequestTimedOutError
from aioproducer.protocol.messages.offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext
    from aioproducer.broker.replicas.partition import Partition
    from aioproducer.protocol.messages.offsets import DeleteRecordsPartition

VERSIONS = range(3)

_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1


@dataclass(slots=True, eq=False)
class _Deletion:
    """The deletion in one partition, while some replicas have not followed it."""

    partition: Partition
    offset: int
    result: DeleteRecordsPartitionResult

    def is_over(self) -> bool:
        """Whether nothing is left to wait for; the result contains the outcome."""
        try:
            low_watermark = self.partition.low_watermark
        except KafkaError as error:
            self.result.error_code = error_code(error)
            self.result.low_watermark = _NO_LOW_WATERMARK
            return True
        if low_watermark < self.offset:
            return False
        self.result.error_code = 0
        self.result.low_watermark = low_watermark
        return True


async def handle(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete records in each partition, and wait for the followers for at most ``timeout_ms``."""
    waiting: list[_Deletion] = []
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[_delete(context, topic.name, requested, waiting) for requested in topic.partitions],
        )
        for topic in request.topics
    ]
    if waiting:
        await _wait(waiting, request.timeout_ms / 1000)
    return DeleteRecordsResponse(topics=topics)


def _delete(
    context: RequestContext, topic: str, requested: DeleteRecordsPartition, waiting: list[_Deletion]
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=requested.partition_index, low_watermark=_NO_LOW_WATERMARK)
    try:
        context.broker.image.partition(topic, requested.partition_index)
        if topic in INTERNAL_TOPICS:
            raise InvalidTopicError(f"Cannot delete records of internal topic {topic}")
        partition = context.broker.replicas.leader(topic, requested.partition_index)
        offset = partition.high_watermark if requested.offset == _HIGH_WATERMARK else requested.offset
        result.low_watermark = partition.delete_records(requested.offset)
    except KafkaError as error:
        result.error_code = error_code(error)
        return result
    if result.low_watermark < offset:
        result.error_code = RequestTimedOutError.code
        waiting.append(_Deletion(partition, offset, result))
    return result


async def _wait(waiting: list[_Deletion], timeout: float) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    pending = set(waiting)

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def moved() -> None:
        pending.difference_update([deletion for deletion in pending if deletion.is_over()])
        if not pending:
            finish()

    for deletion in waiting:
        deletion.partition.add_watcher(moved)
    timer = loop.call_later(max(timeout, 0), finish)
    try:
        moved()
        await done
    finally:
        timer.cancel()
        for deletion in waiting:
            deletion.partition.remove_watcher(moved)
