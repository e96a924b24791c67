"""Consumers: ``Consumer`` reads topics in a group, or assigned partitions; ``Reader`` one topic between two positions.

Both read by the fetcher of ``core.fetching``; the docstring of that package has the design.
"""

from __future__ import annotations

from aioproducer.consumer.consumer import Consumer
from aioproducer.consumer.decoding import OnDeserializationError
from aioproducer.consumer.reader import Position, Reader
from aioproducer.core.fetching.lookups import OffsetAndTimestamp
from aioproducer.core.fetching.records import ConsumerRecord
from aioproducer.io.group_member import RebalanceListener

__all__ = [
    "Consumer",
    "ConsumerRecord",
    "OffsetAndTimestamp",
    "OnDeserializationError",
    "Position",
    "Reader",
    "RebalanceListener",
]
