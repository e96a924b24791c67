"""The group coordinator of one node: checks requests, and passes them to the shard of their group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.coordination.answers import awaited, outcome
from aioproducer.broker.coordination.host import CoordinatorHost
from aioproducer.broker.coordination.periodic import periodically
from aioproducer.broker.coordination.shards import Shards
from aioproducer.broker.groups import describing
from aioproducer.broker.groups.codes import Code, marker_code, verification_code
from aioproducer.broker.groups.commits import (
    CommittedOffset,
    Committer,
    OpenTransaction,
    PreparedCommit,
    prepare,
)
from aioproducer.broker.groups.group import Group
from aioproducer.broker.groups.members import refused_join
from aioproducer.broker.groups.offsets import StoredOffset
from aioproducer.broker.groups.records import Record, group_record, offset_record
from aioproducer.broker.groups.shard import Marker, Shard
from aioproducer.broker.groups.states import GroupSettings
from aioproducer.broker.groups.timers import Moment
from aioproducer.broker.image import GROUP_METADATA_TOPIC
from aioproducer.compression import codec
from aioproducer.errors import (
    BrokerError,
    CoordinatorLoadInProgressError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    broker_error,
)
from aioproducer.protocol.messages.groups import (
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.config import BrokerConfig
    from aioproducer.broker.image import ClusterImage
    from aioproducer.broker.log.open_transactions import VerificationGuard
    from aioproducer.broker.replicas.partition import Partition
    from aioproducer.broker.replicas.verification import TransactionVerifier

FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 9
FIRST_TXN_COMMIT_VERSION_THAT_ADDS: Final = 5
FIRST_TXN_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 6
_MINUTE_MS: Final = 60_000


class GroupOffsets(NamedTuple):
    """The offsets of a group by topic and partition."""

    kept: Mapping[str, Mapping[int, StoredOffset]]
    unstable: Mapping[str, Container[int]]
    """The partitions with a pending offset, if the caller requested stable offsets; else empty."""


def offsets_topic_spec(config: BrokerConfig, image: ClusterImage) -> TopicSpec:
    """Return how ``__consumer_offsets`` is created.

    Kafka's default replication factor is 3, with which a cluster of one node could not create the topic. So the factor
    is limited to the number of nodes.
    """
    return TopicSpec(
        GROUP_METADATA_TOPIC,
        num_partitions=config.offsets_topic_num_partitions,
        replication_factor=min(config.offsets_topic_replication_factor, max(len(image.nodes), 1)),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


class GroupCoordinator:
    """Serves the groups in those partitions of ``__consumer_offsets`` that this node leads."""

    def __init__(self, broker: CoordinatorHost) -> None:
        self._broker = broker
        self.shards = Shards(broker, GROUP_METADATA_TOPIC, self._topic_spec, self._make_shard)
        self._periodic: list[asyncio.Task[None]] = []

    def _topic_spec(self) -> TopicSpec:
        return offsets_topic_spec(self._broker.config, self._broker.image)

    def _make_shard(self, partition: Partition) -> Shard:
        config = self._broker.config
        return Shard(
            partition,
            GroupSettings(config.group_initial_rebalance_delay_ms, config.group_max_size),
            self._moment,
            commit_timeout_ms=config.offsets_commit_timeout_ms,
            compression_type=codec(config.offsets_topic_compression_codec).name,
        )

    def start(self) -> None:
        """Start serving, which needs a running loop. Partitions that this node leads are loaded."""
        cleaning = periodically(lambda: self._broker.config.offsets_retention_check_interval_ms, self._clean_up)
        self._periodic = [asyncio.create_task(cleaning, name=f"group clean-up of {self._broker.node_id}")]
        self.shards.start()

    async def close(self) -> None:
        """Stop serving: requests that wait are answered with COORDINATOR_NOT_AVAILABLE."""
        for task in self._periodic:
            task.cancel()
        await asyncio.gather(*self.shards.close(), *self._periodic, return_exceptions=True)

    def partitions_deleted(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Delete the offsets of deleted partitions."""
        deleted = frozenset(partitions)
        for shard in self.shards.loaded():
            shard.forget_partitions(deleted)

    async def join(
        self, request: JoinGroupRequest, *, version: int, client_id: str = "", client_host: str = ""
    ) -> JoinGroupResponse:
        """JoinGroup: the result comes when the group's next generation begins, or with an error."""
        try:
            self._check(request.group_id)
            self._check_session_timeout(request.session_timeout_ms)
            shard = self._shard(request.group_id)
        except BrokerError as error:
            return refused_join(request.member_id, error.code)
        group = shard.groups.get(request.group_id)
        is_new = group is None
        if group is None:
            if request.member_id:
                return refused_join(request.member_id, Code.UNKNOWN_MEMBER_ID)
            group = shard.create_group(request.group_id)
        answer, give = awaited(JoinGroupResponse)
        group.join(request, give, self._moment(), version=version, client_id=client_id, client_host=client_host)
        if is_new and not group.writes:
            shard.write_new(group)
        shard.serve(group)
        return await answer

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """SyncGroup: the result comes when the leader's assignment is in the log, or with an error."""
        try:
            shard = self._shard(request.group_id)
        except BrokerError as error:
            return SyncGroupResponse(error_code=error.code)
        group = shard.groups.get(request.group_id)
        if group is None:
            return SyncGroupResponse(error_code=Code.UNKNOWN_MEMBER_ID)
        answer, give = awaited(SyncGroupResponse)
        group.sync(request, give, self._moment())
        shard.serve(group)
        return await answer

    def heartbeat(self, request: HeartbeatRequest) -> int:
        """Heartbeat: return the error code. While the group is loading, every member counts as alive."""
        try:
            shard = self._shard(request.group_id)
        except CoordinatorLoadInProgressError:
            return Code.NONE
        except BrokerError as error:
            return error.code
        group = shard.groups.get(request.group_id)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        code = group.heartbeat(request.member_id, request.group_instance_id, request.generation_id, self._moment())
        shard.serve(group)
        return code

    async def leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """LeaveGroup of the members in ``members``: the result comes when the change is in the log."""
        try:
            shard = self._shard(request.group_id)
        except BrokerError as error:
            return LeaveGroupResponse(error_code=error.code)
        group = shard.groups.get(request.group_id)
        if group is None:
            return LeaveGroupResponse(members=[_unknown_member(identity) for identity in request.members])
        members = group.leave(request.members, self._moment())
        shard.serve(group)
        await _written(shard)
        return LeaveGroupResponse(members=members)

    async def commit(
        self, committer: Committer, offsets: Sequence[CommittedOffset], *, version: int
    ) -> dict[tuple[str, int], int]:
        """OffsetCommit: return the code of each partition when the offsets are in the log.

        Raises:
            BrokerError: none of them can be stored.
        """
        shard = self._shard(committer.group_id, may_be_empty=True)
        at = self._moment()
        group = shard.groups.get(committer.group_id)
        if group is not None:
            code = group.validate_offset_commit(
                committer.member_id, committer.group_instance_id, committer.generation_id
            )
            if code:
                raise broker_error(code)
            group.committed_offsets(committer.member_id, at)
            shard.serve(group)
        elif committer.generation_id >= 0:
            if version >= FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND:
                raise GroupIdNotFoundError()
            raise IllegalGenerationError()
        prepared = self._prepare(committer.group_id, offsets, at)
        if code := await _written(shard, prepared.records):
            raise broker_error(code)
        return prepared.codes

    async def commit_in_transaction(
        self,
        committer: Committer,
        transaction: OpenTransaction,
        offsets: Sequence[CommittedOffset],
        *,
        version: int,
        verifier: TransactionVerifier,
    ) -> dict[tuple[str, int], int]:
        """TxnOffsetCommit: return the code of each partition when the pending offsets are in the log.

        The transaction coordinator first adds this group's partition to the transaction, or below version 5 verifies
        that it belongs to it (KIP-890).

        Raises:
            BrokerError: none of them can be stored.
        """
        group_id = committer.group_id
        guard = await self._verify(transaction, group_id, version, verifier)
        # The leadership may have moved during the verification.
        shard = self._shard(group_id)
        group = shard.groups.get(group_id)
        if group is not None:
            code = group.validate_offset_commit(
                committer.member_id, committer.group_instance_id, committer.generation_id, in_transaction=True
            )
            if code:
                raise broker_error(code)
        elif committer.generation_id >= 0:
            if version >= FIRST_TXN_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND:
                raise GroupIdNotFoundError()
            raise IllegalGenerationError()
        prepared = self._prepare(group_id, offsets, self._moment())
        code = await outcome(
            lambda done: shard.append_in_transaction(
                prepared.records, transaction.producer_id, transaction.producer_epoch, guard, done
            )
        )
        if code:
            raise broker_error(code)
        return prepared.codes

    async def _verify(
        self, transaction: OpenTransaction, group_id: str, version: int, verifier: TransactionVerifier
    ) -> VerificationGuard | None:
        """Add a group's partition to a transaction, or verify that it is part of it; return the guards for the append.

        Raises:
            BrokerError: this transaction is not open, or cannot be verified.
        """
        adds = version >= FIRST_TXN_COMMIT_VERSION_THAT_ADDS
        shard = self._shard(group_id)
        guard = shard.begin_verification(transaction.producer_id, transaction.producer_epoch, adds=adds)
        if guard is not None and (adds or self._broker.config.transaction_partition_verification_enable):
            topic_partition = GROUP_METADATA_TOPIC, shard.partition.index
            code = (await verifier.add_or_verify(*transaction, [topic_partition], verify_only=not adds))[
                topic_partition
            ]
            if code:
                raise broker_error(verification_code(code, version))
        return guard

    def _prepare(self, group_id: str, offsets: Sequence[CommittedOffset], at: Moment) -> PreparedCommit:
        longest = self._broker.config.offset_metadata_max_bytes
        return prepare(group_id, offsets, wall_ms=at.wall_ms, max_metadata_length=longest)

    async def complete_transaction(
        self,
        partition_index: int,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> int:
        """WriteTxnMarkers of a partition of ``__consumer_offsets``: return the error code.

        It returns when the marker is replicated, and the producer's pending offsets are visible or dropped.
        """
        marker = Marker(producer_id, producer_epoch, committed, coordinator_epoch, transaction_version)
        try:
            shard = self.shards.at(partition_index)
        except BrokerError as error:
            return marker_code(error.code)
        return marker_code(await outcome(lambda done: shard.append_marker(marker, done)))

    async def offsets(self, group_id: str, *, require_stable: bool = False) -> GroupOffsets:
        """Return the offsets of a group; with ``require_stable`` after waiting for commits in progress.

        Raises:
            BrokerError: this node does not coordinate the group, or not yet.
        """
        shard = self._shard(group_id, may_be_empty=True)
        if require_stable and (code := await _written(shard)):
            # Consumers before 3.9 cannot handle COORDINATOR_NOT_AVAILABLE here.
            raise broker_error(Code.NOT_COORDINATOR if code == Code.COORDINATOR_NOT_AVAILABLE else code)
        unstable = shard.offsets.pending_of(group_id) if require_stable else {}
        return GroupOffsets(shard.offsets.of_group(group_id), unstable)

    async def delete(self, group_id: str) -> int:
        """DeleteGroups of one group: return the code when the deletion is in the log."""
        try:
            shard, group = await self._group_after_writes(group_id)
            code = group.validate_delete()
            if code:
                return code
        except BrokerError as error:
            return error.code
        return await _written(shard, [*shard.offsets.forgotten(group_id), group_record(group_id, None)])

    async def delete_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """OffsetDelete: return the code of each partition when the deletion is in the log.

        Raises:
            BrokerError: none of the offsets can be deleted.
        """
        self._check(group_id)
        shard, group = await self._group_after_writes(group_id)
        code = group.validate_offset_delete()
        if code:
            raise broker_error(code)
        codes: dict[tuple[str, int], int] = {}
        records: list[Record] = []
        for topic, index in partitions:
            if group.is_subscribed_to(topic):
                codes[topic, index] = Code.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            codes[topic, index] = Code.NONE
            if shard.offsets.has(group_id, topic, index):
                records.append(offset_record(group_id, topic, index, None))
        if code := await _written(shard, records):
            raise broker_error(code)
        return codes

    async def _group_after_writes(self, group_id: str) -> tuple[Shard, Group]:
        """Return a group and its shard after the writes in progress have ended.

        Raises:
            BrokerError: the group does not exist, or this node does not coordinate it.
        """
        shard = self._shard(group_id, may_be_empty=True)
        if code := await _written(shard):
            raise broker_error(code)
        group = shard.groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError()
        return shard, group

    def describe(self, group_id: str, *, version: int) -> DescribedGroup:
        """Describe a group for DescribeGroups, or return the error."""
        try:
            shard = self._shard(group_id, may_be_empty=True)
        except BrokerError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code)
        group = shard.groups.get(group_id)
        return describing.described_unknown(group_id, version) if group is None else describing.described(group)

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[ListedGroup]:
        """Return the groups that this node coordinates, with one of ``states`` and of ``types`` if given.

        Raises:
            CoordinatorLoadInProgressError: some partitions are still loading.
            CoordinatorNotAvailableError: the broker is stopping.
        """
        shards = self.shards.all()
        wanted = {state.strip().lower() for state in states}
        if types and describing.GROUP_TYPE not in {kind.strip().lower() for kind in types}:
            return []
        groups = (group for shard in shards for group in shard.groups.values())
        return [describing.listed(group) for group in groups if not wanted or group.state.value.lower() in wanted]

    def group(self, group_id: str) -> Group | None:
        """Return a group that this node coordinates; for tests."""
        shard = self.shards.held(group_id)
        return None if shard is None else shard.groups.get(group_id)

    def change(self, group_id: str, change: Callable[[Group, Moment], object]) -> None:
        """Change a group that this node coordinates, for tests, and serve what follows from it.

        Raises:
            GroupIdNotFoundError: there is no such group.
            BrokerError: this node does not coordinate the group, or not yet.
        """
        shard = self._shard(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError()
        change(group, self._moment())
        shard.serve(group)

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the visible offsets of a group by topic and partition, for tests to look at.

        Raises:
            BrokerError: this node does not coordinate the group, or not yet.
        """
        offsets = self._shard(group_id).offsets.of_group(group_id)
        return {(topic, index): kept.value.offset for topic, of in offsets.items() for index, kept in of.items()}

    def _check(self, group_id: str, *, may_be_empty: bool = False) -> None:
        self.shards.check_active()
        if not group_id.strip() and not may_be_empty:
            raise InvalidGroupIdError()

    def _check_session_timeout(self, session_timeout_ms: int) -> None:
        config = self._broker.config
        if not config.group_min_session_timeout_ms <= session_timeout_ms <= config.group_max_session_timeout_ms:
            raise InvalidSessionTimeoutError()

    def _shard(self, group_id: str, *, may_be_empty: bool = False) -> Shard:
        """Return the shard that serves a group. No group with an empty id can be joined, but it may have offsets."""
        self._check(group_id, may_be_empty=may_be_empty)
        return self.shards.serving(group_id)

    def _moment(self) -> Moment:
        return Moment(asyncio.get_running_loop().time(), self._broker.wall_ms())

    async def _clean_up(self) -> None:
        for shard in self.shards.loaded():
            await shard.clean_up(self._broker.config.offsets_retention_minutes * _MINUTE_MS)


def _unknown_member(identity: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        error_code=Code.UNKNOWN_MEMBER_ID,
    )


async def _written(shard: Shard, records: Sequence[Record] = ()) -> int:
    """Write records, and return the error code; without records wait for all earlier writes."""
    return await outcome(lambda done: shard.append(records, done))
