"""The checks of a batch before its append (``LogValidator``, ``UnifiedLog.analyzeAndValidateRecords``)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from aioproducer.broker.log.config import LogConfig
from aioproducer.compression import CODECS, codec
from aioproducer.compression.base import Buffer, byte_view
from aioproducer.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    ProtocolError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from aioproducer.wire.control_batch import ControlRecord, ControlRecordType, read_control_record
from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record import decode_record
from aioproducer.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    BATCH_HEADER_SIZE,
    COMPRESSION_CODEC_MASK,
    CONTROL_FLAG,
    CRC_OFFSET,
    LEAST_BATCH_LENGTH_OF_ANY_MAGIC,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_VALUE,
    MAX_TIMESTAMP_OFFSET,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    RecordBatch,
    SimpleRecord,
    encode_batch,
)
from aioproducer.wire.record_survey import RecordSurvey, as_int64, survey_records

MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""Maximum decompressed size in bytes of a batch with records that must be read."""

_HEADER = Struct(">qiibIhiqqqhii")
_UINT32 = Struct(">I")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_INT16 = Struct(">h")


class BatchHeader(NamedTuple):
    """The fields of a batch's header."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta


class RecordError(NamedTuple):
    """The reason why a record of a rejected batch is invalid (KIP-467)."""

    batch_index: int
    message: str

    def __str__(self) -> str:
        return f"RecordError(batchIndex={self.batch_index}, message='{self.message}')"


class _RecordsRejectedError(KafkaError):
    record_errors: tuple[RecordError, ...] = ()


class InvalidRecordsError(_RecordsRejectedError, InvalidRecordError):
    """Some records of a batch are invalid."""


class InvalidTimestampsError(_RecordsRejectedError, InvalidTimestampError):
    """Some records of a batch have a timestamp too far from the broker's clock."""


def record_errors(error: BaseException) -> tuple[RecordError, ...]:
    """Return the invalid records that ``error`` names, for Produce responses from version 8 on."""
    return error.record_errors if isinstance(error, _RecordsRejectedError) else ()


class OffsetsOutOfOrderError(KafkaError):
    """The offsets of a follower's batches are not in ascending order."""


