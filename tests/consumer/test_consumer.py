"""The consumer of assigned partitions, against the embedded cluster."""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
import sys
import threading
from random import Random

import pytest

from aioproducer import Consumer, ConsumerRecord, OffsetAndMetadata, TopicPartition
from aioproducer.consumer import decoding
from aioproducer.consumer.decoding import SLICE
from aioproducer.core.fetching import buffer
from aioproducer.core.fetching.buffer import THREAD_BYTES, decompressed
from aioproducer.core.fetching.memory import RECORD_OVERHEAD
from aioproducer.deserializers import IntegerDeserializer, JsonDeserializer, StringDeserializer
from aioproducer.errors import (
    ConfigurationError,
    ConsumerClosedError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    ProtocolError,
    RecordDeserializationError,
    TopicAuthorizationError,
    WrongCallerError,
    error_class,
)
from aioproducer.testing import EmbeddedCluster

from .virtual import on_virtual_time

A0 = TopicPartition("a", 0)


def consumer_of(cluster, **options):
    own = {"on_deserialization_error"} & options.keys()
    return cluster.consumer(
        **{name: options.pop(name) for name in own},
        **{
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
            "retry_backoff_ms": 10,
            "retry_backoff_max_ms": 50,
            **options,
        },
    )


async def fill(cluster, count=10, partitions=1, *, first=0, **config):
    """``count`` records with the values 0, 1, ..., of partition number % partitions, a second apart."""
    if "a" not in cluster.topics():
        cluster.create_topic("a", partitions)
    async with cluster.producer(**config) as producer:
        for number in range(first, first + count):
            producer.send("a", b"%d" % number, partition=number % partitions, timestamp_ms=1000 * number)
        await producer.flush()


async def read(consumer, count, timeout=10.0):
    """The values of the next ``count`` records."""
    found = []
    async with asyncio.timeout(timeout):
        while len(found) < count:
            found += [int((await anext(consumer)).value)]
    return found


async def polled(consumer, count, **options):
    found = []
    async with asyncio.timeout(10):
        while len(found) < count:
            for records in (await consumer.poll(1.0, **options)).values():
                found += [int(record.value) for record in records]
    return found


# Reading


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_are_read_as_they_were_sent(codec):
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with cluster.producer(compression_type=codec) as producer:
            await producer.send("a", b"value" * 100, key=b"key", headers=[("h", None), ("h", b"1")], timestamp_ms=17)
            await producer.send("a", None, timestamp_ms=18)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            first, second = await anext(consumer), await anext(consumer)
        assert first == ConsumerRecord("a", 0, 0, 17, b"key", b"value" * 100, (("h", None), ("h", b"1")), 0)
        assert second == ConsumerRecord("a", 0, 1, 18, None, None, (), 0)


@pytest.mark.parametrize("codec", ["gzip", "lz4"])
async def test_large_batches_are_decompressed_in_threads(codec, monkeypatch):
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        random = Random(1)
        async with cluster.producer(compression_type=codec, batch_size=2 * THREAD_BYTES, linger_ms=100) as producer:
            for _ in range(1000):
                producer.send("a", random.randbytes(500))
            await producer.flush()
        async with consumer_of(cluster) as consumer:
            consumer.assign([("a", 0)])
            loop = asyncio.get_running_loop()
            run, used = loop.run_in_executor, []
            monkeypatch.setattr(loop, "run_in_executor", lambda *args: (used.append(args), run(*args))[1])
            seen = []
            while len(seen) < 1000:
                seen += (await consumer.poll(1.0)).get(A0, [])
            assert [record.value for record in seen] == [record.value for record in cluster.records("a")]
            assert used
        async with asyncio.timeout(10):
            while any("decompressor" in thread.name for thread in threading.enumerate()):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)


async def fill_large_batches(cluster):
    """1000 records in a few batches that are decompressed in threads."""
    cluster.create_topic("a")
    random = Random(1)
    async with cluster.producer(compression_type="gzip", batch_size=2 * THREAD_BYTES, linger_ms=100) as producer:
        for _ in range(1000):
            producer.send("a", random.randbytes(500))
        await producer.flush()


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)


@pytest.fixture
def threads(monkeypatch):
    """Decompression waits for the event, and notes the base offset of each batch."""
    gate, begun = threading.Event(), []

    def wait_and_decompress(batch):
        begun.append(batch.base_offset)
        assert gate.wait(60)
        return decompressed(batch)

    monkeypatch.setattr(decoding, "decompressed", wait_and_decompress)
    yield gate, begun
    gate.set()


async def test_a_seek_while_a_thread_decompresses_ends_no_call(threads):
    gate, _ = threads
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill_large_batches(cluster)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            before = None
            for _ in range(3):
                # With two workers, the third batch waits for one.
                call = asyncio.ensure_future(consumer.poll(30.0))
                await until(lambda before=before: consumer._decoder._decompressing not in (None, before))
                before = consumer._decoder._decompressing
                consumer.seek(A0, 3)
                call.cancel()
                await asyncio.wait([call])
            call = asyncio.ensure_future(consumer.poll(30.0))
            await asyncio.sleep(0)
            consumer.seek(A0, 5)
            gate.set()
            assert (await call)[A0][0].offset == 5


