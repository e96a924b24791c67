"""The queue in front of a pool: slots go to callers in their order, and none gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer._client.pool_queue import PoolQueue
from aioproducer.errors import KafkaTimeoutError, ProducerClosedError


@dataclass
class Slot:
    number: int
    is_warm: bool = False


def timed_out() -> KafkaTimeoutError:
    return KafkaTimeoutError("all busy")


def queue_of(count: int) -> PoolQueue[Slot]:
    queue: PoolQueue[Slot] = PoolQueue()
    for number in range(count):
        queue.give_back(Slot(number))
    return queue


async def take(queue: PoolQueue[Slot], timeout: float = 60) -> Slot:
    return await queue.take(timeout, timed_out)


async def test_cold_slots_are_taken_by_number() -> None:
    queue: PoolQueue[Slot] = PoolQueue()
    for number in (2, 0, 1):
        queue.give_back(Slot(number))
    assert [(await take(queue)).number for _ in range(3)] == [0, 1, 2]


async def test_a_warm_slot_comes_before_a_cold_one_and_the_longest_free_first() -> None:
    queue = queue_of(1)
    for number in (3, 1, 2):
        queue.give_back(Slot(number, is_warm=True))
    assert [(await take(queue)).number for _ in range(4)] == [3, 1, 2, 0]


async def test_callers_are_served_in_their_order() -> None:
    queue = queue_of(1)
    slot = await take(queue)
    served: list[int] = []

    async def caller(number: int) -> None:
        taken = await take(queue)
        served.append(number)
        queue.give_back(taken)

    callers = [asyncio.create_task(caller(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert queue.waiting == 5
    queue.give_back(slot)
    await asyncio.gather(*callers)
    assert served == [0, 1, 2, 3, 4]
    assert (queue.waiting, queue.free) == (0, 1)


async def test_a_new_caller_does_not_overtake_one_whose_slot_is_on_its_way() -> None:
    queue = queue_of(1)
    slot = await take(queue)
    first = asyncio.create_task(take(queue))
    await asyncio.sleep(0)
    queue.give_back(slot)
    second = asyncio.create_task(take(queue, 0))
    with pytest.raises(KafkaTimeoutError):
        await second
    assert await first is slot


async def test_the_wait_is_limited() -> None:
    queue = queue_of(0)
    with pytest.raises(KafkaTimeoutError, match="all busy"):
        await take(queue, 0.01)
    assert queue.waiting == 0


async def test_a_caller_that_is_cancelled_with_its_slot_passes_it_on() -> None:
    queue = queue_of(1)
    slot = await take(queue)
    first, second = asyncio.create_task(take(queue)), asyncio.create_task(take(queue))
    await asyncio.sleep(0)
    queue.give_back(slot)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second is slot


async def test_close_fails_the_callers_that_wait_and_later_ones() -> None:
    queue = queue_of(1)
    slot = await take(queue)
    waiting = [asyncio.create_task(take(queue)) for _ in range(2)]
    await asyncio.sleep(0)
    queue.close(ProducerClosedError("closed"))
    for task in [*waiting, asyncio.create_task(take(queue))]:
        with pytest.raises(ProducerClosedError):
            await task
    queue.give_back(slot)
    assert queue.free == 1


@dataclass
class Caller:
    """A caller that takes a slot, and returns it at the test's request."""

    number: int
    task: asyncio.Task[None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    slot: Slot | None = None

    async def run(self, queue: PoolQueue[Slot], callers: list[Caller], served: list[int]) -> None:
        slot = await take(queue)
        self.slot = slot
        served.append(self.number)
        # Only callers that came later still wait.
        assert queue.waiting <= len(callers) - 1 - self.number
        try:
            await self.done.wait()
        finally:
            self.slot = None
            slot.is_warm = not slot.is_warm
            queue.give_back(slot)


STEPS = st.lists(st.tuples(st.sampled_from(["begin", "end", "cancel", "run"]), st.integers(0, 30)), max_size=60)


async def _run_steps(size: int, steps: list[tuple[str, int]]) -> None:
    queue, served, callers = queue_of(size), list[int](), list[Caller]()
    cancelled: set[int] = set()

    async def settled() -> None:
        # Some passes of the loop for each caller, as one may pass its slot on to the next.
        for _ in range(5 + 5 * len(callers)):
            await asyncio.sleep(0)

    def begin(_: Caller | None) -> None:
        caller = Caller(len(callers))
        caller.task = asyncio.create_task(caller.run(queue, callers, served))
        callers.append(caller)

    def end(caller: Caller | None) -> None:
        if caller is not None:
            caller.done.set()

    def cancel(caller: Caller | None) -> None:
        if caller is not None and caller.task is not None and caller.task.cancel():
            cancelled.add(caller.number)

    act: dict[str, Callable[[Caller | None], None]] = {"begin": begin, "end": end, "cancel": cancel}
    for step, which in steps:
        if step == "run":
            await settled()
            held = [caller.slot.number for caller in callers if caller.slot is not None]
            assert len(held) == len(set(held))
            assert len(held) + queue.free == size
            assert not (queue.free and queue.waiting)
        else:
            act[step](callers[which % len(callers)] if callers else None)
    for caller in callers:
        caller.done.set()
    outcomes = await asyncio.gather(*(caller.task for caller in callers if caller.task), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
    assert (queue.free, queue.waiting) == (size, 0)
    assert sorted({*served, *cancelled}) == list(range(len(callers)))


@given(size=st.integers(1, 3), steps=STEPS)
@settings(max_examples=150)
def test_no_slot_is_lost_or_held_twice_and_no_caller_is_overtaken(size: int, steps: list[tuple[str, int]]) -> None:
    asyncio.run(_run_steps(size, steps))
