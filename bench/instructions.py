"""Count the instructions per record of the producer's paths: `python -m bench.instructions`.

callgrind counts the instructions that the producer's process executes outside the kernel. Other load on the machine
does not change them, so a change of a few percent shows in one run. The embedded broker runs in its own process and is
not counted. Each path runs twice, with few and with many records; the difference of the two counts, divided by the
difference in records, excludes the start of the process. The fewest instructions of several rounds count: CPython
caches attributes by address and hash, and in some layouts two hot ones evict each other. A lone send also depends on
the broker's response time: on an idle machine it took up to 4 % fewer. Needs valgrind and the compiled modules; takes
about a minute and a half for each path.

``--compare`` prints the ratio to the recorded figures (bench/recorded/instructions.json) and ends with exit code 1 if a
path takes over 2 % more; ``--record`` replaces them.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.child import loop_factory
from bench.embedded import embedded_broker
from bench.job import VALUE

if TYPE_CHECKING:
    from aioproducer import Producer, Record, RecordMetadata
    from aioproducer.record import HeaderPair

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "bench" / "recorded" / "instructions.json"
TOPIC = "instructions"
PARTITIONS = 50
FLUSH_EVERY = 1000
# The transactional id of paths with transactions. Under callgrind their one transaction takes half a minute.
TRANSACTIONAL: Mapping[str, Any] = {"transactional_id": "instructions", "transaction_timeout_ms": 600_000}
# All records of one flush fit into one batch, so that the number of requests does not depend on time.
BATCH_SIZE = 256 * 1024
TOLERANCE = 1.02

TEXT = "x" * 100
KEY = b"user-1234"
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Returning:
    """An interceptor that returns every record unchanged."""

    def on_send(self, record: Record) -> Record:
        return record


class Tracing:
    """An interceptor that passes on the caller's trace context, by OpenTelemetry's own propagator."""

    def __init__(self) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._inject = TraceContextTextMapPropagator().inject

    @staticmethod
    def set(carrier: list[HeaderPair], key: str, value: str) -> None:
        """Append a header, as the propagator's setter."""
        carrier.append((key, value.encode()))

    def on_headers(self, topic: str, headers: list[HeaderPair]) -> None:
        self._inject(headers, setter=self)


class Appending:
    """An interceptor that replaces every record by one with a further header."""

    def on_send(self, record: Record) -> Record:
        return record.replace(headers=(*record.headers, ("trace", TRACE)))


class HeaderAppending:
    """An interceptor that appends a header to every record's headers."""

    def on_headers(self, topic: str, headers: list[HeaderPair]) -> None:
        headers.append(("trace", TRACE))


class Acknowledged:
    """An interceptor that counts outcomes."""

    def __init__(self) -> None:
        self.count = 0

    def on_acknowledgement(self, metadata: RecordMetadata, exception: BaseException | None) -> None:
        self.count += 1


