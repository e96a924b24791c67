"""Requests an access token from a token endpoint (RFC 6749), with the retries of Kafka's HttpJwtRetriever."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlencode

from aioproducer.config.urls import TOKEN_ENDPOINT, http_url, shown
from aioproducer.errors import ConfigurationError, TokenProviderError
from aioproducer.security.calls import DaemonExecutor
from aioproducer.security.oauth.jwt import claims_of
from aioproducer.security.oauth.packages import require_package
from aioproducer.security.oauth.urls import redirected
from aioproducer.security.redaction import described, redacted
from aioproducer.security.tokens import OAuthBearerToken

if TYPE_CHECKING:
    import httpx

    from aioproducer.config import Password, ProducerConfig
    from aioproducer.security.settings import TokenSettings

INSTALL = "pip install 'aioproducer[oidc]'"

MAX_RESPONSE_BYTES = 1 << 20
"""A larger response holds no token."""

MAX_REDIRECTS = 3

# Other statuses may be temporary. Kafka's list of those that are not, in Python's numbers.
_FINAL_STATUSES = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505})

# A share of the whole deadline, so that the error of the last attempt is known before that.
_SHARE_OF_DEADLINE = 0.9

_HEADERS = {
    "Accept": "application/json",
    # Compressed, a small response could fill the memory.
    "Accept-Encoding": "identity",
    "Cache-Control": "no-cache",
    "Content-Type": "application/x-www-form-urlencoded",
}

_TRUST_KEYS = ("location", "certificates", "type", "password")


class _AttemptError(Exception):
    """A request failed; the text continues a sentence that begins with the endpoint."""

    def __init__(self, text: str, *, is_final: bool) -> None:
        super().__init__(text)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class _Trust:
    """The keys that `client_context` reads, without those of the client's own certificate."""

    ssl_truststore_certificates: Password | None
    ssl_truststore_location: str | None
    ssl_truststore_password: Password | None
    ssl_truststore_type: str | None
    ssl_endpoint_identification_algorithm: str = "https"
    ssl_enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ssl_cipher_suites: tuple[str, ...] = ()
    ssl_keystore_certificate_chain: None = None
    ssl_keystore_key: None = None
    ssl_keystore_location: None = None
    ssl_keystore_password: None = None
    ssl_keystore_type: None = None
    ssl_key_password: None = None


def trust_context(settings: TokenSettings) -> ssl.SSLContext:
    """Return the TLS context for token endpoints; reads files, so it blocks.

    ``ssl.truststore.*`` options in ``sasl.jaas.config`` are the whole trust, as in Kafka; else httpx's and the system's
    authorities are trusted, and those of the configuration's ``ssl.truststore.*``. The host name is always checked, and
    the client's own certificate is not shown.

    Raises:
        ConfigurationError: a trust store cannot be read.
    """
    options = settings.sasl_jaas.options if settings.sasl_jaas is not None else {}
    own = {name: options.get(f"ssl.truststore.{name}") for name in _TRUST_KEYS}
    if own["location"] or own["certificates"]:
        return _context(own)
    context = _context(
        {
            "location": settings.ssl_truststore_location,
            "certificates": settings.ssl_truststore_certificates,
            "type": settings.ssl_truststore_type,
            "password": settings.ssl_truststore_password,
        }
    )
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    # A dependency of httpx.
    import certifi

    context.load_verify_locations(certifi.where())
    return context


def _context(trust: Mapping[str, str | Password | None]) -> ssl.SSLContext:
    from aioproducer.config import Password
    from aioproducer.security.tls import client_context

    def password(name: str) -> Password | None:
        value = trust[name]
        return Password(value) if isinstance(value, str) else value

    given = _Trust(
        password("certificates"),
        cast("str | None", trust["location"]),
        password("password"),
        cast("str | None", trust["type"]),
    )
    return client_context(cast("ProducerConfig", given))


