"""A client and a broker that the test controls, and the gateway between them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import struct
import weakref
from random import Random

import pytest

from aioproducer.gateway import AddressMap, Gateway
from aioproducer.protocol import encode_request
from aioproducer.protocol.messages import (
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from aioproducer.protocol.messages.metadata import MetadataResponseBroker
from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.rdma import RdmaConnector, RdmaListener
from tests.gateway.conftest import Scene
from tests.gateway.messages import response_frame
from tests.simulation.loop import VirtualLoop
from tests.waiting import until

LARGE = 3_000_000


def request_frame(number, request=None, version=4):
    return b"".join(encode_request(request or HeartbeatRequest(group_id="group"), version, number, "client"))


def heartbeat_response(number):
    return response_frame(HeartbeatResponse(), 4, number)


def metadata_response(number, host="broker", port=9092):
    broker = MetadataResponseBroker(node_id=1, host=host, port=port)
    return response_frame(MetadataResponse(brokers=[broker]), 12, number)


def fetch_request(number):
    body = struct.pack(">hhih", 1, 15, number, -1) + b"\x00" + bytes(40)
    return struct.pack(">i", len(body)) + body


def fetch_response(number, size):
    """A large response of a version without addresses."""
    body = response_frame(FetchResponse(), 15, number)[4:] + bytes(size)
    return struct.pack(">i", len(body)) + body


async def run_callbacks(passes=50):
    for _ in range(passes):
        await asyncio.sleep(0)


async def test_a_request_and_its_response_pass(scene):
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1) + request_frame(2, MetadataRequest(), 12))
    await broker.receive(request_frame(1) + request_frame(2, MetadataRequest(), 12))
    broker.send(heartbeat_response(1) + metadata_response(2))
    await client.receive(heartbeat_response(1) + metadata_response(2, port=1))
    metrics = gateway.metrics()
    assert (metrics["connections"], metrics["connections_accepted"]) == (1, 1)
    assert (metrics["requests"], metrics["responses"], metrics["responses_rewritten"]) == (2, 2, 1)
    client.transport.close()
    assert await broker.end() is None
    await until(lambda: not gateway.metrics()["connections"])
    # The counts of ended sessions are kept.
    assert gateway.metrics() == {**metrics, "connections": 0}


async def test_each_client_has_its_own_connection(scene):
    """``receive`` fails unless exactly these bytes arrive."""
    gateway = await scene.gateway()
    pairs = [await scene.pair(gateway) for _ in range(3)]
    for number, (client, _) in enumerate(pairs):
        client.send(request_frame(number))
    for number, (_, broker) in enumerate(pairs):
        await broker.receive(request_frame(number))
    for number, (client, broker) in reversed(list(enumerate(pairs))):
        broker.send(heartbeat_response(number))
        await client.receive(heartbeat_response(number))


async def test_a_broker_that_does_not_read_pauses_its_client(scene):
    """Back-pressure: the gateway holds a limited amount of the client's data."""
    scene.broker_reads = False
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    body = bytes(5_000_000)
    request = struct.pack(">ihhi", len(body) + 8, 12, 4, 1) + body
    client.send(request)
    await run_callbacks(200)
    assert client.pending
    assert gateway.metrics()["bytes_from_clients"] < 2_000_000
    broker.transport.resume_reading()
    await until(lambda: len(broker.received) == len(request))
    assert not client.pending
    assert broker.received == request


async def test_a_client_that_does_not_read_pauses_the_broker(scene):
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    client.send(fetch_request(1))
    await broker.receive(fetch_request(1))
    client.transport.pause_reading()
    response = fetch_response(1, 5_000_000)
    broker.send(response)
    await run_callbacks(200)
    assert broker.pending
    assert gateway.metrics()["bytes_from_broker"] < 2_000_000
    client.transport.resume_reading()
    await until(lambda: len(client.received) == len(response))
    assert client.received == response


