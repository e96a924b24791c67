"""Records of every form, written to every broker implementation and read back by confluent-kafka."""

from __future__ import annotations

import asyncio
import random
import time

import confluent_kafka
import pytest

from aioproducer import Producer
from aioproducer.admin import Admin
from aioproducer.errors import (
    BatchRejectedError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    MetadataTimeoutError,
    RecordTooLargeError,
)
from tests.kafka.cluster import KafkaCluster
from tests.kafka.consuming import read_back_topics
from tests.kafka.dump import check_batches
from tests.kafka.in_process import InProcessCluster
from tests.kafka.ledger import verify
from tests.kafka.load import Load
from tests.kafka.mock import MockCluster
from tests.waiting import know_topic

Broker = KafkaCluster | InProcessCluster
Cluster = KafkaCluster | InProcessCluster | MockCluster

CREATE_TIME, LOG_APPEND_TIME = 1, 2

CODECS = [
    ("none", {}),
    ("gzip", {"compression_gzip_level": 1}),
    ("gzip", {"compression_gzip_level": 9}),
    ("snappy", {}),
    ("lz4", {"compression_lz4_level": 1}),
    ("lz4", {"compression_lz4_level": 17}),
    ("zstd", {"compression_zstd_level": -5}),
    ("zstd", {"compression_zstd_level": 19}),
]


@pytest.mark.parametrize("acks", [1, "all"])
async def test_acknowledged_records_are_stored(cluster: Cluster, topic: str, acks: int | str) -> None:
    await asyncio.to_thread(cluster.create_topic, topic, 3)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, acks=acks) as producer:
        load = Load(producer, topic, 3, size=100)
        await load.send(1000)
        ledger = await load.finish()
    assert not ledger.failed, next(iter(ledger.failed.values()))
    assert verify(ledger, cluster.read_back(topic, at_least=1000)) == (1000, 1000, 0)


async def test_records_without_acknowledgement_are_stored(cluster: Cluster, topic: str) -> None:
    await asyncio.to_thread(cluster.create_topic, topic, 3)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, acks=0) as producer:
        load = Load(producer, topic, 3, size=100)
        await load.send(999)
        ledger = await load.finish()
        metadata = await load.send_one()
        await load.finish()
    assert (metadata.offset, metadata.timestamp_ms) == (None, None)
    assert verify(ledger, cluster.read_back(topic, at_least=1000)) == (1000, 1000, 0)


@pytest.mark.parametrize(("codec", "levels"), CODECS, ids=lambda part: str(part).strip("{}").replace("'", ""))
async def test_records_of_every_codec_are_stored(
    one_broker: Broker, topic: str, codec: str, levels: dict[str, int]
) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic)
    async with Producer(
        bootstrap_servers=one_broker.bootstrap_servers, compression_type=codec, batch_size=65536, **levels
    ) as producer:
        load = Load(producer, topic, size=500)
        await load.send(2000)
        ledger = await load.finish()
    assert verify(ledger, one_broker.read_back(topic)) == (2000, 2000, 0)
    batches = one_broker.dump_log(topic, 0)
    check_batches(batches)
    assert {batch.codec for batch in batches} == {codec}
    written = sum(batch.size for batch in batches)
    assert written < 250_000 if codec != "none" else written > 1_000_000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_other_brokers_store_records_of_every_codec(cluster: Cluster, topic: str, codec: str) -> None:
    if codec == "zstd" and isinstance(cluster, MockCluster):
        cluster.limit_versions({0: 7})
    await asyncio.to_thread(cluster.create_topic, topic)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, compression_type=codec) as producer:
        load = Load(producer, topic, size=300)
        await load.send(200)
        ledger = await load.finish()
    assert verify(ledger, cluster.read_back(topic)) == (200, 200, 0)


