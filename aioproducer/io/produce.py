"""The Produce request: made of drained batches, and taken apart again when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aioproducer.core.batch import ProducerBatch
from aioproducer.core.connection import Completed
from aioproducer.errors import KafkaError, ProtocolError, error_class
from aioproducer.io.node import NodeConnection, RequestContext
from aioproducer.protocol import ApiKey, Buffer
from aioproducer.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from aioproducer.protocol.produce_frames import TOPIC_IDS_FROM, Acknowledged, PlainProduceRequest
from aioproducer.record import Node

PRODUCE = int(ApiKey.PRODUCE)
# The first version in which a broker takes zstd (KIP-110).
ZSTD_FROM = 7
ZSTD = 4
UNSUPPORTED_COMPRESSION_TYPE = 76

PartitionKey = tuple[str | bytes, int]

_NONE: dict[PartitionKey, ProducerBatch] = {}


def choose_version(
    node: NodeConnection, batches: Sequence[ProducerBatch], topic_ids: Mapping[str, bytes | None]
) -> int:
    """The version to produce with: by topic id only where all of ``topic_ids``, those of the batches, are known.

    Raises:
        UnsupportedVersionError: the broker and this client have none in common.
        UnsupportedCompressionTypeError: the broker is too old for zstd.
    """
    highest = TOPIC_IDS_FROM
    for topic_id in topic_ids.values():
        if not topic_id:
            highest = TOPIC_IDS_FROM - 1
    version = node.negotiate(PRODUCE, highest)
    if version < ZSTD_FROM:
        for batch in batches:
            if batch.codec_id == ZSTD:
                raise error_class(UNSUPPORTED_COMPRESSION_TYPE)(
                    f"broker {node.node} is older than Kafka 2.1 and does not take zstd: "
                    "choose another compression_type"
                )
    return version


def produce_request(
    batches: Sequence[ProducerBatch],
    version: int,
    topic_ids: Mapping[str, bytes | None],
    acks: int,
    timeout_ms: int,
) -> tuple[PlainProduceRequest, list[PartitionKey]]:
    """The request for these batches, and the topic (name or id) and partition by which an answer will name each."""
    topics: dict[str, list[tuple[int, list[Buffer]]]] = {}
    keys: list[PartitionKey] = []
    request = PlainProduceRequest(acks, timeout_ms, [])
    by_id = version >= TOPIC_IDS_FROM
    for batch in batches:
        name, partition = batch.topic_partition
        topic_id = topic_ids[name] or b""
        partitions = topics.get(name)
        if partitions is None:
            partitions = topics[name] = []
            request.topics.append((name, topic_id, partitions))
        partitions.append((partition, batch.buffers()))
        keys.append((topic_id if by_id else name, partition))
    return request, keys


class ProduceOwner:
    """Whom a Produce request tells what it comes to."""

    __slots__ = ()

    def request_answered(self, node: NodeConnection, completed: Completed, throttle_time_ms: int) -> None:
        """The answer is here; called before those of its batches."""
        raise AssertionError("the owner says")

    def batch_acknowledged(self, batch: ProducerBatch, base_offset: int, log_append_time: int, now: float) -> None:
        """The broker has the batch."""
        raise AssertionError("the owner says")

    def batch_refused(
        self, batch: ProducerBatch, answer: PartitionProduceResponse, endpoints: list[Node], now: float
    ) -> None:
        """The answer for one batch, an error, and the nodes that the whole of it names."""
        raise AssertionError("the owner says")

    def batch_written(self, batch: ProducerBatch) -> None:
        """With acks=0: the batch has left its buffers."""
        raise AssertionError("the owner says")

    def batch_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """There is no answer for the batch, because of this error."""
        raise AssertionError("the owner says")

    def release(self, batch: ProducerBatch) -> None:
        """The transport reads the batch no more."""
        raise AssertionError("the owner says")


class ProduceInFlight(RequestContext):
    """The context of a Produce request: its batches, each with the key by which an answer names it."""

    __slots__ = ("_batches", "_keys", "_owner")

    _owner: ProduceOwner
    _batches: list[ProducerBatch]
    _keys: list[PartitionKey]

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
        if isinstance(response, Acknowledged):
            unanswered = self._acknowledged(response, completed.received_at)
        else:
            unanswered = self._answered_in_full(response, completed)
        for batch in unanswered.values():
            owner.batch_failed(
                batch, ProtocolError(f"broker {node.node} left {batch.topic_partition} out of its produce response")
            )

    def _by_key(self) -> dict[PartitionKey, ProducerBatch]:
        return dict(zip(self._keys, self._batches, strict=True))

    def _acknowledged(self, response: Acknowledged, now: float) -> dict[PartitionKey, ProducerBatch]:
        """Tell of the batches in the answer, and return the others."""
        owner = self._owner
        if len(self._batches) == 1 and len(response.batches) == 1:
            key, base_offset, log_append_time = response.batches[0]
            if key == self._keys[0]:
                owner.batch_acknowledged(self._batches[0], base_offset, log_append_time, now)
                return _NONE
        unanswered = self._by_key()
        for key, base_offset, log_append_time in response.batches:
            batch = unanswered.pop(key, None)
            if batch is not None:
                owner.batch_acknowledged(batch, base_offset, log_append_time, now)
        return unanswered

    def _answered_in_full(self, response: ProduceResponse, completed: Completed) -> dict[PartitionKey, ProducerBatch]:
        owner, now = self._owner, completed.received_at
        by_id = completed.version >= TOPIC_IDS_FROM
        endpoints = [Node(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
        unanswered = self._by_key()
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


def produce_in_flight(owner: ProduceOwner, batches: list[ProducerBatch], keys: list[PartitionKey]) -> ProduceInFlight:
    """The context of a request: its batches, whose keys are those of ``produce_request``."""
    context = ProduceInFlight.__new__(ProduceInFlight)
    context._owner = owner
    context._batches = batches
    context._keys = keys
    return context
