"""Finds the batches that a reader of committed records skips (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable

from aioproducer.wire.control_batch import ControlRecordType, read_control_record
from aioproducer.wire.record_batch import RecordBatch


class AbortedFilter:
    """Finds the batches of aborted transactions in records up to the last stable offset."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """``aborted`` has first offset and producer id of each aborted transaction, in any order, as brokers list them.

        A transaction extends to its abort marker.
        """
        self._left = sorted(aborted, reverse=True)
        self._producers: set[int] = set()
        """The producer ids with an aborted transaction at the current offset."""

    def drops(self, batch: RecordBatch) -> bool:
        """Whether the batch belongs to an aborted transaction; call this with all batches in order.

        Raises:
            ProtocolError: the batch is a control batch that cannot be read.
        """
        while self._left and self._left[-1][0] <= batch.last_offset:
            self._producers.add(self._left.pop()[1])
        if batch.is_control:
            if batch.producer_id in self._producers and read_control_record(batch).type is ControlRecordType.ABORT:
                self._producers.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in self._producers