async def test_a_batch_in_a_thread_survives_cancelled_calls(threads):
    """Each call decompressed it again: with a short timeout no call ever returned it."""
    gate, begun = threads
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill_large_batches(cluster)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            call = asyncio.ensure_future(consumer.poll(30.0))
            await until(lambda: begun)
            call.cancel()
            await asyncio.wait([call])
            call = asyncio.ensure_future(consumer.poll(30.0))
            for _ in range(5):
                await asyncio.sleep(0)
            gate.set()
            assert (await call)[A0][0].offset == 0
            assert begun.count(0) == 1


async def test_a_call_for_many_records_returns_what_its_part_of_the_memory_holds():
    """One call decoded all that arrived while it ran, however much that was."""
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 3000, 2, batch_size=1000)
        options = {"fetch_buffer_bytes": 200 * RECORD_OVERHEAD, "max_partition_fetch_bytes": 5000}
        async with consumer_of(cluster, **options) as consumer:
            consumer.assign([A0, ("a", 1)])
            seen = []
            while len(seen) < 3000:
                found = [each for part in (await consumer.poll(5.0, max_records=10**6)).values() for each in part]
                assert len(found) <= 50 + SLICE
                seen += [int(record.value) for record in found]
                assert consumer._fetcher.buffer.decoded <= 1000 * 2
            assert sorted(seen) == list(range(3000))


async def test_partitions_are_read_in_order_and_all_of_them():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 3000, 6, batch_size=1000)
        async with consumer_of(cluster, max_partition_fetch_bytes=2000) as consumer:
            consumer.assign([("a", index) for index in range(6)])
            found = await polled(consumer, 1500, max_records=100)
            found += await read(consumer, 3000 - len(found))
            assert sorted(found) == list(range(3000))
            for index in range(6):
                part = [value for value in found if value % 6 == index]
                assert part == sorted(part)
            assert await consumer.poll(0.1) == {}
            assert [consumer.lag(("a", index)) for index in range(6)] == [0] * 6


@on_virtual_time
async def test_poll_returns_at_most_max_records_and_nothing_without_records():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10)
        async with consumer_of(cluster, max_poll_records=4) as consumer:
            assert await consumer.poll(0.0) == {}
            consumer.assign([A0])
            assert [len((await consumer.poll(1.0))[A0]) for _ in range(2)] == [4, 4]
            assert len((await consumer.poll(1.0, max_records=1))[A0]) == 1
            assert await consumer.position(A0) == 9
            assert len((await consumer.poll(1.0, max_records=9))[A0]) == 1
            assert await consumer.poll(0.05) == {}


async def test_a_waiting_call_gets_a_record_when_it_arrives():
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with consumer_of(cluster, fetch_max_wait_ms=60_000) as consumer:
            consumer.assign([A0])
            await consumer.position(A0)
            waiting = asyncio.ensure_future(consumer.poll(30.0))
            await asyncio.sleep(0.05)
            await fill(cluster, 1)
            assert (await waiting)[A0][0].value == b"0"


@on_virtual_time
async def test_a_slow_reader_stops_the_fetches():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 2000, 4, batch_size=500)
        async with consumer_of(cluster, fetch_buffer_bytes=8000, max_partition_fetch_bytes=1000) as consumer:
            consumer.assign([("a", index) for index in range(4)])
            await asyncio.sleep(0.3)
            buffer = consumer._fetcher.buffer
            assert 0 < buffer.used <= 8000
            used = buffer.used
            await asyncio.sleep(0.2)
            assert buffer.used == used
            assert not consumer._fetcher.busy_nodes()
            assert sorted(await read(consumer, 2000)) == list(range(2000))


async def test_a_caller_that_polls_without_a_timeout_receives_records():
    """Each call lets the loop run once: a loop of calls with nothing else to await went on for ever."""
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 3)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            found = []
            for _ in range(100_000):
                found += [record.value for records in (await consumer.poll()).values() for record in records]
                if len(found) == 3:
                    break
            assert found == [b"0", b"1", b"2"]


async def test_poll_arrow_without_pyarrow_takes_no_records(monkeypatch):
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 3)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            with monkeypatch.context() as without:
                without.setitem(sys.modules, "pyarrow", None)
                with pytest.raises(ConfigurationError, match="pip install pyarrow"):
                    await consumer.poll_arrow(1.0)
            assert await polled(consumer, 3) == [0, 1, 2]


