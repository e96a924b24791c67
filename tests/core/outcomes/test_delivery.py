"""Delivery: a future to asyncio on both loops, small, and freed with its last reference."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.batching.partition_queue import PartitionQueue
from aioproducer.core.batching.producer_state import PartitionSequences
from aioproducer.core.batching.split import split_batch
from aioproducer.core.outcomes.delivery import AWAITERS_PER_CALLBACK, Delivery, DeliveryGroup, FutureFactory, resume
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.errors import KafkaError, NotLeaderOrFollowerError, RecordTooLargeError
from aioproducer.record import RecordMetadata, TopicPartition
from aioproducer.wire.record_batch import encode_record
from tests.core.accumulating import HandLoop, count_operations

WHERE = TopicPartition("t", 0)


class TrackedBatch(ProducerBatch):
    """A batch with an observable end."""

    __slots__ = ("__weakref__",)


class TrackedPending(PendingRecord):
    __slots__ = ("__weakref__",)


def empty_batch(loop: FutureFactory) -> ProducerBatch:
    batch = TrackedBatch.__new__(TrackedBatch)
    batch.begin(loop, PartitionQueue(WHERE, PartitionSequences()), WHERE, 1, 0.0, 1000)
    return batch


def make_batch(loop: FutureFactory, count: int = 3, base_timestamp: int = 1000) -> ProducerBatch:
    batch = empty_batch(loop)
    batch.take_records(b"", [base_timestamp + index for index in range(count)], base_timestamp, 0)
    return batch


def make_pending(loop: FutureFactory, leave: Callable[[PendingRecord], None] = lambda pending: None) -> PendingRecord:
    return TrackedPending(loop, "t", None, None, b"v", (), 0, since=0, deadline=1, on_withdraw=leave)


def running_batch(count: int = 3) -> tuple[ProducerBatch, list[Delivery]]:
    batch = make_batch(asyncio.get_running_loop(), count)
    return batch, [Delivery(batch, index) for index in range(count)]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def expected(index: int, base_offset: int = 40) -> RecordMetadata:
    return RecordMetadata("t", 0, base_offset + index, 1000 + index)


# Results


def test_a_delivery_takes_at_most_48_bytes() -> None:
    delivery = Delivery(make_batch(HandLoop()), 0)
    assert sys.getsizeof(delivery) <= 48
    assert not hasattr(delivery, "__dict__")


async def test_result_before_the_outcome_raises_invalid_state_error() -> None:
    _, (delivery, *_) = running_batch()
    assert not delivery.done()
    assert not delivery.cancelled()
    with pytest.raises(asyncio.InvalidStateError):
        delivery.result()
    with pytest.raises(asyncio.InvalidStateError):
        delivery.exception()


async def test_each_delivery_has_the_metadata_of_its_record() -> None:
    batch, deliveries = running_batch()
    assert batch.succeed(40, -1)
    assert [delivery.result() for delivery in deliveries] == [expected(0), expected(1), expected(2)]
    assert [delivery.exception() for delivery in deliveries] == [None] * 3
    assert deliveries[0].topic_partition == WHERE
    assert deliveries[0].get_loop() is asyncio.get_running_loop()


async def test_awaiting_a_finished_delivery_does_not_yield() -> None:
    batch, deliveries = running_batch()
    batch.succeed(40, -1)
    with pytest.raises(StopIteration) as stopped:
        next(deliveries[1].__await__())
    assert stopped.value.value == expected(1)
    assert await deliveries[1] == expected(1)


async def test_each_result_is_a_fresh_exception_object() -> None:
    batch, (delivery, other, *_) = running_batch()
    error = NotLeaderOrFollowerError("moved")
    batch.fail(error)
    raised: list[BaseException] = []
    for _ in range(2):
        with pytest.raises(NotLeaderOrFollowerError, match="moved") as caught:
            await delivery
        raised.append(caught.value)
    raised += [delivery.exception(), other.exception()]
    assert len({id(each) for each in [*raised, error]}) == 5
    assert error.__traceback__ is None
    assert delivery.exception().__traceback__ is None


def test_repr_shows_the_state() -> None:
    loop = HandLoop()
    batch = make_batch(loop)
    delivery, other = Delivery(batch, 0), Delivery(batch, 1)
    assert repr(delivery) == "<Delivery pending>"
    other.cancel()
    assert repr(other) == "<Delivery cancelled>"
    batch.succeed(7, -1)
    assert "offset=7" in repr(delivery)
    failed = make_batch(loop)
    failed.fail(KafkaError("why"))
    assert "why" in repr(Delivery(failed, 0))
    pending = make_pending(loop)
    delivery = pending.delivery
    delivery.cancel()
    assert repr(delivery) == "<Delivery withdrawn>"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_delivery_cannot_be_copied(
    duplicate: Callable[[Delivery], object],
) -> None:
    """Two deliveries once shared one record: an awaiter of one was woken by the other's end, without an offset."""
    delivery = Delivery(make_batch(HandLoop()), 0)
    with pytest.raises(TypeError, match="cannot pickle"):
        duplicate(delivery)