async def test_a_client_that_never_reads_is_reset(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(stall_timeout=0.1)
    client, broker = await scene.pair(gateway)
    client.send(fetch_request(1))
    await broker.receive(fetch_request(1))
    client.transport.pause_reading()
    broker.send(fetch_response(1, 5_000_000))
    await broker.end()
    await until(lambda: not gateway.metrics()["connections"])
    assert "the client has read nothing for 0.1 s" in caplog.text


async def test_a_broker_that_never_reads_is_disconnected(scene, caplog):
    caplog.set_level(logging.WARNING)
    scene.broker_reads = False
    gateway = await scene.gateway(stall_timeout=0.1)
    client, broker = await scene.pair(gateway)
    client.send(struct.pack(">ihhi", 5_000_008, 12, 4, 1) + bytes(5_000_000))
    await client.end()
    broker.transport.resume_reading()
    await broker.end()
    assert "the broker has read nothing for" in caplog.text


async def test_unanswered_requests_are_limited(scene):
    gateway = await scene.gateway(max_in_flight=5)
    client, broker = await scene.pair(gateway)
    for number in range(20):
        client.send(request_frame(number))
        await run_callbacks(10)
    size = len(request_frame(0))
    await until(lambda: len(broker.received) == 5 * size)
    await run_callbacks()
    assert len(broker.received) == 5 * size
    for number in range(20):
        await until(lambda number=number: len(broker.received) > number * size)
        broker.send(heartbeat_response(number))
    await client.receive(b"".join(map(heartbeat_response, range(20))))


async def test_a_broker_that_never_answers_is_disconnected(scene, caplog):
    """Once the client was no longer read, and without a timer the connection stayed open for ever."""
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(max_in_flight=5, stall_timeout=0.1)
    client, broker = await scene.pair(gateway)
    for number in range(8):
        client.send(request_frame(number))
        await run_callbacks(10)
    await client.end()
    await broker.end()
    await until(lambda: not gateway.metrics()["connections"])
    assert "it has not answered 5 requests of" in caplog.text
    assert "for 0.1 s" in caplog.text


@pytest.mark.parametrize("stop", [False, True])
async def test_the_end_of_a_client_with_many_unanswered_requests_is_noticed(scene, stop, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(max_in_flight=5)
    client, broker = await scene.pair(gateway)
    sent = b"".join(map(request_frame, range(8)))
    client.send(sent)
    await broker.receive(sent)
    client.send(request_frame(8))
    await run_callbacks()
    stopping = asyncio.ensure_future(gateway.stop(60)) if stop else None
    await run_callbacks()
    client.transport.abort()
    await broker.end()
    await until(lambda: not gateway.metrics()["connections"])
    if stopping is not None:
        await stopping
    assert not caplog.records


async def test_the_end_of_an_rdma_client_with_many_unanswered_requests_is_noticed(scene):
    fabric = SimulatedFabric()
    scene.gateway_listener = RdmaListener(fabric)
    gateway = await scene.gateway(max_in_flight=5)
    scene.client_connector = RdmaConnector(fabric)
    client, broker = await scene.pair(gateway)
    sent = b"".join(map(request_frame, range(8)))
    client.send(sent)
    await broker.receive(sent)
    client.transport.abort()
    await broker.end()
    await until(lambda: not gateway.metrics()["connections"])
    await gateway.stop()
    await client.end()
    assert not any(fabric.live)


async def test_held_bytes_of_a_closed_client_reach_the_broker(scene):
    gateway = await scene.gateway(max_in_flight=1)
    client, broker = await scene.pair(gateway)
    held = request_frame(2, ProduceRequest(acks=0), 9)
    client.send(request_frame(1))
    await broker.receive(request_frame(1))
    client.send(held)
    await run_callbacks()
    assert not broker.received
    client.transport.close()
    await broker.end()
    assert broker.received == held


async def test_held_bytes_that_are_no_request_end_the_client(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(max_in_flight=1)
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1))
    await broker.receive(request_frame(1))
    client.send(b"\xff\xff\xff\xff")
    await run_callbacks()
    assert not client.lost
    broker.send(heartbeat_response(1))
    await client.end()
    assert client.received == heartbeat_response(1)
    assert "which sent a request of -1 bytes" in caplog.text


def test_each_response_restarts_the_brokers_timeout(caplog):
    """On virtual time."""
    loop = VirtualLoop(Random(1))

    async def scenario():
        scene = Scene("memory")
        gateway = await scene.gateway(max_in_flight=2, stall_timeout=600)
        client, broker = await scene.pair(gateway)
        for number in range(3):
            client.send(request_frame(number))
            await run_callbacks(10)
        await asyncio.sleep(500)
        broker.send(heartbeat_response(0))
        await asyncio.sleep(500)
        assert not client.lost
        assert len(broker.received) == 3 * len(request_frame(0))
        await asyncio.sleep(101)
        assert client.lost
        assert gateway.metrics()["connections"] == 0
        assert "it has not answered 2 requests" in caplog.text
        caplog.clear()

        client, broker = await scene.pair(gateway)
        client.send(request_frame(0) + request_frame(1))
        await asyncio.sleep(500)
        broker.send(heartbeat_response(0))
        # A client within its limit of unanswered requests may wait for any time.
        await asyncio.sleep(5000)
        assert not client.lost
        assert not caplog.records
        await scene.close()

    loop.run_until_complete(scenario())
    assert loop.pending_timers() == []
    loop.close()


async def test_held_bytes_are_limited(scene):
    gateway = await scene.gateway(max_in_flight=1)
    client, broker = await scene.pair(gateway)
    client.send(request_frame(0))
    await broker.receive(request_frame(0))
    held = b"".join(
        request_frame(number, ProduceRequest(transactional_id="t" * 500, acks=0), 9) for number in range(8000)
    )
    client.send(held)
    await run_callbacks(200)
    assert not broker.received
    assert client.pending
    assert gateway.metrics()["bytes_from_clients"] < 500_000
    broker.send(heartbeat_response(0))
    await until(lambda: len(broker.received) == len(held))
    assert broker.received == held


async def test_requests_without_a_response_are_not_awaited(scene):
    """``receive`` fails unless all 101 requests arrive, although only two may be unanswered."""
    gateway = await scene.gateway(max_in_flight=2)
    client, broker = await scene.pair(gateway)
    sent = b"".join(request_frame(number, ProduceRequest(acks=0), 9) for number in range(100))
    client.send(sent)
    await broker.receive(sent)
    client.send(request_frame(100))
    await broker.receive(request_frame(100))
    broker.send(heartbeat_response(100))
    await client.receive(heartbeat_response(100))


async def test_an_unreachable_broker_ends_the_client(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(upstream=(scene.host, 1))
    client = await scene.client(gateway)
    assert await client.end() is None
    await until(lambda: not gateway.metrics()["connections"])
    assert gateway.metrics()["upstream_failures"] == 1
    assert f"No connection to the broker at {scene.host}:1 for " in caplog.text


class Never:
    """A connector that never finishes."""

    def __init__(self, error=None, addresses=("address",)):
        self.error = error
        self.addresses = addresses
        self.tried = []

    async def resolve(self, host, port):
        return list(self.addresses)

    async def connect(self, host, port, handler, *, server_hostname=None):
        self.tried.append((host, port, server_hostname))
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


async def test_a_broker_that_does_not_accept_in_time_ends_the_client(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(upstream=("broker", 1), connector=Never(), connect_timeout=0.05)
    client = await scene.client(gateway)
    assert await client.end() is None
    assert "No connection to the broker at broker:1 for " in caplog.text
    assert "no answer within 0.05 s" in caplog.text


async def test_all_addresses_are_tried_by_the_brokers_name(scene, caplog):
    caplog.set_level(logging.WARNING)
    connector = Never(OSError(111, "refused"), ("one", "two"))
    gateway = await scene.gateway(upstream=("broker", 1), connector=connector)
    await (await scene.client(gateway)).end()
    assert connector.tried == [("one", 1, "broker"), ("two", 1, "broker")]
    assert "refused" in caplog.text
    nowhere = await scene.gateway(upstream=("broker", 1), connector=Never(addresses=()))
    await (await scene.client(nowhere)).end()
    assert "broker has no address" in caplog.text
    late = await scene.gateway(upstream=("broker", 1), connector=Never(TimeoutError(), ("one", "two")))
    await (await scene.client(late)).end()
    assert "no answer within 10 s" in caplog.text


class Silent:
    """A connector of a broker with two addresses, of which the first does not answer."""

    def __init__(self, connector, host, error=None):
        self.connector = connector
        self.host = host
        self.error = error

    async def resolve(self, host, port):
        return ["nowhere", self.host]

    async def connect(self, host, port, handler, *, server_hostname=None):
        if host == "nowhere":
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        return await self.connector.connect(host, port, handler, server_hostname=server_hostname)


@pytest.mark.parametrize("error", [None, TimeoutError(110, "Connection timed out")])
async def test_a_silent_address_leaves_time_for_the_next(scene, error):
    """It once took all of the time, and the system's own TimeoutError counted as the deadline.

    ``receive`` fails unless the request arrives through the second address.
    """
    await scene.gateway()
    connector = Silent(scene.connector, scene.host, error)
    gateway = await scene.gateway(
        upstream=("broker", scene.upstream.port), connector=connector, connect_timeout=0.5 if error is None else 60
    )
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1))
    await broker.receive(request_frame(1))


async def test_requests_before_an_invalid_one_are_answered(scene, caplog):
    """They came in the same receive, and were once dropped with it."""
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1) + request_frame(2) + b"\xff\xff\xff\xff" + request_frame(3))
    await broker.receive(request_frame(1) + request_frame(2))
    client.send(request_frame(4))
    broker.send(heartbeat_response(1))
    await run_callbacks()
    assert not client.lost
    broker.send(heartbeat_response(2))
    await client.end()
    assert client.received == heartbeat_response(1) + heartbeat_response(2)
    await broker.end()
    assert not broker.received
    (record,) = caplog.records
    assert "which sent a request of -1 bytes" in record.getMessage()


