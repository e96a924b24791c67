"""The embedded broker: an asyncio broker inside this process that answers as Apache Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.broker.broker import Broker
    from aioproducer.broker.cluster import BrokerCluster
    from aioproducer.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerCluster", "BrokerConfig"]

_HOMES = {
    "Broker": "aioproducer.broker.broker",
    "BrokerCluster": "aioproducer.broker.cluster",
    "BrokerConfig": "aioproducer.broker.config",
}


def __getattr__(name: str) -> object:
    """The public names, imported at their first use, so that a program loads only the rooms that it needs."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
