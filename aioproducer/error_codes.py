"""Kafka's error codes as data, from which ``aioproducer.errors`` makes its classes.

Names, exceptions and their superclasses are those of ``org.apache.kafka.common.protocol.Errors`` of Kafka 4.4.0; the
superclasses are the error groups of KIP-1050. Code 0 (NONE) is no error and is not here.
"""

from __future__ import annotations

# The codes that core, io and the client compare by name.
NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
MESSAGE_TOO_LARGE = 10
OFFSET_METADATA_TOO_LARGE = 12
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
INVALID_TOPIC_EXCEPTION = 17
ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
INVALID_COMMIT_OFFSET_SIZE = 28
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
UNSUPPORTED_VERSION = 35
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
CONCURRENT_TRANSACTIONS = 51
TRANSACTION_COORDINATOR_FENCED = 52
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
SASL_AUTHENTICATION_FAILED = 58
UNKNOWN_PRODUCER_ID = 59
GROUP_ID_NOT_FOUND = 69
FENCED_LEADER_EPOCH = 74
UNSUPPORTED_COMPRESSION_TYPE = 76
MEMBER_ID_REQUIRED = 79
GROUP_MAX_SIZE_REACHED = 81
FENCED_INSTANCE_ID = 82
UNSTABLE_OFFSET_COMMIT = 88
PRODUCER_FENCED = 90
UNKNOWN_TOPIC_ID = 100
TRANSACTIONAL_ID_NOT_FOUND = 105
STALE_MEMBER_EPOCH = 113
TRANSACTION_ABORTABLE = 120
INVALID_REGULAR_EXPRESSION = 128
REBOOTSTRAP_REQUIRED = 129

RETRIABLE_GROUPS = frozenset({"Retriable", "RefreshRetriable", "InvalidMetadata"})

