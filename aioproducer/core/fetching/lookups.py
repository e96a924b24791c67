"""Lookups of positions: ListOffsets for resets, OffsetForLeaderEpoch for validation.

Kafka's ``OffsetFetcherUtils``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aioproducer.core.fetching.partition import AssignedPartition, FetchPosition, FetchState
from aioproducer.core.fetching.reset import ResetKind
from aioproducer.core.metadata.cluster import NO_EPOCH, NO_LEADER
from aioproducer.errors import (
    KafkaError,
    LogTruncationError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    broker_error,
)
from aioproducer.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from aioproducer.record import TopicPartition

if TYPE_CHECKING:
    from aioproducer.core.fetching.fetcher import Fetcher
    from aioproducer.protocol.messages.offsets import EpochEndOffset, ListOffsetsPartitionResponse

CONSUMER_REPLICA_ID = -1
VALIDATION_FROM = 3
"""From this version of OffsetForLeaderEpoch on a consumer needs only the permission to describe the topic."""
_NO_OFFSET = -1


class PlannedReset(NamedTuple):
    """A ListOffsets request to send to a node, and the partitions that it looks up."""

    node_id: int
    request: ListOffsetsRequest
    revisions: Mapping[TopicPartition, int]
    lowest: int = 1


class PlannedValidation(NamedTuple):
    """An OffsetForLeaderEpoch request to send to a node, and the positions that it validates."""

    node_id: int
    request: OffsetForLeaderEpochRequest
    revisions: Mapping[TopicPartition, int]
    lowest: int = VALIDATION_FROM


PlannedLookup: TypeAlias = PlannedReset | PlannedValidation


class PositionLookups:
    """Builds the lookups that the partitions of a ``Fetcher`` need, and applies their responses."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def due(self, now: float, wall_ms: int) -> list[PlannedLookup]:
        """Return the requests to send now; ``wall_ms`` is the time in milliseconds since 1970, for ``by_duration``."""
        resets: dict[int, list[AssignedPartition]] = {}
        validations: dict[int, list[AssignedPartition]] = {}
        for partition in self._fetcher.partitions.values():
            if partition.state is FetchState.RESETTING:
                by_node = resets
            elif partition.state is FetchState.VALIDATING:
                by_node = validations
            else:
                continue
            if partition.is_looked_up or partition.attempts.delay(now) > 0:
                continue
            if partition.leader == NO_LEADER:
                self._fetcher.without_leader(partition, now)
                continue
            partition.is_looked_up = True
            by_node.setdefault(partition.leader, []).append(partition)
        return [
            *(self._reset_request(node_id, partitions, wall_ms) for node_id, partitions in resets.items()),
            *(_validation_request(node_id, partitions) for node_id, partitions in validations.items()),
        ]

    def _reset_request(self, node_id: int, partitions: list[AssignedPartition], wall_ms: int) -> PlannedReset:
        topics: dict[str, ListOffsetsTopic] = {}
        for each in partitions:
            assert each.reset is not None
            each.reset = each.reset.begun(wall_ms)
            topic = topics.setdefault(each.name.topic, ListOffsetsTopic(name=each.name.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=each.name.partition,
                    current_leader_epoch=each.leader_epoch,
                    timestamp=each.reset.timestamp,
                )
            )
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=self._fetcher.settings.isolation_level,
            topics=list(topics.values()),
        )
        return PlannedReset(node_id, request, _revisions(partitions))

    # Responses

    def failed(self, plan: PlannedLookup, error: KafkaError, now: float) -> None:
        """Apply the failure of a request; the partitions back off."""
        is_unsupported = isinstance(plan, PlannedValidation) and isinstance(error, UnsupportedVersionError)
        for partition in self._current(plan):
            partition.is_looked_up = False
            if is_unsupported:
                # Brokers before Kafka 2.3 cannot validate for a consumer.
                partition.validated()
                continue
            partition.attempts.failed(now)
            partition.failed(error, now)
            if not error.retriable:
                partition.fail(error, is_final=False)
        if not is_unsupported:
            self._fetcher.metadata.request_update(now, f"a lookup of positions failed: {error}")

    def _current(self, plan: PlannedLookup) -> Iterable[AssignedPartition]:
        state = FetchState.RESETTING if isinstance(plan, PlannedReset) else FetchState.VALIDATING
        for name, revision in plan.revisions.items():
            partition = self._fetcher.partitions.get(name)
            if partition is not None and partition.revision == revision and partition.state is state:
                yield partition

    def offsets_listed(self, plan: PlannedReset, response: ListOffsetsResponse, now: float) -> None:
        """Apply the offsets of a reset."""
        answers = {
            TopicPartition(topic.name, each.partition_index): each
            for topic in response.topics
            for each in topic.partitions
        }
        for partition in list(self._current(plan)):
            partition.is_looked_up = False
            answer = answers.get(partition.name)
            code = UnknownTopicOrPartitionError.code if answer is None else answer.error_code
            if code:
                self._refused(partition, code, now)
            else:
                assert answer is not None
                self._apply_reset(partition, answer, now)

    def _apply_reset(self, partition: AssignedPartition, answer: ListOffsetsPartitionResponse, now: float) -> None:
        reset = partition.reset
        assert reset is not None
        if answer.offset == _NO_OFFSET and reset.kind is ResetKind.BY_DURATION:
            # No record is that young. The partition stays without a position until there is one, as in Java: between
            # this answer and a lookup of the end, a record may have arrived, which must not be skipped.
            partition.attempts.failed(now)
            return
        position = FetchPosition(max(answer.offset, 0))
        partition.reset_found(position, in_progress=self._fetcher.records.in_progress(partition))

    def epochs_ended(self, plan: PlannedValidation, response: OffsetForLeaderEpochResponse, now: float) -> None:
        """Apply the ends of epochs."""
        answers = {
            TopicPartition(topic.topic, each.partition): each for topic in response.topics for each in topic.partitions
        }
        for partition in list(self._current(plan)):
            partition.is_looked_up = False
            answer = answers.get(partition.name)
            code = UnknownTopicOrPartitionError.code if answer is None else answer.error_code
            if code:
                self._refused(partition, code, now)
            else:
                assert answer is not None
                self._apply_end(partition, answer)

    def _refused(self, partition: AssignedPartition, code: int, now: float) -> None:
        error = broker_error(code)
        error.args = (f"Partition {partition.name}: {error}",)
        partition.attempts.failed(now)
        partition.failed(error, now)
        if isinstance(error, TopicAuthorizationError):
            partition.fail(error, is_final=False)
            return
        # Java retries every other error.
        self._fetcher.metadata.request_update(now, str(error))

    def _apply_end(self, partition: AssignedPartition, answer: EpochEndOffset) -> None:
        position = partition.position
        assert position is not None
        is_known = answer.end_offset >= 0 and answer.leader_epoch >= 0
        if is_known and answer.end_offset >= position.offset:
            partition.validated()
            return
        self._truncated(
            partition, position, FetchPosition(answer.end_offset, answer.leader_epoch) if is_known else None
        )

    def _truncated(self, partition: AssignedPartition, position: FetchPosition, end: FetchPosition | None) -> None:
        text = f"The log of partition {partition.name} was truncated before the position {position.offset}"
        if end is not None:
            text += f", at offset {end.offset}"
        fetcher = self._fetcher
        if fetcher.settings.reset.kind is ResetKind.NONE:
            partition.fail(
                LogTruncationError(f"{text}, and auto_offset_reset is none: seek to a position."), is_final=True
            )
        elif end is None:
            fetcher.log.warning("%s; the position is reset to %s", text, fetcher.settings.reset.kind.value)
            fetcher.request_reset(partition.name, fetcher.settings.reset)
        else:
            fetcher.log.warning("%s; reading continues there", text)
            fetcher.records.hold_back(partition)
            partition.truncated(end, in_progress=fetcher.records.in_progress(partition))


