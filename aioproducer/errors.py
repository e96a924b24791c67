"""Every error that aioproducer raises, in one hierarchy under ``KafkaError``.

Those under ``BrokerError`` stand for the error codes of the Kafka protocol, one class each. Those a producer meets are
written below, the others are made when they are first asked for, so that importing this module stays cheap. The rest
are the client's own. ``aioproducer._common.diagnosis`` makes those whose text needs to look at what happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

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
    """An error of ``error_class`` as ``copy`` and ``pickle`` need it: without calling its ``__init__``."""
    error = error_class.__new__(error_class)
    error.args = args
    error.__dict__.update(attributes)
    return error


class KafkaError(Exception):
    """What went wrong, in a sentence that says what to do.

    Four of the flags are the groups of KIP-1050; they are facts of the class and the same for each of its instances.
    ``may_have_been_written`` is a fact of the record that failed.
    """

    retriable: bool = False
    """The same request may succeed later without anybody changing anything."""
    refresh_metadata: bool = False
    """What the client knows of the cluster is out of date (Kafka's InvalidMetadataException)."""
    abortable: bool = False
    """Aborting the transaction cures it; an idempotent producer goes on with a new epoch."""
    fatal: bool = False
    """The producer cannot go on: close it."""
    may_have_been_written: bool = False
    """False: the failed record is not in the log and will not be. True: it is, or its outcome is unknown."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        # OSError, a base of some subclasses, sets args only in an __init__ that is not overridden.
        self.args = (message,)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())

    def fresh(self) -> Self:
        """An equal error that was never raised: same class, text and attributes, no traceback and no context.

        One exception object raised many times collects tracebacks and keeps the frames in them alive. A cause that is
        a ``KafkaError`` comes along as a fresh one, without a cause of its own; any other cause is left behind.
        """
        twin = _rebuild(type(self), self.args, self.__dict__)
        if isinstance(self.__cause__, KafkaError):
            cause = self.__cause__
            twin.__cause__ = _rebuild(type(cause), cause.args, cause.__dict__)
        return twin

    def of_record(self, *, may_have_been_written: bool) -> Self:
        """Return this error if it has this value already, else a fresh one with it."""
        if self.may_have_been_written == may_have_been_written:
            return self
        twin = self.fresh()
        twin.may_have_been_written = may_have_been_written
        return twin


class ProtocolError(KafkaError):
    """Bytes that are not what the Kafka protocol says; the connection they came from cannot be used any more."""


class ConfigurationError(KafkaError, ValueError):
    """A configuration key or value is wrong; the text names the key."""


class ProducerClosedError(KafkaError, RuntimeError):
    """The producer is closed and takes no more records, or was closed before this record was acknowledged."""


class WrongCallerError(KafkaError, RuntimeError):
    """The producer was called from a thread, event loop or process other than the one it belongs to."""


class SerializationError(KafkaError):
    """A key or value could not be turned into bytes."""

    def fresh(self) -> Self:
        """As ever, with what the serializer raised, of whatever class, as its cause."""
        twin = super().fresh()
        if twin.__cause__ is None:
            twin.__cause__ = self.__cause__
        return twin


class InvalidPartitionError(KafkaError, ValueError):
    """The partition given, or chosen by a partitioner, is none of the topic's."""


class KafkaTimeoutError(KafkaError, TimeoutError):
    """Something did not happen within its time (Kafka's TimeoutException). A builtin ``TimeoutError`` as well."""

    retriable = True


class DeliveryTimeoutError(KafkaTimeoutError):
    """A record was not acknowledged within ``delivery_timeout_ms`` (KIP-91)."""

    abortable = True


class MetadataTimeoutError(KafkaTimeoutError):
    """A topic's partitions did not become known within ``max_block_ms``."""


class BufferExhaustedError(KafkaTimeoutError):
    """No room in ``buffer_memory`` for a record within ``max_block_ms``, or the line of those who wait is full."""


class ConnectionFailedError(KafkaError):
    """No connection to a broker could be made."""

    retriable = True
    refresh_metadata = True


class BootstrapResolutionError(ConnectionFailedError):
    """None of the bootstrap servers' names could be resolved (KIP-909)."""

    retriable = False
    refresh_metadata = False
    fatal = True


class TlsError(ConnectionFailedError):
    """The TLS handshake failed, or one side speaks TLS and the other does not: somebody must change something."""

    retriable = False
    refresh_metadata = False


class UnsupportedSecurityProtocolError(ConfigurationError):
    """The security protocol or SASL mechanism asked for is not supported by this version of aioproducer."""


class BatchRejectedError(KafkaError):
    """The broker rejected a batch because of other records in it (KIP-467): this one was not the reason.

    Sent again, it goes into another batch. The records to blame have the broker's error; it is the cause of this one.
    """

    retriable = True

    def __init__(self, message: str = "", culprits: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.culprits: tuple[tuple[int, str], ...] = tuple(culprits)
        """The records to blame: the place of each in the batch, counted from 0, and what the broker says of it."""


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
        """What became of the whole call."""
        self.errors: dict[TopicPartition, KafkaError] = dict(errors)
        """The first error of each partition that had one."""
        failed = result.count - result.acked
        first = next(iter(self.errors.items()), None)
        which = "failed partition" if len(self.errors) == 1 else f"first of {len(self.errors)} failed partitions"
        where = f" The {which} is {first[0]}: {first[1]}" if first else ""
        super().__init__(f"{failed} of {counted(result.count, 'record')} {were(failed)} not acknowledged.{where}")


class BrokerError(KafkaError):
    """An error that a broker answered with, or that stands for one of the protocol's error codes.

    Made without a message it says what its code means and what to do. (The texts are imported when first needed.)
    """

    code: int = -1
    """The protocol's error code. Where a code is unknown to this version, an ``UnknownServerError`` holds it."""
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
    """Who this client is could not be established (Kafka's AuthenticationException)."""


class AuthorizationError(BrokerError):
    """This client may not do what it asked for (Kafka's AuthorizationException)."""


class UnknownServerError(BrokerError):
    """The broker met an error without a code, or answered with a code unknown here: ``code`` tells."""

    code = -1


class UnknownTopicOrPartitionError(BrokerError):
    """The topic or partition does not exist where it was looked for."""

    code = 3


class LeaderNotAvailableError(BrokerError):
    """The partition has no leader at present."""

    code = 5


class NotLeaderOrFollowerError(BrokerError):
    """The leader has moved to another broker."""

    code = 6


class RequestTimedOutError(BrokerError, KafkaTimeoutError):
    """The broker gave up on the request, e.g. because replicas were slow (Kafka's TimeoutException, code 7)."""

    code = 7


class RecordTooLargeError(BrokerError):
    """A record or its batch is larger than ``max_request_size``, or than the topic or broker accepts."""

    code = 10


class NetworkError(BrokerError):
    """The connection ended before the answer came."""

    code = 13


class InvalidTopicError(BrokerError):
    """The topic's name is not legal, or the topic may not be written to."""

    code = 17


class RecordBatchTooLargeError(BrokerError):
    """A batch is larger than a segment of the topic's log."""

    code = 18


class NotEnoughReplicasError(BrokerError):
    """Fewer in-sync replicas than min.insync.replicas; nothing was written."""

    code = 19


class NotEnoughReplicasAfterAppendError(BrokerError):
    """Written, but then fewer in-sync replicas than min.insync.replicas."""

    code = 20


class TopicAuthorizationError(AuthorizationError):
    """No permission for the topic."""

    code = 29


class ClusterAuthorizationError(AuthorizationError):
    """No permission in the cluster, e.g. for idempotent writes before Kafka 2.8."""

    code = 31


class InvalidTimestampError(BrokerError):
    """A timestamp outside the range that the topic accepts."""

    code = 32


class UnsupportedVersionError(BrokerError):
    """No version of a request, or of a feature in it, is known to both sides."""

    code = 35


class TopicExistsError(BrokerError):
    """A topic of this name exists already."""

    code = 36


class PolicyViolationError(BrokerError):
    """A policy of the cluster forbids the request."""

    code = 44


class OutOfOrderSequenceError(BrokerError):
    """Sequence numbers with a gap: records before may have been lost."""

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
    """The broker refused the credentials."""

    code = 58


class UnknownProducerIdError(OutOfOrderSequenceError):
    """The broker has forgotten the producer id."""

    code = 59


class InvalidRecordError(BrokerError):
    """The broker found a record that is not valid, e.g. one without key in a compacted topic."""

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
    """The class of ``code``; ``UnknownServerError`` for codes unknown to this version.

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
    """The error for ``code`` as a broker answered it, with the ``message`` that came with it, if any.

    The code is kept also where this version does not know it.

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
