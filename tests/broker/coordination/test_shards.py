"""The shards of a coordinator: the partitions that it serves, and the shard of a key."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.coordination.host import CoordinatorHost
from aioproducer.broker.coordination.shards import Shards
from aioproducer.broker.image import BrokerRegistration, ClusterImage, PartitionState, TopicState
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    TopicExistsError,
)
from tests import waiting

from .replica import Replica

TOPIC = "__states"
NOT_AVAILABLE, NOT_COORDINATOR = 15, 16


class Shard:
    """A shard whose loading the test ends; it keeps the code with which it was closed."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.is_loaded = False
        self.is_current = True
        self.codes: list[int] = []
        self.read: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def load(self) -> None:
        await self.read
        self.is_loaded = True

    def close(self, code: int) -> None:
        self.is_loaded = False
        self.codes.append(code)


class World:
    """Node 1 of two, with one partition of the topic that it leads."""

    node_id = 1

    def __init__(self, count: int = 1) -> None:
        self.image = ClusterImage("cluster")
        for node_id in (1, 2):
            self.image.nodes[node_id] = BrokerRegistration(node_id, "localhost", 9092, None, True, 0)
        self.replicas = SimpleNamespace(partitions={(TOPIC, 0): Replica()})
        self.controller = self
        self.created: list[str] = []
        self.create(count)
        self.made: list[Shard] = []
        self.shards = Shards(cast("CoordinatorHost", self), TOPIC, lambda: TopicSpec(TOPIC, 5), self.make)

    def create(self, count: int) -> None:
        states = [PartitionState(TOPIC, b"", index, [1], [1], 1, 0, 0) for index in range(count)]
        self.image.topics[TOPIC] = TopicState(TOPIC, b"", states, {})

    def create_topic(self, spec: TopicSpec) -> None:
        self.created.append(spec.name)
        raise TopicExistsError

    def make(self, partition: Partition) -> Shard:
        self.made.append(Shard(partition))
        return self.made[-1]

    async def start(self, *, loads: bool = True) -> Shard:
        self.shards.start()
        [shard] = self.made
        await asyncio.sleep(0)
        if loads:
            shard.read.set_result(None)
            await waiting.until(lambda: shard.is_loaded)
        return shard


async def test_a_led_partition_is_served_when_it_is_loaded() -> None:
    world = World()
    with pytest.raises(CoordinatorNotAvailableError):
        world.shards.serving("key")
    shard = await world.start(loads=False)
    for ask in (lambda: world.shards.serving("key"), world.shards.all):
        with pytest.raises(CoordinatorLoadInProgressError):
            ask()
    assert world.shards.loaded() == []
    shard.read.set_result(None)
    await waiting.until(lambda: shard.is_loaded)
    assert world.shards.serving("key") is world.shards.at(0) is world.shards.held("key") is shard
    assert world.shards.all() == world.shards.loaded() == [shard]
    with pytest.raises(NotCoordinatorError):
        world.shards.at(1)


async def test_a_lost_partition_is_closed() -> None:
    world = World()
    shard = await world.start(loads=False)
    world.shards.leadership(0, False)
    assert shard.codes == [NOT_COORDINATOR]
    with pytest.raises(NotCoordinatorError):
        world.shards.serving("key")
    await waiting.until(shard.read.cancelled)


@pytest.mark.parametrize("is_current", [True, False])
async def test_a_partition_that_is_led_again_is_loaded_again_if_its_shard_is_outdated(
    is_current: bool,
) -> None:
    world = World()
    shard = await world.start()
    shard.is_current = is_current
    world.shards.leadership(0, True)
    assert len(world.made) == (1 if is_current else 2)
    assert shard.codes == ([] if is_current else [NOT_COORDINATOR])
    await asyncio.gather(*world.shards.close(), return_exceptions=True)


async def test_another_replica_of_a_led_partition_is_loaded() -> None:
    world = World()
    shard = await world.start()
    world.replicas.partitions[TOPIC, 0] = Replica()
    world.shards.leadership(0, True)
    assert shard.codes == [NOT_COORDINATOR]
    assert len(world.made) == 2
    await asyncio.gather(*world.shards.close(), return_exceptions=True)


async def test_a_partition_that_cannot_be_loaded_is_not_served(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    shard = await world.start(loads=False)
    shard.read.set_exception(OSError("the disk is gone"))
    await waiting.until(lambda: shard.codes)
    assert shard.codes == [NOT_COORDINATOR]
    assert "the disk is gone" in caplog.text
    with pytest.raises(NotCoordinatorError):
        world.shards.serving("key")
    world.shards.leadership(0, True)
    assert len(world.made) == 2
    await asyncio.gather(*world.shards.close(), return_exceptions=True)


async def test_a_stopped_coordinator_closes_its_shards_and_starts_none() -> None:
    world = World()
    shard = await world.start(loads=False)
    await asyncio.gather(*world.shards.close(), return_exceptions=True)
    assert shard.codes == [NOT_AVAILABLE]
    assert shard.read.cancelled()
    world.shards.leadership(0, True)
    assert world.made == [shard]
    for ask in (lambda: world.shards.at(0), world.shards.all, world.shards.check_active):
        with pytest.raises(CoordinatorNotAvailableError):
            ask()


def test_the_number_of_partitions_is_fixed_when_the_topic_is_first_seen() -> None:
    world = World()
    del world.image.topics[TOPIC]
    key = next(key for key in map(str, range(100)) if world.shards.partition_for(key) == 4)
    world.create(3)
    found = world.shards.partition_for(key)
    assert found < 3
    world.create(50)
    assert [world.shards.partition_for(str(number)) for number in range(100)] == [
        World(3).shards.partition_for(str(number)) for number in range(100)
    ]


def test_the_coordinator_of_a_key_is_the_living_leader_of_its_partition() -> None:
    world = World()
    assert world.shards.find("key") is world.shards.coordinator("key") is world.image.nodes[1]
    world.image.nodes[1].is_alive = False
    assert world.shards.coordinator("key") is None
    with pytest.raises(CoordinatorNotAvailableError):
        world.shards.find("key")
    assert world.created == []


def test_the_topic_is_created_by_the_first_search_for_a_coordinator() -> None:
    world = World()
    del world.image.topics[TOPIC]
    assert world.shards.coordinator("key") is None
    with pytest.raises(CoordinatorNotAvailableError):
        world.shards.find("key")
    assert world.created == [TOPIC]
