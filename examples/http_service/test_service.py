"""Tests of the service, with aioproducer's fixtures: each test has its own cluster."""

from collections.abc import AsyncIterator

import httpx
import pytest
from service import make_app
from starlette.applications import Starlette

from aioproducer import Producer
from aioproducer.testing import EmbeddedCluster


@pytest.fixture
def app(producer: Producer) -> Starlette:
    # The first request connects and may create its topic, which takes seconds on a busy machine.
    return make_app(producer, request_seconds=30)


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def test_an_event_is_stored_before_it_is_answered(
    client: httpx.AsyncClient, kafka_cluster: EmbeddedCluster
) -> None:
    answer = await client.post("/events/signups", content=b'{"user": "ada"}', headers={"x-key": "ada"})
    assert (answer.status_code, answer.json()) == (201, {"partition": 0, "offset": 0})
    (stored,) = kafka_cluster.records("signups")
    assert (stored.key, stored.value) == (b"ada", b'{"user": "ada"}')


async def test_a_lost_response_of_kafka_stores_nothing_twice(
    client: httpx.AsyncClient, kafka_cluster: EmbeddedCluster
) -> None:
    kafka_cluster.create_topic("signups")
    kafka_cluster.disconnect("Produce", "after")
    answer = await client.post("/events/signups", content=b"ada")
    assert answer.status_code == 201
    assert [record.value for record in kafka_cluster.records("signups")] == [b"ada"]
    assert kafka_cluster.pending_faults() == []


async def test_an_invalid_topic_name_is_answered_with_400(client: httpx.AsyncClient) -> None:
    answer = await client.post("/events/no such topic", content=b"ada")
    assert answer.status_code == 400
    assert "no such topic" in answer.json()["error"]


async def test_a_timeout_of_kafka_is_answered_with_503(
    app: Starlette, client: httpx.AsyncClient, kafka_cluster: EmbeddedCluster
) -> None:
    kafka_cluster.create_topic("signups")
    kafka_cluster.delay("Produce", 600_000)
    app.state.request_seconds = 1.0
    answer = await client.post("/events/signups", content=b"ada")
    assert (answer.status_code, answer.json()) == (503, {"error": "no answer from Kafka within 1 s"})
    kafka_cluster.clear_faults()


async def test_health_reports_a_free_buffer(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"buffer_free": 1.0, "requests_waiting": 0})
