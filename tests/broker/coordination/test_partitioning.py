"""The partition of a group, compared with Java's ``String.hashCode`` and Kafka's ``Utils.abs``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.broker.coordination.partitioning import java_string_hash, java_string_length, partition_for

# Text, its hashCode, abs(hashCode) % 50, abs(hashCode) % 7 and length: printed by a Java program.
JAVA = [
    ("", 0, 0, 0, 0),
    ("a", 97, 47, 6, 1),
    ("group", 98629247, 47, 3, 5),
    ("my-consumer-group-42", 1939341986, 36, 1, 20),
    ("grüppe", -1233264812, 12, 3, 6),
    ("日本語のグループ", -935085811, 11, 2, 8),
    ("\U0001f600", 1772899, 49, 2, 2),
    ("x\U0001f600\U0001d11ey", 472301716, 16, 5, 6),
    ("polygenelubricants", -(2**31), 0, 0, 18),
    ("DESIGNING WORKHOUSES", -(2**31), 0, 0, 20),
    ("\x00", 0, 0, 0, 1),
    ("\uffff\uffff\uffff", 65076255, 5, 6, 3),
]


@pytest.mark.parametrize(("text", "value", "of_50", "of_7", "length"), JAVA)
def test_the_partition_of_a_group_is_that_of_java(text: str, value: int, of_50: int, of_7: int, length: int) -> None:
    assert java_string_hash(text) == value
    assert partition_for(text, 50) == of_50
    assert partition_for(text, 7) == of_7
    assert java_string_length(text) == length


@given(st.text(), st.integers(1, 1000))
def test_the_partition_of_a_group_exists(text: str, count: int) -> None:
    assert 0 <= partition_for(text, count) < count
    assert java_string_length(text) == len(text.encode("utf-16-le", "surrogatepass")) // 2


@given(st.text(), st.text())
def test_the_hash_of_a_concatenation_follows_from_its_parts(first: str, second: str) -> None:
    """hashCode(a + b) = hashCode(a) * 31^length(b) + hashCode(b), in 32 bits."""
    whole = java_string_hash(first) * 31 ** java_string_length(second) + java_string_hash(second)
    assert (java_string_hash(first + second) - whole) % 2**32 == 0
