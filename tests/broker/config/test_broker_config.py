"""A broker's keys: their defaults, and the errors for invalid ones."""

from __future__ import annotations

import logging
import typing

import pytest

from aioproducer.broker.config import SERVER_CONFIG_DEF, TOPIC_KEYS, BrokerConfig
from aioproducer.broker.config.server_keys import DYNAMIC_KEYS, why_meaningless
from aioproducer.config import Status, Type
from aioproducer.errors import ConfigurationError
from aioproducer.producer import Producer

_PYTHON_TYPES = {
    Type.BOOLEAN: bool,
    Type.INT: int,
    Type.SHORT: int,
    Type.LONG: int,
    Type.DOUBLE: float,
    Type.STRING: str,
    Type.LIST: tuple,
}


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig()
    assert config.num_partitions == 1
    assert config.default_replication_factor == 1
    assert config.auto_create_topics_enable is True
    assert config.message_max_bytes == 1048588
    assert config.replica_lag_time_max_ms == 30000
    assert config.group_max_session_timeout_ms == 1800000
    assert config.offsets_topic_replication_factor == 3
    assert config.broker_rack is None
    assert config.aioproducer_validate_records is Producer.compiled
    assert config.given == {}


def test_every_attribute_is_a_key_of_its_type() -> None:
    config = BrokerConfig()
    hints = typing.get_type_hints(BrokerConfig)
    attributes = {key.attribute: key for key in SERVER_CONFIG_DEF.keys.values()}
    declared = hints.keys() - {"topic_defaults", "values", "given", "_static"}
    assert declared <= attributes.keys()
    for name in declared:
        key = attributes[name]
        allowed = _PYTHON_TYPES[key.type]
        expected = allowed | None if key.default is None else allowed
        assert hints[name] == expected, name
        assert isinstance(getattr(config, name), expected), name


def test_every_key_that_is_no_default_of_topics_is_an_attribute() -> None:
    of_topics = {synonym for entry in TOPIC_KEYS.values() for synonym in entry.synonyms}
    hints = typing.get_type_hints(BrokerConfig)
    missing = {name for name, key in SERVER_CONFIG_DEF.keys.items() if key.attribute not in hints}
    assert missing <= of_topics


def test_keys_may_be_dotted_or_in_snake_case() -> None:
    config = BrokerConfig({"num.partitions": "7", "min_insync_replicas": 2, "broker.rack": "a"})
    assert (config.num_partitions, config.min_insync_replicas, config.broker_rack) == (7, 2, "a")
    assert config.given == {"broker.rack": "a", "min.insync.replicas": "2", "num.partitions": "7"}


def test_a_key_in_two_spellings_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"num\.partitions is given twice"):
        BrokerConfig({"num.partitions": 1, "num_partitions": 2})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("num.partition", "unknown configuration key: 'num.partition' (did you mean 'num.partitions'?)"),
        ("num_partition", "unknown configuration key: 'num_partition' (did you mean 'num_partitions'?)"),
        ("qwertz", "unknown configuration key: 'qwertz'"),
    ],
)
def test_the_error_for_an_unknown_key_suggests_the_nearest(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        BrokerConfig({name: "1"})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zookeeper.connect", "ZooKeeper"),
        ("listeners", "are arguments of BrokerCluster"),
        ("listener.security.protocol.map", "are arguments of BrokerCluster"),
        ("listener.name.internal.ssl.keystore.location", "ssl.SSLContext"),
        ("advertised_listeners", "are arguments of BrokerCluster"),
        ("log.dirs", "are arguments of BrokerCluster"),
        ("log.dir.failure.timeout.ms", "a failed write"),
        ("sasl.enabled.mechanisms", "no SASL"),
        ("ssl_keystore_location", "ssl.SSLContext"),
        ("controller.quorum.voters", "no quorum"),
        ("controller.quota.window.num", "no quotas"),
        ("num.io.threads", "one asyncio loop"),
        ("log.cleaner.threads", "one task"),
        ("transaction.two.phase.commit.enable", "KIP-939"),
        ("transaction.state.log.load.buffer.size", "batch by batch"),
        ("remote.log.storage.system.enable", "no tiered storage"),
    ],
)
def test_error_for_an_unsupported_key_of_kafka_gives_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        BrokerConfig({name: "1"})
    assert str(caught.value).startswith(f"{name} is not supported by the embedded broker: ")
    assert reason in str(caught.value)


