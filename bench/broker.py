"""Throughput of the embedded broker, compared with Apache Kafka in the same run.

A raw socket in its own process repeats one Produce request, five in flight: a batch of 128 KiB of 100-byte values for
one partition, acks=all; each response is checked for errors. The brokers take turns in each round. Each run has its own
topic, which is deleted afterwards. For embedded brokers the CPU time of the process is shown too, as the least of the
rounds: it depends less on other load of the machine.

    python bench/broker.py [--megabytes N] [--rounds N] [--json PATH]

The embedded broker's rows use the build's default of aioproducer.validate.records, except for two that set it: their
difference is the cost of reading every record. AIOPRODUCER_PURE=1 in the environment measures the sources.

Afterwards the same load shows how long single callbacks of the embedded broker's event loop take, in CPU time of the
thread. Finally, clusters are started to show how long a start with a first topic takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

BATCH_SIZE = 128 * 1024
RECORDS_READ, HEADERS_READ = "embedded, records read", "embedded, headers read"
SERVERS = ("embedded memory", "embedded memory uvloop", "embedded disk", RECORDS_READ, HEADERS_READ, "Apache Kafka")


def load(bootstrap: str, megabytes: int) -> dict[str, float]:
    """Send ``megabytes`` (of 10^6 bytes) of batches and print how long it took."""
    from aioproducer.protocol.messages import CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest
    from aioproducer.protocol.messages.metadata import MetadataRequestTopic
    from aioproducer.protocol.messages.topics import CreatableTopic
    from bench.raw_socket import IN_FLIGHT, ask, batch_of, check_responses, connect, fitting, frame_of, replay

    topic = f"load-{os.getpid()}"
    with connect(bootstrap) as sock:
        created = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        answer = ask(sock, CreateTopicsRequest(topics=[created], timeout_ms=30_000), 7)
        if answer.topics[0].error_code:
            raise RuntimeError(f"the topic was refused: {answer.topics[0]}")
        while True:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            (found,) = ask(sock, asked, 12).topics
            if not found.error_code and all(partition.leader_id >= 0 for partition in found.partitions):
                break
            time.sleep(0.05)
        batch = batch_of(fitting(BATCH_SIZE))
        total = max(megabytes * 1_000_000 // len(batch), IN_FLIGHT)
        frames = [frame_of(topic, 0, batch)]
        began = time.perf_counter()
        responses = replay(sock, frames, total)
        elapsed = time.perf_counter() - began
        check_responses(responses)
        ask(sock, DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000), 4)
    return {"bytes": total * len(batch), "batches": total, "elapsed": elapsed}


async def serve(data_dir: str | None, validate_records: str | None, slow_callbacks: list[int]) -> None:
    """Run an embedded broker until standard input ends."""
    from aioproducer.broker import BrokerCluster

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, ended.set)
    properties: dict[str, object] = {"log.segment.bytes": 64 * 1024 * 1024}
    if validate_records is not None:
        properties["aioproducer.validate.records"] = validate_records
    async with BrokerCluster(1, data_dir=Path(data_dir) if data_dir else None, properties=properties) as cluster:
        # Exclude import and start from the measurement. The current callback ends only at the next await.
        await asyncio.sleep(0)
        slow_callbacks.clear()
        began = time.process_time()
        print(cluster.bootstrap_servers, flush=True)
        await ended.wait()
        loop.remove_reader(sys.stdin)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    summary = {"cpu": time.process_time() - began, "peak_mib": usage.ru_maxrss / 1024}
    if slow_callbacks:
        slow_callbacks.sort()
        summary |= {
            "callbacks": len(slow_callbacks),
            "median_us": slow_callbacks[len(slow_callbacks) // 2] / 1000,
            "p99.9_us": slow_callbacks[int(len(slow_callbacks) * 0.999)] / 1000,
            "max_us": slow_callbacks[-1] / 1000,
        }
    print(json.dumps(summary), flush=True)


def _time_callbacks() -> list[int]:
    """Record the CPU time, in nanoseconds, of every callback that asyncio's loop runs from now on."""
    taken: list[int] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time_ns()
        run(handle)
        taken.append(time.thread_time_ns() - began)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    return taken


async def _start_up(nodes: int, data_dir: Path | None, rounds: int = 20) -> float:
    """Return the median milliseconds until a cluster has started and has its first topic."""
    from aioproducer.broker import BrokerCluster

    taken = []
    for number in range(rounds):
        folder = None if data_dir is None else data_dir / f"{nodes}-{number}"
        began = time.perf_counter()
        async with BrokerCluster(nodes, data_dir=folder) as cluster:
            cluster.create_topic("first", num_partitions=1, replication_factor=nodes)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


