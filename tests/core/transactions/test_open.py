"""Transactions that a producer leaves open, and epochs that it continues with."""

from __future__ import annotations

from random import Random

import pytest

from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.transactions.manager import TransactionManager
from aioproducer.core.transactions.requests import CoordinatorType, RequestKind
from aioproducer.core.transactions.states import FATAL_ERROR, IN_TRANSACTION, INITIALIZING, READY, UNINITIALIZED
from aioproducer.errors import ProducerClosedError, ProducerFencedError, TransactionStateError
from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
from aioproducer.protocol.messages.producer_ids import InitProducerIdResponse
from aioproducer.record import TopicPartition

FENCED = 90


def manager_with(version: int = 2) -> tuple[TransactionManager, ProducerState]:
    state = ProducerState(idempotent=True, max_in_flight=5)
    manager = TransactionManager("t", 60_000, state, ExponentialBackoff(10, 100, jitter=0), Random(0))
    state.transactions = manager
    manager.features_known(1, version)
    manager.queue.coordinators[CoordinatorType.TRANSACTION] = "t", 1
    return manager, state


def answered(manager: TransactionManager, response: InitProducerIdResponse) -> object:
    """Answer the due request, and return its message."""
    request = manager.poll(0.0, False)
    assert request is not None
    manager.queue.sent(request)
    message = request.message(5)
    manager.answered(request, response, 0.0)
    return message


@pytest.mark.parametrize("version", [1, 2])
def test_resume_needs_no_request_and_takes_the_generation_of_the_cluster(version):
    manager, state = manager_with(version)
    manager.resume(7, 3)
    assert (manager.state, manager.version, state.producer_id, state.producer_epoch) == (READY, version, 7, 3)
    assert manager.poll(0.0, False) is None
    manager.begin()
    assert manager.state is IN_TRANSACTION


def test_resume_is_rejected_while_a_call_or_a_transaction_is_open():
    manager, _ = manager_with()
    manager.begin_init()
    with pytest.raises(TransactionStateError, match="resume is not possible while the producer is initializing"):
        manager.resume(7, 3)
    assert manager.state is INITIALIZING
    answered(manager, InitProducerIdResponse(producer_id=7, producer_epoch=5))
    manager.begin()
    with pytest.raises(TransactionStateError, match="while the producer is in a transaction"):
        manager.resume(7, 3)


def test_a_producer_between_transactions_resumes_with_the_epoch_of_another_one():
    manager, state = manager_with()
    manager.resume(7, 3)
    manager.resume(8, 0)
    assert (manager.state, state.producer_id, state.producer_epoch) == (READY, 8, 0)


def test_a_response_after_a_fatal_error_changes_nothing():
    """A closed producer whose coordinator answered late raised in its own callback."""
    manager, state = manager_with()
    result = manager.begin_init()
    request = manager.poll(0.0, False)
    manager.queue.sent(request)
    manager.close(ProducerClosedError("closed"))
    manager.answered(request, InitProducerIdResponse(producer_id=7, producer_epoch=5), 0.0)
    assert manager.state is FATAL_ERROR
    assert isinstance(result.error, ProducerClosedError)
    assert state.producer_id != 7


def test_a_transaction_left_open_is_not_ended_and_the_next_epoch_is_requested():
    manager, state = manager_with()
    manager.resume(7, 3)
    manager.begin()
    manager.partition_used(TopicPartition("a", 0), state.sequences(TopicPartition("a", 0)))
    assert manager.leave_open() == (7, 3, 2)
    assert manager.state is UNINITIALIZED
    assert manager.poll(0.0, False) is None
    result = manager.begin_init()
    message = answered(manager, InitProducerIdResponse(producer_id=7, producer_epoch=5))
    assert (message.producer_id, message.producer_epoch) == (-1, -1)
    assert (result.error, manager.state, state.producer_epoch) == (None, READY, 5)


def test_only_an_open_transaction_without_requests_can_be_left():
    manager, _ = manager_with()
    with pytest.raises(TransactionStateError):
        manager.leave_open()
    manager.resume(7, 3)
    with pytest.raises(TransactionStateError, match="needs an open transaction"):
        manager.leave_open()
    manager.begin()
    manager.send_offsets({TopicPartition("a", 0): OffsetAndMetadata(1)}, ConsumerGroupMetadata("g"))
    with pytest.raises(TransactionStateError, match="await send_offsets first"):
        manager.leave_open()
    assert manager.state is IN_TRANSACTION


def test_a_new_epoch_is_requested_with_the_current_one():
    manager, state = manager_with(1)
    manager.resume(7, 3)
    result = manager.begin_new_epoch()
    request = manager.poll(0.0, False)
    assert request is not None
    assert request.kind is RequestKind.BUMP_EPOCH
    message = answered(manager, InitProducerIdResponse(producer_id=7, producer_epoch=4))
    assert (message.producer_id, message.producer_epoch) == (7, 3)
    assert (result.done, result.error, manager.state, state.producer_epoch) == (True, None, READY, 4)


def test_a_new_epoch_of_a_fenced_producer_is_a_fatal_error():
    manager, _ = manager_with(1)
    manager.resume(7, 3)
    result = manager.begin_new_epoch()
    answered(manager, InitProducerIdResponse(error_code=FENCED))
    assert isinstance(result.error, ProducerFencedError)
    assert manager.state is FATAL_ERROR
