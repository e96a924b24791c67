"""Completion: the outcome of a batch, depending on the response of the broker."""

from __future__ import annotations

from itertools import permutations

import pytest

from aioproducer.core.batching.completion import Fate, Verdict
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.error_codes import CODES, REFUSED_BEFORE_APPEND
from aioproducer.errors import (
    BatchRejectedError,
    ClusterAuthorizationError,
    DeliveryTimeoutError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    UnsupportedVersionError,
)
from aioproducer.record import RecordMetadata
from tests.core.accumulating import Bench, values_of

MESSAGE_TOO_LARGE = 10
NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
REQUEST_TIMED_OUT = 7
KAFKA_STORAGE_ERROR = 56
NOT_LEADER_OR_FOLLOWER = 6
TOPIC_AUTHORIZATION_FAILED = 29
CLUSTER_AUTHORIZATION_FAILED = 31
INVALID_TIMESTAMP = 32
UNSUPPORTED_VERSION = 35
OUT_OF_ORDER = 45
DUPLICATE = 46
INVALID_RECORD = 87
TIMEOUT = 10.0


def in_flight(count: int = 1, **settings) -> tuple[Bench, list[Delivery], list]:
    """Return ``count`` batches of one record each, in flight together."""
    bench = Bench(delivery_timeout=TIMEOUT, **settings)
    bench.send_batch()
    bench.ack(bench.drain_one())
    deliveries, batches = [], []
    for _ in range(count):
        deliveries += bench.send_batch()
        batches.append(bench.drain_one())
    return bench, deliveries, batches


# Answers


def test_an_ack_resolves_the_deliveries_and_releases_all_memory() -> None:
    bench, (delivery,), (batch,) = in_flight()
    assert bench.ack(batch, 41, 9000) == Verdict(Fate.ACKED)
    assert delivery.result() == RecordMetadata("t", 0, 41, 9000)
    assert bench.all_memory_is_back()
    assert batch.queue is None


def test_with_acks_0_a_written_batch_is_done() -> None:
    bench = Bench(idempotent=False)
    (delivery,) = bench.send_batch()
    assert bench.completion.written(bench.drain_one(), 0) == Verdict(Fate.ACKED)
    assert delivery.result() == RecordMetadata("t", 0, None, None)
    assert bench.all_memory_is_back()


def test_a_duplicate_is_a_success_without_offset() -> None:
    bench, (delivery,), (batch,) = in_flight()
    assert bench.refuse(batch, DUPLICATE).fate is Fate.ACKED
    assert delivery.result() == RecordMetadata("t", 0, None, 1000)


def test_a_retriable_error_is_retried_with_its_reason() -> None:
    bench, (delivery,), (batch,) = in_flight()
    verdict = bench.refuse(batch, NOT_LEADER_OR_FOLLOWER)
    assert verdict.fate is Fate.RETRIED
    assert verdict.refresh_metadata
    assert not delivery.done()
    assert bench.drain() == []
    bench.later(0.1)
    assert bench.drain_one() is batch
    assert batch.attempts == 2
    verdict = bench.refuse(batch, NOT_ENOUGH_REPLICAS)
    assert not verdict.refresh_metadata
    assert not Verdict(Fate.ACKED).refresh_metadata
    assert isinstance(verdict.error, NotEnoughReplicasError)


def test_retries_are_counted() -> None:
    bench, (delivery,), (batch,) = in_flight(retries=2)
    for _ in range(2):
        assert bench.refuse(batch, NOT_ENOUGH_REPLICAS).fate is Fate.RETRIED
        bench.later(1)
        assert bench.drain_one() is batch
    assert bench.refuse(batch, NOT_ENOUGH_REPLICAS).fate is Fate.FAILED
    assert isinstance(delivery.exception(), NotEnoughReplicasError)
    assert bench.all_memory_is_back()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_non_retriable_error_fails_at_once_with_the_brokers_message(idempotent: bool) -> None:
    bench = Bench(idempotent=idempotent)
    (delivery,) = bench.send_batch()
    assert bench.refuse(bench.drain_one(), INVALID_TIMESTAMP, "too far ahead").fate is Fate.FAILED
    error = delivery.exception()
    assert isinstance(error, InvalidTimestampError)
    assert "too far ahead" in str(error)
    assert bench.all_memory_is_back()
    # The partition continues.
    (delivery,) = bench.send_batch()
    bench.ack(bench.drain_one(), 5)
    assert delivery.result().offset == 5


