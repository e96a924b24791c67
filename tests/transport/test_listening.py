"""The accepting side over sockets: the same contract, its addresses, and failures of accepting."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import struct

import pytest

from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.rdma import RdmaConnector, RdmaListener
from aioproducer.transport.stream import StreamConnector
from tests.transport.numbered import numbered


class Accepting:
    """A listener; the handlers of its connections are recorders."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.servers = asyncio.Queue()
        self.accepted = []

    def accept(self, transport):
        server = self.recorder()
        server.transport = transport
        self.servers.put_nowait(server)
        self.accepted.append(server)
        return server


@pytest.fixture(params=["memory", "tcp", "tls", "rdma"])
async def pair(request, certificates, recorder):
    """``await pair()`` returns both sides of a new connection between our transports."""
    accepting = Accepting(recorder)
    if request.param == "memory":
        listener = connector = MemoryNetwork(send_buffer_bytes=100_000)
    elif request.param == "tcp":
        listener, connector = StreamListener(), StreamConnector()
    elif request.param == "rdma":
        fabric = SimulatedFabric()
        listener, connector = RdmaListener(fabric), RdmaConnector(fabric)
    else:
        listener = StreamListener(certificates.server_context())
        connector = StreamConnector(certificates.client_context())
    listening = await listener.listen("127.0.0.1", 0, accepting.accept)
    clients = []

    async def connect():
        client = recorder()
        client.transport = await connector.connect("127.0.0.1", listening.port, client)
        clients.append(client)
        async with asyncio.timeout(20):
            server = await accepting.servers.get()
        return client, server

    connect.kind = request.param
    connect.listening = listening
    yield connect
    listening.close()
    for side in (*clients, *accepting.accepted):
        side.abort()
    for side in (*clients, *accepting.accepted):
        await side.until_lost()
        assert side.breaches == []
    async with asyncio.timeout(20):
        await listening.wait_closed()


async def test_ten_megabytes_arrive_in_both_directions_at_once(pair):
    client, server = await pair()
    data = numbered(10_000_000)
    client.write(data)
    server.write(data[::-1])
    assert await server.until_received(len(data)) == data
    assert await client.until_received(len(data)) == data[::-1]


async def test_many_connections_share_a_receive_buffer_without_mixing_data(pair):
    sides = [await pair() for _ in range(20)]
    for number, (client, _) in enumerate(sides):
        client.write(bytes([number]) * 300_000)
    for number, (_, server) in enumerate(sides):
        assert await server.until_received(300_000) == bytes([number]) * 300_000


async def test_data_written_before_close_arrives(pair):
    client, server = await pair()
    data = numbered(500_000)
    client.write(data)
    client.close()
    assert await server.until_lost() is None
    assert server.received == data


async def test_a_reset_by_the_client_is_an_error(pair):
    client, server = await pair()
    client.abort()
    lost = await server.until_lost()
    # In TLS 1.3 the client sends nothing after the handshake; the reset may show as a failed write of session tickets.
    assert isinstance(lost, ConnectionError)


async def test_the_accepting_side_can_be_paused(pair, turns):
    client, server = await pair()
    server.on_data = lambda data: server.transport.pause_reading()
    data = numbered(1_000_000)
    client.write(data)
    while len(server.received) < len(data):
        await turns(2)
        server.transport.resume_reading()
    assert server.received == data


async def test_no_connection_is_accepted_after_close(pair, recorder):
    await pair()
    pair.listening.close()
    pair.listening.close()
    if pair.kind != "memory":
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", pair.listening.port))


async def until(condition, turns):
    async with asyncio.timeout(20):
        while not condition():
            await turns(1)


async def listen(accepting, host="127.0.0.1", **options):
    return await StreamListener(**options).listen(host, 0, accepting.accept)


async def ended(*sides):
    for side in sides:
        side.abort()
        await side.until_lost()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
async def test_it_listens_at_the_requested_addresses(recorder, host):
    accepting = Accepting(recorder)
    listening = await listen(accepting, host)
    assert listening.host == host
    with socket.create_connection(("127.0.0.1", listening.port)) as plain:
        server = await accepting.servers.get()
        assert server.transport.peer == f"127.0.0.1:{plain.getsockname()[1]}"
    await ended(server)
    listening.close()


async def test_it_listens_at_an_ipv6_address(recorder):
    accepting = Accepting(recorder)
    try:
        listening = await listen(accepting, "::1")
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    with socket.create_connection(("::1", listening.port)) as plain:
        server = await accepting.servers.get()
        assert server.transport.peer == f"[::1]:{plain.getsockname()[1]}"
    await ended(server)
    listening.close()


