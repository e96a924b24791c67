"""Each record of one topic, transformed, exactly once in another: whatever process, broker or network fails.

    python examples/consume_transform_produce.py lines shouted --group shouter --instance shouter-0

Start one process for each instance, each with a name of its own, which it has again after a restart: the name is the
static member of the group and the transactional id. The offsets of the input are committed with the results, in one
transaction. Readers of ``shouted`` use ``isolation.level=read_committed``. SIGTERM and Ctrl-C end the process after the
current transaction.
"""

from __future__ import annotations

import asyncio
import signal
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence

from aioproducer import Consumer, KafkaError, Producer, TopicPartition
from aioproducer.consumer import ConsumerRecord

Transform = Callable[[ConsumerRecord], bytes]


def shout(record: ConsumerRecord) -> bytes:
    """The business of this service. It may run again for a record: its results then replace aborted ones."""
    return bytes(record.value or b"").upper()


async def transform_batch(
    consumer: Consumer,
    producer: Producer,
    target: str,
    batches: Mapping[TopicPartition, Sequence[ConsumerRecord]],
    transform: Transform,
) -> None:
    """Send the results of some records and commit their offsets, all in one transaction."""
    async with producer.transaction() as transaction:
        for records in batches.values():
            for record in records:
                transaction.send(target, transform(record), key=record.key)
            await transaction.drain()
        offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
        # The generation and the member id let the group refuse the offsets of a member that it has replaced (KIP-447).
        await transaction.send_offsets(offsets, consumer.group_metadata())


async def go_back(consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
    """Continue at the committed offsets, which wait for the outcome of a transaction that is still being ended."""
    assigned = [partition for partition in partitions if partition in consumer.assignment()]
    if not assigned:
        return
    for partition, committed in (await consumer.committed(*assigned)).items():
        # A rebalance may have taken it away meanwhile: its next owner begins at the committed offset.
        if partition not in consumer.assignment():
            continue
        if committed is None:
            consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, committed)


async def transform_all(
    consumer: Consumer, producer: Producer, target: str, transform: Transform, stop: asyncio.Event
) -> None:
    """Transform records until ``stop`` is set.

    Raises:
        KafkaError: the producer cannot continue: another process has its transactional id, or a transaction's outcome
            is unknown. Restart the process; it continues at the committed offsets.
    """
    while not stop.is_set():
        # A rebalance waits for this call: until then the partitions and their transaction belong to this process.
        batches = await consumer.poll(timeout=0.5)
        if not batches:
            continue
        try:
            await transform_batch(consumer, producer, target, batches, transform)
        except KafkaError as error:
            if not producer.is_usable:
                raise
            print(f"aborted, and tried again: {error}", flush=True)
            await go_back(consumer, list(batches))


async def serve(bootstrap_servers: str, source: str, target: str, group: str, instance: str) -> None:
    """Transform records until a signal comes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    producer = Producer(
        bootstrap_servers=bootstrap_servers,
        transactional_id=f"{group}-{instance}",
        # If this process dies and does not return, readers and the next owner wait for so long.
        transaction_timeout_ms=20_000,
    )
    consumer = Consumer(
        source,
        bootstrap_servers=bootstrap_servers,
        group_id=group,
        group_instance_id=instance,
        # The transactions commit the offsets.
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with producer:
        # Before the first read: it ends what a crash of this instance has left open.
        await producer.init_transactions()
        async with consumer:
            print("ready", flush=True)
            await transform_all(consumer, producer, target, shout, stop)


def main() -> None:
    parser = ArgumentParser(description="Each record of a topic, transformed, exactly once in another.")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--group", required=True, help="the consumer group; all instances have the same")
    parser.add_argument("--instance", required=True, help="the name of this process, the same after a restart")
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    arguments = parser.parse_args()
    asyncio.run(
        serve(arguments.bootstrap_servers, arguments.source, arguments.target, arguments.group, arguments.instance)
    )


if __name__ == "__main__":
    main()
