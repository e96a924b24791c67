"""Why calls are refused, and the checks of arguments that only run where something was wrong."""

from __future__ import annotations

import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import callers
from aioproducer.errors import ProducerClosedError, WrongCallerError


@pytest.mark.parametrize(
    ("reason", "kind", "advice"),
    [
        (callers.NOT_STARTED, WrongCallerError, "use `async with Producer(...)`, or await start() first"),
        (callers.CLOSED, ProducerClosedError, "make a new one"),
        (callers.FORKED, WrongCallerError, "make one in this process, after the fork"),
        (callers.OTHER_LOOP, WrongCallerError, "make one on this loop"),
        (callers.OTHER_THREAD, WrongCallerError, "call producer.threadsafe() there, once, and use that"),
    ],
)
def test_each_refusal_says_what_to_do(reason: int, kind: type[Exception], advice: str) -> None:
    error = callers.refusal(reason)
    assert type(error) is kind
    assert advice in str(error)


RIGHT: dict[str, Any] = {
    "topic": "t",
    "value": b"v",
    "key": None,
    "partition": 0,
    "timestamp_ms": 0,
    "headers": [("h", b"1"), ["h", None]],
}


def test_right_arguments_need_no_explanation() -> None:
    callers.check(**RIGHT)
    callers.check(**RIGHT | {"partition": None, "headers": (), "key": memoryview(b"k"), "timestamp_ms": 2**63 - 1})
    callers.explain(**RIGHT)


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
def test_wrong_arguments_are_named(wrong: dict[str, Any], kind: type[Exception]) -> None:
    for function in (callers.check, callers.explain):
        with pytest.raises(kind):
            function(**RIGHT | wrong)


@given(st.text(max_size=300))
@settings(max_examples=200)
def test_lawful_names_are_kafkas(name: str) -> None:
    """``org.apache.kafka.common.internals.Topic.validate``."""
    lawful = (
        name not in ("", ".", "..")
        and len(name) <= 249
        and all(character.isascii() and (character.isalnum() or character in "._-") for character in name)
    )
    assert (callers.why_unlawful(name) is None) == lawful


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249])
def test_lawful_names(name: str) -> None:
    assert callers.why_unlawful(name) is None


def test_bytes_likes_give_their_bytes() -> None:
    assert callers.as_buffer("value", None) is None
    assert callers.as_buffer("value", b"v") == b"v"
    numbers = callers.as_buffer("value", array.array("H", [0x0101]))
    assert numbers is not None
    assert bytes(numbers) == b"\1\1"


def test_sizes_are_guessed_where_they_are_not_known() -> None:
    assert callers.size_of(memoryview(b"de")) == 2
    assert callers.size_of({"a": 1}) > 50
    assert callers.size_of(None) == 0
