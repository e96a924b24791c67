"""Compiled. The topics that records are sent to: partitions, leaders, and the partition of records without a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer.core.batching.partition_queue import PartitionQueue, TopicQueues
from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.batching.ready import ReadyPartitions
from aioproducer.partitioner import StickyPartitioner
from aioproducer.record import TopicPartition

if TYPE_CHECKING:
    from random import Random

# Minimum seconds between two refreshes of a topic's load, and seconds added for each partition: a refresh takes about
# one hundredth of the time at most, whatever the number of partitions.
LOAD_AGE = 0.005
LOAD_AGE_PER_PARTITION = 0.0001


class Topics:
    """The queues of each topic by its name, according to the metadata.

    Args:
        ready: receives the leader of each partition.
        producer_state: holds the sequences of each partition.
        rack_of: returns the rack of a node by its id, for rack-aware partitioning.
    """

    def __init__(
        self,
        ready: ReadyPartitions,
        producer_state: ProducerState,
        random: Random,
        *,
        batch_size: int,
        is_adaptive: bool,
        availability_timeout: float,
        rack: str | None,
        rack_of: Callable[[int], str | None],
    ) -> None:
        self._ready = ready
        self._producer_state = producer_state
        self._random = random
        self._batch_size = batch_size
        self._is_adaptive = is_adaptive
        self._availability_timeout = availability_timeout
        self._rack = rack
        self.rack_of = rack_of
        self._queues: dict[str, TopicQueues] = {}

    def get(self, name: str) -> TopicQueues | None:
        """Return the topic's queues, or ``None`` if it has none."""
        return self._queues.get(name)

    def __getitem__(self, name: str) -> TopicQueues:
        return self._queues[name]

    def __contains__(self, name: object) -> bool:
        return name in self._queues

    def ensure(self, name: str) -> TopicQueues:
        """Return the topic's queues, creating them if necessary; there are no partitions until metadata arrives."""
        topic = self._queues.get(name)
        if topic is None:
            topic = self._queues[name] = TopicQueues(name)
        return topic

    def forget(self, name: str) -> bool:
        """Drop the queues of a topic that metadata no longer follows; return False if a record or batch waits there."""
        topic = self._queues.get(name)
        if topic is None:
            return True
        if not topic.is_idle():
            return False
        for queue in topic.queues():
            self._ready.forget(queue)
        del self._queues[name]
        return True

    # Partitions and leaders

    def queue(self, topic: TopicQueues, number: int) -> PartitionQueue:
        """Return the queue of a partition that the topic has, creating it for the partition's first record."""
        queue = topic.partitions[number]
        if queue is None:
            topic_partition = TopicPartition(topic.name, number)
            queue = PartitionQueue(topic_partition, self._producer_state.sequences(topic_partition))
            queue.node = topic.leaders[number]
            topic.partitions[number] = queue
        return queue

    def resize(self, topic: TopicQueues, partition_count: int, now: float) -> None:
        """Set the number of partitions: fewer than before if the topic was re-created, none if it was deleted."""
        topic.resize(partition_count)
        if partition_count:
            self._refresh_load(topic, now)

    def has_partition(self, topic_partition: TopicPartition) -> bool:
        """Return whether metadata contains the partition."""
        topic = self._queues.get(topic_partition.topic)
        return topic is not None and topic.has_partition(topic_partition.partition)

    def recreated(self, name: str) -> None:
        """Restart the sequence checks: the topic was deleted and re-created, and its logs have no earlier batch."""
        for sequences in self._producer_state.sequences_of(name):
            self._producer_state.topic_recreated(sequences)

    def set_leader(self, name: str, partition: int, node_id: int, now: float) -> None:
        """Set the partition's leader to ``node_id``, -1 for none; a new partition receives it when it is created."""
        topic = self.ensure(name)
        if partition >= len(topic.partitions):
            return
        node = self._ready.leader(node_id)
        if topic.leaders[partition] is node:
            return
        topic.leaders[partition] = node
        queue = topic.partitions[partition]
        if queue is not None:
            self._ready.set_leader(queue, node, now)
        topic.leaders_changed()
        if node is None:
            self.switch_sticky(topic, partition, now)

    def leaders_known(self, name: str, now: float) -> None:
        """Choose the sticky partition again if it has no record yet: the leaders of new partitions have been set."""
        topic = self.ensure(name)
        sticky = topic.sticky
        if sticky is None or now < topic.load_at:
            return
        self._refresh_load(topic, now)
        queue = topic.partitions[sticky.partition]
        if not sticky.produced_bytes and (queue is None or not queue.batches):
            sticky.switch()

    # The sticky partition: records without a key go there

    def batch_closed(self, queue: PartitionQueue, fullness: float, now: float) -> None:
        """Count a closed batch, filled to ``fullness``, if its partition is the sticky one."""
        topic = self._queues[queue.topic]
        sticky = topic.sticky
        if sticky is not None and sticky.partition == queue.partition:
            if now >= topic.load_at and topic.partitions:
                self._refresh_load(topic, now)
            sticky.update(int(fullness * sticky.sticky_size))

    def switch_sticky(self, topic: TopicQueues, partition: int, now: float) -> None:
        """Choose another sticky partition if this is the current one."""
        sticky = topic.sticky
        if sticky is None or sticky.partition != partition or not topic.partitions:
            return
        if now >= topic.load_at:
            self._refresh_load(topic, now)
        sticky.switch()

    def _refresh_load(self, topic: TopicQueues, now: float) -> None:
        load = topic.load(
            now,
            adaptive=self._is_adaptive,
            availability_timeout=self._availability_timeout,
            rack_of=None if self._rack is None else self.rack_of,
        )
        if topic.sticky is None:
            topic.sticky = StickyPartitioner(max(self._batch_size, 1), load, self._random, self._rack)
        else:
            topic.sticky.refresh(load)
        topic.load_at = now + max(LOAD_AGE, LOAD_AGE_PER_PARTITION * len(topic.partitions))
