"""The calls of ``Admin`` about consumer groups: list, describe and delete them, and change their offsets.

They follow Kafka's Admin of the same names (KIP-222, KIP-229, KIP-345, KIP-396, KIP-496, KIP-709). A call for several
groups, partitions or members does what can be done: see ``PartialFailureError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from aioproducer._client.admin_calls import AdminCalls, check_not_str, named_error, raise_first, run_all
from aioproducer.core.membership.offsets import committed_offset
from aioproducer.core.membership.requests import (
    FETCHED_GROUPS_FROM,
    LEAVING_MEMBERS_FROM,
    LONGEST_REASON,
    STABLE_OFFSETS_FROM,
    Generation,
    commit_message,
)
from aioproducer.core.membership.subscription import PROTOCOL_TYPE, decode_assignment
from aioproducer.core.transactions.requests import CoordinatorType
from aioproducer.error_codes import GROUP_ID_NOT_FOUND
from aioproducer.errors import (
    ConnectionFailedError,
    FencedInstanceIdError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    KafkaError,
    NetworkError,
    PartialFailureError,
    ProtocolError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from aioproducer.io.coordinators import look_up_coordinators
from aioproducer.offsets import OffsetAndMetadata, numbers_by_topic
from aioproducer.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from aioproducer.protocol.messages.group_offsets import (
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from aioproducer.protocol.messages.groups import DescribedGroup, DescribedGroupMember, MemberIdentity
from aioproducer.record import TopicPartition

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

GroupState: TypeAlias = Literal[
    "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling", "NotReady"
]
"""A state of a group in Kafka's words (``org.apache.kafka.common.GroupState``)."""

GroupType: TypeAlias = Literal["classic", "consumer", "share", "streams"]
"""The protocol of a group (``org.apache.kafka.common.GroupType``): ``consumer`` for that of KIP-848."""

_STATES: Final[tuple[str, ...]] = get_args(GroupState)
_TYPES: Final[tuple[str, ...]] = get_args(GroupType)
_LIST_WITH_STATES: Final = 4
_LIST_WITH_TYPES: Final = 5
# Version 10 of OffsetFetch takes topic ids instead of names.
_FETCH_BY_NAME: Final = 9
# As OffsetFetch, OffsetCommit takes topic ids from version 10 on.
_COMMIT_BY_NAME: Final = 9
_DEAD: Final = "Dead"
_DEFAULT_REASON: Final = "member was removed by admin"

