"""Random, full and extreme instances of any message, and the jars of Apache Kafka to compare with."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from aioproducer.protocol.schema import BOOLEAN, BYTES, RECORDS, STRING, UINT16, UUID, Field, Message, Scalar
from tests.protocol.instances import instances


def full_instance(message_class: type[Message], version: int) -> Message:
    """Return a message with all fields of ``version`` set, each to another value if its type has enough."""
    counter = iter(range(1, 10_000))

    def element(kind: object) -> object:
        number = next(counter)
        if not isinstance(kind, Scalar):
            return message(kind)
        if kind is STRING:
            return f"text {number}"
        if kind is BOOLEAN:
            return True
        if kind is UUID:
            return number.to_bytes(16, "big")
        if kind in (BYTES, RECORDS):
            return b"bytes %d" % number
        return number % 100 + 1

    def message(kind: Any) -> Message:
        values = {
            field.name: [element(field.element), element(field.element)] if field.is_array else element(field.element)
            for field in kind.schema.fields
            if version in field.versions
        }
        return kind(**values)

    return message(message_class)


def extreme_instances(message_class: type[Message], version: int) -> list[Message]:
    """Return messages with the least and with the greatest values; null or empty wherever possible."""

    def element(kind: object, greatest: bool) -> object:
        if not isinstance(kind, Scalar):
            return message(kind, greatest)
        if kind is STRING:
            return "\U0010ffff" * 3 if greatest else ""
        if kind is BOOLEAN:
            return greatest
        if kind is UUID:
            return b"\xff" * 16 if greatest else bytes(16)
        if kind in (BYTES, RECORDS):
            return b"\xff" * 5 if greatest else b""
        bits = 8 * struct.calcsize(kind.struct_format)
        if kind is UINT16:
            return 2**bits - 1 if greatest else 0
        return 2 ** (bits - 1) - 1 if greatest else -(2 ** (bits - 1))

    def value(field: Field, greatest: bool) -> object:
        if not greatest and version in field.nullable:
            return None
        if field.is_array:
            return [element(field.element, greatest)] if greatest else []
        return element(field.element, greatest)

    def message(kind: Any, greatest: bool) -> Message:
        fields = [field for field in kind.schema.fields if version in field.versions]
        return kind(**{field.name: value(field, greatest) for field in fields})

    return [message(message_class, greatest) for greatest in (False, True)]


@pytest.fixture(scope="session", name="instances")
def _instances() -> Callable[[type[Message], int], st.SearchStrategy[Message]]:
    return instances


@pytest.fixture(scope="session", name="full_instance")
def _full_instance() -> Callable[[type[Message], int], Message]:
    return full_instance


@pytest.fixture(scope="session", name="extreme_instances")
def _extreme_instances() -> Callable[[type[Message], int], list[Message]]:
    return extreme_instances


@pytest.fixture(scope="session")
def kafka_clients_jar(kafka_jars: Path) -> Path:
    """The Java client, which has the definitions of all messages and the classes generated from them."""
    (jar,) = kafka_jars.glob("kafka-clients-*.jar")
    return jar
