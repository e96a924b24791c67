"""A broker on disk is killed during transactions: each is visible completely or not at all."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import pytest

from aioproducer import Producer, Transaction
from aioproducer.admin import Admin
from tests.kafka.cluster import KafkaCluster, NodeByNode
from tests.kafka.consuming import StoredRecord
from tests.kafka.embedded import EmbeddedProcess
from tests.kafka.program import Bounced

ROUNDS = int(os.environ.get("AIOPRODUCER_SOAK_ROUNDS", "1"))
# Number of kills; 100 with `make soak`.
KILLS = 4 if ROUNDS == 1 else 10 * ROUNDS

PARTITIONS = 3
RECORDS = 6
"""Records of each transaction, in all partitions."""
TIMEOUT = 30
PROPERTIES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
ENDED = {"Empty", "CompleteCommit", "CompleteAbort"}

pytestmark = pytest.mark.timeout(60 + 20 * KILLS)

Stored = Mapping[int, Sequence[StoredRecord]]


class Worker:
    """Runs one transaction after the other, each with records in all partitions and an offset of the worker's group."""

    def __init__(self, name: str, transaction_timeout_ms: int) -> None:
        self.name = name
        self._transaction_timeout_ms = transaction_timeout_ms
        self.outcomes: dict[int, str] = {}
        """Numbers of the transactions with a known outcome."""
        self.begun = 0
        self.stopping = False

    async def run(self, servers: str, topic: str) -> None:
        """Run until ``stopping``; a cancellation leaves its transaction open."""
        chance = random.Random(self.name)
        producer = Producer(
            bootstrap_servers=servers,
            transactional_id=self.name,
            linger_ms=0,
            transaction_abort_grace_ms=1,
            transaction_timeout_ms=self._transaction_timeout_ms,
        )
        await producer.start()
        try:
            while not self.stopping:
                await self._transact(producer, topic, chance)
        finally:
            await producer.close(0)

    async def _transact(self, producer: Producer, topic: str, chance: random.Random) -> None:
        number = self.begun
        self.begun += 1
        transaction: Transaction | None = None
        try:
            async with producer.transaction() as transaction:
                for record in range(RECORDS):
                    value = f"{self.name}:{number}:{record}".encode()
                    delivery = transaction.send(topic, value, partition=record % PARTITIONS)
                    if chance.random() < 0.2:
                        await delivery
                await transaction.send_offsets({(topic, 0): number}, self.name)  # type: ignore[dict-item]  # any pair
                await asyncio.sleep(chance.choice([0, 0, 0, 0.05]))
                if chance.random() < 0.3:
                    raise LookupError
        except LookupError:
            assert transaction is not None
        self.outcomes[number] = await transaction.outcome()


def _started(workers: Sequence[Worker], servers: str, topic: str) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(worker.run(servers, topic)) for worker in workers]


async def _until_committed(workers: Sequence[Worker]) -> None:
    """Wait until each has committed a transaction."""
    async with asyncio.timeout(TIMEOUT):
        while not all("committed" in worker.outcomes.values() for worker in workers):  # noqa: ASYNC110  # no events
            await asyncio.sleep(0.01)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the workers; none may have failed before."""
    for task in tasks:
        assert not task.done() or task.result() is None
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


async def _until_ended(servers: str, workers: Sequence[Worker]) -> dict[str, tuple[int, str]]:
    """Wait until no transaction of the workers is open; return producer id and state by transactional id."""
    begun = {worker.name for worker in workers if worker.outcomes}
    deadline = time.monotonic() + TIMEOUT
    async with Admin(bootstrap_servers=servers, timeout=TIMEOUT) as admin:
        while True:
            listed = {each.transactional_id: each for each in await admin.list_transactions()}
            if listed.keys() >= begun and {each.state for each in listed.values()} <= ENDED:
                return {name: (each.producer_id, each.state) for name, each in listed.items()}
            assert time.monotonic() < deadline, (listed, begun - listed.keys())
            await asyncio.sleep(0.05)


def _whole(workers: Sequence[Worker], stored: Stored) -> dict[str, list[int]]:
    """Return each worker's visible transactions, after checking that each is complete, in order and there once."""
    for records in stored.values():
        values = [record.value or b"" for record in records]
        assert len(values) == len(set(values))
        for worker in workers:
            own = [value.split(b":") for value in values if value.startswith(worker.name.encode() + b":")]
            places = [(int(number), int(record)) for _, number, record in own]
            assert places == sorted(places)
    counts = Counter((record.value or b"").rpartition(b":")[0] for records in stored.values() for record in records)
    parts = {value: count for value, count in counts.items() if count != RECORDS}
    assert not parts, "only a part of these transactions is there"
    seen: dict[str, list[int]] = {worker.name: [] for worker in workers}
    for value in counts:
        name, number = value.decode().split(":")
        seen[name].append(int(number))
    return {name: sorted(numbers) for name, numbers in seen.items()}


def _offset(servers: str, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        [found] = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=TIMEOUT)
        return int(found.offset)
    finally:
        consumer.close()


def _check(workers: Sequence[Worker], stored: Stored) -> dict[str, list[int]]:
    """Check that each worker's visible transactions contain all committed ones and no aborted one."""
    seen = _whole(workers, stored)
    for worker in workers:
        numbers = set(seen[worker.name])
        committed = {number for number, outcome in worker.outcomes.items() if outcome == "committed"}
        assert committed <= numbers, f"{worker.name}: committed transactions are lost"
        assert numbers <= committed | (set(range(worker.begun)) - worker.outcomes.keys())
    return seen


