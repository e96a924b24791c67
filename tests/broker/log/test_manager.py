"""One node's data directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from aioproducer.broker.log import DirectoryStorage, LogConfig, LogManager, MemoryStorage, Storage
from aioproducer.errors import InconsistentClusterIdError, InconsistentTopicIdError, KafkaStorageError
from tests.broker.log.building import NOW, Fault, FaultyStorage, batch, content, sequenced

TOPIC_ID = bytes(range(16))
Make = Callable[[], Storage]


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """The same directory, as a process after a restart would see it."""
    memory = MemoryStorage()
    return lambda: memory if request.param == "memory" else DirectoryStorage(tmp_path / "data")


def manager(storage: Storage, *, node_id: int = 1, cluster_id: str = "cluster", load: bool = True) -> LogManager:
    made = LogManager(
        storage,
        node_id=node_id,
        cluster_id=cluster_id,
        config_for=lambda topic: LogConfig(segment_bytes=300 if topic == "small" else 10_000),
        wall_ms=lambda: NOW,
    )
    if load:
        made.load()
    return made


@pytest.mark.parametrize("clean", [True, False])
def test_logs_survive_a_restart(make: Make, clean: bool) -> None:
    node = manager(make())
    assert node.logs == {}
    log = node.get_or_create("my-topic-1", 2, TOPIC_ID)
    assert node.get_or_create("my-topic-1", 2, TOPIC_ID) is log
    for index in range(5):
        log.append_as_leader(sequenced(2 * index, 2), 0)
    log.advance_log_start_offset(3)
    node.checkpoint({("my-topic-1", 2): 8, ("unknown", 0): 5})
    make().sub("lost+found").make()
    node.get_or_create("small", 0, bytes(16)).append_as_leader(batch(), 0)
    written = content(log)
    node.close(clean, {("my-topic-1", 2): 9})
    node.close(clean)
    assert (make().read(".kafka_cleanshutdown") is not None) == clean

    again = manager(make())
    assert make().read(".kafka_cleanshutdown") is None
    assert again.logs.keys() == {("my-topic-1", 2), ("small", 0)}
    found = again.logs["my-topic-1", 2]
    assert (found.log_start_offset, found.log_end_offset) == (3, 10)
    assert found.recovery_point == (10 if clean else 0)
    assert content(found) == written
    assert again.topic_id_of("my-topic-1", 2) == TOPIC_ID
    assert again.topic_id_of("my-topic-1", 3) is None
    assert again.high_watermark("my-topic-1", 2) == (9 if clean else 8)
    assert again.high_watermark("small", 0) == 0
    assert again.high_watermark("unknown", 0) == 0
    assert found.append_as_leader(sequenced(8, 2), 0).is_duplicate
    again.close(True)


def test_the_small_files_are_kafkas(tmp_path: Path) -> None:
    node = manager(DirectoryStorage(tmp_path), node_id=7, cluster_id="MkU3OEVBNTcwNTJENDM2Qg")
    log = node.get_or_create("t", 0, TOPIC_ID)
    for _ in range(4):
        log.append_as_leader(batch(), 0)
    log.advance_log_start_offset(2)
    node.close(True, {("t", 0): 3})
    assert (tmp_path / "t-0" / "partition.metadata").read_text() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 4\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 3\n"
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version": 0, "brokerEpoch": -1}'
    assert re.fullmatch(
        r"#\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=7\ndirectory.id=[\w-]{22}\n",
        (tmp_path / "meta.properties").read_text(),
    )
    assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000004.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


def test_a_recreated_topic_does_not_get_the_old_log(make: Make) -> None:
    node = manager(make())
    node.get_or_create("t", 0, TOPIC_ID).append_as_leader(batch(3), 0)
    with pytest.raises(InconsistentTopicIdError, match=r"t-0 belongs to topic id AAECAwQFBgcICQoLDA0ODw, not A{22}"):
        node.get_or_create("t", 0, bytes(16))
    node.delete("t", 0)
    node.delete("t", 0)
    (left,) = make().folders()
    assert left.endswith("-delete")
    log = node.get_or_create("t", 0, bytes(16))
    assert (log.log_end_offset, node.high_watermark("t", 0)) == (0, 0)
    while node.give_back(1):
        pass
    assert make().folders() == ["t-0"]
    node.close(False)
    assert not node.give_back(1)


@pytest.mark.parametrize("restarts", [False, True])
def test_offsets_of_a_deleted_log_do_not_apply_to_a_new_one_of_its_name(make: Make, restarts: bool) -> None:
    """The node is killed before the next checkpoints. The new log lost all records below the old one's start."""
    node = manager(make())
    log = node.get_or_create("t", 0, TOPIC_ID)
    for _ in range(20):
        log.append_as_leader(batch(), 0)
    log.cleaned_to = 9
    log.advance_log_start_offset(15)
    log.flush()
    node.checkpoint({("t", 0): 20})
    node.delete("t", 0)
    if restarts:
        node.close(False)
        node = manager(make())
    log = node.get_or_create("t", 0, bytes(16))
    assert (log.cleaned_to, node.high_watermark("t", 0)) == (None, 0)
    for _ in range(10):
        log.append_as_leader(batch(), 0)
    written = content(log)
    node.close(False)
    node = manager(make())
    log = node.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset, content(log)) == (0, 10, written)
    assert (log.recovery_point, log.cleaned_to, node.high_watermark("t", 0)) == (0, None, 0)
    node.close(True)


