"""The records of ``__consumer_offsets``: the schemas of Kafka's group-coordinator module, and their encoding.

A key begins with its version, which is also the kind of record: 0 and 1 are offsets, 2 is a classic group's metadata.
The records of other kinds of groups (3 and up) are ignored. A record without a value is a tombstone.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from aioproducer.errors import ProtocolError
from aioproducer.protocol import ZERO_UUID, decode_version_prefixed, encode_version_prefixed
from aioproducer.protocol.schema import Data, Struct, array, binary, int32, int64, string, uuid

OFFSET_COMMIT_KEY_VERSION: Final = 1
OFFSET_COMMIT_VALUE_VERSION: Final = 4
OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY: Final = 1
"""The only version with the expiry that OffsetCommit up to version 4 can set."""
GROUP_METADATA_KEY_VERSION: Final = 2
GROUP_METADATA_VALUE_VERSION: Final = 3

NO_TIMESTAMP: Final = -1

_INT16: Final = struct.Struct(">h")
_MARKER_KEY: Final = struct.Struct(">hh")
_OUTCOMES: Final = {0: False, 1: True}
"""Whether a marker of this type commits (Kafka's ``ControlRecordType``)."""


class OffsetCommitKey(Data, versions="0-1"):
    """The group and partition of an offset."""

    group: str = string("0-1")
    topic: str = string("0-1")
    partition: int = int32("0-1")


class OffsetCommitValue(Data, versions="0-4", flexible="4+"):
    """An offset that a group has committed; times in milliseconds since 1970."""

    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=NO_TIMESTAMP, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)


class GroupMetadataKey(Data, versions="2"):
    """The group of a metadata record."""

    group: str = string("2")


class MemberMetadata(Struct):
    """A member of a generation; times in milliseconds."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32("0+")
    subscription: bytes = binary("0+")
    assignment: bytes = binary("0+")


class GroupMetadataValue(Data, versions="0-4", flexible="4+"):
    """A generation of a classic group: its protocol, leader, members and their assignments."""

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=NO_TIMESTAMP, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata, "0+")


class OffsetRecord(NamedTuple):
    """An offset record; ``value`` is ``None`` in a tombstone."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


class GroupRecord(NamedTuple):
    """A record of a classic group's metadata; ``value`` is ``None`` in a tombstone."""

    key: GroupMetadataKey
    value: GroupMetadataValue | None


Record: TypeAlias = OffsetRecord | GroupRecord


def offset_record(group_id: str, topic: str, partition: int, value: OffsetCommitValue | None) -> OffsetRecord:
    """Make the record of a group's offset of one partition, or its tombstone."""
    return OffsetRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), value)


def group_record(group_id: str, value: GroupMetadataValue | None) -> GroupRecord:
    """Make the record of a classic group's metadata, or its tombstone."""
    return GroupRecord(GroupMetadataKey(group=group_id), value)


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """Encode the record's key and value, in the versions that Kafka 4.4 writes.

    Raises:
        ProtocolError: a field does not fit its type.
    """
    if isinstance(record, GroupRecord):
        key = encode_version_prefixed(record.key, GROUP_METADATA_KEY_VERSION)
        if record.value is None:
            return key, None
        return key, encode_version_prefixed(record.value, GROUP_METADATA_VALUE_VERSION)
    key = encode_version_prefixed(record.key, OFFSET_COMMIT_KEY_VERSION)
    if record.value is None:
        return key, None
    expires = record.value.expire_timestamp != NO_TIMESTAMP
    version = OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY if expires else OFFSET_COMMIT_VALUE_VERSION
    return key, encode_version_prefixed(record.value, version)


def decode_record(key: bytes | None, value: bytes | None) -> Record | None:
    """Decode a record, or return ``None`` if it is of a kind that classic groups do not have.

    Raises:
        ProtocolError: the bytes do not fit these schemas.
    """
    if key is None or len(key) < _INT16.size:
        raise ProtocolError(f"a record of __consumer_offsets has the key {key!r}, which has no version")
    (version,) = _INT16.unpack_from(key)
    if version in OffsetCommitKey.schema.versions:
        offset_value = None if value is None else decode_version_prefixed(OffsetCommitValue, value)
        return OffsetRecord(decode_version_prefixed(OffsetCommitKey, key), offset_value)
    if version == GROUP_METADATA_KEY_VERSION:
        group_value = None if value is None else decode_version_prefixed(GroupMetadataValue, value)
        return GroupRecord(decode_version_prefixed(GroupMetadataKey, key), group_value)
    return None


def decode_marker(key: bytes | None) -> bool | None:
    """Whether a control record commits its transaction; ``None`` if it is no transaction marker.

    Raises:
        ProtocolError: the key is not that of a control record.
    """
    if key is None or len(key) < _MARKER_KEY.size:
        raise ProtocolError(f"a control record of __consumer_offsets has the key {key!r}, which has no type")
    _, kind = _MARKER_KEY.unpack_from(key)
    return _OUTCOMES.get(kind)


__all__ = [
    "NO_TIMESTAMP",
    "ZERO_UUID",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "GroupRecord",
    "MemberMetadata",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "OffsetRecord",
    "Record",
    "decode_marker",
    "decode_record",
    "encode_record",
    "group_record",
    "offset_record",
]
