"""Cancelling any task, wherever it waits, leaves no state and causes no hang."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.errors import KafkaError, ProducerClosedError
from aioproducer.protocol import ApiKey
from tests.simulation import Fault, World, run


class CancelledAt:
    """A coroutine, cancelled at its ``step``-th wait, counted from 1, and at the next ``times`` - 1."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], step: int, times: int = 1) -> None:
        self.coroutine = coroutine
        self.step = step
        self.times = times
        self.steps = 0

    @property
    def was_cancelled(self) -> bool:
        return self.steps >= self.step

    def __await__(self) -> Generator[Any, Any, Any]:
        resume, argument = self.coroutine.send, None
        while True:
            try:
                waited_for = resume(argument)
            except StopIteration as end:
                return end.value
            self.steps += 1
            if self.step <= self.steps < self.step + self.times:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                argument = yield waited_for
                resume = self.coroutine.send
            except BaseException as error:
                resume, argument = self.coroutine.throw, error

    async def run(self) -> Any:
        return await self


CONFIG: dict[str, Any] = {
    "buffer_memory": 4096,
    "linger_ms": 2,
    "batch_size": 500,
    "compression_type": "gzip",
    "request_timeout_ms": 2000,
    "delivery_timeout_ms": 5000,
    "max_block_ms": 2000,
}


async def prepare(world: World) -> None:
    world.latency = lambda: 0.01
    world.cluster.create_topic("clicks", 3)
    world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer_delay=0.05, times=3))
    world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=0.02, times=1000))


async def use(world: World, producer: Producer, deliveries: list[asyncio.Future[Any]]) -> None:
    """A whole life, with all that can be awaited in it."""
    await producer.start()
    await producer.wait_ready(5)
    await producer.partitions_for("clicks")
    for number in range(18):
        deliveries.append(producer.send("clicks", b"%d" % number + bytes(300)))
        await producer.drain()
    await deliveries[0]
    await producer.flush()
    await producer.send_many("clicks", [b"many" * 50] * 18)
    world.disconnect(1)
    deliveries.append(producer.send("clicks", b"last"))
    await producer.close()


async def nothing_is_left(world: World, producer: Producer, deliveries: list[asyncio.Future[Any]]) -> None:
    began = world.loop.time()
    await asyncio.wait_for(producer.close(), 60)
    assert world.loop.time() - began < 8
    for delivery in deliveries:
        assert delivery.done()
    if producer._parts is not None:
        pool = producer._parts.accumulator.pool
        assert pool.available_memory == pool.total_memory
        assert not producer._parts.accumulator.blocked_records.pending.records
    for _ in range(20):
        await asyncio.sleep(0)
    world.check_nothing_is_left(but=asyncio.current_task())


def steps_of(scenario: Any, most: int = 2000) -> int:
    """Play ``scenario(world, step)`` for each step until it says that it was over before; how many there were."""
    for step in range(1, most):
        over, _ = run(lambda world, step=step: scenario(world, step))
        if over:
            return step
    raise AssertionError("the scenario never ends")


def test_a_caller_can_be_cancelled_wherever_it_waits() -> None:
    async def scenario(world: World, step: int) -> bool:
        await prepare(world)
        producer = world.producer(**CONFIG)
        deliveries: list[asyncio.Future[Any]] = []
        caller = CancelledAt(use(world, producer, deliveries), step)
        task = asyncio.ensure_future(caller.run())
        await asyncio.wait([task])
        assert task.cancelled() == caller.was_cancelled
        accepted = len(deliveries)
        await nothing_is_left(world, producer, deliveries)
        # The record was accepted and has its outcome, or it was not and is nowhere.
        values = [value for partition in world.cluster.topics["clicks"].partitions for value in partition.values]
        assert len(set(values) - {b"many" * 50}) <= accepted
        return not caller.was_cancelled

    assert steps_of(scenario) > 20


# The sender's task only waits for its end; its passes are callbacks of the loop.
@pytest.mark.parametrize(("task_name", "waits"), [("Sender.run", 1), ("NodeConnection._run", 3)])
def test_a_task_of_the_producer_can_be_cancelled_wherever_it_waits(task_name: str, waits: int) -> None:
    """``for task in asyncio.all_tasks(): task.cancel()`` does this."""

    async def scenario(world: World, step: int) -> bool:
        await prepare(world)
        wrapped: list[CancelledAt] = []

        def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            if coroutine.__qualname__ == task_name:
                wrapped.append(CancelledAt(coroutine, step))
                coroutine = wrapped[-1].run()
            return asyncio.Task(coroutine, loop=loop, **options)

        world.loop.set_task_factory(factory)  # type: ignore[arg-type]  # of coroutines only
        producer = world.producer(**CONFIG)
        deliveries: list[asyncio.Future[Any]] = []
        task = asyncio.ensure_future(use(world, producer, deliveries))
        await asyncio.wait([task], timeout=60)
        assert task.done()
        if task.exception() is not None:
            assert isinstance(task.exception(), KafkaError)
        await nothing_is_left(world, producer, deliveries)
        # The producer cancels its tasks itself in the end; only a step before that counts.
        return not any(each.was_cancelled for each in wrapped)

    assert steps_of(scenario) > waits


def test_when_every_task_is_cancelled_records_fail_at_once_and_new_ones_are_rejected() -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        producer = world.producer(**CONFIG)
        await producer.start()
        delivery = producer.send("clicks", b"value")
        await asyncio.sleep(0.02)
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.wait([delivery])
        assert isinstance(delivery.exception(), ProducerClosedError)
        with pytest.raises(ProducerClosedError, match="task was cancelled"):
            producer.send("clicks", b"value")
        await nothing_is_left(world, producer, [delivery])

    run(scenario)


def test_closing_can_be_cancelled_twice_wherever_it_waits() -> None:
    """A cancelled close is completed by a later one."""

    async def scenario(world: World, step: int) -> bool:
        await prepare(world)
        producer = world.producer(**CONFIG)
        await producer.start()
        deliveries: list[asyncio.Future[Any]] = [producer.send("clicks", bytes(300)) for _ in range(4)]
        await asyncio.sleep(0.1)
        caller = CancelledAt(producer.close(), step, times=2)
        await asyncio.wait([asyncio.ensure_future(caller.run())])
        await nothing_is_left(world, producer, deliveries)
        return not caller.was_cancelled

    assert steps_of(scenario) > 2


def test_a_close_with_timeout_zero_fails_everything() -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        world.cluster.faults[:] = [Fault(api=ApiKey.PRODUCE, answer="silence", times=100)]
        producer = world.producer(**CONFIG)
        await producer.start()
        deliveries: list[asyncio.Future[Any]] = [producer.send("clicks", bytes(300)) for _ in range(4)]
        began = world.loop.time()
        await producer.close(0.5)
        assert world.loop.time() - began < 2
        assert all(isinstance(delivery.exception(), KafkaError) for delivery in deliveries)
        await nothing_is_left(world, producer, deliveries)

    run(scenario)