# Code: (name, class in aioproducer.errors, Kafka's superclass without "Exception").
CODES: dict[int, tuple[str, str, str]] = {
    -1: ("UNKNOWN_SERVER_ERROR", "UnknownServerError", "Api"),
    1: ("OFFSET_OUT_OF_RANGE", "OffsetOutOfRangeError", "InvalidOffset"),
    2: ("CORRUPT_MESSAGE", "CorruptRecordError", "Retriable"),
    3: ("UNKNOWN_TOPIC_OR_PARTITION", "UnknownTopicOrPartitionError", "InvalidMetadata"),
    4: ("INVALID_FETCH_SIZE", "InvalidFetchSizeError", "Api"),
    5: ("LEADER_NOT_AVAILABLE", "LeaderNotAvailableError", "InvalidMetadata"),
    6: ("NOT_LEADER_OR_FOLLOWER", "NotLeaderOrFollowerError", "InvalidMetadata"),
    7: ("REQUEST_TIMED_OUT", "RequestTimedOutError", "Retriable"),
    8: ("BROKER_NOT_AVAILABLE", "BrokerNotAvailableError", "Api"),
    9: ("REPLICA_NOT_AVAILABLE", "ReplicaNotAvailableError", "InvalidMetadata"),
    10: ("MESSAGE_TOO_LARGE", "RecordTooLargeError", "Api"),
    11: ("STALE_CONTROLLER_EPOCH", "ControllerMovedError", "Api"),
    12: ("OFFSET_METADATA_TOO_LARGE", "OffsetMetadataTooLargeError", "Api"),
    13: ("NETWORK_EXCEPTION", "NetworkError", "InvalidMetadata"),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", "CoordinatorLoadInProgressError", "Retriable"),
    15: ("COORDINATOR_NOT_AVAILABLE", "CoordinatorNotAvailableError", "RefreshRetriable"),
    16: ("NOT_COORDINATOR", "NotCoordinatorError", "RefreshRetriable"),
    17: ("INVALID_TOPIC_EXCEPTION", "InvalidTopicError", "InvalidConfiguration"),
    18: ("RECORD_LIST_TOO_LARGE", "RecordBatchTooLargeError", "InvalidConfiguration"),
    19: ("NOT_ENOUGH_REPLICAS", "NotEnoughReplicasError", "Retriable"),
    20: ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NotEnoughReplicasAfterAppendError", "Retriable"),
    21: ("INVALID_REQUIRED_ACKS", "InvalidRequiredAcksError", "InvalidConfiguration"),
    22: ("ILLEGAL_GENERATION", "IllegalGenerationError", "ApplicationRecoverable"),
    23: ("INCONSISTENT_GROUP_PROTOCOL", "InconsistentGroupProtocolError", "Api"),
    24: ("INVALID_GROUP_ID", "InvalidGroupIdError", "Api"),
    25: ("UNKNOWN_MEMBER_ID", "UnknownMemberIdError", "ApplicationRecoverable"),
    26: ("INVALID_SESSION_TIMEOUT", "InvalidSessionTimeoutError", "Api"),
    27: ("REBALANCE_IN_PROGRESS", "RebalanceInProgressError", "Api"),
    28: ("INVALID_COMMIT_OFFSET_SIZE", "InvalidCommitOffsetSizeError", "Api"),
    29: ("TOPIC_AUTHORIZATION_FAILED", "TopicAuthorizationError", "Authorization"),
    30: ("GROUP_AUTHORIZATION_FAILED", "GroupAuthorizationError", "Authorization"),
    31: ("CLUSTER_AUTHORIZATION_FAILED", "ClusterAuthorizationError", "Authorization"),
    32: ("INVALID_TIMESTAMP", "InvalidTimestampError", "Api"),
    33: ("UNSUPPORTED_SASL_MECHANISM", "UnsupportedSaslMechanismError", "Authentication"),
    34: ("ILLEGAL_SASL_STATE", "IllegalSaslStateError", "Authentication"),
    35: ("UNSUPPORTED_VERSION", "UnsupportedVersionError", "InvalidConfiguration"),
    36: ("TOPIC_ALREADY_EXISTS", "TopicExistsError", "Api"),
    37: ("INVALID_PARTITIONS", "InvalidPartitionsError", "Api"),
    38: ("INVALID_REPLICATION_FACTOR", "InvalidReplicationFactorError", "InvalidConfiguration"),
    39: ("INVALID_REPLICA_ASSIGNMENT", "InvalidReplicaAssignmentError", "Api"),
    40: ("INVALID_CONFIG", "InvalidConfigurationError", "Api"),
    41: ("NOT_CONTROLLER", "NotControllerError", "Retriable"),
    42: ("INVALID_REQUEST", "InvalidRequestError", "Api"),
    43: ("UNSUPPORTED_FOR_MESSAGE_FORMAT", "UnsupportedForMessageFormatError", "InvalidConfiguration"),
    44: ("POLICY_VIOLATION", "PolicyViolationError", "Api"),
    45: ("OUT_OF_ORDER_SEQUENCE_NUMBER", "OutOfOrderSequenceError", "Api"),
    46: ("DUPLICATE_SEQUENCE_NUMBER", "DuplicateSequenceError", "Api"),
    47: ("INVALID_PRODUCER_EPOCH", "InvalidProducerEpochError", "ApplicationRecoverable"),
    48: ("INVALID_TXN_STATE", "InvalidTxnStateError", "Api"),
    49: ("INVALID_PRODUCER_ID_MAPPING", "InvalidPidMappingError", "ApplicationRecoverable"),
    50: ("INVALID_TRANSACTION_TIMEOUT", "InvalidTxnTimeoutError", "Api"),
    51: ("CONCURRENT_TRANSACTIONS", "ConcurrentTransactionsError", "Retriable"),
    52: ("TRANSACTION_COORDINATOR_FENCED", "TransactionCoordinatorFencedError", "Api"),
    53: ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "TransactionalIdAuthorizationError", "Authorization"),
    54: ("SECURITY_DISABLED", "SecurityDisabledError", "Api"),
    55: ("OPERATION_NOT_ATTEMPTED", "OperationNotAttemptedError", "Api"),
    56: ("KAFKA_STORAGE_ERROR", "KafkaStorageError", "InvalidMetadata"),
    57: ("LOG_DIR_NOT_FOUND", "LogDirNotFoundError", "Api"),
    58: ("SASL_AUTHENTICATION_FAILED", "SaslAuthenticationError", "Authentication"),
    59: ("UNKNOWN_PRODUCER_ID", "UnknownProducerIdError", "OutOfOrderSequence"),
    60: ("REASSIGNMENT_IN_PROGRESS", "ReassignmentInProgressError", "Api"),
    61: ("DELEGATION_TOKEN_AUTH_DISABLED", "DelegationTokenDisabledError", "Api"),
    62: ("DELEGATION_TOKEN_NOT_FOUND", "DelegationTokenNotFoundError", "Api"),
    63: ("DELEGATION_TOKEN_OWNER_MISMATCH", "DelegationTokenOwnerMismatchError", "Api"),
    64: ("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", "UnsupportedByAuthenticationError", "Api"),
    65: ("DELEGATION_TOKEN_AUTHORIZATION_FAILED", "DelegationTokenAuthorizationError", "Authorization"),
    66: ("DELEGATION_TOKEN_EXPIRED", "DelegationTokenExpiredError", "Api"),
    67: ("INVALID_PRINCIPAL_TYPE", "InvalidPrincipalTypeError", "Api"),
    68: ("NON_EMPTY_GROUP", "GroupNotEmptyError", "Api"),
    69: ("GROUP_ID_NOT_FOUND", "GroupIdNotFoundError", "Api"),
    70: ("FETCH_SESSION_ID_NOT_FOUND", "FetchSessionIdNotFoundError", "Retriable"),
    71: ("INVALID_FETCH_SESSION_EPOCH", "InvalidFetchSessionEpochError", "Retriable"),
    72: ("LISTENER_NOT_FOUND", "ListenerNotFoundError", "InvalidMetadata"),
    73: ("TOPIC_DELETION_DISABLED", "TopicDeletionDisabledError", "Api"),
    74: ("FENCED_LEADER_EPOCH", "FencedLeaderEpochError", "InvalidMetadata"),
    75: ("UNKNOWN_LEADER_EPOCH", "UnknownLeaderEpochError", "Retriable"),
    76: ("UNSUPPORTED_COMPRESSION_TYPE", "UnsupportedCompressionTypeError", "Api"),
    77: ("STALE_BROKER_EPOCH", "StaleBrokerEpochError", "Api"),
    78: ("OFFSET_NOT_AVAILABLE", "OffsetNotAvailableError", "Retriable"),
    79: ("MEMBER_ID_REQUIRED", "MemberIdRequiredError", "Api"),
    80: ("PREFERRED_LEADER_NOT_AVAILABLE", "PreferredLeaderNotAvailableError", "InvalidMetadata"),
    81: ("GROUP_MAX_SIZE_REACHED", "GroupMaxSizeReachedError", "Api"),
    82: ("FENCED_INSTANCE_ID", "FencedInstanceIdError", "ApplicationRecoverable"),
    83: ("ELIGIBLE_LEADERS_NOT_AVAILABLE", "EligibleLeadersNotAvailableError", "InvalidMetadata"),
    84: ("ELECTION_NOT_NEEDED", "ElectionNotNeededError", "InvalidMetadata"),
    85: ("NO_REASSIGNMENT_IN_PROGRESS", "NoReassignmentInProgressError", "Api"),
    86: ("GROUP_SUBSCRIBED_TO_TOPIC", "GroupSubscribedToTopicError", "Api"),
    87: ("INVALID_RECORD", "InvalidRecordError", "InvalidConfiguration"),
    88: ("UNSTABLE_OFFSET_COMMIT", "UnstableOffsetCommitError", "Retriable"),
    89: ("THROTTLING_QUOTA_EXCEEDED", "ThrottlingQuotaExceededError", "Retriable"),
    90: ("PRODUCER_FENCED", "ProducerFencedError", "ApplicationRecoverable"),
    91: ("RESOURCE_NOT_FOUND", "ResourceNotFoundError", "Api"),
    92: ("DUPLICATE_RESOURCE", "DuplicateResourceError", "Api"),
    93: ("UNACCEPTABLE_CREDENTIAL", "UnacceptableCredentialError", "Api"),
    94: ("INCONSISTENT_VOTER_SET", "InconsistentVoterSetError", "Api"),
    95: ("INVALID_UPDATE_VERSION", "InvalidUpdateVersionError", "Api"),
    96: ("FEATURE_UPDATE_FAILED", "FeatureUpdateFailedError", "Api"),
    97: ("PRINCIPAL_DESERIALIZATION_FAILURE", "PrincipalDeserializationError", "Api"),
    98: ("SNAPSHOT_NOT_FOUND", "SnapshotNotFoundError", "Api"),
    99: ("POSITION_OUT_OF_RANGE", "PositionOutOfRangeError", "Api"),
    100: ("UNKNOWN_TOPIC_ID", "UnknownTopicIdError", "InvalidMetadata"),
    101: ("DUPLICATE_BROKER_REGISTRATION", "DuplicateBrokerRegistrationError", "Api"),
    102: ("BROKER_ID_NOT_REGISTERED", "BrokerIdNotRegisteredError", "Api"),
    103: ("INCONSISTENT_TOPIC_ID", "InconsistentTopicIdError", "InvalidMetadata"),
    104: ("INCONSISTENT_CLUSTER_ID", "InconsistentClusterIdError", "Api"),
    105: ("TRANSACTIONAL_ID_NOT_FOUND", "TransactionalIdNotFoundError", "Api"),
    106: ("FETCH_SESSION_TOPIC_ID_ERROR", "FetchSessionTopicIdError", "Retriable"),
    107: ("INELIGIBLE_REPLICA", "IneligibleReplicaError", "Api"),
    108: ("NEW_LEADER_ELECTED", "NewLeaderElectedError", "Api"),
    109: ("OFFSET_MOVED_TO_TIERED_STORAGE", "OffsetMovedToTieredStorageError", "Api"),
    110: ("FENCED_MEMBER_EPOCH", "FencedMemberEpochError", "Api"),
    111: ("UNRELEASED_INSTANCE_ID", "UnreleasedInstanceIdError", "Api"),
    112: ("UNSUPPORTED_ASSIGNOR", "UnsupportedAssignorError", "Api"),
    113: ("STALE_MEMBER_EPOCH", "StaleMemberEpochError", "Api"),
    114: ("MISMATCHED_ENDPOINT_TYPE", "MismatchedEndpointTypeError", "Api"),
    115: ("UNSUPPORTED_ENDPOINT_TYPE", "UnsupportedEndpointTypeError", "Api"),
    116: ("UNKNOWN_CONTROLLER_ID", "UnknownControllerIdError", "Api"),
    117: ("UNKNOWN_SUBSCRIPTION_ID", "UnknownSubscriptionIdError", "Api"),
    118: ("TELEMETRY_TOO_LARGE", "TelemetryTooLargeError", "Api"),
    119: ("INVALID_REGISTRATION", "InvalidRegistrationError", "Api"),
    120: ("TRANSACTION_ABORTABLE", "TransactionAbortableError", "Api"),
    121: ("INVALID_RECORD_STATE", "InvalidRecordStateError", "Api"),
    122: ("SHARE_SESSION_NOT_FOUND", "ShareSessionNotFoundError", "Retriable"),
    123: ("INVALID_SHARE_SESSION_EPOCH", "InvalidShareSessionEpochError", "Retriable"),
    124: ("FENCED_STATE_EPOCH", "FencedStateEpochError", "Api"),
    125: ("INVALID_VOTER_KEY", "InvalidVoterKeyError", "Api"),
    126: ("DUPLICATE_VOTER", "DuplicateVoterError", "Api"),
    127: ("VOTER_NOT_FOUND", "VoterNotFoundError", "Api"),
    128: ("INVALID_REGULAR_EXPRESSION", "InvalidRegularExpressionError", "Api"),
    129: ("REBOOTSTRAP_REQUIRED", "RebootstrapRequiredError", "Api"),
    130: ("STREAMS_INVALID_TOPOLOGY", "StreamsInvalidTopologyError", "Api"),
    131: ("STREAMS_INVALID_TOPOLOGY_EPOCH", "StreamsInvalidTopologyEpochError", "Api"),
    132: ("STREAMS_TOPOLOGY_FENCED", "StreamsTopologyFencedError", "Api"),
    133: ("SHARE_SESSION_LIMIT_REACHED", "ShareSessionLimitReachedError", "Retriable"),
    134: ("GROUP_DELETION_FAILED", "GroupDeletionFailedError", "Api"),
    135: ("STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", "StreamsTopologyDescriptionUpdateFailedError", "Api"),
    136: ("CONTROLLER_ID_NOT_REGISTERED", "ControllerIdNotRegisteredError", "Api"),
}

# Aborting the transaction cures these; an idempotent producer continues with a new epoch. Kafka's TransactionManager
# enters its abortable state.
ABORTABLE = frozenset({29, 30, 43, 45, 47, 59, 120})

# After these a producer with a producer id cannot continue and must be closed. Kafka's TransactionManager enters its
# fatal state. It does so after a rejected authentication too (33, 34, 58); here the next send authenticates again, with
# the credentials of that time.
FATAL = frozenset({31, 35, 48, 49, 50, 53, 90})

# A broker rejects a batch with these before it appends it (Kafka's KafkaApis, ReplicaManager and UnifiedLog). Not
# included: REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND, which follow the append; KAFKA_STORAGE_ERROR, as the
# disk may fail between the write and the flush; and codes that imply nothing about the log (UNKNOWN_SERVER_ERROR).
REFUSED_BEFORE_APPEND = frozenset(
    {2, 3, 5, 6, 10, 17, 18, 19, 21, 29, 31, 32, 35, 42, 43, 44, 45, 47, 48, 49, 51, 53, 54, 59, 74, 75, 76, 87, 89, 90}
    | {100, 103, 120}
)
