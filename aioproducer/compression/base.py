"""What every codec offers, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from aioproducer.errors import ConfigurationError, ProtocolError

Buffer = bytes | bytearray | memoryview
"""What holds bytes: memory views must be contiguous."""

READ_SIZE = 64 * 1024
"""How many compressed bytes are given to a library at once, so that what it may make of them stays small."""


class Codec(ABC):
    """One of Kafka's compression types. A codec holds no state: several threads may use it at once."""

    id: int
    """The number in the attributes of a record batch."""
    name: str
    """The value of ``compression.type``."""
    levels: tuple[int, int] | None = None
    """The least and the greatest level, where the codec has levels."""
    default_level: int | None = None
    """The level Kafka's producer takes when none is configured; may lie outside ``levels`` (gzip's -1)."""
    package: str | None = None
    """What to ``pip install``, where the codec is not in the standard library."""

    @abstractmethod
    def load(self) -> None:
        """Import the library now, so that a missing one shows before the first batch.

        Raises:
            ConfigurationError: the library is not installed.
        """

    @abstractmethod
    def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
        """Compress ``buffers`` as if they were one, with ``level`` or the codec's default.

        The libraries release the GIL while they work, so that a large batch can be left to an executor thread.

        Raises:
            ConfigurationError: the library is not installed, or the codec has no such level.
        """

    @abstractmethod
    def decompress(self, data: Buffer, max_size: int | None = None) -> bytes:
        """What ``data`` decompresses to; ``max_size`` is the most bytes it may be.

        Memory is taken for what was decompressed, never for a size that the data claim.

        Raises:
            ProtocolError: the data are malformed, end too early, or are more than ``max_size`` bytes when decompressed.
            ConfigurationError: the library is not installed.
        """

    @abstractmethod
    def compress_bound(self, size: int) -> int:
        """The most bytes that ``size`` bytes can become, at any level."""

    def is_quick(self, level: int | None = None) -> bool:
        """Whether a few kibibytes take some tens of microseconds at most: less than it takes to wake a thread."""
        return True

    def validate_level(self, level: int) -> None:
        """Check that the codec has ``level``.

        Raises:
            ConfigurationError: it has not.
        """
        if self.levels is None:
            raise ConfigurationError(f"compression type {self.name} has no levels, but level {level} was given")
        least, greatest = self.levels
        if not least <= level <= greatest and level != self.default_level:
            default = "" if self.default_level is None else f" (default {self.default_level})"
            raise ConfigurationError(
                f"compression level {level} is not among those of {self.name}: {least} to {greatest}{default}"
            )

    def _level(self, level: int | None) -> int:
        """``level`` once checked, or the default."""
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
    """Decompressed chunks, and the check that they do not become too many bytes."""

    __slots__ = ("_chunks", "_max_size", "_size")

    def __init__(self, max_size: int | None) -> None:
        self._chunks: list[Buffer] = []
        self._size = 0
        self._max_size = max_size

    @property
    def room(self) -> int | None:
        """How many bytes may still come; None where there is no limit."""
        return None if self._max_size is None else self._max_size - self._size

    def expect(self, size: int) -> None:
        """Check that ``size`` more bytes are allowed.

        Raises:
            ProtocolError: they are not.
        """
        if self._max_size is not None and self._size + size > self._max_size:
            raise ProtocolError(f"compressed records are more than {self._max_size} bytes when decompressed")

    def append(self, chunk: Buffer) -> None:
        """Take ``chunk``.

        Raises:
            ProtocolError: with it there are too many bytes.
        """
        size = len(chunk)
        self.expect(size)
        self._size += size
        self._chunks.append(chunk)

    def join(self) -> bytes:
        """All chunks as one."""
        return b"".join(self._chunks)


def byte_view(data: Buffer) -> memoryview:
    """``data`` as a view of single bytes."""
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def joined(buffers: Sequence[Buffer]) -> Buffer:
    """All of ``buffers`` in one; copied only where there are several."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def size_of(buffers: Sequence[Buffer]) -> int:
    """How many bytes ``buffers`` are together."""
    return sum([memoryview(buffer).nbytes for buffer in buffers])


def blocks_of(buffers: Sequence[Buffer], block_size: int) -> Iterator[Buffer]:
    """The bytes of ``buffers`` in blocks of ``block_size``, the last one shorter.

    Only a block that lies in several buffers is copied; an empty one is never yielded.
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
