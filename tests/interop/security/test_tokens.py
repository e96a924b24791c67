"""The built-in token providers against a token endpoint in this process; Kafka's validator checks the tokens."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.errors import KafkaError, KafkaTimeoutError
from tests.kafka.ledger import verify
from tests.kafka.load import Load
from tests.kafka.security import SASL, SASL_TLS, SecureCluster
from tests.kafka.token_server import JWT_BEARER, TokenServer
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

_PACKAGE = "org.apache.kafka.common.security.oauthbearer"


def _configuration(secure: SecureCluster, listener: str, **changes: Any) -> dict[str, Any]:
    return secure.configuration(listener, "OAUTHBEARER", sasl_token_provider=None, **changes)


def _client_credentials(secure: SecureCluster, listener: str = SASL, **changes: Any) -> dict[str, Any]:
    return _configuration(
        secure,
        listener,
        **{
            "sasl_oauthbearer_token_endpoint_url": secure.tokens.token_url,
            "sasl_oauthbearer_client_credentials_client_id": secure.tokens.client_id,
            "sasl_oauthbearer_client_credentials_client_secret": secure.tokens.client_secret,
            "sasl_oauthbearer_scope": "orders:write",
            **changes,
        },
    )


async def _check_send(secure: SecureCluster, topic: str, **configuration: Any) -> None:
    async with asyncio.timeout(20), Producer(**configuration) as producer:
        await producer.send(topic, b"v")
    ((stored,),) = (await asyncio.to_thread(secure.read_back, topic)).values()
    assert stored.value == b"v"


@pytest.mark.parametrize("listener", [SASL, SASL_TLS])
async def test_client_credentials_get_one_token_for_all_connections(
    secure: SecureCluster, topic: str, tokens: TokenServer, listener: str
) -> None:
    """The client credentials grant (KIP-768)."""
    tokens.requests.clear()
    await _check_send(secure, topic, **_client_credentials(secure, listener))
    (request,) = tokens.requests
    assert request.form["grant_type"] == "client_credentials"
    assert request.form["scope"] == "orders:write"


async def test_client_credentials_may_be_in_a_jaas_entry(
    secure: SecureCluster, topic: str, tokens: TokenServer
) -> None:
    """The form of files from before Kafka 4.1."""
    entry = (
        f"{_PACKAGE}.OAuthBearerLoginModule required "
        f'clientId="{tokens.client_id}" clientSecret="{tokens.client_secret}" scope="orders:write";'
    )
    changes = {
        "sasl_oauthbearer_client_credentials_client_id": None,
        "sasl_oauthbearer_client_credentials_client_secret": None,
        "sasl_oauthbearer_scope": None,
        "sasl_jaas_config": entry,
        "sasl_login_callback_handler_class": f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
    }
    tokens.requests.clear()
    await _check_send(secure, topic, **_client_credentials(secure, **changes))
    (request,) = tokens.requests
    assert request.form["scope"] == "orders:write"


async def test_an_assertion_gets_a_token(
    secure: SecureCluster, topic: str, tokens: TokenServer, tmp_path: Path
) -> None:
    """The client signs the assertion itself (KIP-1139)."""
    key = tmp_path / "key.pem"
    key.write_bytes(tokens.assertion_key.pem)
    tokens.requests.clear()
    await _check_send(
        secure,
        topic,
        **_configuration(
            secure,
            SASL,
            sasl_oauthbearer_jwt_retriever_class=f"{_PACKAGE}.JwtBearerJwtRetriever",
            sasl_oauthbearer_token_endpoint_url=tokens.token_url,
            sasl_oauthbearer_assertion_algorithm="RS256",
            sasl_oauthbearer_assertion_private_key_file=str(key),
            sasl_oauthbearer_assertion_claim_aud=tokens.token_url,
            sasl_oauthbearer_assertion_claim_iss="https://service.example.org",
            sasl_oauthbearer_assertion_claim_sub="billing-service",
        ),
    )
    (request,) = tokens.requests
    assert request.form["grant_type"] == JWT_BEARER


async def test_a_token_file_is_used(secure: SecureCluster, topic: str, tokens: TokenServer, tmp_path: Path) -> None:
    """Kubernetes projects tokens into a pod in this form."""
    path = tmp_path / "token"
    path.write_text(tokens.token(sub="system:serviceaccount:orders:writer") + "\n")
    await _check_send(secure, topic, **_configuration(secure, SASL, sasl_oauthbearer_token_endpoint_url=path.as_uri()))


async def test_records_wait_for_a_token_endpoint_that_is_down(
    secure: SecureCluster, topic: str, tokens: TokenServer
) -> None:
    tokens.failures[:] = [503, 503]
    tokens.requests.clear()
    settings = {"sasl_login_retry_backoff_ms": 50, "retry_backoff_ms": 50}
    await _check_send(secure, topic, **_client_credentials(secure, **settings))
    assert not tokens.failures
    assert len(tokens.requests) == 3


async def test_a_token_endpoint_that_stays_down_fails_records_at_their_deadline(
    secure: SecureCluster, topic: str, tokens: TokenServer
) -> None:
    tokens.failures[:] = [503] * 1000
    settings = {
        "sasl_login_retry_backoff_ms": 50,
        "retry_backoff_ms": 50,
        "max_block_ms": 1500,
        "request_timeout_ms": 1000,
        "delivery_timeout_ms": 1500,
    }
    try:
        producer = Producer(**_client_credentials(secure, **settings))
        await producer.start()
        began = time.monotonic()
        with pytest.raises(KafkaTimeoutError) as failure:
            await producer.send(topic, b"v")
        assert 1 < time.monotonic() - began < 6
        assert tokens.token_url in str(failure.value)
        assert "503" in str(failure.value)
        tokens.failures.clear()
        await producer.send(topic, b"after")
        await producer.close()
    finally:
        tokens.failures.clear()
    ((stored,),) = (await asyncio.to_thread(secure.read_back, topic)).values()
    assert stored.value == b"after"


async def test_a_wrong_client_secret_is_reported(secure: SecureCluster, topic: str, tokens: TokenServer) -> None:
    wrong = "wr0ng-s3cret"
    configuration = _client_credentials(secure, sasl_oauthbearer_client_credentials_client_secret=wrong)
    producer = Producer(max_block_ms=2000, **configuration)
    await producer.start()
    try:
        began = time.monotonic()
        with pytest.raises(KafkaError) as failure:
            await producer.send(topic, b"v")
        assert time.monotonic() - began < 6
    finally:
        await producer.close(0)
    text = str(failure.value)
    assert tokens.token_url in text
    assert "invalid_client" in text
    assert "check client id, client secret" in text
    assert wrong not in text


async def test_tokens_are_replaced_also_after_a_failure_of_the_endpoint(
    secure: SecureCluster, topic: str, tokens: TokenServer
) -> None:
    """Sessions end with their tokens: connections authenticate again, and wait without a new token."""
    tokens.lifetime = 3
    tokens.requests.clear()
    settings = {
        "sasl_login_refresh_buffer_seconds": 1,
        "sasl_login_refresh_min_period_seconds": 0,
        "sasl_login_refresh_window_factor": 0.5,
        "sasl_login_refresh_window_jitter": 0.0,
        "sasl_login_retry_backoff_ms": 100,
        "sasl_login_retry_backoff_max_ms": 200,
        "linger_ms": 0,
    }
    try:
        async with asyncio.timeout(40), Producer(**_client_credentials(secure, **settings)) as producer:
            load = Load(producer, topic)
            async with load.running(burst=5, pause=0.01):
                await asyncio.sleep(4)
                metrics = producer.metrics()
                assert 2 <= len(tokens.requests) <= 6
                tokens.failures[:] = [503] * 1000
                # The last token has expired, and the session with it.
                await until(lambda: producer.metrics()["connection-count"] == 0, 15, pause=0.02)
                await asyncio.sleep(0.5)
                acknowledged = producer.metrics()["record-send-total"]
                await asyncio.sleep(0.5)
                assert producer.metrics()["record-send-total"] == acknowledged
                tokens.failures.clear()
                await load.more(20)
    finally:
        tokens.failures.clear()
        tokens.lifetime = 300
    assert metrics["successful-reauthentication-total"] >= 1
    assert metrics["failed-reauthentication-total"] == 0
    assert not load.ledger.failed, next(iter(load.ledger.failed.values()))
    stored = await asyncio.to_thread(secure.read_back, topic)
    assert verify(load.ledger, stored) == (load.ledger.sent, load.ledger.sent, 0)
