"""The group coordinator of one node: finds the partition that a group belongs to, and has it serve the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.groups import partitioning, telling
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.group import Group
from aioproducer.broker.groups.records import (
    NO_TIMESTAMP,
    OffsetCommitValue,
    OffsetRecord,
    Record,
    group_record,
    offset_record,
)
from aioproducer.broker.groups.roster import refused_join
from aioproducer.broker.groups.shard import Shard
from aioproducer.broker.groups.states import GroupSettings
from aioproducer.broker.groups.timers import MILLISECOND, Moment
from aioproducer.broker.image import GROUP_METADATA_TOPIC, BrokerRegistration
from aioproducer.compression import codec
from aioproducer.errors import (
    BrokerError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    KafkaError,
    NotCoordinatorError,
    TopicExistsError,
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
    from aioproducer.broker.controller.controller import Controller
    from aioproducer.broker.image import ClusterImage
    from aioproducer.broker.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 9
_MINUTE_MS: Final = 60_000
_NO_COORDINATOR: Final = "The coordinator is not available."


class CommittedOffset(NamedTuple):
    """An offset that a group commits; ``retention_ms`` -1 leaves it to the broker how long it is kept."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    retention_ms: int = NO_TIMESTAMP


class Committer(NamedTuple):
    """Who commits offsets: a member of a generation, or with -1 and no member id a consumer of its own."""

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    generation_id: int = -1


