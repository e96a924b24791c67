"""The states of a member, and what changes them besides responses; ``GroupMembership`` adds the requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random

from aioproducer.core.membership.assignors.base import Assignor, RebalanceProtocol
from aioproducer.core.membership.deadlines import Deadlines
from aioproducer.core.membership.events import EventKind, LeaveOperation, MembershipSettings, RebalanceEvent
from aioproducer.core.membership.leading import GroupLeader
from aioproducer.core.membership.requests import (
    Generation,
    GroupRequest,
    Lane,
    RequestKind,
)
from aioproducer.core.membership.states import (
    AWAITING_SYNC,
    FAILED,
    FENCED,
    FINDING_COORDINATOR,
    IN_GENERATION,
    JOINING,
    LEAVING,
    NEXT_STATES,
    REVOKING,
    STABLE,
    UNJOINED,
    MemberState,
)
from aioproducer.core.membership.subscription import (
    Assignment,
    TopicRacks,
)
from aioproducer.core.requests.retry import Attempts, ExponentialBackoff
from aioproducer.core.transactions.requests import Result
from aioproducer.errors import KafkaError
from aioproducer.offsets import ConsumerGroupMetadata
from aioproducer.record import TopicPartition

# A coordinator answers a JoinGroup at the end of the rebalance timeout; more seconds for delays on the way (Kafka's
# JOIN_GROUP_TIMEOUT_LAPSE).
JOIN_TIMEOUT_LAPSE = 5.0

_NOTHING: frozenset[TopicPartition] = frozenset()


class Member:
    """One consumer's membership in its group.

    Args:
        assignors: in the order of preference (``partition.assignment.strategy``); the group uses one that all know.
        backoff: the waits between attempts of a request.

    Raises:
        ValueError: there is no assignor, or they have no rebalance protocol in common.
    """

    def __init__(
        self,
        settings: MembershipSettings,
        assignors: Sequence[Assignor],
        backoff: ExponentialBackoff,
        random: Random,
    ) -> None:
        if not assignors:
            raise ValueError("a group consumer needs an assignor: set partition.assignment.strategy")
        common = frozenset.intersection(*(assignor.protocols for assignor in assignors))
        if not common:
            names = ", ".join(assignor.name for assignor in assignors)
            raise ValueError(f"the assignors {names} have no rebalance protocol in common: remove some of them")
        self.settings = settings
        self.state = UNJOINED
        self.error: KafkaError | None = None
        """Why the member is fenced, or has failed."""
        self.event: RebalanceEvent | None = None
        """What awaits its confirmation."""
        self.coordinator: int | None = None
        """The node of the group's coordinator. When it becomes None, the owner ends the connection to it."""
        self.generation = Generation()
        self.protocol = max(common)
        """Eager or cooperative."""
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._deadlines = Deadlines(
            settings.heartbeat_interval_ms / 1000,
            settings.session_timeout_ms / 1000,
            settings.max_poll_interval_ms / 1000,
            backoff,
            random,
        )
        self._leader = GroupLeader(watches_racks=settings.rack is not None)
        self._lookup = Attempts(backoff, random)
        self._join = Attempts(backoff, random)
        self._in_flight: dict[Lane, GroupRequest] = {}
        # A JoinGroup or SyncGroup is in flight that no longer counts.
        self._has_abandoned = False
        self._topics: frozenset[str] | None = None
        self._accepts: Callable[[str], bool] | None = None
        self._joined_topics: frozenset[str] = frozenset()
        # Why the member has to join again; empty if it need not.
        self._rejoin_reason = ""
        self._metadata: TopicRacks = {}
        self._covered: frozenset[str] = frozenset()
        self._owned: frozenset[TopicPartition] = _NOTHING
        # Assigned after the confirmation of the event that revokes others.
        self._next_assignment: Assignment | None = None
        # This static member may have replaced one in the middle of a cooperative rebalance.
        self._may_have_replaced = False
        self.is_silent = False
        """Whether the application has not asked for records for too long, and the member has therefore left."""
        # The latest generation that the member was in; transactions are fenced by it when it is over.
        self._latest_generation = Generation()
        self._leave: Result | None = None
        self._leave_operation = LeaveOperation.DEFAULT
        self._leave_reason = ""

    # Questions

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that may be read: those of the generation, without those that an event announces."""
        return self._owned - self.event.partitions if self.event is not None else self._owned

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions of the generation, also those that an event announces."""
        return self._owned

    @property
    def is_leaving(self) -> bool:
        """Whether the application gives up all partitions, and has not done so yet."""
        return self._leave is not None

    @property
    def poll_until(self) -> float:
        """When the member leaves the group unless the application asks for records before."""
        return self._deadlines.poll_until

    @property
    def is_cooperative(self) -> bool:
        """Whether the member keeps its partitions while it joins (KIP-429)."""
        return self.protocol is RebalanceProtocol.COOPERATIVE

    @property
    def subscription(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._topics or frozenset()

    @property
    def watched_topics(self) -> frozenset[str]:
        """The topics whose metadata the member needs: those of all members, if it leads the group."""
        return self.subscription | self._leader.topics

    @property
    def needs_metadata(self) -> bool:
        """Whether the group waits for this leader, which lacks metadata of some of ``watched_topics``."""
        return self._leader.has_to_assign and not self._leader.is_ready(self._covered)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group and the member, as transactions need them.

        A member that is out of its generation keeps the name of it: the group then refuses its offsets. Without any
        generation the group would accept them.
        """
        generation = self.generation if self.generation.exists else self._latest_generation
        return ConsumerGroupMetadata(
            self.settings.group_id,
            generation.generation_id,
            generation.member_id,
            self.settings.group_instance_id,
        )

    # The application's wishes

    def subscribe(self, topics: Collection[str], accepts: Callable[[str], bool] | None = None) -> None:
        """Read these topics; a change leads to a rebalance.

        Args:
            accepts: of a subscription by pattern: whether a topic matches. A leader that knows newer topics may assign
                them before this member has seen them.
        """
        self._topics = frozenset(topics)
        self._accepts = accepts

    def polled(self, now: float) -> None:
        """The application asks for records: it is alive."""
        self._deadlines.polled(now)
        self.is_silent = False

    def update_metadata(self, topics: TopicRacks, covered: Collection[str]) -> None:
        """Use newer metadata; a leader whose topics have changed asks for a rebalance.

        Args:
            topics: the racks of the replicas of each partition.
            covered: the topics that were asked for, whether they exist or not.
        """
        self._metadata = topics
        self._covered = frozenset(covered)

    def forget_generation(self) -> None:
        """The application assigns partitions itself: its offsets are no longer those of an earlier member."""
        self._latest_generation = Generation()

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance (``Consumer.enforceRebalance``)."""
        self._rejoin_reason = self._rejoin_reason or reason

    def leave(
        self,
        operation: LeaveOperation = LeaveOperation.DEFAULT,
        reason: str = "the consumer is being closed",
    ) -> Result:
        """Give up all partitions, then leave the group; the result ends with the response, with or without an error.

        The subscription ends at once. After ``subscribe`` the member joins again.
        """
        if self._leave is None:
            self._leave = Result()
        self._leave_operation = operation
        self._leave_reason = reason
        self._topics = None
        return self._leave

    def restart(self) -> None:
        """Try again after a failure: the application asked for records again.

        Raises:
            KafkaError: the member is fenced.
        """
        if self.state is FENCED:
            assert self.error is not None
            raise self.error.fresh()
        if self.state is FAILED:
            self.error = None
            self._lookup.succeeded()
            self._join.succeeded()
            self._enter(UNJOINED)

    def confirm(self, event: RebalanceEvent) -> None:
        """The owner has dealt with ``event``, and its listener has returned.

        Raises:
            ValueError: it is not the event that awaits its confirmation.
        """
        if event is not self.event or self.event is None:
            raise ValueError(f"{event!r} does not await a confirmation")
        self.event = None
        if event.kind is EventKind.ASSIGNED:
            return
        self._owned -= event.partitions
        if self.state is REVOKING and self._leave is None:
            if self._next_assignment is not None:
                self._complete(self._next_assignment)
            else:
                self._go_join()

    # Time, and what follows from wishes and events

    def _advance(self, now: float) -> None:
        deadlines = self._deadlines
        if self.state in IN_GENERATION:
            if now >= deadlines.poll_until:
                self._fall_silent()
            elif self.coordinator is not None and now >= deadlines.session_until:
                self._forget_coordinator()
        if self.event is None and self._owned and not self.generation.exists:
            self.event = RebalanceEvent(EventKind.LOST, self._owned)
        if self._leave is not None:
            self._advance_leave()
        elif self.state is STABLE:
            self._advance_stable()
        elif self.state is UNJOINED and self._topics is not None and self.event is None and not self.is_silent:
            self._go_join()
        if self.state is FINDING_COORDINATOR and self.coordinator is not None:
            self._enter(JOINING)
        elif self.state is JOINING and self.coordinator is None and Lane.MEMBERSHIP not in self._in_flight:
            self._enter(FINDING_COORDINATOR)

    def _advance_stable(self) -> None:
        """Begin a rebalance if there is a reason; an assignment that awaits its confirmation comes before."""
        if self._leader.has_changed(self._metadata):
            self.request_rejoin("cached metadata has changed")
        if self._topics != self._joined_topics:
            self.request_rejoin("subscription has changed")
        if not self._rejoin_reason or self.event is not None:
            return
        if self.is_cooperative:
            revoked = frozenset(where for where in self._owned if where.topic not in self.subscription)
        else:
            revoked = self._owned
        if revoked or not self.is_cooperative:
            self._revoke(revoked)
        else:
            self._go_join()

    def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        self.event = RebalanceEvent(EventKind.REVOKED, partitions)
        self._enter(REVOKING)

    def _go_join(self) -> None:
        self._leader.resign()
        self._next_assignment = None
        self._enter(FINDING_COORDINATOR if self.coordinator is None else JOINING)

    def _join_again(self, reason: str) -> None:
        """Send another JoinGroup for the same rebalance: what had to be revoked before it has been."""
        self._rejoin_reason = reason
        if self.state is JOINING:
            if self.coordinator is None:
                self._enter(FINDING_COORDINATOR)
        elif self.state is AWAITING_SYNC:
            self._go_join()

    def _at_once(self, now: float) -> None:
        """Let the next JoinGroup follow at once, but from the second failure on after a backoff."""
        is_first = self._join.failures == 0
        self._join.failed(now)
        if is_first:
            self._join.skip_backoff(now)

    def _advance_leave(self) -> None:
        if self.state in (JOINING, AWAITING_SYNC):
            self._abandon()
        if self.event is not None or self.state is LEAVING:
            return
        if self._owned:
            if self.state is STABLE:
                self._revoke(self._owned)
            else:
                # During a rebalance the group may have given them away.
                is_revoked = self.state is REVOKING
                self.event = RebalanceEvent(EventKind.REVOKED if is_revoked else EventKind.LOST, self._owned)
            return
        operation = self._leave_operation
        leaves = operation is LeaveOperation.LEAVE_GROUP or (
            operation is LeaveOperation.DEFAULT and self.settings.group_instance_id is None
        )
        self._begin_leaving(sends=leaves)

    def _begin_leaving(self, *, sends: bool) -> None:
        """Send LeaveGroup if there is a coordinator to send it to, else just forget the membership."""
        self._abandon()
        is_member = self.state not in (FAILED, FENCED) and bool(self.generation.member_id)
        if sends and is_member and self.coordinator is not None:
            self._enter(LEAVING)
        else:
            self._left(None)

    def _left(self, error: KafkaError | None) -> None:
        self.generation = Generation()
        self._leader.resign()
        self._next_assignment = None
        self._rejoin_reason = ""
        if self.state not in (UNJOINED, FENCED, FAILED):
            self._enter(UNJOINED)
        if self.event is None and not self._owned and self._leave is not None:
            leave, self._leave = self._leave, None
            leave.end(error)

    def _fall_silent(self) -> None:
        """Leave the group: the application has not asked for records within ``max_poll_interval_ms``."""
        self.is_silent = True
        self._leave_reason = "consumer poll timeout has expired."
        self._begin_leaving(sends=self.settings.group_instance_id is None)
        # LeaveGroup names the member, but its partitions are lost already.
        self.generation = Generation(member_id=self.generation.member_id)

    def _forget_coordinator(self) -> None:
        self.coordinator = None
        if self.state is LEAVING and Lane.MEMBERSHIP not in self._in_flight:
            self._left(None)

    def _abandon(self) -> None:
        """Ignore the response to a JoinGroup or SyncGroup in flight."""
        request = self._in_flight.pop(Lane.MEMBERSHIP, None)
        if request is not None and request.kind is not RequestKind.LEAVE:
            self._has_abandoned = True

    def _reset(self, reason: str, *, keeps_id: bool) -> None:
        """The member is out of its generation. What it owned is lost, before it joins again."""
        if self.state is not JOINING and self.state not in IN_GENERATION:
            return
        self._abandon()
        self.generation = Generation(member_id=self.generation.member_id if keeps_id else "")
        self._leader.resign()
        self._next_assignment = None
        self._rejoin_reason = reason
        self._enter(UNJOINED)

    def _stop(self, state: MemberState, error: KafkaError) -> None:
        """Enter FENCED or FAILED. No heartbeats are sent any more, so that what the member owned is lost."""
        if self.state in (UNJOINED, LEAVING, FENCED, FAILED):
            return
        self._abandon()
        self.generation = Generation(member_id="" if state is FENCED else self.generation.member_id)
        self._leader.resign()
        self._next_assignment = None
        self.error = error
        self._enter(state)

    def _enter(self, state: MemberState) -> None:
        if state not in NEXT_STATES[self.state]:
            raise AssertionError(f"a member that is {self.state.value} cannot become {state.value}")
        self.state = state

    def _complete(self, assignment: Assignment) -> None:
        """Take over the assignment; what is new in it awaits its confirmation."""
        self._next_assignment = None
        partitions = frozenset(assignment.partitions)
        added = partitions - self._owned
        self._assignor.on_assignment(assignment, self.generation.generation_id)
        self._owned = partitions
        self._enter(STABLE)
        self.event = RebalanceEvent(EventKind.ASSIGNED, added)

    @property
    def _assignor(self) -> Assignor:
        assert self.generation.protocol_name is not None
        return self._assignors[self.generation.protocol_name]