def test_a_log_is_not_created_while_offsets_of_a_deleted_one_cannot_be_removed(make: Make) -> None:
    fault = Fault()
    node = manager(FaultyStorage(make(), fault))
    node.get_or_create("t", 0, TOPIC_ID).append_as_leader(batch(), 0)
    node.checkpoint({("t", 0): 1})
    node.delete("t", 0)
    fault.arm(0)
    with pytest.raises(KafkaStorageError, match="cannot write the checkpoints of"):
        node.get_or_create("t", 0, bytes(16))
    assert "t-0" not in make().folders()
    assert node.get_or_create("t", 0, bytes(16)).log_end_offset == 0
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert b"t 0" not in (make().read(name) or b"")
    node.close(False)


def test_an_interrupted_deletion_is_completed_at_the_next_start(make: Make) -> None:
    node = manager(make())
    node.get_or_create("t" * 249, 0, TOPIC_ID).append_as_leader(batch(), 0)
    node.close(True)
    fault = Fault()
    node = manager(FaultyStorage(make(), fault))
    node.delete("t" * 249, 0)
    fault.arm(0)
    with pytest.raises(KafkaStorageError, match="cannot delete a log in the data directory"):
        node.give_back(1)
    node.close(False)
    (left,) = make().folders()
    assert left.endswith("-delete")
    assert len(left) <= 255
    node = manager(make())
    assert (node.logs, make().folders()) == ({}, [])
    node.close(True)


def test_a_directory_of_another_cluster_or_node_is_an_error(make: Make) -> None:
    manager(make()).close(True)
    with pytest.raises(InconsistentClusterIdError, match="belongs to cluster 'cluster', and this broker to 'other'"):
        manager(make(), cluster_id="other")
    with pytest.raises(KafkaStorageError, match="belongs to node 1, and this is node 2"):
        manager(make(), node_id=2)
    make().replace("meta.properties", b"version=0\nbroker.id=1\n")
    with pytest.raises(KafkaStorageError, match="is not of version 1"):
        manager(make())
    make().replace("meta.properties", b"")
    manager(make()).close(True)


def test_a_second_manager_of_a_directory_is_an_error(make: Make) -> None:
    first = manager(make())
    with pytest.raises(KafkaStorageError, match="is in use"):
        manager(make())
    first.close(False)
    manager(make()).close(True)


