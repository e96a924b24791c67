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
    """A coordinator's state in one partition of its topic."""

    partition: Partition
    is_loaded: bool
    """Whether it answers requests."""

    @property
    def is_current(self) -> bool:
        """Whether it may continue after its node became the leader of its partition again."""

    async def load(self) -> None:
        """Read the log, then serve."""

    def close(self, code: int) -> None:
        """Stop serving, and answer waiting requests with ``code``."""


ShardT = TypeVar("ShardT", bound=Shard)


class Shards(Generic[ShardT]):
    """Keeps a shard for each partition of the topic that this node leads, and finds the shard of a key."""

    def __init__(
        self, host: CoordinatorHost, topic: str, spec: Callable[[], TopicSpec], make: Callable[[Partition], ShardT]
    ) -> None:
        """``spec``: the partitions, replicas and configuration for creating the topic if it does not exist."""
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
        """Start serving, which needs a running loop. Partitions that this node leads are loaded."""
        self._is_active = True
        topic = self._host.image.topics.get(self._topic)
        for partition in topic.partitions if topic is not None else ():
            self.leadership(partition.index, partition.leader == self._host.node_id)

    def close(self) -> list[asyncio.Task[None]]:
        """Stop serving: requests that wait are answered with COORDINATOR_NOT_AVAILABLE.

        Returns the cancelled tasks, for the caller to await.
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
        """Start or stop leading a partition of the topic.

        Call this after the node's replicas have changed.
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
            logger.exception("%r: loading failed, so requests for it are refused", shard)
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
        """Return the partition that a key belongs to.

        The number of partitions is fixed when the topic is first seen, as in Kafka: otherwise adding partitions would
        separate keys from their records.
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
        """Return the node that coordinates a key; create the topic if it does not exist.

        Raises:
            CoordinatorNotAvailableError: the partition has no leader, or the topic was only just created.
        """
        if self._topic not in self._host.image.topics:
            try:
                self._host.controller.create_topic(self._spec())
            except TopicExistsError:
                pass
            except KafkaError as error:
                logger.warning("Topic %s could not be created: %s", self._topic, error)
        elif (node := self.coordinator(key)) is not None:
            return node
        raise CoordinatorNotAvailableError(_NO_COORDINATOR)

    def coordinator(self, key: str) -> BrokerRegistration | None:
        """Return the node that coordinates a key; ``None`` if there is none at present."""
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
        """Return the shard that serves a key.

        Raises:
            CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError: this node does not serve
            the
                key, or not yet.
        """
        return self.at(self.partition_for(key))

    def at(self, index: int) -> ShardT:
        """Return the shard of a partition; raises the same errors as ``serving``."""
        self.check_active()
        shard = self._shards.get(index)
        if shard is None or not shard.partition.is_leader:
            raise NotCoordinatorError()
        if not shard.is_loaded:
            raise CoordinatorLoadInProgressError()
        return shard

    def all(self) -> list[ShardT]:
        """Return all shards.

        Raises:
            CoordinatorLoadInProgressError: some are still loading.
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
        """The shard of a key, also one that does not serve; for tests."""
        return self._shards.get(self.partition_for(key))
