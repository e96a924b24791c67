"""A recorded client over each transport, and a peer: asyncio's servers, or a handler in memory or over RDMA."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import pytest
import trustme

from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.base import Buffer, Connector, Transport, TransportHandler
from aioproducer.transport.memory import MemoryNetwork, MemoryTransport
from aioproducer.transport.rdma import RdmaConnector, RdmaListener
from aioproducer.transport.rdma.channel import RdmaTransport
from aioproducer.transport.stream import StreamConnector
from tests.transport.rdma_server import RdmaServer

RELEASED = 0xEE


class Recorder:
    """A handler that keeps received data, reports breaches of the contract, and overwrites released memory at once."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.completions: list[int] = []
        """The count of each ``write_completed``."""
        self.lost: list[Exception | None] = []
        self.breaches: list[str] = []
        self.on_data: Callable[[bytes], None] | None = None
        self.on_completed: Callable[[], None] | None = None
        self.on_lost: Callable[[Exception | None], None] | None = None
        self.transport: Transport | None = None
        self._inside: str | None = None
        self._lent: deque[list[bytearray]] = deque()
        """The memory of each write that is not completed."""
        self._closed = False
        self._changed = asyncio.Event()

    def data_received(self, data: Buffer) -> None:
        self._note("data_received")
        if self._closed:
            self.breaches.append("data_received after close or abort")
        self.received += data
        if self.on_data is not None:
            self.on_data(bytes(data))

    def write_completed(self, count: int) -> None:
        self._note("write_completed")
        if not 1 <= count <= len(self._lent):
            self.breaches.append(f"write_completed({count}), and {len(self._lent)} writes were waited for")
        self.completions.append(count)
        for _ in range(count):
            _spoil(self._lent.popleft())
        if self.on_completed is not None:
            self.on_completed()

    def connection_lost(self, exception: Exception | None) -> None:
        self._note("connection_lost")
        while self._lent:
            _spoil(self._lent.popleft())
        self.lost.append(exception)
        if self.on_lost is not None:
            self.on_lost(exception)

    def _note(self, callback: str) -> None:
        if self._inside:
            self.breaches.append(f"{callback} from inside {self._inside}")
        if self.lost:
            self.breaches.append(f"{callback} after connection_lost")
        if asyncio.current_task() is not None:
            self.breaches.append(f"{callback} from inside a task")
        self._changed.set()

    def _opened(self) -> Transport:
        assert self.transport is not None
        return self.transport

    def write(self, *pieces: bytes) -> bool:
        """Write copies of ``pieces``, and overwrite them as soon as the transport has released them."""
        memory = [bytearray(piece) for piece in pieces]
        return self.write_lent(memory, memory)

    def write_lent(self, buffers: Sequence[Buffer], memory: list[bytearray]) -> bool:
        """Write ``buffers``, which lie in ``memory``."""
        inside, self._inside = self._inside, "write"
        complete = self._opened().write(buffers)
        self._inside = inside
        if complete:
            _spoil(memory)
        else:
            self._lent.append(memory)
        return complete

    def close(self) -> None:
        self._closed = True
        self._inside = "close"
        self._opened().close()
        self._inside = None

    def abort(self) -> None:
        self._closed = True
        self._inside = "abort"
        self._opened().abort()
        self._inside = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a callback after which ``condition`` holds."""
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_received(self, size: int) -> bytes:
        await self.until(lambda: len(self.received) >= size)
        return bytes(self.received)

    async def until_completed(self) -> None:
        await self.until(lambda: not self._lent)

    async def until_lost(self) -> Exception | None:
        await self.until(lambda: bool(self.lost))
        return self.lost[0]


def _spoil(memories: list[bytearray]) -> None:
    for memory in memories:
        memory[:] = bytes([RELEASED]) * len(memory)


class MemoryPeer:
    """The accepting side in memory; accepts bytes only during ``read``, unless set otherwise."""

    def __init__(self, transport: MemoryTransport | RdmaTransport) -> None:
        self.transport = transport
        self.window: int | None = None
        self._received = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def data_received(self, data: Buffer) -> None:
        self._received += data
        self._changed.set()

    def write_completed(self, count: int) -> None:
        self._changed.set()

    def connection_lost(self, exception: Exception | None) -> None:
        self._ended = True
        self._error = exception
        self._changed.set()

    async def read(self, size: int) -> bytes:
        self.transport.receive_window = self.window
        return await self._read(size)

    async def _read(self, size: int) -> bytes:
        while len(self._received) < size and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    async def read_to_end(self) -> bytes:
        return await self.read(1 << 62)

    def write(self, data: bytes) -> None:
        self.transport.write([data])

    def close(self) -> None:
        self.transport.close()

    def reset(self) -> None:
        self.transport.abort()

    async def end(self) -> None:
        self.transport.abort()
        while not self._ended:
            self._changed.clear()
            await self._changed.wait()


class RdmaPeer(MemoryPeer):
    """The accepting side over RDMA; accepts bytes once ``read`` is called."""

    transport: RdmaTransport

    def __init__(self, transport: RdmaTransport) -> None:
        super().__init__(transport)
        transport.pause_reading()

    async def read(self, size: int) -> bytes:
        self.transport.resume_reading()
        return await self._read(size)


class StreamPeer:
    """The accepting side by asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self, size: int) -> bytes:
        try:
            return await self.reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def read_to_end(self) -> bytes:
        return await self.reader.read(-1)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        with socket.socket(fileno=os.dup(self.writer.get_extra_info("socket").fileno())) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def end(self) -> None:
        # asyncio's TLS transport of CPython 3.11.2 raises an error in abort after its end.
        with contextlib.suppress(AttributeError):
            self.writer.transport.abort()
        # Abort, so that the peer sees a reset.
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Wire:
    """Connections of one kind: ``connect`` returns the recorded client and its peer."""

    kind: str
    connector: Connector
    host = "127.0.0.1"
    port: int

    def __init__(self) -> None:
        self.clients: list[Recorder] = []
        self.peers: asyncio.Queue[MemoryPeer | StreamPeer] = asyncio.Queue()
        self.made: list[MemoryPeer | StreamPeer] = []

    async def connect(self) -> tuple[Recorder, MemoryPeer | StreamPeer]:
        client = Recorder()
        async with asyncio.timeout(20):
            client.transport = await self.connector.connect(
                self.host, self.port, client, server_hostname="broker.example"
            )
            peer = await self.peers.get()
        self.clients.append(client)
        self.made.append(peer)
        return client, peer

    async def shut(self) -> None:
        for client in self.clients:
            if client.transport is not None:
                client.abort()
                await client.until_lost()
        while not self.peers.empty():
            self.made.append(self.peers.get_nowait())
        for peer in self.made:
            await peer.end()
        for _ in range(5):
            await asyncio.sleep(0)
        for client in self.clients:
            assert client.breaches == []
            assert len(client.lost) == 1
        self.clients.clear()
        self.made.clear()


