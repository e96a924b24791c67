"""A broker's connection to another broker, through which followers fetch.

Both sides are the same software, so versions are not negotiated: the requesting side chooses the version.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from aioproducer.broker.server.framing import FrameReader
from aioproducer.errors import KafkaTimeoutError, ProtocolError
from aioproducer.protocol import Request, Response, decode_correlation_id, decode_response, encode_request
from aioproducer.transport.base import Buffer, Connector, Transport

ResponseT = TypeVar("ResponseT", bound=Response)

_IDS: Final = 2**31


class PeerClient:
    """Sends requests to one broker, one at a time, in the order of the calls; connects at the first one.

    A deadline, a cancellation or an invalid response leaves the position in the stream unknown. The connection is reset
    then, and the next request opens a new one. Nothing is retried here.
    """

    def __init__(
        self,
        connector: Connector,
        host: str,
        port: int,
        *,
        client_id: str | None = None,
        max_response_bytes: int = 2**31 - 1,
        server_hostname: str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._connector = connector
        self._client_id = client_id
        self._max_response_bytes = max_response_bytes
        self._server_hostname = server_hostname
        self._turn = asyncio.Lock()
        self._link: _Link | None = None
        self._connecting: asyncio.Task[Transport] | None = None
        self._correlation_id = -1
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that is not known to have ended."""
        return self._link is not None and not self._link.is_lost

    async def request(self, message: Request[ResponseT], version: int, timeout: float) -> ResponseT:
        """Return the response to ``message``; its records are views of memory that is the caller's.

        ``timeout`` (seconds) covers earlier requests, connecting, and the response.

        Raises:
            OSError: the connection failed or was lost, or this client was closed.
            KafkaTimeoutError: there was no response within ``timeout``.
            ProtocolError: the received bytes are no response to this request.
            UnsupportedVersionError: the message does not exist in this version, or a field that is set does not.
        """
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline, self._turn:
                return await self._exchange(message, version)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            name = type(message).__name__
            raise KafkaTimeoutError(f"{self._name}: no response to {name} within {timeout} s") from error

    def close(self) -> None:
        """Reset the connection; waiting and later requests raise ``ConnectionAbortedError``."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.fail(self._closed_error())
        self._reset()

    @property
    def _name(self) -> str:
        return f"{self.host}:{self.port}"

    def _closed_error(self) -> ConnectionAbortedError:
        return ConnectionAbortedError(f"the connection to {self._name} was closed")

    def _reset(self) -> None:
        if self._link is not None:
            self._link.abort()
            self._link = None

    async def _exchange(self, message: Request[ResponseT], version: int) -> ResponseT:
        self._correlation_id = (self._correlation_id + 1) % _IDS
        buffers = encode_request(message, version, self._correlation_id, self._client_id)
        link = await self._connected()
        try:
            frame = await link.exchange(buffers)
            correlation_id = decode_correlation_id(frame)
            if correlation_id != self._correlation_id:
                raise ProtocolError(
                    f"{self._name}: received a response with correlation id {correlation_id} "
                    f"instead of {self._correlation_id}"
                )
            _, response = decode_response(message.response_class(), version, frame)
        except BaseException:
            self._reset()
            raise
        return response

    async def _connected(self) -> _Link:
        if self._closed:
            raise self._closed_error()
        if self._link is not None and not self._link.is_lost:
            return self._link
        link = _Link(self._name, self._max_response_bytes)
        connecting = self._connector.connect(self.host, self.port, link, server_hostname=self._server_hostname)
        connect = self._connecting = asyncio.get_running_loop().create_task(connecting)
        try:
            link.transport = await connect
        except asyncio.CancelledError:
            if connect.done() and not connect.cancelled() and connect.exception() is None:
                connect.result().abort()
            # Cancelled by close(), unless the caller itself is cancelled.
            task = asyncio.current_task()
            if self._closed and not (task is not None and task.cancelling()):
                raise self._closed_error() from None
            raise
        finally:
            self._connecting = None
        if self._closed:
            link.abort()
            raise self._closed_error()
        if link.is_lost:
            raise ConnectionResetError(f"{self._name}: the connection was closed at once")
        self._link = link
        return link


class _Link:
    """One connection and the awaited response; the handler of its transport."""

    transport: Transport

    def __init__(self, peer: str, max_response_bytes: int) -> None:
        self.is_lost = False
        self._peer = peer
        self._reader = FrameReader(max_response_bytes)
        self._response: asyncio.Future[memoryview] | None = None

    async def exchange(self, buffers: list[Buffer]) -> memoryview:
        """Send a request, and return the next response.

        Raises:
            OSError: the connection is lost.
            ProtocolError: the response is too long, or no request was sent for it.
        """
        self._response = asyncio.get_running_loop().create_future()
        try:
            self.transport.write(buffers)
            return await self._response
        finally:
            self._response = None

    def abort(self) -> None:
        self.transport.abort()

    def fail(self, error: Exception) -> None:
        """Fail the current exchange with ``error``."""
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)

    def data_received(self, data: Buffer) -> None:
        self._reader.feed(data)
        frame = self._reader.take()
        if self._reader.failure is not None:
            self.fail(self._reader.failure)
            self.abort()
        elif frame is not None:
            if self._response is None or self._response.done() or self._reader.has_frame or self._reader.inside_frame:
                self.fail(ProtocolError(f"{self._peer}: received bytes that belong to no request"))
                self.abort()
            else:
                self._response.set_result(frame)

    def write_completed(self, count: int) -> None:
        """Ignored: the response shows that the request arrived."""

    def connection_lost(self, exception: Exception | None) -> None:
        self.is_lost = True
        self.fail(exception or ConnectionResetError(f"{self._peer}: the connection was closed before the response"))
