"""TCP connections beyond the contract: how they are made, how sockets break, and what remains."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import struct
import threading
import tracemalloc
import weakref

import psutil
import pytest

from aioproducer.transport.socket_transport import RECEIVE_SIZE, receive_buffer
from aioproducer.transport.stream import StreamConnector
from tests.transport.counted_socket import CountedSocket
from tests.transport.numbered import numbered


async def accepted(listening, recorder, **options):
    """A client, and the other end as a blocking socket."""
    client = recorder()
    port = listening.getsockname()[1]
    client.transport = await StreamConnector(**options).connect("127.0.0.1", port, client)
    server, _ = listening.accept()
    server.settimeout(20)
    return client, server


def reset(server: socket.socket) -> None:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()


async def test_the_socket_has_its_options(listening, recorder):
    client, server = await accepted(listening, recorder, send_buffer_bytes=40_000, receive_buffer_bytes=50_000)
    sock = client.transport._socket
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (40_000, 80_000)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (50_000, 100_000)
    client.abort()
    await client.until_lost()
    server.close()


async def test_buffers_have_the_systems_default_size(listening, recorder):
    client, server = await accepted(listening, recorder)
    with socket.create_connection(listening.getsockname()) as plain:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            size = client.transport._socket.getsockopt(socket.SOL_SOCKET, option)
            assert size == plain.getsockopt(socket.SOL_SOCKET, option)
        listening.accept()[0].close()
    client.abort()
    await client.until_lost()
    server.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="the system has no IPv6")
async def test_an_ipv6_address_is_connected_to(recorder):
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    with listening:
        client = recorder()
        port = listening.getsockname()[1]
        client.transport = await StreamConnector().connect("::1", port, client)
        assert client.transport.peer == f"[::1]:{port}"
        client.abort()
        await client.until_lost()
    with pytest.raises(ConnectionRefusedError, match=r"cannot connect to \[::1\]:1: Connection refused"):
        await StreamConnector().connect("::1", 1, recorder())


async def resolving(monkeypatch, *addresses):
    """Let ``broker.example`` have these addresses."""

    async def getaddrinfo(host, port, **_):
        assert host == "broker.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_a_name_stands_for_the_first_of_its_addresses_that_answers(listening, recorder, monkeypatch):
    await resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
    client = recorder()
    port = listening.getsockname()[1]
    client.transport = await StreamConnector().connect("broker.example", port, client)
    assert client.transport.peer == f"broker.example:{port}"
    client.abort()
    await client.until_lost()


async def test_a_name_without_an_answering_address_is_an_error(recorder, monkeypatch):
    await resolving(monkeypatch, "127.0.0.2", "127.0.0.3")
    with pytest.raises(ConnectionRefusedError, match=r"cannot connect to broker.example:1: Connection refused"):
        await StreamConnector().connect("broker.example", 1, recorder())


async def test_a_name_without_addresses_is_an_error(recorder, monkeypatch):
    await resolving(monkeypatch)
    with pytest.raises(OSError, match=r"cannot connect to broker.example:1: the name has no address"):
        await StreamConnector().connect("broker.example", 1, recorder())


async def test_an_address_takes_no_thread(listening, recorder):
    before = psutil.Process().num_threads()
    connector, client = StreamConnector(), recorder()
    port = listening.getsockname()[1]
    [address] = await connector.resolve("127.0.0.1", port)
    client.transport = await connector.connect(address, port, client)
    with pytest.raises(ConnectionRefusedError):
        await connector.connect("127.0.0.1", 1, recorder())
    assert psutil.Process().num_threads() <= before
    client.abort()
    await client.until_lost()


async def test_localhost_is_resolved(listening, recorder):
    client = recorder()
    client.transport = await StreamConnector().connect("localhost", listening.getsockname()[1], client)
    client.abort()
    assert await client.until_lost() is None


async def test_a_name_that_cannot_be_resolved_is_an_error(recorder, monkeypatch):
    async def getaddrinfo(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(
        socket.gaierror, match=r"cannot resolve the host of broker.example:1: Name or service not known"
    ):
        await StreamConnector().connect("broker.example", 1, recorder())


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_an_impossible_name_is_an_error(recorder, host):
    with pytest.raises(OSError, match=r"cannot resolve the host of .*: not a host name") as raised:
        await StreamConnector().connect(host, 1, recorder())
    assert raised.value.errno == errno.EINVAL
    with pytest.raises(OSError, match=r"cannot resolve the host of .*: not a host name"):
        await StreamConnector().resolve(host, 1)


async def test_a_connect_cancelled_before_an_answer_leaves_nothing_open(recorder, turns):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as fillers:
        for _ in range(3):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        task = asyncio.ensure_future(StreamConnector().connect("127.0.0.1", full.getsockname()[1], recorder()))
        await turns(5)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_loop_that_cannot_watch_sockets_is_named(recorder):
    class ProactorEventLoop(asyncio.SelectorEventLoop):
        def remove_reader(self, _):
            raise NotImplementedError

    loop = ProactorEventLoop()
    with pytest.raises(RuntimeError, match=r"ProactorEventLoop cannot watch sockets .*SelectorEventLoop or uvloop"):
        loop.run_until_complete(StreamConnector().connect("127.0.0.1", 1, recorder()))
    del loop.__class__.remove_reader
    loop.close()


async def broken(listening, recorder):
    """A client with a peer that has answered and gone, before the client has read that."""
    client, server = await accepted(listening, recorder)
    server.sendall(b"the answer")
    reset(server)
    return client


async def test_data_before_a_broken_connection_is_delivered_before_the_loss(listening, recorder):
    client = await broken(listening, recorder)
    assert not client.write(b"question")
    assert client.write(b"dropped")
    error = await client.until_lost()
    assert isinstance(error, ConnectionError)
    assert client.transport.peer in str(error)
    assert client.received == b"the answer"
    assert client.breaches == []


async def test_much_data_before_a_broken_connection_is_delivered_before_the_loss(listening, recorder):
    client, server = await accepted(listening, recorder, receive_buffer_bytes=2_000_000)
    answer = bytes(range(256)) * 2000
    server.settimeout(2)
    server.sendall(answer)
    reset(server)
    assert not client.write(b"question")
    assert isinstance(await client.until_lost(), ConnectionError)
    assert client.received == answer


async def test_buffers_stay_in_use_from_a_failed_write_to_the_loss(listening, recorder):
    client = await broken(listening, recorder)
    memory = bytearray(b"question")
    assert not client.write_lent([memory], [memory])
    assert memory == b"question"
    await client.until_lost()
    assert memory != b"question"


@pytest.mark.parametrize("written", [1, 5_000_000])
async def test_close_after_a_failed_write_reports_the_failure(listening, recorder, written):
    client = await broken(listening, recorder)
    assert not client.write(bytes(written))
    client.close()
    assert isinstance(await client.until_lost(), ConnectionError)
    assert client.received == b""
    assert client.breaches == []


async def test_abort_after_a_failed_write_reports_no_error(listening, recorder):
    client = await broken(listening, recorder)
    assert not client.write(b"question")
    client.abort()
    assert await client.until_lost() is None
    assert client.breaches == []


async def test_a_pending_write_that_fails_is_reported(listening, recorder):
    client, server = await accepted(listening, recorder, send_buffer_bytes=4096)
    assert not client.write(bytes(5_000_000))
    reset(server)
    assert isinstance(await client.until_lost(), ConnectionError)
    assert client.completions == []


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("size", [1, 100_000, 400_000])
async def test_a_reset_after_data_is_detected_after_the_data(listening, recorder, size, answered, turns):
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_000_000)
    client, server = await accepted(listening, recorder, receive_buffer_bytes=1_000_000)
    if answered:
        # Sending meets the reset before the transport looks for it.
        client.on_data = lambda _: client.transport.write([b"answer"])
    client.transport.pause_reading()
    server.sendall(bytes(size))
    reset(server)
    await turns(5)
    client.transport.resume_reading()
    assert isinstance(await client.until_lost(), ConnectionResetError)
    assert len(client.received) == size


@pytest.mark.parametrize("how", ["close", "abort", "pause"])
async def test_a_reset_after_data_that_made_the_handler_end_or_pause(listening, recorder, how, turns):
    client, server = await accepted(listening, recorder)
    client.on_data = lambda _: client.transport.pause_reading() if how == "pause" else getattr(client, how)()
    server.sendall(b"data")
    reset(server)
    await client.until(lambda: bool(client.received))
    await turns(5)
    client.transport.resume_reading()
    lost = await client.until_lost()
    assert isinstance(lost, ConnectionResetError) if how == "pause" else lost is None


async def test_readiness_without_data_is_ignored(listening, recorder):
    client, server = await accepted(listening, recorder)
    client.transport._on_readable()
    assert client.lost == []
    server.sendall(b"x")
    assert await client.until_received(1) == b"x"
    client.abort()
    await client.until_lost()
    server.close()


async def test_abort_resets_the_connection(listening, recorder):
    client, server = await accepted(listening, recorder)
    client.abort()
    await client.until_lost()
    with server, pytest.raises(ConnectionResetError):
        server.recv(1)


async def test_abort_after_close_leaves_a_slow_peer_the_data_it_has_not_read(listening, recorder):
    """Records sent with acks=0 were once lost if a broker paused while the producer closed."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client, server = await accepted(listening, recorder, send_buffer_bytes=1_000_000, linger_timeout=60)
    data = numbered(200_000)
    assert client.write(data)
    client.close()
    client.abort()
    assert await client.until_lost() is None
    with server, server.makefile("rb") as reading:
        assert reading.read() == data


