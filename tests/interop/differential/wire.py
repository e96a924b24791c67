"""Requests as bytes on a connection, and their outcomes: a response, silence, or the end of the connection."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Mapping
from typing import TypeVar

from aioproducer.protocol import (
    Request,
    Response,
    decode_api_versions_response,
    decode_response,
    encode_request,
    encode_response,
)
from aioproducer.protocol.messages import ApiVersionsRequest

R = TypeVar("R", bound=Response)

CLIENT_ID = "differential"


class Outcome(enum.Enum):
    """The outcome instead of a response."""

    CLOSED = "connection closed"
    SILENCE = "no answer"


class Connection:
    """One connection; requests may be sent before earlier ones were answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str | None) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_id = 0

    @classmethod
    async def open(cls, host: str, port: int, client_id: str | None = CLIENT_ID) -> Connection:
        return cls(*await asyncio.open_connection(host, port, limit=16 * 1024 * 1024), client_id)

    async def send_bytes(self, data: bytes) -> None:
        """Send exactly these bytes; if the peer has closed, reading its response shows it."""
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            pass

    async def send(self, request: Request[Response], version: int) -> int:
        """Send a request and return its correlation id."""
        self._correlation_id += 1
        await self.send_bytes(b"".join(encode_request(request, version, self._correlation_id, self._client_id)))
        return self._correlation_id

    async def read_frame(self, timeout: float = 30) -> bytes | Outcome:
        """Return the next response without its size."""
        try:
            async with asyncio.timeout(timeout):
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                return await self._reader.readexactly(size)
        except TimeoutError:
            return Outcome.SILENCE
        except (asyncio.IncompleteReadError, ConnectionError):
            return Outcome.CLOSED

    async def read(self, request: Request[R], version: int, correlation_id: int, timeout: float = 30) -> R | Outcome:
        """Return the response to ``request``, which must be the next one."""
        frame = await self.read_frame(timeout)
        if isinstance(frame, Outcome):
            return frame
        response_class = type(request).response_class()
        found: int
        response: Response
        if isinstance(request, ApiVersionsRequest):
            found, response = decode_api_versions_response(version, frame)
        else:
            found, response = decode_response(response_class, version, frame)
        assert found == correlation_id, f"the answer to request {found} came, that to {correlation_id} was to come"
        assert isinstance(response, response_class)
        if not isinstance(request, ApiVersionsRequest):
            # Responses with the same fields then have the same bytes.
            assert b"".join(encode_response(response, version, found))[4:] == frame, f"unusual encoding: {response}"
        return response

    async def ask(self, request: Request[R], version: int, timeout: float = 30) -> R | Outcome:
        """Send a request and wait for its response."""
        return await self.read(request, version, await self.send(request, version), timeout)

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass


class Nodes:
    """Connections to the nodes of a cluster: a shared one for each, and further ones on request; a context manager."""

    def __init__(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        self.addresses = dict(addresses)
        self.running = set(addresses)
        self._opened: list[Connection] = []
        self._shared: dict[int, Connection] = {}

    async def connect(self, node: int = 1, client_id: str | None = CLIENT_ID) -> Connection:
        """Open a separate connection."""
        connection = await Connection.open(*self.addresses[node], client_id)
        self._opened.append(connection)
        return connection

    async def shared(self, node: int = 1) -> Connection:
        """Return the shared connection."""
        if node not in self._shared:
            self._shared[node] = await self.connect(node)
        return self._shared[node]

    def drop(self, connection: Connection) -> None:
        """Drop ``connection``, which the peer has closed: the next request uses a new one."""
        self._shared = {node: shared for node, shared in self._shared.items() if shared is not connection}

    def forget(self, node: int) -> None:
        """Handle the end of the node."""
        self.running.discard(node)
        self._shared.pop(node, None)

    def alive(self, node: int) -> None:
        """Handle the restart of the node."""
        self.running.add(node)

    async def close(self) -> None:
        for connection in self._opened:
            await connection.close()
