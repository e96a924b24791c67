"""Sync and async serializers, and interceptors, as a producer uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from aioproducer import Producer, Record, RecordHeader, RecordMetadata
from aioproducer.errors import (
    BufferExhaustedError,
    KafkaError,
    KafkaTimeoutError,
    MetadataTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    SerializationError,
    TopicAuthorizationError,
)
from aioproducer.record import HeaderPair
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.simulation import Simulation
from tests.waiting import know_topic

NOWHERE = "127.0.0.1:1"


pytestmark = pytest.mark.kafka_cluster(transport="memory")


@pytest.fixture
async def topic(kafka_cluster: EmbeddedCluster) -> str:
    kafka_cluster.create_topic("topic")
    return "topic"


def _values(kafka_cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in kafka_cluster.records(topic, 0)]


class SlowSerializer:
    """Serializes ``b"..."`` at once, and text when its event is set; ``fail`` raises, and ``cancel`` cancels itself."""

    def __init__(self) -> None:
        self.may_go = asyncio.Event()
        self.ended: list[object] = []

    def serialize(self, topic: str, value: Any, headers: list[HeaderPair]) -> Any:
        if value is None or isinstance(value, bytes):
            return value
        return self._serialize(value, headers)

    async def _serialize(self, value: str, headers: list[HeaderPair]) -> bytes:
        try:
            await self.may_go.wait()
            if value == "fail":
                raise ZeroDivisionError
            if value == "cancel":
                raise asyncio.CancelledError
            headers.append(("by", b"serializer"))
            return value.encode()
        finally:
            self.ended.append(value)


# Serializers


@pytest.mark.kafka_cluster(transport="tcp")
async def test_serializers_are_configured_by_name(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with Producer.from_config(
        {
            "bootstrap.servers": kafka_cluster.bootstrap_servers,
            "key.serializer": "org.apache.kafka.common.serialization.IntegerSerializer",
            "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        }
    ) as producer:
        await producer.send(topic, "é", 5)
        with pytest.raises(SerializationError, match=r"the value of .* StringSerializer takes str or None"):
            producer.send(topic, b"bytes")
    assert kafka_cluster.records(topic, 0)[0][4:6] == (b"\0\0\0\5", "é".encode())


async def test_key_and_value_serializers_are_independent(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(value_serializer=str.encode) as producer:
        await producer.send(topic, "v", bytearray(b"k"), headers=[("h", memoryview(b"1"))])
        with pytest.raises(SerializationError, match=r"the key of .* BytesSerializer takes bytes"):
            producer.send(topic, "v", "k")
        with pytest.raises(TypeError, match=r"of a mapping, pass its items\(\)"):
            producer.send(topic, "v", headers={})  # type: ignore[arg-type]  # the mistake
        with pytest.raises(ValueError, match="timestamp_ms must be from 0 to"):
            producer.send(topic, "v", timestamp_ms=-1)
    assert kafka_cluster.records(topic, 0)[0][4:] == (b"k", b"v", (("h", b"1"),))


@pytest.mark.parametrize("key_later", [False, True])
@pytest.mark.parametrize("value_later", [False, True])
async def test_serializers_add_headers_key_first(
    kafka_cluster: EmbeddedCluster, topic: str, key_later: bool, value_later: bool
) -> None:
    class Adding:
        def __init__(self, name: str, *, later: bool) -> None:
            self.name = name
            self.later = later

        def serialize(self, topic: str, value: Any, headers: list[HeaderPair]) -> Any:
            if self.later:
                return self.finish(headers)
            headers.append((self.name, None))
            return b""

        async def finish(self, headers: list[HeaderPair]) -> bytes:
            await asyncio.sleep(0)
            headers.append((self.name, None))
            return b""

    serializers = {
        "key_serializer": Adding("key", later=key_later),
        "value_serializer": Adding("value", later=value_later),
    }
    own = [("own", b"1")]
    async with kafka_cluster.producer(**serializers) as producer:
        await producer.send(topic, None, None, headers=own)
        await producer.send(topic, None, None)
    assert own == [("own", b"1")]
    with_own, without = [record[6] for record in kafka_cluster.records(topic, 0)]
    assert with_own == (("own", b"1"), *without)
    # Sync results are made before async ones are awaited.
    assert [name for name, _ in without] == (["value", "key"] if key_later and not value_later else ["key", "value"])


async def test_a_failed_value_serializer_ends_the_coroutine_of_the_key(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    ended: list[str] = []

    async def slow(value: object) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("key")
        return b""

    def fail(value: object) -> bytes:
        raise ZeroDivisionError

    async with kafka_cluster.producer(key_serializer=slow, value_serializer=fail) as producer:
        with pytest.raises(SerializationError):
            producer.send(topic, 1, 1)
        for _ in range(3):
            await asyncio.sleep(0)
        assert ended == ["key"]


async def test_a_strided_view_from_a_serializer_is_rejected(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(value_serializer=lambda value: memoryview(value)[::2]) as producer:
        with pytest.raises(ValueError, match="contiguous"):
            producer.send(topic, b"abcd")


async def test_async_serializers_keep_the_order_of_records(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    serializer = SlowSerializer()
    async with kafka_cluster.producer(value_serializer=serializer, linger_ms=0) as producer:
        await producer.send(topic, b"known")
        first, second, third, fourth = (producer.send(topic, value) for value in ("1", b"2", "fail", b"4"))
        await asyncio.sleep(0.01)
        assert not second.done()
        serializer.may_go.set()
        assert [(await first).offset, (await second).offset, (await fourth).offset] == [1, 2, 3]
        with pytest.raises(SerializationError, match=r"the value of a record .* ZeroDivisionError"):
            await third
    stored = kafka_cluster.records(topic, 0)
    assert [record.value for record in stored] == [b"known", b"1", b"2", b"4"]
    assert stored[1].headers == (("by", b"serializer"),)


async def test_many_sync_and_async_records_keep_their_order(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async def later(value: int) -> bytes:
        for _ in range(value * 7 % 5):
            await asyncio.sleep(0)
        return b"%d" % value

    def serialize(value: int) -> Any:
        return later(value) if value % 3 else b"%d" % value

    async with kafka_cluster.producer(value_serializer=serialize, linger_ms=0, batch_size=100) as producer:
        for number in range(300):
            producer.send(topic, number)
            await producer.drain()
    assert _values(kafka_cluster, topic) == [b"%d" % number for number in range(300)]


async def test_close_cancels_async_serializers_in_the_order_of_records(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    cancelled = []

    async def serialize(value: int) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(value)
        return b""

    async with kafka_cluster.producer(value_serializer=serialize) as producer:
        deliveries = [producer.send(topic, number) for number in range(50)]
        await asyncio.sleep(0)
        await producer.close(0)
    assert cancelled == list(range(50))
    assert all(delivery.exception() is not None for delivery in deliveries)


async def test_records_behind_a_withdrawn_serialization_continue_at_once(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    """No record was once admitted when the first of the queue left it."""
    serializer = SlowSerializer()
    async with kafka_cluster.producer(value_serializer=serializer, linger_ms=0) as producer:
        await producer.send(topic, b"known")
        slow, behind = producer.send(topic, "slow"), producer.send(topic, b"behind")
        assert slow.cancel()
        assert slow.withdrawn
        assert (await asyncio.wait_for(behind, 5)).offset == 1
        assert serializer.ended == ["slow"]


@pytest.mark.simulated(seeds=[1], brokers=1)
async def test_a_serializer_that_is_too_slow_fails_only_its_record(simulation: Simulation) -> None:
    """The serializer once kept running without a use, and close waited for it."""
    serializer = SlowSerializer()
    topic = "topic"
    simulation.create_topic(topic)
    async with simulation.producer(value_serializer=serializer, linger_ms=0, max_block_ms=1500) as producer:
        await know_topic(producer, topic)
        slow = producer.send(topic, "slow")
        # The deadline of the second is this much later.
        await asyncio.sleep(1.2)
        behind = producer.send(topic, b"behind")
        with pytest.raises(KafkaTimeoutError):
            await slow
        assert (await behind).offset == 0
        await asyncio.sleep(0)
        assert serializer.ended == ["slow"]


async def test_the_exception_of_a_sync_or_async_serializer_is_the_cause(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    def plain(value: object) -> bytes:
        raise ZeroDivisionError("the reason")

    async def awaited(value: object) -> bytes:
        raise ZeroDivisionError("the reason")

    for serializer in (plain, awaited):
        async with kafka_cluster.producer(value_serializer=serializer) as producer:
            with pytest.raises(SerializationError) as caught:
                await producer.send(topic, "v")
            assert repr(caught.value.__cause__) == "ZeroDivisionError('the reason')"


async def test_a_serializer_that_cancels_itself_fails_its_record(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """The record, and all behind it, once stayed blocked until max_block_ms."""
    serializer = SlowSerializer()
    serializer.may_go.set()
    async with kafka_cluster.producer(value_serializer=serializer, linger_ms=0) as producer:
        cancelled, behind = producer.send(topic, "cancel"), producer.send(topic, b"behind")
        with pytest.raises(SerializationError, match="cancelled itself"):
            await cancelled
        await behind


async def test_close_waits_for_serializers_or_cancels_them(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    serializer = SlowSerializer()
    async with kafka_cluster.producer(value_serializer=serializer) as producer:
        delivery = producer.send(topic, "1")
        asyncio.get_running_loop().call_later(0.02, serializer.may_go.set)
    assert delivery.result().offset == 0

    serializer = SlowSerializer()
    producer = kafka_cluster.producer(value_serializer=serializer, key_serializer=serializer)
    await producer.start()
    delivery = producer.send(topic, "1", "key")
    await producer.close(0)
    assert isinstance(delivery.exception(), ProducerClosedError)
    assert serializer.ended == ["key", "1"]


async def test_unneeded_serializer_coroutines_are_closed(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """Python once warned of coroutines that were never awaited."""
    serializer = SlowSerializer()
    async with kafka_cluster.producer(
        key_serializer=serializer, value_serializer=SlowSerializer(), buffer_memory=5000
    ) as producer:
        wrong: Any = 5
        async with kafka_cluster.producer(key_serializer=serializer, value_serializer=str.encode) as other:
            with pytest.raises(SerializationError):
                other.send(topic, wrong, "key")
        at_once = producer.send(topic, "value", "key")
        assert at_once.cancel()
        deliveries = []

        def fill() -> None:
            while True:
                deliveries.append(producer.send(topic, "value", "key"))

        with pytest.raises(BufferExhaustedError):
            fill()
        await asyncio.sleep(0.01)
        for delivery in deliveries:
            delivery.cancel()


async def test_key_and_value_may_both_be_async_and_the_key_may_fail(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    serializer = SlowSerializer()
    serializer.may_go.set()
    async with kafka_cluster.producer(key_serializer=serializer, value_serializer=serializer) as producer:
        assert (await producer.send(topic, "v", "k")).offset == 0
        with pytest.raises(SerializationError, match="the key of a record"):
            await producer.send(topic, "v", "fail")
        assert (await producer.send(topic, b"v", "k")).offset == 1
        assert (await producer.send(topic, "v", b"k")).offset == 2


async def test_the_result_of_an_async_serializer_can_be_too_large(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    made: list[Any] = [bytes(2_000_000), memoryview(b"abcd")[::2], bytearray(b"fits")]

    async def make(value: int) -> Any:
        return made[value]

    async with kafka_cluster.producer(value_serializer=make) as producer:
        with pytest.raises(RecordTooLargeError):
            await producer.send(topic, 0)
        with pytest.raises(SerializationError, match="contiguous"):
            await producer.send(topic, 1)
        await producer.send(topic, 2)
    assert _values(kafka_cluster, topic) == [b"fits"]


async def test_the_size_of_a_value_with_a_sync_serializer_is_not_estimated(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    class Record:
        def __sizeof__(self) -> int:
            raise ZeroDivisionError

    async with kafka_cluster.producer(value_serializer=lambda value: bytearray(b"made")) as producer:
        await producer.send(topic, Record())
    assert _values(kafka_cluster, topic) == [b"made"]


async def test_an_async_serializer_may_add_a_header_of_any_bytes(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    class Adding:
        def serialize(self, topic: str, value: bytes, headers: list[Any]) -> Any:
            return self.add(value, headers)

        async def add(self, value: bytes, headers: list[Any]) -> bytes:
            await asyncio.sleep(0)
            headers.append(("k", memoryview(b"abcd")[::2]))
            return value

    async with kafka_cluster.producer(value_serializer=Adding()) as producer:
        await asyncio.gather(producer.send(topic, b"1"), producer.send(topic, b"2"))
    assert [record.headers for record in kafka_cluster.records(topic, 0)] == [(("k", b"ac"),)] * 2


async def test_a_partitioner_that_raises_cancelled_error_fails_only_its_record(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    def choose(topic: str, key: Any, value: Any, cluster: Any) -> int:
        if value == b"bad":
            raise asyncio.CancelledError
        return 0

    async with kafka_cluster.producer(partitioner_class=choose) as producer:
        # In a queue, then with the topic known.
        bad, good = producer.send(topic, b"bad"), producer.send(topic, b"good")
        with pytest.raises(KafkaError, match="partitioner failed"):
            await bad
        await good
        with pytest.raises(KafkaError, match="partitioner failed"):
            producer.send(topic, b"bad")
    assert _values(kafka_cluster, topic) == [b"good"]


async def test_memory_is_bounded_for_any_serializer_results(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """Records are queued by an estimated size; their serialized sizes could once exceed buffer_memory in total."""

    async def make(value: int) -> bytes:
        return bytes(40_000)

    async with kafka_cluster.producer(value_serializer=make, buffer_memory=100_000) as producer:
        deliveries = [producer.send(topic, number) for number in range(20)]
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {RecordMetadata, BufferExhaustedError}


async def test_a_fatal_error_fails_records_being_serialized(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    serializer = SlowSerializer()
    async with kafka_cluster.producer(value_serializer=serializer, linger_ms=0) as producer:
        await producer.send(topic, b"known")
        kafka_cluster.fail("Produce", "CLUSTER_AUTHORIZATION_FAILED")
        with pytest.raises(KafkaError):
            await producer.send(topic, b"refused")
        slow = producer.send(topic, "slow")
        serializer.may_go.set()
        with pytest.raises(KafkaError):
            await slow


# Interceptors


class Recorder:
    """Records its calls, and adds its name to the value."""

    def __init__(self, name: bytes = b"") -> None:
        self.name = name
        self.seen: list[tuple[RecordMetadata, type | None, Sequence[HeaderPair]]] = []
        self.closed = 0

    def on_send(self, record: Record) -> Record:
        assert isinstance(record.value, bytes | None)
        return record.replace(value=(record.value or b"") + self.name)

    def on_acknowledgement(
        self, metadata: RecordMetadata, exception: BaseException | None, headers: Sequence[HeaderPair]
    ) -> None:
        self.seen.append((metadata, None if exception is None else type(exception), headers))

    def close(self) -> None:
        self.closed += 1


class OldRecorder:
    """An interceptor from before KIP-512, with two arguments."""

    def __init__(self) -> None:
        self.seen: list[RecordMetadata] = []

    def on_acknowledgement(self, metadata: RecordMetadata, exception: BaseException | None) -> None:
        self.seen.append(metadata)


class Broken:
    def on_send(self, record: Record) -> Record:
        raise ZeroDivisionError

    def on_acknowledgement(self, metadata: RecordMetadata, exception: BaseException | None) -> None:
        raise ZeroDivisionError


async def test_interceptors_run_in_order(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    first, second, old = Recorder(b"1"), Recorder(b"2"), OldRecorder()
    async with kafka_cluster.producer(interceptor_classes=[first, Broken(), second, old]) as producer:
        metadata = await producer.send(topic, b"v", headers=[("h", b"x")])
    assert _values(kafka_cluster, topic) == [b"v12"]
    assert first.seen == second.seen == [(metadata, None, (("h", b"x"),))]
    assert old.seen == [metadata]
    assert (first.closed, second.closed) == (1, 1)


async def test_interceptors_may_change_the_topic(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    class Redirect:
        def on_send(self, record: Record) -> Record:
            return record.replace(topic=topic, partition=0, timestamp_ms=5)

    async with kafka_cluster.producer(interceptor_classes=[Redirect()]) as producer:
        assert (await producer.send("elsewhere", b"v")).topic == topic
    assert kafka_cluster.records(topic, 0)[0].timestamp_ms == 5


async def test_interceptors_get_every_outcome_once_with_the_known_metadata(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    recorder = Recorder()
    async with kafka_cluster.producer(
        interceptor_classes=[recorder], linger_ms=0, max_block_ms=100, max_request_size=10_000
    ) as producer:
        await know_topic(producer, topic)
        await producer.send(topic, b"acked")
        kafka_cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(TopicAuthorizationError):
            await producer.send(topic, b"refused")
        with pytest.raises(RecordTooLargeError):
            await producer.send(topic, bytes(20_000))
        await asyncio.sleep(0)
        wrong: Any = 5
        with pytest.raises(TypeError, match="key must be bytes"):
            producer.send(topic, None, wrong)
        with pytest.raises(KafkaTimeoutError):
            await producer.send(topic, b"no such partition", partition=8)
        withdrawn = producer.send(topic, b"withdrawn", partition=9)
        assert withdrawn.cancel()
        await asyncio.sleep(0)
        cancelled = producer.send(topic, b"cancelled, but delivered")
        assert cancelled.cancel()
    assert [(metadata.partition, metadata.offset, kind) for metadata, kind, _ in recorder.seen] == [
        (0, 0, None),
        (0, None, TopicAuthorizationError),
        (-1, None, RecordTooLargeError),
        (-1, None, TypeError),
        (8, None, MetadataTimeoutError),
        (9, None, asyncio.CancelledError),
        (0, 1, None),
    ]
    assert {metadata.topic for metadata, _, _ in recorder.seen} == {topic}


async def test_interceptors_get_the_outcomes_of_a_closed_producer() -> None:
    recorder = Recorder()
    producer = Producer(bootstrap_servers=NOWHERE, interceptor_classes=[recorder])
    await producer.start()
    producer.send("t", b"1", partition=3)
    producer.send("t", b"2").cancel()
    await producer.close(0)
    await asyncio.sleep(0)
    told = {metadata.partition: kind for metadata, kind, _ in recorder.seen}
    assert told == {3: ProducerClosedError, -1: asyncio.CancelledError}
    assert len(recorder.seen) == 2


class AddingSerializer:
    """Adds a ``RecordHeader``, at once or later."""

    def __init__(self, *, later: bool) -> None:
        self._later = later

    def serialize(self, topic: str, value: bytes, headers: list[HeaderPair]) -> Any:
        if self._later:
            return self._add(value, headers)
        headers.append(RecordHeader("sync", b"1"))
        return value

    async def _add(self, value: bytes, headers: list[HeaderPair]) -> bytes:
        await asyncio.sleep(0)
        headers.append(RecordHeader("async", None))
        return value


@pytest.mark.parametrize("intercepts", [False, True])
async def test_a_record_header_is_accepted_wherever_a_pair_is(
    kafka_cluster: EmbeddedCluster, topic: str, intercepts: bool
) -> None:
    """``RecordHeader`` was once only a type alias of the pair: calling it raised a TypeError of ``tuple``."""

    class Interceptor:
        def on_send(self, record: Record) -> Record:
            return record.replace(headers=[*record.headers, RecordHeader("intercepted", b"2")])

    interceptors = [Interceptor()] if intercepts else []
    sent = RecordHeader("sent", b"0")
    expected = [("sent", b"0"), *([("intercepted", b"2")] if intercepts else [])]
    for later, added in ((False, ("sync", b"1")), (True, ("async", None))):
        async with kafka_cluster.producer(
            value_serializer=AddingSerializer(later=later), interceptor_classes=interceptors
        ) as producer:
            await producer.send(topic, b"v", headers=[sent])
        assert kafka_cluster.records(topic, 0)[-1].headers == (*expected, added)
    async with kafka_cluster.producer() as producer:
        await producer.send(topic, b"v", headers=(sent,))
        await producer.send_record(Record(topic, b"v", headers=[sent]))
        await producer.send_many(topic, [b"v"], headers=[[sent]])
    assert [record.headers for record in kafka_cluster.records(topic, 0)[-3:]] == [(sent,)] * 3


async def test_interceptors_get_headers_that_serializers_add(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    recorder, serializer = Recorder(), SlowSerializer()
    serializer.may_go.set()
    async with kafka_cluster.producer(interceptor_classes=[recorder], key_serializer=serializer) as producer:
        await producer.send(topic, b"v", "key", headers=[("h", b"1")])
    assert recorder.seen[0][2] == (("h", b"1"), ("by", b"serializer"))


class Tracing:
    """Appends a trace context, as a tracer does, and records the headers of each outcome."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int | None, BaseException | None, Sequence[HeaderPair]]] = []

    def on_headers(self, topic: str, headers: list[HeaderPair]) -> None:
        headers.append(("traceparent", topic.encode()))

    def on_acknowledgement(
        self, metadata: RecordMetadata, exception: BaseException | None, headers: Sequence[HeaderPair]
    ) -> None:
        self.outcomes.append((metadata.offset, exception, headers))


