"""The shards of a coordinator: those partitions of its internal topic that this node leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.coordination.host import CoordinatorHost
from aioproducer.broker.coordination.partitioning import partition_for
from aioproducer.broker.image import BrokerRegistration
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    NotCoordinatorError,
    TopicExistsError,
)

logger = logging.getLogger(__name__)

_NO_COORDINATOR: Final = "The coordinator is not available."


class Shard(Protocol):
    """What a coordinator keeps in one partition of its topic."""

    partition: Partition
    is_loaded: bool
    """Whether it serves."""

    @property
    def is_current(self) -> bool:
        """Whether it may go on after its node has become the leader of its partition once more."""

    async def load(self) -> None:
        """Read the log, then serve."""

    def close(self, code: int) -> None:
        """Serve no more; requests that wait are answered with ``code``."""


ShardT = TypeVar("ShardT", bound=Shard)


class Shards(Generic[ShardT]):
    """Has a shard for each partition of the topic that this node leads, and finds the one of a key."""

    def __init__(
        self, host: CoordinatorHost, topic: str, spec: Callable[[], TopicSpec], make: Callable[[Partition], ShardT]
    ) -> None:
        """``spec``: how the topic is created where there is none yet."""
        self._host = host
        self._topic = topic
        self._spec = spec
        self._make = make
        self._shards: dict[int, ShardT] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._partition_count: int | None = None
        self._is_active = False

    # Life

    def start(self) -> None:
        """Begin to serve; needs a running loop. Partitions that are led already are loaded."""
        self._is_active = True
        topic = self._host.image.topics.get(self._topic)
        for partition in topic.partitions if topic is not None else ():
            self.leadership(partition.index, partition.leader == self._host.node_id)

    def close(self) -> list[asyncio.Task[None]]:
        """Stop serving: requests that wait are answered with COORDINATOR_NOT_AVAILABLE.

        Returns the tasks that this cancels, to wait for.
        """
        self._is_active = False
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        for shard in self._shards.values():
            shard.close(CoordinatorNotAvailableError.code)
        self._shards.clear()
        self._loads.clear()
        return loads

    def leadership(self, index: int, is_leader: bool) -> None:
        """This node leads a partition of the topic now, or does not lead it any more.

        Call it once the node's replicas know.
        """
        if not self._is_active:
            return
        partition = self._host.replicas.partitions.get((self._topic, index))
        leads = is_leader and partition is not None and partition.is_leader
        held = self._shards.get(index)
        if held is not None and leads and partition is held.partition and held.is_current:
            return
        if held is not None:
            self._unload(index)
        if leads and partition is not None:
            self._shards[index] = shard = self._make(partition)
            self._loads[index] = asyncio.create_task(self._load(index, shard), name=f"load of {shard!r}")

    async def _load(self, index: int, shard: ShardT) -> None:
        try:
            await shard.load()
        except Exception:
            logger.exception("%r cannot be loaded, and is not served", shard)
            if self._shards.get(index) is shard:
                del self._shards[index]
            shard.close(NotCoordinatorError.code)
        finally:
            if self._loads.get(index) is asyncio.current_task():
                del self._loads[index]

    def _unload(self, index: int) -> None:
        self._shards.pop(index).close(NotCoordinatorError.code)
        load = self._loads.pop(index, None)
        if load is not None:
            load.cancel()

    # Finding

    def partition_for(self, key: str) -> int:
        """The partition that a key belongs to.

        The number of partitions is settled when the topic is first seen, as in Kafka: otherwise adding partitions
        would move keys away from their records.
        """
        count = self._partition_count
        if count is None:
            topic = self._host.image.topics.get(self._topic)
            if topic is None:
                count = self._spec().num_partitions
            else:
                count = self._partition_count = len(topic.partitions)
        return partition_for(key, count)

    def find(self, key: str) -> BrokerRegistration:
        """The node that coordinates a key; creates the topic where there is none yet.

        Raises:
            CoordinatorNotAvailableError: there is none at present, or the topic was only just created.
        """
        if self._topic not in self._host.image.topics:
            try:
                self._host.controller.create_topic(self._spec())
            except TopicExistsError:
                pass
            except KafkaError as error:
                logger.warning("%s cannot be created: %s", self._topic, error)
        elif (node := self.coordinator(key)) is not None:
            return node
        raise CoordinatorNotAvailableError(_NO_COORDINATOR)

    def coordinator(self, key: str) -> BrokerRegistration | None:
        """The node that coordinates a key, where there is one at present."""
        image = self._host.image
        index = self.partition_for(key)
        topic = image.topics.get(self._topic)
        if topic is None or index >= len(topic.partitions):
            return None
        node = image.nodes.get(topic.partitions[index].leader)
        return node if node is not None and node.is_alive else None

    def check_active(self) -> None:
        """Raise CoordinatorNotAvailableError unless this coordinator serves."""
        if not self._is_active:
            raise CoordinatorNotAvailableError()

    def serving(self, key: str) -> ShardT:
        """Where a key is served.

        Raises:
            CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError: not here, or not yet.
        """
        return self.at(self.partition_for(key))

    def at(self, index: int) -> ShardT:
        """The shard of a partition. Raises what ``serving`` does."""
        self.check_active()
        shard = self._shards.get(index)
        if shard is None or not shard.partition.is_leader:
            raise NotCoordinatorError()
        if not shard.is_loaded:
            raise CoordinatorLoadInProgressError()
        return shard

    def all(self) -> list[ShardT]:
        """Every shard.

        Raises:
            CoordinatorLoadInProgressError: some are not loaded yet.
            CoordinatorNotAvailableError: the broker is stopping.
        """
        self.check_active()
        if len(loaded := self.loaded()) < len(self._shards):
            raise CoordinatorLoadInProgressError()
        return loaded

    def loaded(self) -> list[ShardT]:
        """The shards that serve now."""
        return [shard for shard in self._shards.values() if shard.is_loaded]

    def held(self, key: str) -> ShardT | None:
        """The shard of a key, whether it serves or not, for tests to look at."""
        return self._shards.get(self.partition_for(key))
