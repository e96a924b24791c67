"""Compiled. Produce requests: built from drained batches, and matched with the partitions of the response."""

from __future__ import annotations

from collections.abc import Sequence

from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.requests.connection import Completed
from aioproducer.error_codes import UNSUPPORTED_COMPRESSION_TYPE
from aioproducer.errors import KafkaError, ProtocolError, error_class
from aioproducer.io.node import NodeConnection, NodeOwner, RequestContext
from aioproducer.protocol import ApiKey, Buffer
from aioproducer.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from aioproducer.protocol.produce_frames import TOPIC_IDS_FROM, Acknowledged, PlainProduceRequest
from aioproducer.record import Node

PRODUCE = int(ApiKey.PRODUCE)
# The last version of transactions whose partitions are added explicitly; from the next one on, the broker adds them
# (KIP-890).
LAST_BEFORE_TV2 = 11
# The first version in which a broker accepts zstd (KIP-110).
ZSTD_FROM = 7
ZSTD = 4

_NONE: dict[tuple[str | bytes, int], ProducerBatch] = {}


def group_by_topic(batches: list[ProducerBatch]) -> None:
    """Group batches by topic, in the order of each topic's first batch."""
    first = None
    for batch in batches:
        queue = batch.queue
        assert queue is not None
        if queue.topic is not first:
            if first is not None:
                break
            first = queue.topic
    else:
        return
    groups: dict[str, list[ProducerBatch]] = {}
    for batch in batches:
        groups.setdefault(batch.topic_partition.topic, []).append(batch)
    batches[:] = [batch for group in groups.values() for batch in group]


