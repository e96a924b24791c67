"""Compiled. ``ConsumerRecord``, and its decoding from a batch.

Bodies are not trusted: each length is checked before the bytes that it names are read. What the short way through a
record does not understand is left to ``decode_record``.

No Python form: ``parse_record`` reads a record at an address, and ``_read_by_address`` makes records of what it finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aioproducer.errors import ProtocolError
from aioproducer.record import HeaderPair
from aioproducer.wire.record import DecodedRecord, decode_record
from aioproducer.wire.record_batch import LOG_APPEND_TIME, RecordBatch
from aioproducer.wire.varint import INT64_MAX, INT64_MIN

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.core.fetching.records import PyObject_GC_UnTrack, RecordFields, allocate_tuple
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
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


# From here on, the sum of a base and a delta may not fit 64 bits.
_EXTREME = 2**62
# The form of a version 2 record: no record has fewer bytes.
LEAST_RECORD_SIZE = 7


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

    @property
    def is_moderate(self) -> bool:
        """Whether no offset or timestamp of a record can exceed 64 bits, however large its deltas are."""
        return -_EXTREME < self.base_timestamp < _EXTREME and self.base_offset < _EXTREME

    def next_record(self) -> DecodedRecord | None:
        """Decode the next record the long way, with its absolute offset and timestamp, and move behind it.

        Return None if it is skipped, or if reading ends before it.

        Raises:
            ProtocolError: it is malformed, or the last one and the body does not end with it.
        """
        body = self.body_bytes()
        record = decode_record(body, self.place)
        if self.count == 1 and record.end != len(body):
            raise ProtocolError(f"the records of a batch end {len(body) - record.end} bytes before the end of its body")
        offset = self.base_offset + record.offset_delta
        timestamp = self.append_time
        if timestamp is None:
            timestamp = self.base_timestamp + record.timestamp_delta
        if not (INT64_MIN <= offset <= INT64_MAX and INT64_MIN <= timestamp <= INT64_MAX):
            raise ProtocolError(f"a record's offset {offset} or timestamp {timestamp} does not fit 64 bits")
        self.place = record.end
        self.count -= 1
        if offset >= self.stop:
            self.count = 0
            return None
        if offset < self.first:
            return None
        return record._replace(offset_delta=offset, timestamp_delta=timestamp)

    def read(self, topic: str, partition: int, limit: int, most_bytes: int) -> list[ConsumerRecord]:
        """Return at most ``limit`` further records, and none that begins behind ``most_bytes``.

        Raises:
            ProtocolError: the next record is malformed, or the body does not end with the last record.
        """
        records: list[ConsumerRecord] = []
        if self.is_at_end:
            self.check_end()
        elif cython.compiled and self.is_moderate:
            self._read_by_address(records, topic, partition, limit, self.place + most_bytes)
        else:
            self._read_one_by_one(records, topic, partition, limit, self.place + most_bytes)
        return records

    def _read_one_by_one(self, records: list[ConsumerRecord], topic: str, partition: int, limit: int, end: int) -> None:
        while self.count and len(records) < limit and self.place < end:
            if not self._append_next(records, topic, partition):
                return

    def _append_next(self, records: list[ConsumerRecord], topic: str, partition: int) -> bool:
        """Append the next record the long way; return False if an error waits for the next call."""
        try:
            found = self.next_record()
        except ProtocolError:
            if not records:
                raise
            # The records before it are returned first.
            return False
        if found is not None:
            offset, timestamp, key, value, headers, _ = found
            records.append(ConsumerRecord(topic, partition, offset, timestamp, key, value, headers, self.epoch))
        return True

    # Compiled only

    def _read_by_address(
        self, records: list[ConsumerRecord], topic: str, partition: int, limit: int, last_place: int
    ) -> int:
        view = cython.declare(cython.Py_buffer)
        fields = cython.declare(RecordFields)
        epoch = self.epoch
        timestamp = self.append_time
        has_append_time = timestamp is not None
        last_delta = 0
        if not has_append_time:
            timestamp = self.base_timestamp
        count = 0
        PyObject_GetBuffer(self.body, cython.address(view), PyBUF_SIMPLE)
        try:
            begin = cython.cast(cython.p_uchar, view.buf)
            end = begin + view.len
            while self.count and count < limit and self.place < last_place:
                if not parse_record(begin + self.place, end, cython.address(fields)) or (
                    self.count == 1 and fields.end != end
                ):
                    if not self._append_next(records, topic, partition):
                        break
                    count = len(records)
                    continue
                self.place = fields.end - begin
                self.count -= 1
                offset = self.base_offset + fields.offset_delta
                if offset >= self.stop:
                    self.count = 0
                    break
                if offset < self.first:
                    continue
                if not has_append_time and fields.timestamp_delta != last_delta:
                    # Most records have the timestamp of the one before.
                    last_delta = fields.timestamp_delta
                    timestamp = self.base_timestamp + last_delta
                # As tuple.__new__, without a tuple of the fields that is copied.
                record = allocate_tuple(ConsumerRecord, 8)
                _set(record, 0, topic)
                _set(record, 1, partition)
                _set(record, 2, offset)
                _set(record, 3, timestamp)
                _set(record, 4, _bytes_at(fields.key, fields.key_size))
                _set(record, 5, _bytes_at(fields.value, fields.value_size))
                _set(record, 6, ())
                _set(record, 7, epoch)
                # Nothing in it can refer back to it: the garbage collector need not visit it, however many are kept.
                PyObject_GC_UnTrack(record)
                records.append(record)
                count += 1
        finally:
            PyBuffer_Release(cython.address(view))
        return 0


# Compiled only


def parse_record(place: Any, end: Any, fields: Any) -> bool:
    """Find the fields of the record at an address; sizes below 0 are null.

    Return False for a record with headers, a number of over four bytes, or anything that is malformed.
    """
    number = cython.declare(cython.longlong)
    place = _number(place, end, cython.address(number))
    if place is cython.NULL or number < 1 or number > end - place:
        return False
    end = place + number
    # The attributes have no meaning yet.
    place = _number(place + 1, end, cython.address(number))
    if place is cython.NULL:
        return False
    fields.timestamp_delta = number
    place = _number(place, end, cython.address(number))
    if place is cython.NULL:
        return False
    fields.offset_delta = number
    place = _number(place, end, cython.address(number))
    if place is cython.NULL or number > end - place:
        return False
    fields.key_size = number
    fields.key = place
    if number > 0:
        place += number
    place = _number(place, end, cython.address(number))
    if place is cython.NULL or number > end - place:
        return False
    fields.value_size = number
    fields.value = place
    if number > 0:
        place += number
    fields.end = end
    # No headers, and nothing behind them.
    is_plain: bool = place + 1 == end and place[0] == 0
    return is_plain


def _number(place: Any, end: Any, value: Any) -> Any:
    """Read a number of at most four bytes; return the address behind it, NULL if there is none."""
    read = 0
    for index in range(4):
        if place >= end:
            break
        byte = place[0]
        place += 1
        read |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            value[0] = cython.cast(cython.longlong, read >> 1) ^ -cython.cast(cython.longlong, read & 1)
            return place
    return cython.NULL


def _bytes_at(address: Any, size: int) -> bytes | None:
    if size < 0:
        return None
    copied: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, address), size)
    return copied


def _set(record: Any, index: int, field: Any) -> None:
    """Set a field of a record that was just allocated."""
    Py_INCREF(field)
    PyTuple_SET_ITEM(record, index, field)