async def test_poll_arrow_returns_the_same_records_as_columns():
    pytest.importorskip("pyarrow")
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10, 2)
        async with cluster.producer() as producer:
            await producer.send("a", None, key=b"k", headers=[("h", b"1"), ("n", None)], partition=0, timestamp_ms=5)
        async with consumer_of(cluster) as consumer:
            assert (await consumer.poll_arrow(0.0)).num_rows == 0
            consumer.assign([("a", 0), ("a", 1)])
            rows = []
            while len(rows) < 11:
                rows += (await consumer.poll_arrow(1.0)).to_pylist()
            last = next(row for row in rows if row["key"] == b"k")
            assert (last["topic"], last["partition"], last["offset"], last["value"]) == ("a", 0, 5, None)
            assert last["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
            assert last["timestamp_ms"].timestamp() == 0.005
            assert sorted(int(row["value"]) for row in rows if row["key"] is None) == list(range(10))
        async with consumer_of(cluster, value_deserializer=bytes.decode) as consumer:
            with pytest.raises(ConfigurationError, match="without deserializers"):
                await consumer.poll_arrow()


@pytest.mark.parametrize("call", ["poll", "poll_arrow"])
async def test_records_before_a_batch_without_its_codec_are_returned_once(call, monkeypatch):
    if call == "poll_arrow":
        pytest.importorskip("pyarrow")

    def without_codec(batch):
        if batch.base_offset == 3:
            raise ConfigurationError("this codec needs a library")
        return decompressed(batch)

    async def request(consumer):
        if call == "poll_arrow":
            return (await consumer.poll_arrow(10.0))["offset"].to_pylist()
        return [record.offset for record in (await consumer.poll(10.0))[A0]]

    async with EmbeddedCluster(transport="memory") as cluster:
        for first in (0, 3):
            await fill(cluster, 3, first=first, compression_type="gzip", linger_ms=100)
        with monkeypatch.context() as patched:
            patched.setattr(buffer, "decompressed", without_codec)
            async with consumer_of(cluster, group_id="g", auto_commit_interval_ms=600_000) as consumer:
                consumer.assign([A0])
                assert await request(consumer) == [0, 1, 2]
                for _ in range(2):
                    with pytest.raises(ConfigurationError, match="this codec"):
                        await request(consumer)
        async with consumer_of(cluster, group_id="g") as consumer:
            assert (await consumer.committed(A0))[A0].offset == 3
            consumer.assign([A0])
            assert await request(consumer) == [3, 4, 5]


# Positions


async def test_seeks_continue_at_another_position():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            assert await read(consumer, 3) == [0, 1, 2]
            consumer.seek(A0, 7)
            assert await read(consumer, 2) == [7, 8]
            consumer.seek(A0, OffsetAndMetadata(5, leader_epoch=0))
            assert await read(consumer, 1) == [5]
            consumer.seek_to_beginning()
            assert await consumer.position(A0) == 0
            assert await read(consumer, 1) == [0]
            consumer.seek_to_end(A0)
            assert await consumer.position(A0) == 10
            assert consumer.assignment() == {A0}


async def test_offsets_for_times_are_those_of_the_first_records_not_older():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 10, 2)
        async with consumer_of(cluster) as consumer:
            wanted = {A0: 3500, TopicPartition("a", 1): 99_000}
            found = await consumer.offsets_for_times(wanted)
            assert found[A0] == (2, 4000, 0)
            assert found[TopicPartition("a", 1)] is None
            with pytest.raises(ValueError, match="must not be negative"):
                await consumer.offsets_for_times({A0: -1})
            with pytest.raises(error_class(3)):
                await consumer.offsets_for_times({TopicPartition("nope", 0): 1}, timeout=1.0)


@on_virtual_time
async def test_a_topic_that_does_not_exist_is_logged_once_and_read_when_it_does(caplog):
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        consumer_of(cluster, allow_auto_create_topics=False) as consumer,
    ):
        consumer.assign([A0, ("a", 1)])
        assert await consumer.poll(0.5) == {}
        await fill(cluster, 2, 2)
        assert sorted(await read(consumer, 2)) == [0, 1]
    assert caplog.text.count("The topic 'a' does not exist: nothing is read of it until it does") == 1


@on_virtual_time
async def test_a_topic_that_is_being_created_is_not_logged_as_missing(caplog):
    async with EmbeddedCluster(transport="memory") as cluster, consumer_of(cluster) as consumer:
        consumer.assign([A0])
        await consumer.poll(0.3)
        assert cluster.topics() == ["a"]
    assert "does not exist" not in caplog.text


@on_virtual_time
async def test_the_partitions_of_a_topic_can_be_asked_for():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        cluster.create_topic("a", 3)
        async with consumer_of(cluster) as consumer:
            found = await consumer.partitions_for("a")
            assert [each.partition for each in found] == [0, 1, 2]
            assert all(each.leader is not None and len(each.replicas) == 3 for each in found)
            consumer.assign([(each.topic, each.partition) for each in found])
            with pytest.raises(error_class(3)):
                await consumer.partitions_for("nope", timeout=1.0)
            with pytest.raises(ValueError, match="must have a name"):
                await consumer.partitions_for("")


@on_virtual_time
async def test_partitions_without_a_leader_are_waited_for():
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        cluster.fail("Metadata", "LEADER_NOT_AVAILABLE", times=2, topic="a")
        async with consumer_of(cluster) as consumer:
            assert len(await consumer.partitions_for("a")) == 1
            # Now that they are known, metadata are applied that name no leader.
            cluster.fail("Metadata", "LEADER_NOT_AVAILABLE", times=2, topic="a")
            await consumer._clients.control.renew_metadata(5.0)
            assert len(await consumer.partitions_for("a")) == 1
        cluster.fail("Metadata", "LEADER_NOT_AVAILABLE", times=None, topic="a")
        async with consumer_of(cluster) as consumer:
            with pytest.raises(KafkaTimeoutError, match=r"partitions of a were not found within 0\.3 s"):
                await consumer.partitions_for("a", timeout=0.3)


