"""A member alone: joining, heartbeats, revocations, leaving, and the effect of each error code."""

from __future__ import annotations

import pytest

from aioproducer.core.membership.assignors import Assignor, RangeAssignor, RebalanceProtocol
from aioproducer.core.membership.events import EventKind, LeaveOperation, MembershipSettings, RebalanceEvent
from aioproducer.core.membership.requests import RequestKind
from aioproducer.core.membership.states import (
    AWAITING_SYNC,
    FAILED,
    FENCED,
    FINDING_COORDINATOR,
    JOINING,
    LEAVING,
    NEXT_STATES,
    REVOKING,
    STABLE,
    UNJOINED,
    MemberState,
)
from aioproducer.core.membership.subscription import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_subscription,
)
from aioproducer.error_codes import (
    CODES,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    UNSUPPORTED_VERSION,
)
from aioproducer.errors import (
    GroupAuthorizationError,
    KafkaError,
    NetworkError,
    SaslAuthenticationError,
    UnsupportedVersionError,
)
from aioproducer.offsets import ConsumerGroupMetadata
from aioproducer.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from .driving import BACKOFF_MS, MEMBER, NODE, Driver, owned, partitions

BACKOFF = BACKOFF_MS / 1000
TOPICS = {"orders": (frozenset[str](),) * 4}


class TestStates:
    @pytest.mark.parametrize("state", MemberState)
    def test_any_transition_outside_of_the_table_raises(self, state: MemberState) -> None:
        for following in MemberState:
            driver = Driver()
            driver.membership.state = state
            if following in NEXT_STATES[state]:
                driver.membership._enter(following)
                assert driver.state is following
            else:
                with pytest.raises(AssertionError, match=f"cannot become {following.value}"):
                    driver.membership._enter(following)

    def test_fenced_is_final(self) -> None:
        assert NEXT_STATES[FENCED] == frozenset()
        assert NEXT_STATES.keys() == set(MemberState)


class TestSettings:
    def test_heartbeats_come_more_often_than_the_session_ends(self) -> None:
        with pytest.raises(
            ValueError, match=r"heartbeat_interval_ms \(5000\) must be below session_timeout_ms \(5000\)"
        ):
            MembershipSettings("group", session_timeout_ms=5000, heartbeat_interval_ms=5000)

    def test_group_id_is_needed(self) -> None:
        with pytest.raises(ValueError, match="name the group to join"):
            MembershipSettings("")

    def test_assignors_need_a_common_protocol(self) -> None:
        class OnlyCooperative(Assignor):
            name = "mine"
            protocols = frozenset({RebalanceProtocol.COOPERATIVE})

        with pytest.raises(ValueError, match="the assignors range, mine have no rebalance protocol in common"):
            Driver("range", OnlyCooperative())
        with pytest.raises(ValueError, match="needs an assignor"):
            type(Driver().membership)(MembershipSettings("group"), [], None, None)  # type: ignore[arg-type]

    def test_highest_common_protocol_is_used(self) -> None:
        assert Driver("cooperative-sticky").membership.protocol is RebalanceProtocol.COOPERATIVE
        assert Driver("cooperative-sticky", "range").membership.protocol is RebalanceProtocol.EAGER


