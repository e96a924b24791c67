"""The sink's real client code on an embedded broker, on virtual time: kills, time-outs, moved coordinators.

A seed draws where the driver's processes are killed, how long they are down, and what goes wrong at the broker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from random import Random
from typing import TypeVar

import pytest

from aioproducer.errors import KafkaError
from aioproducer.spark.exactly_once import _handle
from aioproducer.spark.sink_cluster import KafkaSinkCluster
from aioproducer.spark.transactional.flows import Committer, Planner
from aioproducer.spark.transactional.rules import Plan, Slots, TaskReport, task_id
from aioproducer.spark.transactional.table import DecisionTable
from tests.simulation.embedded.world import ClusterWorld, run

T = TypeVar("T")

SINK, TOPIC, DECISIONS = "orders", "rows", "decisions"
BATCHES = 4
ROWS = 6
TIMEOUT_MS = 5000
LONGEST_DOWN = 25.0
"""Seconds; transactions time out meanwhile, and the coordinator looks for those every ten seconds."""
KILLS = 4


class Killed(Exception):  # noqa: N818  # a state
    """The process has ended by SIGKILL."""


class Play:
    """One query, whose driver is killed some times, until all batches are in its checkpoint."""

    def __init__(self, world: ClusterWorld, random: Random) -> None:
        self.world = world
        self.random = random
        self.checkpoint = 0
        self.processes = 0
        self.logged: list[str] = []
        self.kills = KILLS

    # Processes

    async def process(self, work: Awaitable[T], name: str) -> T:
        """Run a coroutine as a process of its own, which may be killed.

        Raises:
            Killed: it was.
        """
        task = asyncio.ensure_future(work)
        if self.kills and self.random.random() < 0.25:
            await asyncio.wait([task], timeout=self.random.expovariate(1 / 0.03))
            if not task.done():
                self.kills -= 1
                self.world.note(f"kill {name}")
                # Nothing more comes from it; what is on its way may arrive.
                self.world.network.stop(name)
                for link in self.world.network.links(name):
                    link.cut()
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.exception()
                raise Killed(name)
        return await task

    def next_name(self, what: str) -> str:
        self.processes += 1
        return f"{what}{self.processes}"

    def cluster(self, name: str) -> KafkaSinkCluster:
        config = {"bootstrap.servers": self.world.bootstrap_servers, "client.id": name}
        return KafkaSinkCluster(config, SINK, DECISIONS, 60.0, transport=self.world.network.endpoint(name))

    async def plan(self, name: str, table: DecisionTable) -> Plan:
        async with self.cluster(name) as cluster:
            return await Planner(cluster, table, self.logged.append).plan()

    async def commit(self, name: str, reports: list[TaskReport]) -> None:
        async with self.cluster(name) as cluster:
            await Committer(cluster, self.logged.append, lambda: f"{self.random.getrandbits(64):x}").commit(reports)

    async def abort(self, name: str, reports: list[TaskReport]) -> None:
        async with self.cluster(name) as cluster:
            await Committer(cluster, self.logged.append, lambda: "").abort(reports)

    async def write(
        self, name: str, transactional_id: str, plan: Plan, batch_id: int, run_id: str, rows: list[bytes]
    ) -> TaskReport:
        if not plan.writes("query", batch_id, run_id):
            return TaskReport(plan, "query", batch_id, run_id, len(rows), True, None)
        producer = self.world.producer(
            name, transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS, linger_ms=0
        )
        async with producer:
            calls = producer._transactional_calls()
            calls.gather_facts()
            await calls.begin()
            for row in rows:
                producer.send(TOPIC, row, partition=self.random.randrange(2))
            handle = _handle(await calls.leave_open(), 0)
        return TaskReport(plan, "query", batch_id, run_id, len(rows), False, handle)

    # Spark

    async def drive(self, run_id: str) -> None:
        """Run micro-batches from the checkpoint on.

        Raises:
            Killed, KafkaError: the driver is to be started again.
        """
        table = DecisionTable(SINK)
        worker, slots = f"{self.random.getrandbits(128):032x}", Slots()
        while self.checkpoint < BATCHES:
            batch_id = self.checkpoint
            name = self.next_name("plan")
            plan = await self.process(self.plan(name, table), name)
            tasks = self.random.randrange(1, 4)
            reports: list[TaskReport] = []
            for task in range(tasks):
                rows = [b"%d:%d" % (batch_id, number) for number in range(task, ROWS, tasks)]
                name = self.next_name("task")
                slot = slots.take(plan.token)
                of_task = self.write(name, task_id(SINK, worker, slot), plan, batch_id, run_id, rows)
                reports.append(await self.process(of_task, name))
                slots.release(slot)
            name = self.next_name("commit")
            try:
                await self.process(self.commit(name, reports), name)
            except KafkaError:
                await self.abort(self.next_name("abort"), reports)
                raise
            self.checkpoint += 1

    def disturb(self) -> None:
        """Let something go wrong at the broker."""
        world = self.world
        match self.random.randrange(6):
            case 0:
                world.disconnect("EndTxn", "after", times=2)
            case 1:
                world.repeat("EndTxn", times=3)
            case 2:
                world.postpone("WriteTxnMarkers", 700, times=2)
            case 3:
                world.disconnect("Produce", "after", times=2)
            case 4:
                world.fail("EndTxn", "COORDINATOR_NOT_AVAILABLE", times=2)
            case _:
                world.drop_transaction_coordinator(f"{SINK}-committer")

    async def run(self) -> None:
        starts = 0
        while self.checkpoint < BATCHES:
            starts += 1
            assert starts < 40, self.logged[-10:]
            try:
                await self.drive(f"run-{starts}")
            except (Killed, KafkaError) as error:
                self.world.note(repr(error))
                await asyncio.sleep(self.random.choice([0.01, self.random.uniform(0, LONGEST_DOWN)]))
                if self.random.random() < 0.5:
                    self.disturb()
        self.world.clear_faults()
        await self.plan(self.next_name("recover"), DecisionTable(SINK))


def play(seed: int, version: int) -> tuple[Play, ClusterWorld]:
    random = Random(seed)

    async def scenario(world: ClusterWorld) -> Play:
        world.create_topic(TOPIC, 2)
        world.create_topic(DECISIONS, 1, configs={"cleanup.policy": "compact"})
        found = Play(world, random)
        await found.run()
        # A marker may be written after the answer to the last EndTxn.
        await asyncio.sleep(2)
        check(world)
        return found

    return run(scenario, seed=seed, features={"transaction.version": version})


def check(world: ClusterWorld) -> None:
    """Each row is there once for readers of committed records, and no transaction hides any."""
    found = Counter(record.value for record in world.records(TOPIC, committed=True))
    assert found == Counter(b"%d:%d" % (batch, number) for batch in range(BATCHES) for number in range(ROWS))
    for partition in range(2):
        (replica,) = world.replicas(TOPIC, partition).values()
        assert replica.last_stable_offset == replica.high_watermark


@pytest.mark.parametrize("version", [2, 1])
@pytest.mark.parametrize("seed", range(4))
def test_the_real_client_loses_and_doubles_nothing(seed: int, version: int) -> None:
    _, world = play(seed, version)
    assert world.violations == []


@pytest.mark.soak
@pytest.mark.parametrize("version", [2, 1])
def test_many_seeds_of_the_real_client(version: int) -> None:
    copied = 0
    for seed in range(1000, 1150):
        found, world = play(seed, version)
        assert world.violations == [], seed
        copied += any("copied" in text for text in found.logged)
    # The seeds reach repairs: one with each generation of transactions, at least.
    assert copied > 0
