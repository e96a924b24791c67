"""Control batches: written as Kafka does, read back, and malformed ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError
from aioproducer.wire.control_batch import (
    ControlRecord,
    ControlRecordType,
    encode_control_batch,
    read_control_record,
)
from aioproducer.wire.record_batch import RecordBatch, SimpleRecord, encode_batch

# MemoryRecords.withEndTransactionMarker(5, 1700000000000, 3, 4242, 7, new EndTransactionMarker(COMMIT, 12))
COMMIT = bytes.fromhex(
    "0000000000000005000000420000000302be3c129d0030000000000000018bcfe568000000018bcfe568000000000000001092"
    "0007ffffffff000000012000000008000000010c00000000000c00"
)


def control_batch(*records: SimpleRecord) -> RecordBatch:
    return RecordBatch(b"".join(encode_batch(records, control=True, transactional=True)))


def test_control_batches_are_written_like_those_of_kafka() -> None:
    data = encode_control_batch(
        ControlRecordType.COMMIT,
        coordinator_epoch=12,
        producer_id=4242,
        producer_epoch=7,
        timestamp=1700000000000,
        base_offset=5,
        partition_leader_epoch=3,
    )
    assert data == COMMIT


def test_control_batches_of_kafka_are_read() -> None:
    batch = RecordBatch(COMMIT)
    batch.validate()
    assert batch.is_control
    assert batch.is_transactional
    assert read_control_record(batch) == ControlRecord(5, 1700000000000, 0, ControlRecordType.COMMIT, 12)


@given(
    st.sampled_from([ControlRecordType.ABORT, ControlRecordType.COMMIT]),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(-1, 2**63 - 1),
)
def test_records_round_trip(
    control_type: ControlRecordType, coordinator_epoch: int, producer_id: int, producer_epoch: int, timestamp: int
) -> None:
    batch = RecordBatch(
        encode_control_batch(
            control_type,
            coordinator_epoch=coordinator_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp=timestamp,
        )
    )
    batch.validate()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (producer_id, producer_epoch, -1)
    assert read_control_record(batch) == ControlRecord(0, timestamp, 0, control_type, coordinator_epoch)


@pytest.mark.parametrize("control_type", set(ControlRecordType) - {ControlRecordType.ABORT, ControlRecordType.COMMIT})
def test_only_commit_and_abort_can_be_encoded(control_type: ControlRecordType) -> None:
    with pytest.raises(ValueError, match="COMMIT or ABORT"):
        encode_control_batch(control_type, coordinator_epoch=0, producer_id=0, producer_epoch=0, timestamp=0)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("00000002", "ff", ControlRecord(0, 9, 0, ControlRecordType.LEADER_CHANGE, None)),
        ("00010006", None, ControlRecord(0, 9, 1, ControlRecordType.KRAFT_VOTERS, None)),
        ("00000063", None, ControlRecord(0, 9, 0, ControlRecordType.UNKNOWN, None)),
        ("0000ffff", None, ControlRecord(0, 9, 0, ControlRecordType.UNKNOWN, None)),
        ("00010000ab", "0002000000030405", ControlRecord(0, 9, 1, ControlRecordType.ABORT, 3)),
    ],
)
def test_other_types_and_later_versions_are_read(key: str, value: str | None, expected: ControlRecord) -> None:
    record = SimpleRecord(9, bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert read_control_record(control_batch(record)) == expected


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, None, "key of a control record is too short"),
        (b"\0\0\0", None, "key of a control record is too short"),
        (b"\xff\xff\0\0", None, "has the invalid version -1"),
        (b"\0\0\0\0", None, "value of a transaction's end marker is too short"),
        (b"\0\0\0\1", bytes(5), "value of a transaction's end marker is too short"),
        (b"\0\0\0\1", b"\xff\xfe" + bytes(4), "end marker has the invalid version -2"),
    ],
)
def test_malformed_control_batches_are_rejected(key: bytes | None, value: bytes | None, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_control_record(control_batch(SimpleRecord(0, key, value)))


def test_more_than_one_record_is_rejected() -> None:
    record = SimpleRecord(0, bytes(4), bytes(6))
    with pytest.raises(ProtocolError, match="has 2 records instead of one"):
        read_control_record(control_batch(record, record))


def test_a_data_batch_is_rejected() -> None:
    with pytest.raises(ValueError, match="is not a control batch"):
        read_control_record(RecordBatch(b"".join(encode_batch([SimpleRecord(0)]))))


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(61, len(COMMIT) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_control_batches_raise_only_protocol_error(changes: list[tuple[int, int]]) -> None:
    """Any other exception fails the test."""
    data = bytearray(COMMIT)
    for position, byte in changes:
        data[position] = byte
    try:
        read_control_record(RecordBatch(data), max_size=1000)
    except ProtocolError:
        pass
