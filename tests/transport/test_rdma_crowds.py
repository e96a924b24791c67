"""Many clients of an RDMA listener at once: their resources are bounded, and none is kept out."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading

import pytest

from aioproducer.transport.rdma.handshake import HandshakeReader, Refusal, encode
from tests.transport.rdma_server import HELLO, read_messages


class Counted:
    """The maximum number of queue pairs that a fabric had at a time, and how many it made."""

    def __init__(self, fabric):
        self.fabric = fabric
        self.made = 0
        self.most = 0
        fabric.before = self.count

    def count(self, verb):
        if verb == "create_queue_pair":
            self.made += 1
            self.most = max(self.most, self.fabric.live.queue_pairs + 1)


class TestCrowdsAtAListener:
    async def test_silent_clients_do_not_keep_others_out(self, rdma_server):
        await rdma_server.listen(max_handshakes=3)
        silent = [await rdma_server.stranger() for _ in range(30)]
        await rdma_server.still_serves()
        (refusal,) = await read_messages(silent[0][0])
        assert "too many handshakes at once" in refusal.reason
        for _, writer in silent:
            writer.close()

    async def test_clients_over_the_limit_are_refused_if_they_arrive_together(self, rdma_server, turns):
        """Only the first one was once cancelled, repeatedly, and all others stayed."""
        await rdma_server.listen(max_handshakes=3)
        address = ("127.0.0.1", rdma_server.listening.port)
        silent = [socket.create_connection(address) for _ in range(40)]
        # All of them are accepted before the next iteration.
        await turns(20)
        for sock in silent:
            sock.setblocking(False)
        for sock in silent[:28]:
            (refusal,) = HandshakeReader("peer", accepting=False).feed(sock.recv(1000))
            assert isinstance(refusal, Refusal)
            assert sock.recv(1000) == b""
        for sock in silent[28:]:
            with pytest.raises(BlockingIOError):
                sock.recv(1000)
        for sock in silent:
            sock.close()
        await rdma_server.still_serves()

    async def test_clients_that_say_hello_get_no_more_queue_pairs_than_allowed(self, rdma_server):
        """Each of them once got one before the first was closed, because the thread runs its jobs in order."""
        counted = Counted(rdma_server.fabric)
        await rdma_server.listen(max_handshakes=3, handshake_timeout=0.1)
        async with asyncio.timeout(20):
            # On a busy machine the first three may keep theirs until all others are refused.
            while counted.made <= 3:
                strangers = [await rdma_server.stranger() for _ in range(12)]
                for _, writer in strangers:
                    writer.write(encode(HELLO))
                for reader, _ in strangers:
                    *_, refusal = await read_messages(reader)
                    assert isinstance(refusal, Refusal)
                for _, writer in strangers:
                    writer.close()
        assert counted.most == 3
        await rdma_server.still_serves()

    async def test_clients_that_all_connect_at_once_are_served(self, rdma_server, recorder):
        await rdma_server.listen(max_handshakes=3)
        clients = [recorder() for _ in range(12)]

        async def connect(client):
            client.transport = await rdma_server.connector.connect("127.0.0.1", rdma_server.listening.port, client)

        async with asyncio.timeout(20):
            await asyncio.gather(*map(connect, clients))
        assert len({client.transport for client in clients}) == 12
        for client in clients:
            client.abort()
            await client.until_lost()

    async def test_a_welcomed_client_that_sends_no_ready_gives_way(self, rdma_server, caplog):
        caplog.set_level(logging.INFO)
        await rdma_server.listen(max_handshakes=1, handshake_timeout=1)
        reader, writer = await rdma_server.stranger()
        writer.write(encode(HELLO))
        assert await reader.read(10)
        await rdma_server.still_serves()
        writer.close()
        assert "has not sent READY for 0.1 s, and others wait" in caplog.text

    async def test_a_client_that_leaves_while_it_waits_gets_no_queue_pair(self, rdma_server, turns, caplog):
        caplog.set_level(logging.INFO)
        await rdma_server.listen(max_handshakes=1)
        counted = Counted(rdma_server.fabric)
        first, first_writer = await rdma_server.stranger()
        first_writer.write(encode(HELLO))
        assert await first.read(10)
        _, second_writer = await rdma_server.stranger()
        second_writer.write(encode(HELLO))
        await turns(20)
        second_writer.close()
        await second_writer.wait_closed()
        await turns(20)
        first_writer.close()
        while caplog.text.count("ended the connection before the RDMA handshake was over") < 2:
            await turns(1)
        assert counted.made == 1
        await rdma_server.still_serves()

    async def test_close_refuses_waiting_clients(self, rdma_server, turns):
        await rdma_server.listen(max_handshakes=1)
        strangers = [await rdma_server.stranger() for _ in range(4)]
        for _, writer in strangers[:3]:
            writer.write(encode(HELLO))
        await turns(20)
        rdma_server.listening.close()
        async with asyncio.timeout(20):
            await rdma_server.listening.wait_closed()
            for reader, writer in strangers:
                *_, refusal = await read_messages(reader)
                assert refusal.reason == "the server stops"
                writer.close()

    async def test_memory_that_is_not_released_yet_counts(self, rdma_server, turns):
        """Closing takes time in the thread; until then no other client may register memory."""
        await rdma_server.listen(max_handshakes=1)
        counted = Counted(rdma_server.fabric)
        go_on = threading.Event()
        closing = threading.Event()

        def before(verb):
            counted.count(verb)
            if verb == "close":
                closing.set()
                go_on.wait(20)

        rdma_server.fabric.before = before
        first, first_writer = await rdma_server.stranger()
        first_writer.write(encode(HELLO))
        assert await first.read(10)
        second, second_writer = await rdma_server.stranger()
        second_writer.write(encode(HELLO))
        first_writer.close()
        while not closing.is_set():
            await turns(1)
        await turns(20)
        assert counted.made == 1
        assert rdma_server.fabric.live.queue_pairs == 1
        go_on.set()
        assert await second.read(10)
        second_writer.close()
        await rdma_server.still_serves()
