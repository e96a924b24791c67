"""TLS: handshakes that succeed and fail, and errors in the records after them."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import struct
import subprocess

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.transport.stream import StreamConnector
from aioproducer.transport.tls_session import TlsSession

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Server:
    """One connection of a TLS server that controls which bytes are sent together."""

    def __init__(self, context, reader, writer):
        self.reader = reader
        self.writer = writer
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def flush(self):
        self.writer.write(self.outgoing.read())

    async def until(self, step):
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self.flush()
                data = await self.reader.read(65536)
                if not data:
                    return b""
                self.incoming.write(data)

    async def read(self, size):
        return await self.until(lambda: self.object.read(size))


def reset_on_close(writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.fixture
async def serve():
    """``serve(connection)``: a port where ``connection(reader, writer)`` runs for every client."""
    servers = []
    tasks = set()

    async def start(connection):
        async def accept(reader, writer):
            tasks.add(asyncio.current_task())
            try:
                await connection(reader, writer)
            except asyncio.CancelledError:
                # The test is over; asyncio's streams of Python 3.11 fail if the task ends as cancelled.
                return
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        servers.append(server)
        return server.sockets[0].getsockname()[1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.fixture
def connected(serve, certificates, recorder):
    """``connected(version, behind, script)`` returns a client; after the handshake the server runs ``script``.

    ``behind(server)`` runs before the last bytes of the handshake have been sent.
    """

    async def connect(version=None, *, behind=None, script=None, **options):
        async def connection(reader, writer):
            server = Server(certificates.server_context(version), reader, writer)
            await server.until(server.object.do_handshake)
            if behind is not None:
                behind(server)
            server.flush()
            if script is not None:
                await script(server)

        port = await serve(connection)
        client = recorder()
        connector = StreamConnector(certificates.client_context(), **options)
        client.transport = await connector.connect("127.0.0.1", port, client, server_hostname="broker.example")
        return client

    return connect


@pytest.mark.parametrize("version", VERSIONS)
async def test_data_arrives_with_both_versions(stream_wire, certificates, version):
    contexts = certificates.client_context(), certificates.server_context(version)
    async with stream_wire("tls", *contexts) as wire:
        client, peer = await wire.connect()
        assert client.transport._session._object.version() == version.name.replace("_", ".")
        data = os.urandom(1_000_000)
        peer.write(data)
        reading = asyncio.ensure_future(peer.read(len(data)))
        if not client.write(data[:10], data[10:]):
            await client.until_completed()
        assert await reading == data
        assert await client.until_received(len(data)) == data


async def until_closed(server):
    while await server.read(65536):
        pass


@pytest.mark.parametrize("size", [5, 16384, 200_000])
async def test_data_received_with_the_handshake_is_delivered_while_the_socket_is_silent(connected, size):
    data = os.urandom(size)
    client = await connected(
        ssl.TLSVersion.TLSv1_2, behind=lambda server: server.object.write(data), script=until_closed
    )
    assert await client.until_received(size) == data
    client.abort()
    assert await client.until_lost() is None


async def test_an_end_between_records_is_clean(connected):
    async def script(server):
        server.object.write(b"whole")
        server.flush()

    client = await connected(script=script)
    assert await client.until_lost() is None
    assert client.received == b"whole"


@pytest.mark.parametrize("left", [1, 4, 5, 20])
async def test_an_end_inside_a_record_is_an_error(connected, left):
    async def script(server):
        server.object.write(b"whole")
        server.flush()
        server.object.write(b"cut off")
        server.writer.write(server.outgoing.read()[:left])
        await server.writer.drain()
        server.writer.close()
        await server.writer.wait_closed()

    client = await connected(script=script)
    error = await client.until_lost()
    assert isinstance(error, ssl.SSLEOFError)
    assert f"{client.transport.peer}: the connection ended in the middle of a TLS record" in str(error)
    assert client.received == b"whole"


async def test_close_notify_ends_the_connection_while_the_socket_stays_open(connected):
    waiting = asyncio.Event()

    async def script(server):
        server.object.write(b"whole")
        with pytest.raises(ssl.SSLWantReadError):
            server.object.unwrap()
        server.flush()
        await waiting.wait()

    client = await connected(script=script)
    assert await client.until_lost() is None
    assert client.received == b"whole"
    waiting.set()


async def test_close_sends_close_notify_after_the_data(connected):
    seen = asyncio.get_running_loop().create_future()
    data = os.urandom(2_000_000)

    async def script(server):
        got = b""
        while piece := await server.read(65536):
            got += piece
        # It returns, instead of requesting more data, only after the other side's close_notify.
        server.object.unwrap()
        seen.set_result(got)

    client = await connected(script=script)
    assert not client.write(data)
    client.close()
    assert await seen == data
    assert await client.until_lost() is None


async def test_a_modified_record_is_an_error(connected):
    alert = asyncio.get_running_loop().create_future()

    async def script(server):
        server.object.write(b"whole")
        server.flush()
        server.object.write(b"tampered")
        record = bytearray(server.outgoing.read())
        record[-1] ^= 1
        server.writer.write(record)
        try:
            await server.read(1)
        except ssl.SSLError as error:
            alert.set_result(error)

    client = await connected(script=script)
    error = await client.until_lost()
    assert isinstance(error, ssl.SSLError)
    assert client.transport.peer in str(error)
    assert client.received == b"whole"
    assert "ALERT_BAD_RECORD_MAC" in (await alert).reason


async def test_data_before_a_broken_connection_is_delivered_before_the_loss(connected, turns):
    started, gone = asyncio.Event(), asyncio.Event()

    async def script(server):
        await started.wait()
        server.object.write(b"the answer")
        server.flush()
        reset_on_close(server.writer)
        server.writer.transport.abort()
        gone.set()

    client = await connected(script=script)
    # Do not read until the peer has gone, so that the write detects it.
    asyncio.get_running_loop().remove_reader(client.transport._socket)
    started.set()
    await gone.wait()
    await turns(5)
    assert not client.write(b"question")
    assert isinstance(await client.until_lost(), ConnectionError)
    assert client.received == b"the answer"
    assert client.breaches == []


async def test_a_write_that_cannot_be_encrypted_is_an_error(connected, monkeypatch):
    client = await connected(script=until_closed)

    def encrypt(_):
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, "internal error")

    monkeypatch.setattr(client.transport._session, "encrypt", encrypt)
    memory = bytearray(b"question")
    assert not client.write_lent([memory], [memory])
    error = await client.until_lost()
    assert isinstance(error, ssl.SSLError)
    assert f"{client.transport.peer}: internal error" in str(error)
    assert client.breaches == []


async def test_the_loop_is_idle_while_tls_has_to_read_before_it_writes(connected, turns, monkeypatch):
    asked = asyncio.Event()
    got = asyncio.get_running_loop().create_future()

    async def script(server):
        await asked.wait()
        server.object.write(b"go on")
        server.flush()
        got.set_result(await server.read(100))

    client = await connected(script=script)
    await turns(20)
    calls = []

    def encrypt(_):
        calls.append(1)
        raise ssl.SSLWantReadError

    with monkeypatch.context() as patch:
        patch.setattr(client.transport._session, "encrypt", encrypt)
        assert not client.write(b"question")
        tried = len(calls)
        await turns(100)
        assert len(calls) == tried
    asked.set()
    await client.until_completed()
    assert await got == b"question"
    client.abort()
    await client.until_lost()


async def test_small_buffers_share_records(connected):
    records = asyncio.get_running_loop().create_future()

    async def script(server):
        sizes = []
        while sum(sizes) < 4000:
            sizes.append(len(await server.read(65536)))
        records.set_result(sizes)

    client = await connected(script=script)
    client.write(*[b"abcd"] * 1000)
    assert await records == [4000]
    client.abort()
    await client.until_lost()


def with_client_certificate(certificates, required):
    context = certificates.server_context()
    context.verify_mode = required
    certificates.authority.configure_trust(context)
    return context


async def test_mutual_authentication_succeeds(stream_wire, certificates):
    client_context = certificates.client_context()
    certificates.client.configure_cert(client_context)
    server_context = with_client_certificate(certificates, ssl.CERT_REQUIRED)
    async with stream_wire("tls", client_context, server_context) as wire:
        client, peer = await wire.connect()
        client.write(b"hello")
        assert await peer.read(5) == b"hello"
        subject = peer.writer.get_extra_info("ssl_object").getpeercert()["subjectAltName"]
        assert subject == (("DNS", "client.example"),)


@pytest.mark.parametrize("version", VERSIONS)
async def test_mutual_authentication_fails_without_the_clients_certificate(
    serve, certificates, recorder, version, loop_errors
):
    loop_errors()
    context = with_client_certificate(certificates, ssl.CERT_REQUIRED)
    context.minimum_version = context.maximum_version = version

    async def connection(reader, writer):
        server = Server(context, reader, writer)
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            await server.until(server.object.do_handshake)
        server.flush()
        await reader.read()

    port = await serve(connection)
    connecting = StreamConnector(certificates.client_context()).connect("127.0.0.1", port, client := recorder())
    if version is ssl.TLSVersion.TLSv1_2:
        with pytest.raises(ssl.SSLError, match=f"127.0.0.1:{port}: .*ALERT_HANDSHAKE_FAILURE"):
            await connecting
    else:
        # In TLS 1.3 the client finishes before the server has checked its certificate.
        client.transport = await connecting
        error = await client.until_lost()
        assert isinstance(error, ssl.SSLError)
        assert "CERTIFICATE_REQUIRED" in str(error)
        assert f"127.0.0.1:{port}" in str(error)


async def failing_handshake(serve, server_context, client_context, name):
    """Return the error of ``connect``, and that of the server."""
    seen = asyncio.get_running_loop().create_future()

    async def connection(reader, writer):
        server = Server(server_context, reader, writer)
        try:
            await server.until(server.object.do_handshake)
            await server.read(1)
            seen.set_result(None)
        except ssl.SSLError as error:
            server.flush()
            seen.set_result(error)

    port = await serve(connection)
    with pytest.raises(ssl.SSLError) as raised:
        await StreamConnector(client_context).connect("127.0.0.1", port, None, server_hostname=name)
    assert f"127.0.0.1:{port}" in str(raised.value)
    return raised.value, await seen


async def test_a_certificate_for_another_name_is_rejected(serve, certificates):
    contexts = certificates.server_context(), certificates.client_context()
    error, _ = await failing_handshake(serve, *contexts, "other.example")
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert "certificate is not valid for 'other.example'" in str(error)
    assert "other.example" in error.verify_message


async def test_a_certificate_of_an_unknown_authority_is_rejected(serve, certificates):
    context = ssl.create_default_context()
    trustme.CA().configure_trust(context)
    error, alert = await failing_handshake(serve, certificates.server_context(), context, "broker.example")
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert "ALERT_UNKNOWN_CA" in alert.reason


async def test_no_common_version_is_an_error(serve, certificates):
    contexts = (
        certificates.server_context(ssl.TLSVersion.TLSv1_2),
        certificates.client_context(ssl.TLSVersion.TLSv1_3),
    )
    error, alert = await failing_handshake(serve, *contexts, "broker.example")
    assert "PROTOCOL_VERSION" in str(error)
    assert alert is not None


async def test_the_name_is_not_checked_if_the_context_disables_it(serve, certificates, recorder, connected):
    context = certificates.client_context()
    context.check_hostname = False

    async def connection(reader, writer):
        server = Server(certificates.server_context(), reader, writer)
        await server.until(server.object.do_handshake)
        server.object.write(b"hello")
        server.flush()
        await server.read(1)

    port = await serve(connection)
    client = recorder()
    client.transport = await StreamConnector(context).connect("127.0.0.1", port, client, server_hostname="other")
    assert await client.until_received(5) == b"hello"
    client.abort()
    await client.until_lost()


@pytest.mark.parametrize("name", [None, "broker.example."])
async def test_the_name_is_the_host_unless_given_and_may_end_in_a_dot(serve, certificates, recorder, name):
    async def connection(reader, writer):
        server = Server(certificates.server_context(), reader, writer)
        await server.until(server.object.do_handshake)
        server.flush()
        await server.read(1)

    port = await serve(connection)
    client = recorder()
    connector = StreamConnector(certificates.client_context())
    client.transport = await connector.connect("127.0.0.1", port, client, server_hostname=name)
    client.abort()
    assert await client.until_lost() is None


async def test_an_impossible_server_name_is_an_error(serve, certificates):
    async def connection(reader, writer):
        await reader.read()

    port = await serve(connection)
    with pytest.raises(OSError, match=r"'\.example' is no name for TLS"):
        await StreamConnector(certificates.client_context()).connect(
            "127.0.0.1", port, None, server_hostname=".example"
        )


async def connect_to(serve, certificates, connection):
    port = await serve(connection)
    try:
        await StreamConnector(certificates.client_context()).connect("127.0.0.1", port, None)
    except OSError as error:
        return error
    return None


async def test_an_answer_in_plain_text_is_an_error(serve, certificates):
    async def connection(reader, writer):
        writer.write(b"\x00\x00\x00\x0aplain text and more of it")
        await reader.read()

    error = await connect_to(serve, certificates, connection)
    assert isinstance(error, ssl.SSLError)
    assert "the answer is not TLS: is it a PLAINTEXT listener?" in str(error)


async def test_a_close_in_the_handshake_is_an_error(serve, certificates):
    async def connection(reader, writer):
        await reader.read(10_000)
        writer.close()
        await writer.wait_closed()

    error = await connect_to(serve, certificates, connection)
    assert isinstance(error, ssl.SSLEOFError)
    assert "closed the connection during the TLS handshake (is it a PLAINTEXT listener, or does it" in str(error)


async def test_a_reset_in_the_handshake_is_an_error(serve, certificates):
    async def connection(reader, writer):
        await reader.read(1)
        reset_on_close(writer)
        writer.transport.abort()

    error = await connect_to(serve, certificates, connection)
    assert isinstance(error, ConnectionResetError)
    assert "during the TLS handshake (is it a PLAINTEXT listener" in str(error)


async def test_connect_can_be_cancelled_while_the_server_is_silent(serve, certificates, turns):
    reached = asyncio.Event()
    ended = asyncio.Event()

    async def connection(reader, writer):
        assert await reader.read(10_000)
        reached.set()
        assert await reader.read() == b""
        ended.set()

    port = await serve(connection)
    task = asyncio.ensure_future(StreamConnector(certificates.client_context()).connect("127.0.0.1", port, None))
    await reached.wait()
    await turns(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        await ended.wait()


class CommandLineServer:
    """OpenSSL's server: received data appears in its output, single letters are commands."""

    def __init__(self, certificates, directory, version):
        certificates.server.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
        certificates.server.private_key_pem.write_to_path(str(directory / "key.pem"))
        self.arguments = ["openssl", "s_server", "-accept", "127.0.0.1:0", f"-{version}", "-cert"]
        self.arguments += [str(directory / "cert.pem"), "-key", str(directory / "key.pem")]

    async def __aenter__(self):
        pipe = subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*self.arguments, stdin=pipe, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(20):
            while not (line := await self.process.stdout.readline()).startswith(b"ACCEPT "):
                assert line, "openssl has ended"
        # It chose the port.
        self.port = int(line.rpartition(b":")[2])
        return self

    async def until(self, text):
        seen = bytearray()
        async with asyncio.timeout(20):
            while text not in seen[-len(text) - 65536 :]:
                piece = await self.process.stdout.read(65536)
                assert piece, seen[-1000:]
                seen += piece
        return seen

    def command(self, letter):
        self.process.stdin.write(letter + b"\n")

    async def __aexit__(self, *_):
        self.process.kill()
        await self.process.communicate()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")
