"""The RDMA gateway in front of Apache Kafka with SASL; over TCP, as other clients do not support RDMA."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import confluent_kafka
import pytest

from aioproducer import Producer
from aioproducer.config import ProducerConfig
from aioproducer.consumer import Reader
from aioproducer.errors import AuthenticationError
from aioproducer.gateway import AddressMap, Gateway
from aioproducer.security import context_source_from
from aioproducer.security.login import login_from
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.stream import StreamConnector
from tests.kafka.security import MECHANISMS, SASL, SASL_TLS, SHORT, SecureCluster
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

COUNT = 200
VALUES = [b"%04d" % number for number in range(COUNT)]


@asynccontextmanager
async def _gateway(listener: str, secure: SecureCluster, **keys: Any) -> AsyncIterator[tuple[Gateway, str]]:
    """Run a gateway in front of a listener, with the client keys of ``rdma-gateway``; yield it and its address."""
    host, _, port = secure.sasl_bootstrap_servers(listener).rpartition(":")
    config = ProducerConfig.from_kwargs(**({"bootstrap_servers": f"{host}:{port}"} | keys))
    connector = StreamConnector(context_source_from(config, 60))
    broker = (host, int(port))
    addresses = AddressMap({})

    def make_login() -> Any:
        return login_from(config, asyncio.get_running_loop(), Random(), logging.getLogger("aioproducer.gateway"))

    gateway = Gateway(
        StreamListener(), connector, broker, addresses, make_login=make_login if config.uses_sasl else None
    )
    async with gateway:
        await gateway.start("127.0.0.1", 0)
        addresses.add(broker, ("127.0.0.1", gateway.port))
        yield gateway, f"127.0.0.1:{gateway.port}"
        assert gateway.metrics()["addresses_unmapped"] == 0


def _confluent_write(servers: str, topic: str) -> list[object]:
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for value in VALUES:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(30) == 0
    return failures


async def _read(topic: str, **keys: Any) -> list[bytes | None]:
    async with Reader(topic, stop="end", **keys) as reader:
        return [record.value async for record in reader]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_gateway_authenticates_for_clients_without_sasl(
    secure: SecureCluster, topic: str, mechanism: str
) -> None:
    """Over TLS, for librdkafka and for this project's clients."""
    async with _gateway(SASL_TLS, secure, **secure.configuration(SASL_TLS, mechanism)) as (gateway, address):
        assert await asyncio.to_thread(_confluent_write, address, topic) == []
        async with Producer(bootstrap_servers=address) as producer:
            for value in VALUES[:10]:
                await producer.send(topic, value)
        assert sorted(await _read(topic, bootstrap_servers=address)) == sorted(VALUES + VALUES[:10])
        assert gateway.metrics()["login_failures"] == 0


async def test_sessions_of_a_second_end_without_a_loss(secure: SecureCluster, topic: str) -> None:
    configuration = secure.configuration(SHORT, "SCRAM-SHA-512")
    async with _gateway(SHORT, secure, **configuration) as (gateway, address):
        async with Producer(bootstrap_servers=address, linger_ms=0) as producer:
            for value in VALUES:
                await producer.send(topic, value)
                await asyncio.sleep(0.02)
        assert gateway.metrics()["sessions_cut_short"] >= 3
        assert gateway.metrics()["login_failures"] == 0
    assert await _read(topic, **secure.configuration(SASL, "PLAIN")) == VALUES


@pytest.mark.parametrize("listener", [SASL, SHORT])
async def test_a_producer_authenticates_through_a_gateway(secure: SecureCluster, topic: str, listener: str) -> None:
    """On the listener with short sessions it does so repeatedly on the same connection, between its requests."""
    async with _gateway(listener, secure) as (gateway, address):
        keys = secure.configuration(listener, "SCRAM-SHA-256", bootstrap_servers=address)
        async with Producer(**keys, linger_ms=0) as producer:
            for value in VALUES:
                await producer.send(topic, value)
                await asyncio.sleep(0.02 if listener == SHORT else 0)
            renewals = producer.metrics()["successful-reauthentication-total"]
        assert renewals >= 2 if listener == SHORT else renewals == 0
        # Bootstrap and broker.
        assert gateway.metrics()["connections_accepted"] == 2
    assert await _read(topic, **secure.configuration(SASL, "PLAIN")) == VALUES


async def test_a_wrong_password_of_the_gateway_is_in_its_log(
    secure: SecureCluster, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = secure.configuration(SASL, "PLAIN", sasl_password="wr0ng-passw0rd")
    async with _gateway(SASL, secure, **configuration) as (gateway, address):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        assert await reader.read() == b""
        writer.close()
        await until(lambda: gateway.metrics()["login_failures"] == 1)
    assert "The gateway cannot authenticate to the broker" in caplog.text
    assert "Check user name" in caplog.text
    assert "passw0rd" not in caplog.text


@pytest.mark.parametrize("listener", [SASL, SHORT])
async def test_a_producer_with_sasl_learns_that_the_gateway_offers_none(secure: SecureCluster, listener: str) -> None:
    configuration = secure.configuration(listener, "PLAIN")
    async with (
        _gateway(listener, secure, **configuration) as (_, address),
        Producer(**(configuration | {"bootstrap_servers": address})) as producer,
    ):
        with pytest.raises(AuthenticationError, match="does not use SASL"):
            await producer.send("topic", b"value")