@on_virtual_time
async def test_the_first_and_last_offsets_are_those_of_the_log():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 10, 2)
        other = TopicPartition("a", 1)
        cluster.broker_cluster.brokers[cluster.leader("a", 0)].replicas.leader("a", 0).delete_records(3)
        async with consumer_of(cluster) as consumer:
            assert await consumer.beginning_offsets(A0, ("a", 1)) == {A0: 3, other: 0}
            assert await consumer.end_offsets(("a", 1)) == {other: 5}
            assert await consumer.end_offsets() == {}
            consumer.assign([A0])
            assert await consumer.end_offsets() == {A0: 5}
            with pytest.raises(error_class(3)):
                await consumer.end_offsets(("nope", 0), timeout=1.0)
            with pytest.raises(KafkaTimeoutError, match=r"Topic a has no partition 2: it has 2\."):
                await consumer.end_offsets(A0, ("a", 2), timeout=0.3)


async def test_the_end_is_the_first_open_transaction_for_read_committed():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 2)
        async with cluster.producer(transactional_id="t") as producer, producer.transaction() as transaction:
            await transaction.send("a", b"open")
            for level, end in ("read_committed", 2), ("read_uncommitted", 3):
                async with consumer_of(cluster, isolation_level=level) as consumer:
                    assert await consumer.end_offsets(A0) == {A0: end}


@pytest.mark.parametrize(("policy", "first"), [("earliest", 0), ("by_duration:PT876000H", 0), ("latest", 10)])
async def test_reading_begins_where_the_policy_says(policy, first):
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10)
        async with consumer_of(cluster, auto_offset_reset=policy) as consumer:
            consumer.assign([A0])
            assert await consumer.position(A0) == first


async def test_without_a_policy_a_position_is_required():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10)
        async with consumer_of(cluster, auto_offset_reset="none") as consumer:
            consumer.assign([A0])
            for call in (consumer.poll(1.0), anext(consumer), consumer.position(A0)):
                with pytest.raises(NoOffsetForPartitionError, match="seek to a position"):
                    await call
            consumer.seek(A0, 3)
            assert await read(consumer, 1) == [3]
            consumer.seek(A0, 30)
            with pytest.raises(error_class(1), match="a-0 has no offset 30"):
                await consumer.poll(5.0)


async def test_an_offset_out_of_range_is_reset_by_the_policy():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            consumer.seek(A0, 30)
            assert await read(consumer, 2) == [0, 1]


async def test_paused_partitions_return_nothing_until_they_are_resumed():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10, 2)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0, ("a", 1)])
            consumer.pause(A0)
            assert consumer.paused() == {A0}
            assert await read(consumer, 5) == [1, 3, 5, 7, 9]
            assert await consumer.poll(0.1) == {}
            consumer.resume()
            assert await read(consumer, 5) == [0, 2, 4, 6, 8]


async def test_a_position_that_no_leader_tells_times_out():
    properties = {"auto.create.topics.enable": "false"}
    async with EmbeddedCluster(transport="memory", properties=properties) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([("nope", 0)])
        with pytest.raises(KafkaTimeoutError, match=r"nope-0 was not found within 0\.2 s"):
            await consumer.position(("nope", 0), timeout=0.2)
        assert await consumer.poll(0.1) == {}
        cluster.create_topic("nope")
        assert await consumer.position(("nope", 0), timeout=5.0) == 0


async def test_an_assigned_topic_is_created_if_brokers_may():
    async with EmbeddedCluster(transport="memory") as cluster, consumer_of(cluster) as consumer:
        consumer.assign([("new", 0)])
        assert await consumer.position(("new", 0)) == 0
        assert cluster.topics() == ["new"]


# Deserializers


async def test_deserializers_make_objects_of_keys_and_values():
    async def decode(data):
        await asyncio.sleep(0)
        return data.decode()

    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with cluster.producer() as producer:
            await producer.send("a", b'{"n": 1}', key=b"\0\0\0\x07")
            await producer.send("a", None, key=None)
        for options, expected in (
            ({"key_deserializer": IntegerDeserializer, "value_deserializer": JsonDeserializer()}, (7, {"n": 1})),
            ({"value_deserializer": decode}, (b"\0\0\0\x07", '{"n": 1}')),
            (
                {"value_deserializer": "org.apache.kafka.common.serialization.StringDeserializer"},
                (b"\0\0\0\x07", '{"n": 1}'),
            ),
        ):
            async with consumer_of(cluster, **options) as consumer:
                consumer.assign([A0])
                record = await anext(consumer)
                assert (record.key, record.value) == expected
                record = await anext(consumer)
                assert (record.key, record.value) == (None, None)


def _integer(data):
    return int(data)


