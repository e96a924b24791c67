"""Each mechanism with and without TLS: confluent-kafka reads the producer's records back."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from aioproducer import Producer
from tests.kafka.ledger import verify
from tests.kafka.load import Load
from tests.kafka.security import (
    MECHANISMS,
    PASSWORD,
    SASL,
    SASL_TLS,
    SCRAM_512,
    USERNAME,
    SecureCluster,
)
from tests.kafka.token_server import TokenServer

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


async def _check_sends(secure: SecureCluster, topic: str, **configuration: Any) -> None:
    """Send records that are awaited one by one, then many together, and check that they are stored."""
    await asyncio.to_thread(secure.create_topic, topic, 3)
    async with asyncio.timeout(20), Producer(**configuration) as producer:
        load = Load(producer, topic, 3, size=100)
        for _ in range(5):
            await load.send_one()
        await asyncio.gather(*(load.send_one() for _ in range(500)))
        ledger = await load.finish()
    assert not ledger.failed, next(iter(ledger.failed.values()))
    assert verify(ledger, await asyncio.to_thread(secure.read_back, topic)) == (505, 505, 0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", [SASL, SASL_TLS])
async def test_records_are_stored(secure: SecureCluster, topic: str, listener: str, mechanism: str) -> None:
    await _check_sends(secure, topic, **secure.configuration(listener, mechanism))


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_listener_of_one_mechanism_stores_records(secure: SecureCluster, topic: str) -> None:
    await _check_sends(secure, topic, **secure.configuration(SCRAM_512, "SCRAM-SHA-512"))


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("mechanism", _LOGIN_MODULES)
async def test_credentials_may_be_in_a_jaas_entry(secure: SecureCluster, topic: str, mechanism: str) -> None:
    """The entry is as in files for Kafka's clients, with quotes and backslashes."""
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    entry = f'{_LOGIN_MODULES[mechanism]} required username="{USERNAME}" password="{quoted}";'
    changes = {"sasl_username": None, "sasl_password": None, "sasl_jaas_config": entry}
    await _check_sends(secure, topic, **secure.configuration(SASL, mechanism, **changes))


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_delegation_token_authenticates(secure: SecureCluster, topic: str, mechanism: str) -> None:
    """Its id and HMAC replace name and password (KIP-48)."""
    token = await asyncio.to_thread(secure.delegation_token)
    entry = f'{_LOGIN_MODULES[mechanism]} required username="{token.id}" password="{token.hmac}" tokenauth="true";'
    changes = {"sasl_username": None, "sasl_password": None, "sasl_jaas_config": entry}
    await _check_sends(secure, topic, **secure.configuration(SASL, mechanism, **changes))


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_callable_may_return_the_password(secure: SecureCluster, topic: str, mechanism: str) -> None:
    async def fetch_password() -> str:
        await asyncio.sleep(0.01)
        return PASSWORD

    await _check_sends(secure, topic, **secure.configuration(SASL, mechanism, sasl_password=fetch_password))


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_an_async_provider_may_return_the_token(secure: SecureCluster, topic: str, tokens: TokenServer) -> None:
    calls = 0

    async def fetch_token() -> tuple[str, float]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        return tokens.token(), time.time() + tokens.lifetime

    await _check_sends(secure, topic, **secure.configuration(SASL_TLS, "OAUTHBEARER", sasl_token_provider=fetch_token))
    assert calls == 1, "all connections share one token"
