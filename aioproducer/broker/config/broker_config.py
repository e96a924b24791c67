"""``BrokerConfig``: the configuration of one broker, with the defaults of its topics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from aioproducer.broker.config.server_keys import SERVER_CONFIG_DEF, why_meaningless
from aioproducer.broker.config.topic_keys import TOPIC_KEYS, check_topic_values
from aioproducer.broker.config.values import as_float, as_number, as_text
from aioproducer.config import Status
from aioproducer.config.definition import Value
from aioproducer.errors import ConfigurationError, InvalidConfigurationError

logger = logging.getLogger(__name__)

_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS
UNITS_MS = {"ms": 1, "minutes": _MINUTE_MS, "hours": _HOUR_MS}
_CODECS = range(5)


@dataclass(frozen=True, init=False)
class BrokerConfig:
    """A broker's configuration: each key is an attribute in snake_case, of Kafka's type.

    Made of Kafka's server keys in dotted or snake_case spelling; other keys have the defaults of Kafka 4.4.

    Raises:
        ConfigurationError: a key is unknown or has no meaning for this broker, a value is wrong, or keys contradict
        each
            other.
    """

    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    aioproducer_validate_records: bool
    auto_create_topics_enable: bool
    broker_rack: str | None
    connections_max_idle_ms: int
    default_replication_factor: int
    delete_topic_enable: bool
    fetch_max_bytes: int
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_flush_scheduler_interval_ms: int
    log_retention_check_interval_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    message_max_bytes: int
    min_insync_replicas: int
    num_partitions: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_compression_codec: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    producer_id_expiration_check_interval_ms: int
    producer_id_expiration_ms: int
    queued_max_request_bytes: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    socket_request_max_bytes: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int
    unclean_leader_election_enable: bool

    topic_defaults: Mapping[str, Value]
    """The default of each topic key, by its name."""
    values: Mapping[str, Value]
    """The value of every key of the broker, by its dotted name."""
    given: Mapping[str, str]
    """The keys that were given at the start, by dotted names, as text."""
    _static: Mapping[str, object] = field(repr=False, compare=False)

    def __init__(self, properties: Mapping[str, object] | None = None) -> None:
        properties = properties or {}
        _refuse_meaningless(properties)
        names = SERVER_CONFIG_DEF.names(properties)
        explicit = {names[name]: value for name, value in properties.items()}
        values = SERVER_CONFIG_DEF.parse(explicit)
        topic_defaults = _topic_defaults(values)
        _check_together(values, topic_defaults)
        for name in explicit:
            key = SERVER_CONFIG_DEF.keys[name]
            if key.status is Status.WITHOUT_EFFECT:
                logger.info("%s has no effect: %s", name, key.reason)
        for attribute in self.__annotations__:
            if attribute in _DOTTED:
                object.__setattr__(self, attribute, values[_DOTTED[attribute]])
        object.__setattr__(self, "topic_defaults", topic_defaults)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "given", {name: _shown(explicit[name], values[name]) for name in sorted(explicit)})
        object.__setattr__(self, "_static", explicit)

    def with_dynamic(self, cluster: Mapping[str, str], node: Mapping[str, str]) -> BrokerConfig:
        """Return this configuration under dynamic values for the whole cluster and, stronger, for this node.

        ``given`` keeps the values from the start, and the next ``with_dynamic`` begins with them again. Unknown keys
        are left out, as in Kafka, where plug-ins may have keys of their own.

        Raises:
            ConfigurationError: a value is wrong, or keys contradict each other.
        """
        dynamic = {name: value for name, value in {**cluster, **node}.items() if name in SERVER_CONFIG_DEF.keys}
        config = BrokerConfig({**self._static, **dynamic})
        object.__setattr__(config, "given", self.given)
        object.__setattr__(config, "_static", self._static)
        return config


def _shown(given: object, value: Value) -> str:
    return given if isinstance(given, str) else as_text(value)


_DOTTED = {key.attribute: name for name, key in SERVER_CONFIG_DEF.keys.items()}


def _refuse_meaningless(properties: Mapping[str, object]) -> None:
    refused = [
        f"{name} is not supported by the embedded broker: {reason}; remove it"
        for name in properties
        if name not in SERVER_CONFIG_DEF.keys and name not in _DOTTED and (reason := why_meaningless(name))
    ]
    if refused:
        raise ConfigurationError("; ".join(refused))


def _topic_defaults(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the value of the first synonym that has one for each topic key, in the topic key's unit."""
    defaults: dict[str, Value] = {}
    for name, entry in TOPIC_KEYS.items():
        defaults[name] = entry.key.default
        for synonym in entry.synonyms:
            value = values[synonym]
            if value is not None:
                unit = UNITS_MS.get(synonym.rpartition(".")[2], 1)
                defaults[name] = value * unit if isinstance(value, int) and unit > 1 else value
                break
    # Kafka reads any negative retention as unlimited.
    retention_ms = defaults["retention.ms"]
    if isinstance(retention_ms, int) and retention_ms < 0:
        defaults["retention.ms"] = -1
    return defaults


def _check_together(values: Mapping[str, Value], topic_defaults: Mapping[str, Value]) -> None:
    """Check the rules about several keys, those of ``KafkaConfig.validateValues``."""

    def demand(holds: bool, text: str) -> None:
        if not holds:
            raise ConfigurationError(text)

    demand(as_number(topic_defaults["segment.ms"]) >= 1, "log.roll.ms must be at least 1")
    demand(as_number(topic_defaults["segment.jitter.ms"]) >= 0, "log.roll.jitter.ms must be at least 0")
    demand(as_number(topic_defaults["flush.ms"]) >= 0, "log.flush.interval.ms must be at least 0")
    demand(
        as_number(topic_defaults["retention.ms"]) != 0,
        "log.retention.ms (or .minutes, .hours) must be at least 1, or -1 for unlimited",
    )
    demand(
        as_number(values["replica.fetch.wait.max.ms"]) <= as_number(values["replica.lag.time.max.ms"]),
        "replica.fetch.wait.max.ms must not exceed replica.lag.time.max.ms, or followers that have nothing to fetch "
        "fall out of sync",
    )
    queued = as_number(values["queued.max.request.bytes"])
    demand(
        queued <= 0 or queued >= as_number(values["socket.request.max.bytes"]),
        "queued.max.request.bytes must be -1 or at least socket.request.max.bytes",
    )
    demand(
        as_number(values["group.min.session.timeout.ms"]) <= as_number(values["group.max.session.timeout.ms"]),
        "group.min.session.timeout.ms must not exceed group.max.session.timeout.ms",
    )
    demand(
        as_number(values["offsets.topic.compression.codec"]) in _CODECS,
        "offsets.topic.compression.codec must be 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)",
    )
    demand(
        as_number(values["log.cleaner.dedupe.buffer.size"]) > 1024 * 1024,
        "log.cleaner.dedupe.buffer.size must be larger than 1 MiB (1048576 bytes)",
    )
    demand(
        0 < as_float(values["log.cleaner.io.buffer.load.factor"]) <= 1,
        "log.cleaner.io.buffer.load.factor must be above 0 and at most 1",
    )
    demand(as_number(values["default.replication.factor"]) >= 1, "default.replication.factor must be at least 1")
    try:
        check_topic_values(topic_defaults)
    except InvalidConfigurationError as error:
        raise ConfigurationError(f"Invalid defaults of topics: {error}") from None
