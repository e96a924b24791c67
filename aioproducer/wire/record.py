"""Compiled. One record of a version 2 record batch: encoding, maximum size and decoding.

A record is ``length varint, attributes int8, timestamp_delta varlong, offset_delta varint, key, value, headers``; keys
and values are a varint length (-1 for null) and the bytes (``org.apache.kafka.common.record.internal.DefaultRecord``).

No Python form: the functions of the last section write records of bytes at addresses. ``encode_record`` handles all
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aioproducer.compression.base import Buffer
from aioproducer.errors import ProtocolError
from aioproducer.wire.varint import (
    SMALL_VARINT_COUNT,
    SMALL_VARINTS,
    decode_varint,
    decode_varlong,
    encode_varint,
    encode_varlong,
    size_of_varint,
)

if TYPE_CHECKING and not TYPE_CHECKING:
    # Only Cython needs this.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
    from cython.cimports.cpython.list import PyList_GET_ITEM
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memcpy

Header = tuple[str, Buffer | None]
"""A record header to write: key and value."""

MAX_RECORD_OVERHEAD = 21
"""The maximum sizes of length (5 bytes), attributes (1), timestamp delta (10) and offset delta (5) together."""

# The same in C.
_MAX_OVERHEAD = MAX_RECORD_OVERHEAD

# The largest numbers that fit two bytes, and one byte, as a varint.
_SHORT, _SHORTEST = 8191, 63

_NULL = b"\x01"
_NO_ATTRIBUTES = b"\x00"
_NO_HEADERS = b"\x00"


class SimpleRecord(NamedTuple):
    """A record to write, as Java's ``SimpleRecord``: its position in the batch determines its offset."""

    timestamp: int
    """Milliseconds since 1970."""
    key: Buffer | None = None
    value: Buffer | None = None
    headers: Sequence[Header] = ()


class DecodedRecord(NamedTuple):
    """A record as encoded in its batch, and its end."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    end: int


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[Header] = (),
) -> bytes:
    """Return the whole record, with its length in front.

    Args:
        offset_delta: The record's position in its batch, from 0.
        timestamp_delta: Milliseconds since the batch's base timestamp; may be negative.
        key: The serialized key; memory views must be contiguous.
        value: The serialized value.
        headers: Pairs of key and value, in order; keys may repeat.

    Raises:
        TypeError: a key, value or header value is not bytes-like or not contiguous, or a header key is not a string.
        OverflowError: the record or a delta does not fit its field.
    """
    timestamp = (
        SMALL_VARINTS[timestamp_delta] if 0 <= timestamp_delta < SMALL_VARINT_COUNT else encode_varlong(timestamp_delta)
    )
    offset = SMALL_VARINTS[offset_delta] if 0 <= offset_delta < SMALL_VARINT_COUNT else encode_varint(offset_delta)
    if not headers and type(value) is bytes and (key is None or type(key) is bytes):
        # Nearly every record is like this; it needs neither a list nor the calls for other bytes-like objects.
        size = len(value)
        value_size = SMALL_VARINTS[size] if size < SMALL_VARINT_COUNT else encode_varint(size)
        size += 2 + len(timestamp) + len(offset) + len(value_size)
        if key is None:
            size += 1
            length = SMALL_VARINTS[size] if size < SMALL_VARINT_COUNT else encode_varint(size)
            return b"".join((length, _NO_ATTRIBUTES, timestamp, offset, _NULL, value_size, value, _NO_HEADERS))
        key_size = SMALL_VARINTS[len(key)] if len(key) < SMALL_VARINT_COUNT else encode_varint(len(key))
        size += len(key_size) + len(key)
        length = SMALL_VARINTS[size] if size < SMALL_VARINT_COUNT else encode_varint(size)
        return b"".join((length, _NO_ATTRIBUTES, timestamp, offset, key_size, key, value_size, value, _NO_HEADERS))
    parts: list[Buffer] = [b"", _NO_ATTRIBUTES, timestamp, offset]
    size = 1 + len(timestamp) + len(offset) + _append_nullable(parts, key) + _append_nullable(parts, value)
    size += _append_headers(parts, headers)
    parts[0] = encode_varint(size)
    return b"".join(parts)


def is_number(view: memoryview) -> bool:
    """Whether the view has a single number in the machine's own format, as numpy and ctypes export it."""
    return view.ndim == 0 and not view.format.startswith("T")


def _append_nullable(parts: list[Buffer], data: Buffer | None) -> int:
    """Append the length and the bytes of a key or value to ``parts``; return their size."""
    if data is None:
        parts.append(_NULL)
        return 1
    if type(data) is bytes:
        size = len(data)
    else:
        view = memoryview(data)
        if is_number(view):
            raise TypeError(f"{type(data).__name__} is a number, not bytes")
        size = view.nbytes
    encoded_size = encode_varint(size)
    parts.append(encoded_size)
    parts.append(data)
    return len(encoded_size) + size


