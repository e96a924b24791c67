"""All errors that aioproducer raises, in one hierarchy under ``KafkaError``.

Each subclass of ``BrokerError`` stands for an error code of the Kafka protocol. The module defines those that a
producer usually meets, and creates the others at their first use, so that its import stays cheap. The remaining classes
are the client's own. ``aioproducer._common.diagnosis`` builds the errors with a text that depends on what happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aioproducer._common.texts import counted, were
from aioproducer.error_codes import ABORTABLE, CODES, FATAL, RETRIABLE_GROUPS

if TYPE_CHECKING:
    from typing import Protocol

    from aioproducer.record import TopicPartition

    class SendManyCounts(Protocol):
        """What ``SendManyError`` reads of the result of a ``send_many``."""

        @property
        def count(self) -> int: ...

        @property
        def acked(self) -> int: ...


_ErrorT = TypeVar("_ErrorT", bound="KafkaError")


def _rebuild(error_class: type[_ErrorT], args: tuple[object, ...], attributes: Mapping[str, object]) -> _ErrorT:
    """Build an error of ``error_class`` without calling its ``__init__``, for ``copy`` and ``pickle``."""
    error = error_class.__new__(error_class)
    error.args = args
    error.__dict__.update(attributes)
    return error


class KafkaError(Exception):
    """Base of all errors of this package. The text names the problem and the remedy.

    ``retriable``, ``refresh_metadata``, ``abortable`` and ``fatal`` are the groups of KIP-1050. They belong to the
    class: every instance has the same values. ``may_have_been_written`` belongs to the record that failed.
    """

    retriable: bool = False
    """The same request may succeed later, without any change."""
    refresh_metadata: bool = False
    """The client's metadata of the cluster is out of date (Kafka's InvalidMetadataException)."""
    abortable: bool = False
    """Aborting the transaction cures the error; an idempotent producer continues with a new epoch."""
    fatal: bool = False
    """The producer cannot continue: close it."""
    may_have_been_written: bool = False
    """False: the failed record is not in the log and will not be. True: it is, or its outcome is unknown."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        # OSError, a base of some subclasses, does not set args if a subclass overrides __init__.
        self.args = (message,)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())

    def fresh(self) -> Self:
        """Return a copy that was never raised: same class, text and attributes, no traceback and no context.

        An exception object that is raised repeatedly collects tracebacks and keeps their frames alive. A cause that is
        a ``KafkaError`` is copied as well, without its own cause; any other cause is dropped.
        """
        twin = _rebuild(type(self), self.args, self.__dict__)
        if isinstance(self.__cause__, KafkaError):
            cause = self.__cause__
            twin.__cause__ = _rebuild(type(cause), cause.args, cause.__dict__)
        return twin

    def of_record(self, *, may_have_been_written: bool) -> Self:
        """Return this error if it has this value already, else a fresh copy with the value."""
        if self.may_have_been_written == may_have_been_written:
            return self
        twin = self.fresh()
        twin.may_have_been_written = may_have_been_written
        return twin


class ProtocolError(KafkaError):
    """Received bytes violate the Kafka protocol; their connection is no longer usable."""


class CorruptBatchError(ProtocolError):
    """A fetched record batch cannot be read. The consumer's position is the first of its records that was not returned.

    Seek to ``next_offset`` to go on without the batch.
    """

    topic_partition: TopicPartition
    offset: int
    next_offset: int | None = None
    """The offset after the batch; None if it is unknown."""


class ConfigurationError(KafkaError, ValueError):
    """A configuration key or value is wrong; the text names the key."""


class ProducerClosedError(KafkaError, RuntimeError):
    """The producer is closed and accepts no records, or was closed before this record was acknowledged."""


class WrongCallerError(KafkaError, RuntimeError):
    """The producer was called from a thread, event loop or process that does not own it."""


class SerializationError(KafkaError):
    """A key or value could not be serialized; ``__cause__`` is the serializer's exception."""

    def fresh(self) -> Self:
        """Return a copy as ``KafkaError.fresh`` does, but keep the serializer's exception of any class as its cause."""
        twin = super().fresh()
        if twin.__cause__ is None:
            twin.__cause__ = self.__cause__
        return twin


class RecordDeserializationError(SerializationError):
    """A key or value could not be deserialized; ``__cause__`` is the deserializer's exception.

    The consumer's position is that of the record. Seek past it to continue, or set ``on_deserialization_error``.
    """

    topic_partition: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    is_key: bool
    """Whether the key could not be deserialized; else the value."""