def produce_request(
    batches: list[ProducerBatch],
    metadata: ClusterMetadata,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> PlainProduceRequest:
    """Return the request for these batches, and sort them into its order."""
    group_by_topic(batches)
    targets: list[tuple[str, bytes, int]] = []
    records: list[list[Buffer]] = []
    name: str | None = None
    topic_id = b""
    for batch in batches:
        queue = batch.queue
        assert queue is not None
        if queue.topic is not name:
            name = queue.topic
            topic = metadata.topic(name)
            topic_id = b"" if topic is None else topic.topic_id or b""
        targets.append((queue.topic, topic_id, queue.partition))
        records.append(batch.buffers())
    return PlainProduceRequest(acks, timeout_ms, targets, records, transactional_id)


def choose_version(
    node: NodeConnection, batches: Sequence[ProducerBatch], request: PlainProduceRequest, highest: int = TOPIC_IDS_FROM
) -> int:
    """Return the version to produce with, at most ``highest``; versions that use topic ids need those of all topics.

    Raises:
        UnsupportedVersionError: the broker and this client have no version in common.
        UnsupportedCompressionTypeError: the broker is too old for zstd.
    """
    if highest >= TOPIC_IDS_FROM:
        for target in request.targets:
            if not target[1]:
                highest = TOPIC_IDS_FROM - 1
                break
    version = node.negotiate(PRODUCE, highest)
    if version < ZSTD_FROM:
        for batch in batches:
            if batch.codec_id == ZSTD:
                raise error_class(UNSUPPORTED_COMPRESSION_TYPE)(
                    f"broker {node.node} is older than Kafka 2.1 and does not support zstd: "
                    "choose another compression_type"
                )
    return version


class ProduceOwner(NodeOwner):
    """Receives the outcomes of Produce requests, besides the state of its nodes: the sender."""

    def request_answered(self, node: NodeConnection, completed: Completed, throttle_time_ms: int) -> None:
        """Receive a response; the calls for its batches follow."""
        raise NotImplementedError

    def batch_acknowledged(self, batch: ProducerBatch, base_offset: int, log_append_time: int, now: float) -> None:
        """Receive that the broker has appended the batch."""
        raise NotImplementedError

    def batch_refused(
        self, batch: ProducerBatch, answer: PartitionProduceResponse, endpoints: list[Node], now: float
    ) -> None:
        """Receive that the broker rejects the batch; ``endpoints`` are the nodes that the response lists."""
        raise NotImplementedError

    def batch_written(self, batch: ProducerBatch) -> None:
        """Receive, with acks=0, that the batch is written."""
        raise NotImplementedError

    def batch_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Receive that there is no response for the batch, because of this error."""
        raise NotImplementedError

    def release(self, batch: ProducerBatch) -> None:
        """Receive that the transport no longer reads the batch."""
        raise NotImplementedError


class ProduceInFlight(RequestContext):
    """The context of a Produce request: its batches, and the target of each (see ``PlainProduceRequest``)."""

    __slots__ = ("_batches", "_owner", "_targets")

    _owner: ProduceOwner
    _batches: list[ProducerBatch]
    _targets: list[tuple[str, bytes, int]]

    def reading(self) -> None:
        for batch in self._batches:
            batch.readers += 1

    def released(self) -> None:
        for batch in self._batches:
            batch.readers -= 1
            self._owner.release(batch)

    def answered(self, node: NodeConnection, completed: Completed | None) -> None:
        owner = self._owner
        if completed is None:
            for batch in self._batches:
                owner.batch_written(batch)
            return
        response = completed.response
        assert isinstance(response, (Acknowledged, ProduceResponse))
        owner.request_answered(node, completed, response.throttle_time_ms)
        by_id = completed.version >= TOPIC_IDS_FROM
        if isinstance(response, Acknowledged):
            unanswered = self._acknowledged(response, by_id, completed.received_at)
        else:
            unanswered = self._answered_in_full(response, by_id, completed.received_at)
        for batch in unanswered.values():
            owner.batch_failed(
                batch, ProtocolError(f"the produce response of broker {node.node} lacks {batch.topic_partition}")
            )

    def _by_target(self, by_id: bool) -> dict[tuple[str | bytes, int], ProducerBatch]:
        """Return the batches by topic, as name or id like in the response, and partition."""
        return {
            (topic_id if by_id else name, partition): batch
            for (name, topic_id, partition), batch in zip(self._targets, self._batches, strict=True)
        }

    def _acknowledged(
        self, response: Acknowledged, by_id: bool, now: float
    ) -> dict[tuple[str | bytes, int], ProducerBatch]:
        """Report the batches in the response to the owner, and return the others."""
        owner = self._owner
        if len(self._batches) == 1 and len(response.batches) == 1:
            topic, partition, base_offset, log_append_time = response.batches[0]
            target = self._targets[0]
            if partition == target[2] and topic == (target[1] if by_id else target[0]):
                owner.batch_acknowledged(self._batches[0], base_offset, log_append_time, now)
                return _NONE
        unanswered = self._by_target(by_id)
        for topic, partition, base_offset, log_append_time in response.batches:
            batch = unanswered.pop((topic, partition), None)
            if batch is not None:
                owner.batch_acknowledged(batch, base_offset, log_append_time, now)
        return unanswered

    def _answered_in_full(
        self, response: ProduceResponse, by_id: bool, now: float
    ) -> dict[tuple[str | bytes, int], ProducerBatch]:
        owner = self._owner
        endpoints = [Node(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
        unanswered = self._by_target(by_id)
        for topic in response.responses:
            name: str | bytes = topic.topic_id if by_id else topic.name
            for answer in topic.partition_responses:
                batch = unanswered.pop((name, answer.index), None)
                if batch is None:
                    continue
                if answer.error_code:
                    owner.batch_refused(batch, answer, endpoints, now)
                else:
                    owner.batch_acknowledged(batch, answer.base_offset, answer.log_append_time_ms, now)
        return unanswered

    def failed(self, node: NodeConnection, error: KafkaError) -> None:
        for batch in self._batches:
            self._owner.batch_failed(batch, error)


def produce_in_flight(
    owner: ProduceOwner, batches: list[ProducerBatch], request: PlainProduceRequest
) -> ProduceInFlight:
    """Return the context of a request with these batches, in its order."""
    context = ProduceInFlight.__new__(ProduceInFlight)
    context._owner = owner
    context._batches = batches
    # Not the request itself, which refers to the buffers: a failed batch returns its memory before the response.
    context._targets = request.targets
    return context
