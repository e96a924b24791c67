"""Client credentials at a token endpoint in the test's process, and errors of such an endpoint."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from aioproducer.config import Password
from aioproducer.errors import ConfigurationError, TokenProviderError
from aioproducer.security.oauth import endpoint
from aioproducer.security.oauth.client_credentials import ClientCredentials
from aioproducer.security.oauth.endpoint import MAX_RESPONSE_BYTES
from tests.security.oauth.identity_provider import (
    IdentityProvider,
    Response,
    identity_provider,
    jwt,
    token_response,
)
from tests.security.settings import Entry, Settings
from tests.virtual_time import SteppedClock
from tests.waiting import until

SECRET = "tiger/and lion+"
EXPIRY = time.time() + 3600
TOKEN = jwt(sub="alice", exp=EXPIRY, iat=1, scope="produce")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def settings(url: str, **others: Any) -> Settings:
    return Settings(
        **{
            "sasl_oauthbearer_token_endpoint_url": url,
            "sasl_oauthbearer_client_credentials_client_id": "client 1",
            "sasl_oauthbearer_client_credentials_client_secret": Password(SECRET),
            "sasl_login_retry_backoff_ms": 1,
            "sasl_login_retry_backoff_max_ms": 60_000,
            **others,
        }
    )


async def failure(provider: IdentityProvider, **others: Any) -> str:
    """The text of the error, which contains no secret, and nothing else of the exchange."""
    with pytest.raises(TokenProviderError) as caught:
        await ClientCredentials(settings(provider.url, **others))()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    text = str(caught.value)
    assert SECRET not in text
    assert TOKEN not in text
    assert text.startswith(f"The token endpoint {provider.url} ")
    return text


async def test_id_secret_and_scope_are_posted_and_the_token_is_read() -> None:
    async with identity_provider(token_response(TOKEN)) as provider:
        token = await ClientCredentials(settings(provider.url, sasl_oauthbearer_scope=" a:b c "))()
    assert token == (TOKEN, EXPIRY, "alice", {})
    (request,) = provider.requests
    assert request.path == "/token"
    assert request.form == {"grant_type": ["client_credentials"], "scope": ["a:b c"]}
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert request.headers["accept"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"
    scheme, _, credentials = request.headers["authorization"].partition(" ")
    assert (scheme, b64decode(credentials)) == ("Basic", f"client 1:{SECRET}".encode())


async def test_id_and_secret_are_url_encoded_on_demand() -> None:
    """KIP-1025."""
    async with identity_provider(token_response(TOKEN)) as provider:
        await ClientCredentials(settings(provider.url, sasl_oauthbearer_header_urlencode=True))()
    credentials = provider.requests[0].headers["authorization"].removeprefix("Basic ")
    assert b64decode(credentials) == b"client+1:tiger%2Fand+lion%2B"
    assert "scope" not in provider.requests[0].form


async def test_the_claims_for_principal_and_scope_are_configurable() -> None:
    token = jwt(exp=EXPIRY, iat=1, azp="bob", scp=["a", "b"], sub=7, scope=7)
    names = {"sasl_oauthbearer_sub_claim_name": "azp", "sasl_oauthbearer_scope_claim_name": "scp"}
    async with identity_provider(token_response(token)) as provider:
        assert (await ClientCredentials(settings(provider.url, **names))()).principal == "bob"
        assert "has no claim sub with a text" in await failure(provider, sasl_oauthbearer_scope_claim_name="scp")
        assert "has a claim scope that is neither" in await failure(provider, sasl_oauthbearer_sub_claim_name="azp")


async def test_an_id_token_is_used_where_there_is_no_access_token() -> None:
    async with identity_provider(
        Response(201, json.dumps({"id_token": TOKEN, "access_token": " "}).encode())
    ) as provider:
        assert (await ClientCredentials(settings(provider.url))()).token == TOKEN


@pytest.mark.parametrize("status", [400, 401, 403, 404, 501])
async def test_a_final_status_is_not_retried(status: int) -> None:
    body = json.dumps({"error": "invalid_client", "error_description": f"not {SECRET}, Bearer abc"}).encode()
    async with identity_provider(Response(status, body)) as provider:
        text = await failure(provider)
    assert f"returned status {status} (invalid_client; not [hidden], Bearer [hidden])" in text
    assert ("check client id, client secret and scope" in text) == (status in (400, 401, 403))
    assert len(provider.requests) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_temporary_status_is_retried(status: int) -> None:
    async with identity_provider(Response(status), Response(status, b"<html>"), token_response(TOKEN)) as provider:
        assert (await ClientCredentials(settings(provider.url))()).token == TOKEN
    assert len(provider.requests) == 3


class ScriptedTime:
    """The module asyncio as the endpoint sees it: only its pauses move the clock, and a test ends its timeouts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        self.timeouts: list[tuple[float, asyncio.Timeout]] = []
        monkeypatch.setattr(endpoint, "asyncio", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def get_running_loop(self) -> SteppedClock:
        return SteppedClock(asyncio.get_running_loop(), self._times())

    def _times(self) -> Iterator[float]:
        while True:
            yield 1000 + sum(self.pauses)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        # A defect that retries without an end shows up.
        made = asyncio.timeout(30)
        self.timeouts.append((seconds, made))
        return made

    def expire(self) -> list[float]:
        """End the timeouts, and return how long they were."""
        for _, timeout in self.timeouts:
            timeout.reschedule(asyncio.get_running_loop().time())
        return [seconds for seconds, _ in self.timeouts]


async def test_retries_end_after_the_longest_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedTime(monkeypatch)
    async with identity_provider(Response(503, b'{"errorCode":"E7","errorSummary":"busy"}')) as provider:
        text = await failure(provider, sasl_login_retry_backoff_ms=50, sasl_login_retry_backoff_max_ms=400)
    assert "returned status 503 (E7; busy)." in text
    assert scripted.pauses == pytest.approx([0.05, 0.1, 0.2, 0.05])
    assert len(provider.requests) == 5


async def test_an_endpoint_that_is_silent_fails_at_the_read_timeout() -> None:
    async with identity_provider(None) as provider:
        text = await failure(provider, sasl_login_read_timeout_ms=20, sasl_login_retry_backoff_max_ms=0)
    assert "did not answer in time (ReadTimeout)" in text


async def test_an_endpoint_that_is_silent_fails_at_the_deadline() -> None:
    async with identity_provider(None) as provider:
        assert "gave no token within 0.045 s (request_timeout_ms)." in await failure(provider, request_timeout_ms=50)


async def test_the_deadline_names_the_reason_of_the_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedTime(monkeypatch)
    async with identity_provider(Response(503), None) as provider:
        failing = asyncio.ensure_future(failure(provider, request_timeout_ms=1000))
        await until(lambda: len(provider.requests) == 2)
        assert scripted.expire() == [0.9]
        text = await failing
    assert "gave no token within 0.9 s (request_timeout_ms); the last attempt: it returned status 503." in text


async def test_a_closed_port_is_named() -> None:
    async with identity_provider(None) as provider:
        pass
    text = await failure(provider, sasl_login_retry_backoff_max_ms=0)
    assert "cannot be reached (ConnectError: " in text


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (Response(200, b"x" * (MAX_RESPONSE_BYTES + 1)), "returned more than 1048576 bytes"),
        (Response(401, b"x" * (MAX_RESPONSE_BYTES + 1)), "returned more than 1048576 bytes"),
        (Response(200, b"<html>sorry</html>"), "returned no JSON object"),
        (Response(200, b"[" * 100_000), "returned no JSON object"),
        (Response(200, b'["access_token"]'), "returned no JSON object"),
        (Response(200, b'{"access_token": 7, "id_token": ""}'), "returned JSON without an access_token"),
        (Response(200, b'{"token": "tiger"}'), "returned JSON without an access_token"),
        (token_response("opaque"), "returned a token that is no JWT"),
        (token_response("a.b.c"), "its payload is no base64 of a JSON object"),
        (token_response(jwt(sub="alice")), "has no claim exp"),
        (token_response(jwt(sub="alice", exp="soon")), "has a claim exp that is no number"),
        (token_response(jwt(sub="alice", exp=10**400)), "has a claim exp that is no number"),
        (token_response(jwt(sub="alice", exp=EXPIRY, iat=-1)), "has a claim iat that is no number"),
        (token_response(jwt(exp=EXPIRY)), "has no claim sub with a text"),
        (Response(200, b"\x1f\x8b", (("Content-Encoding", "gzip"),)), "returned a compressed response"),
        (
            Response(302, b"", (("Location", "/login"),)),
            "with status 302, which a request with credentials does not follow",
        ),
    ],
)
async def test_an_answer_without_a_token_is_named_and_not_retried(response: Response, text: str) -> None:
    async with identity_provider(response) as provider:
        assert text in await failure(provider)
    assert len(provider.requests) == 1


