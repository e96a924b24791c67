"""The cluster behind a producer: its metadata, and nodes that are added and removed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from aioproducer.errors import BufferExhaustedError, DeliveryTimeoutError, MetadataTimeoutError, ProducerClosedError
from aioproducer.protocol import ApiKey
from tests.io.recording import Recording
from tests.simulation import Fault, run

REBOOTSTRAP_REQUIRED = 129

EVERYWHERE = "broker1:9092,broker2:9092,broker3:9092"


def move_all_brokers(world):
    """Move all brokers at once, so that none is left at the address in the metadata."""
    for node_id in (1, 2, 3):
        world.stop_node(node_id)
        world.start_node(node_id, host=f"new{node_id}")


@asynccontextmanager
async def bootstrapped_elsewhere(world, **config):
    """Return a producer that used an address of no broker, and has sent ``before`` to a topic that node 2 leads."""
    world.cluster.create_topic("clicks", leaders=[2])
    world.loop.addresses["bootstrap"] = ["broker1"]
    async with world.producer(bootstrap_servers="bootstrap:9092", **config) as producer:
        await producer.send("clicks", b"before")
        yield producer


def test_a_metadata_waiter_ends_with_the_next_response_and_not_an_earlier_one():
    async def scenario(world):
        world.cluster.create_topic("clicks")
        async with world.producer() as producer:
            await producer.wait_ready(1)
            cluster, metadata = producer._sender.cluster, producer._parts.metadata
            version = metadata.version
            # A change between request and waiter is not missed: the response arrives later.
            metadata.request_update(world.loop.time(), "test")
            waiter = cluster.add_metadata_waiter()
            assert not waiter.done()
            cluster.request_update(world.loop.time(), "test")
            await waiter
            assert metadata.version > version

    run(scenario)


def test_waiting_for_metadata_ends_with_the_producer():
    async def scenario(world):
        world.cluster.metadata_error = 7
        producer = world.producer()
        await producer.start()
        waiting = [
            asyncio.ensure_future(producer.partitions_for("clicks")),
            asyncio.ensure_future(producer.wait_ready(100)),
        ]
        await asyncio.sleep(1)
        await producer.close()
        return await asyncio.gather(*waiting, return_exceptions=True)

    errors, _ = run(scenario)
    assert [type(error) for error in errors] == [ProducerClosedError, ProducerClosedError]


def test_there_is_never_more_than_one_metadata_request_in_flight():
    async def scenario(world):
        world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer_delay=0.2, times=1000))
        async with world.producer(bootstrap_servers=EVERYWHERE, max_block_ms=5000) as producer:
            for number in range(50):
                producer.send(f"topic{number}", b"value").add_done_callback(lambda delivery: delivery.exception())
                await asyncio.sleep(0.05)

    _, world = run(scenario)
    # A response takes 0.2 s: the next request is sent after it.
    asked = [event.at for event in world.events(ApiKey.METADATA)]
    assert all(later - sooner >= 0.2 for sooner, later in itertools.pairwise(asked))


def test_metadata_requests_are_sent_before_produce_data():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=0, max_in_flight_requests_per_connection=1) as producer:
            await producer.send("clicks", b"warm")
            await asyncio.sleep(1)
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=0.1))
            first = producer.send("clicks", b"first")
            await asyncio.sleep(0.05)
            # The only connection has no free slot: the next one is for metadata, and the record follows.
            second = producer.send("clicks", b"second")
            producer._sender.cluster.request_update(world.loop.time(), "test")
            await asyncio.gather(first, second)

    _, world = run(scenario, nodes=1)
    assert world.requests()[-3:] == ["PRODUCE", "METADATA", "PRODUCE"]


def test_refreshes_without_news_are_separated_by_the_backoff():
    async def scenario(world):
        async with world.producer(retry_backoff_ms=100, retry_backoff_max_ms=1000, max_block_ms=30_000) as producer:
            delivery = producer.send("missing", b"value")
            turns = world.loop.turns
            with pytest.raises(MetadataTimeoutError, match="Topic 'missing' was not found in the cluster within 30000"):
                await delivery
            return world.loop.turns - turns

    turns, world = run(scenario)
    asked = [event.at for event in world.events(ApiKey.METADATA)]
    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert all(gap >= 0.08 for gap in gaps)
    assert all(gap >= 0.8 for gap in gaps[8:])
    assert turns < 15 * len(asked)


def test_a_failed_request_is_repeated_at_another_node():
    async def scenario(world):
        world.cluster.create_topic("clicks")
        async with world.producer(request_timeout_ms=1000, delivery_timeout_ms=10_000) as producer:
            await producer.wait_ready(1)
            await asyncio.gather(*(producer.send("clicks", b"value") for _ in range(3)))
            del world.journal[:]
            world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer="silence"))
            producer._sender.cluster.request_update(world.loop.time(), "test")
            await producer._sender.cluster.add_metadata_waiter()

    _, world = run(scenario)
    first, second = world.events(ApiKey.METADATA)
    assert first.node != second.node
    assert 1.0 <= second.at - first.at < 1.3


def test_an_unreachable_leader_triggers_a_metadata_request():
    """Its partitions may have moved; without a request the producer would reconnect until the records expire."""

    async def scenario(world):
        world.cluster.create_topic("clicks", 2, leaders=[2, 3])
        async with world.producer() as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(2)))
            world.cluster.listed = {1, 2, 3}
            world.stop_node(2)
            delivery = producer.send("clicks", b"value", partition=0)
            await asyncio.sleep(1)
            world.cluster.move_leader("clicks", 0, 3)
            began = world.loop.time()
            await delivery
            return world.loop.time() - began

    took, _ = run(scenario)
    assert took < 2.5


def test_a_leader_that_stays_unreachable_does_not_make_the_sender_spin():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[2])
        async with world.producer(delivery_timeout_ms=100_000) as producer:
            await producer.send("clicks", b"warm")
            world.cluster.listed = {1, 2, 3}
            world.stop_node(2)
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(10)
            turns = world.loop.turns
            await asyncio.sleep(60)
            turns = world.loop.turns - turns
            world.start_node(2)
            await delivery
            return turns

    turns, _ = run(scenario)
    assert turns < 60 * 60


@pytest.mark.parametrize("what", ["leaderless", "metadata errors", "no brokers", "no listener"])
def test_a_leader_that_stays_unknown_does_not_make_the_sender_spin(what):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[2])
        async with world.producer(bootstrap_servers=EVERYWHERE) as producer:
            await producer.wait_ready(1)
            if what == "leaderless":
                world.cluster.listed = {1, 3}
            elif what == "metadata errors":
                world.cluster.metadata_error = 7
            elif what == "no brokers":
                world.cluster.forget_brokers = True
            else:
                for node_id in (1, 2, 3):
                    world.stop_node(node_id)
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(5)
            turns = world.loop.turns
            await asyncio.sleep(30)
            turns = world.loop.turns - turns
            if what == "no listener":
                for node_id in (1, 2, 3):
                    world.start_node(node_id)
            world.cluster.listed = None
            world.cluster.metadata_error = 0
            world.cluster.forget_brokers = False
            began = world.loop.time()
            await delivery
            return turns, world.loop.time() - began

    (turns, took), _ = run(scenario)
    assert turns < 30 * 60
    assert took < 2.5


def test_an_idle_producer_sleeps():
    async def scenario(world):
        world.cluster.create_topic("clicks", 3)
        async with world.producer(connections_max_idle_ms=-1) as producer:
            await asyncio.gather(*(producer.send("clicks", b"value", partition=each) for each in range(3)))
            # Timers of requests that were answered long since may fire once.
            await asyncio.sleep(60)
            turns = world.loop.turns
            await asyncio.sleep(200)
            return world.loop.turns - turns

    assert run(scenario)[0] <= 5


def test_metadata_is_due_at_the_only_node_when_its_throttling_ends():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer() as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, throttle_time_ms=5000))
            await producer.send("clicks", b"value")
            waiter = producer._sender.cluster.add_metadata_waiter()
            producer._sender.cluster.request_update(world.loop.time(), "test")
            began = world.loop.time()
            await asyncio.wait_for(waiter, 60)
            return world.loop.time() - began

    took, _ = run(scenario, nodes=1)
    assert 4.8 <= took <= 5.2


def test_a_record_that_expires_while_throttled_names_the_throttling():
    """The error once named an unreachable leader, or records that arrive faster than brokers accept them."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        times = {"delivery_timeout_ms": 400, "request_timeout_ms": 300, "max_block_ms": 300, "linger_ms": 0}
        async with world.producer(buffer_memory=16384, batch_size=4096, **times) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, throttle_time_ms=5000))
            await producer.send("clicks", b"value")
            began = world.loop.time()
            missing = producer.send("missing", b"value")
            sent = [producer.send("clicks", bytes(3500)) for _ in range(5)]
            late = await asyncio.gather(missing, *sent, return_exceptions=True)
            return world.loop.time() - began, late

    (took, (missing, *sent)), _ = run(scenario, nodes=1)
    assert took < 0.5
    assert isinstance(missing, MetadataTimeoutError)
    assert isinstance(sent[0], DeliveryTimeoutError)
    assert isinstance(sent[-1], BufferExhaustedError)
    for error, left_ms in ((missing, 4700), (sent[0], 4600), (sent[-1], 4700)):
        text = r"Broker broker1:9092 \(id 1\) \(rack rack1\) throttles this client for another (\d+) ms"
        found = re.search(text, str(error))
        assert found is not None, error
        assert left_ms - 100 <= int(found[1]) <= left_ms + 100
    assert "They were never sent. Broker" in str(sent[0])


