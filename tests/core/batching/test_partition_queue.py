"""Partition queues without batches share objects."""

from __future__ import annotations

import gc

import pytest

from aioproducer.core.batching.partition_queue import (
    IDLE,
    NEXT_STATES,
    NO_BATCHES,
    NO_WAITERS,
    PartitionQueue,
)
from aioproducer.core.batching.producer_state import PartitionSequences
from aioproducer.record import TopicPartition
from tests.core.accumulating import Bench


def test_partitions_without_batches_share_one_empty_queue() -> None:
    bench = Bench(topics={"t": 2})
    bench.send_batch()
    queue = bench.queue("t", 0)
    assert queue.batches is not NO_BATCHES
    batch = bench.drain_one()
    assert queue.batches is bench.queue("t", 1).batches is NO_BATCHES
    bench.ack(batch)
    assert queue.sequences.in_flight is bench.queue("t", 1).sequences.in_flight


def test_a_retried_batch_is_not_put_into_the_shared_queue() -> None:
    """The shared queue is immutable: the batch would be lost."""
    bench = Bench(topics={"t": 2})
    bench.send_batch()
    batch = bench.drain_one()
    bench.refuse(batch, 19)
    assert list(bench.queue("t", 0).batches) == [batch]
    assert not NO_BATCHES
    bench.later(0.1)
    assert bench.drain_one() is batch


def test_after_expiry_a_partition_uses_the_shared_queue() -> None:
    bench = Bench(topics={"t": 1}, delivery_timeout=1.0)
    bench.send_batch()
    assert bench.queue("t", 0).batches
    bench.later(2.0)
    assert bench.queue("t", 0).batches is NO_BATCHES


def test_topics_without_blocked_records_share_one_empty_queue() -> None:
    bench = Bench(topics={})
    waiting = bench.send(topic="t")
    topic = bench.accumulator.topics["t"]
    assert len(topic.metadata_waiters) == 1
    assert not NO_WAITERS
    bench.accumulator.set_partition_count("t", 1, bench.now)
    assert topic.metadata_waiters is topic.unknown_partition_waiters is NO_WAITERS
    gone = bench.send(topic="t", partition=7)
    assert len(topic.unknown_partition_waiters) == 1
    assert not NO_WAITERS
    gone.cancel()
    assert topic.metadata_waiters is topic.unknown_partition_waiters is NO_WAITERS
    assert not waiting.cancelled()


def test_partitions_that_disappear_and_return_have_the_same_queues_and_leaders() -> None:
    bench = Bench(topics={"t": 5})
    topic = bench.accumulator.topics["t"]
    queues = [bench.queue("t", partition) for partition in (0, 1, 3)]
    bench.accumulator.topics.set_leader("t", 3, 2, 0)
    topic.resize(2)
    assert topic.partitions == queues[:2]
    topic.resize(1)
    assert topic.partitions == queues[:1]
    assert topic.spare == {1: queues[1], 3: queues[2]}
    assert topic.queues() == [queues[0], queues[2], queues[1]]
    topic.resize(3)
    assert topic.partitions == [queues[0], queues[1], None]
    topic.resize(6)
    assert topic.partitions == [queues[0], queues[1], None, queues[2], None, None]
    assert not topic.spare
    assert [None if node is None else node.node_id for node in topic.leaders] == [1, 1, None, 2, None, None]


def test_a_partition_has_no_queue_before_its_first_record() -> None:
    bench = Bench(topics={"t": 1000})
    topic = bench.accumulator.topics["t"]
    assert topic.partitions == [None] * 1000
    bench.send(topic="t", partition=7)
    bench.send(topic="t", partition=None)
    assert [queue.partition for queue in topic.queues()] == sorted({7, topic.sticky.partition})
    bench.accumulator.topics.set_leader("t", 8, -1, 0)
    bench.accumulator.topics.leaders_known("t", 0)
    bench.accumulator.topics.recreated("t")
    assert len(topic.queues()) == len({7, topic.sticky.partition})
    assert bench.queue("t", 8).node is None
    assert bench.queue("t", 9).node.node_id == 1


def test_idle_partitions_have_few_objects_for_the_garbage_collector() -> None:
    """The collector traverses them repeatedly: 20,000 idle partitions took a seventh of the CPU of those in use."""

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    bench = Bench(topics={"t": 1, "u": 1})
    bench.send(topic="t")
    before = objects()
    for name, count in (("t", 1000), ("u", 1000)):
        bench.accumulator.set_partition_count(name, count, bench.now)
        for partition in range(count):
            bench.accumulator.topics.set_leader(name, partition, 1, bench.now)
    known = objects()
    assert known - before < 20
    for partition in range(1000):
        bench.send(topic="u", partition=partition)
        bench.later(1.0)
        for batch in bench.drain(1):
            bench.ack(batch)
    # The name and number of the partition, its queue and its sequences.
    assert objects() - known < 3 * 1000 + 20


@pytest.mark.parametrize("new", NEXT_STATES)
@pytest.mark.parametrize("old", NEXT_STATES)
def test_only_the_transitions_of_the_table_are_possible(old: int, new: int) -> None:
    queue = PartitionQueue(TopicPartition("t", 0), PartitionSequences())
    if old != IDLE:
        queue.set_state(old)
    if new in NEXT_STATES[old]:
        queue.set_state(new)
        assert queue.state == new
    else:
        with pytest.raises(AssertionError, match="cannot become"):
            queue.set_state(new)
        assert queue.state == old