@contextmanager
def embedded(*options: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Run an embedded broker in its own process; yield its address and, after its end, its summary."""
    command = [sys.executable, __file__, "serve", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        summary: dict[str, float] = {}
        bootstrap = process.stdout.readline().strip()
        if not bootstrap:
            raise RuntimeError("the embedded broker did not start")
        try:
            yield bootstrap, summary
        finally:
            process.stdin.close()
            summary.update(json.loads(process.stdout.read()))


def _measure(bootstrap: str, megabytes: int) -> dict[str, float]:
    command = [sys.executable, __file__, "load", bootstrap, str(megabytes)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    result: dict[str, float] = json.loads(finished.stdout)
    return result


@contextmanager
def _server(name: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Run a broker; yield its address and, after its end, its summary (empty for Apache Kafka)."""
    from tests.kafka.cluster import KafkaCluster

    if name == "Apache Kafka":
        # Its just-in-time compiler and heap have their defaults, unlike in the tests.
        with KafkaCluster(1, jvm_options=("-Xmx1g",)) as cluster:
            yield cluster.bootstrap_servers, {}
        return
    with tempfile.TemporaryDirectory() as folder:
        options = []
        if "uvloop" in name:
            options.append("--uvloop")
        if "disk" in name:
            options += ["--data", folder]
        if name in (RECORDS_READ, HEADERS_READ):
            options += ["--validate", "true" if name == RECORDS_READ else "false"]
        with embedded(*options) as served:
            yield served


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--megabytes", type=int, default=400, help="sent in a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write every measurement there")
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in SERVERS}
    seconds: dict[str, list[float]] = {name: [] for name in SERVERS}
    for name in SERVERS:
        with _server(name) as (bootstrap, _):
            # Warms up a just-in-time compiler; the same for all brokers.
            _measure(bootstrap, arguments.megabytes)
    from contextlib import ExitStack

    with ExitStack() as stack:
        kafka, _ = stack.enter_context(_server("Apache Kafka"))
        _measure(kafka, 2 * arguments.megabytes)
        for round_number in range(arguments.rounds):
            for name in SERVERS:
                if name == "Apache Kafka":
                    measured = _measure(kafka, arguments.megabytes)
                else:
                    with _server(name) as (bootstrap, summary):
                        measured = _measure(bootstrap, arguments.megabytes)
                    seconds[name].append(summary["cpu"] / measured["bytes"] * 1e9)
                rates[name].append(measured["bytes"] / measured["elapsed"] / 1e6)
                print(f"round {round_number + 1}: {name}: {rates[name][-1]:.0f} MB/s", flush=True)
    reference = statistics.median(rates["Apache Kafka"])
    print(f"\n{'broker':<24}{'MB/s':>8}{'min':>8}{'max':>8}{'to Kafka':>10}{'CPU s/GB':>10}")
    for name, found in rates.items():
        median = statistics.median(found)
        print(f"{name:<24}{median:>8.0f}{min(found):>8.0f}{max(found):>8.0f}{median / reference:>10.2f}", end="")
        # The round with the least disturbance by other processes.
        print(f"{min(seconds[name]):>10.2f}" if seconds[name] else "")
    with embedded("--time-callbacks") as (bootstrap, summary):
        _measure(bootstrap, arguments.megabytes)
    print(
        f"\ncallbacks of the loop under this load, CPU time: {summary['callbacks']:.0f}, median "
        f"{summary['median_us']:.0f} us, p99.9 {summary['p99.9_us']:.0f} us, longest {summary['max_us']:.0f} us"
    )
    start_up = {}
    with tempfile.TemporaryDirectory() as folder:
        for nodes in (1, 3):
            start_up[f"{nodes} in memory"] = asyncio.run(_start_up(nodes, None))
            start_up[f"{nodes} on disk"] = asyncio.run(_start_up(nodes, Path(folder)))
    print("start and first topic, nodes: " + ", ".join(f"{name} {taken:.1f} ms" for name, taken in start_up.items()))
    if arguments.json:
        found = {
            "megabytes_per_second": rates,
            "cpu_seconds_per_gigabyte": seconds,
            "callbacks": summary,
            "start_up_ms": start_up,
        }
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        print(json.dumps(load(sys.argv[2], int(sys.argv[3]))))
    elif sys.argv[1:2] == ["serve"]:
        options = sys.argv[2:]
        taken = _time_callbacks() if "--time-callbacks" in options else []
        folder = options[options.index("--data") + 1] if "--data" in options else None
        validate = options[options.index("--validate") + 1] if "--validate" in options else None
        if "--uvloop" in options:
            import uvloop

            uvloop.run(serve(folder, validate, taken))
        else:
            asyncio.run(serve(folder, validate, taken))
    else:
        main()