async def test_an_invalid_request_in_pieces_ends_its_client(scene):
    """Its rest was once awaited, and never parsed. ``end`` fails unless the connection ends."""
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    # A Produce request whose client id has the length -2.
    body = struct.pack(">hhih", 0, 7, 5, -2) + bytes(50)
    client.send(struct.pack(">i", len(body)) + body[:26])
    await run_callbacks()
    client.send(body[26:])
    await client.end()
    await broker.end()
    await until(lambda: not gateway.metrics()["connections"])


async def test_a_broker_that_stops_inside_a_response_after_an_invalid_request_is_disconnected(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(stall_timeout=0.1)
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1) + b"\xff\xff\xff\xff")
    await broker.receive(request_frame(1))
    broker.send(heartbeat_response(1)[:10])
    await client.end()
    await broker.end()
    assert "it has not answered 1 request of" in caplog.text


async def test_a_broker_that_never_answers_requests_before_an_invalid_one_is_disconnected(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(stall_timeout=0.1)
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1) + b"\xff\xff\xff\xff")
    await client.end()
    await broker.end()
    await until(lambda: not gateway.metrics()["connections"])
    assert "it has not answered 1 request of" in caplog.text


async def test_responses_before_an_invalid_one_reach_the_client(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1) + request_frame(2))
    await broker.receive(request_frame(1) + request_frame(2))
    broker.send(heartbeat_response(1) + heartbeat_response(9) + heartbeat_response(2))
    await client.end()
    assert client.received == heartbeat_response(1)
    await broker.end()
    assert "answered the request 9 instead of 2, which is next" in caplog.text