def test_unneeded_nodes_have_no_task():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer() as producer:
            await producer.send("clicks", b"value")
            waiter = producer._sender.cluster.add_metadata_waiter()
            producer._sender.cluster.request_update(world.loop.time(), "test")
            await waiter
            return sorted(producer._sender.cluster.nodes)

    assert len(run(scenario, nodes=100)[0]) <= 3


def test_a_removed_node_is_closed_once_its_responses_have_arrived():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        async with world.producer(hooks=(hooks,), linger_ms=0) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(2)))
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, node=2, answer_delay=2.0))
            delivery = producer.send("clicks", b"value", partition=1)
            await world.until(lambda: len(world.events(ApiKey.PRODUCE, node=2)) == 2)
            world.cluster.listed = {1, 3}
            producer._sender.cluster.request_update(world.loop.time(), "test")
            await asyncio.sleep(1)
            assert 2 not in producer._sender.cluster.nodes
            assert not delivery.done()
            await delivery
            await asyncio.sleep(0.1)
            assert [connection.node.id for connection in world.connections if connection.node.id == 2] == []
            assert producer.metrics().nodes.keys() == {1}
        return hooks

    hooks, world = run(scenario)
    assert (2, None) in [(node.id, error) for node, error in hooks.of("on_disconnect")]
    assert world.cluster.values("clicks", 1) == [b"warm", b"value"]


