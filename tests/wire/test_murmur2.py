"""murmur2 compared with values of Kafka's ``Utils.murmur2``, recorded in ``murmur2_vectors.txt``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.wire.murmur2 import murmur2, partition_for_key

VECTORS = [
    (b"" if key == "-" else bytes.fromhex(key), int(value))
    for key, value in (
        line.split() for line in Path(__file__).with_name("murmur2_vectors.txt").read_text().splitlines()
    )
]


def test_hashes_equal_those_of_java() -> None:
    assert len(VECTORS) == 300
    assert {len(key) & 3 for key, _ in VECTORS} == {0, 1, 2, 3}
    assert [murmur2(key) for key, _ in VECTORS] == [value for _, value in VECTORS]


@pytest.mark.parametrize(("key", "value"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)])
def test_known_values_are_hashed(key: bytes, value: int) -> None:
    assert murmur2(key) == value


@given(st.binary(max_size=300), st.integers(1, 2**31 - 1))
def test_partition_is_the_positive_hash_modulo_the_count(key: bytes, partition_count: int) -> None:
    partition = partition_for_key(key, partition_count)
    assert partition == (murmur2(key) & 0x7FFFFFFF) % partition_count
    assert 0 <= partition < partition_count


@given(st.binary(max_size=40))
def test_every_kind_of_buffer_hashes_alike(key: bytes) -> None:
    assert murmur2(bytearray(key)) == murmur2(memoryview(key)) == murmur2(key)


def test_a_view_with_wider_elements_is_hashed_by_its_bytes() -> None:
    assert murmur2(memoryview(b"abcdefgh").cast("I")) == murmur2(b"abcdefgh")


def test_zero_partitions_are_rejected() -> None:
    with pytest.raises(ValueError, match="must be positive, not 0"):
        partition_for_key(b"key", 0)