@pytest.mark.parametrize("given", [(), [("h", b"1")], (("h", bytearray(b"1")),), {"h": memoryview(b"1")}.items()])
async def test_interceptors_append_headers_without_a_record(
    kafka_cluster: EmbeddedCluster, topic: str, given: Any
) -> None:
    tracing = Tracing()
    async with kafka_cluster.producer(interceptor_classes=[tracing]) as producer:
        await producer.send(topic, b"v", headers=given)
        assert [offset for offset, _, _ in tracing.outcomes] == [0]
    trace = ("traceparent", topic.encode())
    expected = (*([("h", b"1")] if given else []), trace)
    assert kafka_cluster.records(topic, 0)[0].headers == expected
    assert tracing.outcomes == [(0, None, expected)]
    if isinstance(given, list):
        assert given == [("h", b"1")]


async def test_headers_are_appended_after_on_send_and_before_the_serializers(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    class Both(Tracing):
        def on_send(self, record: Record) -> Record:
            return record.replace(topic=topic, headers=[("sent", b"1")])

    async with kafka_cluster.producer(
        interceptor_classes=[Both()], value_serializer=AddingSerializer(later=False)
    ) as producer:
        await producer.send("elsewhere", b"v")
    names = [name for name, _ in kafka_cluster.records(topic, 0)[0].headers]
    assert names == ["sent", "traceparent", "sync"]


@pytest.mark.parametrize("wrong", [5, "", None])
async def test_a_wrong_topic_is_rejected_before_the_interceptors(kafka_cluster: EmbeddedCluster, wrong: Any) -> None:
    tracing = Tracing()
    async with kafka_cluster.producer(interceptor_classes=[tracing]) as producer:
        with pytest.raises((TypeError, ValueError), match="topic"):
            producer.send(wrong, b"v")
    assert tracing.outcomes == []


async def test_an_outcome_is_reported_before_its_awaiter_resumes(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    tracing = Tracing()
    async with kafka_cluster.producer(interceptor_classes=[tracing], linger_ms=0) as producer:
        for number in range(20):
            await producer.send(topic, b"v", partition=0)
            assert len(tracing.outcomes) == number + 1
        await asyncio.gather(*[producer.send(topic, b"v", partition=0) for _ in range(20)])
        assert len(tracing.outcomes) == 40
        producer.send(topic, b"v", partition=0)
        await producer.flush()
        assert len(tracing.outcomes) == 41
        await producer.send_many(topic, [b"v"] * 5, partition=0, headers=[[("n", b"1")]] * 5)
    assert [offset for offset, _, _ in tracing.outcomes] == list(range(46))
    assert tracing.outcomes[-1][2] == (("n", b"1"), ("traceparent", topic.encode()))


async def test_an_interceptor_may_send(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """Sends a record for each outcome, as an audit trail; it ignores the outcomes of these."""

    class Auditing:
        producer: Producer

        def on_acknowledgement(
            self, metadata: RecordMetadata, exception: BaseException | None, headers: Sequence[HeaderPair]
        ) -> None:
            if metadata.topic == topic:
                self.producer.send("audit", str(metadata.offset).encode())

    kafka_cluster.create_topic("audit")
    auditing = Auditing()
    async with kafka_cluster.producer(interceptor_classes=[auditing]) as producer:
        auditing.producer = producer
        for _ in range(100):
            producer.send(topic, b"v")
        await producer.flush()
    assert _values(kafka_cluster, "audit") == [b"%d" % number for number in range(100)]


async def test_send_record_behaves_like_send(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(interceptor_classes=[Recorder(b"!")]) as producer:
        await producer.send_record(Record(topic, b"v", b"k", 0, 7, [("h", None)]))
    assert kafka_cluster.records(topic, 0)[0][3:] == (7, b"k", b"v!", (("h", None),))


async def test_a_partitioner_is_called_once_per_record_on_every_path(
    kafka_cluster: EmbeddedCluster,
) -> None:
    kafka_cluster.create_topic("parted", 3)
    asked: list[bytes | None] = []

    def choose(topic: str, key: bytes | None, value: bytes | None, cluster: object) -> int:
        asked.append(value)
        return len(value or b"") % 3

    # Some wait for metadata, some for memory, some find an open batch and some do not.
    values = [b"%d" % number * (1 + number % 70) for number in range(500)]
    async with kafka_cluster.producer(partitioner_class=choose, batch_size=1000, buffer_memory=16000) as producer:
        for number, value in enumerate(values):
            producer.send("parted", value)
            if number % 10 == 9:
                await producer.drain()
        wrong: Any = "no bytes"
        with pytest.raises(TypeError, match="value must be bytes-like"):
            producer.send("parted", wrong)
        await producer.flush()
    assert sorted(map(bytes, asked)) == sorted(values)
    for partition in range(3):
        stored = [record.value for record in kafka_cluster.records("parted", partition)]
        assert stored == [value for value in values if len(value) % 3 == partition]