# Records to blame (KIP-467)


def rejected(count: int, code: int, message: str | None, record_messages: dict[int, str | None]) -> list[KafkaError]:
    """Return the errors of a batch's records; each states that the record is not in the log."""
    bench = Bench()
    deliveries = bench.send_batch(count)
    assert bench.refuse(bench.drain_one(), code, message, record_messages=record_messages).fate is Fate.FAILED
    errors = [delivery.exception() for delivery in deliveries]
    assert all(isinstance(error, KafkaError) and not error.may_have_been_written for error in errors)
    return errors  # type: ignore[return-value]  # by the line above


def test_each_rejected_record_has_the_brokers_message_about_it() -> None:
    errors = rejected(3, INVALID_TIMESTAMP, "bad", {2: None, 1: "no key"})
    assert [type(error) for error in errors] == [BatchRejectedError, InvalidRecordError, InvalidRecordError]
    assert [str(error) for error in errors[1:]] == ["no key", "bad"]


@pytest.mark.parametrize(
    ("code", "kind"), [(INVALID_RECORD, InvalidRecordError), (INVALID_TIMESTAMP, InvalidTimestampError)]
)
def test_a_single_rejected_record_has_the_error_of_the_batch(code: int, kind: type[KafkaError]) -> None:
    errors = rejected(3, code, "1 record is wrong", {1: "out of range"})
    assert [type(error) for error in errors] == [BatchRejectedError, kind, BatchRejectedError]
    assert 'The broker\'s message: "out of range".' in str(errors[1])
    assert not errors[1].retriable


def test_other_records_of_a_rejected_batch_are_retriable_and_list_the_rejected_ones() -> None:
    (neighbour, *_) = rejected(6, INVALID_TIMESTAMP, "bad", dict.fromkeys(range(5, 0, -1), "late") | {3: None})
    assert isinstance(neighbour, BatchRejectedError)
    assert neighbour.retriable
    assert neighbour.culprits == ((1, "late"), (2, "late"), (3, "bad"), (4, "late"), (5, "late"))
    assert "this record may be sent again" in str(neighbour)
    assert "(record 1 of the batch: late; record 2 of the batch: late; record 3 of the batch: bad; and 2 more)" in str(
        neighbour
    )
    assert isinstance(neighbour.__cause__, InvalidTimestampError)
    assert neighbour.fresh().culprits == neighbour.culprits


def test_without_a_message_from_the_broker_the_error_explains_the_code() -> None:
    errors = rejected(2, INVALID_RECORD, None, {0: None})
    assert isinstance(errors[1], BatchRejectedError)
    assert errors[1].culprits == ((0, str(InvalidRecordError())),)
    assert str(errors[0]) == str(InvalidRecordError())


@pytest.mark.parametrize("named", [{}, {-1: "what", 3: "nobody"}])
def test_if_no_record_is_blamed_all_have_the_brokers_error(named: dict[int, str | None]) -> None:
    errors = rejected(3, INVALID_TIMESTAMP, "bad", named)
    assert [type(error) for error in errors] == [InvalidTimestampError] * 3
    assert 'The broker\'s message: "bad".' in str(errors[0])


@pytest.mark.parametrize(("named", "words"), [({0: "no key"}, "no key"), ({0: None}, "bad"), ({7: "what"}, "bad")])
def test_the_only_record_of_a_batch_has_the_brokers_error(named: dict[int, str | None], words: str) -> None:
    (error,) = rejected(1, INVALID_RECORD, "bad", named)
    assert isinstance(error, InvalidRecordError)
    assert f'The broker\'s message: "{words}".' in str(error)


# Whether the record may be in the log


@pytest.mark.parametrize("code", sorted(code for code in CODES if code != DUPLICATE))
def test_the_error_code_decides_whether_the_batch_may_be_in_the_log(code: int) -> None:
    bench = Bench(retries=0)
    (delivery,) = bench.send_batch()
    assert bench.refuse(bench.drain_one(), code).fate is Fate.FAILED
    assert delivery.exception().may_have_been_written is (code not in REFUSED_BEFORE_APPEND)
    # A new error each time, which keeps it.
    assert delivery.exception().may_have_been_written is (code not in REFUSED_BEFORE_APPEND)


