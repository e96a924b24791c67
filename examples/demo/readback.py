"""Reading produced records back by another project's client: confluent-kafka, which uses librdkafka."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from flights import KEY, Digest, line_of

SILENCE = 30.0
"""Seconds without a record after which reading fails."""


class ReadBackError(Exception):
    """The topic cannot be read, or its records differ from the produced ones."""


@dataclass
class ReadBack:
    """The rows of a topic, as a digest for each key, and the time that reading them took."""

    digests: dict[str, Digest] = field(default_factory=dict)
    partitions: dict[str, set[int]] = field(default_factory=dict)
    records: int = 0
    size: int = 0
    seconds: float = 0.0


class Reader:
    """Reads the records of a topic that follow after this object's creation."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._failure: KafkaError | None = None
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                # librdkafka requires a group id; nothing is committed.
                "group.id": "aioproducer-demo",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                # The last offsets of a topic that is written in transactions are not records.
                "enable.partition.eof": True,
                "check.crcs": True,
                "log_level": 0,
                "error_cb": self._note,
            }
        )
        try:
            self._begin = {number: high for number, (_, high) in self._watermarks().items()}
        except BaseException:
            self._consumer.close()
            raise

    def _note(self, error: KafkaError) -> None:
        self._failure = error

    def _watermarks(self) -> dict[int, tuple[int, int]]:
        try:
            topic = self._consumer.list_topics(self._topic, timeout=SILENCE).topics[self._topic]
            if topic.error is not None:
                raise ReadBackError(f"topic {self._topic}: {topic.error.str()}")
            return {
                number: self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=SILENCE)
                for number in topic.partitions
            }
        except KafkaException as failure:
            raise ReadBackError(f"topic {self._topic}: {failure.args[0].str()}") from failure

    def messages(self) -> Iterator[Message]:
        """Yield all messages since then.

        Raises:
            ReadBackError: no message arrives any longer although some are missing.
        """
        ends = {number: high for number, (_, high) in self._watermarks().items()}
        left = {number for number, end in ends.items() if end > self._begin.get(number, 0)}
        self._consumer.assign([TopicPartition(self._topic, number, self._begin.get(number, 0)) for number in left])
        last = time.perf_counter()
        while left:
            messages = self._consumer.consume(10_000, timeout=0.2)
            if messages:
                last = time.perf_counter()
            elif time.perf_counter() - last > SILENCE:
                reason = f": {self._failure.str()}" if self._failure is not None else ""
                raise ReadBackError(f"no record of topic {self._topic} for {SILENCE:g} s{reason}")
            for message in messages:
                error = message.error()
                at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
                if error is not None and not at_end:
                    raise ReadBackError(f"topic {self._topic}: {error.str()}")
                partition, offset = partition_of(message), message.offset()
                assert offset is not None
                if at_end:
                    if offset >= ends[partition]:
                        left.discard(partition)
                    continue
                if offset >= ends[partition]:
                    continue
                yield message
                if offset + 1 >= ends[partition]:
                    left.discard(partition)

    def read(self) -> ReadBack:
        """Return a digest of the flights in all messages.

        Raises:
            ReadBackError: no message arrives any longer although some are missing, or one is not a flight with its
                carrier as key.
        """
        found = ReadBack()
        began = time.perf_counter()
        for message in self.messages():
            key, value = message.key(), message.value()
            try:
                if value is None:
                    raise TypeError
                row = json.loads(value)
                carrier = row[KEY]
                line = line_of(row)
            except (TypeError, ValueError, KeyError, AttributeError) as wrong:
                raise ReadBackError(f"{position(message)} is not a flight: {value!r}") from wrong
            if key is None or key != carrier.encode():
                raise ReadBackError(f"{position(message)} has the key {key!r} but the carrier {carrier}")
            found.digests.setdefault(carrier, Digest()).add(line)
            found.partitions.setdefault(carrier, set()).add(partition_of(message))
            found.records += 1
            found.size += len(key) + len(value)
        found.seconds = time.perf_counter() - began
        return found

    def close(self) -> None:
        self._consumer.close()


def partition_of(message: Message) -> int:
    """Return the partition that a record was read from."""
    partition = message.partition()
    assert partition is not None
    return partition


def position(message: Message) -> str:
    """Return a record's topic, partition and offset, for errors."""
    return f"{message.topic()}-{message.partition()} offset {message.offset()}"
