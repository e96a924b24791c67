"""The sink's options, as Spark hands them over: keys in lower case."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from aioproducer.config import CONFIG_DEF, Type
from aioproducer.errors import ConfigurationError
from aioproducer.spark.options import ExactlyOnceOptions, SinkOptions

BOOTSTRAP = {"kafka.bootstrap.servers": "host:9092"}
SECRET = "hunter2"


def refusal(options: Mapping[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        SinkOptions.parse({**BOOTSTRAP, **options})
    return str(caught.value)


def test_defaults() -> None:
    options = SinkOptions.parse(BOOTSTRAP)
    assert options == SinkOptions(
        config=(("bootstrap.servers", "host:9092"),),
        topic=None,
        key_format="",
        value_format="",
        flush_timeout_ms=130_000,
        check_timeout_ms=10_000,
    )


def test_all_of_the_sinks_own() -> None:
    options = SinkOptions.parse(
        {
            **BOOTSTRAP,
            "topic": " clicks ",
            "key_format": "string",
            "value_format": "JSON",
            "flush_timeout_ms": "5000",
            "check_timeout_ms": "300",
        }
    )
    assert options.topic == "clicks"
    assert (options.key_format, options.value_format) == ("string", "json")
    assert (options.flush_timeout_ms, options.check_timeout_ms) == (5000, 300)


def test_the_closing_flush_waits_longer_than_a_delivery_may_take() -> None:
    options = SinkOptions.parse({**BOOTSTRAP, "kafka.delivery.timeout.ms": "60000"})
    assert options.flush_timeout_ms == 70_000


def test_a_config_provider_with_capitals_in_its_name() -> None:
    """Spark makes keys lower-case, and the name in the value of another key is as it was written."""
    options = SinkOptions.parse(
        {
            **BOOTSTRAP,
            "kafka.config.providers": "other, myEnv",
            "kafka.config.providers.myenv.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "kafka.config.providers.other.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "kafka.client.id": "${myEnv:PATH}",
        }
    )
    assert "config.providers.myEnv.class" in dict(options.config)
    assert "config.providers.other.class" in dict(options.config)


def test_keys_come_in_any_case() -> None:
    options = SinkOptions.parse({"Kafka.Bootstrap.SERVERS": "host:9092", "KAFKA.linger.ms": "7", "Topic": "clicks"})
    assert dict(options.config) == {"bootstrap.servers": "host:9092", "linger.ms": "7"}
    assert options.topic == "clicks"


def test_every_key_of_the_producer_can_be_written_in_lower_case() -> None:
    """Spark lowers keys; no key of Kafka's may be lost by that."""
    assert [name for name in CONFIG_DEF.keys if name != name.lower()] == []


def test_configurations_are_equal_whatever_the_order_of_options() -> None:
    there = SinkOptions.parse({**BOOTSTRAP, "kafka.linger.ms": "7", "kafka.acks": "all"})
    back = SinkOptions.parse({"kafka.acks": "all", "kafka.linger.ms": "7", **BOOTSTRAP})
    assert there == back
    assert hash(there) == hash(back)


def test_it_pickles() -> None:
    options = SinkOptions.parse({**BOOTSTRAP, "topic": "clicks", "kafka.ssl.key.password": SECRET})
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    "name",
    ["checkpointLocation", "queryName", "asyncProgressTrackingEnabled", "__partition_columns", "includeHeaders"],
)
def test_what_spark_itself_puts_in_is_no_error(name: str) -> None:
    assert SinkOptions.parse({**BOOTSTRAP, name.lower(): "true"}) == SinkOptions.parse(BOOTSTRAP)


