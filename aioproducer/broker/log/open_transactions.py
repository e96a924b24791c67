"""The transactions of a partition that are open, ended above the high watermark, or verified.

A transaction holds back readers of committed records from its first record until its end marker is replicated.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable


class OpenTransactions:
    """The transactions that hold back readers of committed records, by their first offsets in the partition."""

    __slots__ = ("_ongoing", "_unreplicated")

    def __init__(self) -> None:
        # Transactions begin at the log's end, so they begin in the order of their first offsets.
        self._ongoing: OrderedDict[int, int] = OrderedDict()
        """First offset to producer id."""
        self._unreplicated: list[tuple[int, int]] = []
        """A heap of first offset and offset of the marker; replicated ones are removed at the top."""

    def reset(self, ongoing: Iterable[tuple[int, int]] = ()) -> None:
        """Replace all transactions by ``ongoing``: pairs of first offset and producer id."""
        self._ongoing = OrderedDict(sorted(ongoing))
        self._unreplicated = []

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add a transaction; ``first_offset`` is greater than those of all others."""
        self._ongoing[first_offset] = producer_id

    def end(self, first_offset: int, last_offset: int) -> int:
        """End a transaction by a marker at ``last_offset``.

        Returns the first offset of the oldest open transaction, or the offset behind the marker if none is open.
        """
        del self._ongoing[first_offset]
        heapq.heappush(self._unreplicated, (first_offset, last_offset))
        return next(iter(self._ongoing), last_offset + 1)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the oldest transaction without a marker below ``high_watermark``."""
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0][1] < high_watermark:
            heapq.heappop(unreplicated)
        ongoing = next(iter(self._ongoing), None)
        if not unreplicated:
            return ongoing
        return unreplicated[0][0] if ongoing is None else min(ongoing, unreplicated[0][0])


class VerificationGuard:
    """Represents one verification of a transaction; equal only to itself (``VerificationGuard``, KIP-890)."""

    __slots__ = ()


class VerificationState:
    """A verification of a producer that was not used yet (``VerificationStateEntry``)."""

    __slots__ = ("created_ms", "epoch", "guard", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, created_ms: int, sequence: int, epoch: int, *, supports_epoch_bump: bool) -> None:
        self.created_ms = created_ms
        self.guard = VerificationGuard()
        self.lowest_sequence = sequence
        """Of the batches that wait for a verification. Later ones are rejected, or this one could never be written."""
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump
        """Whether each transaction of the producer has its own epoch (transaction version 2)."""

    def note(self, sequence: int, epoch: int) -> None:
        """Another batch waits for the verification."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)
