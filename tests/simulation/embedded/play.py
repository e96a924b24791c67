"""Plays a seed: the story, the trouble, the clients, the healing and the checks."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Coroutine
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from aioproducer import Producer, TransactionPool
from aioproducer.broker.replicas.partition import Partition
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.errors import KafkaError
from aioproducer.testing import StoredRecord
from aioproducer.testing.simulation.trouble import Trouble
from aioproducer.wire.record_batch import iter_batches
from tests.simulation.embedded import administrator, checkers
from tests.simulation.embedded.groups import Group
from tests.simulation.embedded.readers import TopicReader
from tests.simulation.embedded.senders import Recorder, send_records
from tests.simulation.embedded.story import KINDS, RESULTS, ClientPlan, Kind, Story, draw_story, healing_bound, small
from tests.simulation.embedded.transactions import send_by_pool, send_transactions, settle_blocks
from tests.simulation.embedded.world import ClusterWorld, Overdue, run

_PRODUCERS = 2
"""Producers of a pool."""

_CLOSE_GRACE = 2.0
"""Seconds that a close may take beyond the end of its records: connections and tasks."""


_LATEST_ARRIVAL = 1.0
"""Seconds after the faults within which everything that was sent before has arrived."""

_KIP_890 = 2
"""The ``transaction.version`` with which a late EndTxn is refused: see test_transaction_versions."""


class Client:
    """One producer or pool of the story, and its tasks."""

    def __init__(self, world: ClusterWorld, plan: ClientPlan, topics: dict[str, int], name: str = "") -> None:
        self.plan = plan
        self.name = name or plan.name
        self._world = world
        self.topics = topics
        self.producer: Producer | None = None
        self.pool: TransactionPool | None = None
        transport = world.network.endpoint(self.name)
        config = {**plan.config, "bootstrap_servers": world.bootstrap_servers}
        if plan.kind == "pool":
            self.pool = TransactionPool(
                transactional_id_prefix=plan.name,
                max_producers=_PRODUCERS,
                acquire_timeout_ms=2000,
                transport=transport,
                **{**config, "buffer_memory": _PRODUCERS * config["buffer_memory"]},
            )
        else:
            if plan.kind == "transactional":
                config["transactional_id"] = plan.name
            self.producer = Producer(transport=transport, **config)

    async def start(self) -> None:
        """Start the producer or pool."""
        await (self.producer or self.pool).start()  # type: ignore[union-attr]  # there is one of both

    def tasks(self, random: Random, until: float) -> list[Coroutine[Any, Any, None]]:
        """What sends until a loop time."""
        found: list[Coroutine[Any, Any, None]] = []
        for number, loop in enumerate(self.plan.loops):
            recorder = Recorder(self._world, self.plan, f"{self.name}.{number}", self.topics)
            own = Random(random.random())
            if self.pool is not None:
                found.append(send_by_pool(recorder, self.pool, own, until))
            elif self.producer is not None and self.plan.kind == "transactional":
                found.append(send_transactions(recorder, self.producer, own, until))
            elif self.producer is not None:
                found.append(send_records(recorder, self.producer, loop, own, until))
        return found

    async def crash(self) -> None:
        """End at once; the coordinator is not told."""
        assert self.producer is not None
        async with self._world.within(_CLOSE_GRACE, f"close(0) of {self.name}"):
            await self.producer.close(0)

    async def close(self) -> None:
        """Close within the bound, and check that memory has returned."""
        world, plan = self._world, self.plan
        bound = plan.longest_send + _CLOSE_GRACE
        if plan.kind in ("transactional", "pool"):
            bound += plan.longest_end + plan.config["transaction_timeout_ms"] / 1000
        try:
            async with world.within(bound, f"close of {plan.name}"):
                await (self.producer or self.pool).close()  # type: ignore[union-attr]
        except Overdue:
            return
        if self.producer is not None and self.producer._parts is not None:
            pool = self.producer._parts.accumulator.pool
            if pool.available_memory != pool.total_memory:
                world.violated("memory returns", f"{plan.name}: {pool.available_memory} of {pool.total_memory} bytes")

    async def probe(self, topic: str, bound: float) -> None:
        """Send one record to a topic, again after errors, within ``bound`` seconds."""
        world, producer = self._world, self.producer
        if producer is None or self.plan.kind == "transactional" or not producer.is_usable:
            return
        recorder = Recorder(world, self.plan, f"{self.plan.name}.probe-{topic}", self.topics)
        try:
            async with world.within(bound, f"a record of {self.plan.name} to {topic} after the faults"):
                while True:
                    sent = recorder.send(producer, world.random, topic)
                    try:
                        if sent is not None:
                            await sent.delivery
                            return
                    except KafkaError as error:
                        world.note(f"probe of {self.plan.name}: {type(error).__name__}")
                    await asyncio.sleep(0.01)
        except Overdue:
            return


async def play(world: ClusterWorld, story: Story) -> None:
    """Play a story; broken rules are noted in the world."""
    random = world.random
    network = world.network
    network.latency = lambda: random.expovariate(1 / story.latency)
    network.connect_latency = lambda: random.expovariate(1 / (3 * story.latency))
    for name, partitions in story.topics.items():
        world.create_topic(name, partitions)
    topics = dict(story.topics)
    if story.is_administered:
        for name in administrator.ADMINISTERED:
            world.create_topic(name, 1)
            topics[name] = 1
    read_topics = list(story.topics)
    if any(group.producer is not None for group in story.groups):
        world.create_topic(RESULTS, max(story.topics.values()))
        read_topics.append(RESULTS)
    readers = [
        TopicReader(world, topic, committed=committed, number=number)
        for topic in read_topics
        for committed in (True, False)
        for number in range(story.readers)
    ]
    kept = {name: count for name, count in topics.items() if name != administrator.VOLATILE}
    clients = [
        Client(world, plan, kept if plan.kind in ("transactional", "pool") else topics) for plan in story.clients
    ]
    groups = [Group(world, plan, list(story.topics), Random(random.random())) for plan in story.groups]
    crashing: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        for client in clients:
            await client.start()
        reads_committed = bool(random.randrange(2)) if story.has_late_readers else None
        for reader in readers:
            stack.push_async_callback(reader.stop)
            if reads_committed in (None, reader.history.committed):
                reader.start()
        until = world.loop.time() + story.seconds_of_trouble + story.seconds_after_trouble
        tasks = [asyncio.create_task(task) for client in clients for task in client.tasks(random, until)]
        tasks += [asyncio.create_task(group.run(until), name=group.plan.name) for group in groups]
        sampler = asyncio.ensure_future(_sample(world, clients, groups))
        for client in list(clients):
            if client.plan.crashes:
                after = random.uniform(0, story.seconds_of_trouble)
                crashing.append(asyncio.create_task(_crash(world, story, client, after, clients, tasks)))
        administering: asyncio.Task[None] | None = None
        if story.is_administered:
            ends = world.loop.time() + story.seconds_of_trouble
            administering = asyncio.create_task(administrator.administer(world, Random(random.random()), ends))
            tasks.append(administering)
        trouble = Trouble(
            world,
            Random(random.random()),
            faults=story.faults,
            rate=story.fault_rate,
            has_late_ends=story.transaction_version >= _KIP_890,
        )
        await trouble.run(story.seconds_of_trouble)
        await trouble.heal()
        lag = int(str(story.properties["replica.lag.time.max.ms"])) / 1000
        await world.until(10 * lag + 5, world.is_in_sync, "replication after the faults")
        healed = world.loop.time()
        if crashing:
            await asyncio.wait(crashing)
        if administering is not None:
            await asyncio.wait([administering])
            administrator.ensure_topics(world)
            world.history.deleted_until[administrator.VOLATILE] = world.loop.time()
        bound = healing_bound(story)
        await asyncio.gather(*(client.probe(topic, bound) for client in clients for topic in client.topics))
        await _expect_fresh_metadata(world, clients, healed, bound)
        if tasks:
            await asyncio.wait(tasks)
        for client in clients:
            await client.close()
        for task in (*tasks, *crashing):
            task.result()
        # A request of a client that has ended may still be on its way.
        await asyncio.sleep(_LATEST_ARRIVAL)
        await _settle_transactions(world, story, story.topics)
        for group in groups:
            await group.finish(_logs(world, story.topics, committed=group.history.committed))
        await world.expected()
        await settle_blocks(world)
        await _settle_transactions(world, story, world.topics())
        await world.until(5, lambda: _have_equal_ends(world), "followers to the end of their leaders' logs")
        evidence = _evidence(world)
        for reader in readers:
            reader.start()
        await _catch_up(world, readers, evidence)
        sampler.cancel()
        await asyncio.wait([sampler])
    for check in checkers.ALL:
        for what in list(check(evidence))[:3]:
            world.violated(check.__name__, what)


async def _expect_fresh_metadata(world: ClusterWorld, clients: list[Client], since: float, bound: float) -> None:
    """Producers with a short ``metadata_max_age_ms`` have requested metadata since the faults have ended."""
    for client in clients:
        producer, age = client.producer, client.plan.config["metadata_max_age_ms"] / 1000
        if producer is None or not producer.is_usable or age > bound:
            continue
        assert producer._parts is not None
        metadata = producer._parts.metadata
        fresh = functools.partial(_is_fresh, metadata, since)
        await world.until(age + bound, fresh, f"metadata of {client.name} since {since:.3f}")


def _is_fresh(metadata: ClusterMetadata, since: float) -> bool:
    return metadata.last_update is not None and metadata.last_update > since


async def _crash(
    world: ClusterWorld,
    story: Story,
    client: Client,
    after: float,
    clients: list[Client],
    tasks: list[asyncio.Task[None]],
) -> None:
    """Let a client end suddenly; where it has a successor, that one works on with the same transactional id."""
    await asyncio.sleep(after)
    world.note(f"crash of {client.name}")
    await client.crash()
    if client.plan.has_successor:
        successor = Client(world, client.plan, client.topics, f"{client.name}-successor")
        clients.append(successor)
        await successor.start()
        until = world.loop.time() + 1
        tasks += [asyncio.create_task(task) for task in successor.tasks(world.random, until)]


async def _settle_transactions(world: ClusterWorld, story: Story, topics: Collection[str]) -> None:
    """Wait until no transaction is open in these topics: the coordinator aborts those that were left."""
    producers = [*story.clients, *(group.producer for group in story.groups if group.producer is not None)]
    timeouts = [client.config.get("transaction_timeout_ms", 0) for client in producers]

    def have_ended() -> bool:
        return all(each.last_stable_offset == each.log_end_offset for each in _leaders(world) if each.topic in topics)

    await world.until(max(timeouts) / 1000 + 5, have_ended, "the end of all transactions")


def _have_equal_ends(world: ClusterWorld) -> bool:
    """Whether all replicas of each partition have the same end and high watermark."""
    return all(
        len(
            {
                (each.log_start_offset, each.log_end_offset, each.high_watermark)
                for each in world.replicas(topic, state.index).values()
            }
        )
        == 1
        for topic in world.topics()
        for state in world.cluster.image.topic(topic).partitions
    )


async def _catch_up(world: ClusterWorld, readers: list[TopicReader], evidence: checkers.Evidence) -> None:
    """Let each reader read to the end, within a bound."""
    for reader in readers:
        logs = evidence.committed if reader.history.committed else evidence.records
        ends = {
            index: records[-1].offset + 1
            for (topic, index), records in logs.items()
            if topic == reader.history.topic and records
        }
        read_all = functools.partial(reader.has_read_up_to, ends)
        await world.until(10, read_all, f"{reader.history.name} to the end of {ends}")


def _leaders(world: ClusterWorld) -> list[Partition]:
    """The leading replica of each partition of a user's topic that has a leader."""
    return [
        replica
        for topic in world.topics()
        for state in world.cluster.image.topic(topic).partitions
        for node_id, replica in world.replicas(topic, state.index).items()
        if node_id == state.leader
    ]


