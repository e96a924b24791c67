"""A client that cannot authenticate: each failure has its class, is raised within seconds, and says what to do.

No text, and nothing in its chain of exceptions, contains a secret.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.admin import Admin
from aioproducer.errors import (
    ConfigurationError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationError,
    TokenProviderError,
    UnsupportedSaslMechanismError,
)
from tests.kafka.security import MECHANISMS, PASSWORD, SASL, SASL_TLS, SCRAM_512, USERNAME, SecureCluster
from tests.kafka.token_server import SigningKey, TokenServer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

WRONG = "wr0ng-passw0rd"
MAX_BLOCK_MS = 1500
AT_ONCE_S = 3.0
"""Maximum seconds until a broker's rejection, on a busy machine."""


async def _rejection(*secrets: str, **configuration: Any) -> KafkaError:
    """Return the error that a new producer's send, and ``wait_ready``, raise at once."""
    producer = Producer(max_block_ms=20_000, **configuration)
    await producer.start()
    try:
        failures = []
        for wait in (lambda: producer.send("any", b"v"), lambda: producer.wait_ready(20)):
            began = time.monotonic()
            with pytest.raises(KafkaError) as failure:
                await wait()
            assert time.monotonic() - began < AT_ONCE_S
            failures.append(failure.value)
    finally:
        await producer.close(0)
    first, second = failures
    assert type(first) is type(second)
    _check_hidden(first, *secrets)
    return first


async def _last_failure(*secrets: str, **configuration: Any) -> KafkaError:
    """Return the error of a new producer's send at its deadline; it could have succeeded until then."""
    producer = Producer(max_block_ms=MAX_BLOCK_MS, **configuration)
    await producer.start()
    try:
        began = time.monotonic()
        with pytest.raises(KafkaError) as failure:
            await producer.send("any", b"v")
        assert time.monotonic() - began < MAX_BLOCK_MS / 1000 + AT_ONCE_S
    finally:
        await producer.close(0)
    _check_hidden(failure.value, *secrets)
    return failure.value


def _check_hidden(error: KafkaError, *secrets: str) -> None:
    written = "".join(traceback.format_exception(error)) + repr(error)
    for secret in (PASSWORD, WRONG, *secrets):
        assert secret not in written


def _with_token(token: str, lifetime: float = 300) -> dict[str, Any]:
    return {"sasl_token_provider": lambda: (token, time.time() + lifetime)}


# Credentials


@pytest.mark.parametrize("listener", [SASL, SASL_TLS])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_rejected(secure: SecureCluster, listener: str, mechanism: str) -> None:
    error = await _rejection(**secure.configuration(listener, mechanism, sasl_password=WRONG))
    assert type(error) is SaslAuthenticationError
    assert "Check user name" in str(error)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_an_unknown_user_is_rejected(secure: SecureCluster, mechanism: str) -> None:
    error = await _rejection(**secure.configuration(SASL, mechanism, sasl_username="nobody"))
    assert type(error) is SaslAuthenticationError
    assert "Check user name" in str(error)


async def test_a_password_provider_that_fails_is_named(secure: SecureCluster) -> None:
    def fetch_password() -> str:
        raise OSError("the vault is sealed")

    error = await _last_failure(**secure.configuration(SASL, "PLAIN", sasl_password=fetch_password))
    assert "sasl.password" in str(error).replace("_", ".")
    assert "the vault is sealed" in str(error)


