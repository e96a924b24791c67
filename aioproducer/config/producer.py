"""``ProducerConfig``: a producer's whole configuration, checked, typed and immutable."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Never, Self

from aioproducer.config import rules
from aioproducer.config.definition import ConfigDef, Password, Status, logger
from aioproducer.config.keys import KEYS, PROVIDERS_PREFIX
from aioproducer.config.properties import load_properties
from aioproducer.config.security_keys import SASL_KEYS, SSL_KEYS

if TYPE_CHECKING:
    import ssl


def _other_names() -> Mapping[str, tuple[str, str]]:
    # Imported late: only errors and the documentation need it.
    from aioproducer.config.other_clients import OTHER_NAMES

    return OTHER_NAMES


CONFIG_DEF = ConfigDef.of((*KEYS, *SSL_KEYS, *SASL_KEYS), _other_names)
"""All keys of the producer of Kafka 4.4."""

SSL_CONTEXT = "ssl_context"
"""The only key that Kafka does not have: an ``ssl.SSLContext`` that replaces all ``ssl`` keys."""

# Prefixes of keys that plug-ins define; the second is for labels of metric reporters (KIP-606).
_OPEN_PREFIXES = (PROVIDERS_PREFIX, "metrics.context.")

_client_numbers = itertools.count(1)


class ProducerConfig:
    """The configuration of a producer; docs/configuration.md explains each key, with its unit.

    Create it by ``from_kwargs``, ``from_mapping`` or ``from_properties``, which raise ``ConfigurationError`` for any
    mistake. Plug-ins (serializers, partitioner, interceptors) are the given or loaded objects or classes.
    """

    acks: int
    batch_size: int
    bootstrap_servers: tuple[str, ...]
    buffer_memory: int
    client_dns_lookup: str
    client_id: str
    client_rack: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    config_providers: tuple[str, ...]
    connections_max_idle_ms: int
    delivery_timeout_ms: int
    enable_idempotence: bool
    interceptor_classes: tuple[object, ...]
    key_serializer: object
    linger_ms: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    metadata_cluster_check_enable: bool
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    metadata_recovery_rebootstrap_trigger_ms: int
    metadata_recovery_strategy: str
    metrics_num_samples: int
    metrics_recording_level: str
    metrics_sample_window_ms: int
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    partitioner_class: object
    partitioner_ignore_keys: bool
    partitioner_rack_aware: bool
    receive_buffer_bytes: int
    reconnect_backoff_max_ms: int
    reconnect_backoff_ms: int
    request_timeout_ms: int
    retries: int
    retry_backoff_max_ms: int
    retry_backoff_ms: int
    security_protocol: str
    send_buffer_bytes: int
    socket_connection_setup_timeout_max_ms: int
    socket_connection_setup_timeout_ms: int
    ssl_cipher_suites: tuple[str, ...]
    ssl_enabled_protocols: tuple[str, ...]
    ssl_endpoint_identification_algorithm: str
    ssl_engine_factory_class: Callable[[ProducerConfig], ssl.SSLContext] | None
    ssl_key_password: Password | None
    ssl_keystore_certificate_chain: Password | None
    ssl_keystore_key: Password | None
    ssl_keystore_location: str | None
    ssl_keystore_password: Password | None
    ssl_keystore_type: str | None
    ssl_truststore_certificates: Password | None
    ssl_truststore_location: str | None
    ssl_truststore_password: Password | None
    ssl_truststore_type: str | None
    value_serializer: object
    ssl_context: ssl.SSLContext | None
    bootstrap_addresses: tuple[tuple[str, int], ...]
    """``bootstrap_servers`` as pairs of host and port."""
    _originals: dict[str, object]

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"a ProducerConfig is immutable: create another to set {name}")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"a ProducerConfig is immutable: {name} cannot be deleted")

    def _values(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_originals"}

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._values().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values().items())})"

    @classmethod
    def from_kwargs(cls, **given: object) -> Self:
        """Create a configuration from keys in snake_case, as in ``Producer(...)``.

        Raises:
            ConfigurationError: a key or value is wrong, or values contradict each other.
        """
        return cls.from_mapping(given)

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str]) -> Self:
        """Create a configuration from a Java properties file.

        Raises:
            ConfigurationError: the file cannot be read, a key or value is wrong, or values contradict each other.
        """
        return cls.from_mapping(load_properties(path))

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Create a configuration from keys in Kafka's dotted spelling or in snake_case.

        Raises:
            ConfigurationError: a key or value is wrong, or values contradict each other.
        """
        closed = [name for name in given if name in CONFIG_DEF.keys or not name.startswith(_OPEN_PREFIXES)]
        names = CONFIG_DEF.names(closed, extra=(SSL_CONTEXT,))
        originals = {names.get(name, name): value for name, value in given.items()}
        aliases = CONFIG_DEF.keys["config.providers"].parse(originals.get("config.providers", ()))
        resolved = _resolve(originals, rules.strings({"config.providers": aliases}, "config.providers"))
        context = resolved.get(SSL_CONTEXT)
        explicit = {name: value for name, value in resolved.items() if name in CONFIG_DEF.keys}
        acks = explicit.get("acks")
        if isinstance(acks, int) and not isinstance(acks, bool):
            explicit["acks"] = str(acks)

        values = CONFIG_DEF.parse(explicit)
        rules.refuse_unsupported(values)
        rules.resolve_security(values, explicit, context)
        rules.resolve_backoffs(values, explicit)
        rules.resolve_idempotence(values, explicit)
        rules.resolve_delivery_timeout(values, explicit)
        rules.resolve_plugins(values)
        rules.require_memory(values)
        rules.require_time_to_connect(values)
        rules.check_client_id(values)
        rules.require_rack(values)
        values["metadata.recovery.strategy"] = str(values["metadata.recovery.strategy"]).lower()
        addresses = tuple(rules.bootstrap_address(server) for server in rules.strings(values, "bootstrap.servers"))
        if "client.id" not in explicit:
            values["client.id"] = f"producer-{next(_client_numbers)}"

        config = cls.__new__(cls)
        attributes = vars(config)
        for name, key in CONFIG_DEF.keys.items():
            if key.status is Status.SUPPORTED:
                attributes[key.attribute] = values[name]
        attributes["ssl_context"] = context
        attributes["bootstrap_addresses"] = addresses
        attributes["_originals"] = originals
        for name in config.unused():
            logger.info("%s has no effect: %s", name, CONFIG_DEF.keys[name].reason)
        return config

    def originals(self) -> dict[str, object]:
        """Return the user's values by dotted name: unparsed, with placeholders, and with readable passwords."""
        return dict(self._originals)

    def unused(self) -> list[str]:
        """Return the keys that the user gave and that have no effect."""
        return sorted(
            name
            for name in self._originals
            if name in CONFIG_DEF.keys and CONFIG_DEF.keys[name].status is Status.WITHOUT_EFFECT
        )


def _resolve(given: Mapping[str, object], aliases: tuple[str, ...]) -> dict[str, object]:
    """Return ``given`` with the placeholders of config providers replaced."""
    if not aliases:
        return dict(given)
    # Imported late: few configurations have providers.
    from aioproducer.config.providers import resolve_placeholders

    return resolve_placeholders(given, aliases)