@pytest.mark.parametrize("code", [-1, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR, 4242])
def test_codes_that_brokers_return_after_the_append_are_known(code: int) -> None:
    assert code not in REFUSED_BEFORE_APPEND


def test_a_leader_error_with_an_offset_means_the_batch_may_be_in_the_log() -> None:
    bench = Bench(retries=0)
    (delivery,) = bench.send_batch()
    bench.refuse(bench.drain_one(), NOT_LEADER_OR_FOLLOWER, base_offset=5)
    assert delivery.exception().may_have_been_written


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(
    "code", [NOT_ENOUGH_REPLICAS, INVALID_TIMESTAMP, TOPIC_AUTHORIZATION_FAILED, OUT_OF_ORDER, MESSAGE_TOO_LARGE]
)
@pytest.mark.parametrize("lost", ["cut", "timed out"])
def test_a_rejection_does_not_undo_an_attempt_of_unknown_outcome(code: int, lost: str, idempotent: bool) -> None:
    """The retry fails a check that brokers run before they check for duplicates."""
    bench, (delivery,), (batch,) = in_flight(retries=1, idempotent=idempotent)
    assert (bench.cut(batch) if lost == "cut" else bench.refuse(batch, REQUEST_TIMED_OUT)).fate is Fate.RETRIED
    bench.later(1)
    bench.refuse(bench.drain_one(), code)
    assert delivery.exception().may_have_been_written


def test_a_retry_rejected_as_duplicate_succeeds() -> None:
    bench, (delivery,), (batch,) = in_flight()
    bench.cut(batch)
    bench.later(1)
    assert bench.refuse(bench.drain_one(), DUPLICATE).fate is Fate.ACKED
    assert delivery.exception() is None


def test_all_records_of_a_rejected_batch_keep_an_attempt_of_unknown_outcome() -> None:
    bench = Bench()
    deliveries = bench.send_batch(3)
    bench.cut(bench.drain_one())
    bench.later(1)
    bench.refuse(bench.drain_one(), INVALID_RECORD, record_messages={0: "no key", 1: "no key"})
    errors = [delivery.exception() for delivery in deliveries]
    assert [type(error) for error in errors] == [InvalidRecordError, InvalidRecordError, BatchRejectedError]
    assert all(error.may_have_been_written for error in errors)


@pytest.mark.parametrize("unknown", [True, False])
def test_the_parts_of_a_batch_inherit_its_attempts(unknown: bool) -> None:
    bench = Bench(delivery_timeout=TIMEOUT, batch_size=400)
    bench.send_batch()
    bench.ack(bench.drain_one())
    deliveries = bench.send_batch(20)
    batch = bench.drain_one()
    if unknown:
        bench.cut(batch)
    else:
        bench.refuse(batch, NOT_ENOUGH_REPLICAS)
    bench.later(1.0)
    # Split, and the first part once more.
    assert bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE).fate is Fate.SPLIT
    assert bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE).fate is Fate.SPLIT
    bench.completion.fail_all(KafkaError("closed"), bench.now)
    assert [delivery.exception().may_have_been_written for delivery in deliveries] == [unknown] * 20


def test_parts_of_a_batch_that_was_always_rejected_get_new_sequences_after_a_gap() -> None:
    """The batch was sent twice, and rejected twice before anything was written."""
    bench = Bench(delivery_timeout=TIMEOUT)
    bench.send_batch()
    bench.ack(bench.drain_one())
    bench.send_batch(4)
    bench.refuse(bench.drain_one(), NOT_ENOUGH_REPLICAS)
    bench.later(1.0)
    assert bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE).fate is Fate.SPLIT
    assert bench.refuse(bench.drain_one(), OUT_OF_ORDER).fate is Fate.RETRIED


