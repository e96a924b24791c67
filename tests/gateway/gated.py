"""A gateway in front of a simulated broker whose listener requires SASL."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from aioproducer import Producer
from aioproducer.config import ProducerConfig
from aioproducer.core.requests.authenticator import Login
from aioproducer.gateway import AddressMap, Gateway, GatewaySettings
from aioproducer.protocol import encode_request
from aioproducer.protocol.messages import MetadataRequest
from aioproducer.security.login import login_from
from aioproducer.transport.base import Connector, Transport
from aioproducer.transport.memory import MemoryNetwork
from tests.gateway.conftest import Peer
from tests.simulation import World
from tests.simulation.broker import BrokerConnection
from tests.simulation.sasl import secure

BROKER = ("broker1", 9092)
GATEWAY = ("gateway", 9192)
PASSES = 70
"""More passes of the loop than a login takes."""


def login_of(**keys: Any) -> Callable[[], Login]:
    """Make the login that the command line makes of the keys."""
    config = ProducerConfig.from_kwargs(bootstrap_servers="broker1:9092", **keys)
    log = logging.getLogger("aioproducer.gateway")
    return lambda: login_from(config, asyncio.get_running_loop(), Random(1), log)


class SecureBroker:
    """A simulated broker that requires SASL, on the test's own loop, over memory or TCP."""

    def __init__(self) -> None:
        self.world = World(asyncio.get_running_loop(), Random(1), nodes=1)
        self.rules = secure(self.world.cluster)

    def accept(self, transport: Transport) -> BrokerConnection:
        return BrokerConnection(self.world, self.world.cluster.nodes[1], transport)


class Gated:
    """The gateway of broker 1 and the network of its clients."""

    def __init__(
        self, world: World, make_login: Callable[[], Login] | None, connector: Connector | None, **settings: Any
    ) -> None:
        self.network = MemoryNetwork()
        self.world = world
        self.gateway = Gateway(
            self.network,
            connector or world,
            BROKER,
            AddressMap({BROKER: GATEWAY}),
            GatewaySettings(**settings),
            make_login=make_login,
            random=Random(1),
        )

    def producer(self, **config: Any) -> Producer:
        return Producer(bootstrap_servers="{}:{}".format(*GATEWAY), transport=self.network, **config)

    async def client(self) -> Peer:
        peer = Peer()
        peer.transport = await self.network.connect(*GATEWAY, peer)
        return peer

    def metric(self, name: str) -> int:
        return self.gateway.metrics()[name]


@asynccontextmanager
async def gated(
    world: World,
    make_login: Callable[[], Login] | None = None,
    connector: Connector | None = None,
    **settings: Any,
) -> AsyncIterator[Gated]:
    scene = Gated(world, make_login, connector, **settings)
    async with scene.gateway:
        await scene.gateway.start(*GATEWAY)
        yield scene


def without_threads(world: World) -> None:
    """Finish work in threads in the next pass of the loop, so that a login takes few passes."""

    def run_in_executor(executor: object, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = world.loop.create_future()
        world.loop.call_soon(lambda: None if future.done() else future.set_result(function(*args)))
        return future

    world.loop.run_in_executor = run_in_executor  # type: ignore[assignment,method-assign]  # this loop only


def metadata_request(number: int) -> bytes:
    return b"".join(encode_request(MetadataRequest(), 12, number, "client"))


def correlation_ids(data: bytes | bytearray, *, whole: bool = True) -> list[int]:
    """Return the correlation ids of the responses in ``data``; ``whole``: the last one must be complete."""
    found = []
    position = 0
    while position + 8 <= len(data):
        size, correlation_id = struct.unpack_from(">ii", data, position)
        found.append(correlation_id)
        position += 4 + size
    assert position == len(data) or not whole
    return found
