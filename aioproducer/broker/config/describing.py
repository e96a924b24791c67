"""Where the values of configurations come from, as DescribeConfigs and CreateTopics tell it.

Kafka's two accounts differ, and so do these: ``describe_topic`` and ``describe_broker`` are those of ``ConfigHelper``,
which lists every place that has a value (KIP-226); ``effective_topic`` is that of ``KafkaConfigSchema``.
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
    """Where a value comes from, by the protocol's numbers (``DescribeConfigsResponse.ConfigSource``)."""

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
    """A place that has a value: a key's name there, the value as text, and which place it is."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value as text, and where that comes from."""

    name: str
    value: str | None
    source: Source
    synonyms: tuple[Origin, ...] = ()
    """Every place that has a value, the one that counts first."""
    key: ConfigKey | None = None
    """``None`` for a key that was set and that nobody knows."""
    is_read_only: bool = False

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must not be shown, as it may be a password: of unknown keys nobody knows."""
        return self.key is None or self.key.type is Type.PASSWORD


_DEFAULTS = {name: as_text(key.default) for name, key in SERVER_CONFIG_DEF.keys.items() if key.default is not None}

_UNITS = [entry.synonyms for entry in TOPIC_KEYS.values() if len(entry.synonyms) > 1]


@dataclass(frozen=True, slots=True)
class Places:
    """The places that can have a value for a broker's key: set while it runs, given at its start, and the defaults."""

    config: BrokerConfig
    cluster: Mapping[str, str]
    """Set while running for all nodes."""
    node: Mapping[str, str]
    """Set while running for this node."""

    def layers(self) -> Iterable[tuple[Source, Mapping[str, str]]]:
        """The places, the strongest first."""
        return (
            (Source.DYNAMIC_BROKER, self.node),
            (Source.DYNAMIC_DEFAULT_BROKER, self.cluster),
            (Source.STATIC_BROKER, self.config.given),
            (Source.DEFAULT, _DEFAULTS),
        )

    def effective(self) -> BrokerConfig:
        """What all of them come to."""
        return self.config.with_dynamic(self.cluster, self.node)


def _origins(name: str, places: Places) -> tuple[Origin, ...]:
    """The places that have a value for a broker's key, or for the same in another unit.

    As in Kafka nothing is told where the first of them is in another unit than ``name``.
    """
    names = next((names for names in _UNITS if name in names), (name,))
    is_known = name in SERVER_CONFIG_DEF.keys
    found = (
        Origin(other, layer[other] if is_known else None, source)
        for source, layer in places.layers()
        for other in names
        if other in layer
    )
    return tuple(itertools.dropwhile(lambda origin: origin.name != name, found))


def describe_topic(places: Places, overrides: Mapping[str, str]) -> list[Entry]:
    """Every key of a topic that has the ``overrides``."""
    values = topic_values(places.effective(), overrides)
    return [
        _topic_entry(entry, values[name], overrides, places)
        for name, entry in TOPIC_KEYS.items()
        if not entry.key.internal or name in overrides
    ]


def _topic_entry(entry: TopicKey, value: Value, overrides: Mapping[str, str], places: Places) -> Entry:
    text = as_text(value)
    origins = _origins(entry.synonyms[0], places) if entry.synonyms else ()
    if entry.name in overrides:
        origins = (Origin(entry.name, text, Source.TOPIC), *origins)
    return Entry(entry.name, text, origins[0].source if origins else Source.DEFAULT, origins, entry.key)


def describe_broker(places: Places) -> list[Entry]:
    """Every key of a broker, and those set while it runs that nobody knows."""
    values = places.effective().values
    shown = {
        name for name, key in SERVER_CONFIG_DEF.keys.items() if not key.internal or name in places.config.given
    } | {*places.node, *places.cluster}
    return [_broker_entry(name, values.get(name), _origins(name, places)) for name in sorted(shown)]


def describe_cluster(places: Places) -> list[Entry]:
    """The keys set for all nodes while they run."""
    entries = []
    for name, value in sorted(places.cluster.items()):
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


def effective_topic(places: Places, overrides: Mapping[str, str]) -> list[Entry]:
    """Every key of a topic that has the ``overrides``, with the one place that its value comes from."""
    return [_effective_entry(entry, overrides, places) for entry in TOPIC_KEYS.values() if not entry.key.internal]


def _effective_entry(entry: TopicKey, overrides: Mapping[str, str], places: Places) -> Entry:
    name = entry.name
    if name in overrides:
        return Entry(name, overrides[name], Source.TOPIC, key=entry.key)
    for source, layer in itertools.islice(places.layers(), 3):
        for synonym in entry.synonyms:
            if synonym in layer:
                unit = UNITS_MS.get(synonym.rpartition(".")[2], 1)
                text = layer[synonym] if unit == 1 else str(int(layer[synonym]) * unit)
                return Entry(name, text, source, key=entry.key)
    return Entry(name, as_text(entry.key.default), Source.DEFAULT, key=entry.key)
