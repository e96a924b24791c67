"""WriteTxnMarkers, versions 1-2: a coordinator writes the outcome of transactions into this node's logs.

* 1: flexible. 2: the ``transaction.version`` with which the transaction was ended (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aioproducer.broker.image import GROUP_METADATA_TOPIC
from aioproducer.broker.transactions.codes import Code
from aioproducer.errors import BrokerError, KafkaError
from aioproducer.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode, RequestContext
    from aioproducer.broker.log import AppendInfo
    from aioproducer.broker.replicas.partition import Watcher
    from aioproducer.protocol.messages.transactions import WritableTxnMarker

VERSIONS = range(1, 3)

REPLICATION_TIMEOUT: Final = 30.0
"""Seconds that replication may take (Kafka's ``request.timeout.ms``)."""

_NOT_READY: Final = (Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR)


class MarkedPartition(Protocol):
    """The part of a partition that is needed to write a marker and wait for its replication."""

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> AppendInfo:
        """Write a marker to the leader's log."""

    def replicated(self, end_offset: int) -> bool:
        """Whether a batch that ends before ``end_offset`` is committed."""

    def add_watcher(self, callback: Watcher) -> None:
        """Call ``callback()`` whenever the partition has changed."""

    def remove_watcher(self, callback: Watcher) -> None:
        """Remove ``callback``."""


class _Target(NamedTuple):
    producer_id: int
    topic: str
    partition: int


async def handle(context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Respond when each marker is replicated or has failed."""
    writes = {
        _Target(marker.producer_id, topic.name, index): _write(context.broker, marker, topic.name, index)
        for marker in request.markers
        for topic in marker.topics
        for index in dict.fromkeys(topic.partition_indexes)
    }
    codes = await asyncio.gather(*writes.values())
    markers: defaultdict[int, defaultdict[str, list[WritableTxnMarkerPartitionResult]]]
    markers = defaultdict(lambda: defaultdict(list))
    for target, code in zip(writes, codes, strict=True):
        result = WritableTxnMarkerPartitionResult(partition_index=target.partition, error_code=code)
        markers[target.producer_id][target.topic].append(result)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
            )
            for producer_id, topics in markers.items()
        ]
    )


async def _write(broker: BrokerNode, marker: WritableTxnMarker, topic: str, index: int) -> int:
    """Write a marker to one partition; return the code of the response."""
    try:
        partition = broker.replicas.partition(topic, index)
    except KafkaError:
        # As in Kafka, whatever the reason: the coordinator looks up the leader again.
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    try:
        if topic == GROUP_METADATA_TOPIC:
            code = await broker.groups.complete_transaction(
                index,
                marker.producer_id,
                marker.producer_epoch,
                committed=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
            # The transaction coordinator does not expect the errors of a group coordinator.
            return Code.NOT_LEADER_OR_FOLLOWER if code in _NOT_READY else code
        return await append(partition, marker)
    except BrokerError as error:
        return error.code


async def append(partition: MarkedPartition, marker: WritableTxnMarker) -> int:
    """Append a marker, wait until it is replicated, and return the code of the response.

    Raises:
        KafkaError: it cannot be written.
    """
    info = partition.append_marker(
        marker.producer_id,
        marker.producer_epoch,
        committed=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    end_offset = info.last_offset + 1
    moved = asyncio.Event()
    partition.add_watcher(moved.set)
    try:
        async with asyncio.timeout(REPLICATION_TIMEOUT):
            while not partition.replicated(end_offset):
                await moved.wait()
                moved.clear()
    except TimeoutError:
        return Code.REQUEST_TIMED_OUT
    finally:
        partition.remove_watcher(moved.set)
    return Code.NONE