async def test_any_other_error_of_a_connector_is_logged(scene, caplog):
    gateway = await scene.gateway(upstream=("broker", 1), connector=Never(RuntimeError("odd")))
    client = await scene.client(gateway)
    assert await client.end() is None
    await until(lambda: not gateway.metrics()["connections"])
    assert "to the broker failed" in caplog.text


class Brief:
    """A connector whose connection has ended before it is returned."""

    def __init__(self):
        self.closed = 0

    async def resolve(self, host, port):
        return [host]

    async def connect(self, host, port, handler, *, server_hostname=None):
        handler.connection_lost(None)
        return self

    def close(self):
        self.closed += 1


async def test_a_connection_to_the_broker_that_ends_at_once_ends_the_client(scene):
    connector = Brief()
    gateway = await scene.gateway(upstream=("broker", 1), connector=connector)
    client = await scene.client(gateway)
    assert await client.end() is None
    await until(lambda: not gateway.metrics()["connections"])
    assert connector.closed == 1


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_closed_broker_ends_its_client_after_its_data(scene, how):
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    client.send(fetch_request(1) + request_frame(2))
    await broker.receive(fetch_request(1) + request_frame(2))
    broker.send(fetch_response(1, LARGE))
    if how == "close":
        broker.transport.close()
        await client.end()
        assert client.received == fetch_response(1, LARGE)
    else:
        await until(lambda: client.received)
        broker.transport.abort()
        await client.end()
    await until(lambda: not gateway.metrics()["connections"])


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_data_of_a_closed_client_reach_the_broker(scene, how):
    """Requests that have arrived are executed although no client waits for the response."""
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    sent = request_frame(1, ProduceRequest(acks=0), 9)
    client.send(sent)
    await until(lambda: gateway.metrics()["requests"])
    getattr(client.transport, how)()
    await broker.end()
    assert broker.received == sent
    await until(lambda: not gateway.metrics()["connections"])


