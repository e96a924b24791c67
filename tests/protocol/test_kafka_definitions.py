"""Every declaration is compared with Kafka's own definition, field by field, version by version."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aioproducer.protocol import APIS, ZERO_UUID, Message, RequestHeader, ResponseHeader
from aioproducer.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from aioproducer.protocol.schema import Field, Scalar, parse_versions

pytestmark = pytest.mark.interop

MESSAGES: list[type[Message]] = [
    RequestHeader,
    ResponseHeader,
    ConsumerProtocolSubscription,
    ConsumerProtocolAssignment,
    *[message for api in APIS.values() for message in (api.request, api.response)],
]

UNSTABLE = {"InitProducerIdRequest": 6}
"""The only version that Kafka 4.4 defines and serves only if it is configured so."""

ZEROS = {"string": "", "bytes": b"", "bool": False, "uuid": ZERO_UUID, "records": None}


def read_definition(jar: Path, name: str) -> dict[str, Any]:
    with zipfile.ZipFile(jar) as archive:
        text = archive.read(f"common/message/{name}.json").decode()
    definition: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return definition


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def default_of(field: dict[str, Any]) -> object:
    kind, text = field["type"], field.get("default")
    if text == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind[0].isupper():
        return kind
    if text is None:
        return ZEROS.get(kind, 0)
    if kind == "bool":
        return str(text).lower() == "true"
    return text if kind == "string" else int(str(text), 0)


def kafka_fields(
    fields: list[dict[str, Any]], structs: dict[str, list[dict[str, Any]]], version: int, stable: range
) -> list[dict[str, object]]:
    """Return the properties in ``version`` of each field that a stable version has."""
    described = []
    for field in fields:
        versions = parse_versions(field["versions"])
        if not any(served in versions for served in stable):
            continue
        present = version in versions
        tagged = version in parse_versions(field.get("taggedVersions", "none"))
        inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"))
        described.append(
            {
                "name": snake_case(field["name"]),
                "type": field["type"],
                "present": present,
                "nullable": present and version in parse_versions(field.get("nullableVersions", "none")),
                "tag": field["tag"] if tagged else None,
                "ignorable": bool(field.get("ignorable", False)),
                "default": default_of(field),
                "always inflexible": field.get("flexibleVersions") == "none",
                "fields": kafka_fields(inner, structs, version, stable) if inner and present else [],
            }
        )
    return described


def our_default(field: Field) -> object:
    default = field.make_default()
    return type(default).__name__ if isinstance(default, Message) else default


def our_fields(fields: tuple[Field, ...], version: int) -> list[dict[str, object]]:
    described = []
    for field in fields:
        present = version in field.versions
        is_scalar = isinstance(field.element, Scalar)
        name = field.element.name if isinstance(field.element, Scalar) else field.element.__name__
        inner = () if isinstance(field.element, Scalar) else field.element.schema.fields
        described.append(
            {
                "name": field.name,
                "type": f"[]{name}" if field.is_array else name,
                "present": present,
                "nullable": present and version in field.nullable,
                "tag": field.tag if present else None,
                "ignorable": field.ignorable,
                "default": our_default(field),
                "always inflexible": not field.flexible,
                "fields": our_fields(inner, version) if present and not is_scalar else [],
            }
        )
    return described


@pytest.mark.parametrize("message_class", MESSAGES, ids=lambda message_class: message_class.__name__)
def test_every_field_of_every_version_equals_kafkas(message_class: type[Message], kafka_clients_jar: Path) -> None:
    definition = read_definition(kafka_clients_jar, message_class.__name__)
    structs = {common["name"]: common["fields"] for common in definition.get("commonStructs", [])}
    schema = message_class.schema
    for version in schema.versions:
        expected = kafka_fields(definition["fields"], structs, version, schema.versions)
        assert our_fields(schema.fields, version) == expected, f"version {version}"


@pytest.mark.parametrize("message_class", MESSAGES, ids=lambda message_class: message_class.__name__)
def test_versions_and_api_keys_equal_kafkas(message_class: type[Message], kafka_clients_jar: Path) -> None:
    name = message_class.__name__
    definition = read_definition(kafka_clients_jar, name)
    schema = message_class.schema
    expected = parse_versions(definition["validVersions"])
    if name in UNSTABLE:
        assert definition["latestVersionUnstable"]
        assert expected[-1] == UNSTABLE[name]
    if name.startswith("InitProducerId"):
        expected = expected[:-1]
    assert schema.versions == expected
    assert schema.flexible == parse_versions(definition["flexibleVersions"])
    assert schema.api_key == definition.get("apiKey", -1)
    assert definition.get("latestVersionUnstable", False) == (name in UNSTABLE)


def test_request_and_response_have_the_same_versions() -> None:
    for key, api in APIS.items():
        assert api.request.__name__.removesuffix("Request") == api.response.__name__.removesuffix("Response")
        assert api.request.schema.api_key == api.response.schema.api_key == key
        assert api.request.schema.versions == api.response.schema.versions
        assert api.request.schema.flexible == api.response.schema.flexible