@pytest.mark.parametrize("missing", [{}, {"kafka.bootstrap.servers": " "}])
def test_bootstrap_servers_must_be_given(missing: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"the option kafka\.bootstrap\.servers is missing: \.option"):
        SinkOptions.parse({"topic": "clicks", **missing})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka.linger.mss", "did you mean 'kafka.linger.ms'?"),
        ("kafka.linger_ms", "did you mean 'kafka.linger.ms'?"),
        ("kafka.lingerms", "did you mean 'kafka.linger.ms'?"),
        ("kafka.bootstrap.server", "did you mean 'kafka.bootstrap.servers'?"),
        ("kafka.topic", "the option is 'topic', not 'kafka.topic'"),
        ("kafka.value_format", "the option is 'value_format', not 'kafka.value_format'"),
        ("kafka.qqqqqqqqqqqqqqqqqq", "Kafka's producer has no such key."),
        ("bootstrap.servers", "did you mean 'kafka.bootstrap.servers'?"),
        ("kafka_bootstrap_servers", "did you mean 'kafka.bootstrap.servers'?"),
        ("linger.ms", "did you mean 'kafka.linger.ms'?"),
        ("topics", "did you mean 'topic'?"),
        ("valueformat", "did you mean 'value_format'?"),
        ("value.format", "did you mean 'value_format'?"),
        ("flushtimeoutms", "did you mean 'flush_timeout_ms'?"),
        ("qqqqqqqqqqqqqqqqqq", "options are topic, key_format, value_format, flush_timeout_ms, check_timeout_ms"),
        ("subscribe", "Spark's Kafka source"),
        ("startingoffsets", "Spark's Kafka source"),
        ("path", "not to a path"),
        ("kafka.transactional.id", "each task has a transactional id of its own: drop"),
        ("sink.id", 'add .option("delivery", "exactly-once")'),
        ("write.id", "is for exactly-once delivery"),
        ("delivery", "must be one of at-least-once, exactly-once, not 'x'"),
        ("kafka.key.serializer", "with the option key_format"),
        ("kafka.value.serializer", "with the option value_format"),
    ],
)
def test_what_is_refused_says_what_to_do(name: str, hint: str) -> None:
    text = refusal({name: "x"})
    assert hint in text
    assert name in text


def test_the_one_serializer_that_makes_no_difference_is_dropped() -> None:
    bytes_as_they_are = "org.apache.kafka.common.serialization.ByteArraySerializer"
    options = SinkOptions.parse({**BOOTSTRAP, "kafka.value.serializer": bytes_as_they_are})
    assert options == SinkOptions.parse(BOOTSTRAP)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"kafka.linger.ms": "soon"},
            "option kafka.linger.ms must be a whole number from -2**63 to 2**63 - 1, not 'soon'",
        ),
        ({"kafka.acks": "2"}, "option kafka.acks must be one of all, -1, 0, 1, not '2'"),
        ({"kafka.bootstrap.servers": "host"}, "option kafka.bootstrap.servers: 'host' is no address"),
        ({"kafka.partitioner.class": "nowhere:P"}, "option kafka.partitioner.class: nowhere:P cannot be loaded"),
        ({"kafka.enable.idempotence": "true", "kafka.acks": "1"}, "option kafka.enable.idempotence needs acks=all"),
        ({"topic": ""}, "the option topic is empty"),
        ({"value_format": "avro"}, "the option value_format must be one of json, string, not 'avro'"),
        ({"key_format": "jsn"}, "did you mean 'json'?"),
        ({"flush_timeout_ms": "0"}, "the option flush_timeout_ms must be a number of milliseconds above 0, not '0'"),
        ({"check_timeout_ms": "10s"}, "the option check_timeout_ms must be a number of milliseconds above 0"),
        ({"check_timeout_ms": "99999999999"}, "the option check_timeout_ms must be a number"),
    ],
)
def test_values_are_checked_on_the_driver(options: dict[str, str], text: str) -> None:
    assert text in refusal(options)


def test_an_error_without_a_key_in_front_says_that_it_is_about_kafkas_options() -> None:
    options = {"kafka.security.protocol": "SASL_SSL"}
    with pytest.raises(ConfigurationError, match=r"option kafka\.sasl\.mechanism is missing: set it to PLAIN"):
        SinkOptions.parse({**BOOTSTRAP, **options})
    broken = {"kafka.config.providers": "env", "kafka.client.id": "${env:}"}
    assert "kafka" in refusal(broken)


