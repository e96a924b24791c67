"""``send_many`` and ``send_arrow``: columns in, one result out."""

from __future__ import annotations

import array
import asyncio
import tracemalloc
from collections import deque
from typing import Any
from unittest.mock import Mock

import pyarrow
import pytest

from aioproducer import Producer, SendManyError, SendManyResult, TopicPartition
from aioproducer._client.bulk import ColumnsSender
from aioproducer.errors import (
    BufferExhaustedError,
    InvalidRecordError,
    ProducerClosedError,
    RecordTooLargeError,
    SerializationError,
    TopicAuthorizationError,
)
from aioproducer.testing import EmbeddedCluster
from tests.waiting import know_topic

pytestmark = pytest.mark.kafka_cluster(transport="memory")

MAX_IN_FLIGHT = 5
"""Kafka's ``max.in.flight.requests.per.connection``."""
HEADER_TYPE = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


@pytest.fixture
async def topic(kafka_cluster: EmbeddedCluster) -> str:
    kafka_cluster.create_topic("topic", 4)
    return "topic"


async def test_columns_arrive_in_order_at_the_returned_offsets(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    count = 3000
    values = [b"%d" % number for number in range(count)]
    keys = [b"k%d" % (number % 10) if number % 3 else None for number in range(count)]
    timestamps = [1_000_000 + number for number in range(count)]
    headers = [[("h", b"%d" % number)] if number % 2 else [] for number in range(count)]
    async with kafka_cluster.producer(batch_size=1000) as producer:
        result = await producer.send_many(topic, values, keys=keys, timestamps_ms=timestamps, headers=headers)
    assert (result.count, result.acked) == (count, count)
    stored = [kafka_cluster.records(topic, place) for place in range(4)]
    assert result.offsets == {place: [range(len(records))] for place, records in enumerate(stored) if records}
    for records in stored:
        numbers = [int(record.value or b"-1") for record in records]
        assert numbers == sorted(numbers)
        for number, record in zip(numbers, records, strict=True):
            assert record[3:] == (timestamps[number], keys[number], values[number], tuple(headers[number]))


async def test_offsets_exclude_records_of_other_senders(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(batch_size=2000, linger_ms=50) as producer:
        await producer.partitions_for(topic)
        first = asyncio.create_task(producer.send_many(topic, [b"a" * 10] * 300, partition=1))
        second = asyncio.create_task(producer.send_many(topic, [b"b" * 10] * 300, partition=1))
        for _ in range(100):
            producer.send(topic, b"c" * 10, partition=1)
            await asyncio.sleep(0)
        await asyncio.gather(first, second)
    stored = kafka_cluster.records(topic, 1)
    for task, letter in ((first, b"a"), (second, b"b")):
        offsets = [offset for each in task.result().offsets[1] for offset in each]
        assert offsets == [record.offset for record in stored if record.value == letter * 10]


@pytest.mark.parametrize(
    "values", [[b"1", b"2"], (b"1", b"2"), deque([b"1", b"2"]), [bytearray(b"1"), memoryview(b"2")]]
)
async def test_any_sequence_is_accepted(kafka_cluster: EmbeddedCluster, topic: str, values: Any) -> None:
    async with kafka_cluster.producer() as producer:
        assert await producer.send_many(topic, values, partition=0) == SendManyResult(2, 2, {0: [range(2)]})
    assert [record.value for record in kafka_cluster.records(topic, 0)] == [b"1", b"2"]


async def test_an_empty_sequence_sends_nothing(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer() as producer:
        assert await producer.send_many(topic, []) == SendManyResult(0, 0, {})


async def test_acks_zero_counts_what_was_written(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(acks=0) as producer:
        assert await producer.send_many(topic, [b"v"] * 10) == SendManyResult(10, 10, {})


@pytest.mark.parametrize("values", [(b"%d" % number for number in range(3)), b"abc", "abc", {b"1": 1}, {b"1"}, 5])
async def test_a_value_that_is_not_a_sequence_is_rejected(
    kafka_cluster: EmbeddedCluster, topic: str, values: Any
) -> None:
    async with kafka_cluster.producer() as producer:
        with pytest.raises(TypeError, match=r"values must be a sequence or a pyarrow array, not .* pass a list"):
            await producer.send_many(topic, values)


async def test_columns_must_be_of_one_length(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer() as producer:
        for name in ("keys", "timestamps_ms", "headers"):
            columns: dict[str, Any] = {name: [None]}
            with pytest.raises(ValueError, match=f"{name} has 1 entries for 2 values"):
                await producer.send_many(topic, [b"1", b"2"], **columns)


# Failures


async def test_failures_are_reported_with_the_result(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(linger_ms=20) as producer:
        await producer.send_many(topic, [b"v"] * 4, partition=1)
        kafka_cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(SendManyError, match=f"10 of 10 records .* The failed partition is {topic}-0") as failed:
            await producer.send_many(topic, [b"v"] * 10, partition=0)
        assert failed.value.result == SendManyResult(10, 0, {})
        assert {place: type(error) for place, error in failed.value.errors.items()} == {
            TopicPartition(topic, 0): TopicAuthorizationError
        }


async def test_only_records_that_are_too_large_fail(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer() as producer:
        with pytest.raises(SendManyError) as failed:
            await producer.send_many(topic, [b"1", bytes(2_000_000), b"3"], partition=0)
    assert failed.value.result == SendManyResult(3, 2, {0: [range(2)]})
    assert [type(error) for error in failed.value.errors.values()] == [RecordTooLargeError]


async def test_a_split_batch_has_the_offsets_of_its_parts(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(batch_size=50_000, linger_ms=50) as producer:
        await producer.send(topic, b"v", partition=0)
        kafka_cluster.fail("Produce", "MESSAGE_TOO_LARGE")
        result = await producer.send_many(topic, [b"%d" % number + bytes(900) for number in range(40)], partition=0)
        assert producer.metrics()["batch-split-total"] == 1
    assert result == SendManyResult(40, 40, {0: [range(1, 41)]})


async def test_a_part_of_a_split_batch_can_fail(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(
        batch_size=50_000, linger_ms=50, max_in_flight_requests_per_connection=1, enable_idempotence=False
    ) as producer:
        await producer.send(topic, b"v", partition=0)
        kafka_cluster.fail("Produce", "MESSAGE_TOO_LARGE", times=2)
        kafka_cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(SendManyError) as failed:
            await producer.send_many(topic, [bytes(900)] * 40, partition=0)
    result = failed.value.result
    assert isinstance(result, SendManyResult)
    assert 0 < result.acked < 40
    assert result.offsets == {0: [range(1, 1 + result.acked)]}


async def test_an_error_in_the_middle_reports_how_many_records_were_accepted(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    values: list[Any] = [b"%d" % number for number in range(1000)]
    values[500] = "text"
    async with kafka_cluster.producer() as producer:
        await producer.partitions_for(topic)
        with pytest.raises(TypeError, match="value must be bytes-like") as raised:
            await producer.send_many(topic, values, partition=0)
    assert raised.value.__notes__ == [
        f"500 of 1000 records of this send_many for topic {topic!r} were accepted before the error; "
        "their delivery continues"
    ]
    assert [record.value for record in kafka_cluster.records(topic, 0)] == values[:500]


async def test_a_serializer_error_ends_send_many_at_that_record(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(value_serializer=str.encode) as producer:
        with pytest.raises(SerializationError) as raised:
            await producer.send_many(topic, ["1", 2, "3"], partition=0)
    assert raised.value.__notes__[0].startswith("1 of 3 records")
    assert [record.value for record in kafka_cluster.records(topic, 0)] == [b"1"]


async def test_cancelling_send_many_leaves_nothing_pending(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(buffer_memory=10_000, linger_ms=0) as producer:
        task = asyncio.create_task(producer.send_many(topic, [bytes(100)] * 100_000, partition=0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(producer.flush(), 5)
        waiting = asyncio.create_task(producer.send_many(topic, [bytes(100)] * 10))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_closing_the_producer_during_send_many_raises(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    producer = kafka_cluster.producer(buffer_memory=10_000)
    await producer.start()
    task = asyncio.create_task(producer.send_many(topic, [bytes(100)] * 100_000, partition=0))
    await asyncio.sleep(0.05)
    await producer.close(0)
    with pytest.raises(ProducerClosedError):
        await task


# Room


@pytest.mark.parametrize("buffer_memory", [2000, 20_000])
async def test_a_small_buffer_is_enough_for_many_records(
    kafka_cluster: EmbeddedCluster, topic: str, buffer_memory: int
) -> None:
    values = [b"%04d" % number * 20 for number in range(1000)]
    async with kafka_cluster.producer(buffer_memory=buffer_memory, linger_ms=0, batch_size=1000) as producer:
        result = await producer.send_many(topic, values, partition=0)
    assert result == SendManyResult(1000, 1000, {0: [range(1000)]})
    assert [record.value for record in kafka_cluster.records(topic, 0)] == values


async def test_large_records_wait_for_room_before_the_topic_is_known(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    async with kafka_cluster.producer(buffer_memory=100_000) as producer:
        result = await producer.send_many(topic, [bytes(40_000)] * 20, partition=0)
    assert result.acked == 20


async def test_arrow_columns_of_megabytes_are_sent_before_the_topic_is_known(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    values = [b"%d" % number + bytes(999_000) for number in range(30)]
    async with kafka_cluster.producer() as producer, asyncio.timeout(30):
        result = await producer.send_many(topic, pyarrow.array(values), partition=0)
    assert result.acked == 30
    assert [record.value for record in kafka_cluster.records(topic, 0)] == values


async def test_none_among_the_headers_means_a_record_without_headers(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    async with kafka_cluster.producer() as producer:
        await producer.send_many(topic, [b"1", b"2"], partition=0, headers=[None, [("k", b"v")]])
    assert [record.headers for record in kafka_cluster.records(topic, 0)] == [(), (("k", b"v"),)]


async def test_send_many_waits_for_a_queue_filled_by_other_senders(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(buffer_memory=100_000) as producer:
        others = [producer.send(topic, bytes(30_000), partition=1) for _ in range(3)]
        with pytest.raises(BufferExhaustedError):
            producer.send(topic, bytes(60_000))
        assert (await producer.send_many(topic, [bytes(60_000)] * 2, partition=0)).acked == 2
        assert all(delivery.done() for delivery in others)


@pytest.mark.parametrize(("memory", "tasks", "size"), [(4096, 20, 1000), (20_000, 10, 9000)])
async def test_concurrent_calls_wait_for_room_in_order(
    kafka_cluster: EmbeddedCluster, topic: str, memory: int, tasks: int, size: int
) -> None:
    """All once waited for the same flush; the first filled the queue again, and the others failed."""
    async with kafka_cluster.producer(buffer_memory=memory, batch_size=1000, linger_ms=0) as producer:
        await producer.partitions_for(topic)
        results = await asyncio.gather(*[producer.send_many(topic, [bytes(size)] * 5) for _ in range(tasks)])
    assert [result.acked for result in results] == [5] * tasks
    assert len(kafka_cluster.records(topic)) == 5 * tasks


async def test_send_many_fails_if_there_is_no_room_within_max_block_ms(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    config = {"max_block_ms": 200, "request_timeout_ms": 300, "delivery_timeout_ms": 400}
    async with kafka_cluster.producer(buffer_memory=5000, linger_ms=0, **config) as producer:
        await know_topic(producer, topic)
        kafka_cluster.delay("Produce", 60_000, times=None)
        results = await asyncio.gather(
            *[producer.send_many(topic, [bytes(2000)] * 5) for _ in range(5)], return_exceptions=True
        )
        kafka_cluster.clear_faults()
    assert all(isinstance(result, BufferExhaustedError | SendManyError) for result in results)


async def test_the_record_that_the_broker_rejects_has_the_reason(kafka_cluster: EmbeddedCluster) -> None:
    """The error once said that other records were rejected, but not which or why."""
    kafka_cluster.create_topic("compacted", 1, configs={"cleanup.policy": "compact"})
    async with kafka_cluster.producer() as producer:
        with pytest.raises(SendManyError) as caught:
            await producer.send_many("compacted", [b"v"] * 3, keys=[b"a", None, b"c"], partition=0)
    (error,) = caught.value.errors.values()
    assert isinstance(error, InvalidRecordError)
    assert "Compacted topic cannot accept message without key" in str(error)


async def test_memory_use_follows_the_batches_in_progress_and_not_the_record_count(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    """A Delivery for each record would take more than 50 bytes a record."""
    count = 100_000
    values = [b"v" * 10] * count
    # Compressed, so that the cluster, in this process, stores next to nothing.
    async with kafka_cluster.producer(buffer_memory=200_000, compression_type="zstd") as producer:
        await producer.send_many(topic, values[:1000], partition=0)
        tracemalloc.start()
        try:
            await producer.send_many(topic, values, partition=0)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 20 * count


async def test_other_tasks_run_during_send_many(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer() as producer:
        task = asyncio.create_task(producer.send_many(topic, [bytes(100)] * 20_000, partition=0))
        turns = 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 20
        await task


async def test_send_many_waits_only_for_its_own_records(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer(linger_ms=100_000, max_block_ms=60_000) as producer:
        stuck = producer.send(topic, b"v", partition=99)
        kafka_cluster.create_topic("other")
        await asyncio.wait_for(producer.send_many("other", [b"v"] * 10), 5)
        assert not stuck.done()
        stuck.cancel()


# Arrow


async def test_arrow_columns(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    batch = pyarrow.record_batch(
        {
            "value": pyarrow.array([b"1", None, b"3"]),
            "key": pyarrow.array(["a", "é", None]),
            "time": pyarrow.array([1_000, 2_000, 3_000], pyarrow.timestamp("us")),
            "headers": pyarrow.array([[{"key": "h", "value": b"1"}], None, []], HEADER_TYPE),
        }
    )
    async with kafka_cluster.producer() as producer:
        result = await producer.send_arrow(topic, batch, key="key", partition=2, timestamp_ms="time", headers="headers")
        assert result == SendManyResult(3, 3, {2: [range(3)]})
        assert (await producer.send_arrow(topic, pyarrow.table({"value": [b"4"]}), partition=2)).acked == 1
        with pytest.raises(KeyError, match="nothing"):
            await producer.send_arrow(topic, batch, value="nothing")
        with pytest.raises(TypeError, match=r"RecordBatch or Table, not list: convert it, a DataFrame with"):
            await producer.send_arrow(topic, [b"5"])
    stored = kafka_cluster.records(topic, 2)
    assert [record[3:] for record in stored[:3]] == [
        (1, b"a", b"1", (("h", b"1"),)),
        (2, "é".encode(), None, ()),
        (3, None, b"3", ()),
    ]
    assert stored[3].value == b"4"


@pytest.mark.skipif(not Producer.compiled, reason="the uncompiled build reads Arrow row by row")
async def test_arrow_rows_with_timestamps_and_headers_are_sent_in_bulk(
    kafka_cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were once sent one by one, at a fifth of the speed of rows without headers."""
    count = 5000
    numbers = range(count)
    async with kafka_cluster.producer(batch_size=2000) as producer:
        await producer.send(topic, b"the topic is known from here on", partition=1)
        send = Mock(side_effect=producer.send)
        monkeypatch.setattr(producer, "send", send)
        result = await producer.send_many(
            topic,
            pyarrow.array([b"%d" % number for number in numbers]),
            partition=0,
            timestamps_ms=pyarrow.array([number if number % 2 else None for number in numbers]),
            headers=pyarrow.array(
                [[("number", b"%d" % number)] if number % 3 else None for number in numbers], HEADER_TYPE
            ),
        )
        assert result == SendManyResult(count, count, {0: [range(count)]})
        # One call after each pause for other tasks, for each piece of the columns.
        assert send.call_count < count / 100
    for number, record in enumerate(kafka_cluster.records(topic, 0)):
        assert record.value == b"%d" % number
        assert record.headers == ((("number", b"%d" % number),) if number % 3 else ())
        assert record.timestamp_ms == number if number % 2 else record.timestamp_ms > 10**12


async def test_an_arrow_header_without_a_key_ends_send_many_at_that_row(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    headers = pyarrow.array([[("a", b"1")], [(None, b"2")], []], HEADER_TYPE)
    async with kafka_cluster.producer() as producer:
        await producer.send(topic, b"", partition=1)
        with pytest.raises(TypeError, match="header") as caught:
            await producer.send_many(topic, pyarrow.array([b"1", b"2", b"3"]), partition=0, headers=headers)
        assert "1 of 3 records of this send_many" in caught.value.__notes__[0]
    assert [record.headers for record in kafka_cluster.records(topic, 0)] == [(("a", b"1"),)]


@pytest.mark.parametrize("kind", ["string", "large_binary", "binary_view", "dictionary", "chunked", "sliced"])
async def test_arrow_arrays_of_many_kinds(kafka_cluster: EmbeddedCluster, topic: str, kind: str) -> None:
    texts = [f"value {number}" for number in range(2500)]
    column: Any = {
        "string": lambda: pyarrow.array(texts),
        "large_binary": lambda: pyarrow.array([text.encode() for text in texts], pyarrow.large_binary()),
        "binary_view": lambda: pyarrow.array([text.encode() for text in texts], pyarrow.binary_view()),
        "dictionary": lambda: pyarrow.array(texts).dictionary_encode(),
        "chunked": lambda: pyarrow.chunked_array([texts[:7], [], texts[7:]], pyarrow.string()),
        "sliced": lambda: pyarrow.array([None, *texts, "x"]).slice(1, 2500),
    }[kind]()
    async with kafka_cluster.producer() as producer:
        assert (await producer.send_many(topic, column, keys=column, partition=0)).acked == 2500
    stored = kafka_cluster.records(topic, 0)
    assert [(record.key, record.value) for record in stored] == [(text.encode(), text.encode()) for text in texts]


async def test_serializers_get_the_python_values_of_arrow(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """A string column was once converted to bytes before a StringSerializer, which takes str, was called."""
    package = "org.apache.kafka.common.serialization"
    async with kafka_cluster.producer(value_serializer=f"{package}.StringSerializer") as producer:
        await producer.send_many(topic, pyarrow.array(["é"]), keys=pyarrow.array(["k"]), partition=0)
    async with kafka_cluster.producer(key_serializer=f"{package}.LongSerializer") as producer:
        await producer.send_many(topic, pyarrow.array(["v"]), keys=pyarrow.array([1]), partition=0)
    stored = kafka_cluster.records(topic, 0)
    assert [(record.key, record.value) for record in stored] == [(b"k", "é".encode()), (bytes(7) + b"\x01", b"v")]


async def test_arrow_numbers_without_a_serializer_are_rejected(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with kafka_cluster.producer() as producer:
        with pytest.raises(TypeError, match="value must be bytes-like"):
            await producer.send_many(topic, pyarrow.array([1, 2]))


async def test_sequences_of_numbers_are_rejected_as_columns_of_bytes(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    async with kafka_cluster.producer() as producer:
        with pytest.raises(TypeError, match="value must be bytes-like"):
            await producer.send_many(topic, array.array("i", [1, 2]))


@pytest.mark.parametrize("values", [[b"v"], pyarrow.array([b"v"])], ids=["list", "arrow"])
async def test_a_wrong_partition_is_named_for_every_kind_of_column(
    kafka_cluster: EmbeddedCluster, topic: str, values: Any
) -> None:
    """For Arrow columns the error was once that of an internal comparison."""
    async with kafka_cluster.producer() as producer:
        await producer.send(topic, b"the topic is known")
        with pytest.raises(TypeError, match="partition must be int, not str"):
            await producer.send_many(topic, values, partition="0")  # type: ignore[arg-type]  # what is tested


async def test_a_failure_behind_an_unfinished_batch_is_seen_at_once(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.fail(api="Produce", error="INVALID_RECORD", topic=topic, partition=1)
    async with kafka_cluster.producer(linger_ms=60_000, batch_size=1000) as producer:
        await producer.partitions_for(topic)
        sender = ColumnsSender(producer)
        await sender.send(topic, [b"lingers"], partition=0)
        await sender.send(topic, [b"refused" * 200], partition=1)
        async with asyncio.timeout(5):
            while not sender.errors:
                sender.settle_finished()
                await asyncio.sleep(0)
        assert (sender.count, sender.acked, [*sender.errors]) == (2, 0, [TopicPartition(topic, 1)])
        await sender.settle_all()
        assert sender.acked == 1


async def test_a_cancelled_settle_all_loses_no_result(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    kafka_cluster.delay(api="Produce", delay_ms=50)
    async with kafka_cluster.producer(linger_ms=0) as producer:
        await producer.partitions_for(topic)
        sender = ColumnsSender(producer)
        await sender.send(topic, [b"value"], partition=0)
        settling = asyncio.create_task(sender.settle_all())
        await asyncio.sleep(0)
        settling.cancel()
        await asyncio.wait([settling])
        assert sender.acked == 0
        await sender.settle_all()
        assert sender.acked == 1


async def test_the_number_of_full_batches_waiting_to_be_sent_is_bounded(
    kafka_cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioproducer._client.bulk.WAITING_TO_BE_SENT", 10)
    monkeypatch.setattr("aioproducer._client.bulk.LONGEST_TURN", 0)
    kafka_cluster.delay(api="Produce", delay_ms=20, times=None)
    async with kafka_cluster.producer(linger_ms=60_000, batch_size=1000) as producer:
        await producer.partitions_for(topic)
        sender = ColumnsSender(producer)
        # One in each batch, the last of which takes more.
        await sender.send(topic, [b"x" * 900] * 10, partition=0)
        assert sender.acked == 0
        for number in range(2, 5):
            await sender.send(topic, [b"x" * 900] * 10, partition=0)
            assert sender.count - sender.acked <= 10 + 1 + MAX_IN_FLIGHT
            assert sender.count == 10 * number
        monkeypatch.setattr("aioproducer._client.bulk.WAITING_TO_BE_SENT", 0)
        await sender.send(topic, [b"lingers"], partition=1)
        assert 41 - 2 - MAX_IN_FLIGHT <= sender.acked <= 41 - 2, "what still takes records is not waited for"
        await sender.settle_all()
        assert sender.acked == 41


async def test_a_retried_batch_does_not_delay_other_partitions(
    kafka_cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioproducer._client.bulk.WAITING_TO_BE_SENT", 2)
    monkeypatch.setattr("aioproducer._client.bulk.LONGEST_TURN", 0)
    kafka_cluster.fail(api="Produce", error="NOT_ENOUGH_REPLICAS", topic=topic, partition=0, times=None)
    async with kafka_cluster.producer(linger_ms=60_000, batch_size=1000) as producer:
        await producer.partitions_for(topic)
        sender = ColumnsSender(producer)
        await sender.send(topic, [b"x" * 900] * 2, partition=0)
        await sender.send(topic, [b"x" * 900] * 40, partition=1)
        assert sender.acked >= 20
        assert not kafka_cluster.records(topic, 0)
        kafka_cluster.clear_faults()
        await sender.settle_all()
        assert sender.acked == 42
