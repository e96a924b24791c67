"""The example of a Django service under gunicorn: forked workers with threads, ended by SIGTERM."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from aioproducer.testing import EmbeddedClusterThread
from tests.examples.logged_service import LoggedService

FOLDER = Path(__file__).parents[2] / "examples" / "django_service"
WORKERS = 2


class Service(LoggedService):
    """gunicorn with ``service.py``, imported before the workers are forked."""

    def __init__(self, bootstrap_servers: str) -> None:
        command = [sys.executable, "-m", "gunicorn", "--chdir", str(FOLDER), "--bind", "127.0.0.1:0", "--preload"]
        command += ["--workers", str(WORKERS), "--threads", "8", "service"]
        super().__init__(command, bootstrap_servers, r"Listening at: (http://127\.0\.0\.1:\d+)")

    def stop(self) -> None:
        """End it as a supervisor does, and read its log to the end."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.listener.join()


@pytest.fixture
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as running:
        running.create_topic("signups", partitions=3)
        yield running


@pytest.fixture
def request_seconds() -> float:
    return 5


@pytest.fixture
def service(
    cluster: EmbeddedClusterThread, request_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    monkeypatch.setenv("REQUEST_SECONDS", str(request_seconds))
    running = Service(cluster.bootstrap_servers)
    try:
        yield running
    finally:
        running.close()


# Far more than Kafka needs, even on a busy machine.
@pytest.mark.parametrize("request_seconds", [60])
def test_threads_of_forked_workers_store_every_event(cluster: EmbeddedClusterThread, service: Service) -> None:
    bodies = [b"event %d" % number for number in range(200)]
    limits = httpx.Limits(max_connections=16, max_keepalive_connections=0)
    with httpx.Client(base_url=service.url, timeout=100, limits=limits) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda body: client.post("/events/signups", content=body), bodies))
        assert {answer.status_code for answer in answers} == {201}
        not_awaited = client.post("/events/signups?wait=no", content=b"not awaited")
        assert not_awaited.status_code == 202
    service.stop()
    stored = {(record.partition, record.offset): record.value for record in cluster.records("signups")}
    places = [(place["partition"], place["offset"]) for place in (answer.json() for answer in answers)]
    assert [stored.pop(place) for place in places] == bodies
    # Events that no caller waited for were delivered at the end of the workers.
    assert list(stored.values()) == [b"not awaited"]
    assert not [line for line in service.log if "rror" in line or "Traceback" in line]


def test_the_status_shows_whether_to_try_again(cluster: EmbeddedClusterThread, service: Service) -> None:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        invalid = client.post("/events/no such topic", content=b"event")
        assert invalid.status_code == 400
        assert "no such topic" in invalid.json()["error"]
        cluster.delay("Produce", 600_000)
        late = client.post("/events/signups", content=b"event")
        assert (late.status_code, late.json()) == (503, {"error": "no answer from Kafka within 5 s"})
        # Otherwise the worker waits for it at its end.
        cluster.clear_faults()
