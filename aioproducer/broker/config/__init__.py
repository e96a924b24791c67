"""The configuration of brokers and topics: Kafka's keys, those with an effect here and those without."""

from aioproducer.broker.config.broker_config import BrokerConfig
from aioproducer.broker.config.server_keys import SERVER_CONFIG_DEF
from aioproducer.broker.config.topic_keys import TOPIC_KEYS, TopicKey
from aioproducer.broker.config.topics import log_config, validate_topic_configs

__all__ = ["SERVER_CONFIG_DEF", "TOPIC_KEYS", "BrokerConfig", "TopicKey", "log_config", "validate_topic_configs"]
