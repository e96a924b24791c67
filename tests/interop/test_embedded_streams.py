"""Kafka Streams with exactly_once_v2 on the embedded broker: every value is counted once, whatever is killed."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.kafka import jars
from tests.kafka.consuming import StoredRecord
from tests.kafka.embedded import EmbeddedProcess
from tests.kafka.program import Bounced, Program, Watcher

# Bounces of the broker, and of each instance.
BOUNCES: Final = max(3, int(os.environ.get("AIOPRODUCER_SOAK_ROUNDS", "1")))

PARTITIONS: Final = 4
INSTANCES: Final = 2
BETWEEN: Final = 5000
"""Values that are sent before each bounce, and after the last."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(240 + 90 * BOUNCES)]


def _instance(cluster: EmbeddedProcess, topic: str, store: str, folder: Path) -> Program:
    command = [jars.java(), "-Xmx256m", *jars.SHORT_LIVED, "-cp", f"{jars.resolve(jars.STREAMS)}/*"]
    command += [str(Path(__file__).with_name("Counting.java")), cluster.bootstrap_servers, topic, f"{topic}-counts"]
    command += [topic, str(folder), store]
    return Program(command, folder.with_suffix(".log"))


def _send(producer: Producer, topic: str, chance: random.Random, counts: Counter[bytes]) -> None:
    for _ in range(BETWEEN):
        value = b"value-%d" % chance.randrange(50)
        counts[value] += 1
        producer.produce(topic, value, partition=chance.randrange(PARTITIONS))
    producer.poll(0)


def _check(counts: Mapping[bytes, int], stored: Mapping[int, Sequence[StoredRecord]]) -> None:
    """Check that the records of each value are 1, 2 and so on up to its count, in one partition."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    for partition, records in stored.items():
        for record in records:
            assert record.key is not None
            assert record.value is not None
            found.setdefault(record.key, []).append((partition, int(record.value)))
    assert found.keys() == counts.keys()
    for value, count in counts.items():
        numbers = [number for _, number in found[value]]
        wrong = next((place for place, number in enumerate(numbers, 1) if place != number), None)
        assert wrong is None, f"{value!r}: count {numbers[wrong - 1]} where {wrong} should be"
        assert len(numbers) == count, f"{value!r} was counted {len(numbers)} times of {count}"
        assert len({partition for partition, _ in found[value]}) == 1


@pytest.mark.parametrize("how", ["hard", "clean"])
@pytest.mark.parametrize("store", ["rocksdb", "in-memory"])
def test_every_value_is_counted_once(store: str, how: str, topic: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    counts: Counter[bytes] = Counter()
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedProcess(3, on_disk=True, properties={"min.insync.replicas": "2"}))
        cluster.create_topic(topic, PARTITIONS)
        cluster.create_topic(f"{topic}-counts", PARTITIONS)
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        watcher = stack.enter_context(Watcher(cluster.bootstrap_servers, f"{topic}-counts", PARTITIONS))
        instances = [
            stack.enter_context(_instance(cluster, topic, store, tmp_path / f"instance-{number}"))
            for number in range(INSTANCES)
        ]
        for _ in range(BOUNCES):
            bounced: list[Bounced] = [cluster, *instances]
            for each in bounced:
                before = watcher.count
                _send(producer, topic, chance, counts)
                # Some of these, not all: it works when it ends.
                watcher.wait_for(before + BETWEEN // 5, instances)
                if how == "hard":
                    each.kill()
                else:
                    each.terminate()
                time.sleep(chance.random())
                each.start()
        _send(producer, topic, chance, counts)
        assert producer.flush(120) == 0
        watcher.wait_for(counts.total(), instances)
        for instance in instances:
            instance.terminate()
        stored = cluster.read_back(f"{topic}-counts", committed=True)
        _check(counts, stored)
        assert watcher.records == stored
