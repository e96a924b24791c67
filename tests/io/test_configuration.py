"""Every configuration key that io uses has a visible effect, on the wire or in the timing."""

from __future__ import annotations

import asyncio
import itertools
import ssl

import pytest

from aioproducer import Producer
from aioproducer._client.factory import connector_for
from aioproducer.config import ProducerConfig
from aioproducer.errors import BufferExhaustedError, ConfigurationError, KafkaError
from aioproducer.protocol import ApiKey
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.stream import StreamConnector
from aioproducer.wire.record_batch import RecordBatch
from tests.simulation import Fault, run

NOT_ENOUGH_REPLICAS = 19
CODEC_IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def requests_of(**config):
    """Return the Produce requests of a producer that sends ten records."""

    async def scenario(world):
        world.cluster.create_topic("clicks", 2, leaders=[1, 1])
        async with world.producer(**config) as producer:
            for number in range(10):
                producer.send("clicks", b"%d" % number * 100, partition=number % 2)

    _, world = run(scenario)
    return [event.request for event in world.events(ApiKey.PRODUCE)]


def batches_of(requests):
    return [
        RecordBatch(data.records)
        for request in requests
        for topic in request.topic_data
        for data in topic.partition_data
    ]


def test_client_id():
    async def scenario(world):
        world.cluster.create_topic("clicks")
        async with world.producer(client_id="billing") as producer:
            await producer.send("clicks", b"value")

    _, world = run(scenario)
    assert {event.client_id for event in world.events()} == {"billing"}


@pytest.mark.parametrize(("acks", "number"), [("all", -1), ("-1", -1), (1, 1), ("0", 0)])
def test_acks(acks, number):
    assert {request.acks for request in requests_of(acks=acks)} == {number}


def test_request_timeout_ms_also_limits_how_long_the_broker_waits_for_replicas():
    assert {request.timeout_ms for request in requests_of(request_timeout_ms=4321)} == {4321}


@pytest.mark.parametrize("idempotent", [True, False])
def test_enable_idempotence(idempotent):
    batches = batches_of(requests_of(enable_idempotence=idempotent))
    assert {batch.producer_id for batch in batches} == ({4000} if idempotent else {-1})
    assert all((batch.base_sequence >= 0) == idempotent for batch in batches)


@pytest.mark.parametrize("compression_type", CODEC_IDS)
def test_compression_type(compression_type):
    batches = batches_of(requests_of(compression_type=compression_type))
    assert {batch.compression_id for batch in batches} == {CODEC_IDS[compression_type]}
    assert next(record.value for batch in batches for record in batch.records()) == b"0" * 100


@pytest.mark.parametrize(("compression_type", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 17), ("zstd", 1, 19)])
def test_compression_levels(compression_type, low, high):
    def size(level):
        text = b" ".join(b"%d" % (number * number % 977) for number in range(3000))

        async def scenario(world):
            world.cluster.create_topic("clicks", leaders=[1])
            level_key = f"compression_{compression_type}_level"
            async with world.producer(
                compression_type=compression_type, batch_size=10, **{level_key: level}
            ) as producer:
                await producer.send("clicks", text)

        return run(scenario)[1].cluster.partition("clicks").batch_sizes[0]

    assert size(high) < size(low)


def test_batch_size_and_linger_ms():
    assert len(batches_of(requests_of(batch_size=0))) == 10
    assert len(batches_of(requests_of(linger_ms=100))) == 2

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=700) as producer:
            await producer.send("clicks", b"warm")
            began = world.loop.time()
            await producer.send("clicks", b"value")
            return world.loop.time() - began

    assert 0.7 <= run(scenario)[0] <= 0.702


def test_max_request_size_limits_the_size_of_a_request():
    assert len(requests_of(linger_ms=100)) == 1
    assert len(requests_of(linger_ms=100, max_request_size=800)) == 2


def test_buffer_memory_and_max_block_ms():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(buffer_memory=10_000, max_block_ms=1234, linger_ms=100_000) as producer:
            await producer.partitions_for("clicks")
            assert producer.metrics()["buffer-total-bytes"] == 10_000
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer="silence", times=10))
            producer.send("clicks", bytes(6000))
            began = world.loop.time()
            with pytest.raises(BufferExhaustedError):
                await producer.send("clicks", bytes(6000))
            took = world.loop.time() - began
            await producer.close(0)
            return took

    assert 1.234 <= run(scenario)[0] <= 1.236


def test_retry_backoff_ms_and_retry_backoff_max_ms():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(retry_backoff_ms=200, retry_backoff_max_ms=1000) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS, times=6))
            await producer.send("clicks", b"value")

    _, world = run(scenario)
    sent = [event.at for event in world.events(ApiKey.PRODUCE)]
    gaps = [later - sooner for sooner, later in itertools.pairwise(sent)]
    for gap, expected in zip(gaps, (0.2, 0.4, 0.8, 1.0, 1.0, 1.0), strict=True):
        assert 0.8 * expected <= gap <= min(1.2 * expected, 1.0) + 0.001


@pytest.mark.parametrize("retries", [1, 4])
def test_retries(retries):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(retries=retries) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS, times=100))
            with pytest.raises(KafkaError):
                await producer.send("clicks", b"value")

    _, world = run(scenario)
    assert len(world.events(ApiKey.PRODUCE)) == retries + 1