async def _send(producer: Producer, records: int) -> None:
    for _ in range(records // FLUSH_EVERY):
        for _ in range(FLUSH_EVERY):
            producer.send(TOPIC, VALUE, partition=0)
        await producer.flush()


async def _send_in_transaction(producer: Producer, records: int) -> None:
    async with producer.transaction():
        await _send(producer, records)


async def _transaction_send(producer: Producer, records: int) -> None:
    async with producer.transaction() as transaction:
        for _ in range(records // FLUSH_EVERY):
            for _ in range(FLUSH_EVERY):
                transaction.send(TOPIC, VALUE, partition=0)
            await producer.flush()


async def _commit(producer: Producer, records: int) -> None:
    for _ in range(records):
        async with producer.transaction() as transaction:
            transaction.send(TOPIC, VALUE, partition=0)


async def _drain(producer: Producer, records: int) -> None:
    # Under callgrind half a millisecond passes every ten records, and each time `drain` lets other tasks run.
    producer._turn_began = float("inf")
    for _ in range(records // FLUSH_EVERY):
        for _ in range(FLUSH_EVERY):
            producer.send(TOPIC, VALUE, partition=0)
            await producer.drain()
        await producer.flush()


async def _traced(producer: Producer, records: int) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider().get_tracer("bench").start_as_current_span("request"):
        await _send(producer, records)


async def _injected(producer: Producer, records: int) -> None:
    """Inject the trace context directly, into a list that is not sent."""
    from opentelemetry.sdk.trace import TracerProvider

    tracing = Tracing()
    with TracerProvider().get_tracer("bench").start_as_current_span("request"):
        for _ in range(records):
            tracing.on_headers(TOPIC, [])


async def _bare_callbacks(producer: Producer, records: int) -> None:
    """Run the same number of futures' callbacks, without a producer."""
    loop = asyncio.get_running_loop()
    for _ in range(records // FLUSH_EVERY):
        futures = [loop.create_future() for _ in range(FLUSH_EVERY)]
        for future in futures:
            future.add_done_callback(_ignore)
        for future in futures:
            future.set_result(None)
        await asyncio.sleep(0)


async def _bare_awaits(producer: Producer, records: int, coroutines: int = 200) -> None:
    """Resume the same number of coroutines by futures of the loop, without a producer."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def resolve() -> None:
        for future in waiting:
            future.set_result(None)
        waiting.clear()
        if not all(task.done() for task in tasks):
            loop.call_soon(resolve)

    async def one() -> None:
        for _ in range(records // coroutines):
            waiting.append(future := loop.create_future())
            await future

    tasks = [loop.create_task(one()) for _ in range(coroutines)]
    loop.call_soon(resolve)
    await asyncio.gather(*tasks)


def _ignore(done: object) -> None:
    pass


async def _call_back(producer: Producer, records: int) -> None:
    for _ in range(records // FLUSH_EVERY):
        for _ in range(FLUSH_EVERY):
            producer.send(TOPIC, VALUE, partition=0).add_done_callback(_ignore)
        await producer.flush()


async def _gathered(producer: Producer, records: int, coroutines: int = 200) -> None:
    async def one() -> None:
        for _ in range(records // coroutines):
            await producer.send(TOPIC, TEXT, KEY, partition=0, headers=[("trace", TRACE), ("source", b"bench")])

    await asyncio.gather(*[one() for _ in range(coroutines)])


async def _by_hand(producer: Producer, records: int) -> None:
    for _ in range(records // FLUSH_EVERY):
        for _ in range(FLUSH_EVERY):
            producer.send(TOPIC, TEXT.encode(), KEY, partition=0, headers=[("trace", TRACE), ("source", b"bench")])
        await producer.flush()


async def _record(producer: Producer, records: int) -> None:
    for _ in range(records // FLUSH_EVERY):
        for _ in range(FLUSH_EVERY):
            producer.send(TOPIC, TEXT, KEY, partition=0, headers=[("trace", TRACE), ("source", b"bench")])
        await producer.flush()


async def _send_many(producer: Producer, records: int) -> None:
    values = [VALUE] * FLUSH_EVERY
    for _ in range(records // FLUSH_EVERY):
        await producer.send_many(TOPIC, values, partition=0)
        await producer.flush()


async def _lone(producer: Producer, records: int) -> None:
    for _ in range(records):
        await producer.send(TOPIC, VALUE, partition=0)


async def _answer(producer: Producer, records: int) -> None:
    for _ in range(records // PARTITIONS):
        deliveries = [producer.send(TOPIC, VALUE, partition=partition) for partition in range(PARTITIONS)]
        flushing = asyncio.ensure_future(producer.flush())
        for delivery in deliveries:
            await delivery
        await flushing


class Workload(NamedTuple):
    """The function that sends, the records of the short and the long run, and further keys of the producer."""

    send: Callable[[Producer, int], Awaitable[None]]
    few: int
    many: int
    linger_ms: int
    meaning: str
    config: Mapping[str, Any] = {}
    # False for a comparison that does not use the producer.
    sends: bool = True


PATHS = {
    "send": Workload(_send, 2_000, 12_000, 60_000, "a record of 100 bytes, its batch flushed with 1,000 others"),
    "transaction": Workload(
        _send_in_transaction, 2_000, 12_000, 60_000, "the same inside a transaction, by producer.send", TRANSACTIONAL
    ),
    "transaction.send": Workload(
        _transaction_send, 2_000, 12_000, 60_000, "the same inside a transaction, by transaction.send", TRANSACTIONAL
    ),
    "commit": Workload(_commit, 100, 600, 0, "one record for each transaction", TRANSACTIONAL),
    "drain": Workload(_drain, 2_000, 12_000, 60_000, "a send followed by drain"),
    "callback": Workload(_call_back, 2_000, 12_000, 60_000, "a send with a done callback"),
    "bare callback": Workload(
        _bare_callbacks, 2_000, 12_000, 0, "a done callback of the loop's own future", sends=False
    ),
    "bare await": Workload(
        _bare_awaits, 2_000, 12_000, 0, "a future of the loop, awaited by 200 coroutines", sends=False
    ),
    "gathered": Workload(
        _gathered,
        2_000,
        12_000,
        0,
        "key, two headers and value_serializer, awaited by 200 coroutines",
        {"value_serializer": str.encode},
    ),
    "by hand": Workload(_by_hand, 2_000, 12_000, 60_000, "the same with key, two headers and an encoded text"),
    "record": Workload(
        _record, 2_000, 12_000, 60_000, "the same, encoded by value_serializer", {"value_serializer": str.encode}
    ),
    "on_send": Workload(
        _send, 2_000, 12_000, 60_000, "a send with an interceptor that returns it", {"interceptor_classes": [Returning]}
    ),
    "on_send, header": Workload(
        _send,
        2_000,
        12_000,
        60_000,
        "a send with an interceptor that returns it with another header",
        {"interceptor_classes": [Appending]},
    ),
    "on_headers": Workload(
        _send,
        2_000,
        12_000,
        60_000,
        "a send with an interceptor that appends a header",
        {"interceptor_classes": [HeaderAppending]},
    ),
    "inject": Workload(
        _injected, 2_000, 12_000, 0, "OpenTelemetry's propagator alone, in a recording span", sends=False
    ),
    "tracing": Workload(
        _traced,
        2_000,
        12_000,
        60_000,
        "a send with an on_headers that calls the propagator, in a recording span",
        {"interceptor_classes": [Tracing]},
    ),
    "tracing, no span": Workload(
        _send, 2_000, 12_000, 60_000, "the same outside of any span", {"interceptor_classes": [Tracing]}
    ),
    "on_acknowledgement": Workload(
        _send, 2_000, 12_000, 60_000, "a send whose outcome is reported", {"interceptor_classes": [Acknowledged]}
    ),
    "send_many": Workload(_send_many, 2_000, 22_000, 60_000, "a row of a list of 1,000, flushed"),
    "lone": Workload(_lone, 100, 600, 0, "a send that is awaited before the next one"),
    "answer": Workload(_answer, 500, 3_000, 60_000, "an awaited record alone in its batch, 50 batches a request"),
}


async def run(name: str, bootstrap_servers: str, records: int) -> None:
    """Send a record to each partition, then the records of a path."""
    from aioproducer import Producer

    path = PATHS[name]
    async with Producer(
        bootstrap_servers=bootstrap_servers,
        linger_ms=path.linger_ms,
        batch_size=BATCH_SIZE,
        delivery_timeout_ms=600_000,
        **path.config,
    ) as producer:
        # Create the queue of every partition before counting.
        value = TEXT if "value_serializer" in path.config else VALUE
        async with producer.transaction() if "transactional_id" in path.config else nullcontext():
            first = [producer.send(TOPIC, value, partition=partition) for partition in range(PARTITIONS)]
            await producer.flush()
            await asyncio.gather(*first)
        gc.collect()
        gc.disable()
        await path.send(producer, records)


async def _create_topic(bootstrap_servers: str) -> None:
    """Create the topic. Otherwise only the first run would get an error, and import the errors' texts for it."""
    from aioproducer.admin import Admin

    async with Admin(bootstrap_servers=bootstrap_servers) as admin:
        await admin.create_topic(TOPIC)


def _count(name: str, bootstrap_servers: str, records: int, loop: str, seed: int, found: Path) -> int:
    """Return the instructions of a process that sends ``records`` records under the hash seed ``seed``."""
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={found}"]
    command += [sys.executable, "-m", "bench.instructions", "--child", name, bootstrap_servers, str(records), loop]
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"bench.instructions: {' '.join(command)}: {ran.stderr}")
    (total,) = re.findall(r"^(?:totals|summary): (\d+)", found.read_text(), re.MULTILINE)[-1:]
    return int(total)


def count(names: Sequence[str], loop: str, rounds: int, folder: Path) -> dict[str, int]:
    """Instructions per record of each path, the fewest of several rounds; callgrind's files go into ``folder``."""
    figures = {}
    # Otherwise a run would compile modules without bytecode, which counts.
    for package in ("aioproducer", "bench"):
        compileall.compile_dir(ROOT / package, quiet=1)
    with embedded_broker("-X", f"num.partitions={PARTITIONS}") as address:
        asyncio.run(_create_topic(address))
        for name in names:
            path = PATHS[name]
            file_name = re.sub(r"\W", "_", name)
            found = []
            for seed in range(rounds):
                few, many = (
                    _count(name, address, records, loop, seed, folder / f"{file_name}.{records}.{seed}")
                    for records in (path.few, path.many)
                )
                found.append(round((many - few) / (path.many - path.few)))
            figures[name] = min(found)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print a table, compare or record."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", choices=PATHS, action="append", help="one path (default: all)")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="%(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each path (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="callgrind's files, for callgrind_annotate")
    parser.add_argument("--compare", action="store_true", help="fail if a path takes over 2 %% more than recorded")
    parser.add_argument("--record", action="store_true", help="replace the recorded figures")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        name, bootstrap_servers, records, loop = options.child
        from aioproducer import Producer

        if not Producer.compiled:
            raise SystemExit("bench.instructions: the modules are not compiled: run `make compiled` first")
        with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
            runner.run(run(name, bootstrap_servers, int(records)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        figures = count(options.path or list(PATHS), options.loop, options.rounds, folder)
    recorded: dict[str, int] = json.loads(RECORDED.read_text()).get(options.loop, {}) if RECORDED.exists() else {}
    print("| path | a record is | instructions per record | to the recorded |\n|---|---|---|---|")
    for name, figure in figures.items():
        ratio = f"{figure / recorded[name]:.3f}" if name in recorded else "-"
        print(f"| {name} | {PATHS[name].meaning} | {figure:,} | {ratio} |")
    if options.record:
        kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**kept, options.loop: {**recorded, **figures}}, indent=2) + "\n")
    if options.compare:
        return int(any(figure > TOLERANCE * recorded.get(name, figure) for name, figure in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
