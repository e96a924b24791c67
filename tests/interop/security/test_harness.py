"""The listeners themselves: confluent-kafka authenticates by each mechanism, and is refused with wrong credentials."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from aioproducer.security.sasl.oauthbearer import BearerToken, OAuthBearerClient
from aioproducer.security.sasl.plain import PlainClient
from aioproducer.security.sasl.scram import ScramClient
from tests.kafka.sasl_listener import Received, SaslListener
from tests.kafka.security import (
    MECHANISMS,
    PASSWORD,
    SASL,
    SASL_TLS,
    SCRAM_512,
    SESSION_MS,
    SHORT,
    USERNAME,
    SecureCluster,
)
from tests.kafka.token_server import JWT_BEARER, SigningKey, TokenRequest, TokenServer


def _credentials(mechanism: str, tokens: TokenServer) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"oauth_cb": lambda _: (tokens.token(), time.time() + tokens.lifetime)}
    return {"sasl.username": USERNAME, "sasl.password": PASSWORD}


def _outcome(secure: SecureCluster, listener: str, mechanism: str, timeout: float = 10, **settings: Any) -> str:
    """Return an empty text if a record was stored and read back, otherwise librdkafka's first error."""
    errors: list[str] = []
    topic = secure.create_topic(f"foreign-{uuid.uuid4().hex[:8]}")
    producer = Producer(
        {
            "bootstrap.servers": secure.sasl_bootstrap_servers(listener),
            "security.protocol": "SASL_SSL" if listener == SASL_TLS else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "ssl.ca.location": secure.truststore,
            "message.timeout.ms": int(1000 * timeout),
            "log_level": 0,
            "reconnect.backoff.max.ms": 100,
            "error_cb": lambda error: errors.append(error.str()),
            **{name if name == "oauth_cb" else name.replace("_", "."): value for name, value in settings.items()},
        }
    )

    def on_delivery(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error.str())

    producer.produce(topic, b"v", on_delivery=on_delivery)
    deadline = time.monotonic() + timeout + 5
    while len(producer) and not errors and time.monotonic() < deadline:
        producer.poll(0.05)
    producer.purge()
    producer.flush(5)
    if not errors:
        (stored,) = secure.read_back(topic)[0]
        assert stored.value == b"v"
    return errors[0] if errors else ""


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", [SASL, SASL_TLS])
def test_each_mechanism_is_accepted(secure: SecureCluster, tokens: TokenServer, listener: str, mechanism: str) -> None:
    credentials = _credentials(mechanism, tokens)
    assert _outcome(secure, listener, mechanism, **credentials) == ""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused(secure: SecureCluster, mechanism: str) -> None:
    refusal = _outcome(secure, SASL, mechanism, sasl_username=USERNAME, sasl_password="wrong")
    assert "Authentication failed" in refusal or "authentication failed" in refusal, refusal


def test_a_token_of_each_grant_is_accepted(secure: SecureCluster, tokens: TokenServer) -> None:
    """librdkafka requests the token itself."""
    oidc = {"sasl_oauthbearer_method": "oidc", "sasl_oauthbearer_token_endpoint_url": tokens.token_url}
    client = {"sasl_oauthbearer_client_id": tokens.client_id, "sasl_oauthbearer_client_secret": tokens.client_secret}
    assertion = {
        "sasl_oauthbearer_grant_type": JWT_BEARER,
        "sasl_oauthbearer_assertion_algorithm": "RS256",
        "sasl_oauthbearer_assertion_private_key_pem": tokens.assertion_key.pem.decode(),
        "sasl_oauthbearer_assertion_claim_aud": tokens.token_url,
        "sasl_oauthbearer_assertion_claim_iss": "https://service.example.org",
        "sasl_oauthbearer_assertion_claim_sub": "billing-service",
    }
    assert _outcome(secure, SASL, "OAUTHBEARER", **oidc, **client) == ""
    assert _outcome(secure, SASL, "OAUTHBEARER", **oidc, **assertion) == ""
    assert [request.form["grant_type"] for request in tokens.requests[-2:]] == ["client_credentials", JWT_BEARER]


