"""The partition of a coordinator's internal topic that a key belongs to: a group or a transactional id."""

from __future__ import annotations

import struct
from typing import Final

_INT32_MIN: Final = -(2**31)


def java_string_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 units, so a character beyond U+FFFF counts as its two surrogates."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def java_string_length(text: str) -> int:
    """``String.length``: the number of UTF-16 units."""
    return len(text) + sum(character > "\uffff" for character in text)


def partition_for(key: str, partition_count: int) -> int:
    """The partition of ``key``.

    Kafka's ``Utils.abs(key.hashCode()) % partitions``, where the absolute value of -2^31 is 0.
    """
    value = java_string_hash(key)
    return (0 if value == _INT32_MIN else abs(value)) % partition_count
