"""The response to a request that failed as a whole: the error is where a client of that API expects it.

Equivalent to Kafka's ``getErrorResponse`` of each request. Also removes parts of a request that fail alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aioproducer._common.error_texts import broker_text
from aioproducer.errors import BrokerError, KafkaError, UnknownServerError, UnsupportedVersionError
from aioproducer.protocol import ZERO_UUID, ApiKey, Request, Response
from aioproducer.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AlterConfigsResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    IncrementalAlterConfigsResponse,
    InitProducerIdResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from aioproducer.protocol.messages.api_versions import ApiVersion
from aioproducer.protocol.messages.configs import AlterConfigsResourceResponse, DescribeConfigsResult
from aioproducer.protocol.messages.described_transactions import TransactionState
from aioproducer.protocol.messages.fetch import FetchableTopicResponse, PartitionData
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from aioproducer.protocol.messages.groups import Coordinator, DeletableGroupResult, DescribedGroup
from aioproducer.protocol.messages.metadata import DescribeTopicPartitionsResponseTopic, MetadataResponseTopic
from aioproducer.protocol.messages.offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderTopicResult,
)
from aioproducer.protocol.messages.produce import PartitionProduceResponse, TopicProduceResponse
from aioproducer.protocol.messages.topics import CreatableTopicResult, CreatePartitionsTopicResult, DeletableTopicResult
from aioproducer.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopicResult,
    PartitionResponse,
    TopicResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)
from aioproducer.protocol.schema import Struct

# A topic of a request, one of its partitions, or a response; the caller's table has the classes.
Part = Any

PRODUCE_NEEDS_NO_RESPONSE: Final = 0
"""``acks`` of a Produce request without a response."""


def error_code(error: BaseException) -> int:
    """Return the code of ``error``; -1 if the protocol has none for it."""
    return error.code if isinstance(error, BrokerError) else UnknownServerError.code


def error_message(error: BaseException) -> str | None:
    """Return the text of ``error`` beyond its code, for responses with a field for it.

    An error without a code has no text: clients must not see internal details (Kafka's ``ApiError``).
    """
    code = error_code(error)
    if code == UnknownServerError.code or not isinstance(error, KafkaError):
        return None
    text = str(error)
    return None if text == broker_text(code, None) else text


def error_response(request: Request[Response], version: int, error: BaseException) -> Response | None:
    """Return the response with ``error`` for all parts of ``request``.

    ``None`` if the client expects no response; its connection is closed instead. Requests without an entry in the table
    have their error code at the top of the response.
    """
    code = error_code(error)
    make = _ERROR_RESPONSES.get(request.schema.api_key)
    if make is not None:
        return make(request, version, code, error_message(error))
    response_class = type(request).response_class()
    fields: dict[str, object] = {"error_code": code}
    if "error_message" in response_class.schema.names:
        fields["error_message"] = error_message(error)
    return response_class(**fields)


def _produce(request: ProduceRequest, version: int, code: int, message: str | None) -> ProduceResponse | None:
    if request.acks == PRODUCE_NEEDS_NO_RESPONSE:
        return None
    # A partition that occurs twice is answered once.
    topics: dict[tuple[str, bytes], dict[int, None]] = {}
    for topic in request.topic_data:
        indexes = topics.setdefault((topic.name, topic.topic_id), {})
        indexes.update(dict.fromkeys(partition.index for partition in topic.partition_data))
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                topic_id=topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=index,
                        error_code=code,
                        base_offset=-1,
                        log_start_offset=-1,
                        error_message=message,
                    )
                    for index in indexes
                ],
            )
            for (name, topic_id), indexes in topics.items()
        ]
    )


def _fetch(request: FetchRequest, version: int, code: int, message: str | None) -> FetchResponse:
    response = FetchResponse(error_code=code, session_id=request.session_id)
    if version < 13:
        response.responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=partition.partition, error_code=code, high_watermark=-1, records=b"")
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    return response


def _metadata(request: MetadataRequest, version: int, code: int, message: str | None) -> MetadataResponse:
    topics = [
        MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(topics=topics, error_code=code)


def _describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, version: int, code: int, message: str | None
) -> DescribeTopicPartitionsResponse:
    topics = [DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name) for topic in request.topics]
    return DescribeTopicPartitionsResponse(topics=topics)


def _api_versions(request: ApiVersionsRequest, version: int, code: int, message: str | None) -> ApiVersionsResponse:
    response = ApiVersionsResponse(error_code=code)
    if code == UnsupportedVersionError.code:
        versions = request.schema.versions
        response.api_keys = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=versions[0], max_version=versions[-1])]
    return response


def _offset_fetch(request: OffsetFetchRequest, version: int, code: int, message: str | None) -> OffsetFetchResponse:
    if version >= 8:
        groups = [OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    if version >= 2:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, metadata="", error_code=code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def _find_coordinator(
    request: FindCoordinatorRequest, version: int, code: int, message: str | None
) -> FindCoordinatorResponse:
    if version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, host="", port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
            for key in request.coordinator_keys
        ]
    )


def _join_group(request: JoinGroupRequest, version: int, code: int, message: str | None) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name=None if version >= 7 else "")


def _describe_groups(
    request: DescribeGroupsRequest, version: int, code: int, message: str | None
) -> DescribeGroupsResponse:
    text = message if version >= 6 else None
    return DescribeGroupsResponse(
        groups=[DescribedGroup(error_code=code, error_message=text, group_id=name) for name in request.groups]
    )


def _delete_groups(request: DeleteGroupsRequest, version: int, code: int, message: str | None) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names]
    )


def _describe_producers(
    request: DescribeProducersRequest, version: int, code: int, message: str | None
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=code) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _init_producer_id(
    request: Request[Response], version: int, code: int, message: str | None
) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def _add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, version: int, code: int, message: str | None
) -> AddPartitionsToTxnResponse:
    if version >= 4:
        return AddPartitionsToTxnResponse(error_code=code)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _write_txn_markers(
    request: WriteTxnMarkersRequest, version: int, code: int, message: str | None
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _describe_transactions(
    request: DescribeTransactionsRequest, version: int, code: int, message: str | None
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(transactional_id=transactional_id, error_code=code)
            for transactional_id in request.transactional_ids
        ]
    )


def _create_topics(request: Part, version: int, code: int, message: str | None) -> CreateTopicsResponse:
    topics = [CreatableTopicResult(name=topic.name, error_code=code, error_message=message) for topic in request.topics]
    return CreateTopicsResponse(topics=topics)


def _create_partitions(request: Part, version: int, code: int, message: str | None) -> CreatePartitionsResponse:
    results = [
        CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message) for topic in request.topics
    ]
    return CreatePartitionsResponse(results=results)


def _delete_topics(request: DeleteTopicsRequest, version: int, code: int, message: str | None) -> DeleteTopicsResponse:
    responses = [
        DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message)
        for topic in request.topics
    ] + [
        DeletableTopicResult(name=name, topic_id=ZERO_UUID, error_code=code, error_message=message)
        for name in request.topic_names
    ]
    return DeleteTopicsResponse(responses=responses)


def _of_partitions(
    response_class: type[Response], topic_class: type[Struct], partition_class: type[Struct], **more: object
) -> Callable[[Part, int, int, str | None], Response]:
    """For responses with an error code in each partition of each topic; ``more`` sets further fields of each."""
    names = topic_class.schema.names
    index_name = "partition" if "partition" in partition_class.schema.names else "partition_index"

    def make(request: Part, version: int, code: int, message: str | None) -> Response:
        topics = []
        for topic in request.topics:
            fields = {name: getattr(topic, name) for name in names if name != "partitions"}
            fields["partitions"] = [
                partition_class(**{index_name: getattr(partition, index_name), "error_code": code, **more})
                for partition in topic.partitions
            ]
            topics.append(topic_class(**fields))
        fields = {"topics": topics}
        return response_class(**fields)

    return make


def _of_resources(
    response_class: type[Response],
    results: str,
    result_class: type[DescribeConfigsResult | AlterConfigsResourceResponse],
) -> Callable[[Part, int, int, str | None], Response]:
    """For responses with an error code for each resource, in the list named ``results``."""

    def make(request: Part, version: int, code: int, message: str | None) -> Response:
        fields = {
            results: [
                result_class(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        }
        return response_class(**fields)

    return make


_ERROR_RESPONSES: Final[dict[int, Callable[[Part, int, int, str | None], Response | None]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.METADATA: _metadata,
    ApiKey.API_VERSIONS: _api_versions,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.DESCRIBE_CONFIGS: _of_resources(DescribeConfigsResponse, "results", DescribeConfigsResult),
    ApiKey.ALTER_CONFIGS: _of_resources(AlterConfigsResponse, "responses", AlterConfigsResourceResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _of_resources(
        IncrementalAlterConfigsResponse, "responses", AlterConfigsResourceResponse
    ),
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    ApiKey.LIST_OFFSETS: _of_partitions(ListOffsetsResponse, ListOffsetsTopicResponse, ListOffsetsPartitionResponse),
    ApiKey.OFFSET_COMMIT: _of_partitions(
        OffsetCommitResponse, OffsetCommitResponseTopic, OffsetCommitResponsePartition
    ),
    ApiKey.TXN_OFFSET_COMMIT: _of_partitions(
        TxnOffsetCommitResponse, TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition
    ),
    ApiKey.DELETE_RECORDS: _of_partitions(
        DeleteRecordsResponse, DeleteRecordsTopicResult, DeleteRecordsPartitionResult, low_watermark=-1
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _of_partitions(
        OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult, EpochEndOffset
    ),
}


@dataclass(frozen=True, slots=True)
class TopicList:
    """The field with the topics of a request, and the one with their results in the response."""

    topics: str
    results: str
    partitions: str | None = None
    answers: str = "partitions"
    """The field of a topic's result with its partitions' results."""
    index: str = "partition_index"
    name: str = "name"
    has_plain_names: bool = False
    """Whether the list has names instead of structs."""


TOPIC_LISTS: Final[dict[int, tuple[TopicList, ...]]] = {
    ApiKey.PRODUCE: (TopicList("topic_data", "responses", "partition_data", "partition_responses", "index"),),
    ApiKey.LIST_OFFSETS: (TopicList("topics", "topics", "partitions"),),
    ApiKey.OFFSET_COMMIT: (TopicList("topics", "topics", "partitions"),),
    ApiKey.TXN_OFFSET_COMMIT: (TopicList("topics", "topics", "partitions"),),
    ApiKey.DELETE_RECORDS: (TopicList("topics", "topics", "partitions"),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (TopicList("topics", "topics", "partitions", index="partition", name="topic"),),
    ApiKey.CREATE_TOPICS: (TopicList("topics", "topics"),),
    ApiKey.CREATE_PARTITIONS: (TopicList("topics", "results"),),
    ApiKey.DELETE_TOPICS: (
        TopicList("topics", "responses"),
        TopicList("topic_names", "responses", has_plain_names=True),
    ),
}
"""The requests with parts that ``take_out`` can remove."""


def take_out(
    request: Request[Response],
    version: int,
    error_for: Callable[[str | None, int | None], BrokerError | None],
    name_of: Callable[[bytes], str | None],
) -> list[Response | None]:
    """Remove the parts of ``request`` that ``error_for(topic, partition)`` has an error for.

    Returns the ``error_response`` of each. ``name_of`` resolves topic ids.
    """
    taken: list[Response | None] = []
    for shape in TOPIC_LISTS[request.schema.api_key]:
        kept = []
        for topic in getattr(request, shape.topics):
            name = topic if shape.has_plain_names else getattr(topic, shape.name)
            if not name and "topic_id" in type(topic).schema.names:
                name = name_of(topic.topic_id)
            remaining, failed = _divide(topic, name, shape, error_for)
            kept += remaining
            for part, error in failed:
                lone = _with(request, {other.topics: [] for other in TOPIC_LISTS[request.schema.api_key]})
                setattr(lone, shape.topics, [part])
                taken.append(error_response(lone, version, error))
        setattr(request, shape.topics, kept)
    return taken


def _divide(
    topic: Part,
    name: str | None,
    shape: TopicList,
    error_for: Callable[[str | None, int | None], BrokerError | None],
) -> tuple[list[Part], list[tuple[Part, BrokerError]]]:
    """Return the rest of a topic, and its failed parts."""
    if shape.partitions is None:
        error = error_for(name, None)
        return ([topic], []) if error is None else ([], [(topic, error)])
    kept, failed = [], []
    for partition in getattr(topic, shape.partitions):
        error = error_for(name, getattr(partition, shape.index))
        if error is None:
            kept.append(partition)
        else:
            failed.append((_with(topic, {shape.partitions: [partition]}), error))
    if not failed:
        return [topic], []
    return ([_with(topic, {shape.partitions: kept})] if kept else []), failed


def _with(message: Part, changes: dict[str, object]) -> Part:
    """Return a copy of ``message`` with other values in some fields."""
    fields = {name: getattr(message, name) for name in message.schema.names}
    return type(message)(**{**fields, **changes})


def is_empty(request: Request[Response]) -> bool:
    """Whether no part of a request is left after ``take_out``."""
    return not any(getattr(request, shape.topics) for shape in TOPIC_LISTS[request.schema.api_key])


def merge(request: Request[Response], responses: list[Response]) -> Response:
    """Merge the responses to the parts of ``request``, of which there is at least one, into one response."""
    shape = TOPIC_LISTS[request.schema.api_key][0]
    merged = responses[0]
    for response in responses[1:]:
        results = getattr(merged, shape.results)
        for result in getattr(response, shape.results):
            same = next((other for other in results if _same_topic(other, result, shape)), None)
            if same is None:
                results.append(result)
            else:
                getattr(same, shape.answers).extend(getattr(result, shape.answers))
    return merged


def _same_topic(one: Part, other: Part, shape: TopicList) -> bool:
    """Whether two results belong to one topic and must be merged."""
    if shape.partitions is None:
        return False
    return all(getattr(one, name) == getattr(other, name) for name in (shape.name, "topic_id") if hasattr(one, name))