def test_kip_899_when_no_known_node_is_reachable_the_bootstrap_addresses_are_used_again(caplog):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[2])
        async with world.producer() as producer:
            await producer.send("clicks", b"before")
            # All brokers move at once: only the bootstrap address still leads to one.
            move_all_brokers(world)
            world.loop.addresses["broker1"] = ["new1"]
            began = world.loop.time()
            await producer.send("clicks", b"after")
            return world.loop.time() - began

    took, world = run(scenario)
    assert took < 2
    assert world.cluster.values("clicks") == [b"before", b"after"]


def test_kip_899_without_rebootstrap_only_the_known_nodes_are_used():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[2])
        config = {"metadata_recovery_strategy": "none", "delivery_timeout_ms": 40_000}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"before")
            move_all_brokers(world)
            world.loop.addresses["bootstrap"] = ["new1"]
            with pytest.raises(TimeoutError, match=r"Nothing listens|never sent"):
                await producer.send("clicks", b"after")

    run(scenario)


def test_kip_1102_metadata_missing_for_too_long_triggers_a_rebootstrap():
    """Nodes that accept connections and never respond stay 'connecting': only a timeout shows that none is usable."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[2])
        trigger = {"metadata_recovery_rebootstrap_trigger_ms": 20_000, "delivery_timeout_ms": 100_000}
        async with world.producer(bootstrap_servers="bootstrap:9092", **trigger) as producer:
            world.loop.addresses["bootstrap"] = ["broker1"]
            await producer.send("clicks", b"before")
            move_all_brokers(world)
            world.hanging |= {"broker1", "broker2", "broker3"}
            world.loop.addresses["bootstrap"] = ["new1"]
            began = world.loop.time()
            await producer.send("clicks", b"after")
            return world.loop.time() - began

    took, world = run(scenario)
    assert 20 <= took <= 60
    assert world.cluster.values("clicks") == [b"before", b"after"]


def test_unreachable_advertised_brokers_do_not_reset_the_backoff_of_the_bootstrap(caplog):
    """The advertised addresses are wrong: each bootstrap response once reset all backoffs, nine times a second."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[2])
        world.loop.addresses["bootstrap"] = ["broker1"]
        nodes = list(world.cluster.nodes.values())
        for node in nodes:
            node.host = f"wrong-{node.host}"
        async with world.producer(bootstrap_servers="bootstrap:9092") as producer:
            delivery = producer.send("clicks", b"late")
            await asyncio.sleep(60)
            attempts = Counter(host for time, host, _ in world.attempts if time > world.loop.time() - 50)
            for node in nodes:
                node.host = node.host.removeprefix("wrong-")
            await asyncio.wait_for(delivery, 5)
        return attempts

    attempts, world = run(scenario)
    assert world.cluster.values("clicks") == [b"late"]
    # reconnect.backoff.max.ms and retry.backoff.max.ms are a second, less jitter.
    assert set(attempts) == {"broker1", "wrong-broker1", "wrong-broker2", "wrong-broker3"}
    assert max(attempts.values()) <= 50 / 0.8 + 1
    gone_back = "No known broker can be reached: returning to the bootstrap addresses"
    assert sum(record.message.endswith(gone_back) for record in caplog.records) == 1
    assert len(caplog.records) < 10


