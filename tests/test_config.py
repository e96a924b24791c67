"""ProducerConfig: what users write, and the rules between keys."""

from __future__ import annotations

import copy
import logging
import pickle
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.config import CONFIG_DEF, NO_DEFAULT, Password, ProducerConfig, Status
from aioproducer.config.documentation import configuration_page
from aioproducer.errors import ConfigurationError, KafkaError
from aioproducer.interceptors import ProducerInterceptor
from aioproducer.partitioner import RoundRobinPartitioner
from aioproducer.serializers import BytesSerializer, StringSerializer

SERVER = "localhost:9092"
ROOT = Path(__file__).parent.parent


def config(**given: object) -> ProducerConfig:
    return ProducerConfig.from_mapping({"bootstrap_servers": SERVER, **given})


class Stamp:
    """An interceptor."""

    def on_send(self, record: object) -> object:
        return record


def test_defaults_equal_those_of_the_java_client() -> None:
    made = config()
    assert (made.acks, made.enable_idempotence, made.linger_ms, made.batch_size) == (-1, True, 5, 16384)
    assert (made.delivery_timeout_ms, made.retries, made.compression_type) == (120000, 2147483647, "none")
    assert made.bootstrap_addresses == (("localhost", 9092),)
    assert made.key_serializer is made.value_serializer is made.partitioner_class is None
    assert made.security_protocol == "PLAINTEXT"
    assert made.originals() == {"bootstrap.servers": SERVER}


def test_the_typed_attributes_are_exactly_the_supported_keys() -> None:
    derived = {"ssl_context", "bootstrap_addresses", "sasl_jaas", "sasl_extensions", "sasl_msk_iam", "_originals"}
    annotated = set(ProducerConfig.__annotations__) - derived
    assert annotated == {key.attribute for key in CONFIG_DEF.keys.values() if key.status is Status.SUPPORTED}
    made = config()
    for attribute in annotated:
        getattr(made, attribute)


def test_dotted_and_snake_case_mean_the_same(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text(f"bootstrap.servers={SERVER}\nlinger.ms = 10\nclient.id=a\n")
    dotted = ProducerConfig.from_mapping({"bootstrap.servers": SERVER, "linger.ms": "10", "client.id": "a"})
    assert dotted == ProducerConfig.from_kwargs(bootstrap_servers=[SERVER], linger_ms=10, client_id="a")
    assert dotted == ProducerConfig.from_properties(file)
    with pytest.raises(ConfigurationError, match=r"linger\.ms is given twice"):
        ProducerConfig.from_mapping({"linger.ms": 1, "linger_ms": 1, "bootstrap.servers": SERVER})


def test_a_config_is_immutable_and_shows_no_secret() -> None:
    made = config(ssl_key_password="geheim", client_id="x")
    with pytest.raises(AttributeError):
        made.linger_ms = 3
    assert made.ssl_key_password == Password("geheim")
    assert "geheim" not in repr(made)
    assert "geheim" not in str(made.ssl_key_password)
    assert copy.deepcopy(made) is made


def test_a_config_is_pickled_unless_the_pickle_would_show_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_PASSWORD", "geheim")
    made = config(acks=1, linger_ms=7)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(TypeError, match=r"would show ssl\.key\.password: use placeholders of config providers"):
        pickle.dumps(config(ssl_key_password="geheim"))
    hidden = config(
        ssl_key_password="${env:THE_PASSWORD}",
        **{
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        },
    )
    pickled = pickle.dumps(hidden)
    assert b"geheim" not in pickled
    monkeypatch.setenv("THE_PASSWORD", "new")
    assert pickle.loads(pickled).ssl_key_password == Password("new")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("liner_ms", "linger_ms"), ("linger.m", "linger.ms"), ("compresion_type", "compression_type"), ("acs", "acks")],
)
def test_an_unknown_key_suggests_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"unknown configuration key: '{name}' \\(did you mean '{nearest}'\\?\\)"
    ):
        config(**{name: 1})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("message.timeout.ms", "here it is 'delivery.timeout.ms'"),
        ("message_timeout_ms", "here it is 'delivery_timeout_ms'"),
        ("queue.buffering.max.kbytes", "here it is 'buffer.memory', in bytes"),
        ("max_batch_size", "here it is 'batch_size'"),
        ("ssl_cafile", "here it is 'ssl_truststore_location'"),
        ("ssl_certfile", "here it is 'ssl_keystore_location', one file with the key and the certificates"),
        ("sasl_plain_username", "here it is 'sasl_username'"),
        ("sasl_plain_password", "here it is 'sasl_password'"),
        ("sasl.mechanisms", "here it is 'sasl.mechanism'"),
        ("oauth_cb", "here it is 'sasl_token_provider', also for an async function"),
        (
            "sasl_oauth_token_provider",
            "here it is 'sasl_token_provider', a function that returns the token and its expiry",
        ),
        ("sasl.oauthbearer.client.id", "here it is 'sasl.oauthbearer.client.credentials.client.id'"),
        ("sasl.oauthbearer.method", "here it is 'sasl.oauthbearer.token.endpoint.url', which alone means OIDC"),
    ],
)
def test_a_key_of_another_client_is_distinguished_from_a_mistyped_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(**{name: 1})
    assert str(caught.value) == f"unknown configuration key: '{name}' ({hint})"