class UnexpectedAppendOffsetError(KafkaError):
    """A follower's batches begin below the end of its log."""

    first_offset = -1
    last_offset = -1


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at ``position``, which has 61 bytes. Nothing is checked."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def split_batches(view: memoryview, topic_partition: str) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each whole batch in ``view``; an incomplete one at the end is ignored (``ByteBufferLogInputStream``).

    Raises:
        CorruptRecordError: the length is invalid, or the format version is unknown.
        InvalidRecordError: the batch is of a format older than 2.
    """
    position, end = 0, len(view)
    while end - position >= MAGIC_OFFSET + 1:
        batch_length = _INT32.unpack_from(view, position + LENGTH_OFFSET)[0]
        magic = view[position + MAGIC_OFFSET]
        if batch_length < LEAST_BATCH_LENGTH_OF_ANY_MAGIC:
            raise CorruptRecordError(
                f"Found record size {batch_length} smaller than minimum record overhead "
                f"({LEAST_BATCH_LENGTH_OF_ANY_MAGIC}) in partition {topic_partition}"
            )
        if magic > MAGIC_VALUE:
            raise CorruptRecordError(f"Invalid magic found in record: {magic} in partition {topic_partition}")
        size = LOG_OVERHEAD + batch_length
        if size > end - position:
            return
        if magic != MAGIC_VALUE:
            raise InvalidRecordError(
                f"Record batches in partition {topic_partition} must be of magic version {MAGIC_VALUE}, not {magic}"
            )
        if size < BATCH_HEADER_SIZE:
            raise CorruptRecordError(
                f"A record batch of {size} bytes is shorter than its header in partition {topic_partition}"
            )
        yield read_header(view, position), view[position : position + size]
        position += size


def check_checksum(header: BatchHeader, view: memoryview, topic_partition: str) -> None:
    """Compare the checksum of ``view`` with the header's CRC.

    Raises:
        CorruptRecordError: they differ.
    """
    if crc32c((view[ATTRIBUTES_OFFSET:],)) != header.checksum:
        raise CorruptRecordError(
            f"Record is corrupt (stored crc = {header.checksum}) in topic partition {topic_partition}."
        )


def validate_for_follower(
    records: Buffer, next_offset: int, log_start_offset: int, topic_partition: str
) -> list[tuple[BatchHeader, memoryview]]:
    """Check and return the whole batches that a leader sent.

    Raises:
        CorruptRecordError: a checksum or a length is wrong.
        OffsetsOutOfOrderError: the batches' offsets are not in ascending order.
        UnexpectedAppendOffsetError: the first batch begins below ``next_offset``.
    """
    batches: list[tuple[BatchHeader, memoryview]] = []
    last_offset = -1
    for header, view in split_batches(byte_view(records), topic_partition):
        check_checksum(header, view, topic_partition)
        if header.last_offset_delta < 0 or header.base_offset <= last_offset:
            raise OffsetsOutOfOrderError(
                f"Out of order offsets found in append to {topic_partition}: a batch with offsets "
                f"{header.base_offset} to {header.last_offset} follows offset {last_offset}"
            )
        last_offset = header.last_offset
        batches.append((header, view))
    if batches and batches[0][0].base_offset < next_offset:
        first_offset = batches[0][0].base_offset
        error = UnexpectedAppendOffsetError(
            f"Unexpected offset in append to {topic_partition}. First offset {first_offset} is less than the "
            f"next offset {next_offset}. Last offset in append: {last_offset}. Log start offset = {log_start_offset}"
        )
        error.first_offset, error.last_offset = first_offset, last_offset
        raise error
    return batches


def read_marker(header: BatchHeader, view: Buffer, where: str) -> ControlRecord | None:
    """Return the marker that ends a transaction in a checked batch; ``None`` for other batches.

    Raises:
        CorruptRecordError: the batch is a control batch, and its record cannot be read.
    """
    if not header.attributes & CONTROL_FLAG or header.producer_id < 0 or not header.record_count:
        return None
    try:
        record = read_control_record(RecordBatch(view))
    except ProtocolError as malformed:
        raise CorruptRecordError(f"The control batch at offset {header.base_offset} {where}: {malformed}") from None
    return record if record.type in (ControlRecordType.ABORT, ControlRecordType.COMMIT) else None


class Validated(NamedTuple):
    """A valid batch. Its header is stored as it is, except for offset and epoch."""

    header: BatchHeader
    view: memoryview
    """Writable, whole, and owned by the log."""
    log_append_time_ms: int
    """-1 unless the topic's timestamps are those of the append."""


def validate_for_leader(
    records: Buffer, config: LogConfig, now_ms: int, *, is_client: bool, topic_partition: str
) -> Validated:
    """Check the batch of a client, or of a coordinator on this node, and stamp the append's time if configured.

    The header is always checked. The records are read, as in Kafka, if ``validate_records`` is set. Otherwise they are
    read only if the topic is compacted (each needs a key) or stores another codec than the batch has. Compressed
    records are read up to ``MAX_DECOMPRESSED_BYTES``.

    Raises:
        CorruptRecordError: checksum or lengths are wrong.
        InvalidRecordError: there is not exactly one batch, or it breaks a rule of the format.
        InvalidTimestampError: a timestamp is too far from ``now_ms``.
        RecordTooLargeError: the batch is larger than ``max.message.bytes``.
        UnsupportedCompressionTypeError: there is no such codec.
    """
    view = byte_view(records)
    batches = split_batches(view, topic_partition)
    header, view = next(batches, (None, view))
    if header is None:
        raise InvalidRecordError(f"Record batch has no batches at all in topic partition {topic_partition}")
    if is_client and header.base_offset != 0:
        raise InvalidRecordError(
            f"The baseOffset of the record batch in the append to {topic_partition} should be 0, "
            f"but it is {header.base_offset}"
        )
    if len(view) > config.max_message_bytes:
        raise _too_large(len(view), config, topic_partition)
    check_checksum(header, view, topic_partition)
    if header.size < memoryview(records).nbytes and next(batches, None) is not None:
        raise InvalidRecordError(
            f"Produce requests must contain exactly one record batch per partition, {topic_partition} has more"
        )
    _check_header(header, topic_partition, is_client=is_client)
    target = _target_codec(header, config)
    are_read = not header.attributes & CONTROL_FLAG and (
        config.validate_records or config.compacts or target != header.attributes & COMPRESSION_CODEC_MASK
    )
    if not are_read:
        _check_timestamps(header, config, now_ms, topic_partition)
    if view.readonly:
        view = memoryview(bytearray(view))
    if are_read:
        header, view = _check_records(header, view, config, now_ms, target, topic_partition)
    return _stamp_time(header, view, config, now_ms)


