"""The interface of codecs, and their common parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from aioproducer.errors import ConfigurationError, ProtocolError

Buffer = bytes | bytearray | memoryview
"""A bytes-like object; memory views must be contiguous."""

READ_SIZE = 64 * 1024
"""Compressed bytes that are passed to a library at once, so that their decompressed size stays small."""


class Codec(ABC):
    """One of Kafka's compression types. A codec holds no state: several threads may use it at once."""

    id: int
    """The number in the attributes of a record batch."""
    name: str
    """The value of ``compression.type``."""
    levels: tuple[int, int] | None = None
    """The least and the greatest level, if the codec has levels."""
    default_level: int | None = None
    """The default level of Kafka's producer; may be outside ``levels`` (gzip's -1)."""
    package: str | None = None
    """The package to ``pip install``, if the codec is not in the standard library."""

    @abstractmethod
    def load(self) -> None:
        """Import the library now, so that a missing one is found before the first batch.

        Raises:
            ConfigurationError: the library is not installed.
        """

    @abstractmethod
    def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
        """Compress ``buffers`` as if they were one, with ``level`` or the codec's default.

        The libraries release the GIL while they work, so a large batch can be compressed in an executor thread.

        Raises:
            ConfigurationError: the library is not installed, or the codec has no such level.
        """

    @abstractmethod
    def decompress(self, data: Buffer, max_size: int | None = None) -> bytes:
        """Decompress ``data``, to at most ``max_size`` bytes.

        Memory is allocated for decompressed bytes, never for a size stated in the data.

        Raises:
            ProtocolError: the data are malformed or incomplete, or have more than ``max_size`` bytes when decompressed.
            ConfigurationError: the library is not installed.
        """

    @abstractmethod
    def compress_bound(self, size: int) -> int:
        """Return the maximum compressed size of ``size`` bytes, at any level."""

    def is_quick(self, level: int | None = None) -> bool:
        """Whether a few kibibytes take at most some tens of microseconds: less than waking a thread."""
        return True

    def validate_level(self, level: int) -> None:
        """Check that the codec has ``level``.

        Raises:
            ConfigurationError: it does not.
        """
        if self.levels is None:
            raise ConfigurationError(f"compression type {self.name} has no levels: leave out level {level}")
        least, greatest = self.levels
        if not least <= level <= greatest and level != self.default_level:
            default = "" if self.default_level is None else f" (default {self.default_level})"
            raise ConfigurationError(
                f"compression level {level} is invalid for {self.name}: use {least} to {greatest}{default}"
            )

    def _level(self, level: int | None) -> int:
        """Return ``level`` after the check, or the default."""
        if level is None:
            if self.default_level is None:
                raise AssertionError(f"{self.name} has no levels")
            return self.default_level
        self.validate_level(level)
        return level

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"compression type {self.name} needs the Python package {self.package!r}, which is not installed: "
            f"pip install {self.package}"
        )

    def _malformed(self, why: object) -> ProtocolError:
        return ProtocolError(f"{self.name} data cannot be decompressed: {why}")

    def __repr__(self) -> str:
        return f"<codec {self.name}>"


class Output:
    """Collects decompressed chunks, and limits their size."""

    __slots__ = ("_chunks", "_max_size", "_size")

    def __init__(self, max_size: int | None) -> None:
        self._chunks: list[Buffer] = []
        self._size = 0
        self._max_size = max_size

    @property
    def room(self) -> int | None:
        """Bytes that may still be added; ``None`` without a limit."""
        return None if self._max_size is None else self._max_size - self._size

    def expect(self, size: int) -> None:
        """Check that ``size`` more bytes are allowed.

        Raises:
            ProtocolError: they would exceed the limit.
        """
        if self._max_size is not None and self._size + size > self._max_size:
            raise ProtocolError(f"compressed records are more than {self._max_size} bytes when decompressed")

    def append(self, chunk: Buffer) -> None:
        """Add ``chunk``.

        Raises:
            ProtocolError: it exceeds the limit.
        """
        size = len(chunk)
        self.expect(size)
        self._size += size
        self._chunks.append(chunk)

    def join(self) -> bytes:
        """Return all chunks as one."""
        return b"".join(self._chunks)


def byte_view(data: Buffer) -> memoryview:
    """Return ``data`` as a view of single bytes."""
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def joined(buffers: Sequence[Buffer]) -> Buffer:
    """Return all ``buffers`` as one; they are copied only if there are several."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def size_of(buffers: Sequence[Buffer]) -> int:
    """Return the size of all ``buffers`` in bytes."""
    return sum([memoryview(buffer).nbytes for buffer in buffers])


def blocks_of(buffers: Sequence[Buffer], block_size: int) -> Iterator[Buffer]:
    """Yield the bytes of ``buffers`` in blocks of ``block_size``, the last one shorter.

    Only a block from several buffers is copied; an empty one is never yielded.
    """
    pending = bytearray()
    for buffer in buffers:
        view = byte_view(buffer)
        position = 0
        if pending:
            position = min(block_size - len(pending), len(view))
            pending += view[:position]
            if len(pending) == block_size:
                yield pending
                pending = bytearray()
        while len(view) - position >= block_size:
            yield view[position : position + block_size]
            position += block_size
        pending += view[position:]
    if pending:
        yield pending