class NoOffsetForPartitionError(KafkaError):
    """A partition has no position, and ``auto_offset_reset`` is none: seek to a position."""


class LogTruncationError(KafkaError):
    """The log was truncated before the position (KIP-320), and ``auto_offset_reset`` is none: seek to a position."""


class ConsumerClosedError(KafkaError, RuntimeError):
    """The consumer is closed, or is not started."""


class SubscriptionError(KafkaError, RuntimeError):
    """``subscribe`` and ``assign`` exclude each other: call ``unsubscribe`` between them."""


class InvalidPartitionError(KafkaError, ValueError):
    """The topic does not have the partition that was given, or that a partitioner returned."""


class KafkaTimeoutError(KafkaError, TimeoutError):
    """An operation exceeded its time limit (Kafka's TimeoutException); also a builtin ``TimeoutError``."""

    retriable = True


class DeliveryTimeoutError(KafkaTimeoutError):
    """A record was not acknowledged within ``delivery_timeout_ms`` (KIP-91)."""

    abortable = True


class MetadataTimeoutError(KafkaTimeoutError):
    """No metadata of a topic arrived within ``max_block_ms``, or of the cluster within ``wait_ready``'s timeout."""


class BufferExhaustedError(KafkaTimeoutError):
    """No room in ``buffer_memory`` for a record within ``max_block_ms``, or the queue of waiting records is full."""


class ConnectionFailedError(KafkaError):
    """No connection to a broker could be made."""

    retriable = True
    refresh_metadata = True


class BootstrapResolutionError(ConnectionFailedError):
    """No host name in ``bootstrap_servers`` could be resolved (KIP-909)."""

    retriable = False
    refresh_metadata = False
    fatal = True


class TlsError(ConnectionFailedError):
    """The TLS handshake failed, or only one side speaks TLS. A retry does not help: the configuration must change."""

    retriable = False
    refresh_metadata = False


class TokenProviderError(KafkaError):
    """The provider of a SASL token or password failed, was too slow, or returned nothing that is valid now.

    Records wait for the provider until their own deadlines. The text says why it failed, and contains no secret.
    """

    retriable = True


class TransactionStateError(KafkaError, RuntimeError):
    """A call that the state of the transaction does not allow; nothing has changed (Kafka's IllegalStateException)."""


class TransactionEndedError(TransactionStateError):
    """The transaction is committed or aborted, or is about to be: it takes no more records or offsets."""


class TransactionAbortedError(KafkaError):
    """The record was not sent before its transaction was aborted (Kafka's TransactionAbortedException)."""


class CommitFailedError(KafkaError):
    """A consumer group rejects the offsets of a member that it has replaced (Kafka's CommitFailedException)."""

    abortable = True


class TransactionOutcomeUnknownError(KafkaError):
    """The commit of a transaction was sent, and this producer cannot find out whether it succeeded.

    Read the log to find out: a consumer with ``isolation.level=read_committed`` sees the records of a committed
    transaction only. Until the transaction has ended, it sees no later record of these partitions either.
    """

    fatal = True

    transactional_id: str = ""
    producer_id: int = -1
    producer_epoch: int = -1


