"""Markers: the outcome of transactions, sent to the leaders of their partitions by WriteTxnMarkers.

Each node gets one request at a time, with the markers of all transactions that wait for it. Markers that failed because
a leader moved, a node is down or replicas are missing are sent again, to the leader at that time. A partition that no
longer exists needs no marker (Kafka's ``TransactionMarkerChannelManager``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from aioproducer.broker.image import NO_LEADER, BrokerRegistration, ClusterImage
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import TopicPartition, TransactionMetadata, TransactionState
from aioproducer.errors import KafkaError
from aioproducer.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.server.peer import PeerClient
    from aioproducer.broker.transactions.shard import Shard
    from aioproducer.broker.transactions.transaction import Transaction

logger = logging.getLogger(__name__)

VERSION: Final = 2
REQUEST_TIMEOUT: Final = 30.0
"""Timeout of a request in seconds (Kafka's ``request.timeout.ms``)."""
RETRY_BACKOFF: Final = 0.02
"""Seconds before failed markers are sent again."""

_ABANDONED: Final = (Code.INVALID_PRODUCER_EPOCH, Code.TRANSACTION_COORDINATOR_FENCED)
"""The producer or the coordinator was replaced: the transaction no longer belongs to this coordinator."""
_UNNECESSARY: Final = (Code.NONE, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, Code.UNSUPPORTED_VERSION)
_RETRIABLE: Final = (
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.NOT_ENOUGH_REPLICAS,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.REQUEST_TIMED_OUT,
    Code.KAFKA_STORAGE_ERROR,
)


class MarkerHost(Protocol):
    """What the sender needs from its node."""

    node_id: int

    @property
    def image(self) -> ClusterImage: ...

    def peer_client(self, node: BrokerRegistration) -> PeerClient:
        """Return a new client for a node; it connects at its first request."""


@dataclass(frozen=True, slots=True, eq=False)
class Marker:
    """The outcome of one transaction, for some of its partitions."""

    shard: Shard
    transaction: Transaction
    outcome: TransactionMetadata
    """The producer when the outcome was logged."""
    partitions: tuple[TopicPartition, ...]

    @property
    def is_wanted(self) -> bool:
        """Whether the transaction is still ending here with this outcome."""
        return not self.shard.is_closed and self.transaction.metadata is self.outcome

    def encoded(self) -> WritableTxnMarker:
        """The marker for the request."""
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, index in self.partitions:
            topics[topic].append(index)
        return WritableTxnMarker(
            producer_id=self.outcome.producer_id,
            producer_epoch=self.outcome.producer_epoch,
            transaction_result=self.outcome.state is TransactionState.PREPARE_COMMIT,
            topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
            coordinator_epoch=self.shard.coordinator_epoch,
            transaction_version=self.outcome.client_version,
        )


class MarkerSender:
    """Sends the markers of one coordinator."""

    def __init__(self, host: MarkerHost) -> None:
        self._host = host
        self._queues: dict[int, list[Marker]] = {}
        """By node id: markers that wait until the previous request is answered."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._clients: dict[int, PeerClient] = {}
        self._retries: set[asyncio.TimerHandle] = set()
        self._is_closed = False

    def send(self, shard: Shard, transaction: Transaction) -> None:
        """Send a marker to each partition in ``transaction.unmarked``; ``shard.marked`` is called for each."""
        self._route(Marker(shard, transaction, transaction.metadata, tuple(sorted(transaction.unmarked))))

    async def close(self) -> None:
        """Stop sending."""
        self._is_closed = True
        for retry in self._retries:
            retry.cancel()
        self._retries.clear()
        self._queues.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _route(self, marker: Marker) -> None:
        """Queue a marker for the leaders of its partitions."""
        if self._is_closed or not marker.is_wanted:
            return
        image = self._host.image
        by_node: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for topic, index in marker.partitions:
            known = image.topics.get(topic)
            if known is None or not 0 <= index < len(known.partitions):
                logger.info("%s-%d no longer exists: %r needs no marker there", topic, index, marker.transaction)
                marker.shard.marked(marker.transaction, (topic, index))
                continue
            leader = known.partitions[index].leader
            by_node[leader if image.is_alive(leader) else NO_LEADER].append((topic, index))
        leaderless = by_node.pop(NO_LEADER, None)
        if leaderless:
            self._retry(marker, leaderless)
        for node_id, partitions in by_node.items():
            self._queues.setdefault(node_id, []).append(_part(marker, partitions))
            if node_id not in self._tasks:
                name = f"transaction markers from {self._host.node_id} to {node_id}"
                self._tasks[node_id] = asyncio.create_task(self._serve(node_id), name=name)

    def _retry(self, marker: Marker, partitions: Iterable[TopicPartition]) -> None:
        """Find the leaders of ``partitions`` again after a delay."""
        if self._is_closed:
            return
        part = _part(marker, partitions)

        def run() -> None:
            self._retries.discard(handle)
            self._route(part)

        handle = asyncio.get_running_loop().call_later(RETRY_BACKOFF, run)
        self._retries.add(handle)

    async def _serve(self, node_id: int) -> None:
        """Send the markers for a node until none is left."""
        try:
            while markers := [marker for marker in self._queues.pop(node_id, ()) if marker.is_wanted]:
                try:
                    await self._send(node_id, markers)
                except Exception:
                    # A defect in one transaction must not leave the others open.
                    logger.exception("Sending markers to node %d failed; they are sent again", node_id)
                    for marker in markers:
                        self._retry(marker, marker.partitions)
        finally:
            self._tasks.pop(node_id, None)

    async def _send(self, node_id: int, markers: list[Marker]) -> None:
        request = WriteTxnMarkersRequest(markers=[marker.encoded() for marker in markers])
        try:
            response = await self._client(node_id).request(request, VERSION, REQUEST_TIMEOUT)
        except (OSError, KafkaError) as error:
            logger.info("Markers could not be sent to node %d; they are sent again: %s", node_id, error)
            for marker in markers:
                self._retry(marker, marker.partitions)
            return
        codes = _codes(response)
        for marker in markers:
            self._answered(marker, codes)

    def _client(self, node_id: int) -> PeerClient:
        client = self._clients.get(node_id)
        if client is None:
            client = self._clients[node_id] = self._host.peer_client(self._host.image.nodes[node_id])
        return client

    def _answered(self, marker: Marker, codes: Mapping[tuple[int, str, int], int]) -> None:
        if not marker.is_wanted:
            return
        again: list[TopicPartition] = []
        producer_id = marker.outcome.producer_id
        found = {
            partition: codes.get((producer_id, *partition), Code.UNKNOWN_SERVER_ERROR)
            for partition in marker.partitions
        }
        if abandoned := {partition: code for partition, code in found.items() if code in _ABANDONED}:
            logger.info("%r has ended elsewhere; its markers are no longer sent: %s", marker.transaction, abandoned)
            return
        for partition, code in found.items():
            if code in _UNNECESSARY:
                marker.shard.marked(marker.transaction, partition)
                continue
            if code not in _RETRIABLE:
                logger.error("%s-%d: the marker for %r was refused with code %d", *partition, marker.transaction, code)
            again.append(partition)
        if again:
            self._retry(marker, again)


def _part(marker: Marker, partitions: Iterable[TopicPartition]) -> Marker:
    return Marker(marker.shard, marker.transaction, marker.outcome, tuple(partitions))


def _codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, str, int], int]:
    """Return the code of each partition, by producer id, topic and index."""
    return {
        (marker.producer_id, topic.name, partition.partition_index): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