async def test_keys_values_and_headers_are_kept(cluster: Cluster, topic: str) -> None:
    await asyncio.to_thread(cluster.create_topic, topic)
    given: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (b"key", b"value", []),
        (None, b"value", [("one", b"1")]),
        (b"key", None, [("repeated", b"1"), ("other", b""), ("repeated", b"2"), ("repeated", b"1")]),
        (None, None, [("null", None), ("Überschrift", bytes(range(256)))]),
        (b"", b"", [("", b"no name")]),
        (bytes(range(256)), bytes(100_000), [("large", bytes(10_000))]),
    ]
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, compression_type="lz4") as producer:
        outcomes = await asyncio.gather(
            *(producer.send(topic, value, key, headers=headers) for key, value, headers in given)
        )
    assert [outcome.offset for outcome in outcomes] == list(range(len(given)))
    stored = cluster.read_back(topic)[0]
    assert [(record.key, record.value, record.headers) for record in stored] == given


async def test_given_timestamps_are_kept(cluster: Cluster, topic: str) -> None:
    await asyncio.to_thread(cluster.create_topic, topic)
    given = [1_700_000_000_000, 1_600_000_000_000, 0, 1_700_000_000_001]
    before = int(time.time() * 1000)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        outcomes = await asyncio.gather(*(producer.send(topic, b"v", timestamp_ms=each) for each in given))
        now = await producer.send(topic, b"v")
    stored = cluster.read_back(topic)[0]
    assert [record.timestamp_ms for record in stored[:-1]] == given
    assert before <= stored[-1].timestamp_ms <= time.time() * 1000
    assert {record.timestamp_type for record in stored} == {CREATE_TIME}
    if not isinstance(cluster, MockCluster):
        # The mock answers every request with a log append time of 1234.
        assert [outcome.timestamp_ms for outcome in [*outcomes, now]] == [record.timestamp_ms for record in stored]


async def test_old_timestamps_do_not_expire_records(one_broker: Broker, topic: str) -> None:
    """By default a broker removes records with old timestamps every five minutes."""
    await asyncio.to_thread(one_broker.create_topic, topic)
    async with Admin(bootstrap_servers=one_broker.bootstrap_servers) as admin:
        entries = {entry.name: entry.value for entry in await admin.topic_config(topic)}
    assert entries["retention.ms"] == "-1"


async def test_timestamps_of_the_broker_are_reported(one_broker: Broker, topic: str) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    await asyncio.to_thread(one_broker.create_topic, topic, config=config)
    async with Producer(bootstrap_servers=one_broker.bootstrap_servers) as producer:
        outcomes = await asyncio.gather(*(producer.send(topic, b"v", timestamp_ms=1) for _ in range(10)))
    stored = one_broker.read_back(topic)[0]
    assert [outcome.timestamp_ms for outcome in outcomes] == [record.timestamp_ms for record in stored]
    assert {record.timestamp_type for record in stored} == {LOG_APPEND_TIME}
    assert abs(stored[0].timestamp_ms - time.time() * 1000) < 60_000


async def test_large_and_empty_records_can_be_mixed(one_broker: Broker, topic: str) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic, config={"max.message.bytes": "5000000"})
    values = [random.Random(number).randbytes(size) for number, size in enumerate([0, 1_048_576, 1, 4_000_000, 0, 700])]
    async with Producer(
        bootstrap_servers=one_broker.bootstrap_servers, max_request_size=5_000_000, compression_type="zstd"
    ) as producer:
        outcomes = await asyncio.gather(*(producer.send(topic, value) for value in values))
    assert [outcome.offset for outcome in outcomes] == list(range(len(values)))
    assert [record.value for record in one_broker.read_back(topic)[0]] == values


async def test_a_record_too_large_for_the_producer_is_rejected(one_broker: Broker, topic: str) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic)
    async with Producer(bootstrap_servers=one_broker.bootstrap_servers, max_request_size=10_000) as producer:
        too_large, fits = producer.send(topic, bytes(10_000)), producer.send(topic, bytes(9_000))
        with pytest.raises(RecordTooLargeError, match="max_request_size"):
            await too_large
        assert (await fits).offset == 0


