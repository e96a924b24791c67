"""Which batches get into a log, and what is said of those that do not."""

from __future__ import annotations

import dataclasses
import gzip
from struct import pack_into
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.log import (
    LogConfig,
    OffsetsOutOfOrderError,
    RecordError,
    UnexpectedAppendOffsetError,
    record_errors,
)
from aioproducer.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTxnStateError,
    KafkaError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from aioproducer.producer import Producer
from aioproducer.wire.control_batch import ControlRecordType, encode_control_batch
from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record_batch import CREATE_TIME, LOG_APPEND_TIME, RecordBatch, SimpleRecord, encode_batch
from tests.broker.log.building import NOW, batch, content, open_log, sequenced, stored, visible

HOUR = 3_600_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def edited(data: bytearray, *edits: tuple[str, int, int]) -> bytearray:
    """``data`` with fields of the header changed, and the checksum to match."""
    for layout, offset, value in edits:
        pack_into(layout, data, offset, value)
    pack_into(">I", data, 17, crc32c((memoryview(data)[21:],)))
    return data


def flipped(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


def plain(data: bytearray, *edits: tuple[str, int, int]) -> bytearray:
    """``data`` with fields changed that the checksum does not cover."""
    for layout, offset, value in edits:
        pack_into(layout, data, offset, value)
    return data


def out_of_order() -> bytearray:
    """Two records at the offset deltas 0 and 3."""
    data = batch(2)
    second = 61 + (len(data) - 61) // 2
    data[second + 3] = 6  # as a zigzag varint
    return edited(data)


REFUSED: list[tuple[str, bytes | bytearray, type[KafkaError], str]] = [
    ("nothing", b"", InvalidRecordError, "no batches at all"),
    ("too short", bytes(16), InvalidRecordError, "no batches at all"),
    ("torn", batch(3)[:-1], InvalidRecordError, "no batches at all"),
    ("two batches", batch() + batch(), InvalidRecordError, "exactly one record batch"),
    ("base offset", batch(base_offset=5), InvalidRecordError, "should be 0, but it is 5"),
    ("flipped bit", flipped(batch()), CorruptRecordError, "Record is corrupt"),
    ("magic 1", plain(batch(), (">b", 16, 1)), InvalidRecordError, "must be of magic version 2, not 1"),
    ("magic 3", plain(batch(), (">b", 16, 3)), CorruptRecordError, "Invalid magic found in record: 3"),
    ("tiny length", plain(batch(), (">i", 8, 13)), CorruptRecordError, "record size 13 smaller than minimum"),
    ("negative length", plain(batch(), (">i", 8, -1)), CorruptRecordError, "record size -1"),
    ("shorter than its header", plain(batch(), (">i", 8, 40)), CorruptRecordError, "shorter than its header"),
    ("codec", edited(batch(), (">h", 21, 5)), UnsupportedCompressionTypeError, "Unknown compression type id: 5"),
    ("offset range", edited(batch(), (">i", 23, -1)), InvalidRecordError, "invalid offset range"),
    ("no records", edited(batch(), (">i", 57, 0)), InvalidRecordError, "Invalid reported count for record batch: 0"),
    ("count", edited(batch(3), (">i", 57, 2)), InvalidRecordError, "Inconsistent batch offset range"),
    ("sequence", sequenced(-1), InvalidRecordError, "Invalid sequence number -1"),
    ("epoch", sequenced(0, epoch=-1), InvalidRecordError, "Invalid producer epoch -1"),
    ("control", batch(control=True), InvalidRecordError, "not allowed to write control records"),
    ("transaction", sequenced(0, transactional=True), InvalidTxnStateError, "not part of an ongoing transaction"),
    ("future", batch(timestamp=NOW + HOUR + 1), InvalidTimestampError, "due to invalid timestamp"),
]


@pytest.mark.parametrize(("records", "error", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_rejected_append_changes_nothing(records: bytes | bytearray, error: type[KafkaError], message: str) -> None:
    log = open_log()
    log.append_as_leader(batch(2), 0)
    before = visible(log)
    with pytest.raises(error, match=message):
        log.append_as_leader(records, 0)
    assert visible(log) == before


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.binary(max_size=200), st.tuples(st.integers(0, 80), st.integers(0, 255)).map(lambda edit: _one(*edit)))
)
def test_invalid_bytes_are_rejected_with_an_error_of_the_protocol(data: bytes) -> None:
    log = open_log(config=LogConfig(validate_records=True))
    try:
        log.append_as_leader(data, 0)
    except KafkaError:
        assert log.log_end_offset == 0
    else:
        assert sum(len(list(each.records())) for each in stored(log)) == log.log_end_offset


def _one(position: int, value: int) -> bytes:
    data = batch(2)
    data[position] = value
    pack_into(">I", data, 17, crc32c((memoryview(data)[21:],)))
    return bytes(data)


def test_sizes_are_limited_by_topic_and_segment() -> None:
    size = len(batch(10))
    log = open_log(config=LogConfig(max_message_bytes=size))
    log.append_as_leader(batch(10), 0)
    with pytest.raises(RecordTooLargeError, match=f"is {len(batch(11))} bytes which exceeds .* value of {size}"):
        log.append_as_leader(batch(11), 0)
    log = open_log(config=LogConfig(segment_bytes=size))
    log.append_as_leader(batch(10), 0)
    with pytest.raises(RecordBatchTooLargeError, match=f"maximum configured segment size of {size}"):
        log.append_as_leader(batch(11), 0)


def test_an_incomplete_batch_behind_the_first_is_ignored() -> None:
    log = open_log()
    info = log.append_as_leader(batch(3) + batch()[:40], 2)
    assert (info.last_offset, info.size) == (2, len(batch(3)))
    assert len(content(log)) == len(batch(3))


def test_the_header_is_stamped_in_place_and_read_only_memory_is_copied() -> None:
    log = open_log()
    log.append_as_leader(batch(5), 0)
    mine = batch(4096, compression_type="none")
    log.append_as_leader(mine, 3)
    assert (RecordBatch(mine).base_offset, RecordBatch(mine).partition_leader_epoch) == (5, 3)
    (view,) = log.read(5, 1 << 20, up_to=log.log_end_offset, min_one_batch=True)
    assert isinstance(view, memoryview)
    assert view.obj is mine
    given_away = bytes(batch(2))
    log.append_as_leader(given_away, 4)
    assert RecordBatch(given_away).base_offset == 0
    assert stored(log)[-1].base_offset == 5 + 4096


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("thorough", [False, True])
def test_offsets_are_assigned_without_touching_the_records(codec: str, thorough: bool) -> None:
    log = open_log(config=LogConfig(validate_records=thorough))
    data = batch(50, compression_type=codec, value=b"v" * 100)
    log.append_as_leader(batch(3), 0)
    log.append_as_leader(bytes(data), 9)
    assert bytes(stored(log)[1].buffer[17:]) == bytes(data[17:])
    assert [record.offset for record in stored(log)[1].records()] == list(range(3, 53))
    stored(log)[1].validate()


@pytest.mark.parametrize(
    ("timestamps", "before", "after", "refused"),
    [
        ([NOW], HOUR, HOUR, []),
        ([NOW - HOUR, NOW + HOUR], HOUR, HOUR, []),
        ([NOW - HOUR - 1, NOW], HOUR, HOUR, [0]),
        ([NOW, NOW, NOW + HOUR + 1], HOUR, HOUR, [2]),
        ([NOW - HOUR - 1, NOW + HOUR + 1], HOUR, HOUR, [0, 1]),
        ([0], 2**63 - 1, HOUR, []),
        ([-1], HOUR, HOUR, []),
    ],
)
@pytest.mark.parametrize("thorough", [False, True])
def test_timestamps_are_compared_with_the_clock(
    timestamps: list[int], before: int, after: int, refused: list[int], thorough: bool
) -> None:
    config = LogConfig(
        message_timestamp_before_max_ms=before, message_timestamp_after_max_ms=after, validate_records=thorough
    )
    log = open_log(config=config)
    data = bytearray().join(encode_batch([SimpleRecord(timestamp, None, b"v") for timestamp in timestamps]))
    if not refused:
        assert log.append_as_leader(data, 0).log_append_time_ms == -1
        return
    with pytest.raises(InvalidTimestampError) as caught:
        log.append_as_leader(data, 0)
    assert [error.batch_index for error in record_errors(caught.value)] == refused
    assert f"within [{NOW - HOUR}, {NOW + HOUR}]" in record_errors(caught.value)[0].message


@pytest.mark.parametrize("thorough", [False, True])
def test_the_only_record_of_a_batch_is_named_once(thorough: bool) -> None:
    log = open_log(config=LogConfig(validate_records=thorough))
    with pytest.raises(InvalidTimestampError) as caught:
        log.append_as_leader(batch(timestamp=NOW + 2 * HOUR), 0)
    assert [error.batch_index for error in record_errors(caught.value)] == [0]


@pytest.mark.parametrize("offset", [27, 35])
def test_without_reading_records_the_header_is_trusted(offset: int) -> None:
    """Whichever of its two times is wrong."""
    log = open_log(config=LogConfig(validate_records=False))
    with pytest.raises(InvalidTimestampError) as caught:
        log.append_as_leader(edited(batch(), (">q", offset, NOW + 2 * HOUR)), 0)
    assert [error.batch_index for error in record_errors(caught.value)] == [0]


def test_every_record_that_is_too_late_is_named_where_records_are_read() -> None:
    timestamps = [NOW, NOW + 2 * HOUR, NOW + 4 * HOUR]
    data = bytearray().join(encode_batch([SimpleRecord(timestamp, None, b"v") for timestamp in timestamps]))
    with pytest.raises(InvalidTimestampError) as caught:
        open_log(config=LogConfig(validate_records=True)).append_as_leader(data, 0)
    bounds = f"is out of range. The timestamp should be within [{NOW - 2**63 + 1}, {NOW + HOUR}]"
    assert record_errors(caught.value) == tuple(
        RecordError(index, f"Timestamp {timestamps[index]} of message with offset {index} {bounds}") for index in (1, 2)
    )


@pytest.mark.parametrize(
    ("codec", "compression_type", "text"),
    [
        ("none", "producer", "DefaultRecord(offset={}, timestamp={}, key=1 bytes, value=0 bytes)"),
        ("none", "gzip", "DefaultRecord(offset={}, timestamp={}, key=1 bytes, value=0 bytes)"),
        ("gzip", "producer", "PartialDefaultRecord(offset={}, timestamp={}, key=1 bytes, value=-1 bytes)"),
    ],
)
def test_every_record_of_a_batch_that_claims_append_time_is_named_where_records_are_read(
    codec: str, compression_type: str, text: str
) -> None:
    config = LogConfig(message_timestamp_type="LogAppendTime", compression_type=compression_type, validate_records=True)
    data = bytearray().join(
        encode_batch(
            [SimpleRecord(NOW + index, b"k", None) for index in range(2)],
            timestamp_type=LOG_APPEND_TIME,
            compression_type=codec,
        )
    )
    with pytest.raises(InvalidTimestampError) as caught:
        open_log(config=config).append_as_leader(data, 0)
    assert record_errors(caught.value) == tuple(
        RecordError(
            index,
            f"Invalid timestamp type in message {text.format(index, NOW + 1)}. "
            "Producer should not set timestamp type to LogAppendTime.",
        )
        for index in range(2)
    )


@pytest.mark.parametrize("thorough", [False, True])
def test_a_claim_of_append_time_without_a_time_is_refused(thorough: bool) -> None:
    log = open_log(config=LogConfig(validate_records=thorough))
    with pytest.raises(InvalidTimestampError) as caught:
        log.append_as_leader(batch(timestamp_type=LOG_APPEND_TIME, max_timestamp=-1), 0)
    assert "should not set timestamp type to LogAppendTime" in record_errors(caught.value)[0].message


def test_a_timestamp_between_the_headers_is_found_where_records_are_read() -> None:
    timestamps = [NOW, NOW - 2 * HOUR, NOW]
    config = LogConfig(message_timestamp_before_max_ms=HOUR, validate_records=True)
    data = bytearray().join(encode_batch([SimpleRecord(timestamp, None, b"v") for timestamp in timestamps]))
    with pytest.raises(InvalidTimestampError) as caught:
        open_log(config=config).append_as_leader(data, 0)
    assert [error.batch_index for error in record_errors(caught.value)] == [1]


def test_records_are_read_by_default_where_that_is_compiled() -> None:
    lying = edited(batch(3), (">q", 35, NOW + 77))
    assert open_log().append_as_leader(lying, 0).max_timestamp == (NOW + 2 if Producer.compiled else NOW + 77)


@pytest.mark.parametrize("compression_type", ["producer", "gzip"])
def test_a_sum_of_times_that_overflows_is_a_time_far_away(compression_type: str) -> None:
    """Java's longs wrap around: such a record has a time before 1970, and not a malformed one."""
    data = bytes(edited(batch(2), (">q", 27, 2**63 - 1)))
    config = LogConfig(compression_type=compression_type, validate_records=True)
    with pytest.raises(InvalidTimestampError) as caught:
        open_log(config=config).append_as_leader(data, 0)
    assert [error.batch_index for error in record_errors(caught.value)] == [0, 1]
    assert f"Timestamp {-(2**63)} of message with offset 1" in record_errors(caught.value)[1].message
    stamping = dataclasses.replace(config, message_timestamp_type="LogAppendTime")
    log = open_log(config=stamping)
    log.append_as_leader(data, 0)
    assert [record.timestamp for record in stored(log)[0].records()] == [NOW, NOW]
    widest = dataclasses.replace(config, message_timestamp_after_max_ms=2**63 - 1)
    log = open_log(config=widest)
    assert log.append_as_leader(data, 0).max_timestamp == 2**63 - 1


def test_times_of_no_record_are_not_before_minus_1() -> None:
    """Kafka's greatest timestamp counts from -1 upwards, which stands for none."""
    log = open_log(config=LogConfig(validate_records=True))
    assert log.append_as_leader(batch(2, timestamp=-9), 0).max_timestamp == -1


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_stamped(codec: str) -> None:
    log = open_log(config=LogConfig(message_timestamp_type="LogAppendTime"))
    info = log.append_as_leader(batch(3, timestamp=5, compression_type=codec), 0)
    assert (info.log_append_time_ms, info.max_timestamp) == (NOW, NOW)
    (found,) = stored(log)
    found.validate()
    assert (found.timestamp_type, found.max_timestamp) == (LOG_APPEND_TIME, NOW)
    assert {record.timestamp for record in found.records()} == {NOW}
    assert log.offset_for_timestamp(NOW) == (NOW, 0, 0)
    assert log.max_timestamp_offset() == (NOW, 0, 0)
    with pytest.raises(InvalidTimestampError) as caught:
        log.append_as_leader(batch(timestamp_type=LOG_APPEND_TIME), 0)
    assert "should not set timestamp type to LogAppendTime" in record_errors(caught.value)[0].message


def test_a_clients_claim_of_append_time_is_taken_back() -> None:
    log = open_log()
    log.append_as_leader(batch(2, timestamp_type=LOG_APPEND_TIME, timestamp=NOW - 7), 0)
    (found,) = stored(log)
    found.validate()
    assert found.timestamp_type == CREATE_TIME
    with pytest.raises(InvalidTimestampError):
        log.append_as_leader(batch(2, timestamp_type=LOG_APPEND_TIME, max_timestamp=NOW + 2 * HOUR), 0)


@pytest.mark.parametrize("codec", CODECS)
def test_compacted_topics_need_keys(codec: str) -> None:
    log = open_log(config=LogConfig(cleanup_policy=frozenset({"compact"})))
    log.append_as_leader(batch(3, key=b"k", compression_type=codec), 0)
    records = [SimpleRecord(NOW, key, b"v") for key in (b"a", None, b"c", None)]
    with pytest.raises(
        InvalidRecordError, match="One or more records have been rejected due to 2 record errors"
    ) as caught:
        log.append_as_leader(bytearray().join(encode_batch(records, compression_type=codec)), 0)
    assert record_errors(caught.value) == (
        RecordError(1, "Compacted topic cannot accept message without key in topic partition topic-0"),
        RecordError(3, "Compacted topic cannot accept message without key in topic partition topic-0"),
    )
    assert (
        "at most: [RecordError(batchIndex=1, message='Compacted topic cannot accept message without key in topic "
        "partition topic-0'), RecordError(batchIndex=3, message='Compacted"
    ) in str(caught.value)
    assert record_errors(InvalidRecordError("another")) == ()
    assert log.log_end_offset == 3


def test_a_batch_that_decompresses_to_too_much_is_rejected() -> None:
    log = open_log(config=LogConfig(validate_records=True))
    with pytest.raises(InvalidRecordError, match="more than 67108864 bytes when decompressed"):
        log.append_as_leader(batch(value=bytes(65 * 1024 * 1024), compression_type="zstd"), 0)


def test_records_that_are_not_what_the_header_says_are_found_where_they_are_read() -> None:
    garbled = batch(3)
    pack_into(">b", garbled, 61, 100)
    config = LogConfig(validate_records=True)
    with pytest.raises(InvalidRecordError, match="topic partition topic-0"):
        open_log(config=config).append_as_leader(edited(garbled), 0)
    lying = edited(batch(3), (">q", 35, NOW + 77))
    log = open_log(config=config)
    assert log.append_as_leader(lying, 0).max_timestamp == NOW + 2
    stored(log)[0].validate()
    assert stored(log)[0].max_timestamp == NOW + 2


@pytest.mark.parametrize("thorough", [False, True])
def test_offset_deltas_that_are_not_in_order_are_kept_in_an_uncompressed_batch(thorough: bool) -> None:
    log = open_log(config=LogConfig(validate_records=thorough))
    assert log.append_as_leader(out_of_order(), 0).last_offset == 1
    assert [found.offset for found in stored(log)[0].records()] == [0, 3]


def test_offset_deltas_that_are_not_in_order_are_put_in_order_where_the_codec_changes() -> None:
    log = open_log(config=LogConfig(compression_type="gzip"))
    log.append_as_leader(out_of_order(), 0)
    assert [found.offset for found in stored(log)[0].records()] == [0, 1]


def test_offset_deltas_that_are_not_in_order_are_refused_in_a_compressed_batch() -> None:
    data = out_of_order()
    whole = data[:61] + gzip.compress(data[61:])
    sealed = edited(whole, (">i", 8, len(whole) - 12), (">h", 21, 1))
    log = open_log(config=LogConfig(validate_records=True))
    with pytest.raises(InvalidRecordError, match="Offset deltas of a compressed record batch are not in order"):
        log.append_as_leader(sealed, 0)


def test_a_wrong_timestamp_in_a_header_finds_no_record() -> None:
    log = open_log(config=LogConfig(validate_records=False))
    log.append_as_leader(edited(batch(3), (">q", 35, NOW + 77)), 0)
    assert log.max_timestamp_offset() is None
    assert log.offset_for_timestamp(NOW + 50) is None
    assert log.offset_for_timestamp(NOW + 1) == (NOW + 1, 1, 0)


@pytest.mark.parametrize("target", [*CODECS, "uncompressed", "producer"])
@pytest.mark.parametrize("source", ["none", "lz4"])
def test_the_topics_codec_is_what_is_stored(target: str, source: str) -> None:
    log = open_log(config=LogConfig(compression_type=target if target != "none" else "uncompressed"))
    records = [SimpleRecord(NOW + index, b"k", b"v" * 50, [("h", b"x")]) for index in range(20)]
    data = bytearray().join(
        encode_batch(records, compression_type=source, producer_id=9, producer_epoch=1, base_sequence=4)
    )
    log.append_as_leader(data, 2)
    (found,) = stored(log)
    found.validate()
    expected = {"uncompressed": "none", "producer": source}.get(target, target)
    assert CODECS[found.compression_id] == expected
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (9, 1, 4)
    assert [(record.timestamp, record.key, record.value, record.headers) for record in found.records()] == [
        (record.timestamp, record.key, record.value, tuple(record.headers)) for record in records
    ]


def test_a_batch_that_is_too_large_after_recompression_is_rejected() -> None:
    data = batch(value=bytes(100_000), compression_type="zstd")
    log = open_log(config=LogConfig(compression_type="uncompressed", max_message_bytes=50_000))
    with pytest.raises(RecordTooLargeError):
        log.append_as_leader(data, 0)


def test_the_coordinator_may_write_markers_and_any_base_offset() -> None:
    log = open_log(config=LogConfig(cleanup_policy=frozenset({"compact"})))
    marker = encode_control_batch(
        ControlRecordType.COMMIT, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=NOW
    )
    assert log.append_as_leader(marker, 0, origin="coordinator").first_offset == 0
    assert log.append_as_leader(batch(base_offset=70, key=b"k"), 0, origin="coordinator").first_offset == 1
    with pytest.raises(InvalidRecordError):
        log.append_as_leader(batch(), 0, origin="coordinator")


FOLLOWER_REFUSED: list[tuple[str, Any, type[KafkaError], str]] = [
    ("flipped bit", flipped(batch(base_offset=2)), CorruptRecordError, "Record is corrupt"),
    ("not rising", batch(base_offset=9) + batch(base_offset=9), OffsetsOutOfOrderError, "9 to 9 follows offset 9"),
    ("negative delta", edited(batch(base_offset=9), (">i", 23, -1)), OffsetsOutOfOrderError, "Out of order"),
    (
        "below the end",
        batch(base_offset=1),
        UnexpectedAppendOffsetError,
        "First offset 1 is less than the next offset 2",
    ),
]


@pytest.mark.parametrize(
    ("records", "error", "message"), [row[1:] for row in FOLLOWER_REFUSED], ids=[row[0] for row in FOLLOWER_REFUSED]
)
def test_a_follower_checks_offsets_and_checksums(records: bytearray, error: type[KafkaError], message: str) -> None:
    log = open_log()
    log.append_as_follower(batch(2, base_offset=0))
    before = visible(log)
    with pytest.raises(error, match=message) as caught:
        log.append_as_follower(records)
    if isinstance(caught.value, UnexpectedAppendOffsetError):
        assert (caught.value.first_offset, caught.value.last_offset) == (1, 1)
    assert visible(log) == before
