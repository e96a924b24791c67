"""The example of a service as a process: over HTTP, ended by SIGTERM while requests are open."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from aioproducer.testing import EmbeddedClusterThread
from tests.examples.logged_service import LoggedService
from tests.nested_pytest import check_all_pass

FOLDER = Path(__file__).parents[2] / "examples" / "http_service"
# Kubernetes sends SIGKILL after this time.
DEADLINE = 30.0


class Service(LoggedService):
    """``service.py`` in a separate process."""

    def __init__(self, bootstrap_servers: str, request_seconds: float) -> None:
        command = [sys.executable, str(FOLDER / "service.py"), "--port", "0", "--request-seconds", str(request_seconds)]
        super().__init__(command, bootstrap_servers, r"running on (http://127\.0\.0\.1:\d+)")

    def terminate(self) -> float:
        """Send SIGTERM, and return the time of that."""
        self.process.send_signal(signal.SIGTERM)
        return time.monotonic()

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.log))


def wait_until(happened: Callable[[], object]) -> None:
    give_up = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < give_up
        threading.Event().wait(0.01)


@pytest.fixture
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as running:
        running.create_topic("orders", partitions=3)
        yield running


@pytest.fixture
def request_seconds() -> float:
    # Less than the service has for open requests after SIGTERM.
    return 6


@pytest.fixture
def service(cluster: EmbeddedClusterThread, request_seconds: float) -> Iterator[Service]:
    running = Service(cluster.bootstrap_servers, request_seconds)
    try:
        yield running
    finally:
        running.close()


# Far more than Kafka needs, even on a busy machine.
@pytest.mark.parametrize("request_seconds", [100])
def test_sigterm_with_requests_in_flight_loses_none(cluster: EmbeddedClusterThread, service: Service) -> None:
    requests = 30
    # Nothing is answered before SIGTERM: later responses wait behind this one.
    cluster.delay("Produce", 600_000)
    limits = httpx.Limits(max_connections=requests + 2)
    with httpx.Client(base_url=service.url, timeout=100, limits=limits) as client, ThreadPoolExecutor(requests) as pool:
        answers = [pool.submit(client.post, "/events/orders", content=b"order %d" % n) for n in range(requests)]
        accepted = client.post("/events/orders?wait=no", content=b"not awaited")
        assert accepted.status_code == 202
        # The first response is held when its record is stored.
        wait_until(lambda: cluster.records("orders") and waiting(client) == requests)
        assert not any(answer.done() for answer in answers)
        terminated = service.terminate()
        service.wait_for_log("Shutting down")
        # It is refused; or reset, if it was in the queue of the listening socket when that was closed.
        with pytest.raises(httpx.NetworkError):
            httpx.post(f"{service.url}/events/orders", content=b"too late", timeout=30)
        cluster.clear_faults()
        places = [answer.result().raise_for_status().json() for answer in answers]
    assert {answer.result().status_code for answer in answers} == {201}
    service.process.wait(DEADLINE)
    assert time.monotonic() - terminated < DEADLINE
    stored = {(record.partition, record.offset): record.value for record in cluster.records("orders")}
    for number, place in enumerate(places):
        assert stored.pop((place["partition"], place["offset"])) == b"order %d" % number
    assert list(stored.values()) == [b"not awaited"]


def waiting(client: httpx.Client) -> int:
    """Return the number of requests that wait for Kafka."""
    return client.get("/health").json()["requests_waiting"]


def test_sigterm_ends_the_service_in_time_while_kafka_does_not_answer(
    cluster: EmbeddedClusterThread, service: Service
) -> None:
    cluster.disconnect("Produce", times=None)
    with httpx.Client(base_url=service.url, timeout=60) as client, ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(client.post, "/events/orders", content=b"order") for _ in range(5)]
        # On a busy machine some may be answered before the last one arrives.
        wait_until(lambda: sum(answer.done() for answer in answers) + waiting(client) == 5)
        terminated = service.terminate()
        assert {answer.result().status_code for answer in answers} == {503}
    service.process.wait(DEADLINE)
    assert time.monotonic() - terminated < DEADLINE
    # The last lines of its log may not have arrived yet.
    wait_until(lambda: any("for orders" in line and "closed" in line for line in service.log))


def test_the_services_own_tests_pass() -> None:
    tests = (FOLDER / "test_service.py").read_text().count("async def test_")
    check_all_pass(FOLDER, tests)
