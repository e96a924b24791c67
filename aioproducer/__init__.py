"""aioproducer: an asyncio-native producer for Apache Kafka."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aioproducer.build import is_pure_wanted, prefer_sources

if is_pure_wanted():
    prefer_sources()

if TYPE_CHECKING:
    from aioproducer.bulk import SendManyResult
    from aioproducer.config import ProducerConfig
    from aioproducer.core.delivery import Delivery
    from aioproducer.errors import BatchRejectedError, KafkaError, SendManyError
    from aioproducer.producer import Producer
    from aioproducer.producer_record import Record
    from aioproducer.record import Node, PartitionInfo, RecordHeader, RecordMetadata, TopicPartition

__version__ = "0.1.0"

__all__ = [
    "BatchRejectedError",
    "Delivery",
    "KafkaError",
    "Node",
    "PartitionInfo",
    "Producer",
    "ProducerConfig",
    "Record",
    "RecordHeader",
    "RecordMetadata",
    "SendManyError",
    "SendManyResult",
    "TopicPartition",
]

# Where each name lives. They are imported when first asked for: pytest imports this package in every run on a machine
# where it is installed, to find the fixtures, and Spark does to find the data source.
_HOMES = {
    "BatchRejectedError": "aioproducer.errors",
    "Delivery": "aioproducer.core.delivery",
    "KafkaError": "aioproducer.errors",
    "Node": "aioproducer.record",
    "PartitionInfo": "aioproducer.record",
    "Producer": "aioproducer.producer",
    "ProducerConfig": "aioproducer.config",
    "Record": "aioproducer.producer_record",
    "RecordHeader": "aioproducer.record",
    "RecordMetadata": "aioproducer.record",
    "SendManyError": "aioproducer.errors",
    "SendManyResult": "aioproducer.bulk",
    "TopicPartition": "aioproducer.record",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
