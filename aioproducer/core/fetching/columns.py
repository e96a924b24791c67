"""Compiled. Records as columns in Arrow's layout, filled from the bodies of batches without an object for each record.

Room is checked before bytes are written. ``core.fetching.records`` has the two ways to decode a record.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from aioproducer.core.fetching.records import LEAST_RECORD_SIZE
from aioproducer.errors import ProtocolError
from aioproducer.record import TopicPartition
from aioproducer.wire.varint import INT32_MAX

if TYPE_CHECKING:
    from aioproducer.core.fetching.records import BatchReader, ConsumerRecord
    from aioproducer.record import HeaderPair

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.aioproducer.core.fetching.records import RecordFields, parse_record
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcpy

_INT32 = Struct("=i")
_INT64 = Struct("=q")

# Bytes that are reserved for batches that were not seen yet.
_MOST_GUESSED = 2 * 1024 * 1024


def _grow(buffer: bytearray, needed: int) -> None:
    """Append zeros if fewer bytes than needed are there: as many as there are, so that bytes are seldom moved."""
    size = len(buffer)
    if needed > size:
        buffer.extend(bytes(max(needed, 2 * size) - size))


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
        _grow(self.ends, 4 * (rows + 1))
        _grow(self.validity, (rows + 7) // 8)
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
        _grow(self.offsets, 8 * (self.count + rows))
        _grow(self.timestamps, 8 * (self.count + rows))
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
        elif cython.compiled and reader.is_moderate:
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
        try:
            found = reader.next_record()
        except ProtocolError:
            if self.count == before:
                raise
            # The rows before it are returned first.
            return False
        if found is not None:
            offset, timestamp, key, value, headers, _ = found
            self.append(offset, timestamp, key, value, headers)
        return True

    # Compiled only

    def _read_by_address(self, reader: BatchReader, limit: int, most_bytes: int) -> int:
        view = cython.declare(cython.Py_buffer)
        fields = cython.declare(RecordFields)
        PyObject_GetBuffer(reader.body, cython.address(view), PyBUF_SIMPLE)
        try:
            begin = cython.cast(cython.p_uchar, view.buf)
            end = begin + view.len
            # The count is not trusted.
            rows = min(limit, reader.count, (view.len - reader.place) // LEAST_RECORD_SIZE + 1)
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
                if not parse_record(begin + reader.place, end, cython.address(fields)) or (
                    reader.count == 1 and fields.end != end
                ):
                    if not self._read_next(reader, before):
                        break
                    continue
                reader.place = fields.end - begin
                reader.count -= 1
                offset = reader.base_offset + fields.offset_delta
                if offset >= reader.stop:
                    reader.count = 0
                    break
                if offset < reader.first:
                    continue
                offsets = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self.offsets))
                offsets[self.count] = offset
                offsets = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self.timestamps))
                offsets[self.count] = append_time if has_append_time else reader.base_timestamp + fields.timestamp_delta
                self.keys.put(fields.key, fields.key_size)
                self.values.put(fields.value, fields.value_size)
                self.count += 1
                self.last_offset = offset
        finally:
            PyBuffer_Release(cython.address(view))
        return 0
