"""What a ``Consumer`` needs of a group: the seam for the membership protocols."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from aioproducer.offsets import OffsetAndMetadata
from aioproducer.record import TopicPartition


class Membership(Protocol):
    """A member of a group. It assigns by ``Consumer.assign``; without one the caller assigns."""

    async def before_records(self) -> None:
        """Run before each request for records: a rebalance may revoke partitions here. Processed records are known."""
        ...

    async def wait_changed(self) -> None:
        """Wait until ``handle_events`` has something to do. The consumer cancels the call when records arrive."""
        ...

    async def handle_events(self) -> None:
        """Run what the caller's next request would: it waits for records, and processes none now."""
        ...

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets within ``timeout`` seconds; partitions without one are missing.

        Raises:
            KafkaError: the coordinator rejects the request; a retriable error is tried again.
        """
        ...

    async def close(self, timeout: float) -> None:
        """Leave the group within ``timeout`` seconds."""
        ...
