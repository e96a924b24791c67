"""CRC-32C (Castagnoli) over a sequence of buffers, as it stands in a record batch's header."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c as _crc32c

from aioproducer.compression.base import Buffer


def crc32c(buffers: Iterable[Buffer], value: int = 0) -> int:
    """The checksum of ``buffers`` one after the other, unsigned; ``value`` is the checksum of what came before them."""
    for buffer in buffers:
        value = _crc32c(buffer, value)
    return value
