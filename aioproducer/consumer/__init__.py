"""Reading: assigned partitions, from where and until where the caller says."""

from __future__ import annotations

from aioproducer.consumer.reader import ConsumedRecord, Position, Reader

__all__ = ["ConsumedRecord", "Position", "Reader"]