async def _integer_later(data):
    await asyncio.sleep(0)
    return int(data)


@pytest.mark.parametrize("deserializer", [_integer, _integer_later])
@on_virtual_time
async def test_a_record_that_cannot_be_deserialized_raises_with_its_position(deserializer):
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 3)
        async with cluster.producer() as producer:
            await producer.send("a", b"x", key=b"k", headers=[("h", b"1")], timestamp_ms=77)
        await fill(cluster, 2, first=4)
        async with consumer_of(cluster, value_deserializer=deserializer) as consumer:
            consumer.assign([A0])
            records = (await consumer.poll(5.0))[A0]
            assert [record.value for record in records] == [0, 1, 2]
            for call in (consumer.poll(1.0), anext(consumer)):
                with pytest.raises(RecordDeserializationError, match="at offset 3 of partition a-0") as caught:
                    await call
            error = caught.value
            assert (error.topic_partition, error.offset, error.timestamp_ms) == (A0, 3, 77)
            assert (error.key, error.value, error.headers, error.is_key) == (b"k", b"x", (("h", b"1"),), False)
            assert isinstance(error.__cause__, ValueError)
            assert await consumer.position(A0) == 3
            consumer.seek(A0, 4)
            assert [record.value for record in (await consumer.poll(5.0))[A0]] == [4, 5]


@pytest.mark.parametrize("call", ["poll", "anext"])
@on_virtual_time
async def test_slow_asynchronous_deserializers_do_not_hold_back_the_records_before(call):
    begun = []

    async def slow(data):
        begun.append(data)
        await asyncio.sleep(0.05)
        return int(data)

    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 100)
        async with consumer_of(cluster, value_deserializer=slow) as consumer:
            consumer.assign([A0])
            found = []
            while len(found) < 4:
                if call == "poll":
                    found += [record.value for each in (await consumer.poll(1.0)).values() for record in each]
                else:
                    found.append((await anext(consumer)).value)
                # The next ones wait for the next call.
                assert len(begun) <= len(found) + 1
            assert found == list(range(len(found)))


@on_virtual_time
async def test_quick_asynchronous_deserializers_fill_the_answer():
    async def quick(data):
        return int(data)

    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 100)
        async with consumer_of(cluster, value_deserializer=quick) as consumer:
            consumer.assign([A0])
            (records,) = (await consumer.poll(5.0)).values()
            assert len(records) > 10


@pytest.mark.parametrize("asynchronous", [False, True])
@on_virtual_time
async def test_a_handler_skips_records_that_cannot_be_deserialized(asynchronous):
    dead = []

    def handle(error):
        dead.append(error.offset)

    async def handle_later(error):
        await asyncio.sleep(0)
        dead.append(error.offset)

    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with cluster.producer() as producer:
            for value in (b"x", b"1", b"y", b"z", b"2", b"w"):
                await producer.send("a", value)
        handler = handle_later if asynchronous else handle
        async with consumer_of(cluster, value_deserializer=int, on_deserialization_error=handler) as consumer:
            consumer.assign([A0])
            assert [(await anext(consumer)).value for _ in range(2)] == [1, 2]
            assert await consumer.poll(0.1) == {}
            assert dead == [0, 2, 3, 5]
            assert await consumer.position(A0) == 6


async def test_the_exception_of_a_handler_goes_to_the_caller():
    def handle(error):
        raise KeyError("stop")

    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with cluster.producer() as producer:
            await producer.send("a", b"\xff")
        options = {"value_deserializer": StringDeserializer(), "on_deserialization_error": handle}
        async with consumer_of(cluster, **options) as consumer:
            consumer.assign([A0])
            with pytest.raises(KeyError, match="stop"):
                await consumer.poll(5.0)
            assert await consumer.position(A0) == 0


# The cluster changes


async def test_moved_leaders_are_followed():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 100, 3)
        await cluster.wait_in_sync()
        async with consumer_of(cluster) as consumer:
            consumer.assign([("a", index) for index in range(3)])
            found = await read(consumer, 50)
            for index in range(3):
                cluster.move_leader("a", index, cluster.leader("a", index) % 3 + 1)
            await fill(cluster, 100, 3, first=100)
            found += await read(consumer, 150)
            assert sorted(found) == list(range(200))


async def test_a_killed_broker_is_waited_out():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 300, 3, batch_size=300)
        await cluster.wait_in_sync()
        async with consumer_of(cluster, max_partition_fetch_bytes=500) as consumer:
            consumer.assign([("a", index) for index in range(3)])
            found = await read(consumer, 20)
            await cluster.kill(cluster.leader("a", 0))
            found += await read(consumer, 280)
            assert sorted(found) == list(range(300))


async def test_a_recreated_topic_is_read_from_its_beginning():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 10)
        async with consumer_of(cluster, auto_offset_reset="latest") as consumer:
            consumer.assign([A0])
            assert await consumer.position(A0) == 10
            cluster.recreate_topic("a")
            await fill(cluster, 3)
            assert await read(consumer, 3) == [0, 1, 2]


