"""aioproducer: an asyncio-native producer for Apache Kafka."""

__version__ = "0.1.0"

from aioproducer.bulk import SendManyResult
from aioproducer.config import ProducerConfig
from aioproducer.core.delivery import Delivery
from aioproducer.errors import KafkaError, SendManyError
from aioproducer.producer import Producer
from aioproducer.record import Node, PartitionInfo, Record, RecordMetadata, TopicPartition

__all__ = [
    "Delivery",
    "KafkaError",
    "Node",
    "PartitionInfo",
    "Producer",
    "ProducerConfig",
    "Record",
    "RecordMetadata",
    "SendManyError",
    "SendManyResult",
    "TopicPartition",
]
