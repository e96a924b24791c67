"""The producer's configuration: all of Kafka's keys, parsed and checked as in Kafka."""

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
