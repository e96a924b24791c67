"""Errors pushed, delays, leaders moved, brokers down, older versions: at librdkafka's mock and the embedded broker."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager

import pytest

from aioproducer import Producer
from aioproducer.errors import RecordTooLargeError
from tests.kafka.in_process import InProcessCluster
from tests.kafka.ledger import verify
from tests.kafka.load import Load
from tests.kafka.mock import API_VERSIONS, DISCONNECT, INIT_PRODUCER_ID, METADATA, PRODUCE, MockCluster

FaultyCluster = MockCluster | InProcessCluster

MESSAGE_TOO_LARGE = 10

# The newest versions that brokers of these releases of Apache Kafka serve. ApiVersions stays at 2, the mock's limit,
# although Kafka serves 3 from 2.4 on: the mock's response in version 3 has a wrong number of elements.
RELEASES = {
    "2.1": {PRODUCE: 7, METADATA: 7, INIT_PRODUCER_ID: 1},
    "2.4": {PRODUCE: 8, METADATA: 9, INIT_PRODUCER_ID: 2},
    "2.6": {PRODUCE: 8, METADATA: 9, INIT_PRODUCER_ID: 3},
    "2.8": {PRODUCE: 9, METADATA: 11, INIT_PRODUCER_ID: 4},
    "3.2": {PRODUCE: 9, METADATA: 12, INIT_PRODUCER_ID: 4},
}

RETRIED = {
    "NOT_LEADER_OR_FOLLOWER": 6,
    "LEADER_NOT_AVAILABLE": 5,
    "UNKNOWN_TOPIC_OR_PARTITION": 3,
    "REQUEST_TIMED_OUT": 7,
    "NETWORK_EXCEPTION": 13,
    "NOT_ENOUGH_REPLICAS": 19,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": 20,
    "KAFKA_STORAGE_ERROR": 56,
    "CORRUPT_MESSAGE": 2,
    "DISCONNECT": DISCONNECT,
}


def _strict(cluster: FaultyCluster) -> bool:
    """Return whether the cluster checks sequence numbers, which librdkafka's mock does not."""
    return isinstance(cluster, InProcessCluster)


def _producer(cluster: FaultyCluster, **configuration: object) -> Producer:
    settings: dict[str, object] = {"retry_backoff_ms": 20, "reconnect_backoff_ms": 20, "linger_ms": 0}
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **{**settings, **configuration})


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_a_producer_works_with_older_versions(
    mock_cluster: MockCluster, topic: str, release: str, codec: str
) -> None:
    mock_cluster.limit_versions(RELEASES[release])
    mock_cluster.create_topic(topic, 3, 3)
    async with _producer(mock_cluster, compression_type=codec) as producer:
        load = Load(producer, topic, 3, size=100)
        await load.send(300)
        mock_cluster.set_leader(topic, 0, 2)
        await load.send(300)
        ledger = await load.finish()
    assert verify(ledger, mock_cluster.read_back(topic)) == (600, 600, 0)


@pytest.mark.parametrize("max_in_flight", [1, 5])
@pytest.mark.parametrize("error", RETRIED)
async def test_retriable_errors_of_produce_lose_nothing(
    faulty_cluster: FaultyCluster, topic: str, error: str, max_in_flight: int
) -> None:
    faulty_cluster.create_topic(topic, 2, 3)
    async with _producer(faulty_cluster, max_in_flight_requests_per_connection=max_in_flight) as producer:
        load = Load(producer, topic, 2, size=100)
        await load.send(50)
        await load.finish()
        faulty_cluster.push_errors(PRODUCE, [RETRIED[error]] * 3)
        for _ in range(10):
            await load.send(50)
            await asyncio.sleep(0.005)
        ledger = await load.finish()
    assert not ledger.failed, next(iter(ledger.failed.values()))
    # The mock accepts a batch after a refused one, for which Kafka returns OUT_OF_ORDER_SEQUENCE_NUMBER.
    strict = _strict(faulty_cluster)
    verify(
        ledger,
        faulty_cluster.read_back(topic),
        in_order=strict or max_in_flight == 1,
        exactly_once=strict or error != "DISCONNECT",
    )


@pytest.mark.parametrize("api_key", [METADATA, INIT_PRODUCER_ID, API_VERSIONS])
async def test_errors_of_the_first_requests_lose_nothing(
    faulty_cluster: FaultyCluster, topic: str, api_key: int
) -> None:
    faulty_cluster.create_topic(topic)
    codes = {METADATA: [DISCONNECT, 5], INIT_PRODUCER_ID: [14, DISCONNECT, 15], API_VERSIONS: [DISCONNECT] * 2}
    faulty_cluster.push_errors(api_key, codes[api_key])
    async with _producer(faulty_cluster) as producer:
        load = Load(producer, topic)
        await load.send(10)
        ledger = await load.finish()
    assert verify(ledger, faulty_cluster.read_back(topic)) == (10, 10, 0)


async def test_a_sequence_error_bumps_the_epoch_and_loses_nothing(faulty_cluster: FaultyCluster, topic: str) -> None:
    """The next batches are sent again with a new epoch, in order (KIP-360)."""
    faulty_cluster.create_topic(topic)
    async with _producer(faulty_cluster, max_in_flight_requests_per_connection=1) as producer:
        load = Load(producer, topic, size=100)
        await load.send(10)
        await load.finish()
        faulty_cluster.push_errors(PRODUCE, [45])
        await load.send(200)
        ledger = await load.finish()
    assert not ledger.failed, next(iter(ledger.failed.values()))
    verify(ledger, faulty_cluster.read_back(topic))


