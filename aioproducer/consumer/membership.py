"""What a ``Consumer`` needs of a group: the interfaces for the membership protocols."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol

from aioproducer.core.membership.events import LeaveOperation
from aioproducer.core.transactions.requests import Result
from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
from aioproducer.record import TopicPartition


class GroupOffsets(Protocol):
    """The part that gives new partitions their positions, and needs metadata."""

    @property
    def watched_topics(self) -> frozenset[str]:
        """The topics whose metadata has to be kept."""
        ...

    def metadata_applied(self) -> None:
        """Use newer metadata if there is some."""
        ...

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets within ``timeout`` seconds; partitions without one are missing.

        Raises:
            KafkaError: the coordinator rejects the request; a retriable error is tried again.
        """
        ...


class Membership(Protocol):
    """A consumer's membership in its group; ``io.group_member.GroupMember`` is that of the classic protocol."""

    has_news: bool
    """Whether ``handle_events`` has something to do, or an error to raise."""
    polled_at: float
    """When records were requested, in loop seconds; the consumer sets it."""
    is_waiting: bool
    """Whether the consumer waits for records, which counts as requesting them; the consumer sets it."""

    def start(self) -> None:
        """Begin to send requests."""
        ...

    @property
    def subscription(self) -> frozenset[str]:
        """The subscribed topics; of a pattern those that it has matched so far."""
        ...

    def subscribe(self, topics: frozenset[str]) -> None:
        """Join the group, and read these topics."""
        ...

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Join the group, and read the topics whose whole names match."""
        ...

    def check_caller(self, call: str) -> None:
        """Raise WrongCallerError if a rebalance listener calls ``call``, which would wait for the listener."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether ``leave`` was called, and has not ended yet."""
        ...

    async def leave(self) -> None:
        """End the subscription."""
        ...

    async def handle_events(self, timeout: float | None = None) -> bool:
        """Run the rebalance listener for what has happened; return whether it ended within ``timeout`` seconds."""
        ...

    @property
    def watched_topics(self) -> frozenset[str]:
        """The topics whose metadata has to be kept."""
        ...

    def metadata_applied(self) -> None:
        """Use newer metadata if there is some."""
        ...

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what fences the offsets of transactions."""
        ...

    def revocation_time(self) -> float:
        """Return the seconds that the group still waits for this member, before it loses its partitions."""
        ...

    def forget_generation(self) -> None:
        """The caller assigns partitions itself from now on."""
        ...

    def begin_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float | None = None, *, retries: bool = True
    ) -> Result:
        """Commit offsets in the background."""
        ...

    async def ended(self, result: Result) -> None:
        """Wait for the end of a commit, and raise its error."""
        ...

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets; partitions without one are missing."""
        ...

    async def close(self, timeout: float, operation: LeaveOperation = LeaveOperation.DEFAULT) -> None:
        """Leave the group, and end every call, within ``timeout`` seconds."""
        ...
