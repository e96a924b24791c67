"""Lists of buffers as one stream of bytes."""

from __future__ import annotations

import array
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.transport.buffers import advance, bytes_of, first_bytes, views_of

pieces = st.lists(st.binary(max_size=20), max_size=8)


@given(pieces, st.lists(st.integers(0, 30), max_size=20))
def test_taking_and_advancing_in_any_steps_gives_all_bytes(parts, steps):
    views = deque(views_of(parts))
    got = b""
    for step in [*steps, bytes_of(parts)]:
        taken = b"".join(first_bytes(views, step))
        assert len(taken) <= step
        advance(views, len(taken))
        got += taken
    assert got == b"".join(parts)
    assert not views


@given(pieces)
def test_the_size_is_that_of_all_bytes(parts):
    assert bytes_of(parts) == len(b"".join(parts)) == sum(map(len, views_of(parts)))


def test_items_wider_than_a_byte_count_as_their_bytes():
    numbers = memoryview(array.array("q", [1, 2, 3]))
    assert bytes_of([numbers, bytearray(1)]) == 25
    assert [len(view) for view in views_of([numbers])] == [24]


@pytest.mark.parametrize(
    "buffer",
    [
        memoryview(b"abcdef").cast("c"),
        memoryview(b"abcdef").cast("B", (2, 3)),
        memoryview(b"abcdef").cast("b"),
        memoryview(b"--abcdef")[2:],
        array.array("h", [0x6261, 0x6463, 0x6665]),
        bytearray(b"abcdef"),
    ],
    ids=lambda buffer: type(buffer).__name__ + str(getattr(buffer, "shape", "")) + str(getattr(buffer, "format", "")),
)
def test_views_have_single_bytes_for_buffers_of_any_format(buffer):
    (view,) = views_of([buffer])
    assert (view.format, view.shape, bytes(view)) == ("B", (6,), b"abcdef")


@pytest.mark.parametrize("empty", [b"", bytearray(), array.array("q"), memoryview(b"").cast("c")])
def test_an_empty_buffer_has_no_view(empty):
    assert views_of([b"a", empty]) == [b"a"]


def test_views_are_of_the_same_memory():
    memory = bytearray(b"before")
    (view,) = views_of([memory])
    memory[:] = b"behind"
    assert view == b"behind"


@pytest.mark.parametrize("wrong", ["text", 3, memoryview(b"abcd")[::2]])
def test_an_item_without_contiguous_bytes_is_refused(wrong):
    with pytest.raises(TypeError):
        views_of([wrong])
