"""The brokers: topics, their logs and leaders, and the effect of each request."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from aioproducer.protocol import APIS, ApiKey
from aioproducer.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aioproducer.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from aioproducer.wire.record_batch import BatchRecord, RecordBatch
from tests.simulation.faults import Fault
from tests.simulation.sasl import SASL_APIS, SaslRules

UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
MESSAGE_TOO_LARGE = 10
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
UNKNOWN_TOPIC_ID = 100

REMEMBERED_BATCHES = 5
SEQUENCE_MASK = 0x7FFFFFFF


class WrittenBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int


@dataclass
class ProducerEntry:
    """What a partition remembers of one producer (Kafka's ProducerStateEntry)."""

    epoch: int = -1
    batches: deque[WrittenBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


@dataclass
class Partition:
    """A log that every replica shares: leaders change and nothing is lost."""

    leader: int
    leader_epoch: int = 0
    records: list[BatchRecord] = field(default_factory=list)
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    batch_sizes: list[int] = field(default_factory=list)

    @property
    def values(self) -> list[bytes]:
        return [record.value or b"" for record in self.records]


@dataclass
class Topic:
    name: str
    topic_id: bytes
    partitions: list[Partition]
    log_append_time: int | None = None
    max_message_bytes: int = 1_048_588


@dataclass
class Node:
    """A broker as the cluster sees it."""

    id: int
    host: str
    port: int
    rack: str | None
    versions: dict[ApiKey, tuple[int, int]]
    sasl: SaslRules | None = None
    """Its listener requires SASL."""
    up: bool = True


SPOKEN = (ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID)


class SimulatedCluster:
    """Brokers 1 to ``nodes``, at ``broker1:9092`` and so on."""

    def __init__(self, random: Random, *, nodes: int = 3, auto_create: int = 0, topic_ids: bool = True) -> None:
        self.random = random
        self.cluster_id = "simulated"
        self.topic_ids = topic_ids
        self.auto_create = auto_create
        """Partitions of a topic that is made when it is first asked for; 0: none is."""
        self.topics: dict[str, Topic] = {}
        self.topic_errors: dict[str, int] = {}
        self.listed: set[int] | None = None
        """The nodes that metadata names, where these are not all that are up."""
        self.faults: list[Fault] = []
        self.hints = True
        """Whether produce answers say where the leader is now (KIP-951)."""
        self.metadata_error = 0
        self.forget_brokers = False
        self.next_producer_id = 4000
        self.next_producer_epoch = 0
        self.nodes: dict[int, Node] = {}
        self.violations: list[str] = []
        for node_id in range(1, nodes + 1):
            self.add_node(node_id)

    # What a test does to it

    def add_node(self, node_id: int, host: str | None = None) -> Node:
        versions = {key: (APIS[key].min_version, APIS[key].max_version) for key in SPOKEN}
        if not self.topic_ids:
            versions[ApiKey.PRODUCE] = (3, 11)
            versions[ApiKey.METADATA] = (0, 9)
        rack = f"rack{node_id % 3}"
        node = self.nodes[node_id] = Node(node_id, host or f"broker{node_id}", 9092, rack, versions)
        return node

    def require_sasl(self, rules: SaslRules) -> None:
        """Let the listeners of all brokers require SASL, for connections from now on."""
        for node in self.nodes.values():
            node.sasl = rules
            node.versions.update(SASL_APIS)

    def create_topic(self, name: str, partitions: int = 1, *, leaders: list[int] | None = None) -> Topic:
        """Make a topic, or make it again under another id."""
        ids = sorted(self.nodes)
        chosen = leaders or [ids[index % len(ids)] for index in range(partitions)]
        topic_id = self.random.randbytes(16)
        topic = self.topics[name] = Topic(name, topic_id, [Partition(leader) for leader in chosen])
        return topic

    def move_leader(self, name: str, partition: int, node_id: int) -> None:
        moved = self.topics[name].partitions[partition]
        moved.leader = node_id
        moved.leader_epoch += 1

    def partition(self, name: str, partition: int = 0) -> Partition:
        return self.topics[name].partitions[partition]

    def values(self, name: str, partition: int = 0) -> list[bytes]:
        return self.partition(name, partition).values

    def fault_for(self, api: int, node_id: int) -> Fault:
        """What is wrong with the next request of this kind: mostly nothing."""
        for fault in self.faults:
            if fault.fits(api, node_id):
                fault.times -= 1
                return fault
        return Fault()

    # Metadata

    def metadata(self, request: MetadataRequest, fault: Fault) -> MetadataResponse:
        error = fault.error or self.metadata_error
        if error:
            return MetadataResponse(error_code=error)
        response = MetadataResponse(cluster_id=self.cluster_id, controller_id=1)
        if not self.forget_brokers:
            response.brokers = [
                MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in self.nodes.values()
                if (node.up if self.listed is None else node.id in self.listed)
            ]
        named = {broker.node_id for broker in response.brokers}
        wanted = list(self.topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        response.topics = [self._describe(name, named, request.allow_auto_topic_creation) for name in wanted]
        return response

    def _describe(self, name: str, named: set[int], allow_auto_topic_creation: bool) -> MetadataResponseTopic:
        error = self.topic_errors.get(name, 0)
        topic = self.topics.get(name)
        if topic is None and not error:
            error = UNKNOWN_TOPIC_OR_PARTITION
            if self.auto_create and allow_auto_topic_creation:
                self.create_topic(name, self.auto_create)
                error = LEADER_NOT_AVAILABLE
        if error or topic is None:
            return MetadataResponseTopic(error_code=error, name=name)
        described = MetadataResponseTopic(name=name, topic_id=topic.topic_id if self.topic_ids else bytes(16))
        for index, partition in enumerate(topic.partitions):
            has_leader = partition.leader in named
            described.partitions.append(
                MetadataResponsePartition(
                    error_code=0 if has_leader else LEADER_NOT_AVAILABLE,
                    partition_index=index,
                    leader_id=partition.leader if has_leader else -1,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=sorted(self.nodes),
                    isr_nodes=sorted(self.nodes),
                )
            )
        return described

    # Produce

    def produce(self, request: ProduceRequest, version: int, node_id: int, fault: Fault) -> ProduceResponse:
        response = ProduceResponse(throttle_time_ms=fault.throttle_time_ms)
        moved: set[int] = set()
        by_id = {topic.topic_id: topic for topic in self.topics.values()}
        for data in request.topic_data:
            topic = by_id.get(data.topic_id) if version >= 13 else self.topics.get(data.name)
            answers = []
            for partition_data in data.partition_data:
                assert partition_data.records is not None
                error = fault.error if fault.topic in (None, topic and topic.name) else 0
                assert isinstance(partition_data.records, memoryview)
                batch = RecordBatch(partition_data.records)
                answer = self._append(
                    topic, partition_data.index, batch, node_id, version, 0 if fault.appended else error
                )
                if fault.appended and not answer.error_code:
                    # If the code is ambiguous, the base offset decides, as in Kafka's DelayedProduce.
                    answer.error_code = error
                    if error != NOT_LEADER_OR_FOLLOWER:
                        answer.base_offset = -1
                answer.record_errors = [
                    BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                    for index, text in fault.culprits
                ]
                if answer.current_leader.leader_id >= 0:
                    moved.add(answer.current_leader.leader_id)
                answers.append(answer)
            name = data.name if version < 13 else ""
            response.responses.append(
                TopicProduceResponse(name=name, topic_id=data.topic_id, partition_responses=answers)
            )
        if fault.answer == "omit":
            response.responses[0].partition_responses.pop(0)
        response.node_endpoints = [
            NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in self.nodes.values()
            if node.id in moved
        ]
        return response

    def _append(
        self, topic: Topic | None, index: int, batch: RecordBatch, node_id: int, version: int, error: int
    ) -> PartitionProduceResponse:
        answer = PartitionProduceResponse(index=index, error_code=error, base_offset=-1)
        if error:
            if error == NOT_LEADER_OR_FOLLOWER and topic is not None and version >= 10 and self.hints:
                partition = topic.partitions[index]
                answer.current_leader = LeaderIdAndEpoch(
                    leader_id=partition.leader, leader_epoch=partition.leader_epoch
                )
            return answer
        try:
            batch.validate()
        except Exception as failure:
            self.violations.append(f"a broken batch came: {failure}")
            raise
        if topic is None or index >= len(topic.partitions):
            answer.error_code = UNKNOWN_TOPIC_ID if version >= 13 and topic is None else UNKNOWN_TOPIC_OR_PARTITION
            return answer
        partition = topic.partitions[index]
        if partition.leader != node_id:
            answer.error_code = NOT_LEADER_OR_FOLLOWER
            if version >= 10 and self.hints:
                answer.current_leader = LeaderIdAndEpoch(
                    leader_id=partition.leader, leader_epoch=partition.leader_epoch
                )
            return answer
        if batch.size_in_bytes > topic.max_message_bytes:
            answer.error_code = MESSAGE_TOO_LARGE
            return answer
        answer.error_code, answer.base_offset = _append_to_log(partition, batch, topic.log_append_time)
        if not answer.error_code and topic.log_append_time is not None:
            answer.log_append_time_ms = topic.log_append_time
        return answer


def _append_to_log(partition: Partition, batch: RecordBatch, log_append_time: int | None) -> tuple[int, int]:
    """Kafka's rules for idempotence: ``ProducerStateManager`` and ``ProducerAppendInfo``; error code and offset."""
    if batch.producer_id >= 0:
        entry = partition.producers.setdefault(batch.producer_id, ProducerEntry())
        if batch.producer_epoch == entry.epoch:
            for written in entry.batches:
                if (written.base_sequence, written.last_sequence) == (batch.base_sequence, batch.last_sequence):
                    return 0, written.base_offset
        error = _check_sequence(entry, batch)
        if error:
            return error, -1
        if batch.producer_epoch != entry.epoch:
            entry.epoch = batch.producer_epoch
            entry.batches.clear()
        entry.batches.append(WrittenBatch(batch.base_sequence, batch.last_sequence, len(partition.records)))
    base_offset = len(partition.records)
    for index, record in enumerate(batch.records()):
        timestamp = record.timestamp if log_append_time is None else log_append_time
        partition.records.append(record._replace(offset=base_offset + index, timestamp=timestamp))
    partition.batch_sizes.append(batch.size_in_bytes)
    return 0, base_offset


def _check_sequence(entry: ProducerEntry, batch: RecordBatch) -> int:
    if batch.producer_epoch < entry.epoch:
        return INVALID_PRODUCER_EPOCH
    if batch.producer_epoch != entry.epoch:
        # A producer that is not known may begin anywhere, one that is must begin its new epoch at 0.
        return 0 if batch.base_sequence == 0 or entry.epoch < 0 else OUT_OF_ORDER_SEQUENCE_NUMBER
    if batch.base_sequence != (entry.batches[-1].last_sequence + 1) & SEQUENCE_MASK:
        return OUT_OF_ORDER_SEQUENCE_NUMBER
    return 0


async def until(condition: object, timeout: float = 60.0) -> None:
    """Wait until ``condition()``, looking every millisecond of virtual time."""
    assert callable(condition)
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - the condition is the state of the simulation, which sets no event
            await asyncio.sleep(0.001)
