"""Produce, versions 3-13: append a record batch to each of some partitions.

* 3, 4: the base. 5: log start offset in the response. 7: zstd. 8: errors of single records, and texts.
* 9: flexible. 10: where the leader has gone (KIP-951). 11, 12: matters of transactions. 13: topics by id (KIP-516).

ApiVersions says 0-13, because librdkafka does not compress where it does not find version 0 (KAFKA-18659), but versions
below 3 are refused. Transactions are not served: a request with transactional records fails as a whole with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client takes as final and as being about its transactional id.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final

from aioproducer.broker.error_responses import error_code
from aioproducer.broker.handlers.leaders import LEADER_MOVED, LeaderFinder
from aioproducer.broker.image import INTERNAL_TOPICS
from aioproducer.broker.log import record_errors
from aioproducer.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    TransactionalIdAuthorizationError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
)
from aioproducer.protocol import Records
from aioproducer.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.log import AppendInfo
    from aioproducer.broker.node import Broker
    from aioproducer.broker.requests import RequestContext

VERSIONS = range(3, 14)
ADVERTISED_MIN_VERSION = 0

TRANSACTIONS_NOT_SERVED: Final = "Transactions are not served by this broker: use no transactional id."

_logger = logging.getLogger(__name__)

# Clients may not write to the brokers' own topics, with the exception that Kafka makes.
_ADMIN_CLIENT_ID: Final = "__admin_client"

_LENGTH_AND_MAGIC: Final = struct.Struct(">8xi4xb")
_ATTRIBUTES: Final = struct.Struct(">21xh")
_SIZE_UP_TO_MAGIC: Final = 17
_LENGTH_END: Final = 12
_SMALLEST_LENGTH: Final = 14
_SMALLEST_MAGIC_2: Final = 49
_MAGIC: Final = 2
_CODEC_MASK: Final = 0x07
_ZSTD: Final = 4
_TRANSACTIONAL: Final = 0x10

_KNOWN_ACKS: Final = (-1, 0, 1)

# An answer with one of these says no log start offset; see Kafka's ReplicaManager.appendToLocalLog.
_WITHOUT_LOG_START: Final = (
    UnknownTopicOrPartitionError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    RecordBatchTooLargeError,
    CorruptRecordError,
    KafkaStorageError,
)


async def handle(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Append all batches, wait for what ``acks`` asks for, and say what became of each.

    With ``acks`` 0 there is no response; the connection ends where something failed.

    Raises:
        TransactionalIdAuthorizationError: a batch is of a transaction.
        CorruptRecordError: a batch has a length or format that none can have.
    """
    version = context.version
    broker = context.broker
    acks = request.acks
    may_write_internal = context.header.client_id == _ADMIN_CLIENT_ID
    failed = False
    responses: list[TopicProduceResponse] = []
    batches: dict[tuple[str, int], memoryview] = {}
    places: dict[tuple[str, int], PartitionProduceResponse] = {}
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        name = topic.name if version < 13 else _name_of(broker, topic.topic_id)
        for data in topic.partition_data:
            answer = PartitionProduceResponse(index=data.index)
            answers.append(answer)
            records = _single_batch(data.records)
            if name is None:
                error: KafkaError | None = UnknownTopicIdError()
            else:
                error = _objection(broker, name, data.index, records, version)
                if error is None and acks not in _KNOWN_ACKS:
                    error = InvalidRequiredAcksError()
                if error is None and name in INTERNAL_TOPICS and not may_write_internal:
                    error = InvalidTopicError(f"Cannot append to internal topic {name}")
                # Of two batches for one partition the last one counts, as in Kafka.
                places[name, data.index] = answer
            if error is None and name is not None:
                batches[name, data.index] = records
            else:
                _fill_error(answer, error, log_start_offset=-1)
                failed = True
    if batches:
        outcomes = await broker.replicas.append(batches, acks=acks, timeout_ms=request.timeout_ms)
        for key, outcome in outcomes.items():
            written = outcomes.unacknowledged.get(key)
            if isinstance(outcome, KafkaError):
                failed = True
                if written is None:
                    _fill_error(places[key], outcome, _log_start_offset(broker, key, outcome))
                else:
                    # As in Kafka's DelayedProduce: where the batch is, and why that is not acknowledged.
                    _fill(places[key], written)
                    places[key].error_code = error_code(outcome)
            else:
                _fill(places[key], outcome)
    if acks == 0:
        if failed:
            _logger.info(
                "closing the connection from %s: a Produce request with acks=0 failed: %s",
                context.connection.peer,
                {key: answer.error_code for key, answer in places.items()},
            )
            context.must_close = True
        return None
    response = ProduceResponse(responses=responses)
    if failed and version >= 10:
        leaders = LeaderFinder(broker.image)
        for (name, index), answer in places.items():
            if answer.error_code in LEADER_MOVED:
                answer.current_leader = leaders.find(name, index)
        response.node_endpoints = leaders.endpoints
    return response


