"""Internal, for the Spark sink: a partition's log by single fetches.

They return committed records, or what the log has of one producer id, and how its transactions ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from aioproducer._client.transaction_admin import ask_leader
from aioproducer.admin import Admin
from aioproducer.core.fetching.fetcher import TOPIC_IDS_FROM
from aioproducer.errors import ProtocolError, UnknownTopicOrPartitionError, broker_error
from aioproducer.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from aioproducer.record import TopicPartition
from aioproducer.wire.aborted_filter import AbortedFilter
from aioproducer.wire.control_batch import ControlRecordType, read_control_record
from aioproducer.wire.record_batch import BatchRecord, RecordBatch, iter_batches

MAX_BYTES = 1024 * 1024
# A batch may have this many bytes once it is decompressed.
LARGEST_BATCH = 256 << 20
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
# Between two looks for a marker, in seconds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


class TransactionMarker(NamedTuple):
    """The control record that ends a transaction in one partition; ``timestamp_ms`` is milliseconds since 1970."""

    offset: int
    committed: bool
    producer_epoch: int
    coordinator_epoch: int
    timestamp_ms: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction, and its first offset in the partition."""

    producer_id: int
    first_offset: int


class ProducerFetch(NamedTuple):
    """One response to Fetch, reduced to one producer id; offsets are those of the response."""

    next_offset: int
    """The offset behind the batches of the response, of whatever producer; that of the request if there are none."""
    aborted: tuple[AbortedTransaction, ...]
    """The aborted transactions of all producers that reach into the batches; none with ``committed=False``."""
    markers: tuple[TransactionMarker, ...]
    batches: tuple[RecordBatch, ...]
    """The batches with records, as views of the response. Their first records may precede the offset asked for."""
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


class CommittedFetch(NamedTuple):
    """One response to Fetch, reduced to committed records."""

    next_offset: int
    """The offset behind the batches of the response; that of the request if there are none."""
    records: tuple[BatchRecord, ...]
    """In order. The first ones may precede the offset asked for."""
    last_stable_offset: int


async def fetch_committed(
    admin: Admin, topic_partition: TopicPartition, offset: int, *, max_bytes: int = MAX_BYTES
) -> CommittedFetch:
    """Return the committed records from ``offset`` up to the last stable offset, without waiting for more.

    Args:
        max_bytes: about the largest size of the response; a larger batch comes all the same.

    Raises:
        OffsetOutOfRangeError: the log has no such offset, as where retention has deleted it.
        NoSuchTopicError: there is no such topic or partition.
        ProtocolError: a batch is corrupt.
        KafkaTimeoutError: the leader did not answer in time.
    """
    return reduce_to_committed(await _fetch(admin, topic_partition, offset, _READ_COMMITTED, max_bytes), offset)


async def fetch_of_producer(
    admin: Admin,
    topic_partition: TopicPartition,
    offset: int,
    producer_id: int,
    *,
    committed: bool = True,
    max_bytes: int = MAX_BYTES,
) -> ProducerFetch:
    """Return what the leader has from ``offset`` on, without waiting for more.

    Args:
        committed: read as a reader of committed records does: the response has the aborted transactions, and ends at
            the last stable offset, where the first open transaction of any producer begins. Otherwise it ends at the
            high watermark.
        max_bytes: as for ``fetch_committed``.

    Raises:
        KafkaError: as ``fetch_committed``.
    """
    isolation_level = _READ_COMMITTED if committed else _READ_UNCOMMITTED
    return reduce_to_producer(
        await _fetch(admin, topic_partition, offset, isolation_level, max_bytes), offset, producer_id
    )