def test_a_group_without_outcomes_raises() -> None:
    group = DeliveryGroup(HandLoop())
    for question in (group.is_done, group.error, group.metadata):
        with pytest.raises(NotImplementedError):
            question(0)
    with pytest.raises(NotImplementedError):
        group.where()
    with pytest.raises(AssertionError):
        make_pending(HandLoop()).metadata(0)


# Everything asyncio does with a future


async def await_it(delivery: Delivery) -> RecordMetadata:
    return await delivery


async def gather_it(delivery: Delivery) -> RecordMetadata:
    (metadata,) = await asyncio.gather(delivery)
    return metadata


async def wait_it(delivery: Delivery) -> RecordMetadata:
    done, pending = await asyncio.wait([delivery])
    assert done == {delivery}
    assert not pending
    return delivery.result()


async def wait_for_it(delivery: Delivery) -> RecordMetadata:
    return await asyncio.wait_for(delivery, 5)


async def shield_it(delivery: Delivery) -> RecordMetadata:
    return await asyncio.shield(delivery)


async def as_completed_it(delivery: Delivery) -> RecordMetadata:
    for next_one in asyncio.as_completed([delivery]):
        return await next_one
    raise AssertionError("nothing completed")


async def timeout_it(delivery: Delivery) -> RecordMetadata:
    async with asyncio.timeout(5):
        return await delivery


async def ensure_it(delivery: Delivery) -> RecordMetadata:
    assert asyncio.isfuture(delivery)
    assert asyncio.ensure_future(delivery) is delivery
    return await delivery


async def callback_it(delivery: Delivery) -> RecordMetadata:
    future = asyncio.get_running_loop().create_future()
    delivery.add_done_callback(future.set_result)
    assert await future is delivery
    return delivery.result()


async def yield_from_it(delivery: Delivery) -> RecordMetadata:
    class Wrapped:
        def __await__(self) -> Any:
            return (yield from delivery)

    return await Wrapped()


