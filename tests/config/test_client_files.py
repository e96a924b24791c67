"""Properties files that are shared with other clients: those of cloud providers, and the keys that are ignored."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aioproducer.config import CONFIG_DEF, Password, ProducerConfig
from aioproducer.config.client_files import (
    ADMIN_KEYS,
    ALIASES,
    CONSUMER_KEYS,
    SCHEMA_REGISTRY_PREFIXES,
    STREAMS_KEYS,
)
from aioproducer.errors import ConfigurationError
from tests.config.test_definition import DATA, ask_java

FILES = DATA / "security"
SECRETS = (
    "Made/Up+Secret/abcdefghijklmnopqrstuvwxyz0123456789+ABCDEFGHI",
    "made/up+registry+secret",
    "made~up.client-secret",
    "made-up alice-secret",
    "bWFkZSB1cCBmb3IgYSB0ZXN0LCBubyBrZXkgYXQgYWxs",
    "AVNS_made_up_0123456789",
    "made-up-truststore-password",
)


@pytest.fixture
def load(caplog: pytest.LogCaptureFixture) -> object:
    """Loads a provider's file, and checks that no secret shows in what is logged and printed."""

    def load_file(name: str) -> ProducerConfig:
        with caplog.at_level(logging.DEBUG):
            made = ProducerConfig.from_properties(FILES / f"{name}.properties")
        for secret in SECRETS:
            assert secret not in caplog.text
            assert secret not in repr(made)
        return made

    return load_file


def test_each_made_up_secret_is_in_a_file() -> None:
    texts = "".join(file.read_text() for file in FILES.glob("*.properties"))
    assert [secret for secret in SECRETS if secret not in texts] == []


def test_confluent_cloud(load, caplog: pytest.LogCaptureFixture) -> None:
    made = load("confluent_cloud")
    assert (made.security_protocol, made.uses_tls, made.uses_sasl) == ("SASL_SSL", True, True)
    assert made.sasl_mechanism == "PLAIN"
    assert made.sasl_credentials() == ("MADEUPKEY1234567", Password(SECRETS[0]), False)
    (ignored,) = [record for record in caplog.records if "other clients" in record.getMessage()]
    assert ignored.levelno == logging.INFO
    assert ignored.getMessage().endswith(
        "session.timeout.ms, schema.registry.url, basic.auth.credentials.source, basic.auth.user.info"
    )
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_confluent_cloud_for_python_clients(load) -> None:
    """Confluent's console offers the same with librdkafka's names."""
    made = load("confluent_cloud_python")
    assert made.sasl_mechanism == "PLAIN"
    assert made.sasl_credentials() == ("MADEUPKEY1234567", Password(SECRETS[0]), False)


def test_confluent_cloud_with_an_identity_provider(load) -> None:
    made = load("confluent_cloud_oauth")
    assert made.sasl_mechanism == "OAUTHBEARER"
    assert made.sasl_oauthbearer_token_endpoint_url == "https://login.example.com/oauth2/v2.0/token"
    assert made.sasl_oauthbearer_client_credentials_client_id == "made-up-client"
    assert made.sasl_oauthbearer_client_credentials_client_secret == Password("made~up.client-secret")
    assert made.sasl_oauthbearer_scope == "api://made-up/.default"
    assert made.sasl_extensions == {"logicalCluster": "lkc-1a2b3", "identityPoolId": "pool-4d5e"}
    assert made.sasl_msk_iam is None


def test_msk_with_iam(load) -> None:
    made = load("msk_iam")
    assert made.sasl_mechanism == "OAUTHBEARER"
    assert made.sasl_msk_iam == {
        "awsRoleArn": "arn:aws:iam::123456789012:role/producer",
        "awsRoleSessionName": "shop",
        "awsStsRegion": "eu-west-1",
    }
    assert made.bootstrap_addresses[0] == ("b-1.shop.1a2b3c.c2.kafka.eu-west-1.amazonaws.com", 9098)


