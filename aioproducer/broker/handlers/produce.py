"""Produce, versions 3-13: append a record batch to each partition of the request.

* 3, 4: the base. 5: log start offset in the response. 7: zstd. 8: errors of single records, and texts.
* 9: flexible. 10: the current leader (KIP-951). 11: TRANSACTION_ABORTABLE. 12: the first batch of a transaction adds
  its partition to it (KIP-890). 13: topics by id (KIP-516).

ApiVersions lists 0-13, because librdkafka does not compress if version 0 is missing (KAFKA-18659), but versions below 3
are refused. A request with transactional records and no transactional id fails as a whole with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final

from aioproducer.broker.handlers.error_responses import error_code, error_message
from aioproducer.broker.handlers.leaders import LEADER_MOVED, LeaderFinder
from aioproducer.broker.image import INTERNAL_TOPICS
from aioproducer.broker.log import record_errors
from aioproducer.broker.replicas.verification import Support, Verified, verify
from aioproducer.errors import (
    CorruptRecordError,
    InvalidPidMappingError,
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
from aioproducer.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from aioproducer.wire.record_batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_CODEC_MASK,
    LOG_OVERHEAD,
    MAGIC_VALUE,
    TRANSACTIONAL_FLAG,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aioproducer.broker.handlers.context import BrokerNode, RequestContext
    from aioproducer.broker.log import AppendInfo

VERSIONS = range(3, 14)
ADVERTISED_MIN_VERSION = 0


_logger = logging.getLogger(__name__)

# Clients may not write to internal topics, with the same exception as in Kafka.
_ADMIN_CLIENT_ID: Final = "__admin_client"

_LENGTH: Final = struct.Struct(">8xi")
_ATTRIBUTES: Final = struct.Struct(">21xh")
_PRODUCER: Final = struct.Struct(">43xqhi")
_MAGIC: Final = struct.Struct(">16xb")
_SMALLEST_LENGTH: Final = 14
_ZSTD: Final = 4

_KNOWN_ACKS: Final = (-1, 0, 1)

# Errors that are returned without a log start offset; see Kafka's ReplicaManager.appendToLocalLog.
_WITHOUT_LOG_START: Final = (
    UnknownTopicOrPartitionError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    RecordBatchTooLargeError,
    CorruptRecordError,
    KafkaStorageError,
)


async def handle(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Append all batches, wait as ``acks`` requires, and return the result of each.

    With ``acks`` 0 there is no response; the connection is closed after a failure.

    Raises:
        TransactionalIdAuthorizationError: a batch is transactional, and the request has no transactional id.
        InvalidPidMappingError: batches belong to transactions of several producers.
        CorruptRecordError: a batch has an impossible length or format.
    """
    version = context.version
    broker = context.broker
    acks = request.acks
    may_write_internal = context.header.client_id == _ADMIN_CLIENT_ID
    failed = False
    responses: list[TopicProduceResponse] = []
    batches: dict[tuple[str, int], memoryview] = {}
    answer_by_key: dict[tuple[str, int], PartitionProduceResponse] = {}
    for topic, wanted in _by_topic(request, version):
        answers = [PartitionProduceResponse(index=index) for index in wanted]
        responses.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        name = topic.name if version < 13 else _name_of(broker, topic.topic_id)
        for answer, records in zip(answers, wanted.values(), strict=True):
            if name is None:
                error: KafkaError | None = UnknownTopicIdError()
            else:
                error = _invalid_records(broker, name, answer.index, records, version)
                if error is None and acks not in _KNOWN_ACKS:
                    error = InvalidRequiredAcksError()
                if error is None and name in INTERNAL_TOPICS and not may_write_internal:
                    error = InvalidTopicError(f"Cannot append to internal topic {name}")
                answer_by_key[name, answer.index] = answer
            if error is None and name is not None:
                batches[name, answer.index] = records[: _batch_end(records)]
            else:
                _fill_error(answer, error, log_start_offset=-1)
                failed = True
    guards = None
    if batches and request.transactional_id is not None:
        guards, errors = await _verified(broker, request.transactional_id, batches, version)
        for key, error in errors.items():
            del batches[key]
            _fill_error(answer_by_key[key], error, log_start_offset=-1)
            answer_by_key[key].error_message = error_message(error)
            failed = True
    if batches:
        outcomes = await broker.replicas.append(batches, acks=acks, timeout_ms=request.timeout_ms, guards=guards)
        for key, outcome in outcomes.items():
            written = outcomes.unacknowledged.get(key)
            if isinstance(outcome, KafkaError):
                failed = True
                if written is None:
                    _fill_error(answer_by_key[key], outcome, _log_start_offset(broker, key, outcome))
                else:
                    # As in Kafka's DelayedProduce: the offset of the batch, and the reason why it is not acknowledged.
                    _fill(answer_by_key[key], written)
                    answer_by_key[key].error_code = error_code(outcome)
            else:
                _fill(answer_by_key[key], outcome)
    if acks == 0:
        if failed:
            _logger.info(
                "Closing the connection from %s: a Produce request with acks=0 failed: %s",
                context.connection.peer,
                {key: answer.error_code for key, answer in answer_by_key.items()},
            )
            context.must_close = True
        return None
    response = ProduceResponse(responses=responses)
    if failed and version >= 10:
        leaders = LeaderFinder(broker.image)
        for (name, index), answer in answer_by_key.items():
            if answer.error_code in LEADER_MOVED:
                answer.current_leader = leaders.find(name, index)
        response.node_endpoints = leaders.endpoints
    return response


