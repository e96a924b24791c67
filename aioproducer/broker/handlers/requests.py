"""From a frame to its response: reads a request, applies a test's faults, calls the handler, writes the response.

As in Kafka a request that cannot be read, or with an unsupported version, ends the client's connection; only
ApiVersions is answered in any version. Any other failure is answered in the form of the request's response.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from aioproducer.broker.handlers import HANDLERS
from aioproducer.broker.handlers.context import BrokerNode, Handler, RequestContext
from aioproducer.broker.handlers.error_responses import TOPIC_LISTS, error_response, is_empty, merge, take_out
from aioproducer.broker.handlers.fetch_session import FetchSessionCache
from aioproducer.broker.server.connection import Reply
from aioproducer.errors import BrokerError, ProtocolError, UnsupportedVersionError
from aioproducer.protocol import (
    APIS,
    ApiKey,
    Request,
    Response,
    decode_request_header,
    encode_response,
)
from aioproducer.protocol.codec import message_codec
from aioproducer.protocol.messages import ApiVersionsRequest

if TYPE_CHECKING:
    from aioproducer.broker.faults import Fault
    from aioproducer.broker.server.connection import ServerConnection

_logger = logging.getLogger(__name__)

_REQUESTS = {int(key): api.request for key, api in APIS.items()}

# For these APIs the handler applies a fault to each topic or partition, which the request may not list.
_PLACED_BY_HANDLER = frozenset({ApiKey.FETCH, ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS})


class Requests:
    """Answers the requests of one node."""

    def __init__(self, broker: BrokerNode, handlers: Mapping[ApiKey, Handler] = HANDLERS) -> None:
        self.handlers = handlers
        """The handlers, by the numbers of the APIs."""
        self.fetch_sessions = FetchSessionCache(broker.config.max_incremental_fetch_session_cache_slots, broker.wall_ms)
        self._broker = broker
        self._served: Mapping[int, Handler] = {int(key): handler for key, handler in handlers.items()}

    async def answer(self, connection: ServerConnection, frame: memoryview) -> Reply:
        """Return the reply to a request, which has no size in front. Raises nothing but ``CancelledError``."""
        try:
            header, body = decode_request_header(frame)
        except ProtocolError as error:
            return _refused(connection, str(error))
        api_key, version = header.request_api_key, header.request_api_version
        handler = self._served.get(api_key)
        if handler is None or version not in handler.versions:
            if api_key == ApiKey.API_VERSIONS:
                refusal = error_response(ApiVersionsRequest(), 0, UnsupportedVersionError())
                assert refusal is not None
                return Reply(encode_response(refusal, 0, header.correlation_id))
            return _refused(connection, f"{ApiKey(api_key).name} of version {version} is not served")
        try:
            request = _read(_REQUESTS[api_key], version, body)
        except ProtocolError as error:
            return _refused(connection, str(error))
        broker = self._broker
        fault = broker.faults.take(broker.node_id, header, request)
        context = RequestContext(broker, connection, header, version, fault)
        if fault is None:
            response = await self._handle(handler, context, request)
            if response is None:
                return Reply((), close=context.must_close)
            return self._reply(context, request, response)
        if fault.postpone_ms:
            await broker.faults.hold(fault.postpone_ms)
        if fault.is_repeated and fault.disconnect != "before":
            # In separate memory: a handler writes offsets into the records.
            copy = memoryview(bytearray(body))
            await self._respond(handler, context, _read(_REQUESTS[api_key], version, copy), fault)
        return await self._answer_faulty(handler, context, request, fault)

    async def _handle(self, handler: Handler, context: RequestContext, request: Request[Response]) -> Response | None:
        """Return the handler's response; an exception becomes an error response."""
        try:
            return await handler.handle(context, request)
        except Exception as error:
            return self._failed(context, request, error)

    def _failed(self, context: RequestContext, request: Request[Response], error: Exception) -> Response | None:
        if not isinstance(error, BrokerError):
            _logger.error(
                "%s of version %d from %s failed",
                type(request).__name__,
                context.version,
                context.connection.peer,
                exc_info=error,
            )
        response = error_response(request, context.version, error)
        if response is None:
            context.must_close = True
        return response

    def _reply(self, context: RequestContext, request: Request[Response], response: Response) -> Reply:
        header = context.header
        try:
            buffers = encode_response(response, context.version, header.correlation_id)
        except Exception as error:
            failure = self._failed(context, request, error)
            if failure is None:
                return Reply((), close=True)
            buffers = encode_response(failure, context.version, header.correlation_id)
        return Reply(buffers, close=context.must_close)

    async def _answer_faulty(
        self, handler: Handler, context: RequestContext, request: Request[Response], fault: Fault
    ) -> Reply:
        if fault.disconnect == "before":
            return Reply((), close=True)
        response = await self._respond(handler, context, request, fault)
        if fault.delay_ms:
            await self._broker.faults.hold(fault.delay_ms)
        if fault.disconnect == "after":
            return Reply((), close=True)
        if response is None:
            return Reply((), close=context.must_close or fault.disconnect is not None, mute_ms=fault.throttle_ms)
        if fault.throttle_ms and "throttle_time_ms" in response.schema.names:
            # The field has this name in every response that has it.
            response.throttle_time_ms = fault.throttle_ms  # type: ignore[attr-defined]
        reply = self._reply(context, request, response)
        if fault.disconnect == "half":
            whole = b"".join(reply.buffers)
            return Reply((whole[: len(whole) // 2],), close=True)
        return Reply(reply.buffers, close=reply.close, mute_ms=fault.throttle_ms)

    async def _respond(
        self, handler: Handler, context: RequestContext, request: Request[Response], fault: Fault
    ) -> Response | None:
        """Return the handler's response, with the errors of the failed parts."""
        api_key = request.schema.api_key
        if not fault.has_errors or api_key in _PLACED_BY_HANDLER:
            return await self._handle(handler, context, request)
        if api_key not in TOPIC_LISTS:
            error = context.error_for()
            return (
                await self._handle(handler, context, request)
                if error is None
                else self._failed(context, request, error)
            )
        parts = take_out(request, context.version, context.error_for, self._topic_name)
        if not parts:
            return await self._handle(handler, context, request)
        if not is_empty(request):
            parts.insert(0, await self._handle(handler, context, request))
        responses = [part for part in parts if part is not None]
        if not responses:
            context.must_close = True
            return None
        return merge(request, responses)

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self._broker.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name


def _read(request_class: type[Request[Response]], version: int, body: memoryview) -> Request[Response]:
    """Read the request in ``body``; bytes behind it are ignored, as in Kafka.

    Raises:
        ProtocolError: the body is not such a request.
    """
    try:
        request, _ = message_codec(request_class, version).read(body, 0)
    except (struct.error, IndexError) as error:
        raise ProtocolError(
            f"{request_class.__name__} of version {version} is cut off after {len(body)} bytes"
        ) from error
    return cast("Request[Response]", request)


def _refused(connection: ServerConnection, why: str) -> Reply:
    """Close the connection after an unsupported or unreadable request."""
    _logger.info("Closing the connection from %s: %s", connection.peer, why)
    return Reply((), close=True)
