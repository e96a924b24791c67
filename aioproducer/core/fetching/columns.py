"""Compiled. Records as columns in Arrow's layout, filled from the bodies of batches without an object for each record.

Bodies are not trusted: each length is checked before the bytes that it names are read, and room before bytes are
written. What the short way through a record does not understand is left to ``decode_record``.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from aioproducer.errors import ProtocolError
from aioproducer.record import TopicPartition
from aioproducer.wire.record import decode_record
from aioproducer.wire.varint import INT32_MAX, INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from aioproducer.core.fetching.records import BatchReader, ConsumerRecord
    from aioproducer.record import HeaderPair

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcpy

_INT32 = Struct("=i")
_INT64 = Struct("=q")

# Bytes that are reserved for batches that were not seen yet.
_MOST_GUESSED = 2 * 1024 * 1024
# From here on, the sum of a base and a delta may not fit 64 bits.
_EXTREME = 2**62


class BinaryRows:
    """A column of byte strings: row ``i`` is the data between ends ``i`` and ``i + 1``; null rows have no bit.

    ``ends`` are native int32, the first of them 0. The buffers may be longer than ``count`` rows need.
    """

    __slots__ = ("count", "data", "ends", "nulls", "used", "validity")

    def __init__(self) -> None:
        self.ends: bytearray = bytearray(4)
        self.data: bytearray = bytearray()
        self.validity: bytearray = bytearray()
        self.count = 0
        """Rows."""
        self.nulls = 0
        """Rows that are null."""
        self.used = 0
        """Bytes of ``data`` that belong to rows."""

    def reserve(self, rows: int, size: int) -> None:
        """Make room for further rows with ``size`` bytes in total.

        Raises:
            OverflowError: the column would have 2 GiB or more.
        """
        if self.used + size > INT32_MAX:
            raise OverflowError(f"an Arrow column holds at most {INT32_MAX} bytes, not {self.used + size}")
        rows += self.count
        if 4 * (rows + 1) > len(self.ends):
            self.ends.extend(bytes(4 * (rows + 1) - len(self.ends)))
        if (rows + 7) // 8 > len(self.validity):
            self.validity.extend(bytes((rows + 7) // 8 - len(self.validity)))
        size += self.used
        if size > len(self.data):
            # Twice as much, so that bytes are seldom moved.
            size = max(size, min(2 * len(self.data), INT32_MAX))
            if cython.compiled:
                # Without setting the new bytes to 0.
                PyByteArray_Resize(self.data, size)
            else:
                self.data.extend(bytes(size - len(self.data)))

    def append(self, value: bytes | None) -> None:
        """Append a row."""
        size = 0 if value is None else len(value)
        self.reserve(1, size)
        if value is None:
            self.nulls += 1
        else:
            self.data[self.used : self.used + size] = value
            self.used += size
            self.validity[self.count >> 3] |= 1 << (self.count & 7)
        self.count += 1
        _INT32.pack_into(self.ends, 4 * self.count, self.used)

    # Compiled only

    def put(self, source: Any, size: int) -> int:
        """Append a row of ``size`` bytes at an address, null if ``size`` is negative; ``reserve`` made room for it."""
        data = cython.declare(cython.p_uchar)
        ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(self.ends))
        if size < 0:
            self.nulls += 1
        else:
            if size > len(self.data) - self.used:
                self.reserve(1, size)
                ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(self.ends))
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
            memcpy(data + self.used, source, size)
            self.used += size
            data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.validity))
            data[self.count >> 3] |= 1 << (self.count & 7)
        self.count += 1
        ends[self.count] = self.used
        return 0


class RecordColumns:
    """The columns of records, and the runs of rows of one partition and epoch."""

    __slots__ = ("count", "headers", "keys", "last_offset", "offsets", "runs", "timestamps", "values")

    def __init__(self) -> None:
        self.count = 0
        """Rows."""
        self.keys = BinaryRows()
        self.values = BinaryRows()
        self.offsets: bytearray = bytearray()
        """Native int64, as ``timestamps``, which are milliseconds since 1970."""
        self.timestamps: bytearray = bytearray()
        self.headers: list[tuple[int, tuple[HeaderPair, ...]]] = []
        """Row and headers of each record that has headers."""
        self.runs: list[tuple[TopicPartition, int | None, int]] = []
        """Partition, leader epoch and number of rows, one run after the other."""
        self.last_offset = -1

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return self.keys.used + self.values.used

    def _reserve(self, rows: int) -> None:
        needed = 8 * (self.count + rows)
        if needed > len(self.offsets):
            self.offsets.extend(bytes(needed - len(self.offsets)))
            self.timestamps.extend(bytes(needed - len(self.timestamps)))
        self.keys.reserve(rows, 0)
        self.values.reserve(rows, 0)

    def append(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: tuple[HeaderPair, ...]
    ) -> None:
        """Append a row."""
        self._reserve(1)
        _INT64.pack_into(self.offsets, 8 * self.count, offset)
        _INT64.pack_into(self.timestamps, 8 * self.count, timestamp)
        self.keys.append(key)
        self.values.append(value)
        if headers:
            self.headers.append((self.count, headers))
        self.count += 1
        self.last_offset = offset

    def append_record(self, record: ConsumerRecord) -> None:
        """Append a record that was decoded already."""
        self.append(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        self._add_run(TopicPartition(record.topic, record.partition), record.leader_epoch, 1)

    def _add_run(self, name: TopicPartition, epoch: int | None, rows: int) -> None:
        if self.runs and self.runs[-1][:2] == (name, epoch):
            rows += self.runs.pop()[2]
        self.runs.append((name, epoch, rows))

    def read(self, name: TopicPartition, reader: BatchReader, limit: int, most_bytes: int) -> int:
        """Append at most ``limit`` further records of a batch, and none that begins behind ``most_bytes``; return how
        many.

        Raises:
            ProtocolError: the next record is malformed, or the body does not end with the last one.
        """
        before = self.count
        if reader.is_at_end:
            reader.check_end()
        elif cython.compiled and -_EXTREME < reader.base_timestamp < _EXTREME and reader.base_offset < _EXTREME:
            self._read_by_address(reader, limit, most_bytes)
        else:
            self._read_one_by_one(reader, limit, reader.place + most_bytes)
        if self.count > before:
            self._add_run(name, reader.epoch, self.count - before)
        return self.count - before

    def _read_one_by_one(self, reader: BatchReader, limit: int, end: int) -> None:
        last = self.count + limit
        while reader.count and self.count < last and reader.place < end:
            if not self._read_next(reader, last - limit):
                return

    def _read_next(self, reader: BatchReader, before: int) -> bool:
        """Append the next record the long way; return False if an error waits for the next call.

        Args:
            before: the rows before this call.
        """
        body = reader.body_bytes()
        try:
            offset_delta, timestamp_delta, key, value, headers, place = decode_record(body, reader.place)
            if reader.count == 1 and place != len(body):
                raise ProtocolError(f"the records of a batch end {len(body) - place} bytes before the end of its body")
            offset = reader.base_offset + offset_delta
            timestamp = reader.append_time
            if timestamp is None:
                timestamp = reader.base_timestamp + timestamp_delta
            if not (INT64_MIN <= offset <= INT64_MAX and INT64_MIN <= timestamp <= INT64_MAX):
                raise ProtocolError(f"a record's offset {offset} or timestamp {timestamp} does not fit 64 bits")
        except ProtocolError:
            if self.count == before:
                raise
            # The rows before it are returned first.
            return False
        reader.place = place
        reader.count -= 1
        if offset >= reader.stop:
            reader.count = 0
        elif offset >= reader.first:
            self.append(offset, timestamp, key, value, headers)
        return True

    # Compiled only

    def _read_by_address(self, reader: BatchReader, limit: int, most_bytes: int) -> int:
        view = cython.declare(cython.Py_buffer)
        number = cython.declare(cython.longlong)
        timestamp_delta = cython.declare(cython.longlong)
        offset_delta = cython.declare(cython.longlong)
        key_size = cython.declare(cython.longlong)
        value_size = cython.declare(cython.longlong)
        PyObject_GetBuffer(reader.body, cython.address(view), PyBUF_SIMPLE)
        try:
            begin = cython.cast(cython.p_uchar, view.buf)
            end = begin + view.len
            # No record has less than seven bytes: the count is not trusted.
            rows = min(limit, reader.count, (view.len - reader.place) // 7 + 1)
            self._reserve(rows)
            size = view.len - reader.place
            if not self.values.used:
                # The first of several batches: their rows will be alike, and growing would copy these.
                size = min(min(limit, _MOST_GUESSED) * (size // reader.count + 1), _MOST_GUESSED)
            self.values.reserve(rows, min(most_bytes, size))
            first_place = reader.place
            before = self.count
            last = before + rows
            has_append_time = reader.append_time is not None
            append_time = reader.append_time if has_append_time else 0
            while reader.count and self.count < last and reader.place - first_place < most_bytes:
                place = begin + reader.place
                # Each number is checked: NULL is a malformed one, or one that is too large for the short way.
                key = value = place
                is_plain = False
                place = _number(place, end, cython.address(number))
                if place is not cython.NULL and 1 <= number <= end - place:
                    record_end = place + number
                    place = _number(place + 1, record_end, cython.address(timestamp_delta))
                    if place is not cython.NULL:
                        place = _number(place, record_end, cython.address(offset_delta))
                    if place is not cython.NULL:
                        place = _number(place, record_end, cython.address(key_size))
                    if place is not cython.NULL and key_size <= record_end - place:
                        key = place
                        if key_size > 0:
                            place += key_size
                        place = _number(place, record_end, cython.address(value_size))
                        if place is not cython.NULL and value_size <= record_end - place:
                            value = place
                            if value_size > 0:
                                place += value_size
                            # No headers, and nothing behind them.
                            is_plain = place + 1 == record_end and place[0] == 0
                            is_plain = is_plain and (reader.count > 1 or record_end == end)
                if not is_plain:
                    if not self._read_next(reader, before):
                        break
                    continue
                reader.place = record_end - begin
                reader.count -= 1
                offset = reader.base_offset + offset_delta
                if offset >= reader.stop:
                    reader.count = 0
                    break
                if offset < reader.first:
                    continue
                offsets = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self.offsets))
                offsets[self.count] = offset
                offsets = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self.timestamps))
                offsets[self.count] = append_time if has_append_time else reader.base_timestamp + timestamp_delta
                self.keys.put(key, key_size)
                self.values.put(value, value_size)
                self.count += 1
                self.last_offset = offset
        finally:
            PyBuffer_Release(cython.address(view))
        return 0


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
