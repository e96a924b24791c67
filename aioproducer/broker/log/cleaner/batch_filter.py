"""Which batches and records survive a cleaning, and how a batch is rewritten (``MemoryRecords.filterTo``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aioproducer.broker.log.cleaner.offset_map import OffsetMap
from aioproducer.broker.log.cleaner.steps import RECORDS_PER_STEP, Steps, done_by
from aioproducer.broker.log.cleaner.transactions import CleanedTransactions
from aioproducer.broker.log.transaction_index import AbortedTransaction
from aioproducer.broker.log.validation import MAX_DECOMPRESSED_BYTES, BatchHeader, check_checksum
from aioproducer.compression import CODECS
from aioproducer.compression.base import Buffer, byte_view
from aioproducer.errors import CorruptRecordError, ProtocolError
from aioproducer.wire.control_batch import ControlRecordType
from aioproducer.wire.record import DecodedRecord, decode_record, encode_record
from aioproducer.wire.record_batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    pack_header,
)
from aioproducer.wire.record_survey import as_int64


class LastBatch(NamedTuple):
    """What a partition remembers of an active producer's last batch."""

    last_data_offset: int
    """The last offset of its last batch of data, -1 if only a marker is known."""
    producer_epoch: int


class Kept(NamedTuple):
    """What a cleaned segment receives for a batch."""

    batch: bytes | memoryview
    max_timestamp: int
    """Milliseconds."""


class Filtered(NamedTuple):
    """The outcome for one batch."""

    kept: Kept | None
    """``None`` if the batch is dropped."""
    aborted: AbortedTransaction | None
    """An entry for the index of the cleaned segment."""


