"""The flows' calls to Kafka. ``KafkaSinkCluster`` sends requests; the tests have a model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from aioproducer.record import HeaderPair
from aioproducer.spark.transactional.decisions import Handle, Identity, RowRange, TopicRecord
from aioproducer.spark.transactional.table import DecisionTable


class OpenTransaction(NamedTuple):
    """An open transaction of a task, as its coordinator describes it; times in milliseconds."""

    transactional_id: str
    identity: Identity
    open_for_ms: int
    timeout_ms: int


class Verdict(Enum):
    """How a transaction has ended in a partition, as the log has it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """There is no marker, though the coordinator should have written one."""


class Row(NamedTuple):
    """A row of an aborted transaction."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[HeaderPair, ...]
    timestamp_ms: int


class SinkCluster(Protocol):
    """The calls for one sink. All raise ``KafkaError`` if Kafka refuses or does not answer in time."""

    @property
    def sink(self) -> str: ...

    @property
    def version(self) -> int:
        """The generation of the transaction protocol, 1 or 2; known after ``take_over`` or ``continue_as``."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    async def reached(self, point: str) -> None:
        """Mark a named point of the flow, at which tests can stop the process."""
        ...

    # The decision topic

    async def take_over(self) -> None:
        """Become the committer by InitProducerId, which aborts or completes its open transaction and fences others."""
        ...

    async def continue_as(self, identity: Identity) -> None:
        """Become the committer with an identity that no transaction was written under; fences nothing."""
        ...

    async def high_watermark(self) -> int: ...

    async def read_up_to(self, table: DecisionTable, stop: int) -> None:
        """Apply the committed records from the table's position to ``stop``.

        Raises:
            KafkaError: an open transaction of another sink has hidden some of them for too long.
        """
        ...

    async def append(self, records: Sequence[TopicRecord]) -> int:
        """Write records in the committer's transaction, which begins with the first; return the last one's offset."""
        ...

    async def append_rows(self, where: RowRange, rows: Sequence[Row]) -> int:
        """Write rows to a partition in the committer's transaction; return how many: one at least.

        Rows are left for the next transaction if writing takes long: the coordinator would abort this one.
        """
        ...

    async def commit(self) -> None:
        """Commit the committer's transaction; it may be committed even if this raises."""
        ...

    async def identity(self) -> Identity:
        """Return the committer's identity for its next transaction, under which none was written yet."""
        ...

    async def is_committer(self, identity: Identity) -> bool:
        """Ask the coordinator whether this is the committer's identity still."""
        ...

    async def abort_committer(self, identity: Identity) -> bool:
        """Abort the committer's transaction of the second generation, or close its epoch if there is none.

        True if the coordinator has accepted it: no transaction was committed under this identity, and none will be.
        """
        ...

    # Transactions of tasks

    async def describe(self, handles: Sequence[Handle]) -> list[OpenTransaction | None]:
        """Return the open transaction of each transactional id, None if it has none."""
        ...

    async def end(self, handles: Sequence[Handle], commit: bool) -> list[bool]:
        """Send EndTxn for each handle; return for each whether the coordinator has answered NONE."""
        ...

    async def list_open(self) -> list[OpenTransaction]:
        """Return the open transactions of the sink's tasks."""
        ...

    async def abort_open(self, found: Sequence[OpenTransaction]) -> None:
        """Abort exactly these by EndTxn with their identities; one that has ended meanwhile is no error."""
        ...

    async def fence_open(self, found: Sequence[OpenTransaction]) -> None:
        """Abort what these ids have open by InitProducerId, as the first generation needs it."""
        ...

    async def verdict(self, handle: Handle, where: RowRange) -> Verdict:
        """Read from the log how a transaction has ended in a partition.

        Raises:
            KafkaError: the topic was created again, or the log no longer has these offsets.
        """
        ...

    async def rows_of(self, handle: Handle, where: RowRange, after: int) -> list[Row]:
        """Return the next rows of the handle behind offset ``after``: a piece of limited size, none at the end.

        Raises:
            KafkaError: as ``verdict``.
        """
        ...
