"""Authenticates a connection to the broker by SASL with the gateway's own credentials, before a client's bytes pass.

The requests are those of the client's state machine (``core.requests.connection``): ApiVersions, SaslHandshake,
SaslAuthenticate. A broker answers in order, so the exchange leaves nothing in the stream after its last response. The
correlation ids of the client behind it are independent of it.
"""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import Final

from aioproducer.core.requests.authenticator import Authenticator, Login
from aioproducer.core.requests.connection import Connection
from aioproducer.core.requests.connection_state import ConnectionState
from aioproducer.core.requests.sasl_exchange import EARLIEST_RENEWAL, LATEST_RENEWAL
from aioproducer.errors import AuthenticationError, KafkaError, KafkaTimeoutError, ProtocolError, RequestTimedOutError
from aioproducer.transport.base import Buffer, Transport, TransportHandler

_LARGEST_RESPONSE: Final = 1024 * 1024
"""Maximum bytes of one response in the exchange; those of Apache Kafka have less than 1 KiB."""


async def authenticator_of(login: Login, deadline: float, timeout: float) -> Authenticator:
    """Return the authenticator for one authentication, by ``deadline``; the error text has ``timeout``, in seconds.

    Raises:
        KafkaError: no credentials are available in time.
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await login.authenticator()
    except KafkaError:
        # Some KafkaErrors are TimeoutErrors too.
        raise
    except TimeoutError:
        raise KafkaTimeoutError(f"No credentials for SASL {login.mechanism} within {timeout:g} s.") from None


class Authentication:
    """The authentication of one connection to the broker, and the handler of its transport.

    Args:
        peer: The broker in error messages, ``host:port``.
        handler: Receives the callbacks of the transport after the broker has accepted the gateway, and always its end.
        client_id: The client id of the exchange's requests.
        uses_tls: Whether the connection is encrypted; used only in error messages.
    """

    def __init__(
        self,
        peer: str,
        login: Login,
        authenticator: Authenticator,
        handler: TransportHandler,
        *,
        client_id: str,
        uses_tls: bool,
    ) -> None:
        self._login = login
        self._authenticator = authenticator
        self._handler = handler
        self._connection = Connection(
            peer=peer,
            client_id=client_id,
            authenticator=authenticator,
            max_frame_bytes=_LARGEST_RESPONSE,
            uses_tls=uses_tls,
        )
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._passes = False
        """Whether the broker has accepted the gateway; from then on all callbacks go to the handler."""
        self._unwritten = 0
        """Writes of the exchange that the transport has not completed."""
        self._changed = asyncio.Event()

    async def run(self, transport: Transport, deadline: float, timeout: float) -> None:
        """Authenticate by ``deadline``; the error text has ``timeout``, in seconds. The caller closes the transport.

        Raises:
            KafkaError: the broker rejects the gateway, or has not accepted it in time; the text gives the reason.
        """
        self._transport = transport
        try:
            async with asyncio.timeout_at(deadline):
                await self._exchange()
        except KafkaError:
            raise
        except TimeoutError:
            raise RequestTimedOutError(
                f"{self._connection.peer} has not finished SASL {self._login.mechanism} within {timeout:g} s "
                "after the gateway began to connect."
            ) from None

    async def _exchange(self) -> None:
        connection = self._connection
        self._proceed(connection.start(self._loop.time()))
        while not self._passes:
            if connection.error is not None:
                if isinstance(connection.error, AuthenticationError):
                    self._login.rejected(self._authenticator)
                raise connection.error.fresh()
            self._changed.clear()
            step = connection.blocking_step
            if step is None:
                await self._changed.wait()
            else:
                message = await self._loop.run_in_executor(self._login.executor, step)
                self._proceed(connection.step_ended(message, self._loop.time()))

    def seconds_until_end(self, random: Random) -> float:
        """Return the seconds after which the client's connection must end; infinity if the session has no end.

        The gateway cannot authenticate again between a client's requests.
        """
        lifetime = self._connection.session_lifetime_ms / 1000
        return lifetime * random.uniform(EARLIEST_RENEWAL, LATEST_RENEWAL) if lifetime > 0 else math.inf

    def _proceed(self, buffers: list[Buffer]) -> None:
        if buffers:
            assert self._transport is not None
            self._unwritten += not self._transport.write(buffers)
        connection = self._connection
        if connection.state is ConnectionState.READY:
            if connection.has_partial_response:
                connection.poison(ProtocolError(f"{connection.peer} sent a response without a request."))
            else:
                self._passes = True
        self._changed.set()

    def data_received(self, data: Buffer) -> None:
        if self._passes:
            self._handler.data_received(data)
        else:
            self._connection.receive_data(data, self._loop.time())
            self._proceed(self._connection.data_to_send())

    def write_completed(self, count: int) -> None:
        own = min(count, self._unwritten)
        self._unwritten -= own
        if count > own:
            self._handler.write_completed(count - own)

    def connection_lost(self, exception: Exception | None) -> None:
        if self._passes:
            self._handler.connection_lost(exception)
        else:
            # The exchange raises an error with the reason.
            self._connection.eof(exception)
            self._changed.set()
            self._handler.connection_lost(None)
