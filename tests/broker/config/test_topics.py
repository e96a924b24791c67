"""A topic's keys: the texts of invalid ones, and the configuration of its logs."""

from __future__ import annotations

import dataclasses

import pytest

from aioproducer.broker.config import TOPIC_KEYS, BrokerConfig, log_config, validate_topic_configs
from aioproducer.broker.config.topics import topic_values
from aioproducer.broker.config.values import as_number, as_text, parse_as_kafka
from aioproducer.broker.log.config import LogConfig
from aioproducer.config import ConfigKey, Importance, Type
from aioproducer.errors import InvalidConfigurationError
from aioproducer.wire.record_survey import IS_COMPILED

# Names, values and texts of Apache Kafka 4.4.
REFUSED = [
    ("retention.ms", "-5", "Invalid value -5 for configuration retention.ms: Value must be at least -1"),
    ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
    ("retention.ms", "", "Invalid value  for configuration retention.ms: Not a number of type LONG"),
    (
        "retention.ms",
        "9999999999999999999",
        "Invalid value 9999999999999999999 for configuration retention.ms: Not a number of type LONG",
    ),
    ("segment.bytes", "1", "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576"),
    (
        "segment.bytes",
        "99999999999",
        "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT",
    ),
    (
        "cleanup.policy",
        "foo",
        "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    (
        "cleanup.policy",
        "delete,foo",
        "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    (
        "compression.type",
        "foo",
        (
            "Invalid value foo for configuration compression.type: String must be one of: "
            "uncompressed, zstd, lz4, snappy, gzip, producer"
        ),
    ),
    (
        "compression.gzip.level",
        "0",
        "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
    ),
    (
        "compression.lz4.level",
        "18",
        "Invalid value 18 for configuration compression.lz4.level: Value must be no more than 17",
    ),
    ("compression.lz4.level", "0", "Invalid value 0 for configuration compression.lz4.level: Value must be at least 1"),
    (
        "min.cleanable.dirty.ratio",
        "2",
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    (
        "min.cleanable.dirty.ratio",
        "x",
        "Invalid value x for configuration min.cleanable.dirty.ratio: Not a number of type DOUBLE",
    ),
    ("preallocate", "x", "Invalid value x for configuration preallocate: Expected value to be either true or false"),
    ("nosuch", "x", "Unknown topic config name: nosuch"),
    ("message.format.version", "3.0", "Unknown topic config name: message.format.version"),
    ("min.insync.replicas", "0", "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1"),
    (
        "message.timestamp.type",
        "Foo",
        "Invalid value Foo for configuration message.timestamp.type: String must be one of: CreateTime, LogAppendTime",
    ),
    (
        "leader.replication.throttled.replicas",
        "foo",
        (
            "Invalid value [foo] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
        ),
    ),
    (
        "remote.storage.enable",
        "true",
        ("Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."),
    ),
    (
        "min.compaction.lag.ms",
        "9223372036854775807",
        None,
    ),
]


@pytest.mark.parametrize(("name", "value", "text"), REFUSED)
def test_invalid_values_are_refused_with_kafkas_text(name: str, value: str, text: str | None) -> None:
    if text is None:
        validate_topic_configs({name: value})
        return
    with pytest.raises(InvalidConfigurationError) as caught:
        validate_topic_configs({name: value})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "delete, compact"),
        ("preallocate", "TRUE"),
        ("leader.replication.throttled.replicas", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", ""),
        ("retention.bytes", "-7"),
        ("retention.ms", " 7 "),
        ("retention.ms", "+7"),
        ("internal.segment.bytes", "1000"),
        ("local.retention.ms", "5"),
    ],
)
def test_values_that_kafka_accepts_are_accepted(name: str, value: str) -> None:
    """An invalid value would raise ``InvalidConfigurationError``."""
    validate_topic_configs({name: value})


def test_null_values_are_refused() -> None:
    with pytest.raises(InvalidConfigurationError) as caught:
        validate_topic_configs({"retention.ms": None, "segment.ms": None, "segment.bytes": "1048576"})
    assert str(caught.value) == "Null value not supported for topic configs: retention.ms,segment.ms"


def test_contradicting_values_are_refused_also_with_the_brokers_values() -> None:
    text = r"conflict topic config setting min\.compaction\.lag\.ms \(6\) > max\.compaction\.lag\.ms \(5\)"
    with pytest.raises(InvalidConfigurationError, match=text):
        validate_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfigurationError, match=text):
        validate_topic_configs({"min.compaction.lag.ms": "6"}, BrokerConfig({"log.cleaner.max.compaction.lag.ms": 5}))


