"""Possible arguments of ``send``: bytes of every type, and records of every size and time."""

from __future__ import annotations

import array
import mmap
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from aioproducer.wire.record import Header
from aioproducer.wire.record_batch import Buffer

LATEST_TIMESTAMP = 2**63 - 1


class Bytes(bytes):
    """Equal to bytes, but not of the type of the fast path."""


def _as_mapping(data: bytes) -> Buffer:
    if not data:
        # A mapping has at least one byte.
        return data
    mapping = mmap.mmap(-1, len(data))
    mapping[:] = data
    return memoryview(mapping)


SHAPES: list[Callable[[bytes], Buffer]] = [
    bytes,
    Bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(bytearray(b"xyz" + data + b"xyz"))[3 : 3 + len(data)],
    lambda data: memoryview(array.array("B", data)),
    # Wider elements: only the bytes count.
    lambda data: memoryview(data).cast("H") if len(data) % 2 == 0 else data,
    lambda data: memoryview(data).cast("B", (len(data) // 3, 3)) if data and len(data) % 3 == 0 else data,
    _as_mapping,
]

# Around the sizes at which a length takes one more byte, and at which a slab ends.
_EDGES = [0, 63, 64, 127, 128, 1024, 2048, 4096, 8191, 8192, 16384, 65536]
sizes = st.one_of(
    st.integers(0, 40),
    st.builds(lambda edge, off: max(edge + off, 0), st.sampled_from(_EDGES), st.integers(-30, 4)),
)


def _filled(size: int, seed: int) -> bytes:
    return (bytes(range(seed, 256)) * (size // (256 - seed) + 1))[:size]


contents = st.builds(_filled, sizes, st.integers(0, 255)) | st.binary(max_size=40)
nullable = st.none() | contents
timestamps = st.one_of(
    st.sampled_from([0, 1, 1000, LATEST_TIMESTAMP - 1, LATEST_TIMESTAMP]),
    st.integers(1_700_000_000_000, 1_700_000_010_000),
    st.integers(0, LATEST_TIMESTAMP),
)
headers = st.lists(st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=4).map(tuple)


class Sent(NamedTuple):
    """A sent record, with all parts as bytes."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


records = st.builds(Sent, st.none() | st.binary(max_size=20) | nullable, nullable, st.just(()) | headers, timestamps)
shapes = st.sampled_from(SHAPES)


def shaped_headers(given: tuple[tuple[str, bytes | None], ...], shape: Callable[[bytes], Buffer]) -> tuple[Header, ...]:
    return tuple((name, None if value is None else shape(value)) for name, value in given)
