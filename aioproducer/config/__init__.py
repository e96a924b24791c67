"""The configuration of producers and consumers: all of Kafka's keys, parsed and checked as in Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from aioproducer.config.config_dict import ConnectionConfigDict, ConsumerConfigDict, ProducerConfigDict
    from aioproducer.config.consumer import ConsumerConfig

__all__ = [
    "CONFIG_DEF",
    "NO_DEFAULT",
    "ConfigDef",
    "ConfigKey",
    "ConnectionConfigDict",
    "ConsumerConfig",
    "ConsumerConfigDict",
    "Importance",
    "Password",
    "ProducerConfig",
    "ProducerConfigDict",
    "Status",
    "Type",
    "Validator",
    "load_properties",
]


# Type checkers have the import above: with this function they would accept every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import what no producer needs when something asks for it: the types of the keys, and the consumer's keys."""
        if name == "ConsumerConfig":
            from aioproducer.config.consumer import ConsumerConfig

            return ConsumerConfig
        if name not in ("ConnectionConfigDict", "ConsumerConfigDict", "ProducerConfigDict"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from aioproducer.config import config_dict

        return getattr(config_dict, name)
