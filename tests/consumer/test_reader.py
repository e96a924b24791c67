"""Reading assigned partitions: start and end positions, order, and failures."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from aioproducer.admin import NoSuchTopicError
from aioproducer.consumer import Reader, decoding
from aioproducer.core.fetching import buffer
from aioproducer.errors import (
    ConfigurationError,
    KafkaStorageError,
    ProtocolError,
    TopicAuthorizationError,
    error_class,
)
from aioproducer.testing import EmbeddedCluster

from .virtual import on_virtual_time

OFFSET_OUT_OF_RANGE = 1


def reader_of(cluster, topic="a", partitions=None, **options):
    return Reader(
        topic,
        partitions,
        bootstrap_servers=cluster.bootstrap_servers,
        transport=cluster.transport,
        **{"stop": "end", "timeout": 5.0, "max_wait_ms": 50, **options},
    )


async def fill(cluster, count=10, partitions=1, topic="a", **config):
    """``count`` records with the values 0, 1, ..., of partition number % partitions, a second apart."""
    if topic not in cluster.topics():
        cluster.create_topic(topic, partitions)
    async with cluster.producer(**config) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions, timestamp_ms=1000 * number)
        await producer.flush()


async def test_a_timeout_while_waiting_for_a_record_does_not_end_the_iteration():
    """After the timeout every iteration once ended at once, although records arrived."""
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 1)
        async with reader_of(cluster, stop=None) as reader:
            assert (await anext(reader)).value == b"0"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(reader)
            await fill(cluster, 3)
            assert [(await anext(reader)).value for _ in range(3)] == [b"0", b"1", b"2"]


async def test_a_new_iteration_continues_after_the_last_returned_record():
    """Fetched records after that one were once skipped."""
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 5000, 3, batch_size=1000)
        async with reader_of(cluster) as reader:
            seen = []
            for _ in range(3):
                async for records in reader.batches():
                    seen += records
                    break
                async for record in reader:
                    seen.append(record)
                    break
            seen += [await anext(reader)]
            async for records in reader.batches():
                seen += records
        assert sorted(int(record.value) for record in seen) == list(range(5000))
        for partition in range(3):
            offsets = [record.offset for record in seen if record.partition == partition]
            assert offsets == list(range(len(offsets)))


async def test_cancelling_at_any_step_skips_no_record():
    async with EmbeddedCluster(2, transport="memory") as cluster:
        await fill(cluster, 500, 2, batch_size=200)
        async with reader_of(cluster, max_bytes=1000, partition_max_bytes=500) as reader:
            seen = []
            steps = 0
            while True:
                asking = asyncio.ensure_future(anext(reader))
                steps = (steps + 1) % 7
                for _ in range(steps):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                if asking.cancelled():
                    continue
                if isinstance(asking.exception(), StopAsyncIteration):
                    break
                seen.append(int(asking.result().value))
        assert sorted(seen) == list(range(500))


@pytest.mark.parametrize("position", ["earliest", "latest", "begining", None, {0: "beginning", 1: "last"}])
def test_an_invalid_start_or_stop_is_rejected(position):
    if position is not None:
        with pytest.raises(ValueError, match="start must be 'beginning', 'end', an offset or a datetime, not '"):
            Reader("a", bootstrap_servers="localhost:9092", start=position)
    with pytest.raises(ValueError, match="stop must be"):
        Reader("a", bootstrap_servers="localhost:9092", stop=position or "")


async def values(reader):
    async with reader:
        return [int(record.value) async for record in reader]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_are_read_as_they_were_sent(codec):
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with cluster.producer(compression_type=codec) as producer:
            await producer.send("a", b"value" * 100, key=b"key", headers=[("h", None), ("h", b"1")], timestamp_ms=17)
            await producer.send("a", None)
        async with reader_of(cluster) as reader:
            first, second = [record async for record in reader]
        assert first[:7] == ("a", 0, 0, 17, b"key", b"value" * 100, (("h", None), ("h", b"1")))
        assert (second.offset, second.key, second.value, second.headers) == (1, None, None, ())


async def test_partitions_keep_their_order_over_several_leaders():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 600, 6, batch_size=100)
        async with reader_of(cluster, partition_max_bytes=500, max_bytes=1000) as reader:
            assert reader.stops() == dict.fromkeys(range(6), 100)
            found = {partition: [] for partition in range(6)}
            async for records in reader.batches():
                assert len({record.partition for record in records}) == 1
                found[records[0].partition] += [int(record.value) for record in records]
            assert reader.positions() == dict.fromkeys(range(6), 100)
        assert found == {partition: list(range(partition, 600, 6)) for partition in range(6)}
        assert sorted(await values(reader_of(cluster, partitions=[4, 1, 4]))) == sorted(
            [*range(1, 600, 6), *range(4, 600, 6)]
        )


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ("beginning", "end", range(10)),
        ("end", "end", range(0)),
        (3, 5, range(3, 5)),
        (3, "end", range(3, 10)),
        (5, 5, range(0)),
        (datetime.fromtimestamp(4, UTC), datetime.fromtimestamp(6.5, UTC), range(4, 7)),
        (datetime.fromtimestamp(99, UTC), "end", range(0)),
        ({0: 8}, {0: 9}, range(8, 9)),
        ("beginning", {0: "end"}, range(10)),
    ],
)
async def test_start_and_end_positions_can_be_chosen(start, stop, expected):
    """Positions may be inside a batch: all ten records are in one."""
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster)
        assert await values(reader_of(cluster, start=start, stop=stop)) == list(expected)


async def test_without_an_end_the_reader_waits_for_new_records():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 3)
        async with reader_of(cluster, start="end", stop=None) as reader:
            waiting = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0.12)
            assert not waiting.done()
            await fill(cluster, 2)
            assert [(await waiting).offset, (await anext(reader)).offset] == [3, 4]
            # Leaving in the middle leaves no task or connection.


async def test_many_records_are_returned_in_slices_and_other_tasks_run_in_between():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 3000, batch_size=10**6, linger_ms=50)
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(others())
        async with reader_of(cluster) as reader:
            sizes = [len(records) async for records in reader.batches()]
        counting.cancel()
        assert sum(sizes) == 3000
        assert max(sizes) <= 500
        assert turns > len(sizes)


@pytest.mark.parametrize("when", ["before", "after", "half"])
async def test_a_lost_connection_is_reopened(when):
    async with EmbeddedCluster() as cluster:
        await fill(cluster)
        cluster.disconnect("Fetch", when, times=2)
        assert await values(reader_of(cluster, reconnect_backoff_ms=5)) == list(range(10))
        assert cluster.pending_faults() == []


@pytest.mark.parametrize(
    "error", ["NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR", "UNKNOWN_TOPIC_ID", "OFFSET_NOT_AVAILABLE"]
)
async def test_retriable_errors_are_retried(error):
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster)
        cluster.fail("Fetch", error, topic="a", partition=0, times=2)
        assert await values(reader_of(cluster)) == list(range(10))
        assert cluster.pending_faults() == []


async def test_moved_and_failed_leaders_are_followed():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        await fill(cluster, 10)
        await cluster.wait_in_sync()
        async with reader_of(cluster, stop=None) as reader:
            found = [int((await anext(reader)).value) for _ in range(10)]
            cluster.move_leader("a", 0, cluster.leader("a", 0) % 3 + 1)
            await fill(cluster, 10)
            found += [int((await anext(reader)).value) for _ in range(10)]
            await cluster.kill(cluster.leader("a", 0))
            await fill(cluster, 10)
            found += [int((await anext(reader)).value) for _ in range(10)]
        assert found == [*range(10)] * 3


@on_virtual_time
async def test_a_partition_without_a_leader_is_an_error_only_after_the_timeout():
    async with EmbeddedCluster(2, transport="memory", properties={"default.replication.factor": 1}) as cluster:
        await fill(cluster, 10)
        leader = cluster.leader("a", 0)
        async with reader_of(cluster, stop=None, timeout=1.5) as reader:
            for _ in range(10):
                await anext(reader)
            await cluster.kill(leader)
            with pytest.raises(error_class(5), match="Partition a-0 has no leader at present"):
                await anext(reader)


@on_virtual_time
async def test_errors_that_last_too_long_or_are_not_retriable_are_raised():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster)
        cluster.fail("Fetch", "KAFKA_STORAGE_ERROR", topic="a", partition=0, times=None)
        with pytest.raises(KafkaStorageError):
            await values(reader_of(cluster, timeout=1.0))
        cluster.clear_faults()
        cluster.fail("Fetch", "TOPIC_AUTHORIZATION_FAILED", topic="a", partition=0)
        with pytest.raises(TopicAuthorizationError):
            await values(reader_of(cluster))


async def test_a_missing_topic_or_partition_raises():
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a", 2)
        with pytest.raises(NoSuchTopicError, match="There is no topic 'b'"):
            await values(reader_of(cluster, "b"))
        with pytest.raises(NoSuchTopicError, match="Topic a has no partition 2: it has 2"):
            await values(reader_of(cluster, partitions=[0, 2]))
        assert cluster.topics() == ["a"]


async def test_a_topic_deleted_while_it_is_read_raises():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster)
        async with reader_of(cluster, stop=None) as reader:
            await anext(reader)
            cluster.delete_topic("a")
            with pytest.raises(NoSuchTopicError, match="Topic 'a' was deleted"):
                async for _ in reader:
                    pass


async def test_a_topic_created_again_while_it_is_read_raises():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster)
        async with reader_of(cluster, stop=None) as reader:
            for _ in range(10):
                await anext(reader)
            cluster.recreate_topic("a")
            with pytest.raises(NoSuchTopicError, match="Topic 'a' was deleted"):
                await anext(reader)


async def test_the_end_is_reached_where_compaction_left_nothing_before_it():
    """Nothing is before the end, and an open transaction behind it: ``read_committed`` returns no batch at all."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a", 2)
        async with cluster.producer() as producer:
            for number in range(6):
                producer.send("a", b"%d" % number, partition=number % 2)
            await producer.flush()
        async with cluster.producer(transactional_id="t") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            producer.send("a", b"open", partition=0)
            await producer.flush()
            log = cluster.broker_cluster.brokers[1].replicas.leader("a", 0).log
            log.read_committed = lambda *args, **options: ((), ())
            async with asyncio.timeout(60):
                async with reader_of(cluster, isolation_level="read_committed") as reader:
                    assert reader.stops() == {0: 3, 1: 3}
                    assert [int(record.value) async for record in reader] == [1, 3, 5]
                    assert reader.positions() == {0: 3, 1: 3}
            await producer.abort_transaction()


