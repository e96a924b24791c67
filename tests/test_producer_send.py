"""``send``: accepted arguments, arguments that raise, errors that fail the Delivery, and order."""

from __future__ import annotations

import array
import asyncio
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aioproducer import Producer, Record, RecordMetadata, TopicPartition
from aioproducer._client.slow_path import SlowPath
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import (
    BufferExhaustedError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MetadataTimeoutError,
    RecordTooLargeError,
    TopicAuthorizationError,
)
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.simulation import Simulation
from tests.waiting import know_topic

NOWHERE = "127.0.0.1:1"


pytestmark = pytest.mark.kafka_cluster(transport="memory")


@pytest.fixture
def topic() -> str:
    return "topic"


def _values(kafka_cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in kafka_cluster.records(topic, 0)]


@pytest.mark.parametrize("partition", [None, 0, 1])
async def test_a_record_that_opens_a_batch_skips_the_slow_path_for_any_partition(
    kafka_cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, partition: int | None
) -> None:
    """A record with an explicit partition once passed ten Python functions, a tenth of the time of a send."""
    kafka_cluster.create_topic(topic, 2)
    slow: list[tuple[object, ...]] = []
    monkeypatch.setattr(SlowPath, "enqueue", lambda slow_path, *record: slow.append(record))
    async with kafka_cluster.producer(linger_ms=0) as producer:
        await know_topic(producer, topic)
        metadata = await producer.send(topic, b"value", partition=partition)
        assert partition in (None, metadata.partition)
        producer.send(topic, b"value", partition=2)
    assert [record[1] for record in slow] == [2]


async def test_a_record_is_stored_as_it_was_sent(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic, 2)
    async with kafka_cluster.producer(linger_ms=0) as producer:
        sent = producer.send(
            topic,
            b"value",
            b"key",
            partition=1,
            timestamp_ms=1_000_000,
            headers=[("a", b"1"), ("b", None), ("a", b"2")],
        )
        assert isinstance(sent, Delivery)
        metadata = await sent
        assert type(metadata) is RecordMetadata
        assert metadata[:3] == (topic, 1, 0)
        assert (await producer.send_record(Record(topic, b"2", partition=1))).offset == 1
    first, second = kafka_cluster.records(topic, 1)
    assert first[3:] == (1_000_000, b"key", b"value", (("a", b"1"), ("b", None), ("a", b"2")))
    assert abs(second.timestamp_ms - time.time() * 1000) < 10_000


# Each is tested with an unknown topic and with an open batch, which use different paths.
ACCEPTED: list[tuple[dict[str, Any], bytes | None, list[tuple[str, bytes | None]]]] = [
    ({"value": b""}, b"", []),
    ({"value": None}, None, []),
    ({"value": bytearray(b"ab")}, b"ab", []),
    ({"value": memoryview(b"xaby")[1:3]}, b"ab", []),
    ({"value": array.array("H", [0x0101, 0x0202])}, b"\x01\x01\x02\x02", []),
    ({"value": memoryview(array.array("H", [0x0101]))}, b"\x01\x01", []),
    ({"key": array.array("H", [0x0101])}, None, []),
    ({"headers": [("é", b"1"), ["b", None]]}, None, [("é", b"1"), ("b", None)]),
    ({"headers": {"a": b"1"}.items()}, None, [("a", b"1")]),
    ({"headers": (pair for pair in [("a", b"1")])}, None, [("a", b"1")]),
    ({"headers": [("a", memoryview(b"1"))]}, None, [("a", b"1")]),
    ({"timestamp_ms": 0}, None, []),
]


