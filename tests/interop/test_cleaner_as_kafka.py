"""Apache Kafka's cleaner and this broker's, each on a copy of the same folder."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from aioproducer.broker.log import DirectoryStorage, Log, LogConfig
from aioproducer.broker.log.checkpoints import read_offsets, write_offsets
from aioproducer.broker.log.manager import CLEAN_SHUTDOWN, CLEANER_CHECKPOINT
from tests.broker.log.building import aborted, batch, end, producers, sequenced, stored
from tests.broker.log.cleaning import clean
from tests.kafka.cluster import KafkaCluster

pytestmark = [pytest.mark.interop, pytest.mark.soak]

TOPIC = "compacted"
SEGMENT_BYTES = 2000
CONFIG = LogConfig(
    segment_bytes=SEGMENT_BYTES,
    index_interval_bytes=200,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=1,
    min_cleanable_dirty_ratio=0.0,
    transaction_partition_verification_enable=False,
)
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "index.interval.bytes": "200",
    "delete.retention.ms": "1",
    "min.cleanable.dirty.ratio": "0.0",
}
CODECS = ("none", "none", "gzip", "lz4", "snappy", "zstd")


def opened(folder: Path) -> Log:
    return Log.open(
        DirectoryStorage(folder),
        CONFIG,
        topic=TOPIC,
        partition=0,
        wall_ms=lambda: int(time.time() * 1000),
        clean=True,
    )


class Writer:
    """Appends what a cleaner treats specially: tombstones, transactions, producers old and new, each codec."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def write(self, log: Log, count: int) -> None:
        for _ in range(count):
            self._write_one(log)
        for producer_id in sorted(self.open):
            end(log, committed=self.random.random() < 0.5, producer_id=producer_id)
        self.open.clear()
        base = log.active_base_offset
        while log.active_base_offset == base:
            # Fills the segment, so that all of the above can be cleaned.
            log.append_as_leader(batch(1, key=b"filler", timestamp=self._now()), 0)

    def _now(self) -> int:
        return int(time.time() * 1000) - self.random.randrange(5000)

    def _write_one(self, log: Log) -> None:
        choice = self.random.random()
        producer_id = 100 + self.random.randrange(6)
        fields: dict[str, Any] = {
            "key": b"key-%d" % self.random.randrange(8),
            "value": None if self.random.random() < 0.15 else self.random.randbytes(self.random.randrange(60)),
            "compression_type": self.random.choice(CODECS),
            "timestamp": self._now(),
        }
        count = self.random.randrange(1, 5)
        if choice < 0.35:
            log.append_as_leader(batch(count, **fields), 0)
        elif choice < 0.85:
            is_transactional = producer_id % 2 == 0
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + count
            records = sequenced(sequence, count, producer_id=producer_id, transactional=is_transactional, **fields)
            log.append_as_leader(records, 0)
            if is_transactional:
                self.open.add(producer_id)
        elif self.open:
            producer_id = self.random.choice(sorted(self.open))
            self.open.discard(producer_id)
            end(log, committed=self.random.random() < 0.5, producer_id=producer_id)


class KafkasCleaner:
    """An Apache Kafka that cleans a folder that was put into its own."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.node = cluster.nodes[1]
        self.folder = self.node.log_dir / f"{TOPIC}-0"
        client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        client.create_topics([NewTopic(TOPIC, 1, 1, config=TOPIC_CONFIG)])[TOPIC].result(30)
        deadline = time.monotonic() + 30
        while not (self.folder / "partition.metadata").exists():
            assert time.monotonic() < deadline, cluster.server_log(1)
            time.sleep(0.05)
        self.metadata = (self.folder / "partition.metadata").read_bytes()
        properties = self.node.properties_path.read_text()
        assert "log.cleaner.enable=false" in properties
        properties = properties.replace("log.cleaner.enable=false", "log.cleaner.enable=true")
        self.node.properties_path.write_text(f"{properties}log.cleaner.backoff.ms=50\n")
        cluster.kill(1)

    def clean(self, source: Path, cleaned_to: int | None, up_to: int) -> None:
        """Clean a copy of ``source``, of which the part below ``cleaned_to`` is clean already."""
        shutil.rmtree(self.folder)
        shutil.copytree(source, self.folder)
        (self.folder / "partition.metadata").write_bytes(self.metadata)
        storage = DirectoryStorage(self.node.log_dir)
        checkpoint = {} if cleaned_to is None else {(TOPIC, 0): cleaned_to}
        write_offsets(storage, CLEANER_CHECKPOINT, checkpoint)
        # Otherwise Kafka would rebuild the indexes, and forget aborted transactions whose records are gone.
        (self.node.log_dir / CLEAN_SHUTDOWN).write_text(json.dumps({"version": 0, "brokerEpoch": -1}))
        self.cluster.restart(1)
        deadline = time.monotonic() + 60
        while read_offsets(storage, CLEANER_CHECKPOINT).get((TOPIC, 0), 0) < up_to:
            assert time.monotonic() < deadline, self.cluster.server_log(1)
            time.sleep(0.05)
        self.cluster.kill(1)


@pytest.fixture
def kafka() -> Iterator[KafkasCleaner]:
    with KafkaCluster(1) as cluster:
        yield KafkasCleaner(cluster)


def records(folder: Path) -> list[tuple[Any, ...]]:
    """Each batch of a folder with its records; of a delete horizon, whether there is one."""
    log = opened(folder)
    found = [
        (
            each.base_offset,
            each.last_offset,
            each.attributes,
            each.max_timestamp,
            each.partition_leader_epoch,
            each.producer_id,
            each.producer_epoch,
            each.base_sequence,
            [(row.offset, row.timestamp, row.key, row.value, row.headers) for row in each.records()],
        )
        for each in stored(log)
    ]
    log.close(clean=False)
    return found


@pytest.mark.parametrize("seed", [38, 534])
def test_both_keep_the_same_records_markers_and_entries_in_the_same_segments(
    kafka: KafkasCleaner, tmp_path: Path, seed: int
) -> None:
    writer = Writer(seed)
    ours, common = tmp_path / "ours", tmp_path / "common"
    cleaned_to = None
    sizes = []
    for round_number in range(4):
        log = opened(ours)
        log.cleaned_to = cleaned_to
        writer.write(log, 60)
        active = log.active_base_offset
        log.close(clean=True)
        shutil.copytree(ours, common, dirs_exist_ok=False)
        log = opened(ours)
        log.cleaned_to = cleaned_to
        sizes.append(log.size)
        part = clean(log, int(time.time() * 1000))
        assert (part.end_offset, log.cleaned_to) == (active, active)
        bases, entries, known = log.segment_base_offsets, aborted(log), producers(log)
        sizes.append(log.size)
        log.close(clean=True)
        kafka.clean(common, cleaned_to, active)
        (kafka.folder / "partition.metadata").unlink()
        assert records(ours) == records(kafka.folder), f"round {round_number}"
        theirs = opened(kafka.folder)
        assert theirs.segment_base_offsets == bases, f"round {round_number}"
        assert aborted(theirs) == entries, f"round {round_number}"
        assert producers(theirs) == known, f"round {round_number}"
        theirs.close(clean=False)
        shutil.rmtree(common)
        cleaned_to = active
    assert all(after < before for before, after in zip(sizes[::2], sizes[1::2], strict=True)), sizes
