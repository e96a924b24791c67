"""Polling for lent memory while nothing is received, on a loop with the test's time."""

from __future__ import annotations

import weakref

import pytest

from aioproducer.transport.rdma.answers import Answers
from aioproducer.transport.rdma.ring import SendQueue


class Loop:
    """The used part of a loop, with its scheduled calls."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, callback):
        timer = Timer(self, delay, callback)
        self.timers.append(timer)
        return timer

    def delays(self):
        return [timer.delay for timer in self.timers]

    def run(self):
        """Let the only timer expire."""
        (timer,) = self.timers
        self.timers.clear()
        timer.callback()


class Timer:
    def __init__(self, loop, delay, callback):
        self.loop = loop
        self.delay = delay
        self.callback = callback

    def cancel(self):
        self.loop.timers.remove(self)


class Side:
    def __init__(self):
        self.loop = Loop()
        self.queue = SendQueue(8, 1, 1024)
        self.looks = 0
        self.answers = Answers(self.loop, self.queue, self.look)
        self.last = -1

    def look(self):
        self.looks += 1

    def lend(self):
        self.last, _ = self.queue.posted(10, 0, [b"lent"], True)
        self.answers.start_timer()

    def complete(self):
        self.queue.completed(self.last)

    def be_late(self):
        """Let the lent memory complete, without received data."""
        self.lend()
        self.loop.run()
        self.complete()


@pytest.fixture
def side():
    return Side()


def test_before_the_first_received_data_polls_are_frequent(side):
    side.lend()
    assert side.loop.delays() == [0.002]
    side.loop.run()
    assert side.looks == 1


def test_while_answers_arrive_the_timer_is_longer_than_a_system_tick(side):
    """With a shorter one each wait of the loop set and reset the processor's timer: 22 us each in a guest."""
    side.answers.received()
    side.lend()
    assert side.loop.delays() == [0.1]


def test_one_timer_serves_all_lent_memory(side):
    for _ in range(5):
        side.lend()
    assert len(side.loop.timers) == 1


def test_without_lent_memory_nothing_is_polled_and_no_timer_is_left(side):
    side.lend()
    side.complete()
    side.loop.run()
    assert (side.looks, side.loop.timers, side.answers.missing) == (0, [], False)


def test_data_received_since_the_timer_started_counts_as_an_answer(side):
    for _ in range(3):
        side.lend()
        side.answers.received()
        side.loop.run()
    assert (side.looks, side.answers.missing) == (3, False)
    side.lend()
    assert side.loop.delays() == [0.1]


def test_one_slow_answer_does_not_count_as_missing(side):
    side.answers.received()
    side.be_late()
    assert (side.looks, side.answers.missing) == (1, False)
    side.answers.received()
    side.be_late()
    assert (side.looks, side.answers.missing) == (2, False)


def test_after_two_timers_without_an_answer_polls_are_frequent(side):
    side.answers.received()
    side.be_late()
    side.lend()
    assert side.loop.delays() == [0.002]
    side.loop.run()
    assert side.answers.missing
    side.answers.received()
    assert not side.answers.missing


def test_after_stop_nothing_is_called_or_kept_alive():
    side = Side()
    side.lend()
    side.answers.stop()
    assert side.loop.timers == []
    known = weakref.ref(side)
    del side
    assert known() is None