def test_a_wrong_client_secret_gets_no_token(tokens: TokenServer) -> None:
    before = len(tokens.issued)
    for secret, status in [("wrong", 401), (tokens.client_secret, 200)]:
        found, _ = tokens.grant(TokenRequest({"grant_type": "client_credentials"}, tokens.client_id, secret))
        assert found == status
    assert len(tokens.issued) == before + 1


def test_an_assertion_of_another_key_gets_no_token(tokens: TokenServer) -> None:
    now = int(time.time())
    claims = {"iat": now, "exp": now + 60, "aud": tokens.token_url, "sub": "billing-service"}
    for key, status in [(SigningKey(), 400), (tokens.assertion_key, 200)]:
        found, _ = tokens.grant(TokenRequest({"grant_type": JWT_BEARER, "assertion": key.sign(claims)}, "", ""))
        assert found == status


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example.org"},
        {"aud": "another"},
        {"exp": 1_000_000_000},
        {"nbf": 4_000_000_000},
        {"key": SigningKey()},
    ],
    ids=["issuer", "audience", "expired", "not-yet-valid", "another-key"],
)
def test_kafkas_validator_refuses_a_token(secure: SecureCluster, tokens: TokenServer, changes: dict[str, Any]) -> None:
    response = secure.authenticate(OAuthBearerClient(tokens.token(**changes)))
    assert response.error_code == 58
    assert "invalid_token" in (response.error_message or "")


def test_a_refused_token_fails_another_projects_client(secure: SecureCluster, tokens: TokenServer) -> None:
    token = tokens.token(aud="another")
    refusal = _outcome(secure, SASL, "OAUTHBEARER", oauth_cb=lambda _: (token, time.time() + 60))
    assert "invalid_token" in refusal, refusal


def test_a_delegation_token_authenticates_by_scram(secure: SecureCluster) -> None:
    """librdkafka does not support ``tokenauth``, so this test writes the messages."""
    token = secure.delegation_token()
    for hmac, code in [(token.hmac, 0), ("d3Jvbmc=", 58)]:
        authenticator = ScramClient("SCRAM-SHA-512", token.id, hmac, is_token=True)
        assert secure.authenticate(authenticator).error_code == code


def test_a_mechanism_that_is_not_enabled_is_refused(secure: SecureCluster) -> None:
    refusal = _outcome(secure, SCRAM_512, "PLAIN", sasl_username=USERNAME, sasl_password=PASSWORD)
    assert "SCRAM-SHA-512" in refusal
    assert "PLAIN" in refusal


def test_a_short_session_has_its_lifetime(secure: SecureCluster) -> None:
    for listener, lifetime_ms in [(SHORT, SESSION_MS), (SASL, 0)]:
        response = secure.authenticate(PlainClient(USERNAME, PASSWORD), listener)
        assert (response.error_code, response.session_lifetime_ms) == (0, lifetime_ms)


def test_a_new_password_replaces_the_old_one(secure: SecureCluster) -> None:
    for password in ("first", "second"):
        secure.set_scram_password("rotated", "SCRAM-SHA-256", password)
    assert secure.authenticate(ScramClient("SCRAM-SHA-256", "rotated", "first")).error_code == 58
    secure.delete_scram_user("rotated", "SCRAM-SHA-256", "second")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_another_projects_client_uses_the_listener_in_this_process() -> None:
    async with SaslListener(["OAUTHBEARER"]) as listener:
        errors: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": listener.address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "broker.address.family": "v4",
                "log_level": 0,
                "oauth_cb": lambda _: ("a-token", time.time() + 60),
                "error_cb": lambda error: errors.append(error.str()),
            }
        )
        while not errors:
            await asyncio.to_thread(producer.poll, 0.05)
        assert "Authentication failed" in errors[0]
        assert listener.received[0] == Received("OAUTHBEARER", BearerToken("a-token").encode())
