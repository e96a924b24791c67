"""A producer over RDMA, a broker in another process, and failures between them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest

from aioproducer import Producer
from aioproducer.errors import KafkaError
from aioproducer.transport.rdma import RdmaConnector
from aioproducer.transport.rdma.executor import RingSizes
from tests.rdma.holding import held, until_held

_ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 60


@pytest.fixture(autouse=True)
def nothing_left(guest_verbs, request):
    """Check that no verbs objects are left, as the kernel counts them, and no threads of this process."""
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker")
    threads = set(threading.enumerate())
    at_rest = held()
    yield
    until_held(at_rest)
    assert set(threading.enumerate()) <= threads


class Broker:
    """An embedded broker in another process."""

    def __init__(self, process):
        self.process = process
        self.bootstrap_servers = self._told()

    def _told(self):
        return json.loads(self.process.stdout.readline())

    def stored(self, topic):
        """Return the number of records in the topic, and the checksum of their values."""
        print(topic, file=self.process.stdin, flush=True)
        return self._told()


@contextmanager
def running_broker():
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rdma.broker"],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Broker(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def broker():
    """A broker for all tests that do not kill it: its start takes seconds on an emulated machine."""
    if os.environ.get("AIOPRODUCER_IN_GUEST") != "1":
        pytest.skip("`make test-rdma` runs this in a guest")
    with running_broker() as running:
        yield running


@pytest.fixture
def topic():
    return f"topic-{uuid.uuid4().hex[:8]}"


def described(values):
    """Return the expected result of ``Broker.stored``."""
    return [len(values), zlib.crc32(b"".join(values))]


async def test_a_paused_broker_receives_everything_after_it_continues(broker, topic):
    """Its card continues while the process is stopped: credits run out, and nothing overruns the ring."""
    values = [os.urandom(400_000) for _ in range(10)]
    at_rest = held()
    async with Producer(bootstrap_servers=broker.bootstrap_servers, transport="rdma") as producer:
        await producer.send(topic, b"")
        before = producer.metrics()["rdma-bytes-sent-total"]
        broker.process.send_signal(signal.SIGSTOP)
        deliveries = [producer.send(topic, value) for value in values]
        sent, last = before, -1.0
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while sent != last or sent == before:
                await asyncio.sleep(1)
                sent, last = producer.metrics()["rdma-bytes-sent-total"], sent
        assert 0 < sent - before <= RingSizes().ring_bytes < len(b"".join(values))
        assert not any(delivery.done() for delivery in deliveries)
        broker.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await asyncio.gather(*deliveries)
        assert producer.metrics()["record-retry-total"] == 0
    assert broker.stored(topic) == described([b"", *values])
    until_held(at_rest)


async def test_records_for_a_killed_broker_fail_in_time(topic):
    """No record waits longer than its timeout."""
    with running_broker() as broker:
        async with Producer(
            bootstrap_servers=broker.bootstrap_servers,
            transport="rdma",
            linger_ms=0,
            request_timeout_ms=2000,
            delivery_timeout_ms=4000,
        ) as producer:
            # More records than are sent before the first acknowledgement.
            deliveries = [producer.send(topic, os.urandom(20_000)) for _ in range(300)]
            await deliveries[0]
            broker.process.kill()
            async with asyncio.timeout(_PATIENCE_SECONDS):
                outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
            failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            assert failures
            assert all(isinstance(failure, KafkaError) for failure in failures)
            # Acknowledged records are in order, and before all others.
            assert not any(isinstance(outcome, BaseException) for outcome in outcomes[: -len(failures)])
            assert producer.metrics()["connection-close-total"] >= 1


@pytest.mark.parametrize("zero_copy", [True, False], ids=["gathered", "copied"])
async def test_records_pass_through_small_rings_many_times(broker, topic, zero_copy):
    values = [os.urandom(1000 + 977 * (number % 50)) for number in range(150)]
    connector = RdmaConnector(ring_bytes=32768, slots=8, zero_copy=zero_copy)
    async with Producer(bootstrap_servers=broker.bootstrap_servers, transport=connector) as producer:
        for value in values:
            producer.send(topic, value)
            await producer.drain()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await producer.flush()
    assert connector.counters.bytes_sent > 100 * 32768
    assert broker.stored(topic) == described(values)


async def test_a_broker_releases_a_killed_producer(broker, topic):
    """The broker has no verbs objects left of it, and serves the next producer."""
    at_rest = held()
    with limited(["endless", broker.bootstrap_servers, topic]) as process:
        for _ in range(5):
            assert process.stdout.readline()
        assert held().queue_pairs > at_rest.queue_pairs
        process.kill()
    until_held(at_rest)
    count = broker.stored(topic)[0]
    async with Producer(bootstrap_servers=broker.bootstrap_servers, transport="rdma") as producer:
        await producer.send(topic, b"next")
    assert broker.stored(topic)[0] == count + 1


@contextmanager
def limited(arguments, memory_bytes=None):
    """Run tests.rdma.sending with a limit of locked memory, although it runs as root."""
    command = [sys.executable, "-m", "tests.rdma.sending", *arguments]
    if memory_bytes is not None:
        limit = ["prlimit", f"--memlock={memory_bytes}:{memory_bytes}"]
        command = ["setpriv", "--bounding-set=-ipc_lock", *limit, *command]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_without_enough_locked_memory_records_are_copied(broker, topic):
    """The limit allows the rings, but not the records' memory; one line of the log has the reason."""
    with limited(["some", broker.bootstrap_servers, topic], 8 << 20) as process:
        told = json.loads(process.stdout.readline())
    assert told["sent"] == broker.stored(topic)
    assert told["copied"] == told["bytes"]
    assert "the limit of locked memory is 8388608 bytes (ulimit -l" in told["log"]


def test_without_any_locked_memory_the_error_names_the_limit(broker, topic):
    with limited(["some", broker.bootstrap_servers, topic], 1 << 20) as process:
        told = json.loads(process.stdout.readline())
    assert "the limit of locked memory is 1048576 bytes (ulimit -l" in told["error"]
