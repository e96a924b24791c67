"""CRC-32C: the check value of RFC 3720 and chaining."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioproducer.wire.crc32c import crc32c


def test_known_values() -> None:
    assert crc32c([b"123456789"]) == 0xE3069283
    assert crc32c([bytes(32)]) == 0x8A9136AA
    assert crc32c([]) == 0


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_buffers_count_as_one(parts: list[bytes]) -> None:
    whole = crc32c([b"".join(parts)])
    assert crc32c(parts) == crc32c([memoryview(part) for part in parts]) == whole
    assert crc32c(parts[1:], crc32c(parts[:1])) == whole
