"""Every request with a number in Kafka 4.4, and the requests that this package can write and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from aioproducer.protocol import messages
from aioproducer.protocol.schema import Request, Response


class ApiKey(IntEnum):
    """The number of a request, under Kafka's name."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


class Api:
    """A request that this package can write and read, and its response."""

    __slots__ = ("key", "request", "response")

    def __init__(self, key: ApiKey, request: type[Request[Response]], response: type[Response]) -> None:
        self.key: Final = key
        self.request: Final = request
        self.response: Final = response

    def __repr__(self) -> str:
        return f"<Api {self.key.name}>"

    @property
    def versions(self) -> range:
        """The versions that can be written and read."""
        return self.request.schema.versions

    @property
    def min_version(self) -> int:
        """The oldest of ``versions``."""
        return self.versions[0]

    @property
    def max_version(self) -> int:
        """The newest of ``versions``."""
        return self.versions[-1]

    @property
    def flexible(self) -> range:
        """The versions with compact encodings and tagged fields (KIP-482); empty if there is none."""
        return self.request.schema.flexible


class _Apis(Mapping[ApiKey, Api]):
    """Creates each ``Api`` at its first use, which imports its messages."""

    __slots__ = ("_made", "_names")

    def __init__(self, names: dict[ApiKey, str]) -> None:
        self._names: Final = names
        self._made: Final[dict[ApiKey, Api]] = {}

    def __getitem__(self, key: ApiKey) -> Api:
        api = self._made.get(key)
        if api is None:
            name = self._names[key]
            request: type[Request[Response]] = getattr(messages, name)
            api = self._made[key] = Api(ApiKey(key), request, request.response_class())
        return api

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


APIS: Final[Mapping[ApiKey, Api]] = _Apis(
    {
        ApiKey.PRODUCE: "ProduceRequest",
        ApiKey.FETCH: "FetchRequest",
        ApiKey.LIST_OFFSETS: "ListOffsetsRequest",
        ApiKey.METADATA: "MetadataRequest",
        ApiKey.OFFSET_COMMIT: "OffsetCommitRequest",
        ApiKey.OFFSET_FETCH: "OffsetFetchRequest",
        ApiKey.FIND_COORDINATOR: "FindCoordinatorRequest",
        ApiKey.JOIN_GROUP: "JoinGroupRequest",
        ApiKey.HEARTBEAT: "HeartbeatRequest",
        ApiKey.LEAVE_GROUP: "LeaveGroupRequest",
        ApiKey.SYNC_GROUP: "SyncGroupRequest",
        ApiKey.DESCRIBE_GROUPS: "DescribeGroupsRequest",
        ApiKey.LIST_GROUPS: "ListGroupsRequest",
        ApiKey.SASL_HANDSHAKE: "SaslHandshakeRequest",
        ApiKey.API_VERSIONS: "ApiVersionsRequest",
        ApiKey.CREATE_TOPICS: "CreateTopicsRequest",
        ApiKey.DELETE_TOPICS: "DeleteTopicsRequest",
        ApiKey.DELETE_RECORDS: "DeleteRecordsRequest",
        ApiKey.INIT_PRODUCER_ID: "InitProducerIdRequest",
        ApiKey.OFFSET_FOR_LEADER_EPOCH: "OffsetForLeaderEpochRequest",
        ApiKey.ADD_PARTITIONS_TO_TXN: "AddPartitionsToTxnRequest",
        ApiKey.ADD_OFFSETS_TO_TXN: "AddOffsetsToTxnRequest",
        ApiKey.END_TXN: "EndTxnRequest",
        ApiKey.WRITE_TXN_MARKERS: "WriteTxnMarkersRequest",
        ApiKey.TXN_OFFSET_COMMIT: "TxnOffsetCommitRequest",
        ApiKey.DESCRIBE_CONFIGS: "DescribeConfigsRequest",
        ApiKey.ALTER_CONFIGS: "AlterConfigsRequest",
        ApiKey.SASL_AUTHENTICATE: "SaslAuthenticateRequest",
        ApiKey.CREATE_PARTITIONS: "CreatePartitionsRequest",
        ApiKey.DELETE_GROUPS: "DeleteGroupsRequest",
        ApiKey.INCREMENTAL_ALTER_CONFIGS: "IncrementalAlterConfigsRequest",
        ApiKey.OFFSET_DELETE: "OffsetDeleteRequest",
        ApiKey.DESCRIBE_QUORUM: "DescribeQuorumRequest",
        ApiKey.DESCRIBE_CLUSTER: "DescribeClusterRequest",
        ApiKey.DESCRIBE_PRODUCERS: "DescribeProducersRequest",
        ApiKey.DESCRIBE_TRANSACTIONS: "DescribeTransactionsRequest",
        ApiKey.LIST_TRANSACTIONS: "ListTransactionsRequest",
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "GetTelemetrySubscriptionsRequest",
        ApiKey.PUSH_TELEMETRY: "PushTelemetryRequest",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: "DescribeTopicPartitionsRequest",
    }
)
"""The requests that this package can write and read, by their numbers."""
