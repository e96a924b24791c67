"""The broker's side of a connection: frames in, answers out, one request at a time, and what can go wrong with each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from typing import NamedTuple, Protocol

from aioproducer.protocol import (
    ApiKey,
    Request,
    RequestHeader,
    Response,
    decode_request,
    decode_request_header,
    encode_response,
)
from aioproducer.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from aioproducer.protocol.messages.metadata import MetadataRequest
from aioproducer.protocol.messages.produce import ProduceRequest
from aioproducer.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from aioproducer.transport.memory import MemoryTransport
from tests.simulation.cluster import Node, SimulatedCluster
from tests.simulation.faults import Fault
from tests.simulation.sasl import SaslSide

UNSUPPORTED_VERSION = 35
REBOOTSTRAP_REQUIRED = 129


class Event(NamedTuple):
    """Something that happened at a broker."""

    at: float
    node: int
    what: str
    api: ApiKey | None = None
    version: int = -1
    correlation_id: int = -1
    client_id: str | None = None
    request: Request[Response] | None = None

    def __str__(self) -> str:
        name = "" if self.api is None else f" {self.api.name} v{self.version} #{self.correlation_id}"
        return f"{self.at:.6f} broker {self.node}: {self.what}{name}"


class Server(Protocol):
    """The client of these connections."""

    loop: asyncio.AbstractEventLoop
    cluster: SimulatedCluster
    journal: list[Event]
    connections: dict[BrokerConnection, None]


class BrokerConnection:
    """One connection, as its broker sees it; the handler of its transport."""

    def __init__(self, server: Server, node: Node, transport: MemoryTransport) -> None:
        self.node = node
        self.transport = transport
        self.ended = False
        self.unanswered = 0
        self._server = server
        self._buffer = bytearray()
        self._waiting: deque[bytes] = deque()
        self._busy = False
        self._sasl = None if node.sasl is None else SaslSide(node.sasl)
        server.connections[self] = None
        self._note("connected")

    def _note(self, what: str, header: RequestHeader | None = None, request: Request[Response] | None = None) -> None:
        event = Event(self._server.loop.time(), self.node.id, what)
        if header is not None:
            event = event._replace(
                api=ApiKey(header.request_api_key),
                version=header.request_api_version,
                correlation_id=header.correlation_id,
                client_id=header.client_id,
                request=request,
            )
        self._server.journal.append(event)

    def data_received(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                break
            self._waiting.append(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
            self.unanswered += 1
        self._next()

    def write_completed(self, count: int) -> None:
        """Do nothing: responses are copies, and no caller waits for this."""

    def connection_lost(self, exception: Exception | None) -> None:
        self.ended = True
        self._note("disconnected")
        # The request in progress is still processed; those behind it are lost with the connection.
        self._waiting.clear()
        del self._server.connections[self]

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        frame = self._waiting.popleft()
        header, _ = decode_request_header(frame)
        fault = self._server.cluster.fault_for(header.request_api_key, self.node.id)
        self._busy = True
        if fault.delay:
            self._server.loop.call_later(fault.delay, self._handle, frame, fault)
        else:
            self._handle(frame, fault)

    def _handle(self, frame: bytes, fault: Fault) -> None:
        if not self.node.up:
            return
        header, _ = decode_request_header(frame)
        lowest, highest = self.node.versions.get(ApiKey(header.request_api_key), (-1, -1))
        if not lowest <= header.request_api_version <= highest:
            self._refuse_version(header, highest)
            return
        header, request = decode_request(frame)
        self._note("got", header, request)
        if fault.disconnect == "before":
            self.transport.abort()
            return
        response: Response | None = None
        if self._sasl is not None:
            response, ends = self._sasl.answer(request, self._server.loop.time())
            if ends and response is None:
                self._note("not authenticated", header)
                self.transport.abort()
                return
            if ends:
                fault = dataclasses.replace(fault, disconnect="answered")
        if response is None:
            response = self._response(header, request, fault)
        self._note("did", header)
        if fault.disconnect == "after":
            self.transport.abort()
        elif response is None:
            self._answered()
        elif fault.answer_delay:
            self._server.loop.call_later(fault.answer_delay, self._answer, header, response, fault)
        else:
            self._answer(header, response, fault)

    def _refuse_version(self, header: RequestHeader, highest: int) -> None:
        self._note("refused", header)
        if header.request_api_key != ApiKey.API_VERSIONS:
            self.transport.close()
            return
        response = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION)
        response.api_keys = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=highest)]
        self.transport.write([b"".join(encode_response(response, 0, header.correlation_id))])
        self._answered()

    def _response(self, header: RequestHeader, request: Request[Response], fault: Fault) -> Response | None:
        cluster = self._server.cluster
        response: Response
        match request:
            case ApiVersionsRequest():
                response = self._versions(request, fault)
            case MetadataRequest():
                response = cluster.metadata(request, fault)
            case InitProducerIdRequest():
                response = InitProducerIdResponse(error_code=fault.error)
                if not fault.error:
                    response.producer_id = cluster.next_producer_id
                    response.producer_epoch = cluster.next_producer_epoch
                    cluster.next_producer_id += 1
            case ProduceRequest():
                produced = cluster.produce(request, header.request_api_version, self.node.id, fault)
                if request.acks == 0:
                    if any(answer.error_code for topic in produced.responses for answer in topic.partition_responses):
                        self.transport.close()
                    return None
                response = produced
            case _:
                raise AssertionError(f"{request} is not for these brokers")
        if fault.throttle_time_ms:
            response.throttle_time_ms = fault.throttle_time_ms  # type: ignore[attr-defined]  # all of these have it
        return response

    def _versions(self, request: ApiVersionsRequest, fault: Fault) -> ApiVersionsResponse:
        expected = (request.cluster_id, request.node_id)
        if request.cluster_id is not None and expected != (self._server.cluster.cluster_id, self.node.id):
            return ApiVersionsResponse(error_code=REBOOTSTRAP_REQUIRED)
        response = ApiVersionsResponse(error_code=fault.error)
        response.api_keys = [
            ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in self.node.versions.items()
        ]
        return response

    def _answer(self, header: RequestHeader, response: Response, fault: Fault) -> None:
        correlation_id = header.correlation_id + (1000 if fault.answer == "wrong id" else 0)
        frame = b"".join(encode_response(response, header.request_api_version, correlation_id))
        if fault.answer == "silence":
            return
        if fault.answer == "oversized":
            frame = b"\x7f\xff\xff\xff" + frame[4:]
        elif fault.answer == "garbage":
            frame = frame[:8] + b"\xff" * (len(frame) - 8)
        if fault.disconnect == "half":
            self.transport.write([frame[: len(frame) // 2]])
            self.transport.close()
            return
        self.transport.write([frame])
        if fault.disconnect == "answered":
            self.transport.close()
        self._answered()

    def _answered(self) -> None:
        self.unanswered -= 1
        self._busy = False
        # Not from in here: a long queue would be a deep stack.
        self._server.loop.call_soon(self._next)
