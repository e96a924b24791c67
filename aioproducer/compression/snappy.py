"""Snappy in the framing of xerial's snappy-java, as Kafka's clients write it."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from aioproducer.compression.base import Buffer, Codec, Output, blocks_of, byte_view

BLOCK_SIZE = 32 * 1024
"""Uncompressed bytes of a block, snappy-java's default."""

_MAGIC = b"\x82SNAPPY\x00"
_HEADER = _MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
"""The magic, the framing's version and the oldest version that can read it."""

_BLOCK_LENGTH = Struct(">i")

_GREATEST_RATIO = 22
"""Snappy's densest element encodes 64 bytes in 3, so a block cannot have more than this times its own length."""


class SnappyCodec(Codec):
    """``compression.type=snappy``: xerial framing; reads plain snappy too, as some clients write it."""

    id = 2
    name = "snappy"
    package = "cramjam"

    def load(self) -> None:
        try:
            import cramjam  # noqa: F401 - whether it can be imported is the question
        except ImportError as error:
            raise self._missing() from error

    def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
        if level is not None:
            self.validate_level(level)
        self.load()
        from cramjam import snappy

        parts: list[Buffer] = [_HEADER]
        for block in blocks_of(buffers, BLOCK_SIZE):
            compressed = memoryview(snappy.compress_raw(block))
            parts.append(_BLOCK_LENGTH.pack(len(compressed)))
            parts.append(compressed)
        return b"".join(parts)

    def decompress(self, data: Buffer, max_size: int | None = None) -> bytes:
        self.load()
        view = byte_view(data)
        output = Output(max_size)
        if view[: len(_MAGIC)] != _MAGIC:
            self._decompress_block(view, output)
            return output.join()
        position = 0
        while position < len(view):
            if view[position : position + len(_MAGIC)] == _MAGIC:
                # snappy-java reads concatenated streams, each with its header.
                position += len(_HEADER)
                if position > len(view):
                    raise self._malformed("it ends inside the header")
                continue
            if position + _BLOCK_LENGTH.size > len(view):
                raise self._malformed("it ends inside the length of a block")
            (length,) = _BLOCK_LENGTH.unpack_from(view, position)
            position += _BLOCK_LENGTH.size
            if not 0 <= length <= len(view) - position:
                raise self._malformed(f"a block of {length} bytes where {len(view) - position} are left")
            self._decompress_block(view[position : position + length], output)
            position += length
        return output.join()

    def _decompress_block(self, block: memoryview, output: Output) -> None:
        from cramjam import DecompressionError, snappy

        try:
            size = snappy.decompress_raw_len(block)
            if size > _GREATEST_RATIO * len(block):
                raise self._malformed(f"a block of {len(block)} bytes states a size of {size}")
            output.expect(size)
            output.append(memoryview(snappy.decompress_raw(block)))
        except DecompressionError as error:
            raise self._malformed(error) from error

    def compress_bound(self, size: int) -> int:
        # The library's bound of a block is 32 + n + n/6.
        blocks = -(-size // BLOCK_SIZE)
        return len(_HEADER) + blocks * (_BLOCK_LENGTH.size + 32) + size + size // 6
