"""The sources of configuration values, for the responses to DescribeConfigs and CreateTopics.

Kafka computes the two in different ways, and so does this module. ``describe_topic`` and ``describe_broker`` follow
``ConfigHelper``, which lists every source with a value (KIP-226); ``effective_topic`` follows ``KafkaConfigSchema``.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aioproducer.broker.config.broker_config import UNITS_MS, BrokerConfig
from aioproducer.broker.config.server_keys import DYNAMIC_KEYS, SERVER_CONFIG_DEF
from aioproducer.broker.config.topic_keys import TOPIC_KEYS, TopicKey
from aioproducer.broker.config.topics import topic_values
from aioproducer.broker.config.values import as_text, parse_as_kafka
from aioproducer.config import ConfigKey, Type
from aioproducer.config.definition import Value


class Source(enum.IntEnum):
    """Source of a value, with the protocol's numbers (``DescribeConfigsResponse.ConfigSource``)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


TYPE_NUMBERS = {
    Type.BOOLEAN: 1,
    Type.STRING: 2,
    Type.INT: 3,
    Type.SHORT: 4,
    Type.LONG: 5,
    Type.DOUBLE: 6,
    Type.LIST: 7,
    Type.CLASS: 8,
    Type.PASSWORD: 9,
}
"""The protocol's numbers of the types (``DescribeConfigsResponse.ConfigType``); 0 is unknown."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A source that has a value: the key's name there, the value as text, and the kind of source."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value as text, and the value's source."""

    name: str
    value: str | None
    source: Source
    synonyms: tuple[Origin, ...] = ()
    """All sources that have a value, the strongest first."""
    key: ConfigKey | None = None
    """``None`` for a key that was set and is unknown."""
    is_read_only: bool = False

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must be hidden because it may be a password; true for every unknown key."""
        return self.key is None or self.key.type is Type.PASSWORD


_DEFAULTS = {name: as_text(key.default) for name, key in SERVER_CONFIG_DEF.keys.items() if key.default is not None}

_UNITS = [entry.synonyms for entry in TOPIC_KEYS.values() if len(entry.synonyms) > 1]


@dataclass(frozen=True, slots=True)
class ConfigSources:
    """All sources of a broker key's value: dynamic values, values from the start, and defaults."""

    config: BrokerConfig
    cluster: Mapping[str, str]
    """Dynamic values for all nodes."""
    node: Mapping[str, str]
    """Dynamic values for this node."""

    def layers(self) -> Iterable[tuple[Source, Mapping[str, str]]]:
        """Return the sources, the strongest first."""
        return (
            (Source.DYNAMIC_BROKER, self.node),
            (Source.DYNAMIC_DEFAULT_BROKER, self.cluster),
            (Source.STATIC_BROKER, self.config.given),
            (Source.DEFAULT, _DEFAULTS),
        )

    def effective(self) -> BrokerConfig:
        """Return the configuration that results from all sources."""
        return self.config.with_dynamic(self.cluster, self.node)


def _origins(name: str, sources: ConfigSources) -> tuple[Origin, ...]:
    """Return the sources of a broker key's value, including the same setting in another unit.

    As in Kafka the result is empty if the strongest source is in another unit than ``name``.
    """
    names = next((names for names in _UNITS if name in names), (name,))
    is_known = name in SERVER_CONFIG_DEF.keys
    found = (
        Origin(other, layer[other] if is_known else None, source)
        for source, layer in sources.layers()
        for other in names
        if other in layer
    )
    return tuple(itertools.dropwhile(lambda origin: origin.name != name, found))


def describe_topic(sources: ConfigSources, overrides: Mapping[str, str]) -> list[Entry]:
    """Describe every key of a topic that has the ``overrides``."""
    values = topic_values(sources.effective(), overrides)
    return [
        _topic_entry(entry, values[name], overrides, sources)
        for name, entry in TOPIC_KEYS.items()
        if not entry.key.internal or name in overrides
    ]


def _topic_entry(entry: TopicKey, value: Value, overrides: Mapping[str, str], sources: ConfigSources) -> Entry:
    text = as_text(value)
    origins = _origins(entry.synonyms[0], sources) if entry.synonyms else ()
    if entry.name in overrides:
        origins = (Origin(entry.name, text, Source.TOPIC), *origins)
    return Entry(entry.name, text, origins[0].source if origins else Source.DEFAULT, origins, entry.key)


def describe_broker(sources: ConfigSources) -> list[Entry]:
    """Describe every key of a broker, and unknown keys that were set dynamically."""
    values = sources.effective().values
    shown = {
        name for name, key in SERVER_CONFIG_DEF.keys.items() if not key.internal or name in sources.config.given
    } | {*sources.node, *sources.cluster}
    return [_broker_entry(name, values.get(name), _origins(name, sources)) for name in sorted(shown)]


def describe_cluster(sources: ConfigSources) -> list[Entry]:
    """Describe the keys that were set dynamically for all nodes."""
    entries = []
    for name, value in sorted(sources.cluster.items()):
        key = SERVER_CONFIG_DEF.keys.get(name)
        origin = Origin(name, value if key else None, Source.DYNAMIC_DEFAULT_BROKER)
        entries.append(_broker_entry(name, parse_as_kafka(key, value) if key else None, (origin,)))
    return entries


def _broker_entry(name: str, value: Value, origins: tuple[Origin, ...]) -> Entry:
    return Entry(
        name,
        None if value is None else as_text(value),
        origins[0].source if origins else Source.DEFAULT,
        origins,
        SERVER_CONFIG_DEF.keys.get(name),
        is_read_only=name not in DYNAMIC_KEYS,
    )


def effective_topic(sources: ConfigSources, overrides: Mapping[str, str]) -> list[Entry]:
    """Describe every key of a topic that has the ``overrides``, with the one source of its value."""
    return [_effective_entry(entry, overrides, sources) for entry in TOPIC_KEYS.values() if not entry.key.internal]


def _effective_entry(entry: TopicKey, overrides: Mapping[str, str], sources: ConfigSources) -> Entry:
    name = entry.name
    if name in overrides:
        return Entry(name, overrides[name], Source.TOPIC, key=entry.key)
    for source, layer in itertools.islice(sources.layers(), 3):
        for synonym in entry.synonyms:
            if synonym in layer:
                unit = UNITS_MS.get(synonym.rpartition(".")[2], 1)
                text = layer[synonym] if unit == 1 else str(int(layer[synonym]) * unit)
                return Entry(name, text, source, key=entry.key)
    return Entry(name, as_text(entry.key.default), Source.DEFAULT, key=entry.key)
