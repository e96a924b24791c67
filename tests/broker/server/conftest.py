"""Servers over memory, TCP and TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import pytest
import trustme

from aioproducer.transport.listening import StreamListener
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.stream import StreamConnector
from tests.broker.server.serving import Place


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


def tls_place(authority: trustme.CA) -> Place:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return Place("tls", StreamListener(server), StreamConnector(client))


@pytest.fixture(params=["memory", "tcp", "tls"])
async def place(request: pytest.FixtureRequest, authority: trustme.CA) -> AsyncIterator[Place]:
    """Each transport in turn."""
    if request.param == "memory":
        network = MemoryNetwork(send_buffer_bytes=50_000)
        made = Place("memory", network, network)
    elif request.param == "tcp":
        made = Place("tcp", StreamListener(), StreamConnector())
    else:
        made = tls_place(authority)
    yield made
    await made.shut()


@pytest.fixture
async def tcp() -> AsyncIterator[Place]:
    """TCP only."""
    made = Place("tcp", StreamListener(), StreamConnector())
    yield made
    await made.shut()


@pytest.fixture
async def memory() -> AsyncIterator[Place]:
    """Memory only: everything happens in callbacks of the loop."""
    network = MemoryNetwork()
    made = Place("memory", network, network)
    yield made
    await made.shut()
