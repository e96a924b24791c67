"""A test's operations on a cluster, in any loop or thread: topics, faults, leaders, and reading the logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.image import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, PartitionState
from aioproducer.errors import CoordinatorNotAvailableError, KafkaError, UnknownMemberIdError
from aioproducer.protocol.messages.groups import MemberIdentity
from aioproducer.record import HeaderPair, TopicPartition
from aioproducer.wire.aborted_filter import AbortedFilter
from aioproducer.wire.record_batch import iter_batches

if TYPE_CHECKING:
    from aioproducer.broker import BrokerCluster
    from aioproducer.broker.groups.coordinator import GroupCoordinator
    from aioproducer.broker.groups.group import Group
    from aioproducer.broker.groups.timers import Moment
    from aioproducer.broker.replicas.partition import Partition

T = TypeVar("T")

_READ_BYTES = 1024 * 1024


class StoredRecord(NamedTuple):
    """A record as stored in a log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Milliseconds since the epoch: the record's own, or the broker's with ``message.timestamp.type=LogAppendTime``."""
    key: bytes | None
    value: bytes | None
    headers: tuple[HeaderPair, ...]


class ClusterControl(ABC):
    """The plain methods of an embedded cluster; each has taken effect when it returns.

    Errors are given by Kafka's names (``"NOT_LEADER_OR_FOLLOWER"``) or codes, requests by theirs (``"Produce"``), nodes
    by their ids, which count from 1. ``times`` says how often a fault happens, ``None`` for as long as the cluster
    lives or until ``clear_faults``.
    """

    @abstractmethod
    def _call(self, function: Callable[[BrokerCluster], T]) -> T:
        """Run ``function`` in the cluster's loop and return its result."""

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every node, separated by commas, as clients accept it."""
        return self._call(lambda cluster: cluster.bootstrap_servers)

    @property
    def nodes(self) -> list[int]:
        """The ids of the running nodes."""
        return self._call(lambda cluster: [node.node_id for node in cluster.image.alive_nodes()])

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; -1 stands for ``num.partitions`` and ``default.replication.factor`` of the cluster.

        Raises:
            TopicExistsError: a topic with this name exists.
            InvalidTopicError, InvalidPartitionsError, InvalidReplicationFactorError: an argument is wrong.
            InvalidConfigurationError: a key or value in ``configs`` is wrong.
        """
        spec = TopicSpec(name, partitions, replication_factor, None, dict(configs or {}))
        self._call(lambda cluster: cluster.controller.create_topic(spec))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            UnknownTopicOrPartitionError: there is none of that name.
        """
        self._call(lambda cluster: cluster.controller.delete_topic(name))

    def recreate_topic(self, name: str) -> None:
        """Delete a topic and create it again: empty, with a new id, the same partitions and the same configuration.

        Raises:
            UnknownTopicOrPartitionError: there is none of that name.
        """

        def recreate(cluster: BrokerCluster) -> None:
            topic = cluster.controller.delete_topic(name)
            assignments = {partition.index: partition.replicas for partition in topic.partitions}
            cluster.controller.create_topic(TopicSpec(name, -1, -1, assignments, dict(topic.configs)))

        self._call(recreate)

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        return self._call(lambda cluster: sorted(t.name for t in cluster.image.topics.values() if not t.is_internal))

    # Leaders and coordinators

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition, -1 if there is none.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
        """
        return self._call(lambda cluster: cluster.image.partition(topic, partition).leader)

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Move the leadership of a partition to an in-sync replica; nothing changes if that replica already leads.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            KafkaError: ``node`` is down or not in sync; ``wait_in_sync`` waits for that.
        """

        def move(cluster: BrokerCluster) -> None:
            if cluster.image.partition(topic, partition).leader != node:
                cluster.controller.elect_leader(topic, partition, node)

        self._call(move)

    def coordinator(self, group_id: str) -> int:
        """Return the node that coordinates a consumer group, -1 if there is none."""

        return self._call(lambda cluster: _coordinator(cluster, GROUP_METADATA_TOPIC, group_id))

    def drop_coordinator(self, group_id: str) -> None:
        """Move a consumer group to another coordinator, which loads the group from the log.

        If no other node is in sync, the same node loads it again. Members receive NOT_COORDINATOR, also in response to
        waiting requests.

        Raises:
            UnknownTopicOrPartitionError: there has never been a coordinator in this cluster.
        """

        self._call(lambda cluster: _drop_coordinator(cluster, GROUP_METADATA_TOPIC, group_id))

    # Consumer groups

    def members(self, group_id: str) -> dict[str, str | None]:
        """Return the member ids of a consumer group, each with its ``group.instance.id`` or None.

        Raises:
            GroupIdNotFoundError: there is no such group.
            KafkaError: the group has no coordinator at present.
        """
        found: dict[str, str | None] = {}

        def collect(group: Group, at: Moment) -> None:
            found.update({each.member_id: each.group_instance_id for each in group.members.values()})

        self._change_group(group_id, collect)
        return found

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a consumer group; those of open transactions are left out.

        Raises:
            KafkaError: the group has no coordinator at present.
        """
        found = self._call(lambda cluster: _group_coordinator(cluster, group_id).committed(group_id))
        return {TopicPartition(*where): offset for where, offset in sorted(found.items())}

    def rebalance(self, group_id: str) -> None:
        """Let all members of a consumer group join again, as if a member had come or gone.

        Nothing happens during a rebalance, and to a group without members.

        Raises:
            GroupIdNotFoundError: there is no such group.
            KafkaError: the group has no coordinator at present.
        """
        self._change_group(group_id, lambda group, at: group.rebalance(at))

    def expire_session(self, group_id: str, member_id: str | None = None) -> None:
        """Remove a member of a consumer group, by default all of them, as if they had sent no heartbeats for too long.

        Their next request gets UNKNOWN_MEMBER_ID, and they may join again. ``members`` returns the ids.

        Raises:
            GroupIdNotFoundError: there is no such group.
            UnknownMemberIdError: the group has no such member.
            KafkaError: the group has no coordinator at present.
        """

        def expire(group: Group, at: Moment) -> None:
            wanted = list(group.members) if member_id is None else [member_id]
            if member_id is not None and member_id not in group.members:
                raise UnknownMemberIdError(f"group {group_id!r} has no member {member_id!r}: members() returns its ids")
            group.leave([MemberIdentity(member_id=each) for each in wanted], at)

        self._change_group(group_id, expire)

    def fence_member(self, group_id: str, group_instance_id: str) -> None:
        """Replace a static member of a consumer group, as if another process had joined with its ``group.instance.id``.

        The member gets FENCED_INSTANCE_ID (KIP-345). Its partitions stay with the other process until its session ends;
        ``expire_session`` ends it.

        Raises:
            GroupIdNotFoundError: there is no such group.
            UnknownMemberIdError: the group has no such static member.
            KafkaError: the group has no coordinator at present.
        """
        self._change_group(group_id, lambda group, at: group.fence(group_instance_id, at))

    def _change_group(self, group_id: str, change: Callable[[Group, Moment], object]) -> None:
        self._call(lambda cluster: _group_coordinator(cluster, group_id).change(group_id, change))

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the node that coordinates a transactional id, -1 if there is none."""

        return self._call(lambda cluster: _coordinator(cluster, TRANSACTION_STATE_TOPIC, transactional_id))

    def drop_transaction_coordinator(self, transactional_id: str) -> None:
        """Move a transactional id to another coordinator, which loads its state from the log.

        If no other node is in sync, the same node loads it again. Waiting requests receive NOT_COORDINATOR.

        Raises:
            UnknownTopicOrPartitionError: there has never been a coordinator in this cluster.
        """

        self._call(lambda cluster: _drop_coordinator(cluster, TRANSACTION_STATE_TOPIC, transactional_id))

    def in_sync_replicas(self, topic: str, partition: int) -> list[int]:
        """Return the nodes that have all acknowledged records of a partition."""
        return self._call(lambda cluster: list(cluster.image.partition(topic, partition).isr))

    # Faults

    def fail(
        self,
        api: str,
        error: str | int,
        *,
        times: int | None = 1,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        node: int | None = None,
    ) -> None:
        """Answer requests with an error instead of handling them, as if the broker had detected the error itself.

        With ``topic`` and ``partition`` only that part of a request fails, and only requests with that part count.
        With ``group`` only requests of this consumer group fail, as
        ``fail("OffsetCommit", "ILLEGAL_GENERATION", group="billing")``.

        Raises:
            ValueError: no request or error has that name; the text has the closest name. Or a topic or group is given
                for a request that has none.
        """
        self._call(
            lambda cluster: cluster.faults.fail(
                api, error, times=times, topic=topic, partition=partition, group=group, node=node
            )
        )

    def delay(self, api: str, delay_ms: int, *, times: int | None = 1, node: int | None = None) -> None:
        """Handle requests, but hold back the responses; the connection's later requests wait behind them."""
        self._call(lambda cluster: cluster.faults.delay(api, delay_ms, times=times, node=node))

    def disconnect(self, api: str, when: str = "before", *, times: int | None = 1, node: int | None = None) -> None:
        """End the connection of a request: ``"before"`` it is handled, ``"after"`` that but before the response, or
        ``"half"``-way through the response's frame."""
        self._call(lambda cluster: cluster.faults.disconnect(api, when, times=times, node=node))

    def throttle(self, api: str, throttle_time_ms: int, *, times: int | None = 1, node: int | None = None) -> None:
        """Report a violated quota to clients, and read none of their requests for that time (KIP-219)."""
        self._call(lambda cluster: cluster.faults.throttle(api, throttle_time_ms, times=times, node=node))

    def postpone(self, api: str, postpone_ms: int, *, times: int | None = 1, node: int | None = None) -> None:
        """Handle requests later; the connection's later requests wait behind them. With ``WriteTxnMarkers``,
        transactions' markers are written late."""
        self._call(lambda cluster: cluster.faults.postpone(api, postpone_ms, times=times, node=node))

    def repeat(self, api: str, *, times: int | None = 1, node: int | None = None) -> None:
        """Handle requests twice and send the second response, as if the first one was lost and the client repeated
        the request."""
        self._call(lambda cluster: cluster.faults.repeat(api, times=times, node=node))

    def clear_faults(self) -> None:
        """Remove the remaining faults."""
        self._call(lambda cluster: cluster.faults.clear())

    def pending_faults(self) -> list[str]:
        """Return the faults that have happened less often than their ``times``, one line each."""
        return self._call(lambda cluster: [str(fault) for fault in cluster.faults.unmet()])

    # Records

    def records(self, topic: str, partition: int | None = None, *, committed: bool = False) -> list[StoredRecord]:
        """Return every record below the high watermark, by partition and offset, as a consumer would read them.

        With ``committed``, return what a consumer with ``isolation.level=read_committed`` would read: no record of an
        aborted transaction, and no record from the start of the first open transaction on.

        Records are read from each partition's leader; a partition without a leader has none.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """

        def read(cluster: BrokerCluster) -> list[StoredRecord]:
            states = cluster.image.topic(topic).partitions
            wanted = states if partition is None else [cluster.image.partition(topic, partition)]
            found = []
            for state in wanted:
                broker = cluster.brokers.get(state.leader)
                if broker is not None:
                    found += _read(broker.replicas.leader(topic, state.index), committed)
            return found

        return self._call(read)


