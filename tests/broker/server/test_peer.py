"""A broker's connection to another broker."""

from __future__ import annotations

import asyncio
import struct

import pytest

from aioproducer.broker.server.peer import PeerClient
from aioproducer.broker.server.server import Reply
from aioproducer.errors import KafkaTimeoutError, ProtocolError, UnsupportedVersionError
from aioproducer.protocol import decode_request, encode_response
from aioproducer.protocol.messages import ListOffsetsRequest, MetadataRequest, MetadataResponse
from aioproducer.protocol.messages.metadata import MetadataRequestTopic
from tests.broker.server.serving import framed, loop_passes
from tests.waiting import until

VERSION = 12


def response(header, request):
    """A response with the request's content, in a field that can hold it."""
    asked = ",".join(topic.name for topic in request.topics)
    message = MetadataResponse(cluster_id=f"{header.client_id}:{asked}")
    return encode_response(message, header.request_api_version, header.correlation_id)


async def metadata(connection, frame):
    await loop_passes(2)
    return Reply(response(*decode_request(frame)))


def about(name):
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


@pytest.fixture
def peer_of(network):
    """``peer_of(server, **options)``: a client of the server, closed at the end of the test."""
    made = []

    def make(server, **options):
        peer = PeerClient(network.connector, "127.0.0.1", server.port, **options)
        made.append(peer)
        return peer

    yield make
    for peer in made:
        peer.close()


async def test_requests_are_answered_one_after_the_other(network, peer_of):
    server = await network.server(metadata)
    peer = peer_of(server, client_id="broker-1")
    assert not peer.is_connected
    assert not server.connections
    answers = await asyncio.gather(*(peer.request(about(f"topic-{n}"), VERSION, 10) for n in range(20)))
    assert [answer.cluster_id for answer in answers] == [f"broker-1:topic-{n}" for n in range(20)]
    assert len(server.connections) == 1
    assert peer.is_connected


async def test_a_request_of_an_unknown_version_changes_nothing(network, peer_of):
    server = await network.server(metadata)
    peer = peer_of(server)
    with pytest.raises(UnsupportedVersionError):
        await peer.request(ListOffsetsRequest(), 99, 10)
    assert (await peer.request(about("x"), VERSION, 10)).cluster_id == "None:x"


async def test_a_deadline_resets_the_connection_and_the_next_request_opens_another(network, peer_of):
    silent = True

    async def answer(connection, frame):
        if silent:
            await asyncio.get_running_loop().create_future()
        return await metadata(connection, frame)

    server = await network.server(answer)
    peer = peer_of(server)
    with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:\d+: no response to MetadataRequest within 0\.02 s"):
        await peer.request(about("x"), VERSION, 0.02)
    assert not peer.is_connected
    silent = False
    assert (await peer.request(about("y"), VERSION, 10)).cluster_id == "None:y"


async def test_a_waiting_request_has_its_own_deadline(network, peer_of):
    go = asyncio.Event()

    async def answer(connection, frame):
        await go.wait()
        return await metadata(connection, frame)

    server = await network.server(answer)
    peer = peer_of(server)
    first = asyncio.ensure_future(peer.request(about("first"), VERSION, 10))
    await until(lambda: server.memory.used)
    with pytest.raises(KafkaTimeoutError):
        await peer.request(about("second"), VERSION, 0.02)
    go.set()
    assert (await first).cluster_id == "None:first"


@pytest.mark.parametrize("count", range(0, 12, 2))
async def test_a_request_that_is_cancelled_anywhere_leaves_nothing_behind(network, peer_of, count):
    server = await network.server(metadata)
    peer = peer_of(server)
    asking = asyncio.ensure_future(peer.request(about("x"), VERSION, 10))
    await loop_passes(count)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await peer.request(about("y"), VERSION, 10)).cluster_id == "None:y"
    await until(lambda: len(server.connections) == 1)


async def test_a_refused_connection_is_an_os_error(network, peer_of):
    server = await network.server(metadata)
    peer = peer_of(server)
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await peer.request(about("x"), VERSION, 10)


@pytest.mark.parametrize("reply", [Reply(abort=True), Reply(close=True), Reply([b"\0\0\1\0half"], close=True)])
async def test_a_connection_lost_before_the_response(network, peer_of, reply):
    replies = [reply]

    async def answer(connection, frame):
        return replies.pop() if replies else await metadata(connection, frame)

    server = await network.server(answer)
    peer = peer_of(server)
    with pytest.raises(ConnectionError):
        await peer.request(about("x"), VERSION, 10)
    assert (await peer.request(about("y"), VERSION, 10)).cluster_id == "None:y"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (framed(struct.pack(">i", 77) + bytes(20)), "a response with correlation id 77 instead of 0"),
        (framed(b"12"), "too short for a correlation id"),
        (framed(struct.pack(">i", 0) + b"\0nonsense"), "MetadataResponse.* of version 12"),
        (struct.pack(">i", -5), "invalid frame size -5"),
        (struct.pack(">i", 2_000_000), "invalid frame size 2000000"),
        (framed(bytes(10)) + framed(bytes(10)), "received bytes that belong to no request"),
    ],
)
async def test_an_invalid_response_is_a_protocol_error(network, peer_of, wrong, text):
    wrongs = [wrong]

    async def answer(connection, frame):
        return Reply([wrongs.pop()]) if wrongs else await metadata(connection, frame)

    server = await network.server(answer)
    peer = peer_of(server, max_response_bytes=1_000_000)
    with pytest.raises(ProtocolError, match=text):
        await peer.request(about("x"), VERSION, 10)
    assert not peer.is_connected
    assert (await peer.request(about("y"), VERSION, 10)).cluster_id == "None:y"


async def test_the_next_request_reaches_a_restarted_server(network, peer_of):
    server = await network.server(metadata)
    peer = peer_of(server)
    await peer.request(about("x"), VERSION, 10)
    for connection in server.connections:
        connection.abort()
    await until(lambda: not peer.is_connected)
    assert (await peer.request(about("y"), VERSION, 10)).cluster_id == "None:y"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
async def test_close_fails_waiting_requests(network, peer_of, count):
    async def answer(connection, frame):
        return await asyncio.get_running_loop().create_future()

    server = await network.server(answer)
    peer = peer_of(server)
    asking = [asyncio.ensure_future(peer.request(about("x"), VERSION, 10)) for _ in range(3)]
    await loop_passes(count)
    peer.close()
    for ended in await asyncio.gather(*asking, return_exceptions=True):
        assert isinstance(ended, ConnectionAbortedError)
    assert not peer.is_connected
    with pytest.raises(ConnectionAbortedError, match=r"the connection to 127\.0\.0\.1:\d+ was closed"):
        await peer.request(about("x"), VERSION, 10)