async def test_an_empty_answer_is_retried() -> None:
    async with identity_provider(Response(200), token_response(TOKEN)) as provider:
        assert (await ClientCredentials(settings(provider.url))()).token == TOKEN


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_endpoint_is_followed_with_the_request(status: int) -> None:
    async with identity_provider(
        Response(status, b"", (("Location", "/v2/token?tenant=1#top"),)), token_response(TOKEN)
    ) as provider:
        assert (await ClientCredentials(settings(provider.url))()).token == TOKEN
    assert [request.path for request in provider.requests] == ["/token", "/v2/token?tenant=1"]
    assert provider.requests[0].form == provider.requests[1].form
    assert provider.requests[0].headers["authorization"] == provider.requests[1].headers["authorization"]


async def test_a_redirect_to_another_host_is_not_followed() -> None:
    """The class of CVE-2025-27817: credentials must not reach another server."""
    async with identity_provider(token_response(TOKEN)) as other:
        targets = [other.url, other.url.replace("127.0.0.1", "localhost"), "file:///etc/passwd", "//169.254.169.254/x"]
        targets += ["token", "https://[", "http://user:tiger@idp/"]
        for target in targets:
            async with identity_provider(Response(307, b"", (("Location", target),))) as provider:
                text = await failure(provider)
            assert "redirects to another host, port or scheme" in text
            assert "tiger" not in text
            assert len(provider.requests) == 1
    assert other.requests == []


