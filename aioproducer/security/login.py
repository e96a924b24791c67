"""Logins: they make an authenticator for each authentication, from the current password or token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast

from aioproducer._common.client_log import Log
from aioproducer.config import Password
from aioproducer.errors import ConfigurationError, KafkaError, TokenProviderError
from aioproducer.security.calls import Calls, login_closed
from aioproducer.security.redaction import described
from aioproducer.security.sasl.plain import MECHANISM as PLAIN
from aioproducer.security.sasl.plain import PlainClient
from aioproducer.security.sasl.scram import MECHANISMS as SCRAM
from aioproducer.security.sasl.scram import ScramClient

if TYPE_CHECKING:
    from aioproducer.security.settings import Credentials, PasswordSettings, TokenSettings
    from aioproducer.security.tokens import TokenLogin

    class Settings(PasswordSettings, TokenSettings, Protocol):
        """The fields of a ``ProducerConfig`` that all logins read."""


OAUTHBEARER = "OAUTHBEARER"

_ResultT = TypeVar("_ResultT")


class _UserAndPassword(NamedTuple):
    username: str
    password: Password
    is_token: bool = False


def login_from(
    config: Settings,
    loop: asyncio.AbstractEventLoop,
    random: Random,
    log: Log,
    wall_clock: Callable[[], float] = time.time,
) -> PasswordLogin | TokenLogin:
    """Return the login of a client with SASL in its ``security_protocol``; one object serves all of its connections.

    Args:
        wall_clock: seconds since the epoch, for the expiry of tokens.

    Raises:
        ConfigurationError: the mechanism is not supported, a key is missing or wrong, or a package is not installed.
    """
    mechanism = config.sasl_mechanism
    if mechanism == PLAIN or mechanism in SCRAM:
        return PasswordLogin(config, loop)
    if mechanism != OAUTHBEARER:
        supported = ", ".join((PLAIN, *SCRAM, OAUTHBEARER))
        raise ConfigurationError(f"sasl.mechanism {mechanism!r} is not supported: use one of {supported}")
    from aioproducer.security.oauth.choice import provider_from
    from aioproducer.security.tokens import RefreshSettings, TokenLogin

    return TokenLogin(
        provider_from(config, wall_clock),
        loop,
        random,
        log,
        wall_clock=wall_clock,
        timeout_s=config.request_timeout_ms / 1000,
        refresh=RefreshSettings(
            config.sasl_login_refresh_window_factor,
            config.sasl_login_refresh_window_jitter,
            config.sasl_login_refresh_min_period_seconds,
            config.sasl_login_refresh_buffer_seconds,
        ),
        retry_backoff_s=(
            config.sasl_login_retry_backoff_ms / 1000,
            config.sasl_login_retry_backoff_max_ms / 1000,
        ),
        extensions=config.sasl_extensions,
    )


class PasswordLogin:
    """The login of PLAIN and SCRAM: user name and password are read for each authentication, so they may be renewed.

    A ``sasl_password`` that is a callable is called (a sync one in a thread); else the configuration is read in a
    thread, since config providers read files. Both have ``request_timeout_ms``.
    """

    def __init__(self, config: PasswordSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.mechanism = config.sasl_mechanism
        self._config = config
        self._calls = Calls(loop, config.request_timeout_ms / 1000)
        self._closed = False

    async def authenticator(self) -> PlainClient | ScramClient:
        """Return an authenticator with the credentials of this moment.

        Raises:
            ConfigurationError: the credentials cannot be used.
            TokenProviderError: the callable for the password failed or was too slow, or config providers have no
                credentials now.
            ProducerClosedError: the login is closed.
        """
        if self._closed:
            raise login_closed()
        credentials = await self._credentials()
        if credentials.is_token and self.mechanism == PLAIN:
            raise ConfigurationError(
                "a delegation token needs sasl.mechanism SCRAM-SHA-256 or SCRAM-SHA-512, not PLAIN"
            )
        try:
            return self._client(credentials)
        except ValueError as error:
            problem = str(error)
        # Raised here, so that neither its context nor its frames contain the password.
        raise ConfigurationError(problem)

    def _client(self, credentials: Credentials) -> PlainClient | ScramClient:
        username, password = credentials.username, credentials.password.value
        if self.mechanism == PLAIN:
            return PlainClient(username, password)
        return ScramClient(self.mechanism, username, password, is_token=credentials.is_token)

    async def _credentials(self) -> Credentials:
        config = self._config
        provider = config.sasl_password
        if not callable(provider):
            try:
                return await self._result(config.sasl_credentials, "Reading the SASL credentials")
            except ConfigurationError as error:
                problem = str(error)
            # They were right when the client was made: a file may be replaced at this moment.
            raise TokenProviderError(problem)
        password = await self._result(provider, "The callable in sasl.password")
        if isinstance(password, str):
            password = Password(password)
        if not isinstance(password, Password):
            kind = type(password).__name__
            del password
            raise ConfigurationError(f"the callable in sasl.password must return a str, but returned {kind}")
        return _UserAndPassword(config.sasl_username or "", password)

    async def _result(self, function: Callable[[], _ResultT], source: str) -> _ResultT:
        outcome = await self._calls.call(function)
        if self._closed:
            raise login_closed()
        if outcome.is_late:
            raise TokenProviderError(f"{source} took longer than {self._calls.timeout_s:g} s (request_timeout_ms).")
        if isinstance(outcome.error, KafkaError):
            raise outcome.error.fresh()
        if outcome.error is not None:
            raise TokenProviderError(f"{source} failed with {described(outcome.error)}")
        return cast("_ResultT", outcome.value)

    def rejected(self, authenticator: object) -> None:
        """Do nothing: the next authentication reads the credentials again in any case."""

    @property
    def executor(self) -> Executor:
        """Daemon threads for blocking steps of an authentication, and for the callable that returns the password."""
        return self._calls.executor

    def stop(self) -> None:
        """Cancel the calls in progress at once, without waiting for them to end; safe to call twice."""
        self._closed = True
        self._calls.stop()

    async def close(self) -> None:
        """Do what `stop` does, and wait for the calls that clean up; safe to call twice."""
        self.stop()
        await self._calls.close()
