"""Every codec: round trips at every level, foreign readers, malformed and hostile data."""

from __future__ import annotations

import builtins
import gzip
import itertools
import random
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import pytest
import snappy as python_snappy
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from aioproducer.compression import CODECS, Codec, codec
from aioproducer.compression import gzip as gzip_codec
from aioproducer.compression.base import blocks_of
from aioproducer.errors import ConfigurationError, ProtocolError

COMPRESSING = CODECS[1:]
each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda each: each.name)
each_compressing_codec = pytest.mark.parametrize("codec", COMPRESSING, ids=lambda each: each.name)

RANDOM = random.Random(7).randbytes(150_000)
MIXED = RANDOM + b"a phrase that comes again. " * 10_000

BUFFERS = st.lists(st.binary(max_size=200) | st.binary(max_size=200).map(lambda data: data * 400), max_size=5)


def test_levels_that_are_quick_enough_to_run_inline_are_known() -> None:
    assert [level for level in range(-9, 23) if codec("zstd").is_quick(level)] == list(range(-9, 10))
    assert [level for level in range(1, 18) if codec("lz4").is_quick(level)] == list(range(1, 10))
    assert all(each.is_quick() for each in CODECS)


def test_codecs_are_found_by_name_and_id() -> None:
    assert [each.name for each in CODECS] == ["none", "gzip", "snappy", "lz4", "zstd"]
    for number, each in enumerate(CODECS):
        assert each.id == number
        assert codec(number) is codec(each.name) is each
        assert each.name in repr(each)
        each.load()
    with pytest.raises(ConfigurationError, match="unknown compression type 'brotli': use one of none, gzip, snappy"):
        codec("brotli")
    for number in (-1, 5, 7):
        with pytest.raises(ProtocolError, match=f"unknown compression type id {number}"):
            codec(number)


@each_codec
@settings(max_examples=40)
@given(buffers=BUFFERS)
def test_compressed_data_round_trips(codec: Codec, buffers: list[bytes]) -> None:
    whole = b"".join(buffers)
    compressed = codec.compress(buffers)
    assert len(compressed) <= codec.compress_bound(len(whole))
    assert codec.decompress(compressed) == whole
    assert codec.decompress(memoryview(bytearray(compressed)), max_size=len(whole)) == whole


@each_codec
def test_every_kind_of_buffer_is_compressed_however_it_is_split(codec: Codec) -> None:
    cuts = [0, 1, 32_767, 32_768, 32_769, 65_536, 131_072, 200_000, len(MIXED)]
    buffers: list[bytes | bytearray | memoryview] = []
    for index, (start, end) in enumerate(itertools.pairwise(cuts)):
        piece = MIXED[start:end]
        buffers.append([piece, bytearray(piece), memoryview(bytearray(piece))][index % 3])
    wide = memoryview(bytes(range(256)) * 4).cast("I")
    assert codec.decompress(codec.compress([*buffers, wide])) == MIXED + bytes(wide)


@each_codec
def test_incompressible_data_stays_within_the_bound(codec: Codec) -> None:
    levels = (None,) if codec.levels is None else (None, codec.levels[0], codec.levels[1])
    for size in (0, 1, 100, 32_768, 65_536, 65_537, 131_072, len(RANDOM)):
        for level in levels:
            assert len(codec.compress([RANDOM[:size]], level)) <= codec.compress_bound(size)


@pytest.mark.parametrize(
    ("name", "level"),
    [("gzip", level) for level in (-1, *range(1, 10))]
    + [("lz4", level) for level in range(1, 18)]
    + [("zstd", level) for level in (-131072, -7, -1, 0, *range(1, 23))],
)
def test_every_level_round_trips(name: str, level: int) -> None:
    data = MIXED[140_000:180_000]
    assert codec(name).decompress(codec(name).compress([data], level)) == data