def _revisions(partitions: Iterable[AssignedPartition]) -> dict[TopicPartition, int]:
    return {each.name: each.revision for each in partitions}


def _validation_request(node_id: int, partitions: list[AssignedPartition]) -> PlannedValidation:
    topics: dict[str, OffsetForLeaderTopic] = {}
    for each in partitions:
        assert each.position is not None
        topic = topics.setdefault(each.name.topic, OffsetForLeaderTopic(topic=each.name.topic, partitions=[]))
        topic.partitions.append(
            OffsetForLeaderPartition(
                partition=each.name.partition,
                current_leader_epoch=each.leader_epoch,
                leader_epoch=each.position.epoch,
            )
        )
    request = OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values()))
    return PlannedValidation(node_id, request, _revisions(partitions))


class OffsetAndTimestamp(NamedTuple):
    """The first record that is not older than a time (Kafka's class of the same name)."""

    offset: int
    timestamp_ms: int
    leader_epoch: int | None = None


def timestamps_request(
    timestamps: Mapping[TopicPartition, int], leader_epochs: Mapping[TopicPartition, int], isolation_level: int
) -> ListOffsetsRequest:
    """Return the request that looks up timestamps, in milliseconds since 1970, at one leader."""
    topics: dict[str, ListOffsetsTopic] = {}
    for name, timestamp in timestamps.items():
        topic = topics.setdefault(name.topic, ListOffsetsTopic(name=name.topic, partitions=[]))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=name.partition,
                current_leader_epoch=leader_epochs.get(name, NO_EPOCH),
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID, isolation_level=isolation_level, topics=list(topics.values())
    )


def found_timestamps(
    response: ListOffsetsResponse,
) -> tuple[dict[TopicPartition, OffsetAndTimestamp | None], dict[TopicPartition, int]]:
    """Return the offsets that a response found, None without a record that young, and the error codes of the others."""
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    errors: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for each in topic.partitions:
            name = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                errors[name] = each.error_code
            elif each.offset == _NO_OFFSET:
                found[name] = None
            else:
                epoch = each.leader_epoch if each.leader_epoch >= 0 else None
                found[name] = OffsetAndTimestamp(each.offset, each.timestamp, epoch)
    return found, errors
