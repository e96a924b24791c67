"""Kafka's compression types, one registry: ``codec("lz4")`` or ``codec(3)``.

Libraries are imported when a codec is first used.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioproducer.compression.base import Buffer as Buffer
from aioproducer.compression.base import Codec as Codec
from aioproducer.compression.gzip import GzipCodec
from aioproducer.compression.lz4 import Lz4Codec
from aioproducer.compression.snappy import SnappyCodec
from aioproducer.compression.zstd import ZstdCodec
from aioproducer.errors import ConfigurationError, ProtocolError


class NoneCodec(Codec):
    """``compression.type=none``."""

    id = 0
    name = "none"

    def load(self) -> None:
        """There is nothing to load."""

    def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
        if level is not None:
            self.validate_level(level)
        return b"".join(buffers)

    def decompress(self, data: Buffer, max_size: int | None = None) -> bytes:
        size = memoryview(data).nbytes
        if max_size is not None and size > max_size:
            raise ProtocolError(f"records are {size} bytes, more than the {max_size} allowed")
        return bytes(data)

    def compress_bound(self, size: int) -> int:
        return size


CODECS: tuple[Codec, ...] = (NoneCodec(), GzipCodec(), SnappyCodec(), Lz4Codec(), ZstdCodec())
"""Every codec, at the index that is its id."""

_BY_NAME = {each.name: each for each in CODECS}


def codec(name_or_id: str | int) -> Codec:
    """The codec of a ``compression.type``, or of the number in a batch's attributes.

    Raises:
        ConfigurationError: there is no compression type of this name.
        ProtocolError: there is none of this number.
    """
    if isinstance(name_or_id, str):
        if name_or_id not in _BY_NAME:
            raise ConfigurationError(
                f"compression type {name_or_id!r} does not exist; there are: {', '.join(_BY_NAME)}"
            )
        return _BY_NAME[name_or_id]
    if not 0 <= name_or_id < len(CODECS):
        raise ProtocolError(f"the compression type with id {name_or_id} does not exist")
    return CODECS[name_or_id]
