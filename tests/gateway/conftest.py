"""A gateway between a client and a broker that the test controls, in memory or over sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aioproducer.gateway import AddressMap, Gateway, GatewaySettings
from aioproducer.transport.base import Buffer, Connector, Listener, Listening, Transport
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.stream import StreamConnector
from tests.waiting import until

TIMEOUT = 10.0


class Peer:
    """One end of a connection; keeps received bytes, unless reading is paused."""

    def __init__(self) -> None:
        self.transport: Transport
        self.received = bytearray()
        self.pending = False
        """Whether written bytes are still waiting."""
        self.lost: list[Exception | None] = []

    def data_received(self, data: Buffer) -> None:
        self.received += data

    def write_completed(self, count: int) -> None:
        self.pending = False

    def connection_lost(self, exception: Exception | None) -> None:
        self.lost.append(exception)

    def send(self, data: bytes) -> None:
        self.pending = not self.transport.write([data])

    async def receive(self, data: bytes) -> None:
        """Wait for exactly these bytes, and remove them."""
        await until(lambda: len(self.received) >= len(data) or self.lost)
        assert bytes(self.received) == data
        del self.received[:]

    async def end(self) -> Exception | None:
        """Wait until the connection has ended, and return the reason."""
        await until(lambda: self.lost)
        (exception,) = self.lost
        return exception


class Scene:
    """Makes gateways with their clients and broker; ends all of them with the test."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        network = MemoryNetwork()
        # Small buffers of the system, so that little data fills them.
        sizes = {"send_buffer_bytes": 65_536, "receive_buffer_bytes": 65_536, "linger_timeout": 0.1}
        self.connector: Connector = network if kind == "memory" else StreamConnector(**sizes)
        self.listener: Listener = network if kind == "memory" else StreamListener(**sizes)
        self.gateway_listener = self.listener
        self.client_connector = self.connector
        """The network between clients and gateways; it may be another transport than the broker's."""
        self.host = "127.0.0.1"
        self.brokers: list[Peer] = []
        """The broker's side of each accepted connection."""
        self.clients: list[Peer] = []
        self.broker_reads = True
        self.gateways: list[Gateway] = []
        self.upstream: Listening | None = None

    async def gateway(
        self,
        *,
        upstream: tuple[str, int] | None = None,
        connector: Connector | None = None,
        address_map: AddressMap | None = None,
        **settings: float,
    ) -> Gateway:
        """Start a gateway in front of a broker that accepts connections."""
        if upstream is None:
            if self.upstream is None:
                self.upstream = await self.listener.listen(self.host, 0, self._accept)
            upstream = (self.host, self.upstream.port)
        gateway = Gateway(
            self.gateway_listener,
            connector or self.connector,
            upstream,
            address_map or AddressMap({}, port=1),
            GatewaySettings(**settings),  # type: ignore[arg-type]  # the names are the caller's
        )
        await gateway.start(self.host, 0)
        self.gateways.append(gateway)
        return gateway

    def _accept(self, transport: Transport) -> Peer:
        peer = Peer()
        peer.transport = transport
        if not self.broker_reads:
            transport.pause_reading()
        self.brokers.append(peer)
        return peer

    async def client(self, gateway: Gateway) -> Peer:
        """Connect a client to the gateway."""
        peer = Peer()
        peer.transport = await self.client_connector.connect(self.host, gateway.port, peer)
        self.clients.append(peer)
        return peer

    async def pair(self, gateway: Gateway) -> tuple[Peer, Peer]:
        """Connect a client; return it and the broker's side of its connection."""
        count = len(self.brokers)
        client = await self.client(gateway)
        await until(lambda: len(self.brokers) > count)
        return client, self.brokers[count]

    async def close(self) -> None:
        for gateway in self.gateways:
            await gateway.stop(0)
        if self.upstream is not None:
            self.upstream.close()
            await self.upstream.wait_closed()
        for peer in [*self.clients, *self.brokers]:
            peer.transport.abort()
        await until(lambda: all(peer.lost for peer in [*self.clients, *self.brokers]))


@pytest.fixture(params=["memory", "tcp"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    made = Scene(request.param)
    yield made
    await made.close()