@pytest.mark.parametrize(
    ("name", "level", "message"),
    [
        ("none", 1, "none has no levels: leave out level 1"),
        ("snappy", 1, "snappy has no levels: leave out level 1"),
        ("gzip", 0, r"level 0 is invalid for gzip: use 1 to 9 \(default -1\)"),
        ("gzip", 10, "level 10"),
        ("lz4", 0, r"level 0 is invalid for lz4: use 1 to 17 \(default 9\)"),
        ("lz4", 18, "level 18"),
        ("zstd", -131073, r"zstd: use -131072 to 22 \(default 3\)"),
        ("zstd", 23, "level 23"),
    ],
)
def test_unknown_levels_are_rejected(name: str, level: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        codec(name).validate_level(level)
    with pytest.raises(ConfigurationError, match=message):
        codec(name).compress([b"data"], level)


def test_higher_levels_compress_better() -> None:
    text = b"".join(b"line %d of a log, level=%d\n" % (number, number % 7) for number in range(5000))
    for name, low, high in (("gzip", 1, 9), ("lz4", 9, 17), ("zstd", 1, 19)):
        assert len(codec(name).compress([text], high)) < len(codec(name).compress([text], low))


@pytest.fixture
def no_isal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate an environment without ISA-L."""
    monkeypatch.setitem(sys.modules, "isal", None)
    gzip_codec._compress_by_default.cache_clear()
    yield
    gzip_codec._compress_by_default.cache_clear()


def test_gzip_at_the_default_level_uses_isal_if_installed() -> None:
    assert codec("gzip").compress([MIXED]) == codec("gzip").compress([MIXED], -1)
    assert codec("gzip").compress([MIXED]) == isal_zlib.compress(MIXED, 3, 31)
    assert codec("gzip").compress([MIXED], 6) == zlib.compress(MIXED, 6, 31)


@pytest.mark.usefixtures("no_isal")
def test_gzip_at_the_default_level_uses_zlib_without_isal() -> None:
    codec("gzip").load()
    assert codec("gzip").compress([MIXED]) == zlib.compress(MIXED, -1, 31)
    assert codec("gzip").decompress(codec("gzip").compress([MIXED[:1000], MIXED[1000:]])) == MIXED


def test_the_default_level_of_lz4_is_the_fast_compressor_as_in_java() -> None:
    fastest = lz4.frame.compress(MIXED, compression_level=0, block_linked=False, store_size=False)
    assert codec("lz4").compress([MIXED]) == codec("lz4").compress([MIXED], 9) == fastest
    assert len(codec("lz4").compress([MIXED], 1)) < len(fastest)


@pytest.mark.parametrize("level", [None, 1, 12])
@given(buffers=BUFFERS)
@settings(deadline=None)
def test_lz4_of_several_buffers_equals_lz4_of_the_joined_bytes(level: int | None, buffers: list[bytes]) -> None:
    compressed = codec("lz4").compress(buffers, level)
    assert compressed == codec("lz4").compress([b"".join(buffers)], level)
    assert len(compressed) <= codec("lz4").compress_bound(sum(map(len, buffers)))


def test_lz4_of_several_buffers_does_not_join_them_in_memory() -> None:
    """The buffers were once joined before they were compressed."""
    codec("lz4").load()
    buffers = [bytes(500_000)] * 8
    tracemalloc.start()
    try:
        codec("lz4").compress(buffers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_lz4_frames_meet_the_requirements_of_java() -> None:
    compressed = codec("lz4").compress([MIXED])
    info = lz4.frame.get_frame_info(compressed)
    assert info["block_size"] == 65536
    assert not info["block_linked"]
    assert not info["content_checksum"]
    assert not info["block_checksum"]
    # Version 1, independent blocks, and neither content size nor reserved bits.
    assert compressed[4] == 0b0110_0000


def test_snappy_framing_equals_that_of_snappy_java() -> None:
    compressed = codec("snappy").compress([MIXED[:40_000]])
    assert compressed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    position, sizes = 16, []
    while position < len(compressed):
        (length,) = struct.unpack_from(">i", compressed, position)
        sizes.append(len(python_snappy.uncompress(compressed[position + 4 : position + 4 + length])))
        position += 4 + length
    assert sizes == [32_768, 40_000 - 32_768]


def test_plain_snappy_is_read() -> None:
    assert codec("snappy").decompress(python_snappy.compress(MIXED)) == MIXED


def test_zstd_states_the_size_of_its_content() -> None:
    assert zstandard.frame_content_size(codec("zstd").compress([MIXED[:1000], MIXED[1000:]])) == len(MIXED)


ZSTD_SKIPPABLE = struct.pack("<II", 0x184D2A5E, 5) + b"hello"
_LARGE_WINDOW = zstandard.ZstdCompressor(level=22).compressobj()
FOREIGN: dict[str, tuple[str, bytes]] = {
    "gzip with a file name": ("gzip", b"\x1f\x8b\x08\x08" + bytes(6) + b"name\0" + gzip.compress(MIXED)[10:]),
    "two gzip members": ("gzip", gzip.compress(MIXED[:9]) + gzip.compress(MIXED[9:])),
    "two snappy streams": ("snappy", codec("snappy").compress([MIXED[:9]]) + codec("snappy").compress([MIXED[9:]])),
    "two lz4 frames": ("lz4", lz4.frame.compress(MIXED[:9]) + lz4.frame.compress(MIXED[9:])),
    "lz4 with all its checks": (
        "lz4",
        lz4.frame.compress(MIXED, block_size=7, content_checksum=True, block_checksum=True, store_size=True),
    ),
    "zstd with a checksum": ("zstd", zstandard.ZstdCompressor(write_checksum=True).compress(MIXED)),
    "zstd without its size": ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(MIXED)),
    "zstd frames": (
        "zstd",
        zstandard.compress(MIXED[:9]) + ZSTD_SKIPPABLE + zstandard.compress(b"") + zstandard.compress(MIXED[9:]),
    ),
    "zstd with a window of 128 MiB": ("zstd", _LARGE_WINDOW.compress(MIXED) + _LARGE_WINDOW.flush()),
}


@pytest.mark.parametrize(("name", "compressed"), FOREIGN.values(), ids=FOREIGN)
def test_data_of_other_clients_is_decompressed(name: str, compressed: bytes) -> None:
    assert codec(name).decompress(compressed, max_size=len(MIXED)) == MIXED


@each_compressing_codec
def test_truncated_data_is_rejected(codec: Codec) -> None:
    compressed = codec.compress([MIXED[100_000:200_000]])
    block_ends = set()
    if codec.name == "snappy":
        # Its framing has no end mark: missing whole blocks are undetected, but the record count does not match.
        position = 16
        while position < len(compressed):
            block_ends.add(position)
            position += 4 + struct.unpack_from(">i", compressed, position)[0]
    for end in sorted({*range(60), *range(len(compressed) - 20, len(compressed)), len(compressed) // 2} - block_ends):
        with pytest.raises(ProtocolError):
            codec.decompress(compressed[:end])


@each_compressing_codec
def test_bytes_after_the_end_are_rejected(codec: Codec) -> None:
    with pytest.raises(ProtocolError):
        codec.decompress(codec.compress([b"data"]) + b"more")


def run_length_zstd(blocks: int) -> bytes:
    """Return a frame of blocks that each have 4 bytes, and 128 KiB when decompressed."""
    header = b"\x28\xb5\x2f\xfd\x00\x38"
    body = b"".join(
        ((131072 << 3) | (1 << 1) | (index == blocks - 1)).to_bytes(3, "little") + b"x" for index in range(blocks)
    )
    return header + body


MEGABYTES = 64
BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: codec("gzip").compress([bytes(1 << 20)] * MEGABYTES),
    "snappy": lambda: codec("snappy").compress([bytes(1 << 20)] * MEGABYTES),
    "lz4": lambda: codec("lz4").compress([bytes(1 << 20)] * MEGABYTES),
    "zstd": lambda: run_length_zstd(MEGABYTES * 8),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_is_stopped_before_it_takes_memory(name: str) -> None:
    bomb = BOMBS[name]()
    assert len(codec(name).decompress(bomb)) == MEGABYTES << 20
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="more than 1000000 bytes when decompressed"):
            codec(name).decompress(bomb, max_size=1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (4 << 20)


@each_codec
def test_the_limit_is_exact(codec: Codec) -> None:
    compressed = codec.compress([MIXED])
    assert codec.decompress(compressed, max_size=len(MIXED)) == MIXED
    with pytest.raises(ProtocolError, match=f"{len(MIXED) - 1}"):
        codec.decompress(compressed, max_size=len(MIXED) - 1)
    assert codec.decompress(codec.compress([]), max_size=0) == b""


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("gzip", b"", "ends inside a gzip member"),
        ("gzip", b"not gzip at all", "gzip data cannot be decompressed: .*incorrect header check"),
        ("snappy", b"", "snappy data cannot be decompressed"),
        ("snappy", b"\xff\xff\xff\xff\x0fabc", "a block of 8 bytes states a size of 4294967295"),
        ("snappy", b"\x82SNAPPY\x00\0\0", "ends inside the header"),
        ("snappy", codec("snappy").compress([]) + b"\0\0", "ends inside the length of a block"),
        ("snappy", codec("snappy").compress([]) + b"\xff" * 4, "a block of -1 bytes where 0 are left"),
        ("snappy", codec("snappy").compress([]) + b"\x7f" + b"\xff" * 3, "a block of 2147483647 bytes"),
        ("lz4", b"", "ends inside an LZ4 frame"),
        ("lz4", b"not lz4 at all, sorry", "lz4 data cannot be decompressed: .*frameType_unknown"),
        ("zstd", b"", "there are no bytes"),
        ("zstd", b"not zstd at all, sorry", "zstd data cannot be decompressed"),
        ("zstd", b"\x28\xb5", "zstd data cannot be decompressed"),
        ("zstd", ZSTD_SKIPPABLE[:-1], "ends inside a skippable frame"),
    ],
)
def test_malformed_data_is_rejected(name: str, data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        codec(name).decompress(data)


@each_compressing_codec
@settings(max_examples=150)
@given(data=st.data())
def test_mutated_data_raise_only_protocol_error(codec: Codec, data: st.DataObject) -> None:
    compressed = bytearray(codec.compress([MIXED[149_900:150_400]]))
    for _ in range(data.draw(st.integers(1, 4))):
        compressed[data.draw(st.integers(0, len(compressed) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(codec.decompress(compressed, max_size=10_000)) <= 10_000
    except ProtocolError:
        pass


@each_compressing_codec
@settings(max_examples=100)
@given(data=st.binary(max_size=100))
def test_random_bytes_raise_only_protocol_error(codec: Codec, data: bytes) -> None:
    for candidate in (data, codec.compress([])[:8] + data):
        try:
            assert len(codec.decompress(candidate, max_size=10_000)) <= 10_000
        except ProtocolError:
            pass


@given(BUFFERS, st.integers(1, 300))
@example([b"abc", b"", b"def"], 6)
def test_buffers_are_split_into_blocks_of_equal_size(buffers: list[bytes], block_size: int) -> None:
    blocks = [bytes(block) for block in blocks_of(buffers, block_size)]
    assert b"".join(blocks) == b"".join(buffers)
    assert all(len(block) == block_size for block in blocks[:-1])
    assert all(blocks)


@each_codec
def test_codecs_can_be_used_by_several_threads(codec: Codec) -> None:
    inputs = [[MIXED[start : start + 50_000]] for start in range(0, 200_000, 10_000)]
    expected = [codec.compress(buffers) for buffers in inputs]
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(codec.compress, inputs)) == expected
        assert list(executor.map(codec.decompress, expected)) == [buffers[0] for buffers in inputs]


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("snappy", "cramjam", "cramjam"), ("lz4", "lz4", "lz4"), ("zstd", "zstandard", "zstandard")],
)
def test_a_missing_library_is_named_in_the_error(
    name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed = codec(name).compress([b"data"])
    real_import = builtins.__import__

    def without(
        wanted: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> object:
        if level == 0 and wanted.partition(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {wanted!r}")
        return real_import(wanted, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", without)
    for use in (
        codec(name).load,
        lambda: codec(name).compress([b"data"]),
        lambda: codec(name).decompress(compressed),
    ):
        with pytest.raises(ConfigurationError, match=f"compression type {name} needs .*: pip install {package}$"):
            use()