@pytest.mark.parametrize(
    ("state", "expected"),
    [("open", False), ("ready", False), ("on the wire", True), ("refused", False), ("cut", True)],
)
@pytest.mark.parametrize("end", ["expired", "given up"])
def test_a_batch_without_response_may_be_in_the_log_if_it_was_sent(end: str, state: str, expected: bool) -> None:
    bench = Bench(delivery_timeout=TIMEOUT, linger=1000.0)
    (delivery,) = [bench.send()] if state == "open" else bench.send_batch()
    if state not in ("open", "ready"):
        batch = bench.drain_one()
        if state == "refused":
            bench.refuse(batch, NOT_ENOUGH_REPLICAS)
        elif state == "cut":
            bench.cut(batch)
    error = KafkaError("closed")
    if end == "expired":
        bench.later(TIMEOUT)
    else:
        bench.completion.fail_all(error, bench.now)
    assert delivery.exception().may_have_been_written is expected
    # An error shared by several batches is not changed for one of them.
    assert not error.may_have_been_written


def test_a_fatal_error_states_for_each_batch_whether_it_may_be_in_the_log() -> None:
    bench, (first, second), (batch, other) = in_flight(2)
    bench.cut(other)
    bench.refuse(batch, CLUSTER_AUTHORIZATION_FAILED)
    (waiting,) = bench.send_batch()
    fatal = bench.state.fatal_error
    bench.completion.fail_all(fatal, bench.now)
    flags = [delivery.exception().may_have_been_written for delivery in (first, second, waiting)]
    assert flags == [False, True, False]
    assert not fatal.may_have_been_written


@pytest.mark.parametrize(
    ("code", "error"),
    [(CLUSTER_AUTHORIZATION_FAILED, ClusterAuthorizationError), (UNSUPPORTED_VERSION, UnsupportedVersionError)],
)
def test_a_fatal_error_ends_an_idempotent_producer(code: int, error: type[KafkaError]) -> None:
    bench, (delivery, other), (batch, second) = in_flight(2)
    assert bench.refuse(batch, code).fate is Fate.FAILED
    assert isinstance(bench.state.fatal_error, error)
    # Batches waiting for a retry fail too.
    assert bench.refuse(second, NOT_ENOUGH_REPLICAS).fate is Fate.FAILED
    assert delivery.done()
    assert other.done()


def test_without_idempotence_an_authorization_error_is_not_fatal() -> None:
    bench = Bench(idempotent=False)
    bench.send_batch()
    bench.refuse(bench.drain_one(), CLUSTER_AUTHORIZATION_FAILED)
    assert bench.state.fatal_error is None


def test_a_request_that_the_broker_does_not_support_fails() -> None:
    bench, (delivery,), (batch,) = in_flight()
    verdict = bench.completion.unsendable(batch, UnsupportedVersionError("too old"), 0)
    assert verdict.fate is Fate.FAILED
    assert str(delivery.exception()) == "too old"
    assert bench.all_memory_is_back()


# Too large


def test_a_single_record_that_is_too_large_fails_and_names_the_limit_to_raise() -> None:
    bench, (delivery,), (batch,) = in_flight()
    size = batch.size()
    assert bench.refuse(batch, MESSAGE_TOO_LARGE).fate is Fate.FAILED
    error = delivery.exception()
    assert isinstance(error, RecordTooLargeError)
    assert f"{size} bytes with one record for t-0: raise the topic's max.message.bytes" in str(error)


def test_a_split_uses_no_retry_and_keeps_time_and_sequences() -> None:
    bench = Bench(retries=0, batch_size=400, delivery_timeout=TIMEOUT)
    bench.send_batch()
    bench.ack(bench.drain_one())
    bench.now = 1.0
    deliveries = bench.send_batch(20)
    batch = bench.drain_one()
    bench.now = 2.0
    assert bench.refuse(batch, MESSAGE_TOO_LARGE).fate is Fate.SPLIT
    parts = [child for _, child in batch.children]
    assert len(parts) >= 2
    assert bench.sequences().in_flight == parts
    sequence, offset = 1, 100
    for part in parts:
        assert part.created_at == 1.0
        assert (part.producer_id, part.producer_epoch, part.base_sequence) == (7, 0, sequence)
        sequence += part.record_count
        assert bench.drain_one() is part
        bench.ack(part, offset)
        offset += part.record_count
    assert [delivery.result().offset for delivery in deliveries] == list(range(100, 120))
    assert bench.all_memory_is_back()
    assert not bench.accumulator.has_undelivered()


