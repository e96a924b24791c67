"""The transactional requests: their order, the broker that each goes to, and their messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from aioproducer.errors import KafkaError
from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata, numbers_by_topic
from aioproducer.protocol import ApiKey, Request, Response
from aioproducer.protocol.messages.groups import FindCoordinatorRequest
from aioproducer.protocol.messages.producer_ids import InitProducerIdRequest
from aioproducer.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from aioproducer.protocol.schema import ZERO_UUID
from aioproducer.record import TopicPartition


class CoordinatorType(Enum):
    """The kinds of coordinators, with the key type of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class RequestKind(Enum):
    """The transactional requests; the value is the priority, the lowest first (``TransactionManager.Priority``).

    The second number only makes the values distinct: kinds of one priority are sent in the order of their calls.
    """

    FIND_COORDINATOR = (0, 0)
    INIT_PRODUCER_ID = (1, 0)
    ADD_PARTITIONS = (2, 0)
    ADD_OFFSETS = (2, 1)
    COMMIT_OFFSETS = (2, 2)
    COMMIT = (3, 0)
    ABORT = (3, 1)
    # The epoch that follows the end of a transaction.
    BUMP_EPOCH = (4, 0)

    @property
    def priority(self) -> int:
        return self.value[0]

    @property
    def adds_to_transaction(self) -> bool:
        """Whether the request adds partitions or offsets to the open transaction."""
        return self.priority == RequestKind.ADD_PARTITIONS.priority


# Each API, and the highest version to use in either generation. Clients add partitions by version 3 at most. The newer
# generation (KIP-890) is recognized by the versions of Produce, TxnOffsetCommit and EndTxn.
_APIS: Mapping[RequestKind, tuple[ApiKey, int, int]] = {
    RequestKind.FIND_COORDINATOR: (ApiKey.FIND_COORDINATOR, 32767, 32767),
    RequestKind.INIT_PRODUCER_ID: (ApiKey.INIT_PRODUCER_ID, 5, 5),
    RequestKind.BUMP_EPOCH: (ApiKey.INIT_PRODUCER_ID, 5, 5),
    RequestKind.ADD_PARTITIONS: (ApiKey.ADD_PARTITIONS_TO_TXN, 3, 3),
    RequestKind.ADD_OFFSETS: (ApiKey.ADD_OFFSETS_TO_TXN, 3, 3),
    # By names; ``by_topic_id`` allows one version more.
    RequestKind.COMMIT_OFFSETS: (ApiKey.TXN_OFFSET_COMMIT, 4, 5),
    RequestKind.COMMIT: (ApiKey.END_TXN, 4, 5),
    RequestKind.ABORT: (ApiKey.END_TXN, 4, 5),
}
# FindCoordinator: several keys in one request (KIP-699).
KEYS_FROM = 4
# TxnOffsetCommit: topics go by their ids (KIP-1319).
TOPIC_IDS_FROM = 6


class Result:
    """The end of a call, which may take several requests: success, or an error.

    Callbacks run at the end, in the order in which they were added.
    """

    __slots__ = ("_callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: KafkaError | None = None
        self._callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the end, or at once if the call has ended."""
        if self.done:
            callback()
        else:
            self._callbacks.append(callback)

    def end(self, error: KafkaError | None = None) -> None:
        """End the call; only the first end counts."""
        if self.done:
            return
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class TransactionalRequest:
    """A request that waits to be sent, is in flight or waits for its retry.

    Args:
        key: the transactional id or group; its coordinator receives the request.
        coordinator: the kind of that coordinator. FindCoordinator asks for it, and goes to any node.
        version: the generation of the transaction protocol, 1 or 2.
        build: returns the message.
    """

    __slots__ = (
        "_build",
        "attempts",
        "by_topic_id",
        "coordinator",
        "group",
        "has_unknown_attempt",
        "key",
        "kind",
        "names_by_id",
        "offsets",
        "result",
        "retry_at",
        "version",
    )

    def __init__(
        self,
        kind: RequestKind,
        key: str,
        coordinator: CoordinatorType,
        version: int,
        result: Result,
        build: Callable[[int], Request[Response]],
    ) -> None:
        self.kind = kind
        self.key = key
        self.coordinator = coordinator
        self.version = version
        self.result = result
        self._build = build
        self.attempts = 0
        # Loop time.
        self.retry_at = float("-inf")
        # An attempt ended without a response: the broker may have executed it.
        self.has_unknown_attempt = False
        # Of ADD_OFFSETS and COMMIT_OFFSETS: those that the group has not accepted yet, and the group.
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.group: ConsumerGroupMetadata | None = None
        # Of COMMIT_OFFSETS: whether topics may go by id (KIP-1319), and the names of those in the last message.
        self.by_topic_id = False
        self.names_by_id: dict[bytes, str] = {}

    @property
    def api_key(self) -> ApiKey:
        return _APIS[self.kind][0]

    @property
    def highest_version(self) -> int:
        """The highest version of the API in the transaction's generation."""
        if self.by_topic_id:
            return TOPIC_IDS_FROM
        return _APIS[self.kind][1 if self.version < 2 else 2]

    @property
    def ends_transaction(self) -> bool:
        return self.kind is RequestKind.COMMIT or self.kind is RequestKind.ABORT

    def message(self, api_version: int) -> Request[Response]:
        """Return the message to send with a version of the API."""
        return self._build(api_version)

    def __repr__(self) -> str:
        return f"<TransactionalRequest {self.kind.name} for {self.key!r}, {self.attempts} attempts>"


def find_coordinator_message(key: str, coordinator: CoordinatorType, api_version: int) -> FindCoordinatorRequest:
    """Return the message of FindCoordinator."""
    if api_version < KEYS_FROM:
        return FindCoordinatorRequest(key=key, key_type=coordinator.value)
    return FindCoordinatorRequest(key_type=coordinator.value, coordinator_keys=[key])


def init_producer_id_message(
    transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int
) -> InitProducerIdRequest:
    """Return the message of InitProducerId; with an id (not -1) it asks for the next epoch (KIP-360)."""
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def add_partitions_message(
    transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Return the message of AddPartitionsToTxn as clients send it."""
    topics = numbers_by_topic(partitions)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=of) for name, of in topics.items()],
    )


def add_offsets_message(
    transactional_id: str, producer_id: int, producer_epoch: int, group_id: str
) -> AddOffsetsToTxnRequest:
    """Return the message of AddOffsetsToTxn."""
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, group_id=group_id
    )


def commit_offsets_message(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: ConsumerGroupMetadata,
    topic_ids: Mapping[str, bytes],
) -> TxnOffsetCommitRequest:
    """Return the message of TxnOffsetCommit. A group's member can be sent from version 3 on (KIP-447).

    ``topic_ids`` are needed from version 6 on.
    """
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (topic, partition), offset in offsets.items():
        of_topic = topics.get(topic)
        if of_topic is None:
            of_topic = topics[topic] = TxnOffsetCommitRequestTopic(
                name=topic, topic_id=topic_ids.get(topic, ZERO_UUID), partitions=[]
            )
        of_topic.partitions.append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=list(topics.values()),
    )


def end_message(transactional_id: str, producer_id: int, producer_epoch: int, committed: bool) -> EndTxnRequest:
    """Return the message of EndTxn."""
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=committed,
    )