class TestJoining:
    def test_nothing_is_sent_without_a_subscription(self) -> None:
        driver = Driver(topics=())
        driver.idle()
        assert driver.membership.wake_at == float("inf")

    def test_new_member_asks_for_an_id_first(self) -> None:
        driver = Driver("range", "roundrobin")
        driver.find()
        first = driver.sent(RequestKind.JOIN)
        assert first.node == NODE
        message = driver.message(first, JoinGroupRequest)
        assert (message.group_id, message.member_id, message.protocol_type) == ("group", "", "consumer")
        assert (message.session_timeout_ms, message.rebalance_timeout_ms) == (45_000, 300_000)
        assert [protocol.name for protocol in message.protocols] == ["range", "roundrobin"]
        assert decode_subscription(message.protocols[0].metadata).topics == ("orders",)
        driver.answer(first, JoinGroupResponse(error_code=MEMBER_ID_REQUIRED, member_id=MEMBER))
        second = driver.message(driver.sent(RequestKind.JOIN), JoinGroupRequest)
        assert second.member_id == MEMBER
        assert second.reason == f"need to re-join with the given member-id: {MEMBER}"

    def test_join_waits_as_long_as_the_rebalance_may_take(self) -> None:
        driver = Driver(max_poll_interval_ms=60_000)
        driver.find()
        assert driver.sent(RequestKind.JOIN).timeout == 65
        quick = Driver(max_poll_interval_ms=1000)
        quick.find()
        assert quick.sent(RequestKind.JOIN).timeout == 30

    def test_follower_receives_its_assignment(self) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined())
        assert driver.state is AWAITING_SYNC
        sync = driver.sent(RequestKind.SYNC)
        message = driver.message(sync, SyncGroupRequest, 5)
        assert (message.generation_id, message.member_id, message.protocol_name) == (1, MEMBER, "range")
        assert message.assignments == []
        driver.answer(sync, driver.synced(0, 2))
        assert driver.state is STABLE
        assert driver.membership.assignment == frozenset()
        driver.confirm(EventKind.ASSIGNED, 0, 2)
        assert driver.membership.assignment == owned(0, 2)
        assert driver.membership.group_metadata() == ConsumerGroupMetadata("group", 1, MEMBER)

    def test_leader_waits_for_metadata_of_all_topics_then_assigns(self) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined(leads=True))
        driver.idle()
        assert driver.membership.needs_metadata
        assert driver.membership.watched_topics == {"orders"}
        driver.membership.update_metadata(TOPICS, ["orders"])
        message = driver.message(driver.sent(RequestKind.SYNC), SyncGroupRequest, 5)
        assert {each.member_id: decode_assignment(each.assignment).partitions for each in message.assignments} == {
            MEMBER: partitions(0, 1),
            "other": partitions(2, 3),
        }
        assert not driver.membership.needs_metadata

    def test_static_leader_that_returns_assigns_nothing(self) -> None:
        driver = Driver(group_instance_id="a")
        driver.membership.update_metadata(TOPICS, ["orders"])
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined(leads=True, skip_assignment=True))
        assert driver.message(driver.sent(RequestKind.SYNC), SyncGroupRequest, 5).assignments == []

    def test_static_member_needs_newer_versions(self) -> None:
        driver = Driver(group_instance_id="a")
        driver.find()
        join = driver.sent(RequestKind.JOIN)
        assert join.lowest_version == 5
        assert driver.message(join, JoinGroupRequest).group_instance_id == "a"

    def test_cooperative_static_member_that_returns_asks_for_one_more_rebalance(self) -> None:
        """The member before it may have ended between the two rebalances of a cooperative one."""
        driver = Driver("cooperative-sticky", group_instance_id="a")
        driver.find()
        driver.rejoin(0)
        driver.confirm(EventKind.ASSIGNED)
        message = driver.rejoin(0)
        assert "a static member has returned" in str(message.reason)
        driver.confirm(EventKind.ASSIGNED)
        driver.idle()

    @pytest.mark.parametrize(
        "changes", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}, {"protocol_name": None}]
    )
    def test_protocol_that_the_member_does_not_know_fails_it(self, changes: dict[str, object]) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined(**changes))  # type: ignore[arg-type]  # by name
        assert driver.state is FAILED
        assert "which this member does not know" in str(driver.membership.error)

    def test_bytes_that_are_no_subscription_fail_the_leader(self) -> None:
        driver = Driver()
        driver.find()
        response = driver.joined(leads=True)
        response.members[1].metadata = b"\xff"
        driver.answer(driver.sent(RequestKind.JOIN), response)
        assert driver.state is FAILED

    @pytest.mark.parametrize(
        "response",
        [
            SyncGroupResponse(assignment=b""),
            SyncGroupResponse(protocol_type="connect", assignment=b""),
            SyncGroupResponse(protocol_name="sticky", assignment=b""),
        ],
    )
    def test_wrong_assignment_fails_the_member(self, response: SyncGroupResponse) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined())
        driver.answer(driver.sent(RequestKind.SYNC), response)
        assert driver.state is FAILED

    def test_assignment_of_another_topic_leads_to_another_rebalance(self) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined())
        driver.answer(driver.sent(RequestKind.SYNC), driver.synced(0, topic="clicks"))
        driver.idle()
        driver.confirm(EventKind.REVOKED)
        assert driver.rejoin(0).reason == "received assignment does not match the current subscription"

    def test_subscription_by_pattern_accepts_newer_topics_of_the_leader(self) -> None:
        driver = Driver(topics=())
        driver.membership.subscribe(["orders"], lambda topic: topic.startswith("c"))
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined())
        driver.answer(driver.sent(RequestKind.SYNC), driver.synced(0, topic="clicks"))
        driver.confirm(EventKind.ASSIGNED)
        driver.idle()
        assert driver.membership.subscription == {"orders", "clicks"}

    @pytest.mark.parametrize("code", [COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR])
    def test_join_finds_the_coordinator_again(self, code: int) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=code))
        assert driver.state is FINDING_COORDINATOR
        driver.find()
        driver.idle()
        assert driver.membership.wake_at == driver.now + BACKOFF
        driver.advance(BACKOFF)
        driver.sent(RequestKind.JOIN)

    def test_join_waits_while_the_coordinator_loads(self) -> None:
        driver = Driver()
        driver.find()
        for attempt in range(3):
            driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=COORDINATOR_LOAD_IN_PROGRESS))
            driver.idle()
            driver.advance(BACKOFF * 2**attempt)
        driver.sent(RequestKind.JOIN)

    @pytest.mark.parametrize("code", [REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID])
    def test_join_is_repeated_at_once_and_then_with_backoff(self, code: int) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=code))
        driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=code))
        driver.idle()
        driver.advance(2 * BACKOFF)
        driver.sent(RequestKind.JOIN)

    @pytest.mark.parametrize(
        "code",
        [
            INCONSISTENT_GROUP_PROTOCOL,
            INVALID_SESSION_TIMEOUT,
            INVALID_GROUP_ID,
            GROUP_AUTHORIZATION_FAILED,
            GROUP_MAX_SIZE_REACHED,
            UNSUPPORTED_VERSION,
            -1,
        ],
    )
    def test_other_codes_fail_the_member_until_it_restarts(self, code: int) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=code))
        assert driver.state is FAILED
        assert driver.membership.error is not None
        driver.idle()
        driver.membership.restart()
        assert driver.membership.error is None
        driver.sent(RequestKind.JOIN)

    def test_fenced_member_stays_fenced(self) -> None:
        driver = Driver(group_instance_id="a")
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=FENCED_INSTANCE_ID))
        assert driver.state is FENCED
        driver.idle()
        with pytest.raises(KafkaError):
            driver.membership.restart()

    @pytest.mark.parametrize(
        ("code", "state"),
        [
            (REBALANCE_IN_PROGRESS, JOINING),
            (COORDINATOR_NOT_AVAILABLE, FINDING_COORDINATOR),
            (NOT_COORDINATOR, FINDING_COORDINATOR),
            (COORDINATOR_LOAD_IN_PROGRESS, JOINING),
            (UNKNOWN_MEMBER_ID, UNJOINED),
            (ILLEGAL_GENERATION, UNJOINED),
            (FENCED_INSTANCE_ID, FENCED),
            (GROUP_AUTHORIZATION_FAILED, FAILED),
            (INCONSISTENT_GROUP_PROTOCOL, FAILED),
            (-1, FAILED),
        ],
    )
    def test_codes_of_sync(self, code: int, state: MemberState) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined())
        driver.answer(driver.sent(RequestKind.SYNC), SyncGroupResponse(error_code=code))
        assert driver.state is state
        if state is JOINING or state is UNJOINED:
            driver.advance(1)
            message = driver.message(driver.sent(RequestKind.JOIN), JoinGroupRequest)
            assert message.member_id == ("" if code == UNKNOWN_MEMBER_ID else MEMBER)
            assert message.reason == f"rebalance failed due to {CODES[code][0]}"

    def test_lookup_is_repeated_with_backoff(self) -> None:
        driver = Driver()
        for attempt in range(3):
            coordinators = [Coordinator(key="group", error_code=COORDINATOR_NOT_AVAILABLE)]
            response = FindCoordinatorResponse(coordinators=coordinators)
            driver.answer(driver.sent(RequestKind.FIND_COORDINATOR), response)
            driver.idle()
            driver.advance(BACKOFF * 2**attempt)
        driver.membership.disconnected(driver.sent(RequestKind.FIND_COORDINATOR), NetworkError(), driver.now)
        driver.idle()

    def test_older_lookup_has_one_coordinator(self) -> None:
        driver = Driver()
        driver.answer(driver.sent(RequestKind.FIND_COORDINATOR), FindCoordinatorResponse(node_id=3))
        assert driver.membership.coordinator == 3

    @pytest.mark.parametrize("code", [GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID])
    def test_lookup_that_is_not_allowed_fails_the_member(self, code: int) -> None:
        driver = Driver()
        driver.answer(driver.sent(RequestKind.FIND_COORDINATOR), FindCoordinatorResponse(error_code=code))
        assert driver.state is FAILED

    @pytest.mark.parametrize("kind", [RequestKind.FIND_COORDINATOR, RequestKind.JOIN, RequestKind.SYNC])
    def test_connection_that_cannot_be_made_for_good_fails_the_member(self, kind: RequestKind) -> None:
        driver = Driver()
        request = driver.sent(RequestKind.FIND_COORDINATOR)
        if kind is not RequestKind.FIND_COORDINATOR:
            driver.answer(request, FindCoordinatorResponse(node_id=NODE))
            request = driver.sent(RequestKind.JOIN)
        if kind is RequestKind.SYNC:
            driver.answer(request, driver.joined())
            request = driver.sent(RequestKind.SYNC)
        driver.membership.disconnected(request, SaslAuthenticationError(), driver.now)
        assert driver.state is FAILED
        assert isinstance(driver.membership.error, SaslAuthenticationError)

    @pytest.mark.parametrize("kind", [RequestKind.JOIN, RequestKind.SYNC])
    def test_connection_that_ends_leads_to_another_join(self, kind: RequestKind) -> None:
        driver = Driver()
        driver.find()
        request = driver.sent(RequestKind.JOIN)
        if kind is RequestKind.SYNC:
            driver.answer(request, driver.joined())
            request = driver.sent(RequestKind.SYNC)
        driver.membership.disconnected(request, NetworkError(), driver.now)
        assert driver.membership.coordinator is None
        driver.find()
        driver.idle()
        driver.advance(BACKOFF)
        message = driver.message(driver.sent(RequestKind.JOIN), JoinGroupRequest)
        assert message.member_id == (MEMBER if kind is RequestKind.SYNC else "")