def test_files_of_the_executors_need_not_be_on_the_driver(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    options = SinkOptions.parse(
        {
            **BOOTSTRAP,
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": missing,
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.location": missing,
        }
    )
    assert dict(options.config)["ssl.keystore.location"] == missing


def test_placeholders_are_not_resolved_into_what_is_sent_to_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEYS_PASSWORD", SECRET)
    options = SinkOptions.parse(
        {
            **BOOTSTRAP,
            "kafka.config.providers": "env",
            "kafka.config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "kafka.ssl.key.password": "${env:THE_KEYS_PASSWORD}",
        }
    )
    assert dict(options.config)["ssl.key.password"] == "${env:THE_KEYS_PASSWORD}"
    assert SECRET.encode() not in pickle.dumps(options)


PASSWORDS = sorted(name for name, key in CONFIG_DEF.keys.items() if key.type is Type.PASSWORD)


@pytest.mark.parametrize("name", [*PASSWORDS, "config.providers.vault.param.token"])
def test_secrets_do_not_show(name: str) -> None:
    options = SinkOptions.parse({**BOOTSTRAP, f"kafka.{name}": SECRET})
    assert dict(options.config)[name] == SECRET
    assert SECRET not in repr(options)
    assert SECRET not in str(options)
    assert SECRET not in refusal({f"kafka.{name}": SECRET, "kafka.linger.ms": "soon"})
    assert SECRET not in refusal({f"kafka.{name}": SECRET, "tpoic": "x"})


def test_the_sasl_configuration_is_among_the_secrets() -> None:
    assert {
        "sasl.jaas.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.password",
        "ssl.key.password",
        "ssl.truststore.password",
    } <= set(PASSWORDS)


def test_repr_names_the_rest() -> None:
    text = repr(SinkOptions.parse({**BOOTSTRAP, "topic": "clicks"}))
    assert "'bootstrap.servers': 'host:9092'" in text
    assert "topic='clicks'" in text


@pytest.mark.parametrize("name", ["kafka.group.id", "kafka.Key.Deserializer"])
def test_options_of_a_consumer_are_told_as_such(name: str) -> None:
    """The nearest name was kafka.ssl.provider, and kafka.key.serializer."""
    with pytest.raises(ConfigurationError, match=r"is one of Kafka's consumer; to write there is no such thing: drop"):
        SinkOptions.parse({**BOOTSTRAP, name: "x"})


def test_options_that_spark_has_lost_with_their_table() -> None:
    with pytest.raises(ConfigurationError, match=r"those of CREATE TABLE reach no sink in Python: INSERT INTO t WITH"):
        SinkOptions.parse({})


EXACTLY_ONCE = {"delivery": "exactly-once", "sink.id": "orders-job"}


def test_exactly_once_needs_no_more_than_the_id_of_the_sink() -> None:
    assert SinkOptions.parse({**BOOTSTRAP, "delivery": "at-least-once"}).exactly_once is None
    options = SinkOptions.parse({**BOOTSTRAP, **EXACTLY_ONCE})
    assert options.exactly_once == ExactlyOnceOptions("orders-job", 900_000, "__aioproducer_decisions", None, None)
    assert pickle.loads(pickle.dumps(options)) == options


def test_all_options_of_exactly_once() -> None:
    given = {"transaction.timeout.ms": "60000", "decision.topic": "d", "write.id": "w"}
    options = SinkOptions.parse({**BOOTSTRAP, **EXACTLY_ONCE, **given})
    assert options.exactly_once == ExactlyOnceOptions("orders-job", 60_000, "d", "w", None)
    options = SinkOptions.parse({**BOOTSTRAP, **EXACTLY_ONCE, "write.name": "audit", "write.batch": "7"})
    assert options.exactly_once == ExactlyOnceOptions("orders-job--audit", 900_000, "__aioproducer_decisions", None, 7)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sink.id": "a--b"}, "the option sink.id must be 1 to 100 letters"),
        ({"sink.id": "a-t-b"}, "without '-t-'"),
        ({"transaction.timeout.ms": "-1"}, "the option transaction.timeout.ms must be a number of milliseconds"),
        ({"kafka.transaction.timeout.ms": "1000"}, "the option is 'transaction.timeout.ms'"),
        ({"decision.topic": "a b"}, "the option decision.topic must be the name of a topic, not 'a b'"),
        ({"write.id": ""}, "the option write.id is empty"),
        ({"kafka.acks": "1"}, "acks"),
        ({"kafka.enable.idempotence": "false"}, "enable.idempotence"),
    ],
)
def test_what_exactly_once_cannot_work_with_is_refused(given: dict[str, str], text: str) -> None:
    assert text in refusal({**EXACTLY_ONCE, **given})


def test_exactly_once_without_a_sink_id_says_what_it_is_for() -> None:
    assert "the option sink.id is missing" in refusal({"delivery": "exactly-once"})