def _target_codec(header: BatchHeader, config: LogConfig) -> int:
    """Return the id of the codec that the batch is stored with."""
    if config.compression_type == "producer":
        return header.attributes & COMPRESSION_CODEC_MASK
    return codec("none" if config.compression_type == "uncompressed" else config.compression_type).id


def _too_large(size: int, config: LogConfig, topic_partition: str) -> KafkaError:
    return RecordTooLargeError(
        f"The record batch size in the append to {topic_partition} is {size} bytes "
        f"which exceeds the maximum configured value of {config.max_message_bytes}."
    )


def _check_header(header: BatchHeader, topic_partition: str, *, is_client: bool) -> None:
    where = f"in topic partition {topic_partition}"
    if header.attributes & COMPRESSION_CODEC_MASK >= len(CODECS):
        raise UnsupportedCompressionTypeError(
            f"Unknown compression type id: {header.attributes & COMPRESSION_CODEC_MASK} {where}"
        )
    if not is_client:
        return
    count = header.last_offset_delta + 1
    if count <= 0:
        raise InvalidRecordError(
            f"Batch has an invalid offset range: [{header.base_offset}, {header.last_offset}] {where}"
        )
    if header.record_count <= 0:
        raise InvalidRecordError(f"Invalid reported count for record batch: {header.record_count} {where}")
    if count != header.record_count:
        raise InvalidRecordError(
            f"Inconsistent batch offset range [{header.base_offset}, {header.last_offset}] "
            f"and count of records {header.record_count} {where}"
        )
    if header.attributes & CONTROL_FLAG:
        raise InvalidRecordError(f"Clients are not allowed to write control records {where}")
    if header.producer_id >= 0:
        if header.base_sequence < 0:
            raise InvalidRecordError(
                f"Invalid sequence number {header.base_sequence} in record batch "
                f"with producerId {header.producer_id} {where}"
            )
        if header.producer_epoch < 0:
            raise InvalidRecordError(
                f"Invalid producer epoch {header.producer_epoch} in record batch "
                f"with producerId {header.producer_id} {where}"
            )


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int, topic_partition: str) -> None:
    """Check the timestamps in the header: those of the first record and of the latest."""
    is_stamped = bool(header.attributes & TIMESTAMP_TYPE_FLAG)
    bounds = [(header.record_count - 1, header.max_timestamp)]
    if not is_stamped:
        bounds.insert(0, (0, header.base_timestamp))
    texts: dict[int, str] = {}
    for index, timestamp in bounds:
        if config.message_timestamp_type == "CreateTime" and timestamp != NO_TIMESTAMP:
            text = _range_error(index, timestamp, config, now_ms)
        else:
            text = _type_error(f"of {topic_partition}") if is_stamped else None
        if text is not None:
            texts.setdefault(index, text)
    if texts:
        raise _rejection(InvalidTimestampsError, [RecordError(index, text) for index, text in texts.items()])


