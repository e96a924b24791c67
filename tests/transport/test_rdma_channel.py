"""A connection over queue pairs: copied and gathered data, credits, its failures, and its end."""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
import threading

import pytest

from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.rdma import RdmaConnector, RdmaListener, answers
from aioproducer.transport.rdma.ring import MessageKind, RingError, encode_immediate
from aioproducer.transport.rdma.verbs import VerbsError
from tests.transport.numbered import numbered


class Pairs:
    """Connections between a connector and a listener over one fabric."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.fabric = SimulatedFabric()
        self.sides = []
        self.listening = None

    async def open(self, *, client=None, **options):
        """Return both sides of a connection: ``options`` are for both, those of ``client`` only for the connector."""
        self.connector = RdmaConnector(self.fabric, **{**options, **(client or {})})
        self.listener = RdmaListener(self.fabric, **options)
        self.servers = asyncio.Queue()
        self.listening = await self.listener.listen("127.0.0.1", 0, self._accept)
        return await self.connect()

    def _accept(self, transport):
        server = self.recorder()
        server.transport = transport
        self.servers.put_nowait(server)
        return server

    async def connect(self):
        client = self.recorder()
        async with asyncio.timeout(20):
            client.transport = await self.connector.connect("127.0.0.1", self.listening.port, client)
            server = await self.servers.get()
        self.sides += [client, server]
        return client, server

    async def shut(self):
        for side in self.sides:
            side.abort()
        for side in self.sides:
            await side.until_lost()
            assert side.breaches == []
            assert len(side.lost) == 1
        if self.listening is not None:
            self.listening.close()
            await self.listening.wait_closed()


@pytest.fixture
async def pairs(recorder):
    """Afterwards no verbs objects or threads are left, and every write has found a posted receive."""
    threads = set(threading.enumerate())
    made = Pairs(recorder)
    yield made
    await made.shut()
    assert not any(made.fabric.live)
    assert set(threading.enumerate()) <= threads
    assert made.fabric.receiver_not_ready == 0


@pytest.fixture
def arena():
    memory = mmap.mmap(-1, 256 * 1024, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = numbered(len(memory))
    return memory


class TestMethodOne:
    async def test_registered_memory_is_gathered_and_other_memory_is_copied(self, pairs, arena):
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        view = memoryview(arena)
        pieces = [b"header", view[10:5000], bytearray(b"and"), b" another", view[70_000:200_000], b"end"]
        expected = b"".join(pieces)
        assert not client.write_lent(pieces, [bytearray(1)])
        assert await server.until_received(len(expected)) == expected
        await client.until_completed()
        counters = pairs.connector.counters
        assert (counters.bytes_sent, counters.bytes_copied) == (len(expected), 20)
        assert counters.writes_posted == 1
        assert counters.signals == 1

    @pytest.mark.parametrize("end", [b"x", bytearray(b"x"), bytes(2000), bytes(100_000)])
    async def test_data_that_does_not_fit_at_once_is_sent_in_order(self, pairs, end):
        """Over a part's border, of another kind, or too much to copy: detected after some of it was copied."""
        memory = mmap.mmap(-1, 2 * 1024 * 1024, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = numbered(len(memory))
        client, server = await pairs.open()
        pairs.connector.register(memory)
        await until_registered(pairs.connector, memory)
        border = 1024 * 1024
        expected = b""
        for start in (5000, border - 600, border, border - 1000):
            pieces = [b"head", memoryview(memory)[start : start + 1000], numbered(300), end]
            expected += b"".join(pieces)
            client.write_lent(pieces, [bytearray(1)])
        assert await server.until_received(len(expected)) == expected
        # The 400 bytes after the border are not worth a separate piece.
        assert pairs.connector.counters.bytes_copied == len(expected) - 4 * 1000 + 400

    async def test_memory_of_several_parts_is_gathered_across_their_borders(self, pairs):
        memory = mmap.mmap(-1, 5 * 1024 * 1024, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = numbered(len(memory))
        client, server = await pairs.open()
        pairs.connector.register(memory)
        await until_registered(pairs.connector, memory)
        # Two rings on each side, and five parts.
        assert pairs.fabric.live.memory_regions == 4 + 5
        view = memoryview(memory)[1000:]
        assert not client.write_lent([view], [bytearray(1)])
        assert await server.until_received(len(view)) == memory[1000:]
        await client.until_completed()
        assert pairs.connector.counters.bytes_copied == 0
        pairs.connector.unregister(memory)
        await until_registered(pairs.connector, memory, refused=True)
        assert pairs.fabric.live.memory_regions == 4

    async def test_if_one_part_is_refused_none_is_registered(self, pairs, caplog):
        memory = mmap.mmap(-1, 5 * 1024 * 1024)
        client, server = await pairs.open()
        pairs.fabric.refuse_registrations(1, after=2)
        pairs.connector.register(memory)
        await until_registered(pairs.connector, memory, refused=True)
        assert "5242880 bytes of record memory are not registered" in caplog.text
        assert pairs.fabric.live.memory_regions == 4
        assert client.write_lent([memoryview(memory)[:100]], [])
        assert await server.until_received(100) == memory[:100]

    async def test_memory_is_read_only_until_write_completed(self, pairs, arena, turns):
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        pairs.fabric.hold()
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        await turns(5)
        assert client.completions == []
        # The card reads the memory when the write is delivered.
        arena[:4] = b"late"
        pairs.fabric.step()
        await client.until_completed()
        arena[:4] = b"next"
        pairs.fabric.release()
        assert (await server.until_received(1000))[:4] == b"late"

    async def test_a_write_is_complete_only_with_those_before_it(self, pairs, arena, turns):
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        pairs.fabric.hold()
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        assert not client.write(b"copied at once, but behind the other")
        await turns(5)
        assert client.completions == []
        pairs.fabric.release()
        await client.until_completed()
        assert client.completions == [2]
        assert client.write(b"and now alone")
        await server.until_received(1000 + 36 + 13)

    async def test_two_writes_in_transit_are_released_in_order(self, pairs, arena):
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        pairs.fabric.hold()
        for start in (0, 1000):
            assert not client.write_lent([memoryview(arena)[start : start + 1000]], [bytearray(1)])
            assert client.transport.is_writable
        assert pairs.fabric.step() == 1
        await client.until(lambda: client.completions == [1])
        # The memory of the second write must not change yet.
        assert len(client._lent) == 1
        arena[0:1000] = bytes(1000)
        arena[1000:1004] = b"late"
        pairs.fabric.step()
        await client.until_completed()
        assert client.completions == [1, 1]
        assert await server.until_received(2000) == numbered(1000) + b"late" + arena[1004:2000]
        pairs.fabric.release()

    async def test_memory_is_released_during_continuous_writes(self, pairs, arena):
        # Enough slots that no credits are sent.
        client, server = await pairs.open(slots=1000)
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        pairs.fabric.hold()
        view = memoryview(arena)[:1000]
        most = 0
        for number in range(50):
            client.write_lent([view], [bytearray(1)])
            client.write_lent([view], [bytearray(1)])
            most = max(most, len(client._lent))
            # One of them is always in transit.
            pairs.fabric.step(2 if number else 1)
            await client.until(lambda before=number: sum(client.completions) == 2 * before + 1)
            assert client._lent
        assert most <= 3
        pairs.fabric.release()
        await client.until_completed()
        assert sum(client.completions) == 100
        assert len(await server.until_received(100_000)) == 100_000

    async def test_a_few_bytes_are_copied_even_from_registered_memory(self, pairs, arena):
        """Lending them would cost a piece, a signal and a completion."""
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        view = memoryview(arena)
        assert client.write_lent([b"header", view[:511], b"and", view[1000:1100]], [])
        arena[:4] = b"late"
        expected = b"header" + numbered(511) + b"and" + arena[1000:1100]
        assert await server.until_received(len(expected)) == expected
        counters = pairs.connector.counters
        assert (counters.bytes_copied, counters.writes_posted, counters.signals) == (len(expected), 1, 0)
        assert not client.write_lent([view[:512]], [bytearray(1)])
        await client.until_completed()
        assert counters.bytes_copied == len(expected)

    async def test_more_pieces_than_a_work_request_accepts_are_sent(self, pairs, arena):
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        view = memoryview(arena)
        pieces = [piece for start in range(0, 100_000, 1000) for piece in (b"header", view[start : start + 600])]
        expected = b"".join(pieces)
        assert not client.write_lent(pieces, [bytearray(1)])
        assert await server.until_received(len(expected)) == expected
        await client.until_completed()
        assert pairs.connector.counters.bytes_copied == 600
        # Only the last of them had to wait.
        assert pairs.connector.counters.signals == 1

    async def test_frames_larger_than_the_rings_arrive(self, pairs, arena):
        client, server = await pairs.open(ring_bytes=4096, slots=3)
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        expected = b"x" * 10_000 + bytes(arena) + b"y" * 10_000
        assert not client.write_lent([b"x" * 10_000, memoryview(arena), b"y" * 10_000], [bytearray(1)])
        assert await server.until_received(len(expected)) == expected
        await client.until_completed()
        assert pairs.connector.counters.bytes_copied == 20_000

    async def test_a_view_that_may_not_be_written_is_copied(self, pairs, arena):
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        assert client.write_lent([memoryview(arena).toreadonly()[:100]], [])
        assert await server.until_received(100) == arena[:100]

    async def test_memory_may_be_registered_before_and_after_the_device_is_opened(self, pairs, arena):
        await pairs.open()
        pairs.connector.register(arena)
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        # Two rings each on both sides, and the arena once.
        assert pairs.fabric.live.memory_regions == 5
        await pairs.connect()
        assert pairs.fabric.live.memory_regions == 9
        for side in pairs.sides:
            side.abort()
            await side.until_lost()
        assert pairs.fabric.live.memory_regions == 0
        client, _ = await pairs.connect()
        assert not client.write_lent([memoryview(arena)], [bytearray(1)])
        await client.until_completed()
        assert pairs.connector.counters.bytes_copied == 0

    async def test_unregistered_memory_is_copied_from_then_on(self, pairs, arena):
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        pairs.connector.unregister(arena)
        await until_registered(pairs.connector, arena, refused=True)
        assert pairs.fabric.live.memory_regions == 4
        assert client.write_lent([memoryview(arena)[:100]], [])
        assert await server.until_received(100) == arena[:100]
        assert pairs.connector.counters.bytes_copied == 100

    async def test_a_connector_does_not_keep_memory_alive(self, pairs):
        await pairs.open()
        memory = mmap.mmap(-1, 4096)
        pairs.connector.register(memory)
        await until_registered(pairs.connector, memory)
        for side in pairs.sides:
            side.abort()
            await side.until_lost()
        # Raises BufferError if a view of it is left.
        memory.close()
        assert memory.closed

    async def test_after_any_error_of_registration_nothing_stays_registered(self, pairs, monkeypatch, caplog):
        """Only errors of verbs were handled once; after others, the remaining regions kept the device open."""
        memory = mmap.mmap(-1, 4 * 1024 * 1024)
        client, _ = await pairs.open()
        device = client.transport._shared.device
        register = device.register

        def fail_late(found, *, offset=0, **options):
            if found is memory and offset >= 2 * 1024 * 1024:
                raise MemoryError("no memory left")
            return register(found, offset=offset, **options)

        monkeypatch.setattr(device, "register", fail_late)
        pairs.connector.register(memory)
        await until_registered(pairs.connector, memory, refused=True)
        assert "records are copied once: MemoryError('no memory left')" in caplog.text
        assert pairs.fabric.live.memory_regions == 4

    async def test_if_registration_is_refused_records_are_copied_and_that_is_logged(self, pairs, arena, caplog):
        client, server = await pairs.open()
        pairs.fabric.refuse_registrations(1)
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena, refused=True)
        assert "records are copied once: " in caplog.text
        assert "ulimit -l" in caplog.text
        assert client.write_lent([memoryview(arena)[:100]], [])
        assert await server.until_received(100) == arena[:100]


def post_by_hand(transport, immediate, data):
    """Post a write without the transport's accounting."""
    unsent = transport._unsent
    unsent.add([data])
    unsent.gather(len(data), 2)
    write = transport._write
    write.work_request_id, write.remote_address, write.immediate = 5, transport._remote_address, immediate
    write.signaled = False
    transport._queue_pair.post_write(write)


async def until_registered(connector, memory, *, refused=False):
    (shared,) = connector._endpoint.devices._shared.values()
    # After the registration, which follows an iteration of the loop, and after any deregistration.
    await asyncio.sleep(0)
    await shared.until_registered(60)
    await shared.run(lambda: None)
    assert (id(memory) in shared.memories) is not refused


def stop_timers(monkeypatch):
    """Let no timer poll for memory that is lent from now on."""
    for name in ("_MEMORY_BACK", "_MEMORY_BACK_WITH_ANSWERS"):
        monkeypatch.setattr(answers, name, 3600)


class TestNotification:
    """Count wake-ups of the loop. The timer never expires here, so nothing may depend on it."""

    @pytest.fixture
    def no_timer(self, monkeypatch):
        stop_timers(monkeypatch)

    async def open(self, pairs, arena, **options):
        """A connection over which data has arrived, so that only further received data wakes the client."""
        client, server = await pairs.open(**options)
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        server.write(b"hello")
        await client.until_received(5)
        return client, server

    async def test_a_request_and_its_answer_wake_the_loop_once(self, pairs, arena, no_timer):
        client, server = await self.open(pairs, arena)
        server.on_data = lambda data: server.write(b"answer")
        polls = []
        queue_pair = client.transport._queue_pair
        poll = queue_pair.poll
        queue_pair.poll = lambda most: (polls.append(most), poll(most))[1]
        for number in range(50):
            assert not client.write_lent([b"head", memoryview(arena)[:1000]], [bytearray(1)])
            await client.until_received(5 + 6 * (number + 1))
            # Released with the answer, before it is delivered.
            assert client.completions == [1] * (number + 1)
        assert len(polls) == 50

    async def test_a_wake_up_is_one_call_of_verbs(self, pairs, arena, no_timer, monkeypatch):
        """Clearing events, requesting the next one and polling once took three calls, each of which costs."""
        client, server = await self.open(pairs, arena)
        server.on_data = lambda data: server.write(b"answer")
        calls = []
        queue_pair = client.transport._queue_pair
        take = queue_pair.next_completions

        def next_completions(most, solicited_only):
            before = len(calls)
            found = take(most, solicited_only)
            # The double's own calls inside it.
            del calls[before:]
            calls.append(solicited_only)
            return found

        for verb in ("clear_events", "request_notification", "poll"):
            called = getattr(queue_pair, verb)
            monkeypatch.setattr(queue_pair, verb, lambda *args, called=called: (calls.append(called), called(*args))[1])
        monkeypatch.setattr(queue_pair, "next_completions", next_completions)
        for number in range(5):
            client.write_lent([b"head", memoryview(arena)[:1000]], [bytearray(1)])
            await client.until_received(5 + 6 * (number + 1))
        assert calls == [True] * 5

    async def test_memory_is_released_before_the_answer_is_delivered(self, pairs, arena, no_timer):
        client, server = await self.open(pairs, arena)
        pairs.fabric.hold()
        seen = []
        client.on_data = lambda data: seen.append(list(client.completions))
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        server.write(b"answer")
        pairs.fabric.release()
        await client.until_received(11)
        assert seen == [[1]]

    async def test_memory_is_released_although_nothing_is_received(self, pairs, arena):
        client, _ = await self.open(pairs, arena)
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        await client.until_completed()

    async def test_one_way_traffic_waits_for_the_timer_twice(self, pairs, arena, monkeypatch, turns):
        client, server = await self.open(pairs, arena)
        for _ in range(2):
            assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
            await client.until_completed()
        stop_timers(monkeypatch)
        for _ in range(200):
            assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
            await client.until_completed()
        # Until answers arrive; the event had been requested before.
        server.write(b"answer")
        await client.until_received(11)
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        await client.until_completed()
        before = len(client.completions)
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        await turns(20)
        assert len(client.completions) == before
        server.write(b"answer")
        await client.until_completed()

    async def test_slow_answers_are_not_one_way_traffic(self, pairs, arena, monkeypatch, turns):
        client, server = await self.open(pairs, arena)
        for number in range(4):
            assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
            await client.until_completed()
            server.write(b"answer")
            await client.until_received(5 + 6 * (number + 1))
        stop_timers(monkeypatch)
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        await turns(20)
        assert len(client.completions) == 4
        server.write(b"answer")
        await client.until_completed()

    async def test_a_write_that_has_to_wait_needs_no_timer(self, pairs, arena, no_timer):
        client, server = await self.open(pairs, arena, ring_bytes=4096, slots=3)
        assert not client.write_lent([memoryview(arena)], [bytearray(1)])
        assert not client.transport.is_writable
        await client.until_completed()
        assert await server.until_received(len(arena)) == arena[:]

    async def test_a_full_send_queue_needs_no_timer(self, pairs, arena, no_timer):
        client, server = await self.open(pairs, arena, slots=8)
        pairs.fabric.hold()
        for _ in range(9):
            assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        assert not client.transport.is_writable
        pairs.fabric.release()
        await client.until_completed()
        assert len(await server.until_received(9000)) == 9000

    async def test_many_writes_with_lent_memory_need_no_timer(self, pairs, arena, no_timer, turns):
        """Otherwise slow answers would hold all of a producer's memory for a tenth of a second each time."""
        client, server = await self.open(pairs, arena)
        for _ in range(16):
            assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        await server.until_received(16_000)
        await turns(20)
        assert client.completions == []
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        await client.until_completed()
        assert sum(client.completions) == 17

    async def test_closing_needs_no_timer(self, pairs, arena, no_timer):
        client, server = await self.open(pairs, arena)
        pairs.fabric.hold()
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        client.close()
        pairs.fabric.release()
        assert await server.until_lost() is None
        assert await client.until_lost() is None
        assert server.received == arena[:1000]
        assert client.completions == [1]

    @pytest.mark.parametrize("lent", [True, False])
    @pytest.mark.parametrize("how", ["in error", "silent", "closed to it"])
    async def test_a_failure_needs_no_timer(self, pairs, arena, no_timer, how, lent):
        client, server = await self.open(pairs, arena)
        if how == "in error":
            client.transport._queue_pair.to_error()
        elif how == "silent":
            pairs.fabric.cut(server.transport._queue_pair)
        else:
            server.transport._link.receive_region.close()
        data = memoryview(arena)[:1000] if lent else b"copied"
        assert client.write_lent([data], [bytearray(1)]) is not lent
        assert isinstance(await client.until_lost(), ConnectionError)
        assert client.completions == []

    async def test_after_the_peers_goodbye_every_completion_wakes_the_loop(self, pairs, arena, no_timer, turns):
        """A failure may then have no posted receive left to flush."""
        client, server = await self.open(pairs, arena, slots=4)
        client.transport.pause_reading()
        server.close()
        await turns(10)
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        await client.until_completed()


class TestMethodTwo:
    async def test_without_zero_copy_everything_is_copied(self, pairs, arena):
        client, server = await pairs.open(zero_copy=False)
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        assert client.write_lent([b"header", memoryview(arena)], [])
        assert await server.until_received(len(arena) + 6) == b"header" + arena[:]
        counters = pairs.connector.counters
        assert counters.bytes_copied == counters.bytes_sent == len(arena) + 6

    async def test_small_writes_request_few_completions(self, pairs):
        client, server = await pairs.open()
        for number in range(256):
            assert client.write(b"%03d" % number)
            await server.until_received(3 * number + 3)
        counters = pairs.connector.counters
        assert counters.writes_posted == 256
        assert counters.signals <= 256 // 32


class TestCredits:
    async def test_a_slow_reader_delays_only_its_writer(self, pairs, turns):
        client, server = await pairs.open(ring_bytes=4096, slots=4)
        other, other_server = await pairs.connect()
        server.transport.pause_reading()
        data = numbered(100_000)
        assert not client.write(data)
        await turns(50)
        assert server.received == b""
        assert client.completions == []
        other.write(data)
        assert await other_server.until_received(len(data)) == data
        server.transport.resume_reading()
        assert await server.until_received(len(data)) == data
        await client.until_completed()

    async def test_both_sides_may_be_full_at_once(self, pairs, turns):
        client, server = await pairs.open(ring_bytes=2048, slots=2)
        client.transport.pause_reading()
        server.transport.pause_reading()
        data = numbered(60_000)
        assert not client.write(data)
        assert not server.write(data[::-1])
        await turns(50)
        client.transport.resume_reading()
        assert await client.until_received(len(data)) == data[::-1]
        server.transport.resume_reading()
        assert await server.until_received(len(data)) == data

    async def test_one_way_traffic_receives_credits(self, pairs):
        client, server = await pairs.open(ring_bytes=2048, slots=8)
        for start in range(0, 200_000, 500):
            if not client.write(numbered(500, start)):
                await client.until_completed()
        await server.until_received(200_000)
        # The server has sent them in messages without data, but not for each message.
        credits = pairs.listener.counters.writes_posted
        assert 0 < credits < 400
        assert pairs.listener.counters.bytes_sent == 0

    async def test_sides_may_have_rings_of_different_sizes(self, pairs):
        client, server = await pairs.open(client={"ring_bytes": 1024, "slots": 1}, ring_bytes=65536)
        data = numbered(300_000)
        client.write(data)
        server.write(data)
        assert await server.until_received(len(data)) == data
        assert await client.until_received(len(data)) == data


class TestFailures:
    async def test_a_queue_pair_in_error_ends_both_sides_once(self, pairs):
        client, server = await pairs.open()
        pairs.fabric.queue_pairs[1].to_error()
        error = await server.until_lost()
        other = await client.until_lost()
        for lost in (error, other):
            assert isinstance(lost, ConnectionError)
        texts = f"{error} {other}"
        assert "WORK_REQUEST_FLUSHED: the queue pair went into error" in texts
        assert f"127.0.0.1:{pairs.listening.port}" in str(other)

    async def test_a_silent_card_of_the_peer_ends_the_connection(self, pairs):
        client, server = await pairs.open()
        destroy_queue_pair(server)
        client.write(bytes(100_000))
        error = await client.until_lost()
        assert isinstance(error, ConnectionResetError)
        await server.until_lost()

    async def test_the_status_of_the_write_shows_a_dead_peer(self, pairs, arena):
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        destroy_queue_pair(server)
        assert not client.write_lent([memoryview(arena)[:1000]], [bytearray(1)])
        error = await client.until_lost()
        assert "TRANSPORT_RETRY_EXCEEDED: the peer's card does not answer" in str(error)
        await server.until_lost()

    async def test_a_wrong_key_ends_the_connection(self, pairs):
        client, server = await pairs.open()
        client.transport._write.remote_key += 100
        client.write(b"x")
        error = await client.until_lost()
        assert "REMOTE_ACCESS_ERROR: the peer's memory was not open to this write" in str(error)
        assert isinstance(await server.until_lost(), ConnectionError)
        assert server.received == b""

    async def test_a_peer_that_goes_without_a_goodbye_is_an_error(self, pairs):
        client, server = await pairs.open()
        client.write(b"last words")
        await server.until_received(10)
        client.transport._control.close()
        assert "the peer has gone without a goodbye" in str(await server.until_lost())
        assert isinstance(await client.until_lost(), ConnectionError)

    async def test_data_received_before_a_reset_is_delivered(self, pairs, turns):
        client, server = await pairs.open()
        server.transport.pause_reading()
        data = numbered(300_000)
        client.write(data)
        client.abort()
        await client.until_lost()
        await turns(20)
        assert server.lost == []
        server.transport.resume_reading()
        assert isinstance(await server.until_lost(), ConnectionResetError)
        assert server.received == data

    async def test_memory_is_free_after_a_write_that_failed_during_a_pause(self, pairs, arena, turns):
        client, server = await pairs.open(ring_bytes=8192)
        server.write(b"came before the reset")
        client.transport.pause_reading()
        server.transport.pause_reading()
        await turns(20)
        assert not client.write(bytes(1_000_000))
        server.abort()
        await client.until_completed()
        assert client.completions == [1]
        assert client.lost == []
        assert client.write(b"goes nowhere")
        client.transport.resume_reading()
        assert isinstance(await client.until_lost(), ConnectionError)
        assert client.received == b"came before the reset"

    @pytest.mark.parametrize("how", ["as it is received", "afterwards"])
    async def test_memory_is_free_after_a_pause_that_follows_the_failure(self, pairs, arena, turns, how):
        """It was once released only if reading was paused before the failure, so a gateway waited without an end."""
        client, server = await pairs.open(ring_bytes=4 * 1024 * 1024)
        pause = client.transport.pause_reading
        data = numbered(1_000_000)
        pause()
        server.write(data)
        server.transport.pause_reading()
        await turns(20)
        # More than one iteration delivers.
        client.on_data = lambda _: (
            pause() if how == "as it is received" else asyncio.get_running_loop().call_soon(pause)
        )
        assert not client.write(bytes(8_000_000))
        client.transport.resume_reading()
        server.abort()
        await client.until_completed()
        assert client.completions == [1]
        assert client.lost == []
        client.on_data = None
        client.transport.resume_reading()
        assert isinstance(await client.until_lost(), ConnectionError)
        assert client.received == data

    @pytest.mark.parametrize("how", ["close", "abort"])
    async def test_a_failed_connection_can_be_ended_in_every_way(self, pairs, turns, how):
        client, server = await pairs.open()
        client.transport.pause_reading()
        server.write(b"never delivered")
        await turns(5)
        server.abort()
        await server.until_lost()
        await turns(50)
        assert client.lost == []
        getattr(client, how)()
        error = await client.until_lost()
        assert (error is None) == (how == "abort")
        assert client.received == b""

    async def test_data_on_the_tcp_connection_after_the_handshake_is_an_error(self, pairs):
        client, server = await pairs.open()
        client.transport._control.transport.write([b"?"])
        error = await server.until_lost()
        assert isinstance(error, RingError)
        assert "violated the RDMA protocol: it sent data after the handshake" in str(error)
        await client.until_lost()

    @pytest.mark.parametrize(
        ("immediate", "data", "complaint"),
        [
            (0, b"", "unknown kind 0"),
            (encode_immediate(MessageKind.DATA, 0, 0), b"", "without data"),
            (encode_immediate(MessageKind.CREDITS, 0, 0), b"xyz", "3 bytes in a message that has none"),
            (encode_immediate(MessageKind.GOODBYE, 1, 0), b"", "credits for 1 messages, but only 0"),
            (encode_immediate(MessageKind.GOODBYE, 0, 1), b"", "credits for 1 control messages"),
        ],
    )
    async def test_a_peer_that_breaks_the_rules_is_an_error(self, pairs, immediate, data, complaint):
        client, server = await pairs.open()
        post_by_hand(client.transport, immediate, data)
        error = await server.until_lost()
        assert isinstance(error, RingError)
        assert complaint in str(error)
        assert "violated the RDMA protocol" in str(error)
        await client.until_lost()

    async def test_nothing_after_a_breach_is_delivered(self, pairs):
        """It would be read from the wrong offset of the ring."""
        client, server = await pairs.open()
        client.write(b"in order")
        post_by_hand(client.transport, encode_immediate(0, 0, 0), b"")
        client.write(b"behind the breach")
        assert "unknown kind 0" in str(await server.until_lost())
        assert server.received == b"in order"
        await client.until_lost()

    async def test_data_after_the_goodbye_is_an_error(self, pairs, turns):
        client, server = await pairs.open()
        server.transport.pause_reading()
        client.close()
        await turns(5)
        post_by_hand(client.transport, encode_immediate(MessageKind.DATA, 0, 0), b"too late")
        await client.until_lost()
        server.transport.resume_reading()
        await server.until_lost()
        assert server.received == b""

    @pytest.mark.parametrize("verb", ["poll", "clear_events", "request_notification", "post_write", "post_receives"])
    async def test_a_failed_verb_ends_the_connection_once(self, pairs, monkeypatch, verb):
        client, server = await pairs.open(ring_bytes=1024, slots=4)
        queue_pair = client.transport._queue_pair

        def fail(*_, **__):
            raise VerbsError(errno.EIO, f"cannot {verb}")

        monkeypatch.setattr(queue_pair, verb, fail)
        server.write(numbered(400))
        client.write(b"x")
        server.write(numbered(400))
        server.write(numbered(400))
        error = await client.until_lost()
        assert isinstance(error, ConnectionAbortedError)
        assert f"127.0.0.1:{pairs.listening.port}: cannot {verb}" in str(error)
        assert isinstance(await server.until_lost(), ConnectionError)

    @pytest.mark.parametrize("verb", ["poll", "clear_events", "request_notification", "post_write", "post_receives"])
    async def test_an_unexpected_error_ends_the_connection(self, pairs, monkeypatch, verb):
        """A write that was counted but not posted would shift all data after it."""
        client, server = await pairs.open(ring_bytes=1024, slots=4)
        failures = [MemoryError("no memory left")]
        real = getattr(client.transport._queue_pair, verb)

        def fail_once(*args, **options):
            if failures:
                raise failures.pop()
            return real(*args, **options)

        monkeypatch.setattr(client.transport._queue_pair, verb, fail_once)
        server.write(numbered(400))
        client.write(b"x")
        client.write(b"y")
        server.write(numbered(400))
        server.write(numbered(400))
        error = await client.until_lost()
        assert isinstance(error, MemoryError)
        assert isinstance(await server.until_lost(), ConnectionError)
        assert server.received in (b"", b"x", b"xy")

    @pytest.mark.parametrize("callback", ["data_received", "write_completed"])
    async def test_a_handler_that_raises_cancelled_error_ends_the_connection(self, pairs, arena, callback):
        """The received data was once delivered twice."""

        def cancelled(*_):
            raise asyncio.CancelledError

        problems = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context["message"]))
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        if callback == "data_received":
            client.on_data = cancelled
            server.write(b"hello")
        else:
            client.on_completed = cancelled
            client.write_lent([memoryview(arena)], [bytearray(1)])
        error = await client.until_lost()
        assert isinstance(error, ConnectionAbortedError)
        assert f"{callback} raised CancelledError()" in str(error)
        assert client.received == (b"hello" if callback == "data_received" else b"")
        assert [problem.partition(" ")[0] for problem in problems] == [callback]
        loop.set_exception_handler(None)
        await server.until_lost()

    async def test_a_failure_of_destroying_is_logged_and_the_loss_reported(self, pairs, caplog):
        client, server = await pairs.open()

        def fail():
            raise VerbsError(errno.EBUSY, "cannot deregister")

        client.transport._link._closing.callback(fail)
        client.abort()
        assert await client.until_lost() is None
        assert "Closing the RDMA connection to 127.0.0.1" in caplog.text
        assert "cannot deregister" in caplog.text
        await server.until_lost()