def test_a_closed_manager_rejects_calls(make: Make) -> None:
    node = manager(make())
    log = node.get_or_create("t", 0, TOPIC_ID)
    node.close(False)
    for use in (
        lambda: node.get_or_create("u", 0, TOPIC_ID),
        lambda: node.delete("t", 0),
        lambda: node.checkpoint({}),
        lambda: log.append_as_leader(batch(), 0),
    ):
        with pytest.raises(KafkaStorageError, match="is closed"):
            use()
    manager(make(), load=False).close(True)


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"]
)
@pytest.mark.parametrize("data", [b"nonsense", b"0\n1\nt 0\n", b"0\n1\nt zero 0\n", b"0\n9\nt 0 0\n"])
def test_corrupt_checkpoints_are_logged_and_ignored(
    make: Make, name: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    node = manager(make())
    node.get_or_create("t", 0, TOPIC_ID).append_as_leader(batch(4), 0)
    node.close(False)
    make().replace(name, data)
    node = manager(make())
    assert node.logs["t", 0].log_end_offset == 4
    assert name in caplog.text
    node.close(True)


@pytest.mark.parametrize("clean", [True, False])
def test_no_file_is_left_open(tmp_path: Path, clean: bool) -> None:
    before = os.listdir("/proc/self/fd")
    node = manager(DirectoryStorage(tmp_path))
    for index in range(5):
        log = node.get_or_create("small", index, TOPIC_ID)
        for _ in range(5):
            log.append_as_leader(batch(value=bytes(100)), 0)
    node.delete("small", 3)
    node.close(clean)
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(KafkaStorageError, match="is closed"):
        log.read(0, 1, up_to=5, min_one_batch=True)
    (tmp_path / "small-4" / "partition.metadata").write_text("nonsense")
    node = manager(DirectoryStorage(tmp_path), load=False)
    with pytest.raises(KafkaStorageError, match="has no topic id"):
        node.load()
    assert node.logs == {}
    assert os.listdir("/proc/self/fd") == before


def test_corrupt_partition_metadata_is_an_error(make: Make) -> None:
    node = manager(make())
    node.get_or_create("t", 0, TOPIC_ID)
    node.get_or_create("u", 0, TOPIC_ID)
    node.close(True)
    make().sub("u-0").replace("partition.metadata", b"")
    node = manager(make())
    assert node.topic_id_of("u", 0) is None
    node.get_or_create("u", 0, bytes(16))
    assert node.topic_id_of("u", 0) == bytes(16)
    node.close(True)
    make().sub("t-0").replace("partition.metadata", b"version: 1\n")
    with pytest.raises(KafkaStorageError, match=r"t-0/partition.metadata has no topic id: b'version: 1"):
        manager(make())


def test_a_truncation_is_checkpointed_before_it_happens(make: Make) -> None:
    node = manager(make())
    log = node.get_or_create("small", 0, TOPIC_ID)
    for _ in range(6):
        log.append_as_leader(batch(value=bytes(100)), 0)
    log.flush()
    node.checkpoint({})
    log.truncate_to(2)
    assert b"small 0 2\n" in (make().read("recovery-point-offset-checkpoint") or b"")
    node.close(False)


def test_an_end_with_a_failed_flush_is_not_marked_as_clean(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    fault = Fault()
    node = manager(FaultyStorage(make(), fault))
    for index in range(2):
        node.get_or_create("t", index, TOPIC_ID).append_as_leader(batch(5), 0)
    fault.arm(3)
    with pytest.raises(KafkaStorageError, match="of t-0"):
        node.close(True, {})
    assert "cannot close the log of t-0" in caplog.text
    assert make().read(".kafka_cleanshutdown") is None
    node = manager(make())
    assert [log.log_end_offset for log in node.logs.values()] == [5, 5]
    assert node.logs["t", 1].recovery_point == 5
    node.close(True)


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(KafkaStorageError, match=r"cannot open the data directory .*file/data"):
        manager(DirectoryStorage(tmp_path / "file" / "data"))
