"""Registration of the callers' memory, beside new connections, and its cancellation."""

from __future__ import annotations

import asyncio
import mmap
import threading

import pytest

from aioproducer.transport.rdma import connecting

MIB = 1024 * 1024


@pytest.fixture
def memory():
    """Memory of 64 parts: four jobs of the thread."""
    return mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@pytest.fixture
def verbs_called(rdma_server):
    """The names of the blocking verbs that were called, in order."""
    called = []
    rdma_server.fabric.before = called.append
    return called


async def test_a_connection_waits_only_for_some_parts(rdma_server, memory, verbs_called, monkeypatch):
    monkeypatch.setattr(connecting, "_WAIT_FOR_MEMORY", 0)
    await rdma_server.listen()
    rdma_server.connector.register(memory)
    client, _ = await rdma_server.connect()
    shared = _shared(rdma_server)
    await shared.until_registered(60)
    # The server's and the client's, which registers its two rings before it has a queue pair.
    assert verbs_called.count("create_queue_pair") == 2
    assert verbs_called.count("register") == 64 + 4
    last = len(verbs_called) - 1 - verbs_called[::-1].index("register")
    assert verbs_called.index("connect") < last
    assert id(memory) in shared.memories
    await _close(client)


async def test_a_connection_waits_a_while_so_that_its_first_records_are_not_copied(rdma_server, memory):
    await rdma_server.listen()
    rdma_server.connector.register(memory)
    client, server = await rdma_server.connect()
    assert id(memory) in _shared(rdma_server).memories
    assert not client.write_lent([memoryview(memory)[:5000]], [])
    await server.until_received(5000)
    await client.until_completed()
    assert rdma_server.connector.counters.bytes_copied == 0
    await _close(client)


@pytest.mark.parametrize("how", ["unregistered", "closed"])
async def test_a_cancelled_registration_is_undone(rdma_server, memory, how):
    await rdma_server.listen()
    client, _ = await rdma_server.connect()
    gate = await _half_way(rdma_server, memory)
    if how == "unregistered":
        rdma_server.connector.unregister(memory)
        shared = _shared(rdma_server)
        gate.open.set()
        await shared.until_registered(60)
        await shared.run(lambda: None)
        assert rdma_server.fabric.live.memory_regions == 4
        assert not shared.memories
        await _close(client)
    else:
        client.abort()
        gate.open.set()
        await client.until_lost()
    await rdma_server.shut()
    assert not any(rdma_server.fabric.live)
    memory.close()


async def test_memory_may_be_registered_again_after_a_cancellation(rdma_server, memory):
    await rdma_server.listen()
    client, server = await rdma_server.connect()
    gate = await _half_way(rdma_server, memory)
    rdma_server.connector.unregister(memory)
    rdma_server.connector.register(memory)
    gate.open.set()
    await asyncio.sleep(0)
    shared = _shared(rdma_server)
    await shared.until_registered(60)
    await shared.run(lambda: None)
    assert id(memory) in shared.memories
    assert rdma_server.fabric.live.memory_regions == 4 + 64
    assert not client.write_lent([memoryview(memory)[MIB - 100 : MIB + 5000]], [])
    await server.until_received(5100)
    await client.until_completed()
    assert rdma_server.connector.counters.bytes_copied == 0
    await _close(client)


class _Gate:
    """Lets the verbs thread wait before it registers the part with a given number, until it is opened."""

    def __init__(self, number):
        self.reached = asyncio.Event()
        self.open = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._left = number

    def __call__(self, verb):
        if verb == "register":
            self._left -= 1
            if self._left == 0:
                self._loop.call_soon_threadsafe(self.reached.set)
                assert self.open.wait(60)


async def _half_way(rdma_server, memory):
    """Start a registration, and return the gate at which the verbs thread waits in the middle of it."""
    gate = _Gate(20)
    rdma_server.fabric.before = gate
    rdma_server.connector.register(memory)
    async with asyncio.timeout(60):
        await gate.reached.wait()
    return gate


def _shared(rdma_server):
    (shared,) = rdma_server.connector._endpoint.devices._shared.values()
    return shared


async def _close(client):
    client.abort()
    await client.until_lost()