_NO_SUCH_GROUP = (
    "there is no such group: check the spelling; a group without members expires after offsets.retention.minutes"
)
_OF_DESCRIPTION: Mapping[int, str] = {
    GROUP_ID_NOT_FOUND: (
        "there is no classic group of this id: check the spelling; list_groups() shows the groups of every type"
    ),
}
_OF_DELETION: Mapping[int, str] = {
    GROUP_ID_NOT_FOUND: _NO_SUCH_GROUP,
    GroupNotEmptyError.code: (
        "the group has members: close them, or remove them by remove_members(), and repeat the call"
    ),
}
_OF_COMMIT: Mapping[int, str] = {
    UnknownMemberIdError.code: (
        "the group has members, and only they can commit its offsets: close them, or remove them by "
        "remove_members(), and repeat the call"
    ),
}
_OF_OFFSET_DELETION: Mapping[int, str] = {
    **_OF_DELETION,
    GroupSubscribedToTopicError.code: (
        "members of the group read the topic: let them unsubscribe, or close them, and repeat the call"
    ),
}
_OF_MEMBER: Mapping[int, str] = {
    UnknownMemberIdError.code: "the group has no such member: describe_groups() returns its members",
    FencedInstanceIdError.code: "another member id has this group instance id by now: leave the member id out",
    GROUP_ID_NOT_FOUND: _NO_SUCH_GROUP,
}


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it (Kafka's ``GroupListing``, KIP-1043)."""

    group_id: str
    group_type: str | None
    """``classic``, ``consumer``, ``share`` or ``streams``; None from brokers before Kafka 3.8."""
    protocol_type: str
    """``consumer`` for consumers, ``connect`` for Kafka Connect; empty for a group that only keeps offsets."""
    state: str | None
    """In Kafka's words, as ``Stable`` or ``Empty``; None from brokers before Kafka 2.6 (KIP-518)."""
    coordinator: int
    """The id of the node that coordinates it."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group (Kafka's ``MemberDescription``)."""

    member_id: str
    group_instance_id: str | None
    """The ``group.instance.id`` of a static member (KIP-345)."""
    client_id: str
    client_host: str
    """The address from which the member connects, as ``/10.0.0.7``."""
    assignment: frozenset[TopicPartition] | None
    """The assigned partitions, none during a rebalance. None if the group's protocol type is not ``consumer``."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A classic group and its members (Kafka's ``ClassicGroupDescription``)."""

    group_id: str
    state: str
    """In Kafka's words: ``Empty``, ``PreparingRebalance``, ``CompletingRebalance`` or ``Stable``."""
    protocol_type: str
    """``consumer`` for consumers; empty for a group that only keeps offsets."""
    assignor: str
    """The assignor that the members have agreed on, as ``range``; empty unless the group is stable."""
    coordinator: int
    """The id of the node that coordinates it."""
    members: tuple[GroupMember, ...]
    """Sorted by member id."""


class _Member(NamedTuple):
    """A member to remove: a static one by its instance id alone."""

    member_id: str
    group_instance_id: str | None

    def __str__(self) -> str:
        by_id = f"member {self.member_id!r}"
        return by_id if self.group_instance_id is None else f"group instance id {self.group_instance_id!r}"


class _Outcomes(Generic[K, V]):
    """What became of each item of a call: a result, an error, or an error that is retried."""

    def __init__(self, what: str, items: Iterable[K]) -> None:
        self.results: dict[K, V] = {}
        self._what = what
        self._items = list(dict.fromkeys(items))
        self._failures: dict[K, KafkaError] = {}
        self._retried: dict[K, KafkaError] = {}

    @property
    def pending(self) -> list[K]:
        """The items without a result or a final error."""
        return [each for each in self._items if each not in self.results and each not in self._failures]

    def fail(self, items: Iterable[K], error: KafkaError) -> None:
        """Record an error; an item with a retriable error stays pending."""
        for item in items:
            (self._retried if error.retriable else self._failures)[item] = error

    def raise_retriable(self) -> None:
        """
        Raises:
            KafkaError: an item is to be tried again. A lost connection takes precedence, as it needs new metadata.
        """
        errors = [self._retried[each] for each in self.pending if each in self._retried]
        if errors:
            lost = (error for error in errors if isinstance(error, ConnectionFailedError | NetworkError))
            raise next(lost, errors[0])

    def give_up(self, error: KafkaError) -> None:
        """Make the last error of each pending item final, or ``error`` if it has none."""
        for item in self.pending:
            self._failures[item] = self._retried.get(item, error)

    def finish(self) -> dict[K, V]:
        """Return the results in the order of the items.

        Raises:
            KafkaError: no item has a result; the error of an item, if possible one that is not retriable.
            PartialFailureError: some items have a result, and others an error.
        """
        if not self._failures:
            return {each: self.results[each] for each in self._items}
        errors = list(self._failures.values())
        if not self.results:
            raise_first(errors)
        raise PartialFailureError(
            f"{len(errors)} of {len(self._items)} {self._what} failed, the first with: {errors[0]}",
            failures=self._failures,
            results=self.results,
        ) from errors[0]


class GroupAdmin(AdminCalls):
    """The part of ``Admin`` that is about consumer groups."""

    async def list_groups(
        self, *, states: Iterable[GroupState] | None = None, types: Iterable[GroupType] | None = None
    ) -> list[GroupListing]:
        """Return the groups that all brokers coordinate, sorted by id; None for a filter lets all pass.

        Args:
            states: only groups in one of these states, as ``["Stable", "Empty"]`` (Kafka 2.6, KIP-518).
            types: only groups of these types, as ``["classic"]`` (Kafka 3.8, KIP-848).

        Raises:
            ValueError: there is no such state or type.
            UnsupportedVersionError: a broker does not know the filter.
            ClusterAuthorizationError: the client may not describe the cluster, nor any group.
            KafkaTimeoutError: not all brokers answered in time.
            TypeError: a filter is a single str.
        """
        check_not_str("states", states)
        check_not_str("types", types)
        request = ListGroupsRequest(
            states_filter=_known("state", states, _STATES), types_filter=_known("type", types, _TYPES)
        )
        lowest = _LIST_WITH_TYPES if request.types_filter else _LIST_WITH_STATES if request.states_filter else 0
        found: dict[int, list[GroupListing]] = {}

        async def list_of(node_id: int, timeout: float) -> None:
            response = await self.client.request(request, node_id=node_id, lowest=lowest, timeout=timeout)
            if response.error_code:
                raise named_error(f"broker {node_id}", response.error_code)
            found[node_id] = [
                GroupListing(
                    each.group_id,
                    each.group_type.lower() or None,
                    each.protocol_type,
                    each.group_state or None,
                    node_id,
                )
                for each in response.groups
            ]

        async def ask(timeout: float) -> list[GroupListing]:
            brokers = await self._at_brokers(list_of, found, timeout)
            # A group may be listed twice, or by none, while its coordinator moves: the last one counts.
            by_id = {each.group_id: each for node_id in brokers for each in found[node_id]}
            return [by_id[group_id] for group_id in sorted(by_id)]

        return await self._retrying(ask)

    async def describe_groups(self, group_ids: Iterable[str]) -> list[GroupDescription]:
        """Return the descriptions of classic groups, in this order, from their coordinators.

        Groups of the protocol of KIP-848 and share groups have other requests, which this client does not send.

        Raises:
            GroupIdNotFoundError: there is no classic group of an id.
            GroupAuthorizationError: the client may not describe a group (operation DESCRIBE).
            PartialFailureError: some groups were described (``results``, by group id), and others not.
            KafkaTimeoutError: not all coordinators answered in time.
            TypeError: ``group_ids`` is a single str.
        """
        check_not_str("group_ids", group_ids)
        wanted = list(group_ids)
        outcomes = _Outcomes[str, GroupDescription]("groups", wanted)

        async def describe(node_id: int, ids: list[str], timeout: float) -> None:
            request = DescribeGroupsRequest(groups=ids)
            response = await self.client.request(request, node_id=node_id, timeout=timeout)
            for each in response.groups:
                # Up to version 5 a group that does not exist is dead (KIP-1043).
                code = each.error_code or (GROUP_ID_NOT_FOUND if each.group_state == _DEAD else 0)
                if code:
                    outcomes.fail([each.group_id], _error_of_group(each.group_id, code, _OF_DESCRIPTION))
                else:
                    outcomes.results[each.group_id] = _description(each, node_id)

        found = await self._collect(outcomes, lambda timeout: self._at_group_coordinators(outcomes, describe, timeout))
        return [found[each] for each in wanted]

    async def list_group_offsets(
        self,
        groups: Iterable[str] | Mapping[str, Iterable[tuple[str, int]] | None],
        *,
        require_stable: bool = False,
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Return the committed offsets of groups, by group id and partition.

        A partition without an offset is left out; so is every partition of a group that does not exist.

        Args:
            groups: the ids of groups, or for each id its partitions; None stands for all that have an offset.
            require_stable: wait for open transactions that are about to commit an offset (KIP-447, Kafka 2.5);
                otherwise the offset before such a transaction is returned.

        Raises:
            GroupAuthorizationError: the client may not describe a group (operation DESCRIBE).
            TopicAuthorizationError: the client may not describe a topic of a group.
            UnstableOffsetCommitError: transactions were still open when the time was over.
            PartialFailureError: some groups were read (``results``, by group id), and others not.
            KafkaTimeoutError: not all coordinators answered in time.
            TypeError: ``groups`` is a single str.
        """
        check_not_str("groups", groups)
        wanted: dict[str, list[TopicPartition] | None] = {}
        if isinstance(groups, Mapping):
            for group_id, partitions in groups.items():
                wanted[group_id] = None if partitions is None else [TopicPartition(*each) for each in partitions]
        else:
            wanted = dict.fromkeys(groups)
        outcomes = _Outcomes[str, dict[TopicPartition, OffsetAndMetadata]]("groups", wanted)
        lowest = STABLE_OFFSETS_FROM if require_stable else 0

        async def fetch(node_id: int, ids: list[str], timeout: float) -> None:
            request = OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(group_id=each, topics=_topics(wanted[each], OffsetFetchRequestTopics))
                    for each in ids
                ],
                require_stable=require_stable,
            )
            try:
                response = await self.client.request(
                    request, node_id=node_id, lowest=FETCHED_GROUPS_FROM, highest=_FETCH_BY_NAME, timeout=timeout
                )
            except UnsupportedVersionError:
                # Brokers before Kafka 3.0 (KIP-709).
                await run_all([fetch_one(node_id, each, timeout) for each in ids])
                return
            for group in response.groups:
                _read_offsets(outcomes, group.group_id, group.error_code, group.topics)

        async def fetch_one(node_id: int, group_id: str, timeout: float) -> None:
            request = OffsetFetchRequest(
                group_id=group_id,
                topics=_topics(wanted[group_id], OffsetFetchRequestTopic),
                require_stable=require_stable,
            )
            response = await self.client.request(
                request, node_id=node_id, lowest=lowest, highest=FETCHED_GROUPS_FROM - 1, timeout=timeout
            )
            _read_offsets(outcomes, group_id, response.error_code, response.topics)

        return await self._collect(outcomes, lambda timeout: self._at_group_coordinators(outcomes, fetch, timeout))

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> None:
        """Set the committed offsets of a group without members (KIP-396). A group that does not exist is created.

        An offset is that of the next record to read. The broker does not compare it with the log: ``list_offsets``
        returns the first and the last offset of a partition.

        Raises:
            UnknownMemberIdError: the group has members; no offset was changed.
            NoSuchTopicError: there is no such topic or partition; no offset was changed.
            GroupAuthorizationError, TopicAuthorizationError: the client may not commit (operation READ on both).
            PartialFailureError: some offsets were changed (``results``, by partition), and others not.
            KafkaTimeoutError: the coordinator did not answer in time; repeat the call.
            TypeError, ValueError: an offset is no int, or is negative.
        """
        wanted = {
            TopicPartition(*where): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            for where, offset in offsets.items()
        }
        outcomes = _Outcomes[TopicPartition, None]("partitions", wanted)
        await self._check_topics(wanted)

        async def commit(node_id: int, timeout: float) -> None:
            message = commit_message(group_id, Generation(), None, {each: wanted[each] for each in outcomes.pending})
            response = await self.client.request(message, node_id=node_id, highest=_COMMIT_BY_NAME, timeout=timeout)
            for topic in response.topics:
                for each in topic.partitions:
                    where = TopicPartition(topic.name, each.partition_index)
                    _settle_partition(outcomes, group_id, where, each.error_code, _OF_COMMIT)

        await self._collect(outcomes, lambda timeout: self._at_group_coordinator(group_id, commit, timeout))

    async def delete_group_offsets(self, group_id: str, topic_partitions: Iterable[tuple[str, int]]) -> None:
        """Delete committed offsets of a group, of topics that its members do not read (KIP-496, Kafka 2.4).

        A partition without an offset counts as done.

        Raises:
            GroupSubscribedToTopicError: members of the group read the topic.
            GroupIdNotFoundError: there is no such group.
            GroupNotEmptyError: the group has members that are no consumers.
            NoSuchTopicError: there is no such topic or partition; no offset was deleted.
            GroupAuthorizationError: the client may not delete them (operation DELETE on the group, READ on the topic).
            PartialFailureError: some offsets were deleted (``results``, by partition), and others not.
            KafkaTimeoutError: the coordinator did not answer in time; repeat the call.
        """
        outcomes = _Outcomes[TopicPartition, None]("partitions", [TopicPartition(*each) for each in topic_partitions])
        await self._check_topics(outcomes.pending)

        async def delete(node_id: int, timeout: float) -> None:
            topics = [
                OffsetDeleteRequestTopic(
                    name=name, partitions=[OffsetDeleteRequestPartition(partition_index=each) for each in of]
                )
                for name, of in numbers_by_topic(outcomes.pending).items()
            ]
            request = OffsetDeleteRequest(group_id=group_id, topics=topics)
            response = await self.client.request(request, node_id=node_id, timeout=timeout)
            if response.error_code:
                raise _error_of_group(group_id, response.error_code, _OF_OFFSET_DELETION)
            for topic_deleted in response.topics:
                for each in topic_deleted.partitions:
                    where = TopicPartition(topic_deleted.name, each.partition_index)
                    _settle_partition(outcomes, group_id, where, each.error_code, _OF_OFFSET_DELETION)

        await self._collect(outcomes, lambda timeout: self._at_group_coordinator(group_id, delete, timeout))

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, and their offsets (KIP-229).

        Raises:
            GroupNotEmptyError: a group has members.
            GroupIdNotFoundError: there is no such group. A call that is repeated after a lost response raises it, too.
            GroupAuthorizationError: the client may not delete a group (operation DELETE).
            PartialFailureError: some groups were deleted (``results``, by group id), and others not.
            KafkaTimeoutError: not all coordinators answered in time; the groups may be deleted nevertheless.
            TypeError: ``group_ids`` is a single str.
        """
        check_not_str("group_ids", group_ids)
        outcomes = _Outcomes[str, None]("groups", group_ids)

        async def delete(node_id: int, ids: list[str], timeout: float) -> None:
            request = DeleteGroupsRequest(groups_names=ids)
            response = await self.client.request(request, node_id=node_id, timeout=timeout)
            for each in response.results:
                if each.error_code:
                    outcomes.fail([each.group_id], _error_of_group(each.group_id, each.error_code, _OF_DELETION))
                else:
                    outcomes.results[each.group_id] = None

        await self._collect(outcomes, lambda timeout: self._at_group_coordinators(outcomes, delete, timeout))

    async def remove_members(
        self,
        group_id: str,
        *,
        member_ids: Iterable[str] | None = None,
        group_instance_ids: Iterable[str] | None = None,
        reason: str = "",
    ) -> None:
        """Remove members from a group, all of them by default; the others share their partitions (KIP-345, Kafka 2.4).

        A member that still runs joins again. A removed static member gets ``FencedInstanceIdError`` or joins again.

        Args:
            member_ids: dynamic members, by ``GroupMember.member_id``.
            group_instance_ids: static members, by their ``group.instance.id``.
            reason: a text for the log of the broker (KIP-800).

        Raises:
            UnknownMemberIdError: the group has no such member.
            GroupIdNotFoundError: there is no classic group of this id.
            GroupAuthorizationError: the client may not remove members (operation READ, and DESCRIBE to remove all).
            UnsupportedVersionError: the coordinator is older than Kafka 2.4.
            PartialFailureError: some members were removed (``results``), and others not.
            KafkaTimeoutError: the coordinator did not answer in time; repeat the call.
            TypeError: ``member_ids`` or ``group_instance_ids`` is a single str.
        """
        check_not_str("member_ids", member_ids)
        check_not_str("group_instance_ids", group_instance_ids)
        if member_ids is None and group_instance_ids is None:
            (described,) = await self.describe_groups([group_id])
            # A static member keeps its instance id, but not its member id, when it joins again.
            wanted = [
                _Member("" if each.group_instance_id is not None else each.member_id, each.group_instance_id)
                for each in described.members
            ]
        else:
            wanted = [_Member(each, None) for each in member_ids or ()]
            wanted += [_Member("", each) for each in group_instance_ids or ()]
        outcomes = _Outcomes[_Member, None]("members", wanted)

        async def leave(node_id: int, timeout: float) -> None:
            request = LeaveGroupRequest(
                group_id=group_id,
                members=[
                    MemberIdentity(member_id=each, group_instance_id=instance_id, reason=_reason(reason))
                    for each, instance_id in outcomes.pending
                ],
            )
            response = await self.client.request(request, node_id=node_id, lowest=LEAVING_MEMBERS_FROM, timeout=timeout)
            if response.error_code:
                raise _error_of_group(group_id, response.error_code, _OF_MEMBER)
            for each in response.members:
                member = _Member(each.member_id, each.group_instance_id)
                if each.error_code:
                    error = named_error(f"{member} of group {group_id!r}", each.error_code, _OF_MEMBER)
                    outcomes.fail([member], error)
                else:
                    outcomes.results[member] = None

        if wanted:
            await self._collect(outcomes, lambda timeout: self._at_group_coordinator(group_id, leave, timeout))

    # Where to ask

    async def _collect(self, outcomes: _Outcomes[K, V], ask: Callable[[float], Awaitable[None]]) -> dict[K, V]:
        """Call ``ask(seconds left)`` until no item is pending, and return the results.

        Raises:
            KafkaError: as ``_Outcomes.finish``.
            ProtocolError: a response lacks an item.
        """

        async def attempt(timeout: float) -> None:
            if outcomes.pending:
                await ask(timeout)
            outcomes.raise_retriable()
            if outcomes.pending:
                raise ProtocolError(f"a coordinator's response lacks {outcomes.pending[0]!r}")

        try:
            await self._retrying(attempt)
        except KafkaError as error:
            outcomes.give_up(error)
        return outcomes.finish()

    async def _at_group_coordinators(
        self,
        outcomes: _Outcomes[str, V],
        ask: Callable[[int, list[str], float], Awaitable[None]],
        timeout: float,
    ) -> None:
        """Call ``ask`` with each coordinator and its pending groups; they are found again for each attempt."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        by_node: dict[int, list[str]] = {}
        found = await look_up_coordinators(self.client, CoordinatorType.GROUP, outcomes.pending, timeout)
        for group_id, node_id in found.items():
            if isinstance(node_id, KafkaError):
                outcomes.fail([group_id], node_id)
            else:
                by_node.setdefault(node_id, []).append(group_id)

        async def ask_one(node_id: int, group_ids: list[str]) -> None:
            try:
                await ask(node_id, group_ids, max(deadline - loop.time(), 0))
            except KafkaError as error:
                pending = set(outcomes.pending)
                outcomes.fail([each for each in group_ids if each in pending], error)

        await run_all([ask_one(node_id, group_ids) for node_id, group_ids in by_node.items()])

    async def _at_group_coordinator(
        self, group_id: str, ask: Callable[[int, float], Awaitable[None]], timeout: float
    ) -> None:
        """Call ``ask`` with the coordinator of one group."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        node_id = (await look_up_coordinators(self.client, CoordinatorType.GROUP, [group_id], timeout))[group_id]
        if isinstance(node_id, KafkaError):
            raise node_id
        await ask(node_id, max(deadline - loop.time(), 0))


def _known(noun: str, values: Iterable[str] | None, known: Sequence[str]) -> list[str]:
    """
    Raises:
        ValueError: a value is not in ``known``.
    """
    chosen = list(values or ())
    unknown = next((each for each in chosen if each not in known), None)
    if unknown is not None:
        raise ValueError(f"groups have no {noun} {unknown!r}: use {', '.join(known)}")
    return chosen


def _reason(given: str) -> str:
    """Return the reason as Kafka's Admin sends it."""
    return f"{_DEFAULT_REASON}: {given}"[:LONGEST_REASON] if given else _DEFAULT_REASON


def _error_of_group(group_id: str, code: int, explanations: Mapping[int, str]) -> KafkaError:
    return named_error(f"group {group_id!r}", code, explanations)


def _settle_partition(
    outcomes: _Outcomes[TopicPartition, None],
    group_id: str,
    where: TopicPartition,
    code: int,
    explanations: Mapping[int, str],
) -> None:
    if code:
        outcomes.fail([where], named_error(f"group {group_id!r}, {where}", code, explanations))
    else:
        outcomes.results[where] = None


def _description(group: DescribedGroup, node_id: int) -> GroupDescription:
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        node_id,
        tuple(
            GroupMember(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                _assignment(group, each),
            )
            for each in sorted(group.members, key=lambda each: each.member_id)
        ),
    )


def _assignment(group: DescribedGroup, member: DescribedGroupMember) -> frozenset[TopicPartition] | None:
    """
    Raises:
        ProtocolError: the bytes are no assignment.
    """
    if group.protocol_type not in (PROTOCOL_TYPE, ""):
        return None
    if not member.member_assignment:
        return frozenset()
    return frozenset(decode_assignment(member.member_assignment).partitions)


_Topic = TypeVar("_Topic", OffsetFetchRequestTopic, OffsetFetchRequestTopics)


def _topics(partitions: Sequence[TopicPartition] | None, made_of: type[_Topic]) -> list[_Topic] | None:
    if partitions is None:
        return None
    return [made_of(name=name, partition_indexes=of) for name, of in numbers_by_topic(partitions).items()]


def _read_offsets(
    outcomes: _Outcomes[str, dict[TopicPartition, OffsetAndMetadata]],
    group_id: str,
    code: int,
    topics: Iterable[OffsetFetchResponseTopic] | Iterable[OffsetFetchResponseTopics],
) -> None:
    """Record the offsets of one group, or the first error of its response."""
    if code:
        outcomes.fail([group_id], _error_of_group(group_id, code, {}))
        return
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in topics:
        partitions: Sequence[OffsetFetchResponsePartition | OffsetFetchResponsePartitions] = topic.partitions
        for each in partitions:
            where = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                outcomes.fail([group_id], named_error(f"group {group_id!r}, {where}", each.error_code))
                return
            if (offset := committed_offset(each)) is not None:
                offsets[where] = offset
    outcomes.results[group_id] = offsets
