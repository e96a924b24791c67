"""When lent memory is looked for though nothing is received: of a loop whose time is the test's."""

from __future__ import annotations

import weakref

import pytest

from aioproducer.transport.rdma.answers import Answers
from aioproducer.transport.rdma.ring import SendQueue


class Loop:
    """As much of a loop as is used, and what it was asked to call."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, callback):
        timer = Timer(self, delay, callback)
        self.timers.append(timer)
        return timer

    def delays(self):
        return [timer.delay for timer in self.timers]

    def run(self):
        """The time of the only timer has come."""
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
        """What is lent completes, and nothing comes."""
        self.lend()
        self.loop.run()
        self.complete()


@pytest.fixture
def side():
    return Side()


def test_where_nothing_has_come_yet_memory_is_looked_for_soon(side):
    side.lend()
    assert side.loop.delays() == [0.002]
    side.loop.run()
    assert side.looks == 1


def test_where_answers_come_the_timer_is_longer_than_a_tick_of_the_system(side):
    """A shorter one had the processor's timer set and set back with every wait of the loop: 22 us each in a guest."""
    side.answers.received()
    side.lend()
    assert side.loop.delays() == [0.1]


def test_there_is_one_timer_for_all_that_is_lent(side):
    for _ in range(5):
        side.lend()
    assert len(side.loop.timers) == 1


def test_without_lent_memory_nothing_is_polled_and_no_timer_is_left(side):
    side.lend()
    side.complete()
    side.loop.run()
    assert (side.looks, side.loop.timers, side.answers.missing) == (0, [], False)


def test_where_something_came_meanwhile_it_is_no_answer_that_is_missing(side):
    for _ in range(3):
        side.lend()
        side.answers.received()
        side.loop.run()
    assert (side.looks, side.answers.missing) == (3, False)
    side.lend()
    assert side.loop.delays() == [0.1]


def test_one_answer_that_takes_long_is_none_that_is_missing(side):
    side.answers.received()
    side.be_late()
    assert (side.looks, side.answers.missing) == (1, False)
    side.answers.received()
    side.be_late()
    assert (side.looks, side.answers.missing) == (2, False)


def test_twice_in_a_row_they_are_missing_and_the_second_time_is_found_soon(side):
    side.answers.received()
    side.be_late()
    side.lend()
    assert side.loop.delays() == [0.002]
    side.loop.run()
    assert side.answers.missing
    side.answers.received()
    assert not side.answers.missing


def test_nothing_is_called_once_it_is_stopped_and_nothing_kept_alive():
    side = Side()
    side.lend()
    side.answers.stop()
    assert side.loop.timers == []
    known = weakref.ref(side)
    del side
    assert known() is None
