"""One connection: order, mute states, effects of its replies, and the steps before its end."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import sys
import termios

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from aioproducer.broker.server.connection import TRANSITIONS, Event, Mute, Reply, ServerConnection
from aioproducer.broker.server.framing import READ_AHEAD
from tests.broker.server.serving import echo, framed, loop_passes
from tests.waiting import until


class Gate:
    """An answer function that responds on command."""

    def __init__(self):
        self.waiting = []
        self.seen = []
        self.most = 0

    async def __call__(self, connection, frame):
        self.seen.append(bytes(frame[:20]))
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(answer)
        self.most = max(self.most, len(self.waiting))
        try:
            reply = await answer
        finally:
            self.waiting.remove(answer)
        if reply is None:
            return await echo(connection, frame)
        return reply

    async def answer(self, reply=None):
        await until(lambda: self.waiting)
        self.waiting[0].set_result(reply)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.binary(max_size=50) | st.integers(1, 200).map(lambda size: bytes(size * 1000)), max_size=12),
    delays=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    together=st.booleans(),
)
async def test_requests_of_a_connection_are_answered_one_by_one_in_order(network, requests, delays, together):
    busy = set()
    count = 0

    async def answer(connection, frame):
        nonlocal count
        assert connection not in busy
        busy.add(connection)
        count += 1
        await loop_passes(delays[count % len(delays)])
        busy.discard(connection)
        return await echo(connection, frame)

    server = await network.server(answer)
    clients = [await network.client(server) for _ in range(2)]
    for client in clients:
        if together:
            client.ask(*requests)
        else:
            for request in requests:
                await client.until(lambda: client.completed)  # noqa: B023 - called in this round only
                client.ask(request)
    for client in clients:
        assert [await client.answer() for _ in requests] == requests


async def test_a_connection_starts_at_most_one_request_per_loop_iteration(memory):
    """A burst of requests leaves time to other callbacks."""
    seen = []

    async def answer(connection, frame):
        seen.append(bytes(frame))
        return Reply()

    server = await memory.server(answer)
    client = await memory.client(server)
    client.ask(*[b"%d" % number for number in range(100)])
    await until(lambda: seen)
    while len(seen) < 100:
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) - before <= 1


def test_every_mute_state_has_a_way_back_to_unmuted():
    assert {state for state, _ in TRANSITIONS} == set(Mute)
    assert set(TRANSITIONS.values()) == set(Mute)
    # From each state some events lead back to the unmuted one.
    for start in Mute:
        seen = {start}
        while new := {TRANSITIONS[key] for key in TRANSITIONS if key[0] in seen} - seen:
            seen |= new
        assert Mute.NOT_MUTED in seen


class Peerless:
    """A transport that records its calls, and an owner that allows everything."""

    peer = "test:1"

    def __init__(self, answer):
        self.answer = answer
        self.max_request_bytes = 1_000_000
        self.is_serving = True
        self.paused = False
        self.written = []
        self.complete = True
        self.ends = []
        self.memory = 0
        self.has_ended = False

    def write(self, buffers):
        assert self.complete
        self.written += [bytes(buffer) for buffer in buffers]
        return self.complete

    def close(self):
        self.ends.append("close")

    def abort(self):
        self.ends.append("abort")

    def pause_reading(self):
        assert not self.paused
        self.paused = True

    def resume_reading(self):
        assert self.paused
        self.paused = False

    def active(self, connection):
        assert not self.has_ended

    def memory_changed(self, connection, difference):
        self.memory += difference

    def ended(self, connection):
        self.has_ended = True


class SlowPeer(Peerless):
    """A peer that reads no response until the test lets it."""

    def write(self, buffers):
        super().write(buffers)
        self.complete = False
        return False


@pytest.mark.parametrize("state", list(Mute))
@pytest.mark.parametrize("event", list(Event))
async def test_an_impossible_event_is_an_error_and_changes_nothing(state, event):
    peer = Peerless(echo)
    connection = ServerConnection(peer, peer, "test")
    connection.mute = state
    if (state, event) in TRANSITIONS:
        connection._move(event)
        assert connection.mute is TRANSITIONS[state, event]
    else:
        with pytest.raises(RuntimeError, match="test: "):
            connection._move(event)
        assert connection.mute is state


class MuteMachine(RuleBasedStateMachine):
    """Requests, responses, slow peers, throttling and lack of memory in any order; nothing stays stuck."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.gate = Gate()
        self.peer = SlowPeer(self.gate)
        self.connection = ServerConnection(self.peer, self.peer, "test")
        self.sent = 0

    def run(self, count=3):
        self.loop.run_until_complete(loop_passes(count))

    def act(self, call):
        async def inside():
            call()

        self.loop.run_until_complete(inside())

    @precondition(lambda self: not self.peer.paused)
    @rule(size=st.sampled_from([0, 10, 70_000]))
    def request(self, size):
        data = framed((b"%d " % self.sent).ljust(size, b"x"))
        self.sent += 1
        self.act(lambda: self.connection.data_received(data))

    @rule(throttle=st.sampled_from([0, 0, 60_000]), silent=st.booleans())
    def answer(self, throttle, silent):
        self.run()
        if self.gate.waiting:
            assert self.connection.mute is Mute.PROCESSING
            self.gate.waiting[0].set_result(Reply([] if silent else [b"answer"], mute_ms=throttle))
            self.run()

    @precondition(lambda self: not self.peer.complete)
    @rule()
    def taken(self):
        self.peer.complete = True
        self.act(lambda: self.connection.write_completed(1))

    @precondition(lambda self: self.connection._throttle is not None)
    @rule()
    def throttle_over(self):
        self.connection._throttle.cancel()
        self.act(self.connection._throttle_over)

    @rule(waits=st.booleans())
    def memory(self, waits):
        self.connection.waits_for_memory = waits
        self.act(self.connection.regulate)
        assert self.peer.paused >= waits

    def teardown(self):
        self.memory(False)
        for _ in range(4 * self.sent + 4):
            self.answer(0, True)
            if not self.peer.complete:
                self.taken()
            if self.connection._throttle is not None:
                self.throttle_over()
        assert self.connection.mute is Mute.NOT_MUTED
        assert not self.peer.paused
        assert self.peer.memory == 0
        assert [int(frame.rstrip(b"x")) for frame in self.gate.seen] == list(range(self.sent))
        assert self.gate.most <= 1
        self.loop.close()


