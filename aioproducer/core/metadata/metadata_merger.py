"""What a Metadata response says of a topic, held against what is known of it."""

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
from aioproducer.errors import broker_error
from aioproducer.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from aioproducer.record import Node

INVALID_TOPIC = 17
_UNKNOWN_TOPIC_OR_PARTITION = 3
_TOPIC_AUTHORIZATION_FAILED = 29

REFUSED_TOPIC_CODES = frozenset((INVALID_TOPIC, _TOPIC_AUTHORIZATION_FAILED))
"""Topic errors that asking again does not cure; every other one may pass (KafkaProducer treats just these as final)."""

RELIABLE_EPOCHS_FROM_VERSION = 9
"""Metadata before this version may carry leader epochs that brokers never updated (KAFKA-9212): not believed."""

PARTITIONS_PER_STEP = 16
"""How many partitions are taken in between two places where the loop may have its turn: about 0.1 ms."""

_ZERO_TOPIC_ID = bytes(16)


class TopicInUse:
    """A topic that records are sent to, and what the latest response about it said."""

    __slots__ = ("error_code", "last_used", "metadata", "name", "was_requested")

    def __init__(self, name: str, last_used: float) -> None:
        self.name = name
        self.last_used = last_used
        # At least once; from then on full updates ask for it.
        self.was_requested = False
        self.metadata: TopicMetadata | None = None
        self.error_code = 0


class MetadataMerger:
    """Takes the topics of one response into what is known of them.

    Args:
        nodes: the brokers that the response lists.
        version: the Metadata version that it came in.
        other_cluster: it is from another cluster than those before: what is known of topics no longer counts.
        request_again: told why the topics have to be asked for again.
        change: what is new goes there.
    """

    __slots__ = ("_request_again", "_nodes", "_other_cluster", "_version", "change")

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

    def pop_change(self) -> MetadataChange:
        """What is new since this was last called."""
        change, self.change = self.change, MetadataChange()
        return change

    def merge_topic(self, data: MetadataResponseTopic, name: str, in_use: TopicInUse) -> Iterator[int]:
        """Take in a topic; yields every now and then, and at its end, how many partitions that were.

        What is new stands in ``change`` at the end; a topic's partitions are not known before all of them are.
        """
        before, in_use.error_code = in_use.error_code, data.error_code
        if data.error_code:
            if data.error_code == before == _UNKNOWN_TOPIC_OR_PARTITION:
                # One broker may lag behind. Two answers in a row, and it was deleted.
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
                self._request_again(f"topic {name} misses partition {len(metadata.partitions)}")
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

    def _mark_deleted(self, in_use: TopicInUse) -> None:
        known = in_use.metadata
        if known is None or not known.partitions:
            return
        # Its id stays, to tell whether it is another topic that comes back by this name.
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
            # A broker that sees no leader where we know one of the same epoch has lost sight of it, no more: as long
            # as the node is listed, trying it costs less than waiting until all brokers agree.
            if leader == NO_LEADER and old.leader in self._nodes and epoch <= old.leader_epoch:
                return
        new = PartitionMetadata(
            index,
            leader,
            epoch if old is None else max(epoch, old.leader_epoch),
            tuple(data.replica_nodes),
            tuple(data.isr_nodes),
            tuple(data.offline_replicas),
        )
        # Most answers say what is known: then no object takes the place of an equal one that lives long already.
        if new != old:
            set_partition(metadata, new, leaders, old if old is not None else before_recreation)


def set_partition(
    metadata: TopicMetadata, new: PartitionMetadata, leaders: list[LeaderChange], old: PartitionMetadata | None
) -> None:
    """Replace ``old``; where the leader or its epoch differs that goes into ``leaders``."""
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
    """Whether the topic was deleted and created anew: another id, or without ids fewer partitions than it had."""
    if topic_id is not None and known.topic_id is not None:
        return topic_id != known.topic_id
    if topic_id is not None or known.topic_id is not None:
        return False
    indexes = {partition.partition_index for partition in partitions}
    return 0 < len(indexes) < len(known.partitions) and indexes == set(range(len(indexes)))