class TokenEndpoint:
    """Posts forms to ``sasl.oauthbearer.token.endpoint.url`` and returns the token of the response.

    Raises:
        ConfigurationError: httpx is not installed, or the URL is missing or not allowed.
    """

    def __init__(self, settings: TokenSettings) -> None:
        require_package("httpx", f"OAuth token endpoints need the package httpx: {INSTALL}")
        if not settings.sasl_oauthbearer_token_endpoint_url:
            raise ConfigurationError(
                f"{TOKEN_ENDPOINT} is missing: set it to the token endpoint of the identity provider"
            )
        self.url: Final = http_url(TOKEN_ENDPOINT, settings.sasl_oauthbearer_token_endpoint_url)
        self._settings = settings
        self._deadline_s = settings.request_timeout_ms / 1000 * _SHARE_OF_DEADLINE
        self.executor: Final = DaemonExecutor(1, "aioproducer-login")

    async def fetch(
        self, form: Mapping[str, str], headers: Mapping[str, str], secrets: Iterable[str], grant: str
    ) -> OAuthBearerToken:
        """Return the token for a grant.

        Args:
            secrets: Strings that no error text may contain.
            grant: The credentials that the endpoint checks, for the text of a rejection: ``client id and secret``.

        Raises:
            TokenProviderError: the endpoint gave no token, or none that Kafka can use.
            ConfigurationError: a trust store cannot be read.
        """
        attempts = _Attempts(self.url, urlencode(form).encode(), {**_HEADERS, **headers}, tuple(secrets), grant)
        try:
            async with asyncio.timeout(self._deadline_s):
                response = await self._post(attempts)
        except TimeoutError:
            last = f"; the last attempt: it {attempts.failure}" if attempts.failure else ""
            text = f"gave no token within {self._deadline_s:g} s (request_timeout_ms){last}"
        except _AttemptError as error:
            text = str(error)
        else:
            try:
                return self._token_in(response)
            except ValueError as error:
                text = str(error)
        raise TokenProviderError(f"The token endpoint {shown(self.url)} {text}.")

    async def _post(self, attempts: _Attempts) -> bytes:
        """Post until there is a response, or a failure is final or comes after ``sasl.login.retry.backoff.max.ms``."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        client = await loop.run_in_executor(self.executor, self._client)
        pause_s = settings.sasl_login_retry_backoff_ms / 1000
        async with client:
            end = loop.time() + settings.sasl_login_retry_backoff_max_ms / 1000
            while True:
                try:
                    return await attempts.make(client)
                except _AttemptError as error:
                    left_s = end - loop.time()
                    if error.is_final or left_s <= 0:
                        raise
                await asyncio.sleep(min(pause_s, left_s))
                pause_s *= 2

    def _client(self) -> httpx.AsyncClient:
        """Return a client for one token; blocks.

        It reads some hundred certificates for each token, since the files may be renewed. No connection would be kept
        open until the next one.
        """
        import httpx

        _import_backend()
        settings = self._settings
        is_https = self.url[:6].lower() == "https:"
        return httpx.AsyncClient(
            # An http URL is one of this machine: nothing is verified, and no proxy of the environment may see it.
            verify=trust_context(settings) if is_https else False,
            trust_env=is_https,
            timeout=httpx.Timeout(
                None,
                connect=_seconds(settings.sasl_login_connect_timeout_ms),
                read=_seconds(settings.sasl_login_read_timeout_ms),
            ),
            follow_redirects=False,
        )

    def _token_in(self, response: bytes) -> OAuthBearerToken:
        """
        Raises:
            ValueError: the response holds no token that Kafka can use; the text does not contain it.
        """
        answer = _json_object(response)
        if answer is None:
            raise ValueError("returned no JSON object")
        # As Kafka's JwtResponseParser.
        found = (answer.get(name) for name in ("access_token", "id_token"))
        token = next((text.strip() for text in found if isinstance(text, str) and text.strip()), None)
        if token is None:
            raise ValueError("returned JSON without an access_token")
        try:
            claims = claims_of(
                token,
                scope_claim=self._settings.sasl_oauthbearer_scope_claim_name,
                subject_claim=self._settings.sasl_oauthbearer_sub_claim_name,
            )
        except ValueError as error:
            raise ValueError(f"returned a token that {error}") from None
        return OAuthBearerToken(token, claims.expires_at, claims.principal)


class _Attempts:
    """The requests of one fetch; ``failure`` is the reason of the last failure."""

    def __init__(self, url: str, body: bytes, headers: Mapping[str, str], secrets: tuple[str, ...], grant: str) -> None:
        self._url = url
        self._body = body
        self._headers = headers
        self._secrets = secrets
        self._grant = grant
        self.failure = ""

    async def make(self, client: httpx.AsyncClient) -> bytes:
        """Return the body of a successful response.

        Raises:
            _AttemptError: there was none.
        """
        import httpx

        url = self._url
        try:
            for _ in range(MAX_REDIRECTS + 1):
                async with client.stream("POST", url, content=self._body, headers=self._headers) as response:
                    if not response.has_redirect_location:
                        return await self._content(response)
                    url = self._redirected(url, response)
            raise _AttemptError(f"redirects more than {MAX_REDIRECTS} times", is_final=True)
        except httpx.TimeoutException as error:
            self.failure = f"did not answer in time ({type(error).__name__})"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self.failure = f"cannot be reached ({described(error, self._secrets)})"
        except _AttemptError as error:
            self.failure = str(error)
            raise
        raise _AttemptError(self.failure, is_final=False)

    def _redirected(self, url: str, response: httpx.Response) -> str:
        location = response.headers["Location"]
        if response.status_code not in (307, 308):
            raise _AttemptError(
                f"redirects to {redacted(shown(location))} with status {response.status_code}, which a request with "
                f"credentials does not follow: set {TOKEN_ENDPOINT} to the token endpoint itself",
                is_final=True,
            )
        target = redirected(url, location)
        if target is None:
            raise _AttemptError(
                f"redirects to another host, port or scheme ({redacted(shown(location))}), where no credentials are "
                f"sent: set {TOKEN_ENDPOINT} to that URL if it is the right one",
                is_final=True,
            )
        return target

    async def _content(self, response: httpx.Response) -> bytes:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _AttemptError("returned a compressed response, which was not requested", is_final=True)
        content = bytearray()
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > MAX_RESPONSE_BYTES:
                raise _AttemptError(f"returned more than {MAX_RESPONSE_BYTES} bytes", is_final=True)
        status = response.status_code
        if status in (200, 201) and content.strip():
            return bytes(content)
        if status in (200, 201):
            raise _AttemptError("returned an empty response", is_final=False)
        check = f": check {self._grant}" if status in (400, 401, 403) else ""
        raise _AttemptError(
            f"returned status {status}{self._reason(bytes(content))}{check}", is_final=status in _FINAL_STATUSES
        )

    def _reason(self, content: bytes) -> str:
        """Return the error of a response (RFC 6749, section 5.2, or Okta's), which has no secrets by its definition."""
        answer = _json_object(content) or {}
        parts = [answer.get(name) for name in ("error", "error_description", "errorCode", "errorSummary")]
        texts = [redacted(part, self._secrets) for part in parts if isinstance(part, str) and part]
        return f" ({'; '.join(texts)})" if texts else ""


def _import_backend() -> None:
    """Make the imports of httpx's first request now, which would otherwise block the event loop."""
    # They have no public names: a release without them imports others at the first request.
    with suppress(ModuleNotFoundError):
        import_module("anyio._backends._asyncio")
        import_module("httpcore._backends.anyio")


def _json_object(content: bytes) -> dict[str, object] | None:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _seconds(milliseconds: int | None) -> float | None:
    """Return a timeout in seconds; None, Kafka's default, leaves it to the deadline of the whole."""
    return milliseconds / 1000 if milliseconds is not None else None