class TestHeartbeats:
    def test_heartbeats_follow_the_interval(self) -> None:
        driver = Driver(heartbeat_interval_ms=2000).stable(0)
        assert driver.membership.wake_at == driver.now + 2
        driver.advance(1.9)
        driver.idle()
        driver.advance(0.1)
        beat = driver.sent(RequestKind.HEARTBEAT)
        message = driver.message(beat, HeartbeatRequest, 4)
        assert (message.group_id, message.member_id, message.generation_id) == ("group", MEMBER, 1)
        driver.idle()
        driver.answer(beat, HeartbeatResponse())
        driver.idle()

    def test_failed_heartbeat_is_repeated_after_a_backoff(self) -> None:
        driver = Driver().stable(0)
        driver.heartbeat(GROUP_AUTHORIZATION_FAILED)
        driver.idle()
        driver.advance(BACKOFF)
        driver.answer(driver.sent(RequestKind.HEARTBEAT), HeartbeatResponse(error_code=-1))
        driver.advance(BACKOFF)
        driver.idle()
        driver.advance(BACKOFF + 0.001)
        driver.sent(RequestKind.HEARTBEAT)
        assert driver.state is STABLE

    @pytest.mark.parametrize("code", [COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR])
    def test_stable_member_stays_stable_while_it_finds_its_coordinator(self, code: int) -> None:
        driver = Driver().stable(0)
        driver.heartbeat(code)
        driver.find()
        assert driver.state is STABLE
        assert driver.membership.assignment == owned(0)
        driver.advance(BACKOFF)
        driver.sent(RequestKind.HEARTBEAT)

    def test_heartbeat_without_response_loses_the_coordinator_at_the_end_of_the_session(self) -> None:
        driver = Driver(session_timeout_ms=10_000).stable(0)
        driver.advance(3)
        beat = driver.sent(RequestKind.HEARTBEAT)
        driver.advance(7)
        assert driver.membership.wake_at <= driver.now
        driver.find()
        assert driver.state is STABLE
        driver.membership.disconnected(beat, NetworkError(), driver.now)
        assert driver.membership.coordinator is None or driver.membership.coordinator == NODE

    @pytest.mark.parametrize("code", [UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION])
    def test_member_that_is_out_loses_everything_before_it_joins_again(self, code: int) -> None:
        driver = Driver().stable(0, 1)
        driver.heartbeat(code)
        assert driver.state is UNJOINED
        driver.idle()
        assert driver.membership.assignment == frozenset()
        # With the old generation a transaction's offsets are refused. Without any the group would accept them.
        assert driver.membership.group_metadata() == ConsumerGroupMetadata("group", 1, MEMBER)
        driver.confirm(EventKind.LOST, 0, 1)
        message = driver.message(driver.sent(RequestKind.JOIN), JoinGroupRequest)
        assert message.member_id == ("" if code == UNKNOWN_MEMBER_ID else MEMBER)

    def test_fenced_member_loses_everything(self) -> None:
        driver = Driver(group_instance_id="a").stable(0)
        driver.heartbeat(FENCED_INSTANCE_ID)
        driver.idle()
        assert driver.state is FENCED
        driver.confirm(EventKind.LOST, 0)
        driver.idle()

    @pytest.mark.parametrize("code", [UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS])
    def test_heartbeat_of_an_older_generation_changes_nothing(self, code: int) -> None:
        driver = Driver("cooperative-sticky").stable(0)
        driver.advance(3)
        beat = driver.sent(RequestKind.HEARTBEAT)
        driver.membership.request_rejoin("test")
        driver.rejoin(0)
        driver.answer(beat, HeartbeatResponse(error_code=code))
        driver.confirm(EventKind.ASSIGNED)
        driver.idle()
        assert driver.state is STABLE

    def test_member_heartbeats_while_it_awaits_its_assignment(self) -> None:
        driver = Driver()
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined(leads=True))
        driver.advance(3)
        driver.answer(driver.sent(RequestKind.HEARTBEAT), HeartbeatResponse(error_code=REBALANCE_IN_PROGRESS))
        assert driver.state is AWAITING_SYNC

    def test_member_does_not_heartbeat_while_it_joins(self) -> None:
        driver = Driver("cooperative-sticky").stable(0)
        driver.membership.request_rejoin("test")
        driver.sent(RequestKind.JOIN)
        driver.advance(100)
        driver.idle()


