"""The memory of all requests is limited, every connection continues in time, and stalled ones are closed."""

from __future__ import annotations

import asyncio
import struct

import pytest

from aioproducer.broker.server.connection import Mute
from aioproducer.broker.server.framing import READ_AHEAD
from aioproducer.broker.server.server import Reply, Server, ServerConnection
from tests.broker.server.manual_clock import ManualClock
from tests.broker.server.serving import Client, ServerNetwork, framed, loop_passes
from tests.waiting import until

LARGE = 1_000_000
RECEIVE = 128 * 1024
STALL_MS = 10_000


async def new_connection(network: ServerNetwork, server: Server) -> tuple[Client, ServerConnection]:
    """Connect, and return both sides of the connection."""
    before = set(server.connections)
    client = await network.client(server)
    await until(lambda: len(server.connections) > len(before))
    (connection,) = set(server.connections) - before
    return client, connection


@pytest.mark.parametrize("held", [2_000_000, 300_000, 1])
async def test_many_large_requests_at_once_stay_within_the_limit_and_all_succeed(network, held):
    peak = 0

    async def answer(connection, frame):
        nonlocal peak
        peak = max(peak, server.memory.used)
        await loop_passes(1)
        assert bytes(frame[:4]) * (LARGE // 4) == frame
        return Reply([framed(bytes(frame[:4]))])

    server = await network.server(answer, queued_max_bytes=held)
    clients = [await network.client(server) for _ in range(20)]
    for number, client in enumerate(clients):
        client.ask(struct.pack(">i", number) * (LARGE // 4))
    for number, client in enumerate(clients):
        assert await client.answer() == struct.pack(">i", number)
    # The limit, one request beyond it, and what each connection may hold before it waits (two receives when doubled).
    assert peak <= held + LARGE + len(clients) * 2 * RECEIVE


async def test_waiting_connections_continue_in_the_order_of_their_waiting(memory):
    order = []

    async def answer(connection, frame):
        order.append(bytes(frame[:1]))
        return Reply()

    server = await memory.server(answer, queued_max_bytes=100_000, serve=False)
    clients = [await memory.client(server) for _ in range(5)]
    for number, client in enumerate(clients):
        client.send(struct.pack(">i", LARGE) + bytes([number]) + bytes(150_000))
        await loop_passes(10)
    assert server.memory.waiting == 4
    for client in reversed(clients):
        client.send(bytes(LARGE - 150_001))
    await loop_passes(200)
    assert server.memory.used <= 100_000 + LARGE + 5 * 2 * RECEIVE
    server.serve()
    await until(lambda: len(order) == 5)
    assert order == [bytes([number]) for number in range(5)]


async def test_a_connection_between_requests_does_not_wait(network):
    """Small requests that arrive whole are served, even while there is no memory for large ones."""
    go = asyncio.Event()

    async def answer(connection, frame):
        if len(frame) == LARGE:
            await go.wait()
        return Reply([framed(b"done")])

    server = await network.server(answer, queued_max_bytes=100_000)
    large, small = await network.client(server), await network.client(server)
    large.ask(bytes(LARGE))
    await until(lambda: server.memory.used >= LARGE)
    for _ in range(10):
        small.ask(b"small")
        assert await small.answer() == b"done"
    go.set()
    assert await large.answer() == b"done"


async def test_a_stalled_connection_that_holds_memory_is_closed_while_others_wait(network, caplog):
    async def answer(connection, frame):
        return Reply([framed(b"done")])

    server = await network.server(answer, queued_max_bytes=500_000, stall_timeout_ms=STALL_MS)
    clock = ManualClock(server)
    stalled = [await new_connection(network, server) for _ in range(8)]
    for client, _ in stalled:
        client.send(struct.pack(">i", LARGE) + bytes(100_000))
    await until(lambda: server.memory.used >= 500_000)
    honest, connection = await new_connection(network, server)
    honest.ask(bytes(LARGE))
    answered = asyncio.ensure_future(honest.answer())
    # The time passes only while it waits, as the machine may take long for a request that does not.
    while not answered.done():
        if connection.waits_for_memory:
            clock.advance(STALL_MS / 1000)
        await asyncio.sleep(0)
    assert answered.result() == b"done"
    assert "has made no progress for 10.0 s, while others wait for memory" in caplog.text


async def test_stalled_connections_stay_open_while_no_other_waits(memory):
    async def answer(connection, frame):
        return Reply([framed(b"done")])

    server = await memory.server(answer, queued_max_bytes=LARGE, stall_timeout_ms=1)
    client = await memory.client(server)
    client.send(struct.pack(">i", LARGE) + bytes(100_000))
    await asyncio.sleep(0.02)
    client.send(bytes(LARGE - 100_000))
    assert await client.answer() == b"done"


async def test_sending_byte_by_byte_counts_as_stalled(network):
    async def answer(connection, frame):
        return Reply([framed(b"done")])

    server = await network.server(answer, queued_max_bytes=100_000, stall_timeout_ms=STALL_MS)
    clock = ManualClock(server)
    loris, slow = await new_connection(network, server)
    loris.send(struct.pack(">i", LARGE) + bytes(120_000))
    await until(lambda: slow.received == 4 + 120_000)
    honest, connection = await new_connection(network, server)
    honest.ask(bytes(LARGE))
    await until(lambda: connection.waits_for_memory)
    sent = 0
    while not slow.is_lost and sent < 100:
        loris.send(b"x")
        sent += 1
        # Each byte is received before the server looks for progress again.
        await until(lambda: slow.received == 4 + 120_000 + sent or slow.is_lost)  # noqa: B023  # in this round only
        clock.advance(STALL_MS / 1000 / 4)
    assert 4 < sent < 100
    assert await honest.answer() == b"done"


async def test_a_peer_that_reads_no_responses_is_closed_while_others_wait(network):
    go = asyncio.Event()

    async def answer(connection, frame):
        if frame == b"flood":
            return Reply([framed(bytes(30_000_000))])
        await go.wait()
        return Reply([framed(b"done")])

    server = await network.server(answer, queued_max_bytes=100_000, stall_timeout_ms=STALL_MS)
    clock = ManualClock(server)
    deaf, flooded = await new_connection(network, server)
    deaf.transport.pause_reading()
    deaf.ask(b"flood", bytes(200_000))
    await until(lambda: server.memory.used >= 200_000 and flooded.mute is Mute.SENDING)
    # Two of them: the first may continue without memory, the second waits.
    honest = [await new_connection(network, server) for _ in range(2)]
    for client, _ in honest:
        client.ask(bytes(LARGE))
    await until(
        lambda: all(connection.waits_for_memory or connection.mute is Mute.PROCESSING for _, connection in honest)
    )
    assert server.memory.waiting
    # The first look begins the measurement.
    for _ in range(2):
        assert not flooded.is_lost
        clock.advance(STALL_MS / 1000)
    await until(lambda: flooded.is_lost)
    go.set()
    for client, _ in honest:
        assert await client.answer() == b"done"


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_memory_of_closed_connections_is_released(network, how):
    server = await network.server(queued_max_bytes=200_000)
    clients = [await network.client(server) for _ in range(5)]
    for client in clients:
        client.send(struct.pack(">i", LARGE) + bytes(150_000))
    await until(lambda: server.memory.used >= 200_000 and server.memory.waiting)
    for client in clients:
        getattr(client.transport, how)()
    await until(lambda: not server.connections)
    assert server.memory.used == 0
    assert server.memory.waiting == 0


async def test_without_a_limit_no_connection_waits(memory):
    server = await memory.server(queued_max_bytes=-1, serve=False)
    clients = [await memory.client(server) for _ in range(5)]
    for client in clients:
        client.ask(bytes(LARGE), bytes(10))
    await until(lambda: server.memory.used >= 5 * LARGE)
    assert server.memory.waiting == 0
    assert server.memory.used <= 5 * (LARGE + READ_AHEAD + RECEIVE)
