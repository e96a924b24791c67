"""The small file system under the logs, on disk or in memory.

The same code runs on both, so a node in memory that was killed restarts like a node on disk. Written data are still
there, as in the page cache, and unwritten data are lost.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from aioproducer.compression.base import Buffer, size_of
from aioproducer.errors import KafkaStorageError

logger = logging.getLogger(__name__)

OPEN_FILES = 256
"""Maximum number of files that a directory storage keeps open; others are opened again when needed."""

LOCK_NAME = ".lock"
REMOVED_SUFFIX = ".deleted"

SLOW_TO_REMOVE = 4 * 1024 * 1024
"""Maximum size in bytes of a file on disk that is deleted at once; larger ones are renamed, and deleted in a thread."""

SLOW_TO_FREE = 64 * 1024
"""Maximum size in bytes of a file in memory that is freed at once; ``give_back`` frees larger ones."""

_CHUNK_SIZE = 64 * 1024
_SMALL = 4 * 1024
_MAX_WASTE = 8
_MAX_BUFFERS_PER_WRITE = 512


class LogFile(Protocol):
    """A segment's file. A failed append does not change ``size``."""

    size: int

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append ``buffers``. They may be kept, so the caller must not write to them afterwards."""

    def read(self, position: int, size: int) -> list[Buffer]:
        """Return the ``size`` bytes from ``position`` on, fewer at the end of the file."""

    def peek(self, position: int, size: int) -> Buffer:
        """Return the same as ``read``, in one piece."""

    def truncate(self, size: int) -> None:
        """Truncate the file, also bytes that a failed append may have left behind ``size``."""

    def sync(self) -> None:
        """Make written data survive a power loss. May run in another thread during appends."""

    def close(self) -> None:
        """Close the file's descriptor; a later use opens it again, and fails if the file was deleted or renamed."""


