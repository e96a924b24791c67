"""Progress: nothing that waits is postponed forever, whatever else happens.

The senders here are closed loops: each coroutine awaits a send before the next. Their next records come in the moment
in which a response frees a slot or memory, so that what waits beside them has to be served by rule and not by chance.
Each test holds one row of the table "Waiting and its limits" in docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.errors import KafkaError, MetadataTimeoutError
from aioproducer.protocol import ApiKey
from tests.simulation import Fault, World, run

FOREVER = 10**9
EVERYWHERE = "broker1:9092,broker2:9092,broker3:9092"


class ClosedLoops:
    """Coroutines that each await their sends, until they are stopped."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.errors: list[KafkaError] = []

    async def send(self, producer: Producer, topic: str, partition: int | None, value: bytes) -> None:
        while True:
            try:
                await producer.send(topic, value, partition=partition)
            except KafkaError as error:
                self.errors.append(error)
                await asyncio.sleep(0.01)
            else:
                self.acknowledged += 1


@asynccontextmanager
async def closed_loops(
    producer: Producer, count: int, *, topic: str = "clicks", partitions: int | None = None, value: bytes = b"value"
) -> AsyncIterator[ClosedLoops]:
    """``count`` coroutines that send to ``topic``, each to a partition of its own where ``partitions`` is given."""
    # Before the topic is known all records wait in line, which has less room than all of them want.
    await producer.partitions_for(topic)
    loops = ClosedLoops()
    tasks = [
        asyncio.create_task(loops.send(producer, topic, None if partitions is None else number % partitions, value))
        for number in range(count)
    ]
    try:
        yield loops
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _slow(world: World, api: ApiKey, seconds: float) -> None:
    world.cluster.faults.append(Fault(api=api, answer_delay=seconds, times=FOREVER))


LOCK_STEP = [
    pytest.param(1, 1, 0.001, id="one in flight"),
    pytest.param(5, 5, 0.005, id="five in flight"),
    pytest.param(5, 1, 0.001, id="five coroutines for one slot"),
]


@pytest.mark.parametrize(("coroutines", "in_flight", "delay"), LOCK_STEP)
def test_a_new_topic_is_found_beside_coroutines_that_fill_every_slot(
    coroutines: int, in_flight: int, delay: float
) -> None:
    """Once, in 3 s, 5,017 Produce requests and no Metadata request were sent; an existing topic "was not found"."""

    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", coroutines)
        world.cluster.create_topic("new")
        _slow(world, ApiKey.PRODUCE, delay)
        async with (
            world.producer(linger_ms=0, max_in_flight_requests_per_connection=in_flight) as producer,
            closed_loops(producer, coroutines, partitions=coroutines) as loops,
        ):
            await asyncio.sleep(1)
            sent, began = loops.acknowledged, world.loop.time()
            await producer.send("new", b"value")
            took = world.loop.time() - began
            await asyncio.sleep(0.1)
            assert loops.acknowledged > sent
        return took

    took, _ = run(scenario, nodes=1)
    # A slot for Metadata and one for the record, each behind another request, and some passes of the loop.
    assert took < 6 * delay + 0.02


@pytest.mark.parametrize(("coroutines", "in_flight", "delay"), LOCK_STEP)
def test_metadata_is_refreshed_at_its_age_beside_coroutines_that_fill_every_slot(
    coroutines: int, in_flight: int, delay: float
) -> None:
    async def scenario(world: World) -> None:
        world.cluster.create_topic("clicks", coroutines)
        _slow(world, ApiKey.PRODUCE, delay)
        config: dict[str, Any] = {"linger_ms": 0, "max_in_flight_requests_per_connection": in_flight}
        async with (
            world.producer(metadata_max_age_ms=100, **config) as producer,
            closed_loops(producer, coroutines, partitions=coroutines),
        ):
            await asyncio.sleep(1)

    _, world = run(scenario, nodes=1)
    assert 9 <= len(world.events(ApiKey.METADATA)) <= 13


def test_a_failover_is_detected_beside_coroutines_that_fill_every_slot_of_the_other_brokers() -> None:
    async def scenario(world: World) -> None:
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        _slow(world, ApiKey.PRODUCE, 0.001)
        config: dict[str, Any] = {"linger_ms": 0, "max_in_flight_requests_per_connection": 1}
        async with (
            world.producer(bootstrap_servers="broker1:9092", delivery_timeout_ms=40_000, **config) as producer,
            closed_loops(producer, 1, partitions=1),
        ):
            await producer.send("clicks", b"warm", partition=1)
            world.stop_node(2)
            world.cluster.move_leader("clicks", 1, 1)
            async with asyncio.timeout(5):
                await producer.send("clicks", b"value", partition=1)

    run(scenario, nodes=2)


