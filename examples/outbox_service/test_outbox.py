"""The relay under faults: brokers and the relay itself die at any moment. Each seed is another run, on virtual time."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from outbox import TOPIC, delete_events, open_database, place_order, relay, waiting_events

from aioproducer import KafkaError, Producer
from aioproducer.testing.simulation import Simulation, run_simulated

ORDERS = [f"order-{number}" for number in range(30)]
Relay = Callable[[sqlite3.Connection, Producer], Awaitable[None]]


async def check_each_event_arrives(simulation: Simulation, path: str, relay: Relay) -> None:
    simulation.create_topic(TOPIC, partitions=3)
    shop = open_database(path)

    async def service() -> None:
        connection = open_database(path)
        simulation.on_kill(connection.close)
        try:
            async with simulation.producer() as producer:
                await relay(connection, producer)
        finally:
            connection.close()

    simulation.start_process("relay", service, restart_on=KafkaError)
    try:
        async with simulation.faults(rate=5):
            for order in ORDERS:
                place_order(shop, order)
                await asyncio.sleep(simulation.random.expovariate(10))
        await simulation.until(lambda: not waiting_events(shop))
        stored = [(record.value or b"").decode() for record in simulation.records(TOPIC)]
        assert set(stored) == set(ORDERS)
    finally:
        shop.close()


@pytest.mark.simulated(seeds=range(5))
async def test_each_event_arrives(simulation: Simulation, tmp_path: Path) -> None:
    await check_each_event_arrives(simulation, str(tmp_path / "orders.db"), relay)


async def faulty_relay(connection: sqlite3.Connection, producer: Producer) -> None:
    """Commit before the send: an event is gone when the relay dies in between."""
    while True:
        events = waiting_events(connection)
        delete_events(connection, events)
        for _, event in events:
            await producer.send(TOPIC, event.encode())
        await asyncio.sleep(0.1)


def test_a_seed_finds_a_commit_before_the_send(tmp_path: Path) -> None:
    failed = []
    for seed in range(5):
        path = str(tmp_path / f"{seed}.db")

        async def main(simulation: Simulation, path: str = path) -> None:
            await check_each_event_arrives(simulation, path, faulty_relay)

        try:
            run_simulated(main, seed=seed)
        except AssertionError:
            failed.append(seed)
    assert failed
