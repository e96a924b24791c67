"""The client files of Confluent Cloud, Event Hubs, MSK and Aiven against listeners of that kind.

Only the address, the trust store and the token endpoint are replaced. The rest of a file is as users have it: keys of
other clients, deserializers, continued lines, either kind of quotes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aioproducer import Producer
from tests.interop.security.provider_files import adapted, read_credentials
from tests.kafka.security import SASL_TLS, SecureCluster
from tests.kafka.token_server import TokenServer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


async def _check_send(secure: SecureCluster, topic: str, path: Path, value: str | bytes = b"v") -> None:
    async with asyncio.timeout(20), Producer.from_properties(path) as producer:
        await producer.send(topic, value)
    ((stored,),) = (await asyncio.to_thread(secure.read_back, topic)).values()
    assert stored.value == b"v"


def _adapted(secure: SecureCluster, file: str, tmp_path: Path, **changes: str) -> Path:
    return adapted(
        file,
        tmp_path,
        bootstrap_servers=secure.sasl_bootstrap_servers(SASL_TLS),
        ssl_truststore_location=secure.truststore,
        **changes,
    )


@pytest.mark.parametrize(
    "file", ["confluent_cloud.properties", "confluent_cloud_python.properties", "event_hubs.properties"]
)
async def test_files_with_plain_store_records(secure: SecureCluster, topic: str, tmp_path: Path, file: str) -> None:
    """The broker has read the same files for its users."""
    await _check_send(secure, topic, _adapted(secure, file, tmp_path))


async def test_the_file_of_aiven_stores_records(secure: SecureCluster, topic: str, tmp_path: Path) -> None:
    user = read_credentials("aiven.properties")
    await asyncio.to_thread(secure.set_scram_password, user.name, "SCRAM-SHA-256", user.password)
    await _check_send(secure, topic, _adapted(secure, "aiven.properties", tmp_path), "v")


async def test_the_file_of_msk_with_scram_stores_records(secure: SecureCluster, topic: str, tmp_path: Path) -> None:
    user = read_credentials("msk_scram.properties")
    await asyncio.to_thread(secure.set_scram_password, user.name, "SCRAM-SHA-512", user.password)
    await _check_send(secure, topic, _adapted(secure, "msk_scram.properties", tmp_path))


async def test_the_file_of_confluent_cloud_with_oauth_stores_records(
    secure: SecureCluster, topic: str, tokens: TokenServer, tmp_path: Path
) -> None:
    client = read_credentials("confluent_cloud_oauth.properties", "clientId", "clientSecret")
    tokens.clients[client.name] = client.password
    tokens.requests.clear()
    path = _adapted(
        secure, "confluent_cloud_oauth.properties", tmp_path, sasl_oauthbearer_token_endpoint_url=tokens.token_url
    )
    await _check_send(secure, topic, path)
    (request,) = tokens.requests
    assert request.client_id == client.name
    assert request.form["scope"] == "api://made-up/.default"
