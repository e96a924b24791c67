"""LZ4 in the frame format, with the settings of Kafka's ``Lz4BlockOutputStream``."""

from __future__ import annotations

from collections.abc import Sequence

from aioproducer.compression.base import READ_SIZE, Buffer, Codec, Output, byte_view

_BLOCK_SIZE = 64 * 1024
_FRAME_OVERHEAD = 7 + 4
"""The header without content size, and the end mark."""
_BLOCK_OVERHEAD = 4
_WRITE_SIZE = 256 * 1024
"""Bytes that the library may produce at once: it allocates this much in advance, and without a limit several times the
decompressed size."""
_FASTEST = 0
_LEAST_HIGH_COMPRESSION = 3
_LAST_QUICK_LEVEL = 9


class Lz4Codec(Codec):
    """``compression.type=lz4``: independent blocks of 64 KiB, no checksums, as Java writes; reads any frames.

    Level 9, the default, is the *fast* compressor, and every other level the high compression one. Java has the same
    levels (KIP-390), to keep its output from before levels existed.
    """

    id = 3
    name = "lz4"
    levels = (1, 17)
    default_level = 9
    package = "lz4"

    def load(self) -> None:
        try:
            import lz4.frame  # noqa: F401 - whether it can be imported is the question
        except ImportError as error:
            raise self._missing() from error

    def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
        level = self._level(level)
        self.load()
        from lz4.frame import BLOCKSIZE_MAX64KB, LZ4FrameCompressor, compress

        options = {
            "block_size": BLOCKSIZE_MAX64KB,
            "block_linked": False,
            "compression_level": _FASTEST if level == self.default_level else max(level, _LEAST_HIGH_COMPRESSION),
        }
        if len(buffers) == 1:
            compressed: bytes = compress(buffers[0], store_size=False, **options)
            return compressed
        # Produces the same bytes without a copy of the whole.
        compressor = LZ4FrameCompressor(**options)
        pieces = [compressor.begin()]
        pieces += [compressor.compress(buffer) for buffer in buffers]
        pieces.append(compressor.flush())
        return b"".join(pieces)

    def is_quick(self, level: int | None = None) -> bool:
        return self._level(level) <= _LAST_QUICK_LEVEL

    def decompress(self, data: Buffer, max_size: int | None = None) -> bytes:
        self.load()
        from lz4.frame import LZ4FrameDecompressor

        view = byte_view(data)
        output = Output(max_size)
        decompressor = LZ4FrameDecompressor()
        position = 0
        frame_ended = False
        while position < len(view):
            piece = view[position : position + READ_SIZE]
            try:
                output.append(decompressor.decompress(piece, max_length=_WRITE_SIZE))
                while not (decompressor.needs_input or decompressor.eof):
                    output.append(decompressor.decompress(b"", max_length=_WRITE_SIZE))
            except RuntimeError as error:
                raise self._malformed(error) from error
            position += len(piece)
            frame_ended = decompressor.eof
            if frame_ended:
                position -= len(decompressor.unused_data or b"")
                decompressor = LZ4FrameDecompressor()
        if not frame_ended:
            raise self._malformed("it ends inside an LZ4 frame")
        return output.join()

    def compress_bound(self, size: int) -> int:
        return size + _FRAME_OVERHEAD + _BLOCK_OVERHEAD * (-(-size // _BLOCK_SIZE))
