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


@dataclass(slots=True)
class History:
    """Everything that the clients of a play did."""

    sent: list[Sent] = field(default_factory=list)
    transactions: list[TransactionHistory] = field(default_factory=list)
    blocks: list[tuple[TransactionHistory, Transaction]] = field(default_factory=list)
    """Transactions that were made as a block, with the object that knows their outcome."""
    readers: list[ReaderHistory] = field(default_factory=list)
    deleted_until: dict[str, float] = field(default_factory=dict)
    """By topic: what was sent before this loop time may have been deleted."""

    def is_kept(self, sent: Sent) -> bool:
        """Whether no Admin call can have deleted a record."""
        return sent.sent_at > self.deleted_until.get(sent.topic, -math.inf)
