"""BatchRuns: its results for runs of records equal those of their Deliveries."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.columns.batch_runs import BatchRuns
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import KafkaError
from aioproducer.record import TopicPartition
from tests.core.accumulating import Bench

MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED, INVALID_RECORD, UNKNOWN_SERVER_ERROR = 10, 29, 87, -1

sent = st.tuples(st.just("send"), st.integers(0, 1), st.booleans())
"""The partition, and whether the sender under test sent the record."""
answered = st.tuples(
    st.just("answer"), st.integers(0, 1), st.sampled_from(["ack", "refuse", "split", "blame", "leave open"])
)
counted = st.tuples(st.just("count"), st.integers(0, 2), st.none())


class Sender:
    """Two partitions; their batches get responses one at a time."""

    def __init__(self, *, keep_offsets: bool) -> None:
        self.bench = Bench(topics={"t": 2}, idempotent=False)
        self.runs = BatchRuns(keep_offsets=keep_offsets)
        self.mine: list[Delivery] = []
        self.ends = [0, 0]

    def send(self, partition: int, is_mine: bool) -> None:
        delivery = self.bench.send(partition=partition)
        if is_mine:
            assert self.runs.add_delivery(delivery)
            self.mine.append(delivery)

    def answer(self, partition: int, how: str) -> None:
        """Close the partition's open batch, and give its oldest batch the outcome how."""
        bench = self.bench
        queue = bench.queue("t", partition)
        if queue.open_batch is not None:
            bench.accumulator._close_batch(queue, queue.open_batch, bench.now, full=True)
        for batch in bench.drain():
            self._answer(batch, how if batch.topic_partition.partition == partition else "ack")

    def _answer(self, batch: ProducerBatch, how: str) -> None:
        partition = batch.topic_partition.partition
        if how == "refuse":
            self.bench.refuse(batch, TOPIC_AUTHORIZATION_FAILED)
        elif how == "leave open":
            # An error that leaves the state of the log unknown.
            self.bench.refuse(batch, UNKNOWN_SERVER_ERROR)
        elif how == "blame":
            self.bench.refuse(batch, INVALID_RECORD, record_messages={0: "the first is wrong"})
        elif how == "split" and batch.record_count > 1:
            self.bench.refuse(batch, MESSAGE_TOO_LARGE)
        else:
            self.bench.ack(batch, self.ends[partition])
            self.ends[partition] += batch.record_count

    def count(self, most: int) -> None:
        if most:
            self.runs.count_first(most)
        else:
            self.runs.count_finished()

    def end(self) -> None:
        while self.bench.accumulator.has_undelivered():
            self.bench.later(1)
            for partition in (0, 1):
                self.answer(partition, "ack")
        self.runs.count_finished()


@given(st.lists(st.one_of(sent, sent, sent, answered, counted), max_size=60), st.booleans())
def test_batch_runs_report_the_same_as_deliveries(steps: list[tuple[str, int, object]], keep_offsets: bool) -> None:
    sender = Sender(keep_offsets=keep_offsets)
    for what, number, more in steps:
        if what == "count":
            sender.count(number)
        else:
            getattr(sender, what)(number, more)
    sender.end()
    acked = 0
    offsets = defaultdict(list)
    failed = set()
    may_have_been_written = False
    for delivery in sender.mine:
        error = delivery.exception()
        if error is None:
            acked += 1
            offsets[delivery.topic_partition.partition].append(delivery.result().offset)
        else:
            assert isinstance(error, KafkaError)
            failed.add(delivery.topic_partition)
            may_have_been_written |= error.may_have_been_written
    runs = sender.runs
    assert len(runs) == 0
    assert runs.first() is None
    assert runs.acked == acked
    assert runs.errors.keys() == failed
    assert runs.may_have_been_written is may_have_been_written
    if keep_offsets:
        assert runs.offsets is not None
        found = {partition: [offset for one in ranges for offset in one] for partition, ranges in runs.offsets.items()}
        assert found == offsets
        for ranges in runs.offsets.values():
            assert all(one.stop < other.start for one, other in pairwise(ranges))
    else:
        assert runs.offsets is None


def test_the_first_unfinished_batch_hides_the_others_unless_all_are_checked() -> None:
    sender = Sender(keep_offsets=False)
    sender.send(0, True)
    sender.send(1, True)
    runs = sender.runs
    sender.answer(1, "ack")
    # The other partition's batch is open, so nothing of it was sent.
    assert runs.topic_partitions() == {TopicPartition("t", 0), TopicPartition("t", 1)}
    done = runs.batch_to_await(0)
    assert done is not None
    assert done.is_finished()
    assert runs.batch_to_await(1) is None, "the other takes records"
    runs.count_first(10)
    assert (runs.acked, len(runs)) == (0, 2)
    runs.count_finished()
    assert (runs.acked, len(runs)) == (1, 1)
    first = runs.first()
    assert first is not None
    sender.end()
    assert (runs.acked, len(runs)) == (2, 0)
    runs.count(first)
    assert runs.acked == 2, "a batch is counted once"


def test_a_blocked_record_is_in_no_batch() -> None:
    bench = Bench(topics={})
    runs = BatchRuns(keep_offsets=True)
    assert not runs.add_delivery(bench.send())
    assert len(runs) == 0


def test_a_batch_in_flight_does_not_count_as_waiting_to_be_sent() -> None:
    """If responses take long, more batches may be in flight than the limit on waiting ones."""
    sender = Sender(keep_offsets=False)
    bench, runs = sender.bench, sender.runs
    for _ in range(4):
        for delivery in bench.send_batch():
            runs.add_delivery(delivery)
    sender.send(1, True)
    batches = [*bench.queue().batches]
    assert [runs.batch_to_await(most) for most in range(5)] == [*reversed(batches), None]
    assert bench.drain() == batches[:1]
    assert [runs.batch_to_await(most) for most in range(4)] == [batches[2], batches[1], batches[0], None]
    bench.ack(batches[0])
    # It is done, but not counted yet: the count still waits for it.
    assert [runs.batch_to_await(most) for most in range(5)] == [*reversed(batches), None]
    runs.count_first(10)
    assert [runs.batch_to_await(most) for most in range(4)] == [*reversed(batches[1:]), None]