class BatchRejectedError(KafkaError):
    """The broker rejected a batch because of other records in it (KIP-467); this record was not the reason.

    A record that is sent again goes into another batch. The culprits fail with the broker's error, which is also the
    ``__cause__`` of this one.
    """

    retriable = True

    def __init__(self, message: str = "", culprits: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.culprits: tuple[tuple[int, str], ...] = tuple(culprits)
        """The records that the broker rejected: for each its index in the batch, from 0, and the broker's message."""


class SendManyError(KafkaError):
    """Some records of a ``send_many`` failed."""

    def __init__(
        self,
        result: SendManyCounts,
        errors: Mapping[TopicPartition, KafkaError],
        *,
        may_have_been_written: bool = False,
    ) -> None:
        self.may_have_been_written = may_have_been_written
        self.result = result
        """Counts and offsets of the whole call."""
        self.errors: dict[TopicPartition, KafkaError] = dict(errors)
        """The first error of each partition that had one."""
        failed = result.count - result.acked
        first = next(iter(self.errors.items()), None)
        which = "failed partition" if len(self.errors) == 1 else f"first of {len(self.errors)} failed partitions"
        where = f" The {which} is {first[0]}: {first[1]}" if first else ""
        super().__init__(f"{failed} of {counted(result.count, 'record')} {were(failed)} not acknowledged.{where}")


class PartialFailureError(KafkaError):
    """A call of ``Admin`` for several groups, partitions or members has succeeded for some of them only.

    If it has succeeded for none, it raises the error of one of them instead.
    """

    def __init__(
        self,
        message: str = "",
        *,
        failures: Mapping[Any, KafkaError] | None = None,
        results: Mapping[Any, object] | None = None,
    ) -> None:
        super().__init__(message)
        # Any: keys are group ids, partitions, or members; a mapping's keys are invariant.
        self.failures: dict[Any, KafkaError] = dict(failures or {})
        """The error of each group id, partition or member that failed."""
        self.results: dict[Any, Any] = dict(results or {})
        """What the call would have returned for each of the others; None if it returns nothing."""


class BrokerError(KafkaError):
    """An error code of the Kafka protocol, as a broker returned it or as the client assigned it.

    Without a message, the text explains the code and what to do. (The texts are imported at their first use.)
    """

    code: int = -1
    """The protocol's error code. An ``UnknownServerError`` holds a code that this version does not know."""
    error_name: str = "UNKNOWN_SERVER_ERROR"
    """Kafka's name of the code."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        code = cls.__dict__.get("code")
        if code is not None:
            cls.error_name, _, group = CODES[code]
            cls.retriable = group in RETRIABLE_GROUPS
            cls.refresh_metadata = group == "InvalidMetadata"
            cls.abortable = code in ABORTABLE
            cls.fatal = code in FATAL

    def __init__(self, message: str | None = None) -> None:
        if message is None:
            from aioproducer._common.error_texts import broker_text

            message = broker_text(self.code, None)
        super().__init__(message)


class AuthenticationError(BrokerError):
    """The client could not be authenticated (Kafka's AuthenticationException)."""


class AuthorizationError(BrokerError):
    """The client lacks a permission (Kafka's AuthorizationException)."""


class UnknownServerError(BrokerError):
    """The broker failed without a specific code, or returned a ``code`` that this version does not know."""

    code = -1


class UnknownTopicOrPartitionError(BrokerError):
    """The broker does not host the topic or partition."""

    code = 3


class LeaderNotAvailableError(BrokerError):
    """The partition has no leader at present."""

    code = 5


class NotLeaderOrFollowerError(BrokerError):
    """The leader has moved to another broker."""

    code = 6


class RequestTimedOutError(BrokerError, KafkaTimeoutError):
    """The broker did not finish the request in time, e.g. because replicas were slow (Kafka's TimeoutException)."""

    code = 7


class RecordTooLargeError(BrokerError):
    """A record or its batch is larger than ``max_request_size``, or than the topic or broker accepts."""

    code = 10


class NetworkError(BrokerError):
    """The connection ended before the response arrived."""

    code = 13


class InvalidTopicError(BrokerError):
    """The topic's name is invalid, or clients must not write to the topic."""

    code = 17


class RecordBatchTooLargeError(BrokerError):
    """A batch is larger than a segment of the topic's log."""

    code = 18


class NotEnoughReplicasError(BrokerError):
    """Fewer in-sync replicas than min.insync.replicas; nothing was written."""

    code = 19


class NotEnoughReplicasAfterAppendError(BrokerError):
    """Records were written, but then there were fewer in-sync replicas than min.insync.replicas."""

    code = 20


class TopicAuthorizationError(AuthorizationError):
    """No permission for the topic."""

    code = 29


class ClusterAuthorizationError(AuthorizationError):
    """No permission in the cluster, e.g. for idempotent writes before Kafka 2.8."""

    code = 31


class InvalidTimestampError(BrokerError):
    """A timestamp is outside the range that the topic accepts."""

    code = 32


class UnsupportedVersionError(BrokerError):
    """Client and broker share no version of a request, or of a feature in it."""

    code = 35


class TopicExistsError(BrokerError):
    """A topic of this name exists already."""

    code = 36


class PolicyViolationError(BrokerError):
    """A policy of the cluster forbids the request."""

    code = 44


class OutOfOrderSequenceError(BrokerError):
    """Sequence numbers have a gap: earlier records may be lost."""

    code = 45


class InvalidProducerEpochError(BrokerError):
    """A newer epoch has replaced the producer's."""

    code = 47


class TransactionalIdAuthorizationError(AuthorizationError):
    """No permission for the transactional id."""

    code = 53


class KafkaStorageError(BrokerError):
    """The broker could not reach the disk that holds the partition."""

    code = 56


class SaslAuthenticationError(AuthenticationError):
    """The broker rejected the credentials."""

    code = 58


class UnknownProducerIdError(OutOfOrderSequenceError):
    """The broker no longer knows the producer id."""

    code = 59


class InvalidRecordError(BrokerError):
    """The broker found an invalid record, e.g. one without a key in a compacted topic."""

    code = 87


class ProducerFencedError(BrokerError):
    """Another producer with the same transactional id has replaced this one."""

    code = 90


class TransactionAbortableError(BrokerError):
    """Aborting the transaction cures it (KIP-890)."""

    code = 120


_CODE_OF_CLASS = {class_name: code for code, (_, class_name, _) in CODES.items()}
_BASE_OF_GROUP = {"Authorization": AuthorizationError, "Authentication": AuthenticationError}


def error_class(code: int) -> type[BrokerError]:
    """Return the class of ``code``; ``UnknownServerError`` for codes that this version does not know.

    Raises:
        ValueError: ``code`` is 0, which is no error.
    """
    if code == 0:
        raise ValueError("code 0 (NONE) is no error and has no class")
    if code not in CODES:
        return UnknownServerError
    _, class_name, group = CODES[code]
    known = globals().get(class_name)
    if known is None:
        from aioproducer._common.error_texts import SUMMARIES

        namespace = {"__module__": __name__, "__doc__": SUMMARIES[code], "code": code}
        known = type(class_name, (_BASE_OF_GROUP.get(group, BrokerError),), namespace)
        globals()[class_name] = known
    assert issubclass(known, BrokerError)
    return known


def broker_error(code: int, message: str | None = None) -> BrokerError:
    """Return the error for a broker's ``code`` and, if it sent one, its ``message``.

    The error keeps a code that this version does not know.

    Raises:
        ValueError: ``code`` is 0, which is no error.
    """
    from aioproducer._common.error_texts import broker_text

    error = error_class(code)(broker_text(code, message))
    if error.code != code:
        error.code = code
    return error


def __dir__() -> list[str]:
    return sorted({*globals(), *_CODE_OF_CLASS})


if TYPE_CHECKING:
    OffsetOutOfRangeError: type[BrokerError]
    CorruptRecordError: type[BrokerError]
    InvalidFetchSizeError: type[BrokerError]
    BrokerNotAvailableError: type[BrokerError]
    ReplicaNotAvailableError: type[BrokerError]
    ControllerMovedError: type[BrokerError]
    OffsetMetadataTooLargeError: type[BrokerError]
    CoordinatorLoadInProgressError: type[BrokerError]
    CoordinatorNotAvailableError: type[BrokerError]
    NotCoordinatorError: type[BrokerError]
    InvalidRequiredAcksError: type[BrokerError]
    IllegalGenerationError: type[BrokerError]
    InconsistentGroupProtocolError: type[BrokerError]
    InvalidGroupIdError: type[BrokerError]
    UnknownMemberIdError: type[BrokerError]
    InvalidSessionTimeoutError: type[BrokerError]
    RebalanceInProgressError: type[BrokerError]
    InvalidCommitOffsetSizeError: type[BrokerError]
    GroupAuthorizationError: type[AuthorizationError]
    UnsupportedSaslMechanismError: type[AuthenticationError]
    IllegalSaslStateError: type[AuthenticationError]
    InvalidPartitionsError: type[BrokerError]
    InvalidReplicationFactorError: type[BrokerError]
    InvalidReplicaAssignmentError: type[BrokerError]
    InvalidConfigurationError: type[BrokerError]
    NotControllerError: type[BrokerError]
    InvalidRequestError: type[BrokerError]
    UnsupportedForMessageFormatError: type[BrokerError]
    DuplicateSequenceError: type[BrokerError]
    InvalidTxnStateError: type[BrokerError]
    InvalidPidMappingError: type[BrokerError]
    InvalidTxnTimeoutError: type[BrokerError]
    ConcurrentTransactionsError: type[BrokerError]
    TransactionCoordinatorFencedError: type[BrokerError]
    SecurityDisabledError: type[BrokerError]
    OperationNotAttemptedError: type[BrokerError]
    LogDirNotFoundError: type[BrokerError]
    ReassignmentInProgressError: type[BrokerError]
    DelegationTokenDisabledError: type[BrokerError]
    DelegationTokenNotFoundError: type[BrokerError]
    DelegationTokenOwnerMismatchError: type[BrokerError]
    UnsupportedByAuthenticationError: type[BrokerError]
    DelegationTokenAuthorizationError: type[AuthorizationError]
    DelegationTokenExpiredError: type[BrokerError]
    InvalidPrincipalTypeError: type[BrokerError]
    GroupNotEmptyError: type[BrokerError]
    GroupIdNotFoundError: type[BrokerError]
    FetchSessionIdNotFoundError: type[BrokerError]
    InvalidFetchSessionEpochError: type[BrokerError]
    ListenerNotFoundError: type[BrokerError]
    TopicDeletionDisabledError: type[BrokerError]
    FencedLeaderEpochError: type[BrokerError]
    UnknownLeaderEpochError: type[BrokerError]
    UnsupportedCompressionTypeError: type[BrokerError]
    StaleBrokerEpochError: type[BrokerError]
    OffsetNotAvailableError: type[BrokerError]
    MemberIdRequiredError: type[BrokerError]
    PreferredLeaderNotAvailableError: type[BrokerError]
    GroupMaxSizeReachedError: type[BrokerError]
    FencedInstanceIdError: type[BrokerError]
    EligibleLeadersNotAvailableError: type[BrokerError]
    ElectionNotNeededError: type[BrokerError]
    NoReassignmentInProgressError: type[BrokerError]
    GroupSubscribedToTopicError: type[BrokerError]
    UnstableOffsetCommitError: type[BrokerError]
    ThrottlingQuotaExceededError: type[BrokerError]
    ResourceNotFoundError: type[BrokerError]
    DuplicateResourceError: type[BrokerError]
    UnacceptableCredentialError: type[BrokerError]
    InconsistentVoterSetError: type[BrokerError]
    InvalidUpdateVersionError: type[BrokerError]
    FeatureUpdateFailedError: type[BrokerError]
    PrincipalDeserializationError: type[BrokerError]
    SnapshotNotFoundError: type[BrokerError]
    PositionOutOfRangeError: type[BrokerError]
    UnknownTopicIdError: type[BrokerError]
    DuplicateBrokerRegistrationError: type[BrokerError]
    BrokerIdNotRegisteredError: type[BrokerError]
    InconsistentTopicIdError: type[BrokerError]
    InconsistentClusterIdError: type[BrokerError]
    TransactionalIdNotFoundError: type[BrokerError]
    FetchSessionTopicIdError: type[BrokerError]
    IneligibleReplicaError: type[BrokerError]
    NewLeaderElectedError: type[BrokerError]
    OffsetMovedToTieredStorageError: type[BrokerError]
    FencedMemberEpochError: type[BrokerError]
    UnreleasedInstanceIdError: type[BrokerError]
    UnsupportedAssignorError: type[BrokerError]
    StaleMemberEpochError: type[BrokerError]
    MismatchedEndpointTypeError: type[BrokerError]
    UnsupportedEndpointTypeError: type[BrokerError]
    UnknownControllerIdError: type[BrokerError]
    UnknownSubscriptionIdError: type[BrokerError]
    TelemetryTooLargeError: type[BrokerError]
    InvalidRegistrationError: type[BrokerError]
    InvalidRecordStateError: type[BrokerError]
    ShareSessionNotFoundError: type[BrokerError]
    InvalidShareSessionEpochError: type[BrokerError]
    FencedStateEpochError: type[BrokerError]
    InvalidVoterKeyError: type[BrokerError]
    DuplicateVoterError: type[BrokerError]
    VoterNotFoundError: type[BrokerError]
    InvalidRegularExpressionError: type[BrokerError]
    RebootstrapRequiredError: type[BrokerError]
    StreamsInvalidTopologyError: type[BrokerError]
    StreamsInvalidTopologyEpochError: type[BrokerError]
    StreamsTopologyFencedError: type[BrokerError]
    ShareSessionLimitReachedError: type[BrokerError]
    GroupDeletionFailedError: type[BrokerError]
    StreamsTopologyDescriptionUpdateFailedError: type[BrokerError]
    ControllerIdNotRegisteredError: type[BrokerError]
else:

    def __getattr__(name):
        code = _CODE_OF_CLASS.get(name)
        if code is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return error_class(code)
