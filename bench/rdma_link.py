"""Both transports between two machines: one message and its answer, and a stream, each with a checksum at both ends.

A connection begins with a request: after ``ECHO`` the server sends every byte back; after ``STREAM`` it returns the
number of bytes, their CRC-32, and the CPU time that it used for them.
"""

from __future__ import annotations

import asyncio
import functools
import mmap
import random
import signal
import statistics
import struct
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from aioproducer.transport.base import Buffer, Connector, Listener, Listening, Transport, TransportHandler
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.rdma import RdmaConnector, RdmaListener, RdmaUnavailableError
from aioproducer.transport.stream import StreamConnector
from bench.job import percentile
from bench.ticker import INTERVAL, Ticker

REQUEST = struct.Struct(">4sB?Q")
"""Magic, kind, whether there are checksums, and the number of bytes that follow."""
ANSWER = struct.Struct(">QId")
"""Number of received bytes, their checksum, and the server's CPU seconds."""
MAGIC = b"APB1"
ECHO, STREAM = 0, 1
SIZES = (64, 4096, 65536)
MESSAGE = 1024 * 1024
"""Maximum bytes of each write of a stream."""

Figures = dict[str, dict[str, float]]


class WrongBytesError(RuntimeError):
    """The received bytes differ from the sent ones."""


class _Served:
    """One client of the server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._head = bytearray()
        self._what = -1
        self._checked = False
        self._expected = self._came = self._crc = 0
        self._began = 0.0

    def data_received(self, data: Buffer) -> None:
        rest = memoryview(data)
        if self._what < 0:
            missing = REQUEST.size - len(self._head)
            self._head += rest[:missing]
            rest = rest[missing:]
            if len(self._head) < REQUEST.size:
                return
            magic, self._what, self._checked, self._expected = REQUEST.unpack(self._head)
            self._began = time.process_time()
            if magic != MAGIC or self._what not in (ECHO, STREAM):
                self._transport.abort()
                return
        if not rest:
            return
        self._came += len(rest)
        if self._what == ECHO:
            # Written memory must not change, and received memory is reused, so copy.
            if not self._transport.write([bytes(rest)]):
                self._transport.pause_reading()
            return
        if self._checked:
            self._crc = zlib.crc32(rest, self._crc)
        if self._came >= self._expected:
            used = time.process_time() - self._began
            self._transport.write([ANSWER.pack(self._came, self._crc, used)])

    def write_completed(self, count: int) -> None:
        self._transport.resume_reading()

    def connection_lost(self, exception: Exception | None) -> None:
        if exception is not None:
            print(f"{self._transport.peer}: {exception}", file=sys.stderr)


async def serve(listeners: Mapping[str, Listener], host: str, port: int) -> dict[str, Listening]:
    """Serve at ``port`` and the ports after it, with a listener at each; 0 selects free ports."""
    found = {}
    for number, (name, listener) in enumerate(listeners.items()):
        found[name] = await listener.listen(host, port and port + number, _Served)
    return found


def serve_until_interrupted(host: str, port: int, device: str | None, gid: str | None) -> int:
    """Serve RDMA at ``port`` and TCP at the next one; fail without RDMA, as there is nothing to compare."""

    async def run() -> None:
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        found = await serve({"rdma": RdmaListener(device=device, gid=gid), "tcp": StreamListener()}, host, port)
        for name, listening in found.items():
            print(f"{name}: {host}:{listening.port}", flush=True)
        await ended.wait()
        for listening in found.values():
            listening.close()
        for listening in found.values():
            await listening.wait_closed()

    try:
        asyncio.run(run())
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


class _Peer:
    """The client's side of one connection."""

    def __init__(self) -> None:
        self._coming: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost: Exception | None = None
        self.transport: Transport
        self.received = bytearray()
        self.ended = asyncio.Event()

    def data_received(self, data: Buffer) -> None:
        self.received += data
        self._wake()

    def write_completed(self, count: int) -> None:
        self._writable.set()

    def connection_lost(self, exception: Exception | None) -> None:
        self._lost = exception or ConnectionResetError("the server has ended the connection")
        self._writable.set()
        self.ended.set()
        self._wake()

    def _wake(self) -> None:
        if self._coming is not None and not self._coming.done():
            self._coming.set_result(None)

    async def write(self, data: Buffer) -> None:
        """Write ``data``, and wait until it may be reused."""
        if self._lost is not None:
            raise self._lost
        self._writable.clear()
        if self.transport.write([data]):
            self._writable.set()
        else:
            await self._writable.wait()

    async def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        while len(self.received) < size:
            if self._lost is not None:
                raise self._lost
            self._coming = asyncio.get_running_loop().create_future()
            await self._coming
        found = bytes(self.received[:size])
        del self.received[:size]
        return found


class Payload:
    """Random bytes in separate memory, which RDMA may gather from."""

    def __init__(self, size: int = 64 * MESSAGE) -> None:
        self.memory = mmap.mmap(-1, size)
        self.memory[:] = random.Random(size).randbytes(size)
        self.view = memoryview(self.memory)

    def pieces(self, total: int, most: int) -> list[memoryview]:
        """Return ``total`` bytes in pieces of at most ``most`` bytes, each from another offset."""
        found = []
        start = 0
        while total:
            size = min(most, total, len(self.view) - start)
            found.append(self.view[start : start + size])
            total -= size
            start = (start + size) % len(self.view)
        return found


