"""Several consumers of one group in a cluster where everything moves, on virtual time, from a seed.

A producer writes all the time. Members join, close, are killed, are slow, and are cancelled; the coordinator moves,
connections end, requests are refused. Every record is processed, in each partition the first time in order. Offsets are
never committed beyond what was processed.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from random import Random

import pytest

from aioproducer.errors import (
    BrokerError,
    CommitFailedError,
    KafkaTimeoutError,
)
from aioproducer.testing import EmbeddedCluster

from .group_helpers import PARTITIONS, PROPERTIES, member_of
from .virtual import run

RECORDS = 300
ASSIGNORS = ["range", "roundrobin", "sticky", "cooperative-sticky"]
FAULTS = [
    lambda cluster, random: cluster.disconnect(
        random.choice(["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch", "Fetch"]),
        random.choice(["before", "after", "half"]),
    ),
    lambda cluster, random: cluster.fail("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
    lambda cluster, random: cluster.fail("SyncGroup", "REBALANCE_IN_PROGRESS"),
    lambda cluster, random: cluster.fail("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
    lambda cluster, random: cluster.fail("OffsetFetch", "COORDINATOR_NOT_AVAILABLE"),
    lambda cluster, random: cluster.fail("Heartbeat", "REBALANCE_IN_PROGRESS"),
    lambda cluster, random: cluster.delay(random.choice(["OffsetCommit", "OffsetFetch"]), random.randrange(300)),
]


class Worker:
    """A process with a consumer: it processes records one by one or by batches, and notes them when they are done."""

    def __init__(self, world, number):
        self.world = world
        self.random = Random(world.random.random())
        self.consumer = member_of(
            world.cluster,
            "clicks",
            partition_assignment_strategy=world.assignor,
            session_timeout_ms=3000,
            heartbeat_interval_ms=300,
            max_poll_interval_ms=20_000,
            request_timeout_ms=2000,
            default_api_timeout_ms=4000,
            auto_commit_interval_ms=world.random.choice([50, 1000, 600_000]),
            max_partition_fetch_bytes=world.random.choice([200, 100_000]),
            client_id=f"worker-{number}",
        )
        self.in_progress = []
        self.task = asyncio.ensure_future(self._run())

    async def _run(self):
        random, consumer = self.random, self.consumer
        await consumer.start()
        while True:
            self._processed()
            match random.randrange(6):
                case 0 | 1:
                    try:
                        async with asyncio.timeout(random.choice([0.001, 0.1, 1.0])):
                            self.in_progress = [await anext(consumer)]
                    except TimeoutError:
                        continue
                case 2:
                    await asyncio.sleep(random.uniform(0, 0.5))
                case 3 if random.random() < 0.2:
                    await self._commit()
                case _:
                    found = await consumer.poll(random.uniform(0, 0.5), max_records=random.randrange(1, 30))
                    self.in_progress = [record for records in found.values() for record in records]
            if self.in_progress and random.random() < 0.3:
                # A slow handler.
                await asyncio.sleep(random.uniform(0, 2.0))

    def _processed(self):
        for record in self.in_progress:
            self.world.processed(record)
        self.in_progress = []

    async def _commit(self):
        try:
            await self.consumer.commit()
        except (CommitFailedError, KafkaTimeoutError, BrokerError):
            # The group rebalances, or an answer was too late.
            return

    async def close(self):
        """End after the records in progress."""
        await self._stop()
        await self.consumer.close(10.0)

    async def kill(self):
        """End in the middle of whatever it does, without a word to the group."""
        await self._stop()
        await self.consumer.close(0.0, group_membership_operation="remain_in_group")

    async def _stop(self):
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()


class GroupWorld:
    def __init__(self, cluster, random, *, kills):
        self.cluster = cluster
        self.random = random
        self.kills = kills
        self.assignor = random.choice(ASSIGNORS)
        self.workers = []
        self.counts = [{} for _ in range(PARTITIONS)]
        self.next = [0] * PARTITIONS

    def processed(self, record):
        counts = self.counts[record.partition]
        counts[record.offset] = counts.get(record.offset, 0) + 1
        # The first time in order, and nothing is skipped.
        assert record.offset <= self.next[record.partition], record
        self.next[record.partition] = max(self.next[record.partition], record.offset + 1)

    def check_committed(self):
        """Nothing is committed beyond what was processed."""
        try:
            committed = self.cluster.committed("billing")
        except BrokerError:
            # There is no group yet, or its coordinator is loading it.
            return
        for name, offset in committed.items():
            assert offset <= self.next[name.partition], name

    async def write(self):
        async with self.cluster.producer(batch_size=300, linger_ms=1) as producer:
            for number in range(RECORDS):
                producer.send("clicks", b"%d" % number, partition=number % PARTITIONS)
                if self.random.random() < 0.2:
                    await asyncio.sleep(self.random.uniform(0, 0.3))
            await producer.flush()

    async def disturb(self):
        number = 0
        while True:
            await asyncio.sleep(self.random.uniform(0, 1.0))
            for worker in self.workers:
                if worker.task.done():
                    worker.task.result()
            self.check_committed()
            match self.random.randrange(8):
                case 0 | 1 if len(self.workers) < 5:
                    self.workers.append(Worker(self, number))
                    number += 1
                case 2 if self.workers:
                    await self.workers.pop(self.random.randrange(len(self.workers))).close()
                case 3 if self.workers and self.kills:
                    await self.workers.pop(self.random.randrange(len(self.workers))).kill()
                case 4 | 5 as what:
                    # There is no group yet, or its coordinator is loading it.
                    with suppress(BrokerError):
                        (self.cluster.rebalance if what == 4 else self.cluster.drop_coordinator)("billing")
                case _:
                    self.random.choice(FAULTS)(self.cluster, self.random)

    @property
    def is_done(self):
        return self.next == [RECORDS // PARTITIONS] * PARTITIONS


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_no_record_is_skipped_by_the_group(seed, kills, monkeypatch):
    # Where brokers read the real clock, producers that wrote years before would have expired.
    monkeypatch.setattr("aioproducer.testing.simulation.determinism.WALL_CLOCK", time.time())

    async def scenario(_loop):
        random = Random(seed)
        properties = {**PROPERTIES, "offsets.topic.replication.factor": 2, "group.min.session.timeout.ms": 100}
        async with EmbeddedCluster(2, transport="memory", properties=properties) as cluster:
            cluster.create_topic("clicks", PARTITIONS)
            world = GroupWorld(cluster, random, kills=kills)
            tasks = [asyncio.ensure_future(world.write()), asyncio.ensure_future(world.disturb())]
            async with asyncio.timeout(3000):
                while not world.is_done:
                    if tasks[1].done():
                        tasks[1].result()
                    await asyncio.sleep(0.5)
            tasks[1].cancel()
            await asyncio.wait(tasks)
            cluster.clear_faults()
            for worker in world.workers:
                await worker.close()
            for partition, counts in enumerate(world.counts):
                assert sorted(counts) == list(range(RECORDS // PARTITIONS)), partition
            world.check_committed()

    run(scenario, seed)
