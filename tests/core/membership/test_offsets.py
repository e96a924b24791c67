"""Commits and fetches of offsets: their order, retries and limits, and the effect of each error code."""

from __future__ import annotations

import pytest

from aioproducer.core.membership.events import EventKind
from aioproducer.core.membership.requests import GroupRequest, RequestKind
from aioproducer.core.membership.states import FENCED, REVOKING, STABLE, UNJOINED
from aioproducer.core.transactions.requests import Result
from aioproducer.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    ILLEGAL_GENERATION,
    INVALID_COMMIT_OFFSET_SIZE,
    NOT_COORDINATOR,
    OFFSET_METADATA_TOO_LARGE,
    REBALANCE_IN_PROGRESS,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
)
from aioproducer.errors import (
    BrokerError,
    CommitFailedError,
    GroupAuthorizationError,
    KafkaTimeoutError,
    NetworkError,
    NotCoordinatorError,
    RebalanceInProgressError,
    SaslAuthenticationError,
    TopicAuthorizationError,
    UnknownServerError,
    broker_error,
)
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from aioproducer.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
)
from aioproducer.record import TopicPartition

from .driving import BACKOFF_MS, MEMBER, NODE, Driver, partitions

BACKOFF = BACKOFF_MS / 1000


def offsets(*numbers: int, offset: int = 5) -> dict[TopicPartition, OffsetAndMetadata]:
    return dict.fromkeys(partitions(*numbers), OffsetAndMetadata(offset, "m", 3))


def commit(driver: Driver, *numbers: int, timeout: float = 10, retries: bool = True) -> Result:
    return driver.membership.commit(offsets(*numbers), driver.now + timeout, retries=retries)


def commit_answered(driver: Driver, code: int, *numbers: int) -> Result:
    """Commit, and answer with this code."""
    result = commit(driver, *numbers)
    request = driver.sent(RequestKind.COMMIT)
    driver.answer(request, driver.commit_response(request, code))
    return result


def commit_response(*codes: int) -> OffsetCommitResponse:
    """A code for each partition of the topic, from 0 on."""
    of_topic = OffsetCommitResponseTopic(
        name="orders",
        partitions=[
            OffsetCommitResponsePartition(partition_index=index, error_code=code) for index, code in enumerate(codes)
        ],
    )
    return OffsetCommitResponse(topics=[of_topic])


