"""Splitting of a batch that the broker rejects as too large (KIP-126)."""

from __future__ import annotations

from aioproducer.core.batching.batch import ProducerBatch, new_batch
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, BatchRecord, RecordBatch, encode_record


def split_batch(batch: ProducerBatch, batch_size: int) -> list[ProducerBatch]:
    """Return the records, in order, in at least two batches of at most ``batch_size`` bytes, or of one record each.

    A batch that is no larger than ``batch_size`` is halved: the broker's limit is lower, and a few halvings reach it.
    The parts keep the creation time and thereby the deadline; they start with no attempts.

    Raises:
        ValueError: the batch has only one record.
    """
    if batch.record_count < 2:
        raise ValueError(f"A batch of fewer than two records cannot be split: {batch!r}")
    limit = batch_size
    if batch.uncompressed_size() <= batch_size:
        limit = batch.uncompressed_size() // 2
    body_limit = limit - BATCH_HEADER_SIZE
    parts: list[ProducerBatch] = []
    records: list[BatchRecord] = []
    encoded: list[bytes] = []
    size = 0
    for record in RecordBatch(b"".join(batch.buffers())).records():
        data = _encode(record, records[0] if records else record, len(records))
        if records and size + len(data) > body_limit:
            parts.append(_part(batch, records, encoded))
            records, encoded, size = [], [], 0
            data = _encode(record, record, 0)
        records.append(record)
        encoded.append(data)
        size += len(data)
    parts.append(_part(batch, records, encoded))
    return parts


def _encode(record: BatchRecord, first: BatchRecord, index: int) -> bytes:
    return encode_record(index, record.timestamp - first.timestamp, record.key, record.value, record.headers)


def _part(batch: ProducerBatch, records: list[BatchRecord], encoded: list[bytes]) -> ProducerBatch:
    assert batch.queue is not None
    part = new_batch(batch.loop, batch.queue, batch.topic_partition, batch.number, batch.created_at, batch.size_limit)
    part.take_records(
        b"".join(encoded),
        [record.timestamp for record in records],
        records[0].timestamp,
        max(len(data) for data in encoded),
    )
    if batch.on_outcome is not None:
        part.report_to(batch.on_outcome)
        part.kept_headers = {index: record.headers for index, record in enumerate(records) if record.headers}
    return part
