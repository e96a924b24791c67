"""Compiled. ``ConsumerRecord``, and its decoding from a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aioproducer.errors import ProtocolError
from aioproducer.record import HeaderPair
from aioproducer.wire.record import decode_record
from aioproducer.wire.record_batch import LOG_APPEND_TIME, RecordBatch
from aioproducer.wire.varint import INT64_MAX

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.core.fetching.records import allocate_tuple
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.cpython.ref import Py_INCREF
    from cython.cimports.cpython.tuple import PyTuple_SET_ITEM


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


# The most bytes that the numbers of a small record take before its key: size, attributes, two deltas, the key's size.
_LONGEST_START = 9


def decode_small_record(body: bytes, place: int) -> tuple[int, int, bytes | None, bytes | None, int] | None:
    """Return offset delta, timestamp delta, key, value and end of a record without headers and with small numbers.

    Nearly all records are such: every number takes at most two bytes. For all others, malformed ones, and one that ends
    within a few bytes of the end of the body, the result is None; ``decode_record`` reads or rejects them. The numbers
    are written out, as a call for each takes longer than all of this.
    """
    length = len(body)
    if place < 0 or place + _LONGEST_START > length:
        return None
    data = cython.cast(cython.p_uchar, PyBytes_AS_STRING(body)) if cython.compiled else body
    size = data[place]
    place += 1
    if size >= 0x80:
        size += (data[place] << 7) - 0x80
        place += 1
    end = place + (size >> 1)
    # A size of three bytes or a negative one: bit 14, or bit 0, is set.
    if size & 0x4001 or end > length:
        return None
    timestamp = data[place + 1]
    place += 2
    if timestamp >= 0x80:
        timestamp += (data[place] << 7) - 0x80
        place += 1
    offset = data[place]
    place += 1
    if offset >= 0x80:
        offset += (data[place] << 7) - 0x80
        place += 1
    size = data[place]
    place += 1
    if (timestamp | offset) & 0x4000 or offset & 1:
        return None
    key = value = None
    if size != 1:
        if size >= 0x80:
            size += (data[place] << 7) - 0x80
            place += 1
        size_of_key = size >> 1
        if size & 0x4001 or size_of_key > end - place:
            return None
        key = body[place : place + size_of_key]
        place += size_of_key
    # At least the value's size and the number of headers.
    if place + 2 > end:
        return None
    size = data[place]
    place += 1
    if size != 1:
        if size >= 0x80:
            size += (data[place] << 7) - 0x80
            place += 1
        size_of_value = size >> 1
        if size & 0x4001 or size_of_value > end - place:
            return None
        value = body[place : place + size_of_value]
        place += size_of_value
    if place + 1 != end or data[place]:
        return None
    return offset >> 1, (timestamp >> 1) ^ -(timestamp & 1), key, value, end


class BatchReader:
    """Decodes the records of one decompressed batch, some at a time.

    Args:
        body: the records, decompressed; a view of the response if they were not compressed.
        first: records before this offset are skipped.
        stop: neither is a record at this offset read, nor any behind it.
    """

    __slots__ = ("append_time", "base_offset", "base_timestamp", "body", "count", "epoch", "first", "place", "stop")

    def __init__(self, batch: RecordBatch, body: bytes | memoryview, first: int, stop: int | None = None) -> None:
        self.body: bytes | memoryview = body
        self.first: int = first
        self.stop: int = INT64_MAX if stop is None else stop
        self.count: int = batch.record_count
        """Records that were not read yet."""
        self.place: int = 0
        """The next record's place in the body."""
        self.base_offset: int = batch.base_offset
        self.base_timestamp: int = batch.base_timestamp
        self.append_time: int | None = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
        epoch = batch.partition_leader_epoch
        self.epoch: int | None = epoch if epoch >= 0 else None

    @property
    def is_at_end(self) -> bool:
        """Whether every record was read."""
        return self.count == 0

    def body_bytes(self) -> bytes:
        """Return the body as bytes; it is copied once if it is a view."""
        body = self.body
        if type(body) is not bytes:
            body = self.body = bytes(body)
        return body

    def check_end(self) -> None:
        """Check that the body ends with the last record.

        Raises:
            ProtocolError: it does not.
        """
        if self.place != len(self.body):
            raise ProtocolError(
                f"the records of a batch end {len(self.body) - self.place} bytes before the end of its body"
            )

    def read(self, topic: str, partition: int, limit: int, most_bytes: int) -> list[ConsumerRecord]:
        """Return at most ``limit`` further records, and none that begins behind ``most_bytes``.

        Raises:
            ProtocolError: a record is malformed, or the body does not end with the last record.
        """
        records: list[ConsumerRecord] = []
        body = self.body_bytes()
        place, first, stop = self.place, self.first, self.stop
        end = place + most_bytes
        base_offset, base_timestamp, append_time = self.base_offset, self.base_timestamp, self.append_time
        epoch = self.epoch
        count = self.count
        # Without the Python function that is ConsumerRecord's own __new__.
        new = tuple.__new__
        while count and len(records) < limit and place < end:
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
            if offset >= stop:
                self.place, self.count = place, 0
                return records
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            if cython.compiled:
                # As tuple.__new__, without a tuple of the fields that is copied.
                record = allocate_tuple(ConsumerRecord, 8)
                number = offset
                _set(record, 0, topic)
                _set(record, 1, partition)
                _set(record, 2, number)
                _set(record, 3, timestamp)
                _set(record, 4, key)
                _set(record, 5, value)
                _set(record, 6, headers)
                _set(record, 7, epoch)
                records.append(record)
            else:
                records.append(new(ConsumerRecord, (topic, partition, offset, timestamp, key, value, headers, epoch)))
        self.place, self.count = place, count
        if not count:
            self.check_end()
        return records


# Compiled only


def _set(record: Any, index: int, field: Any) -> None:
    """Set a field of a record that was just allocated."""
    Py_INCREF(field)
    PyTuple_SET_ITEM(record, index, field)