def _name_of(broker: BrokerNode, topic_id: bytes) -> str | None:
    topic = broker.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name


def _by_topic(request: ProduceRequest, version: int) -> Iterable[tuple[TopicProduceData, dict[int, memoryview]]]:
    """Yield each topic once, with the records for each of its partitions.

    Repeated topics are merged. Of two batches for a partition the last one counts, as in Kafka.

    Raises:
        CorruptRecordError: a batch has an impossible length or format.
        TransactionalIdAuthorizationError: a batch is transactional, and the request has no transactional id.
        UnknownServerError: there are no records at all; Kafka responds with this error too.
    """
    topics: dict[str | bytes, tuple[TopicProduceData, dict[int, memoryview]]] = {}
    for topic in request.topic_data:
        _, wanted = topics.setdefault(topic.name if version < 13 else topic.topic_id, (topic, {}))
        for data in topic.partition_data:
            records = data.records
            if not isinstance(records, memoryview):
                raise UnknownServerError()
            is_transactional = _attributes(records, _batch_end(records)) & TRANSACTIONAL_FLAG
            if is_transactional and request.transactional_id is None:
                raise TransactionalIdAuthorizationError()
            wanted[data.index] = records
    return topics.values()


async def _verified(
    broker: BrokerNode, transactional_id: str, batches: Mapping[tuple[str, int], memoryview], version: int
) -> Verified:
    """Verify the transaction of transactional batches, if there are any.

    Raises:
        InvalidPidMappingError: they belong to several producers.
    """
    producers: set[tuple[int, int]] = set()
    sequences: dict[tuple[str, int], int] = {}
    for key, records in batches.items():
        producer_id, epoch, sequence = _PRODUCER.unpack_from(records)
        if producer_id >= 0 and _attributes(records, len(records)) & TRANSACTIONAL_FLAG:
            producers.add((producer_id, epoch))
            sequences[key] = sequence
    if not producers:
        return Verified({}, {})
    if len(producers) > 1:
        raise InvalidPidMappingError("Transactional records contained more than one producer ID")
    [(producer_id, epoch)] = producers
    support = Support.ADD if version >= 12 else Support.VERIFY_ABORTABLE if version == 11 else Support.VERIFY
    return await verify(broker.replicas, broker.transactions, transactional_id, producer_id, epoch, sequences, support)


def _batch_end(records: memoryview, position: int = 0) -> int:
    """Return the end of the batch at ``position``; for an incomplete one its start (``ByteBufferLogInputStream``).

    Raises:
        CorruptRecordError: it has an impossible length or format.
    """
    room = len(records) - position
    if room < LOG_OVERHEAD:
        return position
    (length,) = _LENGTH.unpack_from(records, position)
    if length < _SMALLEST_LENGTH:
        raise CorruptRecordError(f"Record size {length} is less than the minimum record overhead ({_SMALLEST_LENGTH})")
    if room < _MAGIC.size:
        return position
    (magic,) = _MAGIC.unpack_from(records, position)
    if not 0 <= magic <= MAGIC_VALUE:
        raise CorruptRecordError(f"Invalid magic found in record: {magic}")
    end: int = position + LOG_OVERHEAD + length
    return end if end <= len(records) else position


def _attributes(records: memoryview, end: int) -> int:
    """Return the attributes of the first batch, which ends at ``end``; 0 if it has an older format."""
    if end < BATCH_HEADER_SIZE or _MAGIC.unpack_from(records)[0] != MAGIC_VALUE:
        return 0
    attributes: int = _ATTRIBUTES.unpack_from(records)[0]
    return attributes


def _invalid_records(broker: BrokerNode, name: str, index: int, records: memoryview, version: int) -> KafkaError | None:
    """Return why the records are invalid, as far as this is known without the log (Kafka's ``ProduceRequest``)."""
    topic = broker.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return UnknownTopicOrPartitionError()
    who = f"Produce requests with version {version}"
    end = _batch_end(records)
    if not end:
        return InvalidRecordError(f"{who} must have at least one record batch per partition")
    if _MAGIC.unpack_from(records)[0] != MAGIC_VALUE:
        return InvalidRecordError(f"{who} are only allowed to contain record batches with magic version 2")
    if version < 7 and _attributes(records, end) & COMPRESSION_CODEC_MASK == _ZSTD:
        return UnsupportedCompressionTypeError(f"{who} are not allowed to use ZStandard compression")
    try:
        has_more = _batch_end(records, end) > end
    except CorruptRecordError as error:
        return error
    if has_more:
        return InvalidRecordError(f"{who} are only allowed to contain exactly one record batch per partition")
    return None


def _fill(answer: PartitionProduceResponse, info: AppendInfo) -> None:
    answer.base_offset = info.first_offset
    answer.log_append_time_ms = info.log_append_time_ms
    answer.log_start_offset = info.log_start_offset


def _fill_error(answer: PartitionProduceResponse, error: KafkaError | None, log_start_offset: int) -> None:
    """Set the error of a partition; a text only if single records are invalid, as in Kafka."""
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


def _log_start_offset(broker: BrokerNode, key: tuple[str, int], error: KafkaError) -> int:
    """Return the log start offset for errors with which Kafka returns it, else -1."""
    partition = broker.replicas.partitions.get(key)
    return -1 if partition is None or isinstance(error, _WITHOUT_LOG_START) else partition.log_start_offset