def _range_error(offset: int, timestamp: int, config: LogConfig, now_ms: int) -> str | None:
    # In the arithmetic of Java's longs, as LogValidator.recordHasInvalidTimestamp.
    age_ms = as_int64(now_ms - timestamp)
    if age_ms <= config.message_timestamp_before_max_ms and as_int64(-age_ms) <= config.message_timestamp_after_max_ms:
        return None
    return (
        f"Timestamp {timestamp} of message with offset {offset} is out of range. The timestamp should be within "
        f"[{as_int64(now_ms - config.message_timestamp_before_max_ms)}, "
        f"{as_int64(now_ms + config.message_timestamp_after_max_ms)}]"
    )


def _type_error(which: str) -> str:
    """Return the error text for a batch with a timestamp type that only brokers set."""
    return f"Invalid timestamp type in message {which}. Producer should not set timestamp type to LogAppendTime."


def _rejection(
    error_class: type[InvalidRecordsError | InvalidTimestampsError], errors: list[RecordError]
) -> KafkaError:
    if issubclass(error_class, InvalidTimestampsError):
        error: InvalidRecordsError | InvalidTimestampsError = InvalidTimestampsError(
            "One or more records have been rejected due to invalid timestamp"
        )
    else:
        error = InvalidRecordsError(
            f"One or more records have been rejected due to {len(errors)} record errors in total, "
            f"and only showing the first three errors at most: [{', '.join(map(str, errors[:3]))}]"
        )
    error.record_errors = tuple(errors)
    return error


def _check_records(
    header: BatchHeader, view: memoryview, config: LogConfig, now_ms: int, target: int, topic_partition: str
) -> tuple[BatchHeader, memoryview]:
    """Read every record, and encode the batch again if its codec is not ``target``."""
    source = header.attributes & COMPRESSION_CODEC_MASK
    body: Buffer = view[BATCH_HEADER_SIZE:]
    try:
        if source:
            body = CODECS[source].decompress(body, MAX_DECOMPRESSED_BYTES)
        survey = survey_records(body, header.record_count, header.base_timestamp)
    except ProtocolError as malformed:
        raise InvalidRecordError(f"{malformed} in topic partition {topic_partition}") from None
    if header.attributes & TIMESTAMP_TYPE_FLAG:
        # The time of an append is that of every record.
        latest = max(header.max_timestamp, NO_TIMESTAMP)
        survey = survey._replace(earliest=header.max_timestamp, latest=latest)
    if _is_suspect(survey, header, config, now_ms):
        _reject_invalid_records(header, body, config, now_ms, target, topic_partition)
    if target == source != 0 and not survey.is_dense:
        # Kafka would encode the batch again, and fails because it has not read keys and values.
        raise InvalidRecordError(
            f"Offset deltas of a compressed record batch are not in order in topic partition {topic_partition}"
        )
    if target != source:
        return _encode_again(header, body, survey.latest, target, config, topic_partition)
    if config.message_timestamp_type == "CreateTime" and survey.latest != header.max_timestamp:
        _INT64.pack_into(view, MAX_TIMESTAMP_OFFSET, survey.latest)
        header = _with_checksum(header._replace(max_timestamp=survey.latest), view)
    return header, view


