"""Over every transport the same requests and the same responses arrive, with faults and without."""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.rdma import RdmaConnector, RdmaListener
from aioproducer.transport.stream import StreamConnector
from tests.transport.numbered import numbered

SIZE = struct.Struct(">I")
ARENA_BYTES = 200_000


class Frames:
    """A handler that splits received data into frames."""

    def __init__(self):
        self.transport = None
        self.unwritten = 0
        self.lost = 0
        self._data = bytearray()

    def data_received(self, data):
        self._data += data
        while len(self._data) >= SIZE.size:
            (size,) = SIZE.unpack_from(self._data)
            if len(self._data) < SIZE.size + size:
                return
            frame = bytes(self._data[SIZE.size : SIZE.size + size])
            del self._data[: SIZE.size + size]
            self.frame_received(frame)

    def write(self, *pieces):
        self.unwritten += not self.transport.write(pieces)

    def write_completed(self, count):
        assert 1 <= count <= self.unwritten
        self.unwritten -= count

    def connection_lost(self, exception):
        self.lost += 1
        assert self.lost == 1
        assert exception is None or isinstance(exception, OSError)


class Server(Frames):
    """Answers each frame with its bytes reversed; breaks the connection at given points."""

    def __init__(self, run, transport):
        super().__init__()
        self.run = run
        self.transport = transport

    def frame_received(self, frame):
        if self.lost or self.run.broken:
            return
        self.run.seen.append(frame)
        fault = self.run.faults.pop(len(self.run.seen), None)
        if fault == "close before the answer":
            self.transport.close()
        elif fault == "reset before the answer":
            self.transport.abort()
        else:
            self.write(SIZE.pack(len(frame)), frame[::-1])
            if fault == "close":
                self.transport.close()
            elif fault == "reset":
                self.transport.abort()
            elif fault == "pause":
                self.transport.pause_reading()
                asyncio.get_running_loop().call_soon(self.transport.resume_reading)


class Client(Frames):
    """Sends requests from inside or outside the arena, and matches the answers in order."""

    def __init__(self, run):
        super().__init__()
        self.run = run
        self.unanswered = deque()

    def frame_received(self, frame):
        self.unanswered.popleft()
        self.run.answers.append(frame)
        self.send()
        self.run.changed.set()

    def write_completed(self, count):
        super().write_completed(count)
        self.send()

    def send(self):
        run = self.run
        while not self.unwritten and len(self.unanswered) < 5:
            number = len(run.answers) + len(self.unanswered)
            if number == len(run.requests):
                return
            start, size, lies_in_arena = run.requests[number]
            body = memoryview(run.arena)[start : start + size]
            self.unanswered.append(number)
            # The head changes with each attempt and lies outside the arena, as a batch's does.
            self.write(SIZE.pack(size), body if lies_in_arena else bytes(body))

    def connection_lost(self, exception):
        super().connection_lost(exception)
        self.run.changed.set()


class Run:
    """Send ``requests`` until all are answered, over as many connections as the faults make necessary."""

    def __init__(self, arena, requests, faults):
        self.arena = arena
        self.requests = requests
        self.faults = dict(faults)
        self.seen = []
        self.answers = []
        self.broken = False
        self.changed = asyncio.Event()
        self.servers = []

    def accept(self, transport):
        server = Server(self, transport)
        self.servers.append(server)
        return server

    async def complete(self, connector, listener):
        listening = await listener.listen("127.0.0.1", 0, self.accept)
        async with asyncio.timeout(20):
            while len(self.answers) < len(self.requests):
                client = Client(self)
                client.transport = await connector.connect("127.0.0.1", listening.port, client)
                client.send()
                await self.until(lambda: client.lost or len(self.answers) == len(self.requests))  # noqa: B023
                client.transport.close()
                await self.until(lambda: client.lost)  # noqa: B023 - it is awaited in this round of the loop
            while not all(server.lost for server in self.servers):
                for server in self.servers:
                    server.transport.abort()
                await asyncio.sleep(0)
        listening.close()
        await listening.wait_closed()

    async def until(self, condition):
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class LateDelivery:
    """Carries out one write in each iteration of the loop, so that memory is read later than it is posted."""

    def __init__(self, fabric):
        fabric.hold()
        self.fabric = fabric
        self.loop = asyncio.get_running_loop()
        self.step()

    def step(self):
        self.fabric.step()
        self.handle = self.loop.call_soon(self.step)

    def stop(self):
        self.handle.cancel()


@pytest.fixture(
    params=["memory", "tcp", "tls", "rdma", "rdma that copies", "rdma with small rings", "rdma that delivers later"]
)
def ends(request, certificates):
    """``ends(arena)``: a connector and a listener of one kind, and a check for the end."""

    def make(arena):
        if request.param == "memory":
            network = MemoryNetwork()
            return network, network, lambda: None
        if request.param == "tcp":
            return StreamConnector(), StreamListener(), lambda: None
        if request.param == "tls":
            connector = StreamConnector(certificates.client_context())
            return connector, StreamListener(certificates.server_context()), lambda: None
        fabric = SimulatedFabric()
        options = {"zero_copy": False} if "copies" in request.param else {}
        if "small" in request.param:
            options = {"ring_bytes": 1024, "slots": 3}
        delivery = LateDelivery(fabric) if "later" in request.param else None
        connector = RdmaConnector(fabric, **options)
        connector.register(arena)

        def check():
            if delivery is not None:
                delivery.stop()
            assert fabric.receiver_not_ready == 0
            assert not any(fabric.live)

        return connector, RdmaListener(fabric, **options), check

    return make


requests = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 3000) | st.sampled_from([0, 1, 20_000, 150_000]), st.booleans()),
    max_size=12,
)
faults = st.dictionaries(
    st.integers(1, 20),
    st.sampled_from(["close", "reset", "close before the answer", "reset before the answer", "pause"]),
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=requests, faults=faults)
async def test_the_same_requests_and_responses_arrive(ends, requests, faults):
    arena = mmap.mmap(-1, ARENA_BYTES)
    arena[:] = numbered(ARENA_BYTES)
    connector, listener, check = ends(arena)
    run = Run(arena, requests, faults)
    await run.complete(connector, listener)
    sent = [arena[start : start + size] for start, size, _ in requests]
    assert run.answers == [frame[::-1] for frame in sent]
    # The server has received all of them in order; after a fault again from the first unanswered one.
    expected = 0
    for frame in run.seen:
        index = next(index for index in range(expected, -1, -1) if index < len(sent) and sent[index] == frame)
        expected = index + 1
    assert expected == len(sent) or not sent
    check()