def test_parts_of_a_batch_whose_first_response_is_lost_are_not_written_again() -> None:
    """The batch was stored, its response lost, and its retry rejected as too large.

    The broker then rejected each part as out of order. This was once mistaken for a gap, and all parts were written a
    second time with a new epoch.
    """
    bench = Bench(delivery_timeout=TIMEOUT)
    bench.send_batch()
    bench.ack(bench.drain_one())
    deliveries = bench.send_batch(4)
    batch = bench.drain_one()
    bench.cut(batch)
    bench.later(1.0)
    assert bench.drain_one() is batch
    assert bench.refuse(batch, MESSAGE_TOO_LARGE).fate is Fate.SPLIT
    while not all(delivery.done() for delivery in deliveries):
        (part,) = bench.drain()
        assert part.producer_epoch == batch.producer_epoch
        assert bench.refuse(part, OUT_OF_ORDER).fate is Fate.FAILED
    for delivery in deliveries:
        error = delivery.exception()
        assert isinstance(error, OutOfOrderSequenceError)
        assert "an earlier attempt, in a larger batch, may have written these records" in str(error)
    # The next batch starts a new epoch.
    bench.send_batch()
    assert bench.drain_one().producer_epoch == batch.producer_epoch + 1
    assert not bench.sequences().unresolved


def test_parts_of_a_batch_rejected_at_once_get_new_sequences_after_a_gap() -> None:
    bench = Bench(delivery_timeout=TIMEOUT)
    bench.send_batch()
    bench.ack(bench.drain_one())
    bench.send_batch(4)
    assert bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE).fate is Fate.SPLIT
    assert bench.refuse(bench.drain_one(), OUT_OF_ORDER).fate is Fate.RETRIED


def test_the_memory_of_a_split_batch_is_released_once_and_after_the_last_reader() -> None:
    bench = Bench()
    bench.send_batch(2)
    batch = bench.drain_one()
    batch.readers += 1
    bench.refuse(batch, MESSAGE_TOO_LARGE)
    held = bench.pool.total_memory - bench.pool.available_memory
    parts = sum(child.charged_size for _, child in batch.children)
    assert held == parts + 1024
    batch.readers -= 1
    bench.accumulator.release(batch)
    bench.accumulator.release(batch)
    assert bench.pool.total_memory - bench.pool.available_memory == parts


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_the_parts_of_a_split_batch_keep_their_order_without_sequences(order: tuple[int, ...]) -> None:
    """The parts share a number: a retried one was once queued behind the others."""
    bench = Bench(idempotent=False, batch_size=400)
    bench.send_batch(4)
    bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE)
    bench.send_batch()
    drained = [bench.drain_one() for _ in range(4)]
    for place in order:
        bench.refuse(drained[place], NOT_ENOUGH_REPLICAS)
        assert list(bench.queue().batches)[:-1] == [each for each in drained if each in bench.queue().batches]
    assert len(bench.queue().batches) == 5


def test_a_failed_part_fails_only_its_records() -> None:
    bench = Bench(batch_size=400)
    deliveries = bench.send_batch(2)
    bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE)
    bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE)
    bench.ack(bench.drain_one(), 8)
    assert isinstance(deliveries[0].exception(), RecordTooLargeError)
    assert deliveries[1].result().offset == 8


def test_a_failed_batch_is_not_split() -> None:
    bench = Bench(delivery_timeout=TIMEOUT)
    bench.send_batch(3)
    batch = bench.drain_one()
    bench.later(TIMEOUT)
    assert bench.refuse(batch, MESSAGE_TOO_LARGE).fate is Fate.LATE
    assert batch.children is None
    assert bench.all_memory_is_back()


# Order of the queue


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_retried_batches_keep_their_order(order: tuple[int, ...], idempotent: bool) -> None:
    bench, _, batches = in_flight(3, idempotent=idempotent)
    bench.send_batch()
    unsent = bench.queue().batches[0]
    for place in order:
        bench.cut(batches[place])
        waiting = list(bench.queue().batches)
        assert waiting == [each for each in batches if each in waiting] + [unsent]
    assert list(bench.queue().batches) == [*batches, unsent]


