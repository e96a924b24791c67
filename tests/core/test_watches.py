"""Watches: futures for "all so far", and for room."""

from __future__ import annotations

from aioproducer.core.watches import ENDED_AT_ONCE, Watches
from tests.core.accumulating import Bench, HandLoop, count_operations


class Counters:
    def __init__(self) -> None:
        self.first_batch = 1
        self.first_in_line = 1
        self.room = False
        self.loop = HandLoop()
        self.watches = Watches(
            self.loop,
            first_batch=lambda: self.first_batch,
            first_in_line=lambda: self.first_in_line,
            has_room=lambda: self.room,
        )


def test_nothing_to_wait_for_is_over_at_once() -> None:
    counters = Counters()
    counters.room = True
    assert counters.watches.batches(0).done()
    assert counters.watches.line(0).done()
    assert counters.watches.room().done()


def test_a_watch_ends_when_its_number_is_passed_and_not_before() -> None:
    counters = Counters()
    early, late = counters.watches.batches(1), counters.watches.batches(3)
    line = counters.watches.line(2)
    counters.watches.check()
    assert not early.done()
    counters.first_batch = 2
    counters.watches.check()
    assert early.done()
    assert not late.done()
    counters.first_batch = 4
    counters.first_in_line = 3
    counters.watches.check()
    assert late.done()
    assert line.done()


def test_a_cancelled_watch_keeps_no_other_waiting() -> None:
    counters = Counters()
    watch, other = counters.watches.batches(1), counters.watches.batches(1)
    watch.cancel()
    counters.watches.check()
    assert [future for _, future in counters.watches._batches.waiting] == [other]
    counters.first_batch = 2
    counters.watches.check()
    assert watch.cancelled()
    assert other.done()


def test_cancelled_watches_are_dropped_though_one_before_them_waits() -> None:
    counters = Counters()
    first = counters.watches.batches(1)
    for _ in range(1000):
        counters.watches.batches(2).cancel()
    assert len(counters.watches._batches.waiting) < 100
    counters.first_batch = 2
    counters.watches.check()
    assert first.done()


def test_every_batch_that_ended_looked_at_all_who_wait() -> None:
    """Twenty thousand coroutines that each sent a record and awaited ``flush`` took half a minute together."""
    work = []
    for count in (10, 1000):
        counters = Counters()
        watches = [counters.watches.batches(number) for number in range(1, count + 1)]
        work.append(count_operations(counters.watches.check))
        counters.first_batch = 6
        counters.watches.check()
        assert [watch.done() for watch in watches] == [True] * 5 + [False] * (count - 5)
    assert work[0] == work[1]


def test_all_who_waited_were_told_in_one_turn() -> None:
    counters = Counters()
    count = 2 * ENDED_AT_ONCE + 1
    watches = [counters.watches.batches(1) for _ in range(count)] + [counters.watches.room() for _ in range(count)]
    counters.first_batch = 2
    counters.watches.check()
    told = [sum(watch.done() for watch in watches)]
    counters.room = True
    while counters.loop.soon:
        callback, args, _ = counters.loop.soon.pop(0)
        callback(*args)
        told.append(sum(watch.done() for watch in watches) - sum(told))
    assert sum(told) == len(watches)
    assert max(told) <= 2 * ENDED_AT_ONCE


def test_all_who_wait_for_room_are_told() -> None:
    counters = Counters()
    watches = [counters.watches.room() for _ in range(3)]
    counters.watches.check()
    assert not any(watch.done() for watch in watches)
    counters.room = True
    counters.watches.check()
    assert all(watch.done() for watch in watches)


def test_flush_covers_what_was_accepted_before_and_no_more() -> None:
    bench = Bench(topics={"t": 2})
    bench.send(partition=0)
    watch = bench.accumulator.watch_batches()
    bench.send(partition=1)
    bench.accumulator.ready.hurry(bench.now)
    first, second = bench.drain()
    assert not watch.done()
    bench.ack(second)
    assert not watch.done()
    bench.ack(first)
    assert watch.done()
    assert not bench.accumulator.watch_line().cancelled()


def test_flush_waits_for_every_part_of_a_split_batch() -> None:
    bench = Bench(batch_size=400)
    for _ in range(4):
        bench.send(b"x" * 50)
    watch = bench.accumulator.watch_batches()
    bench.accumulator.ready.hurry(0)
    bench.refuse(bench.drain_one(), 10)
    parts = len(bench.queue().batches)
    for acked in range(parts):
        assert not watch.done()
        bench.ack(bench.drain_one(), acked)
    assert watch.done()


def test_a_line_is_over_when_all_who_stood_there_have_left() -> None:
    bench = Bench(topics={})
    first = bench.send(topic="unknown")
    watch = bench.accumulator.watch_line()
    assert not watch.done()
    second = bench.send(topic="unknown")
    assert first.cancel()
    assert watch.done()
    late = bench.accumulator.watch_line()
    assert not late.done()
    assert second.cancel()
    assert late.done()


def test_room_is_there_again_when_the_line_for_memory_is_served() -> None:
    bench = Bench(memory=2048, batch_size=2048)
    assert bench.accumulator.watch_room().done()
    bench.send(b"x" * 1500)
    bench.send(b"y" * 1500)
    watch = bench.accumulator.watch_room()
    assert not watch.done()
    bench.ack(bench.drain_one())
    assert not watch.done()
    bench.turn()
    assert not watch.done()
    bench.ack(bench.drain_one())
    assert watch.done()


def test_no_room_while_the_lines_are_half_full() -> None:
    bench = Bench(topics={}, memory=8192)
    bench.send(b"x" * 3000, topic="unknown")
    assert bench.accumulator.has_room()
    delivery = bench.send(b"x" * 1000, topic="unknown")
    assert not bench.accumulator.has_room()
    watch = bench.accumulator.watch_room()
    delivery.cancel()
    assert watch.done()