def test_kip_1242_a_broker_of_another_cluster_triggers_a_rebootstrap():
    async def scenario(world):
        async with bootstrapped_elsewhere(world) as producer:
            # The listener at broker2 is no longer node 2.
            world.stop_node(2)
            world.start_node(2, host="new2")
            world.loop.addresses["broker2"] = ["broker3"]
            world.cluster.listed = {1, 3}
            world.cluster.move_leader("clicks", 0, 3)
            await producer.send("clicks", b"after")
        return world.loop.resolved

    resolved, world = run(scenario)
    assert resolved.count("bootstrap") == 2
    assert world.cluster.values("clicks") == [b"before", b"after"]


def test_kip_1242_without_the_check_the_expected_node_is_not_sent():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[2])
        async with world.producer(metadata_cluster_check_enable=False) as producer:
            await producer.send("clicks", b"value")

    _, world = run(scenario)
    assert {event.request.cluster_id for event in world.events(ApiKey.API_VERSIONS)} == {None}


def test_kip_1102_rebootstrap_required_in_a_metadata_response_triggers_a_rebootstrap():
    async def scenario(world):
        async with bootstrapped_elsewhere(world) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.METADATA, error=REBOOTSTRAP_REQUIRED))
            producer._sender.cluster.request_update(world.loop.time(), "test")
            await asyncio.sleep(2)
            await producer.send("clicks", b"after")
        return world.loop.resolved

    resolved, world = run(scenario)
    assert resolved.count("bootstrap") == 2
    assert world.cluster.values("clicks") == [b"before", b"after"]


def test_a_response_from_before_a_rebootstrap_is_ignored_after_it():
    async def scenario(world):
        async with bootstrapped_elsewhere(world) as producer:
            cluster, metadata = producer._sender.cluster, producer._parts.metadata
            world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer_delay=2.0))
            world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer_delay=6.0))
            cluster.request_update(world.loop.time(), "test")
            asked = len(world.events(ApiKey.METADATA))
            await world.until(lambda: len(world.events(ApiKey.METADATA)) == asked + 1)
            # Another broker reports that it is not the expected one, while the request is in flight.
            metadata.require_rebootstrap()
            producer._parts.accumulator.producer_state.producer_id = -1
            producer._sender.wake()
            await world.until(lambda: not metadata.bootstrapped)
            await world.until(lambda: len(world.events(ApiKey.METADATA)) == asked + 2)
            version = metadata.version
            await asyncio.sleep(4)
            assert metadata.version == version, "the first response has arrived and is unused"
            await world.until(lambda: metadata.version > version)
            assert metadata.bootstrapped

    run(scenario)


