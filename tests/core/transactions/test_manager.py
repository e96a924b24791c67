"""The state machine of a transactional producer."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.transactions.manager import SETTLING, TransactionManager
from aioproducer.core.transactions.requests import CoordinatorType, RequestKind, Result, TransactionalRequest
from aioproducer.core.transactions.states import NEXT_STATES, TransactionState
from aioproducer.errors import (
    CommitFailedError,
    DeliveryTimeoutError,
    KafkaError,
    NetworkError,
    ProducerClosedError,
    ProducerFencedError,
    SaslAuthenticationError,
    TransactionalIdAuthorizationError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
    TransactionStateError,
    UnsupportedVersionError,
    broker_error,
)
from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
from aioproducer.protocol import Response
from aioproducer.protocol.messages.groups import Coordinator, FindCoordinatorResponse
from aioproducer.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from aioproducer.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from aioproducer.record import TopicPartition

State = TransactionState
Kind = RequestKind
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
GROUP = ConsumerGroupMetadata("g")
OFFSETS = {A0: OffsetAndMetadata(7)}


def new(version: int = 2) -> TransactionManager:
    state = ProducerState(idempotent=True, max_in_flight=5)
    manager = TransactionManager("t", 60_000, state, ExponentialBackoff(100, 1000), Random(0))
    state.transactions = manager
    manager.features_known(1, version)
    return manager


def producer_state(manager: TransactionManager) -> ProducerState:
    return manager._producer_state


def use(manager: TransactionManager, where: TopicPartition) -> None:
    """Let the accumulator open a batch of a partition."""
    manager.partition_used(where, producer_state(manager).sequences(where))


def has_joined(manager: TransactionManager, where: TopicPartition) -> bool:
    state = producer_state(manager)
    return state.sequences(where).transaction == state.transaction


def next_request(manager: TransactionManager, now: float = 1e6, incomplete: bool = False) -> TransactionalRequest:
    request = manager.poll(now, incomplete)
    assert request is not None
    return request


def success(request: TransactionalRequest, epoch: int = 0) -> Response:
    """Return the response without an error to a request."""
    message = request.message(request.highest_version if request.highest_version < 100 else 6)
    if request.kind is Kind.FIND_COORDINATOR:
        node_id = 1 if request.coordinator is CoordinatorType.TRANSACTION else 2
        return FindCoordinatorResponse(coordinators=[Coordinator(key=request.key, node_id=node_id)])
    if isinstance(message, InitProducerIdRequest):
        return InitProducerIdResponse(producer_id=5, producer_epoch=message.producer_epoch + 1)
    if isinstance(message, AddPartitionsToTxnRequest):
        return partitions_response(
            {TopicPartition(topic.name, each): 0 for topic in message.v3_and_below_topics for each in topic.partitions}
        )
    if isinstance(message, TxnOffsetCommitRequest):
        return offsets_response(
            {
                TopicPartition(topic.name, each.partition_index): 0
                for topic in message.topics
                for each in topic.partitions
            }
        )
    if isinstance(message, EndTxnRequest):
        if request.version < 2:
            return EndTxnResponse()
        return EndTxnResponse(producer_id=5, producer_epoch=message.producer_epoch + 1)
    return AddOffsetsToTxnResponse()


def partitions_response(codes: dict[TopicPartition, int]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=code)
                ],
            )
            for (topic, partition), code in codes.items()
        ]
    )


def offsets_response(codes: dict[TopicPartition, int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic, partitions=[TxnOffsetCommitResponsePartition(partition_index=partition, error_code=code)]
            )
            for (topic, partition), code in codes.items()
        ]
    )


def failure(request: TransactionalRequest, code: int) -> Response:
    """Return the response with an error code to a request."""
    if request.kind is Kind.FIND_COORDINATOR:
        return FindCoordinatorResponse(coordinators=[Coordinator(key=request.key, error_code=code)])
    if request.kind is Kind.ADD_PARTITIONS:
        message = request.message(3)
        assert isinstance(message, AddPartitionsToTxnRequest)
        topic = message.v3_and_below_topics[0]
        return partitions_response({TopicPartition(topic.name, topic.partitions[0]): code})
    if request.kind is Kind.COMMIT_OFFSETS:
        return offsets_response(dict.fromkeys(request.offsets, code))
    response = success(request)
    assert isinstance(response, (InitProducerIdResponse, AddOffsetsToTxnResponse, EndTxnResponse))
    response.error_code = code
    return response


def answer(manager: TransactionManager, code: int = 0, now: float = 1e6) -> TransactionalRequest:
    """Send the next request, answer it, and return it."""
    request = next_request(manager, now)
    manager.queue.sent(request)
    manager.answered(request, failure(request, code) if code else success(request), now)
    return request


def answer_until(manager: TransactionManager, kind: Kind) -> TransactionalRequest:
    """Answer requests without an error until the next one has the given kind; return it, in flight."""
    while (request := next_request(manager)).kind is not kind:
        answer(manager)
    manager.queue.sent(request)
    return request


def answer_all(manager: TransactionManager, now: float = 1e6) -> list[Kind]:
    kinds: list[Kind] = []
    while manager.poll(now, False) is not None:
        kinds.append(answer(manager, now=now).kind)
        now += 10
    return kinds


def ready(version: int = 2) -> TransactionManager:
    manager = new(version)
    manager.begin_init()
    assert answer_all(manager) == [Kind.FIND_COORDINATOR, Kind.INIT_PRODUCER_ID]
    return manager


def in_transaction(version: int = 2) -> TransactionManager:
    manager = ready(version)
    manager.begin()
    return manager


def in_state(state: State) -> TransactionManager:
    manager = new()
    if state is State.UNINITIALIZED:
        return manager
    if state is State.INITIALIZING:
        manager.begin_init()
        return manager
    manager = ready()
    if state is State.READY:
        return manager
    if state is State.FATAL_ERROR:
        manager.close(ProducerClosedError("closed"))
        return manager
    manager.begin()
    use(manager, A0)
    if state is State.COMMITTING:
        manager.begin_commit()
    elif state is State.ABORTING:
        manager.begin_abort()
    elif state is State.ABORTABLE_ERROR:
        manager.record_failed(DeliveryTimeoutError("late"))
    assert manager.state is state
    return manager


CALLS: dict[str, Callable[[TransactionManager], Result | None]] = {
    "init": lambda manager: manager.begin_init(),
    "begin": lambda manager: manager.begin(),
    "commit": lambda manager: manager.begin_commit(),
    "abort": lambda manager: manager.begin_abort(),
    "offsets": lambda manager: manager.send_offsets(OFFSETS, GROUP),
}
ALLOWED = {
    (State.UNINITIALIZED, "init"): State.INITIALIZING,
    (State.INITIALIZING, "init"): State.INITIALIZING,
    (State.READY, "begin"): State.IN_TRANSACTION,
    (State.IN_TRANSACTION, "commit"): State.COMMITTING,
    (State.IN_TRANSACTION, "abort"): State.ABORTING,
    (State.IN_TRANSACTION, "offsets"): State.IN_TRANSACTION,
    (State.ABORTABLE_ERROR, "abort"): State.ABORTING,
}


class TestCalls:
    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("state", State, ids=lambda state: state.name)
    def test_each_call_makes_its_transition_or_raises_and_changes_nothing(self, state: State, call: str) -> None:
        manager = in_state(state)
        before = manager.poll(1e6, False)
        target = ALLOWED.get((state, call))
        if target is None:
            with pytest.raises(KafkaError) as raised:
                CALLS[call](manager)
            assert manager.state is state
            assert manager.poll(1e6, False) is before
            if state is State.ABORTABLE_ERROR:
                assert isinstance(raised.value, DeliveryTimeoutError)
            elif state is State.FATAL_ERROR:
                assert isinstance(raised.value, ProducerClosedError)
            else:
                assert isinstance(raised.value, TransactionStateError)
        else:
            CALLS[call](manager)
            assert manager.state is target

    @pytest.mark.parametrize("state", State, ids=lambda state: state.name)
    def test_records_are_accepted_only_in_a_transaction(self, state: State) -> None:
        manager = in_state(state)
        assert manager.accepts_records == (state is State.IN_TRANSACTION)
        if not manager.accepts_records:
            assert isinstance(manager.why_not("send"), KafkaError)

    def test_a_record_after_the_end_has_begun_has_a_separate_error(self) -> None:
        for state in (State.READY, State.COMMITTING, State.ABORTING):
            assert isinstance(in_state(state).why_not("send"), TransactionEndedError)

    def test_every_state_except_the_fatal_one_can_be_left(self) -> None:
        assert set(NEXT_STATES) == set(State)
        for state, following in NEXT_STATES.items():
            assert (State.FATAL_ERROR in following) == (state is not State.FATAL_ERROR)

    def test_a_second_init_waits_for_the_first(self) -> None:
        manager = new()
        assert manager.begin_init() is manager.begin_init()

    def test_the_state_is_reported_after_each_change(self) -> None:
        manager = ready()
        seen: list[State] = []
        manager.on_state = lambda: seen.append(manager.state)
        manager.begin()
        manager.begin_commit()
        answer_all(manager)
        assert seen == [State.IN_TRANSACTION, State.COMMITTING, State.READY]


class TestRequests:
    def test_the_coordinator_is_found_first(self) -> None:
        manager = new()
        result = manager.begin_init()
        assert manager.queue.node_of(next_request(manager)) is None
        assert answer(manager).kind is Kind.FIND_COORDINATOR
        request = next_request(manager)
        assert (request.kind, manager.queue.node_of(request)) == (Kind.INIT_PRODUCER_ID, 1)
        assert not result.done
        answer(manager)
        assert result.done
        assert result.error is None
        assert producer_state(manager).producer_id == 5

    def test_one_request_is_in_flight(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        manager.send_offsets(OFFSETS, GROUP)
        manager.queue.sent(next_request(manager))
        assert manager.poll(1e6, False) is None

    def test_partitions_and_offsets_go_before_the_end_in_the_order_of_their_calls(self) -> None:
        manager = in_transaction(version=1)
        manager.send_offsets(OFFSETS, GROUP)
        use(manager, A0)
        manager.begin_commit()
        assert answer_all(manager) == [
            Kind.ADD_OFFSETS,
            Kind.ADD_PARTITIONS,
            Kind.FIND_COORDINATOR,
            Kind.COMMIT_OFFSETS,
            Kind.COMMIT,
        ]
        assert manager.state is State.READY

    def test_the_end_waits_for_every_record(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_commit()
        assert manager.poll(0.0, True) is None
        assert next_request(manager).kind is Kind.COMMIT

    @pytest.mark.parametrize("version", [1, 2])
    def test_an_empty_transaction_sends_nothing(self, version: int) -> None:
        manager = in_transaction(version)
        result = manager.begin_commit()
        assert manager.poll(0.0, False) is None
        assert result.done
        assert manager.state is State.READY
        manager.begin()
        result = manager.begin_abort()
        assert manager.poll(0.0, False) is None
        assert result.done

    def test_a_retry_waits_for_its_backoff_and_keeps_its_message(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_commit()
        first = answer(manager, 14, now=0.0)
        assert manager.poll(0.05, False) is None
        assert 0.05 < manager.retry_at() < 0.2
        again = next_request(manager, manager.retry_at())
        assert again is first
        assert again.message(5) == first.message(5)

    def test_a_moved_coordinator_is_found_again(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_commit()
        answer(manager, 16)
        assert answer_all(manager, 2e6) == [Kind.FIND_COORDINATOR, Kind.COMMIT]
        assert manager.state is State.READY

    def test_a_lost_connection_leads_to_another_lookup(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_commit()
        request = answer_until(manager, Kind.COMMIT)
        manager.disconnected(request, NetworkError(), 0.0)
        assert answer_all(manager) == [Kind.FIND_COORDINATOR, Kind.COMMIT]

    def test_a_coordinator_that_cannot_be_reached_is_found_again_after_the_backoff(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_commit()
        manager.queue.unreachable(next_request(manager), 10.0)
        assert manager.poll(10.0, False) is None
        assert next_request(manager, 10.2).kind is Kind.FIND_COORDINATOR

    def test_each_group_has_its_own_coordinator(self) -> None:
        manager = in_transaction()
        manager.send_offsets(OFFSETS, GROUP)
        assert answer_all(manager) == [Kind.FIND_COORDINATOR, Kind.COMMIT_OFFSETS]
        manager.send_offsets(OFFSETS, GROUP)
        assert answer_all(manager) == [Kind.COMMIT_OFFSETS]
        manager.send_offsets(OFFSETS, ConsumerGroupMetadata("other"))
        request = next_request(manager)
        assert (request.kind, request.key) == (Kind.FIND_COORDINATOR, "other")

    def test_a_group_without_a_coordinator_does_not_delay_the_abort(self) -> None:
        """Its lookup, which has the highest priority, was once retried without an end, with no call waiting for it."""
        manager = in_transaction()
        use(manager, A0)
        result = manager.send_offsets(OFFSETS, GROUP)
        answer(manager, 15)
        manager.begin_abort()
        assert isinstance(result.error, TransactionEndedError)
        assert answer_all(manager) == [Kind.ABORT]
        manager.begin()
        manager.send_offsets(OFFSETS, GROUP)
        lookup = next_request(manager, 2e6)
        manager.queue.sent(lookup)
        manager.begin_abort()
        manager.answered(lookup, failure(lookup, 15), 0.0)
        assert answer_all(manager, now=2e6) == [Kind.ABORT]

    def test_a_request_in_flight_at_the_start_of_an_abort_does_not_delay_it(self) -> None:
        """Offsets for a group without a coordinator were once retried before the abort, without an end."""
        manager = in_transaction()
        use(manager, A0)
        result = manager.send_offsets(OFFSETS, GROUP)
        offsets = answer_until(manager, Kind.COMMIT_OFFSETS)
        manager.begin_abort()
        manager.answered(offsets, failure(offsets, 15), 0.0)
        assert answer_all(manager) == [Kind.ABORT]
        assert isinstance(result.error, TransactionEndedError)

    def test_a_partition_that_may_have_been_added_is_aborted_at_the_coordinator(self) -> None:
        for abort_first in (True, False):
            manager = in_transaction(version=1)
            use(manager, A0)
            adding = answer_until(manager, Kind.ADD_PARTITIONS)
            if abort_first:
                manager.begin_abort()
            manager.disconnected(adding, NetworkError(), 0.0)
            if not abort_first:
                manager.begin_abort()
            assert answer_all(manager) == [Kind.FIND_COORDINATOR, Kind.ABORT]

    def test_concurrent_transactions_are_tried_again_soon_at_the_first_partition(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        answer(manager, 51, now=0.0)
        assert manager.retry_at() == 0.02
        answer(manager, now=0.02)
        use(manager, B0)
        answer(manager, 51, now=0.0)
        assert manager.retry_at() > 0.05


class TestPartitions:
    def test_a_partition_joins_when_the_coordinator_has_added_it(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        use(manager, B0)
        assert not has_joined(manager, A0)
        request = next_request(manager)
        message = request.message(3)
        assert isinstance(message, AddPartitionsToTxnRequest)
        assert [(topic.name, topic.partitions) for topic in message.v3_and_below_topics] == [("a", [0]), ("b", [0])]
        answer(manager)
        assert has_joined(manager, A0)
        assert has_joined(manager, B0)
        assert not has_joined(manager, A1)

    def test_a_partition_is_added_by_another_request_while_one_waits_to_be_sent_again(self) -> None:
        """The response to the first request has no code for it, which once failed the transaction."""
        manager = in_transaction(version=1)
        use(manager, A0)
        answer(manager, 51, now=0.0)
        use(manager, B0)
        answer(manager)
        assert manager.state is State.IN_TRANSACTION
        assert (has_joined(manager, A0), has_joined(manager, B0)) == (True, False)
        assert answer(manager).kind is Kind.ADD_PARTITIONS
        assert has_joined(manager, B0)
        assert manager.poll(1e6, False) is None

    def test_a_transaction_is_aborted_at_the_coordinator_if_one_of_its_partitions_was_added(self) -> None:
        """A new epoch without the abort is refused as that of a fenced producer."""
        manager = in_transaction(version=1)
        use(manager, A0)
        use(manager, B0)
        adding = answer_until(manager, Kind.ADD_PARTITIONS)
        manager.answered(adding, partitions_response({A0: 0, B0: -1}), 0.0)
        assert manager.state is State.ABORTABLE_ERROR
        manager.begin_abort()
        assert answer_all(manager)[0] is Kind.ABORT

    def test_in_the_newer_generation_a_partition_joins_at_once(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        assert has_joined(manager, A0)
        assert manager.poll(0.0, False) is None

    def test_a_partition_joins_each_transaction_separately(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        answer(manager)
        manager.begin_commit()
        answer_all(manager)
        manager.begin()
        assert not has_joined(manager, A0)

    def test_records_that_waited_may_open_a_batch_while_the_transaction_commits(self) -> None:
        manager = in_transaction(version=1)
        manager.begin_commit()
        use(manager, A0)
        assert next_request(manager, incomplete=True).kind is Kind.ADD_PARTITIONS

    def test_a_batch_of_an_aborted_transaction_adds_nothing(self) -> None:
        for version in (1, 2):
            manager = in_transaction(version)
            use(manager, A0)
            manager.begin_abort()
            use(manager, B0)
            assert not has_joined(manager, B0)

    def test_a_partition_that_may_not_be_written_fails_the_transaction(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        use(manager, B0)
        request = next_request(manager)
        manager.queue.sent(request)
        manager.answered(request, partitions_response({A0: 29, B0: 55}), 0.0)
        assert manager.state is State.ABORTABLE_ERROR
        assert "a-0 (and 1 other partition) could not be added" in str(manager.error)

    def test_a_partition_without_an_answer_fails_the_transaction(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        use(manager, B0)
        request = next_request(manager)
        manager.queue.sent(request)
        manager.answered(request, partitions_response({A0: 0}), 0.0)
        assert manager.state is State.ABORTABLE_ERROR
        assert not has_joined(manager, A0)


class TestMarkersOfTheTransactionBefore:
    """A coordinator responds to the end of a transaction before it has written the markers."""

    @staticmethod
    def ended(version: int = 2) -> TransactionManager:
        """Return a manager with a transaction that was committed at the time 100."""
        manager = in_transaction(version)
        use(manager, A0)
        manager.begin_commit()
        while manager.state is State.COMMITTING:
            answer(manager, now=100)
        return manager

    def test_partitions_join_when_they_are_expected_to_be_written(self) -> None:
        manager = self.ended()
        manager.begin()
        use(manager, A0)
        use(manager, A1)
        assert manager.poll(100, True) is None
        assert manager.retry_at() == 100 + SETTLING
        assert not manager.settle(100 + SETTLING / 2)
        assert not has_joined(manager, A0)
        manager.begin_commit()
        assert manager.settle(100 + SETTLING)
        assert has_joined(manager, A0)
        assert has_joined(manager, A1)
        assert not manager.settle(200)
        assert answer_all(manager, now=100 + SETTLING) == [Kind.COMMIT]

    def test_partitions_of_a_later_transaction_join_at_once(self) -> None:
        manager = self.ended()
        manager.begin()
        assert not manager.settle(100 + SETTLING)
        use(manager, A0)
        assert has_joined(manager, A0)
        assert manager.retry_at() == float("inf")

    def test_the_first_transaction_waits_for_nothing(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        assert has_joined(manager, A0)

    def test_an_abort_before_they_are_written_has_nothing_to_end(self) -> None:
        manager = self.ended()
        manager.begin()
        use(manager, A0)
        manager.begin_abort()
        assert manager.poll(100, False) is None
        assert manager.state is State.READY
        assert not manager.settle(200)

    @pytest.mark.parametrize(
        ("version", "first"), [(1, Kind.ADD_PARTITIONS), (1, Kind.ADD_OFFSETS), (2, Kind.COMMIT_OFFSETS)]
    )
    def test_requests_wait_until_the_markers_are_expected(self, version: int, first: Kind) -> None:
        manager = self.ended(version)
        manager.begin()
        if first is Kind.ADD_PARTITIONS:
            use(manager, A0)
        else:
            manager.send_offsets(OFFSETS, GROUP)
        assert manager.poll(100 + SETTLING / 2, False) is None
        assert manager.retry_at() == 100 + SETTLING
        kinds = answer_all(manager, now=100 + SETTLING)
        assert next(kind for kind in kinds if kind is not Kind.FIND_COORDINATOR) is first

    def test_the_next_epoch_waits_until_the_markers_are_expected(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        manager.features_known(2, 2)
        manager.begin_commit()
        while manager.state is State.COMMITTING:
            answer(manager, now=100)
        assert manager.poll(100, False) is None
        assert next_request(manager, 100 + SETTLING).kind is Kind.BUMP_EPOCH


class TestOffsets:
    def test_offsets_that_are_accepted_are_not_sent_again(self) -> None:
        manager = in_transaction()
        result = manager.send_offsets({A0: OffsetAndMetadata(1), B0: OffsetAndMetadata(2, "m", 3)}, GROUP)
        request = answer_until(manager, Kind.COMMIT_OFFSETS)
        manager.answered(request, offsets_response({A0: 0, B0: 14}), 0.0)
        assert not result.done
        message = next_request(manager).message(5)
        assert isinstance(message, TxnOffsetCommitRequest)
        assert [topic.name for topic in message.topics] == ["b"]
        answer(manager)
        assert result.done
        assert result.error is None

    def test_topics_are_sent_by_id_if_all_ids_are_known(self) -> None:
        manager = in_transaction()
        manager._topic_id = {"a": b"a" * 16}.get
        result = manager.send_offsets({A0: OffsetAndMetadata(1), B0: OffsetAndMetadata(2)}, GROUP)
        request = answer_until(manager, Kind.COMMIT_OFFSETS)
        assert request.highest_version == 5
        manager.answered(request, success(request), 0.0)
        assert result.done
        result = manager.send_offsets({A0: OffsetAndMetadata(1), A1: OffsetAndMetadata(2)}, GROUP)
        request = answer_until(manager, Kind.COMMIT_OFFSETS)
        assert request.highest_version == 6
        message = request.message(6)
        assert isinstance(message, TxnOffsetCommitRequest)
        assert [topic.topic_id for topic in message.topics] == [b"a" * 16]
        response = offsets_response({A0: 100, A1: 0})
        for topic in response.topics:
            topic.name, topic.topic_id = "", b"a" * 16
        manager.answered(request, response, 0.0)
        # The id is outdated: the remaining topics are sent by name.
        assert next_request(manager).highest_version == 5
        answer(manager)
        assert result.done
        assert result.error is None

    def test_a_replaced_member_fails_the_transaction_with_commit_failed(self) -> None:
        for code in (22, 25, 69, 113):
            manager = in_transaction()
            result = manager.send_offsets(OFFSETS, GROUP)
            answer(manager)
            answer(manager, code)
            assert manager.state is State.ABORTABLE_ERROR
            assert isinstance(result.error, CommitFailedError)

    def test_a_transaction_with_only_offsets_is_ended_at_the_coordinator(self) -> None:
        manager = in_transaction()
        manager.send_offsets(OFFSETS, GROUP)
        manager.begin_commit()
        assert answer_all(manager)[-1] is Kind.COMMIT

    def test_an_abort_ends_the_calls_that_wait(self) -> None:
        manager = in_transaction()
        result = manager.send_offsets(OFFSETS, GROUP)
        manager.begin_abort()
        assert isinstance(result.error, TransactionEndedError)


class TestEnds:
    def test_the_newer_generation_adopts_the_epoch_of_the_end(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_commit()
        answer_all(manager)
        assert producer_state(manager).producer_epoch == 1

    def test_the_older_generation_keeps_its_epoch(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        manager.begin_commit()
        answer_all(manager)
        assert producer_state(manager).producer_epoch == 0
        assert manager.state is State.READY

    def test_a_new_producer_id_is_adopted_when_epochs_are_used_up(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_commit()
        request = answer_until(manager, Kind.COMMIT)
        manager.answered(request, EndTxnResponse(producer_id=9, producer_epoch=0), 0.0)
        assert (producer_state(manager).producer_id, producer_state(manager).producer_epoch) == (9, 0)

    def test_after_a_failure_the_older_generation_requests_a_new_epoch(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        answer(manager)
        manager.record_failed(DeliveryTimeoutError("late"))
        result = manager.begin_abort()
        assert answer_all(manager) == [Kind.ABORT, Kind.BUMP_EPOCH]
        assert result.done
        assert producer_state(manager).producer_epoch == 1
        assert manager.state is State.READY

    def test_brokers_without_new_epochs_make_a_failure_fatal(self) -> None:
        manager = in_transaction(version=1)
        manager.coordinator_ready(2)
        manager.record_failed(DeliveryTimeoutError("late"))
        assert manager.state is State.FATAL_ERROR

    def test_an_upgrade_between_two_transactions_requests_a_new_epoch(self) -> None:
        manager = in_transaction(version=1)
        use(manager, A0)
        manager.features_known(2, 2)
        assert manager.version == 1
        manager.begin_commit()
        assert answer_all(manager) == [Kind.ADD_PARTITIONS, Kind.COMMIT, Kind.BUMP_EPOCH]
        assert manager.version == 2

    def test_a_downgrade_takes_effect_with_the_next_transaction(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.features_known(2, 1)
        manager.begin_commit()
        request = answer_until(manager, Kind.COMMIT)
        assert request.highest_version == 5
        manager.answered(request, success(request), 0.0)
        assert manager.version == 1

    def test_features_of_an_older_epoch_are_ignored(self) -> None:
        manager = ready(2)
        manager.features_known(0, 0)
        manager.begin()
        manager.begin_commit()
        manager.poll(0.0, False)
        assert manager.version == 2

    @pytest.mark.parametrize("code", [47, 90])
    def test_a_fenced_producer_cannot_continue(self, code: int) -> None:
        manager = in_transaction()
        use(manager, A0)
        result = manager.begin_commit()
        answer(manager, code)
        assert manager.state is State.FATAL_ERROR
        assert isinstance(result.error, ProducerFencedError)
        assert isinstance(producer_state(manager).fatal_error, ProducerFencedError)

    def test_a_transaction_that_the_coordinator_has_aborted_is_followed_by_a_new_epoch(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        result = manager.begin_abort()
        answer(manager, 48)
        assert not result.done
        assert answer_all(manager) == [Kind.BUMP_EPOCH]
        assert result.error is None
        assert manager.state is State.READY

    def test_a_commit_whose_first_attempt_had_no_response_and_then_fails_has_an_unknown_outcome(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        result = manager.begin_commit()
        request = answer_until(manager, Kind.COMMIT)
        manager.disconnected(request, NetworkError(), 0.0)
        answer(manager)
        answer(manager, 90)
        error = result.error
        assert isinstance(error, TransactionOutcomeUnknownError)
        assert (error.transactional_id, error.producer_id, error.producer_epoch) == ("t", 5, 0)
        assert isinstance(error.__cause__, ProducerFencedError)

    def test_a_producer_that_closes_while_its_commit_is_in_flight_has_an_unknown_outcome(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        result = manager.begin_commit()
        answer_until(manager, Kind.COMMIT)
        manager.close(ProducerClosedError("closed"))
        assert isinstance(result.error, TransactionOutcomeUnknownError)

    def test_a_commit_that_was_not_sent_is_known_not_to_have_happened(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        result = manager.begin_commit()
        manager.close(ProducerClosedError("closed"))
        assert isinstance(result.error, ProducerClosedError)

    def test_an_unsupported_version_is_fatal(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_commit()
        request = answer_until(manager, Kind.COMMIT)
        manager.disconnected(request, UnsupportedVersionError(), 0.0)
        assert manager.state is State.FATAL_ERROR


class TestFailures:
    def test_the_first_failure_is_raised_by_every_call_but_the_abort(self) -> None:
        manager = in_transaction()
        manager.record_failed(DeliveryTimeoutError("first"))
        manager.record_failed(broker_error(10))
        for call in ("begin", "commit", "offsets"):
            with pytest.raises(DeliveryTimeoutError, match="first"):
                CALLS[call](manager)
        assert "failed (first)" in str(manager.unsent_error())
        manager.begin_abort()
        assert manager.poll(0.0, False) is None
        assert manager.state is State.READY
        assert manager.error is None

    def test_a_record_that_fails_while_the_transaction_commits_ends_the_commit(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        result = manager.begin_commit()
        manager.record_failed(DeliveryTimeoutError("late"))
        assert isinstance(result.error, DeliveryTimeoutError)
        assert manager.state is State.ABORTABLE_ERROR
        assert manager.poll(0.0, False) is None

    def test_records_that_fail_in_an_abort_change_nothing(self) -> None:
        manager = in_transaction()
        use(manager, A0)
        manager.begin_abort()
        manager.record_failed(DeliveryTimeoutError("late"))
        assert manager.state is State.ABORTING

    @pytest.mark.parametrize("code", [31, 35, 49, 53, 90])
    def test_fatal_failures_of_a_batch_are_fatal_to_the_producer(self, code: int) -> None:
        for state in (State.IN_TRANSACTION, State.COMMITTING, State.ABORTING):
            manager = in_state(state)
            manager.record_failed(broker_error(code))
            assert manager.state is State.FATAL_ERROR

    def test_rejected_permissions_at_the_begin_leave_the_producer_usable(self) -> None:
        manager = new()
        result = manager.begin_init()
        answer(manager)
        answer(manager, 53)
        assert isinstance(result.error, TransactionalIdAuthorizationError)
        assert manager.state is State.UNINITIALIZED
        manager.begin_init()
        assert answer_all(manager) == [Kind.INIT_PRODUCER_ID]

    def test_a_rejected_login_fails_waiting_calls_and_can_be_tried_again(self) -> None:
        manager = new()
        result = manager.begin_init()
        manager.authentication_failed(SaslAuthenticationError())
        assert isinstance(result.error, SaslAuthenticationError)
        assert manager.state is State.UNINITIALIZED
        manager = in_state(State.COMMITTING)
        manager.authentication_failed(SaslAuthenticationError())
        assert manager.state is State.ABORTABLE_ERROR

    def test_a_producer_id_below_zero_is_requested_again(self) -> None:
        manager = new()
        manager.begin_init()
        answer(manager)
        request = next_request(manager)
        manager.queue.sent(request)
        manager.answered(request, InitProducerIdResponse(producer_id=-1, producer_epoch=0), 0.0)
        assert manager.state is State.INITIALIZING
        assert answer_all(manager) == [Kind.INIT_PRODUCER_ID]


CODES = [0, 0, 0, 14, 15, 16, 7, 13, 51, 3, 29, 30, 48, 47, 53, 59, 90, 120, -1]


@given(st.data())
def test_any_order_of_calls_failures_and_answers_keeps_the_rules(data: st.DataObject) -> None:
    """One request is in flight, in the order of priorities; the end waits for all records; a fatal error stays.

    Every call ends when the brokers answer without errors.
    """
    version = data.draw(st.sampled_from([1, 2]))
    manager = new(version)
    results: list[Result] = []
    now = 0.0
    partitions = [A0, A1, B0]
    for _ in range(data.draw(st.integers(1, 40))):
        was_fatal = manager.state is State.FATAL_ERROR
        now += data.draw(st.sampled_from([0.0, 0.01, 1.0]))
        step = data.draw(
            st.sampled_from(["call", "use", "poll", "poll", "answer", "answer", "fail", "lose", "feature"])
        )
        if step == "call":
            call = CALLS[data.draw(st.sampled_from(sorted(CALLS)))]
            try:
                result = call(manager)
            except KafkaError:
                pass
            else:
                if result is not None:
                    results.append(result)
        elif step == "use":
            use(manager, data.draw(st.sampled_from(partitions)))
        elif step == "poll":
            incomplete = data.draw(st.booleans())
            request = manager.poll(now, incomplete)
            if request is not None:
                assert manager.queue.in_flight is None
                assert request.kind.priority == min(each.kind.priority for each in manager.queue.waiting)
                assert not (incomplete and request.ends_transaction)
                if manager.queue.node_of(request) is not None:
                    assert request.kind is not Kind.FIND_COORDINATOR
                manager.queue.sent(request)
        elif step == "answer" and manager.queue.in_flight is not None:
            request = manager.queue.in_flight
            code = data.draw(st.sampled_from(CODES))
            manager.answered(request, failure(request, code) if code else success(request), now)
        elif step == "lose" and manager.queue.in_flight is not None:
            manager.disconnected(manager.queue.in_flight, NetworkError(), now)
        elif step == "fail":
            manager.record_failed(data.draw(st.sampled_from([DeliveryTimeoutError("late"), broker_error(10)])))
        elif step == "level":
            manager.features_known(data.draw(st.integers(0, 3)), data.draw(st.sampled_from([1, 2])))
        if was_fatal:
            assert manager.state is State.FATAL_ERROR
        if manager.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            assert manager.error is not None
    if manager.queue.in_flight is not None:
        manager.answered(manager.queue.in_flight, success(manager.queue.in_flight), now)
    for _ in range(100):
        now += 10
        if manager.poll(now, False) is None:
            break
        answer(manager, now=now)
    assert manager.is_idle
    assert all(result.done for result in results)
    if manager.state is State.ABORTABLE_ERROR:
        manager.begin_abort()
        answer_all(manager, now + 100)
    assert manager.state in (State.UNINITIALIZED, State.READY, State.IN_TRANSACTION, State.FATAL_ERROR)