def _name_of(broker: Broker, topic_id: bytes) -> str | None:
    topic = broker.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


def _single_batch(records: Records) -> memoryview:
    """The batches of a partition, without an incomplete one at the end, which is dropped as in Kafka.

    Raises:
        CorruptRecordError: a batch has a length or format that none can have.
        TransactionalIdAuthorizationError: a batch is of a transaction.
        UnknownServerError: there are no records at all, which Kafka has no other answer to.
    """
    if not isinstance(records, memoryview):
        raise UnknownServerError()
    position = 0
    while len(records) - position >= _SIZE_UP_TO_MAGIC:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(records, position)
        if length < _SMALLEST_LENGTH:
            raise CorruptRecordError(
                f"Record size {length} is less than the minimum record overhead ({_SMALLEST_LENGTH})"
            )
        if not 0 <= magic <= _MAGIC:
            raise CorruptRecordError(f"Invalid magic found in record: {magic}")
        end = position + _LENGTH_END + length
        if end > len(records):
            break
        if magic == _MAGIC and length >= _SMALLEST_MAGIC_2:
            (attributes,) = _ATTRIBUTES.unpack_from(records, position)
            if attributes & _TRANSACTIONAL:
                raise TransactionalIdAuthorizationError(TRANSACTIONS_NOT_SERVED)
        position = end
    return records[:position]


def _objection(broker: Broker, name: str, index: int, records: memoryview, version: int) -> KafkaError | None:
    """Why the records cannot be appended, as far as it can be told without the log (Kafka's ProduceRequest)."""
    topic = broker.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return UnknownTopicOrPartitionError()
    who = f"Produce requests with version {version}"
    if not records:
        return InvalidRecordError(f"{who} must have at least one record batch per partition")
    length, magic = _LENGTH_AND_MAGIC.unpack_from(records)
    if magic != _MAGIC:
        return InvalidRecordError(f"{who} are only allowed to contain record batches with magic version 2")
    if length >= _SMALLEST_MAGIC_2 and version < 7 and _ATTRIBUTES.unpack_from(records)[0] & _CODEC_MASK == _ZSTD:
        return UnsupportedCompressionTypeError(f"{who} are not allowed to use ZStandard compression")
    if _LENGTH_END + length < len(records):
        return InvalidRecordError(f"{who} are only allowed to contain exactly one record batch per partition")
    return None


def _fill(answer: PartitionProduceResponse, info: AppendInfo) -> None:
    answer.base_offset = info.first_offset
    answer.log_append_time_ms = info.log_append_time_ms
    answer.log_start_offset = info.log_start_offset


def _fill_error(answer: PartitionProduceResponse, error: KafkaError | None, log_start_offset: int) -> None:
    """Say what failed; the text only where single records are to blame, as Kafka does."""
    assert error is not None
    answer.error_code = error_code(error)
    answer.base_offset = -1
    answer.log_start_offset = log_start_offset
    blamed = record_errors(error)
    if blamed:
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=record.batch_index, batch_index_error_message=record.message)
            for record in blamed
        ]
        answer.error_message = str(error)


def _log_start_offset(broker: Broker, key: tuple[str, int], error: KafkaError) -> int:
    """Kafka says where the log begins with some errors, and not with others."""
    partition = broker.replicas.partitions.get(key)
    return -1 if partition is None or isinstance(error, _WITHOUT_LOG_START) else partition.log_start_offset