# Mechanisms


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER", "SCRAM-SHA-256"])
async def test_a_mechanism_that_is_not_enabled_is_rejected(secure: SecureCluster, mechanism: str) -> None:
    address = secure.sasl_bootstrap_servers(SCRAM_512)
    error = await _rejection(**secure.configuration(SASL, mechanism, bootstrap_servers=address))
    assert type(error) is UnsupportedSaslMechanismError
    text = str(error)
    assert address in text
    assert mechanism in text
    assert "SCRAM-SHA-512" in text, "names those that are enabled"
    assert "sasl_mechanism" in text


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "DIGEST-MD5", "GSSAPI"])
async def test_an_unknown_mechanism_is_rejected(secure: SecureCluster, mechanism: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Producer(**secure.configuration(SASL, mechanism))
    for known in MECHANISMS:
        assert known in str(refusal.value)


async def test_a_missing_mechanism_is_rejected(secure: SecureCluster) -> None:
    with pytest.raises(ConfigurationError, match=r"sasl[._]mechanism"):
        Producer(**secure.configuration(SASL, "PLAIN", sasl_mechanism=None))


# Tokens


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"exp": 1_000_000_000, "iat": 999_999_000}, "expired"),
        ({"aud": "another"}, "audience"),
        ({"iss": "https://other.example.org"}, "issuer"),
        ({"key": SigningKey()}, "issuer"),
    ],
    ids=["expired", "audience", "issuer", "key"],
)
async def test_a_token_that_the_broker_rejects_raises(
    secure: SecureCluster, tokens: TokenServer, changes: dict[str, Any], advice: str
) -> None:
    """The broker returns only ``invalid_token``."""
    token = tokens.token(**changes)
    error = await _rejection(token, **secure.configuration(SASL, "OAUTHBEARER", **_with_token(token)))
    assert type(error) is SaslAuthenticationError
    assert "invalid_token" in str(error)
    assert advice in str(error)
    assert "user name" not in str(error)


async def test_a_token_that_is_not_valid_yet_by_the_brokers_clock_is_rejected(
    secure: SecureCluster, tokens: TokenServer
) -> None:
    """The token becomes valid soon enough to be sent: the broker here allows for less skew than the client."""
    token = tokens.token(nbf=int(time.time()) + 20)
    error = await _rejection(token, **secure.configuration(SASL, "OAUTHBEARER", **_with_token(token)))
    assert type(error) is SaslAuthenticationError
    assert "clock" in str(error)


@pytest.mark.parametrize("token", ["bm90.YQ.dG9rZW4", "an-opaque-token"])
async def test_a_malformed_token_is_rejected(secure: SecureCluster, token: str) -> None:
    """The broker requires a JWT. An opaque token is no error of the client: other brokers look such tokens up."""
    error = await _rejection(token, **secure.configuration(SASL, "OAUTHBEARER", **_with_token(token)))
    assert type(error) is SaslAuthenticationError
    assert "invalid_token" in str(error)
    assert "Check" in str(error)


@pytest.mark.parametrize("token", ["", "with a space"])
async def test_a_token_with_invalid_characters_is_not_sent(secure: SecureCluster, token: str) -> None:
    secrets = [token] if token else []
    error = await _last_failure(*secrets, **secure.configuration(SASL, "OAUTHBEARER", **_with_token(token)))
    assert "token provider" in str(error)


async def test_an_expired_token_is_not_sent(secure: SecureCluster, tokens: TokenServer) -> None:
    configuration = secure.configuration(SASL, "OAUTHBEARER", **_with_token(tokens.token(), lifetime=-10))
    error = await _last_failure(**configuration)
    assert "expired" in str(error)
    assert "token provider" in str(error)


async def test_a_token_that_becomes_valid_much_later_is_not_sent(secure: SecureCluster, tokens: TokenServer) -> None:
    """One of the two clocks is wrong."""
    token = tokens.token(nbf=4_000_000_000)
    error = await _last_failure(token, **secure.configuration(SASL, "OAUTHBEARER", **_with_token(token)))
    assert "clock" in str(error)


async def test_a_token_provider_that_fails_is_named(secure: SecureCluster) -> None:
    def fetch_token() -> tuple[str, float]:
        raise RuntimeError("no token today")

    error = await _last_failure(**secure.configuration(SASL, "OAUTHBEARER", sasl_token_provider=fetch_token))
    assert TokenProviderError in (type(error), type(error.__cause__))
    assert "token provider" in str(error)
    assert "no token today" in str(error)


