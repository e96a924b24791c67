"""A program that copies records of a topic to another in transactions, for tests that end it at any time.

It is Kafka's TransactionalMessageCopier, by the calls of Kafka's clients: some transactions are aborted, and their
records are copied again. Without ``--partition`` it is a member of the group; SIGTERM ends it after its transaction.
"""

from __future__ import annotations

import asyncio
import random
import signal
from argparse import ArgumentParser, Namespace

from aioproducer import Consumer, KafkaError, Producer, TopicPartition
from aioproducer.consumer import ConsumerRecord
from tests.exactly_once import load_example

_ABORTED = 0.1
"""Chance that a transaction is aborted."""

Batches = dict[TopicPartition, list[ConsumerRecord]]


async def _next(consumer: Consumer, arguments: Namespace, stop: asyncio.Event) -> Batches:
    """Return the records of a transaction: as many as configured, or all that there are.

    A member of a group polls once, because each call may begin a rebalance.
    """
    found: Batches = {}
    wanted = arguments.size
    while wanted and not stop.is_set():
        polled = await consumer.poll(timeout=0.2, max_records=wanted)
        for partition, records in polled.items():
            found.setdefault(partition, []).extend(records)
            wanted -= len(records)
        if found and (not polled or arguments.partition is None):
            break
    return found


async def _transact(consumer: Consumer, producer: Producer, target: str, batches: Batches) -> None:
    await producer.begin_transaction()
    for records in batches.values():
        for record in records:
            producer.send(target, record.value, key=record.key)
            await producer.drain()
    offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
    await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())


async def _copy(consumer: Consumer, producer: Producer, arguments: Namespace, stop: asyncio.Event) -> None:
    go_back = load_example().go_back
    chance = random.Random()
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        begun = loop.time()
        batches = await _next(consumer, arguments, stop)
        if not batches:
            continue
        try:
            await _transact(consumer, producer, arguments.target, batches)
            aborts = chance.random() < _ABORTED
            if not aborts:
                await producer.commit_transaction()
        except KafkaError as error:
            if not producer.is_usable:
                raise
            print(f"aborts, and copies again: {error}", flush=True)
            aborts = True
        if aborts:
            await producer.abort_transaction()
            await go_back(consumer, list(batches))
        await asyncio.sleep(max(0.0, begun + arguments.least_seconds - loop.time()))


async def _run(arguments: Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    producer = Producer(
        bootstrap_servers=arguments.servers,
        transactional_id=arguments.transactional_id,
        transaction_timeout_ms=30_000,
        linger_ms=5,
    )
    consumer = Consumer(
        bootstrap_servers=arguments.servers,
        group_id=arguments.group,
        session_timeout_ms=6000,
        heartbeat_interval_ms=1000,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with producer:
        await producer.init_transactions()
        async with consumer:
            if arguments.partition is None:
                consumer.subscribe(arguments.source)
            else:
                consumer.assign([(arguments.source, arguments.partition)])
            await _copy(consumer, producer, arguments, stop)


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--partition", type=int, help="of the source; assigned by the group if not given")
    parser.add_argument("--group", required=True)
    parser.add_argument("--transactional-id", required=True)
    parser.add_argument("--size", type=int, required=True, help="records of a transaction")
    parser.add_argument("--least-seconds", type=float, default=0.0, help="of a transaction")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