def destroy_queue_pair(side):
    """Simulate a killed process, except that the TCP connection stays open."""
    # A loop must not watch a closed descriptor. A killed process has no loop.
    side.transport._stop_watching()
    side.transport._queue_pair.close()


class TestTheEnd:
    async def test_a_peer_that_does_not_poll_loses_nothing_after_the_linger_timeout(self, pairs, turns):
        client, server = await pairs.open(linger_timeout=0.02)
        server.transport.pause_reading()
        data = numbered(300_000)
        client.write(data)
        client.close()
        assert await client.until_lost() is None
        await turns(20)
        assert server.lost == []
        assert server.write(b"nobody is there") in (True, False)
        server.transport.resume_reading()
        assert await server.until_lost() is None
        assert server.received == data

    async def test_a_peer_that_received_everything_and_still_sends_is_no_error(self, pairs, turns):
        client, server = await pairs.open(linger_timeout=0.1, ring_bytes=65536)
        server.transport.pause_reading()
        client.write(b"last words")
        client.close()
        await turns(20)
        # This makes the closing side return credits after its goodbye.
        server.write(numbered(200_000))
        assert await client.until_lost() is None
        server.transport.resume_reading()
        await server.until_lost()
        assert server.received == b"last words"

    async def test_a_goodbye_that_is_not_received_is_an_error(self, pairs):
        client, server = await pairs.open(linger_timeout=0.02)
        client.write(b"never taken")
        pairs.fabric.hold()
        client.write(b"this neither")
        client.close()
        error = await client.until_lost()
        assert "the peer did not receive all data within 0.02 s" in str(error)
        pairs.fabric.release()
        assert isinstance(await server.until_lost(), ConnectionError)

    async def test_a_peer_killed_before_it_received_anything_is_an_error(self, pairs):
        """The end of its TCP connection looks as after a goodbye, and was once mistaken for that."""
        client, server = await pairs.open()
        pairs.fabric.hold()
        client.write(b"never taken")
        client.close()
        destroy_queue_pair(server)
        server.transport._control.close()
        pairs.fabric.release()
        assert isinstance(await client.until_lost(), ConnectionError)
        await server.until_lost()
        assert server.received == b""

    async def test_a_peer_may_end_its_side_before_the_goodbye_completes_here(self, pairs, turns, monkeypatch):
        client, server = await pairs.open()
        with monkeypatch.context() as late:
            late.setattr(client.transport._queue_pair, "poll", lambda most: [])
            client.write(b"taken")
            client.close()
            assert await server.until_lost() is None
            await turns(20)
            assert client.lost == []
        client.transport._take_completions()
        assert await client.until_lost() is None
        assert server.received == b"taken"

    async def test_a_failure_after_the_goodbye_is_no_error(self, pairs, turns):
        """All data had arrived, but close() once reported an error."""
        client, server = await pairs.open()
        server.transport.pause_reading()
        client.write(b"last words")
        client.close()
        await turns(20)
        client.transport._queue_pair.to_error()
        assert await client.until_lost() is None
        server.transport.resume_reading()
        await server.until_lost()
        assert server.received == b"last words"

    async def test_a_connection_may_close_while_the_peer_still_sends(self, pairs):
        client, server = await pairs.open(ring_bytes=4096, slots=4)
        data = numbered(200_000)
        assert not server.write(data)
        client.close()
        server.close()
        assert await server.until_lost() is None
        assert await client.until_lost() is None
        assert client.received == b""

    async def test_objects_are_destroyed_in_order_and_in_the_verbs_thread(self, pairs, arena):
        """The double refuses to close a device before its objects; this test checks the closing thread."""
        calls = []

        def note(verb):
            calls.append((verb, threading.current_thread() is threading.main_thread()))

        pairs.fabric.before = note
        client, server = await pairs.open()
        pairs.connector.register(arena)
        await until_registered(pairs.connector, arena)
        client.write(b"x")
        await server.until_received(1)
        client.close()
        await client.until_lost()
        await server.until_lost()
        pairs.listening.close()
        await pairs.listening.wait_closed()
        verbs = [verb for verb, _ in calls]
        assert {"open", "register", "create_queue_pair", "connect", "close"} <= set(verbs)
        assert not any(on_the_loop for _, on_the_loop in calls), "a verb that may block was called on the loop"
        assert not any(pairs.fabric.live)

    async def test_the_device_is_shared_and_closed_with_the_last_connection(self, pairs):
        await pairs.open()
        await pairs.connect()
        # One of the connector, one of the listener.
        assert pairs.fabric.live.devices == 2
        for side in pairs.sides[:2]:
            side.abort()
            await side.until_lost()
        assert pairs.fabric.live.devices == 2
        for side in pairs.sides[2:]:
            side.abort()
            await side.until_lost()
        assert pairs.fabric.live.devices == 1
        await pairs.connect()
        assert pairs.fabric.live.devices == 2

    async def test_a_failure_of_closing_the_device_is_logged(self, pairs, caplog):
        client, server = await pairs.open()
        device = client.transport._shared.device
        close = device.close

        def fail():
            close()
            raise VerbsError(errno.EBUSY, "cannot close the device")

        device.close = fail
        client.abort()
        await client.until_lost()
        assert "Closing the RDMA device failed: [Errno 16] cannot close the device" in caplog.text
        await server.until_lost()
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
