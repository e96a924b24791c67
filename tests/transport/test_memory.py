"""The memory transport beyond the contract: windows, a send buffer, refusals, and a reproducible order."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.transport.memory import MemoryNetwork


class Side:
    """A handler that records each callback, with its name, in a journal that both sides share."""

    def __init__(self, name, journal):
        self.name = name
        self.journal = journal
        self.transport = None

    def data_received(self, data):
        self.journal.append((self.name, bytes(data)))

    def write_completed(self, count):
        self.journal.append((self.name, "completed"))
        assert count > 0

    def connection_lost(self, exception):
        self.journal.append((self.name, exception and str(exception)))


async def connected(**options):
    journal = []
    server = Side("server", journal)
    client = Side("client", journal)
    network = MemoryNetwork(**options)

    def accept(transport):
        server.transport = transport
        return server

    network.listen("broker", 9092, accept)
    client.transport = await network.connect("broker", 9092, client, server_hostname="any")
    return client, server, journal


async def test_memory_changed_before_its_release_is_seen_by_the_peer(turns):
    client, _, journal = await connected()
    memory = bytearray(b"right")
    assert not client.transport.write([memory])
    memory[:] = b"wrong"
    await turns(1)
    assert journal == [("server", b"wrong"), ("client", "completed")]


async def test_a_window_splits_a_write_over_iterations(turns):
    client, server, journal = await connected()
    server.transport.receive_window = 3
    assert server.transport.receive_window == 3
    assert not client.transport.write([b"ab", b"cdef", b"g"])
    await turns(5)
    assert journal == [("server", b"abc"), ("server", b"def"), ("server", b"g"), ("client", "completed")]


async def test_a_closed_window_accepts_nothing_until_it_opens(turns):
    client, server, journal = await connected()
    server.transport.receive_window = 0
    assert not client.transport.write([b"abc"])
    await turns(10)
    assert journal == []
    server.transport.receive_window = None
    await turns(1)
    assert journal == [("server", b"abc"), ("client", "completed")]


async def test_a_send_buffer_accepts_data_up_to_its_size(turns):
    client, server, journal = await connected(send_buffer_bytes=4)
    server.transport.receive_window = 0
    memory = bytearray(b"abc")
    assert client.transport.write([memory])
    memory[:] = b"..."
    assert not client.transport.write([b"defg", b"hij"])
    server.transport.receive_window = 2
    await turns(10)
    assert b"".join(data for side, data in journal if side == "server") == b"abcdefghij"
    assert journal.index(("client", "completed")) < len(journal) - 1
    assert journal.count(("client", "completed")) == 1


async def test_large_writes_take_several_iterations(turns):
    client, _, journal = await connected()
    assert not client.transport.write([bytes(300_000)])
    await turns(5)
    assert [len(data) for side, data in journal if side == "server"] == [131072, 131072, 37856]


async def test_the_order_of_callbacks_is_the_same_every_time(turns):
    async def scene():
        client, server, journal = await connected(send_buffer_bytes=3)
        server.transport.receive_window = 5
        client.transport.write([b"from the client"])
        server.transport.write([b"from the server"])
        await turns(2)
        server.transport.close()
        client.transport.write([b"more"])
        await turns(20)
        return journal

    first = await scene()
    assert first[-2:] == [("client", None), ("server", None)]
    for _ in range(3):
        assert await scene() == first


async def test_abort_is_a_reset_to_the_other_side(turns):
    client, server, journal = await connected()
    assert server.transport.peer == "client:1"
    client.transport.write([b"dropped"])
    client.transport.abort()
    await turns(2)
    assert journal == [("client", None), ("server", "[Errno 104] client:1: Connection reset by peer")]


async def test_an_exception_of_the_accepting_side_is_a_reset_to_the_connecting(turns, loop_errors):
    errors = loop_errors()
    client, server, journal = await connected()

    def fail(data):
        raise ArithmeticError("x")

    server.data_received = fail
    client.transport.write([b"x"])
    await turns(5)
    assert [str(context["exception"]) for context in errors] == ["x"]
    assert sorted(journal, key=str) == [
        ("client", "[Errno 104] broker:9092: Connection reset by peer"),
        ("client", "completed"),
        ("server", "x"),
    ]


async def test_the_accepting_side_may_write_at_once(turns):
    network = MemoryNetwork()
    journal = []

    def accept(transport):
        assert not transport.write([b"welcome"])
        return Side("server", journal)

    network.listen("broker", 9092, accept)
    await network.connect("broker", 9092, Side("client", journal))
    await turns(1)
    assert journal == [("client", b"welcome"), ("server", "completed")]


async def test_an_address_cannot_be_used_twice():
    network = MemoryNetwork()
    first = network.listen("a", 0, lambda transport: Side("", []))
    second = network.listen("a", 0, lambda transport: Side("", []))
    assert (first.port, second.port) == (49152, 49153)
    with pytest.raises(OSError, match="something listens at a:49152 already"):
        network.listen("a", 49152, lambda transport: Side("", []))
    first.close()
    again = network.listen("a", 49152, lambda transport: Side("", []))
    first.close()
    await network.connect("a", 49152, Side("", []))
    again.close()
    with pytest.raises(ConnectionRefusedError, match="cannot connect to a:49152: nothing listens there"):
        await network.connect("a", 49152, Side("", []))


async def test_connect_raises_an_exception_of_accept():
    network = MemoryNetwork()

    def accept(transport):
        raise LookupError("no such broker")

    network.listen("a", 1, accept)
    with pytest.raises(LookupError, match="no such broker"):
        await network.connect("a", 1, Side("", []))


async def test_connect_takes_an_iteration_and_can_be_cancelled_in_it(turns):
    network = MemoryNetwork()
    accepted = []
    network.listen("a", 1, lambda transport: accepted.append(transport) or Side("", []))
    task = asyncio.ensure_future(network.connect("a", 1, Side("", [])))
    await turns(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert accepted == []
