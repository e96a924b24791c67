"""Which markers and records of transactions a cleaner may drop (``CleanedTransactionMetadata``)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from aioproducer.broker.log.transaction_index import AbortedTransaction
from aioproducer.broker.log.validation import BatchHeader
from aioproducer.wire.control_batch import ControlRecordType
from aioproducer.wire.record_batch import TRANSACTIONAL_FLAG


class _Aborting:
    """An aborted transaction whose marker has not been read yet."""

    __slots__ = ("entry", "has_batches")

    def __init__(self, entry: AbortedTransaction) -> None:
        self.entry = entry
        self.has_batches = False
        """Whether a batch of it was read; then the marker stays, also if the batch was dropped."""


class CleanedTransactions:
    """Follows the transactions while the batches of a log are read in their order."""

    def __init__(self) -> None:
        self._committing: set[int] = set()
        """Producer ids with batches of a transaction that is not known as aborted."""
        self._aborting: dict[int, _Aborting] = {}
        """By producer id."""
        self._pending: list[tuple[int, int, AbortedTransaction]] = []
        """A heap of aborted transactions by their first offset."""

    def add(self, entries: Iterable[AbortedTransaction]) -> None:
        """Add entries of the transaction index. An entry may be added again until its marker was read."""
        for entry in entries:
            heapq.heappush(self._pending, (entry.first_offset, entry.last_offset, entry))

    def _begin_up_to(self, offset: int) -> None:
        pending = self._pending
        while pending and pending[0][0] <= offset:
            entry = heapq.heappop(pending)[2]
            if entry.producer_id not in self._aborting:
                self._aborting[entry.producer_id] = _Aborting(entry)

    def data_read(self, header: BatchHeader) -> bool:
        """Follow a batch of data. Return whether it is part of an aborted transaction, so its records may go."""
        self._begin_up_to(header.last_offset)
        if not header.attributes & TRANSACTIONAL_FLAG:
            return False
        aborting = self._aborting.get(header.producer_id)
        if aborting is None:
            self._committing.add(header.producer_id)
            return False
        aborting.has_batches = True
        return True

    def control_read(
        self, header: BatchHeader, control_type: ControlRecordType | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """Follow a control batch.

        Args:
            control_type: the type of its record; ``None`` if the batch is empty.

        Returns:
            Whether the marker is no longer needed, as no batch of its transaction was read; and the entry that the
            index of the cleaned segment needs.
        """
        self._begin_up_to(header.last_offset)
        if control_type is None:
            return True, None
        if control_type is ControlRecordType.ABORT:
            aborting = self._aborting.pop(header.producer_id, None)
            if aborting is not None and aborting.has_batches:
                return False, aborting.entry
            return True, None
        if control_type is ControlRecordType.COMMIT:
            if header.producer_id in self._committing:
                self._committing.remove(header.producer_id)
                return False, None
            return True, None
        return False, None
