"""The cluster as plug-ins and callers may see it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from aioproducer.core.metadata.cluster import NO_LEADER, PartitionMetadata, TopicMetadata
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.record import Node, PartitionInfo


class _Seen(NamedTuple):
    """What was made of a topic's metadata, and when."""

    changes: int
    nodes: object
    partitions: tuple[PartitionInfo, ...]
    available: tuple[PartitionInfo, ...]


class MetadataView:
    """A read-only ``ClusterView`` of the producer's metadata, always as new as that.

    A partitioner asks it for every record: what it answers is made anew only where it has changed.
    """

    __slots__ = ("_metadata",)

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """All partitions of the topic, ordered by number; empty when the topic is not known."""
        known = self._metadata.topic(topic)
        return () if known is None else self._seen(known).partitions

    def available_partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Those with a leader."""
        known = self._metadata.topic(topic)
        return () if known is None else self._seen(known).available

    def _seen(self, topic: TopicMetadata) -> _Seen:
        # Where a node is new or has moved, all are in a new dict.
        nodes = self._metadata._nodes
        seen = topic.seen
        if not isinstance(seen, _Seen) or seen.changes != topic.changes or seen.nodes is not nodes:
            partitions = tuple(self._info(topic.name, partition) for partition in topic.partitions)
            led = [partition.leader != NO_LEADER for partition in topic.partitions]
            seen = topic.seen = _Seen(topic.changes, nodes, partitions, tuple(compress(partitions, led)))
        return seen

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; 0 when it is not known."""
        known = self._metadata.topic(topic)
        return 0 if known is None else len(known.partitions)

    def node(self, node_id: int) -> Node | None:
        """The broker of that id, or ``None``."""
        return self._metadata.node(node_id)

    def nodes(self) -> Sequence[Node]:
        """The brokers that metadata lists."""
        return [node for node in self._metadata.nodes.values() if node.id >= 0]

    def _info(self, topic: str, partition: PartitionMetadata) -> PartitionInfo:
        return PartitionInfo(
            topic,
            partition.partition,
            self._metadata.node(partition.leader),
            partition.replicas,
            partition.in_sync_replicas,
            partition.offline_replicas,
        )
