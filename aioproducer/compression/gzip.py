"""gzip, by the standard library's zlib."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from aioproducer.compression.base import READ_SIZE, Buffer, Codec, Output, byte_view, joined

_GZIP_FORMAT = 16 + zlib.MAX_WBITS


class GzipCodec(Codec):
    """``compression.type=gzip``: one gzip member; reads several, as Java's ``GZIPInputStream``."""

    id = 1
    name = "gzip"
    levels = (1, 9)
    default_level = zlib.Z_DEFAULT_COMPRESSION

    def load(self) -> None:
        """zlib is there already."""

    def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
        return zlib.compress(joined(buffers), self._level(level), _GZIP_FORMAT)

    def decompress(self, data: Buffer, max_size: int | None = None) -> bytes:
        view = byte_view(data)
        output = Output(max_size)
        position = 0
        while True:
            decompressor = zlib.decompressobj(_GZIP_FORMAT)
            while not decompressor.eof:
                if position == len(view):
                    raise self._malformed("it ends inside a gzip member")
                piece = view[position : position + READ_SIZE]
                position += len(piece)
                try:
                    # A limit of 0 would mean none; one byte more than there is room for shows that there is too much.
                    output.append(decompressor.decompress(piece, 0 if output.room is None else output.room + 1))
                except zlib.error as error:
                    raise self._malformed(error) from error
            position -= len(decompressor.unused_data)
            if position == len(view):
                return output.join()

    def compress_bound(self, size: int) -> int:
        # zlib's own bound for the default window and memory, and a gzip header and trailer of 18 bytes.
        return size + (size >> 12) + (size >> 14) + (size >> 25) + 13 + 18
