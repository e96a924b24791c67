"""Making connections over RDMA: foreign peers on both sides, and failures at every step, which leave nothing open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
import sys
import threading
from types import SimpleNamespace

import pytest

from aioproducer import Producer
from aioproducer._client.factory import connector_for
from aioproducer.config import ProducerConfig
from aioproducer.errors import ConfigurationError, MetadataTimeoutError
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.rdma import (
    FallbackConnector,
    HandshakeError,
    NotRdmaError,
    RdmaConnector,
    RdmaListener,
    RdmaUnavailableError,
)
from aioproducer.transport.rdma.executor import RingSizes
from aioproducer.transport.rdma.handshake import Facts, HandshakeReader, Kind, Ready, Refusal, encode
from aioproducer.transport.rdma.verbs import VerbsError
from aioproducer.transport.stream import StreamConnector
from tests.transport.rdma_server import HELLO, QUEUE_PAIR, RING, read_messages
from tests.waiting import until

SASL = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "secret"}


class TestStrangersAtAListener:
    @pytest.mark.parametrize(
        ("said", "complaint"),
        [
            (b"GET / HTTP/1.1\r\n\r\n", "it said b'GET / HTTP/1.1"),
            (b"\0\0\0\x10\0\x12\0\x03\0\0\0\0\0\0\0\0\0\0\0\0", "a Kafka client that speaks plain TCP"),
            (b"\x16\x03\x01\x02\x00\x01", "it speaks TLS"),
            (bytes(1000), "it said b'"),
            (encode(Ready(b"t" * 16)), "unexpected message instead of HELLO"),
            (
                encode(Facts(Kind.WELCOME, b"t" * 16, b"u" * 16, QUEUE_PAIR, RING)),
                "unexpected message instead of HELLO",
            ),
            (encode(HELLO)[:8] + struct.pack(">H", 2) + encode(HELLO)[10:], "it speaks version 2"),
        ],
    )
    async def test_a_client_that_sends_something_else_is_refused_with_a_reason(
        self, rdma_server, caplog, said, complaint
    ):
        caplog.set_level(logging.INFO)
        await rdma_server.listen()
        reader, writer = await rdma_server.stranger()
        writer.write(said)
        (refusal,) = await read_messages(reader)
        assert isinstance(refusal, Refusal)
        assert complaint in refusal.reason
        writer.close()
        await rdma_server.still_serves()
        assert "The RDMA handshake failed: " in caplog.text
        assert complaint in caplog.text
        assert len(rdma_server.accepted) == 1

    async def test_a_wrong_token_is_refused(self, rdma_server, caplog):
        caplog.set_level(logging.INFO)
        await rdma_server.listen()
        reader, writer = await rdma_server.stranger()
        writer.write(encode(HELLO))
        answer = HandshakeReader("peer", accepting=False)
        received = []
        while not received:
            received = answer.feed(await reader.read(1000))
        assert received[0].kind is Kind.WELCOME
        assert received[0].echo == HELLO.token
        writer.write(encode(Ready(b"w" * 16)))
        (refusal,) = await read_messages(reader)
        assert "wrong token" in refusal.reason
        writer.close()
        await rdma_server.still_serves()

    @pytest.mark.parametrize("said", [encode(HELLO) * 5, encode(HELLO) + encode(Ready(b"t" * 16)) * 4])
    async def test_more_messages_than_expected_are_refused(self, rdma_server, said, caplog):
        caplog.set_level(logging.INFO)
        await rdma_server.listen()
        reader, writer = await rdma_server.stranger()
        writer.write(said)
        *_, refusal = await read_messages(reader)
        assert isinstance(refusal, Refusal)
        writer.close()
        await rdma_server.still_serves()

    @pytest.mark.parametrize("said", [b"", encode(HELLO)[:50]])
    async def test_a_silent_client_has_a_deadline(self, rdma_server, said, caplog):
        await self._waits_in_vain(rdma_server, said, caplog)

    async def test_a_welcomed_client_that_sends_no_ready_has_a_deadline(self, rdma_server, caplog):
        await self._waits_in_vain(rdma_server, encode(HELLO), caplog)

    async def _waits_in_vain(self, rdma_server, said, caplog):
        caplog.set_level(logging.INFO)
        await rdma_server.listen(handshake_timeout=0.05)
        reader, writer = await rdma_server.stranger()
        writer.write(said)
        with contextlib.suppress(ConnectionResetError):
            await reader.read(-1)
        writer.close()
        assert "no RDMA handshake within 0.05 s" in caplog.text
        assert rdma_server.accepted == []

    async def test_a_client_that_disconnects_at_once_leaves_nothing(self, rdma_server, caplog):
        caplog.set_level(logging.INFO)
        await rdma_server.listen()
        for said in (b"", encode(HELLO)[:20], encode(HELLO)):
            _, writer = await rdma_server.stranger()
            writer.write(said)
            writer.close()
            await rdma_server.still_serves()
            assert "ended the connection before the RDMA handshake was over" in caplog.text
            caplog.clear()
        assert not [record for record in caplog.records if record.levelno > logging.INFO]

    async def test_close_ends_the_handshakes(self, rdma_server):
        await rdma_server.listen()
        reader, writer = await rdma_server.stranger()
        writer.write(encode(HELLO))
        assert await reader.read(10)
        rdma_server.listening.close()
        rdma_server.listening.close()
        await rdma_server.listening.wait_closed()
        with contextlib.suppress(ConnectionResetError):
            await reader.read(-1)
        writer.close()

    async def test_an_exception_of_accept_ends_only_that_connection(self, rdma_server, caplog, recorder):
        def accept(transport):
            raise LookupError("not today")

        listening = await RdmaListener(rdma_server.fabric).listen("127.0.0.1", 0, accept)
        client = recorder()
        client.transport = await rdma_server.connector.connect("127.0.0.1", listening.port, client)
        assert isinstance(await client.until_lost(), ConnectionError)
        assert "was not accepted" in caplog.text
        assert "not today" in caplog.text
        listening.close()
        await listening.wait_closed()

    async def test_both_sides_use_keep_alive(self, rdma_server):
        await rdma_server.listen()
        client, server = await rdma_server.connect()
        for side in (client, server):
            sock = side.transport._control.transport._socket
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if sys.platform == "linux":
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4
        client.abort()
        await client.until_lost()

    async def test_a_port_that_is_taken_is_named_in_the_error(self, rdma_server):
        await rdma_server.listen()
        with pytest.raises(OSError, match="Address already in use"):
            await RdmaListener(rdma_server.fabric).listen("127.0.0.1", rdma_server.listening.port, rdma_server._accept)
        assert rdma_server.fabric.live.devices == 1

    async def test_a_missing_device_is_an_error(self, rdma_server):
        with pytest.raises(RdmaUnavailableError, match="there is no RDMA device"):
            await RdmaListener(SimulatedFabric({})).listen("127.0.0.1", 0, rdma_server._accept)


class Imposter:
    """A TCP server that answers a client's handshake with the test's bytes."""

    def __init__(self, *answers):
        self.answers = answers
        self.received = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        messages = HandshakeReader("client", accepting=True)
        for answer in self.answers:
            (received,) = messages.feed(await reader.read(1000))
            self.received.append(received)
            writer.write(answer(received) if callable(answer) else answer)
        if not self.answers:
            await reader.read(1)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def __aexit__(self, *_):
        self.server.close()
        await self.server.wait_closed()


def welcome(hello, **changes):
    fields = {"token": b"s" * 16, "echo": hello.token, "queue_pair": QUEUE_PAIR, "ring": RING, **changes}
    return encode(Facts(Kind.WELCOME, **fields))


class TestStrangersAtAConnector:
    async def refused(self, rdma_server, recorder, port):
        client = recorder()
        async with asyncio.timeout(20):
            with pytest.raises(OSError) as caught:  # noqa: PT011 - the caller looks at it
                await rdma_server.connector.connect("127.0.0.1", port, client)
        assert client.lost == []
        assert not any(rdma_server.fabric.live)
        return caught.value

    async def test_a_plain_kafka_port_is_named_in_the_error(self, rdma_server, recorder):
        async with EmbeddedCluster() as cluster:
            port = int(cluster.bootstrap_servers.rpartition(":")[2])
            error = await self.refused(rdma_server, recorder, port)
        assert isinstance(error, NotRdmaError)
        assert f"127.0.0.1:{port} ended the connection without a word of the RDMA handshake" in str(error)
        assert "not a plain Kafka port" in str(error)

    async def test_a_tls_port_is_not_rdma(self, rdma_server, recorder, certificates):
        listening = await StreamListener(certificates.server_context()).listen("127.0.0.1", 0, rdma_server._accept)
        error = await self.refused(rdma_server, recorder, listening.port)
        assert isinstance(error, NotRdmaError)
        listening.close()
        await listening.wait_closed()

    async def test_a_web_server_is_not_rdma(self, rdma_server, recorder):
        async with Imposter(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
            error = await self.refused(rdma_server, recorder, port)
        assert isinstance(error, NotRdmaError)
        assert "it said b'HTTP/1.1 400" in str(error)

    async def test_a_refusal_is_raised_with_its_reason(self, rdma_server, recorder):
        async with Imposter(encode(Refusal("it is full\n"))) as port:
            error = await self.refused(rdma_server, recorder, port)
        assert f"127.0.0.1:{port} refused the RDMA connection: it is full\\n" in str(error)
        assert not isinstance(error, NotRdmaError)

    async def test_a_refusal_after_the_welcome_is_raised(self, rdma_server, recorder):
        async with Imposter(lambda hello: welcome(hello) + encode(Refusal("it stops"))) as port:
            error = await self.refused(rdma_server, recorder, port)
        assert "refused the RDMA connection: it stops" in str(error)

    @pytest.mark.parametrize("last", [b"", encode(Refusal("it is full"))])
    async def test_a_server_that_ends_the_connection_before_hello_may_speak_rdma(
        self, rdma_server, recorder, turns, last
    ):
        """A listener that had to make room was once mistaken for a plain Kafka port, and ``rdma,tcp`` used TCP."""
        go_on = threading.Event()
        rdma_server.fabric.before = lambda verb: verb != "open" or go_on.wait(20)

        async def end(reader, writer):
            writer.write(last)
            writer.close()
            await turns(20)
            go_on.set()

        class NoTcp(StreamConnector):
            async def connect(self, *args, **options):
                raise AssertionError("by TCP")

        server = await asyncio.start_server(end, "127.0.0.1", 0)
        connector = FallbackConnector(rdma_server.connector, NoTcp())
        with pytest.raises(HandshakeError) as caught:
            await connector.connect("127.0.0.1", server.sockets[0].getsockname()[1], recorder())
        assert not isinstance(caught.value, NotRdmaError)
        assert ("it is full" if last else "before the RDMA handshake was over") in str(caught.value)
        server.close()

    @pytest.mark.parametrize(
        ("said", "text"),
        [
            ([encode(Refusal("too late"))], "has gone without a goodbye"),
            ([encode(Refusal("too late"))[:3], encode(Refusal("too late"))[3:]], "has gone without a goodbye"),
            ([b"more"], "violated the RDMA protocol"),
            ([encode(Ready(b"t" * 16))], "violated the RDMA protocol"),
            ([encode(Refusal("too late"))[:3], b"?" * 30], "violated the RDMA protocol"),
        ],
    )
    async def test_a_refusal_may_cross_ready(self, rdma_server, recorder, turns, said, text):
        """A refusal that crosses READY, in one segment or in two, violates no rule."""

        async def stay(reader, writer):
            messages = HandshakeReader("client", accepting=True)
            (hello,) = messages.feed(await reader.read(1000))
            writer.write(welcome(hello))
            await reader.read(1000)
            for part in said:
                writer.write(part)
                await turns(10)
            with contextlib.suppress(ConnectionError):
                await reader.read(-1)
            writer.close()

        server = await asyncio.start_server(stay, "127.0.0.1", 0)
        client = recorder()
        client.transport = await rdma_server.connector.connect("127.0.0.1", server.sockets[0].getsockname()[1], client)
        assert text in str(await client.until_lost())
        server.close()

    async def test_an_answer_to_another_connection_is_an_error(self, rdma_server, recorder):
        async with Imposter(lambda hello: welcome(hello, echo=b"w" * 16)) as port:
            error = await self.refused(rdma_server, recorder, port)
        assert "wrong token: the message belongs to another connection" in str(error)

    async def test_another_message_than_welcome_is_an_error(self, rdma_server, recorder):
        async with Imposter(lambda hello: encode(Ready(hello.token))) as port:
            error = await self.refused(rdma_server, recorder, port)
        assert "unexpected message instead of WELCOME" in str(error)

    async def test_half_a_welcome_is_an_error(self, rdma_server, recorder):
        async with Imposter(lambda hello: welcome(hello)[:60]) as port:
            error = await self.refused(rdma_server, recorder, port)
        assert "before the RDMA handshake was over" in str(error)

    async def test_early_data_after_the_welcome_is_an_error(self, rdma_server, recorder):
        async with Imposter(lambda hello: welcome(hello) + b"\x8b") as port:
            error = await self.refused(rdma_server, recorder, port)
        assert isinstance(error, HandshakeError)

    async def test_a_refused_connection_is_an_error(self, rdma_server, recorder):
        error = await self.refused(rdma_server, recorder, 1)
        assert isinstance(error, ConnectionRefusedError)

    async def test_a_missing_queue_pair_of_the_peer_ends_the_connection(self, rdma_server, recorder):
        """If the peer has no such queue pair, the first write fails."""
        client = recorder()

        async def stay(reader, writer):
            messages = HandshakeReader("client", accepting=True)
            (hello,) = messages.feed(await reader.read(1000))
            writer.write(welcome(hello))
            await reader.read(-1)
            writer.close()

        server = await asyncio.start_server(stay, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client.transport = await rdma_server.connector.connect("127.0.0.1", port, client)
        client.write(bytes(4096 * 2))
        assert "TRANSPORT_RETRY_EXCEEDED" in str(await client.until_lost())
        server.close()


class TestWhatFailsOnTheWay:
    @pytest.mark.parametrize("verb", ["open", "register", "create_queue_pair", "connect"])
    async def test_a_failed_verb_of_the_client_leaves_nothing(self, rdma_server, recorder, verb, caplog):
        caplog.set_level(logging.INFO)
        await rdma_server.listen()
        client_fabric = rdma_server.fabric

        def fail(called):
            if called == verb and client_fabric.failing:
                client_fabric.failing = False
                raise VerbsError(errno.ENOMEM, f"cannot {verb}: ulimit -l")

        client_fabric.failing = True
        client_fabric.before = fail
        with pytest.raises(OSError, match=f"cannot {verb}: ulimit -l|could not prepare its side"):
            await rdma_server.connector.connect("127.0.0.1", rdma_server.listening.port, recorder())
        client_fabric.before = None
        await rdma_server.still_serves()
        if verb != "connect":
            assert f"the client could not prepare its side: [Errno 12] cannot {verb}" in caplog.text

    @pytest.mark.parametrize("verb", ["register", "create_queue_pair", "connect"])
    async def test_a_failed_verb_of_the_server_leaves_nothing(self, rdma_server, recorder, verb, caplog):
        await rdma_server.listen()
        calls = []

        def fail(called):
            # The client has created its queue pair before it sends HELLO.
            if called == verb:
                calls.append(called)
                if len(calls) == {"register": 3, "create_queue_pair": 2, "connect": 1}[verb]:
                    raise VerbsError(errno.ENOMEM, f"cannot {verb}: ulimit -l")

        rdma_server.fabric.before = fail
        with pytest.raises(HandshakeError, match=f"the server could not prepare its side: cannot {verb}"):
            await rdma_server.connector.connect("127.0.0.1", rdma_server.listening.port, recorder())
        rdma_server.fabric.before = None
        assert f"preparing an RDMA connection failed: [Errno 12] cannot {verb}" in caplog.text
        await rdma_server.still_serves()

    @pytest.mark.parametrize("verb", ["open", "register", "create_queue_pair", "connect"])
    async def test_cancelling_during_a_verb_leaves_nothing(self, rdma_server, recorder, verb):
        await rdma_server.listen()
        entered, go_on = threading.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        inside = asyncio.Event()

        def wait(called):
            if called == verb and not entered.is_set():
                entered.set()
                loop.call_soon_threadsafe(inside.set)
                go_on.wait(20)

        rdma_server.fabric.before = wait
        client = recorder()
        connecting = asyncio.ensure_future(
            rdma_server.connector.connect("127.0.0.1", rdma_server.listening.port, client)
        )
        async with asyncio.timeout(20):
            await inside.wait()
            connecting.cancel()
            # The loop continues, and the cancelled task waits until nothing is left.
            await asyncio.sleep(0.01)
            assert not connecting.done() or verb == "connect"
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await connecting
        assert client.lost == []
        await rdma_server.still_serves()

    async def test_cancelling_twice_leaves_nothing(self, rdma_server, recorder, turns):
        go_on = threading.Event()
        rdma_server.fabric.before = lambda verb: go_on.wait(20)
        async with Imposter() as port:
            connecting = asyncio.ensure_future(rdma_server.connector.connect("127.0.0.1", port, recorder()))
            async with asyncio.timeout(20):
                while not threading_alive("aioproducer-verbs"):
                    await turns(1)
                connecting.cancel()
                await turns(5)
                connecting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await connecting
                go_on.set()
                while threading_alive("aioproducer-verbs"):
                    await turns(1)
        assert not any(rdma_server.fabric.live)

    async def test_a_listener_waits_for_the_end_of_a_connection_that_was_not_accepted(
        self, rdma_server, recorder, turns
    ):
        """No other code can: its thread once survived if the loop was closed next."""

        refused = asyncio.Event()

        def accept(transport):
            refused.set()
            raise LookupError("not today")

        go_on = threading.Event()
        rdma_server.fabric.before = lambda verb: verb != "close" or go_on.wait(20)
        listening = await RdmaListener(rdma_server.fabric).listen("127.0.0.1", 0, accept)
        client = recorder()
        client.transport = await rdma_server.connector.connect("127.0.0.1", listening.port, client)
        await refused.wait()
        listening.close()
        closing = asyncio.ensure_future(listening.wait_closed())
        await turns(20)
        assert not closing.done()
        go_on.set()
        await closing
        await client.until_lost()

    async def test_the_caller_sets_the_deadline(self, rdma_server, recorder, listening):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await rdma_server.connector.connect("127.0.0.1", listening.getsockname()[1], recorder())
        assert not any(rdma_server.fabric.live)

    async def test_a_broken_verbs_layer_ends_one_handshake(self, rdma_server, recorder, caplog):
        await rdma_server.listen()

        def fail(verb):
            if verb == "create_queue_pair" and len(rdma_server.fabric.queue_pairs) == 1:
                raise LookupError("a bug")

        rdma_server.fabric.before = fail
        with pytest.raises(HandshakeError, match="refused the RDMA connection: the server failed"):
            await rdma_server.connector.connect("127.0.0.1", rdma_server.listening.port, recorder())
        rdma_server.fabric.before = None
        assert "a bug" in caplog.text
        await rdma_server.still_serves()


def test_the_verbs_thread_ends_if_the_loop_is_closed_first():
    fabric = SimulatedFabric()
    go_on = threading.Event()

    async def listen():
        listening = await RdmaListener(fabric).listen("127.0.0.1", 0, lambda transport: None)
        fabric.before = lambda verb: go_on.wait(20)
        listening.close()

    before = set(threading.enumerate())
    asyncio.run(listen())
    threads = set(threading.enumerate()) - before
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert [(thread.name, thread.is_alive()) for thread in threads] == [("aioproducer-verbs_0", False)]
    assert not any(fabric.live)


def threading_alive(prefix):
    return any(thread.name.startswith(prefix) for thread in threading.enumerate())


class TestSettings:
    @pytest.mark.parametrize("wrong", [{"ring_bytes": 1000}, {"ring_bytes": 2**31}, {"slots": 0}, {"slots": 10_000}])
    def test_impossible_sizes_are_rejected(self, wrong):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name} must be "):
            RdmaConnector(SimulatedFabric(), **wrong)

    def test_impossible_numbers_of_controls_are_rejected(self):
        with pytest.raises(ValueError, match="controls must be 2 to"):
            RingSizes(controls=1)

    async def test_device_and_gid_can_be_chosen(self, rdma_server, recorder):
        fabric = SimulatedFabric({"one": "10.0.0.1", "two": "10.0.0.2"})
        listening = await RdmaListener(fabric, device="two").listen("127.0.0.1", 0, rdma_server._accept)
        connector = RdmaConnector(fabric, gid="10.0.0.1")
        client = recorder()
        client.transport = await connector.connect("127.0.0.1", listening.port, client)
        assert client.transport._shared.device.name == "one"
        server = await rdma_server.servers.get()
        assert server.transport._shared.device.name == "two"
        client.close()
        await client.until_lost()
        await server.until_lost()
        listening.close()
        await listening.wait_closed()


class TestFallback:
    async def test_a_missing_device_is_logged_once_and_tcp_is_used(self, rdma_server, recorder, caplog):
        listening = await StreamListener().listen("127.0.0.1", 0, rdma_server._accept)
        connector = FallbackConnector(RdmaConnector(SimulatedFabric({})), StreamConnector())
        for _ in range(2):
            client = recorder()
            client.transport = await connector.connect("127.0.0.1", listening.port, client)
            while len(rdma_server.accepted):
                rdma_server.accepted.pop().abort()
            client.abort()
            await client.until_lost()
        assert [record.getMessage() for record in caplog.records] == [
            "No RDMA, connecting by TCP: there is no RDMA device: the simulated fabric was made without one"
        ]
        assert await connector.resolve("127.0.0.1", 1) == ["127.0.0.1"]
        listening.close()
        await listening.wait_closed()

    async def test_a_broker_without_rdma_is_reached_by_tcp(self, rdma_server, caplog):
        async with EmbeddedCluster() as cluster:
            connector = FallbackConnector(rdma_server.connector, StreamConnector())
            async with cluster.producer(transport=connector) as producer:
                await producer.send("topic", b"value")
                assert producer.metrics()["rdma-bytes-sent-total"] == 0
            assert [record.value for record in cluster.records("topic")] == [b"value"]
        lines = [record.getMessage() for record in caplog.records if "Connecting by TCP" in record.getMessage()]
        assert len(lines) == 1
        assert "not a plain Kafka port" in lines[0]

    async def test_rdma_is_used_where_it_is_available(self, rdma_server):
        async with EmbeddedCluster(transport="rdma", verbs=rdma_server.fabric) as cluster:
            connector = FallbackConnector(rdma_server.connector, StreamConnector())
            async with cluster.producer(transport=connector) as producer:
                await producer.send("topic", b"value")
                assert producer.metrics()["rdma-bytes-sent-total"] > 0


class TestTransportArgument:
    def config(self, **keys):
        return ProducerConfig.from_kwargs(bootstrap_servers="localhost:9092", **keys)

    def test_an_unknown_transport_is_rejected(self):
        with pytest.raises(ConfigurationError, match="transport 'infiniband' does not exist: use 'tcp', 'rdma'"):
            connector_for(self.config(), "infiniband")

    def test_without_pyverbs_the_package_is_named(self, monkeypatch, caplog):
        monkeypatch.setitem(sys.modules, "pyverbs.device", None)
        with pytest.raises(ConfigurationError, match="transport 'rdma' cannot be used: RDMA needs pyverbs"):
            Producer(bootstrap_servers="localhost:9092", transport="rdma")
        connector = connector_for(self.config(), "rdma,tcp")
        assert isinstance(connector, FallbackConnector)
        assert "No RDMA, connecting by TCP: RDMA needs pyverbs" in caplog.text

    @pytest.mark.parametrize(("name", "kind"), [("rdma", RdmaConnector), ("rdma, tcp", FallbackConnector)])
    def test_with_pyverbs_its_devices_are_used(self, monkeypatch, name, kind):
        monkeypatch.setattr("aioproducer.transport.rdma.connecting.default_verbs", SimulatedFabric)
        assert isinstance(connector_for(self.config(), name), kind)

    @pytest.mark.parametrize("make", [RdmaConnector, RdmaListener])
    def test_a_gid_that_is_no_address_is_refused_by_the_constructor(self, make):
        with pytest.raises(ConfigurationError, match="gid must be the IP address of an RDMA port, not 'broker-1'"):
            make(SimulatedFabric(), gid="broker-1")

    @pytest.mark.parametrize("keys", [{"security_protocol": "SSL"}, {**SASL, "security_protocol": "SASL_SSL"}])
    def test_tls_over_rdma_is_rejected(self, keys):
        with pytest.raises(ConfigurationError, match="RDMA writes are not encrypted"):
            connector_for(self.config(**keys), "rdma,tcp")

    def test_sasl_without_tls_works_over_rdma(self, monkeypatch):
        monkeypatch.setattr("aioproducer.transport.rdma.connecting.default_verbs", SimulatedFabric)
        config = self.config(security_protocol="SASL_PLAINTEXT", **SASL)
        assert isinstance(connector_for(config, "rdma"), RdmaConnector)

    @pytest.mark.parametrize("connector", [RdmaConnector(SimulatedFabric()), MemoryNetwork(), StreamConnector()])
    def test_tls_together_with_a_connector_is_refused(self, connector):
        with pytest.raises(ConfigurationError, match=f"a {type(connector).__name__} opens its own connections"):
            Producer(bootstrap_servers="localhost:9092", security_protocol="SSL", transport=connector)

    @pytest.mark.parametrize(
        ("transport", "text"),
        [
            (3, r"transport 3 has no resolve\(\); use 'tcp'"),
            (None, r"transport None has no resolve\(\)"),
            (SimpleNamespace(resolve=print), r"has no connect\(\)"),
            (StreamConnector, "is a class: pass an instance"),
        ],
    )
    def test_an_object_that_is_no_connector_is_refused_by_the_constructor(self, transport, text):
        with pytest.raises(ConfigurationError, match=text):
            Producer(bootstrap_servers="localhost:9092", transport=transport)


async def test_a_kafka_client_over_tcp_gets_an_error_that_names_the_rdma_listener(rdma_server):
    async with (
        EmbeddedCluster(transport="rdma", verbs=rdma_server.fabric) as cluster,
        Producer(bootstrap_servers=cluster.bootstrap_servers, transport="tcp") as producer,
    ):
        await until(lambda: producer.connection_error)
        with pytest.raises(MetadataTimeoutError, match="is an RDMA listener, but this client speaks TCP"):
            await producer.wait_ready(0.2)
