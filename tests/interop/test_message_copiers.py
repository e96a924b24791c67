"""Copiers move the records of a topic to another in transactions, while nodes or copiers end hard or cleanly.

As Kafka's system test ``transactions_test.py``: each record is there once, in order, also for a reader meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from aioproducer.admin import Admin
from tests.exactly_once import check_results
from tests.kafka import copier, go, jars
from tests.kafka.cluster import KafkaCluster, NodeByNode
from tests.kafka.consuming import StoredRecord
from tests.kafka.embedded import EmbeddedProcess
from tests.kafka.in_process import InProcessCluster
from tests.kafka.program import Bounced, Program, Watcher

COPIERS = 2
"""Copiers, and partitions of the source."""
TARGET_PARTITIONS = 3
KEYS = 50

Cluster = KafkaCluster | InProcessCluster | EmbeddedProcess


class Task(NamedTuple):
    """What one copier does; ``partition`` is that of the source."""

    servers: str
    source: str
    target: str
    partition: int
    size: int
    """Records of a transaction."""
    least_seconds: float
    """Of a transaction, where the copier can wait: it has enough left to do for all bounces."""

    @property
    def transactional_id(self) -> str:
        return f"{self.source}-{self.partition}"


def _ours_in_a_group(task: Task) -> list[str]:
    command = [sys.executable, "-m", copier.__name__, task.servers, task.source, task.target, "--group", task.source]
    command += ["--transactional-id", task.transactional_id, "--size", str(task.size)]
    return [*command, "--least-seconds", str(task.least_seconds)]


def _ours(task: Task) -> list[str]:
    return [*_ours_in_a_group(task), "--partition", str(task.partition)]


def _java(task: Task) -> list[str]:
    """Kafka's copier, which ends once it has copied all that was there when it started.

    It asks for its position before it calls ``initTransactions``: the offsets in the open transaction of a killed one
    hold it back until that has timed out, and its consumer waits for 60 s at most, as long as the default time-out.
    """
    command = [jars.java(), "-Xmx256m", *jars.SHORT_LIVED, "-cp", f"{jars.resolve(jars.TOOLS)}/*"]
    command += ["org.apache.kafka.tools.TransactionalMessageCopier", "--broker-list", task.servers]
    command += ["--input-topic", task.source, "--input-partition", str(task.partition)]
    command += ["--output-topic", task.target, "--consumer-group", task.source]
    command += ["--transactional-id", task.transactional_id, "--transaction-size", str(task.size)]
    return [*command, "--transaction-timeout", "30000", "--enable-random-aborts", "--use-group-metadata"]


def _franz(task: Task) -> list[str]:
    command = [str(go.program(Path(__file__).parent / "go", "go-clients")), "copy", task.servers, task.source]
    command += [task.target, task.source, task.transactional_id, str(task.size), str(task.least_seconds)]
    return command


def _fill(servers: str, topic: str, partitions: int, count: int) -> list[bytes]:
    """Write values that name their partition, in order in each one."""
    values = [b"%d-%d" % (number % partitions, number) for number in range(count)]
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, b"%d" % (number % KEYS), partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    return values


def _check(values: Sequence[bytes], copied: dict[int, list[StoredRecord]]) -> None:
    """Check that each value is there once, and that those of a source's partition are in order in each partition."""
    found = {number: [record.value or b"" for record in records] for number, records in copied.items()}
    check_results(values, [value for part in found.values() for value in part])
    for number, part in found.items():
        last: dict[bytes, int] = {}
        for value in part:
            source, _, place = value.partition(b"-")
            assert last.get(source, -1) < int(place), f"{value!r} is behind {last[source]} in partition {number}"
            last[source] = int(place)