def _append_headers(parts: list[Buffer], headers: Sequence[Header]) -> int:
    """Append the count and every header to ``parts``; return their size."""
    count = encode_varint(len(headers))
    parts.append(count)
    size = len(count)
    for key, value in headers:
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"a header's value must be bytes-like or None, not {type(value).__name__}")
        size += _append_nullable(parts, str.encode(key)) + _append_nullable(parts, value)
    return size


def record_size_upper_bound(key_size: int, value_size: int, headers: Sequence[Header] = ()) -> int:
    """Return the maximum bytes of a record in a batch, for any deltas (``DefaultRecord.recordSizeUpperBound``).

    Args:
        key_size: Bytes of the serialized key, -1 for null.
        value_size: Bytes of the serialized value, -1 for null.
    """
    if cython.compiled:
        size = _MAX_OVERHEAD + zigzag_size(key_size) + zigzag_size(value_size) + zigzag_size(len(headers))
    else:
        size = MAX_RECORD_OVERHEAD + size_of_varint(key_size) + size_of_varint(value_size)
        size += size_of_varint(len(headers))
    if key_size > 0:
        size += key_size
    if value_size > 0:
        size += value_size
    for key, value in headers:
        encoded_size = len(key) if key.isascii() else len(key.encode())
        size += size_of_varint(encoded_size) + encoded_size
        if value is None:
            size += 1
        else:
            encoded_size = memoryview(value).nbytes
            size += size_of_varint(encoded_size) + encoded_size
    return size


def decode_record(data: bytes, position: int) -> DecodedRecord:
    """Decode the record with its length at ``position``. Malformed UTF-8 in a header key is replaced, as in Java.

    Raises:
        ProtocolError: the record is malformed or does not end within ``data``.
    """
    length, position = decode_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise ProtocolError(f"a record states a length of {length} bytes, but only {len(data) - position} are left")
    timestamp_delta, position = decode_varlong(data, position + 1)
    offset_delta, position = decode_varint(data, position)
    key, position = _decode_nullable(data, position, end)
    value, position = _decode_nullable(data, position, end)
    header_count, position = decode_varint(data, position)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if header_count:
        headers, position = _decode_headers(data, position, end, header_count)
    if position != end:
        raise ProtocolError(f"a record of {length} bytes ends {abs(end - position)} bytes away from its stated end")
    return DecodedRecord(offset_delta, timestamp_delta, key, value, headers, end)


def _decode_nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """Decode a key or value at ``position``; every negative length is null, as in Java."""
    size, position = decode_varint(data, position)
    if size < 0:
        return None, position
    if size > end - position:
        raise ProtocolError(f"a field of a record states {size} bytes, but only {end - position} are left")
    return data[position : position + size], position + size