class BatchFilter:
    """The rules of one round of cleaning. Batches are given in the order of their offsets, from the log's start."""

    def __init__(
        self,
        offsets: OffsetMap,
        last_batch: Callable[[int], LastBatch | None],
        *,
        now_ms: int,
        delete_retention_ms: int,
        end_offset: int,
        topic_partition: str,
    ) -> None:
        """Begin a round.

        Args:
            offsets: the last offset of each key in the dirty part.
            last_batch: finds an active producer by its id. Its last batch is kept empty, or the next sequence number
                would be unknown after a restart.
            now_ms: the time of the whole round.
            delete_retention_ms: how long a tombstone or marker stays, from the first round that could drop it.
            end_offset: where the round ends. The last batch before it is kept empty, or readers that stand in a gap
                would not see that it ends.
        """
        self.transactions = CleanedTransactions()
        self._offsets = offsets
        self._last_batch = last_batch
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._end_offset = end_offset
        self._topic_partition = topic_partition

    def filter(self, header: BatchHeader, view: Buffer, control_type: ControlRecordType | None) -> Steps[Filtered]:
        """Decide about a batch.

        Args:
            view: the whole batch.
            control_type: the type of a control batch's record; ``None`` for data, and for an empty control batch.

        Raises:
            CorruptRecordError: the batch has a wrong checksum, or its records cannot be read.
        """
        aborted: AbortedTransaction | None = None
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None
        is_control = bool(header.attributes & CONTROL_FLAG)
        if is_control:
            is_needless, aborted = self.transactions.control_read(header, control_type)
            discards = is_needless and horizon is not None and horizon <= self._now_ms
        else:
            is_needless = discards = self.transactions.data_read(header)
        keeps_header = self._keeps_header(header, is_control)
        if discards or not header.record_count:
            return Filtered(_emptied(header) if keeps_header else None, aborted)
        check_checksum(header, byte_view(view), self._topic_partition)
        records = yield from read_records(header, view, self._topic_partition)
        retained: Sequence[DecodedRecord] = records
        if not is_control:
            retained = yield from self._retained(header, records, horizon)
        if not retained:
            return Filtered(_emptied(header) if keeps_header else None, aborted)
        has_tombstones = any(record.value is None for record in retained)
        sets_horizon = horizon is None and (has_tombstones or (is_control and is_needless))
        if len(retained) == len(records) and not sets_horizon:
            return Filtered(Kept(byte_view(view), header.max_timestamp), aborted)
        if sets_horizon:
            horizon = self._now_ms + self._delete_retention_ms
        kept = yield from _rewritten(header, retained, horizon)
        return Filtered(kept, aborted)

    def _keeps_header(self, header: BatchHeader, is_control: bool) -> bool:
        """Return whether the batch stays, without records if none is retained."""
        if header.last_offset + 1 == self._end_offset:
            return True
        last = self._last_batch(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return is_control and header.producer_epoch == last.producer_epoch

    def _retained(
        self, header: BatchHeader, records: Sequence[DecodedRecord], horizon: int | None
    ) -> Steps[list[DecodedRecord]]:
        """Return the records that are newer than the offset map, or the last ones of their keys.

        Records without a key go: they were written before the topic was compacted. Tombstones go at their horizon.
        """
        keeps_tombstones = horizon is None or self._now_ms < horizon
        latest, get = self._offsets.latest_offset, self._offsets.get
        retained = []
        for index, record in enumerate(records):
            if index % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
                yield None
            offset = header.base_offset + record.offset_delta
            if offset > latest or (
                record.key is not None and offset >= get(record.key) and (record.value is not None or keeps_tombstones)
            ):
                retained.append(record)
        return retained


def read_records(header: BatchHeader, view: Buffer, topic_partition: str) -> Steps[list[DecodedRecord]]:
    """Decode every record of a batch.

    Raises:
        CorruptRecordError: the records cannot be read.
    """
    codec_id = header.attributes & COMPRESSION_CODEC_MASK
    body: Buffer = byte_view(view)[BATCH_HEADER_SIZE:]
    try:
        if codec_id >= len(CODECS):
            raise ProtocolError(f"there is no codec {codec_id}")
        if codec_id:
            codec, compressed = CODECS[codec_id], body
            body = yield from done_by(len(compressed), lambda: codec.decompress(compressed, MAX_DECOMPRESSED_BYTES))
        data = bytes(body)
        records = []
        position = 0
        for index in range(header.record_count):
            if index % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
                yield None
            record = decode_record(data, position)
            position = record.end
            records.append(record)
        return records
    except ProtocolError as malformed:
        raise CorruptRecordError(
            f"The batch at offset {header.base_offset} of {topic_partition} cannot be read: {malformed}"
        ) from None


def _emptied(header: BatchHeader) -> Kept:
    """Return the batch's header without records (``DefaultRecordBatch.writeEmptyHeader``)."""
    attributes = header.attributes & (TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG)
    batch = _packed(header, [], 0, 0, NO_TIMESTAMP, header.max_timestamp, attributes)
    return Kept(batch, header.max_timestamp)


def _rewritten(header: BatchHeader, records: Sequence[DecodedRecord], horizon: int | None) -> Steps[Kept]:
    """Return the batch with ``records`` alone; offsets, sequence numbers and timestamps stay.

    A delete horizon takes the place of the base timestamp (KIP-534).
    """
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_FLAG else None
    first = as_int64(header.base_timestamp + records[0].timestamp_delta) if append_time is None else append_time
    base_timestamp = first if horizon is None else horizon
    attributes = header.attributes | (0 if horizon is None else DELETE_HORIZON_FLAG)
    max_timestamp = NO_TIMESTAMP if append_time is None else append_time
    parts: list[Buffer] = []
    for index, record in enumerate(records):
        if index % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
            yield None
        timestamp = append_time
        if timestamp is None:
            timestamp = as_int64(header.base_timestamp + record.timestamp_delta)
            max_timestamp = max(max_timestamp, timestamp)
        delta = as_int64(timestamp - base_timestamp)
        parts.append(encode_record(record.offset_delta, delta, record.key, record.value, record.headers))
    body = b"".join(parts)
    codec = CODECS[header.attributes & COMPRESSION_CODEC_MASK]
    if codec.id:
        plain = body
        body = yield from done_by(len(plain), lambda: codec.compress([plain]))
    batch = _packed(header, [body], len(body), len(records), base_timestamp, max_timestamp, attributes)
    return Kept(batch, max_timestamp)


def _packed(
    header: BatchHeader,
    body: Sequence[bytes],
    size: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
) -> bytes:
    packed = pack_header(
        body,
        size,
        count,
        base_timestamp,
        max_timestamp,
        attributes,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.base_offset,
        header.last_offset_delta,
        header.partition_leader_epoch,
    )
    return b"".join((packed, *body))
