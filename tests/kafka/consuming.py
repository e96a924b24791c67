"""Reading a topic's stored records by another project's consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition


class StoredRecord(NamedTuple):
    """One record as confluent-kafka returns it; ``timestamp_type`` is 1 for CreateTime and 2 for LogAppendTime."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    timestamp_type: int


def read_back(
    bootstrap_servers: str, topic: str, *, at_least: int = 0, committed: bool = False, timeout: float = 60
) -> dict[int, list[StoredRecord]]:
    """Return, for each partition, its records from the first to the current high watermark.

    With ``committed``, return only committed ones, and wait until no transaction is open below the high watermark.

    Every in-sync replica has the records below the high watermark. With acks=0 or 1 this may happen after the producer
    has finished. ``at_least`` waits for that many records, at most ten seconds.

    Raises ``TimeoutError`` if not everything could be read in time, and ``KafkaException`` for errors of the broker.
    """
    topics = read_back_topics(bootstrap_servers, [topic], at_least=at_least, committed=committed, timeout=timeout)
    return topics[topic]


def read_back_topics(
    bootstrap_servers: str,
    topics: Sequence[str],
    *,
    at_least: int = 0,
    committed: bool = False,
    timeout: float = 60,
) -> dict[str, dict[int, list[StoredRecord]]]:
    """Read several topics by one consumer, as ``read_back``."""
    deadline = time.monotonic() + timeout
    with _consumer(bootstrap_servers, committed) as consumer, _consumer(bootstrap_servers, False) as watching:
        found = {topic: _partitions(consumer, topic, timeout) for topic in topics}
        patience = time.monotonic() + 10
        ends = _high_watermarks(watching, found, timeout)
        while sum(ends.values()) < at_least and time.monotonic() < patience:
            time.sleep(0.02)
            ends = _high_watermarks(watching, found, timeout)
        if ends:
            consumer.assign([TopicPartition(topic, number, 0) for topic, number in ends])
        while ends:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"not read up to {ends} within {timeout:g} s")
            for message in consumer.consume(10_000, timeout=min(0.1, remaining)):
                error = message.error()
                if error is None:
                    found[message.topic()][message.partition()].append(stored(message))
                elif not passes(error):
                    raise KafkaException(error)
            # By position, not by the number of records: control batches and gaps have offsets without records.
            for position in consumer.position([TopicPartition(topic, number) for topic, number in ends]):
                if position.offset >= ends[position.topic, position.partition]:
                    del ends[position.topic, position.partition]
        return found


@contextmanager
def _consumer(bootstrap_servers: str, committed: bool) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "aioproducer-tests",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "fetch.message.max.bytes": 16 * 1024 * 1024,
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str, timeout: float) -> dict[int, list[StoredRecord]]:
    known = consumer.list_topics(topic, timeout=timeout).topics[topic]
    if known.error is not None:
        raise KafkaException(known.error)
    return {number: [] for number in sorted(known.partitions)}


def _high_watermarks(
    consumer: Consumer, topics: Mapping[str, Mapping[int, object]], timeout: float
) -> dict[tuple[str, int], int]:
    """Return the high watermarks of the partitions that have records.

    For a consumer of committed records librdkafka asks for the last stable offsets instead. These follow once
    the markers are written, which may be after the producer has its response to EndTxn.
    """
    ends: dict[tuple[str, int], int] = {}
    for topic, partitions in topics.items():
        for number in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=timeout)
            if high > low:
                ends[topic, number] = high
    return ends


def passes(error: KafkaError) -> bool:
    """Return whether the consumer continues by itself."""
    return bool(error.retriable()) or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


def stored(message: Message) -> StoredRecord:
    """Return the record of a message without an error."""
    kind, timestamp_ms = message.timestamp()
    return StoredRecord(message.offset(), message.key(), message.value(), message.headers() or [], timestamp_ms, kind)