def _decode_headers(
    data: bytes, position: int, end: int, count: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if not 0 <= count <= end - position:
        raise ProtocolError(f"a record states {count} headers, but only {end - position} bytes are left")
    headers = []
    for _ in range(count):
        key, position = _decode_nullable(data, position, end)
        if key is None:
            raise ProtocolError("the key of a record's header is null")
        value, position = _decode_nullable(data, position, end)
        headers.append((key.decode(errors="replace"), value))
    return tuple(headers), position


# Compiled only


def write_plain_record(
    address: Any,
    room: int,
    offset_delta: int,
    timestamp_delta: int,
    key: Any,
    key_size: int,
    value: Any,
    value_size: int,
    headers_size: int,
) -> int:
    """Write a record at ``address``; return its size, or its negative size if ``room`` is too small.

    Only for compiled modules: key and value are addresses, their sizes -1 for null. The bytes are those of
    ``encode_record``, without headers of more than one byte, which the caller appends.
    """
    size = 1 + headers_size + zigzag_size(timestamp_delta) + zigzag_size(offset_delta)
    size += zigzag_size(key_size) + zigzag_size(value_size)
    if key_size > 0:
        size += key_size
    if value_size > 0:
        size += value_size
    total = size + zigzag_size(size)
    if total > room:
        return -total
    address = write_zigzag(address, size)
    address[0] = 0
    address = write_zigzag(address + 1, timestamp_delta)
    address = write_zigzag(address, offset_delta)
    address = write_zigzag(address, key_size)
    if key_size > 0:
        memcpy(address, key, key_size)
        address += key_size
    address = write_zigzag(address, value_size)
    if value_size > 0:
        memcpy(address, value, value_size)
        address += value_size
    if headers_size == 1:
        address[0] = 0
    return total


def plain_headers_size(headers: Any) -> int:
    """Return the size of headers and their count; 0 unless they are a list or tuple of pairs of a str and bytes or
    None.

    Raises:
        UnicodeEncodeError: a name cannot be encoded.
    """
    if type(headers) is not tuple and type(headers) is not list:
        return 0
    name_size = cython.declare(cython.Py_ssize_t)
    size = zigzag_size(len(headers))
    for header in headers:
        if type(header) is not tuple or len(header) != 2:
            return 0
        name = header[0]
        value = header[1]
        if type(name) is not str or (value is not None and type(value) is not bytes):
            return 0
        PyUnicode_AsUTF8AndSize(name, cython.address(name_size))
        size += zigzag_size(name_size) + name_size
        if value is None:
            size += 1
        else:
            value_size = PyBytes_GET_SIZE(value)
            size += zigzag_size(value_size) + value_size
    return size


def write_headers(address: Any, headers: Any) -> None:
    """Write headers with a ``plain_headers_size``, and their count, at ``address``."""
    name_size = cython.declare(cython.Py_ssize_t)
    address = write_zigzag(address, len(headers))
    for header in headers:
        name = PyUnicode_AsUTF8AndSize(header[0], cython.address(name_size))
        address = write_zigzag(address, name_size)
        memcpy(address, name, name_size)
        address += name_size
        value = header[1]
        if value is None:
            address = write_zigzag(address, -1)
        else:
            value_size = PyBytes_GET_SIZE(value)
            address = write_zigzag(address, value_size)
            memcpy(address, PyBytes_AS_STRING(value), value_size)
            address += value_size


def write_run(
    address: Any,
    room: int,
    enough: int,
    offset_delta: int,
    timestamp_delta: int,
    values: list[Any],
    first: int,
    stop: int,
    sizes: Any,
) -> int:
    """Write adjacent records without keys and headers, as ``write_plain_record`` would write each.

    Stops before index ``stop`` of ``values``, before a value that is not a bytes object or does not fit into ``room``,
    and after ``enough`` bytes. Returns the index behind the last one. ``sizes`` receives the bytes written, and the
    size of the largest record if that exceeds its previous value.
    """
    # The bytes before a value without a key are at most ten, as no number takes more than two; sixteen are copied at
    # once.
    head = cython.declare(cython.uchar[16])
    begin = address
    here = first
    # These bytes stay the same, except the offset, for values of the same size while offsets take equally many bytes.
    head_size = 0
    head_value_size = -1
    head_ends_at = offset_delta
    offset_at = 0
    total = 0
    largest = sizes[1]
    while here < stop and address - begin < enough:
        # A borrowed reference: counting references would write to each value.
        value = PyList_GET_ITEM(values, here)
        if not PyBytes_CheckExact(cython.cast(object, value)):
            break
        value_size = PyBytes_GET_SIZE(cython.cast(object, value))
        data = cython.cast(cython.p_uchar, PyBytes_AS_STRING(cython.cast(object, value)))
        if value_size != head_value_size or offset_delta == head_ends_at:
            head_value_size = -1
            if 0 <= timestamp_delta <= _SHORT and offset_delta <= _SHORT and value_size <= _SHORT - 16:
                head_value_size = value_size
                head_ends_at = (_SHORTEST if offset_delta <= _SHORTEST else _SHORT) + 1
                size = 3 + zigzag_size(timestamp_delta) + zigzag_size(offset_delta) + zigzag_size(value_size)
                size += value_size
                behind = write_zigzag(head, size)
                behind[0] = 0
                behind = write_zigzag(behind + 1, timestamp_delta)
                offset_at = behind - head
                behind = write_zigzag(behind, offset_delta)
                behind[0] = 1
                behind = write_zigzag(behind + 1, value_size)
                head_size = behind - head
                total = head_size + value_size + 1
        if head_value_size >= 0 and room - (address - begin) >= total + 16:
            memcpy(address, head, cython.sizeof(head))
            zigzagged = offset_delta << 1
            if offset_delta > _SHORTEST:
                address[offset_at] = zigzagged & 0x7F | 0x80
                address[offset_at + 1] = zigzagged >> 7
            else:
                address[offset_at] = zigzagged
            memcpy(address + head_size, data, value_size)
            address[total - 1] = 0
            written = total
        else:
            written = write_plain_record(
                address, room - (address - begin), offset_delta, timestamp_delta, cython.NULL, -1, data, value_size, 1
            )
            if written < 0:
                break
        address += written
        if written > largest:
            largest = written
        offset_delta += 1
        here += 1
    sizes[0] = address - begin
    sizes[1] = largest
    return here


def zigzag_size(value: int) -> int:
    # Shifted as unsigned: in C the left shift of a negative number is undefined.
    zigzagged = value
    zigzagged = (zigzagged << 1) ^ (value >> 63)
    # Nearly all numbers have one byte or two.
    if zigzagged < 0x80:
        return 1
    if zigzagged < 0x4000:
        return 2
    size = 3
    zigzagged >>= 14
    while zigzagged >= 0x80:
        zigzagged >>= 7
        size += 1
    return size


def write_zigzag(address: Any, value: int) -> Any:
    """Write ``value``, and return the address behind it."""
    # Shifted as unsigned: in C the left shift of a negative number is undefined.
    zigzagged = value
    zigzagged = (zigzagged << 1) ^ (value >> 63)
    if zigzagged < 0x80:
        address[0] = zigzagged
        return address + 1
    if zigzagged < 0x4000:
        address[0] = zigzagged & 0x7F | 0x80
        address[1] = zigzagged >> 7
        return address + 2
    while zigzagged >= 0x80:
        address[0] = zigzagged & 0x7F | 0x80
        address += 1
        zigzagged >>= 7
    address[0] = zigzagged
    return address + 1
