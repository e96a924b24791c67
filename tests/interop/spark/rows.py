"""Rows of which every part follows from their number, and a check that each is where it belongs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

# A row's number is its timestamp's distance from this, in milliseconds: it is there where key and value are null.
EPOCH = 1_700_000_000_000
KEYS = 1009
EXPLICIT_PARTITIONS = 200
MEGABYTE = 1_000_000


class Plan(NamedTuple):
    """What is written.

    explicit
        A topic of 200 partitions, whose rows name theirs.
    keyed
        One where the key decides, or nothing does where there is none.
    mixed
        One where every other of its rows names the partition.
    """

    count: int
    tasks: int
    explicit: str
    keyed: str
    mixed: str
    partitions: int

    @property
    def every_big(self) -> int:
        """Every such row has a value of a megabyte, forty in all."""
        return max(self.count // 40, 1)

    @property
    def topics(self) -> tuple[str, str, str]:
        return (self.explicit, self.keyed, self.mixed)

    # The rows, as SQL says them and as Python does

    def rows(self, spark: SparkSession) -> DataFrame:
        text = f"""
            case when id % 7 = 0 then null when id % 7 = 1 then '' else concat('key ', id % {KEYS}) end as key,
            case when id % {self.every_big} = 5 then rpad(concat('big ', id, ' '), {MEGABYTE}, 'x')
                 when id % 11 = 0 then null when id % 11 = 1 then ''
                 else rpad(concat('value ', id, ' '), 100, 'x') end as value,
            case id % 3 when 0 then '{self.explicit}' when 1 then '{self.keyed}' else '{self.mixed}' end as topic,
            case when id % 3 = 0 then cast((id div 3) % {EXPLICIT_PARTITIONS} as int)
                 when id % 6 = 2 then cast((id div 6) % {self.partitions} as int) end as partition,
            case id % 5
                when 0 then null
                when 1 then array()
                when 2 then array(named_struct('key', 'one', 'value', cast(cast(id as string) as binary)))
                else array(named_struct('key', 'two', 'value', cast('' as binary)),
                           named_struct('key', 'two', 'value', cast(null as binary))) end as headers,
            {EPOCH} + id as timestamp"""
        return spark.range(0, self.count, 1, self.tasks).selectExpr(*_expressions(text))

    def key(self, number: int) -> bytes | None:
        return None if number % 7 == 0 else b"" if number % 7 == 1 else b"key %d" % (number % KEYS)

    def value(self, number: int) -> bytes | None:
        if number % self.every_big == 5:
            return (b"big %d " % number).ljust(MEGABYTE, b"x")
        return None if number % 11 == 0 else b"" if number % 11 == 1 else (b"value %d " % number).ljust(100, b"x")

    def topic(self, number: int) -> str:
        return self.topics[number % 3]

    def names_partition(self, number: int) -> bool:
        return number % 3 == 0 or number % 6 == 2

    def partition(self, number: int, of_key: Mapping[bytes, int]) -> int | None:
        """None: any."""
        if self.names_partition(number):
            return number // 3 % EXPLICIT_PARTITIONS if number % 3 == 0 else number // 6 % self.partitions
        key = self.key(number)
        return None if key is None else of_key[key]

    def headers(self, number: int) -> list[tuple[str, bytes | None]]:
        kind = number % 5
        return [] if kind < 2 else [("one", b"%d" % number)] if kind == 2 else [("two", b""), ("two", None)]

    def task(self, number: int) -> int:
        """As ``spark.range`` divides them."""
        task = number * self.tasks // self.count
        return task + (number >= (task + 1) * self.count // self.tasks)


def _expressions(text: str) -> Iterator[str]:
    """At the commas outside of all parentheses."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def check(bootstrap_servers: str, plan: Plan, of_key: Mapping[bytes, int]) -> None:
    """Raise ``AssertionError`` unless every row is there once, whole, in its place, and nothing else is.

    In a partition a task's rows stand in its order: those that name the partition, and those that do not.
    """
    seen = bytearray(plan.count)
    last: dict[tuple[str, int, int, bool], int] = {}
    for message in messages(bootstrap_servers, plan.topics):
        kind, timestamp_ms = message.timestamp()
        number = timestamp_ms - EPOCH
        assert kind == 1, f"{kind} is no CreateTime"
        assert 0 <= number < plan.count, f"no row has the timestamp {timestamp_ms}"
        assert not seen[number], f"row {number} is there twice"
        seen[number] = 1
        place = (message.topic(), message.partition())
        expected = (plan.topic(number), plan.partition(number, of_key))
        assert place[0] == expected[0], f"row {number} is in {place}, not in {expected}"
        assert expected[1] in (None, place[1]), f"row {number} is in {place}, not in {expected}"
        assert message.key() == plan.key(number), f"row {number} has the key {message.key()!r}"
        assert message.value() == plan.value(number), f"row {number} has the value {message.value()!r:.60}"
        assert (message.headers() or []) == plan.headers(number), f"row {number} has {message.headers()!r:.200}"
        of_task = (*place, plan.task(number), plan.names_partition(number))
        assert last.get(of_task, -1) < number, f"row {number} stands behind {last[of_task]}"
        last[of_task] = number
    lost = seen.count(0)
    assert not lost, f"{lost} of {plan.count} rows are not there, e.g. {seen.index(0)}"


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """A broker that has just come back leads nothing for a moment."""
    deadline = time.monotonic() + 30
    while True:
        try:
            found: tuple[int, int] = consumer.get_watermark_offsets(partition, timeout=30)
            return found
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def messages(bootstrap_servers: str, topics: Sequence[str], *, timeout: float = 300) -> Iterator[Message]:
    """All that the topics have, up to the high watermarks of now, by confluent-kafka.

    Raises:
        TimeoutError: there was nothing new for ``timeout`` seconds.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "aioproducer-tests",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "fetch.message.max.bytes": 16 << 20,
            "queued.max.messages.kbytes": 65536,
            "log_level": 0,
        }
    )
    try:
        left: dict[tuple[str, int], int] = {}
        for topic in topics:
            for number in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
                low, high = _watermarks(consumer, TopicPartition(topic, number))
                if high > low:
                    left[topic, number] = high
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in left])
        patience = time.monotonic() + timeout
        while left:
            assert time.monotonic() < patience, f"nothing new for {timeout:g} s; not read up to {left}"
            for message in consumer.consume(10_000, timeout=0.2):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                patience = time.monotonic() + timeout
                end = left.get((message.topic(), message.partition()))
                # What came behind the high watermark meanwhile is not asked for.
                if end is not None and message.offset() < end:
                    yield message
                if end is not None and message.offset() >= end - 1:
                    del left[message.topic(), message.partition()]
    finally:
        consumer.close()


def partitions_of_keys(bootstrap_servers: str, topic: str, keys: Sequence[bytes]) -> dict[bytes, int]:
    """Where librdkafka puts each key, with the Java client's partitioner, in a topic of as many partitions."""
    found: dict[bytes, int] = {}

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        found[message.key() or b""] = message.partition()

    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random", "log_level": 0})
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert len(found) == len(keys)
    return found
