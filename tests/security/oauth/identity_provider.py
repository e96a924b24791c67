"""A token endpoint on loopback, in the test's process."""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs


def jwt(**claims: object) -> str:
    """A JWT with an invalid signature: clients do not verify it."""
    return ".".join([_part({"alg": "RS256"}), _part(claims), "c2lnbmF0dXJl"])


def _part(content: Mapping[str, object]) -> str:
    return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    form: dict[str, list[str]]


class Response(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def token_response(token: str, **others: object) -> Response:
    return Response(200, json.dumps({"access_token": token, "token_type": "Bearer", **others}).encode())


class IdentityProvider:
    """Answers each request with the next of ``responses``, then with the last one; ``None``: never answers."""

    def __init__(self, responses: tuple[Response | Callable[[Request], Response] | None, ...]) -> None:
        self._responses = list(responses)
        self.requests: list[Request] = []
        self.url = ""
        self._connections: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")[:-2]
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            assert first.startswith("POST ")
            request = Request(first.split()[1], headers, parse_qs(body.decode(), strict_parsing=True))
            self.requests.append(request)
            response = self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
            if response is None:
                # Until the client gives up.
                await reader.read()
                return
            if callable(response):
                response = response(request)
            lines = [f"HTTP/1.1 {response.status} Reason", f"Content-Length: {len(response.body)}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in response.headers]
            writer.write("\r\n".join([*lines, "", ""]).encode() + response.body)
            await writer.drain()
        # The client reads no more of a response that is too large.
        except ConnectionError:
            pass
        finally:
            writer.close()
            self._connections.discard(writer)


@asynccontextmanager
async def identity_provider(
    *responses: Response | Callable[[Request], Response] | None, context: ssl.SSLContext | None = None
) -> AsyncIterator[IdentityProvider]:
    """Serve at ``.url`` on a free port of 127.0.0.1; with ``context`` by TLS."""
    provider = IdentityProvider(responses)
    server: Any = await asyncio.start_server(provider.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    provider.url = f"{'https' if context else 'http'}://127.0.0.1:{port}/token"
    try:
        yield provider
    finally:
        server.close()
        for writer in list(provider._connections):
            writer.transport.abort()
        await server.wait_closed()
