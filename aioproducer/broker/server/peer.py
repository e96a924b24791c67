"""A broker's connection to another broker: followers fetch through it.

Both sides are the same software, so no versions are negotiated: who asks names the version.
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
    """Sends requests to one broker, one at a time, in the order of the calls; connects when there is something to send.

    After anything that leaves in doubt what the next bytes belong to (a deadline, a cancellation, a response that is
    none) the connection is reset, and the next request makes a new one. Nothing is retried here.
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
        """Whether there is a connection that has not been seen to end."""
        return self._link is not None and not self._link.is_lost

    async def request(self, message: Request[ResponseT], version: int, timeout: float) -> ResponseT:
        """The response to ``message``, whose records are views of memory that nobody else has.

        ``timeout`` (seconds) covers the requests before it, connecting, and the response.

        Raises:
            OSError: no connection could be made, it was lost, or this client was closed.
            KafkaTimeoutError: there was no response within ``timeout``.
            ProtocolError: what came is no response to this request.
            UnsupportedVersionError: the message has no such version, or not all of its fields in it.
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
        """Reset the connection; requests that wait, and later ones, raise ``ConnectionAbortedError``."""
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
                    f"{self._name}: a response with correlation id {correlation_id}, "
                    f"but {self._correlation_id} was asked"
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
            # By close(), unless it is the caller who is cancelled.
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
    """One connection, and the response that is waited for; the handler of its transport."""

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
            ProtocolError: the response is too long, or nobody asked for it.
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
        """End the exchange that is going on with ``error``."""
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
                self.fail(ProtocolError(f"{self._peer}: more came than the response that was asked for"))
                self.abort()
            else:
                self._response.set_result(frame)

    def write_completed(self, count: int) -> None:
        """Nobody waits for that: the response says more."""

    def connection_lost(self, exception: Exception | None) -> None:
        self.is_lost = True
        self.fail(exception or ConnectionResetError(f"{self._peer}: the connection was closed before the response"))
