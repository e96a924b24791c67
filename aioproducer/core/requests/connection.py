"""Compiled. One connection to a broker without I/O: requests become buffers, and bytes become responses.

The driver connects a transport and moves the bytes. It writes the buffers that `Connection.start`, `Connection.send`
and `Connection.data_to_send` return, and passes received data to `Connection.receive_data`. When the transport is lost,
it calls `Connection.eof`. The time is passed in, in monotonic seconds.

The rules:

* First the connection requests the broker's versions, then the client authenticates if required, and only then may
  requests be sent. `reauthenticate` authenticates again behind the requests in flight; none is sent until that ends.
* A broker answers the requests of a connection in their order. So the next response belongs to the oldest request in
  flight. If its correlation id differs, nothing on this connection can be trusted any longer. A request that expects no
  response (acks=0) should get none; a response that arrives nevertheless is ignored.
* A fault in one response is a fault of the whole connection: it is *poisoned*. That happens once, the first reason is
  kept, and every request that was in flight is returned exactly once, oldest first.
* Nothing that a broker sends raises an exception here: it either completes requests or poisons.

No Python form: ``receive_data`` and ``_receive_frame`` read sizes, frames and correlation ids through C pointers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from aioproducer._build import __version__
from aioproducer._common.diagnosis import (
    ended_before_first_answer,
    ended_before_first_service,
    unexpected_frame,
)
from aioproducer._common.texts import counted
from aioproducer._common.views import is_of_bytes
from aioproducer.core.requests.broker_versions import BrokerVersions, VersionRange, client_must_wait
from aioproducer.core.requests.connection_state import NEXT_STATE, ConnectionEvent, ConnectionState
from aioproducer.error_codes import UNSUPPORTED_VERSION
from aioproducer.errors import (
    KafkaError,
    NetworkError,
    ProtocolError,
    RequestTimedOutError,
    broker_error,
)
from aioproducer.protocol import (
    APIS,
    ApiKey,
    Buffer,
    Request,
    Response,
    decode_api_versions_response,
    decode_response,
    encode_request,
)
from aioproducer.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if TYPE_CHECKING:
    from aioproducer.core.requests.authenticator import Authenticator
    from aioproducer.core.requests.sasl_exchange import SaslExchange
    from aioproducer.protocol.parts import ResponseInParts
    from aioproducer.protocol.produce_frames import Acknowledged, PlainProduceRequest

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.memoryview import PyMemoryView_GET_BUFFER
else:
    # The compiled module has it from its .pxd file.
    from aioproducer.wire.record_batch import read_integer

CLIENT_SOFTWARE_NAME = "aioproducer"

DEFAULT_MAX_FRAME_BYTES = 100 * 1024 * 1024
"""The largest accepted response: a broker accepts requests of the same size (``socket.request.max.bytes``)."""

LARGEST_CORRELATION_ID = 2**31 - 1

# Bytes that are reserved at once for a response that arrives in parts.
_FIRST_ROOM = 1024 * 1024

# Nothing is sent in this last part of a session, as it could reach the broker after the end: a share, at most seconds.
SESSION_MARGIN = 0.05
MAX_SESSION_MARGIN = 0.05

_API_VERSIONS = int(ApiKey.API_VERSIONS)

_SIZE = struct.Struct(">i")
_SIZE_OF_SIZE = _SIZE.size
_CORRELATION_ID = struct.Struct(">i")

# Read with every request: in Python 3.11 access to a member of an Enum costs a call.
_READY = ConnectionState.READY

AnyResponse: TypeAlias = "Response | Acknowledged | ResponseInParts[Any, Any]"
ReadResponse: TypeAlias = Callable[[int, Buffer], AnyResponse]
"""Reads a response of a version, if it is not to be decoded at once or in full."""


class InFlight:
    """A request that was sent and awaits its response, with the ``context`` of its caller. It never changes."""

    __slots__ = (
        "api_key",
        "context",
        "correlation_id",
        "deadline",
        "read_response",
        "response_class",
        "sent_at",
        "version",
    )

    correlation_id: int
    api_key: int
    version: int
    context: object
    sent_at: float
    deadline: float
    response_class: type[Response] | None
    read_response: ReadResponse | None


class Completed:
    """A response, and the request that it answers. ``size`` is the response's bytes on the wire.

    ``latency``: seconds from sending the request to receiving the response, at ``received_at``.
    """

    __slots__ = ("api_key", "context", "correlation_id", "latency", "received_at", "response", "size", "version")

    context: object
    response: AnyResponse
    api_key: int
    version: int
    correlation_id: int
    latency: float
    received_at: float
    size: int


def _completed(request: InFlight, response: AnyResponse, received_at: float, size: int) -> Completed:
    completed = Completed.__new__(Completed)
    completed.context = request.context
    completed.response = response
    completed.api_key = request.api_key
    completed.version = request.version
    completed.correlation_id = request.correlation_id
    completed.latency = received_at - request.sent_at
    completed.received_at = received_at
    completed.size = size
    return completed


class Connection:
    """The sans-IO side of one connection. Each connection gets a new one, so no old response meets a new request.

    peer
        The broker in error messages, ``host:port``.
    client_id
        The client id in every request header.
    node_id, cluster_id
        The expected broker (KIP-1242); another broker answers REBOOTSTRAP_REQUIRED, which poisons.
        Both or neither: None for bootstrap addresses, or without ``metadata_cluster_check_enable``.
    authenticator
        The SASL mechanism that runs before the connection is READY, or None.
    asks_for_sasl
        Without an authenticator: ask the listener whether it requires SASL, before the connection is READY.
    max_in_flight
        ``max_in_flight_requests_per_connection``.
    request_timeout
        Seconds that a response may take, unless `send` receives another time-out.
    max_frame_bytes
        A response with a larger size field poisons.
    uses_tls
        Whether the transport is encrypted: for error messages only.
    first_correlation_id
        Correlation id of the first request.
    """

    def __init__(
        self,
        *,
        peer: str,
        client_id: str | None,
        node_id: int | None = None,
        cluster_id: str | None = None,
        authenticator: Authenticator | None = None,
        asks_for_sasl: bool = False,
        max_in_flight: int = 5,
        request_timeout: float = 30.0,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        uses_tls: bool = False,
        first_correlation_id: int = 0,
    ) -> None:
        self.peer: str = peer
        self.state: ConnectionState = ConnectionState.CONNECTING
        self.error: KafkaError | None = None
        """Why the connection is CLOSED: the first error."""
        self.throttled_until: float = -math.inf
        """Nothing may be sent before this time; it never decreases."""
        self.versions: BrokerVersions = BrokerVersions(peer)
        """The broker's API versions, known after the state CHECKING_API_VERSIONS."""
        self.has_served: bool = False
        """Whether the broker has answered a request of a caller: it requires no authentication that is missing."""

        self._client_id: str | None = client_id
        self._expected: tuple[str, int] | None = None
        if cluster_id is not None and node_id is not None and node_id >= 0:
            self._expected = (cluster_id, node_id)
        self._authenticator: Authenticator | None = authenticator
        self._asks_for_sasl: bool = asks_for_sasl
        self._exchange: SaslExchange | None = None
        # When nothing more may be sent in this session.
        self._session_end: float = math.inf
        # When the connection sent its last own request.
        self._own_sent_at: float = 0.0
        self._max_in_flight: int = max_in_flight
        self._request_timeout: float = request_timeout
        self._max_frame_bytes: int = max_frame_bytes
        self._uses_tls: bool = uses_tls
        self._next_correlation_id: int = first_correlation_id
        self._last_answered: int = first_correlation_id - 1
        # A list rather than a deque: it holds about five elements, and adding or removing one needs no call.
        self._in_flight: list[InFlight] = []
        # Cached results of ``versions.negotiate``.
        self._negotiated: dict[int, int] = {}
        self._answered: bool = False
        self._output: list[Buffer] = []
        self._frame_start = bytearray()
        self._frame: bytearray | None = None
        self._frame_size: int = 0
        self._frame_end: int = 0

    @property
    def in_flight(self) -> int:
        """Number of requests that await a response."""
        return len(self._in_flight)

    @property
    def has_partial_response(self) -> bool:
        """Whether a part of a response has arrived."""
        return self._frame is not None or bool(self._frame_start)

    def can_send(self, now: float) -> bool:
        """Return whether `send` may be called: READY, fewer in flight than allowed, not throttled, session not over."""
        return (
            self.state is _READY
            and len(self._in_flight) < self._max_in_flight
            and self.throttled_until <= now < self._session_end
        )

    def next_deadline(self) -> float:
        """Return when the first of the requests in flight times out; infinity without any."""
        return min((request.deadline for request in self._in_flight), default=math.inf)

    def timed_out(self, now: float) -> bool:
        """Return whether a response is overdue: the whole connection must then be poisoned (`expire`)."""
        return now >= self.next_deadline()

    def _advance(self, event: ConnectionEvent) -> None:
        state = NEXT_STATE.get((self.state, event))
        if state is None:
            raise RuntimeError(f"the connection to {self.peer} is {self.state.value}: it cannot be {event.value} now")
        self.state = state

    def start(self, now: float) -> list[Buffer]:
        """Return the first buffers to write, once the transport is connected.

        Raises:
            RuntimeError: called twice.
            KafkaError: the connection was poisoned before; this is the reason.
        """
        self._refuse_if_closed()
        self._advance(ConnectionEvent.STARTED)
        self._request_versions(APIS[ApiKey.API_VERSIONS].max_version, now)
        return self.data_to_send()

    def data_to_send(self) -> list[Buffer]:
        """Return the connection's own requests since the last call; write them after each `receive_data`.

        Empty while the connection is READY or CLOSED: then only `send` and `reauthenticate` return buffers.
        """
        output, self._output = self._output, []
        return output

    @property
    def session_lifetime_ms(self) -> int:
        """How long the last authentication is valid (KIP-368), in milliseconds; 0: without limit."""
        return 0 if self._exchange is None else self._exchange.session_lifetime_ms

    @property
    def session_end(self) -> float:
        """When nothing more may be sent in this session; infinity if it has no end."""
        return self._session_end

    @property
    def authentication_begun_at(self) -> float:
        """When the broker had begun the last authentication."""
        return 0.0 if self._exchange is None else self._exchange.begun_at

    @property
    def blocking_step(self) -> Callable[[], bytes | None] | None:
        """The step of the authentication that the driver has to run in a thread, or None.

        `step_ended` receives its result. A step that raises a KafkaError poisons the connection.
        """
        return None if self._exchange is None else self._exchange.blocking_step

    def step_ended(self, message: bytes | None, now: float) -> list[Buffer]:
        """Continue the authentication with the result of `blocking_step`, and return the buffers to write."""
        assert self._exchange is not None
        if self.error is None:
            try:
                self._continue_exchange(self._exchange.step_ended(message), now)
            except KafkaError as error:
                self._fail(error)
        return self.data_to_send()

    def reauthenticate(self, authenticator: Authenticator, now: float) -> list[Buffer]:
        """Authenticate again behind the requests in flight (KIP-368), and return the buffers to write.

        Until the connection is READY again, `can_send` is false. A rejection poisons the connection.

        Raises:
            RuntimeError: the connection is not READY.
        """
        self._advance(ConnectionEvent.SESSION_ENDING)
        self._begin_exchange(authenticator, now, True)
        return self.data_to_send()

    def negotiate(self, api_key: int, lowest: int = 0, highest: int = 32767) -> int:
        """Return the highest version of an API that broker and client support, within ``lowest`` and ``highest``.

        Raises:
            UnsupportedVersionError: there is none; only this request fails.
        """
        # One number for all three: looking it up is faster than for a tuple.
        asked = (api_key << 32) + (lowest << 16) + highest
        version = self._negotiated.get(asked)
        if version is None:
            version = self._negotiated[asked] = self.versions.negotiate(api_key, lowest=lowest, highest=highest)
        return version

    def send(
        self,
        request: Request[Response] | PlainProduceRequest,
        now: float,
        context: object = None,
        timeout: float | None = None,
        version: int | None = None,
        expect_response: bool = True,
        read_response: ReadResponse | None = None,
    ) -> list[Buffer]:
        """Put a request in flight and return the buffers to write, payloads by reference.

        Args:
            timeout: seconds that the response may take.
            version: the version of the request; by default the highest that both sides support.
            expect_response: False for Produce with acks=0: a broker does not answer it, so it is never in flight.
            read_response: reads a large response; by default it is decoded at once as a whole. If the result turns
                out malformed later, the caller must poison the connection with that error.

        Raises:
            UnsupportedVersionError: the broker does not support the API; nothing was sent, the connection is usable.
            ProtocolError: the request cannot be encoded in this version; likewise.
            KafkaError: the connection is CLOSED; this is the reason.
            RuntimeError: `can_send` was false.
        """
        if not self.can_send(now):
            self._refuse_if_closed()
            raise RuntimeError(
                f"cannot send to {self.peer} now: it is {self.state.value}, {len(self._in_flight)} of "
                f"{self._max_in_flight} requests are in flight, throttled for {max(0.0, self.throttled_until - now)} s"
                + (", the session has ended" if now >= self._session_end else "")
            )
        if version is None:
            version = self.negotiate(request.schema.api_key)
        return self._send(request, version, now, context, timeout, expect_response, read_response)

    def _send(
        self,
        request: Request[Response] | PlainProduceRequest,
        version: int,
        now: float,
        context: object,
        timeout: float | None,
        expect_response: bool,
        read_response: ReadResponse | None = None,
    ) -> list[Buffer]:
        # Ids are sequential, and so are the responses: two in flight are equal only with 2**31 requests in flight.
        correlation_id = self._next_correlation_id
        buffers = encode_request(request, version, correlation_id, self._client_id)
        self._next_correlation_id = 0 if correlation_id == LARGEST_CORRELATION_ID else correlation_id + 1
        if expect_response:
            # Assigned one by one: arguments of ``__init__`` would have to be Python objects.
            sent = InFlight.__new__(InFlight)
            sent.correlation_id = correlation_id
            sent.api_key = request.schema.api_key
            sent.version = version
            sent.context = context
            sent.sent_at = now
            sent.deadline = now + (self._request_timeout if timeout is None else timeout)
            # A plain Produce request has no response class: its caller passes ``read_response``.
            sent.response_class = None if read_response is not None else request.response_class()  # type: ignore[union-attr]
            sent.read_response = read_response
            self._in_flight.append(sent)
        return buffers

    def _send_own(self, request: Request[Response], version: int, now: float) -> None:
        self._output.extend(self._send(request, version, now, _OWN, None, True))
        self._own_sent_at = now

    def _refuse_if_closed(self) -> None:
        if self.error is not None:
            raise self.error.fresh()

    def receive_data(self, data: Buffer, now: float) -> list[Completed]:
        """Process received data, however it is split, and return the requests that it completes, in order.

        ``data`` is not read after the call. Invalid data poisons the connection: `state` is CLOSED then, and `error`
        is the reason. Requests completed before are returned, and `poison` returns those in flight. The connection
        handles responses to its own requests; `data_to_send` may return buffers afterwards. A CLOSED connection
        ignores data.
        """
        completed: list[Completed] = []
        # Nearly always it is a contiguous view of bytes already.
        plain = type(data) is memoryview and is_of_bytes(data)
        view: memoryview = data if plain else memoryview(data).cast("B")  # type: ignore[assignment]  # by the line above
        end = len(view)
        position = 0
        while self.error is None and position < end:
            if self._frame is None and not self._frame_start and end - position >= _SIZE_OF_SIZE:
                # Usually whole frames arrive, and need not be assembled.
                start = position + _SIZE_OF_SIZE
                if cython.compiled:
                    address = cython.cast(cython.p_uchar, PyMemoryView_GET_BUFFER(view).buf)
                    size = read_integer(address + position, _SIZE_OF_SIZE)
                else:
                    (size,) = _SIZE.unpack_from(view, position)
                if 0 <= size <= end - start and size <= self._max_frame_bytes:
                    position = start + size
                    # A copy: the response may keep views of it, such as of records, for longer than ``data`` lasts.
                    if cython.compiled:
                        frame = PyBytes_FromStringAndSize(cython.cast(cython.p_char, address + start), size)
                    else:
                        frame = bytes(view[start:position])
                    self._receive_frame(frame, now, completed)
                    continue
            position = self._receive_part(view, position, now, completed)
        return completed

    def _receive_part(self, view: memoryview, position: int, now: float, completed: list[Completed]) -> int:
        """Process a part of a frame from ``position`` on; return the position after it."""
        if self._frame is None:
            part = view[position : position + _SIZE.size - len(self._frame_start)]
            self._frame_start += part
            position += len(part)
            if len(self._frame_start) < _SIZE.size:
                return position
            self._begin_frame()
            if self._frame is None:
                return position
        part = view[position : position + self._frame_size - self._frame_end]
        end = self._frame_end + len(part)
        if cython.compiled:
            if end > len(self._frame):
                # Behind the first room it grows with the received bytes, whatever the size field states.
                PyByteArray_Resize(self._frame, min(self._frame_size, max(end, 2 * len(self._frame), _FIRST_ROOM)))
            with memoryview(self._frame) as whole:
                whole[self._frame_end : end] = part
        else:
            self._frame += part
        self._frame_end = end
        if end == self._frame_size:
            # A complete frame is passed on without another copy.
            frame, self._frame = self._frame, None
            self._frame_start = bytearray()
            self._frame_end = 0
            self._receive_frame(frame, now, completed)
        return position + len(part)

    def _begin_frame(self) -> None:
        (size,) = _SIZE.unpack(self._frame_start)
        if not 0 <= size <= self._max_frame_bytes:
            self._fail(unexpected_frame(self.peer, bytes(self._frame_start), self._max_frame_bytes))
            return
        self._frame_size = size
        self._frame_end = 0
        self._frame = bytearray()

    def _receive_frame(self, frame: Buffer, now: float, completed: list[Completed]) -> None:
        if len(frame) < _CORRELATION_ID.size:
            length = counted(len(frame), "byte")
            self._fail(ProtocolError(f"{self.peer} sent a response of {length}, shorter than its correlation id."))
            return
        if cython.compiled and type(frame) is bytes:
            correlation_id = read_integer(cython.cast(cython.p_uchar, PyBytes_AS_STRING(frame)), _SIZE_OF_SIZE)
        else:
            (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if not self._in_flight:
            if not self._ignore_unexpected(correlation_id, self._next_correlation_id):
                self._fail(
                    ProtocolError(f"{self.peer} sent a response without a request (correlation id {correlation_id}).")
                )
            return
        request = self._in_flight[0]
        if correlation_id != request.correlation_id:
            if not self._ignore_unexpected(correlation_id, request.correlation_id):
                self._fail(self._wrong_correlation_id(correlation_id, request))
            return
        try:
            response = _decode(request, frame)
        except ProtocolError as error:
            name = ApiKey(request.api_key).name
            self._fail(
                ProtocolError(f"{self.peer} sent a malformed response to {name} version {request.version}: {error}")
            )
            return
        del self._in_flight[0]
        self._last_answered = correlation_id
        self._answered = True
        throttle_time_ms: int = getattr(response, "throttle_time_ms", 0)
        if throttle_time_ms > 0 and client_must_wait(request.api_key, request.version):
            self.throttled_until = max(self.throttled_until, now + throttle_time_ms / 1000)
        if request.context is _OWN:
            self._handle_own(request, response, now)
            return
        self.has_served = True
        completed.append(_completed(request, response, now, len(frame) + _SIZE_OF_SIZE))

    def _ignore_unexpected(self, correlation_id: int, next_in_flight: int) -> bool:
        """Return whether a response is to a request that expects none: one between two requests that expect one.

        librdkafka's mock cluster sends such responses. Closing the connection for them would lose records that the
        broker has yet to read.
        """
        ids = LARGEST_CORRELATION_ID + 1
        if not 0 < (correlation_id - self._last_answered) % ids < (next_in_flight - self._last_answered) % ids:
            return False
        self._last_answered = correlation_id
        return True

    def _wrong_correlation_id(self, correlation_id: int, oldest: InFlight) -> ProtocolError:
        known = any(request.correlation_id == correlation_id for request in self._in_flight)
        return ProtocolError(
            f"{self.peer} answered with correlation id {correlation_id}, but the oldest request in flight is "
            f"{oldest.correlation_id} ({ApiKey(oldest.api_key).name}): "
            + ("a later request was answered before it." if known else "no request in flight has that id.")
        )

    def _request_versions(self, version: int, now: float) -> None:
        cluster_id, node_id = self._expected or (None, -1)
        request = ApiVersionsRequest(
            client_software_name=CLIENT_SOFTWARE_NAME,
            client_software_version=__version__,
            cluster_id=cluster_id,
            node_id=node_id,
        )
        self._send_own(request, version, now)

    def _handle_own(self, request: InFlight, response: AnyResponse, now: float) -> None:
        try:
            if isinstance(response, ApiVersionsResponse):
                self._handle_versions(request, response, now)
            else:
                assert self._exchange is not None
                self._continue_exchange(self._exchange.receive(response, now), now)
        except KafkaError as error:
            self._fail(error)

    def _handle_versions(self, request: InFlight, response: ApiVersionsResponse, now: float) -> None:
        versions = BrokerVersions(self.peer, response)
        if response.error_code == UNSUPPORTED_VERSION and request.version > 0:
            # Before KIP-511 (Kafka 2.4) the response lists no versions; every broker supports version 0.
            offered = versions.apis.get(ApiKey.API_VERSIONS, VersionRange(0, 0)).highest
            self._advance(ConnectionEvent.VERSIONS_REFUSED)
            self._request_versions(max(0, min(offered, request.version - 1)), now)
            return
        if response.error_code:
            raise broker_error(response.error_code)
        self.versions = versions
        self._negotiated.clear()
        authenticator, self._authenticator = self._authenticator, None
        if authenticator is None and not (self._asks_for_sasl and ApiKey.SASL_HANDSHAKE in versions.apis):
            self._advance(ConnectionEvent.VERSIONS_KNOWN)
            return
        self._advance(ConnectionEvent.AUTHENTICATION_REQUIRED)
        self._begin_exchange(authenticator, now, False)

    def _begin_exchange(self, authenticator: Authenticator | None, now: float, is_renewal: bool) -> None:
        # Imported late: most listeners require no SASL.
        from aioproducer.core.requests.sasl_exchange import SaslExchange

        self._exchange = SaslExchange(
            self.peer, authenticator, self.versions, uses_tls=self._uses_tls, is_renewal=is_renewal
        )
        self._continue_exchange(self._exchange.begin(), now)

    def _continue_exchange(self, request: Request[Response] | None, now: float) -> None:
        exchange = self._exchange
        assert exchange is not None
        if request is not None:
            self._send_own(request, exchange.version(request), now)
        elif exchange.is_finished:
            self._session_end = math.inf
            if exchange.session_lifetime_ms > 0:
                lifetime = exchange.session_lifetime_ms / 1000
                # The broker's session has not begun before this request was sent.
                self._session_end = self._own_sent_at + lifetime - min(lifetime * SESSION_MARGIN, MAX_SESSION_MARGIN)
            self._advance(ConnectionEvent.AUTHENTICATED)

    def _fail(self, error: KafkaError) -> None:
        """Close with ``error`` unless closed; the requests in flight stay until `poison`."""
        if self.error is None:
            self.error = error
            self._advance(ConnectionEvent.POISONED)
            self._output = []
            self._frame = None
            self._frame_start = bytearray()
            self._frame_end = 0

    def poison(self, error: KafkaError) -> list[InFlight]:
        """Close the connection with ``error`` and return the requests in flight, oldest first.

        Each request is returned once: the first call returns them all, even if the connection has closed itself
        (`receive_data`), and a second call returns none. `error` keeps the first reason, this one or an earlier one.
        The connection's own requests are not returned.
        """
        self._fail(error)
        failed = [request for request in self._in_flight if request.context is not _OWN]
        self._in_flight.clear()
        return failed

    def expire(self, now: float) -> list[InFlight]:
        """Poison the connection if a response is overdue, and return the requests in flight; else nothing."""
        overdue = next((request for request in self._in_flight if request.deadline <= now), None)
        if overdue is None:
            return []
        return self.poison(
            RequestTimedOutError(
                f"{self.peer} did not answer {ApiKey(overdue.api_key).name} (correlation id {overdue.correlation_id}) "
                f"within {(overdue.deadline - overdue.sent_at) * 1000:.0f} ms (request_timeout_ms)."
            )
        )

    def eof(self, exception: Exception | None = None) -> list[InFlight]:
        """End with the transport, by ``exception`` or, if None, cleanly; return the requests in flight, as `poison`."""
        return self.poison(self._reason_for_end(exception))

    def _reason_for_end(self, exception: Exception | None) -> KafkaError:
        if isinstance(exception, KafkaError):
            return exception
        if not self._answered and self.state is ConnectionState.CHECKING_API_VERSIONS:
            return ended_before_first_answer(self.peer, uses_tls=self._uses_tls, exception=exception)
        because = f" ({exception})" if exception is not None else ""
        if self.state is ConnectionState.REAUTHENTICATING:
            return NetworkError(
                f"{self.peer} ended the connection{because} while the client renewed its session: a request may have "
                "reached the broker after the session's end (connections.max.reauth.ms)."
            )
        if self.state is ConnectionState.AUTHENTICATING:
            return NetworkError(
                f"{self.peer} ended the connection while authenticating{because}: usually the SASL mechanism or the "
                "listener is wrong. Check the broker's log."
            )
        if self.has_partial_response:
            got = counted(len(self._frame_start) + self._frame_end, "byte")
            return NetworkError(f"{self.peer} ended the connection{because} in a response, after {got} of it.")
        if self.state is _READY and not self.has_served and self._exchange is None and self._in_flight:
            name = ApiKey(self._in_flight[0].api_key).name
            return ended_before_first_service(self.peer, name, uses_tls=self._uses_tls, exception=exception)
        return NetworkError(f"{self.peer} ended the connection{because}.")


class _Own:
    """Marks the requests that the connection itself sends."""


_OWN = _Own()


def _decode(request: InFlight, frame: Buffer) -> AnyResponse:
    if request.read_response is not None:
        return request.read_response(request.version, frame)
    if request.api_key == _API_VERSIONS:
        # A broker that does not support the requested version cannot answer in it (KIP-35).
        return decode_api_versions_response(request.version, frame)[1]
    assert request.response_class is not None
    return decode_response(request.response_class, request.version, frame)[1]
