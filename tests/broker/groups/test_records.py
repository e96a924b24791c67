"""The records of ``__consumer_offsets``: their bytes, and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.broker.groups.records import (
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetCommitValue,
    OffsetRecord,
    Record,
    decode_record,
    encode_record,
    group_record,
    offset_record,
)
from aioproducer.errors import ProtocolError

names = st.text(max_size=20)
int64s = st.integers(-(2**63), 2**63 - 1)
offset_values = st.builds(
    OffsetCommitValue,
    offset=int64s,
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=names,
    commit_timestamp=int64s,
    topic_id=st.binary(min_size=16, max_size=16),
)
members = st.builds(
    MemberMetadata,
    member_id=names,
    group_instance_id=st.none() | names,
    client_id=names,
    client_host=names,
    rebalance_timeout=st.integers(-1, 2**31 - 1),
    session_timeout=st.integers(-1, 2**31 - 1),
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
group_values = st.builds(
    GroupMetadataValue,
    protocol_type=names,
    generation=st.integers(-1, 2**31 - 1),
    protocol=st.none() | names,
    leader=st.none() | names,
    current_state_timestamp=int64s,
    members=st.lists(members, max_size=3),
)
records = st.builds(offset_record, names, names, st.integers(0, 2**31 - 1), st.none() | offset_values) | st.builds(
    group_record, names, st.none() | group_values
)


@given(records)
def test_records_round_trip(record: Record) -> None:
    assert decode_record(*encode_record(record)) == record


def test_bytes_of_an_offset() -> None:
    value = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9, topic_id=b"\x05" * 16)
    key, encoded = encode_record(offset_record("g", "t", 3, value))
    assert key == b"\0\1\0\1g\0\1t\0\0\0\3"
    assert encoded == b"\0\4" + b"\0" * 7 + b"\7" + b"\0\0\0\2" + b"\2m" + b"\0" * 7 + b"\t" + b"\1\0\x10" + b"\5" * 16


def test_bytes_of_an_offset_that_expires() -> None:
    """Up to version 4 of OffsetCommit a client sets the retention; only version 1 of the record has a field for it."""
    value = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9, expire_timestamp=10)
    key, encoded = encode_record(offset_record("g", "t", 3, value))
    assert encoded == b"\0\1" + b"\0" * 7 + b"\7" + b"\0\1m" + b"\0" * 7 + b"\t" + b"\0" * 7 + b"\n"
    decoded = decode_record(key, encoded)
    assert isinstance(decoded, OffsetRecord)
    assert decoded.value is not None
    assert (decoded.value.expire_timestamp, decoded.value.leader_epoch) == (10, -1)


def test_bytes_of_a_group() -> None:
    member = MemberMetadata(member_id="m", client_id="c", client_host="/h", rebalance_timeout=1, session_timeout=2)
    member.subscription, member.assignment = b"s", b"a"
    value = GroupMetadataValue(protocol_type="consumer", generation=3, protocol="range", leader="m", members=[member])
    key, encoded = encode_record(group_record("g", value))
    assert key == b"\0\2\0\1g"
    assert encoded == (
        b"\0\3"
        b"\0\x08consumer"
        b"\0\0\0\3"
        b"\0\5range"
        b"\0\1m" + b"\xff" * 8 + b"\0\0\0\1"
        b"\0\1m"
        b"\xff\xff"
        b"\0\1c"
        b"\0\2/h"
        b"\0\0\0\1"
        b"\0\0\0\2"
        b"\0\0\0\1s"
        b"\0\0\0\1a"
    )
    assert isinstance(decode_record(key, encoded), GroupRecord)


def test_tombstones_have_no_value() -> None:
    assert encode_record(offset_record("g", "t", 0, None))[1] is None
    assert encode_record(group_record("g", None))[1] is None


def test_other_kinds_of_groups_are_ignored() -> None:
    assert decode_record(b"\0\3\0\1g", b"\0\0\0\0\0\1") is None


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\2", b"\0\1\0\5g"])
def test_malformed_records_are_rejected(key: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode_record(key, None)