async def _fetch(
    admin: Admin, topic_partition: TopicPartition, offset: int, isolation_level: int, max_bytes: int
) -> PartitionData:
    topic, partition = topic_partition

    async def ask(node_id: int, timeout: float) -> PartitionData:
        metadata = admin.client.metadata.topic(topic)
        topic_id = None if metadata is None else metadata.topic_id
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=[
                FetchTopic(
                    topic=topic,
                    topic_id=topic_id or bytes(16),
                    partitions=[
                        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
                    ],
                )
            ],
        )
        highest = FetchRequest.schema.versions[-1] if topic_id else TOPIC_IDS_FROM - 1
        response = await admin.client.request(request, node_id=node_id, highest=highest, timeout=timeout)
        if response.error_code:
            raise broker_error(response.error_code)
        data = next((each for found in response.responses for each in found.partitions), None)
        if data is None:
            raise UnknownTopicOrPartitionError()
        if data.error_code:
            error = broker_error(data.error_code)
            error.args = (f"{topic_partition}, offset {offset}: {error}",)
            raise error
        return data

    return await ask_leader(admin, topic_partition, ask)


def reduce_to_committed(data: PartitionData, offset: int) -> CommittedFetch:
    """Return the records of a response that belong to no aborted transaction.

    Raises:
        ProtocolError: a batch is corrupt.
    """
    aborted = AbortedFilter((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
    next_offset = offset
    records: list[BatchRecord] = []
    for batch in _batches(data):
        batch.validate()
        next_offset = max(next_offset, batch.next_offset)
        if not (aborted.drops(batch) or batch.is_control):
            records.extend(batch.records(LARGEST_BATCH))
    return CommittedFetch(next_offset, tuple(records), data.last_stable_offset)


def reduce_to_producer(data: PartitionData, offset: int, producer_id: int) -> ProducerFetch:
    """Return the part of a response that belongs to one producer id.

    Raises:
        ProtocolError: a batch is corrupt.
    """
    next_offset = offset
    markers: list[TransactionMarker] = []
    found: list[RecordBatch] = []
    for batch in _batches(data):
        if batch.last_offset < offset:
            continue
        next_offset = batch.next_offset
        if batch.producer_id != producer_id:
            continue
        batch.validate()
        if not batch.is_control:
            found.append(batch)
            continue
        record = read_control_record(batch)
        if record.coordinator_epoch is not None:
            is_commit = record.type is ControlRecordType.COMMIT
            markers.append(
                TransactionMarker(
                    record.offset, is_commit, batch.producer_epoch, record.coordinator_epoch, record.timestamp
                )
            )
    return ProducerFetch(
        next_offset,
        tuple(AbortedTransaction(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()),
        tuple(markers),
        tuple(found),
        data.log_start_offset,
        data.last_stable_offset,
        data.high_watermark,
    )


def _batches(data: PartitionData) -> Iterator[RecordBatch]:
    records = data.records
    if records is None:
        return iter(())
    if not isinstance(records, bytes | bytearray | memoryview):
        raise ProtocolError("records were read in parts")
    return iter_batches(records)


async def find_marker(
    admin: Admin,
    topic_partition: TopicPartition,
    last_offset: int,
    producer_id: int,
    *,
    within: float = 0.0,
    max_bytes: int = MAX_BYTES,
) -> TransactionMarker | None:
    """Return the marker that ended the transaction whose last record is at ``last_offset``, None if there is none yet.

    Reads up to the high watermark of the first response: a log that grows all the time does not extend the search. An
    open transaction of another producer does not hide the marker.

    Args:
        within: how long to wait for the marker, in seconds, once the search has reached that high watermark.

    Raises:
        KafkaError: as ``fetch_of_producer``.
    """
    loop = asyncio.get_running_loop()
    offset = last_offset + 1
    end = deadline = None
    pause = _SHORTEST_PAUSE
    while True:
        fetched = await fetch_of_producer(
            admin, topic_partition, offset, producer_id, committed=False, max_bytes=max_bytes
        )
        if fetched.markers:
            return fetched.markers[0]
        end = fetched.high_watermark if end is None else end
        is_read = fetched.next_offset == offset
        offset = fetched.next_offset
        if offset < end and not is_read:
            continue
        if deadline is None:
            deadline = loop.time() + within
        if loop.time() >= deadline:
            return None
        if is_read:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