async def test_a_truncated_log_is_read_from_where_it_was_truncated():
    """An unclean election: the new leader lacks the last records, and has others in their place."""
    properties = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    async with EmbeddedCluster(2, transport="memory", properties=properties) as cluster:
        await fill(cluster, 10)
        await cluster.wait_in_sync()
        leader = cluster.leader("a", 0)
        other = 3 - leader
        await cluster.kill(other)
        await fill(cluster, 5, first=10, acks=1, enable_idempotence=False)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            assert await read(consumer, 15) == list(range(15))
            await cluster.kill(leader)
            await cluster.restart(other)
            async with asyncio.timeout(10):
                while cluster.leader("a", 0) != other:  # noqa: ASYNC110 - the cluster has no event for it
                    await asyncio.sleep(0.01)
            await fill(cluster, 8, first=100, acks=1, enable_idempotence=False)
            assert await read(consumer, 8) == list(range(100, 108))


@pytest.mark.parametrize(
    "fault",
    [
        lambda cluster: cluster.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=3, topic="a"),
        lambda cluster: cluster.fail("Fetch", "UNKNOWN_LEADER_EPOCH", times=3, topic="a"),
        lambda cluster: cluster.fail("Fetch", "UNKNOWN_TOPIC_OR_PARTITION", times=3, topic="a"),
        lambda cluster: cluster.fail("Fetch", "FETCH_SESSION_ID_NOT_FOUND", times=2),
        lambda cluster: cluster.fail("Fetch", "INVALID_FETCH_SESSION_EPOCH", times=2),
        lambda cluster: cluster.disconnect("Fetch", times=2),
        lambda cluster: cluster.disconnect("Fetch", "half", times=2),
        lambda cluster: cluster.disconnect("Fetch", "after", times=2),
        lambda cluster: cluster.disconnect("ListOffsets", times=2),
        lambda cluster: cluster.fail("ListOffsets", "LEADER_NOT_AVAILABLE", times=2),
        lambda cluster: cluster.disconnect("Metadata", times=2),
        lambda cluster: cluster.throttle("Fetch", 100, times=1),
    ],
)
async def test_faults_that_pass_are_waited_out(fault):
    async with EmbeddedCluster(2, transport="memory") as cluster:
        await fill(cluster, 300, 2, batch_size=300)
        async with consumer_of(cluster, max_partition_fetch_bytes=400) as consumer:
            fault(cluster)
            consumer.assign([A0, ("a", 1)])
            found = await read(consumer, 100)
            cluster.clear_faults()
            fault(cluster)
            found += await read(consumer, 200)
            assert sorted(found) == list(range(300))


async def test_a_denied_topic_raises_and_is_tried_again():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 3)
        cluster.fail("Fetch", "TOPIC_AUTHORIZATION_FAILED", topic="a")
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            with pytest.raises(TopicAuthorizationError):
                await consumer.poll(5.0)
            assert await read(consumer, 3) == [0, 1, 2]


async def test_a_corrupt_batch_raises_and_a_seek_passes_it():
    async with EmbeddedCluster(transport="memory") as cluster:
        for number in range(3):
            await fill(cluster, 1, first=number)

        def tear(brokers):
            log = brokers.brokers[1].replicas.leader("a", 0).log
            original = log.read

            def read_torn(*args, **options):
                parts = [bytearray(part) for part in original(*args, **options)]
                joined = bytearray(b"".join(parts))
                size = 12 + int.from_bytes(joined[8:12])
                if joined[:8] == bytes(8):
                    joined[size * 2 - 1] ^= 1
                elif joined[:8] == bytes(7) + b"\1":
                    joined[size - 1] ^= 1
                return (bytes(joined),)

            log.read = read_torn

        cluster._call(tear)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            assert await read(consumer, 1) == [0]
            for _ in range(2):
                with pytest.raises(
                    ProtocolError,
                    match=r"Partition a-0 cannot be read at offset 1: .* Seek to offset 2, behind the batch",
                ) as caught:
                    await consumer.poll(5.0)
            consumer.seek(A0, caught.value.next_offset)
            assert await read(consumer, 1) == [2]


async def test_read_committed_leaves_out_aborted_transactions_and_waits_for_open_ones():
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with (
            cluster.producer(transactional_id="t") as producer,
            consumer_of(cluster, isolation_level="read_committed") as consumer,
        ):
            consumer.assign([A0])
            await producer.init_transactions()
            for number in range(4):
                await producer.begin_transaction()
                producer.send("a", b"%d" % number)
                await producer.flush()
                if number == 2:
                    assert await consumer.poll(0.1) == {}
                await (producer.commit_transaction() if number % 2 else producer.abort_transaction())
                if number % 2:
                    assert await read(consumer, 1) == [number]
            assert await consumer.position(A0) >= 7


# Cancellation and the end