async def test_close_ends_our_side_and_waits_for_the_peers(listening, recorder, turns):
    client, server = await accepted(listening, recorder, linger_timeout=60)
    client.write(b"last words")
    client.close()
    assert server.recv(100) == b"last words"
    assert server.recv(100) == b""
    server.sendall(b"an answer that nobody reads")
    await turns(10)
    assert client.lost == []
    server.close()
    assert await client.until_lost() is None


async def test_the_loop_is_idle_while_sending_to_a_peer_that_has_ended_its_side(
    listening, recorder, turns, monkeypatch
):
    client, server = await accepted(listening, recorder, send_buffer_bytes=4096)
    data = bytes(range(256)) * 4_000
    assert not client.write(data)
    client.close()
    server.shutdown(socket.SHUT_WR)
    await turns(20)
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr(client.transport, "_socket", CountedSocket(client.transport._socket, calls))
        await turns(100)
    assert calls == []
    server.setblocking(False)
    got = b""
    while piece := await asyncio.get_running_loop().sock_recv(server, 1_000_000):
        got += piece
    assert got == data
    assert await client.until_lost() is None
    server.close()


async def test_close_waits_at_most_for_the_linger_timeout(listening, recorder):
    client, server = await accepted(listening, recorder, linger_timeout=0.001)
    client.close()
    assert await client.until_lost() is None
    server.close()


