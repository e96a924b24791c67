"""Registry of Kafka's compression types: ``codec("lz4")`` or ``codec(3)``.

Codecs are imported when they are first requested, and their libraries when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from aioproducer.compression.base import Buffer as Buffer
from aioproducer.compression.base import Codec as Codec
from aioproducer.errors import ConfigurationError, ProtocolError

if TYPE_CHECKING:
    CODECS: tuple[Codec, ...]
    """Every codec, at the index that is its id."""


class NoneCodec(Codec):
    """``compression.type=none``."""

    id = 0
    name = "none"

    def load(self) -> None:
        """Nothing to do."""

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


def _gzip() -> Codec:
    from aioproducer.compression.gzip import GzipCodec

    return GzipCodec()


def _snappy() -> Codec:
    from aioproducer.compression.snappy import SnappyCodec

    return SnappyCodec()


def _lz4() -> Codec:
    from aioproducer.compression.lz4 import Lz4Codec

    return Lz4Codec()


def _zstd() -> Codec:
    from aioproducer.compression.zstd import ZstdCodec

    return ZstdCodec()


# Both in the order of the ids.
_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_MAKERS: tuple[Callable[[], Codec], ...] = (NoneCodec, _gzip, _snappy, _lz4, _zstd)


@cache
def _codec(codec_id: int) -> Codec:
    return _MAKERS[codec_id]()


def codec(name_or_id: str | int) -> Codec:
    """Return the codec of a ``compression.type``, or of the number in a batch's attributes.

    Raises:
        ConfigurationError: there is no compression type with this name.
        ProtocolError: there is none with this number.
    """
    if isinstance(name_or_id, str):
        if name_or_id not in _NAMES:
            raise ConfigurationError(f"unknown compression type {name_or_id!r}: use one of {', '.join(_NAMES)}")
        return _codec(_NAMES.index(name_or_id))
    if not 0 <= name_or_id < len(_MAKERS):
        raise ProtocolError(f"unknown compression type id {name_or_id}")
    return _codec(name_or_id)


def __getattr__(name: str) -> tuple[Codec, ...]:
    if name != "CODECS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return tuple(_codec(codec_id) for codec_id in range(len(_MAKERS)))
