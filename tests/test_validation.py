"""Checks of arguments, which run only if an append failed."""

from __future__ import annotations

import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer._client import validation

RIGHT: dict[str, Any] = {
    "topic": "t",
    "partition": 0,
    "key": None,
    "value": b"v",
    "headers": [("h", b"1"), ["h", None]],
    "timestamp_ms": 0,
}


def test_valid_arguments_pass() -> None:
    """Both functions raise exceptions for invalid arguments."""
    validation.check(**RIGHT)
    validation.check(**RIGHT | {"partition": None, "headers": (), "key": memoryview(b"k"), "timestamp_ms": 2**63 - 1})
    validation.explain(**RIGHT)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"topic": 5}, TypeError),
        ({"topic": ""}, ValueError),
        ({"value": "v"}, TypeError),
        ({"key": 1.5}, TypeError),
        ({"key": memoryview(b"abcd")[::2]}, ValueError),
        ({"partition": "0"}, TypeError),
        ({"partition": -1}, ValueError),
        ({"timestamp_ms": -1}, ValueError),
        ({"timestamp_ms": 2**63}, ValueError),
        ({"headers": {"h": b"1"}}, TypeError),
        ({"headers": b"h"}, TypeError),
        ({"headers": ["ab"]}, TypeError),
        ({"headers": [("h",)]}, TypeError),
        ({"headers": [(1, b"1")]}, TypeError),
        ({"headers": [("\udc00", b"1")]}, ValueError),
        ({"headers": [("h", 1)]}, TypeError),
    ],
)
def test_a_wrong_argument_raises_its_error(wrong: dict[str, Any], kind: type[Exception]) -> None:
    for function in (validation.check, validation.explain):
        with pytest.raises(kind):
            function(**RIGHT | wrong)


@given(st.text(max_size=300))
@settings(max_examples=200)
def test_a_name_is_valid_if_kafka_accepts_it(name: str) -> None:
    """``org.apache.kafka.common.internals.Topic.validate``."""
    valid = (
        name not in ("", ".", "..")
        and len(name) <= 249
        and all(character.isascii() and (character.isalnum() or character in "._-") for character in name)
    )
    assert (validation.why_invalid_topic(name) is None) == valid


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249])
def test_topic_names_that_kafka_accepts_are_valid(name: str) -> None:
    assert validation.why_invalid_topic(name) is None


def test_as_buffer_returns_the_bytes_of_bytes_likes() -> None:
    assert validation.as_buffer("value", None) is None
    assert validation.as_buffer("value", b"v") == b"v"
    numbers = validation.as_buffer("value", array.array("H", [0x0101]))
    assert numbers is not None
    assert bytes(numbers) == b"\1\1"


def test_size_of_estimates_unserialized_data() -> None:
    assert validation.size_of(memoryview(b"de")) == 2
    assert validation.size_of({"a": 1}) > 50
    assert validation.size_of(None) == 0


@pytest.mark.parametrize("timeout", [0, 1.5, -0.1, float("inf")])
def test_a_timeout_is_a_number_of_seconds(timeout: float) -> None:
    """An invalid timeout raises an exception, as the next test shows."""
    validation.check_timeout(timeout)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        ("10", "timeout must be a number of seconds, not str"),
        (True, "timeout must be a number of seconds, not bool"),
        (None, "timeout must be a number of seconds, not NoneType"),
        (float("nan"), "timeout must be a number of seconds, not nan"),
    ],
)
def test_an_invalid_timeout_is_rejected(timeout: object, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        validation.check_timeout(timeout)
