"""The contract of transports (``aioproducer.transport.base``), tested for each of them.

The recorded client overwrites each buffer as soon as the transport releases it. Therefore every test that compares the
peer's data also detects memory that is read after its release. The client also records each callback from inside
``write``, ``close``, ``abort`` or a task, after ``connection_lost``, or without a reason.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transport.counted_socket import CountedSocket, CountedViews
from tests.transport.numbered import numbered

buffer_sizes = st.lists(st.lists(st.integers(0, 6000) | st.sampled_from([0, 1, 16384, 40000]), max_size=8), max_size=6)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=buffer_sizes, window=st.integers(500, 20000), wait=st.booleans(), forms=st.randoms(use_true_random=False))
async def test_short_writes_give_the_same_bytes(small_wire, writes, window, wait, forms):
    client, peer = await small_wire.connect()
    if small_wire.kind == "memory":
        peer.window = window
    expected = bytearray()
    pending = 0
    reading = None
    for sizes in writes:
        pieces = [bytearray(numbered(size, len(expected) + index)) for index, size in enumerate(sizes)]
        expected += b"".join(pieces)
        buffers = [forms.choice([piece, memoryview(piece), memoryview(piece).toreadonly()]) for piece in pieces]
        complete = client.write_lent(buffers, pieces)
        pending += not complete
        if wait and not complete:
            reading = reading or asyncio.ensure_future(peer.read_to_end())
            await client.until_completed()
            assert client.completions.pop() == 1
            assert client._opened().is_writable
            pending = 0
    reading = reading or asyncio.ensure_future(peer.read_to_end())
    if pending:
        await client.until_completed()
    client.close()
    assert await reading == expected
    peer.close()
    # Writes that complete at once cause no callback.
    assert sum(client.completions) == pending
    assert await client.until_lost() is None
    await small_wire.shut()


async def test_ten_megabytes_arrive_in_both_directions_at_once(wire):
    client, peer = await wire.connect()
    size = 10_000_000
    there, back = os.urandom(size), os.urandom(size)
    reading = asyncio.ensure_future(peer.read(size))
    peer.write(back)
    for start in range(0, size, 1_000_000):
        if not client.write(there[start : start + 400_000], there[start + 400_000 : start + 1_000_000]):
            await client.until_completed()
    assert await reading == there
    assert await client.until_received(size) == back


async def test_one_large_write_arrives_complete(wire):
    client, peer = await wire.connect()
    reading = asyncio.ensure_future(peer.read(10_000_000))
    data = os.urandom(10_000_000)
    assert not client.write(data)
    assert await reading == data
    await client.until_completed()
    assert client.completions == [1]


async def test_more_buffers_than_a_system_call_accepts_are_sent(wire):
    client, peer = await wire.connect()
    pieces = [number.to_bytes(4) for number in range(5000)]
    reading = asyncio.ensure_future(peer.read(20_000))
    client.write(*pieces)
    assert await reading == b"".join(pieces)


async def test_writes_while_one_is_pending_keep_their_order(small_wire):
    client, peer = await small_wire.connect()
    first = os.urandom(8_000_000)
    transport = client._opened()
    assert transport.is_writable
    assert not client.write(first)
    assert not transport.is_writable
    assert not client.write(b"second")
    assert not client.write()
    assert not client.write(b"", b"third")
    assert not transport.is_writable
    assert await peer.read(len(first) + 11) == first + b"secondthird"
    await client.until_completed()
    assert sum(client.completions) == 4
    assert transport.is_writable


async def test_data_that_arrives_in_one_piece_is_delivered_without_more(wire):
    client, peer = await wire.connect()
    for size in (1, 100, 16_384, 16_385, 300_000):
        client.received.clear()
        data = numbered(size)
        peer.write(data)
        assert await client.until_received(size) == data


async def calls_in_idle_turns(wire, client, turns) -> int:
    """Count the attempts to send or to find completed writes, in a hundred iterations of the loop."""
    transport = client._opened()
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        if wire.kind in ("tcp", "tls"):
            patch.setattr(transport, "_socket", CountedSocket(transport._socket, calls))
            patch.setattr(transport, "_unsent", CountedViews(transport._unsent, calls))
        else:
            of, name = (type(transport._queue_pair), "poll") if wire.kind == "rdma" else (type(transport), "_transfer")
            original = getattr(of, name)
            patch.setattr(of, name, lambda *arguments: (calls.append(name), original(*arguments))[1])
        await turns(100)
    return len(calls)


async def test_the_loop_is_idle_while_the_peer_reads_nothing(wire, turns):
    client, _ = await wire.connect()
    assert not client.write(os.urandom(20_000_000))
    await turns(200)
    assert await calls_in_idle_turns(wire, client, turns) == 0


async def test_the_loop_is_idle_after_a_write_that_had_to_wait(wire, turns):
    client, peer = await wire.connect()
    reading = asyncio.ensure_future(peer.read(20_000_000))
    assert not client.write(os.urandom(20_000_000))
    await reading
    await client.until_completed()
    await turns(5)
    assert await calls_in_idle_turns(wire, client, turns) == 0


async def test_all_data_before_the_end_is_delivered_before_the_loss(wire):
    client, peer = await wire.connect()
    data = os.urandom(3_000_000)
    peer.write(data)
    peer.close()
    at_the_end = []
    client.on_lost = lambda _: at_the_end.append(len(client.received))
    assert await client.until_lost() is None
    assert at_the_end == [len(data)]
    assert client.received == data


async def test_the_peer_gets_all_data_written_before_close(small_wire):
    client, peer = await small_wire.connect()
    data = os.urandom(3_000_000)
    peer.write(b"an answer that nobody waits for")
    assert not client.write(data)
    client.close()
    assert await peer.read_to_end() == data
    peer.close()
    assert await client.until_lost() is None
    assert client.completions == [1]


async def test_nothing_is_received_after_close(wire):
    client, peer = await wire.connect()
    client.close()
    peer.write(b"too late")
    peer.close()
    assert await client.until_lost() is None
    assert client.received == b""


async def test_the_connection_works_in_both_directions_after_idle_iterations(wire, turns):
    client, peer = await wire.connect()
    for number in range(3):
        await turns(10)
        client.write(b"question %d" % number)
        assert await peer.read(10) == b"question %d" % number
        peer.write(b"answer %d" % number)
        assert await client.until_received(8 * (number + 1))
    assert client.received == b"answer 0answer 1answer 2"


async def test_an_empty_write_is_complete_at_once(wire):
    client, _ = await wire.connect()
    assert client.write()
    assert client.write(b"", b"")


@pytest.mark.parametrize("count", [10, 1000])
async def test_a_view_of_numbers_is_sent_as_its_bytes(wire, count):
    client, peer = await wire.connect()
    numbers = array.array("i", range(count))
    complete = client.write_lent([memoryview(numbers), memoryview(numbers).cast("B").cast("B", (count, 4))], [])
    assert await peer.read(8 * count) == numbers.tobytes() * 2
    if not complete:
        await client.until_completed()


@pytest.mark.parametrize("wrong", ["text", 1, None])
async def test_an_item_that_is_no_buffer_is_refused_and_the_connection_continues(wire, wrong):
    client, peer = await wire.connect()
    with pytest.raises(TypeError):
        client._opened().write([b"not sent", wrong])
    client.write(b"sent")
    assert await peer.read(4) == b"sent"


async def test_a_view_with_gaps_is_refused_and_the_connection_continues(wire):
    client, peer = await wire.connect()
    with pytest.raises((TypeError, BufferError)):
        client._opened().write([b"not sent", memoryview(b"abcd")[::2]])
    client.write(b"sent")
    assert await peer.read(4) == b"sent"


async def test_a_released_view_is_refused_and_the_connection_continues(wire):
    client, peer = await wire.connect()
    released = memoryview(b"released")
    released.release()
    with pytest.raises(ValueError, match="released"):
        client._opened().write([b"not sent", released])
    client.write(b"sent")
    assert await peer.read(4) == b"sent"


async def test_a_write_to_a_peer_that_never_reads_stays_pending(small_wire, turns):
    client, _ = await small_wire.connect()
    data = memoryview(bytes(32_000_000))
    tracemalloc.start()
    try:
        assert not client.write_lent([data], [bytearray(1)])
        await turns(200)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert client.completions == []
    assert peak < 1_000_000
    client.abort()
    assert await client.until_lost() is None


async def test_abort_during_a_write_drops_unsent_data(wire, turns):
    client, peer = await wire.connect()
    data = os.urandom(20_000_000)
    assert not client.write(data)
    reading = asyncio.ensure_future(peer.read(len(data)))
    await turns(3)
    client.abort()
    assert await client.until_lost() is None
    assert client.completions == []
    try:
        got = await reading
    except ConnectionError:
        got = b""
    assert len(got) < len(data)
    assert data.startswith(got)


async def test_abort_ends_a_close_that_cannot_finish(small_wire, turns):
    client, _ = await small_wire.connect()
    assert not client.write(os.urandom(8_000_000))
    client.close()
    await turns(20)
    assert client.lost == []
    client.abort()
    assert await client.until_lost() is None


@pytest.mark.parametrize("written", [0, 20_000_000])
async def test_a_reset_by_the_peer_is_reported(wire, written):
    client, peer = await wire.connect()
    client.write(os.urandom(written))
    peer.reset()
    error = await client.until_lost()
    assert isinstance(error, ConnectionError)
    assert f"127.0.0.1:{wire.port}" in str(error)


async def test_a_reset_by_the_peer_ends_a_closing_connection(small_wire):
    client, peer = await small_wire.connect()
    assert not client.write(os.urandom(8_000_000))
    client.close()
    peer.reset()
    error = await client.until_lost()
    assert isinstance(error, ConnectionError)


@pytest.mark.parametrize("calls", list(itertools.product(["close", "abort"], repeat=3)), ids="-".join)
async def test_the_loss_is_reported_once_for_every_way_of_ending(wire, turns, calls):
    client, peer = await wire.connect()
    client.write(b"hello")
    for call in calls:
        getattr(client, call)()
        assert not client._opened().is_writable
        assert client.write(b"not sent")
    await turns(3)
    if "abort" not in calls:
        assert await peer.read_to_end() == b"hello"
        peer.close()
    assert await client.until_lost() is None
    await turns(10)
    getattr(client, calls[0])()
    assert client.write(b"not sent")
    await turns(10)
    assert client.lost == [None]


async def test_both_sides_may_close_at_once(small_wire):
    client, peer = await small_wire.connect()
    data = os.urandom(2_000_000)
    client.write(data)
    peer.write(data)
    client.close()
    reading = asyncio.ensure_future(peer.read_to_end())
    assert await reading == data
    peer.close()
    assert await client.until_lost() is None


async def test_the_peer_may_close_while_a_write_is_pending(wire):
    client, peer = await wire.connect()
    peer.write(b"last words")
    await client.until_received(10)
    assert not client.write(os.urandom(20_000_000))
    peer.close()
    error = await client.until_lost()
    assert error is None or isinstance(error, ConnectionError)
    assert client.completions == []


class CallbackError(Exception):
    pass


async def test_an_exception_from_data_received_ends_the_connection(wire, loop_errors):
    errors = loop_errors()
    client, peer = await wire.connect()
    failure = CallbackError()

    def fail(_):
        raise failure

    client.on_data = fail
    peer.write(b"x")
    assert await client.until_lost() is failure
    assert [context["exception"] for context in errors] == [failure]
    assert f"127.0.0.1:{wire.port}" in errors[0]["message"]


async def test_an_exception_from_write_completed_ends_the_connection(small_wire, loop_errors):
    errors = loop_errors()
    client, peer = await small_wire.connect()
    failure = CallbackError()

    def fail():
        raise failure

    client.on_completed = fail
    assert not client.write(os.urandom(8_000_000))
    reading = asyncio.ensure_future(peer.read(8_000_000))
    assert await client.until_lost() is failure
    assert [context["exception"] for context in errors] == [failure]
    reading.cancel()


async def test_an_exception_from_connection_lost_is_not_lost(wire, loop_errors, turns):
    errors = loop_errors()
    client, _ = await wire.connect()
    failure = CallbackError()

    def fail(_):
        raise failure

    client.on_lost = fail
    client.abort()
    await client.until_lost()
    await turns(2)
    assert [context["exception"] for context in errors] == [failure]


async def test_callbacks_may_write(wire):
    client, peer = await wire.connect()
    client.on_data = lambda data: client.write(b"<" + data + b">") and None
    peer.write(b"question")
    assert await peer.read(10) == b"<question>"


async def test_write_completed_may_write(small_wire):
    client, peer = await small_wire.connect()
    rest = [numbered(500_000, start) for start in (1, 2, 3)]

    def write_next():
        while rest and client.write(rest.pop(0)):
            pass

    first = os.urandom(3_000_000)
    expected = first + b"".join(rest)
    client.on_completed = write_next
    assert not client.write(first)
    assert await peer.read(len(expected)) == expected


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_data_received_may_end_the_connection(wire, how):
    client, peer = await wire.connect()
    client.on_data = lambda _: getattr(client, how)()
    for _ in range(20):
        peer.write(bytes(100_000))
    await client.until(lambda: bool(client.received))
    peer.close()
    assert await client.until_lost() is None


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_write_completed_may_end_the_connection(small_wire, how):
    client, peer = await small_wire.connect()
    client.on_completed = lambda: getattr(client, how)()
    data = os.urandom(8_000_000)
    assert not client.write(data)
    reading = asyncio.ensure_future(peer.read_to_end())
    await client.until(lambda: client.completions == [1])
    if how == "close":
        assert await reading == data
        peer.close()
    assert await client.until_lost() is None
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_data_is_valid_only_during_the_call(wire):
    client, peer = await wire.connect()
    kept = []
    handed = client._opened()._handler.data_received

    class Keeping:
        def data_received(self, data):
            kept.append(data)
            handed(data)

        def write_completed(self, count):
            client.write_completed(count)

        def connection_lost(self, exception):
            client.connection_lost(exception)

    client._opened()._handler = Keeping()
    peer.write(b"x")
    await client.until_received(1)
    assert isinstance(kept[0], memoryview)
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])


async def test_the_peer_has_the_name_that_was_connected_to(wire):
    client, _ = await wire.connect()
    assert client._opened().peer == f"127.0.0.1:{wire.port}"


async def test_a_refused_connection_names_the_address(wire, recorder):
    with pytest.raises(ConnectionRefusedError, match=r"cannot connect to 127\.0\.0\.1:1: "):
        await wire.connector.connect("127.0.0.1", 1, recorder())


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("count", range(8))
async def test_a_cancelled_connect_leaves_nothing_open(wire, turns, count, recorder):
    before = open_files()
    client = recorder()
    task = asyncio.ensure_future(wire.connector.connect("127.0.0.1", wire.port, client))
    await turns(count)
    if task.cancel():
        with pytest.raises(asyncio.CancelledError):
            await task
        await wire_emptied(wire, turns)
        assert open_files() <= before
        assert client.lost == []
    else:
        client.transport = task.result()
        wire.clients.append(client)


async def wire_emptied(wire, turns) -> None:
    """Let the accepting side handle the end of the connection, and drop it."""
    await turns(20)
    while not wire.peers.empty():
        wire.peers.get_nowait().reset()
    await turns(20)
