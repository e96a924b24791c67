"""Passwords of the tool: from the environment and from files, and no error that shows one."""

from __future__ import annotations

import os

import pytest

from aioproducer.cli.exits import SUCCEEDED, USAGE, CommandUsageError
from aioproducer.cli.options import client_config
from aioproducer.config import Password, ProducerConfig

SECRET = "made-up-secret-7f"
ADDRESS = "localhost:9092"


def config(*secrets: str, settings: tuple[str, ...] = (), file: object = None) -> dict[str, object]:
    return client_config(None, settings, secrets, None if file is None else str(file))


def refusal(*secrets: str, settings: tuple[str, ...] = ()) -> str:
    with pytest.raises(CommandUsageError) as caught:
        config(*secrets, settings=settings)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_a_secret_comes_from_the_environment_or_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("MADE_UP_PASSWORD", f" {SECRET} ")
    (tmp_path / "truststore").write_text(f"{SECRET}\n")
    (tmp_path / "user").write_text("anna\r\n")
    found = config(
        "sasl_password=env:MADE_UP_PASSWORD",
        f"ssl.truststore.password=file:{tmp_path}/truststore",
        f"sasl.username=file:{tmp_path}/user",
    )
    assert found == {
        "bootstrap.servers": ADDRESS,
        "sasl.password": Password(f" {SECRET} "),
        "ssl.truststore.password": Password(SECRET),
        "sasl.username": "anna",
    }
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("content", "value"),
    [("a\n\n", "a\n"), ("a\r\n", "a"), ("a\r", "a\r"), ("a", "a"), ("", ""), (" ä \n", " ä ")],
)
def test_the_last_line_end_of_a_file_is_no_part_of_the_secret(content, value, tmp_path):
    file = tmp_path / "word"
    file.write_bytes(content.encode())
    assert config(f"sasl.password=file:{file}")["sasl.password"] == Password(value)


def test_a_secret_overrides_the_file_of_config(monkeypatch, tmp_path):
    monkeypatch.setenv("MADE_UP_PASSWORD", SECRET)
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=other\nsession.timeout.ms=1\nsasl.mechanisms=PLAIN\n")
    found = config("sasl.password=env:MADE_UP_PASSWORD", file=file)
    assert found == {"bootstrap.servers": ADDRESS, "sasl.password": Password(SECRET), "sasl.mechanism": "PLAIN"}


def test_a_secret_is_no_placeholder_and_config_providers_still_are(monkeypatch, tmp_path):
    monkeypatch.setenv("MADE_UP_PASSWORD", "${env:HOME}")
    monkeypatch.setenv("MADE_UP_USER", "anna")
    file = tmp_path / "client.properties"
    file.write_text(
        "config.providers=env\n"
        "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=${env:MADE_UP_USER}\n"
    )
    made = ProducerConfig.from_mapping(config("sasl.password=env:MADE_UP_PASSWORD", file=file))
    assert made.sasl_credentials() == ("anna", Password("${env:HOME}"), False)


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        (f"sasl.password={SECRET}", "NAME=env:VARIABLE or NAME=file:PATH for sasl.password, not the value itself"),
        (f"sasl.password=plain:{SECRET}", "NAME=file:PATH for sasl.password, not the value itself"),
        (f"sasl.password:{SECRET}", "--secret takes NAME=env:VARIABLE or NAME=file:PATH, not the value itself"),
        (SECRET, "--secret takes NAME=env:VARIABLE or NAME=file:PATH, not the value itself"),
        (f"=env:{SECRET}", "--secret takes NAME=env:VARIABLE or NAME=file:PATH"),
        ("sasl.password=env:", "--secret takes NAME=env:VARIABLE"),
        ("sasl.password=", "--secret takes NAME=env:VARIABLE"),
        ("sasl.password=env:NO_SUCH_VARIABLE", "--secret sasl.password: the environment has no variable NO_SUCH_VARI"),
        ("sasl.password=file:/no/such", "--secret sasl.password: /no/such cannot be read: No such file or directory"),
    ],
)
def test_errors_say_what_is_wrong_and_show_no_secret(secret, says):
    assert says in refusal(secret)


def test_the_content_of_a_file_that_is_not_utf_8_is_not_shown(tmp_path):
    file = tmp_path / "binary"
    file.write_bytes(SECRET.encode() + b"\xff")
    assert refusal(f"sasl.password=file:{file}") == f"--secret sasl.password: {file} is not UTF-8"


def test_a_key_given_twice_is_rejected(monkeypatch):
    monkeypatch.setenv("MADE_UP_PASSWORD", SECRET)
    secret = "sasl.password=env:MADE_UP_PASSWORD"
    assert refusal(secret, "sasl_password=env:HOME") == "--secret sasl.password is given twice: remove one of them"
    says = refusal(secret, settings=("sasl_password=x",))
    assert says == "sasl.password is given by -X and by --secret: remove one of them"


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "t"),
        ("consume", "t"),
        ("perf", "t", "-n", 1),
        ("doctor",),
        ("topics", "list"),
        ("topics", "create", "t"),
        ("topics", "describe"),
        ("topics", "delete", "t"),
        ("rdma-gateway", "--listen", "localhost:0", "--upstream", ADDRESS),
    ],
)
def test_every_command_with_client_keys_takes_secrets(call, arguments):
    ended = call(*arguments, "--secret", f"sasl.password={SECRET}")
    assert (ended.code, ended.out) == (USAGE, "")
    assert "--secret takes NAME=env:VARIABLE" in ended.err
    assert SECRET not in ended.err


def test_a_secret_reaches_the_configuration(call, monkeypatch, tmp_path):
    monkeypatch.setenv("MADE_UP_CLIENT_ID", "x" * 40_000)
    assert call("topics", "list", "--secret", "client.id=env:HOME").code == SUCCEEDED
    ended = call("topics", "list", "--secret", "client_id=env:MADE_UP_CLIENT_ID")
    assert (ended.code, "client.id must have at most 32767 bytes, not 40000" in ended.err) == (USAGE, True)


def test_a_pipe_is_read_as_a_file():
    reading, writing = os.pipe()
    os.write(writing, f"{SECRET}\n".encode())
    os.close(writing)
    try:
        assert config(f"sasl.password=file:/dev/fd/{reading}")["sasl.password"] == Password(SECRET)
    finally:
        os.close(reading)
