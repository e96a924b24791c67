"""Transactions in logs compared with Apache Kafka: each broker reads, checks and continues the other's log."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from aioproducer.broker.log import AbortedTransaction, DirectoryStorage, Log, LogConfig
from aioproducer.wire.aborted_filter import AbortedFilter
from aioproducer.wire.record_batch import SimpleRecord, encode_batch, iter_batches
from tests.kafka import jars
from tests.kafka.cluster import KafkaCluster

CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=300)
# Kafka allows segments of less than 1 MiB only in its tests.
TOPIC = {"internal.segment.bytes": "3000", "index.interval.bytes": "300"}


def open_log(folder: Path, now_ms: int, *, clean: bool = True) -> Log:
    storage = DirectoryStorage(folder)
    return Log.open(storage, CONFIG, topic="t", partition=0, wall_ms=lambda: now_ms, clean=clean)


class Writer:
    """Writes transactions of three producers, by the rules of one version of them."""

    def __init__(self, log: Log, version: int, now_ms: int) -> None:
        self.log = log
        self.version = version
        self.now_ms = now_ms
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}

    def write(self, producer_id: int, *values: bytes) -> None:
        epoch, sequence = self.epochs.setdefault(producer_id, 0), self.sequences.get(producer_id, 0)
        records = encode_batch(
            [SimpleRecord(self.now_ms, None, value) for value in values],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        guard = self.log.begin_verification(producer_id, sequence, epoch, supports_epoch_bump=self.version == 2)
        self.log.append_as_leader(bytearray().join(records), 0, guard=guard)
        self.sequences[producer_id] = sequence + len(values)

    def end(self, producer_id: int, *, committed: bool) -> None:
        epoch = self.epochs[producer_id]
        if self.version == 2:
            epoch = self.epochs[producer_id] = epoch + 1
            self.sequences[producer_id] = 0
        self.log.append_marker(
            producer_id, epoch, 0, committed=committed, coordinator_epoch=7, transaction_version=self.version
        )


def write(folder: Path, version: int, now_ms: int) -> Log:
    """Write interleaved transactions over several segments; the last one of producer 1000 stays open."""
    chooser = random.Random(version)
    log = open_log(folder, now_ms)
    writer = Writer(log, version, now_ms)
    for number in range(200):
        producer_id = 1000 + chooser.randrange(3)
        if chooser.random() < 0.6:
            writer.write(producer_id, b"%d" % number, b"%d again" % number)
        elif producer_id in writer.epochs:
            writer.end(producer_id, committed=chooser.random() < 0.5)
    for producer_id in (1001, 1002):
        writer.end(producer_id, committed=True)
    writer.write(1000, b"open")
    writer.write(1001, b"behind")
    writer.end(1001, committed=True)
    return log


def committed_values(log: Log) -> list[bytes | None]:
    found = []
    offset, end = log.log_start_offset, log.last_stable_offset(log.log_end_offset)
    while offset < end:
        buffers, aborted = log.read_committed(offset, 700, up_to=end, min_one_batch=True)
        aborted_filter = AbortedFilter((each.first_offset, each.producer_id) for each in aborted)
        for batch in iter_batches(b"".join(buffers)):
            if not (aborted_filter.drops(batch) or batch.is_control):
                found += [record.value for record in batch.records() if record.offset >= offset]
            offset_behind = batch.next_offset
        offset = offset_behind
    return found


def dumped(*files: Path) -> str:
    command = [jars.java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", f"{jars.resolve(jars.TOOLS)}/*", "org.apache.kafka.tools.DumpLogSegments", "--files"]
    run = subprocess.run(
        [*command, ",".join(map(str, files))], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def read_committed(cluster: KafkaCluster) -> list[bytes]:
    """Return the values that confluent-kafka reads of committed transactions, up to the last stable offset."""

    def records(consumer: Consumer) -> Iterator[bytes]:
        while True:
            message = consumer.poll(20)
            assert message is not None, "nothing came for 20 s"
            if message.error() is None:
                yield message.value()
                continue
            assert message.error().name() == "_PARTITION_EOF", message.error()
            return

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        return list(records(consumer))
    finally:
        consumer.close()


@pytest.mark.parametrize("version", [1, 2])
def test_kafka_reads_the_indexes_and_snapshots_of_transactions(tmp_path: Path, version: int) -> None:
    log = write(tmp_path / "t-0", version, 1_700_000_000_000)
    entries = [each for segment in log._segments for each in segment.transaction_index]
    producers = log.producer_state.producers
    log.close(True)
    indexes = sorted((tmp_path / "t-0").glob("*.txnindex"))
    assert len(indexes) > 3
    text = dumped(*indexes)
    pattern = r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
    assert [AbortedTransaction(*map(int, each)) for each in re.findall(pattern, text)] == entries

    text = dumped(max((tmp_path / "t-0").glob("*.snapshot")))
    pattern = (
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\w+\[?\d*\]?|-?\d+)"
    )
    found = {int(each[0]): each[1:] for each in re.findall(pattern, text)}
    assert found.keys() == producers.keys()
    for producer_id, (epoch, coordinator_epoch, first_offset) in found.items():
        state = producers[producer_id]
        assert (int(epoch), int(coordinator_epoch)) == (state.producer_epoch, state.coordinator_epoch)
        first = re.search(r"\d+", first_offset)
        assert (int(first[0]) if first else -1) == state.current_transaction_first_offset
    assert producers[1000].has_transaction


def produce(cluster: KafkaCluster) -> None:
    """Transactions of two producers of librdkafka, every third one aborted."""
    producers = [
        Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name, "linger.ms": 0})
        for name in ("one", "two")
    ]
    for producer in producers:
        producer.init_transactions(30)
    for number in range(30):
        for producer in producers:
            producer.begin_transaction()
            producer.produce("t", b"%d" % number + bytes(40), partition=0)
            producer.flush(30)
        for index, producer in enumerate(producers):
            if (number + index) % 3:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)


@pytest.mark.parametrize("version", [1, 2])
def test_each_broker_continues_transactions_of_the_other(tmp_path: Path, version: int) -> None:
    """Kafka ends uncleanly each time, so both brokers check the log, and create equal indexes byte for byte."""
    cluster = KafkaCluster(1).start()
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.create_topic("t", config=TOPIC)
        produce(cluster)
        # Until all transactions have their markers: EndTxn is answered before.
        cluster.read_back("t", committed=True)
        theirs = read_committed(cluster)
        cluster.kill(1)
        folder = cluster.nodes[1].log_dir / "t-0"
        shutil.copytree(folder, tmp_path / "t-0")
        now_ms = int((folder / "partition.metadata").stat().st_mtime * 1000)

        log = open_log(tmp_path / "t-0", now_ms, clean=False)
        assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset
        assert committed_values(log) == theirs
        indexes = sorted(folder.glob("*.txnindex"))
        assert sum(path.stat().st_size for path in indexes) == 20 * 34
        for path in indexes:
            assert (tmp_path / "t-0" / path.name).read_bytes() == path.read_bytes()
        log.close(False)

        metadata = (folder / "partition.metadata").read_bytes()
        shutil.rmtree(folder)
        log = write(folder, version, now_ms)
        wanted, end = committed_values(log), log.log_end_offset
        assert log.last_stable_offset(end) < end
        log.close(True)
        (folder / "partition.metadata").write_bytes(metadata)
        ours = {path.name: path.read_bytes() for path in folder.glob("*.txnindex")}
        (folder.parent / "recovery-point-offset-checkpoint").unlink()
        cluster.restart(1)
        assert read_committed(cluster) == wanted
        for name, data in ours.items():
            assert (folder / name).read_bytes() == data, f"Kafka made another {name}"
        assert ours.keys() == {path.name for path in folder.glob("*.txnindex") if path.stat().st_size}
