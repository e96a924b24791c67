"""Record batches: golden vectors of Kafka, round trips, in-place changes, and malformed batches."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aioproducer.compression import CODECS
from aioproducer.errors import ProtocolError
from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    BATCH_HEADER_SIZE,
    CRC_OFFSET,
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchRecord,
    RecordBatch,
    SimpleRecord,
    batch_attributes,
    decrement_sequence,
    encode_batch,
    encode_header,
    encode_record,
    increment_sequence,
    iter_batches,
)
from aioproducer.wire.varint import INT32_MAX, INT64_MAX, INT64_MIN

VECTORS = {
    name: bytes.fromhex(data)
    for name, data in (
        line.split() for line in Path(__file__).with_name("recordbatch_vectors.txt").read_text().splitlines()
    )
}
VECTOR_RECORDS = [
    SimpleRecord(1700000000000, b"k", b"v0", [("h", b"\x01\x02")]),
    SimpleRecord(1700000000005, None, b"v1"),
    SimpleRecord(1700000000003, b"k2", None),
]
CODEC_NAMES = [codec.name for codec in CODECS]

NULLABLE = st.none() | st.binary(max_size=60) | st.binary(max_size=20).map(lambda data: data * 200)
# Both ends of a batch's timestamps may be 64-bit extremes as long as their difference fits 64 bits.
# Any two of them differ by at most what a record's delta can hold.
TIMESTAMPS = st.integers(-1, INT64_MAX - 1) | st.integers(1_700_000_000_000, 1_700_000_000_010)
HEADERS = st.lists(st.tuples(st.sampled_from(["", "h", "trace", "ключ"]), NULLABLE), max_size=4)
RECORDS = st.lists(st.builds(SimpleRecord, TIMESTAMPS, NULLABLE, NULLABLE, HEADERS), min_size=1, max_size=12)


def batch_bytes(records: list[SimpleRecord] = VECTOR_RECORDS, compression_type: str = "none") -> bytearray:
    return bytearray(b"".join(encode_batch(records, compression_type=compression_type)))


def with_checksum(data: bytearray) -> bytearray:
    """Return the data with the right checksum, so that a reader continues behind it."""
    struct.pack_into(">I", data, CRC_OFFSET, crc32c([data[ATTRIBUTES_OFFSET:]]))
    return data


@pytest.mark.parametrize("name", VECTORS)
def test_batches_of_kafka_are_read(name: str) -> None:
    batch = RecordBatch(VECTORS[name])
    batch.validate()
    assert batch.size_in_bytes == len(VECTORS[name])
    assert bytes(batch.buffer) == VECTORS[name]
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (0, 2, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (4242, 7, 11, 13)
    assert (batch.partition_leader_epoch, batch.record_count, batch.last_offset_delta) == (3, 3, 2)
    assert (batch.base_timestamp, batch.max_timestamp) == (1700000000000, 1700000000005)
    assert CODECS[batch.compression_id].name == name
    assert batch.attributes == batch.compression_id
    assert (batch.is_control, batch.is_transactional, batch.delete_horizon) == (False, False, None)
    assert list(batch.records()) == [
        BatchRecord(0, 1700000000000, CREATE_TIME, b"k", b"v0", (("h", b"\x01\x02"),)),
        BatchRecord(1, 1700000000005, CREATE_TIME, None, b"v1", ()),
        BatchRecord(2, 1700000000003, CREATE_TIME, b"k2", None, ()),
    ]


@pytest.mark.parametrize("name", VECTORS)
def test_batches_are_written_like_those_of_kafka(name: str) -> None:
    header, body = encode_batch(
        VECTOR_RECORDS,
        compression_type=name,
        producer_id=4242,
        producer_epoch=7,
        base_sequence=11,
        partition_leader_epoch=3,
    )
    if name in ("none", "snappy", "lz4"):
        assert bytes(header) + bytes(body) == VECTORS[name]
    codec = CODECS[RecordBatch(VECTORS[name]).compression_id]
    assert codec.decompress(body) == codec.decompress(VECTORS[name][BATCH_HEADER_SIZE:])
    # Of the header only length and checksum depend on how well it was compressed.
    assert bytes(header[:8]) + bytes(header[12:17]) == VECTORS[name][:8] + VECTORS[name][12:17]
    assert bytes(header[ATTRIBUTES_OFFSET:]) == VECTORS[name][ATTRIBUTES_OFFSET:BATCH_HEADER_SIZE]


@pytest.mark.parametrize("name", CODEC_NAMES)
@settings(max_examples=25)
@given(
    records=RECORDS,
    level=st.sampled_from([None, 1, 9]),
    base_offset=st.integers(0, 2**62),
    producer_id=st.integers(-1, INT64_MAX),
    producer_epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, INT32_MAX),
    partition_leader_epoch=st.integers(-1, INT32_MAX),
    transactional=st.booleans(),
)
def test_records_round_trip(
    name: str,
    records: list[SimpleRecord],
    level: int | None,
    base_offset: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    partition_leader_epoch: int,
    transactional: bool,
) -> None:
    data = b"".join(
        encode_batch(
            records,
            compression_type=name,
            compression_level=None if name in ("none", "snappy") else level,
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            partition_leader_epoch=partition_leader_epoch,
            transactional=transactional,
        )
    )
    batch = RecordBatch(data)
    batch.validate()
    assert list(batch.records()) == [
        BatchRecord(base_offset + index, record.timestamp, CREATE_TIME, record.key, record.value, tuple(record.headers))
        for index, record in enumerate(records)
    ]
    assert batch.producer_id == producer_id
    assert batch.producer_epoch == producer_epoch
    assert batch.base_sequence == base_sequence
    assert batch.partition_leader_epoch == partition_leader_epoch
    assert batch.is_transactional is transactional
    assert batch.max_timestamp == max(record.timestamp for record in records)


def test_the_header_is_encoded_separately_from_the_body() -> None:
    slabs = [bytearray(b"".join(encode_record(index, 0, None, b"x" * 50) for index in range(3))), bytearray()]
    slabs[1] += encode_record(3, 0, None, b"in another slab")
    body = [memoryview(slab) for slab in slabs]
    header = encode_header(body, record_count=4, base_timestamp=5, max_timestamp=5)
    assert len(header) == BATCH_HEADER_SIZE
    batch = RecordBatch(header + b"".join(body))
    batch.validate()
    assert [record.value for record in batch.records()] == [b"x" * 50] * 3 + [b"in another slab"]
    assert (batch.producer_id, batch.producer_epoch) == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    assert batch.base_sequence == batch.last_sequence == NO_SEQUENCE


def test_a_header_view_with_wider_elements_counts_bytes() -> None:
    body = memoryview(encode_record(0, 0, b"12", b"3")).cast("B")
    wide = memoryview(bytes(body) + bytes(-len(body) % 4)).cast("I")
    header = encode_header([wide], record_count=1, base_timestamp=0, max_timestamp=0)
    assert RecordBatch(header + bytes(wide)).checksum_matches


@pytest.mark.parametrize(
    ("attributes", "value"),
    [
        (batch_attributes(), 0),
        (batch_attributes(4), 4),
        (batch_attributes(timestamp_type=LOG_APPEND_TIME), 8),
        (batch_attributes(transactional=True), 16),
        (batch_attributes(1, control=True), 33),
        (batch_attributes(delete_horizon=True), 64),
        (batch_attributes(3, timestamp_type=1, transactional=True, control=True, delete_horizon=True), 0x7B),
    ],
)
def test_attributes_have_their_bits(attributes: int, value: int) -> None:
    assert attributes == value


def test_delete_horizon_is_the_base_timestamp() -> None:
    body = encode_record(0, 20, None, b"v")
    header = encode_header(
        [body],
        record_count=1,
        base_timestamp=1000,
        max_timestamp=1020,
        attributes=batch_attributes(delete_horizon=True),
    )
    batch = RecordBatch(header + body)
    assert batch.delete_horizon == 1000
    assert [record.timestamp for record in batch.records()] == [1020]


def test_a_compacted_batch_has_fewer_records_than_offsets() -> None:
    body = encode_record(2, 0, None, b"a") + encode_record(7, 0, None, b"b")
    header = encode_header(
        [body], record_count=2, last_offset_delta=9, base_timestamp=0, max_timestamp=0, base_offset=100, base_sequence=5
    )
    batch = RecordBatch(header + body)
    batch.validate()
    assert [record.offset for record in batch.records()] == [102, 107]
    assert (batch.next_offset, batch.last_sequence) == (110, 14)
    empty = RecordBatch(encode_header([], record_count=0, last_offset_delta=9, base_timestamp=0, max_timestamp=0))
    empty.validate()
    assert list(empty.records()) == []


def test_a_batch_without_records_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_log_append_time(name: str) -> None:
    data = encode_batch(
        VECTOR_RECORDS, compression_type=name, timestamp_type=LOG_APPEND_TIME, max_timestamp=1800000000000
    )
    batch = RecordBatch(b"".join(data))
    batch.validate()
    assert (batch.timestamp_type, batch.max_timestamp) == (LOG_APPEND_TIME, 1800000000000)
    assert CODECS[batch.compression_id].name == name
    assert {(record.timestamp, record.timestamp_type) for record in batch.records()} == {(1800000000000, 1)}


@given(st.integers(0, INT32_MAX), st.integers(0, INT32_MAX))
def test_sequences_wrap_after_the_maximum(sequence: int, increment: int) -> None:
    assert 0 <= increment_sequence(sequence, increment) <= INT32_MAX
    assert decrement_sequence(increment_sequence(sequence, increment), increment) == sequence


def test_sequences_near_the_maximum() -> None:
    assert increment_sequence(INT32_MAX, 1) == 0
    assert increment_sequence(INT32_MAX - 1, 3) == 1
    assert decrement_sequence(0, 1) == INT32_MAX
    data = b"".join(encode_batch(VECTOR_RECORDS, base_sequence=INT32_MAX))
    assert RecordBatch(data).last_sequence == 1


def test_repr_describes_the_batch() -> None:
    assert repr(RecordBatch(VECTORS["none"])) == "<RecordBatch offsets 0 to 2, 3 records, 94 bytes>"


def test_consecutive_batches_are_read() -> None:
    data = b"".join(VECTORS.values())
    assert [bytes(batch.buffer) for batch in iter_batches(data)] == list(VECTORS.values())
    assert list(iter_batches(b"")) == []


def test_a_truncated_batch_is_dropped() -> None:
    first, second = VECTORS["none"], VECTORS["lz4"]
    for end in range(len(second)):
        assert [bytes(batch.buffer) for batch in iter_batches(memoryview(first + second[:end]))] == [first]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
def test_an_impossible_length_in_a_stream_of_batches_is_rejected(length: int) -> None:
    data = batch_bytes()
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(ProtocolError, match=f"states a length of {length} bytes"):
        list(iter_batches(data))


@pytest.mark.parametrize("length", [-1, 48, 94 - 12 + 1, 2**31 - 1])
def test_a_batch_with_an_impossible_length_is_rejected(length: int) -> None:
    data = batch_bytes()
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(ProtocolError, match=f"a record batch states a size of {12 + length} bytes, but only 94 follow"):
        RecordBatch(data)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_formats_are_rejected(magic: int) -> None:
    data = batch_bytes()
    data[16] = magic
    with pytest.raises(ProtocolError, match=f"format version {magic}; only version 2"):
        RecordBatch(data)
    with pytest.raises(ProtocolError, match=f"format version {magic}; only version 2"):
        list(iter_batches(data))


def test_too_few_bytes_for_a_batch_are_rejected() -> None:
    with pytest.raises(ProtocolError, match="16 bytes are too short for a record batch"):
        RecordBatch(bytes(16))


@pytest.mark.parametrize("position", [ATTRIBUTES_OFFSET, 60, BATCH_HEADER_SIZE, 93])
def test_a_changed_bit_is_detected(position: int) -> None:
    data = batch_bytes()
    data[position] ^= 0x80
    assert not RecordBatch(data).checksum_matches
    with pytest.raises(ProtocolError, match="at offset 0 is corrupt: its header states CRC 0x"):
        RecordBatch(data).validate()


@pytest.mark.parametrize(("count", "last_offset_delta"), [(-1, 2), (4, 2), (1, -1), (2**31 - 1, 2)])
def test_impossible_counts_are_rejected(count: int, last_offset_delta: int) -> None:
    data = batch_bytes()
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">i", data, 23, last_offset_delta)
    with pytest.raises(ProtocolError, match=f"states {count} records? and last offset delta {last_offset_delta}"):
        RecordBatch(with_checksum(data)).validate()


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (-1, "states -1 records"),
        (2, "states 2 records, with 9 bytes left behind the last"),
        (4, "the data ends inside"),
    ],
)
@pytest.mark.parametrize("name", CODEC_NAMES)
def test_records_that_contradict_the_header_are_rejected(name: str, count: int, message: str) -> None:
    data = batch_bytes(compression_type=name)
    struct.pack_into(">i", data, 57, count)
    with pytest.raises(ProtocolError, match=message):
        list(RecordBatch(data).records())


def test_an_unknown_codec_is_rejected() -> None:
    data = batch_bytes()
    data[22] = 5
    with pytest.raises(ProtocolError, match="unknown compression type id 5"):
        list(RecordBatch(data).records())
    with pytest.raises(ProtocolError, match="unknown compression type id 5"):
        RecordBatch(with_checksum(data)).validate()


def test_an_offset_out_of_range_is_rejected() -> None:
    data = batch_bytes()
    struct.pack_into(">q", data, 0, INT64_MAX)
    with pytest.raises(ProtocolError, match=r"offset 9223372036854775808 .* does not fit 64 bits"):
        list(RecordBatch(data).records())


@pytest.mark.parametrize(("base_timestamp", "delta"), [(INT64_MAX, 1), (INT64_MIN, -1)])
def test_a_timestamp_out_of_range_is_rejected(base_timestamp: int, delta: int) -> None:
    data = batch_bytes([SimpleRecord(0), SimpleRecord(delta)])
    struct.pack_into(">q", data, 27, base_timestamp)
    with pytest.raises(ProtocolError, match=f"timestamp {base_timestamp + delta} does not fit 64 bits"):
        list(RecordBatch(data).records())


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_records_that_decompress_to_too_much_are_rejected(name: str) -> None:
    data = batch_bytes([SimpleRecord(0, None, bytes(1_000_000))], name)
    assert len(next(RecordBatch(data).records(max_size=1_000_100)).value or b"") == 1_000_000
    with pytest.raises(ProtocolError, match="100000"):
        next(RecordBatch(data).records(max_size=100_000))


@pytest.mark.parametrize("name", CODEC_NAMES)
@settings(max_examples=150)
@given(data=st.data())
def test_mutated_batches_raise_only_protocol_error(name: str, data: st.DataObject) -> None:
    """``read_everything`` raises any other exception."""
    batch = bytearray(VECTORS[name] + VECTORS["none"])
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(VECTORS[name]) - 1))] = data.draw(st.integers(0, 255))
    del batch[data.draw(st.integers(0, len(batch))) :]
    read_everything(bytes(batch))


@settings(max_examples=150)
@given(st.binary(max_size=150), st.sampled_from(sorted(VECTORS)), st.integers(0, 61))
def test_random_bytes_raise_only_protocol_error(data: bytes, name: str, kept: int) -> None:
    """``read_everything`` raises any other exception."""
    read_everything(data)
    read_everything(VECTORS[name][:kept] + data)


@given(st.binary(min_size=1, max_size=4), st.integers(0, 93))
def test_a_change_in_the_checksummed_bytes_is_detected(change: bytes, position: int) -> None:
    data = batch_bytes()
    changed = bytearray(data)
    changed[position : position + len(change)] = change
    del changed[len(data) :]
    assume(changed[ATTRIBUTES_OFFSET:] != data[ATTRIBUTES_OFFSET:])
    try:
        RecordBatch(changed).validate()
    except ProtocolError:
        return
    assert changed[CRC_OFFSET:ATTRIBUTES_OFFSET] != data[CRC_OFFSET:ATTRIBUTES_OFFSET]


def read_everything(data: bytes) -> None:
    """Read all fields and records of ``data``, as a consumer without checks would; only bugs raise other errors."""
    try:
        for batch in iter_batches(data):
            assert BATCH_HEADER_SIZE <= batch.size_in_bytes <= len(data)
            repr(batch)
            try:
                batch.validate()
            except ProtocolError:
                pass
            for record in batch.records(max_size=100_000):
                assert INT64_MIN <= record.offset <= INT64_MAX
    except ProtocolError:
        pass
