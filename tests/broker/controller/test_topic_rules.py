"""What a topic may be called."""

from __future__ import annotations

import re

import pytest

from aioproducer.broker.controller.topic_rules import check_collision, check_name
from aioproducer.errors import InvalidTopicError


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "...", "a" * 249, "__consumer_offsets"])
def test_valid_names_are_accepted(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("é", "'é' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    ],
)
def test_invalid_names_are_rejected(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicError, match=re.escape(f"Topic name is invalid: {reason}")):
        check_name(name)


def test_names_that_are_equal_in_metrics_collide() -> None:
    check_collision("ab", ["a.b"])
    check_collision("a.b", ["a.b", "a-b", "ab"])
    with pytest.raises(InvalidTopicError, match=r"Topic 'a\.b_c' collides with existing topic: a_b\.c"):
        check_collision("a.b_c", ["x", "a_b.c"])
