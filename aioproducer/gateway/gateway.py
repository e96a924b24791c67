"""Accepts clients and joins each to the broker."""

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
"""Seconds between two messages of one kind about clients that are refused: they try again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What a gateway keeps to. Sizes are bytes, times seconds."""

    max_connections: int = 1000
    """Clients at one time; others are refused."""
    connect_timeout: float = 10.0
    """For the connection to the broker, its authentication included."""
    client_id: str = "rdma-gateway"
    """Of the gateway's own requests, with which it authenticates to the broker."""
    uses_tls: bool = False
    """Whether the connection to the broker is encrypted: for error messages only."""
    max_request_size: int = 104_857_600
    """As ``socket.request.max.bytes`` of the broker."""
    max_in_flight: int = 1024
    """Requests of one client that are not answered: then no more is let through, though what came in the same receive
    is, and 64 KiB and a receive are held besides."""
    max_held_bytes: int = 4 * 1024 * 1024
    """Of one response, for its addresses; a response that needs more ends its connection."""
    whole_limit: int = 64 * 1024
    """A response to Produce or Fetch that is larger passes by piece by piece; an ApiVersions response may not be."""
    stall_timeout: float = 600.0
    """How long one side may take nothing of what was sent to it, and how long the broker may send nothing to a client
    that may ask nothing more before it is answered: it has ``max_in_flight`` requests unanswered, or sent a bad one, or
    the gateway stops."""
    close_timeout: float = 10.0
    """How long a connection that ends may take for what it still has to send."""


class Gateway:
    """Clients of ``listener``'s transport in front of the broker at ``upstream``, reached by ``connector``.

    As an async context manager it stops at the end of the block; ``start`` says where it listens.

    Args:
        make_login: called by ``start`` if the gateway authenticates to the broker itself, for clients that use no SASL;
            ``stop`` closes what it returns. Without it, clients authenticate to the broker through the gateway.
        random: spreads the ends of clients' connections before those of the broker's sessions.
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
        """And the task that connects each to the broker."""
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._stopping = False
        self._make_login = make_login
        self._login: Login | None = None
        self._random = random or Random()
        self._last_logged: dict[str, float] = {}
        """When there was a message of each kind."""
        self._past = dict.fromkeys(_COUNTERS, 0)
        """Of the sessions that have ended, and of what is not a session's."""

    async def start(self, host: str, port: int) -> None:
        """Accept clients at ``host`` and ``port``, 0 for any port that is free.

        Raises:
            OSError: nobody can listen there; the text says why.
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
        """Where clients are accepted."""
        if self._listening is None:
            raise RuntimeError("the gateway is not started")
        return self._listening.port

    async def stop(self, timeout: float = 10.0) -> None:
        """Accept nobody and no request any more, wait until what was asked is answered, then end all connections.

        Those that are not done after ``timeout`` seconds are reset.
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
            _logger.warning("Not done after %g s, and reset: %s", timeout, counted(len(self._sessions), "connection"))
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
        """What has passed so far, and how many clients there are (``connections``)."""
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
            return _NOBODY
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
                "%s is refused: there are %d clients already (max_connections)", peer, self.settings.max_connections
            )

    def _may_log(self, kind: str) -> bool:
        """Whether no message of this kind was logged lately; then it is logged now."""
        now = asyncio.get_running_loop().time()
        if now - self._last_logged.get(kind, -_LOGGED_EVERY) < _LOGGED_EVERY:
            return False
        self._last_logged[kind] = now
        return True

    async def _connect(self, session: Session) -> None:
        """Connect a client's session to the broker, and authenticate if the gateway does that itself."""
        host, port = self.upstream
        login = self._login
        deadline = asyncio.get_running_loop().time() + self.settings.connect_timeout
        try:
            if login is None:
                session.connected(await self._connect_any(session.upstream_handler, deadline))
            else:
                await self._connect_and_log_in(session, login, deadline)
        except OSError as error:
            # TimeoutError is one, and says nothing.
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
        """Also of a task that is cancelled before its first step, which never gets into its coroutine."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.error("Connecting %s to the broker failed", session.peer, exc_info=error)
        if task.cancelled() or error is not None:
            session.not_connected()

    async def _connect_any(self, handler: TransportHandler, deadline: float) -> Transport:
        """Connect to the first of the broker's addresses that answers, each in its share of the time that is left."""
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


class _Nobody:
    """The handler of a client that was refused."""

    def data_received(self, data: bytes | bytearray | memoryview) -> None:
        """Cannot happen: it was reset."""

    def write_completed(self, count: int) -> None:
        """Nothing was written."""

    def connection_lost(self, exception: Exception | None) -> None:
        """Nobody waits for that."""


_NOBODY = _Nobody()
