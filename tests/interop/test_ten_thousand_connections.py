"""Ten thousand connections of another process that send nothing, or incomplete requests."""

from __future__ import annotations

import asyncio
import gc
import resource
import struct
import sys
from collections.abc import Iterator

import psutil
import pytest

from aioproducer.broker.server.server import Reply, Server, ServerConnection
from aioproducer.transport.listening import StreamListener

COUNT = 10_000
SPARE = 500

HOLDER = """
import resource, socket, sys
port, count, said = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
for _ in range(count):
    held.append(socket.create_connection(("127.0.0.1", port)))
    held[-1].sendall(said)
print("all", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = COUNT + SPARE
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} open files are needed, and only {hard} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if soft < needed else soft, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def echo(connection: ServerConnection, frame: memoryview) -> Reply:
    return Reply([struct.pack(">i", len(frame)), frame])


@pytest.mark.parametrize(
    ("said", "allowed"),
    [(b"", 4096), (struct.pack(">i", 100 * 1024 * 1024) + bytes(100), 5120)],
    ids=["nothing", "a size of 100 MiB and 100 bytes"],
)
async def test_the_server_continues_and_a_connection_costs_a_few_kilobytes(descriptors, said, allowed):
    server = Server(echo)
    await server.start(StreamListener(), "127.0.0.1", 0)
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, str(server.port), str(COUNT), said.hex()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await holder.stdout.readline() == b"all\n"
            for _ in range(1000):
                if len(server.connections) == COUNT and server.memory.used >= COUNT * len(said):
                    break
                await asyncio.sleep(0.01)
        assert len(server.connections) == COUNT
        assert (process.memory_info().rss - before) / COUNT < allowed
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(100):
                writer.write(struct.pack(">i", 5) + b"hello")
                assert await reader.readexactly(9) == struct.pack(">i", 5) + b"hello"
        writer.close()
        assert len(asyncio.all_tasks()) == 1
    finally:
        holder.stdin.close()
        await holder.wait()
        await server.stop()
    assert not server.connections