def offsets_topic_spec(config: BrokerConfig, image: ClusterImage) -> TopicSpec:
    """How ``__consumer_offsets`` is created.

    Kafka's default replication factor is 3, with which a cluster of one node could never have a group; so no more
    replicas are asked for than there are nodes.
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


class CoordinatorHost(Protocol):
    """What a coordinator needs of the node it is on."""

    node_id: int
    config: BrokerConfig
    """The configuration at this moment; a later read may return another object."""
    controller: Controller
    replicas: ReplicaManager

    @property
    def image(self) -> ClusterImage: ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""


class GroupCoordinator:
    """Serves the groups whose partition of ``__consumer_offsets`` this node leads."""

    def __init__(self, broker: CoordinatorHost) -> None:
        self._broker = broker
        self._shards: dict[int, Shard] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._cleaning: asyncio.Task[None] | None = None
        self._partition_count: int | None = None
        self._is_active = False

    def start(self) -> None:
        """Begin to serve; needs a running loop. Partitions that are led already are loaded."""
        self._is_active = True
        self._cleaning = asyncio.create_task(self._clean_up(), name=f"group clean-up of {self._broker.node_id}")
        topic = self._broker.image.topics.get(GROUP_METADATA_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            self.leadership(partition.index, partition.leader == self._broker.node_id)

    async def close(self) -> None:
        """Stop serving: who waits is told that the coordinator is not available."""
        self._is_active = False
        tasks = list(self._loads.values())
        if self._cleaning is not None:
            tasks.append(self._cleaning)
            self._cleaning = None
        for task in tasks:
            task.cancel()
        for shard in self._shards.values():
            shard.close(Code.COORDINATOR_NOT_AVAILABLE)
        self._shards.clear()
        self._loads.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def leadership(self, index: int, is_leader: bool) -> None:
        """This node leads the partition of ``__consumer_offsets`` now, or does not lead it any more.

        Call it once ``broker.replicas`` knows. A partition that is led already stays loaded.
        """
        if not self._is_active:
            return
        partition = self._broker.replicas.partitions.get((GROUP_METADATA_TOPIC, index))
        held = self._shards.get(index)
        if held is not None and (not is_leader or partition is not held.partition):
            self._unload(index)
        if is_leader and index not in self._shards and partition is not None and partition.is_leader:
            config = self._broker.config
            self._shards[index] = shard = Shard(
                partition,
                GroupSettings(config.group_initial_rebalance_delay_ms, config.group_max_size),
                self._moment,
                commit_timeout_ms=config.offsets_commit_timeout_ms,
                compression_type=codec(config.offsets_topic_compression_codec).name,
            )
            self._loads[index] = asyncio.create_task(self._load(index, shard), name=f"load of {shard!r}")

    def partitions_deleted(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Forget the offsets of partitions that are no more."""
        deleted = frozenset(partitions)
        for shard in self._shards.values():
            if shard.is_loaded:
                shard.forget_partitions(deleted)

    def partition_for(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that a group belongs to.

        How many there are is settled when the topic is first seen, as in Kafka: otherwise adding partitions would move
        groups away from what they have committed.
        """
        count = self._partition_count
        if count is None:
            topic = self._broker.image.topics.get(GROUP_METADATA_TOPIC)
            if topic is None:
                count = self._broker.config.offsets_topic_num_partitions
            else:
                count = self._partition_count = len(topic.partitions)
        return partitioning.partition_for(group_id, count)

    def find(self, group_id: str) -> BrokerRegistration:
        """The node that coordinates a group; creates ``__consumer_offsets`` where there is none yet.

        Raises:
            CoordinatorNotAvailableError: there is none at present, or the topic was only just created.
        """
        image = self._broker.image
        index = self.partition_for(group_id)
        topic = image.topics.get(GROUP_METADATA_TOPIC)
        if topic is None:
            try:
                self._broker.controller.create_topic(offsets_topic_spec(self._broker.config, image))
            except TopicExistsError:
                pass
            except KafkaError as error:
                logger.warning("%s cannot be created: %s", GROUP_METADATA_TOPIC, error)
            raise CoordinatorNotAvailableError(_NO_COORDINATOR)
        leader = topic.partitions[index].leader if index < len(topic.partitions) else None
        node = None if leader is None else image.nodes.get(leader)
        if node is None or not node.is_alive:
            raise CoordinatorNotAvailableError(_NO_COORDINATOR)
        return node

    async def join(
        self, request: JoinGroupRequest, *, version: int, client_id: str = "", client_host: str = ""
    ) -> JoinGroupResponse:
        """JoinGroup: answered when the group's next generation begins, or why it cannot."""
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
        answer, give = _awaited(JoinGroupResponse)
        group.join(request, give, self._moment(), version=version, client_id=client_id, client_host=client_host)
        if is_new and not group.writes:
            shard.write_new(group)
        shard.serve(group)
        return await answer

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """SyncGroup: answered when the leader's assignment is in the log, or why it cannot be."""
        try:
            shard = self._shard(request.group_id)
        except BrokerError as error:
            return SyncGroupResponse(error_code=error.code)
        group = shard.groups.get(request.group_id)
        if group is None:
            return SyncGroupResponse(error_code=Code.UNKNOWN_MEMBER_ID)
        answer, give = _awaited(SyncGroupResponse)
        group.sync(request, give, self._moment())
        shard.serve(group)
        return await answer

    def heartbeat(self, request: HeartbeatRequest) -> int:
        """Heartbeat: the code of its answer. While the group is being loaded everybody counts as alive."""
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
        """LeaveGroup of the members in ``members``: answered when what it changes is in the log."""
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
        """OffsetCommit: the code of each partition; answered when the offsets are in the log.

        Raises:
            BrokerError: why none of them can be kept.
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
        longest = self._broker.config.offset_metadata_max_bytes
        codes: dict[tuple[str, int], int] = {}
        records: list[OffsetRecord] = []
        for offset in offsets:
            metadata = offset.metadata or ""
            if partitioning.java_string_length(metadata) > longest:
                codes[offset.topic, offset.partition] = Code.OFFSET_METADATA_TOO_LARGE
                continue
            codes[offset.topic, offset.partition] = Code.NONE
            expires = NO_TIMESTAMP if offset.retention_ms == NO_TIMESTAMP else at.wall_ms + offset.retention_ms
            value = OffsetCommitValue(
                offset=offset.offset,
                leader_epoch=offset.leader_epoch,
                metadata=metadata,
                commit_timestamp=at.wall_ms,
                expire_timestamp=expires,
                topic_id=offset.topic_id,
            )
            records.append(offset_record(committer.group_id, offset.topic, offset.partition, value))
        if code := await _written(shard, records):
            raise broker_error(code)
        return codes

    async def offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        """The offsets of a group by topic and partition; with ``require_stable`` what is being committed as well.

        Raises:
            BrokerError: this node does not coordinate the group, or not yet.
        """
        shard = self._shard(group_id, may_be_empty=True)
        if require_stable and (code := await _written(shard)):
            # Consumers before 3.9 do not know what to do when told that the coordinator is not available.
            raise broker_error(Code.NOT_COORDINATOR if code == Code.COORDINATOR_NOT_AVAILABLE else code)
        return shard.offsets.of_group(group_id)

    async def delete(self, group_id: str) -> int:
        """DeleteGroups of one: the code of its answer; given when the log says that it is gone."""
        try:
            shard, group = await self._settled(group_id)
            code = group.validate_delete()
            if code:
                return code
        except BrokerError as error:
            return error.code
        return await _written(shard, [*shard.offsets.forgotten(group_id), group_record(group_id, None)])

    async def delete_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """OffsetDelete: the code of each partition; answered when the log says that their offsets are gone.

        Raises:
            BrokerError: why none of them can be deleted.
        """
        self._check(group_id)
        shard, group = await self._settled(group_id)
        code = group.validate_offset_delete()
        if code:
            raise broker_error(code)
        kept = shard.offsets.of_group(group_id)
        codes: dict[tuple[str, int], int] = {}
        records: list[Record] = []
        for topic, index in partitions:
            if group.is_subscribed_to(topic):
                codes[topic, index] = Code.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            codes[topic, index] = Code.NONE
            if index in kept.get(topic, {}):
                records.append(offset_record(group_id, topic, index, None))
        if code := await _written(shard, records):
            raise broker_error(code)
        return codes

    async def _settled(self, group_id: str) -> tuple[Shard, Group]:
        """A group, and where it is served, once what is on its way to the log has got there.

        Raises:
            BrokerError: there is no such group, or not here.
        """
        shard = self._shard(group_id, may_be_empty=True)
        if code := await _written(shard):
            raise broker_error(code)
        group = shard.groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError()
        return shard, group

    def describe(self, group_id: str, *, version: int) -> DescribedGroup:
        """A group as DescribeGroups tells of it, or why it cannot."""
        try:
            shard = self._shard(group_id, may_be_empty=True)
        except BrokerError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code)
        group = shard.groups.get(group_id)
        return telling.described_unknown(group_id, version) if group is None else telling.described(group)

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[ListedGroup]:
        """All groups that this node coordinates and that are in one of ``states`` and of one of ``types``, if given.

        Raises:
            CoordinatorLoadInProgressError: not all of them are known yet.
            CoordinatorNotAvailableError: the broker is stopping.
        """
        if not self._is_active:
            raise CoordinatorNotAvailableError()
        if not all(shard.is_loaded for shard in self._shards.values()):
            raise CoordinatorLoadInProgressError()
        wanted = {state.strip().lower() for state in states}
        if types and telling.GROUP_TYPE not in {kind.strip().lower() for kind in types}:
            return []
        groups = (group for shard in self._shards.values() for group in shard.groups.values())
        return [telling.listed(group) for group in groups if not wanted or group.state.value.lower() in wanted]

    def group(self, group_id: str) -> Group | None:
        """A group that this node coordinates, for who wants to look at it."""
        shard = self._shards.get(self.partition_for(group_id))
        return None if shard is None else shard.groups.get(group_id)

    def _check(self, group_id: str, *, may_be_empty: bool = False) -> None:
        if not self._is_active:
            raise CoordinatorNotAvailableError()
        if not group_id.strip() and not may_be_empty:
            raise InvalidGroupIdError()

    def _check_session_timeout(self, session_timeout_ms: int) -> None:
        config = self._broker.config
        if not config.group_min_session_timeout_ms <= session_timeout_ms <= config.group_max_session_timeout_ms:
            raise InvalidSessionTimeoutError()

    def _shard(self, group_id: str, *, may_be_empty: bool = False) -> Shard:
        """Where a group is served. An empty id is none that can be joined, but offsets may be kept under it."""
        self._check(group_id, may_be_empty=may_be_empty)
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None or not shard.partition.is_leader:
            raise NotCoordinatorError()
        if not shard.is_loaded:
            raise CoordinatorLoadInProgressError()
        return shard

    def _moment(self) -> Moment:
        return Moment(asyncio.get_running_loop().time(), self._broker.wall_ms())

    async def _load(self, index: int, shard: Shard) -> None:
        try:
            await shard.load()
        except Exception:
            logger.exception("%r cannot be loaded; its groups are not served", shard)
            self._shards.pop(index, None)
        finally:
            if self._loads.get(index) is asyncio.current_task():
                del self._loads[index]

    def _unload(self, index: int) -> None:
        self._shards.pop(index).close(Code.NOT_COORDINATOR)
        load = self._loads.pop(index, None)
        if load is not None:
            load.cancel()

    async def _clean_up(self) -> None:
        config = self._broker.config
        while True:
            await asyncio.sleep(config.offsets_retention_check_interval_ms * MILLISECOND)
            for shard in list(self._shards.values()):
                if shard.is_loaded:
                    await shard.clean_up(config.offsets_retention_minutes * _MINUTE_MS)


def _unknown_member(identity: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        error_code=Code.UNKNOWN_MEMBER_ID,
    )


async def _written(shard: Shard, records: Sequence[Record] = ()) -> int:
    """The code with which a write ended; without records, 0 or an error once all writes before it have ended."""
    answer, give = _awaited(int)
    shard.append(records, give)
    return await answer


def _awaited(of: type[T]) -> tuple[Awaitable[T], Callable[[T], None]]:
    """Something to wait for, and what gives it. Who waited may have gone when it is given."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(value: T) -> None:
        if not future.done():
            future.set_result(value)

    return future, give