@pytest.mark.parametrize("hints", [True, False])
def test_kip_951_a_hint_replaces_the_metadata_round_trip_and_the_backoff(hints):
    async def scenario(world):
        world.cluster.hints = hints
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"retry_backoff_ms": 1000, "retry_backoff_max_ms": 1000, "linger_ms": 0}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"before")
            await asyncio.sleep(5)
            world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer_delay=3.0, times=100))
            world.cluster.move_leader("clicks", 0, 2)
            began = world.loop.time()
            await producer.send("clicks", b"after")
            return world.loop.time() - began

    took, world = run(scenario)
    nodes = [event.node for event in world.events(ApiKey.PRODUCE)]
    if hints:
        assert took < 0.1
        assert nodes == [1, 1, 2]
    else:
        assert took > 2
        assert nodes[-1] == 2


def test_kip_951_a_hint_may_name_a_node_that_metadata_does_not_know():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer() as producer:
            await producer.send("clicks", b"before")
            world.cluster.add_node(9)
            world.start_node(9)
            world.cluster.listed = {1}
            world.cluster.move_leader("clicks", 0, 9)
            await producer.send("clicks", b"after")

    _, world = run(scenario, nodes=1)
    assert world.cluster.values("clicks") == [b"before", b"after"]


def test_a_metadata_timeout_names_a_broker_without_a_common_metadata_version():
    async def scenario(world):
        for node in world.cluster.nodes.values():
            node.versions[ApiKey.METADATA] = (90, 91)
        async with world.producer(max_block_ms=2000) as producer:
            with pytest.raises(MetadataTimeoutError, match="supports METADATA version 90 to 91"):
                await producer.send("clicks", b"value")

    run(scenario)


@pytest.mark.parametrize("hanging", [True, False])
def test_closing_while_connecting_leaves_no_state(hanging):
    async def scenario(world):
        if hanging:
            world.hanging.add("broker1")
        else:
            world.latency = lambda: 0.3
        producer = world.producer()
        await producer.start()
        await asyncio.sleep(0.2)
        began = world.loop.time()
        await producer.close()
        assert world.loop.time() - began < 0.5
        await asyncio.sleep(5)

    run(scenario)


def test_a_node_can_connect_while_another_closes_slowly():
    """Closing the producer must not miss a connection that is being made: the world rejects tasks that are left."""

    async def scenario(world):
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        producer = world.producer(linger_ms=0, acks=0)
        await producer.start()
        await producer.send("clicks", b"value", partition=0)
        # Node 1 receives nothing more, so that its connection cannot end cleanly.
        for connection in world.connections:
            connection.transport.receive_window = 0
        world.latency = lambda: 0.1
        producer.send("clicks", b"stuck", partition=0)
        producer.send("clicks", b"connecting", partition=1)
        await asyncio.sleep(0.05)
        await producer.close(0)
        await asyncio.sleep(1)

    run(scenario)


def test_an_unreachable_broker_is_reported_once(caplog):
    async def scenario(world):
        world.stop_node(1)
        async with world.producer(max_block_ms=5000) as producer:
            with pytest.raises(MetadataTimeoutError) as raised:
                await producer.send("clicks", b"value")
        return str(raised.value)

    with caplog.at_level(logging.WARNING):
        text, _ = run(scenario, nodes=1)
    assert "Nothing listens at broker1:9092 (connection refused)" in text
    assert "No broker returned the partitions of topic 'clicks' within 5000 ms (max_block_ms)" in text
    # The failed record is awaited: its error needs no line of its own.
    assert len([record for record in caplog.records if "Nothing listens" in record.getMessage()]) == 1
