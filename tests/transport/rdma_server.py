"""An RDMA listener over a simulated fabric, its connector, and foreign clients."""

from __future__ import annotations

import asyncio

from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.rdma import RdmaConnector, RdmaListener
from aioproducer.transport.rdma.handshake import Facts, HandshakeReader, Kind, RingFacts
from aioproducer.transport.rdma.verbs import QueuePairFacts

RING = RingFacts(address=0x1000, key=1, size=4096, slots=4, controls=4)
QUEUE_PAIR = QueuePairFacts(number=999, gid=b"\1" * 16, packet_number=99, mtu=1024)
HELLO = Facts(Kind.HELLO, b"t" * 16, bytes(16), QUEUE_PAIR, RING)


class RdmaServer:
    """A listener over a separate fabric; the handlers of its connections are recorders."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.fabric = SimulatedFabric()
        self.connector = RdmaConnector(self.fabric)
        self.accepted = []
        self.servers = asyncio.Queue()
        self.listening = None

    async def listen(self, **options):
        self.listening = await RdmaListener(self.fabric, **options).listen("127.0.0.1", 0, self._accept)
        return self.listening

    def _accept(self, transport):
        server = self.recorder()
        server.transport = transport
        self.accepted.append(server)
        self.servers.put_nowait(server)
        return server

    async def connect(self):
        client = self.recorder()
        async with asyncio.timeout(20):
            client.transport = await self.connector.connect("127.0.0.1", self.listening.port, client)
            server = await self.servers.get()
        return client, server

    async def still_serves(self):
        """Check that a well-behaved client is served."""
        client, server = await self.connect()
        client.write(b"here I am")
        assert await server.until_received(9) == b"here I am"
        client.close()
        await client.until_lost()
        await server.until_lost()

    async def stranger(self):
        return await asyncio.open_connection("127.0.0.1", self.listening.port)

    async def shut(self):
        for server in self.accepted:
            server.abort()
            await server.until_lost()
        if self.listening is not None:
            self.listening.close()
            async with asyncio.timeout(20):
                await self.listening.wait_closed()


async def read_messages(reader, peer="peer"):
    """Return the messages that the listener sent until it ended the connection."""
    return HandshakeReader(peer, accepting=False).feed(await reader.read(-1))
