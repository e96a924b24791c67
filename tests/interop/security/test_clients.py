"""Consumer, Reader, Admin and the command line authenticate with the producer's keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aioproducer import Consumer, Producer
from aioproducer.admin import Admin
from aioproducer.cli import main
from aioproducer.consumer import Reader
from aioproducer.errors import SaslAuthenticationError
from tests.kafka.security import MECHANISMS, PASSWORD, SASL, SASL_TLS, SecureCluster, properties_value
from tests.kafka.token_server import TokenServer


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", [SASL, SASL_TLS])
async def test_an_admin_a_reader_and_a_consumer_authenticate(
    secure: SecureCluster, topic: str, listener: str, mechanism: str
) -> None:
    configuration = secure.configuration(listener, mechanism)
    async with Admin(**configuration) as admin:
        await admin.create_topic(topic, 2)
        assert topic in await admin.list_topics()
    async with Producer(**configuration) as producer:
        for number in range(10):
            await producer.send(topic, b"%d" % number, partition=number % 2)
    async with Reader(topic, stop="end", **configuration) as reader:
        found = [record.value async for record in reader]
    assert sorted(found) == [b"%d" % number for number in range(10)]
    async with Consumer(auto_offset_reset="earliest", **configuration) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        found = [(await anext(consumer)).value for _ in range(10)]
    assert sorted(found) == [b"%d" % number for number in range(10)]


async def test_a_consumer_with_a_wrong_password_raises_each_time_it_is_asked(secure: SecureCluster, topic: str) -> None:
    configuration = secure.configuration(SASL, "PLAIN", sasl_password="wr0ng")
    async with Consumer(**configuration) as consumer:
        consumer.assign([(topic, 0)])
        for _ in range(2):
            with pytest.raises(SaslAuthenticationError, match="Check user name"):
                await consumer.poll(30.0)


def _keys(secure: SecureCluster, listener: str, mechanism: str, tokens: TokenServer) -> dict[str, str]:
    """Return Kafka's keys as text, as in files."""
    settings: dict[str, Any] = secure.configuration(listener, mechanism, sasl_token_provider=None)
    keys = {name.replace("_", "."): value for name, value in settings.items()}
    if mechanism == "OAUTHBEARER":
        keys |= {
            "sasl.oauthbearer.token.endpoint.url": tokens.token_url,
            "sasl.oauthbearer.client.credentials.client.id": tokens.client_id,
            "sasl.oauthbearer.client.credentials.client.secret": tokens.client_secret,
        }
    return keys


def _call(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    return code, *capfd.readouterr()


def _check_round_trip(capfd: pytest.CaptureFixture[str], topic: str, rows: Path, *options: str) -> None:
    assert _call(capfd, "topics", "create", topic, "-p", 2, *options) == (0, "", "")
    assert topic in _call(capfd, "topics", "list", *options)[1].splitlines()
    code, out, error = _call(capfd, "produce", topic, rows, "--key", "id", "--json", *options)
    assert (code, error) == (0, "")
    assert json.loads(out)["acknowledged"] == 20
    code, out, error = _call(capfd, "consume", topic, "-f", "jsonl", *options)
    assert (code, error, len(out.splitlines())) == (0, "", 20)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": f"k{number % 3}", "n": number}) + "\n" for number in range(20)))
    return path


@pytest.mark.parametrize(
    ("listener", "mechanism"), [(SASL, "PLAIN"), (SASL_TLS, "SCRAM-SHA-512"), (SASL, "OAUTHBEARER")]
)
def test_the_command_line_authenticates_with_a_properties_file(
    secure: SecureCluster,
    tokens: TokenServer,
    topic: str,
    rows: Path,
    capfd: pytest.CaptureFixture[str],
    listener: str,
    mechanism: str,
) -> None:
    path = rows.with_name("client.properties")
    keys = _keys(secure, listener, mechanism, tokens)
    path.write_text("".join(f"{name}={properties_value(value)}\n" for name, value in keys.items()))
    _check_round_trip(capfd, topic, rows, "--config", str(path))


def test_the_command_line_authenticates_with_options(
    secure: SecureCluster,
    tokens: TokenServer,
    topic: str,
    rows: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The password comes from the environment, because other users can read the arguments of a process."""
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    keys = _keys(secure, SASL, "SCRAM-SHA-256", tokens) | {
        "sasl.password": "${env:KAFKA_PASSWORD}",
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    }
    options = [option for name, value in keys.items() for option in ("-X", f"{name}={value}")]
    _check_round_trip(capfd, topic, rows, *options)


def test_the_command_line_reports_a_wrong_password(
    secure: SecureCluster, tokens: TokenServer, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = _keys(secure, SASL, "PLAIN", tokens) | {"sasl.password": "wr0ng-passw0rd"}
    options = [option for name, value in keys.items() for option in ("-X", f"{name}={value}")]
    code, out, error = _call(capfd, "topics", "list", *options)
    assert (code, out) == (1, "")
    assert "Check user name" in error
    assert "wr0ng-passw0rd" not in error
    assert "Traceback" not in error