def test_names_of_other_clients_map_to_keys_and_are_not_keys_themselves() -> None:
    for name, (here, _remark) in CONFIG_DEF.other_names().items():
        assert here in CONFIG_DEF.keys
        assert name not in CONFIG_DEF.keys
        assert name.replace(".", "_") not in [key.attribute for key in CONFIG_DEF.keys.values()]


def test_all_unknown_keys_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError, match="'xyzzy', 'group_id'"):
        config(xyzzy=1, group_id=2)


def test_bootstrap_servers_is_required() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers is missing"):
        ProducerConfig.from_kwargs()


@pytest.mark.parametrize(
    ("given_servers", "addresses"),
    [
        ("a:1, b:2", (("a", 1), ("b", 2))),
        (["a:1", "b:2"], (("a", 1), ("b", 2))),
        ("[::1]:9092", (("::1", 9092),)),
        ("[fe80::1%eth0]:9092", (("fe80::1%eth0", 9092),)),
        ("PLAINTEXT://a_b.example:9092", (("a_b.example", 9092),)),
        ("a:1,a:1", (("a", 1),)),
    ],
)
def test_bootstrap_servers(given_servers: object, addresses: object) -> None:
    assert config(bootstrap_servers=given_servers).bootstrap_addresses == addresses


