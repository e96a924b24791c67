"""The order in which Java iterates over hash tables, and sorts strings.

Kafka's sticky assignors iterate over instances of ``HashMap``, and which member receives a partition depends on that.
Every member of a group must be able to lead it and then come to the same result, so this order is part of the
protocol in practice. The rules are those of ``java.util.HashMap`` since Java 8: a table of a power of two, twice as
large when more than three quarters full, never smaller again; within a bucket the order of insertion. Buckets with
more than eight entries become trees there; such collisions do not occur by chance, and are not followed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Generic, TypeVar

from aioproducer.record import TopicPartition

K = TypeVar("K")

_WORD = 0xFFFFFFFF
_SMALLEST_TABLE = 16


def string_hash(text: str) -> int:
    """Return ``String.hashCode``, as an unsigned number of 32 bits."""
    result = 0
    if text.isascii():
        for unit in text.encode():
            result = (31 * result + unit) & _WORD
        return result
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        result = (31 * result + (data[at] << 8 | data[at + 1])) & _WORD
    return result


def partition_hash(topic_partition: TopicPartition) -> int:
    """Return ``TopicPartition.hashCode`` of Kafka, as an unsigned number of 32 bits."""
    topic, partition = topic_partition
    return (31 * (31 + partition) + string_hash(topic)) & _WORD


def string_key(text: str) -> bytes:
    """Return a sort key for the order of ``String.compareTo``: by UTF-16 units, not by characters."""
    return text.encode("utf-16-be", "surrogatepass")


def table_size(count: int) -> int:
    """Return the size of the table of a hash map that held at most ``count`` entries, and began with the default."""
    size = _SMALLEST_TABLE
    while count > size * 3 // 4:
        size *= 2
    return size


def in_hash_order(keys: Iterable[K], hash_code: Callable[[K], int], most: int = 0) -> list[K]:
    """Return distinct keys in the order of a hash map into which they were put in their present order.

    ``most`` is the largest number of entries that the map ever had, if that is more than now.
    """
    inserted = list(keys)
    mask = table_size(max(len(inserted), most)) - 1

    def bucket(key: K) -> int:
        code = hash_code(key)
        return (code ^ code >> 16) & mask

    return sorted(inserted, key=bucket)


class HashSet(Generic[K]):
    """A set whose first element is that of Java's ``HashSet`` with the same history."""

    __slots__ = ("_elements", "_hash_code", "_most")

    def __init__(self, hash_code: Callable[[K], int]) -> None:
        self._hash_code = hash_code
        self._elements: MutableMapping[K, None] = {}
        self._most = 0

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, element: K) -> None:
        self._elements[element] = None
        self._most = max(self._most, len(self._elements))

    def remove(self, element: K) -> None:
        del self._elements[element]

    def first(self) -> K:
        """Return the element that an iteration meets first."""
        return in_hash_order(self._elements, self._hash_code, self._most)[0]