def _check_offsets(workers: Sequence[Worker], servers: str, topic: str, seen: Mapping[str, list[int]]) -> None:
    """Check that the offsets are those of the last visible transaction."""
    for worker in workers:
        last = max(seen[worker.name], default=confluent_kafka.OFFSET_INVALID)
        assert _offset(servers, worker.name, topic) == last


async def _kill_repeatedly(cluster: EmbeddedProcess | KafkaCluster, bounced: Bounced, topic: str, kills: int) -> None:
    """Some clients continue after the kill, others end with it; check all transactions after each restart."""
    chance = random.Random(kills)
    servers = cluster.bootstrap_servers
    await asyncio.to_thread(cluster.create_topic, topic, PARTITIONS, config={"segment.bytes": "1048576"})
    all_workers: list[Worker] = []
    for number in range(kills):
        # A transaction that times out would fence its producer.
        goes_on = [Worker(f"goes-on-{number}-{index}", 60_000) for index in range(2)]
        ends = [Worker(f"ends-{number}-{index}", 5000) for index in range(4)]
        all_workers += goes_on + ends
        going_on, ending = _started(goes_on, servers, topic), _started(ends, servers, topic)
        await _until_committed(goes_on + ends)
        await asyncio.sleep(chance.random() / 2)
        await asyncio.to_thread(bounced.kill)
        await _cancel(ending)
        await asyncio.to_thread(bounced.start)
        await asyncio.sleep(0.3)
        for worker in goes_on:
            worker.stopping = True
        await asyncio.gather(*going_on)
        await _until_ended(servers, all_workers)
        stored = await asyncio.to_thread(cluster.read_back, topic, committed=True)
        seen = _check(all_workers, stored)
        # A consumer for each one would take long.
        await asyncio.to_thread(_check_offsets, goes_on + ends, servers, topic, seen)
    assert all(seen.values())


@pytest.mark.parametrize("nodes", [1, 3])
async def test_transactions_are_whole_after_sigkill(nodes: int, topic: str) -> None:
    kills = KILLS if nodes == 1 else max(2, KILLS // 2)
    properties = {**PROPERTIES, "min.insync.replicas": "1" if nodes == 1 else "2"}
    with EmbeddedProcess(nodes, on_disk=True, properties=properties) as cluster:
        await _kill_repeatedly(cluster, cluster, topic, kills)
        assert await asyncio.to_thread(cluster.terminate) == 0


@pytest.mark.soak
async def test_transactions_are_whole_after_sigkill_of_each_node_of_kafka_in_turn(topic: str) -> None:
    """Three nodes: a killed single one may end open transactions without markers, see ``terminate`` below."""
    with KafkaCluster(3, properties={**PROPERTIES, "min.insync.replicas": "2"}) as kafka:
        await _kill_repeatedly(kafka, NodeByNode(kafka), topic, KILLS)


def _make_internal_topics(kafka: KafkaCluster, topic: str) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    consumer = confluent_kafka.Consumer({**settings, "group.id": "first"})
    producer = confluent_kafka.Producer({**settings, "transactional.id": "first"})
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    offsets = [confluent_kafka.TopicPartition(topic, 0, 1)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT)
    producer.commit_transaction(TIMEOUT)
    consumer.close()


def _replace(folder: Path, ours: Path) -> None:
    """Replace Kafka's log by ours, under Kafka's topic id."""
    metadata = (folder / "partition.metadata").read_bytes()
    shutil.rmtree(folder)
    shutil.copytree(ours, folder)
    (folder / "partition.metadata").write_bytes(metadata)


async def test_kafka_ends_the_transactions_of_a_killed_broker_as_the_broker_itself(topic: str) -> None:
    """Both start on the folder that SIGKILL has left."""
    internal = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    workers = [Worker(f"worker-{index}", 6000) for index in range(8)]
    with ExitStack() as stack:
        kafka = KafkaCluster(1, properties=PROPERTIES)
        stack.callback(kafka.stop)
        await asyncio.to_thread(kafka.start)
        kafka.create_topic(topic, PARTITIONS)
        await asyncio.to_thread(_make_internal_topics, kafka, topic)
        # A killed node of Kafka starts as the leader of all partitions and as the coordinator. It has no address of
        # itself before it has registered, so it ends transactions without markers, as if their topics were deleted.
        await asyncio.to_thread(kafka.terminate, 1)
        ours = stack.enter_context(EmbeddedProcess(1, on_disk=True, properties={**PROPERTIES, **internal}))
        await asyncio.to_thread(ours.create_topic, topic, PARTITIONS)
        tasks = _started(workers, ours.bootstrap_servers, topic)
        await _until_committed(workers)
        await asyncio.sleep(0.5)
        ours.kill()
        await _cancel(tasks)
        data = kafka.nodes[1].log_dir
        partitions = [(topic, number) for number in range(PARTITIONS)]
        for name, number in [*partitions, ("__transaction_state", 0), ("__consumer_offsets", 0)]:
            [folder] = ours.log_folders(name, number)
            _replace(data / f"{name}-{number}", folder)
        for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            (data / name).unlink()

        found = []
        for cluster in (ours, kafka):
            await asyncio.to_thread(ours.start if cluster is ours else lambda: kafka.restart(1))
            states = await _until_ended(cluster.bootstrap_servers, workers)
            stored = await asyncio.to_thread(cluster.read_back, topic, committed=True)
            seen = _check(workers, stored)
            await asyncio.to_thread(_check_offsets, workers, cluster.bootstrap_servers, topic, seen)
            found.append((states, seen))
        assert found[0] == found[1]
        states, seen = found[0]
        # Some of the 8 workers had sent records of a transaction that was still open.
        assert "CompleteAbort" in {state for _, state in states.values()}
        assert all(seen.values())
