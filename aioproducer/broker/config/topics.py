"""The checks of a topic's configuration, and the configuration of its logs that follows from it."""

from __future__ import annotations

from collections.abc import Mapping

from aioproducer.broker.config.broker_config import BrokerConfig
from aioproducer.broker.config.topic_keys import TOPIC_KEYS, check_topic_values
from aioproducer.broker.config.values import as_float, as_number, as_text, parse_as_kafka
from aioproducer.broker.log.config import LogConfig
from aioproducer.config.definition import Value
from aioproducer.errors import InvalidConfigurationError


def topic_values(config: BrokerConfig, overrides: Mapping[str, str | None]) -> dict[str, Value]:
    """Return the value of every key of a topic that has the ``overrides``; other keys have the broker's defaults.

    Raises:
        InvalidConfigurationError: as ``validate_topic_configs``.
    """
    unknown = next((name for name in overrides if name not in TOPIC_KEYS), None)
    if unknown is not None:
        raise InvalidConfigurationError(f"Unknown topic config name: {unknown}")
    given = {name: value for name, value in overrides.items() if value is not None}
    if len(given) < len(overrides):
        missing = ",".join(name for name, value in overrides.items() if value is None)
        raise InvalidConfigurationError(f"Null value not supported for topic configs: {missing}")
    values = dict(config.topic_defaults)
    values.update((name, parse_as_kafka(TOPIC_KEYS[name].key, value)) for name, value in given.items())
    check_topic_values(values)
    return values


_KAFKAS_DEFAULTS = BrokerConfig()


def validate_topic_configs(configs: Mapping[str, str | None], config: BrokerConfig | None = None) -> None:
    """Check ``configs`` as all overrides of a topic, on brokers with the given ``config``.

    Raises:
        InvalidConfigurationError: a name is unknown, a value is wrong, or values contradict each other; the text is
            Kafka's.
    """
    topic_values(config or _KAFKAS_DEFAULTS, configs)


def log_config(config: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """Return the configuration of the logs of a topic with the ``overrides``.

    Raises:
        InvalidConfigurationError: as ``validate_topic_configs``.
    """
    values = topic_values(config, overrides)

    def number(name: str) -> int:
        return as_number(values[name])

    policy = values["cleanup.policy"]
    assert isinstance(policy, tuple)
    small_segment = values["internal.segment.bytes"]
    return LogConfig(
        segment_bytes=number("segment.bytes") if small_segment is None else as_number(small_segment),
        segment_ms=number("segment.ms"),
        segment_jitter_ms=number("segment.jitter.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        max_message_bytes=number("max.message.bytes"),
        message_timestamp_type="CreateTime" if values["message.timestamp.type"] == "CreateTime" else "LogAppendTime",
        message_timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        index_interval_bytes=number("index.interval.bytes"),
        segment_index_bytes=number("segment.index.bytes"),
        flush_messages=number("flush.messages"),
        flush_ms=number("flush.ms"),
        cleanup_policy=frozenset(str(item) for item in policy),
        compression_type=as_text(values["compression.type"]),
        min_cleanable_dirty_ratio=as_float(values["min.cleanable.dirty.ratio"]),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        min_insync_replicas=number("min.insync.replicas"),
        unclean_leader_election_enable=values["unclean.leader.election.enable"] is True,
        delete_retention_ms=number("delete.retention.ms"),
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        transaction_partition_verification_enable=config.transaction_partition_verification_enable,
        validate_records=config.aioproducer_validate_records,
    )