async def test_a_client_may_disconnect_while_the_broker_is_being_connected(scene):
    connector = Never()
    gateway = await scene.gateway(upstream=("broker", 1), connector=connector, connect_timeout=0.1)
    client = await scene.client(gateway)
    await until(lambda: connector.tried)
    client.transport.abort()
    await until(lambda: not gateway.metrics()["connections"])
    assert gateway.metrics()["upstream_failures"] == 1


async def test_data_that_a_closed_client_does_not_read_are_dropped_in_time(scene):
    """``until`` fails unless the session ends."""
    gateway = await scene.gateway(close_timeout=0.05)
    client, broker = await scene.pair(gateway)
    client.send(fetch_request(1))
    await broker.receive(fetch_request(1))
    client.transport.pause_reading()
    response = fetch_response(1, 100_000)
    broker.send(response[:50_000])
    await until(lambda: gateway.metrics()["bytes_from_broker"])
    broker.transport.close()
    await broker.end()
    await until(lambda: not gateway.metrics()["connections"])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xff\xff\xff", "which sent a request of -1 bytes"),
        (struct.pack(">i", 104_857_601), "which sent a request of 104857601 bytes"),
        (b"GET / HTTP/1.1\r\n", "it may use another protocol than Kafka's"),
        (struct.pack(">ihhi", 100, 3, 99, 1), "API key 3 in version 99"),
    ],
)
async def test_a_client_that_sends_invalid_bytes_is_disconnected(scene, caplog, data, text):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    client.send(data)
    assert await client.end() is None
    await broker.end()
    assert not broker.received
    assert text in caplog.text


async def test_a_broker_that_sends_invalid_bytes_is_disconnected(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1))
    await broker.receive(request_frame(1))
    broker.send(b"\x15\x03\x03\x00\x02\x02\x50")
    assert await client.end() is None
    await broker.end()
    assert "it expects TLS, so set security.protocol=SSL" in caplog.text


async def test_the_number_of_clients_is_limited(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway(max_connections=2)
    first, _ = await scene.pair(gateway)
    await scene.pair(gateway)
    for _ in range(2):
        # A reset may be seen before connecting is finished.
        with contextlib.suppress(ConnectionResetError):
            await (await scene.client(gateway)).end()
    assert gateway.metrics()["connections_refused"] == 2
    assert caplog.text.count("there are 2 clients already (max_connections)") == 1
    first.transport.close()
    await until(lambda: gateway.metrics()["connections"] == 1)
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1))
    await broker.receive(request_frame(1))


