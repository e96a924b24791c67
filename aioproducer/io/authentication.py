"""Authenticates a connection by SASL, and again before each session ends (KIP-368).

The connection's state machine makes the requests. Here is what it cannot do without I/O: get credentials, which may
mean to fetch a token, run steps that block in a thread, and wait for the end of a session. All of it runs in the task
of the broker's node, so it ends with that task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aioproducer.core.requests.connection import Connection
from aioproducer.core.requests.connection_state import ConnectionState
from aioproducer.core.requests.sasl_exchange import EARLIEST_RENEWAL, LATEST_RENEWAL
from aioproducer.errors import KafkaError, NetworkError, RequestTimedOutError

if TYPE_CHECKING:
    from random import Random

    from aioproducer._common.client_log import ClientLog
    from aioproducer.core.requests.authenticator import Authenticator, Login
    from aioproducer.protocol import Buffer

# Seconds between the beginnings of two authentications on a connection: a broker refuses another one sooner (Kafka's
# KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS).
MIN_RENEWAL_INTERVAL = 1.0
# Seconds after which credentials are requested again if there were none for a renewal; doubled each time.
RENEWAL_RETRY = 1.0
MAX_RENEWAL_RETRY = 10.0


class Session:
    """The authentications of one connection.

    Args:
        authenticator: the first one, already passed to the connection.
        proceed: writes buffers of the connection, and looks at its state.
        poison: ends the connection with an error.
        step_timeout: seconds that a step in a thread may take.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Connection,
        login: Login,
        authenticator: Authenticator,
        *,
        proceed: Callable[[list[Buffer], float], None],
        poison: Callable[[KafkaError], None],
        step_timeout: float,
        random: Random,
        log: ClientLog,
    ) -> None:
        self.is_renewal = False
        """Whether the authentication in progress, or the last one, is of a connection in use."""
        self.began = loop.time()
        """When that authentication began."""
        self._loop = loop
        self._connection = connection
        self._login = login
        self._authenticator = authenticator
        self._proceed = proceed
        self._poison = poison
        self._step_timeout = step_timeout
        self._random = random
        self._log = log
        self._renewal_due = math.inf
        self._renewal_retry = RENEWAL_RETRY
        # The last failure to get credentials for a renewal.
        self._logged: str | None = None
        self._changed = asyncio.Event()
        # The wait of `run`, which the end of the connection cuts short.
        self._wait: asyncio.Timeout | None = None

    def accepted(self, now: float) -> None:
        """Begin the session: the broker has accepted the client."""
        lifetime = self._connection.session_lifetime_ms / 1000
        due = math.inf
        if lifetime > 0:
            due = now + lifetime * self._random.uniform(EARLIEST_RENEWAL, LATEST_RENEWAL)
            due = max(due, self._connection.authentication_begun_at + MIN_RENEWAL_INTERVAL)
        self.renew_at(due)

    def renew_at(self, due: float) -> None:
        """Authenticate again at this time of the loop; infinity for never."""
        self._renewal_due = due
        self._changed.set()

    def rejected(self) -> None:
        """Forget the credentials: the broker has rejected them."""
        self._login.rejected(self._authenticator)

    def step_may_wait(self) -> None:
        """Look for a step to be run in a thread: the connection has received data."""
        self._changed.set()

    def ended(self) -> None:
        """End `run`: the connection has ended."""
        self._changed.set()
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(self._loop.time())

    async def run(self) -> None:
        """Run the steps that block, and authenticate again when a session nears its end, until the connection ends."""
        while self._connection.error is None:
            self._changed.clear()
            step = self._connection.blocking_step
            if step is not None:
                await self._run_step(step)
            elif self._loop.time() >= self._renewal_due:
                await self._renew()
            else:
                await self._wait_until_renewal()

    @asynccontextmanager
    async def _until(self, deadline: float) -> AsyncIterator[None]:
        """Raise TimeoutError in the block at ``deadline``, or when the connection ends."""
        try:
            async with asyncio.timeout_at(None if deadline == math.inf else deadline) as self._wait:
                yield
        finally:
            self._wait = None

    async def _wait_until_renewal(self) -> None:
        try:
            async with self._until(self._renewal_due):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _run_step(self, step: Callable[[], bytes | None]) -> None:
        peer, mechanism = self._connection.peer, self._login.mechanism
        try:
            async with self._until(self._loop.time() + self._step_timeout):
                # Not in the loop's own threads, all of which may wait for this very connection.
                message = await self._loop.run_in_executor(self._login.executor, step)
        except KafkaError as error:
            self._poison(error.fresh())
        except TimeoutError:
            if self._connection.error is None:
                self._poison(
                    RequestTimedOutError(
                        f"A step of SASL {mechanism} with {peer} took longer than {self._step_timeout * 1000:.0f} ms "
                        "(request_timeout_ms)."
                    )
                )
        except Exception as error:
            self._log.exception("A step of SASL %s with %s failed", mechanism, peer)
            self._poison(KafkaError(f"A step of SASL {mechanism} with {peer} failed: {error!r}"))
        else:
            now = self._loop.time()
            self._proceed(self._connection.step_ended(message, now), now)

    async def _renew(self) -> None:
        """Authenticate again. Without credentials now, try again until the session ends, and the connection with it."""
        try:
            async with self._until(math.inf):
                authenticator = await self._login.authenticator()
        except KafkaError as error:
            self._renewal_failed(error, self._loop.time())
        except TimeoutError:
            # The connection has ended.
            pass
        else:
            self._begin_renewal(authenticator, self._loop.time())

    def _renewal_failed(self, error: KafkaError, now: float) -> None:
        """Try again later; at the end of the session end the connection, once all its requests are answered."""
        connection = self._connection
        if now >= connection.session_end and connection.in_flight == 0:
            # The next connection waits for credentials, and its failures say so.
            self._poison(
                NetworkError(f"The session with {connection.peer} has ended, and cannot be renewed now: {error}")
            )
            return
        if str(error) != self._logged:
            self._logged = str(error)
            self._log.warning("The session with %s cannot be renewed yet: %s", connection.peer, error)
        self._renewal_due = now + self._renewal_retry
        if now < connection.session_end:
            self._renewal_due = min(self._renewal_due, connection.session_end)
        self._renewal_retry = min(2 * self._renewal_retry, MAX_RENEWAL_RETRY)

    def _begin_renewal(self, authenticator: Authenticator, now: float) -> None:
        # Also if it cannot begin now: a renewal that stays due keeps `run` going round, and where the credentials are
        # there at once, it never returns to the loop. The end of the authentication in progress sets the next one.
        self._renewal_due = math.inf
        if self._connection.state is ConnectionState.READY:
            self._authenticator = authenticator
            self._renewal_retry = RENEWAL_RETRY
            self._logged = None
            self.is_renewal = True
            self.began = now
            self._proceed(self._connection.reauthenticate(authenticator, now), now)
