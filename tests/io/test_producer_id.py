"""The producer id: requested before the first record, retried, and the consequences of a refusal."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aioproducer.errors import KafkaError, UnsupportedVersionError
from aioproducer.protocol import ApiKey
from tests.simulation import Fault, run

COORDINATOR_LOAD_IN_PROGRESS = 14
NOT_ENOUGH_REPLICAS = 19
CLUSTER_AUTHORIZATION_FAILED = 31
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53


def test_the_producer_id_is_requested_again_with_a_backoff_after_retriable_errors():
    async def scenario(world):
        world.cluster.create_topic("clicks")
        fault = Fault(api=ApiKey.INIT_PRODUCER_ID, error=COORDINATOR_LOAD_IN_PROGRESS, times=5)
        world.cluster.faults += [fault, Fault(api=ApiKey.INIT_PRODUCER_ID, disconnect="before", times=2)]
        async with world.producer() as producer:
            await producer.send("clicks", b"value")

    _, world = run(scenario)
    asked = [event.at for event in world.events(ApiKey.INIT_PRODUCER_ID)]
    assert len(asked) == 8
    assert all(later - sooner >= 0.08 for sooner, later in itertools.pairwise(asked))


def test_a_response_without_a_producer_id_is_repeated_with_a_backoff():
    async def scenario(world):
        world.cluster.create_topic("clicks")
        world.cluster.next_producer_id = -1000
        async with world.producer() as producer:
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(10)
            world.cluster.next_producer_id = 4000
            await delivery

    _, world = run(scenario)
    assert 10 <= len(world.events(ApiKey.INIT_PRODUCER_ID)) <= 20


def test_a_response_without_an_epoch_is_requested_again(caplog):
    """The response was once adopted: every batch then had a producer id and no epoch, which brokers reject."""

    async def scenario(world):
        world.cluster.create_topic("clicks")
        world.cluster.next_producer_epoch = -1
        async with world.producer() as producer:
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(10)
            assert not delivery.done()
            world.cluster.next_producer_epoch = 0
            await delivery

    _, world = run(scenario)
    asked = world.events(ApiKey.INIT_PRODUCER_ID)
    assert 10 <= len(asked) <= 20
    reported = [message for message in caplog.messages if "with epoch -1, but neither may be negative" in message]
    assert len(reported) == len(asked) - 1


@pytest.mark.parametrize("code", [CLUSTER_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED])
def test_a_refused_producer_id_fails_all_current_and_later_records(code):
    async def scenario(world):
        world.cluster.create_topic("clicks")
        world.cluster.faults.append(Fault(api=ApiKey.INIT_PRODUCER_ID, error=code))
        async with world.producer() as producer:
            deliveries = [producer.send("clicks", b"value"), producer.send("missing", b"value")]
            results = await asyncio.gather(*deliveries, return_exceptions=True)
            assert all(isinstance(result, KafkaError) and result.code == code for result in results)
            assert world.loop.time() < 1001
            for topic in ("clicks", "missing"):
                with pytest.raises(KafkaError) as raised:
                    producer.send(topic, b"value")
                assert raised.value.code == code

    run(scenario)


def test_a_broker_without_idempotence_causes_a_fatal_error_that_says_so():
    async def scenario(world):
        world.cluster.create_topic("clicks")
        for node in world.cluster.nodes.values():
            del node.versions[ApiKey.INIT_PRODUCER_ID]
        async with world.producer() as producer:
            with pytest.raises(UnsupportedVersionError, match="does not offer INIT_PRODUCER_ID"):
                await producer.send("clicks", b"value")
        async with world.producer(enable_idempotence=False) as producer:
            await producer.send("clicks", b"value")

    run(scenario)


def test_an_exhausted_epoch_leads_to_a_new_producer_id():
    async def scenario(world):
        world.cluster.next_producer_epoch = 32767
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"request_timeout_ms": 1000, "delivery_timeout_ms": 1000, "linger_ms": 0}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"first")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, disconnect="before", times=1000))
            with pytest.raises(TimeoutError):
                await producer.send("clicks", b"lost")
            world.cluster.faults.clear()
            world.cluster.next_producer_epoch = 0
            await producer.send("clicks", b"second")

    _, world = run(scenario)
    assert world.cluster.values("clicks") == [b"first", b"second"]
    assert len(world.events(ApiKey.INIT_PRODUCER_ID)) == 2
    assert len(world.cluster.partition("clicks").producers) == 2


@pytest.mark.parametrize("disconnect", ["", "after"])
def test_the_first_batch_of_a_partition_is_not_overtaken_at_a_broker_without_producer_state(disconnect):
    """A broker without a producer's state accepts any sequence.

    A second batch behind a refused first one was once written before it, and twice if its response was lost.
    """

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=NOT_ENOUGH_REPLICAS))
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, disconnect=disconnect))
        async with world.producer(linger_ms=0, batch_size=0) as producer:
            await producer.partitions_for("clicks")
            sent = [producer.send("clicks", b"%d" % number) for number in range(4)]
            assert [metadata.offset for metadata in await asyncio.gather(*sent)] == [0, 1, 2, 3]

    _, world = run(scenario)
    assert world.cluster.values("clicks") == [b"0", b"1", b"2", b"3"]