def test_no_key_is_both_accepted_and_meaningless_without_a_longer_name() -> None:
    # log.cleaner.* are refused, except those that are defaults of topics.
    both = {name for name in SERVER_CONFIG_DEF.keys if why_meaningless(name)}
    assert all(BrokerConfig({name: SERVER_CONFIG_DEF.keys[name].default}) for name in both)
    assert both == {name for name in SERVER_CONFIG_DEF.keys if name.startswith(("log.cleaner.", "share."))}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num.partitions", "0", "num.partitions must be at least 1, not 0"),
        ("num.partitions", "x", "num.partitions must be a whole number from -2**31 to 2**31 - 1, not 'x'"),
        ("log.segment.bytes", 1, "log.segment.bytes must be at least 1048576, not 1"),
        ("log.cleanup.policy", "delete,foo", "log.cleanup.policy must only contain compact, delete"),
        ("log.message.timestamp.type", "Foo", "must be one of CreateTime, LogAppendTime"),
        ("log.retention.ms", 0, "log.retention.ms (or .minutes, .hours) must be at least 1, or -1 for unlimited"),
        ("log.roll.ms", 0, "log.roll.ms must be at least 1"),
        ("log.roll.jitter.ms", -1, "log.roll.jitter.ms must be at least 0"),
        ("log.flush.interval.ms", -1, "log.flush.interval.ms must be at least 0"),
        ("replica.fetch.wait.max.ms", 30001, "replica.fetch.wait.max.ms must not exceed replica.lag.time.max.ms"),
        ("queued.max.request.bytes", 5, "queued.max.request.bytes must be -1 or at least socket.request.max.bytes"),
        ("group.min.session.timeout.ms", 1800001, "must not exceed group.max.session.timeout.ms"),
        ("offsets.topic.compression.codec", 9, "offsets.topic.compression.codec must be 0 (none)"),
        ("default.replication.factor", 0, "default.replication.factor must be at least 1"),
        ("log.cleaner.min.compaction.lag.ms", 2**63 - 1, None),
    ],
)
def test_values_are_checked(name: str, value: object, text: str | None) -> None:
    if text is None:
        assert BrokerConfig({name: value}).values[name] == value
        return
    with pytest.raises(ConfigurationError) as caught:
        BrokerConfig({name: value})
    assert text in str(caught.value)


def test_defaults_of_topics_are_checked_together() -> None:
    with pytest.raises(ConfigurationError, match=r"Invalid defaults of topics: conflict topic config setting"):
        BrokerConfig({"log.cleaner.min.compaction.lag.ms": 6, "log.cleaner.max.compaction.lag.ms": 5})


def test_topic_defaults_are_kafkas() -> None:
    assert BrokerConfig().topic_defaults == {name: entry.key.default for name, entry in TOPIC_KEYS.items()}


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"log.retention.hours": 2}, "retention.ms", 2 * 3600 * 1000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, "retention.ms", 3 * 60 * 1000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3, "log.retention.ms": 4}, "retention.ms", 4),
        ({"log.retention.ms": -1}, "retention.ms", -1),
        ({"log.retention.hours": -1}, "retention.ms", -1),
        ({"log.roll.hours": 1}, "segment.ms", 3600 * 1000),
        ({"log.roll.jitter.hours": 1}, "segment.jitter.ms", 3600 * 1000),
        ({"log.flush.scheduler.interval.ms": 5}, "flush.ms", 5),
        ({"log.flush.scheduler.interval.ms": 5, "log.flush.interval.ms": 6}, "flush.ms", 6),
        ({"message.max.bytes": 7}, "max.message.bytes", 7),
        ({"log.cleanup.policy": "compact,delete"}, "cleanup.policy", ("compact", "delete")),
    ],
)
def test_topic_defaults_come_from_the_strongest_synonym(given: dict[str, object], key: str, value: object) -> None:
    assert BrokerConfig(given).topic_defaults[key] == value


def test_keys_without_effect_are_accepted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="aioproducer.broker.config"):
        config = BrokerConfig({"log.preallocate": "true"})
    assert config.topic_defaults["preallocate"] is True
    assert caplog.messages == ["log.preallocate has no effect: Files grow as they are written."]
    assert SERVER_CONFIG_DEF.keys["log.preallocate"].status is Status.WITHOUT_EFFECT


def test_dynamic_values_come_first_and_can_be_removed() -> None:
    static = BrokerConfig({"log.retention.ms": 5, "num.partitions": 2})
    dynamic = static.with_dynamic({"log.retention.ms": "6", "nobody.knows": "x"}, {"log.segment.bytes": "1048577"})
    assert dynamic.topic_defaults["retention.ms"] == 6
    assert dynamic.topic_defaults["segment.bytes"] == 1048577
    assert dynamic.num_partitions == 2
    assert dynamic.given == static.given == {"log.retention.ms": "5", "num.partitions": "2"}
    assert dynamic.with_dynamic({}, {}) == static
    assert static.with_dynamic({"log.retention.ms": "6"}, {"log.retention.ms": "7"}).topic_defaults["retention.ms"] == 7
    with pytest.raises(ConfigurationError, match="whole number"):
        static.with_dynamic({}, {"log.retention.ms": "x"})


def test_dynamic_keys_are_accepted_keys() -> None:
    assert SERVER_CONFIG_DEF.keys.keys() >= DYNAMIC_KEYS


def test_every_key_is_documented() -> None:
    assert all(key.doc.endswith(".") for key in SERVER_CONFIG_DEF.keys.values())