def test_msk_with_iam_over_oauthbearer(load) -> None:
    made = load("msk_oauthbearer")
    assert (made.sasl_mechanism, made.sasl_msk_iam) == ("OAUTHBEARER", {"awsProfileName": "shop"})


def test_msk_with_scram(load) -> None:
    made = load("msk_scram")
    assert made.sasl_mechanism == "SCRAM-SHA-512"
    assert made.sasl_credentials() == ("alice", Password("made-up alice-secret"), False)


def test_event_hubs(load) -> None:
    made = load("event_hubs")
    username, password, _is_token = made.sasl_credentials()
    assert (made.sasl_mechanism, username) == ("PLAIN", "$ConnectionString")
    assert password.value == (
        "Endpoint=sb://made-up.servicebus.windows.net/;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=bWFkZSB1cCBmb3IgYSB0ZXN0LCBubyBrZXkgYXQgYWxs="
    )
    assert made.request_timeout_ms == 60000


def test_aiven(load, caplog: pytest.LogCaptureFixture) -> None:
    made = load("aiven")
    assert made.sasl_mechanism == "SCRAM-SHA-256"
    assert made.sasl_credentials() == ("avnadmin", Password("AVNS_made_up_0123456789"), False)
    assert made.ssl_truststore_location == "client.truststore.jks"
    assert "no effect: key.deserializer, value.deserializer" in caplog.text


def written(folder: Path, text: str) -> Path:
    file = folder / "client.properties"
    file.write_text(f"bootstrap.servers=a:1\n{text}")
    return file


@pytest.mark.parametrize(
    "name", ["group.id", "auto.offset.reset", "application.id", "bootstrap.controllers", "bearer.auth.client.id"]
)
def test_keys_of_other_clients_are_ignored_in_files_alone(name: str, tmp_path: Path) -> None:
    made = ProducerConfig.from_properties(written(tmp_path, f"{name}=x\n"))
    assert name not in made.originals()
    for spelling in (name, name.replace(".", "_")):
        with pytest.raises(ConfigurationError, match=f"unknown configuration key: '{spelling}'"):
            ProducerConfig.from_mapping({"bootstrap.servers": "a:1", spelling: "x"})


def test_an_unknown_key_in_a_file_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'linger\.mss' \(did you mean 'linger\.ms'\?\)"):
        ProducerConfig.from_properties(written(tmp_path, "group.id=x\nlinger.mss=1\n"))


def test_a_file_without_keys_of_other_clients_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ProducerConfig.from_properties(written(tmp_path, "client.id=x\n"))
    assert not caplog.records


def test_librdkafkas_name_of_the_mechanism_is_an_alias_in_files_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'sasl\.mechanisms' \(here it is 'sasl\.mechanism'\)"):
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", "sasl.mechanisms": "PLAIN"})
    file = written(tmp_path, "sasl.mechanisms=PLAIN\nsasl.mechanism=PLAIN\n")
    with pytest.raises(ConfigurationError, match=r"client\.properties: sasl\.mechanism is given twice, by two names"):
        ProducerConfig.from_properties(file)


def test_no_key_of_the_producer_is_ignored() -> None:
    assert not (CONSUMER_KEYS | ADMIN_KEYS | STREAMS_KEYS) & CONFIG_DEF.keys.keys()
    assert not [name for name in CONFIG_DEF.keys if name.startswith(SCHEMA_REGISTRY_PREFIXES)]
    assert not ALIASES.keys() & CONFIG_DEF.keys.keys()
    assert set(ALIASES.values()) <= CONFIG_DEF.keys.keys()


@pytest.mark.interop
def test_the_ignored_keys_are_those_of_kafkas_other_clients(kafka_jars: Path) -> None:
    consumer, admin = ask_java(kafka_jars, "clients")
    assert set(consumer) == CONSUMER_KEYS
    assert set(admin) == ADMIN_KEYS