class TestPollInterval:
    def test_silent_member_leaves_and_joins_again_when_its_application_asks(self) -> None:
        driver = Driver(max_poll_interval_ms=4000).stable(0)
        driver.advance(2)
        driver.membership.polled(driver.now)
        driver.advance(3.9)
        driver.answer(driver.sent(RequestKind.HEARTBEAT), HeartbeatResponse())
        driver.advance(0.1)
        leave = driver.sent(RequestKind.LEAVE)
        (identity,) = driver.message(leave, LeaveGroupRequest, 5).members
        assert (identity.member_id, identity.reason) == (MEMBER, "consumer poll timeout has expired.")
        driver.idle()
        driver.confirm(EventKind.LOST, 0)
        driver.answer(leave, LeaveGroupResponse())
        driver.idle()
        assert driver.state is UNJOINED
        driver.membership.polled(driver.now)
        assert driver.message(driver.sent(RequestKind.JOIN), JoinGroupRequest).member_id == ""

    def test_silent_static_member_just_stops_its_heartbeats(self) -> None:
        driver = Driver(group_instance_id="a", max_poll_interval_ms=4000).stable(0)
        driver.advance(4)
        driver.idle()
        assert driver.state is UNJOINED
        driver.confirm(EventKind.LOST, 0)
        driver.idle()

    def test_rebalance_without_a_request_for_records_does_not_restart_the_poll_interval(self) -> None:
        """A cooperative member joins without its application, which may hang."""
        driver = Driver("cooperative-sticky", max_poll_interval_ms=4000).stable(0)
        driver.membership.polled(driver.now)
        driver.membership.request_rejoin("test")
        driver.advance(3.9)
        driver.rejoin(0)
        driver.advance(0.1)
        driver.sent(RequestKind.LEAVE)
        driver.confirm(EventKind.ASSIGNED)
        driver.idle()
        driver.confirm(EventKind.LOST, 0)

    def test_rebalance_keeps_a_member_whose_application_requests_records(self) -> None:
        driver = Driver("cooperative-sticky", max_poll_interval_ms=4000).stable(0)
        driver.membership.request_rejoin("test")
        driver.advance(3.9)
        driver.membership.polled(driver.now)
        driver.rejoin(0)
        driver.advance(3.9)
        driver.answer(driver.sent(RequestKind.HEARTBEAT), HeartbeatResponse())
        driver.idle()
        assert driver.state is STABLE

    def test_member_that_joins_after_a_pause_has_the_whole_poll_interval(self) -> None:
        driver = Driver(max_poll_interval_ms=4000).stable(0)
        driver.membership.leave()
        driver.idle()
        driver.confirm(EventKind.REVOKED, 0)
        driver.answer(driver.sent(RequestKind.LEAVE), LeaveGroupResponse())
        driver.idle()
        driver.advance(100)
        driver.membership.subscribe(["orders"])
        driver.rejoin(0)
        driver.advance(3.9)
        driver.answer(driver.sent(RequestKind.HEARTBEAT), HeartbeatResponse())
        driver.idle()
        assert driver.state is STABLE

    def test_unconfirmed_revocation_ends_with_the_poll_interval(self) -> None:
        driver = Driver(max_poll_interval_ms=4000).stable(0)
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        driver.idle()
        assert driver.state is REVOKING
        driver.advance(4)
        driver.sent(RequestKind.LEAVE)
        assert driver.state is LEAVING
        driver.confirm(EventKind.REVOKED, 0)


