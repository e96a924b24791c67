"""Compiled. The properties of a batch's records that a broker needs, in one pass without an object for each record.

No Python form: the functions of the last section read records at an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aioproducer.compression.base import Buffer
from aioproducer.errors import ProtocolError
from aioproducer.wire.record import decode_record

if TYPE_CHECKING and not TYPE_CHECKING:
    # Only Cython needs this.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

_NO_TIMESTAMP = -1
_INT64_MAX = 2**63 - 1
_TWO_TO_THE_63 = 2**63

IS_COMPILED: bool = cython.compiled
"""Whether a survey takes some nanoseconds a record, as in a compiled module; otherwise a microsecond or more."""


class RecordSurvey(NamedTuple):
    """Properties of all records of a batch."""

    earliest: int
    """The least timestamp except -1; 2^63 - 1 if there is none."""
    latest: int
    """The greatest timestamp, at least -1."""
    is_dense: bool
    """Whether the offset deltas are 0, 1, 2 and so on."""
    has_keys: bool
    """Whether every record has a key."""


def as_int64(value: int) -> int:
    """Return ``value`` as Java's ``long`` has it: the sum of two longs may overflow."""
    return (value + _TWO_TO_THE_63) % (2 * _TWO_TO_THE_63) - _TWO_TO_THE_63


def survey_records(data: Buffer, count: int, base_timestamp: int) -> RecordSurvey:
    """Read ``count`` uncompressed records, which must be all of ``data``.

    Args:
        base_timestamp: The base of the timestamp deltas; a sum that overflows wraps around, as in Java.

    Raises:
        ProtocolError: a record is malformed, or there are more or fewer than ``count``.
        BufferError: ``data`` is not contiguous.
    """
    if cython.compiled:
        found = survey_by_address(data, count, base_timestamp)
        if found is not None:
            return found
        # Malformed: the Python code below raises the error with the reason.
    if count < 0:
        raise ProtocolError(f"a record batch states {count} records")
    earliest, latest = _INT64_MAX, _NO_TIMESTAMP
    is_dense = has_keys = True
    data = bytes(data)
    position = 0
    for index in range(count):
        record = decode_record(data, position)
        position = record.end
        timestamp = as_int64(base_timestamp + record.timestamp_delta)
        if timestamp != _NO_TIMESTAMP:
            earliest = min(earliest, timestamp)
            latest = max(latest, timestamp)
        is_dense = is_dense and record.offset_delta == index
        has_keys = has_keys and record.key is not None
    if position != len(data):
        raise ProtocolError(
            f"a record batch states {count} records, but {len(data) - position} bytes are left behind them"
        )
    return RecordSurvey(earliest, latest, is_dense, has_keys)


# Compiled only


def survey_by_address(data: Any, count: int, base_timestamp: int) -> RecordSurvey | None:
    """``survey_records`` in C; ``None`` if the records are malformed."""
    view = cython.declare(cython.Py_buffer)
    length = cython.declare(cython.longlong)
    timestamp_delta = cython.declare(cython.longlong)
    offset_delta = cython.declare(cython.longlong)
    header_count = cython.declare(cython.longlong)
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    try:
        address = cython.cast(cython.p_uchar, view.buf)
        end = address + view.len
        earliest = _INT64_MAX
        latest = _NO_TIMESTAMP
        is_dense = has_keys = True
        for index in range(count):
            address = _read_zigzag(address, end, 5, cython.address(length))
            if address is cython.NULL or length < 1 or length > end - address:
                return None
            record_end = address + length
            # Behind the attributes, which are unused.
            address = _read_zigzag(address + 1, record_end, 10, cython.address(timestamp_delta))
            if address is cython.NULL:
                return None
            # Added as unsigned: in C a signed overflow is undefined.
            total = base_timestamp
            total += timestamp_delta
            timestamp = total
            if timestamp != _NO_TIMESTAMP:
                if timestamp < earliest:
                    earliest = timestamp
                if timestamp > latest:
                    latest = timestamp
            address = _read_zigzag(address, record_end, 5, cython.address(offset_delta))
            if address is cython.NULL:
                return None
            if offset_delta != index:
                is_dense = False
            if address < record_end and address[0] & 1:
                # The size of the key is negative.
                has_keys = False
            address = _skip_nullable(address, record_end)
            if address is cython.NULL:
                return None
            address = _skip_nullable(address, record_end)
            if address is cython.NULL:
                return None
            address = _read_zigzag(address, record_end, 5, cython.address(header_count))
            if address is not cython.NULL and header_count:
                address = _skip_headers(address, record_end, header_count)
            if address != record_end:
                return None
        if count < 0 or address != end:
            return None
        return RecordSurvey(earliest, latest, is_dense, has_keys)
    finally:
        PyBuffer_Release(cython.address(view))


def _read_zigzag(address: Any, end: Any, longest: int, value: Any) -> Any:
    """Read a number of at most ``longest`` bytes; return the address behind it, NULL if it is malformed."""
    read = 0
    for index in range(longest):
        if address >= end:
            break
        byte = address[0]
        address += 1
        read |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if longest == 5:
                # Bits of a fifth byte beyond 32 bits are dropped, as in Java.
                read = cython.cast(cython.uint, read)
            value[0] = (read >> 1) ^ -(read & 1)
            return address
    return cython.NULL


def _skip_nullable(address: Any, end: Any) -> Any:
    """Return the address behind a key or value, NULL if it does not end before ``end``."""
    size = cython.declare(cython.longlong)
    address = _read_zigzag(address, end, 5, cython.address(size))
    if address is cython.NULL or size > end - address:
        return cython.NULL
    return address + size if size > 0 else address


def _skip_headers(address: Any, end: Any, count: int) -> Any:
    """Return the address behind ``count`` headers, NULL if one is malformed."""
    if count < 0 or count > end - address:
        return cython.NULL
    for _ in range(count):
        if address < end and address[0] & 1:
            # A name is never null.
            return cython.NULL
        address = _skip_nullable(address, end)
        if address is cython.NULL:
            break
        address = _skip_nullable(address, end)
        if address is cython.NULL:
            break
    return address
