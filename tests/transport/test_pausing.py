"""``pause_reading`` and ``resume_reading`` of each transport."""

from __future__ import annotations

import os

import pytest

from tests.transport.numbered import numbered


async def test_nothing_is_received_while_reading_is_paused(wire, turns):
    client, peer = await wire.connect()
    client.transport.pause_reading()
    data = numbered(1_000_000)
    peer.write(data)
    await turns(50)
    assert client.received == b""
    client.transport.resume_reading()
    assert await client.until_received(len(data)) == data


async def test_data_received_may_pause(wire, turns):
    client, peer = await wire.connect()
    sizes = []

    def pause(data):
        sizes.append(len(data))
        client.transport.pause_reading()

    client.on_data = pause
    data = numbered(2_000_000)
    peer.write(data)
    while len(client.received) < len(data):
        seen = len(sizes)
        client.transport.resume_reading()
        await client.until(lambda: len(sizes) > seen)  # noqa: B023 - it is called in this round of the loop only
        await turns(3)
        assert len(sizes) == seen + 1
    assert client.received == data
    # Over RDMA, data is delivered in place; from a socket it is read first.
    assert max(sizes) <= (512 if wire.kind == "rdma" else 256) * 1024


async def test_pausing_or_resuming_twice_has_no_further_effect(wire, turns):
    client, peer = await wire.connect()
    client.transport.resume_reading()
    client.transport.pause_reading()
    client.transport.pause_reading()
    peer.write(b"one")
    await turns(10)
    client.transport.resume_reading()
    client.transport.resume_reading()
    assert await client.until_received(3) == b"one"


async def test_pause_and_resume_at_once_loses_nothing(wire, turns):
    client, peer = await wire.connect()
    for number in range(20):
        peer.write(b"%02d" % number)
        await turns(number % 3)
        client.transport.pause_reading()
        await turns(number % 4)
        client.transport.resume_reading()
        client.transport.pause_reading()
        client.transport.resume_reading()
    assert await client.until_received(40) == b"".join(b"%02d" % number for number in range(20))


async def test_data_before_the_end_is_received_after_a_pause(wire, turns):
    client, peer = await wire.connect()
    client.transport.pause_reading()
    data = numbered(100_000)
    peer.write(data)
    peer.close()
    await turns(50)
    assert client.lost == []
    client.transport.resume_reading()
    assert await client.until_lost() is None
    assert client.received == data


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_paused_connection_ends_after_it_is_resumed(wire, how, turns):
    client, peer = await wire.connect()
    client.transport.pause_reading()
    peer.write(bytes(100_000))
    await turns(5)
    getattr(client, how)()
    client.transport.resume_reading()
    client.transport.pause_reading()
    peer.close()
    assert await client.until_lost() is None
    assert client.received == b""


async def test_a_paused_connection_still_writes(wire):
    client, peer = await wire.connect()
    client.transport.pause_reading()
    data = os.urandom(3_000_000)
    client.write(data)
    assert await peer.read(len(data)) == data
    await client.until_completed()


async def test_memory_is_free_after_a_write_that_failed_during_a_pause(stream_wire, certificates, turns):
    """Otherwise a handler that resumes reading only after its write would wait without an end."""
    for kind in ("tcp", "tls"):
        contexts = (certificates.client_context(), certificates.server_context()) if kind == "tls" else (None, None)
        async with stream_wire(kind, *contexts) as wire:
            client, peer = await wire.connect()
            peer.write(b"came before the reset")
            client.transport.pause_reading()
            await turns(20)
            assert not client.write(bytes(20_000_000))
            peer.reset()
            await client.until_completed()
            assert client.completions == [1]
            assert client.lost == []
            assert client.write(b"goes nowhere")
            client.transport.resume_reading()
            assert isinstance(await client.until_lost(), OSError)
            assert client.received == b"came before the reset"