async def test_a_token_provider_that_hangs_is_named(secure: SecureCluster) -> None:
    async def fetch_token() -> tuple[str, float]:
        await asyncio.Event().wait()
        raise AssertionError

    error = await _last_failure(
        **secure.configuration(SASL, "OAUTHBEARER", sasl_token_provider=fetch_token, request_timeout_ms=500)
    )
    assert "token provider returned nothing within 0.5 s" in str(error)


# Listeners


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_listener_without_sasl_is_reported(secure: SecureCluster, mechanism: str) -> None:
    address = secure.bootstrap_servers
    error = await _rejection(**secure.configuration(SASL, mechanism, bootstrap_servers=address))
    assert type(error) is IllegalSaslStateError
    assert address in str(error)
    assert "set it to PLAINTEXT" in str(error)


async def test_a_tls_listener_without_sasl_is_reported(secure: SecureCluster) -> None:
    address = secure.tls_bootstrap_servers
    error = await _rejection(**secure.configuration(SASL_TLS, "PLAIN", bootstrap_servers=address))
    assert type(error) is IllegalSaslStateError
    assert "set it to SSL" in str(error)


async def test_a_client_without_sasl_at_a_sasl_listener_is_reported(secure: SecureCluster) -> None:
    address = secure.sasl_bootstrap_servers(SASL)
    error = await _rejection(bootstrap_servers=address)
    assert type(error) is IllegalSaslStateError
    assert address in str(error)
    assert "set it to SASL_PLAINTEXT" in str(error)
    for mechanism in MECHANISMS:
        assert mechanism in str(error)


async def test_a_client_with_only_tls_at_a_sasl_ssl_listener_is_reported(secure: SecureCluster) -> None:
    address = secure.sasl_bootstrap_servers(SASL_TLS)
    error = await _rejection(
        bootstrap_servers=address, security_protocol="SSL", ssl_truststore_location=secure.truststore
    )
    assert type(error) is IllegalSaslStateError
    assert "set it to SASL_SSL" in str(error)


async def test_a_client_with_tls_at_a_sasl_plaintext_listener_is_reported(secure: SecureCluster) -> None:
    port = secure.nodes[1].port[SASL]
    error = await _last_failure(**secure.configuration(SASL_TLS, "PLAIN", bootstrap_servers=f"localhost:{port}"))
    assert f":{port} ended the connection during the TLS handshake" in str(error)
    assert "SASL_PLAINTEXT" in str(error)


@pytest.mark.parametrize("listener", [SASL_TLS, "SSL"])
async def test_a_client_with_sasl_plaintext_at_a_tls_listener_is_reported(secure: SecureCluster, listener: str) -> None:
    address = secure.sasl_bootstrap_servers(listener)
    error = await _last_failure(**secure.configuration(SASL, "PLAIN", bootstrap_servers=address))
    assert f"127.0.0.1:{secure.nodes[1].port[listener]}" in str(error)
    assert "SASL_SSL" in str(error)


# Other clients


async def test_an_admin_is_refused_at_once(secure: SecureCluster) -> None:
    began = time.monotonic()
    with pytest.raises(SaslAuthenticationError, match="Check user name"):
        async with Admin(**secure.configuration(SASL, "SCRAM-SHA-256", sasl_password=WRONG)) as admin:
            await admin.list_topics()
    assert time.monotonic() - began < AT_ONCE_S


async def test_a_user_without_the_mechanism_is_rejected(secure: SecureCluster) -> None:
    """SCRAM-SHA-256 and -512 have separate passwords: a user may have only one of them."""
    await asyncio.to_thread(secure.set_scram_password, "carol", "SCRAM-SHA-256", "carols")
    changes = {"sasl_username": "carol", "sasl_password": "carols"}
    error = await _rejection(**secure.configuration(SASL, "SCRAM-SHA-512", **changes))
    assert type(error) is SaslAuthenticationError
    assert USERNAME not in str(error)
