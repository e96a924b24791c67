"""Hostile clients: the server continues to serve the others, within its limit of memory."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioproducer.broker.server.server import Reply
from tests.broker.server.serving import framed, loop_passes
from tests.waiting import until


async def is_served(network, server):
    client = await network.client(server)
    client.ask(b"are you there?")
    assert await client.answer() == b"are you there?"
    client.transport.abort()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(
        st.binary(max_size=300)
        | st.binary(max_size=50).map(framed)
        | st.integers(-(2**31), 2**31 - 1).map(lambda size: struct.pack(">i", size)),
        max_size=10,
    ),
    how=st.sampled_from(["close", "abort", "stay"]),
)
async def test_random_bytes_do_not_stop_other_clients(network, data, how):
    """``is_served`` fails unless another client receives its response."""
    server = network.servers[0] if network.servers else await network.server(max_request_bytes=100_000)
    client = await network.client(server)
    client.send(b"".join(data))
    await loop_passes(10)
    if how != "stay":
        getattr(client.transport, how)()
    await is_served(network, server)


async def test_an_announced_size_of_2_gib_takes_no_memory(network):
    server = await network.server(max_request_bytes=2**31 - 1)
    tracemalloc.start()
    try:
        for size in (2**31 - 1, 2**30, 100 * 1024 * 1024):
            client = await network.client(server)
            client.send(struct.pack(">i", size) + b"and nothing more")
        await until(lambda: server.memory.used >= 3 * 16)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
        assert server.memory.used < 10_000
    finally:
        tracemalloc.stop()
    await is_served(network, server)


async def test_a_slow_loris_does_not_stop_other_clients(network):
    server = await network.server()
    clients = [await network.client(server) for _ in range(20)]
    message = framed(b"a request that takes its time")
    for byte in message:
        for client in clients:
            client.send(bytes([byte]))
        await loop_passes(3)
    for client in clients:
        assert await client.answer() == b"a request that takes its time"
    await is_served(network, server)


@pytest.mark.parametrize("said", [b"", b"\0", struct.pack(">i", 100 * 1024 * 1024) + b"only this"])
async def test_hundreds_of_half_open_connections_do_not_stop_other_clients(tcp, said):
    server = await tcp.server()
    await is_served(tcp, server)
    await until(lambda: not server.connections)
    gc.collect()
    count = 300
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sockets = []
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(said)
            sockets.append(sock)
            await asyncio.sleep(0)
        await until(lambda: len(server.connections) == count and server.memory.used >= count * len(said))
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each < 8_000
    # An idle connection has no task.
    assert len(asyncio.all_tasks()) == 1
    await is_served(tcp, server)
    for sock in sockets:
        sock.close()
    await until(lambda: not server.connections)


async def test_peers_that_never_read_do_not_stop_other_clients(network):
    answered = 0

    async def answer(connection, frame):
        nonlocal answered
        answered += 1
        return Reply([framed(bytes(1_000_000))])

    server = await network.server(answer)
    clients = [await network.client(server) for _ in range(10)]
    for client in clients:
        client.transport.pause_reading()
        client.ask(*[bytes(10_000)] * 500)
    await until(lambda: answered >= 10)
    for _ in range(3):
        await loop_passes(100)
        await asyncio.sleep(0.01)
    assert answered <= 10 * 12
    assert server.memory.used <= 10 * (128 + 128 + 64) * 1024
    other = await network.client(server)
    other.ask(b"x")
    assert len(await other.answer()) == 1_000_000


async def test_clients_may_connect_and_disconnect_in_every_way(network):
    chance = random.Random(1)
    server = await network.server()
    for number in range(150):
        client = await network.client(server)
        data = framed(bytes(chance.randrange(100_000))) * chance.randrange(4)
        client.send(data[: chance.randrange(len(data) + 1)])
        await loop_passes(chance.randrange(6))
        client.transport.abort() if number % 2 else client.transport.close()
    await is_served(network, server)
    await until(lambda: len(server.connections) == 0)
    assert server.memory.used == 0