# Deadlines


def test_a_batch_fails_at_its_deadline_and_not_before() -> None:
    bench = Bench(delivery_timeout=TIMEOUT)
    bench.now = 0.1
    (delivery,) = bench.send_batch(1)
    assert bench.accumulator.next_deadline() == 0.1 + TIMEOUT
    bench.now = 0.1 + TIMEOUT - 1e-6
    assert bench.completion.expire(bench.now) == []
    bench.now = 0.1 + TIMEOUT
    ((batch, error),) = bench.completion.expire(bench.now)
    assert isinstance(error, DeliveryTimeoutError)
    assert batch.record_count == 1
    assert "1 record for t-0 was not acknowledged within 10000 ms (delivery_timeout_ms)" in str(error)
    assert isinstance(delivery.exception(), DeliveryTimeoutError)
    assert bench.completion.expire(bench.now) == []
    assert bench.accumulator.next_deadline() == float("inf")
    assert bench.all_memory_is_back()


@pytest.mark.parametrize("created_at", [0.1, 0.3, 1.7, 123456.789, 98765.4321])
def test_work_due_at_the_next_deadline_is_done_at_that_time(created_at: float) -> None:
    """The sum was once rounded in two ways: at the deadline nothing had expired, and the timer fired again."""
    for timeout in (0.1, 0.7, 30.3, 120.0):
        bench = Bench(delivery_timeout=timeout)
        bench.now = created_at
        bench.accumulator.topics.set_leader("t", 0, -1, bench.now)
        (delivery,) = bench.send_batch()
        bench.later(bench.accumulator.next_deadline() - bench.now)
        bench.now = max(bench.now, created_at + timeout)
        bench.turn()
        assert delivery.done()


def test_the_next_deadline_is_that_of_the_oldest_batch_in_any_state() -> None:
    bench = Bench(topics={"t": 2}, delivery_timeout=TIMEOUT)
    bench.now = 1.0
    bench.send_batch(partition=0)
    bench.now = 2.0
    bench.send_batch(partition=1)
    on_wire, second = bench.drain()
    assert bench.accumulator.next_deadline() == 1.0 + TIMEOUT
    bench.ack(on_wire)
    assert bench.accumulator.next_deadline() == 2.0 + TIMEOUT
    bench.ack(second)
    assert bench.accumulator.next_deadline() == float("inf")


def test_huge_timeouts_do_not_overflow() -> None:
    bench = Bench(delivery_timeout=2**31 - 1.0, linger=2**31 - 1.0, max_block=2**63 / 1000)
    bench.send()
    bench.send(topic="unknown")
    bench.later(2**31 - 2.0)
    assert bench.accumulator.next_deadline() == 2**31 - 1.0
    forever = Bench(delivery_timeout=float("inf"))
    forever.send_batch()
    forever.later(1e18)
    assert len(forever.drain()) == 1


def test_the_oldest_batches_expire_first() -> None:
    bench = Bench(topics={"t": 2}, delivery_timeout=TIMEOUT, linger=0)
    for second in range(4):
        bench.now = float(second)
        bench.send_batch(partition=second % 2)
    expired = bench.completion.expire(2.0 + TIMEOUT)
    assert [batch.created_at for batch, _ in expired] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("code", "fate"),
    [
        (NOT_ENOUGH_REPLICAS_AFTER_APPEND, "They were sent, so they may be in the log nevertheless."),
        (NOT_ENOUGH_REPLICAS, "They were sent, and rejected every time before anything was written."),
    ],
)
def test_an_expired_batch_states_whether_it_may_be_in_the_log(code: int, fate: str) -> None:
    bench, (delivery,), (batch,) = in_flight()
    bench.refuse(batch, code)
    bench.later(TIMEOUT)
    error = delivery.exception()
    assert fate in str(error)
    assert "The last error was:" in str(error)
    assert error.__cause__.code == code


