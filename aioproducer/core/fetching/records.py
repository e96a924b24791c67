"""``ConsumerRecord``, and its decoding from a batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from aioproducer.errors import ProtocolError
from aioproducer.record import HeaderPair
from aioproducer.wire.record import decode_record
from aioproducer.wire.record_batch import LOG_APPEND_TIME, RecordBatch


class ConsumerRecord(NamedTuple):
    """A record that was read (Kafka's class of the same name).

    ``key`` and ``value`` are bytes or None, or what the deserializers returned.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970: the producer's, or the broker's with ``message.timestamp.type=LogAppendTime``."""
    key: Any
    value: Any
    headers: tuple[HeaderPair, ...]
    leader_epoch: int | None = None
    """Epoch of the leader that appended the record; None if it is unknown."""


def decode_small_record(body: bytes, place: int) -> tuple[int, int, bytes | None, bytes | None, int] | None:
    """Return offset delta, timestamp delta, key, value and end of a record without headers and with small numbers.

    Nearly all records are such: every number takes at most two bytes. For all others, and malformed ones, the result is
    None; ``decode_record`` reads or rejects them. Written out, as a call for each number takes longer than all of this.
    """
    try:
        size = body[place]
        place += 1
        if size >= 0x80:
            size += (body[place] << 7) - 0x80
            place += 1
        # A size of three bytes or a negative one: bit 14, or bit 0, is set.
        if size & 0x4001:
            return None
        end = place + (size >> 1)
        timestamp = body[place + 1]
        place += 2
        if timestamp >= 0x80:
            timestamp += (body[place] << 7) - 0x80
            place += 1
        offset = body[place]
        place += 1
        if offset >= 0x80:
            offset += (body[place] << 7) - 0x80
            place += 1
        if (timestamp | offset) & 0x4000 or offset & 1:
            return None
        size = body[place]
        place += 1
        if size == 1:
            key = None
        else:
            if size >= 0x80:
                size += (body[place] << 7) - 0x80
                place += 1
            if size & 0x4001:
                return None
            size >>= 1
            key = body[place : place + size]
            place += size
        size = body[place]
        place += 1
        if size == 1:
            value = None
        else:
            if size >= 0x80:
                size += (body[place] << 7) - 0x80
                place += 1
            if size & 0x4001:
                return None
            size >>= 1
            value = body[place : place + size]
            place += size
        if body[place] or place + 1 != end:
            return None
    except IndexError:
        return None
    return offset >> 1, (timestamp >> 1) ^ -(timestamp & 1), key, value, end


class BatchReader:
    """Decodes the records of one decompressed batch, some at a time.

    Args:
        body: the records, decompressed.
        first: records before this offset are skipped.
    """

    __slots__ = ("_append_time", "_base_offset", "_base_timestamp", "_body", "_count", "_epoch", "_first", "_place")

    def __init__(self, batch: RecordBatch, body: bytes, first: int) -> None:
        self._body = body
        self._first = first
        self._count = batch.record_count
        self._place = 0
        self._base_offset = batch.base_offset
        self._base_timestamp = batch.base_timestamp
        self._append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
        epoch = batch.partition_leader_epoch
        self._epoch = epoch if epoch >= 0 else None

    @property
    def is_at_end(self) -> bool:
        """Whether every record was read."""
        return self._count == 0

    def read(self, topic: str, partition: int, limit: int) -> list[ConsumerRecord]:
        """Return at most ``limit`` further records.

        Raises:
            ProtocolError: a record is malformed, or the body does not end with the last record.
        """
        records: list[ConsumerRecord] = []
        body, place, first = self._body, self._place, self._first
        base_offset, base_timestamp, append_time = self._base_offset, self._base_timestamp, self._append_time
        epoch = self._epoch
        count = self._count
        # Without the Python function that is ConsumerRecord's own __new__.
        new = tuple.__new__
        while count and len(records) < limit:
            fields = decode_small_record(body, place)
            if fields is None:
                offset_delta, timestamp_delta, key, value, headers, place = decode_record(body, place)
            else:
                offset_delta, timestamp_delta, key, value, place = fields
                headers = ()
            count -= 1
            offset = base_offset + offset_delta
            if offset < first:
                continue
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            records.append(new(ConsumerRecord, (topic, partition, offset, timestamp, key, value, headers, epoch)))
        if not count and place != len(body):
            raise ProtocolError(f"the records of a batch end {len(body) - place} bytes before the end of its body")
        self._place, self._count = place, count
        return records
