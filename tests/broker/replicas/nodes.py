"""Three nodes without a loop or network: the real controller, partitions and logs, with fetches made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aioproducer.broker.config import BrokerConfig
from aioproducer.broker.controller.controller import Controller, TopicSpec
from aioproducer.broker.controller.journal import Journal
from aioproducer.broker.image import BrokerRegistration, PartitionState
from aioproducer.broker.log import Log, LogConfig, MemoryStorage
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import (
    FencedLeaderEpochError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import encode_batch, iter_batches

TOPIC = "topic"
LAG_TIME_MAX = 30.0


def batch(*values: bytes, **keywords: object) -> bytearray:
    records = [SimpleRecord(1_700_000_000_000, None, value) for value in values]
    return bytearray(b"".join(encode_batch(records, **keywords)))  # type: ignore[arg-type]


def contents(log: Log) -> bytes:
    """All batches of a log, as stored."""
    pieces = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = b"".join(log.read(offset, 2**31 - 1, up_to=log.log_end_offset, min_one_batch=True))
        pieces.append(data)
        *_, last = iter_batches(data)
        offset = last.next_offset
    return b"".join(pieces)


@dataclass(eq=False)
class Node:
    """A ``PartitionHost`` with one partition, on storage that outlives it."""

    nodes: Nodes
    node_id: int
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    partition: Partition | None = None
    checkpointed: int = 0
    flushes: list[Partition] = field(default_factory=list)

    @property
    def lag_time_max(self) -> float:
        return LAG_TIME_MAX

    def now(self) -> float:
        return self.nodes.time

    def eligible_epoch(self, node_id: int) -> int | None:
        node = self.nodes.controller.image.nodes.get(node_id)
        return node.epoch if node is not None and node.is_eligible else None

    def alter_isr(self, state: PartitionState, isr: list[int]) -> PartitionState:
        return self.nodes.controller.alter_partition(
            self.node_id, state.topic, state.index, state.leader_epoch, state.partition_epoch, isr
        )

    def flush_soon(self, partition: Partition) -> None:
        self.flushes.append(partition)

    def apply(self, changed: Sequence[PartitionState], removed: Sequence[PartitionState]) -> None:
        for state in changed:
            if self.partition is None:
                log = Log.open(
                    self.storage,
                    self.nodes.config,
                    topic=TOPIC,
                    partition=0,
                    wall_ms=lambda: 1_700_000_000_000,
                    clean=False,
                )
                self.partition = Partition(self, state, log, self.checkpointed)
            self.partition.apply(state)

    def configs_changed(self, topics: Sequence[str] | None) -> None:
        pass

    def kill(self) -> None:
        assert self.partition is not None
        self.nodes.controller.detach(self)
        self.partition.remove()
        self.partition = None
        self.nodes.controller.fence(self.node_id)

    def restart(self) -> None:
        controller = self.nodes.controller
        controller.attach(self)
        self.apply(controller.image.partitions(), [])
        controller.register(BrokerRegistration(self.node_id, "host", 9092, None, is_alive=True, epoch=-1))


@dataclass
class Answer:
    """A leader's answer to a Fetch, on its way."""

    follower: Partition
    leader_epoch: int
    fetch_offset: int
    records: bytes
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None


class Nodes:
    def __init__(self, count: int = 3, **config: int) -> None:
        self.time = 1000.0
        self.config = LogConfig(**config)  # type: ignore[arg-type]
        journal = Journal(MemoryStorage())
        self.controller = Controller(journal.load("cluster"), journal, BrokerConfig({}))
        self.controller.begin(count)
        self.nodes = {node_id: Node(self, node_id) for node_id in range(1, count + 1)}
        for node in self.nodes.values():
            self.controller.attach(node)
        self.controller.register(
            *(BrokerRegistration(node_id, "host", 9092, None, is_alive=True, epoch=-1) for node_id in self.nodes)
        )
        self.controller.create_topic(TopicSpec(TOPIC, assignments={0: list(self.nodes)}))

    @property
    def state(self) -> PartitionState:
        return self.controller.image.partition(TOPIC, 0)

    @property
    def leader(self) -> Partition:
        partition = self.nodes[self.state.leader].partition
        assert partition is not None
        return partition

    def partition(self, node_id: int) -> Partition:
        partition = self.nodes[node_id].partition
        assert partition is not None
        return partition

    def ask(self, node_id: int, max_bytes: int = 2**20) -> Answer | None:
        """What a leader does with a follower's Fetch; ``None`` where there is no leader or it refuses."""
        follower = self.partition(node_id)
        leader_id = follower.state.leader
        if leader_id in (node_id, -1) or self.nodes[leader_id].partition is None:
            return None
        leader = self.partition(leader_id)
        offset = follower.log_end_offset
        last_epoch = follower.log.leader_epochs.latest_epoch
        try:
            leader.check_leader_epoch(follower.leader_epoch)
            diverging = leader.diverging(-1 if last_epoch is None else last_epoch, offset)
            end = leader.log_end_offset
            records = b""
            if diverging is None:
                if offset < end:
                    records = b"".join(leader.log.read(offset, max_bytes, up_to=end, min_one_batch=True))
                epoch = self.controller.image.nodes[node_id].epoch
                leader.follower_fetched(node_id, offset, follower.log_start_offset, epoch, leader_end_offset=end)
        except (FencedLeaderEpochError, UnknownLeaderEpochError, NotLeaderOrFollowerError, KafkaStorageError):
            return None
        return Answer(
            follower,
            follower.leader_epoch,
            offset,
            records,
            leader.high_watermark,
            leader.log_start_offset,
            diverging,
        )

    def take(self, answer: Answer) -> None:
        """What a follower does with the answer, if it is about the present."""
        follower = answer.follower
        if (
            follower.is_removed
            or follower.is_leader
            or follower.leader_epoch != answer.leader_epoch
            or follower.log_end_offset != answer.fetch_offset
        ):
            return
        if answer.diverging is not None:
            follower.truncate_to_leader(*answer.diverging)
        else:
            follower.append_fetched(answer.records, answer.high_watermark, answer.log_start_offset)

    def fetch(self, node_id: int) -> None:
        answer = self.ask(node_id)
        if answer is not None:
            self.take(answer)

    def settle(self) -> None:
        """Until every follower that lives has everything, and knows that it is committed."""
        for _ in range(20):
            for node_id, node in self.nodes.items():
                if node.partition is not None:
                    self.fetch(node_id)
