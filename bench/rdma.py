"""RDMA compared with TCP: the cost of the code without a card, and latency and throughput with two cards.

Without a card, over the double of the verbs (``aioproducer.testing.verbs``), which copies in place of a card: the CPU
time of the producer's thread, and numbers of posted and signaled writes and copied bytes. This measures the cost of the
code, not speed.

    python -m bench.rdma --double

Lateness of a timer of the loop while all of the producer's memory is registered, connected and sent:

    python -m bench.rdma --ticker --mebibytes 64

With two machines, each with a card: latency of one message and its answer, and throughput of a stream, over both
transports, with a checksum of the data at both ends. TCP uses the port after RDMA's.

    python -m bench.rdma --server 0.0.0.0:9300
    python -m bench.rdma --client 10.0.0.1:9300
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.job import CHUNK, VALUE, Measurement
from bench.processors import give_way, one_processor, quick_switches
from bench.rdma_timing import Layer, TimedConnector, TimedVerbs, clock_cost

if TYPE_CHECKING:
    from aioproducer import Producer
    from aioproducer.testing.verbs import SimulatedFabric
    from aioproducer.transport.rdma import RdmaConnector
    from aioproducer.transport.stream import StreamConnector

TRANSPORTS = ("tcp", "rdma")
PARTITIONS = 4
COUNTED = ("writes_posted", "completions", "signals", "bytes_sent", "bytes_copied")
"""Counters of ``aioproducer.transport.rdma.Counters`` that are shown."""


@dataclass(frozen=True)
class Work:
    """The records to send: in batches of ``batch_size`` bytes, or each awaited before the next is sent."""

    name: str
    records: int
    batch_size: int
    awaited: bool = False
    linger_ms: int = 5

    @property
    def warm_up(self) -> int:
        return max(self.records // 10, 1)


WORKS = (
    Work("batches of 16 KiB", 200_000, 16 * 1024),
    Work("batches of 64 KiB", 200_000, 64 * 1024),
    Work("batches of 128 KiB", 200_000, 128 * 1024),
    Work("one awaited", 2000, 16 * 1024, awaited=True, linger_ms=0),
)


@contextmanager
def broker(transport: str, fabric: SimulatedFabric, begin: Callable[[], None]) -> Iterator[str]:
    """Run an embedded broker in its own thread, because the double works within one process; yield its address.

    The thread first calls ``begin``.
    """
    from aioproducer.testing import EmbeddedCluster

    started: Future[str] = Future()
    end = threading.Event()

    async def run() -> None:
        verbs = fabric if transport == "rdma" else None
        async with EmbeddedCluster(transport=transport, verbs=verbs) as cluster:
            cluster.create_topic("bench", partitions=PARTITIONS)
            started.set_result(cluster.bootstrap_servers)
            await asyncio.to_thread(end.wait)

    def main() -> None:
        try:
            begin()
            asyncio.run(run())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, name="bench-broker")
    thread.start()
    try:
        yield started.result()
    finally:
        end.set()
        thread.join()


@contextmanager
def both_sides(
    transport: str, layer: Layer | None = None, begin: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, RdmaConnector | StreamConnector]]:
    """Yield a broker's address and a connector to it; with a ``layer`` the calls below the transport are timed.

    The broker's thread first calls ``begin``.

    Raises:
        RuntimeError: over RDMA, a write found no posted receive.
    """
    from aioproducer.testing.verbs import SimulatedFabric
    from aioproducer.transport.rdma import RdmaConnector
    from aioproducer.transport.stream import StreamConnector

    fabric = SimulatedFabric()
    connector: RdmaConnector | StreamConnector
    if transport == "rdma":
        connector = RdmaConnector(TimedVerbs(fabric, layer) if layer else fabric)
    else:
        connector = TimedConnector(layer) if layer else StreamConnector()
    with broker(transport, fabric, begin) as address:
        yield address, connector
    if fabric.receiver_not_ready:
        raise RuntimeError("a receiver was not ready")


def run_once(work: Work, transport: str, *, timed: bool) -> Measurement:
    """Run one transport once; with ``timed`` the calls of the layer below are timed, which costs time itself."""
    layer = Layer()
    with both_sides(transport, layer if timed else None, begin=give_way) as (address, connector):
        return asyncio.run(_client(work, address, connector, layer))


async def _client(work: Work, address: str, connector: RdmaConnector | StreamConnector, layer: Layer) -> Measurement:
    from aioproducer import Producer

    async with Producer(
        bootstrap_servers=address, transport=connector, batch_size=work.batch_size, linger_ms=work.linger_ms
    ) as producer:
        await _send(producer, work, work.warm_up)
        before = _counted(producer, connector)
        layer.begin()
        began = time.thread_time_ns()
        await _send(producer, work, work.records)
        cpu = time.thread_time_ns() - began
        of_layer = layer.end()
        found = {name: count - before[name] for name, count in _counted(producer, connector).items()}
    return found | of_layer | {"records": work.records, "cpu_ns": cpu}


async def _send(producer: Producer, work: Work, count: int) -> None:
    if work.awaited:
        for _ in range(count):
            await producer.send("bench", VALUE)
        return
    deliveries = []
    for start in range(0, count, CHUNK):
        for _ in range(min(CHUNK, count - start)):
            deliveries.append(producer.send("bench", VALUE))
        await producer.drain()
    await producer.flush()
    # Raises if a record was lost: the measurement is invalid then.
    for delivery in deliveries:
        await delivery


def _counted(producer: Producer, connector: RdmaConnector | StreamConnector) -> dict[str, int]:
    from aioproducer.transport.rdma import RdmaConnector

    found = {"requests": int(producer.metrics()["request-total"])}
    if isinstance(connector, RdmaConnector):
        found |= {name: getattr(connector.counters, name) for name in COUNTED}
    return found


def summary(plain: Sequence[Measurement], timed: Sequence[Measurement], tick: float) -> dict[str, float]:
    """Return medians: CPU in µs for each record and request, the layer's share of it, and counts for each request.

    ``tick`` is the cost of reading the clock, in nanoseconds: of the two readings around a call, one is part of the
    measured time.
    """
    # Timed runs are used only for the layer's time: timing itself takes time, in proportion to the calls.
    layer = statistics.median(
        max(run["layer_ns"] - run["layer_calls"] * tick, 0) / run["requests"] / 1000 for run in timed
    )
    record = statistics.median(run["cpu_ns"] / run["records"] for run in plain) / 1000
    request = statistics.median(run["cpu_ns"] / run["requests"] for run in plain) / 1000
    own_share = 1 - layer / request
    found = {
        "cpu_us_a_record": record,
        "cpu_us_a_request": request,
        "layer_share": 1 - own_share,
        "own_us_a_record": record * own_share,
        "own_us_a_request": request * own_share,
        "records_a_request": statistics.median(run["records"] / run["requests"] for run in plain),
    }
    for name in COUNTED:
        if name in plain[0]:
            found[f"{name}_a_request"] = statistics.median(run[name] / run["requests"] for run in plain)
    return found


def own_ratios(rounds: Sequence[dict[str, tuple[Measurement, Measurement]]], tick: float) -> list[float]:
    """Return, for each round, a record's time over RDMA divided by that over TCP, both without the layer.

    A round has a plain and a timed run of each transport, because a temporary slowdown of the machine usually affects a
    whole round, not a single transport.
    """
    found = []
    for of in rounds:
        own = {}
        for name, (plain, timed) in of.items():
            layer = max(timed["layer_ns"] - timed["layer_calls"] * tick, 0) / timed["requests"]
            own[name] = plain["cpu_ns"] / plain["records"] - layer * plain["requests"] / plain["records"]
        found.append(own["rdma"] / own["tcp"])
    return found


@one_processor()
def double(works: Sequence[Work], rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Run every work over both transports, in another order each round."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    tick = clock_cost()
    for work in works:
        runs: dict[tuple[str, bool], list[Measurement]] = {}
        kinds = [(transport, timed) for timed in (False, True) for transport in TRANSPORTS]
        for number in range(rounds):
            for transport, timed in kinds[number % 4 :] + kinds[: number % 4]:
                runs.setdefault((transport, timed), []).append(run_once(work, transport, timed=timed))
        print(f"{work.name}: {rounds} rounds", file=sys.stderr)
        found[work.name] = {name: summary(runs[name, False], runs[name, True], tick) for name in TRANSPORTS}
        by_round = [
            {name: (runs[name, False][number], runs[name, True][number]) for name in TRANSPORTS}
            for number in range(rounds)
        ]
        ratios = own_ratios(by_round, tick)
        found[work.name]["rdma by tcp"] = {
            "median": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        }
    return found


@one_processor()
@quick_switches()
def ticker(buffer_memory: int, rounds: int) -> dict[str, list[Measurement]]:
    """Measure the lateness of the producer's loop over both transports, in another order each round."""
    from bench import rdma_ticker

    found: dict[str, list[Measurement]] = {name: [] for name in TRANSPORTS}
    for number in range(rounds):
        for transport in TRANSPORTS[:: -1 if number % 2 else 1]:
            with both_sides(transport, begin=give_way) as (address, connector):
                # Otherwise the garbage of the previous round could be collected during this one.
                gc.collect()
                late = asyncio.run(rdma_ticker.late_while_sending(address, connector, buffer_memory))
            found[transport].append(late)
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the table of docs/rdma.md."""
    lines = [
        "| work | transport | CPU µs a record | without the layer | CPU µs a request | without the layer |"
        " records a request | writes | signals | completions | bytes sent | bytes copied |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for work, transports in found.items():
        for name in TRANSPORTS:
            of = transports[name]
            cells = [f"{of['cpu_us_a_record']:.3f}", f"{of['own_us_a_record']:.3f}"]
            cells += [f"{of['cpu_us_a_request']:.1f}", f"{of['own_us_a_request']:.1f}"]
            cells.append(f"{of['records_a_request']:.0f}")
            counts = ("writes_posted", "signals", "completions")
            cells += [f"{of[f'{one}_a_request']:.2f}" if f"{one}_a_request" in of else "" for one in counts]
            sizes = ("bytes_sent", "bytes_copied")
            cells += [f"{of[f'{one}_a_request']:,.0f}" if f"{one}_a_request" in of else "" for one in sizes]
            lines.append(f"| {work} | {name.upper()} | {' | '.join(cells)} |")
    lines += ["", "| work | RDMA by TCP, a record without the layer |", "|---|---|"]
    for work, transports in found.items():
        ratio = transports["rdma by tcp"]
        lines.append(f"| {work} | {ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f}) |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m bench.rdma", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kind = found.add_mutually_exclusive_group(required=True)
    kind.add_argument("--double", action="store_true", help="CPU cost of the code, without a card")
    kind.add_argument("--ticker", action="store_true", help="lateness of the loop, without a card")
    kind.add_argument("--server", metavar="HOST:PORT", help="answer clients until Ctrl-C; TCP at the next port")
    kind.add_argument("--client", metavar="HOST:PORT", help="measure against a server")
    found.add_argument("--rounds", type=int, default=5, help="runs of each (%(default)s)")
    found.add_argument("--records", type=int, help="records of each run, with --double; a hundredth if each is awaited")
    found.add_argument("--work", default="", metavar="TEXT", help="with --double: works whose names contain this")
    found.add_argument("--device", help="RDMA device (the first that works)")
    found.add_argument("--gid", help="address of the device (the first that works)")
    found.add_argument("--mebibytes", type=int, default=1024, help="MiB of each stream, or of memory (%(default)s)")
    found.add_argument("--echoes", type=int, default=2000, help="messages of each size (%(default)s)")
    found.add_argument("--unchecked", action="store_true", help="no checksums: they may be slower than the network")
    found.add_argument("--output", type=Path, metavar="FILE", help="all figures as JSON")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print tables."""
    asked = parser()
    chosen = asked.parse_args(arguments)
    if min(chosen.rounds, chosen.mebibytes, chosen.echoes, chosen.records or 1) < 1:
        asked.error("--rounds, --records, --mebibytes and --echoes must be at least 1")
    if chosen.double:
        works = [work for work in WORKS if chosen.work in work.name]
        if not works:
            asked.error(f"no work has {chosen.work!r} in its name; there are: {', '.join(work.name for work in WORKS)}")
        if chosen.records:
            works = [replace(work, records=max(chosen.records // (100 if work.awaited else 1), 1)) for work in works]
        counted = double(works, chosen.rounds)
        print(table(counted))
        text = json.dumps(counted, indent=2)
    elif chosen.ticker:
        from bench import rdma_ticker

        late = ticker(chosen.mebibytes * 2**20, chosen.rounds)
        print(rdma_ticker.table(late))
        text = json.dumps(late, indent=2)
    else:
        from bench import rdma_link

        try:
            host, port = rdma_link.address_of(chosen.server or chosen.client)
        except ValueError as error:
            asked.error(str(error))
        if chosen.server:
            return rdma_link.serve_until_interrupted(host, port, chosen.device, chosen.gid)
        try:
            measured = asyncio.run(
                rdma_link.measure(
                    host,
                    port,
                    rdma_link.connectors(chosen.device, chosen.gid),
                    rounds=chosen.rounds,
                    stream_bytes=chosen.mebibytes * 2**20,
                    echoes=chosen.echoes,
                    checked=not chosen.unchecked,
                )
            )
        except OSError as error:
            print(error, file=sys.stderr)
            return 1
        print(rdma_link.table(measured))
        text = json.dumps(measured, indent=2)
    if chosen.output:
        chosen.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