class MemoryWire(Wire):
    kind = "memory"

    def __init__(self, *, small: bool = False) -> None:
        super().__init__()
        self.connector = MemoryNetwork(send_buffer_bytes=0 if small else 100_000)
        self.listener = self.connector.listen(self.host, 0, self._accept)
        self.port = self.listener.port

    def _accept(self, transport: MemoryTransport) -> TransportHandler:
        peer = MemoryPeer(transport)
        transport.receive_window = 0
        self.peers.put_nowait(peer)
        return peer


class RdmaWire(Wire):
    kind = "rdma"

    def __init__(self, *, small: bool = False) -> None:
        super().__init__()
        self.fabric = SimulatedFabric()
        if small:
            self.connector = RdmaConnector(self.fabric, ring_bytes=8192, slots=4)
            self.listener = RdmaListener(self.fabric, ring_bytes=8192, slots=4)
        else:
            self.connector = RdmaConnector(self.fabric)
            self.listener = RdmaListener(self.fabric)

    async def listen(self) -> None:
        self.listening = await self.listener.listen(self.host, 0, self._accept)
        self.port = self.listening.port

    def _accept(self, transport: Transport) -> TransportHandler:
        assert isinstance(transport, RdmaTransport)
        peer = RdmaPeer(transport)
        self.peers.put_nowait(peer)
        return peer

    async def close(self) -> None:
        self.listening.close()
        await self.listening.wait_closed()
        while not self.peers.empty():
            await self.peers.get_nowait().end()
        assert not any(self.fabric.live)
        assert self.fabric.receiver_not_ready == 0


