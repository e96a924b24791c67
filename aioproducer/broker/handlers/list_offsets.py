"""ListOffsets, versions 1-11: the first offset whose record is not older than a timestamp, or a special offset.

* 1: latest (-1), earliest (-2) and timestamps. 2: isolation level. 4: leader epochs, of the client and in the response.
* 5: OFFSET_NOT_AVAILABLE after an election; before, LEADER_NOT_AVAILABLE instead. 6: flexible.
* 7: the record with the largest timestamp (-3). 8: earliest local (-4), which is earliest here. 9: latest tiered (-5)
  and 11: earliest pending upload (-6), which do not exist here without tiered storage. 10: a timeout, for tiered
  offsets.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from aioproducer.broker.handlers.error_responses import error_code
from aioproducer.broker.yielding import LoopYielder
from aioproducer.errors import (
    InvalidRequestError,
    KafkaError,
    LeaderNotAvailableError,
    OffsetNotAvailableError,
    UnknownServerError,
    UnsupportedVersionError,
)
from aioproducer.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext
    from aioproducer.broker.replicas.partition import Partition

VERSIONS = range(1, 12)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_SINCE_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_CONSUMER: Final = -1
_DEBUGGING: Final = -2
_READ_COMMITTED: Final = 1
_ISOLATION_LEVELS: Final = (0, _READ_COMMITTED)


async def handle(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Look up each partition; each one has its own error.

    Raises:
        UnknownServerError: the isolation level does not exist; Kafka responds with this error too.
    """
    if request.isolation_level not in _ISOLATION_LEVELS:
        raise UnknownServerError()
    yielder = LoopYielder()
    topics = []
    for topic in request.topics:
        answers = []
        named = Counter(partition.partition_index for partition in topic.partitions)
        for wanted in {partition.partition_index: partition for partition in topic.partitions}.values():
            try:
                if named[wanted.partition_index] > 1:
                    raise InvalidRequestError("The partition is in the request more than once.")
                answers.append(_look_up(context, request, topic.name, wanted))
            except KafkaError as error:
                code = error_code(error)
                if code == OffsetNotAvailableError.code and context.version < 5:
                    code = LeaderNotAvailableError.code
                answers.append(ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=code))
            await yielder.pause()
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def _look_up(
    context: RequestContext, request: ListOffsetsRequest, topic: str, wanted: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    timestamp = wanted.timestamp
    if timestamp < 0 and context.version < _SINCE_VERSION.get(timestamp, context.version + 1):
        raise UnsupportedVersionError()
    replicas = context.broker.replicas
    if request.replica_id == _DEBUGGING:
        partition = replicas.partition(topic, wanted.partition_index)
        partition.check_leader_epoch(wanted.current_leader_epoch)
    else:
        partition = replicas.leader(topic, wanted.partition_index, wanted.current_leader_epoch)
    is_client = request.replica_id == _CONSUMER
    if not is_client:
        end = partition.log_end_offset
    elif request.isolation_level == _READ_COMMITTED:
        end = partition.last_stable_offset
    else:
        end = partition.high_watermark
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    log = partition.log
    if timestamp == LATEST:
        if is_client:
            _check_available(partition)
        found = (-1, end, partition.leader_epoch)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log_start_offset
        epoch = log.leader_epochs.epoch_for_offset(start)
        found = (-1, start, -1 if epoch is None else epoch)
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return answer
    else:
        record = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
        if record is None or record[1] >= end:
            if is_client:
                _check_available(partition)
            return answer
        found = record
    answer.timestamp, answer.offset = found[0], found[1]
    if context.version >= 4:
        answer.leader_epoch = found[2]
    return answer


def _check_available(partition: Partition) -> None:
    """Check the high watermark: after an election it may be below what readers have seen already (KIP-207)."""
    if partition.leader_epoch_start_offset > partition.high_watermark:
        raise OffsetNotAvailableError(
            f"Failed to fetch offsets for partition {partition.topic}-{partition.index}: the high watermark "
            f"({partition.high_watermark}) is lagging behind the start offset from the beginning of this epoch "
            f"({partition.leader_epoch_start_offset})."
        )