class Storage(Protocol):
    """A folder. Methods raise ``OSError`` where the disk failed."""

    @property
    def description(self) -> str:
        """The path, for error texts."""

    def sub(self, name: str) -> Storage:
        """Return the folder ``name`` in this one, which need not exist."""

    def make(self) -> None:
        """Create the folder if it does not exist."""

    def files(self) -> list[str]:
        """Return the names of the files in it, none if it does not exist."""

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""

    def read(self, name: str) -> bytes | None:
        """Return a whole small file, ``None`` if it does not exist."""

    def replace(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Replace the content of a small file by ``data``, completely or not at all."""

    def patch(self, name: str, position: int, data: bytes, *, sync: bool = False) -> None:
        """Write ``data`` at ``position`` of a file, and truncate the rest."""

    def open(self, name: str) -> LogFile:
        """Return a segment's file; it is created empty if it does not exist."""

    def remove(self, name: str) -> None:
        """Delete a file if it exists. On disk a large file is renamed, and deleted in a thread."""

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file, in place of one that has the new name. What ``open`` returned for either is not used again."""

    def rename_folder(self, name: str, new_name: str) -> None:
        """Rename the folder ``name`` in this one."""

    def remove_folder(self, name: str) -> None:
        """Delete the folder ``name`` in this one with its content; on disk, a large one in a thread."""

    def give_back(self, size: int) -> bool:
        """Free up to ``size`` bytes of deleted files, or one buffer; return whether there is more to free.

        Freeing large pieces of memory takes long, so memory is freed here in small ones.
        """

    def sync(self) -> None:
        """Make created, renamed and deleted names survive a power loss."""

    def lock(self) -> None:
        """Lock the folder for this node.

        Raises:
            KafkaStorageError: another node or process has locked it.
        """

    def unlock(self) -> None:
        """Unlock the folder, and close every file in it."""


class MemoryFile:
    """A list of buffers. Small ones are gathered in chunks: a thousand tiny batches are not a thousand objects.

    Bytes returned by ``read`` never change: written bytes are not overwritten, even after a truncation.
    """

    __slots__ = ("_chunk", "_chunk_used", "_pieces", "_starts", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[memoryview] = []
        self._starts: list[int] = []
        self._chunk: memoryview | None = None
        self._chunk_used = 0

    def append(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            view = memoryview(buffer)
            size = len(view)
            if size < _SMALL:
                self._append_small(view, size)
                continue
            owner = view.obj
            if isinstance(owner, bytes | bytearray) and len(owner) > _MAX_WASTE * size:
                view = memoryview(bytes(view))
            self._chunk = None
            self._pieces.append(view)
            self._starts.append(self.size)
            self.size += size

    def _append_small(self, view: memoryview, size: int) -> None:
        if not size:
            return
        chunk = self._chunk
        if chunk is None or self._chunk_used + size > _CHUNK_SIZE:
            chunk = self._chunk = memoryview(bytearray(_CHUNK_SIZE if self._pieces else _SMALL))
            self._chunk_used = 0
            self._pieces.append(chunk[:0])
            self._starts.append(self.size)
        end = self._chunk_used + size
        if end > len(chunk):
            # The first chunk of a file is small, as most partitions in most tests get only a few records.
            self._chunk = None
            self._append_small(view, size)
            return
        chunk[self._chunk_used : end] = view
        self._chunk_used = end
        self._pieces[-1] = chunk[:end]
        self.size += size

    def read(self, position: int, size: int) -> list[Buffer]:
        end = min(position + size, self.size)
        found: list[Buffer] = []
        index = bisect_right(self._starts, position) - 1
        while position < end:
            piece = self._pieces[index]
            start = self._starts[index]
            stop = min(end - start, len(piece))
            found.append(piece[position - start : stop])
            position = start + stop
            index += 1
        return found

    def peek(self, position: int, size: int) -> Buffer:
        found = self.read(position, size)
        return found[0] if len(found) == 1 else b"".join(found)

    def truncate(self, size: int) -> None:
        if size >= self.size:
            return
        while self._starts and self._starts[-1] >= size:
            self._starts.pop()
            self._pieces.pop()
        if self._pieces:
            self._pieces[-1] = self._pieces[-1][: size - self._starts[-1]]
        self._chunk = None
        self.size = size

    def give_back(self, size: int) -> bool:
        """Free the last ``size`` bytes, or a little more, of a deleted file; return whether something is left."""
        wanted = self.size - size
        while self._pieces and self.size > wanted:
            self.size -= len(self._pieces.pop())
        return bool(self._pieces)

    def sync(self) -> None:
        """Nothing in memory survives a power loss."""

    def close(self) -> None:
        """Nothing is open."""


class MemoryStorage:
    """A folder in memory. It outlives the node that wrote to it, like a disk."""

    def __init__(self, description: str = "memory", *, deleted: list[MemoryFile] | None = None) -> None:
        self.description = description
        self._files: dict[str, MemoryFile | bytes] = {}
        self._folders: dict[str, MemoryStorage] = {}
        self._deleted: list[MemoryFile] = [] if deleted is None else deleted
        """Large deleted files of all folders, which ``give_back`` frees."""
        self._exists = True
        self._is_locked = False

    def sub(self, name: str) -> MemoryStorage:
        if name not in self._folders:
            folder = self._folders[name] = MemoryStorage(f"{self.description}/{name}", deleted=self._deleted)
            folder._exists = False
        return self._folders[name]

    def make(self) -> None:
        self._exists = True

    def files(self) -> list[str]:
        return sorted(self._files)

    def folders(self) -> list[str]:
        return sorted(name for name, folder in self._folders.items() if folder._exists)

    def read(self, name: str) -> bytes | None:
        found = self._files.get(name)
        if isinstance(found, MemoryFile):
            return b"".join(found.read(0, found.size))
        return found

    def replace(self, name: str, data: bytes, *, sync: bool = False) -> None:
        self._files[name] = data

    def patch(self, name: str, position: int, data: bytes, *, sync: bool = False) -> None:
        self._files[name] = (self.read(name) or b"")[:position].ljust(position, b"\0") + data

    def open(self, name: str) -> MemoryFile:
        found = self._files.get(name)
        if isinstance(found, MemoryFile):
            return found
        opened = self._files[name] = MemoryFile()
        if found:
            opened.append([found])
        return opened

    def remove(self, name: str) -> None:
        found = self._files.pop(name, None)
        if isinstance(found, MemoryFile) and found.size > SLOW_TO_FREE:
            self._deleted.append(found)

    def rename(self, name: str, new_name: str) -> None:
        if name not in self._files:
            raise FileNotFoundError(f"{self.description}/{name} does not exist")
        self.remove(new_name)
        self._files[new_name] = self._files.pop(name)

    def rename_folder(self, name: str, new_name: str) -> None:
        if name not in self._folders:
            raise FileNotFoundError(f"{self.description}/{name} does not exist")
        folder = self._folders.pop(name)
        folder.description = f"{self.description}/{new_name}"
        self._folders[new_name] = folder

    def remove_folder(self, name: str) -> None:
        folder = self._folders.pop(name, None)
        if folder is not None:
            for file in tuple(folder._files):
                folder.remove(file)
            for inner in tuple(folder._folders):
                folder.remove_folder(inner)

    def give_back(self, size: int) -> bool:
        while self._deleted and size > 0:
            file = self._deleted[-1]
            before = file.size
            if not file.give_back(size):
                self._deleted.pop()
            size -= before - file.size
        return bool(self._deleted)

    def sync(self) -> None:
        """Nothing in memory survives a power loss."""

    def lock(self) -> None:
        if self._is_locked:
            raise _locked(self.description)
        self._is_locked = True

    def unlock(self) -> None:
        self._is_locked = False


class _OpenFiles:
    """File descriptors; the least recently used is closed at the limit. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def descriptor(self, path: Path, *, create: bool = False) -> int:
        found = self._descriptors.get(path)
        if found is not None:
            self._descriptors.move_to_end(path)
            return found
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        self._descriptors[path] = opened
        if len(self._descriptors) > self._limit:
            _, oldest = self._descriptors.popitem(last=False)
            os.close(oldest)
        return opened

    def close(self, path: Path) -> None:
        found = self._descriptors.pop(path, None)
        if found is not None:
            os.close(found)

    def close_under(self, folder: Path) -> None:
        # Of paths as text: with many open files the methods of Path take milliseconds.
        prefix = f"{folder}{os.sep}"
        for path in [path for path in self._descriptors if str(path).startswith(prefix)]:
            self.close(path)


class DiskFile:
    """A segment's file on disk; after ``append`` the bytes are in the page cache."""

    __slots__ = ("_open_files", "_path", "_torn", "size")

    def __init__(self, path: Path, open_files: _OpenFiles) -> None:
        self._path = path
        self._open_files = open_files
        self._torn = False
        self.size = os.fstat(open_files.descriptor(path, create=True)).st_size

    def append(self, buffers: Sequence[Buffer]) -> None:
        descriptor = self._open_files.descriptor(self._path)
        if self._torn:
            os.ftruncate(descriptor, self.size)
            self._torn = False
        size = size_of(buffers)
        try:
            self._write(descriptor, buffers, size)
        except OSError:
            self._torn = True
            self._mend(descriptor)
            raise
        self.size += size

    def _write(self, descriptor: int, buffers: Sequence[Buffer], size: int) -> None:
        if len(buffers) <= _MAX_BUFFERS_PER_WRITE:
            written = os.pwritev(descriptor, buffers, self.size)
            if written == size:
                return
        else:
            written = 0
        # A short write to a regular file means that the disk is nearly full: the next write raises.
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            count = os.pwrite(descriptor, rest, self.size + written)
            written += count
            rest = rest[count:]

    def _mend(self, descriptor: int) -> None:
        """Truncate the bytes of a failed write; if that fails as well, the next append tries again."""
        try:
            os.ftruncate(descriptor, self.size)
            self._torn = False
        except OSError:
            pass

    def read(self, position: int, size: int) -> list[Buffer]:
        found = self.peek(position, size)
        return [found] if found else []

    def peek(self, position: int, size: int) -> Buffer:
        size = min(size, self.size - position)
        if size <= 0:
            return b""
        return os.pread(self._open_files.descriptor(self._path), size, position)

    def truncate(self, size: int) -> None:
        if size < self.size or self._torn:
            os.ftruncate(self._open_files.descriptor(self._path), size)
            self.size = size
            self._torn = False

    def sync(self) -> None:
        _sync(self._path)

    def close(self) -> None:
        self._open_files.close(self._path)


class DirectoryStorage:
    """A folder on disk."""

    def __init__(self, path: Path, *, open_files: _OpenFiles | None = None) -> None:
        self._path = path
        self._open_files = _OpenFiles(OPEN_FILES) if open_files is None else open_files
        self._lock_descriptor = -1

    @property
    def description(self) -> str:
        return str(self._path)

    def sub(self, name: str) -> DirectoryStorage:
        return DirectoryStorage(self._path / name, open_files=self._open_files)

    def make(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)

    def _names(self, folders: bool) -> list[str]:
        try:
            with os.scandir(self._path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir() is folders)
        except FileNotFoundError:
            return []

    def files(self) -> list[str]:
        return self._names(False)

    def folders(self) -> list[str]:
        return self._names(True)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes, *, sync: bool = False) -> None:
        temporary = self._path / f"{name}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, self._path / name)
        if sync:
            self.sync()

    def patch(self, name: str, position: int, data: bytes, *, sync: bool = False) -> None:
        descriptor = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], position + written)
            os.ftruncate(descriptor, position + len(data))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open(self, name: str) -> DiskFile:
        return DiskFile(self._path / name, self._open_files)

    def remove(self, name: str) -> None:
        path = self._path / name
        self._open_files.close(path)
        try:
            is_large = path.stat().st_size > SLOW_TO_REMOVE
        except FileNotFoundError:
            return
        if not is_large:
            path.unlink()
            return
        deleted = path.with_name(f"{name}{REMOVED_SUFFIX}")
        os.replace(path, deleted)
        _in_background(deleted.unlink)

    def rename(self, name: str, new_name: str) -> None:
        path, new_path = self._path / name, self._path / new_name
        self._open_files.close(path)
        self._open_files.close(new_path)
        os.replace(path, new_path)

    def rename_folder(self, name: str, new_name: str) -> None:
        self._open_files.close_under(self._path / name)
        os.rename(self._path / name, self._path / new_name)

    def remove_folder(self, name: str) -> None:
        folder = self._path / name
        self._open_files.close_under(folder)
        with os.scandir(folder) as entries:
            size = sum(entry.stat().st_size for entry in entries)
        if size > SLOW_TO_REMOVE:
            _in_background(lambda: shutil.rmtree(folder))
        else:
            shutil.rmtree(folder)

    def give_back(self, size: int) -> bool:
        return False

    def sync(self) -> None:
        _sync(self._path)

    def lock(self) -> None:
        descriptor = os.open(self._path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _locked(self.description) from None
        self._lock_descriptor = descriptor

    def unlock(self) -> None:
        self._open_files.close_under(self._path)
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


class _Remover:
    """Deletes files in a thread, one after another, because the file system may take 100 ms for a gigabyte.

    The names of these files tell the next start to delete them, if this process ends before. The thread ends when
    nothing is left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_running = False

    def __call__(self, remove: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.append(remove)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="aioproducer-log-remover").start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                remove = self._waiting.popleft()
            try:
                remove()
            except OSError as error:
                logger.warning("deleted files remain on disk until the next start: %s", error)


_in_background = _Remover()


def _sync(path: Path) -> None:
    """Flush a file or folder to disk, if it exists.

    This opens its own descriptor, because it may run in another thread than the owner of the open files.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(description: str) -> KafkaStorageError:
    return KafkaStorageError(
        f"the data directory {description} is in use: another broker has locked its file {LOCK_NAME}. "
        f"Stop that broker, or use another directory for this one"
    )
