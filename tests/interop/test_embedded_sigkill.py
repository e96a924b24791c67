"""An embedded broker on disk is killed repeatedly under load: acknowledged records are stored once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from aioproducer.errors import broker_error
from tests.kafka.dump import check_batches
from tests.kafka.embedded import EmbeddedProcess
from tests.kafka.ledger import Ledger, Place, verify

# Number of kills; ten times as many with `make soak`.
KILLS = 10 * int(os.environ.get("AIOPRODUCER_SOAK_ROUNDS", "1"))

PARTITIONS = 3

pytestmark = pytest.mark.timeout(60 + 20 * KILLS)


class Load:
    """Sends records by an idempotent producer, as fast as it accepts them."""

    def __init__(self, cluster: EmbeddedProcess, topic: str, sender: str) -> None:
        self.ledger = Ledger(sender)
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "queue.buffering.max.messages": 5000,
                "log_level": 0,
            }
        )

    def _told(self, error: KafkaError | None, message: Message) -> None:
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        if error is None:
            self.ledger.ack(value, Place(partition, message.offset()))
        else:
            self.ledger.fail(value, broker_error(error.code(), error.str()))

    def run(self, seconds: float) -> None:
        """Send for ``seconds``; wait while the producer's queue is full."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for _ in range(50):
                partition = self.ledger.sent % PARTITIONS
                value = self.ledger.next_value(200)
                while True:
                    try:
                        self._producer.produce(self._topic, value, partition=partition, on_delivery=self._told)
                        break
                    except BufferError:
                        self._producer.poll(0.01)
            self._producer.poll(0.002)

    def until_acked(self, count: int, timeout: float = 60) -> None:
        """Send until ``count`` further records are acknowledged."""
        target = len(self.ledger.acked) + count
        deadline = time.monotonic() + timeout
        while len(self.ledger.acked) < target:
            assert time.monotonic() < deadline, f"{len(self.ledger.acked)} of {target} acknowledged"
            assert not self.ledger.failed, next(iter(self.ledger.failed.values()))
            self.run(0.02)

    def finish(self) -> None:
        """Wait until every record has an outcome."""
        assert self._producer.flush(60) == 0


def _check_acked(load: Load, cluster: EmbeddedProcess, topic: str) -> None:
    """Check that all records acknowledged so far are stored; later ones may be stored or not."""
    acked = dict(load.ledger.acked)
    stored = cluster.read_back(topic, at_least=len(acked))
    places = {record.value: Place(partition, record.offset) for partition in stored for record in stored[partition]}
    assert sum(len(records) for records in stored.values()) == len(places), "a record is stored twice"
    lost = {value[:40]: place for value, place in acked.items() if places.get(value) != place}
    assert not lost, f"{len(lost)} acknowledged records are lost, e.g. {next(iter(lost.items()))}"


@pytest.mark.parametrize("nodes", [1, 3])
def test_acknowledged_records_survive_sigkill(nodes: int, topic: str) -> None:
    kills = KILLS if nodes == 1 else max(2, KILLS // 5)
    properties = {"min.insync.replicas": "1" if nodes == 1 else "2"}
    with EmbeddedProcess(nodes, on_disk=True, properties=properties) as cluster:
        cluster.create_topic(topic, PARTITIONS, config={"segment.bytes": "1048576", "index.interval.bytes": "4096"})
        load = Load(cluster, topic, "killed")
        for _ in range(kills):
            load.until_acked(500)
            cluster.kill()
            # The producer continues to send while the broker is down.
            load.run(0.05)
            cluster.start()
            _check_acked(load, cluster, topic)
        load.until_acked(500)
        load.finish()
        assert not load.ledger.failed
        verdict = verify(load.ledger, cluster.read_back(topic))
        assert verdict == (load.ledger.sent, load.ledger.sent, 0)
        assert cluster.terminate() == 0
        _check_logs(cluster, topic)
        # Also after a clean shutdown.
        cluster.start()
        assert verify(load.ledger, cluster.read_back(topic)) == verdict


def _check_logs(cluster: EmbeddedProcess, topic: str) -> None:
    for partition in range(PARTITIONS):
        folders = cluster.log_folders(topic, partition)
        assert len(folders) == len(cluster.ports)
        check_batches(cluster.dump_log(topic, partition))
        contents = {folder: _log_bytes(folder) for folder in folders}
        assert len(set(contents.values())) == 1, f"the replicas {[*contents]} are not the same"


def _log_bytes(folder: Path) -> bytes:
    """Return all segments of a replica joined, as replicas may split them at different offsets."""
    return b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.log")))
