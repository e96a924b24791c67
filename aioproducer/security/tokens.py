"""The login by tokens: one token for all connections, refreshed before it expires (KIP-255)."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from random import Random
from typing import Final, NamedTuple, Never

from aioproducer._common.client_log import Log
from aioproducer._common.texts import counted
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.errors import ConfigurationError, KafkaError, TokenProviderError
from aioproducer.security.calls import Calls, Outcome, login_closed
from aioproducer.security.oauth.jwt import not_before
from aioproducer.security.redaction import described
from aioproducer.security.sasl.oauthbearer import MECHANISM, BearerToken, OAuthBearerClient

CLOCK_SKEW_ALLOWED_S = 30.0
"""A token that becomes valid within this time is used: a broker's clock may be ahead (Kafka's default, in seconds)."""

LONGEST_REFRESH_DELAY_S = 30 * 86_400.0
"""A token that is valid for longer is refreshed all the same."""

_SHORTEST_REFRESH_DELAY_S = 0.1

# Texts of failed refreshes that are not logged again; more are forgotten.
_REMEMBERED_FAILURES = 20

# 1973 and 5138: seconds since the epoch that are earlier or later are a mistake.
_EARLIEST_EXPIRY_S = 1e8
_LATEST_EXPIRY_S = 1e11

_FORM = "must return (token, expires_at) or (token, expires_at, principal, extensions)"


class OAuthBearerToken(NamedTuple):
    """A token as a ``sasl_token_provider`` returns it; a plain tuple of the same fields is accepted as well.

    Its text does not contain the token, and it cannot be pickled.
    """

    token: str
    """The access token as the broker checks it, usually a JWT."""
    expires_at: float
    """When the token expires, in seconds since the epoch, as ``time.time()``."""
    principal: str = ""
    """The name of the user or service that the token identifies; for logs only."""
    extensions: Mapping[str, str] = {}
    """SASL extensions beside the token (KIP-342), e.g. ``logicalCluster``."""

    def __repr__(self) -> str:
        names = ", ".join(sorted(self.extensions)) or "none"
        return (
            f"OAuthBearerToken(hidden, expires_at={self.expires_at}, principal={self.principal!r}, extensions {names})"
        )

    def __reduce__(self) -> Never:
        raise TypeError("an OAuthBearerToken cannot be pickled: the token would be readable")


class RefreshSettings(NamedTuple):
    """When a token is refreshed: Kafka's ``sasl.login.refresh.*`` keys."""

    window_factor: float = 0.8
    """Share of the lifetime after which a token is refreshed."""
    window_jitter: float = 0.05
    """Random share of the lifetime that is added."""
    min_period_s: float = 60.0
    """Shortest time between refreshes, in seconds."""
    buffer_s: float = 300.0
    """Time to leave before the token expires, in seconds."""


def refresh_delay_s(lifetime_s: float, settings: RefreshSettings, share: float) -> float:
    """Return the seconds until a token that is valid for ``lifetime_s`` is refreshed.

    As Kafka's ExpiringCredentialRefreshingLogin: a share of the lifetime, but neither before the minimum period nor in
    the buffer before the expiry. If the lifetime is shorter than both together, neither counts.

    Args:
        share: random, from 0 to 1: how much of the jitter is added.
    """
    proposed = lifetime_s * min(settings.window_factor + settings.window_jitter * share, 1.0)
    if lifetime_s >= settings.min_period_s + settings.buffer_s:
        proposed = max(min(proposed, lifetime_s - settings.buffer_s), settings.min_period_s)
    return min(max(proposed, _SHORTEST_REFRESH_DELAY_S), LONGEST_REFRESH_DELAY_S)


