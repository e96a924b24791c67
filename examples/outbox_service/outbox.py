"""The outbox pattern: orders and their events in one database transaction, and a relay that sends the events to Kafka.

    BOOTSTRAP_SERVERS=localhost:9092 python examples/outbox_service/outbox.py --database orders.db

The relay deletes an event when Kafka has acknowledged it. A crash in between sends it again: consumers see each event
at least once. ``test_outbox.py`` kills the relay and the brokers at any moment, on virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3

from aioproducer import Producer

TOPIC = "orders"
EVENTS_PER_ROUND = 100
PAUSE = 0.1
"""Seconds between two looks into an empty outbox."""


def open_database(path: str) -> sqlite3.Connection:
    """Open the database, and make its tables if it is new."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY)")
        connection.execute("CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY, event TEXT NOT NULL)")
    return connection


def place_order(connection: sqlite3.Connection, order_id: str) -> None:
    """Store an order and its event, both or neither."""
    with connection:
        connection.execute("INSERT INTO orders VALUES (?)", (order_id,))
        connection.execute("INSERT INTO outbox (event) VALUES (?)", (order_id,))


def waiting_events(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    """The oldest events in the outbox, with their numbers."""
    query = "SELECT number, event FROM outbox ORDER BY number LIMIT ?"
    return connection.execute(query, (EVENTS_PER_ROUND,)).fetchall()


def delete_events(connection: sqlite3.Connection, events: list[tuple[int, str]]) -> None:
    """Delete events from the outbox."""
    with connection:
        connection.executemany("DELETE FROM outbox WHERE number = ?", [(number,) for number, _ in events])


async def relay(connection: sqlite3.Connection, producer: Producer) -> None:
    """Send the events of the outbox until cancelled; an error of Kafka ends it, and a supervisor starts it again."""
    while True:
        events = waiting_events(connection)
        if not events:
            await asyncio.sleep(PAUSE)
            continue
        await asyncio.gather(*(producer.send(TOPIC, event.encode(), key=event.encode()) for _, event in events))
        delete_events(connection, events)


async def run(path: str, bootstrap_servers: str) -> None:
    """Relay the events of a database to a cluster."""
    connection = open_database(path)
    try:
        async with Producer(bootstrap_servers=bootstrap_servers) as producer:
            await relay(connection, producer)
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Send the events of an outbox to Kafka.")
    parser.add_argument("--database", required=True)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.database, os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092")))


if __name__ == "__main__":
    main()
