"""One broker with every SASL listener, and the server of its tokens, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.security.provider_files import DOCUMENTED, read_credentials
from tests.kafka.security import SecureCluster
from tests.kafka.token_server import TokenServer


@pytest.fixture(scope="session")
def tokens() -> Iterator[TokenServer]:
    """Issues the tokens that ``secure`` accepts."""
    with TokenServer() as server:
        yield server


@pytest.fixture(scope="session")
def secure(tokens: TokenServer) -> Iterator[SecureCluster]:
    """Apache Kafka with the listeners of ``tests/kafka/security.py``."""
    files = ["confluent_cloud.properties", "event_hubs.properties"]
    users = dict([DOCUMENTED, *(read_credentials(file) for file in files)])
    with SecureCluster(tokens, users) as cluster:
        yield cluster