class TestCommit:
    def test_commit_of_a_member(self) -> None:
        driver = Driver(group_instance_id="a").stable(0, 1)
        result = commit(driver, 0, 1)
        request = driver.sent(RequestKind.COMMIT)
        assert request.node == NODE
        assert request.highest_version == 9
        message = driver.message(request, OffsetCommitRequest)
        assert (message.group_id, message.member_id, message.group_instance_id) == ("group", MEMBER, "a")
        assert message.generation_id_or_member_epoch == 1
        (topic,) = message.topics
        assert topic.name == "orders"
        assert [
            (each.partition_index, each.committed_offset, each.committed_leader_epoch, each.committed_metadata)
            for each in topic.partitions
        ] == [(0, 5, 3, "m"), (1, 5, 3, "m")]
        driver.answer(request, driver.commit_response(request))
        assert result.done
        assert result.error is None

    def test_commit_without_a_subscription_has_no_member(self) -> None:
        driver = Driver(topics=(), group_instance_id="a")
        result = commit(driver, 0)
        driver.find()
        request = driver.sent(RequestKind.COMMIT)
        message = driver.message(request, OffsetCommitRequest)
        assert (message.generation_id_or_member_epoch, message.member_id, message.group_instance_id) == (-1, "", None)
        driver.answer(request, driver.commit_response(request))
        assert result.error is None
        assert driver.state is UNJOINED

    def test_empty_commit_ends_at_once(self) -> None:
        driver = Driver(topics=())
        assert driver.membership.commit({}, driver.now).done
        assert driver.membership.fetch_offsets((), driver.now).done
        driver.idle()

    def test_commits_keep_their_order(self) -> None:
        driver = Driver().stable(0)
        first, second = commit(driver, 0), commit(driver, 0)
        request = driver.sent(RequestKind.COMMIT)
        driver.idle()
        driver.answer(request, driver.commit_response(request, COORDINATOR_LOAD_IN_PROGRESS))
        driver.idle()
        driver.advance(BACKOFF)
        for result in (first, second):
            request = driver.sent(RequestKind.COMMIT)
            driver.answer(request, driver.commit_response(request))
            assert result.done

    @pytest.mark.parametrize("code", [COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_TOPIC_OR_PARTITION])
    def test_retriable_codes_are_retried_with_backoff_until_the_deadline(self, code: int) -> None:
        driver = Driver().stable(0)
        result = commit(driver, 0, timeout=1)
        for attempt in range(3):
            request = driver.sent(RequestKind.COMMIT)
            driver.answer(request, driver.commit_response(request, code))
            driver.idle()
            driver.advance(BACKOFF * 2**attempt + 0.001)
        driver.advance(1)
        driver.idle()
        assert isinstance(result.error, KafkaTimeoutError)
        # The last response says more than that the time is over: a commit may name a partition that does not exist.
        assert f"after 3 attempts: orders-0: {broker_error(code)}" in str(result.error)

    @pytest.mark.parametrize("code", [COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, REQUEST_TIMED_OUT])
    def test_coordinator_that_moved_is_found_again(self, code: int) -> None:
        driver = Driver().stable(0)
        result = commit_answered(driver, code, 0)
        driver.find()
        driver.advance(BACKOFF)
        request = driver.sent(RequestKind.COMMIT)
        driver.answer(request, driver.commit_response(request))
        assert result.error is None
        assert driver.state is STABLE

    def test_commit_without_retries_ends_with_the_first_failure(self) -> None:
        driver = Driver().stable(0)
        result = commit(driver, 0, retries=False)
        request = driver.sent(RequestKind.COMMIT)
        driver.answer(request, driver.commit_response(request, COORDINATOR_LOAD_IN_PROGRESS))
        assert isinstance(result.error, BrokerError)
        assert result.error.retriable
        driver.idle()

    def test_only_what_was_not_accepted_is_sent_again(self) -> None:
        driver = Driver().stable(0, 1)
        result = commit(driver, 0, 1)
        request = driver.sent(RequestKind.COMMIT)
        response = driver.commit_response(request)
        response.topics[0].partitions[1].error_code = COORDINATOR_LOAD_IN_PROGRESS
        driver.answer(request, response)
        driver.advance(BACKOFF)
        request = driver.sent(RequestKind.COMMIT)
        (topic,) = driver.message(request, OffsetCommitRequest).topics
        assert [each.partition_index for each in topic.partitions] == [1]
        driver.answer(request, driver.commit_response(request))
        assert result.error is None

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            (GROUP_AUTHORIZATION_FAILED, GroupAuthorizationError),
            (TOPIC_AUTHORIZATION_FAILED, TopicAuthorizationError),
            (OFFSET_METADATA_TOO_LARGE, BrokerError),
            (INVALID_COMMIT_OFFSET_SIZE, BrokerError),
            (-1, UnknownServerError),
        ],
    )
    def test_other_codes_end_the_commit(self, code: int, error: type[BrokerError]) -> None:
        driver = Driver().stable(0)
        result = commit_answered(driver, code, 0)
        assert isinstance(result.error, error)
        assert str(result.error).startswith("orders-0: ")
        assert driver.state is STABLE

    def test_partition_without_a_result_fails_the_commit(self) -> None:
        driver = Driver().stable(0)
        result = commit(driver, 0)
        driver.answer(driver.sent(RequestKind.COMMIT), OffsetCommitResponse())
        assert isinstance(result.error, UnknownServerError)

    def test_error_of_the_whole_request_decides(self) -> None:
        driver = Driver().stable(0, 1)
        result = commit(driver, 0, 1)
        response = commit_response(TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED)
        driver.answer(driver.sent(RequestKind.COMMIT), response)
        assert isinstance(result.error, GroupAuthorizationError)

    def test_unknown_topic_does_not_hide_that_the_coordinator_moved(self) -> None:
        """A broker answers for unknown topics itself, and the coordinator for the rest."""
        driver = Driver().stable(0, 1)
        result = commit(driver, 0, 1, retries=False)
        response = commit_response(UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR)
        driver.answer(driver.sent(RequestKind.COMMIT), response)
        assert isinstance(result.error, NotCoordinatorError)
        driver.find()

    def test_unknown_topic_does_not_hide_that_the_member_is_out(self) -> None:
        driver = Driver().stable(0, 1)
        result = commit(driver, 0, 1)
        response = commit_response(UNKNOWN_TOPIC_OR_PARTITION, ILLEGAL_GENERATION)
        driver.answer(driver.sent(RequestKind.COMMIT), response)
        assert isinstance(result.error, CommitFailedError)
        driver.idle()
        assert driver.state is UNJOINED

    def test_unknown_topic_does_not_hide_that_another_is_not_allowed(self) -> None:
        driver = Driver().stable(0, 1)
        result = commit(driver, 0, 1)
        response = commit_response(UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED)
        driver.answer(driver.sent(RequestKind.COMMIT), response)
        assert isinstance(result.error, TopicAuthorizationError)

    @pytest.mark.parametrize("code", [UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION])
    def test_lost_generation_fails_the_commit_and_the_member_joins_again(self, code: int) -> None:
        driver = Driver().stable(0)
        result = commit_answered(driver, code, 0)
        assert isinstance(result.error, CommitFailedError)
        assert isinstance(result.error.__cause__, BrokerError)
        driver.idle()
        driver.confirm(EventKind.LOST, 0)
        driver.sent(RequestKind.JOIN)

    def test_fenced_member_fails_its_commit(self) -> None:
        driver = Driver(group_instance_id="a").stable(0)
        result = commit_answered(driver, FENCED_INSTANCE_ID, 0)
        assert isinstance(result.error, BrokerError)
        assert result.error.code == FENCED_INSTANCE_ID
        assert driver.state is FENCED
        later = commit(driver, 0)
        driver.idle()
        assert isinstance(later.error, CommitFailedError)

    def test_rebalance_rejects_the_commit_and_the_member_joins_again(self) -> None:
        driver = Driver().stable(0)
        result = commit_answered(driver, REBALANCE_IN_PROGRESS, 0)
        assert isinstance(result.error, RebalanceInProgressError)
        driver.idle()
        assert driver.state is REVOKING

    @pytest.mark.parametrize("code", [UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID])
    def test_commit_without_a_member_is_rejected_by_a_group_with_members(self, code: int) -> None:
        driver = Driver(topics=())
        result = commit(driver, 0)
        driver.find()
        request = driver.sent(RequestKind.COMMIT)
        driver.answer(request, driver.commit_response(request, code))
        assert isinstance(result.error, CommitFailedError)
        assert "use a group of its own" in str(result.error)
        assert driver.state is UNJOINED

    def test_commit_of_an_older_generation_does_not_reset_the_new_one(self) -> None:
        driver = Driver("cooperative-sticky").stable(0)
        result = commit(driver, 0)
        request = driver.sent(RequestKind.COMMIT)
        driver.membership.request_rejoin("test")
        driver.rejoin(0)
        driver.answer(request, driver.commit_response(request, ILLEGAL_GENERATION))
        assert isinstance(result.error, CommitFailedError)
        assert driver.state is STABLE

    def test_commit_of_an_older_generation_during_a_rebalance(self) -> None:
        driver = Driver("cooperative-sticky").stable(0)
        result = commit(driver, 0)
        request = driver.sent(RequestKind.COMMIT)
        driver.membership.request_rejoin("test")
        driver.answer(driver.sent(RequestKind.JOIN), JoinGroupResponse(error_code=UNKNOWN_MEMBER_ID))
        driver.idle()
        driver.confirm(EventKind.LOST)
        driver.sent(RequestKind.JOIN)
        driver.answer(request, driver.commit_response(request, UNKNOWN_MEMBER_ID))
        assert isinstance(result.error, RebalanceInProgressError)

    def test_commit_is_possible_until_the_revocation_is_confirmed(self) -> None:
        driver = Driver().stable(0)
        driver.heartbeat(REBALANCE_IN_PROGRESS)
        driver.idle()
        request_result = commit_answered(driver, 0, 0)
        assert request_result.error is None
        driver.confirm(EventKind.REVOKED)
        driver.sent(RequestKind.JOIN)
        later = commit(driver, 0)
        driver.idle()
        assert isinstance(later.error, RebalanceInProgressError)

    def test_commit_of_a_member_that_leaves_without_a_generation_fails(self) -> None:
        """The group would accept it without a member: it could set back the offset of the partition's new member."""
        driver = Driver(max_poll_interval_ms=4000).stable(0)
        driver.advance(4)
        driver.answer(driver.sent(RequestKind.LEAVE), LeaveGroupResponse())
        driver.membership.leave()
        result = commit(driver, 0)
        driver.idle()
        assert isinstance(result.error, CommitFailedError)
        driver.confirm(EventKind.LOST, 0)
        driver.idle()
        assert not driver.membership.is_leaving
        commit(driver, 0)
        driver.sent(RequestKind.COMMIT)

    def test_commit_that_waits_while_the_member_joins_fails(self) -> None:
        """Another member may have the partition, and be further."""
        driver = Driver().stable(0, 1)
        result = commit(driver, 0, 1)
        request = driver.sent(RequestKind.COMMIT)
        driver.answer(request, driver.commit_response(request, COORDINATOR_LOAD_IN_PROGRESS))
        driver.membership.request_rejoin("test")
        driver.idle()
        driver.confirm(EventKind.REVOKED)
        driver.sent(RequestKind.JOIN)
        driver.idle()
        assert isinstance(result.error, RebalanceInProgressError)

    def test_commit_of_an_earlier_generation_is_sent_while_its_partitions_are_owned(self) -> None:
        driver = Driver("cooperative-sticky").stable(0)
        generation = driver.membership.generation
        driver.membership.request_rejoin("test")
        driver.rejoin(0)
        call_result = commit(driver, 0)
        (call,) = driver.membership._queues[RequestKind.COMMIT.lane]
        call.generation = generation
        driver.sent(RequestKind.COMMIT)
        assert not call_result.done

    def test_connection_that_ends_is_retried(self) -> None:
        driver = Driver().stable(0)
        result = commit(driver, 0)
        driver.membership.disconnected(driver.sent(RequestKind.COMMIT), NetworkError(), driver.now)
        driver.find()
        driver.advance(BACKOFF)
        request = driver.sent(RequestKind.COMMIT)
        driver.answer(request, driver.commit_response(request))
        assert result.error is None

    def test_rejected_login_fails_the_commit(self) -> None:
        driver = Driver().stable(0)
        result = commit(driver, 0)
        driver.membership.disconnected(driver.sent(RequestKind.COMMIT), SaslAuthenticationError(), driver.now)
        assert isinstance(result.error, SaslAuthenticationError)

    def test_lookup_that_is_not_allowed_fails_the_calls_that_wait(self) -> None:
        driver = Driver(topics=())
        results = [commit(driver, 0), driver.membership.fetch_offsets(partitions(0), driver.now + 1)]
        coordinators = [Coordinator(key="group", error_code=GROUP_AUTHORIZATION_FAILED)]
        response = FindCoordinatorResponse(coordinators=coordinators)
        driver.answer(driver.sent(RequestKind.FIND_COORDINATOR), response)
        assert all(isinstance(result.error, GroupAuthorizationError) for result in results)
        driver.idle()
        assert driver.state is UNJOINED

    def test_deadline_ends_a_call_in_flight_and_later_ones_go_on(self) -> None:
        driver = Driver().stable(0)
        first, second = commit(driver, 0, timeout=1), commit(driver, 0)
        request = driver.sent(RequestKind.COMMIT)
        driver.advance(1)
        assert driver.membership.wake_at <= driver.now
        driver.idle()
        assert isinstance(first.error, KafkaTimeoutError)
        driver.answer(request, driver.commit_response(request, COORDINATOR_LOAD_IN_PROGRESS))
        request = driver.sent(RequestKind.COMMIT)
        driver.answer(request, driver.commit_response(request))
        assert second.error is None


