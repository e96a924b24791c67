"""The offset and the time index."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.log import LogConfig, MemoryStorage
from aioproducer.broker.log.indexes import OffsetIndex, TimeIndex
from tests.broker.log.building import NOW, batch, open_log, stored

OFFSETS = st.lists(st.integers(0, 500), unique=True, max_size=30).map(sorted)


@settings(max_examples=150)
@given(OFFSETS, st.integers(0, 10_000), st.integers(0, 501), st.integers(0, 501))
def test_offset_lookup_returns_the_last_entry_at_or_below_the_offset(
    offsets: list[int], base: int, target: int, cut: int
) -> None:
    index = OffsetIndex(MemoryStorage(), "i", base)
    entries = [(base + offset, position * 10) for position, offset in enumerate(offsets)]
    for entry in entries:
        index.append(*entry)
    below = [entry for entry in entries if entry[0] <= base + target]
    assert index.lookup(base + target) == (below[-1] if below else (base, 0))
    reached = [entry[1] for entry in entries if entry[1] <= target]
    assert index.lookup_position(target) == (reached[-1] if reached else 0)
    index.truncate_to(base + cut)
    kept = [entry for entry in entries if entry[0] < base + cut]
    assert [index.entry(slot) for slot in range(len(index))] == kept
    assert index.last == (kept[-1] if kept else (base, 0))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20), st.integers(-1, 51), st.integers(0, 1100)
)
def test_time_lookup_returns_the_last_entry_at_or_below_the_timestamp(
    steps: list[tuple[int, int]], target: int, cut: int
) -> None:
    index = TimeIndex(MemoryStorage(), "i", 100)
    entries: list[tuple[int, int]] = []
    offset = 100
    for timestamp, step in steps:
        offset += step
        index.maybe_append(timestamp, offset)
        if timestamp > (entries[-1][0] if entries else -1):
            entries.append((timestamp, offset))
    below = [entry for entry in entries if entry[0] <= target]
    assert index.lookup(target) == (below[-1] if below else (-1, 100))
    index.truncate_to(cut)
    assert [index.entry(slot) for slot in range(len(index))] == [entry for entry in entries if entry[1] < cut]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 200), st.integers(-50, 50)), min_size=1, max_size=40),
    st.data(),
)
def test_reading_from_an_index_entry_finds_the_offset_and_the_time(
    batches: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    log = open_log(config=LogConfig(index_interval_bytes=200, segment_bytes=9000))
    times: list[int] = []
    for count, size, shift in batches:
        log.append_as_leader(batch(count, value=bytes(size), timestamp=NOW + shift), 0)
        times += [NOW + shift + index for index in range(count)]
    offset = data.draw(st.integers(0, len(times) - 1))
    found = log.read(offset, 1, up_to=log.log_end_offset, min_one_batch=True)
    header = struct.unpack_from(">q", found[0])[0]
    assert header <= offset < header + stored_count(found[0])
    timestamp = data.draw(st.integers(NOW - 60, NOW + 100))
    expected = next((index for index, time in enumerate(times) if time >= timestamp), None)
    result = log.offset_for_timestamp(timestamp)
    assert (None if result is None else result.offset) == expected
    greatest = log.max_timestamp_offset()
    assert greatest is not None
    assert greatest.timestamp == max(times)
    assert times[greatest.offset] == max(times)
    assert sum(each.record_count for each in stored(log)) == len(times)


def stored_count(buffer: bytes | bytearray | memoryview) -> int:
    count: int = struct.unpack_from(">i", buffer, 57)[0]
    return count


def test_files_are_kafkas_format() -> None:
    storage = MemoryStorage()
    index, times = OffsetIndex(storage, "i", 1000), TimeIndex(storage, "t", 1000)
    index.append(1007, 4100)
    index.append(1009, 8300)
    times.maybe_append(NOW, 1007)
    index.save()
    times.save()
    assert storage.read("i") == struct.pack(">iiii", 7, 4100, 9, 8300)
    assert storage.read("t") == struct.pack(">qi", NOW, 7)
    index.truncate_to(1009)
    index.save()
    assert storage.read("i") == struct.pack(">ii", 7, 4100)
    index.clear()
    index.save()
    assert storage.read("i") == b""
    index.retire()
    index.append(1001, 0)
    index.save()
    assert storage.read("i") == b""


def test_an_index_rejects_invalid_entries() -> None:
    index = OffsetIndex(MemoryStorage(), "i", 1000)
    index.append(1010, 0)
    with pytest.raises(ValueError, match="does not come after"):
        index.append(1010, 100)
    with pytest.raises(ValueError, match="too far"):
        index.append(1000 + 2**31, 100)
    assert index.is_full(15)
    assert not index.is_full(16)
    times = TimeIndex(MemoryStorage(), "t", 0)
    assert times.is_full(12)
    assert not times.is_full(24)


@pytest.mark.parametrize(
    ("data", "sane"),
    [
        (b"", True),
        (struct.pack(">iiii", 1, 10, 2, 20), True),
        (struct.pack(">iiii", 1, 10, 2, 20)[:-1], False),
        (struct.pack(">iiii", 1, 10, 2, 100), False),
        (struct.pack(">iiii", 3, 10, 2, 20), False),
        (bytes(16), True),
        (struct.pack(">ii", -1, 10), False),
    ],
)
def test_an_invalid_offset_index_file_is_detected(data: bytes, sane: bool) -> None:
    assert OffsetIndex(MemoryStorage(), "i", 0, data).is_sane(100) is sane


@pytest.mark.parametrize(
    ("data", "sane"),
    [
        (b"", True),
        (struct.pack(">qiqi", 5, 1, 6, 2), True),
        (struct.pack(">qiqi", 7, 1, 6, 2), False),
        (struct.pack(">qi", 7, -1), False),
        (b"abc", False),
    ],
)
def test_an_invalid_time_index_file_is_detected(data: bytes, sane: bool) -> None:
    assert TimeIndex(MemoryStorage(), "i", 0, data).is_sane() is sane
