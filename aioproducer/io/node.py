"""Compiled. One broker: the task that maintains its connection, and the requests in flight on it.

The task connects when a connection is requested, authenticates (``authentication``), waits for its end, and backs off.
Requests bypass it: ``send`` encodes
and writes at once, in the caller's callback of the loop. Responses are handled in the callback that receives them. So
no record is handed over between tasks.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aioproducer._common.diagnosis import tls_failed
from aioproducer.core.metadata.cluster import NodeCandidate, NodeState
from aioproducer.core.requests.connection import Completed, Connection, InFlight, ReadResponse
from aioproducer.core.requests.connection_state import ConnectionState
from aioproducer.core.requests.retry import Attempts
from aioproducer.core.requests.slots import RequestSlots
from aioproducer.errors import (
    AuthenticationError,
    KafkaError,
    NetworkError,
    RequestTimedOutError,
    SaslAuthenticationError,
    TlsError,
)
from aioproducer.hooks import Hooks
from aioproducer.io.dialing import Dialer, NodeSettings
from aioproducer.metrics import ConnectionMetrics
from aioproducer.protocol import Buffer, Request, Response, frame_size
from aioproducer.record import Node
from aioproducer.transport.addresses import peer_name
from aioproducer.transport.base import Connector, Transport

if TYPE_CHECKING:
    from random import Random

    from aioproducer.core.requests.authenticator import Authenticator
    from aioproducer.core.requests.broker_versions import BrokerVersions
    from aioproducer.io.authentication import Session
    from aioproducer.protocol.produce_frames import PlainProduceRequest

# How a request begins: size, API key, version, correlation id.
_HEADER_START = struct.Struct(">ihhi")
_READY = ConnectionState.READY

# The states of a connection to a broker: DISCONNECTED, and CONNECTING while the client dials an address; CONNECTED
# while there is a transport (requests may be sent once the protocol state is READY); ENDING when the client has
# closed it. A node that metadata no longer lists is DRAINING while requests are in flight, DRAINED when the client
# has closed its transport, and RETIRED without one.
DISCONNECTED, CONNECTING, CONNECTED, ENDING, DRAINING, DRAINED, RETIRED = range(7)

STATE_NAMES = ("disconnected", "connecting", "connected", "ending", "draining", "drained", "retired")

NEXT_STATES: Mapping[int, tuple[int, ...]] = {
    DISCONNECTED: (CONNECTING, RETIRED),
    CONNECTING: (CONNECTED, DISCONNECTED, RETIRED),
    CONNECTED: (DISCONNECTED, ENDING, DRAINING),
    ENDING: (DISCONNECTED, DRAINED),
    DRAINING: (DRAINED, RETIRED),
    DRAINED: (RETIRED,),
    RETIRED: (),
}
"""Which states may follow each state of a connection to a broker."""

# NEXT_STATES as one number, for ``set_state``: eight bits for each state. Names declared in the .pxd file are C
# integers in the compiled module.
_TRANSITIONS = sum([1 << 8 * old + new for old, states in NEXT_STATES.items() for new in states])
_CONNECTED, _DRAINING = CONNECTED, DRAINING

_NEVER = float("inf")
# Seconds after which an idle connection is checked again that could not be closed because its session is renewed.
IDLE_CHECK = 1.0


class RequestContext:
    """Receives the outcome of one request: ``answered`` or ``failed`` is called, exactly once.

    ``reading`` is called if the transport still reads the request's buffers after ``send``, and ``released`` when it no
    longer does. A request without a response is ``answered`` with None once it is written. If ``send`` has returned
    True, such a request is written already, and neither is called. ``send`` itself only calls ``reading``.

    This base class serves requests that own their buffers, if the connection handles their outcome itself.
    """

    __slots__ = ()

    def reading(self) -> None:
        """The transport reads the buffers until ``released``."""

    def released(self) -> None:
        """The transport no longer reads the buffers."""

    def answered(self, node: NodeConnection, completed: Completed | None) -> None:
        """Receive the response; None if none was expected."""
        raise NotImplementedError

    def failed(self, node: NodeConnection, error: KafkaError) -> None:
        """Receive the error: there will be no response."""
        raise NotImplementedError


# The connection handles the outcome of its own requests.
_OWN_REQUEST = RequestContext()


class ReconnectHistory(NamedTuple):
    """Failed attempts to reach a broker, kept after metadata no longer lists it in case it is listed again."""

    attempts: Attempts
    setups: int
    logged: str | None


class InternalRequest(RequestContext):
    """A request context that forwards to two callbacks; the request owns its buffers."""

    __slots__ = ("_given_up", "_on_answer", "_on_failure")

    def __init__(self, on_answer: Callable[[Completed], None], on_failure: Callable[[KafkaError], None]) -> None:
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._given_up = False

    def give_up(self) -> None:
        """Call neither callback any more."""
        self._given_up = True

    def answered(self, node: NodeConnection, completed: Completed | None) -> None:
        assert completed is not None
        if not self._given_up:
            self._on_answer(completed)

    def failed(self, node: NodeConnection, error: KafkaError) -> None:
        if not self._given_up:
            self._on_failure(error)


class NodeOwner:
    """Receives the notifications of its nodes: the sender, or a ``BrokerClient``."""

    def __init__(self) -> None:
        self.reconnect_histories: dict[tuple[int, str, int], ReconnectHistory] = {}
        """By id, host and port, for brokers that metadata does not list at the moment."""

    def node_ready(self, node: NodeConnection) -> None:
        """Receive that the node is connected and its API versions are known; ``node_changed`` follows."""
        raise NotImplementedError

    def node_changed(self, node: NodeConnection, now: float) -> None:
        """Receive that the node is ready, can take more requests than before, or is disconnected."""
        raise NotImplementedError

    def authentication_failed(self, node: NodeConnection, error: AuthenticationError, now: float) -> None:
        """Receive that the broker has rejected this client; the connection has ended, and ``node_changed`` follows."""
        raise NotImplementedError

    def login_failed(self, node: NodeConnection) -> None:
        """Receive that the node could not connect because there are no credentials now; ``node_changed`` follows."""
        raise NotImplementedError

    def expected_cluster_id(self) -> str | None:
        """Return the id of the cluster that a broker must belong to, None if it is not known yet."""
        raise NotImplementedError


class NodeConnection:
    """A broker, connected or not; the handler of its transport."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: Node,
        owner: NodeOwner,
        connector: Connector,
        settings: NodeSettings,
        metrics: ConnectionMetrics,
        hooks: Hooks,
        random: Random,
    ) -> None:
        self.node = node
        self.id = node.id
        self.last_attempt = float("-inf")
        self.last_error: KafkaError | None = None
        # When the client began to wait for the credentials of the next connection; infinity if it does not.
        self.login_began = _NEVER
        self.slots = RequestSlots()
        self._loop = loop
        self._owner = owner
        self._settings = settings
        self._log = settings.log
        self._request_timeout = settings.request_timeout
        self._uses_tls = settings.uses_tls
        self._login = settings.login
        # The authentications of the connection, with a login.
        self._session: Session | None = None
        # The last connection ended as on a listener that requires SASL: the next one asks.
        self._asks_for_sasl = False
        self._random = random
        self._metrics = metrics
        self.sensors = metrics.hold_node(node.id)
        self._hooks = hooks
        self._on_request_written = hooks.request_written
        self._on_response_read = hooks.response_read
        self._on_throttle = hooks.throttle
        history = owner.reconnect_histories.pop((node.id, node.host, node.port), None)
        if history is None:
            history = ReconnectHistory(Attempts(settings.reconnect_backoff, random), 0, None)
        self._attempts = history.attempts
        self._dialer = Dialer(loop, node, connector, settings, random, history.setups)
        self._connection: Connection | None = None
        self._transport: Transport | None = None
        self._connected_at = 0.0
        self._last_used = 0.0
        # Requests with buffers that the transport still reads.
        self._unwritten: list[RequestContext] = []
        # Write deadlines of those that expect no response.
        self._write_deadlines: dict[RequestContext, float] = {}
        # The first of these deadlines.
        self._write_deadline = _NEVER
        # Whether unwritten requests have prevented another one.
        self._awaits_write = False
        # Requests in flight when the connection was poisoned, until the transport has ended.
        self._overdue: list[InFlight] = []
        # One timer for all deadlines. It is never later than the next deadline, and may be earlier.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")
        self.state = DISCONNECTED
        # Whether the API versions are known and the client is authenticated, until the connection's end.
        self._was_ready = False
        # The task awaits these: a connection is requested, it has ended, the broker has another address.
        self._connection_requested = asyncio.Event()
        self._ended = asyncio.Event()
        self._moved = asyncio.Event()
        self._logged = history.logged
        self.task = self._begin()

    # Calls of the owner

    @property
    def connected(self) -> bool:
        """Whether there is a transport."""
        return self._transport is not None

    def set_state(self, state: int) -> None:
        """Change the state.

        Raises:
            AssertionError: ``state`` may not follow the connection's state.
        """
        if not _TRANSITIONS >> 8 * self.state + state & 1:
            raise AssertionError(f"{self.node}, {STATE_NAMES[self.state]}, cannot become {STATE_NAMES[state]}")
        self.state = state

    @property
    def is_ready(self) -> bool:
        """Whether requests can be sent once there is a free slot, no throttling, and no renewal of the session."""
        connection = self._connection
        return connection is not None and self._was_ready and connection.error is None and self.state == CONNECTED

    @property
    def is_connecting(self) -> bool:
        """Whether a connection is being made, or is not ready yet."""
        connection = self._connection
        is_made = self._was_ready and connection is not None and connection.error is None
        return self.state == CONNECTING or (connection is not None and not is_made)

    @property
    def in_flight(self) -> int:
        return 0 if self._connection is None else self._connection.in_flight

    @property
    def throttled_until(self) -> float:
        return float("-inf") if self._connection is None else self._connection.throttled_until

    def can_send(self, now: float) -> bool:
        """Return whether ``send`` may be called: ready, a free slot, not throttled, and writing at once.

        If not, ``node_changed`` is called once it may, or ``retry_at`` returns the time.
        """
        connection = self._connection
        if connection is None or self.state != _CONNECTED or not connection.can_send(now):
            return False
        # Checked only while requests are unwritten: otherwise the transport accepts another.
        if not self._unwritten or self._is_writable():
            return True
        self._awaits_write = True
        return False

    def _is_writable(self) -> bool:
        return self._transport is not None and self._transport.is_writable

    def candidate(self, now: float) -> NodeCandidate:
        """Return this node as a candidate for ``least_loaded_node``."""
        if self.can_send(now):
            state = NodeState.READY
        elif self.is_connecting or self._is_renewing():
            state = NodeState.CONNECTING
        elif self._is_ending_idle() or (self._connection is None and self._attempts.delay(now) == 0):
            state = NodeState.CAN_CONNECT
        else:
            state = NodeState.BACKING_OFF
        return NodeCandidate(self.id, state, self.in_flight, self.last_attempt)

    def _is_renewing(self) -> bool:
        """Return whether the client authenticates again; requests can be sent after that."""
        return self._connection is not None and self._connection.state is ConnectionState.REAUTHENTICATING

    def _is_ending_idle(self) -> bool:
        """Return whether the client has closed the connection and no request is left on it."""
        return self.state == ENDING and self.in_flight == 0 and not self._unwritten

    def retry_at(self) -> float:
        """Return when a node that backs off becomes usable: the end of the backoff, or of the throttling."""
        return self._attempts.retry_at if self._connection is None else self._connection.throttled_until

    def negotiate(self, api_key: int, highest: int = 32767, lowest: int = 0) -> int:
        """Return the version of an API to use with this broker; see ``Connection.negotiate``."""
        assert self._connection is not None
        return self._connection.negotiate(api_key, lowest, highest)

    @property
    def versions(self) -> BrokerVersions:
        """The API versions and features of the broker, after it was ready."""
        assert self._connection is not None
        return self._connection.versions

    def request_connection(self) -> None:
        """Connect as soon as the backoff allows, unless connected."""
        if self.state in (DRAINING, DRAINED, RETIRED):
            return
        if self._transport is None:
            if self.task.done():
                # All tasks of the loop were cancelled, but the program continues.
                self.task = self._begin()
            self._connection_requested.set()
        elif self._is_ending_idle():
            # A peer that leaves its half open must not delay the next connection.
            self._transport.abort()

    def set_address(self, node: Node) -> None:
        """Use the broker's new address for the next connection, and end this one."""
        self.node = node
        self._dialer = self._dialer.moved(node)
        self._attempts.succeeded()
        self._moved.set()
        if self._transport is not None:
            self._poison(_has_moved(node))

    def send(
        self,
        request: Request[Response] | PlainProduceRequest,
        context: RequestContext,
        now: float,
        version: int | None = None,
        expect_response: bool = True,
        timeout: float | None = None,
        read_response: ReadResponse | None = None,
    ) -> bool:
        """Write a request; ``can_send`` must be true. Return whether the transport no longer reads its buffers.

        ``read_response`` replaces decoding the response as a whole; see ``Connection.send``.

        Raises:
            UnsupportedVersionError, ProtocolError: this broker does not support the request; nothing was sent.
        """
        connection, transport = self._connection, self._transport
        assert connection is not None
        assert transport is not None
        buffers = connection.send(request, now, context, timeout, version, expect_response, read_response)
        written = self._write(transport, buffers, context, expect_response, now)
        # The rest runs while the broker has the request.
        size = frame_size(buffers[0])
        self._last_used = now
        self._metrics.request_sent(self.sensors, size, now)
        self._count_written(size, now)
        if self._on_request_written:
            _, api_key, used, correlation_id = _HEADER_START.unpack_from(buffers[0])
            for on_request_written in self._on_request_written:
                on_request_written(self.node, api_key, used, correlation_id, size)
        # No deadline of the request is earlier.
        deadline = now + (self._request_timeout if timeout is None else timeout)
        if deadline < self._timer_due:
            self._arm(deadline)
        return written

    def _write(
        self,
        transport: Transport,
        buffers: Sequence[Buffer],
        context: RequestContext,
        expect_response: bool,
        now: float,
    ) -> bool:
        if transport.write(buffers):
            return True
        context.reading()
        self._unwritten.append(context)
        if not expect_response:
            deadline = self._write_deadlines[context] = now + self._request_timeout
            if deadline < self._write_deadline:
                self._write_deadline = deadline
        return False

    def _count_written(self, size: int, now: float) -> None:
        self._metrics.bytes_written(self.sensors, size, now)
        if self._uses_tls:
            # Encrypting copies every byte once; otherwise the socket reads them in place.
            self._metrics.bytes_copied.record(size, now)

    def _write_own(self, transport: Transport, buffers: Sequence[Buffer], now: float) -> None:
        """Write the connection's own requests, if any."""
        if buffers:
            self._count_written(sum([len(buffer) for buffer in buffers]), now)
            self._write(transport, buffers, _OWN_REQUEST, True, now)
            self._arm(self._next_deadline())

    def retire(self) -> None:
        """End the connection once the requests in flight have their responses: the node is no longer needed."""
        self._connection_requested.clear()
        if self._attempts.failures:
            node = self.node
            self._owner.reconnect_histories[node.id, node.host, node.port] = ReconnectHistory(
                self._attempts, self._dialer.setups, self._logged
            )
        if self._transport is None:
            self.set_state(RETIRED)
            self.task.cancel()
            return
        self.set_state(DRAINED if self.state == ENDING else DRAINING)
        if self.in_flight == 0 and not self._unwritten:
            self.close()

    def close(self) -> None:
        """Close the connection after pending writes, or cancel the attempt to connect; no request can be sent then."""
        if self._transport is None:
            self.task.cancel()
        else:
            self._begin_end()
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._begin_end()
            self._transport.abort()

    def _begin_end(self) -> None:
        if self.state == CONNECTED:
            self.set_state(ENDING)
        elif self.state == DRAINING:
            self.set_state(DRAINED)

    async def disconnected(self) -> None:
        """Wait until there is no connection."""
        if self._transport is not None:
            await self._ended.wait()

    # The task

    def _begin(self) -> asyncio.Task[None]:
        return self._loop.create_task(self._run(), name=f"aioproducer-node-{self.id}")

    async def _run(self) -> None:
        while True:
            await self._connection_requested.wait()
            delay = self._attempts.delay(self._loop.time())
            if delay > 0:
                await self._back_off(delay)
                continue
            self.set_state(CONNECTING)
            try:
                await self._connect()
            finally:
                if self.state == CONNECTING:
                    self.set_state(DISCONNECTED)
            self._connection_requested.clear()
            if self._session is not None:
                try:
                    await self._session.run()
                except asyncio.CancelledError:
                    # Without this task the session would end, and the connection stay.
                    self.abort()
                    raise
            if self._transport is not None:
                await self._ended.wait()
            self._owner.node_changed(self, self._loop.time())

    async def _back_off(self, delay: float) -> None:
        """Wait, unless the broker moves: the backoff of the old address does not apply to the new one."""
        try:
            async with asyncio.timeout(delay):
                await self._moved.wait()
        except TimeoutError:
            pass

    async def _connect(self) -> None:
        loop = self._loop
        began = self.last_attempt = loop.time()
        node = self.node
        authenticator = None
        try:
            if self._login is not None:
                # Before connecting: a broker does not wait long for a client to authenticate.
                self.login_began = began
                try:
                    authenticator = await self._login.authenticator()
                finally:
                    self.login_began = _NEVER
                node = self.node
            self._moved.clear()
            transport = await self._dialer.connect(self)
        except KafkaError as failure:
            # The error is kept, so it must not refer to the frames in which it was raised.
            error = failure.fresh()
            for on_connect in self._hooks.connect:
                on_connect(node, (loop.time() - began) * 1000, error)
            if self.node is node:
                if self._login is not None and authenticator is None:
                    # Another address does not help: back off.
                    self._dialer.forget_addresses()
                    self._owner.login_failed(self)
                self._failed_to_connect(error, loop.time())
            return
        self._established(transport, began, authenticator)
        if self.node is not node:
            self._poison(_has_moved(self.node))

    def _established(self, transport: Transport, began: float, authenticator: Authenticator | None) -> None:
        now = self._loop.time()
        settings = self._settings
        self._transport = transport
        self.set_state(CONNECTED)
        self._ended.clear()
        self._connected_at = self._last_used = now
        self._connection = Connection(
            peer=transport.peer,
            client_id=settings.client_id,
            node_id=self.id,
            cluster_id=self._owner.expected_cluster_id() if settings.check_cluster else None,
            authenticator=authenticator,
            asks_for_sasl=self._asks_for_sasl,
            max_in_flight=settings.max_in_flight,
            request_timeout=settings.request_timeout,
            uses_tls=settings.uses_tls,
        )
        self._metrics.connection_creation.record(1, now)
        if authenticator is not None:
            self._session = self._new_session(self._connection, authenticator)
        elif settings.uses_tls:
            # The handshake has authenticated the broker, and the client if it has a certificate.
            self._metrics.authentication_success.record(1, now)
        for on_connect in self._hooks.connect:
            on_connect(self.node, (now - began) * 1000, None)
        self._write_own(transport, self._connection.start(now), now)

    def _new_session(self, connection: Connection, authenticator: Authenticator) -> Session:
        # Imported late: most clients have no login.
        from aioproducer.io.authentication import Session

        assert self._login is not None
        return Session(
            self._loop,
            connection,
            self._login,
            authenticator,
            # Functions: the methods are C functions in the compiled module.
            proceed=lambda buffers, now: self._proceed(buffers, now),
            poison=lambda error: self.poison(error),
            step_timeout=self._request_timeout,
            random=self._random,
            log=self._log,
        )

    def _proceed(self, buffers: Sequence[Buffer], now: float) -> None:
        """Write the buffers of an authentication that begins, or after its step has run in a thread."""
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or self.state not in (CONNECTED, DRAINING):
            # The connection is ending.
            return
        self._write_own(transport, buffers, now)
        if connection.error is not None:
            transport.abort()
        elif connection.state is _READY:
            self._became_ready(now)
            self._owner.node_changed(self, now)

    def _failed_to_connect(self, error: KafkaError, now: float) -> None:
        self.last_error = error
        if isinstance(error, TlsError):
            self._metrics.authentication_failure.record(1, now)
        if not self._dialer.has_more:
            # All addresses of the name have failed: back off, then resolve the name again.
            self._attempts.failed(now)
        if str(error) != self._logged:
            self._logged = str(error)
            self._log.warning("Broker %s: %s", self.node, error)

    # The transport's handler

    def data_received(self, data: Buffer) -> None:
        connection, transport = self._connection, self._transport
        assert connection is not None
        assert transport is not None
        now = self._loop.time()
        was_ready = connection.state is _READY
        if was_ready or not self._was_ready:
            # The renewal of a session is no use of the connection.
            self._last_used = now
        self._metrics.bytes_read(self.sensors, len(data), now)
        completed = connection.receive_data(data, now)
        if not was_ready:
            self._write_own(transport, connection.data_to_send(), now)
            if connection.state is _READY:
                self._became_ready(now)
            elif self._session is not None:
                self._session.step_may_wait()
        try:
            for each in completed:
                try:
                    self._answered(each, now)
                except (Exception, asyncio.CancelledError):
                    # An error here must not keep later responses from their waiters.
                    self._log.exception("Handling the response of broker %s to %s failed", self.node, each.context)
        finally:
            if connection.error is not None:
                transport.abort()
            elif self.state == _DRAINING and connection.in_flight == 0 and not self._unwritten:
                self.close()
            if completed or not was_ready:
                self._owner.node_changed(self, now)

    def _became_ready(self, now: float) -> None:
        session = self._session
        if session is not None:
            session.accepted(now)
            if session.is_renewal:
                self._metrics.reauthentication_success.record(1, now)
                self._metrics.reauthentication_latency.record((now - session.began) * 1000, now)
                return
            self._metrics.authentication_success.record(1, now)
        self._attempts.succeeded()
        self._was_ready = True
        self.last_error = None
        self._logged = None
        self._log.debug("Broker %s is ready", self.node)
        self._owner.node_ready(self)
        for on_ready in self._hooks.ready:
            on_ready(self.node, (now - self._connected_at) * 1000)

    def _answered(self, completed: Completed, now: float) -> None:
        self._metrics.response_received(self.sensors, completed.size, now)
        for on_response_read in self._on_response_read:
            on_response_read(
                self.node,
                completed.api_key,
                completed.version,
                completed.correlation_id,
                completed.size,
                completed.latency * 1000,
            )
        if self._on_throttle:
            throttle_time_ms: int = getattr(completed.response, "throttle_time_ms", 0)
            for on_throttle in self._on_throttle if throttle_time_ms > 0 else ():
                on_throttle(self.node, throttle_time_ms)
        context: Any = completed.context
        context.answered(self, completed)

    def write_completed(self, count: int) -> None:
        # If sending was possible throughout, only the end of a request without a response is a change.
        changed = self._release_unwritten(count, None)
        if self._awaits_write and (not self._unwritten or self._is_writable()):
            self._awaits_write = False
            changed = True
        if self.state == _DRAINING and self.in_flight == 0 and not self._unwritten:
            self.close()
        elif changed:
            self._owner.node_changed(self, self._loop.time())

    def _release_unwritten(self, count: int, error: KafkaError | None) -> bool:
        """Release the oldest ``count`` unwritten requests; return whether any of them has ended by it."""
        ended = False
        for _ in range(count):
            # Removed first: the context may send.
            context = self._unwritten.pop(0)
            context.released()
            if self._write_deadlines.pop(context, None) is not None:
                ended = True
                if error is None:
                    context.answered(self, None)
                else:
                    context.failed(self, error)
        if ended:
            self._write_deadline = min(self._write_deadlines.values(), default=_NEVER)
        return ended

    def connection_lost(self, exception: Exception | None) -> None:
        connection = self._connection
        assert connection is not None
        now = self._loop.time()
        if isinstance(exception, ssl.SSLError):
            # With TLS 1.3 the client learns only after the handshake that its certificate was rejected.
            exception = tls_failed(connection.peer, exception)
        in_flight = [*self._overdue, *connection.eof(exception)]
        error = connection.error
        assert error is not None
        was_idle = not in_flight and not self._unwritten
        had_been_ready, self._was_ready = self._was_ready, False
        closed_by_client = self.state in (ENDING, DRAINED)
        session, self._session = self._session, None
        served = connection.has_served
        self._asks_for_sasl = session is None and had_been_ready and not served and not was_idle
        self.set_state(RETIRED if self.state in (DRAINING, DRAINED) else DISCONNECTED)
        self._overdue = []
        self._connection = None
        self._transport = None
        self._dialer.forget_addresses()
        self._disarm()
        self._metrics.connection_close.record(1, now)
        if not closed_by_client and not self._moved.is_set():
            self._attempts.failed(now)
            self.last_error = error
            if not (was_idle and had_been_ready) and str(error) != self._logged:
                self._logged = str(error)
                self._log.warning("Broker %s: %s", self.node, error)
        for on_disconnect in self._hooks.disconnect:
            on_disconnect(self.node, None if closed_by_client else error)
        self._release_unwritten(len(self._unwritten), error)
        self._awaits_write = False
        for request in in_flight:
            context: Any = request.context
            context.failed(self, error)
        if isinstance(error, AuthenticationError):
            is_renewal = session is not None and session.is_renewal
            sensor = self._metrics.reauthentication_failure if is_renewal else self._metrics.authentication_failure
            sensor.record(1, now)
            if session is not None and isinstance(error, SaslAuthenticationError):
                session.rejected()
            if not is_renewal:
                # After a failed renewal the next connection decides, with the credentials of that time.
                self._owner.authentication_failed(self, error, now)
        self._ended.set()
        if session is not None:
            session.ended()

    def poison(self, error: KafkaError) -> None:
        """End the connection, if there is one, because of a malformed response."""
        if self.state in (CONNECTED, DRAINING):
            self._poison(error)

    def _poison(self, error: KafkaError) -> None:
        assert self._connection is not None
        assert self._transport is not None
        self._overdue.extend(self._connection.poison(error))
        self._transport.abort()

    # Time-outs

    def _next_deadline(self) -> float:
        assert self._connection is not None
        return min(self._connection.next_deadline(), self._write_deadline, self._last_used + self._settings.max_idle)

    def _arm(self, when: float) -> None:
        """Check the deadlines at ``when`` or earlier."""
        if when < self._timer_due:
            self._disarm()
            self._timer_due = when
            self._timer = self._loop.call_at(when, self._check)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = float("inf")

    def _check(self) -> None:
        self._disarm()
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or self.state in (ENDING, DRAINED):
            return
        now = self._loop.time()
        if connection.timed_out(now):
            self._overdue.extend(connection.expire(now))
            transport.abort()
            return
        if now >= self._write_deadline:
            self._poison(
                RequestTimedOutError(
                    f"{connection.peer} did not accept a whole request within "
                    f"{self._settings.request_timeout * 1000:.0f} ms (request_timeout_ms)."
                )
            )
            return
        if now >= self._last_used + self._settings.max_idle:
            if connection.in_flight == 0 and not self._unwritten:
                self.close()
                return
            if connection.state is not _READY:
                # Only the renewal of the session keeps it busy.
                self._arm(now + IDLE_CHECK)
                return
            # A connection that waits for a response is not idle.
            self._last_used = now
        self._arm(self._next_deadline())


def _has_moved(node: Node) -> NetworkError:
    return NetworkError(f"broker {node.id} has moved to {peer_name(node.host, node.port)}")
