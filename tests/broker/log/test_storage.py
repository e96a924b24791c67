"""The storage under the logs: the same contract in memory and on disk, and what each does on its own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aioproducer.broker.log.storage as storage_module
from aioproducer.broker.log.storage import DirectoryStorage, MemoryFile, MemoryStorage, Storage, _OpenFiles
from aioproducer.errors import KafkaStorageError

Make = Callable[[], Storage]


@pytest.fixture(params=["memory", "disk"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    made: Storage = MemoryStorage() if request.param == "memory" else DirectoryStorage(tmp_path / "data" / "deep")
    made.make()
    return made


def test_a_file_grows_is_read_and_cut(storage: Storage) -> None:
    file = storage.open("a.log")
    file.append([b"hello ", bytearray(b"world")])
    file.append([b"!" * 10_000])
    assert file.size == 10_011
    assert b"".join(file.read(6, 5)) == b"world"
    assert bytes(file.peek(3, 10)) == b"lo world!!"
    assert b"".join(file.read(10_000, 1000)) == b"!" * 11
    assert file.read(10_011, 5) == []
    file.truncate(3)
    file.append([b"p"])
    assert storage.read("a.log") == b"help"
    file.sync()
    file.close()
    assert storage.open("a.log").size == 4


def test_small_files_are_replaced_and_patched(storage: Storage) -> None:
    assert storage.read("x") is None
    storage.replace("x", b"one", sync=True)
    storage.replace("x", b"two")
    assert storage.read("x") == b"two"
    storage.patch("x", 2, b"ofold", sync=True)
    assert storage.read("x") == b"twofold"
    storage.patch("x", 3, b"")
    assert storage.read("x") == b"two"
    assert storage.files() == ["x"]
    storage.open("x").append([b"!"])
    assert storage.read("x") == b"two!"
    storage.remove("x")
    storage.remove("x")
    assert storage.files() == []
    storage.sync()


def test_folders_are_made_renamed_and_removed(storage: Storage) -> None:
    folder = storage.sub("t-0")
    assert storage.folders() == []
    assert folder.files() == []
    folder.make()
    folder.open("f.log").append([b"x"])
    assert storage.folders() == ["t-0"]
    storage.rename_folder("t-0", "t-0.1-delete")
    assert storage.sub("t-0.1-delete").read("f.log") == b"x"
    storage.remove_folder("t-0.1-delete")
    assert storage.folders() == []
    with pytest.raises(OSError, match="t-0"):
        storage.rename_folder("t-0", "u-0")


def test_only_one_node_can_lock_a_storage(storage: Storage) -> None:
    storage.lock()
    other = storage if isinstance(storage, MemoryStorage) else DirectoryStorage(Path(storage.description))
    with pytest.raises(KafkaStorageError, match=r"is in use: another broker has locked its file \.lock"):
        other.lock()
    storage.unlock()
    other.lock()
    other.unlock()
    other.unlock()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.lists(st.integers(0, 9000), max_size=3)),
            st.tuples(st.just("truncate"), st.integers(0, 20_000)),
        ),
        max_size=12,
    ),
    st.integers(0, 30_000),
    st.integers(0, 30_000),
)
def test_memory_files_equal_a_bytearray_and_returned_bytes_never_change(
    steps: list[tuple[str, list[int] | int]], position: int, size: int
) -> None:
    file, model = MemoryFile(), bytearray()
    kept: list[tuple[list[bytes | bytearray | memoryview], bytes]] = []
    fill = 0
    for _, argument in steps:
        if isinstance(argument, list):
            buffers = []
            for count in argument:
                fill += 1
                buffers.append(bytes([fill % 256]) * count)
            file.append(buffers)
            model += b"".join(buffers)
        else:
            file.truncate(argument)
            del model[argument:]
        assert file.size == len(model)
        found = file.read(position, size)
        kept.append((found, b"".join(found)))
        assert kept[-1][1] == bytes(model[position : position + size])
        assert bytes(file.peek(position, size)) == kept[-1][1]
    for found, before in kept:
        assert b"".join(found) == before


def test_memory_keeps_large_buffers_and_copies_small_parts_of_large_ones() -> None:
    file = MemoryFile()
    large = bytearray(100_000)
    file.append([large])
    (view,) = file.read(0, 100_000)
    assert isinstance(view, memoryview)
    assert view.obj is large
    file.append([memoryview(bytearray(1_000_000))[:5000]])
    (view,) = file.read(100_000, 5000)
    assert isinstance(view, memoryview)
    assert len(view.obj) == 5000


def test_many_small_batches_are_few_objects() -> None:
    file = MemoryFile()
    for _ in range(5000):
        file.append([bytes(80)])
    assert len(file.read(0, file.size)) < 10


@pytest.mark.parametrize("can_cut", [True, False])
def test_a_partial_write_is_cut_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_cut: bool) -> None:
    file = DirectoryStorage(tmp_path).open("a.log")
    file.append([b"first"])
    write, cut = os.pwrite, os.ftruncate

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", lambda descriptor, buffers, position: write(descriptor, b"sec", position))
    monkeypatch.setattr(os, "pwrite", full)
    if not can_cut:
        monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(OSError, match="No space left"):
        file.append([b"second"])
    assert file.size == 5
    monkeypatch.undo()
    assert cut is os.ftruncate
    assert (tmp_path / "a.log").read_bytes() == (b"first" if can_cut else b"firstsec")
    file.append([b"!"])
    assert (tmp_path / "a.log").read_bytes() == b"first!"


def test_short_writes_and_many_buffers_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DirectoryStorage(tmp_path).open("a.log")
    write = os.pwrite
    monkeypatch.setattr(
        os, "pwritev", lambda descriptor, buffers, position: write(descriptor, b"".join(buffers)[:3], position)
    )
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, position: write(descriptor, data[:2], position))
    file.append([b"abcd", b"efgh"])
    monkeypatch.undo()
    file.append([b"%d" % (index % 10) for index in range(2000)])
    assert (tmp_path / "a.log").read_bytes() == b"abcdefgh" + b"0123456789" * 200


def test_few_files_are_open_however_many_there_are(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path, open_files=_OpenFiles(4))
    before = len(os.listdir("/proc/self/fd"))
    files = [storage.open(f"{index}.log") for index in range(30)]
    for index, file in enumerate(files):
        file.append([b"%d" % index])
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert [bytes(file.peek(0, 9)) for file in files] == [b"%d" % index for index in range(30)]
    for file in files:
        file.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("fails", [False, True])
def test_large_files_are_deleted_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    monkeypatch.setattr(storage_module, "SLOW_TO_REMOVE", 100)
    before = set(threading.enumerate())
    storage = DirectoryStorage(tmp_path)
    storage.open("a.log").append([bytes(101)])
    storage.sub("t-0.1-delete").make()
    storage.sub("t-0.1-delete").open("a.log").append([bytes(101)])
    if fails:
        monkeypatch.setattr(Path, "unlink", refuse)
        monkeypatch.setattr("shutil.rmtree", refuse)
    storage.remove("a.log")
    storage.remove_folder("t-0.1-delete")
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert storage.files() == (["a.log.deleted"] if fails else [])
    assert storage.folders() == (["t-0.1-delete"] if fails else [])
    assert caplog.text.count("deleted files remain on disk until the next start: [Errno 5]") == (2 if fails else 0)


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_sync_of_a_deleted_file_does_nothing(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "gone")
    storage.make()
    file = storage.open("a.log")
    storage.remove("a.log")
    thread = threading.Thread(target=file.sync)
    thread.start()
    thread.join()
    (tmp_path / "gone").rmdir()
    storage.sync()
    assert storage.files() == []


def test_memory_of_deleted_files_is_freed_in_pieces() -> None:
    storage = MemoryStorage()
    folder = storage.sub("t-0")
    folder.make()
    for name in ("a", "b"):
        folder.open(name).append([bytes(200_000) for _ in range(5)])
    small = folder.open("small")
    small.append([bytes(10_000)])
    opened = [folder.open(name) for name in ("a", "b")]
    folder.remove("a")
    storage.remove_folder("t-0")
    assert (storage.folders(), [file.size for file in opened]) == ([], [1_000_000, 1_000_000])
    left = []
    while storage.give_back(400_000):
        left.append(sum(file.size for file in opened))
    assert left == [1_600_000, 1_200_000, 800_000, 400_000]
    assert [file.size for file in opened] == [0, 0]
    assert not storage.give_back(1)


def test_give_back_does_nothing_on_disk(tmp_path: Path) -> None:
    assert not DirectoryStorage(tmp_path).give_back(1)
