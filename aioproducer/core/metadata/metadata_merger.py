"""Merges the topics of a Metadata response into the known metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from aioproducer.core.metadata.cluster import (
    NO_EPOCH,
    NO_LEADER,
    LeaderChange,
    MetadataChange,
    PartitionMetadata,
    PartitionsAdded,
    TopicMetadata,
)
from aioproducer.error_codes import (
    INVALID_TOPIC_EXCEPTION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from aioproducer.errors import broker_error
from aioproducer.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from aioproducer.record import Node

REFUSED_TOPIC_CODES = frozenset((INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED))
"""Topic errors that another request does not resolve. All others may pass; KafkaProducer too treats only these as
final."""

RELIABLE_EPOCHS_FROM_VERSION = 9
"""Leader epochs in earlier versions of Metadata are ignored: brokers may never have updated them (KAFKA-9212)."""

PARTITIONS_PER_STEP = 16
"""Partitions that one step merges, in about 0.1 ms; between steps the loop may run other callbacks."""

_ZERO_TOPIC_ID = bytes(16)


class TopicInUse:
    """A topic that records are sent to, and its state in the latest response about it."""

    __slots__ = ("error_code", "last_used", "metadata", "name", "was_requested")

    def __init__(self, name: str, last_used: float) -> None:
        self.name = name
        self.last_used = last_used
        # Whether a request has included it; from then on full updates request it.
        self.was_requested = False
        self.metadata: TopicMetadata | None = None
        self.error_code = 0


class MetadataMerger:
    """Merges the topics of one response into the known metadata.

    Args:
        nodes: the brokers that the response lists.
        version: the Metadata version of the response.
        other_cluster: the response is from another cluster than earlier ones: the known metadata no longer applies.
        request_again: called with the reason if the topics must be requested again.
        change: receives the changes.
    """

    __slots__ = ("_nodes", "_other_cluster", "_request_again", "_shared_node_ids", "_version", "change")

    def __init__(
        self,
        nodes: Mapping[int, Node],
        version: int,
        *,
        other_cluster: bool,
        request_again: Callable[[str], object],
        change: MetadataChange,
    ) -> None:
        self.change = change
        self._nodes: Final = nodes
        self._version: Final = version
        self._other_cluster: Final = other_cluster
        self._request_again: Final = request_again
        self._shared_node_ids: Final[dict[tuple[int, ...], tuple[int, ...]]] = {}

    def pop_change(self) -> MetadataChange:
        """Return the changes since the last call."""
        change, self.change = self.change, MetadataChange()
        return change

    def merge_topic(self, data: MetadataResponseTopic, name: str, in_use: TopicInUse) -> Iterator[int]:
        """Merge a topic in steps; each step, and the end, yields the number of merged partitions.

        ``change`` holds the changes at the end: the partitions of a topic become known all at once.
        """
        before, in_use.error_code = in_use.error_code, data.error_code
        if data.error_code:
            if data.error_code == before == UNKNOWN_TOPIC_OR_PARTITION:
                # One broker may lag behind; after two such responses in a row the topic was deleted.
                self._mark_deleted(in_use)
            self.change.topic_errors[name] = data.error_code
            if data.error_code not in REFUSED_TOPIC_CODES:
                self._request_again(f"topic {name} has error {broker_error(data.error_code).error_name}")
            yield 1
            return
        topic_id = None if data.topic_id == _ZERO_TOPIC_ID else data.topic_id
        partitions = sorted(data.partitions, key=_partition_index)
        old = in_use.metadata
        metadata = old
        if metadata is None or self._other_cluster or _was_recreated(metadata, topic_id, partitions):
            metadata = TopicMetadata(name, topic_id, [])
        elif topic_id is not None:
            metadata.topic_id = topic_id

        old_count = len(metadata.partitions)
        leaders: list[LeaderChange] = []
        in_step = 0
        for partition in partitions:
            index = partition.partition_index
            if index > len(metadata.partitions):
                self._request_again(f"topic {name} lacks partition {len(metadata.partitions)}")
                break
            if index >= 0:
                before_recreation = None if old is None or index >= len(old.partitions) else old.partitions[index]
                self._merge_partition(metadata, partition, before_recreation, leaders)
            in_step += 1
            if in_step == PARTITIONS_PER_STEP:
                in_step = 0
                yield PARTITIONS_PER_STEP
        new_count = len(metadata.partitions)
        if not new_count:
            self._request_again(f"topic {name} has no partitions yet")
        else:
            change = self.change
            change.leaders.extend(leaders)
            in_use.metadata = metadata
            if old is None:
                change.new_topics.append(name)
            elif metadata is not old:
                change.recreated_topics.append(name)
            elif new_count > old_count:
                change.partitions_added.append(PartitionsAdded(name, old_count, new_count))
        yield in_step

    def _node_ids(self, node_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the same tuple for partitions with the same replicas: thousands of partitions have few of them."""
        given = tuple(node_ids)
        return self._shared_node_ids.setdefault(given, given)

    def _mark_deleted(self, in_use: TopicInUse) -> None:
        """Drop the partitions of a topic that the cluster no longer has."""
        known = in_use.metadata
        if known is None or not known.partitions:
            return
        # The id stays: it shows whether a later topic of this name is another one.
        in_use.metadata = TopicMetadata(known.name, known.topic_id, [])
        self.change.leaders.extend(
            LeaderChange(known.name, each.partition, each.leader, NO_LEADER, each.leader_epoch)
            for each in known.partitions
            if each.leader != NO_LEADER
        )
        self.change.lost_topics.append(known.name)

    def _merge_partition(
        self,
        metadata: TopicMetadata,
        data: MetadataResponsePartition,
        before_recreation: PartitionMetadata | None,
        leaders: list[LeaderChange],
    ) -> None:
        index = data.partition_index
        old = metadata.partitions[index] if index < len(metadata.partitions) else None
        leader = data.leader_id if data.leader_id in self._nodes else NO_LEADER
        epoch = data.leader_epoch if self._version >= RELIABLE_EPOCHS_FROM_VERSION else NO_EPOCH
        if leader == NO_LEADER or data.error_code:
            self._request_again(f"partition {metadata.name}-{index} has no leader or an error")
        if old is not None:
            if NO_EPOCH < epoch < old.leader_epoch:
                return
            # A broker that lists no leader, though one of the same epoch is known, has only lost contact with it. While
            # the node is listed, trying it costs less than waiting until all brokers agree.
            if leader == NO_LEADER and old.leader in self._nodes and epoch <= old.leader_epoch:
                return
        new = PartitionMetadata(
            index,
            leader,
            epoch if old is None else max(epoch, old.leader_epoch),
            self._node_ids(data.replica_nodes),
            self._node_ids(data.isr_nodes),
            self._node_ids(data.offline_replicas),
        )
        # Most responses contain no change: an equal object must not replace one that the garbage collector has aged.
        if new != old:
            set_partition(metadata, new, leaders, old if old is not None else before_recreation)


