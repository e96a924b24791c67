"""``python -m tests.rdma.gateway_load KAFKA ADVERTISED TOPIC RECORDS``: what test_gateway_kafka.py runs in the guest.

A gateway in its own process, between producers over RDMA and an Apache Kafka at ``KAFKA`` that advertises
``ADVERTISED``. For each step it prints a line of JSON with the sent records.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aioproducer import Delivery, Producer
from tests.rdma.holding import held, until_held

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 6
LARGE_SIZE = 1_000_000
LARGE_COUNT = 3
# Number of records sent while gateways are killed.
RESTART_RECORDS = 6000
RESTARTS = 2
# Minimum number of acknowledged records before the producer is killed.
KILLED_AFTER = 600

_ROOT = Path(__file__).parents[2]
_GATEWAY = "127.0.0.1:9192"
_UNDER_WAY = 500


def small_value(number: int) -> bytes:
    """Return data that compresses, but not to almost nothing."""
    return b"%08d " % number + b"value %d of many, " % (number * 7919) * 4


def large_value(codec: str, number: int) -> bytes:
    """Return data that does not compress."""
    return random.Random(f"{codec} {number}").randbytes(LARGE_SIZE)


def topic_of(prefix: str, codec: str) -> str:
    return f"{prefix}-{codec}"


def _tell(step: str, **what: object) -> None:
    print(json.dumps({"step": step, **what}), flush=True)


class _Gateway:
    """The gateway's process; its address stays the same when it is restarted."""

    def __init__(self, kafka: str, advertised: str) -> None:
        self._command = [
            *(sys.executable, "-m", "aioproducer", "rdma-gateway", "--listen", _GATEWAY, "--upstream", kafka),
            *("--map", f"{advertised}={_GATEWAY}", "--report", "0"),
        ]
        self.process = self._started()
        self.at_rest = held()

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(self._command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if process.stdout.readline() != f"{_GATEWAY}\n":
            raise RuntimeError(f"the gateway did not start: {process.communicate()[1]}")
        return process

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.process = self._started()

    def stop(self) -> str:
        """End it by SIGTERM, as an administrator would; return its last output."""
        self.process.terminate()
        said = self.process.communicate(timeout=60)[1]
        if self.process.returncode != 0:
            raise RuntimeError(f"the gateway ended with {self.process.returncode}: {said}")
        return said


@contextmanager
def _nothing_left(gateway: _Gateway) -> Iterator[None]:
    """Check that no verbs objects are left beyond the idle gateway's, and no threads of this process."""
    threads = set(threading.enumerate())
    yield
    until_held(gateway.at_rest)
    left = set(threading.enumerate()) - threads
    if left:
        raise RuntimeError(f"threads are left: {left}")


async def _send(producer: Producer, topic: str, values: Iterator[bytes]) -> list[Delivery]:
    """Send to each partition in rotation."""
    sent = []
    for number, value in enumerate(values):
        sent.append(producer.send(topic, value, partition=number % PARTITIONS))
        await producer.drain()
    return sent


async def _check(sent: list[Delivery]) -> int:
    """Check that each record is stored at its partition and offset; return their number."""
    for number, delivery in enumerate(sent):
        stored = await delivery
        if (stored.partition, stored.offset) != (number % PARTITIONS, number // PARTITIONS):
            raise RuntimeError(f"record {number} was stored at {stored}")
    return len(sent)


async def _send_column(producer: Producer, topic: str, values: list[bytes], partition: int) -> int:
    """Send to one partition, and check that each record is stored at its offset."""
    result = await producer.send_many(topic, values, partition=partition)
    offsets = [offset for part in result.offsets[partition] for offset in part]
    if offsets != list(range(len(values))):
        raise RuntimeError(f"the records of partition {partition} were stored at {result.offsets}")
    return result.acked


async def _every_codec(prefix: str, records: int) -> None:
    for codec in CODECS:
        values = [small_value(number) for number in range(records // len(CODECS))]
        values += [large_value(codec, number) for number in range(LARGE_COUNT)]
        began = time.monotonic()
        async with Producer(
            bootstrap_servers=_GATEWAY, transport="rdma", compression_type=codec, max_request_size=2_000_000
        ) as producer:
            sent = await asyncio.gather(
                *(
                    _send_column(producer, topic_of(prefix, codec), values[partition::PARTITIONS], partition)
                    for partition in range(PARTITIONS)
                )
            )
            metrics = producer.metrics()
        _tell(
            codec,
            sent=sum(sent),
            seconds=round(time.monotonic() - began, 1),
            bytes_sent=metrics["rdma-bytes-sent-total"],
            bytes_copied=metrics["rdma-bytes-copied-total"],
        )


async def _gateways_that_are_killed(prefix: str, gateway: _Gateway) -> None:
    began = time.monotonic()
    async with Producer(
        bootstrap_servers=_GATEWAY,
        transport="rdma",
        # Many requests, so that some are always in flight.
        batch_size=1000,
        linger_ms=0,
        retry_backoff_ms=20,
        reconnect_backoff_ms=20,
    ) as producer:
        values = (small_value(number) for number in range(RESTART_RECORDS))
        sent = await _send(producer, topic_of(prefix, "restarts"), values)
        for number in range(1, RESTARTS + 1):
            await sent[number * RESTART_RECORDS // (RESTARTS + 1)]
            await asyncio.to_thread(gateway.kill_and_restart)
        count = await _check(sent)
        metrics = producer.metrics()
    _tell(
        "restarts",
        sent=count,
        seconds=round(time.monotonic() - began, 1),
        lost_connections=metrics["connection-close-total"],
    )


async def endless(topic: str) -> None:
    """Send until killed, and print the number of acknowledged records."""
    async with Producer(bootstrap_servers=_GATEWAY, transport="rdma", linger_ms=0) as producer:
        under_way: deque[Delivery] = deque()
        number = 0
        while True:
            under_way.append(producer.send(topic, small_value(number), partition=number % PARTITIONS))
            number += 1
            await producer.drain()
            if len(under_way) >= _UNDER_WAY:
                await under_way.popleft()
                print(number - len(under_way), flush=True)


def _a_producer_that_is_killed(prefix: str, gateway: _Gateway) -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.rdma.gateway_load", "endless", topic_of(prefix, "killed")]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = 0
        while acknowledged < KILLED_AFTER:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the producer ended by itself")
            acknowledged = int(line)
        if held().queue_pairs == gateway.at_rest.queue_pairs:
            raise RuntimeError("a producer at work has no queue pair")
        process.kill()
        # Its earlier output; the last line may be incomplete.
        for line in process.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
    until_held(gateway.at_rest)
    _tell("killed", acknowledged=acknowledged, seconds=round(time.monotonic() - began, 1))


def main(kafka: str, advertised: str, prefix: str, records: str) -> None:
    """Run all steps, one after the other."""
    nobody = held()
    gateway = _Gateway(kafka, advertised)
    try:
        for step in (
            lambda: asyncio.run(_every_codec(prefix, int(records))),
            lambda: asyncio.run(_gateways_that_are_killed(prefix, gateway)),
            lambda: _a_producer_that_is_killed(prefix, gateway),
        ):
            with _nothing_left(gateway):
                step()
        said = gateway.stop()
        until_held(nobody)
        _tell("stopped", said=said)
    finally:
        gateway.process.kill()


if __name__ == "__main__":
    if sys.argv[1] == "endless":
        asyncio.run(endless(sys.argv[2]))
    else:
        main(*sys.argv[1:])
