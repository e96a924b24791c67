"""A server and raw clients of it, over each transport."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

from aioproducer.broker.server.server import Reply, Server, ServerConnection
from aioproducer.transport.base import Buffer, Connector, Listener, Transport

TIMEOUT = 10.0


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def echo(connection: ServerConnection, frame: memoryview) -> Reply:
    return Reply([struct.pack(">i", len(frame)), frame])


class Client:
    """A client that sends given bytes and keeps the received ones."""

    transport: Transport

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False
        self.error: Exception | None = None
        self.completed = True
        self._changed = asyncio.Event()

    def data_received(self, data: Buffer) -> None:
        self.received += data
        self._changed.set()

    def write_completed(self, count: int) -> None:
        self.completed = True
        self._changed.set()

    def connection_lost(self, exception: Exception | None) -> None:
        self.is_lost = True
        self.error = exception
        self._changed.set()

    def send(self, data: bytes) -> None:
        self.completed = self.transport.write([data])

    def ask(self, *payloads: bytes) -> None:
        self.send(b"".join(framed(payload) for payload in payloads))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def answer(self) -> bytes:
        """Return the next response."""
        await self.until(lambda: self.is_lost or len(self.received) >= 4)
        if len(self.received) < 4:
            raise EOFError
        (size,) = struct.unpack_from(">i", self.received)
        await self.until(lambda: self.is_lost or len(self.received) >= 4 + size)
        frame = bytes(self.received[4 : 4 + size])
        assert len(frame) == size
        del self.received[: 4 + size]
        return frame

    async def lost(self) -> Exception | None:
        await self.until(lambda: self.is_lost)
        return self.error


class ServerNetwork:
    """The network of a server, and how clients connect to it."""

    def __init__(self, kind: str, listener: Listener, connector: Connector) -> None:
        self.kind = kind
        self.servers: list[Server] = []
        self.clients: list[Client] = []
        self._listener = listener
        self.connector = connector

    async def server(
        self,
        answer: Callable[[ServerConnection, memoryview], Awaitable[Reply]] = echo,
        *,
        serve: bool = True,
        **options: int,
    ) -> Server:
        server = Server(answer, **options)
        await server.start(self._listener, "127.0.0.1", 0, serve=serve)
        self.servers.append(server)
        return server

    async def client(self, server: Server) -> Client:
        client = Client()
        async with asyncio.timeout(TIMEOUT):
            client.transport = await self.connector.connect("127.0.0.1", server.port, client)
        self.clients.append(client)
        return client

    async def shut(self) -> None:
        for client in self.clients:
            client.transport.abort()
        async with asyncio.timeout(TIMEOUT):
            for server in self.servers:
                await server.stop(graceful=False)
                assert not server.connections
                assert server.memory.used == 0
                assert server.memory.waiting == 0
        for client in self.clients:
            await client.lost()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def loop_passes(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