class TestRebalances:
    def test_eager_member_revokes_everything_then_joins(self) -> None:
        driver = Driver().stable(0, 1)
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        driver.idle()
        assert driver.state is REVOKING
        assert driver.membership.assignment == frozenset()
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        assert driver.state is REVOKING
        driver.confirm(EventKind.REVOKED, 0, 1)
        message = driver.rejoin(1, 2)
        assert message.reason == "group is already rebalancing"
        subscription = decode_subscription(message.protocols[0].metadata)
        assert (subscription.owned_partitions, subscription.generation_id) == ((), 1)
        driver.confirm(EventKind.ASSIGNED, 1, 2)

    def test_assignment_is_confirmed_before_the_next_rebalance(self) -> None:
        driver = Driver()
        driver.find()
        driver.rejoin(0)
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        driver.idle()
        driver.confirm(EventKind.ASSIGNED, 0)
        driver.idle()
        driver.confirm(EventKind.REVOKED, 0)

    def test_cooperative_member_keeps_its_partitions_while_it_joins(self) -> None:
        driver = Driver("cooperative-sticky").stable(0, 1)
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        message = driver.rejoin(0, 1, 2)
        assert decode_subscription(message.protocols[0].metadata).owned_partitions == partitions(0, 1)
        assert driver.membership.assignment == owned(0, 1)
        driver.confirm(EventKind.ASSIGNED, 2)
        assert driver.membership.assignment == owned(0, 1, 2)

    def test_cooperative_member_revokes_what_its_assignment_lacks_then_joins_again(self) -> None:
        driver = Driver("cooperative-sticky").stable(0, 1)
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        driver.rejoin(1, 2)
        assert driver.state is REVOKING
        assert driver.membership.assignment == owned(1)
        driver.heartbeat()
        driver.confirm(EventKind.REVOKED, 0)
        driver.confirm(EventKind.ASSIGNED, 2)
        assert driver.rejoin(1, 2).reason == "need to revoke partitions and re-join"
        driver.confirm(EventKind.ASSIGNED)
        driver.idle()

    def test_cooperative_member_revokes_topics_that_it_no_longer_reads_before_it_joins(self) -> None:
        driver = Driver("cooperative-sticky").stable(0)
        driver.membership.subscribe(["clicks"])
        driver.idle()
        driver.confirm(EventKind.REVOKED, 0)
        message = driver.message(driver.sent(RequestKind.JOIN), JoinGroupRequest)
        assert message.reason == "subscription has changed"

    def test_cooperative_member_that_the_group_forgot_while_it_joined_loses_everything(self) -> None:
        driver = Driver("cooperative-sticky").stable(0)
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=UNKNOWN_MEMBER_ID))
        driver.idle()
        driver.confirm(EventKind.LOST, 0)
        assert driver.message(driver.sent(RequestKind.JOIN), JoinGroupRequest).member_id == ""

    def test_leader_asks_for_a_rebalance_when_its_topics_change(self) -> None:
        driver = Driver()
        driver.membership.update_metadata(TOPICS, ["orders"])
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined(leads=True))
        driver.answer(driver.sent(RequestKind.SYNC), driver.synced(0))
        driver.confirm(EventKind.ASSIGNED)
        driver.membership.update_metadata({**TOPICS, "clicks": (frozenset(),)}, ["orders", "clicks"])
        driver.idle()
        driver.membership.update_metadata({"orders": (frozenset({"east"}),) * 4}, ["orders"])
        driver.idle()
        driver.membership.update_metadata({"orders": (frozenset[str](),) * 5}, ["orders"])
        driver.idle()
        driver.confirm(EventKind.REVOKED)
        assert driver.rejoin().reason == "cached metadata has changed"

    def test_leader_with_a_rack_watches_the_racks(self) -> None:
        driver = Driver(rack="east")
        driver.membership.update_metadata(TOPICS, ["orders"])
        driver.find()
        driver.answer(driver.sent(RequestKind.JOIN), driver.joined(leads=True))
        driver.answer(driver.sent(RequestKind.SYNC), driver.synced(0))
        driver.confirm(EventKind.ASSIGNED)
        driver.membership.update_metadata({"orders": (frozenset({"east"}),) * 4}, ["orders"])
        driver.idle()
        assert driver.state is REVOKING

    def test_cooperative_assignor_that_moves_owned_partitions_fails_the_leader(self) -> None:
        class Moving(RangeAssignor):
            name = "moving"
            protocols = frozenset({RebalanceProtocol.COOPERATIVE})

        driver = Driver(Moving())
        driver.membership.update_metadata(TOPICS, ["orders"])
        driver.find()
        response = driver.joined(leads=True)
        owner = decode_subscription(response.members[0].metadata)
        response.members[0].metadata = encode_subscription(Subscription(owner.topics, owned_partitions=partitions(3)))
        driver.answer(driver.sent(RequestKind.JOIN), response)
        driver.idle()
        assert driver.state is FAILED
        assert "must leave such a partition out" in str(driver.membership.error)

    def test_only_the_event_that_waits_can_be_confirmed(self) -> None:
        driver = Driver().stable(0)
        with pytest.raises(ValueError, match="does not await"):
            driver.membership.confirm(RebalanceEvent(EventKind.REVOKED, owned(0)))