WAYS = [
    await_it,
    gather_it,
    wait_it,
    wait_for_it,
    shield_it,
    as_completed_it,
    timeout_it,
    ensure_it,
    callback_it,
    yield_from_it,
]
Way = Callable[[Delivery], Coroutine[Any, Any, RecordMetadata]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("done_before", [False, True])
async def test_every_way_to_wait_returns_the_metadata(way: Way, done_before: bool) -> None:
    batch, deliveries = running_batch()
    if done_before:
        batch.succeed(40, -1)
    task = asyncio.ensure_future(way(deliveries[1]))
    await turns()
    assert task.done() == done_before
    if not done_before:
        batch.succeed(40, -1)
    assert await task == expected(1)
    assert batch.awaiting is batch.waiters is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("done_before", [False, True])
async def test_every_way_to_wait_raises_the_error(way: Way, done_before: bool) -> None:
    batch, deliveries = running_batch()
    if done_before:
        batch.fail(RecordTooLargeError("too large"))
    task = asyncio.ensure_future(way(deliveries[2]))
    await turns()
    if not done_before:
        batch.fail(RecordTooLargeError("too large"))
    with pytest.raises(RecordTooLargeError, match="too large"):
        await task


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_wait_sees_a_cancelled_delivery(way: Way) -> None:
    batch, deliveries = running_batch()
    task = asyncio.ensure_future(way(deliveries[0]))
    await turns()
    assert deliveries[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not deliveries[1].done()
    assert not batch.waiters


@pytest.mark.parametrize("way", [await_it, gather_it, wait_it, wait_for_it, shield_it, timeout_it, yield_from_it])
async def test_cancelling_one_awaiter_cancels_no_other(way: Way) -> None:
    batch, deliveries = running_batch()
    others = [asyncio.ensure_future(each) for each in (await_it(deliveries[0]), await_it(deliveries[1]))]
    task = asyncio.ensure_future(way(deliveries[0]))
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancels_the_handle = way in (gather_it, wait_for_it) and deliveries[0].cancelled()
    batch.succeed(40, -1)
    assert await others[1] == expected(1)
    if cancels_the_handle:
        # As with any future, gather and wait_for cancel their argument, here the delivery.
        with pytest.raises(asyncio.CancelledError):
            await others[0]
    else:
        assert await others[0] == expected(0)


async def test_wait_for_times_out_without_an_ack() -> None:
    _, deliveries = running_batch()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(deliveries[0], 0.001)
    # Since CPython 3.12 wait_for cancels only the wait, which is a separate future of the awaiter.
    assert deliveries[0].cancelled() == (sys.version_info < (3, 12))
    assert not deliveries[0].withdrawn
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await deliveries[1]
    assert not deliveries[1].done()
    done, pending = await asyncio.wait(deliveries[1:], timeout=0.001)
    assert not done
    assert pending == {*deliveries[1:]}


async def test_shield_protects_the_delivery() -> None:
    batch, deliveries = running_batch()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(deliveries[0]), 0.001)
    assert not deliveries[0].cancelled()
    batch.succeed(40, -1)
    assert await deliveries[0] == expected(0)


async def test_gather_keeps_the_order_of_deliveries() -> None:
    batch, deliveries = running_batch(50)
    gathered = asyncio.gather(*reversed(deliveries))
    batch.succeed(40, -1)
    assert [metadata.offset for metadata in await gathered] == list(range(89, 39, -1))
    failed, deliveries = running_batch(2)
    gathered = asyncio.gather(*deliveries, return_exceptions=True)
    failed.fail(KafkaError("no"))
    assert [str(error) for error in await gathered] == ["no", "no"]


async def test_gather_of_a_cancelled_delivery_ends() -> None:
    """asyncio reads the cancel message of the delivery; without it, gather never ended."""
    batch, deliveries = running_batch(3)
    gathered = asyncio.gather(*deliveries, return_exceptions=True)
    deliveries[1].cancel("enough")
    batch.succeed(40, -1)
    async with asyncio.timeout(5):
        first, second, third = await gathered
    assert (first, third) == (expected(0), expected(2))
    assert isinstance(second, asyncio.CancelledError)


async def test_a_timeout_around_gather_with_exceptions_ends_it() -> None:
    _, deliveries = running_batch(2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.gather(*deliveries, return_exceptions=True)


async def test_tasks_wait_in_a_task_group() -> None:
    batch, deliveries = running_batch()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(await_it(delivery)) for delivery in deliveries]
        await turns()
        batch.succeed(40, -1)
    assert [task.result() for task in tasks] == [expected(index) for index in range(3)]


# The generator that __await__ returns


async def test_a_closed_awaiter_leaves_no_state() -> None:
    batch, deliveries = running_batch()
    generator = deliveries[0].__await__()
    future = next(generator)
    assert asyncio.isfuture(future)
    generator.close()
    assert not batch.waiters
    batch.succeed(40, -1)
    assert not future.done()


async def test_an_exception_thrown_into_an_awaiter_propagates() -> None:
    batch, deliveries = running_batch()
    generator = deliveries[0].__await__()
    next(generator)
    with pytest.raises(StopAsyncIteration):
        generator.throw(StopAsyncIteration())
    assert not batch.waiters
    generator = deliveries[0].__await__()
    next(generator)
    # PEP 479: it must not look like the outcome.
    with pytest.raises(asyncio.InvalidStateError):
        generator.throw(StopIteration("value"))
    batch.succeed(40, -1)
    assert deliveries[0].result() == expected(0)


async def test_the_awaiters_future_behaves_like_an_asyncio_future() -> None:
    """A task uses some of its methods; the task of another loop, or a debugger, may use the rest."""
    batch, deliveries = running_batch()
    future = next(deliveries[0].__await__())
    assert future.get_loop() is asyncio.get_running_loop()
    assert not future.done()
    with pytest.raises(asyncio.InvalidStateError):
        future.result()
    calls: list[str] = []
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    context = contextvars.copy_context()
    context.run(variable.set, "own")

    def note(name: str) -> Callable[[Any], None]:
        return lambda awaiting: calls.append(f"{name} {awaiting is future} {variable.get('none')}")

    dropped = note("dropped")
    future.add_done_callback(note("first"), context=context)
    future.add_done_callback(dropped)
    future.add_done_callback(note("second"))
    assert future.remove_done_callback(dropped) == 1
    assert future.remove_done_callback(dropped) == 0
    batch.succeed(40, -1)
    assert future.done()
    assert not future.cancel()
    assert future.result() is None
    assert calls == []
    await turns()
    assert calls == ["first True own", "second True none"]
    future.add_done_callback(note("late"))
    await turns()
    assert calls[2:] == ["late True none"]


async def test_a_cancelled_awaiters_future_keeps_its_message() -> None:
    _, deliveries = running_batch()
    awaiting = deliveries[0].__await__()
    future = next(awaiting)
    assert future.cancel("reason")
    assert future.cancelled()
    with pytest.raises(asyncio.CancelledError, match="reason"):
        future.exception()
    with pytest.raises(asyncio.CancelledError, match="reason"):
        next(awaiting)
    assert not deliveries[0].done()


async def test_a_failing_callback_does_not_keep_awaiters_from_waking() -> None:
    """Awaiters are woken many at a time: the failure of one must not affect the others."""
    batch, deliveries = running_batch(AWAITERS_PER_CALLBACK * 2)
    loop = asyncio.get_running_loop()
    reported: list[str] = []
    loop.set_exception_handler(lambda loop, context: reported.append(str(context["exception"])))
    woken: list[int] = []

    def call_back(place: int) -> Callable[[Any], None]:
        def callback(awaiting: Any) -> None:
            woken.append(place)
            if place % 2:
                raise ValueError(f"callback {place}")

        return callback

    for place, delivery in enumerate(deliveries):
        next(delivery.__await__()).add_done_callback(call_back(place))
    batch.succeed(40, -1)
    await turns()
    assert woken == list(range(len(deliveries)))
    assert reported == [f"callback {place}" for place in woken if place % 2]


async def test_a_c_callback_that_is_not_a_task_gets_the_future_itself() -> None:
    batch, deliveries = running_batch(1)
    awaiting: Any = next(deliveries[0].__await__())
    seen: list[Any] = []
    awaiting.add_done_callback(seen.append)
    batch.succeed(40, -1)
    await turns()
    assert seen == [awaiting]


@pytest.mark.parametrize("kind", [asyncio.Task, asyncio.tasks._PyTask])  # type: ignore[attr-defined]
async def test_c_and_python_tasks_can_await_deliveries_and_be_cancelled(kind: Any) -> None:
    batch, deliveries = running_batch(2)
    loop = asyncio.get_running_loop()
    awaiting, leaving = [kind(await_it(delivery), loop=loop) for delivery in deliveries]
    await turns()
    leaving.cancel()
    await turns()
    assert leaving.cancelled()
    batch.succeed(40, -1)
    await turns()
    assert awaiting.result().offset == 40


def test_a_loop_with_its_own_future_class_wakes_its_tasks() -> None:
    """This runs in a separate process, because the class of the first loop's futures is cached."""
    script = """
import asyncio
from aioproducer.core.outcomes.delivery import Delivery
from tests.core.outcomes.test_delivery import make_batch

class Named(asyncio.Future):
    def __init__(self, name, loop):
        super().__init__(loop=loop)

class Loop(asyncio.SelectorEventLoop):
    def create_future(self):
        return Named("one", self)

async def main():
    batch = make_batch(asyncio.get_running_loop(), 1)
    async def wait():
        return await Delivery(batch, 0)
    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    batch.succeed(40, -1)
    print((await asyncio.wait_for(waiting, 10)).offset)

with asyncio.Runner(loop_factory=Loop) as runner:
    runner.run(main())
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "40\n", done.stderr


async def test_callbacks_of_one_await_run_in_order_though_one_fails() -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(str(context["exception"])))
    batch, deliveries = running_batch(1)
    awaiting: Any = next(deliveries[0].__await__())
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)
    called: list[tuple[int, int]] = []

    def call_back(place: int) -> Callable[[Any], None]:
        def callback(awaiting: Any) -> None:
            called.append((place, variable.get()))
            if place == 0:
                awaiting.add_done_callback(call_back(4), context=contextvars.Context())
                raise ValueError("the first")

        return callback

    callbacks = [call_back(place) for place in range(4)]
    for place, callback in enumerate(callbacks):
        context = contextvars.Context()
        context.run(variable.set, place * 10)
        awaiting.add_done_callback(callback, context=context)
    awaiting.add_done_callback(callbacks[2])
    assert awaiting.remove_done_callback(callbacks[2]) == 2
    assert awaiting.remove_done_callback(callbacks[2]) == 0
    batch.succeed(40, -1)
    await turns()
    assert called == [(0, 0), (1, 10), (3, 30), (4, -1)]
    assert reported == ["the first"]
    assert awaiting.remove_done_callback(callbacks[0]) == 0


def awaiters(batch: ProducerBatch, count: int, interrupting: int = -1) -> list[int]:
    """Await the first ``count`` records; return their indices in the order of callbacks; one of them ends the loop."""
    woken: list[int] = []

    def interrupt(awaiting: Any) -> None:
        raise KeyboardInterrupt

    for place in range(count):
        callback = interrupt if place == interrupting else lambda awaiting, place=place: woken.append(place)
        next(Delivery(batch, place).__await__()).add_done_callback(callback)
    return woken


def test_an_exception_that_ends_the_loop_leaves_no_awaiter_asleep() -> None:
    loop = HandLoop()
    batch = make_batch(loop, 3)
    woken = awaiters(batch, 3, interrupting=0)
    batch.succeed(40, -1)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop.run()
    assert woken == [1, 2]


def test_awaiters_are_resumed_at_once_and_an_exception_that_ends_the_loop_leaves_none_asleep() -> None:
    loop = HandLoop()
    batch = make_batch(loop, 4)
    woken = awaiters(batch, 4, interrupting=1)
    awaiting: Any = batch.awaiting
    batch.awaiting = None
    awaiting[2].cancel()
    batch.succeed(40, -1)
    assert not woken
    with pytest.raises(KeyboardInterrupt):
        resume(loop, awaiting)
    assert woken == [0]
    loop.run()
    assert sorted(woken) == [0, 2, 3]


def test_a_loop_patched_to_nest_after_a_resumption_runs_the_callbacks_itself() -> None:
    class Loop(HandLoop):
        run_forever = asyncio.BaseEventLoop.run_forever

    loop = Loop()

    def resumed() -> bool:
        batch = make_batch(loop, 1)
        woken = awaiters(batch, 1)
        awaiting: Any = batch.awaiting
        batch.awaiting = None
        batch.succeed(40, -1)
        resume(loop, awaiting)
        at_once = bool(woken)
        loop.run()
        assert woken == [0]
        return at_once

    assert resumed()
    assert resumed()
    Loop.run_forever = lambda self: None  # type: ignore[method-assign]
    assert not resumed()


async def test_each_awaiter_has_its_own_future() -> None:
    _, deliveries = running_batch()
    first, second = deliveries[0].__await__(), deliveries[0].__await__()
    assert next(first) is not next(second)
    first.close()
    second.close()


async def test_an_awaiter_cancelled_in_the_loop_pass_of_the_outcome_is_cancelled_alone() -> None:
    batch, deliveries = running_batch()
    tasks = [asyncio.ensure_future(await_it(deliveries[0])) for _ in range(2)]
    await turns()
    batch.succeed(40, -1)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert await tasks[1] == expected(0)


async def test_an_awaiters_future_cancelled_from_outside_causes_no_error() -> None:
    batch, deliveries = running_batch()
    generator = deliveries[0].__await__()
    next(generator).cancel()
    batch.succeed(40, -1)
    generator.close()
    assert deliveries[0].result().offset == 40


# Callbacks


@pytest.mark.parametrize("leaves", [None, 0, 2, 4])
@pytest.mark.parametrize("begun", [[0, 1, 2, 3, 4], [3, 4, 0, 1, 2], [0, 2, 2, 4, 1, 3]])
async def test_awaiters_are_woken_in_record_order(begun: list[int], leaves: int | None) -> None:
    batch, deliveries = running_batch(5)
    woken: list[int] = []

    async def wait(index: int) -> None:
        assert await deliveries[index] == expected(index)
        woken.append(index)

    tasks = []
    for index in begun:
        tasks.append((index, asyncio.ensure_future(wait(index))))
        await turns(1)
    # Awaiters in record order need no lookup: no index is kept.
    assert (batch.waiters is None) == (begun == sorted(set(begun)))
    staying = begun
    if leaves is not None:
        left = [task for index, task in tasks if index == leaves]
        left[-1].cancel()
        await turns()
        staying = [index for index, task in tasks if task is not left[-1]]
        assert batch.awaiting is None
    batch.succeed(40, -1)
    await turns()
    assert woken == sorted(staying)
    assert batch.awaiting is batch.waiters is None


async def test_callbacks_run_in_record_order_and_then_in_the_order_they_were_added() -> None:
    batch, deliveries = running_batch(3)
    calls: list[tuple[int, int]] = []
    for number, index in enumerate([2, 0, 1, 0, 2]):
        deliveries[index].add_done_callback(lambda _, index=index, number=number: calls.append((index, number)))
    batch.succeed(40, -1)
    assert calls == []
    await turns()
    assert calls == [(0, 1), (0, 3), (1, 2), (2, 0), (2, 4)]


async def test_a_callback_runs_once_and_sees_the_result() -> None:
    batch, deliveries = running_batch()
    seen: list[RecordMetadata] = []
    deliveries[1].add_done_callback(lambda delivery: seen.append(delivery.result()))
    batch.succeed(40, -1)
    await turns()
    deliveries[1].add_done_callback(lambda delivery: seen.append(delivery.result()))
    assert seen == [expected(1)]
    await turns()
    assert seen == [expected(1)] * 2


async def test_an_exception_in_one_callback_affects_no_other() -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    batch, deliveries = running_batch()
    calls: list[int] = []

    def broken(delivery: Delivery) -> None:
        raise ZeroDivisionError

    deliveries[0].add_done_callback(broken)
    deliveries[0].add_done_callback(lambda _: calls.append(0))
    deliveries[1].add_done_callback(lambda _: calls.append(1))
    batch.fail(KafkaError("no"))
    await turns()
    assert calls == [0, 1]
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


def test_a_callback_that_a_debug_loop_rejects_does_not_keep_the_batch_from_ending() -> None:
    """The loop once raised while the batch reported its outcome: no later awaiter was woken, and flush never returned.

    asyncio's loop raises at once; uvloop checks a callback when it calls it.
    """
    reported: list[dict[str, Any]] = []

    async def is_no_callback(delivery: Delivery) -> None:
        raise AssertionError("it is not awaited")

    async def end_a_batch() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        batch, deliveries = running_batch()
        deliveries[0].add_done_callback(is_no_callback)
        waiting = asyncio.ensure_future(asyncio.wait(deliveries))
        await turns(1)
        assert batch.succeed(40, -1)
        done, _ = await asyncio.wait_for(waiting, 5)
        assert done == set(deliveries)

    with asyncio.Runner(debug=True, loop_factory=asyncio.new_event_loop) as runner:
        runner.run(end_a_batch())
    assert [type(context.get("exception")) for context in reported] == [TypeError]


async def test_callbacks_can_be_removed() -> None:
    batch, deliveries = running_batch()
    calls: list[Delivery] = []
    other: list[Delivery] = []
    deliveries[0].add_done_callback(calls.append)
    deliveries[0].add_done_callback(other.append)
    deliveries[0].add_done_callback(calls.append)
    deliveries[1].add_done_callback(calls.append)
    assert deliveries[0].remove_done_callback(calls.append) == 2
    assert deliveries[0].remove_done_callback(calls.append) == 0
    assert deliveries[2].remove_done_callback(calls.append) == 0
    batch.succeed(40, -1)
    assert deliveries[0].remove_done_callback(other.append) == 0
    await turns()
    assert calls == [deliveries[1]]
    assert other == [deliveries[0]]


async def test_callbacks_run_in_their_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")
    context = contextvars.copy_context()
    context.run(variable.set, "inside")
    batch, deliveries = running_batch()
    seen: list[str] = []
    deliveries[0].add_done_callback(lambda _: seen.append(variable.get()), context=context)
    batch.succeed(40, -1)
    deliveries[1].add_done_callback(lambda _: seen.append(variable.get()), context=context)
    deliveries[1].add_done_callback(lambda _: seen.append(variable.get()))
    await turns()
    assert seen == ["inside", "inside", "outside"]


async def test_callbacks_run_in_the_context_in_which_they_were_added() -> None:
    """They once ran in the context that started the producer, and the request's id was missing in its callback."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="context of the outcome")
    batch, deliveries = running_batch()
    seen: list[str] = []

    async def request(name: str, delivery: Delivery) -> None:
        variable.set(name)
        delivery.add_done_callback(lambda _: seen.append(variable.get()))

    await asyncio.gather(request("first", deliveries[0]), request("second", deliveries[1]))
    batch.succeed(40, -1)
    await turns()
    assert seen == ["first", "second"]


async def test_callbacks_of_a_cancelled_delivery_run_once_and_immediately() -> None:
    batch, deliveries = running_batch()
    calls: list[Delivery] = []
    deliveries[0].add_done_callback(calls.append)
    assert deliveries[0].cancel()
    await turns()
    assert calls == [deliveries[0]]
    assert deliveries[0].remove_done_callback(calls.append) == 0
    deliveries[0].add_done_callback(calls.append)
    batch.succeed(40, -1)
    await turns()
    assert calls == [deliveries[0]] * 2


# Cancelling


async def test_cancel_affects_one_delivery_and_succeeds_once() -> None:
    batch, deliveries = running_batch()
    assert deliveries[1].cancel("message")
    assert not deliveries[1].cancel()
    assert deliveries[1].done()
    assert deliveries[1].cancelled()
    for question in (deliveries[1].result, deliveries[1].exception):
        with pytest.raises(asyncio.CancelledError):
            question()
    batch.succeed(40, -1)
    assert deliveries[1].cancelled()
    assert not deliveries[0].cancel()
    assert [deliveries[0].result(), deliveries[2].result()] == [expected(0), expected(2)]
    assert deliveries[1].topic_partition == WHERE


@pytest.mark.parametrize("leave", [Delivery.cancel, lambda delivery: delivery.remove_done_callback(print)])
async def test_removing_an_awaiter_costs_the_same_for_any_number_of_other_awaiters(
    leave: Callable[[Delivery], object],
) -> None:
    """Cancelling a gather was once quadratic in the number of records of a batch, and took seconds."""

    def work(count: int) -> int:
        _, deliveries = running_batch(count)
        for delivery in deliveries:
            delivery.add_done_callback(print)
        work = count_operations(lambda: leave(deliveries[count // 2]))
        for delivery in deliveries:
            delivery.remove_done_callback(print)
        return work

    assert work(2000) == work(20)


# A blocked record


async def test_cancelling_a_blocked_record_withdraws_it() -> None:
    left: list[PendingRecord] = []
    pending = make_pending(asyncio.get_running_loop(), left.append)
    delivery = pending.delivery
    assert delivery.topic_partition == TopicPartition("t", -1)
    assert not delivery.withdrawn
    task = asyncio.ensure_future(await_it(delivery))
    await turns()
    assert delivery.cancel()
    assert left == [pending]
    assert delivery.withdrawn
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pending.delivery.cancelled()
    assert pending.delivery.withdrawn


async def test_awaiters_of_a_blocked_record_follow_it_into_the_batch() -> None:
    loop = asyncio.get_running_loop()
    pending = make_pending(loop)
    delivery = pending.delivery
    calls: list[Delivery] = []
    delivery.add_done_callback(calls.append)
    tasks = [asyncio.ensure_future(await_it(delivery)) for _ in range(2)]
    await turns()
    batch = make_batch(loop)
    pending.hand_over(Delivery(batch, 2))
    assert pending.delivery is delivery
    assert delivery.topic_partition == WHERE
    tasks[0].cancel()
    await turns()
    assert len(batch.waiters[2]) == 2
    batch.succeed(40, -1)
    await turns()
    assert calls == [delivery]
    assert await tasks[1] == expected(2)
    assert tasks[0].cancelled()


async def test_cancel_does_not_withdraw_a_record_that_is_in_a_batch() -> None:
    loop = asyncio.get_running_loop()
    left: list[PendingRecord] = []
    pending = make_pending(loop, left.append)
    pending.hand_over(Delivery(make_batch(loop), 1))
    assert pending.delivery.cancel()
    assert not pending.delivery.withdrawn
    assert left == []


async def test_a_blocked_record_that_fails_raises_its_error() -> None:
    pending = make_pending(asyncio.get_running_loop())
    delivery = pending.delivery
    task = asyncio.ensure_future(await_it(delivery))
    await turns()
    pending.fail(KafkaError("waited too long"))
    with pytest.raises(KafkaError, match="waited too long"):
        await task
    assert not delivery.cancel()
    assert not delivery.withdrawn
    assert pending.delivery.done()
    assert str(pending.delivery.exception()) == "waited too long"


# Split batches


def splittable(count: int) -> ProducerBatch:
    """Return a real batch of ``count`` records, with timestamps from 1000 on."""
    loop = asyncio.get_running_loop()
    batch = empty_batch(loop)
    records = [encode_record(index, index, None, b"%d" % index) for index in range(count)]
    batch.take_records(b"".join(records), [1000 + index for index in range(count)], 1000, 10)
    return batch


async def test_deliveries_of_a_split_batch_resolve_with_their_offsets() -> None:
    """Awaiting may start before, during or after the split; a part may be split again or fail."""
    batch = splittable(8)
    deliveries = [Delivery(batch, index) for index in range(8)]
    before = [asyncio.ensure_future(await_it(delivery)) for delivery in deliveries]
    calls: list[int] = []
    for index in (7, 3, 5):
        deliveries[index].add_done_callback(lambda _, index=index: calls.append(index))
    await turns()
    parts = split_batch(batch, 1000)
    batch.split_into(parts)
    after = [asyncio.ensure_future(await_it(delivery)) for delivery in deliveries]
    assert deliveries[3].remove_done_callback(print) == 0
    assert not any(delivery.done() for delivery in deliveries)
    await turns()
    offset = 100
    for part in parts:
        assert part.succeed(offset, -1)
        offset += part.record_count + 10
    results = await asyncio.gather(*before)
    assert await asyncio.gather(*after) == results == [delivery.result() for delivery in deliveries]
    assert [metadata.timestamp_ms for metadata in results] == list(range(1000, 1008))
    wanted = [
        100 + sum(each.record_count + 10 for each in parts[:place]) + index
        for place, part in enumerate(parts)
        for index in range(part.record_count)
    ]
    assert [metadata.offset for metadata in results] == wanted
    assert calls == [3, 5, 7]


async def test_a_part_can_be_split_again_while_another_fails() -> None:
    batch = splittable(6)
    deliveries = [Delivery(batch, index) for index in range(6)]
    first, second = splittable(4), splittable(2)
    batch.split_into([first, second])
    grandchildren = [splittable(2), splittable(2)]
    task = asyncio.ensure_future(await_it(deliveries[3]))
    await turns()
    first.split_into(grandchildren)
    assert not batch.is_finished()
    second.fail(KafkaError("no"))
    grandchildren[1].succeed(50, -1)
    assert (await task).offset == 51
    assert [delivery.done() for delivery in deliveries] == [False, False, True, True, True, True]
    assert [str(delivery.exception()) for delivery in deliveries[4:]] == ["no", "no"]
    assert deliveries[2].exception() is None


async def test_a_delivery_can_be_cancelled_after_the_split() -> None:
    batch = splittable(4)
    deliveries = [Delivery(batch, index) for index in range(4)]
    task, other = (asyncio.ensure_future(await_it(deliveries[3])) for _ in range(2))
    await turns()
    parts = [splittable(2), splittable(2)]
    batch.split_into(parts)
    task.cancel()
    await turns()
    assert task.cancelled()
    assert deliveries[3].cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    for part in parts:
        part.succeed(0, -1)
        assert not part.waiters
    assert deliveries[3].cancelled()
    assert deliveries[2].result().offset == 0


# No objects are left


@contextmanager
def without_the_cycle_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def raised_by(delivery: Delivery) -> str:
    try:
        delivery.result()
    except (KafkaError, asyncio.CancelledError) as error:
        return str(error)
    return "nothing"


async def awaited(delivery: Delivery) -> str:
    try:
        await delivery
    except KafkaError as error:
        return str(error)
    return "nothing"


async def test_a_failed_batch_whose_errors_were_raised_leaves_no_objects() -> None:
    """A frame that raised its own local variable once kept exception, delivery and batch until the collector ran."""
    with without_the_cycle_collector():
        batch, deliveries = running_batch()
        seen = weakref.ref(batch)
        batch.fail(KafkaError("no"))
        assert raised_by(deliveries[0]) == "no"
        assert await awaited(deliveries[1]) == "no"
        error_seen = deliveries[2].exception()
        del batch, deliveries, error_seen
        await turns()
        assert seen() is None


async def test_cancelled_deliveries_leave_no_objects() -> None:
    with without_the_cycle_collector():
        batch, deliveries = running_batch()
        seen = weakref.ref(batch)
        for delivery in deliveries:
            delivery.add_done_callback(lambda _: None)
        generator = deliveries[2].__await__()
        next(generator)
        for delivery in deliveries:
            delivery.cancel()
            assert raised_by(delivery) == ""
        generator.close()
        await turns()
        del batch, deliveries, delivery, generator
        assert seen() is None


async def test_awaited_acked_deliveries_leave_no_objects() -> None:
    with without_the_cycle_collector():
        batch, deliveries = running_batch()
        seen = weakref.ref(batch)
        tasks = [asyncio.ensure_future(await_it(delivery)) for delivery in deliveries]
        await turns()
        batch.succeed(40, -1)
        await turns()
        assert all(task.done() for task in tasks)
        del batch, deliveries, tasks
        await turns()
        assert seen() is None


@pytest.mark.parametrize("end", ["fail", "withdraw", "hand over"])
async def test_a_blocked_record_leaves_no_objects(end: str) -> None:
    """The record and its delivery once referenced each other after it failed or was withdrawn."""
    loop = asyncio.get_running_loop()
    with without_the_cycle_collector():
        pending = make_pending(loop)
        seen = weakref.ref(pending)
        delivery = pending.delivery
        delivery.add_done_callback(lambda _: None)
        if end == "fail":
            pending.fail(KafkaError("no"))
            assert raised_by(delivery) == "no"
        elif end == "withdraw":
            delivery.cancel()
        else:
            batch = make_batch(loop)
            pending.hand_over(Delivery(batch, 0))
            batch.succeed(0, -1)
            del batch
        await turns()
        del pending, delivery
        assert seen() is None


async def test_a_split_batch_leaves_no_objects() -> None:
    with without_the_cycle_collector():
        batch = splittable(4)
        parts = [splittable(2), splittable(2)]
        deliveries = [Delivery(batch, index) for index in range(4)]
        batch.split_into(parts)
        seen = [weakref.ref(each) for each in (batch, *parts)]
        parts[0].fail(KafkaError("no"))
        parts[1].succeed(0, -1)
        for part in parts:
            # The accumulator does so when a part has its outcome.
            part.parent = None
        assert [raised_by(delivery) for delivery in deliveries] == ["no", "no", "nothing", "nothing"]
        del batch, parts, part, deliveries
        assert [each() for each in seen] == [None] * 3