async def test_close_after_a_reset_by_the_peer_reports_it(listening, recorder):
    client, server = await accepted(listening, recorder)
    reset(server)
    client.close()
    assert await client.until_lost() is None


@pytest.mark.parametrize("how", ["close", "abort", "peer closes", "peer resets"])
async def test_nothing_is_kept_alive_after_the_loss(listening, recorder, how, turns):
    gc.collect()
    gc.disable()
    try:
        client, server = await accepted(listening, recorder)
        sock = client.transport._socket
        if how in ("close", "abort"):
            getattr(client, how)()
        if how == "peer resets":
            reset(server)
        server.close()
        await client.until_lost()
        assert sock.fileno() == -1
        kept = weakref.ref(client.transport)
        client.transport = None
        await turns(2)
        assert kept() is None
    finally:
        gc.enable()


async def test_descriptors_can_be_reused(listening, recorder):
    for number in range(100):
        client, server = await accepted(listening, recorder)
        server.sendall(b"%d" % number)
        assert await client.until_received(1) == (b"%d" % number)
        server.close()
        if number % 2:
            client.abort()
        assert await client.until_lost() is None


async def test_connections_of_a_loop_receive_into_the_same_memory(listening, recorder):
    sides = [await accepted(listening, recorder)]
    tracemalloc.start()
    try:
        sides += [await accepted(listening, recorder) for _ in range(10)]
        assert tracemalloc.get_traced_memory()[0] < RECEIVE_SIZE
    finally:
        tracemalloc.stop()
    for number, (client, server) in enumerate(sides):
        server.sendall(bytes([number]) * 1000)
        assert await client.until_received(1000) == bytes([number]) * 1000
        client.abort()
        await client.until_lost()
        server.close()


def test_each_loop_has_its_own_receive_buffer():
    """Two loops may receive at the same time, each in its thread."""
    loops = [asyncio.new_event_loop() for _ in range(2)]
    buffers = [receive_buffer(loop) for loop in loops]
    found = []
    thread = threading.Thread(target=lambda: found.append(receive_buffer(loops[1])))
    thread.start()
    thread.join(20)
    assert buffers[0].obj is not buffers[1].obj
    assert receive_buffer(loops[0]) is buffers[0]
    assert found[0] is buffers[1]
    for loop in loops:
        loop.close()


def test_a_receive_buffer_ends_with_its_loop():
    loop = asyncio.new_event_loop()
    # A bytearray supports no weak references, but a view of it does.
    buffer = weakref.ref(receive_buffer(loop))
    loop.close()
    del loop
    gc.collect()
    assert buffer() is None
