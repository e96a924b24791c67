"""Accepts clients and connects each to the broker."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Self

from aioproducer._common.texts import counted
from aioproducer.core.requests.authenticator import Login
from aioproducer.errors import KafkaError
from aioproducer.gateway.addresses import Address, AddressMap
from aioproducer.gateway.login import Authentication, authenticator_of
from aioproducer.gateway.session import Session
from aioproducer.transport.base import Connector, Listener, Listening, Transport, TransportHandler

_logger = logging.getLogger(__name__)

_LOGGED_EVERY = 60.0
"""Minimum seconds between two log messages of one kind about refused clients, which retry again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Limits of a gateway. Sizes are in bytes, times in seconds."""

    max_connections: int = 1000
    """Maximum clients at one time; further ones are refused."""
    connect_timeout: float = 10.0
    """Timeout of the connection to the broker, including its authentication."""
    client_id: str = "rdma-gateway"
    """Client id of the gateway's own requests, with which it authenticates to the broker."""
    uses_tls: bool = False
    """Whether the connection to the broker is encrypted; used only in error messages."""
    max_request_size: int = 104_857_600
    """Maximum bytes of a request, as ``socket.request.max.bytes`` of the broker."""
    max_in_flight: int = 1024
    """Maximum unanswered requests of one client. At this number no further receive is passed on; 64 KiB and one receive
    are held besides."""
    max_held_bytes: int = 4 * 1024 * 1024
    """Maximum bytes of a response that are held to rewrite its addresses; if it needs more, its connection ends."""
    whole_limit: int = 64 * 1024
    """A larger response to Produce or Fetch is passed in pieces; a larger ApiVersions response is an error."""
    stall_timeout: float = 600.0
    """Maximum time without progress: one side reads nothing of what was sent to it, or the broker sends nothing to a
    client that may send no further request. The client has ``max_in_flight`` unanswered requests, sent an invalid one,
    or the gateway is stopping."""
    close_timeout: float = 10.0
    """Maximum time that a closing connection may take to send the rest of its data."""


