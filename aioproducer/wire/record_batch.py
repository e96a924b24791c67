"""Compiled. Record batches of format version 2 (KIP-98): the header, and whole batches.

A batch is a header of 61 bytes and the records, which may be compressed together. The checksum covers everything behind
it: a broker can write base offset and leader epoch, which precede it, without reading the rest.

Bytes to read are not trusted: malformed ones raise only ``ProtocolError``, and no memory is allocated because of a
stated length.

No Python form: the functions of the last section read and write the numbers of a header, and write its checksum, in C.
``pack_header`` is for other callers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from aioproducer._common.texts import counted
from aioproducer._common.views import part_of, view_of
from aioproducer.compression import codec
from aioproducer.compression.base import Buffer as Buffer
from aioproducer.compression.base import size_of
from aioproducer.errors import ProtocolError
from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record import Header as Header
from aioproducer.wire.record import SimpleRecord as SimpleRecord
from aioproducer.wire.record import decode_record
from aioproducer.wire.record import encode_record as encode_record
from aioproducer.wire.record import record_size_upper_bound as record_size_upper_bound
from aioproducer.wire.varint import INT32_MAX, INT64_MAX, INT64_MIN

if TYPE_CHECKING and not TYPE_CHECKING:
    # Only Cython needs this.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if TYPE_CHECKING:
    # The checksum of each byte value, declared in the .pxd file.
    _CHECKSUMS = [0] * 256

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.memoryview import PyMemoryView_GET_BUFFER

BATCH_HEADER_SIZE = 61
_SHORT_BODY = 128
LOG_OVERHEAD = 12
"""Size of base offset and batch length, which the batch length does not include."""
MAGIC_VALUE = 2
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21
"""Start of the bytes that the checksum covers."""

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_PARTITION_LEADER_EPOCH = -1
NO_TIMESTAMP = -1

CREATE_TIME = 0
LOG_APPEND_TIME = 1

COMPRESSION_CODEC_MASK = 0x07
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

_BEFORE_CHECKSUM = Struct(">qiibI")
_AFTER_CHECKSUM = Struct(">hiqqqhii")
_INT32 = Struct(">i")

LENGTH_OFFSET = 8
MAGIC_OFFSET = 16
MAX_TIMESTAMP_OFFSET = 35

_HEADER_SIZE_UP_TO_MAGIC = 17
LEAST_BATCH_LENGTH_OF_ANY_MAGIC = 14

# Castagnoli's polynomial, with its bits in the order of a byte's.
_REVERSED_POLYNOMIAL = 0x82F63B78
# The same in C, and places in the header.
_SIZE = BATCH_HEADER_SIZE
_EPOCH_AT, _CHECKSUM_AT, _ATTRIBUTES_AT = 12, CRC_OFFSET, ATTRIBUTES_OFFSET


def batch_attributes(
    compression_id: int = 0,
    *,
    timestamp_type: int = CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
    delete_horizon: bool = False,
) -> int:
    """Return the attributes of a batch header.

    Args:
        compression_id: The codec's ``id``.
        timestamp_type: ``CREATE_TIME`` or ``LOG_APPEND_TIME``.
        transactional: The batch is part of a transaction.
        control: Its record is a marker, not a user's.
        delete_horizon: The base timestamp is the time from which a compacting broker may drop tombstones (KIP-534).
    """
    attributes = compression_id
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_FLAG
    if transactional:
        attributes |= TRANSACTIONAL_FLAG
    if control:
        attributes |= CONTROL_FLAG
    if delete_horizon:
        attributes |= DELETE_HORIZON_FLAG
    return attributes


def encode_header(
    body: Sequence[Buffer],
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytes:
    """Return the 61 bytes before ``body``, with length and checksum; ``body`` is read, but neither copied nor kept.

    Args:
        body: The records' bytes as they will follow, compressed if ``attributes`` states a codec.
        record_count: Number of records in ``body``.
        base_timestamp: Base of the records' timestamp deltas, in milliseconds.
        max_timestamp: The greatest timestamp, in milliseconds.
        attributes: See :func:`batch_attributes`.
        last_offset_delta: ``record_count - 1`` by default; a compacted batch has fewer records than offsets.

    Raises:
        struct.error: a number does not fit its field.
    """
    return pack_header(
        body,
        size_of(body),
        record_count,
        base_timestamp,
        max_timestamp,
        attributes,
        producer_id,
        producer_epoch,
        base_sequence,
        base_offset,
        record_count - 1 if last_offset_delta is None else last_offset_delta,
        partition_leader_epoch,
    )


def pack_header(
    body: Sequence[Buffer],
    body_size: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    base_offset: int,
    last_offset_delta: int,
    partition_leader_epoch: int,
) -> bytes:
    """``encode_header`` for callers with all values, including the size of ``body``."""
    after = _AFTER_CHECKSUM.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    batch_length = BATCH_HEADER_SIZE - LOG_OVERHEAD + body_size
    checksum = crc32c(body, crc32c((after,)))
    return _BEFORE_CHECKSUM.pack(base_offset, batch_length, partition_leader_epoch, MAGIC_VALUE, checksum) + after


def estimate_size_in_bytes_upper_bound(
    key_size: int, value_size: int, headers: Sequence[Header] = (), compression_type: str = "none"
) -> int:
    """Return the maximum bytes of a batch with only this record (``AbstractRecords.estimateSizeInBytesUpperBound``).

    Sizes are those of the serialized key and value, -1 for null. Unlike Java's, the bound includes the growth of data
    that a codec cannot compress; without ``compression_type`` it equals Java's.
    """
    return BATCH_HEADER_SIZE + codec(compression_type).compress_bound(
        record_size_upper_bound(key_size, value_size, headers)
    )


def encode_batch(
    records: Sequence[SimpleRecord],
    *,
    compression_type: str = "none",
    compression_level: int | None = None,
    timestamp_type: int = CREATE_TIME,
    max_timestamp: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    transactional: bool = False,
    control: bool = False,
) -> list[Buffer]:
    """Encode a batch of ``records`` at once: the header and the body.

    ``max_timestamp`` is that of the records by default; with ``LOG_APPEND_TIME`` pass the time of the append.

    Raises:
        ValueError: there are no records.
    """
    if not records:
        raise ValueError("a record batch needs at least one record")
    base_timestamp = records[0].timestamp
    if max_timestamp is None:
        max_timestamp = max([record.timestamp for record in records])
    body: list[Buffer] = [
        encode_record(index, record.timestamp - base_timestamp, record.key, record.value, record.headers)
        for index, record in enumerate(records)
    ]
    compression = codec(compression_type)
    body = [compression.compress(body, compression_level)]
    header = encode_header(
        body,
        record_count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        attributes=batch_attributes(
            compression.id, timestamp_type=timestamp_type, transactional=transactional, control=control
        ),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
    )
    return [header, *body]


def increment_sequence(sequence: int, increment: int) -> int:
    """Return ``sequence + increment``, where 0 follows 2^31 - 1 (``DefaultRecordBatch.incrementSequence``)."""
    return (sequence + increment) % (INT32_MAX + 1)


def decrement_sequence(sequence: int, decrement: int) -> int:
    """Return ``sequence - decrement``, where 2^31 - 1 precedes 0 (``DefaultRecordBatch.decrementSequence``)."""
    return (sequence - decrement) % (INT32_MAX + 1)


class BatchRecord(NamedTuple):
    """A record decoded from a batch."""

    offset: int
    timestamp: int
    """Milliseconds since 1970; with ``LOG_APPEND_TIME`` that of the whole batch."""
    timestamp_type: int
    """``CREATE_TIME`` or ``LOG_APPEND_TIME``."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class RecordBatch:
    """A view of one batch at the start of ``data``; the header's fields are decoded at once, nothing is copied.

    The constructor checks that the batch is complete and of format version 2; :meth:`validate` checks the rest.

    Raises:
        ProtocolError: the batch is of another format, shorter than its header or longer than ``data``.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "buffer",
        "checksum",
        "compression_id",
        "last_offset",
        "last_offset_delta",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_in_bytes",
    )

    def __init__(self, data: Buffer) -> None:
        view = view_of(data)
        if len(view) < _HEADER_SIZE_UP_TO_MAGIC:
            raise ProtocolError(f"{len(view)} bytes are too short for a record batch")
        magic: int = view[MAGIC_OFFSET]
        if magic != MAGIC_VALUE:
            raise ProtocolError(
                f"a record batch has format version {magic}; only version {MAGIC_VALUE} is supported, "
                f"which Kafka writes since 0.11"
            )
        size: int = LOG_OVERHEAD + _INT32.unpack_from(view, LENGTH_OFFSET)[0]
        if not BATCH_HEADER_SIZE <= size <= len(view):
            raise ProtocolError(f"a record batch states a size of {size} bytes, but only {len(view)} follow")
        self.size_in_bytes: int = size
        """Bytes of the whole batch."""
        self.buffer: memoryview = part_of(view, 0, size)
        """The whole batch, header and records."""
        if cython.compiled:
            self._read_header()
        else:
            self.base_offset: int
            """The base of the records' offset deltas."""
            self.partition_leader_epoch: int
            """The epoch of the leader that appended the batch, -1 if unknown."""
            self.checksum: int
            """The CRC-32C in the header."""
            self.attributes: int
            """The flags in the header."""
            self.last_offset_delta: int
            """The offset delta of the last record, even if compaction has removed it."""
            self.base_timestamp: int
            """The base of the records' timestamp deltas, in milliseconds."""
            self.max_timestamp: int
            """The greatest timestamp in milliseconds, or the time of the append."""
            self.producer_id: int
            """The idempotent producer's id, -1 if there is none."""
            self.producer_epoch: int
            """The idempotent producer's epoch, -1 if there is none."""
            self.base_sequence: int
            """The sequence number of the first record, -1 if there is none."""
            self.record_count: int
            """The number of records in the header."""
            self.base_offset, _, self.partition_leader_epoch, _, self.checksum = _BEFORE_CHECKSUM.unpack_from(view)
            (
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.record_count,
            ) = _AFTER_CHECKSUM.unpack_from(view, ATTRIBUTES_OFFSET)
        # As an object, so that the sum cannot overflow.
        first: int = self.base_offset
        self.last_offset: int = first + self.last_offset_delta
        """The offset of the last record, even if compaction has removed it."""
        self.compression_id: int = self.attributes & COMPRESSION_CODEC_MASK
        """The codec's id; :meth:`validate` and :meth:`records` check that it exists."""

    @property
    def next_offset(self) -> int:
        """The offset behind the batch."""
        return self.last_offset + 1

    @property
    def timestamp_type(self) -> int:
        """``CREATE_TIME`` or ``LOG_APPEND_TIME``."""
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_FLAG else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the records are markers, not a user's."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def delete_horizon(self) -> int | None:
        """The time in milliseconds from which a compacting broker may drop tombstones (KIP-534); ``None`` if unset."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, -1 if there is none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def checksum_matches(self) -> bool:
        """Whether the stated checksum is that of the bytes."""
        covered = part_of(self.buffer, ATTRIBUTES_OFFSET, self.size_in_bytes - ATTRIBUTES_OFFSET)
        return self.checksum == crc32c((covered,))

    def validate(self) -> None:
        """Check checksum, compression type and the consistency of the counts; the records are not read.

        A batch without records is valid: compaction keeps the last one of a producer.

        Raises:
            ProtocolError: a check fails.
        """
        if not self.checksum_matches:
            raise ProtocolError(
                f"the record batch at offset {self.base_offset} is corrupt: its header states CRC {self.checksum:#010x}"
            )
        if self.compression_id:
            codec(self.compression_id)
        if not 0 <= self.record_count <= self.last_offset_delta + 1:
            raise ProtocolError(
                f"the record batch at offset {self.base_offset} states {counted(self.record_count, 'record')} "
                f"and last offset delta {self.last_offset_delta}"
            )

    def records(self, max_size: int | None = None) -> Iterator[BatchRecord]:
        """Yield the records, each checked when it is decoded. The checksum is not checked.

        Args:
            max_size: Maximum bytes of the decompressed records; without it a small batch from an untrusted peer can
            become
                very large.

        Raises:
            ProtocolError: the records are malformed or too large, or their number is not the stated one.
        """
        count = self.record_count
        base_offset = self.base_offset
        base_timestamp = self.base_timestamp
        timestamp_type = self.timestamp_type
        append_time = self.max_timestamp if timestamp_type == LOG_APPEND_TIME else None
        if count < 0:
            raise ProtocolError(f"the record batch at offset {base_offset} states {counted(count, 'record')}")
        data = codec(self.compression_id).decompress(self.buffer[BATCH_HEADER_SIZE:], max_size)
        position = 0
        for _ in range(count):
            offset_delta, timestamp_delta, key, value, headers, position = decode_record(data, position)
            offset = base_offset + offset_delta
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            if not (INT64_MIN <= offset <= INT64_MAX and INT64_MIN <= timestamp <= INT64_MAX):
                raise ProtocolError(f"a record's offset {offset} or timestamp {timestamp} does not fit 64 bits")
            yield BatchRecord(offset, timestamp, timestamp_type, key, value, headers)
        if position != len(data):
            raise ProtocolError(
                f"the record batch at offset {base_offset} states {counted(count, 'record')}, "
                f"with {counted(len(data) - position, 'byte')} left behind the last"
            )

    def __repr__(self) -> str:
        return (
            f"<RecordBatch offsets {self.base_offset} to {self.last_offset}, {counted(self.record_count, 'record')}, "
            f"{self.size_in_bytes} bytes>"
        )

    # Compiled only

    def _read_header(self) -> int:
        """Set the fields of the header, which is complete."""
        address = cython.cast(cython.p_uchar, PyMemoryView_GET_BUFFER(self.buffer).buf)
        self.base_offset = read_integer(address, 8)
        self.partition_leader_epoch = read_integer(address + _EPOCH_AT, 4)
        self.checksum = read_integer(address + _CHECKSUM_AT, 4)
        address += _ATTRIBUTES_AT
        self.attributes = read_integer(address, 2)
        self.last_offset_delta = read_integer(address + 2, 4)
        self.base_timestamp = read_integer(address + 6, 8)
        self.max_timestamp = read_integer(address + 14, 8)
        self.producer_id = read_integer(address + 22, 8)
        self.producer_epoch = read_integer(address + 30, 2)
        self.base_sequence = read_integer(address + 32, 4)
        self.record_count = read_integer(address + 36, 4)
        return 0


def iter_batches(data: Buffer) -> Iterator[RecordBatch]:
    """Yield the batches in ``data``, as in the records of a Fetch response.

    A broker cuts the last one off at the limit of the fetch; an incomplete batch is left out, as by Kafka's consumers
    (``ByteBufferLogInputStream``).

    Raises:
        ProtocolError: a batch states an impossible length, or is not of format version 2.
    """
    view = view_of(data)
    position = 0
    while len(view) - position >= _HEADER_SIZE_UP_TO_MAGIC:
        batch_length = _INT32.unpack_from(view, position + LENGTH_OFFSET)[0]
        if batch_length < LEAST_BATCH_LENGTH_OF_ANY_MAGIC:
            raise ProtocolError(f"a record batch states a length of {batch_length} bytes, less than its header")
        if view[position + MAGIC_OFFSET] == MAGIC_VALUE and LOG_OVERHEAD + batch_length > len(view) - position:
            return
        batch = RecordBatch(part_of(view, position, len(view) - position))
        yield batch
        position += batch.size_in_bytes


# Compiled only


def write_header(
    body: Sequence[Buffer],
    body_size: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """``encode_header`` of a producer's batch for compiled modules: its numbers fit, as they have these sizes."""
    header: bytes = PyBytes_FromStringAndSize(cython.NULL, _SIZE)
    start = cython.cast(cython.p_uchar, PyBytes_AS_STRING(header))
    address = _put(start, 0, 8)
    address = _put(address, _SIZE - 12 + body_size, 4)
    address = _put(address, -1, 4)
    address = _put(address, 2, 1)
    covered = address + 4
    end = _put(covered, attributes, 2)
    end = _put(end, record_count - 1, 4)
    end = _put(end, base_timestamp, 8)
    end = _put(end, max_timestamp, 8)
    end = _put(end, producer_id, 8)
    end = _put(end, producer_epoch, 2)
    end = _put(end, base_sequence, 4)
    end = _put(end, record_count, 4)
    checksum = _checksum_of(covered, end, 0)
    if body_size <= _SHORT_BODY and len(body) == 1 and type(body[0]) is bytes:
        # This takes less time than a call of the library.
        covered = cython.cast(cython.p_uchar, PyBytes_AS_STRING(body[0]))
        checksum = _checksum_of(covered, covered + body_size, checksum)
    else:
        checksum = crc32c(body, checksum)
    _put(address, checksum, 4)
    return header


def read_integer(address: Any, size: int) -> int:
    """Return the signed integer of ``size`` bytes, the highest first."""
    value = 0
    for index in range(size):
        value = value << 8 | address[index]
    unused = 64 - 8 * size
    number: int = cython.cast(cython.longlong, value << unused) >> unused
    return number


def _checksum_of(address: Any, end: Any, value: int) -> int:
    """Return the ``crc32c`` of the bytes from ``address`` to ``end``, for few bytes."""
    value = ~value
    while address < end:
        value = _CHECKSUMS[(value ^ address[0]) & 0xFF] ^ (value >> 8)
        address += 1
    return ~value


def _put(address: Any, value: int, size: int) -> Any:
    """Write ``value`` in ``size`` bytes, the highest first; return the address behind them."""
    for index in range(size):
        address[size - 1 - index] = value & 0xFF
        value >>= 8
    return address + size


def _fill_checksums() -> None:
    """Fill the table for checksums of few bytes: a header, and a small body."""
    for index in range(256):
        checksum = index
        for _ in range(8):
            odd = checksum & 1
            checksum >>= 1
            if odd:
                checksum ^= _REVERSED_POLYNOMIAL
        _CHECKSUMS[index] = checksum


if cython.compiled:
    _fill_checksums()
