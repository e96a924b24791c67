"""The connection of one broker: order, limits, ends and reconnects."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re

import pytest

from aioproducer import Producer
from aioproducer._common.client_log import ClientLog
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.errors import NetworkError, ProtocolError, RequestTimedOutError
from aioproducer.hooks import Hooks
from aioproducer.io.dialing import NodeSettings
from aioproducer.io.node import (
    CONNECTED,
    CONNECTING,
    DISCONNECTED,
    DRAINED,
    DRAINING,
    ENDING,
    NEXT_STATES,
    RETIRED,
    NodeConnection,
    NodeOwner,
)
from aioproducer.metrics import ConnectionMetrics
from aioproducer.protocol import ApiKey
from aioproducer.record import Node
from aioproducer.transport.memory import MemoryNetwork, MemoryTransport
from aioproducer.transport.stream import StreamConnector
from tests.io.recording import Recording
from tests.simulation import Fault, run
from tests.waiting import until


def test_startup_connects_then_requests_versions_metadata_producer_id_and_produces():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer() as producer:
            await producer.send("clicks", b"value")

    _, world = run(scenario, nodes=1)
    happened = [event.what if event.api is None else event.api.name for event in world.journal if event.what != "did"]
    first_connection = ["connected", "API_VERSIONS", "METADATA", "INIT_PRODUCER_ID"]
    # The bootstrap address is not the broker: that has its own connection, as soon as metadata has named it.
    assert happened[: len(first_connection)] == first_connection
    assert [name for name in happened if name != "disconnected"][-3:] == ["connected", "API_VERSIONS", "PRODUCE"]
    assert happened.count("METADATA") == happened.count("INIT_PRODUCER_ID") == happened.count("PRODUCE") == 1
    assert {event.client_id for event in world.events()} == {"simulated"}


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_requests_in_flight_are_limited(limit):
    async def scenario(world):
        world.cluster.create_topic("clicks", 20, leaders=[1] * 20)
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=0.05, times=100))
        most = 0
        async with world.producer(max_in_flight_requests_per_connection=limit, batch_size=0) as producer:
            await asyncio.gather(*(producer.send("clicks", b"first", partition=each) for each in range(20)))
            for number in range(200):
                producer.send("clicks", b"%d" % number, partition=number % 20)
            flushed = asyncio.ensure_future(producer.flush())
            while not flushed.done():
                await asyncio.sleep(0.001)
                most = max([most, *(connection.unanswered for connection in world.connections)])
        return most

    most, world = run(scenario)
    assert most == limit
    assert sum(len(partition.records) for partition in world.cluster.topics["clicks"].partitions) == 220


def test_requests_are_written_one_after_another():
    async def scenario(world):
        # Each request takes many passes; the world rejects a write during another.
        world.receive_window = 50
        world.cluster.create_topic("clicks", 5, leaders=[1] * 5)
        async with world.producer(batch_size=0, linger_ms=0) as producer:
            for number in range(50):
                producer.send("clicks", b"%d" % number * 100, partition=number % 5)
            await producer.flush()
        assert sum(len(partition.records) for partition in world.cluster.topics["clicks"].partitions) == 50

    run(scenario)


class Lending(MemoryTransport):
    """Accepts everything at once, and reads its memory until the test releases it."""

    holding = False

    def write(self, buffers):
        super().write([bytes(buffer) for buffer in buffers])
        self._writes_owed = 0
        if not self.holding:
            self._loop.call_soon(self._handler.write_completed, 1)
        return False

    @property
    def is_writable(self):
        return True


def lend(world):
    """Let all new transports of the clients in ``world`` be ``Lending``; return them."""
    made = []

    def convert(transport):
        transport.__class__ = Lending
        made.append(transport)

    world._watch_writes = convert
    return made


async def held(producer, lending):
    """Return the transport to the broker, which no longer releases memory."""
    await producer.send("clicks", b"first", partition=0)
    transport = lending[-1]
    transport.holding = True
    return transport


def test_requests_are_sent_while_the_transport_still_reads_earlier_ones():
    async def scenario(world):
        lending = lend(world)
        world.cluster.create_topic("clicks", 3, leaders=[1] * 3)
        async with world.producer(acks=0, linger_ms=0) as producer:
            transport = await held(producer, lending)
            deliveries = []
            for partition in range(3):
                deliveries.append(producer.send("clicks", b"value", partition=partition))
                await asyncio.sleep(0.01)
            assert len(world.events(ApiKey.PRODUCE)) == 4
            for number in range(3):
                assert [delivery.done() for delivery in deliveries] == [each < number for each in range(3)]
                transport._handler.write_completed(1)
            assert all(delivery.done() for delivery in deliveries)

    run(scenario, nodes=1)


def test_memory_is_released_after_both_the_write_and_the_response():
    async def scenario(world):
        lending = lend(world)
        world.cluster.create_topic("clicks", 2, leaders=[1] * 2)
        async with world.producer(linger_ms=0) as producer:
            transport = await held(producer, lending)
            total = producer.metrics()["buffer-available-bytes"]
            for partition in range(2):
                await producer.send("clicks", b"value", partition=partition)
            available = [producer.metrics()["buffer-available-bytes"]]
            for _ in range(2):
                transport._handler.write_completed(1)
                available.append(producer.metrics()["buffer-available-bytes"])
            assert available[0] < available[1] < available[2] == total

    run(scenario, nodes=1)


def test_the_request_timeout_counts_for_the_oldest_unwritten_acks_0_request():
    async def scenario(world):
        lending = lend(world)
        world.cluster.create_topic("clicks", 2, leaders=[1] * 2)
        async with world.producer(acks=0, linger_ms=0, request_timeout_ms=1000, retries=0) as producer:
            transport = await held(producer, lending)
            loop = asyncio.get_running_loop()
            began = loop.time()
            first = producer.send("clicks", b"value", partition=0)
            await asyncio.sleep(0.4)
            second = producer.send("clicks", b"value", partition=1)
            await asyncio.sleep(0.4)
            transport._handler.write_completed(1)
            await first
            with pytest.raises(RequestTimedOutError):
                await second
            assert loop.time() - began == pytest.approx(1.4, abs=0.05)

    run(scenario, nodes=1)


def test_acks_0_requests_do_not_stay_in_flight():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(acks=0, max_in_flight_requests_per_connection=1, linger_ms=0) as producer:
            for number in range(20):
                metadata = await producer.send("clicks", b"%d" % number)
                assert metadata.offset is None
                assert producer.metrics()["requests-in-flight"] == 0
        return [int(value) for value in world.cluster.values("clicks")]

    assert run(scenario)[0] == list(range(20))


def test_a_disconnect_fails_all_requests_once_and_oldest_first_before_new_ones():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", 3, leaders=[1] * 3)
        async with world.producer(hooks=(hooks,), batch_size=0, linger_ms=0) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(3)))
            del hooks.events[:]
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=1.0, times=3))
            deliveries = []
            for partition in (2, 0, 1):
                deliveries.append(producer.send("clicks", b"record", partition=partition))
                await asyncio.sleep(0.01)
            await world.until(lambda: len(hooks.of("on_batch_sent")) == 3)
            await asyncio.sleep(0.1)
            world.disconnect(1)
            await asyncio.gather(*deliveries)
        return hooks

    hooks, world = run(scenario)
    assert [arguments[0].partition for arguments in hooks.of("on_batch_retried")] == [2, 0, 1]
    names = hooks.names("on_disconnect", "on_batch_retried", "on_connect", "on_batch_acked")
    assert names[:5] == ["on_disconnect", *["on_batch_retried"] * 3, "on_connect"]
    for partition in world.cluster.topics["clicks"].partitions:
        assert partition.values == [b"warm", b"record"]


@pytest.mark.parametrize("disconnect", ["before", "after", "half"])
def test_a_record_is_stored_once_after_any_fault_of_its_request(disconnect):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer() as producer:
            await producer.send("clicks", b"first")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, disconnect=disconnect))
            assert (await producer.send("clicks", b"second")).offset == 1
        return world.cluster.values("clicks")

    assert run(scenario)[0] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ("wrong id", ProtocolError, "no request in flight has that id"),
        ("garbage", ProtocolError, "sent a malformed response to PRODUCE version 13"),
        ("oversized", ProtocolError, "announced a response of 2147483647 bytes"),
        ("silence", RequestTimedOutError, r"did not answer PRODUCE .* within 1500 ms \(request_timeout_ms\)"),
    ],
)
def test_an_invalid_response_ends_the_connection_and_the_request_is_repeated(answer, error, text):
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(hooks,), request_timeout_ms=1500) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer=answer))
            await producer.send("clicks", b"value")
        return hooks

    hooks, world = run(scenario)
    assert world.cluster.values("clicks") == [b"value"]
    [(_, _, _, failure)] = hooks.of("on_batch_retried")
    assert isinstance(failure, error)
    assert re.search(text, str(failure))


def test_a_response_received_before_the_end_of_the_connection_counts():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(hooks,)) as producer:
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, disconnect="answered"))
            await producer.send("clicks", b"value")
            await world.until(lambda: len(hooks.of("on_disconnect")) == 2)
        return hooks

    hooks, world = run(scenario)
    assert hooks.of("on_batch_retried") == []
    assert hooks.names("on_batch_acked", "on_disconnect")[-2:] == ["on_batch_acked", "on_disconnect"]
    assert world.cluster.values("clicks") == [b"value"]


def test_nothing_is_sent_to_a_throttled_node_and_others_are_unaffected():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        async with world.producer(hooks=(hooks,), linger_ms=0) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(2)))
            # The second answer names a shorter time: the longer one holds.
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, node=1, throttle_time_ms=3000, answer_delay=0.01))
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, node=1, throttle_time_ms=100))
            first = producer.send("clicks", b"first", partition=0)
            await asyncio.sleep(0.001)
            await asyncio.gather(first, producer.send("clicks", b"second", partition=0))
            throttled_at = world.loop.time()
            turns = world.loop.turns
            held_back = producer.send("clicks", b"third", partition=0)
            for _ in range(10):
                await producer.send("clicks", b"elsewhere", partition=1)
            assert world.loop.time() - throttled_at < 0.1
            assert not held_back.done()
            await held_back
            assert 2.9 < world.loop.time() - throttled_at < 3.1
            assert world.loop.turns - turns < 200
        return hooks

    hooks, _ = run(scenario)
    assert [(node.id, time_ms) for node, time_ms in hooks.of("on_throttle")] == [(1, 3000), (1, 100)]


def test_only_idle_connections_are_closed_and_they_reopen_when_needed(caplog):
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        async with world.producer(hooks=(hooks,), connections_max_idle_ms=10_000, linger_ms=0) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(2)))
            for _ in range(5):
                await asyncio.sleep(4)
                await producer.send("clicks", b"busy", partition=0)
            open_connections = [connection.node.id for connection in world.connections]
            await asyncio.sleep(60)
            assert not world.connections
            before = world.loop.time()
            await producer.send("clicks", b"again", partition=1)
            assert world.loop.time() - before < 0.001, "an idle end is no failure to back off from"
        return hooks, open_connections

    with caplog.at_level(logging.WARNING):
        (hooks, open_connections), _ = run(scenario)
    assert open_connections == [1]
    assert [(node.id, error) for node, error in hooks.of("on_disconnect") if node.id > 0][:2] == [(2, None), (1, None)]
    assert caplog.records == []


def test_nothing_is_written_to_a_connection_closing_as_idle():
    """A transport accepts and drops data written after close(): with acks=0 it would count as written."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(acks=0, connections_max_idle_ms=1000, linger_ms=0) as producer:
            sent = 0
            for step in range(-20, 20):
                await producer.send("clicks", b"%d" % sent)
                sent += 1
                # Around the moment at which the connection is closed.
                await asyncio.sleep(1.0 + step * 1e-6)
            return sent

    sent, world = run(scenario)
    assert world.cluster.values("clicks") == [b"%d" % number for number in range(sent)]