async def _sample(world: ClusterWorld, clients: list[Client], groups: list[Group]) -> None:
    """Check again and again: of each leader LSO <= high watermark <= log end offset, of each pool its queue."""
    while True:
        for group in groups:
            group.sample()
        for client in clients:
            pool = client.pool
            if pool is not None and pool.waiting and pool.busy < _PRODUCERS:
                world.violated("no caller waits for a free producer", f"{client.name}: {pool!r}, {pool.waiting} wait")
        for partition in _leaders(world):
            stable, high, end = partition.last_stable_offset, partition.high_watermark, partition.log_end_offset
            if not stable <= high <= end:
                where = f"{partition.topic}-{partition.index}"
                world.violated("LSO <= HW <= LEO", f"{where}: {stable}, {high}, {end}")
        await asyncio.sleep(0.05)


def _logs(world: ClusterWorld, topics: Collection[str], *, committed: bool) -> dict[checkers.Place, list[StoredRecord]]:
    """The records of each partition of these topics."""
    image = world.cluster.image
    places = [(topic, state.index) for topic in topics for state in image.topic(topic).partitions]
    return {place: world.records(*place, committed=committed) for place in places}


def _evidence(world: ClusterWorld) -> checkers.Evidence:
    records = _logs(world, world.topics(), committed=False)
    return checkers.Evidence(
        world.history,
        records,
        _logs(world, world.topics(), committed=True),
        {place: {node: _log_of(replica) for node, replica in world.replicas(*place).items()} for place in records},
    )


