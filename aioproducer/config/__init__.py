"""The producer's configuration: every key of Kafka's, parsed and checked as Kafka does it."""

from aioproducer.config.definition import (
    NO_DEFAULT,
    ConfigDef,
    ConfigKey,
    Importance,
    Password,
    Status,
    Type,
    Validator,
)
from aioproducer.config.producer import CONFIG_DEF, ProducerConfig
from aioproducer.config.properties import load_properties

__all__ = [
    "CONFIG_DEF",
    "NO_DEFAULT",
    "ConfigDef",
    "ConfigKey",
    "Importance",
    "Password",
    "ProducerConfig",
    "Status",
    "Type",
    "Validator",
    "load_properties",
]
