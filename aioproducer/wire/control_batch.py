"""Control batches: the only record of each marks in the log how a transaction ended (KIP-98)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from aioproducer.errors import ProtocolError
from aioproducer.wire.record_batch import NO_PARTITION_LEADER_EPOCH, RecordBatch, SimpleRecord, encode_batch

CONTROL_RECORD_VERSION = 0
END_TRANSACTION_MARKER_VERSION = 0

_KEY = Struct(">hh")
_END_TRANSACTION_MARKER = Struct(">hi")


class ControlRecordType(IntEnum):
    """The type of a control record (``org.apache.kafka.common.record.internal.ControlRecordType``)."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class ControlRecord(NamedTuple):
    """A decoded control record."""

    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    version: int
    """The version of the record's key."""
    type: ControlRecordType
    """``UNKNOWN`` for later types, which readers ignore."""
    coordinator_epoch: int | None
    """The epoch of the transaction coordinator that ended the transaction; ``None`` for other types of records."""


def encode_control_batch(
    control_type: ControlRecordType,
    *,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytes:
    """Encode a batch with the marker that ends a transaction, as ``MemoryRecords.withEndTransactionMarker`` does.

    Raises:
        ValueError: ``control_type`` is neither ``COMMIT`` nor ``ABORT``.
        struct.error: a number does not fit its field.
    """
    if control_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise ValueError(f"control_type must be COMMIT or ABORT, not {control_type!r}")
    record = SimpleRecord(
        timestamp,
        _KEY.pack(CONTROL_RECORD_VERSION, control_type),
        _END_TRANSACTION_MARKER.pack(END_TRANSACTION_MARKER_VERSION, coordinator_epoch),
    )
    return b"".join(
        encode_batch(
            [record],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_offset=base_offset,
            partition_leader_epoch=partition_leader_epoch,
            transactional=True,
            control=True,
        )
    )


def read_control_record(batch: RecordBatch, max_size: int | None = None) -> ControlRecord:
    """Return the control record of ``batch``, a control batch.

    Newer versions are decoded as the newest known one, as in Java.

    Raises:
        ValueError: ``batch`` is not a control batch.
        ProtocolError: its record is malformed, or there is not exactly one.
    """
    if not batch.is_control:
        raise ValueError("the record batch is not a control batch")
    records = list(batch.records(max_size))
    if len(records) != 1:
        raise ProtocolError(f"a control batch has {len(records)} records instead of one")
    record = records[0]
    if record.key is None or len(record.key) < _KEY.size:
        raise ProtocolError("the key of a control record is too short")
    version, type_id = _KEY.unpack_from(record.key)
    if version < 0:
        raise ProtocolError(f"a control record has the invalid version {version}")
    try:
        control_type = ControlRecordType(type_id)
    except ValueError:
        control_type = ControlRecordType.UNKNOWN
    coordinator_epoch: int | None = None
    if control_type in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        if record.value is None or len(record.value) < _END_TRANSACTION_MARKER.size:
            raise ProtocolError("the value of a transaction's end marker is too short")
        marker_version, coordinator_epoch = _END_TRANSACTION_MARKER.unpack_from(record.value)
        if marker_version < 0:
            raise ProtocolError(f"a transaction's end marker has the invalid version {marker_version}")
    return ControlRecord(record.offset, record.timestamp, version, control_type, coordinator_epoch)
