"""The same frames result from any cuts of the stream, and memory follows the bytes received."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.server.framing import FRAME_OVERHEAD, READ_AHEAD, FrameReader
from tests.broker.server.serving import framed

payloads = st.lists(
    st.binary(max_size=40) | st.integers(0, 300_000).map(lambda size: bytes(range(256)) * (size // 256)), max_size=8
)


def pieces(data, cuts):
    start = 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        yield data[start:end]
        start = end


@settings(max_examples=150, deadline=None)
@given(frames=payloads, cuts=st.lists(st.integers(0, 1 << 30), max_size=12), eager=st.booleans())
def test_any_cuts_give_the_same_frames(frames, cuts, eager):
    reader = FrameReader(1 << 20)
    found = []
    for piece in pieces(b"".join(map(framed, frames)), cuts):
        reader.feed(memoryview(piece))
        while (eager or reader.is_full) and (frame := reader.take()) is not None:
            found.append(frame)
    while (frame := reader.take()) is not None:
        found.append(frame)
    assert found == frames
    assert reader.memory == 0
    assert not reader.inside_frame
    assert not reader.has_frame
    assert len({id(frame.obj) for frame in found}) == len(found)
    for frame in found:
        assert not frame.readonly
        assert frame.nbytes == len(frame.obj)


@settings(max_examples=100, deadline=None)
@given(
    frames=st.lists(st.integers(0, 5_000), max_size=30),
    cuts=st.lists(st.integers(0, 1 << 30), max_size=12),
    takes=st.lists(st.integers(0, 6), max_size=13),
)
def test_frames_do_not_depend_on_when_they_are_taken(frames, cuts, takes):
    """Bytes that are fed although the reader is full are kept unparsed."""
    expected = [bytes([number % 251]) * size for number, size in enumerate(frames)]
    reader = FrameReader(1 << 20)
    found = []
    for number, piece in enumerate(pieces(b"".join(map(framed, expected)), cuts)):
        reader.feed(piece)
        for _ in range(takes[number] if number < len(takes) else 0):
            if (frame := reader.take()) is not None:
                found.append(frame)
    while (frame := reader.take()) is not None:
        found.append(frame)
    assert found == expected


@given(
    cuts=st.lists(st.integers(0, 1 << 30), max_size=8), size=st.integers(-(2**31), -1) | st.integers(1001, 2**31 - 1)
)
def test_an_invalid_size_fails_after_the_frames_before_it(cuts, size):
    reader = FrameReader(1000)
    for piece in pieces(framed(b"first") + framed(b"second") + struct.pack(">i", size) + b"whatever", cuts):
        reader.feed(piece)
    assert reader.take() == b"first"
    assert reader.failure is not None
    assert reader.take() == b"second"
    assert reader.take() is None
    assert reader.memory == 0
    assert str(reader.failure) == (
        f"invalid frame size {size} (must be between 0 and 1000 bytes): "
        "the peer may use TLS, or another protocol than Kafka's"
    )


@settings(max_examples=50, deadline=None)
@given(size=st.integers(0, 2**31 - 1), parts=st.lists(st.integers(1, 30_000), max_size=20))
def test_memory_depends_on_received_bytes_and_not_on_announced_sizes(size, parts):
    reader = FrameReader(2**31 - 1)
    reader.feed(struct.pack(">i", size))
    fed = 4
    for part in parts:
        if fed + part > 4 + size:
            break
        reader.feed(bytes(part))
        fed += part
        assert reader.memory <= 2 * fed + 512 + FRAME_OVERHEAD


def test_a_flood_of_empty_frames_is_bounded():
    reader = FrameReader(100)
    flood = bytes(READ_AHEAD)
    reader.feed(flood)
    assert reader.is_full
    assert reader.memory <= 2 * READ_AHEAD + FRAME_OVERHEAD
    count = 0
    while reader.take() is not None:
        assert reader.memory <= 2 * READ_AHEAD + FRAME_OVERHEAD
        count += 1
    assert count == len(flood) // 4


def test_the_reader_is_full_behind_a_frame_and_the_read_ahead():
    reader = FrameReader(1 << 30)
    reader.feed(framed(bytes(500_000)))
    assert not reader.is_full
    reader.feed(struct.pack(">i", 1_000_000) + bytes(READ_AHEAD - 1))
    assert not reader.is_full
    reader.feed(b"x")
    assert reader.is_full
    assert len(reader.take()) == 500_000
    assert not reader.is_full


@pytest.mark.parametrize("cut", range(1, 9))
def test_the_end_inside_a_frame_is_visible(cut):
    reader = FrameReader(100)
    data = framed(b"12345")
    reader.feed(data[:cut])
    assert reader.inside_frame
    reader.drop_partial()
    assert not reader.inside_frame
    assert reader.memory == 0


def test_clear_drops_frames_and_bytes():
    reader = FrameReader(READ_AHEAD)
    for _ in range(3):
        reader.feed(framed(bytes(READ_AHEAD)) + b"\0")
        reader.clear()
        assert reader.memory == 0
        assert reader.take() is None
