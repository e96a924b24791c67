"""The producer's configuration: all of Kafka's keys, parsed and checked as in Kafka."""

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
    from aioproducer.config.config_dict import ConnectionConfigDict, ProducerConfigDict

__all__ = [
    "CONFIG_DEF",
    "NO_DEFAULT",
    "ConfigDef",
    "ConfigKey",
    "ConnectionConfigDict",
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
        """Import the types of the keys when something asks for them: no producer needs them."""
        if name not in ("ConnectionConfigDict", "ProducerConfigDict"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from aioproducer.config import config_dict

        return getattr(config_dict, name)
