"""The types of the keys for type checkers: generated from the definition, and accepted by the parsers."""

from __future__ import annotations

import asyncio
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Union, Unpack

import pytest

from aioproducer import Producer
from aioproducer import config as configuration
from aioproducer._client import factory
from aioproducer._common.client_log import ClientLog
from aioproducer.admin import Admin, make_client
from aioproducer.config import (
    CONFIG_DEF,
    NO_DEFAULT,
    ConnectionConfigDict,
    Password,
    ProducerConfig,
    ProducerConfigDict,
    Status,
    config_dict,
)
from aioproducer.config.config_dict_source import config_dict_source
from aioproducer.config.producer import SSL_CONTEXT
from aioproducer.config.sasl import MECHANISMS
from aioproducer.consumer import Reader
from aioproducer.errors import ConfigurationError

TYPES = typing.get_type_hints(ProducerConfigDict)
KEYS = [key for key in CONFIG_DEF.keys.values() if key.status is not Status.REFUSED]


def alternatives(type_: object) -> list[object]:
    """Return the members of a union, or the type itself."""
    return list(typing.get_args(type_)) if typing.get_origin(type_) in (Union, types.UnionType) else [type_]


def choices(type_: object) -> list[object]:
    """Return the values that the Literal types among the members of a union have."""
    return [
        value for each in alternatives(type_) if typing.get_origin(each) is Literal for value in typing.get_args(each)
    ]


def test_the_file_equals_the_generated_one() -> None:
    assert Path(config_dict.__file__).read_text() == config_dict_source(), (
        "run python -m aioproducer.config.config_dict_source"
    )


def test_every_key_has_a_type_except_those_that_are_rejected() -> None:
    assert TYPES.keys() == {key.attribute for key in KEYS} | {SSL_CONTEXT}
    refused = {key.attribute for key in CONFIG_DEF.keys.values() if key.status is Status.REFUSED}
    assert refused
    assert not refused & TYPES.keys()


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_none_is_accepted_where_the_parser_accepts_it(key) -> None:
    assert (type(None) in alternatives(TYPES[key.attribute])) == (key.default is None)


@pytest.mark.parametrize("key", [key for key in KEYS if choices(TYPES[key.attribute])], ids=lambda key: key.name)
def test_the_values_of_an_enumeration_are_those_that_the_parser_accepts(key) -> None:
    values = choices(TYPES[key.attribute])
    if key.name == "sasl.mechanism":
        assert set(values) == set(MECHANISMS)
        return
    for value in values:
        # Of acks the numbers become text before they are parsed.
        key.validate(key.parse(str(value)))
    assert set(key.validator.choices) <= set(values)
    with pytest.raises(ConfigurationError):
        key.validate(key.parse("nonsense"))


EXAMPLES = {bool: True, int: 3, float: 0.5, str: "text", Password: Password("x"), Sequence[str]: ["text"]}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_the_parser_accepts_every_plain_type_of_its_key(key) -> None:
    plain = [each for each in alternatives(TYPES[key.attribute]) if each in EXAMPLES]
    assert plain or choices(TYPES[key.attribute])
    for type_ in plain:
        parsed = key.parse(EXAMPLES[type_])
        # A list may also be given as one string.
        assert parsed in (EXAMPLES[type_], ("text",), Password("text"))


def test_only_a_key_without_default_is_required() -> None:
    assert [key.name for key in KEYS if key.default is NO_DEFAULT] == ["bootstrap.servers"]
    assert not ProducerConfigDict.__required_keys__


class RecordedConfig:
    """A configuration that records which attributes are read."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> object:
        self.read.add(name)
        return getattr(self._config, name)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT"])
async def test_the_keys_that_a_client_of_single_requests_reads_are_those_about_connections(protocol: str) -> None:
    sasl = {"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "b"} if "SASL" in protocol else {}
    given = ProducerConfig.from_mapping({"bootstrap_servers": "localhost:1", "security_protocol": protocol, **sasl})
    config = RecordedConfig(given)
    log = ClientLog("AdminClient", "x")
    loop = asyncio.get_running_loop()
    connector = factory.connector_for(config, "tcp", log)
    client = make_client(config, loop, connector, log)
    await client.close()
    keys = config.read & {key.attribute for key in CONFIG_DEF.keys.values()}
    assert len(keys) > 15
    assert keys <= typing.get_type_hints(ConnectionConfigDict).keys()


def test_the_hints_of_the_constructors_resolve() -> None:
    for function, expected in (
        (Producer.__init__, ProducerConfigDict),
        (Admin.__init__, ConnectionConfigDict),
        (Reader.__init__, ConnectionConfigDict),
    ):
        assert typing.get_type_hints(function)["config"] == Unpack[expected]


def test_the_package_has_no_other_names_than_its_own() -> None:
    with pytest.raises(AttributeError, match="no attribute 'AdminConfigDict'"):
        getattr(configuration, "AdminConfigDict")  # noqa: B009  # type checkers would find it