@pytest.mark.parametrize("coroutines", [1, 4])
@pytest.mark.parametrize("idempotent", [True, False])
def test_records_are_sent_beside_metadata_that_is_due_with_each_of_its_responses(
    coroutines: int, idempotent: bool
) -> None:
    """Once, with an unknown topic and no backoff, 5,492 Metadata requests and 1 Produce request were sent."""

    async def scenario(world: World) -> int:
        world.cluster.create_topic("clicks")
        _slow(world, ApiKey.PRODUCE, 0.001)
        _slow(world, ApiKey.METADATA, 0.001)
        config: dict[str, Any] = {"linger_ms": 0, "max_in_flight_requests_per_connection": 1, "retry_backoff_ms": 0}
        config["enable_idempotence"] = idempotent
        async with world.producer(retry_backoff_max_ms=0, max_block_ms=500, **config) as producer:
            unknown = [producer.send(f"unknown{number}", b"value") for number in range(3)]
            async with closed_loops(producer, coroutines) as loops:
                outcomes = await asyncio.gather(*unknown, return_exceptions=True)
                assert all(isinstance(outcome, MetadataTimeoutError) for outcome in outcomes)
                assert not loops.errors
                return loops.acknowledged

    acknowledged, world = run(scenario, nodes=1)
    requests = world.requests()
    internal = sum(name in ("METADATA", "INIT_PRODUCER_ID") for name in requests)
    assert acknowledged >= 0.9 * internal
    first = requests.index("PRODUCE")
    assert "PRODUCE" in requests[first + 1 : first + 4]
    gaps = "".join("P" if name == "PRODUCE" else "m" for name in requests[first:])
    assert "mmm" not in gaps
    assert "PPP" not in gaps


# A buffer that 83 of these records fill; more of them than that wait in line.
FULL: dict[str, Any] = {"linger_ms": 0, "buffer_memory": 83 * 4096, "batch_size": 1000, "max_request_size": 10_000}
RECORD = bytes(3900)


@pytest.mark.parametrize("size", [100, 3900])
@pytest.mark.parametrize("coroutines", [60, 82, 85, 100, 140])
def test_drain_returns_beside_coroutines_that_take_all_released_memory(coroutines: int, size: int) -> None:
    """Once, one ``drain`` and one ``send_many`` had not returned when 40,001 other sends were acknowledged."""

    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", 6)
        _slow(world, ApiKey.PRODUCE, 0.005)
        async with (
            world.producer(**FULL) as producer,
            closed_loops(producer, coroutines, value=RECORD) as loops,
        ):
            await asyncio.sleep(0.1)
            longest = 0.0
            for _ in range(20):
                began = world.loop.time()
                await producer.drain()
                longest = max(longest, world.loop.time() - began)
                producer.send("clicks", bytes(size))
            before = loops.acknowledged
            await asyncio.sleep(0.1)
            assert loops.acknowledged > before
            assert not loops.errors
        return longest

    longest, _ = run(scenario)
    assert longest < 0.5


def test_drain_returns_soon_beside_coroutines_that_never_leave_a_useful_amount_of_memory() -> None:
    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", 6)
        _slow(world, ApiKey.PRODUCE, 0.005)
        async with (
            world.producer(**FULL) as producer,
            closed_loops(producer, 78, value=RECORD) as loops,
        ):
            await asyncio.sleep(0.1)
            longest = 0.0
            for _ in range(50):
                began = world.loop.time()
                await producer.drain()
                longest = max(longest, world.loop.time() - began)
                await asyncio.sleep(0.003)
            assert not loops.errors
            return longest

    longest, _ = run(scenario)
    assert longest < 0.2


def test_send_many_returns_beside_coroutines_that_take_all_released_memory() -> None:
    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", 6)
        _slow(world, ApiKey.PRODUCE, 0.005)
        async with (
            world.producer(**FULL) as producer,
            closed_loops(producer, 100, value=RECORD) as loops,
        ):
            await asyncio.sleep(0.1)
            began = world.loop.time()
            result = await producer.send_many("clicks", [bytes(20)] * 300)
            assert result.acked == 300
            assert not loops.errors
            return world.loop.time() - began

    took, _ = run(scenario)
    assert took < 5


def test_drains_return_in_the_order_of_their_calls() -> None:
    async def scenario(world: World) -> list[int]:
        world.cluster.create_topic("clicks", 6)
        _slow(world, ApiKey.PRODUCE, 0.005)
        order: list[int] = []

        async def drain(producer: Producer, number: int) -> None:
            await producer.drain()
            order.append(number)

        async with (
            world.producer(**FULL) as producer,
            closed_loops(producer, 100, value=RECORD),
        ):
            await asyncio.sleep(0.1)
            await world.until(lambda: not producer._accumulator.drain_waiters.has_room())
            async with asyncio.timeout(5):
                await asyncio.gather(*(drain(producer, number) for number in range(100)))
        return order

    order, _ = run(scenario)
    assert order == sorted(order)