@pytest.mark.parametrize("known", [False, True])
async def test_accepted_arguments_are_accepted_on_every_path(
    kafka_cluster: EmbeddedCluster, topic: str, known: bool
) -> None:
    kafka_cluster.create_topic(topic)
    cases = [
        (arguments if not isinstance(arguments.get("headers"), Iterator) else {"headers": iter([("a", b"1")])}, *rest)
        for arguments, *rest in ACCEPTED
    ]
    async with kafka_cluster.producer(linger_ms=100) as producer:
        if known:
            await producer.partitions_for(topic)
        deliveries = [producer.send(topic, **arguments) for arguments, *_ in cases]
        assert [delivery.done() for delivery in deliveries] == [False] * len(cases)
    stored = kafka_cluster.records(topic, 0)
    assert [(record.value, list(record.headers)) for record in stored] == [
        (value, headers) for _, value, headers in cases
    ]


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "str value": ({"value": "text"}, TypeError, "value must be bytes-like .* not str: encode it, or set value_ser"),
    "int value": ({"value": 5}, TypeError, "value must be bytes-like .* not int"),
    "str key": ({"key": "text"}, TypeError, "key must be bytes-like .* not str: encode it, or set key_serializer"),
    "strided value": ({"value": memoryview(b"abcd")[::2]}, ValueError, "value must be a contiguous memoryview"),
    "str partition": ({"partition": "1"}, TypeError, "partition must be int, not str"),
    "float partition": ({"partition": 0.0}, TypeError, "partition must be int, not float"),
    "negative partition": ({"partition": -1}, ValueError, "partition must be from 0 to"),
    "huge partition": ({"partition": 2**31}, ValueError, r"partition must be from 0 to 2\*\*31 - 1, not 2147483648"),
    "str timestamp": ({"timestamp_ms": "1"}, TypeError, "timestamp_ms must be int, not str"),
    "float timestamp": ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms must be int, not float"),
    "negative timestamp": ({"timestamp_ms": -1}, ValueError, "timestamp_ms must be from 0 to"),
    "huge timestamp": ({"timestamp_ms": 2**63}, ValueError, r"timestamp_ms must be from 0 to 2\*\*63 - 1"),
    "mapping as headers": ({"headers": {"a": b"1"}}, TypeError, r"headers .* of a mapping, pass its items\(\)"),
    "empty mapping as headers": ({"headers": {}}, TypeError, r"of a mapping, pass its items\(\)"),
    "None as headers": ({"headers": None}, TypeError, "headers must be a sequence of"),
    "str as headers": ({"headers": "ab"}, TypeError, "headers must be a sequence of"),
    "no pair": ({"headers": [("a", b"1", b"2")]}, TypeError, "a header must be a .* pair"),
    "bytes as name": ({"headers": [(b"a", b"1")]}, TypeError, "a header's key must be str, not bytes"),
    "str as header": ({"headers": [("a", "1")]}, TypeError, "header 'a' must be bytes or None, not str"),
    "surrogate as name": ({"headers": [("\ud800", b"1")]}, ValueError, "surrogates not allowed"),
    "bytes as topic": ({"topic": b"t"}, TypeError, "topic must be str, not bytes"),
    "list as topic": ({"topic": ["t"]}, TypeError, "topic must be str, not list"),
    "empty topic": ({"topic": ""}, ValueError, "topic must not be empty"),
}


@pytest.mark.parametrize("known", [False, True])
async def test_invalid_arguments_raise_at_once_on_every_path(
    kafka_cluster: EmbeddedCluster, topic: str, known: bool
) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(linger_ms=100) as producer:
        if known:
            await producer.partitions_for(topic)
            producer.send(topic, b"opens a batch")
        for name, (arguments, kind, text) in REFUSED.items():
            try:
                with pytest.raises(kind, match=text):
                    producer.send(**{"topic": topic, **arguments})
            except BaseException as error:
                error.add_note(name)
                raise
        producer.send(topic, b"goes on")
    assert _values(kafka_cluster, topic)[-1] == b"goes on"


@pytest.mark.parametrize(
    "unlawful",
    ["with space", "a/b", "é", "\ud800", ".", "..", "x" * 250, "t\n"],
    ids=["space", "slash", "accent", "surrogate", "dot", "dots", "long", "newline"],
)
async def test_an_invalid_topic_name_fails_only_its_delivery(
    kafka_cluster: EmbeddedCluster, topic: str, unlawful: str
) -> None:
    """A name that UTF-8 cannot encode would break every metadata request with it."""
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer() as producer:
        failed = producer.send(unlawful, b"v")
        assert failed.topic_partition == TopicPartition(unlawful, -1)
        with pytest.raises(InvalidTopicError, match="topic name"):
            await failed
        with pytest.raises(InvalidTopicError, match="topic name"):
            await producer.partitions_for(unlawful)
        assert (await producer.send(topic, b"v")).offset == 0


@pytest.mark.parametrize("known", [False, True])
async def test_a_record_that_is_too_large_fails_alone_and_names_the_excess(
    kafka_cluster: EmbeddedCluster, topic: str, known: bool
) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(max_request_size=1000, batch_size=500) as producer:
        if known:
            await producer.send(topic, b"opens")
        too_large = producer.send(topic, bytes(1000))
        fits = producer.send(topic, bytes(900))
        with pytest.raises(RecordTooLargeError, match=r"takes 1\d\d\d bytes .* more than max_request_size allows"):
            await too_large
        assert (await fits).offset == int(known)