async def _connected(connector: Connector, host: str, port: int) -> _Peer:
    peer = _Peer()
    handler: TransportHandler = peer
    address = (await connector.resolve(host, port))[0]
    peer.transport = await connector.connect(address, port, handler, server_hostname=host)
    return peer


async def _close(peer: _Peer) -> None:
    peer.transport.close()
    await peer.ended.wait()


async def echo(peer: _Peer, payload: Payload, size: int, count: int) -> dict[str, float]:
    """Measure the latencies of a message and its answer, in microseconds.

    Raises:
        WrongBytesError: an answer differs from its message.
    """
    await peer.write(REQUEST.pack(MAGIC, ECHO, True, 0))
    taken = []
    cpu = time.process_time()
    for message in payload.pieces(size * count, size):
        began = time.perf_counter()
        await peer.write(message)
        answer = await peer.read(len(message))
        taken.append(time.perf_counter() - began)
        if zlib.crc32(answer) != zlib.crc32(message):
            raise WrongBytesError(f"{len(message)} bytes came back changed")
    ordered = sorted(taken)
    used = time.process_time() - cpu
    return {
        "p50_us": percentile(ordered, 50) * 1e6,
        "p99_us": percentile(ordered, 99) * 1e6,
        "cpu_us": used / len(taken) * 1e6,
    }


async def stream(peer: _Peer, payload: Payload, total: int, *, checked: bool) -> dict[str, float]:
    """Measure the throughput until the server confirms all bytes, and the CPU time of both sides for each MiB.

    Raises:
        WrongBytesError: the server's count or checksum differs.
    """
    pieces = payload.pieces(total, MESSAGE)
    crc = 0
    cpu = time.process_time()
    began = time.perf_counter()
    await peer.write(REQUEST.pack(MAGIC, STREAM, checked, total))
    for piece in pieces:
        if checked:
            crc = zlib.crc32(piece, crc)
        await peer.write(piece)
    came, theirs, server_cpu = ANSWER.unpack(await peer.read(ANSWER.size))
    elapsed = time.perf_counter() - began
    used = time.process_time() - cpu
    if (came, theirs) != (total, crc):
        raise WrongBytesError(f"{total} bytes with checksum {crc:08x} were sent, {came} with {theirs:08x} came")
    mebibytes = total / 2**20
    return {
        "mib_s": mebibytes / elapsed,
        "client_cpu_us_mib": used / mebibytes * 1e6,
        "server_cpu_us_mib": server_cpu / mebibytes * 1e6,
    }


def connectors(device: str | None, gid: str | None) -> dict[str, Connector]:
    """Return connectors for RDMA and TCP, in the order of the server's ports.

    Raises:
        SystemExit: there is no pyverbs.
    """
    try:
        return {"rdma": RdmaConnector(device=device, gid=gid), "tcp": StreamConnector()}
    except RdmaUnavailableError as error:
        raise SystemExit(str(error)) from error


async def measure(
    host: str,
    port: int | Mapping[str, int],
    connectors: Mapping[str, Connector],
    *,
    rounds: int,
    stream_bytes: int,
    echoes: int,
    checked: bool,
) -> Figures:
    """Measure every transport, in another order each round; return medians over the rounds.

    ``loop_late_max_ms``: greatest lateness of a timer of this process's loop, from before connecting to after closing.
    """
    payload = Payload()
    ports = {name: port + number for number, name in enumerate(connectors)} if isinstance(port, int) else port
    runs: dict[str, list[dict[str, float]]] = {}
    names = list(connectors)

    async def one(name: str, label: str, work: Callable[[_Peer], Awaitable[dict[str, float]]]) -> None:
        # Before the memory is registered, which happens when there is a connection.
        ticker = Ticker(asyncio.get_running_loop())
        peer = await _connected(connectors[name], host, ports[name])
        try:
            found = await work(peer)
        finally:
            await _close(peer)
        # All of it may have taken less than a tick.
        await asyncio.sleep(2 * INTERVAL)
        late = ticker.stop()["late_max_ms"]
        runs.setdefault(f"{label}, {name.upper()}", []).append(found | {"loop_late_max_ms": late})

    async with AsyncExitStack() as leaving:
        for connector in connectors.values():
            if isinstance(connector, RdmaConnector):
                connector.register(payload.memory)
                leaving.callback(connector.unregister, payload.memory)
        for number in range(rounds):
            turn = number % len(names)
            for size in SIZES:
                for name in names[turn:] + names[:turn]:
                    echoing = functools.partial(echo, payload=payload, size=size, count=echoes)
                    await one(name, f"echo of {size} bytes", echoing)
            for name in names[turn:] + names[:turn]:
                streaming = functools.partial(stream, payload=payload, total=stream_bytes, checked=checked)
                await one(name, "stream", streaming)
    return {
        label: {key: statistics.median(run[key] for run in of) for key in of[0]} for label, of in sorted(runs.items())
    }


def table(found: Figures) -> str:
    """Return the results as text."""
    lines = []
    for label, of in found.items():
        cells = ", ".join(f"{name} {value:,.1f}" for name, value in of.items())
        lines.append(f"{label}: {cells}")
    return "\n".join(lines)


def address_of(text: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        ValueError: the text is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise ValueError(f"invalid address {text!r}: give HOST:PORT; TCP uses the next port")
    return host.strip("[]"), int(port)
