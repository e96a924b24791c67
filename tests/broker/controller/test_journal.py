"""The controller's journal: what survives, what is cut, what is refused."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from aioproducer.broker.controller.changes import ProducerIds, apply
from aioproducer.broker.controller.journal import FILE_NAME, Journal
from aioproducer.broker.image import BrokerRegistration, ClusterImage, PartitionState, TopicState
from aioproducer.broker.log import DirectoryStorage, MemoryStorage, Storage
from aioproducer.errors import KafkaStorageError

TOPIC_ID = bytes(range(16))


def _topic() -> TopicState:
    partition = PartitionState("a", TOPIC_ID, 0, [1, 2], [1], 1, leader_epoch=3, partition_epoch=7)
    return TopicState("a", TOPIC_ID, [partition], {"retention.ms": "1000"})


@pytest.fixture(params=["memory", "disk"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else DirectoryStorage(tmp_path)


def _begun(storage: Storage) -> tuple[Journal, ClusterImage]:
    journal = Journal(storage)
    image = journal.load("the-cluster")
    journal.compact(image)
    return journal, image


def _write(journal: Journal, image: ClusterImage) -> None:
    for changes in ([BrokerRegistration(1, "h", 9092, None, True, 5)], [_topic()], [ProducerIds(1000)]):
        journal.append(changes)
        apply(image, changes)
    journal.close()


def test_a_new_journal_is_an_empty_cluster_of_the_given_id(storage: Storage) -> None:
    assert Journal(storage).load("new") == ClusterImage("new")


def test_written_events_are_loaded(storage: Storage) -> None:
    journal, image = _begun(storage)
    _write(journal, image)
    loaded = Journal(storage).load("another")
    assert loaded == image
    assert loaded.cluster_id == "the-cluster"
    assert loaded.topics["a"] is loaded.topics_by_id[TOPIC_ID]


def test_a_journal_is_writable_after_loading_and_compacting(storage: Storage) -> None:
    journal, image = _begun(storage)
    _write(journal, image)
    journal = Journal(storage)
    image = journal.load("")
    journal.compact(image)
    lines = (storage.read(FILE_NAME) or b"").splitlines()
    assert len(lines) == 2
    journal.append([ProducerIds(2000)])
    journal.append([ProducerIds(3000)])
    journal.close()
    assert Journal(storage).load("").next_producer_id == 3000


def test_a_torn_tail_is_cut_with_a_warning(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    journal, image = _begun(storage)
    _write(journal, image)
    whole = storage.read(FILE_NAME) or b""
    last = whole.splitlines(keepends=True)[-1]
    for cut in range(1, len(last) + 1):
        torn = whole[: len(whole) - cut]
        storage.replace(FILE_NAME, torn)
        caplog.clear()
        loaded = Journal(storage).load("")
        assert loaded.next_producer_id == 0
        assert loaded.topics == image.topics
        assert storage.read(FILE_NAME) == whole[: -len(last)]
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        if cut < len(last):
            (warning,) = warnings
            assert f"ends with {len(last) - cut} bytes of an incomplete event" in warning.getMessage()
        else:
            assert not warnings


def test_a_changed_byte_before_the_tail_is_an_error(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    journal, image = _begun(storage)
    _write(journal, image)
    whole = storage.read(FILE_NAME) or b""
    refused = 0
    for position in range(0, len(whole) - 1, 3):
        if whole[position] == ord("\n"):
            continue
        storage.replace(FILE_NAME, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            loaded = Journal(storage).load("")
        except KafkaStorageError:
            refused += 1
        else:
            # The cluster's id is the one thing that no checksum covers: the folders of the nodes repeat it.
            assert loaded.cluster_id != image.cluster_id
    assert refused > len(whole) // 4


def test_the_error_for_a_corrupt_line_contains_the_remedy(storage: Storage) -> None:
    journal, image = _begun(storage)
    _write(journal, image)
    lines = (storage.read(FILE_NAME) or b"").splitlines(keepends=True)
    lines[2] = b"nonsense\n"
    storage.replace(FILE_NAME, b"".join(lines))
    with pytest.raises(KafkaStorageError, match=r"line 3 is corrupt .* Restore the file from a copy"):
        Journal(storage).load("")


@pytest.mark.parametrize("changes", [[{"topic_id": "AAAA", "removed": True}], [{"changed": {}}], [{}], 1])
def test_an_invalid_change_with_a_valid_checksum_is_an_error(changes: object) -> None:
    import zlib

    storage = MemoryStorage()
    _begun(storage)
    text = json.dumps(changes, separators=(",", ":"))
    line = f'{{"crc":{zlib.crc32(text.encode())},"changes":{text}}}\n'.encode()
    storage.replace(FILE_NAME, (storage.read(FILE_NAME) or b"") + line)
    with pytest.raises(KafkaStorageError, match="line 3 is corrupt"):
        Journal(storage).load("")


def test_a_journal_of_another_version_is_an_error() -> None:
    storage = MemoryStorage()
    storage.replace(FILE_NAME, b'{"version":2,"cluster_id":"x"}\n')
    with pytest.raises(KafkaStorageError, match="is of version 2; this version of aioproducer reads 1"):
        Journal(storage).load("")
    storage.replace(FILE_NAME, b'{"version":1,"cluster_id":7}\n')
    with pytest.raises(KafkaStorageError, match="line 1 is corrupt"):
        Journal(storage).load("")


def test_an_event_that_cannot_be_written_is_an_error_with_the_files_name() -> None:
    class FullFile:
        size = 0

        def append(self, buffers: Sequence[object]) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    class Full(MemoryStorage):
        def open(self, name: str) -> FullFile:  # type: ignore[override]  # of a file only what a journal uses
            return FullFile()

    journal = Journal(Full("the/folder"))
    with pytest.raises(KafkaStorageError, match=r"the/folder/controller.journal.*No space left"):
        journal.append([ProducerIds(1)])
    journal.close()