async def test_a_record_larger_than_all_memory_fails_its_delivery(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(buffer_memory=2000) as producer:
        with pytest.raises(RecordTooLargeError, match="more than buffer_memory allows"):
            await producer.send(topic, bytes(3000))


@pytest.mark.parametrize("buffer_memory", [300, 1024, 2048, 5000])
async def test_a_tiny_buffer_works_or_raises_a_clear_error(
    kafka_cluster: EmbeddedCluster, topic: str, buffer_memory: int
) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(buffer_memory=buffer_memory) as producer:
        accepted = []
        for number in range(50):
            await producer.drain()
            accepted.append(producer.send(topic, b"%d" % number))
        await producer.flush()
        assert [delivery.result().offset for delivery in accepted] == list(range(50))
        accepted.clear()

        def fill() -> None:
            while True:
                accepted.append(producer.send(topic, bytes(100)))

        with pytest.raises(BufferExhaustedError, match=r"await producer.drain\(\)"):
            fill()
        await producer.flush()
        assert accepted
        assert all(delivery.exception() is None for delivery in accepted)


async def test_records_are_stored_in_call_order_across_every_wait(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """Metadata is missing first, then memory; batches have a few records."""
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(linger_ms=0, batch_size=300, buffer_memory=3000) as producer:
        sent = 0
        while sent < 500:
            try:
                producer.send(topic, b"%d" % sent)
                sent += 1
            except BufferExhaustedError:
                await asyncio.sleep(0)
    assert _values(kafka_cluster, topic) == [b"%d" % number for number in range(500)]


@pytest.mark.simulated(seeds=[1], brokers=1)
async def test_a_mistyped_topic_delays_no_other(simulation: Simulation, topic: str) -> None:
    simulation.create_topic(topic)
    simulation.fail("Metadata", "UNKNOWN_TOPIC_OR_PARTITION", topic="mistyped", times=None)
    async with simulation.producer(max_block_ms=300, linger_ms=0) as producer:
        await know_topic(producer, topic)
        mistyped = producer.send("mistyped", b"v")
        assert (await producer.send(topic, b"v")).offset == 0
        assert not mistyped.done()
        with pytest.raises(MetadataTimeoutError, match=r"'mistyped' was not found .* check the spelling"):
            await mistyped


async def test_a_refused_topic_fails_the_delivery_with_the_error_of_the_cluster(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    kafka_cluster.fail("Metadata", "TOPIC_AUTHORIZATION_FAILED", topic=topic, times=None)
    async with kafka_cluster.producer() as producer:
        with pytest.raises(TopicAuthorizationError):
            await producer.send(topic, b"v")
        with pytest.raises(TopicAuthorizationError):
            await producer.partitions_for(topic)


async def test_a_missing_partition_fails_the_delivery_after_max_block(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    kafka_cluster.create_topic(topic, 2)
    async with kafka_cluster.producer(max_block_ms=200, linger_ms=0) as producer:
        await know_topic(producer, topic)
        await producer.send(topic, b"v")
        beyond = producer.send(topic, b"v", partition=2)
        await asyncio.sleep(0.05)
        behind = producer.send(topic, b"v", partition=0)
        with pytest.raises(MetadataTimeoutError, match=r"has no partition 2: .* it has 2, numbered from 0"):
            await beyond
        assert (await behind).partition == 0


async def test_records_behind_a_withdrawn_record_continue_at_once(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic, 2)
    async with kafka_cluster.producer(linger_ms=0) as producer:
        await producer.send(topic, b"v")
        beyond, behind = producer.send(topic, b"v", partition=2), producer.send(topic, b"v", partition=0)
        assert beyond.cancel()
        assert beyond.withdrawn
        assert (await asyncio.wait_for(behind, 5)).partition == 0


async def test_max_block_of_zero_does_not_wait(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(max_block_ms=0) as producer:
        with pytest.raises(MetadataTimeoutError, match=r"within \d+ ms \(max_block_ms\)"):
            await producer.send(topic, b"v")
        with pytest.raises(MetadataTimeoutError):
            await producer.partitions_for("other")
        async with asyncio.timeout(5):
            while True:
                try:
                    assert (await producer.send(topic, b"v")).offset == 0
                    break
                except MetadataTimeoutError:
                    await producer.wait_ready(5)
                    await asyncio.sleep(0.01)


async def test_without_a_broker_calls_fail_with_the_reason() -> None:
    async with Producer(bootstrap_servers=NOWHERE, max_block_ms=150) as producer:
        with pytest.raises(MetadataTimeoutError, match=f"Nothing listens at {NOWHERE} .* bootstrap_servers"):
            await producer.send("t", b"v")
        with pytest.raises(MetadataTimeoutError, match=f"within 0.01 s. The last error was: Nothing .*{NOWHERE}"):
            await producer.wait_ready(0.01)
        with pytest.raises(MetadataTimeoutError, match=NOWHERE):
            await producer.partitions_for("t")


async def test_partitions_for_returns_the_partitions(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic, 3)
    async with kafka_cluster.producer() as producer:
        await producer.wait_ready(5)
        partitions = await producer.partitions_for(topic)
        assert [(each.topic, each.partition) for each in partitions] == [(topic, 0), (topic, 1), (topic, 2)]
        assert all(each.leader is not None and each.leader.id == 1 for each in partitions)
        with pytest.raises(TypeError, match="topic must be str, not int"):
            await producer.partitions_for(5)  # type: ignore[arg-type]  # this is the mistake


async def test_a_thousand_coroutines_can_each_await_their_delivery(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer() as producer:

        async def call(number: int) -> tuple[int, int | None]:
            return number, (await producer.send(topic, b"%d" % number)).offset

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call(number)) for number in range(1000)]
    values = _values(kafka_cluster, topic)
    for task in tasks:
        number, offset = task.result()
        assert offset is not None
        assert values[offset] == b"%d" % number


async def test_timeouts_and_waits_of_asyncio_accept_a_delivery(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(linger_ms=60_000) as producer:
        async with asyncio.timeout(5):
            await producer.partitions_for(topic)
        delivery = producer.send(topic, b"v")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(delivery), 0.01)
        assert not delivery.done()
        other = producer.send(topic, b"v")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other, 0.01)
        # Since CPython 3.12 wait_for cancels only the wait, which is a separate future of the awaiter.
        assert other.cancelled() == (sys.version_info < (3, 12))
        await producer.flush()
        done, pending = await asyncio.wait([delivery, other])
        assert (done, pending) == ({delivery, other}, set())
        assert await asyncio.gather(delivery) == [delivery.result()]
    assert _values(kafka_cluster, topic) == [b"v", b"v"]


async def test_acks_zero_gives_metadata_without_offset(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(acks=0, linger_ms=0) as producer:
        assert await producer.send(topic, b"v") == RecordMetadata(topic, 0, None, None)


async def test_a_fatal_error_fails_all_records_and_rejects_new_ones(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """CLUSTER_AUTHORIZATION_FAILED: the cluster will accept no record of this producer."""
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(linger_ms=0) as producer:
        await producer.send(topic, b"v")
        kafka_cluster.fail("Produce", "CLUSTER_AUTHORIZATION_FAILED")
        with pytest.raises(KafkaError):
            await producer.send(topic, b"v")
        with pytest.raises(KafkaError, match=r".") as refused:
            producer.send(topic, b"v")
        assert refused.value.fatal
        assert not producer.is_usable


async def test_a_header_that_cannot_be_encoded_is_named_and_leaks_no_memory(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(linger_ms=0, buffer_memory=262_144) as producer:
        await producer.send(topic, b"first")
        for _ in range(50):
            with pytest.raises(ValueError, match="header 'k' must be a contiguous memoryview"):
                producer.send(topic, b"value", headers=[("k", memoryview(b"abcd")[::2])])
        await producer.flush()
        assert producer.metrics()["buffer-available-bytes"] == 262_144
        await producer.send(topic, b"last")
    assert _values(kafka_cluster, topic) == [b"first", b"last"]


@pytest.mark.parametrize("number", [ctypes.c_long(5), ctypes.c_double(0.5)])
async def test_a_number_with_a_buffer_interface_is_rejected_as_value(
    kafka_cluster: EmbeddedCluster, topic: str, number: Any
) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer() as producer:
        with pytest.raises(TypeError, match="value must be bytes-like"):
            producer.send(topic, number)


class _Index:
    """A number that is no int, as numpy's are."""

    def __index__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"value": ctypes.c_long(5)}, "value must be bytes-like"),
        ({"key": ctypes.c_double(0.5)}, "key must be bytes-like"),
        ({"partition": _Index()}, "partition must be int, not _Index"),
        ({"headers": [("h", array.array("B", b"xy"))]}, "the value of header 'h' must be bytes or None, not array"),
        ({"headers": [("h", ctypes.c_long(5))]}, "the value of header 'h' must be bytes or None, not c_long"),
    ],
)
async def test_arguments_are_checked_alike_for_the_first_and_later_records_of_a_batch(
    kafka_cluster: EmbeddedCluster, topic: str, wrong: dict[str, Any], message: str
) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer(linger_ms=60_000) as producer:
        await producer.partitions_for(topic)
        for before in ([], [b"first"], []):
            for value in before:
                producer.send(topic, value, partition=0)
            with pytest.raises(TypeError, match=message):
                producer.send(topic, **({"value": b"v", "partition": 0} | wrong))
        await producer.flush()
    assert _values(kafka_cluster, topic) == [b"first"]


class _Topic(str):
    """A str with another ``str()``, like the members of an enumeration."""

    __slots__ = ()

    def __str__(self) -> str:
        return "Topics.ORDERS"


async def test_a_str_subclass_is_accepted_as_topic(
    kafka_cluster: EmbeddedCluster,
) -> None:
    kafka_cluster.create_topic("orders", partitions=1)
    orders = _Topic("orders")
    async with kafka_cluster.producer() as producer:
        delivery = producer.send(orders, b"1")
        assert type(delivery.topic_partition.topic) is str
        assert (await delivery).topic == "orders"
        await producer.send(orders, bytearray(b"2"), partition=0)
        assert (await producer.send_many(orders, [b"3"])).acked == 1
        assert len(await producer.partitions_for(orders)) == 1
    async with kafka_cluster.producer(value_serializer=str.encode) as producer:
        await producer.send(orders, "4")
    assert _values(kafka_cluster, "orders") == [b"1", b"2", b"3", b"4"]


async def test_a_partition_that_is_not_an_int_is_rejected_for_columns(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    kafka_cluster.create_topic(topic)
    async with kafka_cluster.producer() as producer:
        await producer.partitions_for(topic)
        with pytest.raises(TypeError, match="partition must be int, not _Index"):
            await producer.send_many(topic, [b"v"], partition=_Index())  # type: ignore[arg-type]  # what is tested


async def test_a_single_record_that_the_broker_rejects_has_the_error_of_its_partition(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    """As in Kafka's Sender: with several records the code does not identify one."""
    kafka_cluster.create_topic(topic, 1)
    async with kafka_cluster.producer() as producer:
        alone = producer.send(topic, b"v", timestamp_ms=2**62)
        await producer.flush()
        with pytest.raises(InvalidTimestampError, match="out of range"):
            await alone
        several = [producer.send(topic, b"v", timestamp_ms=2**62) for _ in range(2)]
        await producer.flush()
        for delivery in several:
            with pytest.raises(InvalidRecordError, match="out of range"):
                await delivery


class _Cycle:
    """Garbage that only the collector frees, and that sends when it is freed."""

    def __init__(self, sends: Callable[[], object]) -> None:
        self._sends = sends
        self._itself = self

    def __del__(self) -> None:
        self._sends()


@pytest.mark.parametrize("batch_size", [300, 2000])
async def test_a_send_from_a_garbage_collector_callback_inside_send_is_delivered(
    kafka_cluster: EmbeddedCluster, topic: str, batch_size: int
) -> None:
    """A logging handler can do this for an unretrieved exception; records were once lost and batches corrupted."""
    kafka_cluster.create_topic(topic, 1)
    sent: list[tuple[bytes, Delivery]] = []
    before = gc.get_threshold()
    async with kafka_cluster.producer(batch_size=batch_size) as producer:

        def send(what: bytes) -> None:
            value = b"%s %d" % (what, len(sent))
            sent.append((value, producer.send(topic, value, headers=[("level", b"x" * 30)])))

        # The collector runs in the thread that allocates memory next, which may be the test runner's.
        here = threading.get_ident()
        elsewhere: list[None] = []

        def collected() -> None:
            if threading.get_ident() == here:
                send(b"collected")
            else:
                elsewhere.append(None)

        await know_topic(producer, topic)
        try:
            for threshold in (20, 33, 50, 70):
                gc.set_threshold(threshold)
                for _ in range(1500):
                    _Cycle(collected)
                    send(b"in turn")
                    await producer.drain()
        finally:
            gc.set_threshold(*before)
        gc.collect()
        await producer.flush()
        offsets = [(await delivery).offset for _, delivery in sent]
    stored = {record.offset: record.value for record in kafka_cluster.records(topic)}
    assert [stored[offset] for offset in offsets] == [value for value, _ in sent]
    assert len(set(offsets)) == len(offsets)
    assert len(sent) + len(elsewhere) == 12_000