def set_partition(
    metadata: TopicMetadata, new: PartitionMetadata, leaders: list[LeaderChange], old: PartitionMetadata | None
) -> None:
    """Replace ``old`` by ``new``; append to ``leaders`` if the leader or its epoch differs."""
    metadata.changes += 1
    if new.partition < len(metadata.partitions):
        metadata.partitions[new.partition] = new
    else:
        metadata.partitions.append(new)
    old_leader = NO_LEADER if old is None else old.leader
    old_epoch = new.leader_epoch if old is None else old.leader_epoch
    if old_leader != new.leader or old_epoch != new.leader_epoch:
        leaders.append(LeaderChange(metadata.name, new.partition, old_leader, new.leader, new.leader_epoch))


def _partition_index(partition: MetadataResponsePartition) -> int:
    return partition.partition_index


def _was_recreated(
    known: TopicMetadata, topic_id: bytes | None, partitions: Sequence[MetadataResponsePartition]
) -> bool:
    """Return whether the topic was deleted and created again: it has another id, or without ids fewer partitions."""
    if topic_id is not None and known.topic_id is not None:
        return topic_id != known.topic_id
    if topic_id is not None or known.topic_id is not None:
        return False
    indexes = {partition.partition_index for partition in partitions}
    return 0 < len(indexes) < len(known.partitions) and indexes == set(range(len(indexes)))
