"""What a batch must be to get into the log (``LogValidator``, ``UnifiedLog.analyzeAndValidateRecords``)."""

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
"""The most bytes a client's batch may be when decompressed, where its records must be looked at."""

_HEADER = Struct(">qiibIhiqqqhii")
_UINT32 = Struct(">I")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_INT16 = Struct(">h")


class BatchHeader(NamedTuple):
    """The fields of a batch's header, read at once."""

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
    """Why a record of a refused batch was refused (KIP-467)."""

    batch_index: int
    message: str

    def __str__(self) -> str:
        return f"RecordError(batchIndex={self.batch_index}, message='{self.message}')"


class _RecordsRefusedError(KafkaError):
    record_errors: tuple[RecordError, ...] = ()


class InvalidRecordsError(_RecordsRefusedError, InvalidRecordError):
    """Some records of a batch are not valid."""


class InvalidTimestampsError(_RecordsRefusedError, InvalidTimestampError):
    """Some records of a batch have a timestamp too far from the broker's clock."""


def record_errors(error: BaseException) -> tuple[RecordError, ...]:
    """Which records of the batch ``error`` is about, as Produce answers from version 8 on; none if it is the whole."""
    return error.record_errors if isinstance(error, _RecordsRefusedError) else ()


class OffsetsOutOfOrderError(KafkaError):
    """A follower was given batches whose offsets do not rise."""


class UnexpectedAppendOffsetError(KafkaError):
    """A follower was given batches that begin below its log's end."""

    first_offset = -1
    last_offset = -1


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``, where 61 bytes are. Checks nothing."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def split_batches(view: memoryview, topic_partition: str) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each whole batch in ``view``; the part of one at the end is left out (``ByteBufferLogInputStream``).

    Raises:
        CorruptRecordError: the length is impossible, or the format is none that exists.
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
    """Check that ``view`` is what the header's CRC was made of.

    Raises:
        CorruptRecordError: it is not.
    """
    if crc32c((view[ATTRIBUTES_OFFSET:],)) != header.checksum:
        raise CorruptRecordError(
            f"Record is corrupt (stored crc = {header.checksum}) in topic partition {topic_partition}."
        )


def validate_for_follower(
    records: Buffer, next_offset: int, log_start_offset: int, topic_partition: str
) -> list[tuple[BatchHeader, memoryview]]:
    """The whole batches in what a leader sent, once they were checked.

    Raises:
        CorruptRecordError: a checksum or a length is wrong.
        OffsetsOutOfOrderError: the batches' offsets do not rise.
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
    """The marker that ends a transaction in a batch that was checked; None in any other batch.

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
    """A batch that may be appended, its header as it will be stored but for offset and epoch."""

    header: BatchHeader
    view: memoryview
    """Writable, whole, and owned by the log."""
    log_append_time_ms: int
    """-1 unless the topic's timestamps are those of the append."""


def validate_for_leader(
    records: Buffer, config: LogConfig, now_ms: int, *, is_client: bool, topic_partition: str
) -> Validated:
    """Check what a client, or the coordinator of this node, wants to append; stamp the append's time if asked to.

    The header is always checked. The records are read, as Kafka reads them, where ``validate_records`` is set, and
    otherwise only where the topic is compacted (each needs a key) or stores another codec than the batch came with.
    Compressed records are read up to ``MAX_DECOMPRESSED_BYTES``.

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
    """The id of the codec that the batch is to be stored with."""
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
    """What can be told of the records' timestamps without reading them: those of the first, and of the latest."""
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
        raise _refused(InvalidTimestampsError, [RecordError(index, text) for index, text in texts.items()])


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
    """What is said of a batch whose producer claims to know the time of the append."""
    return f"Invalid timestamp type in message {which}. Producer should not set timestamp type to LogAppendTime."


def _refused(error_class: type[InvalidRecordsError | InvalidTimestampsError], errors: list[RecordError]) -> KafkaError:
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
    """Read every record; write the batch anew where its codec is not ``target``."""
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
        _refuse_bad_records(header, body, config, now_ms, target, topic_partition)
    if target == source != 0 and not survey.is_dense:
        # Kafka would write the batch anew, and fails as it has not read keys and values.
        raise InvalidRecordError(
            f"Offset deltas of a compressed record batch are not in order in topic partition {topic_partition}"
        )
    if target != source:
        return _write_anew(header, body, survey.latest, target, config, topic_partition)
    if config.message_timestamp_type == "CreateTime" and survey.latest != header.max_timestamp:
        _INT64.pack_into(view, MAX_TIMESTAMP_OFFSET, survey.latest)
        header = _with_checksum(header._replace(max_timestamp=survey.latest), view)
    return header, view


def _is_suspect(survey: RecordSurvey, header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Whether a record may be one that is refused; False only where none is."""
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
    """A record of a batch that is refused or written anew."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _read_records(header: BatchHeader, body: Buffer) -> Iterator[_Record]:
    """The records of a batch that was surveyed."""
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


def _refuse_bad_records(
    header: BatchHeader, body: Buffer, config: LogConfig, now_ms: int, target: int, topic_partition: str
) -> None:
    """Raise what names each record that is not valid (``LogValidator.validateRecord``), if there is one."""
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
                # Kafka does not look at keys and values of a batch that stays compressed as it is.
                text = _type_error(_description(record, is_partial=target == source != 0))
            else:
                text = None
            are_timestamps_wrong = are_timestamps_wrong or text is not None
        if text is not None:
            errors.append(RecordError(index, text))
    if errors:
        raise _refused(InvalidTimestampsError if are_timestamps_wrong else InvalidRecordsError, errors)


def _description(record: _Record, *, is_partial: bool) -> str:
    """The record as Kafka's texts name it."""
    key = -1 if record.key is None else len(record.key)
    value = -1 if record.value is None else len(record.value)
    if not is_partial:
        key, value = max(key, 0), max(value, 0)
    kind = "PartialDefaultRecord" if is_partial else "DefaultRecord"
    return f"{kind}(offset={record.offset}, timestamp={record.timestamp}, key={key} bytes, value={value} bytes)"


def _write_anew(
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
    """Make timestamp type and greatest timestamp what the topic says."""
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