class Copying:
    """Copiers of one kind, each with a partition of the source, and a reader of the target meanwhile."""

    def __init__(self, cluster: Cluster, topic: str, command: Callable[[Task], list[str]], logs: Path) -> None:
        self._cluster = cluster
        self._source = cluster.create_topic(f"{topic}-in", COPIERS)
        self._target = cluster.create_topic(f"{topic}-out", TARGET_PARTITIONS)
        self._command = command
        self._logs = logs

    def run(
        self, count: int, size: int, bounces: Sequence[Callable[[Sequence[Program]], None]], least_seconds: float = 0
    ) -> None:
        """Copy ``count`` records in transactions of ``size``, with all bounces in the first half; check the result."""
        servers = self._cluster.bootstrap_servers
        values = _fill(servers, self._source, COPIERS, count)
        with ExitStack() as stack:
            watcher = stack.enter_context(Watcher(servers, self._target, TARGET_PARTITIONS))
            copiers = []
            for number in range(COPIERS):
                command = self._command(Task(servers, self._source, self._target, number, size, least_seconds))
                copiers.append(stack.enter_context(Program(command, self._logs / f"copier-{number}.log")))
            seen = 0
            for bounce in bounces:
                # Early ones: nothing slows the copiers down while a node restarts.
                seen = max(watcher.count, seen + count // (2 * len(bounces) + 1))
                watcher.wait_for(seen, copiers)
                assert watcher.count < count, "all was copied before the last bounce"
                bounce(copiers)
            watcher.wait_for(count, copiers)
            for copier in copiers:
                copier.terminate()
        copied = self._cluster.read_back(self._target, committed=True)
        _check(values, copied)
        assert watcher.records == copied
        # Aborts leave records that only readers of uncommitted records see.
        assert sum(map(len, self._cluster.read_back(self._target).values())) > count


def _coordinator(servers: str, transactional_id: str) -> int:
    async def ask() -> int:
        async with Admin(bootstrap_servers=servers) as admin:
            (described,) = await admin.describe_transactions([transactional_id])
            return described.coordinator

    return asyncio.run(ask())


@pytest.mark.timeout(180)
def test_all_messages_are_copied_once_although_embedded_nodes_restart(
    three_embedded: InProcessCluster, topic: str, tmp_path: Path
) -> None:
    def bounce(node_id: int) -> None:
        three_embedded.kill(node_id)
        time.sleep(0.5)
        three_embedded.restart(node_id)
        three_embedded.wait_in_sync(f"{topic}-out")

    def of_coordinator(_: Sequence[Program]) -> None:
        bounce(_coordinator(three_embedded.bootstrap_servers, f"{topic}-in-0"))

    def of_leader(_: Sequence[Program]) -> None:
        bounce(three_embedded.leader(f"{topic}-out", 0))

    copying = Copying(three_embedded, topic, _java, tmp_path)
    copying.run(10_000, 100, [of_coordinator, of_leader])


class Case(NamedTuple):
    """A kind of copier, and a cluster."""

    command: Callable[[Task], list[str]]
    is_embedded: bool
    least_seconds: float = 0.0


CASES = {
    "assigned": Case(_ours, False, 0.5),
    "group": Case(_ours_in_a_group, False, 0.5),
    "java-embedded": Case(_java, True),
    "franz-embedded": Case(_franz, True, 0.2),
    "group-embedded": Case(_ours_in_a_group, True, 0.2),
}

PAUSES = (0.0, 1.0, 8.0)
"""Seconds until each start after an end; the last is longer than the sessions of brokers and members."""


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def bounced(case: Case, request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, Bounced]]:
    """A cluster of three nodes: of Apache Kafka's one is bounced at a time, the embedded ones at once."""
    if case.is_embedded:
        with EmbeddedProcess(3, on_disk=True, properties={"min.insync.replicas": "2"}) as embedded:
            yield embedded, embedded
    else:
        kafka: KafkaCluster = request.getfixturevalue("three_nodes")
        yield kafka, NodeByNode(kafka)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", ["nodes", "copiers"])
@pytest.mark.parametrize("how", ["hard", "clean"])
def test_a_hundred_thousand_messages_are_copied_once_although_nodes_or_copiers_bounce(
    case: Case, bounced: tuple[Cluster, Bounced], target: str, how: str, topic: str, tmp_path: Path
) -> None:
    cluster, nodes = bounced

    def bounce(pause: float, copiers: Sequence[Program]) -> None:
        for each in [nodes] if target == "nodes" else copiers:
            if how == "hard":
                each.kill()
            else:
                each.terminate()
            time.sleep(pause)
            each.start()

    copying = Copying(cluster, topic, case.command, tmp_path)
    copying.run(100_000, 750, [partial(bounce, pause) for pause in PAUSES], case.least_seconds)