def utc(seconds: float) -> str:
    """Return a time since the epoch as text: ``2026-01-31 12:00:00 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def checked_token(value: object, now: float) -> OAuthBearerToken:
    """Convert a provider's result to a token that is valid ``now``, in seconds since the epoch.

    Raises:
        ValueError: it is not of the form of a token, has expired or is not valid yet; the text does not contain it.
    """
    token = _formed(value)
    if token.expires_at <= now:
        raise ValueError(
            f"returned a token that expired at {utc(token.expires_at)}, by this machine's clock. If the token is new, "
            "this clock or the provider's is wrong (clock skew): compare both with NTP"
        )
    begins = not_before(token.token)
    if begins is not None and begins > now + CLOCK_SKEW_ALLOWED_S:
        raise ValueError(
            f"returned a token that becomes valid at {utc(begins)} (claim nbf), which is in the future by this "
            "machine's clock: this clock is slow or the provider's is fast (clock skew): compare both with NTP"
        )
    return token


def _formed(value: object) -> OAuthBearerToken:
    if not isinstance(value, tuple | list) or not 2 <= len(value) <= 4:
        length = f" of length {len(value)}" if isinstance(value, tuple | list) else ""
        raise ValueError(f"returned a {type(value).__name__}{length}: it {_FORM}")
    token, expires_at, *rest = value
    principal = rest[0] if rest else ""
    extensions = rest[1] if len(rest) == 2 else {}
    if not isinstance(token, str):
        raise ValueError(f"returned a token of type {type(token).__name__}: it must be a str")
    is_number = isinstance(expires_at, int | float) and not isinstance(expires_at, bool)
    if not is_number or (isinstance(expires_at, float) and math.isnan(expires_at)):
        raise ValueError(
            f"returned an expires_at of type {type(expires_at).__name__}: it must be a number of seconds "
            "since the epoch"
        )
    if expires_at > _LATEST_EXPIRY_S:
        raise ValueError(
            "returned an expires_at that is too large to be seconds since the epoch: divide milliseconds by 1000"
        )
    if expires_at < _EARLIEST_EXPIRY_S:
        raise ValueError(
            "returned an expires_at that is too small to be seconds since the epoch: add time.time() to a lifetime"
        )
    if not isinstance(principal, str):
        raise ValueError(f"returned a principal of type {type(principal).__name__}: it must be a str")
    if not isinstance(extensions, Mapping) or not all(
        isinstance(part, str) for pair in extensions.items() for part in pair
    ):
        raise ValueError("returned extensions that are no mapping of str to str")
    try:
        BearerToken(token, extensions).encode()
    except ValueError as error:
        raise ValueError(f"returned a token that cannot be sent: {error}") from None
    return OAuthBearerToken(token, float(expires_at), principal, dict(extensions))


class TokenAuthenticator(OAuthBearerClient):
    """Authenticates one connection by ``source``, the login's token."""

    def __init__(
        self, source: OAuthBearerToken, extensions: Mapping[str, str], wall_clock: Callable[[], float]
    ) -> None:
        def validity() -> str:
            return _validity(source.expires_at, wall_clock())

        super().__init__(source.token, {**extensions, **source.extensions}, validity)
        self.source: Final = source


def _validity(expires_at: float, now: float) -> str:
    # Without the seconds until then: the text of a repeated rejection stays the same, and is logged once.
    return f"by this machine's clock it {'is valid until' if now < expires_at else 'expired at'} {utc(expires_at)}"


