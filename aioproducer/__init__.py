"""aioproducer: an asyncio-native producer for Apache Kafka."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aioproducer._build import __version__ as __version__
from aioproducer._build import is_pure_wanted, prefer_sources

if is_pure_wanted():
    prefer_sources()

if TYPE_CHECKING:
    from aioproducer._client.bulk import SendManyResult
    from aioproducer._client.transactions import Transaction
    from aioproducer.config import ProducerConfig
    from aioproducer.consumer.consumer import Consumer
    from aioproducer.core.fetching.records import ConsumerRecord
    from aioproducer.core.outcomes.delivery import Delivery
    from aioproducer.errors import BatchRejectedError, KafkaError, SendManyError
    from aioproducer.io.group_member import RebalanceListener
    from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
    from aioproducer.producer import Producer
    from aioproducer.record import Node, PartitionInfo, Record, RecordHeader, RecordMetadata, TopicPartition
    from aioproducer.security.tokens import OAuthBearerToken
    from aioproducer.transaction_pool import TransactionPool

__all__ = [
    "BatchRejectedError",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "Delivery",
    "KafkaError",
    "Node",
    "OAuthBearerToken",
    "OffsetAndMetadata",
    "PartitionInfo",
    "Producer",
    "ProducerConfig",
    "RebalanceListener",
    "Record",
    "RecordHeader",
    "RecordMetadata",
    "SendManyError",
    "SendManyResult",
    "TopicPartition",
    "Transaction",
    "TransactionPool",
]

# The module of each public name. A name is imported at its first use: wherever this package is installed, pytest
# imports it in every run to find the fixtures, and Spark imports it to find the data source.
_HOMES = {
    "BatchRejectedError": "aioproducer.errors",
    "Consumer": "aioproducer.consumer.consumer",
    "ConsumerGroupMetadata": "aioproducer.offsets",
    "ConsumerRecord": "aioproducer.core.fetching.records",
    "Delivery": "aioproducer.core.outcomes.delivery",
    "KafkaError": "aioproducer.errors",
    "Node": "aioproducer.record",
    "OAuthBearerToken": "aioproducer.security.tokens",
    "OffsetAndMetadata": "aioproducer.offsets",
    "PartitionInfo": "aioproducer.record",
    "Producer": "aioproducer.producer",
    "ProducerConfig": "aioproducer.config",
    "RebalanceListener": "aioproducer.io.group_member",
    "Record": "aioproducer.record",
    "RecordHeader": "aioproducer.record",
    "RecordMetadata": "aioproducer.record",
    "SendManyError": "aioproducer.errors",
    "SendManyResult": "aioproducer._client.bulk",
    "TopicPartition": "aioproducer.record",
    "Transaction": "aioproducer._client.transactions",
    "TransactionPool": "aioproducer.transaction_pool",
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
