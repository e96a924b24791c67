"""Producers side by side: records per second, and CPU time of the client's process per record.

Starts Apache Kafka (see tests/kafka), then runs every client in turn, several rounds, each run in a process of its own:
no client profits from a quiet machine, or from what another has left. All do the same work: values of 100 bytes without
key to one topic of four partitions, acks=all, idempotence on, linger 5 ms, batches of 128 KiB, no compression, and the
outcome of every record is known at the end. What is stored is counted at the broker after each run.

    python bench/peers.py [--quick] [--records N] [--rounds N] [--clients NAME,...] [--json PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

VALUE = b"x" * 100
PARTITIONS = 4
LINGER_MS = 5
BATCH_SIZE = 128 * 1024


@dataclass(frozen=True)
class Measurement:
    """One run of one client; times in seconds."""

    records: int
    elapsed: float
    user: float
    system: float


class Stopwatch:
    """Wall and CPU time of this process."""

    def __init__(self) -> None:
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._began = time.perf_counter()

    def stop(self, records: int) -> Measurement:
        elapsed = time.perf_counter() - self._began
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Measurement(
            records, elapsed, usage.ru_utime - self._usage.ru_utime, usage.ru_stime - self._usage.ru_stime
        )


# A client sends `warm_up` records, then `records` more, which it measures.
Client = Callable[[str, str, int, int], Measurement]


def _check(failed: int) -> None:
    if failed:
        raise RuntimeError(f"{failed} records failed")


async def _aioproducer_send(bootstrap: str, topic: str, warm_up: int, records: int) -> Measurement:
    from aioproducer import Producer

    async with Producer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=LINGER_MS, batch_size=BATCH_SIZE
    ) as producer:

        async def send(count: int) -> list[asyncio.Future[object]]:
            deliveries = []
            for number in range(count):
                deliveries.append(producer.send(topic, VALUE))
                if number % 100 == 99:
                    await producer.drain()
            await producer.flush()
            return deliveries

        await send(warm_up)
        watch = Stopwatch()
        deliveries = await send(records)
        measured = watch.stop(records)
        _check(sum(delivery.exception() is not None for delivery in deliveries))
        return measured


async def _aioproducer_send_many(bootstrap: str, topic: str, warm_up: int, records: int) -> Measurement:
    from aioproducer import Producer

    values = [VALUE] * max(warm_up, records)
    async with Producer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=LINGER_MS, batch_size=BATCH_SIZE
    ) as producer:
        await producer.send_many(topic, values[:warm_up])
        values = values[:records]
        watch = Stopwatch()
        result = await producer.send_many(topic, values)
        measured = watch.stop(records)
        _check(result.count - result.acked)
        return measured


async def _aiokafka(bootstrap: str, topic: str, warm_up: int, records: int) -> Measurement:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_SIZE,
    )
    await producer.start()

    async def send(count: int) -> list[asyncio.Future[object]]:
        futures = [await producer.send(topic, VALUE) for _ in range(count)]
        await producer.flush()
        return futures

    try:
        await send(warm_up)
        watch = Stopwatch()
        futures = await send(records)
        measured = watch.stop(records)
        _check(sum(future.exception() is not None for future in futures))
        return measured
    finally:
        await producer.stop()


def _librdkafka(bootstrap: str) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": LINGER_MS,
        "batch.size": BATCH_SIZE,
    }


def _confluent(bootstrap: str, topic: str, warm_up: int, records: int) -> Measurement:
    from confluent_kafka import KafkaError, Message, Producer

    outcomes = {"acked": 0, "failed": 0}

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcomes["acked" if error is None else "failed"] += 1

    producer = Producer(_librdkafka(bootstrap))

    def send(count: int) -> None:
        for _ in range(count):
            while True:
                try:
                    producer.produce(topic, VALUE, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush()

    send(warm_up)
    watch = Stopwatch()
    send(records)
    measured = watch.stop(records)
    _check(warm_up + records - outcomes["acked"])
    return measured


async def _confluent_aio(bootstrap: str, topic: str, warm_up: int, records: int) -> Measurement:
    from confluent_kafka.aio import AIOProducer

    producer = AIOProducer(_librdkafka(bootstrap))

    async def send(count: int) -> list[asyncio.Future[object]]:
        futures: list[asyncio.Future[object]] = []
        while len(futures) < count:
            window = [await producer.produce(topic, VALUE) for _ in range(min(20_000, count - len(futures)))]
            # Its queue raises BufferError into the futures instead of making the caller wait: bound what is under way.
            await producer.flush()
            futures += window
        await asyncio.gather(*futures)
        return futures

    try:
        await send(warm_up)
        watch = Stopwatch()
        await send(records)
        return watch.stop(records)
    finally:
        await producer.close()


AsyncClient = Callable[[str, str, int, int], Awaitable[Measurement]]


def _on_asyncio(client: AsyncClient) -> Client:
    def run(bootstrap: str, topic: str, warm_up: int, records: int) -> Measurement:
        with asyncio.Runner() as runner:
            return runner.run(client(bootstrap, topic, warm_up, records))  # type: ignore[arg-type]  # a coroutine

    return run


def _on_uvloop(client: AsyncClient) -> Client:
    def run(bootstrap: str, topic: str, warm_up: int, records: int) -> Measurement:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(client(bootstrap, topic, warm_up, records))  # type: ignore[arg-type]  # a coroutine

    return run


# The first is what the others are compared with.
CLIENTS: dict[str, Client] = {
    "aioproducer send, uvloop": _on_uvloop(_aioproducer_send),
    "aioproducer send, asyncio": _on_asyncio(_aioproducer_send),
    "aioproducer send_many, uvloop": _on_uvloop(_aioproducer_send_many),
    "aioproducer send_many, asyncio": _on_asyncio(_aioproducer_send_many),
    "aiokafka, uvloop": _on_uvloop(_aiokafka),
    "confluent-kafka, callback": _confluent,
    "confluent-kafka aio, asyncio": _on_asyncio(_confluent_aio),
}


def _run_one(arguments: argparse.Namespace) -> None:
    """In the child: measure one client and print what came out."""
    client = CLIENTS[arguments.client]
    measured = client(arguments.bootstrap, arguments.topic, arguments.warm_up, arguments.records)
    print(json.dumps(asdict(measured)))


def _run_in_child(name: str, bootstrap: str, topic: str, warm_up: int, records: int) -> Measurement | str:
    command = [sys.executable, __file__, "--client", name, "--bootstrap", bootstrap, "--topic", topic]
    command += ["--warm-up", str(warm_up), "--records", str(records)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if run.returncode != 0:
        return run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit code {run.returncode}"
    return Measurement(**json.loads(run.stdout.splitlines()[-1]))


def _stored(bootstrap: str, topic: str) -> int:
    """How many records the topic holds, by its offsets."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "log_level": 0})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, number)) for number in range(PARTITIONS)]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()


