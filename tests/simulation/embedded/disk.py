"""A disk in memory that can lose what was not synced.

Bytes that are appended to a segment are in the page cache until ``sync``: a node that is killed finds them again, a
node whose machine loses power may find some of them, up to any byte. Small files are replaced as a whole, and keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from aioproducer.broker.log.storage import MemoryFile, MemoryStorage
from aioproducer.compression.base import Buffer


class CachedFile(MemoryFile):
    """A segment's file, part of which is in the page cache only."""

    def __init__(self) -> None:
        super().__init__()
        self.synced = 0
        """Bytes that survive a power loss."""

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
    """A folder of that disk."""

    def sub(self, name: str) -> SimulatedDisk:
        found = self._folders.get(name)
        if found is None:
            found = SimulatedDisk(f"{self.description}/{name}", deleted=self._deleted)
            found._exists = False
            self._folders[name] = found
        assert isinstance(found, SimulatedDisk)
        return found

    def open(self, name: str) -> MemoryFile:
        found = self._files.get(name)
        if isinstance(found, MemoryFile):
            return found
        opened = CachedFile()
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
