"""The example of consume, transform, produce as processes, of which some are killed in the middle of their work."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from aioproducer.errors import KafkaError
from aioproducer.testing import EmbeddedClusterThread
from tests.exactly_once import EXAMPLE, check_results

INPUTS = [b"line-%04d" % number for number in range(2000)]
TIMEOUT = 60


@pytest.fixture
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as running:
        running.create_topic("lines", partitions=4)
        running.create_topic("shouted", partitions=2)
        yield running


@pytest.fixture
def start(cluster: EmbeddedClusterThread) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start an instance; none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def start(instance: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(EXAMPLE), "lines", "shouted", "--group", "shouter", "--instance", instance]
        command += ["--bootstrap-servers", cluster.bootstrap_servers]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        with process:
            process.wait()


def send(cluster: EmbeddedClusterThread, lines: list[bytes]) -> None:
    async def body() -> None:
        async with cluster.producer() as producer:
            for number, line in enumerate(lines):
                producer.send("lines", line, partition=number % 4)
            await producer.flush()

    asyncio.run(body())


def wait_committed(cluster: EmbeddedClusterThread, count: int) -> None:
    """Wait until the group has committed at least ``count`` inputs."""
    deadline = time.monotonic() + TIMEOUT
    committed = 0
    while committed < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        # The coordinator may still load the group.
        with suppress(KafkaError):
            committed = sum(cluster.committed("shouter").values()) if cluster.coordinator("shouter") >= 0 else 0


def test_killed_instances_go_on_where_they_were_and_repeat_nothing(
    cluster: EmbeddedClusterThread, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    first = start("shouter-0")
    second = start("shouter-1")
    send(cluster, INPUTS[:1000])
    wait_committed(cluster, 1)
    # Their commits arrive, but no answer comes before they are killed.
    cluster.delay("EndTxn", 5000, times=2)
    send(cluster, INPUTS[1000:])
    deadline = time.monotonic() + TIMEOUT
    while len(cluster.pending_faults()) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in (first, second):
        process.kill()
        process.wait()
    cluster.clear_faults()
    first, second = start("shouter-0"), start("shouter-1")
    wait_committed(cluster, len(INPUTS))
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
    for process in (first, second):
        out, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, out
    check_results(INPUTS, [record.value or b"" for record in cluster.records("shouted", committed=True)])
