"""Bytes that show their offset."""

from __future__ import annotations


def numbered(size: int, start: int = 0) -> bytes:
    """Return ``size`` bytes that differ at every offset."""
    return b"".join(number.to_bytes(4) for number in range(start, start + (size + 3) // 4))[:size]
