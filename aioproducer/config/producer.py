"""``ProducerConfig``: a producer's whole configuration, checked, typed and immutable."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from aioproducer.config import rules
from aioproducer.config.definition import ConfigDef, HiddenValues, Immutable, Password, Status, Type, logger
from aioproducer.config.keys import KEYS, PROVIDERS_PREFIX
from aioproducer.config.own_keys import OWN_KEYS
from aioproducer.config.security_keys import SASL_KEYS, SSL_KEYS
from aioproducer.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

    from aioproducer.config.config_dict import ProducerConfigDict
    from aioproducer.config.jaas import JaasEntry
    from aioproducer.config.sasl import SaslCredentials


def _other_names() -> Mapping[str, tuple[str, str]]:
    # Imported late: only errors and the documentation need it.
    from aioproducer.config.other_clients import OTHER_NAMES

    return OTHER_NAMES


CONFIG_DEF = ConfigDef.of((*KEYS, *SSL_KEYS, *SASL_KEYS, *OWN_KEYS), _other_names)
"""All keys of the producer of Kafka 4.4, and those that only this client has."""

SSL_CONTEXT = "ssl_context"
"""The only key without a dotted name: an ``ssl.SSLContext`` that replaces all ``ssl`` keys."""

# Prefixes of keys that plug-ins define; the second is for labels of metric reporters (KIP-606).
_OPEN_PREFIXES = (PROVIDERS_PREFIX, "metrics.context.")

_client_numbers = itertools.count(1)


class ProducerConfig(Immutable):
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
    sasl_client_callback_handler_class: None
    sasl_jaas_config: Password | None
    sasl_login_callback_handler_class: None
    sasl_login_class: None
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    sasl_login_refresh_buffer_seconds: int
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_retry_backoff_max_ms: int
    sasl_login_retry_backoff_ms: int
    sasl_mechanism: str
    """With ``uses_sasl`` one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, also for AWS_MSK_IAM."""
    sasl_oauthbearer_assertion_algorithm: str
    sasl_oauthbearer_assertion_claim_aud: str | None
    sasl_oauthbearer_assertion_claim_exp_seconds: int
    sasl_oauthbearer_assertion_claim_iss: str | None
    sasl_oauthbearer_assertion_claim_jti_include: bool
    sasl_oauthbearer_assertion_claim_nbf_seconds: int
    sasl_oauthbearer_assertion_claim_sub: str | None
    sasl_oauthbearer_assertion_file: str | None
    sasl_oauthbearer_assertion_private_key_file: str | None
    sasl_oauthbearer_assertion_private_key_passphrase: Password | None
    sasl_oauthbearer_assertion_template_file: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: Password | None
    sasl_oauthbearer_extensions: str | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_oauthbearer_jwt_retriever_class: str
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_scope_claim_name: str
    sasl_oauthbearer_sub_claim_name: str
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_password: Password | Callable[[], str | Awaitable[str]] | None
    sasl_token_provider: Callable[[], Any] | None  # Any: a tuple of two to four items, or an awaitable of one
    sasl_username: str | None
    security_protocol: str
    send_buffer_bytes: int
    socket_connection_setup_timeout_max_ms: int
    socket_connection_setup_timeout_ms: int
    ssl_certificate_poll_interval_ms: int
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
    transaction_abort_grace_ms: int
    transaction_timeout_ms: int
    transactional_id: str | None
    value_serializer: object
    ssl_context: ssl.SSLContext | None
    bootstrap_addresses: tuple[tuple[str, int], ...]
    """``bootstrap_servers`` as pairs of host and port."""
    sasl_jaas: JaasEntry | None
    """``sasl_jaas_config``, parsed; ``None`` without SASL."""
    sasl_extensions: Mapping[str, str]
    """SASL extensions for OAUTHBEARER by name."""
    sasl_msk_iam: Mapping[str, str] | None
    """The JAAS options for AWS_MSK_IAM (``awsProfileName``, ...), ``None`` for all other mechanisms."""
    _originals: dict[str, object]

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"a ProducerConfig is immutable: create another to set {name}")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"a ProducerConfig is immutable: {name} cannot be deleted")

    def _values(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_originals"}

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[dict[str, object]]]:
        """Let ``pickle`` save the user's values, of which another process makes an equal configuration.

        Raises:
            TypeError: a value is a secret, which the pickle would show.
        """
        # Imported late: few configurations are pickled.
        from aioproducer.config.providers import has_placeholder

        aliases = self.config_providers
        secrets = [
            name
            for name, value in self._originals.items()
            if name in CONFIG_DEF.keys
            and CONFIG_DEF.keys[name].type is Type.PASSWORD
            and (isinstance(value, Password) or (isinstance(value, str) and not has_placeholder(value, aliases)))
        ]
        if secrets:
            raise TypeError(
                f"a ProducerConfig with secrets is not pickled, as its pickle would show {', '.join(sorted(secrets))}: "
                "use placeholders of config providers (${env:NAME}), or create the configuration in the other process"
            )
        return type(self).from_mapping, ({**self._originals, "client.id": self.client_id},)

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._values().values()))

    def __repr__(self) -> str:
        values = self._values()
        for name in ("sasl_password", "sasl_token_provider"):
            if values[name] is not None:
                # That of a partial function shows its arguments.
                values[name] = Password("")
        url = values["sasl_oauthbearer_token_endpoint_url"]
        if url:
            # Imported late: few configurations have one, and fewer are shown.
            from aioproducer.config.urls import shown

            values["sasl_oauthbearer_token_endpoint_url"] = shown(str(url))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @classmethod
    def from_kwargs(cls, **given: Unpack[ProducerConfigDict]) -> Self:
        """Create a configuration from keys in snake_case, as in ``Producer(...)``.

        Raises:
            ConfigurationError: a key or value is wrong, or values contradict each other.
        """
        return cls.from_mapping(given)

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str]) -> Self:
        """Create a configuration from a Java properties file.

        Clients share such files, so that the keys of Kafka's consumer, admin client and Streams, and those for
        Confluent's Schema Registry, are ignored; the log names them.

        Raises:
            ConfigurationError: the file cannot be read, a key or value is wrong, or values contradict each other.
        """
        # Imported late, as few producers are configured by a file.
        from aioproducer.config.client_files import load_client_file

        return cls.from_mapping(load_client_file(path, CONFIG_DEF))

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
        rules.require_idempotence_for_transactions(values)
        rules.resolve_delivery_timeout(values, explicit)
        rules.resolve_plugins(values)
        rules.require_memory(values)
        rules.require_time_to_connect(values)
        rules.check_client_id(values)
        rules.require_rack(values)
        values["metadata.recovery.strategy"] = str(values["metadata.recovery.strategy"]).lower()
        addresses = tuple(rules.bootstrap_address(server) for server in rules.strings(values, "bootstrap.servers"))
        jaas: JaasEntry | None = None
        extensions, msk_iam = HiddenValues(), None
        if str(values["security.protocol"]).startswith("SASL"):
            # Imported late: most of it is text for errors.
            from aioproducer.config.sasl import resolve_sasl

            jaas, extensions, msk_iam = resolve_sasl(values, explicit, [host for host, _port in addresses])
        if "client.id" not in explicit:
            transactional_id = values["transactional.id"]
            values["client.id"] = f"producer-{transactional_id or next(_client_numbers)}"

        config = cls.__new__(cls)
        attributes = vars(config)
        for name, key in CONFIG_DEF.keys.items():
            if key.status is Status.SUPPORTED:
                attributes[key.attribute] = values[name]
        attributes["ssl_context"] = context
        attributes["bootstrap_addresses"] = addresses
        attributes["sasl_jaas"] = jaas
        attributes["sasl_extensions"] = extensions
        attributes["sasl_msk_iam"] = msk_iam
        attributes["_originals"] = originals
        for name in config.unused():
            logger.info("%s has no effect: %s", name, CONFIG_DEF.keys[name].reason)
        return config

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted: ``SSL`` and ``SASL_SSL``."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections are authenticated by SASL: ``SASL_PLAINTEXT`` and ``SASL_SSL``."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def sasl_credentials(self) -> SaslCredentials:
        """Return user name and password for PLAIN or SCRAM, as config providers return them now.

        It may read files. If ``sasl_password`` is a function, the caller calls it instead.

        Raises:
            ConfigurationError: there are none now, or the mechanism has none; the text contains no secret.
        """
        from aioproducer.config.sasl import credentials

        if not self.uses_sasl:
            text = f"security.protocol {self.security_protocol} has no user name and password: use SASL_SSL"
            raise ConfigurationError(text)
        return credentials(self.sasl_mechanism, self._originals, self.config_providers)

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