async def test_only_addresses_of_this_machine_are_used(recorder, monkeypatch):
    async def getaddrinfo(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    accepting = Accepting(recorder)
    addresses = ["192.0.2.1", "127.0.0.1", "127.0.0.2"]
    listening = await listen(accepting, "broker.example")
    for address in addresses[1:]:
        with socket.create_connection((address, listening.port)):
            await ended(await accepting.servers.get())
    listening.close()
    addresses = ["192.0.2.1"]
    with pytest.raises(OSError, match=r"cannot listen at broker\.example:0: Cannot assign requested address"):
        await listen(accepting, "broker.example")
    addresses = []
    with pytest.raises(OSError, match=r"cannot listen at broker\.example:0: the name has no address"):
        await listen(accepting, "broker.example")


async def test_a_port_that_is_taken_is_named_in_the_error(recorder):
    accepting = Accepting(recorder)
    listening = await listen(accepting)
    with pytest.raises(OSError, match=rf"cannot listen at 127\.0\.0\.1:{listening.port}: Address already in use"):
        await StreamListener().listen("127.0.0.1", listening.port, accepting.accept)
    listening.close()
    again = await StreamListener().listen("127.0.0.1", listening.port, accepting.accept)
    again.close()


async def test_a_port_taken_at_one_of_two_addresses_leaves_no_socket(recorder, monkeypatch):
    # Addresses that only this test uses: another process may connect from the port at 127.0.0.1 at any time.
    async def getaddrinfo(host, port, **_):
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.13.1", "127.0.13.2")
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with socket.create_server(("127.0.13.2", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use"):
            await StreamListener().listen("broker.example", port, Accepting(recorder).accept)
        with socket.create_server(("127.0.13.1", port)):
            pass


async def test_an_unknown_host_is_named_in_the_error(recorder):
    with pytest.raises(OSError, match=r"cannot resolve the host of does-not-exist\.invalid:0"):
        await listen(Accepting(recorder), "does-not-exist.invalid")


async def test_sockets_have_their_options(recorder):
    accepting = Accepting(recorder)
    listening = await listen(accepting, send_buffer_bytes=40_000, receive_buffer_bytes=50_000)
    with socket.create_connection(("127.0.0.1", listening.port)):
        server = await accepting.servers.get()
        sock = server.transport._socket
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (40_000, 80_000)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (50_000, 100_000)
    await ended(server)
    listening.close()


async def test_an_exception_of_accept_ends_only_that_connection(recorder, caplog, turns):
    accepting = Accepting(recorder)

    def accept(transport):
        if not accepting.accepted:
            accepting.accepted.append(None)
            raise LookupError("not today")
        return accepting.accept(transport)

    listening = await StreamListener().listen("127.0.0.1", 0, accept)
    with socket.create_connection(("127.0.0.1", listening.port)) as dropped:
        await until(lambda: accepting.accepted, turns)
        dropped.settimeout(20)
        with pytest.raises(ConnectionResetError):
            dropped.recv(1)
    assert "was not accepted" in caplog.text
    assert "not today" in caplog.text
    with socket.create_connection(("127.0.0.1", listening.port)):
        await ended(await accepting.servers.get())
    listening.close()


async def test_accept_may_write_and_close_at_once(recorder):
    side = recorder()

    def accept(transport):
        transport.write([b"go away"])
        transport.close()
        return side

    listening = await StreamListener().listen("127.0.0.1", 0, accept)
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    assert await reader.read(-1) == b"go away"
    writer.close()
    assert await side.until_lost() is None
    listening.close()


class FailingSocket(socket.socket):
    """A listening socket that first raises errors in ``accept``."""

    errors: list[int]
    calls = 0

    def accept(self):
        FailingSocket.calls += 1
        if FailingSocket.errors:
            number = FailingSocket.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


@pytest.fixture
def failing(monkeypatch):
    monkeypatch.setattr("aioproducer.transport.listening.socket.socket", FailingSocket)
    FailingSocket.calls = 0
    FailingSocket.errors = []
    return FailingSocket


async def test_accepting_continues_after_descriptors_were_exhausted(recorder, failing, monkeypatch, caplog):
    monkeypatch.setattr("aioproducer.transport.listening._PAUSE_AFTER_ERROR", 0.05)
    accepting = Accepting(recorder)
    listening = await listen(accepting)
    failing.errors = [errno.EMFILE, errno.ENFILE]
    with socket.create_connection(("127.0.0.1", listening.port)):
        server = await accepting.servers.get()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "Too many open files" in caplog.text
    # One call for each error and the connection; the last call finds no further connection.
    assert failing.calls <= 4
    await ended(server)
    listening.close()


async def test_the_loop_is_idle_while_descriptors_are_exhausted(recorder, failing, turns):
    accepting = Accepting(recorder)
    listening = await listen(accepting)
    failing.errors = [errno.EMFILE] * 100
    with socket.create_connection(("127.0.0.1", listening.port)):
        await turns(200)
        assert failing.calls <= 1
        listening.close()


async def test_errors_of_one_connection_do_not_interrupt_accepting(recorder, failing, caplog):
    accepting = Accepting(recorder)
    listening = await listen(accepting)
    failing.errors = [errno.ECONNABORTED, errno.EPROTO]
    with socket.create_connection(("127.0.0.1", listening.port)):
        server = await accepting.servers.get()
    assert caplog.text == ""
    await ended(server)
    listening.close()


async def test_a_handshake_has_a_deadline(recorder, certificates, caplog):
    caplog.set_level(logging.INFO)
    accepting = Accepting(recorder)
    listening = await listen(accepting, ssl_context=certificates.server_context(), handshake_timeout=0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    assert await reader.read(-1) == b""
    writer.close()
    assert "no TLS handshake within 0.02 s" in caplog.text
    assert accepting.accepted == []
    listening.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x10\0\x12\0\x03\0\0\0\0\0\0\0\0\0\0\0\0", b""])
async def test_a_client_without_tls_is_logged(recorder, certificates, caplog, said, turns):
    caplog.set_level(logging.INFO)
    accepting = Accepting(recorder)
    listening = await listen(accepting, ssl_context=certificates.server_context())
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    writer.write(said)
    if not said:
        writer.close()
    else:
        await reader.read(-1)
        writer.close()
    await until(lambda: "The TLS handshake failed" in caplog.text, turns)
    assert ("does not speak TLS" if said else "does the client speak TLS, and trust this certificate?") in caplog.text
    listening.close()


async def test_a_client_that_does_not_trust_the_certificate_is_logged(recorder, certificates, caplog, turns):
    caplog.set_level(logging.INFO)
    accepting = Accepting(recorder)
    listening = await listen(accepting, ssl_context=certificates.server_context())
    with pytest.raises(ssl.SSLError, match=r"self-signed|unable to get local issuer"):
        await StreamConnector(ssl.create_default_context()).connect("127.0.0.1", listening.port, recorder())
    await until(lambda: "The TLS handshake failed" in caplog.text, turns)
    assert accepting.accepted == []
    listening.close()


async def test_stalled_handshakes_do_not_keep_others_out(recorder, certificates, monkeypatch):
    # The silent ones have 18 ms while others wait. The last one has a minute, as no other waits then.
    monkeypatch.setattr("aioproducer.transport.listening._HANDSHAKE_SHARE", 0.0003)
    accepting = Accepting(recorder)
    listening = await listen(
        accepting, ssl_context=certificates.server_context(), handshake_timeout=60, max_handshakes=3
    )
    silent = [socket.create_connection(("127.0.0.1", listening.port)) for _ in range(5)]
    client = recorder()
    connector = StreamConnector(certificates.client_context())
    async with asyncio.timeout(20):
        client.transport = await connector.connect("127.0.0.1", listening.port, client)
        server = await accepting.servers.get()
    client.write(b"here I am")
    assert await server.until_received(9) == b"here I am"
    await ended(client, server)
    for sock in silent:
        sock.close()
    listening.close()
    await listening.wait_closed()


async def test_close_ends_the_handshakes(recorder, certificates, turns):
    accepting = Accepting(recorder)
    listening = await listen(accepting, ssl_context=certificates.server_context())
    with socket.create_connection(("127.0.0.1", listening.port)) as silent:
        await until(lambda: listening._handshakes, turns)
        listening.close()
        await listening.wait_closed()
        assert len(asyncio.all_tasks()) == 1
        silent.settimeout(20)
        assert silent.recv(1) == b""


async def test_a_connection_reset_in_the_handshake_is_logged(recorder, certificates, caplog, turns):
    caplog.set_level(logging.INFO)
    listening = await listen(Accepting(recorder), ssl_context=certificates.server_context())
    with socket.create_connection(("127.0.0.1", listening.port)) as sock:
        await until(lambda: listening._handshakes, turns)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await until(lambda: not listening._handshakes, turns)
    assert "The TLS handshake failed" in caplog.text
    listening.close()
