"""A listener in the test process that handles only ApiVersions, SaslHandshake and SaslAuthenticate.

It is for mechanisms and servers that Apache Kafka does not have: it keeps the clients' messages, and a test answers
them. It forwards other requests to a broker, if there is one behind it; otherwise they end the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from aioproducer.protocol import Response, decode_request, encode_response
from aioproducer.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from aioproducer.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_VERSIONS = {0: (3, 11), 3: (0, 12), 17: (0, 1), 18: (0, 4), 22: (0, 5), 36: (0, 2)}
_UNSUPPORTED_MECHANISM = 33


class Received(NamedTuple):
    """One message of a mechanism."""

    mechanism: str
    message: bytes


def refused(text: str = "Authentication failed") -> SaslAuthenticateResponse:
    """Return the answer to wrong credentials."""
    return SaslAuthenticateResponse(error_code=58, error_message=text, auth_bytes=b"", session_lifetime_ms=0)


def accepted(message: bytes = b"") -> SaslAuthenticateResponse:
    """Return the answer to a correct message, or the server's next one."""
    return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=message, session_lifetime_ms=0)


class SaslListener:
    """An async context manager; ``judge`` answers each message, by default as if the credentials were wrong.

    ``upstream`` is the address of a listener without authentication, for the requests of accepted clients. It has to
    advertise this listener's address.
    """

    def __init__(
        self,
        mechanisms: Sequence[str],
        judge: Callable[[Received], SaslAuthenticateResponse] = lambda _: refused(),
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.received: list[Received] = []
        self.upstream = ""
        self._mechanisms = list(mechanisms)
        self._judge = judge
        self._context = context
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def address(self) -> str:
        """Host and port; the certificates of tests are for ``localhost``."""
        assert self._server is not None
        return f"localhost:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        mechanism = ""
        is_accepted = False
        try:
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size, "big"))
                header, request = decode_request(frame)
                response: Response
                if isinstance(request, ApiVersionsRequest):
                    response = _api_versions()
                elif isinstance(request, SaslHandshakeRequest):
                    mechanism = request.mechanism
                    code = 0 if mechanism in self._mechanisms else _UNSUPPORTED_MECHANISM
                    response = SaslHandshakeResponse(error_code=code, mechanisms=self._mechanisms)
                elif isinstance(request, SaslAuthenticateRequest):
                    received = Received(mechanism, bytes(request.auth_bytes))
                    self.received.append(received)
                    response = self._judge(received)
                    is_accepted = not response.error_code
                else:
                    if is_accepted and self.upstream:
                        await self._pass_on(size + frame, reader, writer)
                    break
                writer.writelines(encode_response(response, header.request_api_version, header.correlation_id))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            # The client has disconnected.
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _pass_on(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.upstream.rpartition(":")
        from_broker, to_broker = await asyncio.open_connection(host, int(port))
        try:
            to_broker.write(first)
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, to_broker))
                group.create_task(_copy(from_broker, writer))
        finally:
            to_broker.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        target.write(data)
        await target.drain()
    target.close()


def _api_versions() -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=0,
        throttle_time_ms=0,
        api_keys=[
            ApiVersion(api_key=key, min_version=oldest, max_version=newest)
            for key, (oldest, newest) in _VERSIONS.items()
        ],
    )