class TokenLogin:
    """Makes the authenticators of all connections from one token, which it refreshes before it expires.

    Concurrent calls of `authenticator` share one call of the provider. A refresh that fails is repeated while the
    current token is valid; without a valid token each call of `authenticator` calls the provider.

    Args:
        provider: sync (called in a thread) or async; returns an `OAuthBearerToken` or a tuple of its fields.
        wall_clock: seconds since the epoch. Timers follow the loop's clock.
        timeout_s: deadline of each call of the provider, in seconds.
        retry_backoff_s: first and longest pause before a failed refresh is repeated, in seconds.
        extensions: SASL extensions for every token; those of the token win.

    Raises:
        ConfigurationError: an extension cannot be sent.
    """

    mechanism = MECHANISM

    def __init__(
        self,
        provider: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
        random: Random,
        log: Log,
        *,
        wall_clock: Callable[[], float] = time.time,
        timeout_s: float = 30.0,
        refresh: RefreshSettings = RefreshSettings(),  # noqa: B008 - immutable
        retry_backoff_s: tuple[float, float] = (0.1, 10.0),
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        self._provider = provider
        self._loop = loop
        self._random = random
        self._log = log
        self._wall_clock = wall_clock
        self._refresh = refresh
        first_s, longest_s = retry_backoff_s
        self._retry_backoff = ExponentialBackoff(first_s * 1000, longest_s * 1000)
        self._extensions = dict(extensions or {})
        try:
            BearerToken("checked", self._extensions).encode()
        except ValueError as error:
            raise ConfigurationError(f"SASL extensions of OAUTHBEARER: {error}") from None
        self._calls = Calls(loop, timeout_s)
        self._token: OAuthBearerToken | None = None
        # The only call of the provider in progress.
        self._fetch: asyncio.Task[OAuthBearerToken | KafkaError] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failed_refreshes = 0
        # The last texts of failed refreshes since the last success, without their numbers.
        self._warned: deque[str] = deque(maxlen=_REMEMBERED_FAILURES)
        self._closed = False

    async def authenticator(self) -> TokenAuthenticator:
        """Return an authenticator with a token that is valid now; ends within the provider's deadline.

        Raises:
            TokenProviderError: there is no valid token now; the text gives the reason.
            ConfigurationError: the provider found a mistake in the configuration.
            ProducerClosedError: the login is closed.
        """
        token = self._valid_token()
        if token is None:
            token = await self._shared_fetch()
        return TokenAuthenticator(token, self._extensions, self._wall_clock)

    def _valid_token(self) -> OAuthBearerToken | None:
        token = self._token
        return token if token is not None and token.expires_at > self._wall_clock() else None

    async def _shared_fetch(self) -> OAuthBearerToken:
        fetch = self._fetch
        if fetch is None or fetch.cancelled():
            fetch = self._start_fetch()
        # Cancelling this caller cancels no other one's fetch.
        await asyncio.wait([fetch])
        if self._closed:
            raise login_closed()
        result = _result(fetch)
        if isinstance(result, KafkaError):
            # Each caller raises a copy: a shared error would collect the tracebacks of all.
            raise result.fresh()
        return result

    def _start_fetch(self) -> asyncio.Task[OAuthBearerToken | KafkaError]:
        if self._closed:
            raise login_closed()
        self._cancel_timer()
        self._fetch = self._loop.create_task(self._fetch_token())
        self._fetch.add_done_callback(self._fetched)
        return self._fetch

    async def _fetch_token(self) -> OAuthBearerToken | KafkaError:
        outcome = await self._calls.call(self._provider)
        if outcome.is_late or outcome.error is not None:
            return self._failure(outcome)
        try:
            return checked_token(outcome.value, self._wall_clock())
        except ValueError as error:
            return TokenProviderError(f"The SASL token provider {error}.")

    def _failure(self, outcome: Outcome) -> KafkaError:
        error = outcome.error
        if error is None:
            return TokenProviderError(
                f"The SASL token provider returned nothing within {self._calls.timeout_s:g} s (request_timeout_ms): "
                "check that its server can be reached."
            )
        if isinstance(error, TokenProviderError | ConfigurationError):
            return error.fresh()
        known = () if self._token is None else (self._token.token,)
        return TokenProviderError(f"The SASL token provider raised {described(error, known)}")

    def _fetched(self, fetch: asyncio.Task[OAuthBearerToken | KafkaError]) -> None:
        if self._fetch is fetch:
            self._fetch = None
        if self._closed:
            return
        result = _result(fetch)
        if isinstance(result, KafkaError):
            self._refresh_failed(result)
            return
        if self._warned:
            self._log.info("The SASL token has been refreshed after %s.", counted(self._failed_refreshes, "failure"))
        self._failed_refreshes = 0
        self._warned.clear()
        self._token = result
        lifetime_s = result.expires_at - self._wall_clock()
        delay_s = refresh_delay_s(lifetime_s, self._refresh, self._random.random())
        self._timer = self._loop.call_later(delay_s, self._refresh_now)
        self._log.debug(
            "The SASL token of %r is valid for %.0f s; refreshed in %.0f s.", result.principal, lifetime_s, delay_s
        )

    def _refresh_failed(self, error: KafkaError) -> None:
        """Repeat a failed refresh after a pause if the current token is still valid; else callers fetch a token."""
        token = self._valid_token()
        if token is None:
            return
        self._failed_refreshes += 1
        kind = re.sub(r"\d+", "#", str(error))
        if kind not in self._warned:
            self._warned.append(kind)
            left_s = token.expires_at - self._wall_clock()
            self._log.warning(
                "The SASL token could not be refreshed; it is valid for another %.0f s, and refreshed again until "
                "then: %s",
                left_s,
                error,
            )
        delay_s = self._retry_backoff.delay(self._failed_refreshes - 1, self._random)
        self._timer = self._loop.call_later(max(delay_s, _SHORTEST_REFRESH_DELAY_S), self._refresh_now)

    def _refresh_now(self) -> None:
        self._timer = None
        if self._fetch is None:
            self._start_fetch()

    def rejected(self, authenticator: object) -> None:
        """Drop the token of ``authenticator``, which the broker rejected, unless it has been replaced already."""
        if isinstance(authenticator, TokenAuthenticator) and authenticator.source is self._token:
            self._token = None
            self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def executor(self) -> Executor:
        """Daemon threads for blocking steps of an authentication, and for a sync token provider."""
        return self._calls.executor

    def stop(self) -> None:
        """Cancel the refresh and the calls of the provider at once, without waiting for them; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._token = None
        self._cancel_timer()
        if self._fetch is not None:
            self._fetch.cancel()
        self._calls.stop()

    async def close(self) -> None:
        """Do what `stop` does, and wait for the calls that clean up; safe to call twice."""
        self.stop()
        if self._fetch is not None:
            await asyncio.wait([self._fetch])
        await self._calls.close()


def _result(fetch: asyncio.Task[OAuthBearerToken | KafkaError]) -> OAuthBearerToken | KafkaError:
    if fetch.cancelled():
        # By code that cancels all tasks of the loop, for example.
        return TokenProviderError(
            "The program has cancelled the call of the SASL token provider; the next authentication calls it again."
        )
    return fetch.result()
