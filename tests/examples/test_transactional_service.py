"""The example of a service with a transaction for each request, as a process against Apache Kafka."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.examples.logged_service import LoggedService
from tests.kafka import consuming, jars
from tests.kafka.cluster import KafkaCluster

SERVICE = Path(__file__).parents[2] / "examples" / "transactional_service" / "orders.py"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


class Service(LoggedService):
    """``orders.py`` in a separate process."""

    def __init__(self, bootstrap_servers: str, instance: str, request_seconds: float = 20) -> None:
        command = [sys.executable, str(SERVICE), "--port", "0", "--instance", instance, "--producers", "3"]
        command += ["--request-seconds", str(request_seconds)]
        super().__init__(command, bootstrap_servers, r"running on (http://127\.0\.0\.1:\d+)")


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    try:
        with KafkaCluster(1) as cluster:
            for topic in ("orders", "stock"):
                cluster.create_topic(topic, partitions=2)
            yield cluster
    except jars.HarnessUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def instance() -> str:
    return uuid.uuid4().hex[:8]


@pytest.fixture
def service(kafka: KafkaCluster, instance: str) -> Iterator[Service]:
    running = Service(kafka.bootstrap_servers, instance)
    try:
        yield running
    finally:
        running.close()


def order(number: int, instance: str, *counts: int) -> dict[str, object]:
    lines = [{"item": f"item-{line}", "count": count} for line, count in enumerate(counts)]
    return {"id": f"{instance}-{number}", "lines": lines}


def stored(kafka: KafkaCluster, instance: str) -> dict[str, int]:
    """Return the committed orders of an instance, and the sum of their stock movements."""
    topics = consuming.read_back_topics(kafka.bootstrap_servers, ["orders", "stock"], committed=True)
    values = {
        topic: [json.loads(record.value or b"") for records in partitions.values() for record in records]
        for topic, partitions in topics.items()
    }
    orders = {each["id"]: 0 for each in values["orders"] if each["id"].startswith(instance)}
    for movement in values["stock"]:
        if movement["order"].startswith(instance):
            # A movement without its order fails here.
            orders[movement["order"]] += movement["change"]
    return orders


def wait_until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < give_up
        threading.Event().wait(0.01)


def test_an_order_is_stored_with_its_stock_movements_or_not_at_all(
    kafka: KafkaCluster, service: Service, instance: str
) -> None:
    with httpx.Client(base_url=service.url, timeout=30) as client:
        answer = client.post("/orders", json=order(1, instance, 2, 3))
        assert (answer.status_code, answer.json()) == (201, {"stored": 3})
        # The second line is found to be wrong after the order and the first line were sent.
        answer = client.post("/orders", json=order(2, instance, 2, 0))
        assert (answer.status_code, answer.json()) == (422, {"error": "count of 'item-1' must be at least 1, not 0"})
        assert client.post("/orders", json={"id": "x"}).status_code == 422
        assert client.post("/orders", content=b"{").status_code == 400
        assert client.get("/health").json() == {"usable": True, "producers_busy": 0, "requests_waiting": 0}
    assert stored(kafka, instance) == {f"{instance}-1": -5}


def test_more_requests_than_producers_are_served_in_turn(kafka: KafkaCluster, service: Service, instance: str) -> None:
    limits = httpx.Limits(max_connections=20)
    with httpx.Client(base_url=service.url, timeout=30, limits=limits) as client, ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda n: client.post("/orders", json=order(n, instance, 1)), range(40)))
    codes = {number: answer.status_code for number, answer in enumerate(answers)}
    assert set(codes.values()) <= {201, 503}
    # The order of the requests is not that of their arrival.
    assert 201 in codes.values()
    accepted = {f"{instance}-{number}": -1 for number, code in codes.items() if code == 201}
    assert stored(kafka, instance) == accepted


def test_sigterm_ends_the_service_with_every_answered_order_stored(
    kafka: KafkaCluster, service: Service, instance: str
) -> None:
    with httpx.Client(base_url=service.url, timeout=30) as client, ThreadPoolExecutor(3) as threads:
        assert client.post("/orders", json=order(0, instance, 1)).status_code == 201
        answers = [threads.submit(client.post, "/orders", json=order(n, instance, 1)) for n in range(1, 4)]
        wait_until(lambda: all(answer.done() for answer in answers))
        service.process.send_signal(signal.SIGTERM)
        assert {answer.result().status_code for answer in answers} == {201}
    service.process.wait(60)
    wait_until(lambda: any("Finished server process" in line for line in service.log))
    assert len(stored(kafka, instance)) == 4


def test_a_second_process_of_an_instance_makes_the_first_unhealthy(
    kafka: KafkaCluster, service: Service, instance: str
) -> None:
    second = Service(kafka.bootstrap_servers, instance)
    try:
        with httpx.Client(timeout=30) as client:
            assert client.post(f"{service.url}/orders", json=order(1, instance, 1)).status_code == 201
            assert client.post(f"{second.url}/orders", json=order(2, instance, 1)).status_code == 201
            answer = client.post(f"{service.url}/orders", json=order(3, instance, 1))
        assert answer.status_code in (503, 504)
        assert f"uses the transactional id prefix 'order-service-{instance}'" in answer.json()["error"]
        assert httpx.get(f"{service.url}/health", timeout=30).status_code == 503
        assert httpx.get(f"{second.url}/health", timeout=30).status_code == 200
    finally:
        second.close()
    assert stored(kafka, instance) == {f"{instance}-1": -1, f"{instance}-2": -1}
