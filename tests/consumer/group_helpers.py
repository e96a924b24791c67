"""Helpers for tests of consumers in groups, against the embedded cluster in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from aioproducer import RebalanceListener, TopicPartition
from aioproducer.testing import EmbeddedCluster

TIMEOUT = 60.0
"""Seconds; what is waited for takes milliseconds, on a busy machine more."""
PARTITIONS = 4
CLICKS = [TopicPartition("clicks", number) for number in range(PARTITIONS)]
PROPERTIES = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 10,
    "offsets.topic.num.partitions": 1,
}


@asynccontextmanager
async def cluster_of(brokers=1, *, partitions=PARTITIONS, transport="memory", **properties):
    settings = {**PROPERTIES, **properties}
    async with EmbeddedCluster(brokers, transport=transport, properties=settings) as cluster:
        cluster.create_topic("clicks", partitions)
        yield cluster


def member_of(cluster, *topics, **options):
    """A consumer of the group ``billing``."""
    return cluster.consumer(
        *topics,
        **{
            "group_id": "billing",
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
            "retry_backoff_ms": 10,
            "retry_backoff_max_ms": 50,
            "heartbeat_interval_ms": 20,
            "auto_commit_interval_ms": 20,
            **options,
        },
    )


async def fill(cluster, count, *, first=0, topic="clicks", partitions=PARTITIONS):
    """``count`` records with the values ``first``, ``first`` + 1, ..., of partition value % partitions."""
    async with cluster.producer() as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % partitions)
        await producer.flush()


class Heard(RebalanceListener):
    """Notes its calls: the word, and the numbers of the partitions."""

    def __init__(self):
        self.calls = []

    async def on_revoked(self, partitions):
        self.note("revoked", partitions)

    async def on_assigned(self, partitions):
        self.note("assigned", partitions)

    async def on_lost(self, partitions):
        self.note("lost", partitions)

    def note(self, word, partitions):
        self.calls.append((word, sorted(each.partition for each in partitions)))


class Application:
    """Requests records one by one, until it is stopped; ``values`` are those that it has processed."""

    def __init__(self, consumer, handle=None):
        self.consumer = consumer
        self.values = []
        self._handle = handle
        self._task = asyncio.ensure_future(self._read())

    async def _read(self):
        async for record in self.consumer:
            if self._handle is not None:
                await self._handle(record)
            self.values.append(int(record.value))

    @property
    def owned(self):
        return sorted(each.partition for each in self.consumer.assignment())

    @property
    def error(self):
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None

    async def stop(self):
        """Stop requesting records; the consumer stays."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def until(condition, *applications):
    """Wait for a condition; the applications must not fail meanwhile."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            for each in applications:
                if each.error is not None:
                    raise each.error
            await asyncio.sleep(0.005)


async def values_of(consumer, count):
    """The values of the next ``count`` records."""
    found = []
    async with asyncio.timeout(TIMEOUT):
        while len(found) < count:
            found.append(int((await anext(consumer)).value))
    return found


def offsets_of(committed):
    """The offset of each partition by its number, None without one."""
    return {name.partition: None if found is None else found.offset for name, found in committed.items()}
