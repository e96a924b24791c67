"""Views of single bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer._common.views import part_of


@given(st.binary(max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_a_part_equals_a_slice(data, offset, length):
    memory = bytearray(data)
    offset = min(offset, len(memory))
    length = min(length, len(memory) - offset)
    whole = memoryview(memory)
    part, expected = part_of(whole, offset, length), whole[offset : offset + length]
    assert part == expected
    for name in ("nbytes", "shape", "strides", "format", "readonly", "c_contiguous", "obj"):
        assert getattr(part, name) == getattr(expected, name)
    assert bytes(part[1:]) == data[offset : offset + length][1:]
    # It is the memory itself, and keeps it until it is released.
    if length:
        part[0] = memory[offset] ^ 1
        assert memory[offset] == data[offset] ^ 1
    expected.release()
    whole.release()
    with pytest.raises(ValueError, match="released"):
        part_of(whole, 0, 0)
    with pytest.raises(BufferError):
        memory.append(0)
    part.release()
    memory.append(0)