class _Shards(Protocol):
    """The part of a coordinator, of groups or of transactions, that this module calls."""

    def partition_for(self, key: str, /) -> int: ...

    def leadership(self, index: int, is_leader: bool, /) -> None: ...


def _shards(cluster: BrokerCluster, node: int, topic: str) -> _Shards:
    """Return the coordinator of a node; it keeps its state in an internal topic."""
    broker = cluster.brokers[node]
    return broker.groups.shards if topic == GROUP_METADATA_TOPIC else broker.transactions.shards


def _coordinating_partition(cluster: BrokerCluster, topic: str, key: str) -> PartitionState:
    """Return the partition of an internal topic that has a group or a transactional id."""
    node = cluster.image.alive_nodes()[0].node_id
    return cluster.image.partition(topic, _shards(cluster, node, topic).partition_for(key))


def _coordinator(cluster: BrokerCluster, topic: str, key: str) -> int:
    """Return the node that coordinates a group or a transactional id, -1 if there is none."""
    return _coordinating_partition(cluster, topic, key).leader if topic in cluster.image.topics else -1


def _group_coordinator(cluster: BrokerCluster, group_id: str) -> GroupCoordinator:
    """Return the coordinator of the node that a consumer group is at.

    Raises:
        CoordinatorNotAvailableError: there is none.
    """
    node = _coordinator(cluster, GROUP_METADATA_TOPIC, group_id)
    broker = cluster.brokers.get(node)
    if broker is None:
        raise CoordinatorNotAvailableError(f"group {group_id!r} has no coordinator: no client has used a group yet")
    return broker.groups


