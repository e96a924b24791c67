"""FlushWaiters: futures for flush, for waiting records, and for room."""

from __future__ import annotations

from aioproducer.core.waiting.waiters import RESOLVED_PER_PASS, FlushWaiters
from tests.core.accumulating import Bench, HandLoop, count_operations


class Counters:
    def __init__(self) -> None:
        self.first_batch = 1
        self.first_record = 1
        self.loop = HandLoop()
        self.watches = FlushWaiters(
            self.loop,
            first_batch=lambda: self.first_batch,
            first_record=lambda: self.first_record,
        )


def test_a_watch_with_nothing_to_wait_for_is_done_at_once() -> None:
    counters = Counters()
    assert counters.watches.batches(0).done()
    assert counters.watches.records(0).done()


def test_a_watch_ends_once_its_number_is_passed() -> None:
    counters = Counters()
    early, late = counters.watches.batches(1), counters.watches.batches(3)
    line = counters.watches.records(2)
    counters.watches.check()
    assert not early.done()
    counters.first_batch = 2
    counters.watches.check()
    assert early.done()
    assert not late.done()
    counters.first_batch = 4
    counters.first_record = 3
    counters.watches.check()
    assert late.done()
    assert line.done()


def test_a_cancelled_watch_does_not_delay_others() -> None:
    counters = Counters()
    watch, other = counters.watches.batches(1), counters.watches.batches(1)
    watch.cancel()
    counters.watches.check()
    assert [future for _, future in counters.watches._batches.waiting] == [other]
    counters.first_batch = 2
    counters.watches.check()
    assert watch.cancelled()
    assert other.done()


def test_cancelled_watches_are_dropped_behind_a_waiting_one() -> None:
    counters = Counters()
    first = counters.watches.batches(1)
    for _ in range(1000):
        counters.watches.batches(2).cancel()
    assert len(counters.watches._batches.waiting) < 100
    counters.first_batch = 2
    counters.watches.check()
    assert first.done()


def test_checking_watches_costs_the_same_for_any_number_of_them() -> None:
    """Each finished batch once checked every watch: 20,000 concurrent ``flush`` calls took half a minute."""
    work = []
    for count in (10, 1000):
        counters = Counters()
        watches = [counters.watches.batches(number) for number in range(1, count + 1)]
        work.append(count_operations(counters.watches.check))
        counters.first_batch = 6
        counters.watches.check()
        assert [watch.done() for watch in watches] == [True] * 5 + [False] * (count - 5)
    assert work[0] == work[1]


def test_many_watches_are_ended_over_several_loop_passes() -> None:
    counters = Counters()
    count = 2 * RESOLVED_PER_PASS + 1
    watches = [counters.watches.batches(1) for _ in range(count)] + [counters.watches.records(1) for _ in range(count)]
    counters.first_batch = 2
    counters.watches.check()
    reported = [sum(watch.done() for watch in watches)]
    counters.first_record = 2
    while counters.loop.soon:
        callback, args, _ = counters.loop.soon.pop(0)
        callback(*args)
        reported.append(sum(watch.done() for watch in watches) - sum(reported))
    assert sum(reported) == len(watches)
    assert max(reported) <= 2 * RESOLVED_PER_PASS


def test_flush_covers_only_records_accepted_before_it() -> None:
    bench = Bench(topics={"t": 2})
    bench.send(partition=0)
    watch = bench.accumulator.batches_finished()
    bench.send(partition=1)
    bench.accumulator.ready.end_lingering(bench.now)
    first, second = bench.drain()
    assert not watch.done()
    bench.ack(second)
    assert not watch.done()
    bench.ack(first)
    assert watch.done()
    assert not bench.accumulator.records_unblocked().cancelled()


def test_flush_waits_for_every_part_of_a_split_batch() -> None:
    bench = Bench(batch_size=400)
    for _ in range(4):
        bench.send(b"x" * 50)
    watch = bench.accumulator.batches_finished()
    bench.accumulator.ready.end_lingering(0)
    bench.refuse(bench.drain_one(), 10)
    parts = len(bench.queue().batches)
    for acked in range(parts):
        assert not watch.done()
        bench.ack(bench.drain_one(), acked)
    assert watch.done()


def test_a_watch_on_the_queue_ends_once_its_records_have_left() -> None:
    bench = Bench(topics={})
    first = bench.send(topic="unknown")
    watch = bench.accumulator.records_unblocked()
    assert not watch.done()
    second = bench.send(topic="unknown")
    assert first.cancel()
    assert watch.done()
    late = bench.accumulator.records_unblocked()
    assert not late.done()
    assert second.cancel()
    assert late.done()


def test_drain_returns_once_the_records_before_it_have_memory() -> None:
    """This holds also if no memory is left for the caller's next record, which then queues itself."""
    bench = Bench(memory=2048, batch_size=2048)
    bench.send(b"x" * 1500)
    bench.send(b"y" * 1500)
    drain = bench.accumulator.drain_waiters.add()
    bench.turn()
    assert not drain.done()
    bench.ack(bench.drain_one())
    assert not drain.done()
    bench.turn()
    assert bench.accumulator.pool.available_memory <= 0
    assert drain.done()


