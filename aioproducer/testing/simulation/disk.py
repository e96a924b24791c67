"""A disk in memory that can be full, and lose what was not synced.

Bytes that are appended to a segment are in the page cache until ``sync``: a node that is killed finds them again, a
node whose machine loses power may find some of them, up to any byte. Small files are replaced as a whole, and keep.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

from aioproducer.broker.log.storage import MemoryFile, MemoryStorage
from aioproducer.compression.base import Buffer


class Space:
    """What the folders of one disk share."""

    def __init__(self) -> None:
        self.is_full = False

    def check(self) -> None:
        """Raise ``OSError`` if there is no space left."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


class CachedFile(MemoryFile):
    """A segment's file, part of which is in the page cache only."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._space = space
        self.synced = 0
        """Bytes that survive a power loss."""

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._space.check()
        super().append(buffers)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self.synced = min(self.synced, self.size)

    def sync(self) -> None:
        self.synced = self.size

    def lose_power(self, random: Random) -> int:
        """Lose a part of the unsynced bytes; return how many."""
        before = self.size
        self.truncate(random.randint(self.synced, self.size))
        return before - self.size


class SimulatedDisk(MemoryStorage):
    """A folder of that disk. Each node's folder is a disk of its own: ``space`` belongs to it and all folders below."""

    def __init__(
        self, description: str = "memory", *, deleted: list[MemoryFile] | None = None, space: Space | None = None
    ) -> None:
        super().__init__(description, deleted=deleted)
        self._is_machine = space is None
        self._space = space or Space()

    def set_full(self, is_full: bool) -> None:
        """Let there be no space left, or some again."""
        self._space.is_full = is_full

    def replace(self, name: str, data: bytes, *, sync: bool = False) -> None:
        self._space.check()
        super().replace(name, data, sync=sync)

    def patch(self, name: str, position: int, data: bytes, *, sync: bool = False) -> None:
        self._space.check()
        super().patch(name, position, data, sync=sync)

    def sub(self, name: str) -> SimulatedDisk:
        found = self._folders.get(name)
        if found is None:
            space = Space() if self._is_machine else self._space
            found = SimulatedDisk(f"{self.description}/{name}", deleted=self._deleted, space=space)
            found._exists = False
            self._folders[name] = found
        assert isinstance(found, SimulatedDisk)
        return found

    def open(self, name: str) -> MemoryFile:
        found = self._files.get(name)
        if isinstance(found, MemoryFile):
            return found
        opened = CachedFile(self._space)
        self._files[name] = opened
        if found:
            contents: Sequence[Buffer] = [found]
            opened.append(contents)
            opened.sync()
        return opened

    def lose_power(self, random: Random) -> int:
        """Lose unsynced bytes of every file in the folder and below; return how many."""
        lost = 0
        for _, file in sorted(self._files.items(), key=lambda item: item[0]):
            if isinstance(file, CachedFile):
                lost += file.lose_power(random)
        for _, folder in sorted(self._folders.items(), key=lambda item: item[0]):
            assert isinstance(folder, SimulatedDisk)
            lost += folder.lose_power(random)
        return lost
