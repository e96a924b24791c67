"""The state machine of a member (Kafka's ``ConsumerCoordinator``), without IO; the package describes its use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random

from aioproducer.core.membership.answers import Answer, answer_to
from aioproducer.core.membership.assignors.base import Assignor
from aioproducer.core.membership.events import MembershipSettings
from aioproducer.core.membership.member import Member
from aioproducer.core.membership.offsets import CallQueue, CommitCall, FetchCall, FetchedOffsets, OffsetCall
from aioproducer.core.membership.requests import (
    Generation,
    GroupRequest,
    Lane,
    RequestKind,
    commit_message,
    fetch_offsets_message,
    heartbeat_message,
    join_message,
    leave_message,
    sync_message,
)
from aioproducer.core.membership.states import (
    AWAITING_SYNC,
    FAILED,
    FENCED,
    FINDING_COORDINATOR,
    IN_GENERATION,
    JOINING,
    LEAVING,
    REVOKING,
    STABLE,
)
from aioproducer.core.membership.subscription import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    encode_subscription,
)
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.transactions.requests import CoordinatorType, Result, find_coordinator_message
from aioproducer.error_codes import INCONSISTENT_GROUP_PROTOCOL, NONE, REBALANCE_IN_PROGRESS
from aioproducer.errors import CommitFailedError, KafkaError, ProtocolError, broker_error
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.protocol import Request, Response
from aioproducer.protocol.messages.group_offsets import OffsetCommitResponse, OffsetFetchResponse
from aioproducer.protocol.messages.groups import (
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from aioproducer.record import TopicPartition

# A coordinator answers a JoinGroup at the end of the rebalance timeout; more seconds for delays on the way (Kafka's
# JOIN_GROUP_TIMEOUT_LAPSE).
JOIN_TIMEOUT_LAPSE = 5.0

_NOTHING: frozenset[TopicPartition] = frozenset()


class GroupMembership(Member):
    """One consumer's membership in its group, with its requests and the calls for offsets."""

    def __init__(
        self,
        settings: MembershipSettings,
        assignors: Sequence[Assignor],
        backoff: ExponentialBackoff,
        random: Random,
    ) -> None:
        """The arguments, and the errors, are those of ``Member``."""
        super().__init__(settings, assignors, backoff, random)
        self._queues = {Lane.COMMIT: CallQueue(backoff, random), Lane.FETCH: CallQueue(backoff, random)}

    # Calls of the application

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float, *, retries: bool = True
    ) -> Result:
        """Commit offsets, as this member or, if nothing is subscribed, for a group without members.

        Args:
            deadline: time at which it fails with a ``KafkaTimeoutError``.
            retries: whether retriable failures are retried, as ``commitSync`` does and ``commitAsync`` does not.

        The result ends with a ``CommitFailedError`` if the member has lost its generation, with a
        ``RebalanceInProgressError`` during a rebalance, or with the error of the coordinator.
        """
        call = CommitCall(offsets, deadline, self.generation, retries=retries)
        self._add_call(Lane.COMMIT, call, is_empty=not offsets)
        return call.result

    def fetch_offsets(self, partitions: Iterable[TopicPartition], deadline: float) -> FetchedOffsets:
        """Fetch the committed offsets of partitions; those of open transactions are waited for."""
        call = FetchCall(partitions, deadline, self.generation)
        self._add_call(Lane.FETCH, call, is_empty=not call.partitions)
        return call.fetched

    # The owner's requests

    def poll(self, now: float) -> GroupRequest | None:
        """Do what is due, and return the next request to send; None if there is none now."""
        for queue in self._queues.values():
            queue.expire(now)
        self._advance(now)
        self._check_commits()
        for request in self._due(now):
            lane = request.kind.lane
            self._in_flight[lane] = request
            if lane in self._queues:
                self._queues[lane].sent()
            elif lane is Lane.HEARTBEAT:
                self._deadlines.heartbeat_sent(now)
            if request.needs_new_connection:
                self._has_abandoned = False
            return request
        return None

    @property
    def wake_at(self) -> float:
        """When to call ``poll`` if nothing else happens; infinity if never."""
        return min(self._times(), default=float("inf"))

    def answered(self, request: GroupRequest, response: Response, now: float) -> None:
        """Take the response to a request; one that no longer counts is ignored."""
        if not self._end(request):
            return
        match response:
            case FindCoordinatorResponse():
                self._coordinator_answered(response, now)
            case JoinGroupResponse():
                self._join_answered(request, response, now)
            case SyncGroupResponse():
                self._sync_answered(request, response, now)
            case HeartbeatResponse():
                self._heartbeat_answered(request, response.error_code, now)
            case LeaveGroupResponse():
                codes = (response.error_code, *(member.error_code for member in response.members))
                code = next((code for code in codes if code != NONE), NONE)
                self._left(None if code == NONE else broker_error(code))
            case OffsetCommitResponse():
                self._commit_answered(request, response, now)
            case OffsetFetchResponse():
                self._fetch_answered(response, now)
            case _:
                raise AssertionError(f"{request!r} has no response of {type(response).__name__}")

    def disconnected(self, request: GroupRequest, error: KafkaError, now: float) -> None:
        """A request could not be sent, or its connection ended or was too slow; ``error`` says why."""
        if not self._end(request):
            return
        if not error.retriable:
            self._rejected(request, error)
            return
        if request.kind is RequestKind.FIND_COORDINATOR:
            self._lookup.failed(now)
            return
        if request.kind is RequestKind.LEAVE:
            self._left(error)
        if request.node == self.coordinator:
            self._forget_coordinator()
        match request.kind:
            case RequestKind.LEAVE:
                pass
            case RequestKind.JOIN | RequestKind.SYNC:
                self._join.failed(now)
                self._join_again("the connection to the coordinator ended")
            case RequestKind.HEARTBEAT:
                self._deadlines.heartbeat_failed(now)
            case _:
                queue = self._queues[request.kind.lane]
                queue.retry(queue.ended(), error, now)

    # Requests

    def _due(self, now: float) -> Iterator[GroupRequest]:
        in_flight = self._in_flight
        if Lane.LOOKUP not in in_flight and self._needs_lookup() and now >= self._lookup.retry_at:
            group_id = self.settings.group_id
            yield self._request(
                RequestKind.FIND_COORDINATOR,
                lambda version: find_coordinator_message(group_id, CoordinatorType.GROUP, version),
            )
        if self.coordinator is None:
            return
        if Lane.MEMBERSHIP not in in_flight:
            yield from self._membership_due(now)
        if (
            Lane.HEARTBEAT not in in_flight
            and self.state in IN_GENERATION
            and self.generation.exists
            and now >= self._deadlines.heartbeat_at
        ):
            beat = heartbeat_message(self.settings.group_id, self.generation, self.settings.group_instance_id)
            yield self._request(RequestKind.HEARTBEAT, lambda version: beat)
        for queue in self._queues.values():
            call = queue.first()
            if call is not None and now >= call.retry_at:
                yield self._call_request(call)

    def _membership_due(self, now: float) -> Iterator[GroupRequest]:
        if self.state is LEAVING:
            group_id, member_id, reason = self.settings.group_id, self.generation.member_id, self._leave_reason
            yield self._request(RequestKind.LEAVE, lambda version: leave_message(group_id, member_id, reason, version))
        elif self._leave is not None:
            return
        elif self.state is JOINING and now >= self._join.retry_at:
            yield self._join_request()
        elif self.state is AWAITING_SYNC and not self.needs_metadata:
            assignments: Mapping[str, bytes] = {}
            if self._leader.has_to_assign:
                try:
                    assignments = self._leader.assign(self._assignor, self.protocol, self._metadata)
                except KafkaError as error:
                    self._stop(FAILED, error)
                    return
            sync = sync_message(self.settings.group_id, self.generation, self.settings.group_instance_id, assignments)
            yield self._request(RequestKind.SYNC, lambda version: sync)

    def _join_request(self) -> GroupRequest:
        settings = self.settings
        self._joined_topics = self.subscription
        topics = tuple(self._joined_topics)
        join = join_message(
            settings.group_id,
            self.generation,
            settings.group_instance_id,
            settings.session_timeout_ms,
            settings.max_poll_interval_ms,
            {
                name: encode_subscription(
                    Subscription(
                        topics=topics,
                        user_data=assignor.user_data(topics),
                        owned_partitions=tuple(self._owned),
                        generation_id=self.generation.generation_id,
                        rack=settings.rack,
                    )
                )
                for name, assignor in self._assignors.items()
            },
            self._rejoin_reason,
        )
        return self._request(RequestKind.JOIN, lambda version: join)

    def _call_request(self, call: OffsetCall) -> GroupRequest:
        group_id, instance_id = self.settings.group_id, self.settings.group_instance_id
        if isinstance(call, CommitCall):
            commit = commit_message(group_id, self.generation, instance_id, call.offsets)
            return self._request(RequestKind.COMMIT, lambda version: commit)
        assert isinstance(call, FetchCall)
        partitions = call.partitions
        return self._request(
            RequestKind.FETCH_OFFSETS, lambda version: fetch_offsets_message(group_id, partitions, version)
        )

    def _request(self, kind: RequestKind, build: Callable[[int], Request[Response]]) -> GroupRequest:
        timeout = self.settings.request_timeout_ms / 1000
        if kind is RequestKind.JOIN:
            timeout = max(timeout, self.settings.max_poll_interval_ms / 1000 + JOIN_TIMEOUT_LAPSE)
        is_static = self.settings.group_instance_id is not None
        return GroupRequest(
            kind,
            None if kind is RequestKind.FIND_COORDINATOR else self.coordinator,
            self.generation,
            timeout,
            kind.value[3] if is_static else 0,
            build,
            needs_new_connection=self._has_abandoned and kind is not RequestKind.FIND_COORDINATOR,
        )

    def _needs_lookup(self) -> bool:
        if self.coordinator is not None:
            return False
        waits = self.state is FINDING_COORDINATOR or self.state in IN_GENERATION
        return waits or any(len(queue) for queue in self._queues.values())

    def _times(self) -> Iterator[float]:
        deadlines, in_flight, is_known = self._deadlines, self._in_flight, self.coordinator is not None
        if self.state in IN_GENERATION:
            yield deadlines.poll_until
            if is_known:
                yield deadlines.session_until
                if Lane.HEARTBEAT not in in_flight:
                    yield deadlines.heartbeat_at
        if Lane.LOOKUP not in in_flight and self._needs_lookup():
            yield self._lookup.retry_at
        is_joining = self.state is JOINING and self._leave is None
        if is_joining and is_known and Lane.MEMBERSHIP not in in_flight:
            yield self._join.retry_at
        for queue in self._queues.values():
            yield from queue.deadlines()
            first = queue.first()
            if first is not None and is_known:
                yield first.retry_at

    # Responses

    def _end(self, request: GroupRequest) -> bool:
        """Take a request out of flight; return whether its outcome counts."""
        if self._in_flight.get(request.kind.lane) is not request:
            return False
        del self._in_flight[request.kind.lane]
        return True

    def _rejected(self, request: GroupRequest, error: KafkaError) -> None:
        """A request has failed for good."""
        match request.kind:
            case RequestKind.FIND_COORDINATOR:
                self._lookup_rejected(error)
            case RequestKind.LEAVE:
                self._left(error)
            case RequestKind.COMMIT | RequestKind.FETCH_OFFSETS:
                self._queues[request.kind.lane].ended().result.end(error)
            case _:
                self._stop(FAILED, error)

    def _coordinator_answered(self, response: FindCoordinatorResponse, now: float) -> None:
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code == NONE:
            self.coordinator = found.node_id
            self._lookup.succeeded()
            self._deadlines.extend_session(now)
        elif answer_to(RequestKind.FIND_COORDINATOR, found.error_code) is Answer.FAIL:
            self._lookup_rejected(broker_error(found.error_code, found.error_message))
        else:
            self._lookup.failed(now)

    def _lookup_rejected(self, error: KafkaError) -> None:
        """There is no coordinator for this client: what waits for it fails."""
        for queue in self._queues.values():
            queue.drop(queue, error)
        if self.state is FINDING_COORDINATOR or self.state in IN_GENERATION:
            self._stop(FAILED, error)

    def _join_answered(self, request: GroupRequest, response: JoinGroupResponse, now: float) -> None:
        if response.error_code != NONE:
            if answer_to(request.kind, response.error_code) is Answer.TAKE_MEMBER_ID:
                self.generation = Generation(member_id=response.member_id)
                self._rejoin_reason = f"need to re-join with the given member-id: {response.member_id}"
            else:
                self._rebalance_failed(request, response.error_code, now)
            return
        name = response.protocol_name
        if response.protocol_type not in (None, PROTOCOL_TYPE) or name not in self._assignors:
            self._stop(FAILED, _inconsistent(f"assignor {name!r} of the type {response.protocol_type!r}"))
            return
        self.generation = self._latest_generation = Generation(response.generation_id, response.member_id, name)
        self._deadlines.begin(now, follows=request.generation.exists)
        if not request.generation.member_id and self.settings.group_instance_id is not None:
            self._may_have_replaced = self.is_cooperative
        self._enter(AWAITING_SYNC)
        if response.leader == response.member_id:
            try:
                self._leader.elected(response)
            except ProtocolError as error:
                self._stop(FAILED, error)

    def _sync_answered(self, request: GroupRequest, response: SyncGroupResponse, now: float) -> None:
        if response.error_code != NONE:
            self._rebalance_failed(request, response.error_code, now)
            return
        expected = (PROTOCOL_TYPE, self.generation.protocol_name)
        for given, own in zip((response.protocol_type, response.protocol_name), expected, strict=True):
            if given not in (None, own):
                self._stop(FAILED, _inconsistent(f"{given!r} instead of {own!r}"))
                return
        try:
            assignment = decode_assignment(response.assignment)
        except ProtocolError as error:
            self._stop(FAILED, error)
            return
        self._join.succeeded()
        self._rejoin_reason = ""
        if self._may_have_replaced:
            # The member before it may have had to revoke partitions and to join again, for others to receive them. This
            # one has the same assignment, and owns nothing that it could revoke. Kafka's consumer leaves them
            # unowned until the next rebalance.
            self._may_have_replaced = False
            self.request_rejoin("a static member has returned, and its last cooperative rebalance may not have ended")
        topics = {where.topic for where in assignment.partitions}
        unexpected = topics - self.subscription
        if self._accepts is not None and all(map(self._accepts, unexpected)):
            # Obey the leader, which has seen them before this member.
            self._topics = self.subscription | unexpected
            self._joined_topics |= unexpected
        elif unexpected:
            self._enter(STABLE)
            self.request_rejoin("received assignment does not match the current subscription")
            return
        revoked = self._owned.difference(assignment.partitions)
        if revoked:
            # Only with a cooperative assignor: an eager member owns nothing here.
            self._next_assignment = assignment
            self._revoke(revoked)
            self.request_rejoin("need to revoke partitions and re-join")
        else:
            self._complete(assignment)

    def _rebalance_failed(self, request: GroupRequest, code: int, now: float) -> None:
        """A JoinGroup or SyncGroup has failed."""
        answer = answer_to(request.kind, code)
        error = broker_error(code)
        reason = f"rebalance failed due to {error.error_name}"
        match answer:
            case Answer.RETRY:
                self._join.failed(now)
                self._join_again(reason)
            case Answer.FIND_COORDINATOR:
                self._join.failed(now)
                self._forget_coordinator()
                self._join_again(reason)
            case Answer.JOIN_AGAIN:
                self._at_once(now)
                self._join_again(reason)
            case Answer.RESET_GENERATION | Answer.RESET_MEMBER:
                self._at_once(now)
                self._reset(reason, keeps_id=answer is Answer.RESET_GENERATION)
            case Answer.FENCED:
                self._stop(FENCED, error)
            case _:
                self._stop(FAILED, error)

    def _heartbeat_answered(self, request: GroupRequest, code: int, now: float) -> None:
        if code == NONE:
            self._deadlines.heartbeat_received(now)
            return
        is_current = request.generation == self.generation
        answer = answer_to(request.kind, code)
        match answer:
            case Answer.JOIN_AGAIN:
                # The coordinator keeps the member as long as it sends heartbeats, until the rebalance timeout.
                self._deadlines.heartbeat_received(now)
                if is_current and self.state is STABLE:
                    self.request_rejoin("group is already rebalancing")
            case Answer.FIND_COORDINATOR:
                self._forget_coordinator()
                self._deadlines.heartbeat_failed(now)
            case Answer.RESET_GENERATION | Answer.RESET_MEMBER:
                if is_current:
                    reason = f"encountered {broker_error(code).error_name} from HEARTBEAT response"
                    self._reset(reason, keeps_id=answer is Answer.RESET_GENERATION)
            case Answer.FENCED:
                if is_current:
                    self._stop(FENCED, broker_error(code))
            case _:
                self._deadlines.heartbeat_failed(now)

    # Offsets

    def _add_call(self, lane: Lane, call: OffsetCall, *, is_empty: bool) -> None:
        if is_empty:
            call.result.end()
        else:
            self._queues[lane].add(call)

    def _check_commits(self) -> None:
        """End the commits that wait and are no longer allowed."""
        queue = self._queues[Lane.COMMIT]
        for call in list(queue):
            assert isinstance(call, CommitCall)
            error = self._why_not(call)
            if error is not None:
                queue.drop([call], error)

    def _why_not(self, call: CommitCall) -> KafkaError | None:
        """Return the error of a commit that the member's state does not allow."""
        if self._topics is None and not self.generation.exists and self.error is None:
            # Nothing is subscribed: the application assigns partitions itself, unless this member owned them. A member
            # that is leaving may have lost them before: a commit without a member would set back that of another one.
            owned_them = call.generation.exists or self._leave is not None
            return _lost_generation(self.settings.group_id) if owned_them else None
        if self.state in (STABLE, REVOKING):
            if call.generation == self.generation or self._owned.issuperset(call.offsets):
                return None
            return _lost_generation(self.settings.group_id)
        if self.state in (FINDING_COORDINATOR, JOINING, AWAITING_SYNC):
            return _rebalancing()
        return _lost_generation(self.settings.group_id)

    def _commit_answered(self, request: GroupRequest, response: OffsetCommitResponse, now: float) -> None:
        queue = self._queues[Lane.COMMIT]
        call = queue.ended()
        assert isinstance(call, CommitCall)
        failure = call.read(response)
        if failure is None:
            call.result.end()
            return
        where, code = failure
        error = broker_error(code)
        error.args = (f"{where}: {error}",)
        answer = answer_to(request.kind, code)
        is_current = request.generation == self.generation
        match answer:
            case Answer.RETRY:
                queue.retry(call, error, now)
            case Answer.FIND_COORDINATOR:
                self._forget_coordinator()
                queue.retry(call, error, now)
            case Answer.JOIN_AGAIN:
                self.request_rejoin("offset commit failed since group is already rebalancing")
                call.result.end(_rebalancing())
            case Answer.RESET_GENERATION | Answer.RESET_MEMBER | Answer.FENCED:
                call.result.end(self._not_committed(request, error, is_fenced=answer is Answer.FENCED))
                if not is_current or not request.generation.exists:
                    return
                if answer is Answer.FENCED:
                    self._stop(FENCED, error)
                else:
                    reason = f"encountered {error.error_name} from OFFSET_COMMIT response"
                    self._reset(reason, keeps_id=answer is Answer.RESET_GENERATION)
            case _:
                call.result.end(error)

    def _not_committed(self, request: GroupRequest, cause: KafkaError, *, is_fenced: bool) -> KafkaError:
        """Return the error of a commit whose member the group does not accept."""
        if not request.generation.exists:
            error = CommitFailedError(
                f"The offsets were not committed: the group {self.settings.group_id!r} has members, and this consumer "
                "assigns its partitions itself. Subscribe to the topics, or use a group of its own"
            )
        elif request.generation == self.generation:
            if is_fenced:
                return cause
            error = _lost_generation(self.settings.group_id)
        elif self.state is JOINING:
            return _rebalancing()
        else:
            error = _lost_generation(self.settings.group_id)
        error.__cause__ = cause
        return error

    def _fetch_answered(self, response: OffsetFetchResponse, now: float) -> None:
        queue = self._queues[Lane.FETCH]
        call = queue.ended()
        assert isinstance(call, FetchCall)
        failure = call.read(response)
        if failure is None:
            call.result.end()
            return
        where, code = failure
        error = broker_error(code)
        if where is not None:
            error.args = (f"{where}: {error}",)
        match answer_to(call.kind, code):
            case Answer.RETRY:
                queue.retry(call, error, now)
            case Answer.FIND_COORDINATOR:
                self._forget_coordinator()
                queue.retry(call, error, now)
            case _:
                call.result.end(error)


def _inconsistent(what: str) -> KafkaError:
    error = broker_error(INCONSISTENT_GROUP_PROTOCOL)
    error.args = (f"the coordinator chose {what}, which this member does not know: {error}",)
    return error


def _rebalancing() -> KafkaError:
    return broker_error(
        REBALANCE_IN_PROGRESS,
        "the offsets were not committed, as the group is rebalancing: ask for records until that has ended, then "
        "commit again what is still assigned",
    )


def _lost_generation(group_id: str) -> CommitFailedError:
    return CommitFailedError(
        f"The offsets were not committed: this consumer is no longer the member of the group {group_id!r} that read "
        "these records, and others may read them again. Ask for records in time (max.poll.interval.ms), and take "
        "fewer at a time (max.poll.records)"
    )