def test_no_connection_stays_stuck():
    """The assertions are the invariants and the teardown of ``MuteMachine``."""
    run_state_machine_as_test(MuteMachine, settings=settings(max_examples=40, stateful_step_count=30, deadline=None))


@pytest.mark.parametrize("size", [1, 1000, 300_000])
async def test_requests_written_before_the_end_are_all_processed(network, size):
    seen = []

    async def answer(connection, frame):
        await loop_passes(2)
        seen.append(bytes(frame))
        return Reply()

    server = await network.server(answer)
    client = await network.client(server)
    requests = [bytes([number]) * size for number in range(20)]
    client.ask(*requests)
    client.transport.close()
    await until(lambda: len(seen) == len(requests))
    assert seen == requests
    await until(lambda: not server.connections)


def unacknowledged(writer):
    """The bytes that the peer's kernel has not acknowledged: a reset discards them."""
    socket = writer.get_extra_info("socket")
    return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


async def test_requests_are_processed_although_their_answers_cannot_be_sent(tcp):
    """The client closes with responses unread, which resets the connection under the broker's next response."""
    seen = []

    async def answer(connection, frame):
        await asyncio.sleep(0.001)
        seen.append(bytes(frame))
        return Reply([framed(bytes(1000))])

    server = await tcp.server(answer)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    requests = [bytes([number]) * 4_000 for number in range(20)]
    writer.writelines(map(framed, requests))
    await until(lambda: not writer.transport.get_write_buffer_size() and not unacknowledged(writer))
    await reader.readexactly(500)
    writer.close()
    await until(lambda: not server.connections)
    assert seen == requests


async def test_half_a_request_before_the_end_is_dropped(network):
    seen = []

    async def answer(connection, frame):
        seen.append(bytes(frame))
        return Reply()

    server = await network.server(answer)
    client = await network.client(server)
    client.send(framed(b"whole") + framed(b"half of it")[:7])
    client.transport.close()
    await until(lambda: not server.connections and seen)
    assert seen == [b"whole"]


async def test_each_request_has_its_own_memory(network):
    kept = []

    async def answer(connection, frame):
        kept.append(frame)
        frame[:1] = b"!"
        return Reply([framed(b"")])

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(*[bytes([65 + number]) * (1 + number * 9_000) for number in range(20)])
    for _ in range(20):
        await client.answer()
    assert kept == [b"!" + bytes([65 + number]) * (number * 9_000) for number in range(20)]


async def test_a_response_may_be_empty_or_several_buffers(network):
    replies = [Reply(), Reply([struct.pack(">i", 6), b"abc", memoryview(b"def")]), Reply([])]

    async def answer(connection, frame):
        return replies.pop(0)

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"1", b"2", b"3")
    assert await client.answer() == b"abcdef"
    await until(lambda: not replies)


async def test_close_after_the_answer(network):
    async def answer(connection, frame):
        return Reply([framed(bytes(frame) + b"!" * 400_000)], close=True)

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"first", b"second")
    assert await client.answer() == b"first" + b"!" * 400_000
    await client.lost()
    assert client.received == b""
    client.transport.abort()
    await until(lambda: not server.connections)


