"""The log's files compared with Apache Kafka: its DumpLogSegments reads them, and each broker starts on the other's."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from aioproducer.broker.log import DirectoryStorage, Log, LogConfig
from aioproducer.wire.record_batch import SimpleRecord, encode_batch
from tests.kafka import dump, jars
from tests.kafka.cluster import KafkaCluster

NOW = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = 12
CONFIG = LogConfig(segment_bytes=8000, index_interval_bytes=700)


def write(folder: Path, *, log_append_time: bool = False, leaders: int = 5) -> Log:
    """Write by two producers in rotation, with every codec, several segments and leaders; close the log."""
    config = LogConfig(
        segment_bytes=CONFIG.segment_bytes,
        index_interval_bytes=CONFIG.index_interval_bytes,
        message_timestamp_type="LogAppendTime" if log_append_time else "CreateTime",
    )
    log = Log.open(DirectoryStorage(folder), config, topic="t", partition=0, wall_ms=lambda: NOW, clean=True)
    for index in range(100):
        records = [
            SimpleRecord(NOW + (index * 37) % 1000 + each, b"key", b"%d-%d" % (index, each) + b"x" * (index % 60))
            for each in range(RECORDS)
        ]
        batch = encode_batch(
            records,
            compression_type=CODECS[index % 5],
            producer_id=1000 + index % 2,
            producer_epoch=3,
            base_sequence=(index // 2) * RECORDS,
        )
        log.append_as_leader(bytearray().join(batch), index * leaders // 100)
    log.close(True)
    return log


def dumped(*files: Path) -> str:
    command = [jars.java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", f"{jars.resolve(jars.TOOLS)}/*", "org.apache.kafka.tools.DumpLogSegments", "--files"]
    run = subprocess.run(
        [*command, ",".join(map(str, files))], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def produce(cluster: KafkaCluster, codec: str, count: int) -> None:
    settings = {"enable.idempotence": True, "compression.type": codec, "linger.ms": 5}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    for index in range(count):
        producer.produce("t", b"%d" % index + bytes(200), timestamp=NOW + 5000 + index)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("log_append_time", [False, True])
def test_kafka_reads_every_file(tmp_path: Path, log_append_time: bool) -> None:
    log = write(tmp_path / "t-0", log_append_time=log_append_time)
    batches = dump.dump_log(tmp_path / "t-0")
    by_producer = {
        batch.producer_id: [each for each in batches if each.producer_id == batch.producer_id] for batch in batches
    }
    assert all(batch.valid for batch in batches)
    for found in by_producer.values():
        assert [batch.base_sequence for batch in found] == [index * RECORDS for index in range(50)]
    assert [batch.base_offset for batch in batches] == [index * RECORDS for index in range(100)]
    assert {each: len(found) for each, found in by_producer.items()} == {1000: 50, 1001: 50}
    assert {batch.codec for batch in batches} == set(CODECS)
    assert [batch.leader_epoch for batch in batches] == [index // 20 for index in range(100)]
    assert len(log.segment_base_offsets) > 3

    text = dumped(*sorted((tmp_path / "t-0").glob("*index")), *sorted((tmp_path / "t-0").glob("*.snapshot")))
    assert "ismatch" not in text
    assert "out of order" not in text
    assert "corrupt" not in text.lower()
    assert len(re.findall(r"^offset: \d+ position: \d+$", text, re.MULTILINE)) > 20
    assert len(re.findall(r"^timestamp: \d+ offset: \d+$", text, re.MULTILINE)) >= len(log.segment_base_offsets)
    snapshots = text.split("Dumping ")[-1]
    found = re.findall(r"producerId: (\d+) producerEpoch: (\d+) .*?lastSequence: (\d+) lastOffset: (\d+)", snapshots)
    last = {each[-1].producer_id: each[-1] for each in by_producer.values()}
    assert {tuple(map(int, each)) for each in found} == {
        (each.producer_id, 3, each.last_sequence, each.last_offset) for each in last.values()
    }


def test_each_broker_starts_on_the_files_of_the_other(tmp_path: Path) -> None:
    """After an unclean end each checks the other's log; the indexes that Kafka creates equal ours byte for byte."""
    cluster = KafkaCluster(1).start()
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        settings = {"segment.bytes": "1048576", "index.interval.bytes": str(CONFIG.index_interval_bytes)}
        cluster.create_topic("t", config=settings)
        produce(cluster, "none", 1)
        cluster.kill(1)
        folder = cluster.nodes[1].log_dir / "t-0"
        metadata = (folder / "partition.metadata").read_bytes()
        shutil.rmtree(folder)
        write(folder, leaders=1)
        (folder / "partition.metadata").write_bytes(metadata)
        ours = {path.name: path.read_bytes() for path in folder.iterdir()}

        cluster.restart(1)
        assert len(cluster.read_back("t")[0]) == 100 * RECORDS
        active = max(name for name in ours if name.endswith(".log"))[:20]
        for name, data in ours.items():
            if name.endswith((".log", "index")) and not name.startswith(active):
                assert (folder / name).read_bytes() == data, f"Kafka made another {name}"
        assert "0 0" in (folder / "leader-epoch-checkpoint").read_text().splitlines()
        for codec in CODECS:
            produce(cluster, codec, 3000)
        cluster.kill(1)
        batches = dump.dump_log(folder)
        shutil.copytree(folder, tmp_path / "t-0")

    assert re.fullmatch(rb"version: 0\ntopic_id: [\w-]{22}", metadata)
    storage = DirectoryStorage(tmp_path / "t-0")
    log = Log.open(storage, CONFIG, topic="t", partition=0, wall_ms=lambda: NOW, clean=False)
    end = 100 * RECORDS + len(CODECS) * 3000
    assert log.log_end_offset == end == batches[-1].last_offset + 1
    last = {batch.producer_id: batch for batch in batches}
    assert {
        producer_id: (state.producer_epoch, state.last_sequence, state.batches[-1].last_offset)
        for producer_id, state in log.producer_state.producers.items()
    } == {each.producer_id: (each.producer_epoch, each.last_sequence, each.last_offset) for each in last.values()}
    assert [entry.epoch for entry in log.leader_epochs.entries] == sorted({batch.leader_epoch for batch in batches})
    first_of_newest = 100 * RECORDS + 2999
    assert log.max_timestamp_offset() == (NOW + 7999, first_of_newest, batches[-1].leader_epoch)
