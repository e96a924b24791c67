"""Commits and fetches of offsets: the calls that wait, and what the responses say about their partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random

from aioproducer.core.membership.requests import Generation, RequestKind
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.transactions.requests import Result
from aioproducer.error_codes import (
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
)
from aioproducer.errors import KafkaError, KafkaTimeoutError
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitResponse,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from aioproducer.record import TopicPartition

_MISSING = -1
"""UNKNOWN_SERVER_ERROR: for a partition that the response lacks."""

Failure = tuple[TopicPartition | None, int]
"""The error code that decides about a response, and its partition; None if it concerns the whole group."""

# Of several failed partitions, these decide only if there is no other failure, in this order: the others concern the
# whole request. A commit that ends with UNKNOWN_TOPIC_OR_PARTITION has succeeded for all partitions of other topics.
_LAST_OF_COMMIT = (TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION)
_LAST_OF_FETCH = (TOPIC_AUTHORIZATION_FAILED, UNSTABLE_OFFSET_COMMIT)


class FetchedOffsets(Result):
    """The end of a fetch of offsets."""

    __slots__ = ("offsets",)

    def __init__(self) -> None:
        super().__init__()
        self.offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        """The committed offset of each partition, None if it has none; complete when the fetch has succeeded."""


class OffsetCall:
    """A commit or fetch that waits to be sent, is in flight or waits for its retry.

    Args:
        deadline: when it fails with a time-out.
        retries: whether a retriable failure is retried; otherwise it ends the call.
        generation: the member's generation at the time of the call.
    """

    __slots__ = ("attempts", "deadline", "generation", "kind", "last_error", "result", "retries", "retry_at")

    def __init__(
        self, kind: RequestKind, result: Result, deadline: float, generation: Generation, *, retries: bool = True
    ) -> None:
        self.kind = kind
        self.result = result
        self.deadline = deadline
        self.generation = generation
        self.retries = retries
        self.attempts = 0
        self.last_error: KafkaError | None = None
        self.retry_at = float("-inf")


class CommitCall(OffsetCall):
    """A commit; ``offsets`` are those that the group has not accepted yet."""

    __slots__ = ("offsets",)

    def __init__(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float,
        generation: Generation,
        *,
        retries: bool,
    ) -> None:
        super().__init__(RequestKind.COMMIT, Result(), deadline, generation, retries=retries)
        self.offsets = dict(offsets)

    def read(self, response: OffsetCommitResponse) -> Failure | None:
        """Drop what the group has accepted; return the failure that decides."""
        failures: list[Failure] = []
        for topic in response.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code == NONE:
                    self.offsets.pop(where, None)
                else:
                    failures.append((where, partition.error_code))
        return _deciding(failures, self.offsets, _LAST_OF_COMMIT)


class FetchCall(OffsetCall):
    """A fetch of the committed offsets of partitions."""

    __slots__ = ("fetched", "partitions")

    def __init__(self, partitions: Iterable[TopicPartition], deadline: float, generation: Generation) -> None:
        self.fetched = FetchedOffsets()
        super().__init__(RequestKind.FETCH_OFFSETS, self.fetched, deadline, generation)
        self.partitions = tuple(partitions)

    def read(self, response: OffsetFetchResponse) -> Failure | None:
        """Keep the offsets; return the failure that decides."""
        if response.error_code != NONE:
            return None, response.error_code
        if response.groups and response.groups[0].error_code != NONE:
            return None, response.groups[0].error_code
        failures: list[Failure] = []
        left = dict.fromkeys(self.partitions)
        for where, partition in _fetched(response):
            if partition.error_code != NONE:
                failures.append((where, partition.error_code))
                continue
            left.pop(where, None)
            self.fetched.offsets[where] = committed_offset(partition)
        return _deciding(failures, left, _LAST_OF_FETCH)


def committed_offset(
    partition: OffsetFetchResponsePartition | OffsetFetchResponsePartitions,
) -> OffsetAndMetadata | None:
    """Return the committed offset of a partition of a response; None if there is none."""
    if partition.committed_offset < 0:
        return None
    epoch = partition.committed_leader_epoch
    return OffsetAndMetadata(partition.committed_offset, partition.metadata or "", None if epoch < 0 else epoch)


def _fetched(
    response: OffsetFetchResponse,
) -> Iterator[tuple[TopicPartition, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]]:
    """Iterate over the partitions of a response, in the form of any version."""
    for topic in response.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition
    for group in response.groups:
        for of_group in group.topics:
            for fetched in of_group.partitions:
                yield TopicPartition(of_group.name, fetched.partition_index), fetched


def _deciding(failures: list[Failure], left: Iterable[TopicPartition], last: Sequence[int]) -> Failure | None:
    """Return the failure that decides: the first one with a code that is not in ``last``, if there is one."""
    if not failures:
        missing = next(iter(left), None)
        return None if missing is None else (missing, _MISSING)
    return min(failures, key=lambda failure: last.index(failure[1]) if failure[1] in last else -1)


class CallQueue:
    """The calls of one lane in their order. The first one is in flight, or waits for its next attempt.

    Later commits never overtake earlier ones, so that a partition's committed offset does not go back.
    """

    def __init__(self, backoff: ExponentialBackoff, random: Random) -> None:
        self._backoff = backoff
        self._random = random
        self._calls: deque[OffsetCall] = deque()
        self._in_flight: OffsetCall | None = None

    def __iter__(self) -> Iterator[OffsetCall]:
        """Iterate over the calls that wait; the one in flight is not among them."""
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: OffsetCall) -> None:
        self._calls.append(call)

    def first(self) -> OffsetCall | None:
        """Return the call that is sent next."""
        return self._calls[0] if self._calls and self._in_flight is None else None

    def sent(self) -> None:
        """Move the first call into flight."""
        call = self._calls.popleft()
        call.attempts += 1
        self._in_flight = call

    def ended(self) -> OffsetCall:
        """Take out the call in flight."""
        call = self._in_flight
        assert call is not None
        self._in_flight = None
        return call

    def retry(self, call: OffsetCall, error: KafkaError, now: float) -> None:
        """Let a call wait for its next attempt, before later ones, or end it if it has no further attempt."""
        if call.result.done:
            return
        if not call.retries:
            call.result.end(error)
            return
        call.last_error = error
        call.retry_at = now + self._backoff.delay(call.attempts - 1, self._random)
        self._calls.appendleft(call)

    def expire(self, now: float) -> None:
        """End the calls whose deadline has passed, the one in flight as well; drop those that their owner has ended."""
        expired = [call for call in self._calls if now >= call.deadline or call.result.done]
        for call in expired:
            self._calls.remove(call)
        if self._in_flight is not None and now >= self._in_flight.deadline:
            expired.append(self._in_flight)
        for call in expired:
            what = "commit" if call.kind is RequestKind.COMMIT else "fetch of committed offsets"
            cause = "the group's coordinator is not reachable, or not ready"
            call.result.end(
                KafkaTimeoutError(
                    f"The {what} did not end within its timeout, after {call.attempts} attempts: "
                    f"{call.last_error or cause}"
                )
            )

    def drop(self, calls: Iterable[OffsetCall], error: KafkaError) -> None:
        """End calls that wait."""
        for call in list(calls):
            self._calls.remove(call)
            call.result.end(error.fresh())

    def deadlines(self) -> Iterator[float]:
        """Iterate over the deadlines of the calls that have not ended."""
        yield from (call.deadline for call in self._calls)
        if self._in_flight is not None and not self._in_flight.result.done:
            yield self._in_flight.deadline
