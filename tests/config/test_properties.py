"""Java's properties files, and placeholders that name values elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.config import ProducerConfig
from aioproducer.config.properties import load_properties, parse_properties
from aioproducer.errors import ConfigurationError

PROVIDER = "org.apache.kafka.common.config.provider."


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", {}),
        ("a=1\nb:2\nc 3", {"a": "1", "b": "2", "c": "3"}),
        ("  a \t = \t 1 ", {"a": "1 "}),
        ("# no\n! no\n  # no\na=#yes", {"a": "#yes"}),
        ("a=1,\\\n   2,\\\r\n  3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a\\ b\\=c=\\u0041\\n\\q", {"a b=c": "A\nq"}),
        ("a=\\ud83d\\ude00", {"a": "\N{GRINNING FACE}"}),
        ("a", {"a": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a==1\nb=:2", {"a": "=1", "b": ":2"}),
        ("a=b\\", {"a": "b"}),
        ("a=\\\n\nb=1", {"a": "", "b": "1"}),
        ("a\\", {"a": ""}),
        ("a=1\x0b2\x85", {"a": "1\x0b2\x85"}),
    ],
)
def test_properties_are_parsed_as_by_java(text: str, entries: dict[str, str]) -> None:
    assert parse_properties(text) == entries


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uxyzw", "\\u=1"])
def test_a_broken_escape_is_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be followed by four hexadecimal digits"):
        parse_properties(text)


def test_a_password_with_a_broken_escape_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match=r"in the value of ssl\.key\.password$") as caught:
        parse_properties("ssl.key.password=hunter2\\users")
    assert "hunter2" not in str(caught.value)


def stored(text: str) -> str:
    """``text`` as ``java.util.Properties.store`` escapes it: every UTF-16 unit as its number."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2))


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=10), max_size=4))
@settings(max_examples=100)
def test_any_properties_stored_by_java_are_read_back(entries: dict[str, str]) -> None:
    text = "\n".join(f"{stored(key)}={stored(value)}" for key, value in entries.items())
    assert parse_properties(text) == entries


@given(st.text(alphabet="ab=: \\\t\n\r#!u01", max_size=40))
@settings(max_examples=200)
def test_any_text_gives_entries_or_a_configuration_error(text: str) -> None:
    try:
        entries = parse_properties(text)
    except ConfigurationError:
        assert "\\u" in text.replace("\\\n", "").replace("\\\r", "") or "\\" in text
    else:
        assert all(isinstance(value, str) for value in entries.values())


def test_files_are_read_as_latin_1(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_bytes(b"a=\xe4\r\nb=2\r")
    assert load_properties(file) == {"a": "\xe4", "b": "2"}


def test_a_missing_or_malformed_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.properties cannot be read: No such file"):
        load_properties(tmp_path / "none.properties")
    (tmp_path / "broken.properties").write_text("a=\\u1")
    with pytest.raises(ConfigurationError, match=r"broken\.properties: .*hexadecimal"):
        ProducerConfig.from_properties(tmp_path / "broken.properties")


def config(**dotted: object) -> ProducerConfig:
    return ProducerConfig.from_mapping({"bootstrap.servers": "a:1", **dotted})


def test_placeholders_read_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOPRODUCER_TEST_SECRET", "geheim")
    given_values = {
        "config.providers": "env",
        "config.providers.env.class": f"{PROVIDER}EnvVarConfigProvider",
        "ssl.key.password": "${env:AIOPRODUCER_TEST_SECRET}",
        "client.id": "x-${env:AIOPRODUCER_TEST_SECRET}-${other:y}",
    }
    made = config(**given_values)
    assert made.ssl_key_password is not None
    assert made.ssl_key_password.value == "geheim"
    assert made.client_id == "x-geheim-${other:y}"
    assert made.originals()["client.id"] == given_values["client.id"]
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.password: config provider 'env' has no value"):
        config(**given_values, **{"config.providers.env.param.allowlist.pattern": "PUBLIC_.*"})
    with pytest.raises(ConfigurationError, match="an environment variable has no path"):
        config(**{**given_values, "client.id": "${env:/a:B}"})


def test_without_config_providers_a_placeholder_is_text() -> None:
    assert config(**{"client.id": "${env:HOME}"}).client_id == "${env:HOME}"


def test_placeholders_read_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("user = anna\n")
    (tmp_path / "word").write_text("geheim\n")
    given_values = {
        "config.providers": "file,directory",
        "config.providers.file.class": f"{PROVIDER}FileConfigProvider",
        "config.providers.directory.class": f"{PROVIDER}DirectoryConfigProvider",
    }
    made = config(
        **given_values,
        **{
            "client.id": f"${{file:{tmp_path}/secrets.properties:user}}",
            "ssl.key.password": f"${{directory:{tmp_path}:word}}",
        },
    )
    assert made.client_id == "anna"
    assert made.ssl_key_password is not None
    assert made.ssl_key_password.value == "geheim"
    (tmp_path / "binary").write_bytes(b"\xff")
    for placeholder, says in (
        (f"${{file:{tmp_path}/secrets.properties:none}}", "client.id: config provider 'file' has no value"),
        (f"${{file:{tmp_path}/none:user}}", "client.id: the properties file .* cannot be read"),
        (f"${{directory:{tmp_path}:none}}", "has no value"),
        (f"${{directory:{tmp_path}:../{tmp_path.name}/word}}", "has no value"),
        (f"${{directory:{tmp_path}:binary}}", "binary cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            config(**given_values, **{"client.id": placeholder})


def test_placeholders_read_only_allowed_paths(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("1")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("2")
    given_values = {
        "config.providers": "d",
        "config.providers.d.class": f"{PROVIDER}DirectoryConfigProvider",
        "config.providers.d.param.allowed.paths": f"{tmp_path}/in, {tmp_path}/too",
    }
    assert config(**given_values, **{"client.id": f"${{d:{tmp_path}/in:a}}"}).client_id == "1"
    for path in (f"{tmp_path}/out", f"{tmp_path}/in/../out"):
        with pytest.raises(ConfigurationError, match=r"is outside allowed\.paths"):
            config(**given_values, **{"client.id": f"${{d:{path}:a}}"})


def test_unknown_providers_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"names 'vault', but config\.providers\.vault\.class is missing"):
        config(**{"config.providers": "vault"})
    with pytest.raises(ConfigurationError, match=r"'com\.example\.Vault' is unknown: use one of .*EnvVar"):
        config(**{"config.providers": "vault", "config.providers.vault.class": "com.example.Vault"})