class StreamWire(Wire):
    def __init__(self, kind: str, connector: StreamConnector, server: asyncio.Server) -> None:
        super().__init__()
        self.kind = kind
        self.connector = connector
        self.server = server
        self.port = server.sockets[0].getsockname()[1]


class Certificates:
    """An authority, its certificate for ``broker.example`` and 127.0.0.1, and contexts of both sides."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.server = self.authority.issue_cert("broker.example", "127.0.0.1")
        self.client = self.authority.issue_cert("client.example")

    def server_context(self, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.server.configure_cert(context)
        return _only(context, version)

    def client_context(self, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return _only(context, version)


def _only(context: ssl.SSLContext, version: ssl.TLSVersion | None) -> ssl.SSLContext:
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


@pytest.fixture(scope="session")
def certificates() -> Certificates:
    return Certificates()


@pytest.fixture
def recorder() -> Callable[[], Recorder]:
    return Recorder


@contextlib.asynccontextmanager
async def _stream_wire(
    kind: str, client_context: ssl.SSLContext | None, server_context: ssl.SSLContext | None, *, small: bool = False
) -> AsyncIterator[StreamWire]:
    size = 4096 if small else -1
    listening = socket.create_server((StreamWire.host, 0))
    if small:
        # Larger than the sender's: only timers open a window below the loopback's segment size.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire.peers.put_nowait(StreamPeer(reader, writer))

    server = await asyncio.start_server(accept, sock=listening, ssl=server_context, limit=4096 if small else 65536)
    connector = StreamConnector(client_context, send_buffer_bytes=size, receive_buffer_bytes=size)
    wire = StreamWire(kind, connector, server)
    try:
        yield wire
    finally:
        await wire.shut()
        server.close()
        await server.wait_closed()


async def _wires(kind: str, certificates: Certificates, *, small: bool) -> AsyncIterator[Wire]:
    if kind == "memory":
        wire = MemoryWire(small=small)
        yield wire
        await wire.shut()
    elif kind == "rdma":
        rdma_wire = RdmaWire(small=small)
        await rdma_wire.listen()
        yield rdma_wire
        await rdma_wire.shut()
        await rdma_wire.close()
    else:
        contexts = (certificates.client_context(), certificates.server_context()) if kind == "tls" else (None, None)
        async with _stream_wire(kind, *contexts, small=small) as stream_wire:
            yield stream_wire


@pytest.fixture(params=["memory", "tcp", "tls", "rdma"])
async def wire(request: pytest.FixtureRequest, certificates: Certificates) -> AsyncIterator[Wire]:
    """Connections with buffers of the default size."""
    async for made in _wires(request.param, certificates, small=False):
        yield made


@pytest.fixture(params=["memory", "tcp", "tls", "rdma"])
async def small_wire(request: pytest.FixtureRequest, certificates: Certificates) -> AsyncIterator[Wire]:
    """Connections with the smallest buffers, so that most writes are short."""
    async for made in _wires(request.param, certificates, small=True):
        yield made


@pytest.fixture
def stream_wire() -> Callable[..., contextlib.AbstractAsyncContextManager[StreamWire]]:
    """``stream_wire(kind, client_context, server_context)``: connections over sockets, with the given contexts."""
    return _stream_wire


@pytest.fixture
async def rdma_server(recorder: Callable[[], Recorder]) -> AsyncIterator[RdmaServer]:
    """An RDMA listener and a connector to it; afterwards no verbs objects, threads or tasks are left."""
    threads = set(threading.enumerate())
    made = RdmaServer(recorder)
    yield made
    await made.shut()
    assert not any(made.fabric.live)
    assert set(threading.enumerate()) <= threads
    assert len(asyncio.all_tasks()) == 1


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A blocking listening socket on 127.0.0.1, from which only the test accepts."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def loop_errors() -> Callable[[], list[dict[str, object]]]:
    """Collect the contexts that the running loop's exception handler receives from now on."""

    def collect() -> list[dict[str, object]]:
        errors: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        return errors

    return collect


@pytest.fixture
def turns() -> Callable[[int], Awaitable[None]]:
    """Wait for that many iterations of the loop."""

    async def turn(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    return turn