async def test_abort_instead_of_an_answer(network):
    async def answer(connection, frame):
        return Reply([framed(b"never sent")], abort=True)

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"first")
    assert isinstance(await client.lost(), ConnectionError)
    assert client.received == b""
    await until(lambda: not server.connections)


async def test_throttling_delays_the_next_request_and_not_the_response(network):
    loop = asyncio.get_running_loop()
    taken = []

    async def answer(connection, frame):
        taken.append(loop.time())
        return Reply([framed(bytes(frame))], mute_ms=60_000 if frame == b"1" else 50)

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"1", b"2", b"3")
    assert await client.answer() == b"1"
    (connection,) = server.connections
    assert len(taken) == 1
    assert connection.mute is Mute.THROTTLED
    # A minute passes.
    connection._throttle.cancel()
    connection._throttle_over()
    assert await client.answer() == b"2"
    assert await client.answer() == b"3"
    assert taken[2] - taken[1] >= 0.049


async def test_a_throttled_connection_ends_after_its_last_request(network):
    taken = []

    async def answer(connection, frame):
        taken.append(bytes(frame))
        return Reply(mute_ms=5)

    server = await network.server(answer)
    client = await network.client(server)
    client.ask(b"1", b"2", b"3")
    client.transport.close()
    await until(lambda: len(taken) == 3 and not server.connections)
    assert taken == [b"1", b"2", b"3"]


async def test_an_exception_ends_only_its_own_connection(network, caplog):
    async def answer(connection, frame):
        if frame == b"bad":
            raise ZeroDivisionError("unheard of")
        return await echo(connection, frame)

    server = await network.server(answer)
    client, other = await network.client(server), await network.client(server)
    client.ask(b"bad", b"never looked at")
    await client.lost()
    assert "unheard of" in caplog.text
    other.ask(b"good")
    assert await other.answer() == b"good"
    assert len(server.connections) == 1


async def test_an_invalid_reply_ends_only_its_own_connection(network, caplog):
    async def answer(connection, frame):
        return Reply([b"ok", "text"]) if frame == b"bad" else await echo(connection, frame)

    server = await network.server(answer)
    client, other = await network.client(server), await network.client(server)
    client.ask(b"bad")
    await client.lost()
    assert "could not be sent" in caplog.text
    other.ask(b"good")
    assert await other.answer() == b"good"


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
async def test_an_invalid_size_ends_only_its_own_connection(network, size, caplog):
    server = await network.server(max_request_bytes=1000)
    client, other = await network.client(server), await network.client(server)
    client.send(framed(b"first") + struct.pack(">i", size) + b"x" * 100)
    assert await client.answer() == b"first"
    await client.lost()
    assert f"invalid frame size {size} " in caplog.text
    other.ask(bytes(1000))
    assert await other.answer() == bytes(1000)


async def test_read_ahead_of_requests_is_limited(network):
    gate = Gate()
    server = await network.server(gate)
    client = await network.client(server)
    client.ask(*[bytes(30_000)] * 500)
    await until(lambda: gate.waiting)
    await loop_passes(300)
    (connection,) = server.connections
    assert connection.memory <= 2 * 30_000 + READ_AHEAD + 130 * 1024 + 1000
    assert not client.completed
    for _ in range(500):
        await gate.answer()
        assert await client.answer() == bytes(30_000)
        assert connection.memory <= 2 * 30_000 + READ_AHEAD + 130 * 1024 + 1000


async def test_the_next_request_waits_until_the_peer_reads_the_response(network):
    answered = 0

    async def answer(connection, frame):
        nonlocal answered
        answered += 1
        return Reply([framed(bytes(3_000_000))])

    server = await network.server(answer)
    client = await network.client(server)
    client.transport.pause_reading()
    client.ask(*[b"more"] * 50)
    await until(lambda: answered)
    await loop_passes(300)
    # The sockets' buffers may hold a few megabytes.
    assert answered <= 5
    (connection,) = server.connections
    assert connection.mute is Mute.SENDING
    client.transport.resume_reading()
    for _ in range(50):
        assert len(await client.answer()) == 3_000_000
    assert answered == 50


async def test_handlers_have_the_peer_and_state_of_their_connection(network):
    server = await network.server()
    client = await network.client(server)
    client.ask(b"hello")
    await client.answer()
    (connection,) = server.connections
    assert connection.peer.startswith(connection.peer_host + ":")
    assert connection.peer_host in ("127.0.0.1", "client")
    assert connection.id == f"127.0.0.1:{server.port}-{connection.peer}-0"
    assert connection.id in repr(connection)
    assert connection.state == {}
    assert (connection.client_software_name, connection.client_software_version) == (None, None)
    connection.abort()
    await client.lost()
    assert connection.is_lost or await until(lambda: connection.is_lost) is None
    connection.abort()
    connection.close()