def fetched(code: int = 0, *, group_code: int = 0) -> OffsetFetchResponse:
    """Offset 7 of partition 0, none of partition 1."""
    found = [
        OffsetFetchResponsePartitions(partition_index=0, committed_offset=7, committed_leader_epoch=2, metadata="m"),
        OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1, error_code=code),
    ]
    topic = OffsetFetchResponseTopics(name="orders", partitions=found)
    return OffsetFetchResponse(
        groups=[OffsetFetchResponseGroup(group_id="group", error_code=group_code, topics=[topic])]
    )


class TestFetch:
    def sent(self, driver: Driver) -> GroupRequest:
        return driver.sent(RequestKind.FETCH_OFFSETS)

    def test_fetch_returns_the_committed_offsets(self) -> None:
        driver = Driver(topics=())
        result = driver.membership.fetch_offsets(partitions(0, 1), driver.now + 5)
        driver.find()
        request = self.sent(driver)
        message = driver.message(request, OffsetFetchRequest)
        assert message.require_stable
        (group,) = message.groups
        assert group.topics is not None
        assert (group.group_id, group.topics[0].name, group.topics[0].partition_indexes) == ("group", "orders", [0, 1])
        driver.answer(request, fetched())
        assert result.done
        zero, one = partitions(0, 1)
        assert result.offsets == {zero: OffsetAndMetadata(7, "m", 2), one: None}

    def test_older_versions_have_one_group(self) -> None:
        driver = Driver(topics=())
        result = driver.membership.fetch_offsets(partitions(0), driver.now + 5)
        driver.find()
        request = self.sent(driver)
        old = driver.message(request, OffsetFetchRequest, 6)
        assert not old.require_stable
        assert old.topics is not None
        assert (old.group_id, old.topics[0].partition_indexes) == ("group", [0])
        found = OffsetFetchResponsePartition(partition_index=0, committed_offset=3, metadata=None)
        topic = OffsetFetchResponseTopic(name="orders", partitions=[found])
        driver.answer(request, OffsetFetchResponse(topics=[topic]))
        assert result.offsets == {partitions(0)[0]: OffsetAndMetadata(3)}

    def test_fetch_and_commit_do_not_wait_for_each_other(self) -> None:
        driver = Driver().stable(0)
        commit(driver, 0)
        driver.membership.fetch_offsets(partitions(0), driver.now + 5)
        driver.sent(RequestKind.COMMIT)
        self.sent(driver)

    @pytest.mark.parametrize("code", [UNSTABLE_OFFSET_COMMIT])
    def test_offsets_of_open_transactions_are_waited_for(self, code: int) -> None:
        driver = Driver(topics=())
        result = driver.membership.fetch_offsets(partitions(0, 1), driver.now + 5)
        driver.find()
        driver.answer(self.sent(driver), fetched(code))
        driver.idle()
        driver.advance(BACKOFF)
        driver.answer(self.sent(driver), fetched())
        assert result.error is None

    @pytest.mark.parametrize("code", [COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR])
    def test_retriable_codes_of_the_group_are_retried(self, code: int) -> None:
        driver = Driver(topics=())
        result = driver.membership.fetch_offsets(partitions(0, 1), driver.now + 5)
        driver.find()
        driver.answer(self.sent(driver), fetched(group_code=code))
        driver.advance(BACKOFF)
        if code != COORDINATOR_LOAD_IN_PROGRESS:
            driver.find()
        driver.answer(self.sent(driver), fetched())
        assert result.error is None

    @pytest.mark.parametrize("code", [UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, -1])
    def test_codes_of_a_partition_end_the_fetch(self, code: int) -> None:
        driver = Driver(topics=())
        result = driver.membership.fetch_offsets(partitions(0, 1), driver.now + 5)
        driver.find()
        driver.answer(self.sent(driver), fetched(code))
        assert isinstance(result.error, BrokerError)
        assert str(result.error).startswith("orders-1: ")

    def test_codes_of_the_group_end_the_fetch(self) -> None:
        driver = Driver(topics=())
        for response in (
            fetched(group_code=GROUP_AUTHORIZATION_FAILED),
            OffsetFetchResponse(error_code=GROUP_AUTHORIZATION_FAILED),
        ):
            result = driver.membership.fetch_offsets(partitions(0, 1), driver.now + 5)
            driver.idle_until_lookup()
            driver.answer(self.sent(driver), response)
            assert isinstance(result.error, GroupAuthorizationError)

    def test_fetch_that_takes_too_long_ends(self) -> None:
        driver = Driver(topics=())
        result = driver.membership.fetch_offsets(partitions(0), driver.now + 5)
        assert driver.membership.wake_at <= driver.now
        driver.sent(RequestKind.FIND_COORDINATOR)
        assert driver.membership.wake_at == driver.now + 5
        driver.advance(5)
        driver.idle()
        assert isinstance(result.error, KafkaTimeoutError)
        assert "fetch of committed offsets" in str(result.error)
