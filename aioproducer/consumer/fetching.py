"""What is fetched of one partition: how far it is, what went wrong, and the batches of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aioproducer.admin import ISOLATION_LEVELS, IsolationLevel
from aioproducer.core.requests.retry import Attempts
from aioproducer.errors import ProtocolError
from aioproducer.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from aioproducer.wire.aborted_filter import AbortedFilter
from aioproducer.wire.record_batch import RecordBatch, iter_batches

TOPIC_IDS_FROM = 13
"""From this version on a Fetch names topics by their ids (KIP-516)."""


@dataclass(slots=True, eq=False)
class Progress:
    """A partition that is read. ``stop`` None is for ever; times are the loop's."""

    partition: int
    position: int
    """The next offset to fetch."""
    stop: int | None
    attempts: Attempts
    explicit: bool
    """The position is an offset that the caller named: it is not given up for another one."""
    failing_since: float | None = None
    in_flight: bool = field(default=False)

    @property
    def finished(self) -> bool:
        return self.stop is not None and self.position >= self.stop

    def failed(self, now: float) -> float:
        """Note a failed attempt; returns for how long it has been failing, in seconds."""
        self.attempts.failed(now)
        if self.failing_since is None:
            self.failing_since = now
        return now - self.failing_since

    def succeeded(self) -> None:
        self.attempts.succeeded()
        self.failing_since = None


@dataclass(frozen=True, slots=True)
class Found:
    """A batch with records to hand on, which begin at ``first``."""

    progress: Progress
    batch: RecordBatch
    first: int


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much one request may bring, and how long it may wait for the first byte."""

    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int


def fetch_request(
    topic: str,
    topic_id: bytes | None,
    progresses: Sequence[Progress],
    limits: FetchLimits,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> tuple[FetchRequest, int]:
    """The request for these partitions, and the highest version it may be sent in."""
    partitions = [
        FetchPartition(
            partition=each.partition, fetch_offset=each.position, partition_max_bytes=limits.partition_max_bytes
        )
        for each in progresses
    ]
    request = FetchRequest(
        max_wait_ms=limits.max_wait_ms,
        min_bytes=1,
        max_bytes=limits.max_bytes,
        isolation_level=ISOLATION_LEVELS[isolation_level],
        topics=[FetchTopic(topic=topic, topic_id=topic_id or bytes(16), partitions=partitions)],
    )
    highest = FetchRequest.schema.versions[-1] if topic_id else TOPIC_IDS_FROM - 1
    return request, highest


def answers(response: FetchResponse) -> Mapping[int, PartitionData]:
    """The answers by partition; the request named one topic."""
    return {each.partition_index: each for topic in response.responses for each in topic.partitions}


def take(progress: Progress, data: PartitionData) -> Iterator[Found]:
    """The batches of an answer that hold what is wanted, each checked; the position moves behind them.

    Raises:
        ProtocolError: a batch is corrupt.
    """
    records = data.records
    if records is None:
        return
    if not isinstance(records, bytes | bytearray | memoryview):
        raise ProtocolError("records were read in parts")
    aborted = None
    if data.aborted_transactions:
        aborted = AbortedFilter((each.first_offset, each.producer_id) for each in data.aborted_transactions)
    for batch in iter_batches(records):
        if progress.finished:
            return
        if batch.last_offset < progress.position:
            continue
        batch.validate()
        is_dropped = aborted is not None and aborted.drops(batch)
        first = progress.position
        progress.position = batch.next_offset
        if not (is_dropped or batch.is_control):
            yield Found(progress, batch, first)