async def test_a_record_too_large_for_the_topic_fails(one_broker: Broker, topic: str) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic, config={"max.message.bytes": "20000"})
    failures: list[tuple[str, int]] = []
    async with Producer(
        bootstrap_servers=one_broker.bootstrap_servers,
        on_error=lambda place, count, error: failures.append((str(place), count)),
    ) as producer:
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
            await producer.send(topic, bytes(30_000))
        assert (await producer.send(topic, b"fits")).offset == 0
    assert failures == [(f"{topic}-0", 1)]


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("wrong", [[1], [1, 3]], ids=["one", "two"])
async def test_records_that_kafka_rejects_fail_and_their_neighbours_may_be_sent_again(
    one_node: KafkaCluster, topic: str, wrong: list[int], codec: str
) -> None:
    """Timestamps of tomorrow in a topic that accepts at most an hour (KIP-467)."""
    config = {"message.timestamp.after.max.ms": "3600000"}
    await asyncio.to_thread(one_node.create_topic, topic, config=config)
    now_ms = time.time_ns() // 1_000_000
    timestamps = [now_ms + 24 * 3600 * 1000 * (number in wrong) for number in range(5)]
    async with Producer(
        bootstrap_servers=one_node.bootstrap_servers, linger_ms=100, compression_type=codec
    ) as producer:
        sent = [producer.send(topic, b"%d" % number, timestamp_ms=at) for number, at in enumerate(timestamps)]
        errors = await asyncio.gather(*sent, return_exceptions=True)
        for number, error in enumerate(errors):
            if number not in wrong:
                assert isinstance(error, BatchRejectedError)
                assert error.retriable
                assert [index for index, _ in error.culprits] == wrong
                assert all("is out of range" in text for _, text in error.culprits)
                assert isinstance(error.__cause__, InvalidTimestampError)
            elif len(wrong) == 1:
                assert isinstance(error, InvalidTimestampError)
            else:
                # Kafka's error code is for the batch, without naming its records.
                assert isinstance(error, InvalidRecordError)
                assert "is out of range" in str(error)
            assert isinstance(error, KafkaError)
            assert not error.may_have_been_written
        with pytest.raises(InvalidTimestampError, match="is out of range"):
            await producer.send(topic, b"alone", timestamp_ms=timestamps[1])
        again = [producer.send(topic, b"%d" % number) for number in range(5) if number not in wrong]
        await asyncio.gather(*again)
    written = [record.value for record in one_node.read_back(topic)[0]]
    assert written == [b"%d" % number for number in range(5) if number not in wrong]


async def test_a_batch_too_large_for_the_topic_is_split(one_broker: Broker, topic: str) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic, config={"max.message.bytes": "20000"})
    async with Producer(
        bootstrap_servers=one_broker.bootstrap_servers, batch_size=200_000, linger_ms=100, max_request_size=1_000_000
    ) as producer:
        load = Load(producer, topic, size=1000)
        await load.send(500)
        ledger = await load.finish()
        assert producer.metrics()["batch-split-total"] >= 1
    assert verify(ledger, one_broker.read_back(topic)) == (500, 500, 0)
    batches = one_broker.dump_log(topic, 0)
    check_batches(batches)
    assert max(batch.size for batch in batches) <= 20_000


async def test_many_topics_are_created_on_demand(one_broker: Broker, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(50)]
    async with Producer(bootstrap_servers=one_broker.bootstrap_servers) as producer:
        loads = [Load(producer, name, size=50) for name in topics]
        for _ in range(20):
            for load in loads:
                load.send_one()
            await producer.drain()
        ledgers = [await load.finish() for load in loads]
    stored = read_back_topics(one_broker.bootstrap_servers, topics)
    for name, ledger in zip(topics, ledgers, strict=True):
        assert verify(ledger, stored[name]) == (20, 20, 0)


