"""The consumer's keys: those of Kafka, and how they reach the connections."""

from __future__ import annotations

import pytest

from aioproducer.config import ConsumerConfig
from aioproducer.config.client_files import CONSUMER_KEYS as KAFKA_CONSUMER_KEYS
from aioproducer.config.consumer import CONSUMER_CONFIG_DEF
from aioproducer.config.consumer_keys import duration_ms
from aioproducer.consumer.connections import fetcher_settings
from aioproducer.core.fetching.reset import OffsetReset, ResetKind
from aioproducer.errors import ConfigurationError


def config(**given):
    return ConsumerConfig.from_mapping({"bootstrap.servers": "localhost:9092", **given})


def test_the_keys_are_those_of_kafkas_consumer():
    keys = CONSUMER_CONFIG_DEF.keys
    assert keys.keys() >= KAFKA_CONSUMER_KEYS
    own = ("fetch.", "sasl.", "ssl.")
    extra = {name for name in keys if name not in KAFKA_CONSUMER_KEYS and name.startswith(own)}
    assert "fetch.buffer.bytes" in extra
    assert not {"acks", "linger.ms", "max.in.flight.requests.per.connection", "metadata.max.idle.ms"} & keys.keys()
    # Kafka 4.4 has 120 keys; six are this client's.
    assert len(keys) == 126


def test_values_reach_the_fetcher():
    made = config(
        fetch_min_bytes=7,
        fetch_max_wait_ms="8",
        fetch_max_bytes=9,
        max_partition_fetch_bytes=10,
        fetch_buffer_bytes=11,
        isolation_level="read_committed",
        check_crcs=False,
        client_rack="r1",
        metadata_max_age_ms=2000,
        auto_offset_reset="by_duration:PT2S",
    )
    settings = fetcher_settings(made)
    assert settings[:7] == (7, 8, 9, 10, 11, 1, False)
    assert settings.is_committed
    assert (settings.rack, settings.metadata_max_age) == ("r1", 2.0)
    assert settings.reset == OffsetReset(ResetKind.BY_DURATION, 2000)


def test_shared_keys_reach_the_connections():
    made = config(**{"request.timeout.ms": 5, "retry.backoff.ms": 3, "client.id": "c"})
    assert (made.request_timeout_ms, made.connection.request_timeout_ms, made.client_id) == (5, 5, "c")
    assert made.retry_backoff_ms == 3
    assert config().connection.receive_buffer_bytes == 65536
    assert config(receive_buffer_bytes=4096).connection.receive_buffer_bytes == 4096
    assert config().client_id != config().client_id
    assert config().client_id.startswith("consumer-")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"linger.ms": 1}, "unknown configuration key"),
        ({"group.id": " "}, "group.id must not be empty"),
        ({"group.instance.id": "a b"}, "group.instance.id must have 1 to 249 letters"),
        ({"group.instance.id": ".."}, "group.instance.id must have 1 to 249 letters"),
        ({"group.protocol": "consumer"}, "the consumer protocol .* is not supported"),
        ({"enable.auto.commit": True}, "enable.auto.commit needs group.id"),
        ({"heartbeat.interval.ms": 45000}, "must be below session.timeout.ms"),
        ({"partition.assignment.strategy": []}, "partition.assignment.strategy must contain some of range"),
        ({"partition.assignment.strategy": "com.example.Mine"}, "partition.assignment.strategy must contain some of"),
        (
            {"partition.assignment.strategy": "range,org.apache.kafka.clients.consumer.RangeAssignor"},
            "partition.assignment.strategy must contain some of",
        ),
        ({"auto.offset.reset": "smallest"}, "auto.offset.reset must be earliest"),
        ({"auto.offset.reset": "by_duration:1h"}, "auto.offset.reset must be earliest"),
        ({"isolation.level": "none"}, "isolation.level must be one of"),
        ({"fetch.max.bytes": -1}, "fetch.max.bytes must be at least 0"),
        ({"value.deserializer": 5}, "value.deserializer must have a method deserialize"),
        ({"interceptor.classes": "x"}, "interceptor.classes is not supported"),
        ({"security.protocol": "SSH"}, "security.protocol"),
    ],
)
def test_wrong_keys_and_values_are_errors(given, text):
    with pytest.raises(ConfigurationError, match=text):
        config(**given)


def test_placeholders_are_replaced(monkeypatch):
    monkeypatch.setenv("RESET", "earliest")
    providers = {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    }
    assert config(**providers, auto_offset_reset="${env:RESET}").auto_offset_reset == "earliest"


def test_it_is_immutable():
    made = config()
    with pytest.raises(AttributeError, match="immutable"):
        made.client_id = "x"
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del made.client_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt1h", 3_600_000),
        ("PT0S", 0),
        ("PT0.0015S", 2),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("-PT1S", None),
        ("1h", None),
    ],
)
def test_durations_are_those_of_iso_8601(text, expected):
    assert duration_ms(text) == expected


def test_keys_of_groups_have_kafkas_names_and_defaults():
    without = config()
    assert (without.group_id, without.enable_auto_commit) == (None, False)
    member = config(**{"group.id": "billing", "group.instance.id": "b-1", "group.protocol": "CLASSIC"})
    assert (member.group_id, member.group_instance_id, member.enable_auto_commit) == ("billing", "b-1", True)
    assert member.partition_assignment_strategy == ("range", "cooperative-sticky")
    assert (member.session_timeout_ms, member.heartbeat_interval_ms) == (45000, 3000)
    assert (member.max_poll_interval_ms, member.auto_commit_interval_ms) == (300000, 5000)
    assert member.exclude_internal_topics


@pytest.mark.parametrize(
    "value", ["sticky,org.apache.kafka.clients.consumer.RoundRobinAssignor", ["Sticky", "roundrobin"]]
)
def test_assignors_are_named_as_in_kafka_or_by_their_classes(value):
    assert config(partition_assignment_strategy=value).partition_assignment_strategy == ("sticky", "roundrobin")
