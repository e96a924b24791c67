"""The Produce request: made of drained batches, and taken apart again when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aioproducer.core.batch import ProducerBatch
from aioproducer.core.connection import Completed
from aioproducer.errors import KafkaError, ProtocolError, error_class
from aioproducer.io.node import NodeConnection
from aioproducer.protocol import ApiKey
from aioproducer.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aioproducer.record import Node

# From this version on topics go by their ids (KIP-516).
TOPIC_IDS_FROM = 13
# The first version in which a broker takes zstd (KIP-110).
ZSTD_FROM = 7
ZSTD = 4
UNSUPPORTED_COMPRESSION_TYPE = 76

PartitionKey = tuple[str | bytes, int]


def choose_version(
    node: NodeConnection, batches: Sequence[ProducerBatch], topic_ids: Mapping[str, bytes | None]
) -> int:
    """The version to produce with: by topic id only where all ids are known.

    Raises:
        UnsupportedVersionError: the broker and this client have none in common.
        UnsupportedCompressionTypeError: the broker is too old for zstd.
    """
    all_known = all(topic_ids.get(batch.topic_partition.topic) for batch in batches)
    version = node.negotiate(ApiKey.PRODUCE, highest=TOPIC_IDS_FROM if all_known else TOPIC_IDS_FROM - 1)
    if version < ZSTD_FROM and any(batch.codec_id == ZSTD for batch in batches):
        raise error_class(UNSUPPORTED_COMPRESSION_TYPE)(
            f"broker {node.node} is older than Kafka 2.1 and does not take zstd: choose another compression_type"
        )
    return version


def produce_request(
    batches: Sequence[ProducerBatch],
    version: int,
    topic_ids: Mapping[str, bytes | None],
    *,
    acks: int,
    timeout_ms: int,
) -> tuple[ProduceRequest, dict[PartitionKey, ProducerBatch]]:
    """The request for these batches, and which of them an answer's topic (name or id) and partition mean."""
    topics: dict[str, TopicProduceData] = {}
    by_partition: dict[PartitionKey, ProducerBatch] = {}
    by_id = version >= TOPIC_IDS_FROM
    for batch in batches:
        name, partition = batch.topic_partition
        topic_id = topic_ids.get(name) or b""
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = TopicProduceData(topic_id=topic_id) if by_id else TopicProduceData(name=name)
            topic.partition_data = []
        topic.partition_data.append(PartitionProduceData(index=partition, records=batch.buffers()))
        by_partition[topic_id if by_id else name, partition] = batch
    request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=list(topics.values()))
    return request, by_partition


class ProduceInFlight:
    """The context of a Produce request: its batches, until each has its answer.

    Args:
        on_answer: the answer for one batch, ``None`` where none is expected (acks=0), and the nodes that it names.
        on_failure: there is no answer for a batch, because of this error.
        release: the transport reads the batch no more.
    """

    __slots__ = ("_batches", "_on_answer", "_on_end", "_on_failure", "_release", "sent_at")

    def __init__(
        self,
        batches: dict[PartitionKey, ProducerBatch],
        sent_at: float,
        *,
        on_answer: Callable[[ProducerBatch, PartitionProduceResponse | None, list[Node]], None],
        on_failure: Callable[[ProducerBatch, KafkaError], None],
        on_end: Callable[[NodeConnection, Completed | None], None],
        release: Callable[[ProducerBatch], None],
    ) -> None:
        self._batches = batches
        self.sent_at = sent_at
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._on_end = on_end
        self._release = release

    def reading(self) -> None:
        for batch in self._batches.values():
            batch.readers += 1

    def released(self) -> None:
        for batch in self._batches.values():
            batch.readers -= 1
            self._release(batch)

    def answered(self, node: NodeConnection, completed: Completed | None) -> None:
        unanswered = dict(self._batches)
        if completed is None:
            for batch in unanswered.values():
                self._on_answer(batch, None, [])
            return
        response = completed.response
        assert isinstance(response, ProduceResponse)
        self._on_end(node, completed)
        endpoints = [Node(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
        for topic in response.responses:
            key: str | bytes = topic.topic_id if completed.version >= TOPIC_IDS_FROM else topic.name
            for partition in topic.partition_responses:
                answered = unanswered.pop((key, partition.index), None)
                if answered is not None:
                    self._on_answer(answered, partition, endpoints)
        for batch in unanswered.values():
            self._on_failure(
                batch, ProtocolError(f"broker {node.node} left {batch.topic_partition} out of its produce response")
            )

    def failed(self, node: NodeConnection, error: KafkaError) -> None:
        for batch in self._batches.values():
            self._on_failure(batch, error)
