"""Ready and drain: due partitions, served fairly, one batch per partition, within the size of a request."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.core.batching.partition_queue import HELD, IDLE, READY, NodeQueue
from aioproducer.core.batching.ready import BATCHES_PER_REQUEST
from aioproducer.core.requests.retry import ExponentialBackoff
from tests.core.accumulating import NODE, Bench, count_operations, values_of

NOT_ENOUGH_REPLICAS = 19
LINGER = 0.01


def is_ready(bench: Bench, partition: int = 0) -> bool:
    bench.accumulator.ready.process_deadlines(bench.now)
    return bench.queue("t", partition).state == READY


def full_batch(bench: Bench, partition: int = 0) -> None:
    bench.send(b"x" * bench.accumulator.settings.batch_size, partition=partition)


# When a partition is ready


CONDITIONS = ("empty", "full", "lingered", "exhausted", "closing", "flushing")


@pytest.mark.parametrize("state", ["well", "backing off", "muted", "leaderless"])
def test_ready_nodes_follow_the_truth_table(state: str) -> None:
    """A node is ready if one of its partitions is not muted or in backoff and its first batch need not linger."""
    for true in product([False, True], repeat=len(CONDITIONS)):
        is_true = dict(zip(CONDITIONS, true, strict=True))
        bench = Bench(
            topics={"t": 2},
            batch_size=1024,
            linger=LINGER,
            idempotent=False,
            one_in_flight_per_partition=True,
            retry_backoff=ExponentialBackoff(1000, 1000, jitter=0),
        )
        accumulator = bench.accumulator
        if state in ("backing off", "muted"):
            full_batch(bench)
            batch = bench.drain_one()
            if state == "backing off":
                bench.refuse(batch, NOT_ENOUGH_REPLICAS)
        elif state == "leaderless":
            accumulator.topics.set_leader("t", 0, -1, bench.now)
        accumulator.closing = is_true["closing"]
        accumulator.flushing = int(is_true["flushing"])
        if not is_true["empty"]:
            bench.send()
            if is_true["full"]:
                full_batch(bench)
        if is_true["exhausted"]:
            bench.pool.charge(bench.pool.available_memory)
            bench.send(partition=1)
            assert accumulator.blocked_records.memory_waiters
        bench.now += LINGER if is_true["lingered"] else LINGER / 2
        due = not is_true["empty"] and any(is_true[condition] for condition in CONDITIONS[1:])
        assert is_ready(bench) == (due and state == "well"), is_true
        assert (bench.queue() in accumulator.ready.leaderless.get("t", ())) == (due and state == "leaderless"), is_true


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 0.02), st.integers(0, 2)), min_size=1, max_size=20),
    st.sampled_from([0.0, 0.005, 0.02]),
)
def test_the_next_deadline_is_never_later_than_the_next_ready_batch(sends, linger: float) -> None:
    bench = Bench(topics={"t": 3}, linger=linger)
    opened: dict[int, float] = {}
    for wait, partition in sends:
        bench.now += wait
        bench.accumulator.ready.process_deadlines(bench.now)
        if bench.queue("t", partition).state != READY:
            opened.setdefault(partition, bench.now)
        bench.send(partition=partition)
    while opened:
        bench.accumulator.ready.process_deadlines(bench.now)
        for partition, since in list(opened.items()):
            if bench.queue("t", partition).state == READY:
                assert bench.now >= since + linger
                del opened[partition]
            else:
                assert bench.now < since + linger
        if opened:
            deadline = bench.accumulator.next_deadline()
            assert deadline > bench.now
            assert deadline == min(since + linger for since in opened.values())
            bench.now = deadline
    assert bench.accumulator.ready.next_deadline() == float("inf")


def test_the_sender_is_woken_when_a_batch_becomes_sendable() -> None:
    bench = Bench(linger=1.0, batch_size=1000)
    bench.wakes = 0
    bench.send(b"x" * 100)
    opened = bench.wakes
    assert opened >= 1
    bench.send(b"x" * 100)
    assert bench.wakes == opened
    bench.send(b"x" * 900)
    assert bench.wakes > opened
    assert is_ready(bench)


def test_a_record_that_fills_its_batch_does_not_linger() -> None:
    """A record of batch_size or more once lingered, although no record could join it."""
    bench = Bench(linger=1.0, batch_size=1000)
    full_batch(bench)
    assert is_ready(bench)
    assert bench.queue().open_batch is None
    more = Bench(linger=1.0, batch_size=3000)
    more.send(b"x" * 900)
    more.send(b"x" * (3000 - 61 - more.queue().open_batch.used_size() - 9))
    assert is_ready(more)


def test_hurry_ends_all_lingering() -> None:
    bench = Bench(topics={"t": 3}, linger=1.0)
    for partition in range(3):
        bench.send(partition=partition)
    assert bench.drain() == []
    bench.accumulator.ready.end_lingering(bench.now)
    assert len(bench.drain()) == 3


# Fairness


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6))
def test_every_partition_is_served(partitions: int, per_request: int) -> None:
    bench = Bench(
        topics={"t": partitions}, memory=1 << 22, batch_size=1000, max_request_size=1100 * per_request, linger=0
    )
    rounds = -(-partitions // per_request)
    for partition in range(partitions):
        for _ in range(2 * rounds + 1):
            full_batch(bench, partition)
    for _ in range(2):
        drained = Counter()
        for _ in range(rounds):
            batches = bench.drain()
            drained.update(batch.topic_partition.partition for batch in batches)
            for batch in batches:
                bench.ack(batch)
        assert set(drained) == set(range(partitions))


def test_kafka_13834_a_full_request_starves_no_partition() -> None:
    """One index over all nodes, advanced when a request was full, once skipped some partitions forever."""
    bench = Bench(topics={"t": 6}, memory=1 << 22, batch_size=1000, max_request_size=1500, linger=0)
    for partition in range(6):
        bench.accumulator.topics.set_leader("t", partition, 1 + partition % 2, 0)
        for _ in range(4):
            full_batch(bench, partition)
    order: dict[int, list[int]] = {1: [], 2: []}
    for _ in range(6):
        for node in (1, 2):
            batch = bench.drain_one(node)
            order[node].append(batch.topic_partition.partition)
            bench.ack(batch)
    # Draining one node does not advance the position of the other.
    assert order == {1: [0, 2, 4, 0, 2, 4], 2: [1, 3, 5, 1, 3, 5]}


def test_a_node_without_partitions_has_nothing_to_drain() -> None:
    bench = Bench()
    assert bench.drain(99) == []
    bench.send_batch()
    bench.accumulator.topics.set_leader("t", 0, 2, 0)
    assert bench.drain(NODE) == []
    assert len(bench.drain(2)) == 1
    assert bench.drain(2) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12), st.integers(200, 4000))
def test_a_request_is_within_its_size_limit_or_has_one_batch(sizes: list[int], max_request_size: int) -> None:
    bench = Bench(
        topics={"t": len(sizes)}, memory=1 << 22, linger=0, max_request_size=max_request_size, batch_size=4000
    )
    for partition, size in enumerate(sizes):
        bench.send(b"x" * size, partition=partition)
    drained = 0
    while batches := bench.drain():
        assert len(batches) == 1 or sum(batch.size() for batch in batches) <= max_request_size
        drained += len(batches)
    assert drained == len(sizes)


def test_a_drain_takes_the_head_of_each_partition_once_and_closes_it() -> None:
    bench = Bench(topics={"t": 2}, batch_size=1000, linger=0, idempotent=False)
    for partition in range(2):
        for value in (b"a" * 1000, b"b" * 1000, b"c"):
            bench.send(value, partition=partition)
    for value in (b"a", b"b", b"c"):
        batches = bench.drain()
        assert [batch.topic_partition.partition for batch in batches] == [0, 1]
        assert [values_of(batch)[0][:1] for batch in batches] == [value, value]
        assert all(batch.closed and batch.on_wire and batch.sent_to == NODE for batch in batches)
    delivery = bench.send(b"d")
    assert delivery._group is not batches[0]
    assert batches[0].record_count == 1


def test_a_partition_that_moves_away_and_back_is_drained_once() -> None:
    bench = Bench(idempotent=False)
    bench.send_batch()
    bench.send_batch()
    for node in (2, 1, 2, 1):
        bench.accumulator.topics.set_leader("t", 0, node, 0)
    assert bench.drain(2) == []
    assert len(bench.drain(1)) == 1
    assert len(bench.drain(1)) == 1
    assert bench.drain(1) == []


def test_a_partition_whose_batch_has_failed_is_skipped() -> None:
    bench = Bench(delivery_timeout=1.0)
    bench.send_batch()
    assert is_ready(bench)
    bench.completion.expire(1.0)
    # No connection is needed for it any more.
    assert not bench.accumulator.ready.ready_nodes
    assert bench.drain() == []


def test_the_time_that_a_node_has_kept_batches_waiting_is_measured() -> None:
    """``partitioner_availability_timeout_ms`` uses this time."""
    bench = Bench(topics={"t": 2}, batch_size=1000, max_request_size=1200, linger=0)
    node = NodeQueue(1)
    assert node.waiting_since is None
    bench.now = 5.0
    for partition in range(2):
        full_batch(bench, partition)
    node = bench.accumulator.ready.nodes[NODE]
    assert node.waiting_since == 5.0
    bench.now = 6.0
    bench.drain_one()
    assert node.waiting_since == 6.0
    bench.now = 7.0
    bench.drain_one()
    assert node.waiting_since is None


# Leaders


def test_a_topic_is_reported_while_it_has_batches_and_no_leader() -> None:
    bench = Bench(topics={"t": 2, "u": 1})
    ready = bench.accumulator.ready
    bench.accumulator.topics.set_leader("t", 1, -1, 0)
    bench.accumulator.topics.set_leader("u", 0, -1, 0)
    assert ready.unknown_leader_topics() == set()
    bench.send_batch(partition=1)
    assert ready.unknown_leader_topics() == {"t"}
    assert bench.accumulator.next_deadline() == bench.accumulator.settings.delivery_timeout
    assert not ready.ready_nodes
    bench.accumulator.topics.set_leader("t", 1, 2, 0)
    assert ready.unknown_leader_topics() == set()
    assert len(bench.drain(2)) == 1


def test_a_topic_whose_batches_expired_without_leader_is_no_longer_reported() -> None:
    bench = Bench(delivery_timeout=1.0)
    bench.accumulator.topics.set_leader("t", 0, -1, 0)
    (delivery,) = bench.send_batch()
    bench.later(1.0)
    assert "They were never sent" in str(delivery.exception())
    assert bench.accumulator.ready.unknown_leader_topics() == set()


def test_reporting_leaderless_topics_costs_the_same_for_any_partition_count() -> None:
    work = []
    for count in (10, 1000):
        bench = Bench(topics={"t": count}, linger=0)
        for partition in range(count):
            bench.accumulator.topics.set_leader("t", partition, -1, 0)
            bench.send(partition=partition)
        ready = bench.accumulator.ready
        assert ready.unknown_leader_topics() == {"t"}
        work.append(count_operations(ready.unknown_leader_topics))
    assert work[0] == work[1]


def test_batches_keep_their_order_when_the_leader_is_lost_and_returns() -> None:
    bench = Bench()
    first = bench.send_batch()
    bench.accumulator.topics.set_leader("t", 0, -1, 0)
    second = bench.send_batch()
    assert bench.drain() == []
    bench.accumulator.topics.set_leader("t", 0, NODE, 0)
    bench.ack(bench.drain_one(), 0)
    bench.ack(bench.drain_one(), 1)
    assert [delivery.result().offset for delivery in first + second] == [0, 1]


# Backing off


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9))
def test_each_retry_waits_for_its_backoff(seed: int, retries: int) -> None:
    bench = Bench(seed=seed, retry_backoff=ExponentialBackoff(100, 1000), delivery_timeout=1e9)
    bench.send_batch()
    for retry in range(retries):
        bench.refuse(bench.drain_one(), NOT_ENOUGH_REPLICAS)
        base = min(0.1 * 2**retry, 1.0)
        bench.accumulator.ready.end_lingering(bench.now)
        bench.accumulator.closing = True
        until = bench.accumulator.ready.next_deadline()
        assert bench.now + base * 0.8 - 1e-9 <= until <= bench.now + min(base * 1.2, 1.0) + 1e-9
        bench.now = (bench.now + until) / 2
        # Neither a flush nor closing shortens it, nor does linger prolong it.
        assert bench.drain() == []
        bench.now = until


def test_a_second_batch_does_not_shorten_the_backoff_of_the_first() -> None:
    """The first batch of the queue was once sent again after the shorter backoff of the batch behind it."""
    bench = Bench()
    bench.send_batch()
    bench.ack(bench.drain_one())
    bench.send_batch()
    first = bench.drain_one()
    for wait in (0.1, 0.2, 0.4):
        bench.refuse(first, NOT_ENOUGH_REPLICAS)
        bench.later(wait)
        assert bench.drain_one() is first
    bench.send_batch()
    second = bench.drain_one()
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    bench.refuse(second, NOT_ENOUGH_REPLICAS)
    bench.later(0.79)
    assert bench.drain() == []
    bench.later(0.02)
    assert bench.drain_one() is first


def test_a_retry_at_a_new_leader_needs_no_backoff() -> None:
    bench = Bench()
    bench.send_batch()
    batch = bench.drain_one()
    bench.refuse(batch, 6)
    assert bench.drain() == []
    bench.accumulator.topics.set_leader("t", 0, 2, 0)
    assert bench.drain_one(2) is batch
    # The new leader is known before the old one responds.
    bench.accumulator.topics.set_leader("t", 0, 3, 0)
    bench.refuse(batch, 6)
    assert bench.drain_one(3) is batch


def test_batches_behind_one_in_backoff_wait() -> None:
    bench = Bench(idempotent=False)
    bench.send_batch()
    first = bench.drain_one()
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    bench.send_batch()
    assert bench.drain() == []
    bench.later(0.1)
    assert bench.drain_one() is first


# Muting


def test_one_batch_per_partition_is_in_flight() -> None:
    bench = Bench(idempotent=False, one_in_flight_per_partition=True, topics={"t": 2})
    for partition in (0, 0, 1):
        bench.send_batch(partition=partition)
    first, other = bench.drain()
    assert bench.drain() == []
    bench.ack(other)
    assert bench.drain() == []
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    assert bench.drain() == []
    bench.later(0.1)
    assert bench.drain_one() is first
    bench.ack(first)
    assert len(bench.drain()) == 1


@pytest.mark.parametrize("end", ["ack", "refuse", "cut"])
def test_expiry_alone_does_not_unmute(end: str) -> None:
    bench = Bench(idempotent=False, one_in_flight_per_partition=True, delivery_timeout=10.0)
    bench.send_batch()
    first = bench.drain_one()
    bench.later(10.0)
    bench.send_batch()
    assert bench.drain() == []
    {"ack": bench.ack, "refuse": lambda batch: bench.refuse(batch, 32), "cut": bench.cut}[end](first)
    assert len(bench.drain()) == 1


def test_a_split_unmutes() -> None:
    bench = Bench(idempotent=False, one_in_flight_per_partition=True)
    bench.send_batch(2)
    bench.refuse(bench.drain_one(), 10)
    assert len(bench.drain()) == 1
    assert bench.drain() == []


# Cost


def test_a_request_takes_a_bounded_number_of_batches() -> None:
    """A request of 6,000 batches once blocked the loop for tens of milliseconds; now several requests take them."""
    bench = Bench(topics={"t": 500}, memory=1 << 22, linger=0.0)
    for partition in range(500):
        bench.send(partition=partition)
    drained = []
    while batches := bench.drain():
        assert len(batches) <= BATCHES_PER_REQUEST
        drained += [batch.topic_partition.partition for batch in batches]
    assert drained == list(range(500))


def test_an_idle_poll_costs_the_same_with_20000_partitions_as_with_20() -> None:
    def idle_work(partitions: int) -> tuple[int, ...]:
        bench = Bench(topics={"t": partitions}, memory=1 << 26, linger=5.0, max_request_size=1 << 30)
        for partition in range(partitions):
            bench.send(partition=partition)
        work = [
            count_operations(bench.turn),
            count_operations(bench.drain),
            count_operations(bench.accumulator.next_deadline),
        ]
        bench.accumulator.ready.end_lingering(0)
        while batches := bench.drain():
            for batch in batches:
                bench.ack(batch)
        assert bench.all_memory_is_back()
        work += [count_operations(bench.turn), count_operations(bench.drain)]
        # Only the ready one is visited.
        bench.send_batch(partition=partitions // 2)
        return *work, count_operations(lambda: bench.ack(bench.drain_one()))

    assert idle_work(20_000) == idle_work(20)


def test_a_held_partition_is_idle_once_its_batches_have_failed() -> None:
    bench = Bench(producer_id=-1)
    bench.send_batch()
    assert bench.drain() == []
    assert bench.queue().state == HELD
    bench.later(bench.accumulator.settings.delivery_timeout)
    bench.completion.expire(bench.now)
    assert not bench.queue().batches
    assert bench.queue().state == IDLE
