"""The server: start, stop, limits of connections, and the end of idle ones."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioproducer.broker.server.connection import Mute, Reply
from aioproducer.broker.server.server import Server
from aioproducer.transport.listening import StreamListener
from tests.broker.server.manual_clock import ManualClock
from tests.broker.server.serving import echo, framed, loop_passes
from tests.waiting import until


async def test_the_port_is_known_and_connections_are_accepted_before_requests_are(network):
    server = await network.server(serve=False)
    assert server.host == "127.0.0.1"
    client = await network.client(server)
    client.ask(b"early")
    await until(lambda: server.memory.used)
    await loop_passes(50)
    assert client.received == b""
    server.serve()
    assert await client.answer() == b"early"


async def test_a_server_that_was_not_started_has_no_port():
    server = Server(echo)
    with pytest.raises(RuntimeError, match="is not started"):
        assert server.port
    assert list(server.connections) == []
    server.abort()
    await server.stop()


async def test_a_server_starts_once(memory):
    server = await memory.server()
    with pytest.raises(RuntimeError, match="already listening"):
        await server.start(StreamListener(), "127.0.0.1", 0)


async def test_a_port_in_use_is_an_error(tcp):
    server = await tcp.server()
    other = Server(echo)
    with pytest.raises(OSError, match=rf"cannot listen at 127\.0\.0\.1:{server.port}: "):
        await other.start(StreamListener(), "127.0.0.1", server.port)
    await other.stop()


async def test_a_graceful_stop_finishes_only_requests_in_progress(network):
    answering = asyncio.Event()
    go = asyncio.Event()
    seen = []

    async def answer(connection, frame):
        seen.append(bytes(frame))
        answering.set()
        await go.wait()
        return Reply([framed(bytes(2_000_000))])

    server = await network.server(answer)
    client, idle = await network.client(server), await network.client(server)
    client.ask(b"first", b"second")
    await answering.wait()
    stopping = asyncio.ensure_future(server.stop())
    await loop_passes(50)
    assert not stopping.done()
    with pytest.raises(OSError, match=r".*"):
        await network.client(server)
    await idle.lost()
    go.set()
    assert len(await client.answer()) == 2_000_000
    await client.lost()
    await stopping
    assert seen == [b"first"]
    assert client.received == b""
    assert not server.connections


async def test_a_graceful_stop_has_a_deadline(network):
    cancelled = []

    async def answer(connection, frame):
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(bytes(frame))
            raise
        return Reply()

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"first", b"second")
    await until(lambda: server.memory.used and next(iter(server.connections)).mute is Mute.PROCESSING)
    await loop_passes(3)
    await server.stop(timeout=0.02)
    assert cancelled == [b"first"]
    assert not server.connections
    await client.lost()


async def test_a_stop_does_not_wait_for_a_peer_that_reads_nothing(network):
    async def answer(connection, frame):
        return Reply([framed(bytes(50_000_000))])

    server = await network.server(answer)
    client = await network.client(server)
    client.transport.pause_reading()
    client.ask(b"more")
    await until(lambda: server.connections and next(iter(server.connections)).mute is Mute.SENDING)
    await server.stop(timeout=0.02)
    assert not server.connections


async def test_abort_resets_everything_at_once(network):
    async def answer(connection, frame):
        await asyncio.get_running_loop().create_future()
        return Reply()

    server = await network.server(answer)
    clients = [await network.client(server) for _ in range(5)]
    for client in clients[:3]:
        client.ask(b"one", b"two")
    clients[3].send(framed(b"half")[:6])
    await until(lambda: len(server.connections) == 5)
    await loop_passes(10)
    server.abort()
    await server.wait_closed()
    assert not server.connections
    for client in clients:
        assert isinstance(await client.lost(), ConnectionError)


async def test_abort_before_the_first_step_of_an_answer_leaves_no_task(memory):
    """The task that would answer it is cancelled before its first step."""
    server = await memory.server()
    client = await memory.client(server)
    client.ask(b"one")
    await until(lambda: server.connections and next(iter(server.connections)).mute is Mute.PROCESSING)
    server.abort()
    await server.wait_closed()
    assert not server.connections
    assert server.memory.used == 0


async def test_a_stop_that_is_cancelled_leaves_nothing_open(network):
    async def answer(connection, frame):
        await asyncio.get_running_loop().create_future()
        return Reply()

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"one")
    await until(lambda: server.memory.used)
    stopping = asyncio.ensure_future(server.stop())
    await loop_passes(5)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await client.lost()
    await server.wait_closed()
    assert not server.connections


async def test_a_handler_may_abort_its_own_connection(network):
    async def answer(connection, frame):
        connection.abort()
        await loop_passes(5)
        return Reply([framed(b"nobody hears this")])

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"one", b"two")
    await client.lost()
    assert client.received == b""
    await until(lambda: not server.connections)


async def test_a_connection_beyond_the_limit_is_reset_and_the_others_continue(network, caplog):
    server = await network.server(max_connections=3)
    clients = [await network.client(server) for _ in range(3)]
    for client in clients:
        client.ask(b"hello")
        await client.answer()
    for _ in range(5):
        try:
            refused = await network.client(server)
        except OSError:
            continue
        assert isinstance(await refused.lost(), ConnectionError)
    await until(lambda: server.refused == 5)
    assert len(server.connections) == 3
    assert caplog.text.count("there are 3 connections (max.connections) (1 refused so far)") == 1
    assert len(caplog.records) == 1
    for client in clients:
        client.ask(b"still here")
        assert await client.answer() == b"still here"
    clients[0].transport.close()
    await until(lambda: len(server.connections) == 2)
    client = await network.client(server)
    client.ask(b"room again")
    assert await client.answer() == b"room again"


async def test_connections_of_one_host_are_limited(tcp, caplog):
    server = await tcp.server(max_connections_per_ip=2)
    for _ in range(2):
        client = await tcp.client(server)
        client.ask(b"hello")
        await client.answer()
    try:
        refused = await tcp.client(server)
        await refused.lost()
    except OSError:
        pass
    await until(lambda: server.refused == 1)
    assert "there are 2 connections from 127.0.0.1" in caplog.text


async def test_a_connection_counts_until_its_last_request_is_answered(network):
    go = asyncio.Event()

    async def answer(connection, frame):
        await go.wait()
        return Reply()

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"one")
    client.transport.close()
    await until(lambda: server.connections and next(iter(server.connections)).is_lost)
    assert len(server.connections) == 1
    go.set()
    await until(lambda: not server.connections)


async def test_only_connections_that_are_idle_too_long_are_closed(network, caplog):
    caplog.set_level(logging.INFO)
    # A pause of the machine for a second makes no connection idle.
    server = await network.server(connections_max_idle_ms=2000)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    idle, used = await network.client(server), await network.client(server)
    await until(lambda: len(server.connections) == 2)
    while not idle.is_lost:
        used.ask(b"x")
        await used.answer()
        await asyncio.sleep(0.005)
    assert loop.time() - begin >= 1.99
    assert not used.is_lost
    assert caplog.text.count("idle for 2.0 s") == 1
    await used.lost()


async def test_idle_connections_are_closed_one_by_one_the_longest_idle_first(memory, caplog):
    caplog.set_level(logging.INFO)
    server = await memory.server(connections_max_idle_ms=60_000)
    clock = ManualClock(server)
    for _ in range(6):
        await memory.client(server)
    connections = list(server.connections)
    assert len(connections) == 6
    clock.advance(1)
    server.active(connections[0])
    # As after a stall of the loop: all connections are idle too long at once.
    clock.advance(61)
    count = 0
    while count < 6:
        assert len(caplog.records) - count <= 1
        count = len(caplog.records)
        await asyncio.sleep(0)
    closed = [record.args[0] for record in caplog.records]
    assert closed == [connection.id for connection in [*connections[1:], connections[0]]]


async def test_a_connection_with_a_request_in_progress_is_not_idle(network):
    go = asyncio.Event()

    async def answer(connection, frame):
        await go.wait()
        return await echo(connection, frame)

    server = await network.server(answer, connections_max_idle_ms=60_000)
    clock = ManualClock(server)
    client = await network.client(server)
    client.ask(b"a long poll")
    await until(lambda: any(connection.mute is Mute.PROCESSING for connection in server.connections))
    clock.advance(61)
    await loop_passes()
    assert not client.is_lost
    go.set()
    assert await client.answer() == b"a long poll"
    # It has the whole time again, and it does not end before.
    clock.advance(59)
    client.ask(b"in time")
    assert await client.answer() == b"in time"
    clock.advance(61)
    await client.lost()


async def test_a_peer_that_reads_nothing_is_idle(network):
    """``until`` fails unless the server closes the connection."""

    async def answer(connection, frame):
        return Reply([framed(bytes(50_000_000))])

    server = await network.server(answer, connections_max_idle_ms=50)
    client = await network.client(server)
    client.transport.pause_reading()
    client.ask(b"more")
    await until(lambda: server.connections)
    await until(lambda: not server.connections)


async def test_idle_connections_stay_open_without_a_limit(memory):
    server = await memory.server(connections_max_idle_ms=-1)
    client = await memory.client(server)
    await until(lambda: server.connections)
    assert server._idle_timer is None
    client.ask(b"x")
    assert await client.answer() == b"x"