async def test_stopping_waits_for_responses(scene):
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    idle, _ = await scene.pair(gateway)
    rest = request_frame(2)
    client.send(request_frame(1) + rest[:20])
    await broker.receive(request_frame(1) + rest[:20])
    port = gateway.port
    stopping = asyncio.ensure_future(gateway.stop())
    assert await idle.end() is None
    # The rest of a request that has begun is accepted, but no further request.
    client.send(rest[20:] + request_frame(3))
    await broker.receive(rest[20:])
    broker.send(heartbeat_response(1) + heartbeat_response(2)[:9])
    await run_callbacks()
    assert not stopping.done()
    broker.send(heartbeat_response(2)[9:])
    await client.end()
    assert client.received == heartbeat_response(1) + heartbeat_response(2)
    await stopping
    with pytest.raises(OSError, match="cannot connect"):
        await scene.connector.connect(scene.host, port, client)
    with pytest.raises(RuntimeError, match="the gateway is not started"):
        _ = gateway.port


async def test_stopping_has_a_deadline(scene, caplog):
    caplog.set_level(logging.WARNING)
    gateway = await scene.gateway()
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1))
    await broker.receive(request_frame(1))
    await gateway.stop(0.05)
    await client.end()
    await broker.end()
    assert "Resetting 1 connection that did not finish within 0.05 s" in caplog.text


async def test_stopping_cancels_connecting_to_the_broker(scene):
    """Also before the first step of the connecting task."""
    gateway = await scene.gateway(upstream=("broker", 1), connector=Never())
    clients = [await scene.client(gateway) for _ in range(3)]
    await until(lambda: gateway.metrics()["connections"] == 3)
    clients.append(await scene.client(gateway))
    await gateway.stop()
    for client in clients:
        await client.end()
    assert gateway.metrics()["connections"] == 0


async def test_a_gateway_can_start_again(scene):
    """``receive`` fails unless the request arrives."""
    gateway = await scene.gateway()
    await gateway.stop()
    await gateway.start(scene.host, 0)
    client, broker = await scene.pair(gateway)
    client.send(request_frame(1))
    await broker.receive(request_frame(1))


async def test_the_end_of_its_block_stops_a_gateway():
    network = MemoryNetwork()
    async with Gateway(network, network, ("broker", 1), AddressMap({})) as gateway:
        await gateway.start("gateway", 1)
        assert network.listeners
    assert not network.listeners


async def test_an_ended_session_is_freed(scene):
    """Neither a timer nor anything else refers to it."""
    gateway = await scene.gateway()
    client, _ = await scene.pair(gateway)
    (session,) = map(weakref.ref, gateway._sessions)
    client.transport.close()
    await until(lambda: not gateway.metrics()["connections"])
    await run_callbacks()
    gc.collect()
    assert session() is None


async def test_five_hundred_clients_that_do_not_read_take_limited_memory():
    """At most one receive is held for each."""
    network = MemoryNetwork()
    brokers = []

    class Broker:
        def __init__(self, transport):
            self.transport = transport
            brokers.append(self)

        def data_received(self, data):
            self.transport.write([fetch_response(struct.unpack_from(">i", data, 8)[0], 1_000_000)])

        def write_completed(self, count):
            pass

        def connection_lost(self, exception):
            pass

    network.listen("broker", 1, Broker)
    gateway = Gateway(network, network, ("broker", 1), AddressMap({}))
    async with gateway:
        await gateway.start("gateway", 1)
        for _ in range(500):
            client = Broker(None)
            client.transport = await network.connect("gateway", 1, client)
            client.transport.receive_window = 0
            client.transport.write([fetch_request(1)])
        await until(lambda: gateway.metrics()["responses"] == 500)
        await run_callbacks()
        assert gateway.metrics()["bytes_from_broker"] <= 500 * 256 * 1024
        await gateway.stop(0)