@pytest.mark.parametrize("answer", ["success", "refusal", "retriable", "nothing", "too large"])
def test_a_response_after_expiry_changes_nothing(answer: str) -> None:
    bench, (delivery,), (batch,) = in_flight()
    bench.later(TIMEOUT)
    assert isinstance(delivery.exception(), DeliveryTimeoutError)
    assert bench.all_memory_is_back()
    end = {
        "success": lambda: bench.ack(batch, 3),
        "refusal": lambda: bench.refuse(batch, INVALID_TIMESTAMP),
        "retriable": lambda: bench.refuse(batch, NOT_ENOUGH_REPLICAS),
        "nothing": lambda: bench.cut(batch),
        "too large": lambda: bench.refuse(batch, MESSAGE_TOO_LARGE),
    }[answer]
    assert end().fate is Fate.LATE
    assert isinstance(delivery.exception(), DeliveryTimeoutError)
    assert bench.all_memory_is_back()
    assert batch.queue is None
    assert bench.sequences().in_flight == []
    (delivery,) = bench.send_batch()
    bench.ack(bench.drain_one(), 0)
    assert delivery.result().offset == 0


def test_a_batch_is_not_retried_after_its_deadline() -> None:
    bench, (delivery,), (batch,) = in_flight()
    bench.now = TIMEOUT
    assert bench.refuse(batch, NOT_ENOUGH_REPLICAS).fate is Fate.FAILED
    assert isinstance(delivery.exception(), NotEnoughReplicasError)


def test_parts_of_a_split_batch_keep_its_deadline() -> None:
    bench = Bench(delivery_timeout=TIMEOUT, batch_size=400)
    deliveries = bench.send_batch(4)
    bench.now = 5.0
    bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE)
    part = bench.drain_one()
    bench.ack(part, 0)
    bench.send_batch()
    bench.later(5.0)
    done = [delivery.exception() for delivery in deliveries]
    assert done[: part.record_count] == [None] * part.record_count
    assert all(isinstance(error, DeliveryTimeoutError) for error in done[part.record_count :])
    assert bench.accumulator.incomplete.count == 1


def test_memory_of_an_expired_batch_is_kept_while_the_transport_reads_it() -> None:
    bench = Bench(memory=2048, batch_size=2048, delivery_timeout=TIMEOUT)
    bench.send(b"x" * 1500)
    bench.accumulator.ready.end_lingering(0)
    batch = bench.drain_one()
    batch.readers += 1
    on_the_wire = batch.buffers()
    before = b"".join(on_the_wire)
    bench.later(TIMEOUT)
    assert bench.pool.available_memory == 0
    second = bench.send(b"y" * 1500)
    bench.turn()
    assert bench.accumulator.blocked_records.memory_waiters
    assert b"".join(on_the_wire) == before
    # Also if the response arrives before the transport has finished.
    bench.ack(batch)
    assert bench.pool.available_memory == 0
    batch.readers -= 1
    bench.accumulator.release(batch)
    bench.turn()
    bench.accumulator.ready.end_lingering(bench.now)
    assert values_of(bench.drain_one()) == [b"y" * 1500]
    assert not second.done()


# Aborting


def test_aborting_fails_all_batches_and_releases_all_memory() -> None:
    bench = Bench(topics={"t": 3}, memory=1 << 16, batch_size=400)
    deliveries = bench.send_batch(4, partition=0)
    bench.refuse(bench.drain_one(), MESSAGE_TOO_LARGE)
    deliveries += bench.send_batch(partition=1)
    on_wire = bench.drain()
    deliveries.append(bench.send(partition=2))
    failed = bench.completion.fail_all(KafkaError("closed"), 0)
    assert sum(batch.record_count for batch in failed) == 6
    assert [str(delivery.exception()) for delivery in deliveries] == ["closed"] * 6
    assert not bench.accumulator.has_undelivered()
    for batch in on_wire:
        assert bench.cut(batch).fate is Fate.LATE
    assert bench.all_memory_is_back()


def test_deliveries_of_a_partition_resolve_in_append_order() -> None:
    bench = Bench(linger=0)
    order: list[int] = []
    for index in range(6):
        for delivery in bench.send_batch():
            delivery.add_done_callback(lambda _, index=index: order.append(index))
        if not index:
            bench.ack(bench.drain_one())
    while batches := bench.drain():
        for batch in batches:
            bench.ack(batch)
    bench.loop.run()
    assert order == list(range(6))