@pytest.mark.parametrize("filled_by", ["batches", "records in line"])
def test_drain_returns_after_max_block_ms_without_error_while_no_broker_responds(filled_by: str) -> None:
    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks")
        async with world.producer(buffer_memory=100_000, max_block_ms=3000, delivery_timeout_ms=60_000) as producer:
            await producer.partitions_for("clicks")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer="silence", times=FOREVER))
            while producer._accumulator.drain_waiters.has_room():
                producer.send("clicks" if filled_by == "batches" else "unknown", bytes(10_000))
            began = world.loop.time()
            await producer.drain()
            took = world.loop.time() - began
            world.cluster.faults.clear()
            await producer.close(0)
        return took

    took, _ = run(scenario)
    assert 2.9 < took < 3.1


def test_records_for_an_unknown_topic_expire_in_time_beside_endless_records_blocked_on_memory() -> None:
    """More records than one pass serves were once always blocked on memory, and the expiry was postponed."""

    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", 6)
        _slow(world, ApiKey.PRODUCE, 0.002)
        config: dict[str, Any] = {"linger_ms": 0, "buffer_memory": 200_000, "max_block_ms": 400}
        async with (
            world.producer(**config) as producer,
            closed_loops(producer, 200, value=bytes(200)),
            closed_loops(producer, 15, value=bytes(16_000)),
        ):
            await asyncio.sleep(0.1)
            began = world.loop.time()
            with pytest.raises(MetadataTimeoutError):
                await producer.send("unknown", b"value")
            return world.loop.time() - began

    took, _ = run(scenario)
    assert 0.35 < took < 1.0


def test_flush_returns_beside_coroutines_that_never_stop_sending() -> None:
    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", 6)
        _slow(world, ApiKey.PRODUCE, 0.005)
        async with (
            world.producer(**FULL) as producer,
            closed_loops(producer, 100, value=RECORD),
        ):
            await asyncio.sleep(0.1)
            producer.send("clicks", b"value")
            began = world.loop.time()
            await producer.flush()
            return world.loop.time() - began

    took, _ = run(scenario)
    assert took < 0.5


def test_every_partition_of_a_broker_is_served_beside_partitions_that_always_have_batches() -> None:
    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", 40, leaders=[1] * 40)
        _slow(world, ApiKey.PRODUCE, 0.001)
        config: dict[str, Any] = {"max_in_flight_requests_per_connection": 1, "max_request_size": 50_000}
        async with (
            world.producer(linger_ms=0, **config) as producer,
            closed_loops(producer, 39, partitions=39, value=bytes(40_000)),
        ):
            await asyncio.sleep(0.5)
            began = world.loop.time()
            await producer.send("clicks", b"value", partition=39)
            return world.loop.time() - began

    took, _ = run(scenario, nodes=1)
    # Each request has room for one of their records; 39 of them are before it.
    assert took < 0.1


@pytest.mark.parametrize("trigger_ms", [0, 100, 250])
def test_records_reach_a_healthy_cluster_though_the_rebootstrap_trigger_is_shorter_than_connecting(
    trigger_ms: int,
) -> None:
    """The connection was once dropped before it was ready: 100 connects in 20 s, and no record sent."""

    async def scenario(world: World) -> tuple[int, int]:
        world.cluster.create_topic("clicks", 3)
        world.latency = lambda: 0.3
        async with (
            world.producer(
                bootstrap_servers=EVERYWHERE, metadata_recovery_rebootstrap_trigger_ms=trigger_ms, max_block_ms=5000
            ) as producer,
            closed_loops(producer, 3, partitions=3) as loops,
        ):
            producer.send("clicks", b"value", partition=99).add_done_callback(lambda delivery: delivery.exception())
            await asyncio.sleep(4)
            return loops.acknowledged, len(world.attempts)

    (acknowledged, attempts), _ = run(scenario)
    assert acknowledged > 500
    assert attempts <= 10


