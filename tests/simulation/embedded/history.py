"""What the clients of a play did and what they were told, with loop times in seconds."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from aioproducer._client.transactions import Transaction
from aioproducer.consumer import ConsumerRecord

TransactionOutcome = Literal["open", "committed", "aborted", "unknown"]


@dataclass(slots=True, eq=False)
class Sent:
    """A record that a producer accepted."""

    sender: str
    """Task that has sent it; of a pool also the transaction, as each one may have another producer."""
    number: int
    topic: str
    value: bytes
    delivery: asyncio.Future[Any]
    sent_at: float
    is_idempotent: bool
    acks: str
    transaction: TransactionHistory | None = None
    ended_at: float | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the record was delivered, and its caller told so."""
        return self.delivery.done() and not self.delivery.cancelled() and self.delivery.exception() is None


@dataclass(slots=True, eq=False)
class TransactionHistory:
    """A transaction, from its begin to what the application was told of its end."""

    sender: str
    number: int
    outcome: TransactionOutcome = "open"
    sent: list[Sent] = field(default_factory=list)
    reads: list[tuple[tuple[str, int], list[bytes]]] = field(default_factory=list)
    """What the transaction has read of committed records: each time a partition from its start to its end."""


@dataclass(slots=True, eq=False)
class ReaderHistory:
    """What one reader was given, in order."""

    name: str
    topic: str
    committed: bool
    records: list[ConsumerRecord] = field(default_factory=list)


CommitOutcome = Literal["accepted", "refused", "unknown"]


@dataclass(slots=True, eq=False)
class Tenure:
    """The time in which a member has a partition, from ``on_assigned`` to ``on_revoked`` or ``on_lost``."""

    member: str
    place: tuple[str, int]
    began_at: float
    generation: int
    """The generation of the group that gave the partition to the member."""
    runs: list[list[tuple[int, bytes | None]]] = field(default_factory=lambda: [[]])
    """Offset and value of each record that was returned, in order; another run begins after each seek."""
    ended_at: float | None = None

    @property
    def next_offset(self) -> int | None:
        """The offset behind the last returned record; ``None`` if there is none since the last seek."""
        return self.runs[-1][-1][0] + 1 if self.runs[-1] else None


@dataclass(slots=True, eq=False)
class CommitHistory:
    """Offsets that a member has committed by a call, or by a transaction."""

    member: str
    offsets: dict[tuple[str, int], int]
    began_at: float
    ended_at: float = math.inf
    outcome: CommitOutcome = "unknown"


@dataclass(slots=True, eq=False)
class GroupHistory:
    """What the members of a group were given, and what they have committed."""

    name: str
    committed: bool
    """Whether they read committed records only."""
    commits_itself: bool
    """Whether each commit is in ``commits``; others are automatic."""
    transforms: bool
    topics: list[str]
    is_ending: bool = False
    """Whether the members have only the rest to read, and hurry."""
    tenures: list[Tenure] = field(default_factory=list)
    commits: list[CommitHistory] = field(default_factory=list)
    processed: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)
    """By partition: when each record was processed, and its offset, in this order."""
    samples: list[tuple[float, dict[tuple[str, int], int]]] = field(default_factory=list)
    """The offsets that the group has, from time to time."""
    origins: dict[bytes, tuple[tuple[str, int], int]] = field(default_factory=dict)
    """By value of a result: the partition and the offset of what was transformed."""


@dataclass(slots=True)
class History:
    """Everything that the clients of a play did."""

    sent: list[Sent] = field(default_factory=list)
    transactions: list[TransactionHistory] = field(default_factory=list)
    blocks: list[tuple[TransactionHistory, Transaction]] = field(default_factory=list)
    """Transactions that were made as a block, with the object that knows their outcome."""
    readers: list[ReaderHistory] = field(default_factory=list)
    groups: list[GroupHistory] = field(default_factory=list)
    deleted_until: dict[str, float] = field(default_factory=dict)
    """By topic: what was sent before this loop time may have been deleted."""

    def is_kept(self, sent: Sent) -> bool:
        """Whether no Admin call can have deleted a record."""
        return sent.sent_at > self.deleted_until.get(sent.topic, -math.inf)
