"""Faults of the simulated network, as both sides of a connection see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from aioproducer.testing.simulation.disk import CachedFile, SimulatedDisk
from aioproducer.testing.simulation.loop import VirtualLoop
from aioproducer.testing.simulation.network import SimulatedNetwork
from aioproducer.testing.simulation.trace import Trace
from aioproducer.transport.base import Buffer, Transport, TransportHandler


class Side:
    """One side of a connection: what it received, and how it ended."""

    def __init__(self) -> None:
        self.received = b""
        self.lost: list[Exception | None] = []

    def data_received(self, data: Buffer) -> None:
        self.received += bytes(data)

    def write_completed(self, count: int) -> None:
        """No test waits for it."""

    def connection_lost(self, exception: Exception | None) -> None:
        self.lost.append(exception)


class Wire:
    """A client's connection to a node."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.client, self.server = Side(), Side()
        self.transport: Transport

    async def connect(self) -> None:
        def accept(transport: Transport) -> TransportHandler:
            return self.server

        self.network.endpoint("node1").listen("broker", 9092, accept)
        self.transport = await self.network.endpoint("client").connect("broker", 9092, self.client)


def _run(scenario: Callable[[Wire], Awaitable[None]]) -> None:
    loop = VirtualLoop(Random(1))
    try:
        loop.run_until_complete(scenario(Wire(SimulatedNetwork(loop, Trace()))))
    finally:
        loop.close()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_cut_delivers_exactly_the_bytes_before_it(size: int) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        (link,) = wire.network.links()
        link.bytes_until_cut = size
        wire.transport.write([b"abcde"])
        await asyncio.sleep(1)
        assert wire.server.received == b"abcde"[:size]
        assert [type(each) for each in (*wire.client.lost, *wire.server.lost)] == [ConnectionResetError] * 2
        assert wire.network.links() == []

    _run(scenario)


def test_the_client_of_a_half_open_connection_notices_nothing() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        (link,) = wire.network.links()
        link.abandon()
        wire.transport.write([b"abc"])
        await asyncio.sleep(60)
        assert (wire.client.lost, len(wire.server.lost), wire.server.received) == ([], 1, b"")
        wire.network.heal()
        await asyncio.sleep(1)
        assert len(wire.client.lost) == 1

    _run(scenario)


def test_a_stopped_node_receives_after_it_is_resumed() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        wire.network.stop("node1")
        wire.transport.write([b"abc"])
        another = asyncio.ensure_future(wire.network.endpoint("client").connect("broker", 9092, Side()))
        await asyncio.sleep(60)
        assert (wire.server.received, another.done()) == (b"", False)
        wire.network.resume("node1")
        await another
        await asyncio.sleep(1)
        assert wire.server.received == b"abc"

    _run(scenario)


def test_a_slow_node_receives_later() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        wire.network.slow["node1"] = 0.5
        wire.transport.write([b"abc"])
        await asyncio.sleep(0.4)
        assert wire.server.received == b""
        await asyncio.sleep(0.2)
        assert wire.server.received == b"abc"
        wire.network.heal()
        await asyncio.sleep(0.6)
        wire.transport.write([b"de"])
        await asyncio.sleep(0.1)
        assert wire.server.received == b"abcde"

    _run(scenario)


def test_nothing_of_a_killed_endpoint_reaches_the_network() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        wire.network.kill("client")
        await asyncio.sleep(1)
        assert (len(wire.client.lost), len(wire.server.lost)) == (1, 1)
        with pytest.raises(OSError, match="the process client was killed"):
            await wire.network.endpoint("client").connect("broker", 9092, Side())

    _run(scenario)


def test_a_full_disk_refuses_writes_until_it_has_space() -> None:
    disk = SimulatedDisk()
    file = disk.sub("node1").sub("log").open("segment")
    file.append([b"before"])
    disk.sub("node1").set_full(True)
    with pytest.raises(OSError, match="No space left"):
        file.append([b"lost"])
    with pytest.raises(OSError, match="No space left"):
        disk.sub("node1").replace("checkpoint", b"lost")
    with pytest.raises(OSError, match="No space left"):
        disk.sub("node1").patch("index", 0, b"lost")
    disk.sub("node2").open("segment").append([b"another disk"])
    disk.sub("node1").set_full(False)
    file.append([b" and after"])
    assert bytes(file.peek(0, file.size)) == b"before and after"


def test_a_power_loss_takes_unsynced_bytes_only() -> None:
    random = Random(1)
    sizes = set()
    for _ in range(50):
        disk = SimulatedDisk()
        file = disk.sub("node").open("log")
        assert isinstance(file, CachedFile)
        file.append([b"synced"])
        file.sync()
        file.append([b"cached"])
        disk.lose_power(random)
        assert bytes(file.peek(0, file.size)) == b"syncedcached"[: file.size]
        sizes.add(file.size)
    assert sizes == set(range(6, 13))