async def test_cancelling_at_any_step_skips_no_record():
    async with EmbeddedCluster(2, transport="memory") as cluster:
        await fill(cluster, 400, 2, batch_size=200, compression_type="gzip")
        for method in ("anext", "poll"):
            options = {"max_partition_fetch_bytes": 500, "value_deserializer": _integer_later}
            async with consumer_of(cluster, **options) as consumer:
                consumer.assign([A0, ("a", 1)])
                seen = []
                steps = 0
                while len(seen) < 400:
                    call = anext(consumer) if method == "anext" else consumer.poll(1.0, max_records=7)
                    asking = asyncio.ensure_future(call)
                    steps = (steps + 1) % 11
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    asking.cancel()
                    await asyncio.wait([asking])
                    if asking.cancelled():
                        continue
                    found = asking.result()
                    records = [found] if method == "anext" else [each for part in found.values() for each in part]
                    seen += [record.value for record in records]
                assert sorted(seen) == list(range(400))
                for part in (0, 1):
                    assert [value for value in seen if value % 2 == part] == list(range(part, 400, 2))


async def test_cancelled_calls_for_columns_skip_no_record_and_other_calls_continue():
    pytest.importorskip("pyarrow")
    async with EmbeddedCluster(2, transport="memory") as cluster:
        await fill(cluster, 400, 2, batch_size=200, compression_type="gzip")
        async with consumer_of(cluster, max_partition_fetch_bytes=500) as consumer:
            consumer.assign([A0, ("a", 1)])
            seen, turns = [], 0

            async def call():
                match turns % 3:
                    case 0:
                        return [int(await value(consumer.__anext__()))]
                    case 1:
                        found = await consumer.poll(1.0, max_records=7)
                        return [int(each.value) for part in found.values() for each in part]
                return [int(each) for each in (await consumer.poll_arrow(1.0, max_records=7))["value"].to_pylist()]

            while len(seen) < 400:
                turns += 1
                asking = asyncio.ensure_future(call())
                for _ in range(turns % 11):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                if not asking.cancelled():
                    seen += asking.result()
            for part in (0, 1):
                assert [each for each in seen if each % 2 == part] == list(range(part, 400, 2))
            assert (await consumer.poll_arrow()).num_rows == 0
            assert consumer._fetcher.buffer.decoded == 0


async def value(record):
    return (await record).value


async def test_columns_of_large_batches_come_from_threads(threads):
    pytest.importorskip("pyarrow")
    gate, _ = threads
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill_large_batches(cluster)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            gate.set()
            offsets = []
            while len(offsets) < 1000:
                offsets += (await consumer.poll_arrow(5.0, max_records=300))["offset"].to_pylist()
            assert offsets == list(range(1000))


@on_virtual_time
async def test_close_ends_waiting_calls():
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        for method, error in (("poll", ConsumerClosedError), ("anext", StopAsyncIteration)):
            consumer = consumer_of(cluster, fetch_max_wait_ms=30_000)
            await consumer.start()
            consumer.assign([A0])
            call = consumer.poll(60.0) if method == "poll" else consumer.__anext__()

            async def ended(awaitable=call):
                try:
                    await awaitable
                except (ConsumerClosedError, StopAsyncIteration) as caught:
                    return type(caught)

            waiting = asyncio.ensure_future(ended())
            await asyncio.sleep(0.05)
            began = asyncio.get_running_loop().time()
            await consumer.close()
            assert asyncio.get_running_loop().time() - began < 1.0
            assert await waiting is error
            await consumer.close()


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.05, 0.2])
async def test_close_in_every_state_leaves_nothing_behind(wait):
    async with EmbeddedCluster(2, transport="memory") as cluster:
        await fill(cluster, 100, 2)
        consumer = consumer_of(cluster)
        await consumer.start()
        consumer.assign([A0, ("a", 1), ("missing", 0)])
        await asyncio.sleep(wait)
        await consumer.close()
        assert not [task for task in asyncio.all_tasks() if "aioproducer-consumer" in task.get_name()]
        assert consumer._fetcher.buffer.used == 0


async def test_close_without_a_reachable_broker_is_quick():
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", auto_offset_reset="earliest")
    async with consumer:
        consumer.assign([A0])
        assert await consumer.poll(0.1) == {}


async def test_close_of_another_loop_leaves_the_consumer_usable():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 1)
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            with pytest.raises(WrongCallerError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, consumer.close())
            with pytest.raises(WrongCallerError, match="in the event loop"):
                await asyncio.to_thread(consumer.assignment)
            assert await read(consumer, 1) == [0]


def test_a_consumer_that_is_not_closed_warns():
    async def forget():
        consumer = Consumer(bootstrap_servers="127.0.0.1:1")
        await consumer.start()

    def forget_and_collect():
        asyncio.run(forget())
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"<Consumer consumer-\d+> was not closed: use `async with`"):
        forget_and_collect()


@pytest.mark.parametrize("offset", [-1, 2**63, 1.0, None, True])
async def test_a_position_that_no_log_can_have_is_refused(offset):
    async with EmbeddedCluster(transport="memory") as cluster, consumer_of(cluster) as consumer:
        consumer.assign([A0])
        with pytest.raises((TypeError, ValueError)):
            consumer.seek(A0, offset)
        with pytest.raises(TypeError, match="must be an int of milliseconds"):
            await consumer.offsets_for_times({A0: 1.5})


