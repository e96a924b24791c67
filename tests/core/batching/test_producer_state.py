"""ProducerState: sequences, epochs, and recovery from gaps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.core.batching.producer_state import LAST_EPOCH, ProducerState, _is_before
from aioproducer.errors import KafkaError
from aioproducer.record import TopicPartition
from tests.core.accumulating import Bench

OUT_OF_ORDER = 45
INVALID_EPOCH = 47
UNKNOWN_PRODUCER = 59
NOT_ENOUGH_REPLICAS = 19
INVALID_TIMESTAMP = 32
END = 2**31


def begun(bench: Bench | None = None, partition: int = 0) -> Bench:
    """Acknowledge one record of the partition, so that the next ones may be in flight together."""
    bench = bench or Bench()
    bench.ack(bench.send_and_drain(partition=partition))
    return bench


def identity(batch) -> tuple[int, int, int]:
    return batch.producer_id, batch.producer_epoch, batch.base_sequence


# Sequences


def test_sequences_are_contiguous_and_a_retry_keeps_its_own() -> None:
    bench = begun()
    batches = [bench.send_and_drain(count) for count in (3, 1, 4)]
    assert [identity(batch) for batch in batches] == [(7, 0, 1), (7, 0, 4), (7, 0, 5)]
    assert bench.sequences().next_sequence == 9
    bench.cut(batches[0])
    bench.later(0.2)
    assert bench.drain_one() is batches[0]
    assert identity(batches[0]) == (7, 0, 1)
    assert bench.sequences().next_sequence == 9


@settings(max_examples=100, deadline=None)
@given(st.integers(0, END - 1), st.integers(1, END // 2 - 1))
def test_sequence_order_is_modular(sequence: int, distance: int) -> None:
    assert _is_before(sequence, (sequence + distance) % END)
    assert not _is_before((sequence + distance) % END, sequence)
    assert not _is_before(sequence, sequence)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.lists(st.integers(1, 6), min_size=3, max_size=5), st.data())
def test_sequence_comparisons_wrap_around(before_end: int, counts: list[int], data) -> None:
    bench = Bench()
    sequences = bench.sequences()
    sequences.producer_id, sequences.producer_epoch = 7, 0
    sequences.next_sequence, sequences.last_acked = END - before_end, END - before_end - 1
    batches, expected = [], END - before_end
    for count in counts:
        batch = bench.send_and_drain(count)
        assert batch.base_sequence == expected
        expected = (expected + count) % END
        batches.append(batch)
    last = batches[-1]
    bench.now = 200.0
    bench.completion.expire(bench.now)
    order = data.draw(st.permutations(batches))
    highest = batches.index(order[0])
    for batch in order:
        highest = max(highest, batches.index(batch))
        bench.ack(batch)
        top = batches[highest]
        # Out-of-order responses never lower it.
        assert sequences.last_acked == (top.base_sequence + top.record_count - 1) % END
    # All are in the log: no gap, no new epoch.
    assert (sequences.last_acked + 1) % END == sequences.next_sequence == expected
    assert not sequences.unresolved
    assert not sequences.bump_wanted
    assert identity(bench.send_and_drain()) == (7, 0, expected)
    assert last.base_sequence < END


def test_nothing_is_sent_without_a_producer_id() -> None:
    bench = Bench(producer_id=-1)
    assert bench.state.needs_producer_id()
    bench.send_batch()
    assert bench.drain() == []
    bench.state.set_producer_id(9, 4)
    assert not bench.state.needs_producer_id()
    bench.accumulator.ready.unblock_held(bench.now)
    assert identity(bench.drain_one()) == (9, 4, 0)


def test_without_idempotence_nothing_is_sent_after_a_fatal_error() -> None:
    bench = Bench(idempotent=False, linger=0)
    bench.send()
    bench.state.fail(KafkaError("fatal"))
    assert bench.drain() == []


def test_without_idempotence_batches_have_no_sequence() -> None:
    bench = Bench(idempotent=False)
    assert not bench.state.needs_producer_id()
    for _ in range(7):
        batch = bench.send_and_drain()
        assert identity(batch) == (-1, -1, -1)
    assert bench.sequences().in_flight == []


def test_at_most_five_batches_are_in_flight() -> None:
    bench = begun()
    batches = []
    for _ in range(7):
        bench.send_batch()
        batches += bench.drain()
    assert len(batches) == 5
    assert bench.drain() == []
    bench.ack(batches[0])
    assert len(bench.drain()) == 1
    assert bench.drain() == []


def test_the_first_batch_of_an_epoch_is_sent_alone() -> None:
    """A broker without producer state accepts any sequence: a second batch was once written though the first failed."""
    bench = Bench()
    first = bench.send_and_drain()
    bench.send_batch()
    assert bench.drain() == []
    bench.ack(first)
    assert len(bench.drain()) == 1


def test_at_most_five_batches_are_in_flight_across_leaders() -> None:
    """More batches were once acked by the new leader with one in flight to the old; its retry was written twice."""
    bench = begun()
    slow = bench.send_and_drain()
    bench.accumulator.topics.set_leader("t", 0, 2, 0)
    for _ in range(8):
        bench.send_batch()
    sent = 1
    while batches := bench.drain(2):
        for batch in batches:
            bench.ack(batch)
            sent += 1
    assert sent == 5
    bench.ack(slow)
    for _ in range(4):
        assert len(bench.drain(2)) == 1
    assert bench.drain(2) == []


def test_a_forgotten_topic_that_returns_continues_its_sequences() -> None:
    bench = Bench()
    bench.ack(bench.send_and_drain(3))
    assert bench.accumulator.forget_topic("t")
    bench.accumulator.set_partition_count("t", 1, 0)
    bench.accumulator.topics.set_leader("t", 0, 1, 0)
    assert bench.send_and_drain().base_sequence == 3


def test_a_partition_that_returns_continues_its_sequences() -> None:
    bench = Bench(topics={"t": 3})
    for partition in range(3):
        bench.send_batch(partition + 1, partition=partition)
    for batch in bench.drain():
        bench.ack(batch)
    for count in (1, 2, 0, 3):
        bench.accumulator.set_partition_count("t", count, 0)
    for partition in range(3):
        bench.accumulator.topics.set_leader("t", partition, 1, 0)
        bench.send_batch(partition=partition)
    assert {batch.topic_partition.partition: batch.base_sequence for batch in bench.drain()} == {0: 1, 1: 2, 2: 3}


# Retries


def test_nothing_is_sent_while_a_batch_waits_for_its_retry() -> None:
    bench = begun()
    batches = [bench.send_and_drain() for _ in range(3)]
    bench.send_batch()
    for batch in batches:
        bench.refuse(batch, NOT_ENOUGH_REPLICAS)
    assert bench.drain() == []
    bench.later(1.1)
    for batch in batches:
        assert bench.drain_one() is batch
        if batch is not batches[-1]:
            assert bench.drain() == []
        bench.ack(batch)
    assert len(bench.drain()) == 1


def test_a_new_batch_waits_while_a_retry_before_it_is_in_flight() -> None:
    bench = begun()
    first = bench.send_and_drain()
    second = bench.send_and_drain()
    bench.cut(first)
    bench.cut(second)
    bench.later(1)
    assert bench.drain_one() is first
    bench.send_batch()
    assert bench.drain() == []
    bench.ack(first)
    assert bench.drain_one() is second


def test_out_of_order_errors_of_later_batches_are_retried_without_an_epoch_bump() -> None:
    bench = begun()
    batches = [bench.send_and_drain() for _ in range(3)]
    bench.refuse(batches[0], NOT_ENOUGH_REPLICAS)
    for batch in batches[1:]:
        assert bench.refuse(batch, OUT_OF_ORDER).fate.value == "retried"
    assert not bench.sequences().bump_wanted
    bench.later(1.1)
    for sequence, batch in enumerate(batches, 1):
        assert bench.drain_one() is batch
        assert identity(batch) == (7, 0, sequence)
        bench.ack(batch)


@pytest.mark.parametrize("code", [OUT_OF_ORDER, INVALID_EPOCH, UNKNOWN_PRODUCER])
def test_an_out_of_order_error_of_the_next_batch_starts_a_new_epoch(code: int) -> None:
    bench = begun()
    first = bench.send_and_drain(2)
    second = bench.send_and_drain(3)
    bench.refuse(first, code)
    # The epoch does not change while the other batch is in flight.
    assert bench.state.producer_epoch == 0
    bench.later(1)
    assert bench.drain() == []
    bench.refuse(second, OUT_OF_ORDER)
    assert identity(first) == (7, 1, 0)
    assert identity(second) == (7, 1, 2)
    bench.later(1)
    assert bench.drain_one() is first
    bench.ack(first)
    assert bench.drain_one() is second
    bench.ack(second)
    assert identity(bench.send_and_drain()) == (7, 1, 5)


# Expired and failed batches


def test_after_a_batch_expires_in_flight_nothing_new_is_sent_until_its_outcome_is_known() -> None:
    bench = begun(Bench(delivery_timeout=10.0))
    (delivery,) = bench.send_batch()
    batch = bench.drain_one()
    bench.later(10.0)
    assert delivery.exception() is not None
    bench.send_batch()
    assert bench.drain() == []
    # It was written after all: no gap, the epoch stays.
    assert bench.ack(batch).fate.value == "late"
    assert delivery.exception() is not None
    assert identity(bench.drain_one()) == (7, 0, 2)


@pytest.mark.parametrize("end", ["refused", "nothing"])
def test_an_expired_batch_that_is_not_in_the_log_needs_a_new_epoch(end: str) -> None:
    bench = begun(Bench(delivery_timeout=10.0))
    batch = bench.send_and_drain()
    bench.later(10.0)
    bench.send_batch()
    assert bench.drain() == []
    if end == "refused":
        assert bench.refuse(batch, INVALID_TIMESTAMP).fate.value == "late"
    else:
        assert bench.cut(batch).fate.value == "late"
    assert identity(bench.drain_one()) == (7, 1, 0)


def test_a_later_ack_resolves_the_outcome_of_an_expired_batch() -> None:
    """Acknowledged later sequences prove that it is in the log."""
    bench = begun(Bench(delivery_timeout=10.0))
    first = bench.send_and_drain()
    bench.now = 5.0
    second = bench.send_and_drain()
    bench.later(5.0)
    bench.cut(first)
    assert bench.sequences().unresolved
    bench.ack(second)
    assert not bench.sequences().unresolved
    assert identity(bench.send_and_drain()) == (7, 0, 3)


def test_an_unsent_batch_leaves_no_gap() -> None:
    bench = begun(Bench(delivery_timeout=10.0))
    bench.send_batch()
    bench.later(10.0)
    assert identity(bench.send_and_drain()) == (7, 0, 1)


def test_a_rejected_batch_does_not_rewrite_an_earlier_one_of_unknown_outcome() -> None:
    """An immediate new epoch once stored the first batch twice: error 20 was returned after it had been written."""
    bench = begun()
    first = bench.send_and_drain()
    second = bench.send_and_drain()
    bench.refuse(first, 20)
    bench.refuse(second, INVALID_TIMESTAMP)
    bench.later(1)
    assert bench.drain_one() is first
    assert identity(first) == (7, 0, 1)
    bench.ack(first)
    # Now nothing is in flight, and the gap needs a new epoch.
    assert identity(bench.send_and_drain()) == (7, 1, 0)


def test_a_rejected_batch_does_not_rewrite_a_later_one_of_unknown_outcome() -> None:
    bench = begun()
    first = bench.send_and_drain()
    second = bench.send_and_drain()
    bench.refuse(first, 20)
    bench.refuse(second, 20)
    bench.later(1)
    bench.refuse(bench.drain_one(), INVALID_TIMESTAMP)
    bench.later(1)
    assert bench.drain_one() is second
    assert identity(second) == (7, 0, 2)
    # It is in the log, and so is the first.
    bench.ack(second)
    assert identity(bench.send_and_drain()) == (7, 0, 3)


# Epochs


def test_other_partitions_keep_the_old_epoch_until_nothing_is_in_flight() -> None:
    bench = Bench(topics={"t": 2})
    begun(bench, 0)
    begun(bench, 1)
    well = bench.send_and_drain(partition=1)
    bench.refuse(bench.send_and_drain(partition=0), INVALID_TIMESTAMP)
    assert bench.state.producer_epoch == 1
    bench.send_batch(partition=1)
    assert bench.drain() == []
    bench.cut(well)
    bench.later(1)
    assert bench.drain_one() is well
    assert identity(well) == (7, 0, 1)
    bench.ack(well)
    assert identity(bench.drain_one()) == (7, 1, 0)


def test_two_failing_partitions_share_one_epoch_bump() -> None:
    bench = Bench(topics={"t": 2})
    for partition in (0, 1):
        bench.send_batch(partition=partition)
    first, second = bench.drain()
    bench.refuse(first, INVALID_TIMESTAMP)
    bench.refuse(second, INVALID_TIMESTAMP)
    assert bench.state.producer_epoch == 1


def test_after_the_last_epoch_a_new_producer_id_is_requested() -> None:
    bench = Bench()
    bench.state.set_producer_id(7, LAST_EPOCH)
    begun(bench)
    batch = bench.send_and_drain()
    bench.refuse(batch, OUT_OF_ORDER)
    assert bench.state.needs_producer_id()
    assert bench.state.producer_epoch == -1
    bench.state.set_producer_id(8, 0)
    bench.accumulator.ready.unblock_held(bench.now)
    bench.later(1)
    assert bench.drain_one() is batch
    assert identity(batch) == (8, 0, 0)


def test_a_partition_that_waited_for_a_producer_id_is_served_once_it_has_a_batch() -> None:
    """If the id arrived during the backoff, or before there was a batch, the partition was once never checked again."""
    bench = Bench()
    bench.state.set_producer_id(7, LAST_EPOCH)
    begun(bench)
    bench.refuse(bench.send_and_drain(), INVALID_TIMESTAMP)
    assert bench.state.needs_producer_id()
    bench.state.set_producer_id(8, 0)
    bench.accumulator.ready.unblock_held(bench.now)
    assert identity(bench.send_and_drain()) == (8, 0, 0)


# The rest


def test_after_a_fatal_error_nothing_is_sent_and_the_first_reason_is_kept() -> None:
    bench = Bench()
    bench.send_batch()
    bench.state.fail(KafkaError("first"))
    bench.state.fail(KafkaError("second"))
    assert str(bench.state.fatal_error) == "first"
    assert bench.drain() == []
    assert not bench.state.needs_producer_id()


def test_each_partition_has_its_own_sequences() -> None:
    state = ProducerState(idempotent=True, max_in_flight=5)
    where = TopicPartition("t", 0)
    assert state.sequences(where) is state.sequences(TopicPartition("t", 0))
    assert state.sequences(where) is not state.sequences(TopicPartition("t", 1))


def test_a_response_for_a_batch_not_in_flight_changes_nothing() -> None:
    """A late response arrives for a finished batch."""
    bench = begun()
    batch = bench.send_and_drain()
    sequences = bench.sequences()
    bench.ack(batch)
    for change in (bench.state.acked, bench.state.abandoned, bench.state.out_of_order):
        change(batch, sequences)
    assert (sequences.last_acked, sequences.unresolved, sequences.bump_wanted) == (1, False, False)
    assert not bench.state.is_first_in_flight(batch, sequences)