async def test_many_readers_to_the_end_end_while_decoding_yields(monkeypatch):
    """A wake-up during the decoder's turn for others was lost, and the Reader waited for ever."""
    monkeypatch.setattr(decoding, "LONGEST_TURN", 0.0)
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, 300, 3, batch_size=300)
        async with asyncio.timeout(60):
            for size in (300, 1000, 100_000):
                async with reader_of(cluster, max_bytes=size, partition_max_bytes=size) as reader:
                    assert sorted([int(record.value) async for record in reader]) == list(range(300))


async def test_an_offset_out_of_range_raises():
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster)
        with pytest.raises(error_class(OFFSET_OUT_OF_RANGE), match="has no offset 11: it has 0 to 10"):
            await values(reader_of(cluster, start=11, stop=None))


async def test_records_deleted_meanwhile_are_skipped_with_a_warning(caplog):
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster, batch_size=0)
        async with reader_of(cluster) as reader:
            # Where to begin is known when the first five go.
            partition = cluster.broker_cluster.brokers[1].replicas.leader("a", 0)
            partition.delete_records(5)
            with caplog.at_level(logging.WARNING, "aioproducer"):
                found = [int(record.value) async for record in reader]
        assert found == list(range(5, 10))
        assert "offsets 0 to 4 were deleted before they could be read" in caplog.text
        # An explicit offset raises.
        with pytest.raises(error_class(OFFSET_OUT_OF_RANGE), match="has no offset 2: it has 5 to 10"):
            await values(reader_of(cluster, start=2))


async def test_a_corrupt_batch_raises(monkeypatch):
    async with EmbeddedCluster(transport="memory") as cluster:
        await fill(cluster)
        whole = buffer.iter_batches

        def torn(data):
            damaged = bytearray(data)
            damaged[-1] ^= 1
            return whole(damaged)

        monkeypatch.setattr(buffer, "iter_batches", torn)
        async with reader_of(cluster) as reader:
            for _ in range(2):
                with pytest.raises(ProtocolError, match=r"Partition a-0 cannot be read at offset 0: .*corrupt"):
                    await anext(reader)


async def test_closing_the_reader_ends_a_waiting_iteration():
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        reader = reader_of(cluster, stop=None)
        with pytest.raises(RuntimeError, match="async with Reader"):
            await anext(reader)
        reader = reader_of(cluster, stop=None)
        await reader.start()
        waiting = asyncio.ensure_future(values_left(reader))
        await asyncio.sleep(0.02)
        await reader.close()
        assert await waiting == []


async def values_left(reader):
    return [record.value async for record in reader]


def test_configuration():
    with pytest.raises(ConfigurationError, match="unknown configuration key"):
        Reader("a", bootstrap_servers="localhost:9092", group_id="g")