class TestLeaving:
    def test_member_revokes_its_partitions_then_leaves(self) -> None:
        driver = Driver().stable(0, 1)
        result = driver.membership.leave()
        driver.idle()
        assert driver.state is REVOKING
        driver.confirm(EventKind.REVOKED, 0, 1)
        leave = driver.sent(RequestKind.LEAVE)
        (identity,) = driver.message(leave, LeaveGroupRequest, 5).members
        assert (identity.member_id, identity.group_instance_id) == (MEMBER, None)
        assert identity.reason == "the consumer is being closed"
        assert driver.message(leave, LeaveGroupRequest, 1).member_id == MEMBER
        assert not leave.needs_new_connection
        driver.answer(leave, LeaveGroupResponse())
        assert result.done
        assert result.error is None
        driver.idle()

    @pytest.mark.parametrize(
        "response",
        [
            LeaveGroupResponse(error_code=UNKNOWN_MEMBER_ID),
            LeaveGroupResponse(members=[MemberResponse(error_code=UNKNOWN_MEMBER_ID)]),
        ],
    )
    def test_member_has_left_whatever_the_response(self, response: LeaveGroupResponse) -> None:
        driver = Driver().stable()
        result = driver.membership.leave()
        driver.answer(driver.sent(RequestKind.LEAVE), response)
        assert driver.state is UNJOINED
        assert isinstance(result.error, KafkaError)

    def test_member_has_left_when_the_connection_ends(self) -> None:
        driver = Driver().stable()
        result = driver.membership.leave()
        driver.membership.disconnected(driver.sent(RequestKind.LEAVE), NetworkError(), driver.now)
        assert isinstance(result.error, NetworkError)
        driver.idle()

    def test_leave_does_not_wait_for_a_join_in_flight(self) -> None:
        driver = Driver("cooperative-sticky").stable(0)
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        join = driver.sent(RequestKind.JOIN)
        driver.membership.leave()
        driver.idle()
        driver.confirm(EventKind.LOST, 0)
        leave = driver.sent(RequestKind.LEAVE)
        assert leave.needs_new_connection
        driver.answer(join, driver.joined())
        assert driver.state is LEAVING
        driver.answer(leave, LeaveGroupResponse())
        driver.idle()

    @pytest.mark.parametrize(
        ("instance_id", "operation", "leaves"),
        [
            (None, LeaveOperation.DEFAULT, True),
            (None, LeaveOperation.LEAVE_GROUP, True),
            (None, LeaveOperation.REMAIN_IN_GROUP, False),
            ("a", LeaveOperation.DEFAULT, False),
            ("a", LeaveOperation.LEAVE_GROUP, True),
            ("a", LeaveOperation.REMAIN_IN_GROUP, False),
        ],
    )
    def test_operations(self, instance_id: str | None, operation: LeaveOperation, leaves: bool) -> None:
        driver = Driver(group_instance_id=instance_id).stable()
        result = driver.membership.leave(operation)
        if leaves:
            driver.answer(driver.sent(RequestKind.LEAVE), LeaveGroupResponse())
        else:
            driver.idle()
        assert result.done
        assert driver.state is UNJOINED

    def test_member_without_coordinator_leaves_at_once(self) -> None:
        driver = Driver().stable()
        driver.heartbeat(NOT_COORDINATOR)
        result = driver.membership.leave()
        driver.idle()
        assert result.done

    @pytest.mark.parametrize("code", [FENCED_INSTANCE_ID, -1])
    def test_failed_member_leaves_when_what_it_lost_is_confirmed(self, code: int) -> None:
        driver = Driver(group_instance_id="a" if code > 0 else None).stable(0)
        if code > 0:
            driver.heartbeat(code)
        else:
            driver.heartbeat(REBALANCE_IN_PROGRESS)
            driver.idle()
            driver.confirm(EventKind.REVOKED)
            driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=code))
        result = driver.membership.leave()
        driver.idle()
        if driver.membership.event is not None:
            assert not result.done
            driver.confirm(EventKind.LOST, 0)
            driver.idle()
        assert result.done

    def test_member_joins_again_after_a_new_subscription(self) -> None:
        driver = Driver().stable()
        driver.membership.leave(reason="the consumer unsubscribed from all topics")
        leave = driver.sent(RequestKind.LEAVE)
        driver.membership.subscribe(["clicks"])
        driver.answer(leave, LeaveGroupResponse())
        assert driver.message(driver.sent(RequestKind.JOIN), JoinGroupRequest).member_id == ""

    def test_leaving_twice_is_leaving_once(self) -> None:
        driver = Driver().stable()
        assert driver.membership.leave() is driver.membership.leave()


def test_response_that_no_longer_counts_is_ignored() -> None:
    driver = Driver()
    driver.find()
    join = driver.sent(RequestKind.JOIN)
    driver.membership.disconnected(join, NetworkError(), driver.now)
    driver.answer(join, driver.joined())
    driver.membership.disconnected(join, NetworkError(), driver.now)
    assert driver.state is FINDING_COORDINATOR


def test_group_authorization_error_is_the_members_error() -> None:
    driver = Driver()
    coordinators = [Coordinator(key="group", error_code=GROUP_AUTHORIZATION_FAILED, error_message="no")]
    driver.answer(driver.sent(RequestKind.FIND_COORDINATOR), FindCoordinatorResponse(coordinators=coordinators))
    assert isinstance(driver.membership.error, GroupAuthorizationError)


def test_version_that_the_coordinator_lacks_fails_a_static_member() -> None:
    driver = Driver(group_instance_id="a")
    driver.find()
    driver.membership.disconnected(driver.sent(RequestKind.JOIN), UnsupportedVersionError(), driver.now)
    assert driver.state is FAILED
