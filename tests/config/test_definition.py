"""ConfigDef: types as Kafka parses them, validators, and every key of Kafka's producer."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.config import (
    CONFIG_DEF,
    NO_DEFAULT,
    ConfigDef,
    ConfigKey,
    Importance,
    Password,
    ProducerConfig,
    Status,
    Type,
)
from aioproducer.config.definition import HiddenValues, at_least
from aioproducer.config.own_keys import OWN_KEYS
from aioproducer.config.properties import load_properties
from aioproducer.errors import ConfigurationError
from tests.kafka import jars

DATA = Path(__file__).parent.parent / "data"

# Keys with another default than Java's; docs/configuration.md gives the reason with the key.
OTHER_DEFAULTS = {
    "key.serializer": ("<required>", None),
    "value.serializer": ("<required>", None),
    "ssl.keystore.type": ("JKS", None),
    "ssl.truststore.type": ("JKS", None),
}


def facts() -> list[dict[str, object]]:
    return [json.loads(line) for line in (DATA / "producer_config.jsonl").read_text().splitlines()]


def ask_java(kafka_jars: Path, *arguments: str) -> list[dict[str, object]]:
    command = [jars.java(), "-cp", f"{kafka_jars}/*", str(DATA / "ConfigFacts.java"), *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    return [json.loads(line) for line in shown.splitlines()]


@pytest.mark.parametrize("fact", facts(), ids=lambda fact: str(fact["name"]))
def test_every_key_has_the_type_default_validator_and_importance_of_kafka(fact: dict[str, object]) -> None:
    key = CONFIG_DEF.keys[str(fact["name"])]
    default = list(key.default) if isinstance(key.default, tuple) else key.default
    java_default = fact["default"]
    if key.name in OTHER_DEFAULTS:
        assert (java_default, default) == OTHER_DEFAULTS[key.name]
        assert key.reason
    else:
        assert default == (NO_DEFAULT if java_default == "<required>" else java_default)
        assert type(default) is type(java_default) or default is NO_DEFAULT
    assert key.type.name == fact["type"]
    assert key.importance.name == fact["importance"]
    assert key.internal is fact["internal"]
    description = key.validator.description if key.validator else None
    if key.type is Type.LIST:
        assert (description is None) == (fact["validator"] is None)  # Kafka's list validators describe nothing
    else:
        assert description == fact["validator"]


def test_there_are_no_keys_unknown_to_kafka_except_the_own_ones() -> None:
    kafkas = {str(fact["name"]) for fact in facts()}
    own = {key.name for key in OWN_KEYS}
    assert len(kafkas) == 120
    assert CONFIG_DEF.keys.keys() == kafkas | own
    assert not kafkas & own
    assert list(CONFIG_DEF.keys) == sorted(CONFIG_DEF.keys)


def test_unsupported_keys_give_a_reason() -> None:
    for key in CONFIG_DEF.keys.values():
        assert key.status is Status.SUPPORTED or key.reason
        assert key.doc.endswith("."), key.name


def test_defaults_pass_their_validators_and_parsing_is_idempotent() -> None:
    for name, default in CONFIG_DEF.defaults().items():
        key = CONFIG_DEF.keys[name]
        if default is not None:
            assert key.parse(default) == default
            key.validate(default)
    values = CONFIG_DEF.parse({"bootstrap.servers": "a:1", "linger.ms": " 7 "})
    assert CONFIG_DEF.parse({name: value for name, value in values.items() if value is not None}) == values


def test_a_default_of_none_differs_from_no_default() -> None:
    optional = ConfigKey("a", Type.STRING, None, Importance.LOW, "A.")
    required = ConfigKey("b", Type.STRING, NO_DEFAULT, Importance.LOW, "B.")
    definition = ConfigDef.of([required, optional])
    assert definition.defaults() == {"a": None}
    assert definition.parse({"b": "x"}) == {"a": None, "b": "x"}
    with pytest.raises(ConfigurationError, match="b is missing and has no default"):
        definition.parse({})
    assert repr(NO_DEFAULT) == "NO_DEFAULT"


def test_a_wrong_default_is_rejected_at_definition() -> None:
    with pytest.raises(ConfigurationError, match="a must be at least 1, not 0"):
        ConfigKey("a", Type.INT, 0, Importance.LOW, "A.", at_least(1))
    with pytest.raises(ConfigurationError, match="the default '5' of a is not of its type"):
        ConfigKey("a", Type.INT, "5", Importance.LOW, "A.")
    with pytest.raises(ConfigurationError, match="the reason is missing"):
        ConfigKey("a", Type.INT, 5, Importance.LOW, "A.", status=Status.REFUSED)
    key = ConfigKey("a", Type.INT, 5, Importance.LOW, "A.")
    with pytest.raises(ConfigurationError, match="a is defined twice"):
        ConfigDef.of([key, key])


# As ConfigDef.parseType of Kafka 4.4 answers for the same strings.
PARSED = [
    (Type.BOOLEAN, " True ", True),
    (Type.BOOLEAN, False, False),
    (Type.INT, "+5", 5),
    (Type.INT, " -5 ", -5),
    (Type.INT, 2**31 - 1, 2**31 - 1),
    (Type.SHORT, "-32768", -32768),
    (Type.LONG, "9223372036854775807", 2**63 - 1),
    (Type.DOUBLE, "5", 5.0),
    (Type.DOUBLE, "1e3", 1000.0),
    (Type.DOUBLE, ".5", 0.5),
    (Type.DOUBLE, 5, 5.0),
    (Type.DOUBLE, "Infinity", math.inf),
    (Type.LIST, "", ()),
    (Type.LIST, " a , b ", ("a", "b")),
    (Type.LIST, "a,,b", ("a", "", "b")),
    (Type.LIST, [" a", 5], ("a", 5)),
    (Type.STRING, " a ", "a"),
    (Type.PASSWORD, " a ", Password("a")),
    (Type.PASSWORD, Password(" a "), Password(" a ")),
    (Type.CLASS, len, len),
    (Type.CLASS, " a.b ", "a.b"),
]


@pytest.mark.parametrize(("type_", "value", "parsed"), PARSED)
def test_values_are_parsed(type_: Type, value: object, parsed: object) -> None:
    found = ConfigKey("k", type_, None, Importance.LOW, "K.").parse(value)
    assert found == parsed
    assert type(found) is type(parsed)


@pytest.mark.parametrize("type_", Type)
def test_none_stays_none(type_: Type) -> None:
    assert ConfigKey("k", type_, None, Importance.LOW, "K.").parse(None) is None


@pytest.mark.parametrize(
    ("type_", "value", "says"),
    [
        (Type.BOOLEAN, "yes", "k must be true or false, not 'yes'"),
        (Type.BOOLEAN, 1, "true or false"),
        (Type.INT, "5_0", r"a whole number from -2\*\*31 to 2\*\*31 - 1"),
        (Type.INT, "0x5", "a whole number"),
        (Type.INT, "", "a whole number"),
        (Type.INT, "5.0", "a whole number"),
        (Type.INT, 5.0, "a whole number"),
        (Type.INT, True, "a whole number"),
        (Type.INT, 2**31, r"a whole number from -2\*\*31 to 2\*\*31 - 1"),
        (Type.SHORT, "32768", r"a whole number from -2\*\*15 to 2\*\*15 - 1"),
        (Type.LONG, 2**63, r"a whole number from -2\*\*63 to 2\*\*63 - 1"),
        (Type.LONG, "1e3", "a whole number"),
        (Type.DOUBLE, "inf", "a number"),
        (Type.DOUBLE, "5_0", "a number"),
        (Type.DOUBLE, True, "a number"),
        (Type.LIST, 5, "a list, or a string of items"),
        (Type.STRING, 5, "k must be a string, not 5"),
        (Type.PASSWORD, 5, "a string"),
    ],
)
def test_values_that_cannot_be_parsed_are_rejected(type_: Type, value: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ConfigKey("k", type_, None, Importance.LOW, "K.").parse(value)


def test_a_password_that_cannot_be_parsed_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConfigKey("k", Type.PASSWORD, None, Importance.LOW, "K.").parse(b"geheim")
    assert str(caught.value) == "k must be a string, not [hidden]"


def test_hidden_values_are_a_mapping_that_does_not_show() -> None:
    values = HiddenValues({"a": "geheim", "b": "too"})
    assert dict(values) == {"a": "geheim", "b": "too"}
    assert (len(values), values.get("c")) == (2, None)
    assert values == HiddenValues({"b": "too", "a": "geheim"}) != HiddenValues()
    assert hash(values) == hash(HiddenValues({"b": "too", "a": "geheim"}))
    assert repr(values) == f"{values}" == "[hidden]"
    assert copy.deepcopy(values) is values
    with pytest.raises(TypeError, match="would show secrets"):
        pickle.dumps(values)


def test_a_password_is_copied_but_not_pickled() -> None:
    password = Password("geheim")
    assert copy.copy(password) is copy.deepcopy(password) is password
    with pytest.raises(TypeError, match="would show the secret"):
        pickle.dumps(password)


def test_a_callable_replaces_a_value_only_if_the_key_accepts_one() -> None:
    taking = ConfigKey("k", Type.PASSWORD, None, Importance.LOW, "K.", takes_callables=True)
    assert taking.parse(str) is str
    assert taking.parse("a") == Password("a")
    with pytest.raises(ConfigurationError, match=r"k must be a string, not \[hidden\]"):
        ConfigKey("k", Type.PASSWORD, None, Importance.LOW, "K.").parse(str)


def test_passwords_compare_and_hash_by_value() -> None:
    assert len({Password("a"), Password("a"), Password("b")}) == 2
    assert Password("a") != "a"
    assert f"{Password('a')}" == "[hidden]"


@given(st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=50)
def test_numbers_are_parsed_like_strings(number: int) -> None:
    key = ConfigKey("k", Type.LONG, None, Importance.LOW, "K.")
    assert key.parse(str(number)) == key.parse(number) == number


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("compression.gzip.level", [-1, 1, 9], [0, 10, -2]),
        ("compression.zstd.level", [-131072, 0, 22], [-131073, 23]),
        ("retries", [0, 2147483647], [-1]),
        ("metadata.max.idle.ms", [5000], [4999]),
        ("sasl.login.refresh.window.factor", [0.5, "1.0"], [0.4, 1.1]),
        ("transactional.id", ["t", None], ["", " "]),
        ("metrics.recording.level", ["INFO", "TRACE"], ["info"]),
        ("metadata.recovery.strategy", ["none", "REBOOTSTRAP"], ["never"]),
        ("ssl.cipher.suites", ["", "a,b"], ["a,,b"]),
    ],
)
def test_validators_reject_invalid_values(name: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        CONFIG_DEF.parse({"bootstrap.servers": "a:1", name: value})
    for value in bad:
        with pytest.raises(ConfigurationError, match=f"^{name} must"):
            CONFIG_DEF.parse({"bootstrap.servers": "a:1", name: value})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("client_id", "x" * 32768, r"client\.id must have at most 32767 bytes, not 32768"),
        ("client_id", "ä" * 16384, r"client\.id must have at most 32767 bytes, not 32768"),
        ("client_id", "\udcff", r"client\.id cannot be encoded in UTF-8"),
        ("buffer_memory", 0, r"buffer\.memory must be at least 1 byte, not 0"),
    ],
)
def test_settings_that_fit_no_request_or_record_are_rejected_at_once(name: str, value: object, says: str) -> None:
    """Such settings once made every request fail without a reason."""
    with pytest.raises(ConfigurationError, match=says):
        ProducerConfig.from_kwargs(bootstrap_servers="localhost:9092", **{name: value})
    ProducerConfig.from_kwargs(bootstrap_servers="localhost:9092", client_id="x" * 32767, buffer_memory=1)


def test_duplicates_in_lists_are_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert CONFIG_DEF.parse({"bootstrap.servers": "a:1,b:1,a:1"})["bootstrap.servers"] == ("a:1", "b:1")
    assert "bootstrap.servers contains duplicate values" in caplog.text


@pytest.mark.interop
def test_the_recorded_facts_equal_those_of_kafkas_producer(kafka_jars: Path) -> None:
    assert ask_java(kafka_jars, "keys") == facts()


@pytest.mark.interop
def test_rules_between_keys_hold_for_all_combinations_as_in_java(kafka_jars: Path, tmp_path: Path) -> None:
    choices: dict[str, list[str | None]] = {
        "acks": [None, "all", "1", "0"],
        "retries": [None, "0", "3"],
        "enable.idempotence": [None, "true", "false"],
        "max.in.flight.requests.per.connection": [None, "5", "6"],
        "delivery.timeout.ms": [None, "20000"],
        "linger.ms": [None, "100000"],
        "reconnect.backoff.ms": [None, "3000"],
    }
    files = []
    for number, values in enumerate(product(*choices.values())):
        lines = [f"{name}={value}" for name, value in zip(choices, values, strict=True) if value is not None]
        file = tmp_path / f"{number}.properties"
        file.write_text("\n".join(["bootstrap.servers=localhost:9092", *lines]))
        files.append(file)
    answers = ask_java(kafka_jars, "values", *map(str, files))
    assert len(answers) == len(files)
    for file, java in zip(files, answers, strict=True):
        try:
            ours = ProducerConfig.from_properties(file)
        except ConfigurationError:
            assert "error" in java, file.read_text()
        else:
            assert "error" not in java, file.read_text()
            assert {name: getattr(ours, name.replace(".", "_")) for name in java if name != "bootstrap.servers"} == {
                name: value for name, value in java.items() if name != "bootstrap.servers"
            }


@pytest.mark.interop
def test_properties_files_are_read_as_java_reads_them(kafka_jars: Path, tmp_path: Path) -> None:
    texts = [
        b"a=1\nb : 2\nc 3\n  d\t=\t4\ne\n! f=5\n# g=6\n\n",
        b"a = one, \\\n    two, \\\r\n\t three\nb=end\\",
        b"a=\\u00e4\\t\\n\\x\\\\ \\ud83d\\ude00\nk\\:e\\=y\\ z=v:=w \n",
        b"a=caf\xc3\xa9 \xe4\r\rb=2\x0b\x0c\nc\\\n\\\n\nd=\\\n\n e=5\n",
        b"a=1\na=2\n=nokey\n:x\n \\\n# not a comment\n#comment \\\nz=1",
    ]
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.properties")
        files[-1].write_bytes(text)
    assert [load_properties(file) for file in files] == ask_java(kafka_jars, "entries", *map(str, files))
