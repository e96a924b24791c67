"""Compiled. Murmur2 as Kafka's Java client computes it (``org.apache.kafka.common.utils.Utils.murmur2``).

Every Kafka client that shares topics with a Java producer must send a key to the same partition, so the result equals
Java's in every bit, including its sign.

No Python form: the functions of the last section hash bytes at an address.
"""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import TYPE_CHECKING, Any

from aioproducer.compression.base import Buffer

if TYPE_CHECKING and not TYPE_CHECKING:
    # Only Cython needs this.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

_WORDS = tuple(Struct(f"<{count}I").unpack_from for count in range(33))


def _murmur2_unsigned(data: Buffer) -> int:
    if type(data) is not bytes:
        data = bytes(data)
    length = len(data)
    count = length >> 2
    if cython.compiled:
        return _murmur2_at(cython.cast(cython.p_uchar, PyBytes_AS_STRING(data)), length)
    h = _SEED ^ length
    for k in _WORDS[count](data) if count < 33 else unpack_from(f"<{count}I", data):
        k = k * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if length & 3:
        h = (h ^ int.from_bytes(data[length & ~3 :], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def murmur2(data: Buffer) -> int:
    """Return the 32-bit hash of ``data`` as a signed integer, equal to Java's ``Utils.murmur2``."""
    h = _murmur2_unsigned(data)
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


def partition_for_key(key: Buffer, partition_count: int) -> int:
    """Return the partition of a serialized key among ``partition_count``, as ``BuiltInPartitioner.partitionForKey``.

    Raises:
        ValueError: ``partition_count`` is not positive.
    """
    if partition_count <= 0:
        raise ValueError(f"partition_count must be positive, not {partition_count}")
    return (_murmur2_unsigned(key) & 0x7FFFFFFF) % partition_count


# Compiled only


def _murmur2_at(address: Any, length: int) -> int:
    """The hash of bytes at an address, in C's 32-bit arithmetic, which drops overflowing bits."""
    # A separate assignment: the constant is too large for a C long on some platforms, so Cython would make it an
    # object.
    h = 0x9747B28C
    h ^= length
    k = 0
    rest = length
    while rest >= 4:
        # Both sides are little-endian: setup.py compiles only on such machines.
        memcpy(cython.address(k), address, 4)
        k *= 0x5BD1E995
        h = (h * 0x5BD1E995) ^ ((k ^ (k >> 24)) * 0x5BD1E995)
        address += 4
        rest -= 4
    if rest:
        k = 0
        memcpy(cython.address(k), address, rest)
        h = (h ^ k) * 0x5BD1E995
    h = (h ^ (h >> 13)) * 0x5BD1E995
    return h ^ (h >> 15)


def partition_for_key_at(address: Any, length: int, partition_count: int) -> int:
    """``partition_for_key`` for compiled modules, with the key at an address."""
    # As unsigned: Python's remainder of possibly negative numbers takes longer than the hash.
    hashed = _murmur2_at(address, length)
    count = partition_count
    return (hashed & 0x7FFFFFFF) % count
