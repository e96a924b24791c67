"""``ConsumerConfig``: a consumer's whole configuration, checked, typed and immutable."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final, Never, Self

from aioproducer.config.consumer_keys import CONSUMER_KEYS, assignor_name
from aioproducer.config.definition import ConfigDef, Immutable, Status, logger
from aioproducer.config.keys import PROVIDERS_PREFIX
from aioproducer.config.plugins import DESERIALIZER, load_plugin
from aioproducer.config.producer import CONFIG_DEF, SSL_CONTEXT, ProducerConfig
from aioproducer.errors import ConfigurationError

_PRODUCER_ONLY: Final = frozenset(
    (
        "acks",
        "batch.size",
        "buffer.memory",
        "buffer.memory.allocation.strategy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delivery.timeout.ms",
        "enable.idempotence",
        "key.serializer",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.class",
        "partitioner.ignore.keys",
        "partitioner.rack.aware",
        "retries",
        "transaction.abort.grace.ms",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
        "transactional.id",
        "value.serializer",
    )
)
_OWN: Final = frozenset(key.name for key in CONSUMER_KEYS)

CONSUMER_CONFIG_DEF = ConfigDef.of(
    (
        *CONSUMER_KEYS,
        *(key for name, key in CONFIG_DEF.keys.items() if name not in _PRODUCER_ONLY and name not in _OWN),
    ),
    CONFIG_DEF.other_names,
)
"""All keys of the consumer of Kafka 4.4, and those that only this client has."""

# Keys that both clients have and that concern the connections; the consumer's own default counts.
_PASSED_ON: Final = frozenset(("receive.buffer.bytes",))

_OPEN_PREFIXES = (PROVIDERS_PREFIX, "metrics.context.")

_client_numbers = itertools.count(1)


class ConsumerConfig(Immutable):
    """The configuration of a consumer; docs/configuration.md explains each key, with its unit.

    Deserializers are the given or loaded objects or classes.
    """

    allow_auto_create_topics: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    check_crcs: bool
    client_id: str
    client_rack: str
    default_api_timeout_ms: int
    enable_auto_commit: bool
    """False without ``group_id``."""
    exclude_internal_topics: bool
    fetch_buffer_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    heartbeat_interval_ms: int
    isolation_level: str
    key_deserializer: object
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    metadata_max_age_ms: int
    partition_assignment_strategy: tuple[str, ...]
    """Names of assignors in JoinGroup."""
    request_timeout_ms: int
    retry_backoff_max_ms: int
    retry_backoff_ms: int
    session_timeout_ms: int
    value_deserializer: object
    connection: ProducerConfig
    """The keys about connections and security, which all clients share."""

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"a ConsumerConfig is immutable: create another to set {name}")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"a ConsumerConfig is immutable: {name} cannot be deleted")

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Create a configuration from keys in Kafka's dotted spelling or in snake_case.

        Raises:
            ConfigurationError: a key or value is wrong, or values contradict each other.
        """
        closed = [name for name in given if name in CONSUMER_CONFIG_DEF.keys or not name.startswith(_OPEN_PREFIXES)]
        names = CONSUMER_CONFIG_DEF.names(closed, extra=(SSL_CONTEXT,))
        originals = {names.get(name, name): value for name, value in given.items()}
        shared = {name: value for name, value in originals.items() if name not in _OWN}
        if "client.id" not in originals:
            shared["client.id"] = f"consumer-{next(_client_numbers)}"
        own = _with_placeholders(
            {name: value for name, value in originals.items() if name in _OWN},
            {name: value for name, value in originals.items() if name.startswith("config.providers")},
        )
        definition = ConfigDef.of(CONSUMER_KEYS)
        values = definition.parse(own)
        for name, key in definition.keys.items():
            if key.status is Status.REFUSED and values[name] != key.default:
                raise ConfigurationError(f"{name} is not supported: {key.reason}")
        _check_group(values, own)
        for name in _PASSED_ON:
            shared[name] = values[name]
        connection = ProducerConfig.from_mapping(shared)
        for name in ("key.deserializer", "value.deserializer"):
            values[name] = load_plugin(name, values[name], DESERIALIZER)

        config = cls.__new__(cls)
        attributes = vars(config)
        for name, key in definition.keys.items():
            if key.status is Status.SUPPORTED:
                attributes[key.attribute] = values[name]
        for name in (
            "client_id",
            "client_rack",
            "metadata_max_age_ms",
            "request_timeout_ms",
            "retry_backoff_max_ms",
            "retry_backoff_ms",
        ):
            attributes[name] = getattr(connection, name)
        attributes["connection"] = connection
        for name in sorted(own):
            if definition.keys[name].status is Status.WITHOUT_EFFECT:
                logger.info("%s has no effect: %s", name, definition.keys[name].reason)
        return config


def _check_group(values: dict[str, object], own: Mapping[str, object]) -> None:
    """Check the keys of groups against each other, and give some of them their final values."""
    if str(values["group.protocol"]).lower() != "classic":
        raise ConfigurationError(
            'group.protocol: the consumer protocol (KIP-848) is not supported; leave the key out, or set "classic"'
        )
    if values["group.id"] is None:
        if values["enable.auto.commit"] and "enable.auto.commit" in own:
            raise ConfigurationError("enable.auto.commit needs group.id: without a group there is nothing to commit to")
        values["enable.auto.commit"] = False
    heartbeat, session = values["heartbeat.interval.ms"], values["session.timeout.ms"]
    assert isinstance(heartbeat, int)
    assert isinstance(session, int)
    if heartbeat >= session:
        raise ConfigurationError(
            f"heartbeat.interval.ms ({heartbeat}) must be below session.timeout.ms ({session}): a third of it, or "
            "less, lets two heartbeats fail"
        )
    assignors = values["partition.assignment.strategy"]
    assert isinstance(assignors, tuple)
    values["partition.assignment.strategy"] = tuple(map(assignor_name, assignors))


def _with_placeholders(own: Mapping[str, object], providers: Mapping[str, object]) -> dict[str, object]:
    """Return ``own`` with the placeholders of config providers replaced."""
    if not providers:
        return dict(own)
    # Imported late: few configurations have providers.
    from aioproducer.config.providers import resolve_placeholders
    from aioproducer.config.rules import strings

    aliases = CONFIG_DEF.keys["config.providers"].parse(providers.get("config.providers", ()))
    resolved = resolve_placeholders({**own, **providers}, strings({"config.providers": aliases}, "config.providers"))
    return {name: resolved[name] for name in own}
