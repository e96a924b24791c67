"""Tests of the service, with aioproducer's fixtures: each test has its own cluster."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from orders import make_app
from starlette.applications import Starlette

from aioproducer import TransactionPool
from aioproducer.testing import EmbeddedCluster

ORDER = {"id": "o-1", "lines": [{"item": "tea", "count": 2}, {"item": "milk", "count": 1}]}


@pytest.fixture
async def app(kafka_cluster: EmbeddedCluster) -> AsyncIterator[Starlette]:
    pool = TransactionPool(
        transactional_id_prefix="orders-test",
        max_producers=1,
        acquire_timeout_ms=1000,
        bootstrap_servers=kafka_cluster.bootstrap_servers,
    )
    async with pool:
        # The first request connects and creates the topics, which takes seconds on a busy machine.
        yield make_app(pool, request_seconds=30)


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def committed(cluster: EmbeddedCluster, topic: str, count: int) -> list[object]:
    """Return the committed records, which readers see some milliseconds after the commit returns."""
    async with asyncio.timeout(30):
        while len(records := cluster.records(topic, committed=True)) < count:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.01)
    return [json.loads(record.value or b"") for record in records]


async def test_an_order_is_stored_with_its_stock_movements(
    client: httpx.AsyncClient, kafka_cluster: EmbeddedCluster
) -> None:
    answer = await client.post("/orders", json=ORDER)
    assert (answer.status_code, answer.json()) == (201, {"stored": 3})
    assert await committed(kafka_cluster, "orders", 1) == [ORDER]
    assert await committed(kafka_cluster, "stock", 2) == [
        {"order": "o-1", "change": -2},
        {"order": "o-1", "change": -1},
    ]


async def test_nothing_of_a_wrong_order_is_stored(client: httpx.AsyncClient, kafka_cluster: EmbeddedCluster) -> None:
    await client.post("/orders", json=ORDER)
    wrong = {"id": "o-2", "lines": [{"item": "tea", "count": 2}, {"item": "milk", "count": 0}]}
    answer = await client.post("/orders", json=wrong)
    assert (answer.status_code, answer.json()) == (422, {"error": "count of 'milk' must be at least 1, not 0"})
    assert await committed(kafka_cluster, "orders", 1) == [ORDER]


async def test_kafka_that_does_not_answer_is_503_or_504(
    app: Starlette, client: httpx.AsyncClient, kafka_cluster: EmbeddedCluster
) -> None:
    await client.post("/orders", json=ORDER)
    kafka_cluster.delay("EndTxn", 600_000)
    # The commit is sent within this time, as the producer is connected and knows the topics.
    app.state.request_seconds = 3.0
    late = {**ORDER, "id": "o-2"}
    answer = await client.post("/orders", json=late)
    assert (answer.status_code, answer.json()) == (504, {"error": "no answer from Kafka within 3 s"})
    # The commit continues, and its producer is busy until the end of it.
    answer = await client.post("/orders", json={**ORDER, "id": "o-3"})
    assert answer.status_code == 503
    assert "No producer became free within 1000 ms" in answer.json()["error"]
    kafka_cluster.clear_faults()
    assert await committed(kafka_cluster, "orders", 2) == [ORDER, late]


async def test_health_reports_a_usable_pool(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health")
    expected = {"usable": True, "producers_busy": 0, "requests_waiting": 0}
    assert (answer.status_code, answer.json()) == (200, expected)
