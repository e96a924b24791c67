"""Connections of clients and of the gateway use the current certificates."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from aioproducer import Producer
from aioproducer._client.factory import connector_for
from aioproducer.admin import Admin
from aioproducer.cli.rdma_gateway import _connector as gateway_connector
from aioproducer.config import ProducerConfig
from aioproducer.security import RenewedContext, context_source_from, ssl_context_from
from aioproducer.transport.base import Buffer
from aioproducer.transport.stream import StreamConnector
from tests.security.authority import HOST, Authority, common_name
from tests.security.renewing import INTERVAL, Time, config_of, put, renewed, warnings
from tests.waiting import until


def test_only_contexts_of_stores_are_renewed(key_store: Path, authority: Authority) -> None:
    own = ssl.create_default_context()
    assert context_source_from(config_of(ssl_context=own), INTERVAL) is own
    location = str(key_store)
    made = config_of(ssl_keystore_location=location, ssl_engine_factory_class=lambda config: own)
    assert context_source_from(made, INTERVAL) is own
    assert context_source_from(ProducerConfig.from_kwargs(bootstrap_servers="a:1"), INTERVAL) is None
    assert isinstance(context_source_from(config_of(), INTERVAL), ssl.SSLContext)
    for given in (
        {"ssl_keystore_location": location},
        {"ssl_truststore_location": location},
        {"ssl_truststore_certificates": authority.pem.decode()},
    ):
        assert isinstance(context_source_from(config_of(**given), INTERVAL), RenewedContext)
    sasl = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"}
    assert isinstance(context_source_from(config_of(authority, **sasl), INTERVAL), RenewedContext)
    assert isinstance(ssl_context_from(config_of(authority, **sasl)), ssl.SSLContext)


def test_producer_and_admin_warn_of_certificates_in_their_own_name(
    authority: Authority, key_store: Path, log: pytest.LogCaptureFixture
) -> None:
    key_store.write_bytes(authority.issue("orders", datetime.now(UTC) + timedelta(days=2)).store)
    keys = {"bootstrap_servers": "a:1", "security_protocol": "SSL", "client_id": "c"}
    Producer(**keys, ssl_keystore_location=str(key_store))
    Admin(**keys, ssl_keystore_location=str(key_store))
    assert [warning.split(" (")[0] for warning in warnings(log)] == [
        "[Producer clientId=c] Certificate CN=orders",
        "[AdminClient clientId=c] Certificate CN=orders",
    ]


class Connection:
    """A client's handler that keeps the broker's bytes: the name in the certificate that the client presented."""

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: Buffer) -> None:
        self.received += bytes(data)

    def write_completed(self, count: int) -> None:
        """Ignored."""

    def connection_lost(self, exception: Exception | None) -> None:
        """Ignored: the test closes it."""


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port at which each message is answered by the name in the client's certificate."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = common_name(writer.get_extra_info("peercert"))
        while await reader.read(1):
            writer.write(f"{name} ".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_the_next_connection_presents_the_renewed_certificate_and_the_first_goes_on(
    time: Time, authority: Authority, key_store: Path, broker: ssl.SSLContext
) -> None:
    """``until`` fails unless the names of the certificates arrive."""
    source = renewed(time, config_of(authority, ssl_keystore_location=str(key_store)))
    connector = StreamConnector(source)
    async with listening(broker) as port:
        first, second = Connection(), Connection()
        transport = await connector.connect("127.0.0.1", port, first, server_hostname=HOST)
        transport.write([b"?"])
        await until(lambda: first.received == b"old ")
        put(key_store, authority.issue("new").store)
        time.pass_interval()
        other = await connector.connect("127.0.0.1", port, second, server_hostname=HOST)
        other.write([b"?"])
        await until(lambda: second.received == b"new ")
        transport.write([b"?"])
        await until(lambda: first.received == b"old old ")
        transport.abort()
        other.abort()


@pytest.mark.parametrize("make", [lambda config: connector_for(config, "tcp"), gateway_connector])
async def test_connectors_of_clients_and_of_the_gateway_use_renewed_certificates(
    make: object, time: Time, authority: Authority, key_store: Path, broker: ssl.SSLContext
) -> None:
    assert callable(make)
    location = str(key_store)
    connector = make(config_of(authority, ssl_keystore_location=location, ssl_certificate_poll_interval_ms=1))
    async with listening(broker) as port:
        for name in ("new", "newer"):
            put(key_store, authority.issue(name).store)
            await asyncio.sleep(0.002)
            connection = Connection()
            transport = await connector.connect("127.0.0.1", port, connection, server_hostname=HOST)
            transport.write([b"?"])
            await until(partial(getattr, connection, "received"))
            assert connection.received == f"{name} ".encode()
            transport.abort()
