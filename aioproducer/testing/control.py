"""What a test does to a cluster, wherever the cluster runs: topics, faults, leaders, and a look into the logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.image import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, PartitionState
from aioproducer.errors import KafkaError
from aioproducer.record import HeaderPair
from aioproducer.wire.aborted_filter import AbortedFilter
from aioproducer.wire.record_batch import iter_batches

if TYPE_CHECKING:
    from aioproducer.broker import BrokerCluster
    from aioproducer.broker.replicas.partition import Partition

T = TypeVar("T")

_READ_BYTES = 1024 * 1024


class StoredRecord(NamedTuple):
    """A record as it stands in a log."""

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
        """What ``function`` returns, run where the cluster runs."""

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every node, with commas between them, as clients take it."""
        return self._call(lambda cluster: cluster.bootstrap_servers)

    @property
    def nodes(self) -> list[int]:
        """The ids of the nodes that are up."""
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
            TopicExistsError: there is a topic of this name.
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
        """Delete a topic and create it again, empty and with a new id, as large and with the same configuration.

        Raises:
            UnknownTopicOrPartitionError: there is none of that name.
        """

        def recreate(cluster: BrokerCluster) -> None:
            topic = cluster.controller.delete_topic(name)
            assignments = {partition.index: partition.replicas for partition in topic.partitions}
            cluster.controller.create_topic(TopicSpec(name, -1, -1, assignments, dict(topic.configs)))

        self._call(recreate)

    def topics(self) -> list[str]:
        """The names of all topics but the cluster's own."""
        return self._call(lambda cluster: sorted(t.name for t in cluster.image.topics.values() if not t.is_internal))

    # Leaders and coordinators

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition, -1 when there is none.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
        """
        return self._call(lambda cluster: cluster.image.partition(topic, partition).leader)

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Give the leadership of a partition to another of its in-sync replicas; one that leads already goes on.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            KafkaError: ``node`` is down or not in sync; ``wait_in_sync`` waits for that.
        """

        def move(cluster: BrokerCluster) -> None:
            if cluster.image.partition(topic, partition).leader != node:
                cluster.controller.elect_leader(topic, partition, node)

        self._call(move)

    def coordinator(self, group_id: str) -> int:
        """The node that coordinates a consumer group, -1 when there is none."""

        return self._call(lambda cluster: _coordinator(cluster, GROUP_METADATA_TOPIC, group_id))

    def drop_coordinator(self, group_id: str) -> None:
        """Let a consumer group lose its coordinator: another node takes over what the log says of the group, or, where
        no other node is in sync, the same one reads it anew. Members are told NOT_COORDINATOR, and waiting ones go on.

        Raises:
            UnknownTopicOrPartitionError: there has never been a coordinator in this cluster.
        """

        self._call(lambda cluster: _drop_coordinator(cluster, GROUP_METADATA_TOPIC, group_id))

    def transaction_coordinator(self, transactional_id: str) -> int:
        """The node that coordinates a transactional id, -1 when there is none."""

        return self._call(lambda cluster: _coordinator(cluster, TRANSACTION_STATE_TOPIC, transactional_id))

    def drop_transaction_coordinator(self, transactional_id: str) -> None:
        """Let a transactional id lose its coordinator: another node takes over what the log has of it, or, where no
        other node is in sync, the same one loads it again. Requests that wait are answered with NOT_COORDINATOR.

        Raises:
            UnknownTopicOrPartitionError: there has never been a coordinator in this cluster.
        """

        self._call(lambda cluster: _drop_coordinator(cluster, TRANSACTION_STATE_TOPIC, transactional_id))

    def in_sync_replicas(self, topic: str, partition: int) -> list[int]:
        """The nodes that hold everything acknowledged of a partition."""
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
        node: int | None = None,
    ) -> None:
        """Answer requests with an error instead of doing what they ask, as if the broker had found it out itself.

        With ``topic`` and ``partition`` only that part of a request fails and only such requests count.

        Raises:
            ValueError: there is no request or no error of that name; the text has the nearest.
        """
        self._call(
            lambda cluster: cluster.faults.fail(api, error, times=times, topic=topic, partition=partition, node=node)
        )

    def delay(self, api: str, delay_ms: int, *, times: int | None = 1, node: int | None = None) -> None:
        """Do what requests ask and keep the answers back; the connection's later requests wait behind them."""
        self._call(lambda cluster: cluster.faults.delay(api, delay_ms, times=times, node=node))

    def disconnect(self, api: str, when: str = "before", *, times: int | None = 1, node: int | None = None) -> None:
        """End the connection that a request came on: ``"before"`` it is done, ``"after"`` it was done and instead of an
        answer, or ``"half"``-way through the frame of the answer."""
        self._call(lambda cluster: cluster.faults.disconnect(api, when, times=times, node=node))

    def throttle(self, api: str, throttle_time_ms: int, *, times: int | None = 1, node: int | None = None) -> None:
        """Tell clients that they are over their quota, and read nothing of theirs for as long (KIP-219)."""
        self._call(lambda cluster: cluster.faults.throttle(api, throttle_time_ms, times=times, node=node))

    def postpone(self, api: str, postpone_ms: int, *, times: int | None = 1, node: int | None = None) -> None:
        """Do what requests ask later; the connection's later requests wait behind them. ``WriteTxnMarkers`` has the
        markers of transactions come late."""
        self._call(lambda cluster: cluster.faults.postpone(api, postpone_ms, times=times, node=node))

    def repeat(self, api: str, *, times: int | None = 1, node: int | None = None) -> None:
        """Do what requests ask twice and send the second answer, as if a client repeated a request whose answer it did
        not receive."""
        self._call(lambda cluster: cluster.faults.repeat(api, times=times, node=node))

    def clear_faults(self) -> None:
        """Forget the faults that have not happened yet."""
        self._call(lambda cluster: cluster.faults.clear())

    def pending_faults(self) -> list[str]:
        """The faults with a number of ``times`` that have not happened that often yet, one line each."""
        return self._call(lambda cluster: [str(fault) for fault in cluster.faults.unmet()])

    # Records

    def records(self, topic: str, partition: int | None = None, *, committed: bool = False) -> list[StoredRecord]:
        """What a consumer would read: every record below the high watermark, by partition and offset.

        With ``committed`` only what a consumer with ``isolation.level=read_committed`` would read: no record of an
        aborted transaction, and none from where the first open transaction begins.

        Reads where the leader of each partition keeps it; a partition without a leader has no records to read.

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
    """What this module calls of a coordinator, that of groups or of transactions."""

    def partition_for(self, key: str, /) -> int: ...

    def leadership(self, index: int, is_leader: bool, /) -> None: ...


def _shards(cluster: BrokerCluster, node: int, topic: str) -> _Shards:
    """The coordinator of a node that keeps its state in an internal topic."""
    broker = cluster.brokers[node]
    return broker.groups.shards if topic == GROUP_METADATA_TOPIC else broker.transactions.shards


def _coordinating_partition(cluster: BrokerCluster, topic: str, key: str) -> PartitionState:
    """The partition of an internal topic that a group or a transactional id is in."""
    node = cluster.image.alive_nodes()[0].node_id
    return cluster.image.partition(topic, _shards(cluster, node, topic).partition_for(key))


def _coordinator(cluster: BrokerCluster, topic: str, key: str) -> int:
    """The node that coordinates a group or a transactional id, -1 when there is none."""
    return _coordinating_partition(cluster, topic, key).leader if topic in cluster.image.topics else -1


def _drop_coordinator(cluster: BrokerCluster, topic: str, key: str) -> None:
    """Let another node coordinate a group or a transactional id, or the same one load it again."""
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