class Gateway:
    """Connects clients of ``listener``'s transport to the broker at ``upstream`` through ``connector``.

    As an async context manager it stops at the end of the block; ``start`` has the address to listen at.

    Args:
        make_login: Called by ``start`` if the gateway authenticates to the broker itself, for clients that use no SASL;
            ``stop`` closes the result. Without it, clients authenticate to the broker through the gateway.
        random: Spreads the ends of clients' connections before those of the broker's sessions.
    """

    def __init__(
        self,
        listener: Listener,
        connector: Connector,
        upstream: Address,
        address_map: AddressMap,
        settings: GatewaySettings | None = None,
        *,
        make_login: Callable[[], Login] | None = None,
        random: Random | None = None,
    ) -> None:
        self.upstream = upstream
        self.address_map = address_map
        self.settings = settings or GatewaySettings()
        self._listener = listener
        self._connector = connector
        self._listening: Listening | None = None
        self._sessions: dict[Session, asyncio.Task[None]] = {}
        """The sessions, and the task that connects each to the broker."""
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._stopping = False
        self._make_login = make_login
        self._login: Login | None = None
        self._random = random or Random()
        self._last_logged: dict[str, float] = {}
        """The time of the last log message of each kind."""
        self._past = dict.fromkeys(_COUNTERS, 0)
        """Counts of ended sessions, and of events outside sessions."""

    async def start(self, host: str, port: int) -> None:
        """Accept clients at ``host`` and ``port``; port 0 chooses a free one.

        Raises:
            OSError: listening failed for the reason in the text.
            ConfigurationError: the gateway cannot authenticate to the broker with its configuration.
        """
        self._stopping = False
        if self._make_login is not None:
            self._login = self._make_login()
        try:
            self._listening = await self._listener.listen(host, port, self._accept)
        except BaseException:
            await self._close_login()
            raise

    @property
    def port(self) -> int:
        """The port at which clients are accepted."""
        if self._listening is None:
            raise RuntimeError("the gateway is not started: call start first")
        return self._listening.port

    async def stop(self, timeout: float = 10.0) -> None:
        """Accept no further clients and requests, wait until pending requests are answered, then close all connections.

        Connections that are not finished after ``timeout`` seconds are reset.
        """
        self._stopping = True
        if self._listening is not None:
            self._listening.close()
        for session, task in list(self._sessions.items()):
            task.cancel()
            session.drain()
        try:
            async with asyncio.timeout(timeout):
                await self._all_ended.wait()
        except TimeoutError:
            _logger.warning(
                "Resetting %s that did not finish within %g s", counted(len(self._sessions), "connection"), timeout
            )
        finally:
            for session in list(self._sessions):
                session.abort()
            await self._close_login()
        await self._all_ended.wait()
        if self._listening is not None:
            await self._listening.wait_closed()
            self._listening = None

    async def _close_login(self) -> None:
        login, self._login = self._login, None
        if login is not None:
            await login.close()

    def metrics(self) -> dict[str, int]:
        """Counts of the passed traffic, and the current number of clients (``connections``)."""
        found = dict(self._past)
        for session in self._sessions:
            _count(found, session)
        found["connections"] = len(self._sessions)
        found["addresses_unmapped"] = self.address_map.unmapped
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _accept(self, transport: Transport) -> TransportHandler:
        self._past["connections_accepted"] += 1
        if self._stopping or len(self._sessions) >= self.settings.max_connections:
            self._past["connections_refused"] += 1
            self._log_refusal(transport.peer)
            transport.abort()
            return _REFUSED_CLIENT
        session = Session(
            transport,
            self.settings,
            self.address_map.translate,
            self._ended,
            sasl_passes=self._login is None,
        )
        self._all_ended.clear()
        task = asyncio.get_running_loop().create_task(self._connect(session), name=f"gateway for {session.peer}")
        task.add_done_callback(functools.partial(self._connecting_ended, session))
        self._sessions[session] = task
        return session.client_handler

    def _log_refusal(self, peer: str) -> None:
        if not self._stopping and self._may_log("refusal"):
            _logger.warning(
                "Refusing %s: there are %d clients already (max_connections)", peer, self.settings.max_connections
            )

    def _may_log(self, kind: str) -> bool:
        """Whether no message of this kind was logged recently; if so, the current one counts as logged."""
        now = asyncio.get_running_loop().time()
        if now - self._last_logged.get(kind, -_LOGGED_EVERY) < _LOGGED_EVERY:
            return False
        self._last_logged[kind] = now
        return True

    async def _connect(self, session: Session) -> None:
        """Connect a client's session to the broker; authenticate if the gateway has its own credentials."""
        host, port = self.upstream
        login = self._login
        deadline = asyncio.get_running_loop().time() + self.settings.connect_timeout
        try:
            if login is None:
                session.connected(await self._connect_any(session.upstream_handler, deadline))
            else:
                await self._connect_and_log_in(session, login, deadline)
        except OSError as error:
            # A TimeoutError without a text is an OSError too.
            reason = str(error) or f"no answer within {self.settings.connect_timeout:g} s"
            self._past["upstream_failures"] += 1
            _logger.warning("No connection to the broker at %s:%d for %s: %s", host, port, session.peer, reason)
            session.not_connected()

    async def _connect_and_log_in(self, session: Session, login: Login, deadline: float) -> None:
        host, port = self.upstream
        settings = self.settings
        try:
            authentication = Authentication(
                f"{host}:{port}",
                login,
                # Before connecting: a broker does not wait long for a client to authenticate.
                await authenticator_of(login, deadline, settings.connect_timeout),
                session.upstream_handler,
                client_id=settings.client_id,
                uses_tls=settings.uses_tls,
            )
            transport = await self._connect_any(authentication, deadline)
            try:
                await authentication.run(transport, deadline, settings.connect_timeout)
            except BaseException:
                session.unusable(transport)
                raise
        except KafkaError as error:
            self._past["login_failures"] += 1
            if self._may_log(f"login: {type(error).__name__}"):
                _logger.warning(
                    "The gateway cannot authenticate to the broker at %s:%d for %s: %s", host, port, session.peer, error
                )
            session.not_connected()
        else:
            session.connected(transport, authentication.seconds_until_end(self._random))

    def _connecting_ended(self, session: Session, task: asyncio.Task[None]) -> None:
        """Handle the end of a task; if it was cancelled before its first step, its coroutine has never run."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.error("Connecting %s to the broker failed", session.peer, exc_info=error)
        if task.cancelled() or error is not None:
            session.not_connected()

    async def _connect_any(self, handler: TransportHandler, deadline: float) -> Transport:
        """Connect to the first of the broker's addresses that answers; each has its share of the remaining time."""
        host, port = self.upstream
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        async with asyncio.timeout_at(deadline):
            addresses = await self._connector.resolve(host, port)
            for tried, address in enumerate(addresses):
                now = loop.time()
                try:
                    async with asyncio.timeout_at(now + (deadline - now) / (len(addresses) - tried)):
                        return await self._connector.connect(address, port, handler, server_hostname=host)
                except OSError as error:
                    failure = error
        raise failure or OSError(f"{host} has no address")

    def _ended(self, session: Session) -> None:
        del self._sessions[session]
        _count(self._past, session)
        if not self._sessions:
            self._all_ended.set()


_COUNTERS = (
    "connections_accepted",
    "connections_refused",
    "upstream_failures",
    "login_failures",
    "sessions_cut_short",
    "bytes_from_clients",
    "bytes_from_broker",
    "requests",
    "responses",
    "responses_rewritten",
    "responses_shortened",
)


def _count(into: dict[str, int], session: Session) -> None:
    exchange = session.exchange
    into["bytes_from_clients"] += session.client.received
    into["bytes_from_broker"] += session.upstream.received
    into["requests"] += exchange.requests
    into["responses"] += exchange.responses
    into["responses_rewritten"] += exchange.rewritten
    into["responses_shortened"] += exchange.shortened
    into["sessions_cut_short"] += session.was_cut_short


class _RefusedClient:
    """The handler of a refused client."""

    def data_received(self, data: bytes | bytearray | memoryview) -> None:
        """Never called: the connection was reset."""

    def write_completed(self, count: int) -> None:
        """Never called: nothing was written."""

    def connection_lost(self, exception: Exception | None) -> None:
        """Ignored: this side reset the connection."""


_REFUSED_CLIENT = _RefusedClient()
