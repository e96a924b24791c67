"""Which transactions of a partition are open, or ended above the high watermark, and which are verified.

A transaction holds back readers of committed records from its first record until its end marker is replicated.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable


class OpenTransactions:
    """The transactions that keep readers of committed records waiting, by their first offsets in the partition."""

    __slots__ = ("_ongoing", "_unreplicated")

    def __init__(self) -> None:
        # Transactions begin at the log's end, so the order of their beginnings is that of their first offsets.
        self._ongoing: OrderedDict[int, int] = OrderedDict()
        """First offset to producer id."""
        self._unreplicated: list[tuple[int, int]] = []
        """A heap of first offset and offset of the marker; replicated ones go when they come to the top."""

    def reset(self, ongoing: Iterable[tuple[int, int]] = ()) -> None:
        """Forget everything but ``ongoing``: pairs of first offset and producer id."""
        self._ongoing = OrderedDict(sorted(ongoing))
        self._unreplicated = []

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A transaction began; ``first_offset`` is greater than all before."""
        self._ongoing[first_offset] = producer_id

    def end(self, first_offset: int, last_offset: int) -> int:
        """A transaction ended by a marker at ``last_offset``.

        Returns where the first of those begins that are still open, or the offset behind the marker if none is.
        """
        del self._ongoing[first_offset]
        heapq.heappush(self._unreplicated, (first_offset, last_offset))
        return next(iter(self._ongoing), last_offset + 1)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the first transaction begins that is open or whose marker is at or above ``high_watermark``."""
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0][1] < high_watermark:
            heapq.heappop(unreplicated)
        ongoing = next(iter(self._ongoing), None)
        if not unreplicated:
            return ongoing
        return unreplicated[0][0] if ongoing is None else min(ongoing, unreplicated[0][0])


class VerificationGuard:
    """Stands for one verification of a transaction; equal to itself alone (``VerificationGuard``, KIP-890)."""

    __slots__ = ()


class VerificationState:
    """A verification that was begun for a producer and not used yet (``VerificationStateEntry``)."""

    __slots__ = ("created_ms", "epoch", "guard", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, created_ms: int, sequence: int, epoch: int, *, supports_epoch_bump: bool) -> None:
        self.created_ms = created_ms
        self.guard = VerificationGuard()
        self.lowest_sequence = sequence
        """Of the batches that wait for a verification; later ones are refused, or this one could never be written."""
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump
        """Whether each transaction of the producer has an epoch of its own (transaction version 2)."""

    def note(self, sequence: int, epoch: int) -> None:
        """Another batch waits for the verification."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)