@pytest.mark.parametrize(
    ("version", "letter"), [("tls1_3", b"K"), ("tls1_3", b"k"), ("tls1_2", b"r")], ids=["K", "k", "renegotiation"]
)
@pytest.mark.parametrize("busy", [False, True])
async def test_keys_may_be_renewed_during_a_connection(certificates, recorder, tmp_path, version, letter, busy):
    """``K`` requests an update of both sides' keys, ``k`` updates its own, ``r`` starts a new handshake."""
    async with CommandLineServer(certificates, tmp_path, version) as server:
        client = recorder()
        connector = StreamConnector(certificates.client_context())
        client.transport = await connector.connect("127.0.0.1", server.port, client)
        client.write(b"~first~")
        await server.until(b"~first~")
        mark = b"\x01" * 1_000_000
        size = 0
        if busy:
            for _ in range(20):
                client.write(mark)
            size = 20 * len(mark)
        server.command(letter)
        client.write(b"~second~")
        seen = await server.until(b"~second~")
        assert seen.count(b"\x01") == size
        server.process.stdin.write(b"line\n")
        assert b"line" in await client.until_received(5)
        client.write(b"~third~")
        await server.until(b"~third~")
        client.close()
        assert await client.until_lost() is None
        assert client.breaches == []


@pytest.fixture(scope="module")
def session():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return lambda: TlsSession(context, "broker.example", "peer")


@given(lengths=st.lists(st.integers(1, 300), max_size=6), chunk=st.integers(1, 50))
def test_record_ends_are_found_in_any_pieces(session, lengths, chunk):
    made = session()
    data = b"".join(b"\x17\x03\x03" + length.to_bytes(2) + bytes(length) for length in lengths)
    ends = {0}
    for length in lengths:
        ends.add(max(ends) + 5 + length)
    for start in range(0, len(data), chunk):
        piece = memoryview(data)[start : start + chunk]
        made.feed(piece)
        assert made.inside_record == (start + len(piece) not in ends)


def test_a_record_without_content_ends_with_its_header(session):
    made = session()
    made.feed(memoryview(b"\x17\x03\x03\x00\x00"))
    assert not made.inside_record