@pytest.mark.parametrize("second", ["clicks", "views"])
def test_a_half_open_connection_does_not_delay_the_next_send(monkeypatch, second):
    """The next send, and its metadata, once waited until the close of the idle connection had finished."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.create_topic("views", leaders=[1])
        async with world.producer(connections_max_idle_ms=1000, linger_ms=0) as producer:
            await producer.send("clicks", b"first")
            with monkeypatch.context() as half_open:
                half_open.setattr(MemoryTransport, "close", lambda transport: None)
                await asyncio.sleep(5)
                before = world.loop.time()
                await producer.send(second, b"second")
                return world.loop.time() - before

    took, world = run(scenario, nodes=1)
    assert took < 0.001
    assert world.cluster.values(second)[-1] == b"second"


def test_a_response_slower_than_the_idle_limit_neither_closes_nor_spins():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(connections_max_idle_ms=1000) as producer:
            await producer.send("clicks", b"warm")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=20))
            turns = world.loop.turns
            assert (await producer.send("clicks", b"slow")).offset == 1
            return world.loop.turns - turns

    turns, world = run(scenario)
    assert turns < 200
    assert len(world.events(ApiKey.PRODUCE)) == 2


def test_the_reconnect_backoff_grows_to_its_limit_and_resets_after_a_success():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"reconnect_backoff_ms": 100, "reconnect_backoff_max_ms": 2000, "metadata_recovery_strategy": "none"}
        async with world.producer(**config) as producer:
            await producer.send("clicks", b"warm")
            world.stop_node(1)
            del world.attempts[:]
            delivery = producer.send("clicks", b"value")
            await asyncio.sleep(20)
            times = [at for at, _, _ in world.attempts]
            world.start_node(1)
            await delivery
            world.disconnect(1)
            del world.attempts[:]
            began = world.loop.time()
            await producer.send("clicks", b"again")
            return [later - sooner for sooner, later in itertools.pairwise(times)], world.attempts[0][0] - began

    (gaps, after_success), _ = run(scenario, nodes=1)
    # The end of the connection was the first failure.
    for power, gap in enumerate(gaps[:4], start=1):
        assert 0.1 * 2**power * 0.8 <= gap <= 0.1 * 2**power * 1.2 + 0.001
    assert len(gaps) >= 9
    assert all(1.6 <= gap <= 2.001 for gap in gaps[5:])
    assert 0.08 <= after_success <= 0.121


def test_acks_0_to_a_broker_that_does_not_read_ends_with_the_request_timeout():
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"acks": 0, "linger_ms": 0, "request_timeout_ms": 1000, "delivery_timeout_ms": 10_000}
        async with world.producer(hooks=(hooks,), **config) as producer:
            await producer.send("clicks", b"warm")
            for connection in world.connections:
                connection.transport.receive_window = 0
            began = world.loop.time()
            await producer.send("clicks", b"value")
            return hooks, world.loop.time() - began

    (hooks, took), world = run(scenario)
    assert 1.0 <= took <= 1.5
    [error] = [error for node, error in hooks.of("on_disconnect") if node.id == 1 and error is not None]
    assert isinstance(error, RequestTimedOutError)
    assert "did not accept a whole request within 1000 ms (request_timeout_ms)" in str(error)
    assert world.cluster.values("clicks") == [b"warm", b"value"]


@pytest.mark.parametrize("when", ["connected", "connecting", "resolving", "backing off"])
def test_a_moved_broker_is_reached_at_its_new_address_at_once(when):
    async def scenario(world):
        hooks = Recording()
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        config = {"linger_ms": 0, "reconnect_backoff_ms": 5000, "reconnect_backoff_max_ms": 5000}
        async with world.producer(hooks=(hooks,), **config) as producer:
            await asyncio.gather(*(producer.send("clicks", b"warm", partition=each) for each in range(2)))
            node = producer._sender.cluster.nodes[1]
            if when == "backing off":
                world.stop_node(1)
                delivery = producer.send("clicks", b"moved", partition=0)
                await asyncio.sleep(0.2)
            elif when in ("connecting", "resolving"):
                node.close()
                await world.until(lambda: not node.connected)
                world.latency = lambda: 0.5
                world.loop.resolving_takes = 0.0 if when == "connecting" else 0.5
                delivery = producer.send("clicks", b"moved", partition=0)
                attempts = len(world.loop.resolved)
                await world.until(lambda: len(world.loop.resolved) > attempts)
                await asyncio.sleep(0.1)
                world.latency = lambda: 0.0
                world.loop.resolving_takes = 0.0
            if when != "backing off":
                world._listeners.pop(1).close()
            world.start_node(1, host="elsewhere")
            began = world.loop.time()
            producer._sender.cluster.request_update(began, "test")
            if when == "connected":
                await world.until(lambda: producer._parts.metadata.node(1).host == "elsewhere")
                delivery = producer.send("clicks", b"moved", partition=0)
            await delivery
            return world.loop.time() - began

    took, world = run(scenario, nodes=2)
    assert took < 1
    assert world.attempts[-1][1] == "elsewhere"
    assert world.cluster.values("clicks") == [b"warm", b"moved"]


def test_a_peer_that_closes_each_connection_at_once_gets_a_backoff():
    async def scenario(world):
        world.cluster.faults.append(Fault(api=ApiKey.API_VERSIONS, disconnect="before", times=1000))
        async with world.producer():
            turns = world.loop.turns
            await asyncio.sleep(60)
            return world.loop.turns - turns, len(world.attempts)

    (turns, attempts), _ = run(scenario, nodes=1)
    assert 40 <= attempts <= 100
    assert turns < attempts * 30


def test_requests_in_flight_at_close_end_with_the_connection():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer="silence", times=10))
        producer = world.producer()
        await producer.start()
        delivery = producer.send("clicks", b"value")
        await asyncio.sleep(1)
        began = world.loop.time()
        await producer.close(2)
        assert world.loop.time() - began < 2.5
        return delivery.exception()

    error, _ = run(scenario)
    assert not isinstance(error, NetworkError)
    assert "the producer was closed before the record was delivered" in str(error)


async def test_the_transport_resolves_addresses():
    """TCP resolves ``localhost`` by the machine; nothing listens there in the memory network."""

    class Connector(MemoryNetwork):
        resolve = StreamConnector.resolve

        def __init__(self):
            super().__init__()
            self.hosts = []

        async def connect(self, host, port, handler, *, server_hostname=None):
            self.hosts.append((host, server_hostname))
            return await super().connect(host, port, handler, server_hostname=server_hostname)

    connector = Connector()
    async with Producer(bootstrap_servers="localhost:9092", transport=connector) as producer:
        await until(lambda: producer.connection_error)
        with pytest.raises(TimeoutError, match="Nothing listens at localhost"):
            await producer.wait_ready(0.1)
    assert connector.hosts[0][0] in ("127.0.0.1", "::1")
    assert connector.hosts[0][1] == "localhost"


# States

PATHS = {
    DISCONNECTED: [],
    CONNECTING: [CONNECTING],
    CONNECTED: [CONNECTING, CONNECTED],
    ENDING: [CONNECTING, CONNECTED, ENDING],
    DRAINING: [CONNECTING, CONNECTED, DRAINING],
    DRAINED: [CONNECTING, CONNECTED, DRAINING, DRAINED],
    RETIRED: [RETIRED],
}


async def _connection() -> NodeConnection:
    backoff = ExponentialBackoff(50, 1000)
    settings = NodeSettings("test", ClientLog("Producer", "test"), 5, 30.0, backoff, backoff, 540.0, False, False)
    loop = asyncio.get_running_loop()
    node = Node(1, "broker", 9092)
    connector = MemoryNetwork()
    metrics = ConnectionMetrics(2, 30_000)
    return NodeConnection(loop, node, NodeOwner(), connector, settings, metrics, Hooks(), random.Random(1))


@pytest.mark.parametrize("new", NEXT_STATES)
@pytest.mark.parametrize("old", NEXT_STATES)
async def test_only_the_transitions_of_the_table_are_possible(old, new):
    connection = await _connection()
    try:
        for each in PATHS[old]:
            connection.set_state(each)
        if new in NEXT_STATES[old]:
            connection.set_state(new)
            assert connection.state == new
        else:
            with pytest.raises(AssertionError, match="cannot become"):
                connection.set_state(new)
            assert connection.state == old
    finally:
        connection.task.cancel()
        await asyncio.gather(connection.task, return_exceptions=True)