@pytest.mark.parametrize(
    ("given_servers", "says"),
    [
        ("localhost", r"the port is missing; with Kafka's default port it is localhost:9092"),
        ("[::1]", "the port is missing"),
        ("::1", "put an IPv6 address in brackets"),
        ("::1:9092", "put an IPv6 address in brackets"),
        ("a:", "use host:port"),
        (":9092", "use host:port"),
        ("a: 1", "use host:port"),
        ("a:0", "must be between 1 and 65535"),
        ("a:65536", "must be between 1 and 65535"),
        ("", "at least one item"),
        ([], "at least one item"),
        ("a:1,,b:2", "no empty items"),
        ([("a", 1)], "must contain only strings"),
        (9092, "a list, or a string of items"),
    ],
)
def test_malformed_bootstrap_servers_are_rejected(given_servers: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        config(bootstrap_servers=given_servers)


@pytest.mark.parametrize(("acks", "parsed"), [(0, 0), (1, 1), (-1, -1), ("all", -1), ("-1", -1), (" 1 ", 1), ("0", 0)])
def test_acks(acks: object, parsed: int) -> None:
    assert config(acks=acks).acks == parsed


@pytest.mark.parametrize("acks", [2, "ALL", True, "one", 1.0])
def test_invalid_acks_are_rejected(acks: object) -> None:
    with pytest.raises(ConfigurationError, match="acks must be"):
        config(acks=acks)


@pytest.mark.parametrize(("name", "value"), [("acks", 1), ("acks", 0), ("retries", 0)])
def test_a_conflicting_setting_disables_idempotence_unless_it_is_set_explicitly(
    name: str, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "aioproducer.config"):
        assert config(**{name: value}).enable_idempotence is False
    assert f"idempotence is off because {name} is {value}" in caplog.text
    assert config(**{name: value}, enable_idempotence=False).enable_idempotence is False
    with pytest.raises(ConfigurationError, match=f"enable.idempotence needs {name}"):
        config(**{name: value}, enable_idempotence=True)


def test_more_than_five_requests_in_flight_require_idempotence_to_be_disabled_explicitly() -> None:
    for more in ({}, {"enable_idempotence": True}, {"acks": 1}):
        with pytest.raises(ConfigurationError, match="must be at most 5 with idempotence, not 6"):
            config(max_in_flight_requests_per_connection=6, **more)
    made = config(max_in_flight_requests_per_connection=6, enable_idempotence=False)
    assert made.max_in_flight_requests_per_connection == 6


@given(
    linger=st.integers(0, 2**63 - 1),
    request=st.integers(0, 2**31 - 1),
    delivery=st.none() | st.integers(0, 2**31 - 1),
)
@settings(max_examples=100)
def test_delivery_timeout_covers_linger_and_request_timeout(linger: int, request: int, delivery: int | None) -> None:
    given_values = {"linger_ms": linger, "request_timeout_ms": request}
    least = min(linger + request, 2**31 - 1)
    if delivery is None:
        assert config(**given_values).delivery_timeout_ms == max(120000, least)
    elif delivery >= least:
        assert config(**given_values, delivery_timeout_ms=delivery).delivery_timeout_ms == delivery
    else:
        with pytest.raises(ConfigurationError, match=r"delivery\.timeout\.ms must be at least"):
            config(**given_values, delivery_timeout_ms=delivery)


def test_reconnect_backoff_without_a_maximum_does_not_grow() -> None:
    assert config(reconnect_backoff_ms=200).reconnect_backoff_max_ms == 200
    assert config(reconnect_backoff_ms=200, reconnect_backoff_max_ms=300).reconnect_backoff_max_ms == 300
    assert config().reconnect_backoff_max_ms == 1000


def test_a_backoff_above_its_maximum_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config(retry_backoff_ms=5000)
    assert "retry.backoff.ms (5000) is greater than retry.backoff.max.ms (1000)" in caplog.text


@pytest.mark.parametrize("value", [0, -1])
def test_a_connection_setup_timeout_of_zero_is_rejected(value: int) -> None:
    for name in ("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"):
        with pytest.raises(ConfigurationError, match=rf"{name} must be at least 1 ms, not {value}"):
            config(**{name.replace(".", "_"): value})


def test_client_ids_are_numbered_unless_given() -> None:
    first, second = config().client_id, config().client_id
    assert first.startswith("producer-")
    assert first != second
    assert config(client_id="").client_id == ""


def test_rack_aware_partitioning_needs_a_rack() -> None:
    with pytest.raises(ConfigurationError, match=r"partitioner\.rack\.aware needs client\.rack"):
        config(partitioner_rack_aware=True)
    assert config(partitioner_rack_aware=True, client_rack="a").partitioner_rack_aware


def test_the_client_id_of_a_transactional_producer_names_its_id() -> None:
    assert config(transactional_id="t").client_id == "producer-t"
    assert config(transactional_id="t", client_id="c").client_id == "c"


def test_transactions_need_idempotence_and_two_phase_commits_are_rejected() -> None:
    assert config(transactional_id="t").enable_idempotence
    for excluded in ({"enable_idempotence": False}, {"acks": 1}, {"retries": 0}):
        with pytest.raises(ConfigurationError, match=r"transactional\.id needs idempotence: remove enable"):
            config(transactional_id="t", **excluded)
    with pytest.raises(ConfigurationError, match=r"transactional\.id must"):
        config(transactional_id="")
    with pytest.raises(ConfigurationError, match=r"transaction\.two\.phase\.commit\.enable"):
        config(transaction_two_phase_commit_enable="true")
    assert config(transactional_id=None).enable_idempotence


def test_metric_reporters() -> None:
    config(metric_reporters="org.apache.kafka.common.metrics.JmxReporter")
    config(metric_reporters=[])
    with pytest.raises(ConfigurationError, match=r"metric\.reporters: Python cannot load com\.example\.Reporter"):
        config(metric_reporters="com.example.Reporter")


def test_keys_without_effect_are_named_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "aioproducer.config"):
        made = ProducerConfig.from_mapping(
            {"bootstrap.servers": SERVER, "ssl.provider": "SunJSSE", "sasl.kerberos.service.name": "kafka"}
        )
    assert made.unused() == ["sasl.kerberos.service.name", "ssl.provider"]
    assert caplog.text.count("ssl.provider has no effect: It names a mechanism of the Java virtual machine") == 1
    assert not hasattr(made, "ssl_provider")


def test_keys_defined_by_plugins_are_accepted() -> None:
    made = ProducerConfig.from_mapping({"bootstrap.servers": SERVER, "metrics.context.team": "a"})
    assert made.originals()["metrics.context.team"] == "a"


@pytest.mark.parametrize(("name", "value"), [("linger_ms", None), ("acks", None), ("interceptor_classes", None)])
def test_none_is_rejected_for_keys_without_none(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match="must not be None"):
        config(**{name: value})


def test_case_sensitivity_equals_that_of_kafka() -> None:
    assert config(metadata_recovery_strategy="NONE").metadata_recovery_strategy == "none"
    assert config(security_protocol="ssl").security_protocol == "SSL"
    with pytest.raises(ConfigurationError, match=r"compression\.type must be one of none, gzip"):
        config(compression_type="GZIP")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("org.apache.kafka.common.serialization.StringSerializer", StringSerializer),
        ("org.apache.kafka.common.serialization.ByteArraySerializer", BytesSerializer),
        ("aioproducer.serializers:StringSerializer", StringSerializer),
        ("builtins:str.encode", str.encode),
        (str.encode, str.encode),
        (StringSerializer, StringSerializer),
        (None, None),
    ],
)
def test_serializers(value: object, found: object) -> None:
    assert config(key_serializer=value).key_serializer is found