async def test_calls_in_the_wrong_state_say_so():
    consumer = Consumer(bootstrap_servers="localhost:9092")
    with pytest.raises(WrongCallerError, match="not started"):
        await consumer.poll()
    with pytest.raises(WrongCallerError, match="not started"):
        consumer.assign([A0])
    await consumer.close()
    for call in (consumer.poll, consumer.start, lambda: anext(consumer)):
        with pytest.raises(ConsumerClosedError, match="create a new one"):
            await call()
    async with Consumer(bootstrap_servers="localhost:9092") as consumer:
        with pytest.raises(ValueError, match="a-0 is not assigned"):
            consumer.seek(A0, 1)
        with pytest.raises(TypeError, match="pair of topic and partition"):
            consumer.assign(["a"])
        with pytest.raises(ValueError, match="at least 0"):
            consumer.assign([("a", -1)])
        with pytest.raises(ValueError, match="at least 1"):
            await consumer.poll(max_records=0)
        waiting = asyncio.ensure_future(consumer.poll(5.0))
        await asyncio.sleep(0)
        with pytest.raises(WrongCallerError, match="one consumer for each task"):
            await consumer.poll()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await consumer.poll() == {}


# Metrics


async def test_metrics_count_what_is_fetched_and_returned():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10)
        async with consumer_of(cluster) as consumer:
            before = consumer.metrics()
            assert (before["records-consumed-total"], before["connection-count"]) == (0, 0)
            assert (before.partitions, math.isnan(before["records-lag-max"])) == ({}, True)
            consumer.assign([A0])
            await read(consumer, 3)
            after = consumer.metrics()
            assert after["records-consumed-total"] == 3
            assert after["fetch-total"] >= 1
            assert after["bytes-consumed-total"] > 100
            assert after["records-lag-max"] == 7
            assert after.partitions[A0] == {"records-lag": 7, "records-lead": 3, "preferred-read-replica": -1}
            assert after["assigned-partitions"] == 1
            assert after["connection-count"] >= 2
            assert after["last-poll-seconds-ago"] == -1
            # Those of the bootstrap address are gone with it.
            assert 0 < after.nodes[1]["request-total"] < after["request-total"]
            await polled(consumer, 7)
            assert consumer.metrics()["records-consumed-total"] == 10
        last = consumer.metrics()
        assert (last["records-consumed-total"], last["connection-count"], last.partitions) == (10, 0, {})


async def test_metrics_need_a_consumer_that_was_started():
    async with EmbeddedCluster(transport="memory") as cluster:
        consumer = consumer_of(cluster)
        with pytest.raises(WrongCallerError, match="not started"):
            consumer.metrics()
        await consumer.close()
        with pytest.raises(ConsumerClosedError):
            consumer.metrics()


async def test_skipped_and_dropped_records_do_not_count_as_returned():
    def even(data):
        if int(data) % 2:
            raise ValueError("odd")
        return int(data)

    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 10)
        async with consumer_of(
            cluster, value_deserializer=even, on_deserialization_error=lambda error: None
        ) as consumer:
            consumer.assign([A0])
            assert [(await anext(consumer)).value for _ in range(3)] == [0, 2, 4]
            consumer.seek(A0, 8)
            assert (await anext(consumer)).value == 8
            assert consumer.metrics()["records-consumed-total"] == 4


@on_virtual_time
async def test_a_cancelled_call_counts_no_record():
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with consumer_of(cluster) as consumer:
            consumer.assign([A0])
            for call in (consumer.poll(10.0), anext(consumer)):
                task = asyncio.ensure_future(call)
                await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.wait([task])
            await fill(cluster, 3)
            await read(consumer, 3)
            assert consumer.metrics()["records-consumed-total"] == 3


@on_virtual_time
async def test_the_windows_of_metrics_are_those_of_the_configuration():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 3)
        async with consumer_of(cluster, metrics_sample_window_ms=10, metrics_num_samples=1) as consumer:
            consumer.assign([A0])
            await read(consumer, 3)
            consumer.pause()
            await asyncio.sleep(0.2)
            metrics = consumer.metrics()
            # Nothing recent, as the windows are long over.
            assert math.isnan(metrics["fetch-latency-avg"])
            assert metrics["fetch-total"] >= 1


@pytest.mark.parametrize("call", ["poll", "poll_arrow", "anext", "deserialized"])
async def test_every_way_to_read_counts_each_record_once(call):
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 100, 2)
        options = {"value_deserializer": bytes} if call == "deserialized" else {}
        async with consumer_of(cluster, **options) as consumer:
            consumer.assign([A0, ("a", 1)])
            count = 0
            async with asyncio.timeout(10):
                while count < 100:
                    if call == "poll_arrow":
                        count += (await consumer.poll_arrow(1.0, 7)).num_rows
                    elif call == "poll":
                        count += sum(map(len, (await consumer.poll(1.0, 7)).values()))
                    else:
                        await anext(consumer)
                        count += 1
                    assert consumer.metrics()["records-consumed-total"] == count


def test_every_public_method_has_a_docstring():
    for name, method in inspect.getmembers(Consumer, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.getdoc(method), name