def _log_of(replica: Partition) -> bytes:
    """The bytes of a replica below its high watermark."""
    log, end = replica.log, replica.high_watermark
    found = bytearray()
    offset = log.log_start_offset
    while offset < end:
        batches = list(iter_batches(b"".join(log.read(offset, 1 << 20, up_to=end, min_one_batch=True))))
        if not batches:
            break
        for batch in batches:
            found += b"%d-%d:%d " % (batch.base_offset, batch.last_offset, batch.checksum)
        offset = batches[-1].next_offset
    return bytes(found)


def play_seed(
    seed: int,
    *,
    kinds: tuple[Kind, ...] = KINDS,
    version: int = 2,
    is_small: bool = False,
    keep_trace: bool = False,
) -> ClusterWorld:
    """Play a seed, and return its world: ``violations`` is empty if every rule holds."""
    random = Random(seed)
    story = draw_story(random, kinds=kinds, version=version)
    return play_story(small(random, story) if is_small else story, seed, keep_trace=keep_trace)


def play_story(story: Story, seed: int, *, keep_trace: bool = False) -> ClusterWorld:
    """Play a story that was drawn, or written by hand."""
    _, world = run(
        lambda world: play(world, story),
        seed=seed,
        nodes=story.nodes,
        properties=story.properties,
        features={"transaction.version": story.transaction_version},
        clock_errors=story.clock_errors,
        send_buffer_bytes=story.send_buffer_bytes,
        keep_trace=keep_trace,
    )
    return world