async def test_keys_have_the_partitions_of_other_clients(one_broker: Broker, topic: str) -> None:
    """Murmur2 over the key, as Java's default partitioner and librdkafka's ``murmur2_random``."""
    await asyncio.to_thread(one_broker.create_topic, topic, 7)
    generator = random.Random(7)
    keys = [generator.randbytes(generator.randrange(1, 40)) for _ in range(200)]
    foreign = confluent_kafka.Producer(
        {"bootstrap.servers": one_broker.bootstrap_servers, "partitioner": "murmur2_random", "log_level": 0}
    )
    for key in keys:
        foreign.produce(topic, b"foreign", key)
    assert await asyncio.to_thread(foreign.flush, 30) == 0
    async with Producer(bootstrap_servers=one_broker.bootstrap_servers) as producer:
        outcomes = await asyncio.gather(*(producer.send(topic, b"own", key) for key in keys))
    stored = one_broker.read_back(topic)
    theirs = {
        record.key: number for number, records in stored.items() for record in records if record.value == b"foreign"
    }
    assert [outcome.partition for outcome in outcomes] == [theirs[key] for key in keys]
    assert len({outcome.partition for outcome in outcomes}) == 7


async def test_records_without_key_reach_every_partition(one_broker: Broker, topic: str) -> None:
    await asyncio.to_thread(one_broker.create_topic, topic, 4)
    # Partitions with long queues would get fewer records, and the lengths depend on the machine.
    config = {"batch_size": 2000, "partitioner_adaptive_partitioning_enable": False}
    async with Producer(bootstrap_servers=one_broker.bootstrap_servers, **config) as producer:
        for _ in range(5000):
            producer.send(topic, bytes(100))
            await producer.drain()
        await producer.flush()
        assert [info.partition for info in await producer.partitions_for(topic)] == [0, 1, 2, 3]
    counts = {number: len(records) for number, records in one_broker.read_back(topic).items()}
    assert sum(counts.values()) == 5000
    assert min(counts.values()) > 500


async def test_records_of_send_many_are_stored(cluster: Cluster, topic: str) -> None:
    await asyncio.to_thread(cluster.create_topic, topic, 2)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, batch_size=4096) as producer:
        keyed = await producer.send_many(
            topic, [b"k%d" % number for number in range(1000)], keys=[b"%d" % (number % 10) for number in range(1000)]
        )
        plain = await producer.send_many(topic, [b"p%d" % number for number in range(1000)], partition=1)
    assert (keyed.count, keyed.acked, plain.count, plain.acked) == (1000, 1000, 1000, 1000)
    stored = cluster.read_back(topic)
    assert [record.value for record in stored[1] if record.value and record.value.startswith(b"p")] == [
        b"p%d" % number for number in range(1000)
    ]
    by_key: dict[bytes | None, list[int]] = {}
    for records in stored.values():
        for record in records:
            if record.value is not None and record.value.startswith(b"k"):
                by_key.setdefault(record.key, []).append(int(record.value[1:]))
    assert by_key == {b"%d" % digit: list(range(digit, 1000, 10)) for digit in range(10)}


async def test_an_unknown_topic_fails_after_max_block_ms_and_delays_no_other(
    three_nodes: KafkaCluster, topic: str
) -> None:
    await asyncio.to_thread(three_nodes.create_topic, topic)
    async with Producer(bootstrap_servers=three_nodes.bootstrap_servers, max_block_ms=2000) as producer:
        await know_topic(producer, topic)
        began = time.monotonic()
        missing = producer.send(f"{topic}-missing", b"v")
        assert (await producer.send(topic, b"v")).offset == 0
        assert not missing.done()
        with pytest.raises(MetadataTimeoutError, match=f"{topic}-missing"):
            await missing
        assert 1.9 < time.monotonic() - began < 20
        with pytest.raises(MetadataTimeoutError, match=f"{topic}-missing"):
            await producer.partitions_for(f"{topic}-missing")