async def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An http URL is only allowed for this machine, since it sends the client secret in clear text."""
    async with identity_provider(Response(502)) as proxy, identity_provider(token_response(TOKEN)) as provider:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/token"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert (await ClientCredentials(settings(provider.url, sasl_login_retry_backoff_max_ms=0))()).token == TOKEN
    assert proxy.requests == []


async def test_redirects_in_a_circle_end() -> None:
    async with identity_provider(Response(307, b"", (("Location", "/token"),))) as provider:
        assert "redirects more than 3 times" in await failure(provider)
    assert len(provider.requests) == 4


class TestTls:
    @pytest.fixture
    def authority(self) -> trustme.CA:
        return trustme.CA()

    @pytest.fixture
    def context(self, authority: trustme.CA) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        return context

    @pytest.mark.parametrize("name", ["HTTPS_PROXY", "all_proxy"])
    async def test_a_proxy_of_the_environment_passes_tls_on(
        self, name: str, authority: trustme.CA, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[bytes] = []
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            asked.append(await reader.read())
            writer.close()
            await writer.wait_closed()
            ended.set()

        trust = Password(authority.cert_pem.bytes().decode())
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, identity_provider(token_response(TOKEN), context=context) as provider:
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            text = await failure(provider, ssl_truststore_certificates=trust, sasl_login_retry_backoff_max_ms=0)
            await ended.wait()
        assert "cannot be reached (ProxyError: 403 Forbidden)" in text
        assert asked[0].startswith(b"CONNECT 127.0.0.1:")
        assert b"authorization" not in asked[0].lower()
        assert asked[1] == b""
        assert provider.requests == []

    async def test_an_unknown_authority_is_not_trusted(self, context: ssl.SSLContext) -> None:
        async with identity_provider(token_response(TOKEN), context=context) as provider:
            assert "CERTIFICATE_VERIFY_FAILED" in await failure(provider, sasl_login_retry_backoff_max_ms=0)
        assert provider.requests == []

    async def test_the_configured_trust_store_is_trusted_and_read_for_each_token(
        self, authority: trustme.CA, context: ssl.SSLContext, tmp_path: Path
    ) -> None:
        store = tmp_path / "trust.pem"
        other = trustme.CA()
        store.write_bytes(other.cert_pem.bytes())
        async with identity_provider(token_response(TOKEN), context=context) as provider:
            credentials = ClientCredentials(
                settings(provider.url, ssl_truststore_location=str(store), sasl_login_retry_backoff_max_ms=0)
            )
            with pytest.raises(TokenProviderError, match="CERTIFICATE_VERIFY_FAILED"):
                await credentials()
            store.write_bytes(authority.cert_pem.bytes())
            assert (await credentials()).token == TOKEN
            store.unlink()
            with pytest.raises(ConfigurationError, match="cannot be read"):
                await credentials()

    async def test_a_trust_store_in_the_jaas_options_is_the_whole_trust(
        self, authority: trustme.CA, context: ssl.SSLContext
    ) -> None:
        """As Kafka's JaasOptionsUtils."""
        own = Password(authority.cert_pem.bytes().decode())
        other = trustme.CA().cert_pem.bytes().decode()
        async with identity_provider(token_response(TOKEN), context=context) as provider:
            jaas = Entry("OAuthBearerLoginModule", {"ssl.truststore.certificates": own.value})
            assert (await ClientCredentials(settings(provider.url, sasl_jaas=jaas))()).token == TOKEN
            jaas = Entry("OAuthBearerLoginModule", {"ssl.truststore.certificates": other})
            text = await failure(
                provider, sasl_jaas=jaas, ssl_truststore_certificates=own, sasl_login_retry_backoff_max_ms=0
            )
        assert "CERTIFICATE_VERIFY_FAILED" in text

    async def test_the_host_name_is_checked_even_if_that_of_brokers_is_not(self, authority: trustme.CA) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("idp.example").configure_cert(context)
        trust = Password(authority.cert_pem.bytes().decode())
        async with identity_provider(token_response(TOKEN), context=context) as provider:
            text = await failure(provider, ssl_truststore_certificates=trust, sasl_login_retry_backoff_max_ms=0)
        assert "IP address mismatch" in text


class TestConfiguration:
    @pytest.mark.parametrize(
        ("others", "text"),
        [
            ({"sasl_oauthbearer_client_credentials_client_id": None}, "client.id is missing"),
            ({"sasl_oauthbearer_client_credentials_client_secret": Password(" ")}, "client.secret is missing"),
            ({"sasl_oauthbearer_token_endpoint_url": None}, "token.endpoint.url is missing"),
            ({"sasl_oauthbearer_token_endpoint_url": "http://idp/token"}, "would send secrets in clear text"),
        ],
    )
    def test_a_key_that_is_missing_or_wrong_is_named(self, others: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            ClientCredentials(settings("https://idp/token", **others))

    def test_a_missing_package_is_named_with_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "httpx", None)
        with pytest.raises(ConfigurationError, match=r"need the package httpx: pip install 'aioproducer\[oidc\]'"):
            ClientCredentials(settings("https://idp/token"))