def _drop_coordinator(cluster: BrokerCluster, topic: str, key: str) -> None:
    """Move a group or a transactional id to another node, or let the same node load it again."""
    state = _coordinating_partition(cluster, topic, key)
    others = [node for node in state.isr if node != state.leader and cluster.image.is_alive(node)]
    if others:
        cluster.controller.elect_leader(topic, state.index, others[0])
    elif state.leader in cluster.brokers:
        shards = _shards(cluster, state.leader, topic)
        shards.leadership(state.index, False)
        shards.leadership(state.index, True)


def _read(partition: Partition, committed: bool) -> list[StoredRecord]:
    found = []
    offset = partition.log_start_offset
    end = partition.last_stable_offset if committed else partition.high_watermark
    while offset < end:
        buffers: Sequence[bytes | bytearray | memoryview]
        buffers, aborted = partition.log.read_committed(offset, _READ_BYTES, up_to=end, min_one_batch=True)
        aborted_filter = AbortedFilter((each.first_offset, each.producer_id) for each in aborted if committed)
        batches = [batch for buffer in buffers for batch in iter_batches(buffer)]
        if not batches:
            raise KafkaError(f"{partition.topic}-{partition.index} cannot be read from offset {offset} on")
        for batch in batches:
            if not (aborted_filter.drops(batch) or batch.is_control):
                found += [
                    StoredRecord(
                        partition.topic,
                        partition.index,
                        record.offset,
                        record.timestamp,
                        record.key,
                        record.value,
                        record.headers,
                    )
                    for record in batch.records()
                    if record.offset >= offset
                ]
        offset = batches[-1].next_offset
    return found
