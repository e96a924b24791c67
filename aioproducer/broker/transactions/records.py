"""The records of ``__transaction_state``: the schemas of Kafka's transaction-coordinator module, and their encoding.

Version 0 of the value belongs to ``transaction.version`` 0; version 1 adds tagged fields. A record without a value is a
tombstone.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Final, NamedTuple

from aioproducer.broker.transactions.states import TopicPartition, TransactionMetadata, TransactionState
from aioproducer.errors import ProtocolError
from aioproducer.protocol import decode_version_prefixed, encode_version_prefixed
from aioproducer.protocol.schema import INT32, Data, Struct, array, int8, int16, int32, int64, string

KEY_VERSION: Final = 0

_INT16: Final = struct.Struct(">h")


class TransactionLogKey(Data, versions="0"):
    """The transactional id of a record."""

    transactional_id: str = string("0")


class PartitionsSchema(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partition_ids: list[int] = array(INT32, "0+")


class TransactionLogValue(Data, versions="0-1", flexible="1+"):
    """A transactional id; times in milliseconds since 1970.

    Kafka 4.4 neither reads nor writes ``next_producer_epoch``.
    """

    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    producer_epoch: int = int16("0+")
    next_producer_epoch: int = int16("1+", default=-1, tag=3)
    transaction_timeout_ms: int = int32("0+")
    transaction_status: int = int8("0+")
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, "0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", tag=2)


class TransactionRecord(NamedTuple):
    """A record of one transactional id; ``metadata`` is ``None`` in a tombstone."""

    transactional_id: str
    metadata: TransactionMetadata | None


def encode_record(record: TransactionRecord, transaction_version: int) -> tuple[bytes, bytes | None]:
    """Encode the record's key and value for a cluster with that ``transaction.version``.

    Raises:
        ProtocolError: a field does not fit its type.
        UnsupportedVersionError: the client's transaction version cannot be written in this cluster.
    """
    key = encode_version_prefixed(TransactionLogKey(transactional_id=record.transactional_id), KEY_VERSION)
    metadata = record.metadata
    if metadata is None:
        return key, None
    version = min(transaction_version, 1)
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else _by_topic(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    )
    if version >= 1:
        value.previous_producer_id = metadata.previous_producer_id
        value.next_producer_id = metadata.next_producer_id
    return key, encode_version_prefixed(value, version)


def _by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(index)
    return [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """Decode a record, or return ``None`` if its key or value has a version that Kafka 4.4 does not know.

    Raises:
        ProtocolError: the bytes do not fit these schemas.
    """
    if key is None or len(key) < _INT16.size:
        raise ProtocolError(f"a record of __transaction_state has the key {key!r}, which has no version")
    if _INT16.unpack_from(key) != (KEY_VERSION,):
        return None
    transactional_id = decode_version_prefixed(TransactionLogKey, key).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    if len(value) < _INT16.size:
        raise ProtocolError(f"the record of the transactional id {transactional_id!r} has no version")
    (version,) = _INT16.unpack_from(value)
    if version not in TransactionLogValue.schema.versions:
        return None
    return TransactionRecord(transactional_id, _metadata(decode_version_prefixed(TransactionLogValue, value)))


def _metadata(value: TransactionLogValue) -> TransactionMetadata:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise ProtocolError(f"unknown transaction status {value.transaction_status}") from None
    partitions = () if state is TransactionState.EMPTY else value.transaction_partitions or ()
    return TransactionMetadata(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset((topic.topic, index) for topic in partitions for index in topic.partition_ids),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )
