"""The records of ``__transaction_state``: their bytes, and round trips."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.broker.transactions.records import TransactionRecord, decode_record, encode_record
from aioproducer.broker.transactions.states import TransactionMetadata, TransactionState
from aioproducer.errors import KafkaError, ProtocolError

names = st.text(max_size=20)
int64s = st.integers(-(2**63), 2**63 - 1)
int16s = st.integers(-1, 2**15 - 1)
partitions = st.frozensets(st.tuples(names, st.integers(0, 2**31 - 1)), max_size=5)
metadata = st.builds(
    TransactionMetadata,
    producer_id=int64s,
    producer_epoch=int16s,
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from(TransactionState),
    partitions=partitions,
    start_ms=int64s,
    last_update_ms=int64s,
    previous_producer_id=int64s,
    next_producer_id=int64s,
    client_version=st.integers(0, 2),
)


@given(names, st.none() | metadata, st.integers(1, 2))
def test_records_round_trip(transactional_id: str, value: TransactionMetadata | None, version: int) -> None:
    if value is not None and value.state is TransactionState.EMPTY:
        value = replace(value, partitions=frozenset())
    record = TransactionRecord(transactional_id, value)
    assert decode_record(*encode_record(record, version)) == record


def test_a_cluster_with_new_transactions_writes_tagged_fields() -> None:
    value = TransactionMetadata(
        producer_id=5,
        producer_epoch=3,
        timeout_ms=60_000,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset({("t", 1), ("t", 0)}),
        start_ms=7,
        last_update_ms=8,
        previous_producer_id=4,
        next_producer_id=6,
        client_version=2,
    )
    key, written = encode_record(TransactionRecord("id", value), 2)
    assert key.hex() == "0000" + "0002" + b"id".hex()
    assert written is not None
    assert (
        written.hex()
        == (
            "0001"  # version
            "0000000000000005"  # producer id
            "0003"  # epoch
            "0000ea60"  # timeout
            "02"  # PrepareCommit
            "02" + "02" + b"t".hex() + "03" + "00000000" + "00000001" + "00"  # one topic, two partitions
            "0000000000000008"  # last update
            "0000000000000007"  # start
            "03"  # three tagged fields
            "0008" + "0000000000000004"  # previous producer id
            "0108" + "0000000000000006"  # next producer id
            "0202" + "0002"  # client transaction version
        )
    )


def test_a_cluster_with_the_first_transactions_writes_version_0() -> None:
    value = TransactionMetadata(5, 3, 60_000, TransactionState.EMPTY, start_ms=-1, last_update_ms=8)
    _, written = encode_record(TransactionRecord("id", value), 0)
    assert written is not None
    assert written.hex() == "0000" + "0000000000000005" + "0003" + "0000ea60" + "00" + "ffffffff" + (
        "0000000000000008" + "ffffffffffffffff"
    )


def test_a_client_version_that_cannot_be_written_is_an_error() -> None:
    value = TransactionMetadata(5, 3, 60_000, TransactionState.ONGOING, client_version=2)
    with pytest.raises(KafkaError):
        encode_record(TransactionRecord("id", value), 0)


def test_unknown_versions_are_ignored() -> None:
    key, value = encode_record(TransactionRecord("id", TransactionMetadata(1, 0, 1, TransactionState.EMPTY)), 2)
    assert value is not None
    assert decode_record(b"\x00\x01" + key[2:], value) is None
    assert decode_record(key, b"\x00\x02" + value[2:]) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\x00", b""), (b"\x00\x00\x00\x02id", b"\x00"), (b"\x00\x00\x00\x02id", b"\x00\x01\x00")],
)
def test_malformed_records_are_rejected(key: bytes | None, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_record(key, value)


def test_an_unknown_status_is_rejected() -> None:
    key, value = encode_record(TransactionRecord("id", TransactionMetadata(1, 0, 1, TransactionState.EMPTY)), 0)
    assert value is not None
    with pytest.raises(ProtocolError, match="status 9"):
        decode_record(key, value[:16] + b"\x09" + value[17:])