def test_partitioners() -> None:
    java = "org.apache.kafka.clients.producer."
    assert config(partitioner_class=f"{java}RoundRobinPartitioner").partitioner_class is RoundRobinPartitioner
    assert config(partitioner_class=f"{java}internals.DefaultPartitioner").partitioner_class is None


def test_javas_default_engine_factory_means_the_built_in_one() -> None:
    made = config(ssl_engine_factory_class="org.apache.kafka.common.security.ssl.DefaultSslEngineFactory")
    assert made.ssl_engine_factory_class is None


def test_interceptors_keep_their_order() -> None:
    own, other = Stamp(), Stamp()
    found = config(interceptor_classes=[own, "aioproducer.interceptors:ProducerInterceptor", other]).interceptor_classes
    assert found == (own, ProducerInterceptor, other)


def test_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "plugin_for_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-for-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[aioproducer.serializers]\nmine = aioproducer.serializers:StringSerializer\nlost = no_such_module_here:x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert config(value_serializer="mine").value_serializer is StringSerializer
    with pytest.raises(ConfigurationError, match=r"entry point 'lost' \(no_such_module_here:x\) cannot be loaded"):
        config(value_serializer="lost")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("value_serializer", "com.example.AvroSerializer", "looks like a Java class.*StringSerializer"),
        ("interceptor_classes", "com.example.Interceptor", r"looks like a Java class.*'module:attribute'\.$"),
        ("value_serializer", "nothing", "no entry point 'nothing' in the group 'aioproducer.serializers'"),
        ("value_serializer", "no_such_module_here:x", "no_such_module_here:x cannot be loaded: No module named"),
        ("value_serializer", "json:no_such", "has no attribute 'no_such'"),
        ("value_serializer", ":x", "cannot be loaded"),
        ("value_serializer", 5, "must have a method serialize, or be callable, not 5"),
        ("partitioner_class", 5, "must have a method partition, or be callable"),
        ("interceptor_classes", [len], "must have one of the methods on_send, on_headers, on_acknowledgement, not"),
        ("ssl_engine_factory_class", 5, "must be callable"),
    ],
)
def test_invalid_plugins_are_rejected(name: str, value: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        config(**{name: value})


def test_an_ssl_context_implies_ssl_and_excludes_the_ssl_keys() -> None:
    context = ssl.create_default_context()
    made = config(ssl_context=context)
    assert made.security_protocol == "SSL"
    assert made.ssl_context is context
    assert config(ssl_context=context, security_protocol="SSL").ssl_context is context
    assert config(ssl_context=None).security_protocol == "PLAINTEXT"
    for given_keys, says in (
        ({"ssl_context": context, "security_protocol": "PLAINTEXT"}, "ssl_context needs security.protocol SSL"),
        ({"ssl_context": context, "ssl_truststore_location": "x"}, "replaces ssl.truststore.location"),
        ({"ssl_context": True}, "must be an ssl.SSLContext"),
        ({"ssl_contxt": context}, "did you mean 'ssl_context'"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            config(**given_keys)


def test_ssl_keys_without_security_protocol_ssl_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config(security_protocol="SSL", ssl_truststore_location="x")
    assert not caplog.records
    config(ssl_truststore_location="x", ssl_keystore_location="y")
    assert (
        "security.protocol is PLAINTEXT: connections are not encrypted, and "
        "these keys have no effect: ssl.keystore.location, ssl.truststore.location"
    ) in caplog.text


def test_tls_versions_and_host_name_check() -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.enabled\.protocols must contain only .*, not SSLv3"):
        config(ssl_enabled_protocols="TLSv1.2,SSLv3")
    with pytest.raises(ConfigurationError, match="must be https or empty, not 'ldaps'"):
        config(ssl_endpoint_identification_algorithm="LDAPS")
    assert config(ssl_endpoint_identification_algorithm="HTTPS").ssl_endpoint_identification_algorithm == "https"


def test_errors_are_value_errors_and_kafka_errors() -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(linger_ms=-1)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, KafkaError)
    assert str(caught.value) == "linger.ms must be at least 0, not -1"


def test_the_documentation_can_be_printed() -> None:
    printed = subprocess.run([sys.executable, "-m", "aioproducer.config"], check=True, capture_output=True, text=True)
    assert printed.stdout == configuration_page()


def test_the_documentation_is_generated_from_the_definition() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == configuration_page(), "run: python -m aioproducer.config > docs/configuration.md"
    for name, key in CONFIG_DEF.keys.items():
        assert page.count(f"| `{name}`") == 1
        assert key.doc in page
        assert key.reason in page
        assert key.default is not NO_DEFAULT or name == "bootstrap.servers"