def test_delivery_timeout_ms():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(delivery_timeout_ms=7000, request_timeout_ms=1000) as producer:
            await producer.partitions_for("clicks")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS, times=1000))
            began = world.loop.time()
            with pytest.raises(TimeoutError, match="delivery_timeout_ms"):
                await producer.send("clicks", b"value")
            return world.loop.time() - began

    assert 7.0 <= run(scenario)[0] <= 7.001


def test_metadata_max_age_ms():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(metadata_max_age_ms=2000) as producer:
            await producer.send("clicks", b"value")
            await asyncio.sleep(5)
            del world.journal[:]
            await asyncio.sleep(20)

    _, world = run(scenario)
    assert len(world.events(ApiKey.METADATA)) == 10


@pytest.mark.parametrize("limit", [1, 3])
def test_max_in_flight_requests_per_connection_without_idempotence_keeps_order(limit):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"enable_idempotence": False, "max_in_flight_requests_per_connection": limit, "batch_size": 0}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"-1")
            for number in range(30):
                producer.send("clicks", b"%d" % number)
                if number % 5 == 0:
                    world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS))
            await producer.flush()
        return [int(value) for value in world.cluster.values("clicks")]

    assert run(scenario)[0] == list(range(-1, 30))


def test_partitioner_ignore_keys():
    async def scenario(world):
        world.cluster.create_topic("clicks", 4)
        async with world.producer(partitioner_ignore_keys=True, batch_size=100, linger_ms=0) as producer:
            sent = [await producer.send("clicks", bytes(60), key=b"same") for _ in range(60)]
            return {metadata.partition for metadata in sent}

    assert run(scenario)[0] == {0, 1, 2, 3}


def test_partitioner_class():
    class ByLength:
        def partition(self, topic, key, value, cluster):
            return len(value) % cluster.partition_count(topic)

    async def scenario(world):
        world.cluster.create_topic("clicks", 4)
        async with world.producer(partitioner_class=ByLength()) as producer:
            return [(await producer.send("clicks", bytes(size))).partition for size in range(8)]

    assert run(scenario)[0] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_partitioner_rack_aware_and_client_rack():
    async def scenario(world):
        # Broker n is in rack n % 3.
        world.cluster.create_topic("clicks", 6, leaders=[1, 2, 3, 1, 2, 3])
        config = {"partitioner_rack_aware": True, "client_rack": "rack2", "batch_size": 100, "linger_ms": 0}
        async with world.producer(**config) as producer:
            return {(await producer.send("clicks", bytes(60))).partition for _ in range(60)}

    assert run(scenario)[0] == {1, 4}


@pytest.mark.parametrize("adaptive", [True, False])
def test_partitioner_availability_timeout_ms_and_adaptive_partitioning(adaptive):
    async def scenario(world):
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        config = {
            "partitioner_adaptive_partitioning_enable": adaptive,
            "partitioner_availability_timeout_ms": 500,
            "batch_size": 200,
            "linger_ms": 0,
            "max_in_flight_requests_per_connection": 1,
        }
        async with world.producer(**config) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(2)))
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, node=2, answer_delay=15))
            held_up = [producer.send("clicks", b"slow", partition=1) for _ in range(2)]
            await asyncio.sleep(0.01)
            held_up.append(producer.send("clicks", b"ready", partition=1))
            await asyncio.sleep(2)
            sent = []
            for _ in range(40):
                sent.append(producer.send("clicks", bytes(150)))
                await asyncio.sleep(0.01)
            await asyncio.gather(*sent, *held_up)
            return [delivery.result().partition for delivery in sent[2:]]

    partitions, _ = run(scenario)
    assert (set(partitions) == {0}) is adaptive


def test_metrics_windows():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"metrics_num_samples": 2, "metrics_sample_window_ms": 1000}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"value")
            recent = producer.metrics()["record-send-rate"]
            await asyncio.sleep(10)
            return recent, producer.metrics()["record-send-rate"], producer.metrics()["record-send-total"]

    recent, later, total = run(scenario)[0]
    assert recent > 0
    assert later == 0
    assert total == 1


def test_transports():
    config = ProducerConfig.from_kwargs(bootstrap_servers="a:1", send_buffer_bytes=7777, receive_buffer_bytes=-1)
    assert isinstance(connector_for(config, "tcp"), StreamConnector)
    network = MemoryNetwork()
    assert connector_for(config, network) is network
    with pytest.raises(ConfigurationError, match="transport 'carrier pigeon' does not exist"):
        connector_for(config, "carrier pigeon")


def test_the_transport_is_checked_before_anything_starts():
    with pytest.raises(ConfigurationError, match=r"use 'tcp', 'rdma', 'rdma,tcp' .*, or a connector"):
        Producer(bootstrap_servers="a:1", transport="udp")


def test_security_protocol_ssl_makes_tls_connections():
    config = ProducerConfig.from_kwargs(bootstrap_servers="a:1", security_protocol="SSL")
    connector = connector_for(config, "tcp")
    assert isinstance(connector, StreamConnector)
    assert isinstance(connector._ssl_context, ssl.SSLContext)
    plain = connector_for(ProducerConfig.from_kwargs(bootstrap_servers="a:1"), "tcp")
    assert isinstance(plain, StreamConnector)
    assert plain._ssl_context is None


def test_send_and_receive_buffer_bytes_reach_the_sockets():
    config = ProducerConfig.from_kwargs(bootstrap_servers="a:1", send_buffer_bytes=7777, receive_buffer_bytes=8888)
    connector = connector_for(config, "tcp")
    assert isinstance(connector, StreamConnector)
    assert sorted(size for _, size in connector._buffer_options) == [7777, 8888]
