"""Zstandard (KIP-110)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aioproducer.compression.base import Buffer, Codec, Output, byte_view, joined

if TYPE_CHECKING:
    from zstandard import ZstdCompressor

_SKIPPABLE_MAGIC = 0x184D2A50
_SKIPPABLE_MASK = 0xFFFFFFF0
_SKIPPABLE_HEADER = 8
_BLOCK_HEADER = 3
_RUN_LENGTH_BLOCK = 1
_CHECKSUM = 4
# The next level takes three times as long, the last one ten times or more.
_LAST_QUICK_LEVEL = 9


class ZstdCodec(Codec):
    """``compression.type=zstd``: one frame that states its content's size; reads several frames."""

    id = 4
    name = "zstd"
    levels = (-131072, 22)
    default_level = 3
    package = "zstandard"

    def __init__(self) -> None:
        # Compressors that no thread uses at present, by level.
        self._idle: dict[int, list[ZstdCompressor]] = {}

    def load(self) -> None:
        try:
            import zstandard  # noqa: F401 - whether it can be imported is the question
        except ImportError as error:
            raise self._missing() from error

    def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
        level = self._level(level)
        self.load()
        from zstandard import ZstdCompressor

        # One call, which releases the GIL only once; and a used compressor: its tables of up to some megabytes exist
        # already.
        idle = self._idle.setdefault(level, [])
        try:
            compressor = idle.pop()
        except IndexError:
            compressor = ZstdCompressor(level=level)
        try:
            return compressor.compress(joined(buffers))
        finally:
            idle.append(compressor)

    def is_quick(self, level: int | None = None) -> bool:
        return self._level(level) <= _LAST_QUICK_LEVEL

    def decompress(self, data: Buffer, max_size: int | None = None) -> bytes:
        self.load()
        from zstandard import ZstdError

        view = byte_view(data)
        output = Output(max_size)
        position = 0
        if not view:
            raise self._malformed("there are no bytes")
        try:
            while position < len(view):
                if int.from_bytes(view[position : position + 4], "little") & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
                    size = int.from_bytes(view[position + 4 : position + _SKIPPABLE_HEADER], "little")
                    position += _SKIPPABLE_HEADER + size
                    if position > len(view):
                        raise self._malformed("it ends inside a skippable frame")
                else:
                    position = self._decompress_frame(view, position, output)
        except ZstdError as error:
            raise self._malformed(error) from error
        return output.join()

    def _decompress_frame(self, view: memoryview, position: int, output: Output) -> int:
        """Decompress the frame at ``position``, and return its end.

        The library receives one block at a time, none of which becomes larger than 128 KiB. From more bytes at once it
        could produce 30,000 times their size before any check.
        """
        from zstandard import ZstdDecompressor, frame_header_size, get_frame_parameters

        rest = view[position:]
        end = position + frame_header_size(rest)
        has_checksum = get_frame_parameters(rest).has_checksum
        decompressor = ZstdDecompressor().decompressobj()
        last = False
        while not last:
            header = int.from_bytes(view[end : end + _BLOCK_HEADER], "little")
            last = bool(header & 1)
            end += _BLOCK_HEADER + (1 if header >> 1 & 3 == _RUN_LENGTH_BLOCK else header >> 3)
            if last and has_checksum:
                end += _CHECKSUM
            if end > len(view):
                raise self._malformed("it ends inside a frame")
            output.append(decompressor.decompress(view[position:end]))
            position = end
        return end

    def compress_bound(self, size: int) -> int:
        # ZSTD_COMPRESSBOUND, and room for the longest frame header with the size in it.
        return size + (size >> 8) + ((131072 - size) >> 11 if size < 131072 else 0) + 18