async def test_a_batch_that_is_too_large_is_split(faulty_cluster: FaultyCluster, topic: str) -> None:
    faulty_cluster.create_topic(topic)
    async with _producer(faulty_cluster, linger_ms=200, batch_size=50_000) as producer:
        load = Load(producer, topic, size=1000)
        load.send_one()
        await load.finish()
        faulty_cluster.push_errors(PRODUCE, [MESSAGE_TOO_LARGE])
        for _ in range(40):
            load.send_one()
        ledger = await load.finish()
        assert producer.metrics()["batch-split-total"] == 1
    assert verify(ledger, faulty_cluster.read_back(topic)) == (41, 41, 0)


async def test_a_record_that_is_too_large_fails_alone(faulty_cluster: FaultyCluster, topic: str) -> None:
    faulty_cluster.create_topic(topic)
    async with _producer(faulty_cluster) as producer:
        await producer.send(topic, b"first")
        faulty_cluster.push_errors(PRODUCE, [MESSAGE_TOO_LARGE])
        with pytest.raises(RecordTooLargeError):
            await producer.send(topic, b"refused")
        await producer.send(topic, b"last")
    assert [record.value for record in faulty_cluster.read_back(topic)[0]] == [b"first", b"last"]


async def test_moved_leaders_lose_nothing(faulty_cluster: FaultyCluster, topic: str) -> None:
    faulty_cluster.create_topic(topic, 1, 3)
    async with _producer(faulty_cluster) as producer:
        load = Load(producer, topic)
        async with load.running():
            for broker in (1, 2, 3, 1):
                faulty_cluster.set_leader(topic, 0, broker)
                await load.more(40)
    assert not load.ledger.failed, next(iter(load.ledger.failed.values()))
    verify(load.ledger, faulty_cluster.read_back(topic))


async def test_a_stopped_broker_and_a_moved_leader_lose_nothing(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic, 1, 3)
    mock_cluster.set_leader(topic, 0, 1)
    async with _producer(mock_cluster) as producer:
        load = Load(producer, topic)
        async with load.running():
            await load.more(40)
            mock_cluster.set_down(1)
            mock_cluster.set_leader(topic, 0, 2)
            await load.more(40)
            mock_cluster.set_up(1)
            mock_cluster.set_leader(topic, 0, 1)
            await load.more(40)
    assert not load.ledger.failed, next(iter(load.ledger.failed.values()))
    # The mock does not recognize duplicates: batches without a response when the broker stopped are stored twice.
    verify(load.ledger, mock_cluster.read_back(topic), exactly_once=False)


@pytest.mark.parametrize("round_trip_ms", [20, 200])
async def test_slow_brokers_lose_nothing(faulty_cluster: FaultyCluster, topic: str, round_trip_ms: int) -> None:
    faulty_cluster.create_topic(topic, 4, 3)
    faulty_cluster.set_round_trip(round_trip_ms)
    async with _producer(faulty_cluster) as producer:
        load = Load(producer, topic, 4, size=100)
        for _ in range(20):
            await load.send(50)
            await asyncio.sleep(round_trip_ms / 5000)
        ledger = await load.finish()
    assert verify(ledger, faulty_cluster.read_back(topic)) == (1000, 1000, 0)


async def test_late_responses_lose_nothing(faulty_cluster: FaultyCluster, topic: str) -> None:
    """The connection of a request that timed out is dropped, and its batches are sent again."""
    faulty_cluster.create_topic(topic)
    async with _producer(faulty_cluster, request_timeout_ms=500, delivery_timeout_ms=20_000) as producer:
        load = Load(producer, topic)
        await load.send(10)
        await load.finish()
        faulty_cluster.set_round_trip(1500)
        await load.send(10)
        await asyncio.sleep(1)
        faulty_cluster.set_round_trip(0)
        ledger = await load.finish()
    assert not ledger.failed, next(iter(ledger.failed.values()))
    verify(ledger, faulty_cluster.read_back(topic), exactly_once=_strict(faulty_cluster))


def _trouble(generator: random.Random, cluster: FaultyCluster, topic: str) -> None:
    chosen = generator.randrange(4)
    if chosen == 0:
        cluster.push_errors(PRODUCE, generator.choices(list(RETRIED.values()), k=generator.randrange(1, 4)))
    elif chosen == 1:
        cluster.set_leader(topic, generator.randrange(3), generator.randrange(1, 4))
    elif chosen == 2:
        cluster.push_errors(METADATA, [DISCONNECT])
    else:
        cluster.set_round_trip(generator.choice([0, 0, 5, 30]))


@pytest.mark.parametrize("seed", range(3))
async def test_random_faults_lose_nothing(faulty_cluster: FaultyCluster, topic: str, seed: int) -> None:
    """Errors, moves, disconnects and delays in random order; nothing is stored before it was refused."""
    generator = random.Random(seed)
    faulty_cluster.create_topic(topic, 3, 3)
    producer: AbstractAsyncContextManager[Producer] = _producer(faulty_cluster)
    async with producer as entered:
        load = Load(entered, topic, 3)
        async with load.running():
            for _ in range(15):
                _trouble(generator, faulty_cluster, topic)
                await asyncio.sleep(generator.random() / 10)
            faulty_cluster.set_round_trip(0)
            await load.more(50)
    assert not load.ledger.failed, next(iter(load.ledger.failed.values()))
    # The mock drops responses to stored batches before a disconnect, and accepts batches after a refused one.
    strict = _strict(faulty_cluster)
    verify(load.ledger, faulty_cluster.read_back(topic), exactly_once=strict, in_order=strict)