def test_log_config_without_overrides_has_kafkas_defaults() -> None:
    assert log_config(BrokerConfig(), {}) == LogConfig()


def test_log_config_takes_every_field_from_its_key() -> None:
    overrides = {
        "segment.bytes": "1048576",
        "segment.ms": "2",
        "segment.jitter.ms": "3",
        "retention.ms": "4",
        "retention.bytes": "5",
        "max.message.bytes": "6",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "7",
        "message.timestamp.after.max.ms": "8",
        "index.interval.bytes": "9",
        "segment.index.bytes": "10",
        "flush.messages": "11",
        "flush.ms": "12",
        "cleanup.policy": "compact",
        "compression.type": "lz4",
        "min.insync.replicas": "13",
        "unclean.leader.election.enable": "true",
        "delete.retention.ms": "14",
        "min.cleanable.dirty.ratio": "0.25",
        "min.compaction.lag.ms": "16",
        "max.compaction.lag.ms": "17",
    }
    config = BrokerConfig(
        {
            "producer.id.expiration.ms": 15,
            "transaction.partition.verification.enable": False,
            "aioproducer.validate.records": not IS_COMPILED,
        }
    )
    made = log_config(config, overrides)
    assert made == LogConfig(
        segment_bytes=1048576,
        segment_ms=2,
        segment_jitter_ms=3,
        retention_ms=4,
        retention_bytes=5,
        max_message_bytes=6,
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=7,
        message_timestamp_after_max_ms=8,
        index_interval_bytes=9,
        segment_index_bytes=10,
        flush_messages=11,
        flush_ms=12,
        cleanup_policy=frozenset({"compact"}),
        compression_type="lz4",
        min_insync_replicas=13,
        unclean_leader_election_enable=True,
        delete_retention_ms=14,
        min_cleanable_dirty_ratio=0.25,
        min_compaction_lag_ms=16,
        max_compaction_lag_ms=17,
        producer_id_expiration_ms=15,
        transaction_partition_verification_enable=False,
        validate_records=not IS_COMPILED,
    )
    defaults = dataclasses.asdict(LogConfig())
    assert all(value != defaults[name] for name, value in dataclasses.asdict(made).items())


def test_log_config_has_the_brokers_values_for_keys_that_the_topic_lacks() -> None:
    config = BrokerConfig({"log.retention.hours": 1, "message.max.bytes": 99})
    assert log_config(config, {}).retention_ms == 3600 * 1000
    assert log_config(config, {"retention.ms": "5"}).retention_ms == 5
    assert log_config(config, {"retention.ms": "5"}).max_message_bytes == 99


def test_internal_segment_bytes_has_no_lower_bound() -> None:
    assert log_config(BrokerConfig(), {"internal.segment.bytes": "100"}).segment_bytes == 100


def test_log_config_refuses_invalid_values() -> None:
    with pytest.raises(InvalidConfigurationError, match="Unknown topic config name: foo"):
        log_config(BrokerConfig(), {"foo": "1"})


def test_duplicates_in_a_list_are_dropped() -> None:
    assert topic_values(BrokerConfig(), {"cleanup.policy": "delete,compact,delete"})["cleanup.policy"] == (
        "delete",
        "compact",
    )


def test_every_key_without_effect_has_a_reason() -> None:
    assert all(entry.has_effect != bool(entry.key.reason) for entry in TOPIC_KEYS.values())
    assert {name for name, entry in TOPIC_KEYS.items() if entry.has_effect} >= {"retention.ms", "cleanup.policy"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (("a", "b"), "a,b"),
        ((), ""),
        ("x", "x"),
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1.0, "1.0"),
        (1e7, "1.0E7"),
        (123456789.125, "1.23456789125E8"),
        (-2.5e-5, "-2.5E-5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_values_are_written_as_kafka_writes_them(value: object, text: str) -> None:
    assert as_text(value) == text


def test_unused_types_and_rules_work_as_in_kafka() -> None:
    assert as_number(5) == 5
    with pytest.raises(TypeError, match="a whole number was expected, not 'x'"):
        as_number("x")
    key = ConfigKey("some.key", Type.SHORT, 1, Importance.LOW, "Some.")
    with pytest.raises(InvalidConfigurationError, match="Not a number of type SHORT"):
        parse_as_kafka(key, "70000")
    assert parse_as_kafka(key, "7") == 7
