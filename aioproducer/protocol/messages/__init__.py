"""The messages, a module for each family; their structs are imported from there."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.protocol.messages.api_versions import (
        ApiVersionsRequest,
        ApiVersionsResponse,
    )
    from aioproducer.protocol.messages.cluster import (
        DescribeClusterRequest,
        DescribeClusterResponse,
    )
    from aioproducer.protocol.messages.configs import (
        DescribeConfigsRequest,
        DescribeConfigsResponse,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )
    from aioproducer.protocol.messages.consumer_protocol import (
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription,
    )
    from aioproducer.protocol.messages.described_transactions import (
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
    )
    from aioproducer.protocol.messages.fetch import (
        FetchRequest,
        FetchResponse,
    )
    from aioproducer.protocol.messages.group_offsets import (
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
    )
    from aioproducer.protocol.messages.groups import (
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DescribeGroupsRequest,
        DescribeGroupsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        ListGroupsRequest,
        ListGroupsResponse,
        SyncGroupRequest,
        SyncGroupResponse,
    )
    from aioproducer.protocol.messages.headers import (
        RequestHeader,
        ResponseHeader,
    )
    from aioproducer.protocol.messages.legacy_configs import (
        AlterConfigsRequest,
        AlterConfigsResponse,
    )
    from aioproducer.protocol.messages.listed_transactions import (
        ListTransactionsRequest,
        ListTransactionsResponse,
    )
    from aioproducer.protocol.messages.metadata import (
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from aioproducer.protocol.messages.offsets import (
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        ListOffsetsRequest,
        ListOffsetsResponse,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
    )
    from aioproducer.protocol.messages.produce import (
        ProduceRequest,
        ProduceResponse,
    )
    from aioproducer.protocol.messages.producer_ids import (
        InitProducerIdRequest,
        InitProducerIdResponse,
    )
    from aioproducer.protocol.messages.quorum import DescribeQuorumResponse
    from aioproducer.protocol.messages.quorum_request import DescribeQuorumRequest
    from aioproducer.protocol.messages.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )
    from aioproducer.protocol.messages.telemetry import (
        GetTelemetrySubscriptionsRequest,
        GetTelemetrySubscriptionsResponse,
        PushTelemetryRequest,
        PushTelemetryResponse,
    )
    from aioproducer.protocol.messages.topics import (
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeleteTopicsRequest,
        DeleteTopicsResponse,
    )
    from aioproducer.protocol.messages.transactions import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        DescribeProducersRequest,
        DescribeProducersResponse,
        EndTxnRequest,
        EndTxnResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )

__all__ = [
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeQuorumRequest",
    "DescribeQuorumResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "GetTelemetrySubscriptionsRequest",
    "GetTelemetrySubscriptionsResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "PushTelemetryRequest",
    "PushTelemetryResponse",
    "RequestHeader",
    "ResponseHeader",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
]

# The module of each message. A producer needs few of them: a module is imported at the first use of one of its
# messages.
_HOMES = {
    "AddOffsetsToTxnRequest": "transactions",
    "AddOffsetsToTxnResponse": "transactions",
    "AddPartitionsToTxnRequest": "transactions",
    "AddPartitionsToTxnResponse": "transactions",
    "AlterConfigsRequest": "legacy_configs",
    "AlterConfigsResponse": "legacy_configs",
    "ApiVersionsRequest": "api_versions",
    "ApiVersionsResponse": "api_versions",
    "ConsumerProtocolAssignment": "consumer_protocol",
    "ConsumerProtocolSubscription": "consumer_protocol",
    "CreatePartitionsRequest": "topics",
    "CreatePartitionsResponse": "topics",
    "CreateTopicsRequest": "topics",
    "CreateTopicsResponse": "topics",
    "DeleteGroupsRequest": "groups",
    "DeleteGroupsResponse": "groups",
    "DeleteRecordsRequest": "offsets",
    "DeleteRecordsResponse": "offsets",
    "DeleteTopicsRequest": "topics",
    "DeleteTopicsResponse": "topics",
    "DescribeClusterRequest": "cluster",
    "DescribeClusterResponse": "cluster",
    "DescribeConfigsRequest": "configs",
    "DescribeConfigsResponse": "configs",
    "DescribeGroupsRequest": "groups",
    "DescribeGroupsResponse": "groups",
    "DescribeProducersRequest": "transactions",
    "DescribeProducersResponse": "transactions",
    "DescribeQuorumRequest": "quorum_request",
    "DescribeQuorumResponse": "quorum",
    "DescribeTopicPartitionsRequest": "metadata",
    "DescribeTopicPartitionsResponse": "metadata",
    "DescribeTransactionsRequest": "described_transactions",
    "DescribeTransactionsResponse": "described_transactions",
    "EndTxnRequest": "transactions",
    "EndTxnResponse": "transactions",
    "FetchRequest": "fetch",
    "FetchResponse": "fetch",
    "FindCoordinatorRequest": "groups",
    "FindCoordinatorResponse": "groups",
    "GetTelemetrySubscriptionsRequest": "telemetry",
    "GetTelemetrySubscriptionsResponse": "telemetry",
    "HeartbeatRequest": "groups",
    "HeartbeatResponse": "groups",
    "IncrementalAlterConfigsRequest": "configs",
    "IncrementalAlterConfigsResponse": "configs",
    "InitProducerIdRequest": "producer_ids",
    "InitProducerIdResponse": "producer_ids",
    "JoinGroupRequest": "groups",
    "JoinGroupResponse": "groups",
    "LeaveGroupRequest": "groups",
    "LeaveGroupResponse": "groups",
    "ListGroupsRequest": "groups",
    "ListGroupsResponse": "groups",
    "ListOffsetsRequest": "offsets",
    "ListOffsetsResponse": "offsets",
    "ListTransactionsRequest": "listed_transactions",
    "ListTransactionsResponse": "listed_transactions",
    "MetadataRequest": "metadata",
    "MetadataResponse": "metadata",
    "OffsetCommitRequest": "group_offsets",
    "OffsetCommitResponse": "group_offsets",
    "OffsetDeleteRequest": "group_offsets",
    "OffsetDeleteResponse": "group_offsets",
    "OffsetFetchRequest": "group_offsets",
    "OffsetFetchResponse": "group_offsets",
    "OffsetForLeaderEpochRequest": "offsets",
    "OffsetForLeaderEpochResponse": "offsets",
    "ProduceRequest": "produce",
    "ProduceResponse": "produce",
    "PushTelemetryRequest": "telemetry",
    "PushTelemetryResponse": "telemetry",
    "RequestHeader": "headers",
    "ResponseHeader": "headers",
    "SaslAuthenticateRequest": "sasl",
    "SaslAuthenticateResponse": "sasl",
    "SaslHandshakeRequest": "sasl",
    "SaslHandshakeResponse": "sasl",
    "SyncGroupRequest": "groups",
    "SyncGroupResponse": "groups",
    "TxnOffsetCommitRequest": "transactions",
    "TxnOffsetCommitResponse": "transactions",
    "WriteTxnMarkersRequest": "transactions",
    "WriteTxnMarkersResponse": "transactions",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = message
    return message


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