def test_brokers_that_never_accept_a_connection_are_abandoned_after_the_rebootstrap_trigger() -> None:
    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", 1, leaders=[2])
        config: dict[str, Any] = {"metadata_recovery_rebootstrap_trigger_ms": 1000, "metadata_max_age_ms": 500}
        config |= {"socket_connection_setup_timeout_ms": 2000, "socket_connection_setup_timeout_max_ms": 2000}
        async with world.producer(request_timeout_ms=1000, delivery_timeout_ms=30_000, **config) as producer:
            await producer.send("clicks", b"warm")
            for node in (1, 2, 3):
                world.stop_node(node)
                world.hanging.add(f"broker{node}")
            world.loop.addresses["broker1"] = ["elsewhere"]
            began = world.loop.time()
            tried = len(world.loop.resolved)
            await world.until(lambda: "broker1" in world.loop.resolved[tried:], 25)
            took = world.loop.time() - began
            await producer.close(0)
        return took

    took, _ = run(scenario)
    assert took < 10


def test_metadata_is_requested_from_another_node_if_the_least_loaded_one_returns_errors() -> None:
    """The idle node, without load because of its errors, was once always chosen, and the busy ones never."""

    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks", 2, leaders=[2, 3])
        world.cluster.create_topic("new")
        _slow(world, ApiKey.PRODUCE, 0.005)
        config: dict[str, Any] = {"linger_ms": 0, "metadata_recovery_rebootstrap_trigger_ms": 60_000}
        async with (
            world.producer(bootstrap_servers=EVERYWHERE, max_block_ms=5000, **config) as producer,
            closed_loops(producer, 16, partitions=2),
        ):
            await asyncio.sleep(0.1)
            idle = producer._sender.cluster.pool.node(1)
            assert idle is not None
            idle.request_connection()
            await world.until(lambda: idle.is_ready)
            world.cluster.faults.insert(0, Fault(api=ApiKey.METADATA, node=1, error=-1, times=FOREVER))
            began = world.loop.time()
            await producer.send("new", b"value")
            return world.loop.time() - began

    took, _ = run(scenario)
    assert took < 0.5


def test_drain_returns_when_async_serializers_make_blocked_records_smaller() -> None:
    async def scenario(world: World) -> float:
        world.cluster.create_topic("clicks")
        gate = asyncio.Event()

        async def serialize(value: bytes) -> bytes:
            await (gate.wait() if value == b"slow" else asyncio.sleep(0.01))
            return value[:1]

        async with world.producer(linger_ms=0, buffer_memory=200_000, value_serializer=serialize) as producer:
            await producer.partitions_for("clicks")
            # The first serializer is slow; the records behind it get smaller while queued.
            sent = [producer.send("clicks", value) for value in [b"slow", *[bytes(10_000)] * 12]]
            assert not producer._accumulator.drain_waiters.has_room()
            began = world.loop.time()
            await producer.drain()
            took = world.loop.time() - began
            gate.set()
            await asyncio.gather(*sent)
        return took

    took, _ = run(scenario)
    assert took < 0.1


def test_batches_compressed_during_a_reconnect_do_not_count_as_failures_of_the_node() -> None:
    """Each batch compressed by a thread was once counted as another failure to connect."""

    async def scenario(world: World) -> int:
        world.cluster.create_topic("clicks", 3, leaders=[1, 2, 3])
        config: dict[str, Any] = {"linger_ms": 0, "compression_type": "gzip", "batch_size": 100_000}
        config |= {"retry_backoff_ms": 10, "reconnect_backoff_ms": 50}
        async with world.producer(
            bootstrap_servers=EVERYWHERE, metadata_recovery_rebootstrap_trigger_ms=1000, **config
        ) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(3)))
            await asyncio.sleep(0.5)
            world.latency = lambda: 1.5
            connected = len(world.attempts)
            sent = []
            for turn in range(16):
                for node in (1,) if turn == 0 else (2, 3) if turn == 2 else ():
                    # While one is being connected to there is a node to wait for.
                    world.disconnect(node)
                    await asyncio.sleep(0)
                sent += [producer.send("clicks", bytes(60_000), partition=each) for each in range(3)]
                await asyncio.sleep(0.1)
            await asyncio.gather(*sent)
            return len(world.attempts) - connected

    connects, _ = run(scenario)
    assert connects == 3


def test_a_slot_reserved_for_data_does_not_cause_a_connection_to_another_node() -> None:
    async def scenario(world: World) -> int:
        world.cluster.create_topic("clicks", leaders=[1])
        _slow(world, ApiKey.PRODUCE, 0.001)
        _slow(world, ApiKey.METADATA, 0.001)
        config: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 0, "retry_backoff_max_ms": 0}
        async with (
            world.producer(max_in_flight_requests_per_connection=2, max_block_ms=300, **config) as producer,
            closed_loops(producer, 4),
        ):
            await asyncio.sleep(0.1)
            before = len(world.attempts)
            unknown = producer.send("unknown", b"value")
            with pytest.raises(MetadataTimeoutError):
                await unknown
            return len(world.attempts) - before

    connects, _ = run(scenario, nodes=2)
    assert connects <= 1
