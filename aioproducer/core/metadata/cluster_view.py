"""A read-only view of the cluster for plug-ins and callers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from aioproducer.core.metadata.cluster import NO_LEADER, PartitionMetadata, TopicMetadata
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.record import Node, PartitionInfo


class _Seen(NamedTuple):
    """Cached results for a topic, and the state of its metadata that they are from."""

    changes: int
    nodes: object
    partitions: tuple[PartitionInfo, ...]
    available: tuple[PartitionInfo, ...]


class MetadataView:
    """A read-only ``ClusterView`` of the producer's metadata, always up to date.

    A partitioner may call it for every record: results are cached until the metadata changes.
    """

    __slots__ = ("_metadata",)

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Return all partitions of the topic, ordered by number; empty if the topic is not known."""
        known = self._metadata.topic(topic)
        return () if known is None else self._seen(known).partitions

    def available_partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Return the partitions that have a leader."""
        known = self._metadata.topic(topic)
        return () if known is None else self._seen(known).available

    def _seen(self, topic: TopicMetadata) -> _Seen:
        # The dict of nodes is replaced when a node is new or has moved.
        nodes = self._metadata._nodes
        seen = topic.seen
        if not isinstance(seen, _Seen) or seen.changes != topic.changes or seen.nodes is not nodes:
            partitions = tuple(self._info(topic.name, partition) for partition in topic.partitions)
            led = [partition.leader != NO_LEADER for partition in topic.partitions]
            seen = topic.seen = _Seen(topic.changes, nodes, partitions, tuple(compress(partitions, led)))
        return seen

    def partition_count(self, topic: str) -> int:
        """Return the topic's number of partitions; 0 if it is not known."""
        known = self._metadata.topic(topic)
        return 0 if known is None else len(known.partitions)

    def node(self, node_id: int) -> Node | None:
        """Return the broker with that id, or ``None``."""
        return self._metadata.node(node_id)

    def nodes(self) -> Sequence[Node]:
        """Return the brokers that metadata lists."""
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