def _is_suspect(survey: RecordSurvey, header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Return whether a record may be invalid; False only if all are valid."""
    if config.compacts and not survey.has_keys:
        return True
    is_stamped = bool(header.attributes & TIMESTAMP_TYPE_FLAG)
    if config.message_timestamp_type != "CreateTime":
        return is_stamped
    return (
        survey.earliest < now_ms - config.message_timestamp_before_max_ms
        or survey.latest > now_ms + config.message_timestamp_after_max_ms
        or (is_stamped and header.max_timestamp == NO_TIMESTAMP)
    )


class _Record(NamedTuple):
    """A record of a batch that is rejected or encoded again."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _read_records(header: BatchHeader, body: Buffer) -> Iterator[_Record]:
    """Yield the records of a batch that was surveyed."""
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_FLAG else None
    data = bytes(body)
    position = 0
    for _ in range(header.record_count):
        record = decode_record(data, position)
        position = record.end
        yield _Record(
            header.base_offset + record.offset_delta,
            as_int64(header.base_timestamp + record.timestamp_delta) if append_time is None else append_time,
            record.key,
            record.value,
            record.headers,
        )


def _reject_invalid_records(
    header: BatchHeader, body: Buffer, config: LogConfig, now_ms: int, target: int, topic_partition: str
) -> None:
    """Raise an error that names each invalid record, if there is one (``LogValidator.validateRecord``)."""
    source = header.attributes & COMPRESSION_CODEC_MASK
    is_stamped = bool(header.attributes & TIMESTAMP_TYPE_FLAG)
    errors: list[RecordError] = []
    are_timestamps_wrong = False
    for index, record in enumerate(_read_records(header, body)):
        if config.compacts and record.key is None:
            text: str | None = f"Compacted topic cannot accept message without key in topic partition {topic_partition}"
        else:
            if config.message_timestamp_type == "CreateTime" and record.timestamp != NO_TIMESTAMP:
                text = _range_error(record.offset, record.timestamp, config, now_ms)
            elif is_stamped:
                # Kafka does not read keys and values of a batch that keeps its codec.
                text = _type_error(_description(record, is_partial=target == source != 0))
            else:
                text = None
            are_timestamps_wrong = are_timestamps_wrong or text is not None
        if text is not None:
            errors.append(RecordError(index, text))
    if errors:
        raise _rejection(InvalidTimestampsError if are_timestamps_wrong else InvalidRecordsError, errors)


def _description(record: _Record, *, is_partial: bool) -> str:
    """Return the description of a record in Kafka's error texts."""
    key = -1 if record.key is None else len(record.key)
    value = -1 if record.value is None else len(record.value)
    if not is_partial:
        key, value = max(key, 0), max(value, 0)
    kind = "PartialDefaultRecord" if is_partial else "DefaultRecord"
    return f"{kind}(offset={record.offset}, timestamp={record.timestamp}, key={key} bytes, value={value} bytes)"


def _encode_again(
    header: BatchHeader, body: Buffer, latest: int, target: int, config: LogConfig, topic_partition: str
) -> tuple[BatchHeader, memoryview]:
    records = list(_read_records(header, body))
    first = records[0].timestamp
    batch = encode_batch(
        [
            # The difference from the first is what is written; it wraps around as that in Java.
            SimpleRecord(first + as_int64(record.timestamp - first), record.key, record.value, record.headers)
            for record in records
        ],
        compression_type=CODECS[target].name,
        max_timestamp=latest,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=bool(header.attributes & TRANSACTIONAL_FLAG),
    )
    view = memoryview(bytearray().join(batch))
    if len(view) > config.max_message_bytes:
        raise _too_large(len(view), config, topic_partition)
    return read_header(view), view


def _stamp_time(header: BatchHeader, view: memoryview, config: LogConfig, now_ms: int) -> Validated:
    """Set the timestamp type and the greatest timestamp that the topic's configuration requires."""
    if config.message_timestamp_type == "LogAppendTime":
        _INT64.pack_into(view, MAX_TIMESTAMP_OFFSET, now_ms)
        header = header._replace(max_timestamp=now_ms, attributes=header.attributes | TIMESTAMP_TYPE_FLAG)
        return Validated(_with_checksum(header, view), view, now_ms)
    if header.attributes & TIMESTAMP_TYPE_FLAG:
        header = _with_checksum(header._replace(attributes=header.attributes & ~TIMESTAMP_TYPE_FLAG), view)
    return Validated(header, view, -1)


def _with_checksum(header: BatchHeader, view: memoryview) -> BatchHeader:
    _INT16.pack_into(view, ATTRIBUTES_OFFSET, header.attributes)
    checksum = crc32c((view[ATTRIBUTES_OFFSET:],))
    _UINT32.pack_into(view, CRC_OFFSET, checksum)
    return header._replace(checksum=checksum)