def _table(results: dict[str, list[Measurement]]) -> str:
    def microseconds(measured: Measurement) -> float:
        return (measured.user + measured.system) / measured.records * 1e6

    rows = {
        name: (
            statistics.median(one.records / one.elapsed for one in measurements),
            statistics.median(microseconds(one) for one in measurements),
            min(microseconds(one) for one in measurements),
            max(microseconds(one) for one in measurements),
        )
        for name, measurements in results.items()
        if measurements
    }
    if not rows:
        return "no client finished a run"
    first_rate, first_cpu, _, _ = next(iter(rows.values()))
    lines = [f"{'client':<32}{'records/s':>12}{'ratio':>8}{'CPU µs/record':>16}{'ratio':>8}{'min..max':>16}"]
    for name, (rate, cpu, least, most) in rows.items():
        spread = f"{least:.2f}..{most:.2f}"
        lines.append(
            f"{name:<32}{rate:>12,.0f}{rate / first_rate:>8.2f}{cpu:>16.2f}{cpu / first_cpu:>8.2f}{spread:>16}"
        )
    return "\n".join(lines)


def _environment() -> dict[str, str | int | None]:
    packages = ["aioproducer", "aiokafka", "confluent-kafka", "uvloop"]
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        **{package: version(package) for package in packages},
    }


def _compare(arguments: argparse.Namespace) -> int:
    from tests.kafka.cluster import KafkaCluster

    names = arguments.clients.split(",") if arguments.clients else list(CLIENTS)
    unknown = [name for name in names if name not in CLIENTS]
    if unknown:
        raise SystemExit(f"no such client: {unknown}; there are {list(CLIENTS)}")
    records = arguments.records or (50_000 if arguments.quick else 300_000)
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    warm_up = max(records // 10, 1000)
    results: dict[str, list[Measurement]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    # Kafka as it comes, with the compiler that a quick start does without.
    with KafkaCluster(1, jvm_options=("-Xmx1g", "-Xms1g")) as cluster:
        # Nobody's numbers: the broker's compiler gets warm.
        topic = cluster.create_topic("bench-warm-up", PARTITIONS)
        for _ in range(1 if arguments.quick else 3):
            _run_in_child("confluent-kafka, callback", cluster.bootstrap_servers, topic, warm_up, records)
        for round_number in range(rounds):
            # Another order each round: who comes first finds the broker's caches coldest.
            shift = round_number % len(names)
            for name in names[shift:] + names[:shift]:
                if name in failures:
                    continue
                topic = cluster.create_topic(f"bench-{round_number}-{names.index(name)}", PARTITIONS)
                measured = _run_in_child(name, cluster.bootstrap_servers, topic, warm_up, records)
                stored = _stored(cluster.bootstrap_servers, topic)
                if isinstance(measured, Measurement) and stored != warm_up + records:
                    measured = f"{stored} of {warm_up + records} records are stored"
                if isinstance(measured, str):
                    failures[name] = measured
                else:
                    results[name].append(measured)
                cluster.delete_topic(topic)
    print(f"{records:,} records of {len(VALUE)} bytes, {PARTITIONS} partitions, median of {rounds}")
    print(_table(results))
    for name, failure in failures.items():
        print(f"{name}: failed: {failure}")
    report = {
        "environment": _environment(),
        "records": records,
        "rounds": rounds,
        "results": {name: [asdict(one) for one in measurements] for name, measurements in results.items()},
        "failures": failures,
    }
    Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Producers for Apache Kafka side by side")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, measures little")
    parser.add_argument("--records", type=int, default=0, help="records per run (300,000; 50,000 with --quick)")
    parser.add_argument("--rounds", type=int, default=0, help="runs of each client (5; 1 with --quick)")
    parser.add_argument("--clients", default="", help="some of the clients, by their names in the table")
    parser.add_argument("--json", default=str(ROOT / "bench" / "peers.json"), help="where the numbers go")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    parser.add_argument("--warm-up", type=int, default=1000, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        _run_one(arguments)
        return 0
    return _compare(arguments)


if __name__ == "__main__":
    sys.exit(main())
