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
    """The public names, imported when they are first asked for: whoever needs one room does not load all of them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
