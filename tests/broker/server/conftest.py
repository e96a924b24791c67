"""Servers over memory, TCP and TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import pytest
import trustme

from aioproducer.transport.listening import StreamListener
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.stream import StreamConnector
from tests.broker.server.serving import ServerNetwork


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


def tls_network(authority: trustme.CA) -> ServerNetwork:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return ServerNetwork("tls", StreamListener(server), StreamConnector(client))


@pytest.fixture(params=["memory", "tcp", "tls"])
async def network(request: pytest.FixtureRequest, authority: trustme.CA) -> AsyncIterator[ServerNetwork]:
    """Each transport in turn."""
    if request.param == "memory":
        network = MemoryNetwork(send_buffer_bytes=50_000)
        made = ServerNetwork("memory", network, network)
    elif request.param == "tcp":
        made = ServerNetwork("tcp", StreamListener(), StreamConnector())
    else:
        made = tls_network(authority)
    yield made
    await made.shut()


@pytest.fixture
async def tcp() -> AsyncIterator[ServerNetwork]:
    """TCP only."""
    made = ServerNetwork("tcp", StreamListener(), StreamConnector())
    yield made
    await made.shut()


@pytest.fixture
async def memory() -> AsyncIterator[ServerNetwork]:
    """Memory only: everything happens in callbacks of the loop."""
    network = MemoryNetwork()
    made = ServerNetwork("memory", network, network)
    yield made
    await made.shut()