def test_drain_returns_if_the_record_before_it_leaves_the_queue_without_memory() -> None:
    bench = Bench(memory=2048, batch_size=2048)
    bench.send(b"x" * 1500)
    waiting = bench.send(b"y" * 1500)
    drain = bench.accumulator.drain_waiters.add()
    bench.turn()
    assert not drain.done()
    assert waiting.cancel()
    bench.turn()
    assert drain.done()


def test_records_behind_a_drain_do_not_delay_it() -> None:
    bench = Bench(topics={"t": 2}, memory=16384, batch_size=1024, max_request_size=1024)
    bench.send(b"w" * 4000, partition=1)
    bench.send(b"x" * 11000, partition=0)
    bench.send(b"y" * 8000, partition=0)
    drain = bench.accumulator.drain_waiters.add()
    bench.send(b"z" * 7000, partition=0)
    batches = [*bench.drain(), *bench.drain()]
    bench.ack(next(batch for batch in batches if batch.topic_partition.partition == 0))
    bench.turn()
    assert bench.accumulator.blocked_records.memory_waiters
    assert drain.done()


def test_drain_with_no_record_before_it_waits_for_a_useful_amount_of_memory() -> None:
    bench = Bench(topics={"t": 9}, memory=9 * 1024, batch_size=1024)
    for partition in range(9):
        bench.send(b"x" * 900, partition=partition)
    assert bench.accumulator.pool.available_memory <= 0
    drain = bench.accumulator.drain_waiters.add()
    bench.turn()
    assert not drain.done()
    bench.accumulator.ready.end_lingering(bench.now)
    batches = bench.drain()
    bench.ack(batches[0])
    bench.turn()
    assert not drain.done()
    bench.ack(batches[1])
    bench.turn()
    assert drain.done()


def test_drain_stops_waiting_for_a_useful_amount_when_a_record_queues_behind_it() -> None:
    bench = Bench(memory=16384, batch_size=16384)
    bench.send(b"x" * 16000)
    drain = bench.accumulator.drain_waiters.add()
    bench.turn()
    assert not drain.done()
    bench.send(b"y" * 1500)
    bench.turn()
    assert drain.done()


def test_drain_waits_for_a_useful_amount_no_longer_than_the_batches_before_it_take() -> None:
    """Coroutines that await their sends once took each released slab, and the useful amount was never free."""
    bench = Bench(topics={"t": 32}, memory=32 * 1024, batch_size=1024)
    for partition in range(32):
        bench.send(b"x" * 900, partition=partition)
    drain = bench.accumulator.drain_waiters.add()
    bench.accumulator.ready.end_lingering(bench.now)
    for batch in bench.drain():
        bench.turn()
        assert not drain.done()
        bench.ack(batch)
        bench.send(b"y" * 900, partition=batch.topic_partition.partition)
        assert not bench.accumulator.blocked_records.memory_waiters
    bench.turn()
    assert drain.done()


def test_drains_return_in_call_order_and_cancelled_ones_delay_none() -> None:
    bench = Bench(memory=2048, batch_size=2048)
    bench.send(b"x" * 1900)
    drains = [bench.accumulator.drain_waiters.add() for _ in range(4)]
    drains[0].cancel()
    bench.accumulator.ready.end_lingering(bench.now)
    bench.ack(bench.drain_one())
    ended = []
    while bench.accumulator.drain_waiters.resume(1):
        ended.append([drain.done() for drain in drains[1:]])
    assert ended == [[True, False, False], [True, True, False]]
    assert all(drain.done() for drain in drains)


def test_there_is_no_room_while_the_queues_are_half_full() -> None:
    bench = Bench(topics={}, memory=8192)
    bench.send(b"x" * 3000, topic="unknown")
    assert bench.accumulator.drain_waiters.has_room()
    delivery = bench.send(b"x" * 1000, topic="unknown")
    assert not bench.accumulator.drain_waiters.has_room()
    drain = bench.accumulator.drain_waiters.add()
    bench.turn()
    assert not drain.done()
    delivery.cancel()
    bench.turn()
    assert drain.done()


def test_drain_returns_once_the_records_before_it_have_left_though_others_fill_the_queues() -> None:
    bench = Bench(topics={}, memory=16384, max_request_size=2048)
    first = bench.send(b"x" * 8000, topic="unknown")
    drain = bench.accumulator.drain_waiters.add()
    bench.send(b"y" * 7000, topic="unknown")
    assert first.cancel()
    bench.send(b"y" * 2000, topic="unknown")
    bench.turn()
    assert not bench.accumulator.drain_waiters.has_room()
    assert drain.done()


def test_drain_leaves_memory_for_the_records_between_two_calls() -> None:
    """Records that find no memory take the slow path: a third did when each ``drain`` followed a megabyte of them."""
    bench = Bench(memory=1 << 20, batch_size=16_384)
    waiters, reserve = bench.accumulator.drain_waiters, (1 << 20) // 32
    while bench.pool.available_memory >= reserve:
        assert waiters.has_room()
        bench.send(bytes(5000))
    assert bench.pool.available_memory > 0
    assert not waiters.has_room()


def test_drain_does_not_wait_for_memory_that_no_batch_can_free() -> None:
    bench = Bench(memory=1 << 20)
    bench.pool.charge((1 << 20) - 1000)
    assert bench.accumulator.drain_waiters.has_room()
    bench.pool.charge(1000)
    assert not bench.accumulator.drain_waiters.has_room()
